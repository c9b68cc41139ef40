"""The node: takes feeds by lease and reconciles what runs with the state.

Import the module you need; this package imports none, so that reading the job table costs
neither Spark nor a source's driver.
"""

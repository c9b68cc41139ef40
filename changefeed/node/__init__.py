"""The node: adopts feeds by lease and makes what runs equal to what the catalog says.

Import the module you need; this package imports none, so that reading the job table costs
neither Spark nor a source's driver.
"""

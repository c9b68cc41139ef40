"""Feeds as jobs: their states and moves (:mod:`.model`), the node that adopts them by lease,
the runner of one feed and the capture of one source.

Import the module you need; this package imports none, so that reading the job table costs
neither Spark nor a source's driver.
"""

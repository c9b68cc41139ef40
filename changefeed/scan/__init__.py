"""The initial scan of a feed's tables, and backfills.

* :mod:`.coordinator` decides which tables a feed must scan and when a scan starts.
* :mod:`.thread` runs one scan: one snapshot, its tables one after another.
* :mod:`.table` reads and delivers one table; :mod:`.spark` does so in Spark's workers.
* :mod:`.barrier` and :mod:`.admission` guarantee that a cancelled scan writes nothing more.
"""

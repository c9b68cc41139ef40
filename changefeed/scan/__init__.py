"""The initial scan of a feed's tables, and backfills.

:mod:`changefeed.feeds.scan_coordinator` decides which tables of a feed need a scan.

* :mod:`.host` is the feed as a scan sees it.
* :mod:`.thread` runs one scan: one snapshot, its tables one after another.
* :mod:`.table` reads and delivers one table; :mod:`.spark` does so in Spark's workers.
* :mod:`.barrier` and :mod:`.admission` guarantee that a cancelled scan writes nothing more.
"""

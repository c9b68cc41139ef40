"""The initial scan of a feed's tables, backfills, and repairs of single rows.

::

    feeds/scan_coordinator.py   which tables of a feed need a scan
            |  ScanHost (host.py): the feed, as a scan sees it
            v
    thread.py   one scan: one snapshot, its tables one after another
            v
    table.py    reads a table and delivers it ------> sink
            |     repair.py: the keys of a repair        ^
            v                                            |
    spark.py    the same in Spark's workers -------------+
                                    every write passes admission.py

:mod:`.admission` guarantees that a cancelled scan writes nothing more, here or in a worker.
"""

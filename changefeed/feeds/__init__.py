"""One running feed: the thread that reads the change log and delivers to the sink.

::

    runner.py   the thread: asks the others in turn, and retries
      |-- status.py         what SHOW and the node's log say of the feed
      |-- lost_tables.py    tables that were dropped or renamed
      |-- scan_coordinator.py  starts scans and follows them (scan/)
      |-- rounds.py         how far each table may advance now
      |     |-- delivery.py     in this thread:  chunks.py -> ahead.py -> sink_session.py
      |     |-- backlog.py      in Spark's workers:  lanes.py, staged_lanes.py
      |     '-- windows.py      a query that groups changes
      '-- checkpoint.py     saves progress, then emits resolved timestamps

:mod:`.feed` is what the feed knows of its job and tables. :mod:`.message_cache` shares encoded
messages between feeds, :mod:`.schema_policy` decides about altered tables, :mod:`.ddl` sends
statements of DDL to the sink.
"""

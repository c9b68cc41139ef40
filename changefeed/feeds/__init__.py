"""One running feed: the thread that reads the change log and delivers to the sink.

* :mod:`.runner` is the thread; :mod:`.feed` is what the feed knows of its tables.
* :mod:`.chunks` cuts the log, :mod:`.delivery` encodes and sends the pieces in order,
  :mod:`.sink_session` owns the opened sink, :mod:`.checkpoint` saves progress.
* :mod:`.message_cache` shares encoded messages between feeds.
* :mod:`.scan_coordinator` starts scans and follows them; :mod:`.scan_host` is the feed as a scan
  sees it.
* :mod:`.lost_tables` and :mod:`.schema_policy` decide about dropped and altered tables.
"""

"""Everything about one source: its capture process, its change log, and what is held there.

* :mod:`.process` is the capture process itself; :mod:`.supervisor` starts and restarts it;
  :mod:`.standby` is one that was started before its source was known.
* :mod:`.reconciler` makes what exists at the source equal to what its feeds need.
* :mod:`.source_runtime` combines these for one source, for the node and its feeds;
:mod:`.growing_log` is the change log with the threads that wait for it, and :mod:`.log_access`
the part that a feed needs; :mod:`.table_gaps` records tables whose changes may be missing.
* :mod:`.table_identity` detects that a name now belongs to another table, and
:mod:`.lost_tables` records what became of the first one; :mod:`.expand` adds new tables to a
SCHEMA or DATABASE target.
"""

"""One source: its capture process, its change log, and what we hold at it.

* :mod:`.process` is the capture process itself; :mod:`.supervisor` starts and restarts it;
  :mod:`.standby` is one that was started before its source was known.
* :mod:`.reconciler` makes what exists at the source equal to what its feeds need.
* :mod:`.source_runtime` is all of that for one source, as the node and its feeds see it;
  :mod:`.log_access` is what a feed needs of :mod:`.growing_log`, the change log and those who wait
  for it; :mod:`.table_gaps` are tables of which changes may be missing.
* :mod:`.table_identity` notices that a name stands for another table, :mod:`.lost_tables` keeps
  what became of it; :mod:`.expand` adds
  tables that appeared under a SCHEMA or DATABASE target.
"""

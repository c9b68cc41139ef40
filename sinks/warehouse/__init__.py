"""SQL warehouses: changes are staged in batches and merged, guarded by sequence.

* :mod:`.dialect` is what a target is to the core: a :class:`~.dialect.Dialect` (SQL text alone)
  and a :class:`~.dialect.Warehouse` (a connection). A new target is these two and a sink class.
* :mod:`.sink` is the sink all of them share, :mod:`.strategy` which statements it runs;
  :mod:`.staging`, :mod:`.merge`, :mod:`.keyless`, :mod:`.history`, :mod:`.evolution` and
  :mod:`.applied` write them. A target without transactions brings a strategy of its own
  (:mod:`.clickhouse.keeping`), one without MERGE a sink (:mod:`.spanner`).
"""

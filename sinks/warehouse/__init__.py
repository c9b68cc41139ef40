"""SQL warehouses: changes are staged in batches and merged, guarded by sequence.

* :mod:`.dialect` is what a target is to the core: a :class:`~.dialect.Dialect` (SQL text alone)
  and a :class:`~.dialect.Warehouse` (a connection). A new target is these two and a sink class.
* :mod:`.feed_tables` finds and prepares the tables of a feed, :mod:`.database_sink` gathers rows.
* :mod:`.sink` loads and merges them, for every SQL warehouse; :mod:`.strategy` says by which
  statements;
  :mod:`.staging`, :mod:`.merge`, :mod:`.keyless`, :mod:`.history`, :mod:`.evolution` and
  :mod:`.applied` write them. A target without transactions brings a strategy of its own
  (:mod:`.clickhouse.keeping`). One that is not written by SQL, such as :mod:`.spanner`, fills in
  the steps of :mod:`.database_sink` itself.
"""

"""SQL warehouses: changes are staged in batches and merged, guarded by sequence.

* :mod:`.dialect` is what a target is to the core: a :class:`~.dialect.Dialect` (SQL text alone)
  and a :class:`~.dialect.Warehouse` (a connection). A new target is these two and a sink class.
* :mod:`.sink` is the sink all of them share; :mod:`.staging`, :mod:`.merge`, :mod:`.keyless`,
  :mod:`.history`, :mod:`.evolution` and :mod:`.applied` write its statements.
"""

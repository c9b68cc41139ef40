"""CDC queries: the SELECT of ``CREATE CHANGEFEED .. AS SELECT`` over the changes of a table.

    query text -> written (SQL over a batch) -> compile (Spark's analyzer: types, refusals)
    rows of the log -> images (the rows before and after) -> evaluate (Spark) -> rows of the log

The result of a query is a table of its own: :attr:`.model.CompiledQuery.schema` has its columns,
and the rows that come out are rows of the change log of that table. So encoding, sinks and scans
work as they do without a query.
"""

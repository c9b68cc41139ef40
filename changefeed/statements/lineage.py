"""SHOW CHANGEFEED f LINEAGE: the source's columns behind each column of each target."""

from __future__ import annotations

from collections.abc import Iterator

from changefeed.catalog import Catalog, Job, TableProgress
from changefeed.core.schema import TableName, TableSchema
from changefeed.options import Options
from changefeed.plan.lineage import ColumnLineage, table_lineage
from changefeed.plan.sink_resolution import find_sink
from changefeed.plan.targets import query_of
from changefeed.statements.brief import written_name
from changefeed.statements.context import Context, Result
from changefeed.statements.values import Cell

COLUMNS = ("target", "part", "column", "source_table", "source_column", "how", "detail")


def listing(job: Job, context: Context) -> Result:
    """As of the newest shape of each table that the state knows; asks no source."""
    rows: list[tuple[Cell, ...]] = []
    notices = []
    for table, schema, columns in of_feed(job, context.catalog):
        if schema is None:
            name = written_name(table.table)
            notices.append(f"{name}: its columns are known once the feed has read the table")
        for one in columns:
            source = one.source_table
            shown = written_name(source) if isinstance(source, TableName) else source
            cells = (one.target, one.part, one.column or None, shown, one.source_column or None)
            rows.append((*cells, one.how, one.detail or None))
    return Result(columns=COLUMNS, rows=rows, notices=notices)


def of_feed(
    job: Job, catalog: Catalog
) -> Iterator[tuple[TableProgress, TableSchema | None, tuple[ColumnLineage, ...]]]:
    """Each table of a feed, its shape as far as it is known, and the lineage of its target."""
    sink = find_sink(catalog, job.sink_uri, None)
    options = Options.from_dict(job.options, abilities=sink.capabilities)
    query = query_of(job)
    for table in catalog.tables(job.id):
        if table.schema_version:
            schema: TableSchema | None = catalog.schema(table.schema_version)
        else:
            schema = catalog.announced_schema(table.table)
        found: tuple[ColumnLineage, ...] = ()
        if schema is not None:
            typed = sink.capabilities.takes_rows
            found = tuple(table_lineage(options, table, schema, query, takes_rows=typed))
        yield table, schema, found

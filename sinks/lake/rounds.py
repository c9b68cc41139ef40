"""How rows become part of a lake table: those of a round of changes, and those of a scan.

Each function is one commit of the table, which the caller has given its notes
(:meth:`.table.LakeTable.commit_notes`).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from changefeed.core.schema import TableSchema
from changefeed.core.spark_sql import quoted
from changefeed.spark.internals.sessions import is_classic
from sinks.lake import merge
from sinks.lake.staging import OPERATION, ORDER, SEQ, VERSION, StagedFile, bounds
from sinks.lake.table import LakeTable, RoundRows
from sinks.merged.policy import MergeMode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Temporary view of staged rows, in a session that one thread at a time uses.
VIEW = "changefeed_rows"


def apply(
    lake: LakeTable, rows: DataFrame, schema: TableSchema, files: Sequence[StagedFile]
) -> None:
    """Changes of a round: ``rows`` are those of ``files``."""
    rows.createOrReplaceTempView(VIEW)
    if not _upserted(lake, schema, files):
        by_key = lake.policy.mode(schema) is MergeMode.MERGE
        count = sum(file.rows for file in files)
        lake.run(_statement(lake, schema, files), count, by_key=by_key)


def _upserted(lake: LakeTable, schema: TableSchema, files: Sequence[StagedFile]) -> bool:
    plain = lake.policy.mode(schema) is MergeMode.MERGE and not lake.policy.soft
    if not plain or any(file.incomplete for file in files):
        return False
    return lake.upsert(
        RoundRows(
            lake.session.sql(merge.source(schema, lake.policy, VIEW)),
            schema,
            sum(file.rows for file in files),
            sum(file.keys.nbytes for file in files),
            _limits(schema, files),
        )
    )


def _statement(lake: LakeTable, schema: TableSchema, files: Sequence[StagedFile]) -> str:
    policy, limits, mode = lake.policy, _limits(schema, files), lake.policy.mode(schema)
    missing = frozenset[int]().union(*(file.missing for file in files))
    if mode is MergeMode.COUNT:
        return merge.counted(lake.ident, schema, policy, VIEW)
    if mode is MergeMode.MERGE:
        # True of every row. Spark makes a Bloom filter only of rows with a condition.
        rows = f"{merge.source(schema, policy, VIEW, missing=missing)} WHERE {VERSION} > 0"
        return merge.merge(lake.ident, schema, policy, rows, bounds=limits, missing=missing)
    rows = merge.source(schema, policy, VIEW, also=(SEQ, ORDER), missing=missing)
    if missing:
        rows = merge.carried(lake.ident, schema, policy, rows, missing, limits)
    if mode is MergeMode.APPEND:
        return merge.append(lake.ident, schema, policy, rows)
    return merge.versions(lake.ident, schema, policy, rows, limits)


def count_scan(lake: LakeTable, rows: DataFrame, schema: TableSchema, *, first: bool) -> None:
    """Rows of a scan of a table without a key. A row of an earlier scan looks like an equal
    one of this: the first rows of a scan replace what is there, which is older as a whole."""
    rows.createOrReplaceTempView(VIEW)
    if first:
        lake.replace(merge.numbered(schema, lake.policy, VIEW))
    else:
        lake.run(merge.counted(lake.ident, schema, lake.policy, VIEW))


def append_scan(lake: LakeTable, rows: DataFrame, schema: TableSchema) -> int:
    """Rows of a scan as they come, which are read once; how many there were. There is nothing that
    a delete among them could remove.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    seen = Observation()
    own = merge.first_version(lake.policy, VERSION)
    listed = [f"c{i} AS {quoted(c.name)}" for i, c in enumerate(schema.columns)]
    listed += [f"{value} AS {quoted(name)}" for name, value in own.items()]
    query = f"SELECT {', '.join(listed)} FROM ({merge.source(schema, lake.policy, VIEW)}) "
    query += f"WHERE {OPERATION} <> 'd'"
    with _moved(rows, lake.session) as moved:
        observed = is_classic(lake.session)  # Spark Connect does not count what is behind a view
        counted = moved.observe(seen, F.count(F.lit(1)).alias("rows")) if observed else moved
        counted.createOrReplaceTempView(VIEW)
        lake.append(lake.session.sql(query))
    return int(seen.get["rows"]) if observed else rows.count()


def merge_scan(lake: LakeTable, rows: DataFrame, schema: TableSchema) -> None:
    """Rows of a scan into a table that has rows; they are read more than once."""
    policy, mode = lake.policy, lake.policy.mode(schema)
    if mode is MergeMode.APPEND:
        append_scan(lake, rows, schema)
        return
    rows.createOrReplaceTempView(VIEW)
    source = merge.source(schema, policy, VIEW)
    if mode is MergeMode.VERSIONS:
        lake.run(merge.scanned_versions(lake.ident, schema, policy, source))
    else:
        lake.run(merge.merge(lake.ident, schema, policy, source))


def _limits(schema: TableSchema, files: Sequence[StagedFile]) -> dict[str, tuple[object, object]]:
    found = {}
    for number in schema.key:
        limit = bounds(files, f"c{number}")
        if limit is not None and merge.comparable(schema.columns[number]):
            found[f"c{number}"] = limit
    return found


@contextmanager
def _moved(rows: DataFrame, session: SparkSession) -> Iterator[DataFrame]:
    """The same query in another session of the same context."""
    name = f"changefeed_rows_{uuid.uuid4().hex}"
    rows.createGlobalTempView(name)
    try:
        yield session.table(f"global_temp.{name}")
    finally:
        with suppress(Exception):  # where the JVM is gone, so is the view
            session.catalog.dropGlobalTempView(name)

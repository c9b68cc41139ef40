"""Rows on their way: from batches of the log to files that a MERGE reads.

A staged row has its version in one number, and its columns as ``c0..cn`` in log form; of a
delete only the key columns hold something. What a later row replaces goes here, in Arrow
(:mod:`sinks.merged.fold`): the MERGE then reads plain files, has each key once, and knows how many
rows come. All of it works on whole columns.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from changefeed.core.schema import TableSchema
from changefeed.core.types import Kind
from changefeed.options import History
from changefeed.spark.internals.arrow_types import spark_schema
from sinks.base import Batch, Target
from sinks.lake.types import BEYOND, accepted, spark_type
from sinks.merged.applied import AppliedVersion
from sinks.merged.fold import (
    Numbers,
    RoundForm,
    groups_of,
    lacking,
    last_of_each,
    places_missing,
)
from sinks.merged.policy import MergeMode
from sinks.merged.rows import key_value, last_of, table_of, versions_of
from sinks.merged.values import require_values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Staged columns besides ``c0..cn``.
OPERATION, VERSION, SEQ, ORDER = "_op", "_v", "_seq", "_ord"
MISSING = "_missing"

#: Rows of one row group: two cores share a file of this many times two.
ROW_GROUP = 65_536


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One file.

    Attributes:
        keys: the key columns of its rows, kept to find the last row of each key.
        missing: places of the columns that the source did not send in some row.
        superseded: some row is not the last of its key and transaction.
        last: its last change.
        columns: all it has.
    """

    path: str
    target: Target
    schema: TableSchema
    rows: int
    bytes: int
    keys: pa.Table
    scan: bool
    missing: frozenset[int]
    superseded: bool
    last: AppliedVersion
    columns: pa.Schema

    @property
    def incomplete(self) -> bool:
        """Some row has a column whose value the source did not send."""
        return bool(self.missing)


def stage(batch: Batch, path: Path, *, history: History) -> StagedFile | None:
    """Write the rows of a batch to a file; None when there is none to be written.

    Args:
        batch: rows of the log, in order, that the target does not have.
        path: where to.
        history: with ``off`` only the last change of each key is written. With the others, or
            where values are missing, all are: a change may have a value that a later change of
            its transaction lacks, which may be in another batch. :func:`settled` sees all.

    Raises:
        ChangefeedError: CF5006, a column cannot hold a value.
    """
    table = staged_table(batch)
    check_values(batch, table)
    incomplete = MISSING in table.column_names
    missing = lacking(table[MISSING]) if incomplete else frozenset()
    if history is History.OFF and not (incomplete or batch.scan or batch.schema.keyless):
        last = last_of_each(_groups(table.select(key_names(batch.schema)), batch.schema))
        table = table if len(last) == table.num_rows else table.take(pa.array(last))
    if not table.num_rows:
        return None
    _write(table, path)
    return StagedFile(
        str(path),
        batch.target,
        batch.schema,
        table.num_rows,
        os.path.getsize(path),
        table.select(key_names(batch.schema)),
        batch.scan,
        missing,
        not pc.all(table_of(batch.rows)["last"]).as_py(),
        last_of(table[VERSION], table[SEQ]),
        table.schema,
    )


def staged_table(batch: Batch) -> pa.Table:
    """The rows of a batch in the staged form."""
    rows, schema = table_of(batch.rows), batch.schema
    columns = {
        OPERATION: rows["op"],
        VERSION: versions_of(rows),
        SEQ: rows["seq"],
        ORDER: rows["ord"],
    }
    for number in range(len(schema.columns)):
        value = key_value(rows, number) if number in schema.key else rows[f"a{number}"]
        columns[f"c{number}"] = value
    missing = places_missing(rows["missing"], [c.name for c in schema.columns], schema.key)
    if missing.null_count < rows.num_rows:
        columns[MISSING] = missing
    return pa.table(columns)


def check_values(batch: Batch, staged: pa.Table) -> None:
    """Every staged value can be kept by the type of its column, as far as is known without Spark.

    Raises:
        ChangefeedError: CF5006, naming table and column, never the value.
    """
    for number, column in enumerate(batch.schema.columns):
        pattern = accepted(column.logical)
        if pattern and column.physical == "string":
            require_values(
                batch.schema,
                batch.target.topic,
                column,
                staged[f"c{number}"],
                kept_as=spark_type(column.logical),
                accepts=pattern,
                hint=BEYOND,
            )


def key_names(schema: TableSchema) -> list[str]:
    """The staged key columns, in key order."""
    return [f"c{number}" for number in schema.key]


def settled(files: Sequence[StagedFile], mode: MergeMode) -> list[StagedFile]:
    """The files with what a table kept in ``mode`` needs of them: where a later row replaces one,
    or has its value, that goes before.

    Files whose rows change are written again; scan rows have each key once anyway.
    """
    if any(f.scan or f.schema.keyless for f in files):
        return list(files)
    versions = mode is MergeMode.VERSIONS
    if any(f.incomplete or (versions and f.superseded) for f in files):
        return [_folded(files, mode)]
    if len(files) == 1 or mode is not MergeMode.MERGE:
        return list(files)
    everything = pa.concat_tables([file.keys for file in files])
    last = last_of_each(_groups(everything, files[0].schema))
    if len(last) == everything.num_rows:
        return list(files)
    mask = np.zeros(everything.num_rows, dtype=bool)
    mask[last] = True
    keep = pa.array(mask)
    ends = list(itertools.accumulate(file.rows for file in files))
    masks = [keep.slice(end - file.rows, file.rows) for file, end in zip(files, ends, strict=True)]
    # Arrow compresses one file in one thread; each holds a file.
    with ThreadPoolExecutor(min(4, pa.cpu_count())) as threads:
        return [kept for some in threads.map(_kept, files, masks) for kept in some]


def _folded(files: Sequence[StagedFile], mode: MergeMode) -> StagedFile:
    """All in one file, as only rows know their values."""
    schema = files[0].schema
    parts = [pq.read_table(file.path, page_checksum_verification=True) for file in files]
    rows = pa.concat_tables(parts, promote_options="default")
    if MISSING not in rows.column_names:
        rows = rows.append_column(MISSING, pa.nulls(len(rows), pa.string()))
    names = [f"c{number}" for number in range(len(schema.columns))]
    form = RoundForm(VERSION, OPERATION, MISSING, "d", "u", names)
    keys = rows.select(key_names(schema))
    table = form.take(rows, form.fold(rows, _groups(keys, schema), mode))
    _write(table, Path(files[0].path))
    return replace(
        files[0],
        rows=len(table),
        bytes=os.path.getsize(files[0].path),
        keys=table.select(key_names(schema)),
        missing=lacking(table[MISSING]),
        last=reduce(AppliedVersion.latest, (file.last for file in files)),
        columns=table.schema,
    )


def _groups(keys: pa.Table, schema: TableSchema) -> Numbers:
    kept = [column.logical for column in schema.key_columns]
    kinds = [Kind.TEXT if spark_type(k) == "string" else k.innermost.kind for k in kept]
    return groups_of(keys.columns, kinds)


def _kept(file: StagedFile, mask: pa.Array) -> list[StagedFile]:
    rows = pc.sum(mask).as_py() or 0
    if rows == file.rows:
        return [file]
    if not rows:
        return []
    staged = pq.read_table(file.path, page_checksum_verification=True)
    _write(staged.filter(mask), Path(file.path))
    return [replace(file, rows=rows, keys=file.keys.filter(mask))]


def read(
    session: SparkSession, files: Sequence[StagedFile], names: Sequence[str] = ()
) -> DataFrame:
    """The rows of files of one shape, of which Spark's executors know by ``names``, or by their
    own. Spark gets the columns: to look for them costs a job, and would find ``_missing`` only
    if the first file has it."""
    columns = max((file.columns for file in files), key=len)
    reader = session.read.schema(spark_schema(columns))
    return reader.parquet(*(names or [file.path for file in files]))


def _write(table: pa.Table, path: Path) -> None:
    # A name that begins with a dot or _ is not read by Spark; the rename makes it whole.
    partial = path.with_name(f".{path.name}")
    # A dictionary would cost as much again as the rest, and the file is read once.
    pq.write_table(
        table,
        partial,
        compression="zstd",
        compression_level=1,
        use_dictionary=False,
        row_group_size=ROW_GROUP,
        write_page_checksum=True,
    )
    os.replace(partial, path)


def bounds(files: Sequence[StagedFile], name: str) -> tuple[object, object] | None:
    """The smallest and largest value of a key column, where they order as Spark orders them."""
    kind = files[0].keys.schema.field(name).type
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind)):
        return None
    found = [pc.min_max(file.keys[name]).as_py() for file in files]
    low = [each["min"] for each in found if each["min"] is not None]
    high = [each["max"] for each in found if each["max"] is not None]
    return (min(low), max(high)) if low else None

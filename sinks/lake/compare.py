"""How a lake table differs from the source: one Spark query over the table and staged rows.

The rows of the source are staged as Parquet files, go through the expressions that a merge uses,
and meet the table in a full outer join by key. Of a table without a key, equal rows are counted on
both sides. Nothing is written to the table.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from changefeed.core.schema import Column, KeyRange, TableSchema
from changefeed.core.spark_sql import literal, quoted
from changefeed.options import History
from changefeed.spark.internals.arrow_types import spark_schema
from sinks.base import Difference
from sinks.differences import DifferenceText, unequal_counts
from sinks.lake.types import declared, spark_type, typed
from sinks.merged.history import IS_CURRENT
from sinks.merged.policy import TablePolicy

if TYPE_CHECKING:
    from sinks.lake.table import LakeTable

_VIEW = "changefeed_source_rows"


@contextmanager
def staged_source(
    rows: Iterable[pa.Table], schema: TableSchema, scratch: str
) -> Iterator[list[str]]:
    """Parquet files with the rows as ``c0..cn`` in log form, removed at the end.

    Args:
        rows: of the source, in the schema ``schema.log_schema()``.
        schema: of the rows.
        scratch: a directory for them.
    """
    folder = Path(scratch) / f"verify-{uuid4().hex}"
    folder.mkdir(parents=True)
    try:
        names = [f"c{i}" for i in range(len(schema.columns))]
        made = []
        for number, batch in enumerate(rows):
            columns = [batch[f"a{i}"] for i in range(len(names))]
            path = folder / f"{number:08d}.parquet"
            pq.write_table(pa.table(columns, names=names), path, compression="zstd")
            made.append(str(path))
        yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class LakeComparison:
    """Compares one lake table with staged rows of the source."""

    def __init__(
        self,
        lake: LakeTable,
        policy: TablePolicy,
        schema: TableSchema,
        part: KeyRange | None = None,
    ) -> None:
        """
        Args:
            part: the rows that are compared; None: all.

        Raises:
            ChangefeedError: CF1303 the table keeps every change, and no row as it is now.
        """
        policy.require_comparable(schema)
        self._lake = lake
        self._policy = policy
        self._schema = schema = declared(schema, policy.numbers)
        self._part = part
        self._numbers = range(len(schema.columns))
        self._variants = policy.variants(schema)
        self._text = DifferenceText(schema)

    def run(self, staged: Sequence[str], limit: int) -> list[Difference]:
        """The differences to the rows of staged files, at most ``limit``: missing and changed rows
        first, by key."""
        session = self._lake.session
        columns = [pa.field(f"c{i}", c.arrow) for i, c in enumerate(self._schema.columns)]
        shape = spark_schema(pa.schema(columns))
        if staged:
            frame = session.read.schema(shape).parquet(*staged)
        else:
            frame = session.createDataFrame([], shape)
        frame.createOrReplaceTempView(_VIEW)
        query = self._counts(limit) if self._schema.keyless else self._rows(limit)
        try:
            found = session.sql(query).collect()
        finally:
            session.catalog.dropTempView(_VIEW)
        return [self._difference(tuple(row)) for row in found]

    # ------------------------------------------------------------------ both sides

    def _source(self) -> str:
        """The columns of the staged rows, as ``c0..cn``."""
        values = (
            typed(c, f"c{i}", variant=i in self._variants)
            for i, c in enumerate(self._schema.columns)
        )
        return ", ".join(f"{self._compared(i, value)} AS c{i}" for i, value in enumerate(values))

    def _compared(self, number: int, value: str) -> str:
        """SQL of a column's value that can be compared: VARIANT cannot, but its JSON can."""
        return f"to_json({value})" if number in self._variants else value

    def _target(self) -> str:
        """SELECT of the rows of this feed that are in the table now, as ``c0..cn``."""
        if not self._lake.exists():
            nulls = (f"CAST(NULL AS {spark_type(c.logical)})" for c in self._schema.columns)
            named = (f"{null} AS c{i}" for i, null in enumerate(nulls))
            return f"SELECT {', '.join(named)} WHERE false"
        present = {name.casefold() for name in self._lake.columns()}
        listed = [self._column(i, c, present) for i, c in enumerate(self._schema.columns)]
        # Rows that were there before an existing target was taken over have no version.
        rows = [f"{quoted(self._policy.sequence)} IS NOT NULL"]
        if self._policy.history is History.SCD2:
            rows.append(quoted(IS_CURRENT))
        elif self._policy.soft:
            rows.append(f"NOT {quoted(self._policy.deleted)}")
        if self._part is not None:
            rows += filter(None, [self._among(self._part)])
        return f"SELECT {', '.join(listed)} FROM {self._lake.ident} WHERE {' AND '.join(rows)}"

    def _among(self, part: KeyRange) -> str:
        """The condition of a part of the table; Spark compares text by code point."""
        columns = self._schema.key_columns

        def value(place: int, text: str) -> str:
            column = columns[place]
            return typed(column, literal(text) if column.physical == "string" else text)

        return part.sql([quoted(column.name) for column in columns], value)

    def _column(self, number: int, column: Column, present: set[str]) -> str:
        """A column of the table; one that was removed there is NULL in each row."""
        if column.name.casefold() in present:
            return f"{self._compared(number, quoted(column.name))} AS c{number}"
        return f"CAST(NULL AS {spark_type(column.logical)}) AS c{number}"

    # ------------------------------------------------------------------ queries

    def _rows(self, limit: int) -> str:
        key = self._schema.key
        same = " AND ".join(f"s.c{i} = t.c{i}" for i in key)
        alike = " AND ".join(f"s.c{i} <=> t.c{i}" for i in self._numbers)
        listed = [self._as_text(side, i) for side in "st" for i in self._numbers]
        order = [f"coalesce(s.c{i}, t.c{i})" for i in key]
        return (
            f"SELECT s._there, t._there, {', '.join(listed)} "
            f"FROM (SELECT true AS _there, {self._source()} FROM {_VIEW}) AS s "
            f"FULL OUTER JOIN (SELECT true AS _there, * FROM ({self._target()})) AS t ON {same} "
            f"WHERE s._there IS NULL OR t._there IS NULL OR NOT ({alike}) "
            f"ORDER BY s._there IS NULL, {', '.join(order)} LIMIT {limit}"
        )

    def _counts(self, limit: int) -> str:
        columns = [f"c{i}" for i in self._numbers]
        listed = ", ".join(f"b.{name}" for name in columns)
        source = f"(SELECT {self._source()} FROM {_VIEW})"
        texts = [self._as_text("l", i) for i in self._numbers]
        target = f"({self._target()})"
        return unequal_counts(source, target, columns, (listed, listed), texts, limit)

    def _as_text(self, side: str, number: int) -> str:
        value, kind = f"{side}.c{number}", spark_type(self._schema.columns[number].logical)
        if kind == "binary":
            return f"concat('\\\\x', lower(hex({value})))"
        return f"to_json({value})" if kind.startswith("array<") else f"CAST({value} AS string)"

    def _difference(self, row: Sequence[object]) -> Difference:
        count = len(self._schema.columns)
        ours, theirs, source, target = row[0], row[1], row[2 : count + 2], row[count + 2 :]
        if self._schema.keyless:
            return self._text.count(source, int(str(ours)), int(str(theirs)))
        return self._text.of(source if ours else None, target if theirs else None)

"""Look-up tables of CDC queries: read by Spark, kept in the node, joined to batches by key.

A query names the columns of a look-up by its alias. In a batch the look-up is one more column of
that name, a struct: NULL where no row of the look-up has the key. So Spark evaluates ``c.name``
as it evaluates any field, and an inner join is the condition ``c IS NOT NULL``.

The rows are kept sorted by key. A key is found by binary search, so the cost of a small batch
hardly depends on the size of the look-up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.clock import Clock
from changefeed.core.errors import ChangefeedError, Code, Span
from changefeed.core.spark_sql import quoted
from changefeed.query.model import CompiledQuery, LookupField, LookupTable
from changefeed.spark.internals.arrow_types import arrow_of, arrow_type
from grammar import nodes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from changefeed.spark.session import NodeSpark

#: The most rows of a look-up, which are held in memory.
LOOKUP_ROWS = 2_000_000

#: Formats that need more than PySpark has.
_PACKS = {"delta": ("delta",), "iceberg": ("iceberg",)}
#: Types of Spark that a key may have, and the kind they are compared as.
_KEY_TYPES = {
    "tinyint": "integer",
    "smallint": "integer",
    "int": "integer",
    "bigint": "integer",
    "string": "text",
    "date": "date",
    "timestamp": "moment",
    "timestamp_ntz": "local moment",
}
#: Spark's error conditions for a table that does not exist.
_NOT_THERE = ("TABLE_OR_VIEW_NOT_FOUND", "PATH_NOT_FOUND", "DELTA_TABLE_NOT_FOUND")


def key_kind(spark_type: str) -> str | None:
    """The kind that keys of this type are compared as; None if the type cannot be a key."""
    return _KEY_TYPES.get(spark_type)


def described(spark: NodeSpark, join: nodes.LookupJoin) -> tuple[LookupField, ...]:
    """The columns of a look-up; waits for Spark.

    Raises:
        ChangefeedError: CF1303 its path has a password, CF4004 there is no such table or Spark
            cannot read it, CF4002, CF4003 of Spark.
    """
    if any("@" in part.partition("://")[2].partition("/")[0] for part in join.parts):
        raise _of_join(
            Code.NOT_SUPPORTED, "the path of a look-up table cannot have a password", join
        )
    with _frame(spark, join.parts, join) as frame:
        return _fields(frame)


def _fields(frame: DataFrame) -> tuple[LookupField, ...]:
    return tuple(
        LookupField(field.name, field.dataType.simpleString(), arrow_type(field.dataType))
        for field in frame.schema.fields
    )


@contextmanager
def _frame(
    spark: NodeSpark, parts: Sequence[str], join: nodes.LookupJoin | None = None
) -> Iterator[DataFrame]:
    """The table as it is now; errors have the place of ``join``."""
    with spark.use(packs=_PACKS.get(parts[0].lower(), ())) as session:
        from pyspark.errors import AnalysisException

        name = ".".join(map(quoted, parts))
        try:
            if "/" not in parts[-1] and session.catalog.tableExists(name):
                # Spark keeps the list of the files of a table of its catalog: let it look again.
                session.catalog.refreshTable(name)
            frame = session.sql(f"SELECT * FROM {name}")
        except AnalysisException as failure:
            condition = failure.getCondition() or ""
            if condition.startswith(_NOT_THERE):
                raise _of_join(
                    Code.LOOKUP_NOT_USABLE, f"look-up table {name} does not exist", join
                ) from failure
            raise _of_join(
                Code.LOOKUP_NOT_USABLE, f"Spark cannot read look-up table {name}: {condition}", join
            ) from failure
        yield frame


def _of_join(code: str, message: str, join: nodes.LookupJoin | None) -> ChangefeedError:
    span = join.spans[0] if join is not None and join.spans else None
    return ChangefeedError(
        code,
        message,
        hint="name a table of Spark's catalog, or a path with its format: parquet.`/path`. A table "
        "of the source cannot be a look-up table.",
        span=None if span is None else Span(span.start, span.end),
    )


# ------------------------------------------------------------------------------- rows in memory


@dataclass(frozen=True)
class LookupRows:
    """The rows of a look-up at one time, sorted by key."""

    keys: np.ndarray
    rows: pa.StructArray

    @classmethod
    def of(cls, lookup: LookupTable, table: pa.Table) -> LookupRows:
        """The columns of keys and fields of a look-up, in memory.

        Raises:
            ChangefeedError: CF4004 several rows have one key.
        """
        keys = _keys([table[name] for _, name in lookup.keys])
        order = pc.sort_indices(keys)
        # NULLs stand last; no row has such a key.
        order = order.slice(0, len(order) - keys.null_count)
        sorted_keys = keys.take(order).to_numpy(zero_copy_only=False)
        again = sorted_keys[1:] == sorted_keys[:-1]
        if again.any():
            count = len(np.unique(sorted_keys[1:][again]))
            names = ", ".join(name for _, name in lookup.keys)
            raise ChangefeedError(
                Code.LOOKUP_NOT_USABLE,
                f"look-up table {lookup.shown} has {count} "
                f"{'key' if count == 1 else 'keys'} with several rows: {names} must be unique",
            )
        children = [
            _whole(table[field.name]).cast(field.arrow).take(order) for field in lookup.fields
        ]
        rows = pa.StructArray.from_arrays(children, fields=list(lookup.arrow))
        return cls(sorted_keys, rows)

    def at(self, columns: Sequence[pa.ChunkedArray]) -> pa.StructArray:
        """The row of each of these keys; NULL where there is none."""
        wanted = _keys(columns).dictionary_encode()
        words = wanted.dictionary.to_numpy(zero_copy_only=False)
        if not len(self.keys) or not len(words):
            return pa.nulls(len(wanted), self.rows.type)
        found = np.searchsorted(self.keys, words)
        found[found == len(self.keys)] = 0
        places = pa.array(found, pa.int64(), mask=self.keys[found] != words)
        return self.rows.take(places.take(wanted.indices))


def _whole(values: pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _keys(columns: Sequence[pa.ChunkedArray]) -> pa.Array:
    """Keys as one column: integers unchanged, other types as text; NULL if a part is NULL."""
    parts = [_whole(column) for column in columns]
    if len(parts) == 1 and pa.types.is_integer(parts[0].type):
        return parts[0].cast(pa.int64())
    texts = []
    for part in parts:
        if pa.types.is_timestamp(part.type) or pa.types.is_date(part.type):
            part = part.cast(pa.int32() if pa.types.is_date32(part.type) else pa.int64())
        texts.append(part.cast(pa.string()))
    if len(texts) == 1:
        return texts[0]
    # The length before each part distinguishes ('a', 'bc') from ('ab', 'c').
    sized = [
        pc.binary_join_element_wise(pc.utf8_length(text).cast(pa.string()), text, ":")
        for text in texts
    ]
    return pc.binary_join_element_wise(*sized, "")


def read_lookup(spark: NodeSpark, lookup: LookupTable) -> LookupRows:
    """The rows that a look-up has now; waits for Spark.

    Raises:
        ChangefeedError: CF4004 its columns differ from when the query was checked, it has too many
            rows or several of one key, or it can no longer be read; CF4002, CF4003 of Spark.
    """
    with _frame(spark, lookup.parts) as frame:
        there = {field.name: field.spark_type for field in _fields(frame)}
        for name, kind in lookup.read:
            if there.get(name) != kind:
                now = f"is {there[name]}" if name in there else "is not there"
                raise ChangefeedError(
                    Code.LOOKUP_NOT_USABLE,
                    f"column {name} of look-up table {lookup.shown} was {kind} and {now} now",
                    hint="restore the column, or make the feed again.",
                )
        columns: list[Any] = [frame[quoted(name)] for name, _ in lookup.read]
        table = arrow_of(frame.select(*columns).limit(LOOKUP_ROWS + 1))
    if table.num_rows > LOOKUP_ROWS:
        raise ChangefeedError(
            Code.LOOKUP_NOT_USABLE,
            f"look-up table {lookup.shown} has more than {LOOKUP_ROWS:,} rows",
            hint="a look-up is held in memory: join large tables at the source or behind the sink.",
        )
    return LookupRows.of(lookup, table)


class LookupCache:
    """The look-ups of one feed, read when first needed and again after ``refresh``.

    Args:
        read: reads a look-up.
        clock: for their age.
        refresh: seconds after which a look-up is read again.
    """

    def __init__(
        self, read: Callable[[LookupTable], LookupRows], clock: Clock, refresh: float
    ) -> None:
        self._read = read
        self._clock = clock
        self._refresh = refresh
        self._lock = threading.Lock()
        self._known: dict[LookupTable, tuple[float, LookupRows]] = {}

    def rows(self, lookup: LookupTable) -> LookupRows:
        """The rows of a look-up, read at most ``refresh`` seconds ago.

        Raises:
            ChangefeedError: see :func:`read_lookup`; rows that were read before are not used then.
        """
        with self._lock:
            known = self._known.get(lookup)
            now = self._clock.monotonic()
            if known is None or now - known[0] >= self._refresh:
                known = self._known[lookup] = now, self._read(lookup)
            return known[1]

    def joined(self, query: CompiledQuery, batch: pa.Table) -> pa.Table:
        """The batch with a column for each look-up of the query."""
        for lookup in query.lookups:
            keys = [batch[query.source.columns[i].name] for i, _ in lookup.keys]
            column = self.rows(lookup).at(keys)
            batch = batch.append_column(pa.field(lookup.alias, lookup.arrow), column)
        return batch

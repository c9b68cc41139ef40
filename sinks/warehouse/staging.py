"""Rows of the log as rows of a staging table; whole Arrow columns, no row in Python.

============== =========================================================================
_batch_id      number of the load, microseconds since 1970, unique in a process
_sequence_num  version of the change: rises through the source's log, one per transaction
_ord           order of the changes of one version: the change's number in the log
_operation     INSERT, UPDATE, DELETE, READ (of a scan)
_missing       places of the columns whose value the source did not send, ``,3,7,``; or NULL
<columns>      the row after; of a DELETE the key columns only (the row before, without a key)
============== =========================================================================
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.schema import Column, TableSchema
from changefeed.core.types import TEXT_NUMBERS, Kind, LogicalType
from sinks.merged import policy
from sinks.merged.fold import FoldedRows, RoundForm, gather, groups_of, places_missing
from sinks.merged.history import OPERATION, OPERATIONS, ORDER
from sinks.merged.policy import MergeMode
from sinks.merged.rows import key_value, versions_of
from sinks.merged.values import require_values
from sinks.warehouse.dialect import Dialect, TypeRule

BATCH, SEQUENCE, MISSING = "_batch_id", policy.SEQUENCE, "_missing"
META: dict[str, str] = {
    BATCH: "int64",
    SEQUENCE: "int64",
    ORDER: "int64",
    OPERATION: "string",
    MISSING: "string",
}

#: Kinds with values of several texts (24:00:00 and 1 day; 1 and 1.0 in JSON and in arrays).
_MANY_TEXTS = (Kind.INTERVAL, Kind.JSON)
_OPERATIONS = pa.array(list(OPERATIONS.values()))
_CODES = pa.array(list(OPERATIONS))


#: What the types of staging columns are called by the targets, the longer names first.
_KINDS = {
    kind: re.compile(names)
    for kind, names in {
        "string": "char|text|string",
        "bool": "bool|tinyint",
        "int16": "smallint|int16|int2",
        "int64": "bigint|int64|int8",
        "int32": "int",
    }.items()
}


def fits(present: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Whether a staging table has the wanted columns, and types that hold the same values. A type
    of a name that is not known here counts as a number of any size."""
    return list(present) == list(wanted) and all(
        _alike(_kind(present[name]), _kind(kind)) for name, kind in wanted.items()
    )


def _kind(type_name: str) -> str:
    lower = type_name.lower()
    return next((kind for kind, names in _KINDS.items() if names.search(lower)), "int")


def _alike(present: str, wanted: str) -> bool:
    """``int`` has no known size."""
    if "int" in (present, wanted):
        return present.startswith("int") and wanted.startswith("int")
    return present == wanted


@dataclass(frozen=True)
class TargetShape:
    """A table's schema version as the warehouse sees it. ``topic`` names the target table."""

    schema: TableSchema
    topic: str

    @property
    def columns(self) -> tuple[Column, ...]:
        """The source's columns."""
        return self.schema.columns

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(c.name for c in self.schema.columns)

    @cached_property
    def key(self) -> tuple[str, ...]:
        """Names of the key's columns: all of them where there is no key."""
        return tuple(c.name for c in self.schema.key_columns)

    @property
    def keyless(self) -> bool:
        """The table has no key."""
        return self.schema.keyless

    @cached_property
    def physical(self) -> Mapping[str, str]:
        """Columns of the staging table and their physical types in the log."""
        return META | {column.name: column.physical for column in self.columns}

    def rules(self, d: Dialect) -> list[TypeRule]:
        """How the target keeps each column. Without a key all columns stand for one, but the target
        keeps them as any other."""
        keys = () if self.keyless else self.schema.key
        return [d.rule(column, key=i in keys) for i, column in enumerate(self.columns)]

    def typed(self, d: Dialect, alias: str, places: Sequence[int] | None = None) -> dict[str, str]:
        """Column -> SQL for its value in the target's type, of a row of the staging table
        (``alias``); ``places``: of these columns only."""
        rules = self.rules(d)
        return {
            self.names[i]: rules[i].of(f"{alias}.{d.quote(self.names[i])}")
            for i in (range(len(rules)) if places is None else places)
        }

    def staging_columns(self, d: Dialect) -> dict[str, str]:
        """Columns of the staging table and their SQL types."""
        return {name: d.staging_types[kind] for name, kind in self.physical.items()}

    def staged(self, rows: pa.Table, batch_id: int) -> pa.Table:
        """Rows of the log as rows of the staging table."""
        data = {
            BATCH: pa.repeat(pa.scalar(batch_id, pa.int64()), rows.num_rows),
            SEQUENCE: versions_of(rows),
            ORDER: rows["seq"],
            OPERATION: _OPERATIONS.take(pc.index_in(rows["op"], _CODES).combine_chunks()),
            MISSING: places_missing(rows["missing"], self.names, self.schema.key),
        }
        for i, column in enumerate(self.columns):
            value = key_value(rows, i) if i in self.schema.key else rows[f"a{i}"]
            data[column.name] = _plain(column, value)
        return pa.table(data)

    def folded(self, staged: pa.Table, mode: MergeMode, d: Dialect) -> FoldedRows:
        """What a table kept in ``mode`` needs of changes in the order of the log. Texts that the
        target alone knows to be one key (:meth:`many_texts`) stay apart."""
        kept = [
            (c.logical.innermost.kind, d.rule(c, key=True).sql) for c in self.schema.key_columns
        ]
        kinds = [Kind.TEXT if _kind(sql) == "string" else kind for kind, sql in kept]
        groups = groups_of([staged[name] for name in self.key], kinds)
        folded = self._form.fold(staged, groups, mode)
        if mode is not MergeMode.MERGE:
            return folded
        # By key: DuckDB writes rows in another order a hundred times slower, others slower, too.
        keys = gather(staged.select(self.key), folded.rows)
        order = pc.sort_indices(keys, [(name, "ascending") for name in self.key])
        return folded.at(order.to_numpy())

    def many_texts(self, d: Dialect) -> bool:
        """A key may have several texts that :meth:`folded` does not know to be one."""
        return any(
            _has_many_texts(c.logical) and _kind(d.rule(c, key=True).sql) != "string"
            for c in (() if self.keyless else self.schema.key_columns)
        )

    def taken(self, staged: pa.Table, folded: FoldedRows) -> pa.Table:
        """The folded rows, with their values and what is still missing."""
        return self._form.take(staged, folded)

    @property
    def _form(self) -> RoundForm:
        return RoundForm(SEQUENCE, OPERATION, MISSING, OPERATIONS["d"], OPERATIONS["u"], self.names)


def _has_many_texts(logical: LogicalType) -> bool:
    inner = logical.innermost.kind
    return inner in _MANY_TEXTS or (logical.element is not None and inner in TEXT_NUMBERS)


def _plain(column: Column, value: pa.ChunkedArray) -> pa.ChunkedArray:
    """``"NaN"`` without the quotes that it has as JSON; anything else as it is."""
    if column.kind in TEXT_NUMBERS:
        return pc.utf8_trim(value, '"')
    return value


def check_values(shape: TargetShape, staged: pa.Table, d: Dialect) -> None:
    """Every value can be kept by its target type.

    Raises:
        ChangefeedError: CF5006, naming table and column, never the value.
    """
    for column, rule in zip(shape.columns, shape.rules(d), strict=True):
        require_values(
            shape.schema,
            shape.topic,
            column,
            staged[column.name],
            kept_as=kept_as(rule, d),
            accepts=rule.accepts,
            longest=rule.longest,
        )


def kept_as(rule: TypeRule, d: Dialect) -> str:
    """The type of a column, for people."""
    return f"{rule.sql} of {d.name}"

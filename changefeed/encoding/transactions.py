"""The places of changes in their transactions, and the messages of a transaction's begin and end.

What is numbered are the changes that become messages, as Debezium numbers its events: all of a
transaction from 1 (``total_order``), those of each table from 1 (``data_collection_order``). A
transaction's end says how many there were, so that a reader knows when it has them all. The
numbers follow from the change log alone: a repeated delivery has the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.arrow import MESSAGE_SCHEMA
from changefeed.core.clock import Timestamp
from changefeed.core.schema import Column, TableName, TableSchema
from changefeed.core.types import Kind, LogicalType
from changefeed.encoding.json_tokens import Part

#: The columns that :meth:`TransactionOrders.with_orders` adds to rows of the log.
ORDERS: Final = ("total_order", "data_collection_order")

_Numbers = npt.NDArray[np.int64]


def transaction_ids(xid: pa.Array, commit_time: Sequence[Part]) -> list[Part]:
    """The ids of transactions: their number at the source, which recurs some day, and their
    timestamp, which does not. The number is 0 if the source has none."""
    numbers = pc.if_else(pc.equal(xid, 0), "", pc.binary_join_element_wise(
        xid.cast(pa.string()), ":", pa.scalar("", pa.string())
    ))  # fmt: skip
    return [numbers, *commit_time]


def transaction_id(xid: int, at: Timestamp) -> str:
    """The id of one transaction, as in :func:`transaction_ids`."""
    return f"{xid}:{at}" if xid else str(at)


@dataclass(frozen=True, slots=True)
class EndOfTransaction:
    """A transaction: its number at the source, its timestamp and commit time (microseconds),
    its first and last sequence number, and how many messages each table has of it."""

    xid: int
    at: Timestamp
    commit_us: int
    first_seq: int
    last_seq: int
    counts: tuple[tuple[TableName, int], ...]


class TransactionOrders:
    """The changes of a stretch of the log, which holds whole transactions, numbered."""

    def __init__(self) -> None:
        self._parts: list[tuple[int, pa.Table]] = []
        self._tables: dict[TableName, int] = {}
        self._seq: _Numbers = np.zeros(0, np.int64)
        self._total = self._own = self._seq
        #: In the order of the log; known after :meth:`number`.
        self.transactions: tuple[EndOfTransaction, ...] = ()

    def add(self, table: TableName, rows: pa.Table) -> None:
        """Changes of a table that become messages, as rows of the log."""
        number = self._tables.setdefault(table, len(self._tables))
        self._parts.append((number, rows.select(["wall", "logical", "seq", "xid", "commit_us"])))

    def number(self) -> None:
        """Number the changes that were added; then :attr:`transactions` is known."""
        parts, self._parts = [(n, rows) for n, rows in self._parts if rows.num_rows], []
        if not parts:
            return
        whole = pa.concat_tables([rows for _, rows in parts])
        columns = {name: whole[name].to_numpy() for name in whole.schema.names}
        table = np.repeat([n for n, _ in parts], [rows.num_rows for _, rows in parts])
        order = np.lexsort((columns["seq"], columns["logical"], columns["wall"]))
        wall, logical, seq, xid, commit_us = (values[order] for values in columns.values())
        table = table[order]
        begins = np.ones(len(order), np.bool_)
        begins[1:] = (wall[1:] != wall[:-1]) | (logical[1:] != logical[:-1])
        starts = np.flatnonzero(begins)
        of = np.cumsum(begins) - 1
        total = np.arange(len(order)) - starts[of] + 1
        own = _within(of * len(self._tables) + table)
        by_seq = np.argsort(seq, kind="stable")
        self._seq, self._total, self._own = seq[by_seq], total[by_seq], own[by_seq]
        sizes = np.diff(starts, append=len(order))
        counts = np.bincount(
            of * len(self._tables) + table, minlength=len(starts) * len(self._tables)
        ).reshape(len(starts), -1)
        names = list(self._tables)
        self.transactions = tuple(
            EndOfTransaction(
                int(xid[start]),
                Timestamp(int(wall[start]), int(logical[start])),
                int(commit_us[start]),
                int(seq[start]),
                int(seq[start + size - 1]),
                tuple(
                    (names[n], int(counts[i, n])) for n in _by_first_change(table[start:][:size])
                ),
            )
            for i, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True))
        )

    def with_orders(self, rows: pa.Table) -> pa.Table:
        """The rows with :data:`ORDERS` added; all of them were numbered."""
        seq = rows["seq"].to_numpy()
        at = np.searchsorted(self._seq, seq)
        if len(at) and (at[-1] >= len(self._seq) or not np.array_equal(self._seq[at], seq)):
            raise AssertionError("a change was not numbered in its transaction")
        for name, numbers in zip(ORDERS, (self._total, self._own), strict=True):
            rows = rows.append_column(name, pa.array(numbers[at]))
        return rows


def _within(group: _Numbers) -> _Numbers:
    """For each element its number within its group, from 1."""
    order = np.argsort(group, kind="stable")
    begins = np.ones(len(group), np.bool_)
    begins[1:] = group[order][1:] != group[order][:-1]
    starts = np.flatnonzero(begins)
    found = np.empty(len(group), np.int64)
    found[order] = np.arange(len(group)) - starts[np.cumsum(begins) - 1] + 1
    return found


def _by_first_change(tables: npt.NDArray[Any]) -> list[int]:
    found, first = np.unique(tables, return_index=True)
    return [int(n) for n in found[np.argsort(first)]]


# ------------------------------------------------------------------------------- messages


def boundary_messages(
    transactions: Sequence[EndOfTransaction], *, debezium: bool, schemas_enabled: bool
) -> pa.Table:
    """BEGIN and END of each transaction as messages, in order, with Debezium's members.

    ``debezium``: with the spacing of Debezium's JSON instead of CockroachDB's; ``schemas_enabled``:
    with the schemas of keys and values.
    """
    gaps = (",", ":") if debezium else (", ", ": ")

    def text(payload: dict[str, Any], schema: dict[str, Any]) -> bytes:
        whole = {"schema": schema, "payload": payload} if schemas_enabled else payload
        return json.dumps(whole, ensure_ascii=False, separators=gaps).encode()

    rows: list[dict[str, Any]] = []
    for one in transactions:
        key = {"id": transaction_id(one.xid, one.at)}
        counts = [
            {"data_collection": f"{table.schema}.{table.name}", "event_count": count}
            for table, count in one.counts
        ]
        total = sum(count for _, count in one.counts)
        begin = {"status": "BEGIN", **key, "event_count": None, "data_collections": None}
        end = {"status": "END", **key, "event_count": total, "data_collections": counts}
        # The begin has a sequence number below every change's, so that no two messages share one.
        for value, seq in ((begin, one.first_seq - 1), (end, one.last_seq)):
            rows.append(
                {
                    "key": text(key, _KEY),
                    "value": text(value | {"ts_ms": one.commit_us // 1_000}, _VALUE),
                    "wall": one.at.wall,
                    "logical": one.at.logical,
                    "seq": seq,
                    "op": "c",
                }
            )
    return pa.Table.from_pylist(rows, schema=MESSAGE_SCHEMA)


def boundary_shape(source: str) -> TableSchema:
    """The messages' members as columns of a table, for a sink that needs shapes."""
    text, count = LogicalType(Kind.TEXT), LogicalType(Kind.INT64)
    columns = (
        Column("id", "text", text, nullable=False),
        Column("status", "text", text, nullable=False),
        Column("event_count", "bigint", count),
        Column("data_collections", "json", LogicalType(Kind.JSON)),
        Column("ts_ms", "bigint", count, nullable=False),
    )
    return TableSchema(boundary_table(source), columns, (0, 1), version=1)


def boundary_table(source: str) -> TableName:
    """The name in place of a table of the source; unlike those it has no schema."""
    return TableName(source, "", "transaction")


def _field(name: str, kind: str, *, optional: bool = False) -> dict[str, Any]:
    return {"type": kind, "optional": optional, "field": name}


def _struct(name: str, fields: Sequence[dict[str, Any]], *, optional: bool) -> dict[str, Any]:
    made = {"type": "struct", "fields": list(fields), "optional": optional}
    return made | {"name": name, "version": 1}


_COUNTS = _struct(
    "event.collection",
    [_field("data_collection", "string"), _field("event_count", "int64")],
    optional=True,
)
_KEY = _struct(
    "io.debezium.connector.common.TransactionMetadataKey", [_field("id", "string")], optional=False
)
_VALUE = _struct(
    "io.debezium.connector.common.TransactionMetadataValue",
    [
        _field("status", "string"),
        _field("id", "string"),
        _field("event_count", "int64", optional=True),
        {"type": "array", "items": _COUNTS, "optional": True, "field": "data_collections"},
        _field("ts_ms", "int64"),
    ],
    optional=False,
)

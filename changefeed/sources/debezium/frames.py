"""Frames of ``java/Door.java`` as Arrow: columns where they lie in the frame, nothing copied."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.sources.debezium.carriers import Carrier

#: A partition and an offset, as Kafka Connect stores them.
Offset = tuple[Mapping[str, Any], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class TableShape:
    """A table in one shape, as Debezium's envelope has it.

    Attributes:
        number: in this run of the engine.
        columns, key: of the row; names of the key's columns.
        source: Debezium's description of where the first row came from.
    """

    number: int
    columns: tuple[Carrier, ...]
    key: tuple[str, ...]
    source: Mapping[str, Any]

    @classmethod
    def parse(cls, content: bytes) -> TableShape:
        """A frame ``S``."""
        entry = json.loads(content)
        columns = tuple(Carrier(**column) for column in entry["columns"])
        return cls(entry["table"], columns, tuple(entry["key"]), entry["source"])


@dataclass(frozen=True, slots=True)
class RecordMark:
    """What stands between rows.

    ``kind`` is ``begin`` or ``end`` of a transaction, ``truncate``, ``beat`` of an idle source,
    ``notice`` about a snapshot (its ``id`` is the text), or ``last``, the end of the frame.

    ``at``: before which record of the frame. ``source``: of the last row before it.
    """

    at: int
    kind: str
    offset: Offset
    id: str = ""
    source: Mapping[str, Any] | None = None
    table: int = -1


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one table: their places in the frame, what happened, and the values as they came."""

    table: int
    at: npt.NDArray[np.int64]
    op: npt.NDArray[np.uint8]
    has_before: npt.NDArray[np.bool_]
    after: list[pa.Array]
    before: list[pa.Array]
    unsent: Sequence[tuple[int, int]]


def in_halves(group: Group) -> tuple[Group, npt.NDArray[np.int64]]:
    """Each update as a delete of the old row and an insert of the new one: what an update of a
    table without a key is. For each row also which half of its record it is, 0 or 1."""
    updates = group.op == ord("u")
    if not updates.any():
        return group, np.zeros(len(group.op), np.int64)
    places = np.repeat(np.arange(len(group.op)), np.where(updates, 2, 1))
    second = np.zeros(len(places), np.bool_)
    second[1:] = places[1:] == places[:-1]
    op = group.op[places]
    op[updates[places] & ~second] = ord("d")
    op[updates[places] & second] = ord("c")
    chosen = pa.array(places)
    gone, come = pa.array(op == ord("d")), pa.array(op == ord("c"))
    after = [pc.if_else(gone, None, column.take(chosen)) for column in group.after]
    before = [pc.if_else(come, None, column.take(chosen)) for column in group.before]
    unsent: list[tuple[int, int]] = []
    for column, row in group.unsent:
        unsent += [(column, int(at)) for at in np.flatnonzero((places == row) & (op != ord("d")))]
    has_before = group.has_before[places] & (op != ord("c"))
    halves = Group(group.table, group.at[places], op, has_before, after, before, unsent)
    return halves, second.astype(np.int64)


@dataclass(frozen=True, slots=True)
class DoorBatch:
    """What the engine gave in one go."""

    frame: int
    records: int
    marks: list[RecordMark]
    groups: list[Group]


def read_batch(content: bytes, shapes: Mapping[int, TableShape]) -> DoorBatch:
    (length,) = np.frombuffer(content, "<i4", 1)
    head = json.loads(content[4 : 4 + int(length)])
    start = (4 + int(length) + 7) // 8 * 8
    marks = [
        RecordMark(
            entry["at"],
            entry["kind"],
            (entry["partition"], entry["offset"]),
            entry.get("id") or "",
            entry.get("source"),
            entry.get("table", -1),
        )
        for entry in head["marks"]
    ]
    whole = pa.py_buffer(content)
    groups = [_group(whole, start, entry, shapes[entry["table"]]) for entry in head["groups"]]
    return DoorBatch(head["frame"], head["records"], marks, groups)


#: By how values travel, see ``java/Values.java``.
_TYPES = {"t": pa.string(), "z": pa.bool_(), "i": pa.int64(), "d": pa.float64()}


class _Parts:
    def __init__(self, whole: pa.Buffer, start: int, places: Sequence[Sequence[int]]) -> None:
        self._whole = whole
        self._start = start
        self._places = iter(places)

    def next(self) -> pa.Buffer:
        offset, size = next(self._places)
        return self._whole.slice(self._start + offset, size)

    def column(self, kind: str, count: int) -> pa.Array:
        there = np.frombuffer(self.next(), np.uint8, count)
        nulls = count - int(np.count_nonzero(there))
        valid = None if not nulls else pa.py_buffer(np.packbits(there, bitorder="little"))
        if kind == "t":
            buffers = [valid, self.next(), self.next()]
            return pa.Array.from_buffers(pa.string(), count, buffers, nulls)
        if kind == "z":
            bits = np.packbits(np.frombuffer(self.next(), np.uint8, count), bitorder="little")
            return pa.Array.from_buffers(pa.bool_(), count, [valid, pa.py_buffer(bits)], nulls)
        return pa.Array.from_buffers(_TYPES[kind], count, [valid, self.next()], nulls)


def _group(whole: pa.Buffer, start: int, entry: Mapping[str, Any], shape: TableShape) -> Group:
    count = entry["rows"]
    parts = _Parts(whole, start, entry["parts"])
    at = np.frombuffer(parts.next(), "<i4", count).astype(np.int64)
    op = np.frombuffer(parts.next(), np.uint8, count)
    there = np.frombuffer(parts.next(), np.uint8, count).astype(np.bool_)
    kinds = [column.kind for column in shape.columns]
    after, before = (
        [
            parts.column(kind, count) if entry[side] else pa.nulls(count, _TYPES[kind])
            for kind in kinds
        ]
        for side in ("after", "before")
    )
    unsent = [(column, row) for column, row in entry["unsent"]]
    return Group(entry["table"], at, op, there, after, before, unsent)

"""The header of a frame: what a flush holds and where, and the units that readers see.

A header is a JSON object::

    f   [wall, logical, position, seq, history]
                                           the frontier; absent while only a part of a large
                                           transaction is in the log (history: if there is one)
    a   [wall, logical]                    everything above this is in the log (first frame of
                                           a log only)
    s   [[id, version, schema text], ...]  schemas that this file uses from here on; the numbers
                                           are valid in this file only
    e   entries in log order:
        ["b", id, rows, bytes, first, last, first seq, last seq, clean, superseded,
              offset, length, raw, crc, unsent]               rows stored in the body
        ["p", id, file, size, clean, superseded, [[rows, bytes, first, last, first seq,
              last seq], ...], unsent, [[end, crc], ...]]     a Parquet file, by row group, and
                                                              the checksums of its stretches
        ["t", id, wall, logical, seq]                         TRUNCATE
        ["s", old id, new id, wall, logical, seq, rewritten, side, moved, why,
              unreadable, [[old column, new column], ...]]
                 schema change, shown to readers of the old table name, the new one or both
        ["d", [source, schema, name], wall, logical, seq, kind, position, statement]
                 a statement of DDL that concerns the table
    k   [[wall], [logical], [position], [xid]]                few commits
    c   [[rows, last position, offset, length, raw, crc], ..] many commits, in the body

``unsent``: some row may lack a value that the source did not send.

A *unit* is the frames up to and including the next one with a frontier: the smallest step that a
reader can see. Its timestamps are in ``(after, upto]``, and consecutive units leave no gap.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa

from changefeed.core.clock import Timestamp
from changefeed.core.events import Ddl, Frontier, Position, SchemaChange, Truncate
from changefeed.core.proofs import Stretch, stretches
from changefeed.core.schema import TableName, TableSchema
from changefeed.log.journal import Frame
from changefeed.log.rows import Extent, Measure, SchemaShape, Stamp

COMMIT_SCHEMA: Final = pa.schema(
    [
        pa.field("wall", pa.int64(), nullable=False),
        pa.field("logical", pa.int32(), nullable=False),
        pa.field("position", pa.string(), nullable=False),
        pa.field("xid", pa.int64(), nullable=False),
    ]
)


#: The names of a renamed table to which a schema change belongs: in a flush, both. A merged journal
#: orders its entries by table, so it has one entry under each name.
BOTH, OLD, NEW = 0, 1, 2


class GroupProof(NamedTuple):
    """The checksums of what a reader of one row group needs of the file."""

    stamps: Stretch
    others: Stretch
    footer: Stretch


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group of a Parquet segment.

    Attributes:
        size: of the file.
    """

    file: str
    index: int
    size: int
    proof: GroupProof


@dataclass(frozen=True, slots=True)
class Run:
    """Stored rows of one table and schema version, in log order."""

    shape: SchemaShape
    where: Extent | RowGroup
    measure: Measure

    @property
    def schema(self) -> TableSchema:
        """The schema of the rows."""
        return self.shape.schema


#: What the log has of a table beside its rows.
ControlEvent = Truncate | SchemaChange | Ddl
Entry = Run | ControlEvent

#: A few commits as lists: (wall, logical, position, xid).
CommitList = tuple[list[int], list[int], list[Position], list[int]]


@dataclass(frozen=True, slots=True)
class CommitExtent:
    """Where a batch of commits is stored, and its last position, so that a search can skip it."""

    extent: Extent
    rows: int
    last_position: Position


@dataclass(frozen=True, slots=True)
class Unit:
    """Rows and control events that become visible together; all are in ``(after, upto]``."""

    after: Stamp
    upto: Stamp
    frontier: Frontier
    tables: dict[TableName, list[Entry]]
    commits: tuple[CommitList | CommitExtent, ...]

    def commit_at(
        self, position: Position, load: Callable[[CommitExtent], pa.RecordBatch]
    ) -> Stamp | None:
        """The timestamp of the last commit of this unit at or below ``position``."""
        for at in range(len(self.commits) - 1, -1, -1):
            commits = self.commits[at]
            if at and _last_position(self.commits[at - 1]) > position:
                continue
            if isinstance(commits, CommitExtent):
                batch = load(commits)
                lists = tuple(batch.column(i).to_pylist() for i in range(3))
            else:
                lists = commits[:3]
            count = bisect_right(lists[2], position)
            if count:
                return lists[0][count - 1], lists[1][count - 1]
        return None


def _last_position(commits: CommitList | CommitExtent) -> Position:
    return commits.last_position if isinstance(commits, CommitExtent) else commits[2][-1]


def encode_run(schema_id: int, m: Measure, extent: list[int]) -> list[Any]:
    """Header entry of rows in the body; ``extent`` is ``[offset, length, raw, crc]``."""
    return [
        "b", schema_id, m.rows, m.bytes, m.first, m.last, m.first_seq, m.last_seq, m.clean,
        int(m.superseded), *extent, int(m.unsent),
    ]  # fmt: skip


def encode_segment(
    schema_id: int, file: str, size: int, groups: list[Measure], marks: list[list[int]]
) -> list[Any]:
    """Header entry of a Parquet file; ``marks``: see :func:`changefeed.core.proofs.stretches`."""
    clean = groups[0].clean
    for m in groups:
        clean &= m.clean
    superseded = any(m.superseded for m in groups)
    rows = [[m.rows, m.bytes, m.first, m.last, m.first_seq, m.last_seq] for m in groups]
    unsent = any(m.unsent for m in groups)
    return ["p", schema_id, file, size, clean, int(superseded), rows, int(unsent), marks]


def segment_marks(groups: list[RowGroup]) -> list[list[int]]:
    """The ``marks`` of a Parquet file, from all of its row groups."""
    known = [stretch for group in groups for stretch in (group.proof.stamps, group.proof.others)]
    return [[s.end, s.crc] for s in [*known, groups[-1].proof.footer]]


def encode_frontier(frontier: Frontier) -> list[Any]:
    """``[wall, logical, position, seq]``."""
    fields = [frontier.at.wall, frontier.at.logical, frontier.position, frontier.seq]
    return [*fields, frontier.history] if frontier.history else fields


def decode_frontier(fields: list[Any]) -> Frontier:
    """The inverse of :func:`encode_frontier`."""
    history = fields[4] if len(fields) > 4 else ""
    return Frontier(Timestamp(fields[0], fields[1]), fields[2], fields[3], history)


#: Schemas by (version, text), shared by all files a reader has open.
ShapeCache = dict[tuple[int, str], SchemaShape]


class UnitReader:
    """Turns the frames of one journal file into units; keeps the file's schema numbers."""

    __slots__ = ("_cache", "_commits", "_file", "_shapes", "_tables", "after")

    def __init__(self, file: int, after: Stamp | None, cache: ShapeCache) -> None:
        self._file = file
        self._cache = cache
        self._shapes: dict[int, SchemaShape] = {}
        self._tables: dict[TableName, list[Entry]] = {}
        self._commits: list[CommitList | CommitExtent] = []
        #: Where the next unit begins; None until the first frame of a new log has been read.
        self.after = after

    def units(self, frames: Iterable[Frame]) -> Iterator[Unit]:
        """The units that the frames complete; frames of an incomplete unit are kept for later."""
        for frame in frames:
            unit = self.add(frame)
            if unit is not None:
                yield unit

    def add(self, frame: Frame) -> Unit | None:
        """Take one frame. Return the unit that it completes, or None."""
        header = frame.header
        if "a" in header and self.after is None:
            self.after = (header["a"][0], header["a"][1])
        for number, version, text in header.get("s", ()):
            self._shapes[number] = self._shape(version, text)
        for entry in header.get("e", ()):
            _DECODERS[entry[0]](self, frame.body, entry)
        if "k" in header:
            self._commits.append(tuple(header["k"]))
        for rows, last, offset, length, raw, crc in header.get("c", ()):
            extent = Extent(self._file, frame.body + offset, length, raw, crc)
            self._commits.append(CommitExtent(extent, rows, last))
        if "f" not in header:
            return None
        frontier = decode_frontier(header["f"])
        upto = (frontier.at.wall, frontier.at.logical)
        unit = Unit(self.after or upto, upto, frontier, self._tables, tuple(self._commits))
        self._tables, self._commits, self.after = {}, [], upto
        return unit

    def _shape(self, version: int, text: str) -> SchemaShape:
        known = self._cache.get((version, text))
        if known is None:
            known = SchemaShape(TableSchema.from_json(text, version))
            self._cache[version, text] = known
        return known

    def _put(self, table: TableName, entry: Entry) -> None:
        self._tables.setdefault(table, []).append(entry)

    def _run(self, body: int, e: list[Any]) -> None:
        shape = self._shapes[e[1]]
        flags = bool(e[9]), bool(e[14])
        m = Measure(e[2], e[3], tuple(e[4]), tuple(e[5]), e[6], e[7], e[8], *flags)
        where = Extent(self._file, body + e[10], *e[11:14])
        self._put(shape.schema.table, Run(shape, where, m))

    def _segment(self, body: int, e: list[Any]) -> None:
        shape = self._shapes[e[1]]
        flags, known = (e[4], bool(e[5]), bool(e[7])), stretches(e[8])
        for index, (rows, size, first, last, first_seq, last_seq) in enumerate(e[6]):
            m = Measure(rows, size, tuple(first), tuple(last), first_seq, last_seq, *flags)
            proof = GroupProof(known[2 * index], known[2 * index + 1], known[-1])
            self._put(shape.schema.table, Run(shape, RowGroup(e[2], index, e[3], proof), m))

    def _truncate(self, body: int, e: list[Any]) -> None:
        schema = self._shapes[e[1]].schema
        self._put(schema.table, Truncate(schema, Timestamp(e[2], e[3]), e[4]))

    def _schema_change(self, body: int, e: list[Any]) -> None:
        old, new = self._shapes[e[1]].schema, self._shapes[e[2]].schema
        at = Timestamp(e[3], e[4])
        moved, why, unreadable, renamed = e[8:]
        event = SchemaChange(
            old,
            new,
            at,
            e[5],
            bool(e[6]),
            moved=bool(moved),
            unreadable=bool(unreadable),
            why=why,
            renamed=tuple((before, after) for before, after in renamed),
        )
        if e[7] != NEW:
            self._put(old.table, event)
        if e[7] == NEW or (e[7] == BOTH and new.table != old.table):
            self._put(new.table, event)

    def _ddl(self, body: int, e: list[Any]) -> None:
        table = TableName(*e[1])
        self._put(table, Ddl(table, e[5], e[7], e[6], Timestamp(e[2], e[3]), e[4]))


_DECODERS: Final[dict[str, Callable[[UnitReader, int, list[Any]], None]]] = {
    "b": UnitReader._run,
    "p": UnitReader._segment,
    "t": UnitReader._truncate,
    "s": UnitReader._schema_change,
    "d": UnitReader._ddl,
}


def frame_extents(frame: Frame, file: int) -> Iterator[Extent]:
    """Every stored run of bytes of a frame, for recovery to verify."""
    for e in frame.header.get("e", ()):
        if e[0] == "b":
            yield Extent(file, frame.body + e[10], *e[11:14])
    for c in frame.header.get("c", ()):
        yield Extent(file, frame.body + c[2], *c[3:6])


def frame_segments(frame: Frame) -> Iterator[tuple[str, int]]:
    """Name and size of every Parquet file a frame refers to."""
    for e in frame.header.get("e", ()):
        if e[0] == "p":
            yield e[2], e[3]


def stamp_of(at: Timestamp) -> Stamp:
    """A timestamp as a tuple."""
    return at.wall, at.logical


def first_after(units: list[Unit], stamp: Stamp) -> int:
    """Index of the first unit that can hold something above ``stamp``."""
    return bisect_right(units, stamp, key=lambda u: u.upto)


def first_reaching(units: list[Unit], position: Position) -> int:
    """Index of the first unit whose frontier is above ``position``."""
    return bisect_right(units, position, key=lambda u: u.frontier.position)

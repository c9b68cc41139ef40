"""A transaction that was kept in the spool, decoded chunk by chunk when it commits.

No chunk knows the others' keys, so the transaction is read up to three times:

1. its messages are found, the shapes of its tables looked up, and which kinds of changes each
   table has;
2. where a key may be written twice (an update, or inserts and deletes), the keys are compared
   (:mod:`changefeed.sources.decoded.repeats`);
3. the rows are decoded and given out, a flush without a frontier for each chunk but the last,
   which waits for its commit. An image before the transaction is read where the key's first
   write lies.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Flush
from changefeed.core.schema import BeforeImage, Column, TableSchema
from changefeed.sources.decoded.repeats import (
    EXISTED,
    NEW,
    ONCE,
    SUPERSEDED,
    AddedRows,
    Places64,
    Repeats,
)
from changefeed.sources.decoded.rows import DecodedRows, Operations
from changefeed.sources.decoded.spans import PADDING, Bytes, Mask, Places
from changefeed.sources.decoded.superseded import CollapsedRows, transaction_op
from changefeed.sources.postgres import pgoutput
from changefeed.sources.postgres.assemble import (
    Assembler,
    OpenTransaction,
    RowMessages,
    Shapes,
    table_oids,
)
from changefeed.sources.postgres.columns import Block, decode_columns, decode_keys, masked
from changefeed.sources.postgres.pgoutput import TAG_OFFSET
from changefeed.sources.postgres.spool import Spool, SpoolChunk


def replay(to: Assembler, transaction: OpenTransaction, *, streamed: bool) -> Iterator[Flush]:
    """Give the rows of a kept transaction to ``to``, and out what has gathered between.

    ``streamed``: the server sent it while it ran: each message has the number of its
    subtransaction, and some may have been rolled back.
    """
    yield from _Replay(to, transaction, streamed).run()


def has_rows(spool: Spool, xid: int) -> bool:
    """Whether anything is left of a kept transaction that the server sent while it ran: a row or
    a TRUNCATE that was not rolled back."""
    aborted = np.array(sorted(spool.aborted(xid)), np.intp)
    for chunk in spool.scanned(xid).chunks():
        block = Block(_bytes(chunk))
        left = _not_aborted(block, chunk.rows, aborted)
        if (block.data[left] != pgoutput.MESSAGE).any():
            return True
        for mark in chunk.marks:
            truncates = mark.tag == pgoutput.TRUNCATE
            if truncates and pgoutput.read_xid(chunk.data, mark.place) not in aborted:
                return True
    return False


def _not_aborted(block: Block, tags: Places, aborted: Places) -> Places:
    if not len(aborted) or not len(tags):
        return tags
    return tags[~np.isin(block.word(tags + 1) & 0xFFFFFFFF, aborted)]


@dataclass(frozen=True, slots=True)
class _Truncation:
    oids: list[int]
    shapes: Shapes


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Row messages of one chunk between which no table changes its shape.

    Attributes:
        first, upto: which of the chunk's rows.
        shapes: of the tables they are about.
        groups: numbers by table; keys of rows in different groups are different keys. A TRUNCATE
            begins a new one, and a change of the columns that are compared.
        truncation: what follows.
    """

    first: int
    upto: int
    shapes: Shapes
    groups: Mapping[int, int]
    truncation: _Truncation | None = None


@dataclass(slots=True)
class _Plan:
    chunks: list[list[_Stretch]] = field(default_factory=list)
    kinds: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    groups: dict[int, int] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    #: Shapes by table, with the place from which on messages have them.
    history: dict[int, list[tuple[int, TableSchema]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def repeats(self, schema: TableSchema, oid: int) -> bool:
        """A key of the table may be written twice."""
        if schema.keyless:
            return False
        kinds = self.kinds[oid]
        return pgoutput.UPDATE in kinds or {pgoutput.INSERT, pgoutput.DELETE} <= kinds

    def group(self, oid: int) -> int:
        """The number under which the table's present keys are compared."""
        if oid not in self.groups:
            self.begin_group(oid)
        return self.groups[oid]

    def begin_group(self, oid: int) -> None:
        """Rows of the table that follow have nothing to do with those before."""
        self.groups[oid] = next(self.numbers)


class _Replay:
    def __init__(self, to: Assembler, transaction: OpenTransaction, streamed: bool) -> None:
        self.to = to
        self.relations = to.relations
        self.spool = spool = to.spool
        self.transaction = transaction
        self.streamed = streamed
        self.kept = spool.scanned(transaction.xid)
        self.aborted = np.array(sorted(spool.aborted(transaction.xid)), np.intp)
        self.plan = _Plan()

    def run(self) -> Iterator[Flush]:
        self._make_plan()
        records = self.spool.scratch(self.transaction.xid, "records")
        found = self.spool.scratch(self.transaction.xid, "found")
        with closing(Repeats(records, found)) as repeats:
            if any(self._compared(stretch) for part in self.plan.chunks for stretch in part):
                self._compare(repeats)
            for chunk, stretches in zip(self.kept.chunks(), self.plan.chunks, strict=True):
                yield from self.to.flush(None)
                yield from self._chunk(chunk, stretches, repeats)

    # -- first pass: shapes and kinds -------------------------------------------------------

    def _make_plan(self) -> None:
        for chunk in self.kept.chunks():
            block = Block(_bytes(chunk))
            stretches: list[_Stretch] = []
            done = 0
            for mark in chunk.marks:
                if mark.tag == pgoutput.RELATION:
                    body = pgoutput.relation_body(chunk.data, mark.place, streamed=self.streamed)
                    if self.relations.changes(body):
                        stretches.append(self._stretch(chunk, block, done, mark.rows))
                        done = mark.rows
                    self.relations.put(body, self.transaction.xid)
                elif mark.tag == pgoutput.TRUNCATE and not self._undone(chunk, mark.place):
                    oids = pgoutput.read_truncate(chunk.data, mark.place, streamed=self.streamed)
                    stretches.append(self._stretch(chunk, block, done, mark.rows, oids))
                    done = mark.rows
            stretches.append(self._stretch(chunk, block, done, len(chunk.rows)))
            self.plan.chunks.append(stretches)

    def _undone(self, chunk: SpoolChunk, place: int) -> bool:
        return self.streamed and pgoutput.read_xid(chunk.data, place) in self.aborted

    def _stretch(
        self, chunk: SpoolChunk, block: Block, first: int, upto: int, emptied: Sequence[int] = ()
    ) -> _Stretch:
        tags = self._tags(chunk, block, first, upto)
        tables = self._tables(block, tags)
        shapes = self.to.shapes(tables)
        for oid, at in tables.items():
            self.plan.kinds[oid].update(np.unique(block.data[tags[at]]).tolist())
            self._note_shape(oid, shapes.schemas[oid], chunk.start + int(tags[at[0]]))
        groups = {oid: self.plan.group(oid) for oid in tables}
        truncation = None
        if emptied:
            truncation = _Truncation(list(emptied), self.to.shapes(emptied))
            for oid in emptied:
                self.plan.begin_group(oid)
        return _Stretch(first, upto, shapes, groups, truncation)

    def _note_shape(self, oid: int, schema: TableSchema, place: int) -> None:
        known = self.plan.history[oid]
        if known and known[-1][1] is schema:
            return
        if known and not _comparable(known[-1][1], schema):
            self.plan.begin_group(oid)
        known.append((place, schema))

    def _tags(self, chunk: SpoolChunk, block: Block, first: int, upto: int) -> Places:
        tags = chunk.rows[first:upto]
        return _not_aborted(block, tags, self.aborted) if self.streamed else tags

    def _tables(self, block: Block, tags: Places) -> dict[int, Places]:
        """Which of the tags are about which table."""
        if not len(tags):
            return {}
        oids = table_oids(block, tags, streamed=self.streamed)
        return {oid: np.flatnonzero(oids == oid) for oid in np.unique(oids).tolist()}

    # -- second pass: keys ------------------------------------------------------------------

    def _compared(self, stretch: _Stretch) -> list[int]:
        schemas = stretch.shapes.schemas
        return [oid for oid in sorted(stretch.groups) if self.plan.repeats(schemas[oid], oid)]

    def _compare(self, repeats: Repeats) -> None:
        for chunk, stretches in zip(self.kept.chunks(), self.plan.chunks, strict=True):
            block = Block(_bytes(chunk))
            for stretch in stretches:
                tags = self._tags(chunk, block, stretch.first, stretch.upto)
                tables = self._tables(block, tags)
                for oid in self._compared(stretch):
                    mine = tags[tables[oid]]
                    schema = stretch.shapes.schemas[oid]
                    message, op, key = self._keys(block, mine, schema)
                    repeats.add(stretch.groups[oid], key, op, chunk.start + mine[message])
        repeats.sort()

    def _keys(
        self, block: Block, tags: Places, schema: TableSchema
    ) -> tuple[Places, Operations, list[pa.Array]]:
        """As :func:`decode_keys`; nothing of keys that cannot be read, since the table stops where
        their rows are decoded."""
        try:
            return decode_keys(block, tags, schema, streamed=self.streamed)
        except ChangefeedError as error:
            if error.code is not Code.UNEXPECTED_MESSAGE:
                raise
            key = [pa.array([], column.arrow) for column in schema.key_columns]
            return np.empty(0, np.intp), np.empty(0, np.uint8), key

    # -- third pass: rows -------------------------------------------------------------------

    def _chunk(
        self, chunk: SpoolChunk, stretches: Sequence[_Stretch], repeats: Repeats
    ) -> Iterator[Flush]:
        block = Block(_bytes(chunk))
        for stretch in stretches:
            yield from self._rows(chunk, block, stretch, repeats)
            if stretch.truncation is not None:
                self.transaction.touched = True
                self.to.truncate(
                    stretch.truncation.oids, self.transaction, stretch.truncation.shapes
                )

    def _rows(
        self, chunk: SpoolChunk, block: Block, stretch: _Stretch, repeats: Repeats
    ) -> Iterator[Flush]:
        writes = {oid: repeats.take() for oid in self._compared(stretch)}
        shapes = stretch.shapes
        tags = self._tags(chunk, block, stretch.first, stretch.upto)
        for number, part in enumerate(self._parts(chunk, tags, writes, shapes)):
            if number:
                yield from self.to.flush(None)
            logical = block.data[part] == pgoutput.MESSAGE
            self.transaction.touched |= not logical.all()
            self.transaction.spoke |= bool(logical.any())
            here = (chunk.start + int(part[0]), chunk.start + int(part[-1]))
            mine = {oid: some.of(*here) for oid, some in writes.items()}
            messages = self._messages(block, part)
            self.to.rows(chunk.data, block, messages, shapes, partial(self._collapsed, mine))
            seen = self._tables(block, part).keys()
            left = {oid: c for oid, c in shapes.changes.items() if oid not in seen}
            shapes = replace(shapes, changes=left)

    def _messages(self, block: Block, tags: Places) -> RowMessages:
        of = np.zeros(len(tags), np.intp)
        writers = np.full(len(tags), self.transaction.xid)
        if self.streamed:  # each message has the number of its subtransaction
            writers = block.word(tags + 1) & 0xFFFFFFFF
        return RowMessages(tags, of, [self.transaction], writers, streamed=self.streamed)

    def _parts(
        self, chunk: SpoolChunk, tags: Places, writes: Mapping[int, AddedRows], shapes: Shapes
    ) -> list[Places]:
        """Rows whose images before the transaction fit into memory together."""
        if not len(tags):
            return []
        read = [
            some.of_kind(EXISTED) for oid, some in writes.items() if _whole(shapes.schemas[oid])
        ]
        place = np.concatenate([some.place for some in read] or [np.empty(0, np.int64)])
        first = np.concatenate([some.first for some in read] or [np.empty(0, np.int64)])
        order = np.argsort(place, kind="stable")
        sizes = np.cumsum(self._lengths(first[order]))
        if not len(sizes) or sizes[-1] <= self.spool.chunk:
            return [tags]
        cuts = np.flatnonzero(np.diff(sizes // self.spool.chunk)) + 1
        bounds = np.searchsorted(tags + chunk.start, place[order][cuts])
        return [part for part in np.split(tags, bounds) if len(part)]

    def _collapsed(
        self,
        writes: Mapping[int, AddedRows],
        oid: int,
        schema: TableSchema,
        rows: DecodedRows,
        message: Places,
    ) -> CollapsedRows:
        mine = writes.get(oid)
        if mine is None or (mine.kind == ONCE).all():
            return CollapsedRows(rows.op, None, rows.before)
        existed: Mask = mine.kind == EXISTED
        made: Mask = mine.kind == NEW
        before = [masked(column, ~made) for column in rows.before]
        if _whole(schema):
            known = self._images(oid, schema, mine.first[existed])
        else:  # only the key was sent, and it is the row's own
            of_key = dict(zip(schema.key, rows.key, strict=True))
            known = [of_key[i].filter(pa.array(existed)) for i in schema.before_ordinals]
        chosen = pa.array(existed)
        return CollapsedRows(
            op=transaction_op(rows.op, existed | made, existed),
            stays=mine.kind != SUPERSEDED,
            before=[
                pc.replace_with_mask(column, chosen, image)
                for column, image in zip(before, known, strict=True)
            ],
        )

    # -- images before the transaction ------------------------------------------------------

    def _images(self, oid: int, schema: TableSchema, places: Places64) -> list[pa.Array]:
        """The rows before the changes at ``places``, by ``schema.before_ordinals``."""
        unique, inverse = np.unique(places, return_inverse=True)
        history = self.plan.history[oid]
        bounds = np.searchsorted(unique, [place for place, _ in history[1:]])
        found = [
            self._decoded_images(part, sent, schema)
            for part, (_, sent) in zip(np.split(unique, bounds), history, strict=True)
            if len(part)
        ]
        if not found:
            return [pa.nulls(0, schema.columns[i].arrow) for i in schema.before_ordinals]
        at = pa.array(inverse)
        return [pa.concat_arrays(columns).take(at) for columns in zip(*found, strict=True)]

    def _decoded_images(
        self, places: Places64, sent: TableSchema, schema: TableSchema
    ) -> list[pa.Array]:
        """Images of messages that were sent with the shape ``sent``, in that of ``schema``."""
        data, tags = self._frames(places)
        rows = decode_columns(Block(data), tags, sent, streamed=self.streamed)
        at = pa.array(np.searchsorted(rows.message, np.arange(len(tags))))
        images = {
            _identity(sent.columns[i]): column.take(at)
            for i, column in zip(sent.before_ordinals, rows.before, strict=True)
        }
        nothing = partial(pa.nulls, len(tags))
        return [
            images[_identity(column)] if _identity(column) in images else nothing(column.arrow)
            for column in (schema.columns[i] for i in schema.before_ordinals)
        ]

    def _frames(self, places: Places64) -> tuple[Bytes, Places]:
        """The messages whose tags lie at ``places``, next to each other, and their tags there."""
        sizes = self._lengths(places)
        ends = np.cumsum(sizes)
        starts = ends - sizes
        inside = np.arange(int(ends[-1])) + np.repeat(places - TAG_OFFSET - starts, sizes)
        data = np.zeros(len(inside) + PADDING, np.uint8)
        data[: len(inside)] = self._file[inside]
        return data, (starts + TAG_OFFSET).astype(np.intp)

    def _lengths(self, places: Places64) -> Places64:
        """How many bytes the messages have whose tags lie at ``places``."""
        if not len(places):
            return np.empty(0, np.int64)
        at = places - TAG_OFFSET + 1
        length = np.zeros(len(places), np.int64)
        for i in range(4):
            length = length << 8 | self._file[at + i]
        return length + 1

    @cached_property
    def _file(self) -> npt.NDArray[np.uint8]:
        return np.memmap(self.kept.frames, np.uint8, "r")


def _bytes(chunk: SpoolChunk) -> Bytes:
    return np.frombuffer(chunk.data, np.uint8)


def _whole(schema: TableSchema) -> bool:
    return schema.before_image is BeforeImage.FULL


def _identity(column: Column) -> int | str:
    return column.ref


def _comparable(old: TableSchema, new: TableSchema) -> bool:
    """A row of the one shape can be the image before a row of the other."""

    def key(schema: TableSchema) -> list[int | str]:
        return [_identity(column) for column in schema.key_columns]

    kinds = {_identity(c): c.logical for c in old.columns}
    same = all(kinds.get(_identity(c), c.logical) == c.logical for c in new.columns)
    return same and key(old) == key(new) and old.before_image is new.before_image

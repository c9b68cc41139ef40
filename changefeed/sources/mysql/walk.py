"""Finding the rows in row events, and the columns in rows, without a step of Python a row.

The rows of one event can be found only one after the other; but row ``k`` of *all* events of a
table can be found at once. That is what :func:`walk` does while many events are left; the last few
long ones are walked row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from changefeed.core.errors import ChangefeedError
from changefeed.sources.mysql.binlog import misfit
from changefeed.sources.mysql.layout import FieldLayout, Layout

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]

#: Below so many events a step of numpy costs more than a step of Python for each of them.
FEW = 8
#: How many bytes behind the last row may be read (never used).
PADDING = 64


class Block:
    """A buffer of rows, and little-endian numbers at any offset in it."""

    def __init__(self, data: bytearray) -> None:
        """``data`` ends with :data:`PADDING` bytes that are not rows."""
        self.raw = data
        self.data: Bytes = np.frombuffer(data, np.uint8)
        # Overlapping views with a stride of one byte: words[p] is the number at byte p.
        size = len(data)
        self.halves = np.ndarray((size - 1,), "<u2", data, strides=(1,))
        self.words = np.ndarray((size - 3,), "<u4", data, strides=(1,))
        self.longs = np.ndarray((size - 7,), "<u8", data, strides=(1,))

    def number(self, offsets: Offsets, size: int) -> Offsets:
        """Unsigned numbers of 1 to 4 bytes."""
        if size == 1:
            return self.data[offsets].astype(np.intp)
        if size == 2:
            return self.halves[offsets].astype(np.intp)
        found = self.words[offsets].astype(np.intp)
        return found & 0xFFFFFF if size == 3 else found


@dataclass(frozen=True, slots=True)
class Images:
    """Row images in the order of the log.

    Attributes:
        event: for each image, which event it is in.
        rows: where each begins, with its bitmap of nulls.
        anchors: for each group of the layout, where its first column begins.
    """

    event: Offsets
    rows: Offsets
    anchors: Sequence[Offsets]

    def __len__(self) -> int:
        return len(self.rows)


def walk(block: Block, starts: Offsets, ends: Offsets, layout: Layout) -> Images:
    """Find the images of the events that lie at ``starts`` to ``ends``.

    Raises:
        ChangefeedError: CF2105 the rows do not fill their events.
    """
    return walk_in_turn(block, starts, ends, [layout])[0]


def walk_in_turn(
    block: Block, starts: Offsets, ends: Offsets, layouts: Sequence[Layout]
) -> list[Images]:
    """The same where the images of each event have these layouts in turn: the images of each
    layout.

    Raises:
        ChangefeedError: CF2105 the rows do not fill their events, or the last turn is not whole.
    """
    if len(starts) and int(ends.max()) > len(block.data) - PADDING:
        raise misfit("rows behind the end")
    if not all(layout.columns for layout in layouts):
        raise misfit("rows without columns")
    walks = [_Walk(block, layout) for layout in layouts]
    try:
        _walk(walks, starts, ends)
    except IndexError:
        raise misfit("a value ends behind its event") from None
    return [one.ordered() for one in walks]


def _walk(walks: Sequence[_Walk], starts: Offsets, ends: Offsets) -> None:
    event = np.flatnonzero(starts < ends)
    place, end = starts[event], ends[event]
    while len(event) >= FEW:
        for turn, one in enumerate(walks):
            if turn and (place >= end).any():
                raise _unpaired()
            place = one.step(event, place)
        if (place > end).any():
            raise misfit("a row ends behind its event")
        left = place < end
        if not left.all():
            event, place, end = event[left], place[left], end[left]
    turns = [(one.single.append, one.layout.null_bytes, one.layout.groups) for one in walks]
    data, number_of = walks[0].block.raw, int.from_bytes
    for number, first, last in zip(event.tolist(), place.tolist(), end.tolist(), strict=True):
        at = first
        while at < last:
            # All images of one event, in plain Python.
            for keep, null_bytes, groups in turns:
                if at >= last:
                    raise _unpaired()
                found = [number, at]
                nulls = number_of(data[at : at + null_bytes], "little")
                at += null_bytes
                for group in groups:
                    found.append(at)
                    for field in group:
                        if nulls >> field.ordinal & 1:
                            continue
                        if field.width >= 0:
                            at += field.width
                        else:
                            size = -field.width
                            at += size + number_of(data[at : at + size], "little")
                keep(found)
            if at > last:
                raise misfit("a row ends behind its event")


def _unpaired() -> ChangefeedError:
    return misfit("an update without its second row image")


class _Walk:
    def __init__(self, block: Block, layout: Layout) -> None:
        self.block, self.layout = block, layout
        #: Of each group, the width of its columns of fixed width.
        self.widths = [sum(f.width for f in group if not f.variable) for group in layout.groups]
        self.events: list[Offsets] = []
        self.found: list[list[Offsets]] = []
        #: Of what is walked row by row, flat: event, then row and anchors.
        self.single: list[list[int]] = []

    def step(self, event: Offsets, place: Offsets) -> Offsets:
        """One image in each event; where the images end."""
        nulls: list[Bytes | None] = []
        for byte in range(self.layout.null_bytes):
            bits = self.block.data[place + byte]
            nulls.append(bits if bits.any() else None)
        at = place + self.layout.null_bytes
        anchors = []
        for group, width in zip(self.layout.groups, self.widths, strict=True):
            anchors.append(at)
            at = at + (width - _missing(group, nulls))
            if group and group[-1].variable:
                at = at + self._variable(group[-1], at, nulls)
        self.events.append(event)
        self.found.append([place, *anchors])
        return at

    def _variable(self, field: FieldLayout, at: Offsets, nulls: Sequence[Bytes | None]) -> Offsets:
        length = self.block.number(at, -field.width) - field.width
        bits = nulls[field.ordinal >> 3]
        if bits is not None:
            length[(bits >> (field.ordinal & 7) & 1).astype(np.bool_)] = 0
        return length

    def ordered(self) -> Images:
        """Together, event after event."""
        width = 1 + len(self.layout.groups)
        single = np.array(self.single, np.intp).reshape(-1, width + 1)
        event = np.concatenate([*self.events, single[:, 0]])
        columns = [
            np.concatenate([*(step[i] for step in self.found), single[:, i + 1]])
            for i in range(width)
        ]
        if self.events:
            order = np.argsort(event, kind="stable")
            event = event[order]
            columns = [column[order] for column in columns]
        return Images(event, columns[0], columns[1:])


def _missing(group: tuple[FieldLayout, ...], nulls: Sequence[Bytes | None]) -> Offsets | int:
    """How much narrower a group is where columns of fixed width are null."""
    width: Offsets | int = 0
    for byte, bits in enumerate(nulls):
        if bits is None:
            continue
        table = np.zeros(256, np.intp)
        for field in group:
            if field.ordinal >> 3 == byte and not field.variable:
                table[np.arange(256) >> (field.ordinal & 7) & 1 == 1] += field.width
        width = width + table[bits]
    return width


@dataclass(frozen=True, slots=True)
class Cells:
    """One column of many images: ``data[starts[i]:ends[i]]`` where ``valid`` (None: everywhere);
    elsewhere an empty span."""

    starts: Offsets
    ends: Offsets
    valid: Mask | None

    def slice(self, first: int, end: int) -> Cells:
        """Those of some of the images."""
        valid = None if self.valid is None else self.valid[first:end]
        return Cells(self.starts[first:end], self.ends[first:end], valid)


def cells(block: Block, images: Images, layout: Layout) -> list[Cells]:
    found: list[Cells] = []
    for group, anchor in zip(layout.groups, images.anchors, strict=True):
        at = anchor
        for field in group:
            missing = block.data[images.rows + (field.ordinal >> 3)] >> (field.ordinal & 7) & 1
            valid = missing == 0 if missing.any() else None
            starts, width = at, field.width
            if field.variable:
                readable = at if valid is None else np.where(valid, at, images.rows)
                starts = at - width
                ends = starts + block.number(readable, -width)
            else:
                ends = at + width
            if valid is not None:
                starts, ends = np.where(valid, starts, at), np.where(valid, ends, at)
            found.append(Cells(starts, ends, valid))
            at = ends
    return found

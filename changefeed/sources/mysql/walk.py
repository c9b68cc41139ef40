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
        ends: where each image ends.
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
    if len(starts) and int(ends.max()) > len(block.data) - PADDING:
        raise misfit("rows behind the end")
    try:
        return _Walk(block, starts, ends, layout).run()
    except IndexError:
        raise misfit("a value ends behind its event") from None


class _Walk:
    def __init__(self, block: Block, starts: Offsets, ends: Offsets, layout: Layout) -> None:
        self.block, self.layout = block, layout
        self.starts, self.ends = starts, ends
        self.events: list[Offsets] = []
        self.found: list[list[Offsets]] = []
        #: Of what is walked row by row, flat: event, then row and anchors.
        self.single: list[list[int]] = []

    def run(self) -> Images:
        event = np.flatnonzero(self.starts < self.ends)
        offset, end = self.starts[event], self.ends[event]
        while len(event) >= FEW:
            anchors = self._step(offset)
            self.events.append(event)
            self.found.append([offset, *anchors[:-1]])
            offset = anchors[-1]
            left = offset < end
            if (offset > end).any():
                raise misfit("a row ends behind its event")
            if not left.all():
                event, offset, end = event[left], offset[left], end[left]
        for number, first, last in zip(event.tolist(), offset.tolist(), end.tolist(), strict=True):
            self._one(number, first, last)
        return self._ordered()

    def _step(self, offset: Offsets) -> list[Offsets]:
        """The anchors of one image in each event, and its end."""
        nulls = [self.block.data[offset + byte] for byte in range(self.layout.null_bytes)]
        at = offset + self.layout.null_bytes
        anchors = []
        for group in self.layout.groups:
            anchors.append(at)
            at = at + _fixed(group, nulls)
            if group and group[-1].variable:
                at = at + self._variable(group[-1], at, nulls)
        return [*anchors, at]

    def _variable(self, field: FieldLayout, at: Offsets, nulls: list[Bytes]) -> Offsets:
        length = self.block.number(at, -field.width) - field.width
        missing = nulls[field.ordinal >> 3] >> (field.ordinal & 7) & 1
        if missing.any():
            length[missing.astype(np.bool_)] = 0
        return length

    def _one(self, event: int, offset: int, end: int) -> None:
        """All images of one event, in plain Python."""
        data, layout = self.block.raw, self.layout
        while offset < end:
            found = [event, offset]
            nulls = int.from_bytes(data[offset : offset + layout.null_bytes], "little")
            at = offset + layout.null_bytes
            for group in layout.groups:
                found.append(at)
                for field in group:
                    if nulls >> field.ordinal & 1:
                        continue
                    if field.width >= 0:
                        at += field.width
                    else:
                        size = -field.width
                        at += size + int.from_bytes(data[at : at + size], "little")
            if at > end:
                raise misfit("a row ends behind its event")
            self.single.append(found)
            offset = at

    def _ordered(self) -> Images:
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


def _fixed(group: tuple[FieldLayout, ...], nulls: list[Bytes]) -> Offsets | int:
    """The width of a group's columns of fixed width, of which some may be null."""
    fixed = [field for field in group if not field.variable]
    width: Offsets | int = sum(field.width for field in fixed)
    for byte in sorted({field.ordinal >> 3 for field in fixed}):
        if not nulls[byte].any():
            continue
        table = np.zeros(256, np.intp)
        for field in fixed:
            if field.ordinal >> 3 == byte:
                table[np.arange(256) >> (field.ordinal & 7) & 1 == 1] += field.width
        width = width - table[nulls[byte]]
    return width


@dataclass(frozen=True, slots=True)
class Cells:
    """One column of many images: ``data[starts[i]:ends[i]]`` where ``valid`` (None: everywhere);
    elsewhere an empty span."""

    starts: Offsets
    ends: Offsets
    valid: Mask | None


def cells(block: Block, images: Images, layout: Layout) -> list[Cells]:
    """The values of all columns."""
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

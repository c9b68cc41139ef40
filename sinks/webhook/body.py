"""Finished messages -> bodies of requests, by joining bytes: no row is parsed or looked at.

{"payload": [{"after": .., "key": [1], "topic": "t"}, ..], "length": 2}
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sinks.base import Target

_HEAD, _COMMA, _TAIL = b'{"payload": [', b", ", b'], "length": %d}'
FRAME = len(_HEAD) + len(_TAIL) + 18
"""Most bytes of a body without its messages."""


@dataclass(frozen=True, slots=True)
class BodyPiece:
    """Messages of one table on one queue, in order: values without nulls, and their instants."""

    target: Target
    values: pa.Array
    walls: npt.NDArray[np.int64]
    logicals: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.values)

    def slice(self, start: int, stop: int) -> BodyPiece:
        return BodyPiece(
            self.target,
            self.values.slice(start, stop - start),
            self.walls[start:stop],
            self.logicals[start:stop],
        )

    def sizes(self) -> npt.NDArray[np.int64]:
        """Bytes of each message with its comma."""
        lengths = pc.binary_length(self.values).to_numpy(zero_copy_only=False)
        return np.asarray(lengths, dtype=np.int64) + len(_COMMA)

    @property
    def bytes(self) -> int:
        """Bytes of all messages with their commas."""
        return int(self.sizes().sum())


Parcel = Sequence[BodyPiece]
"""What goes into one request."""


def count(parcel: Parcel) -> int:
    return sum(map(len, parcel))


def body(parcel: Parcel) -> bytes:
    joined = _COMMA.join(_joined(piece.values) for piece in parcel)
    return _HEAD + joined + _TAIL % count(parcel)


def _joined(values: pa.Array) -> bytes:
    # Arrow joins lists with 32-bit offsets only; a parcel is far below that.
    whole = pa.ListArray.from_arrays([0, len(values)], values.cast(pa.binary()))
    joined: bytes = pc.binary_join(whole, _COMMA)[0].as_buffer().to_pybytes()
    return joined


def batch_key(job: int, parcel: Parcel, content: bytes) -> str:
    """The same for the same messages of a feed, however often they are sent.

    The instants are in it because two changes may read alike: a value that was set, changed and set
    again.
    """
    digest = hashlib.sha256(f"{job}:".encode())
    for piece in parcel:
        digest.update(f"{piece.target.table}:{len(piece)}:".encode())
        digest.update(piece.walls.tobytes())
        digest.update(piece.logicals.tobytes())
    digest.update(content)
    return digest.hexdigest()[:32]


def halves(parcel: Parcel) -> tuple[Parcel, Parcel]:
    """The parcel in two parts, in order; it has two messages at least."""
    middle = count(parcel) // 2
    first: list[BodyPiece] = []
    second: list[BodyPiece] = []
    for piece in parcel:
        cut = min(middle, len(piece))
        if cut:
            first.append(piece.slice(0, cut))
        if cut < len(piece):
            second.append(piece.slice(cut, len(piece)))
        middle -= cut
    return first, second


class Queue:
    """Messages of one queue that wait for a request."""

    def __init__(self, most_messages: int, most_bytes: int) -> None:
        self._most = (most_messages, most_bytes - FRAME)
        self._pieces: deque[BodyPiece] = deque()
        self.messages = 0
        self.bytes = 0

    def put(self, piece: BodyPiece) -> None:
        if not len(piece):
            return
        self._pieces.append(piece)
        self.messages += len(piece)
        self.bytes += piece.bytes

    @property
    def full(self) -> bool:
        """There is enough for a request that could not be longer."""
        return self.messages >= self._most[0] or self.bytes >= self._most[1]

    def take(self) -> Parcel:
        """The next request's messages; one that is too large by itself goes alone."""
        taken: list[BodyPiece] = []
        room, space = self._most
        while self._pieces:
            piece = self._pieces[0]
            # No more than could go: measuring the whole piece each time would be quadratic.
            sizes = piece.slice(0, min(room, len(piece))).sizes()
            size = int(np.searchsorted(np.cumsum(sizes), space, side="right"))
            size = size or (0 if taken else 1)
            if not size:
                break
            head = piece.slice(0, size)
            self._pieces.popleft()
            if size < len(piece):
                self._pieces.appendleft(piece.slice(size, len(piece)))
            taken.append(head)
            room, space = room - size, space - head.bytes
            if size < len(piece) or room <= 0:
                break
        self.messages -= count(taken)
        self.bytes -= sum(piece.bytes for piece in taken)
        return taken

    def clear(self) -> None:
        self._pieces.clear()
        self.messages = self.bytes = 0


def by_queue(
    target: Target, rows: pa.RecordBatch | pa.Table, queues: int
) -> Iterator[tuple[int, BodyPiece]]:
    """The rows that have a value, each key on one queue."""
    batches = [rows] if isinstance(rows, pa.RecordBatch) else rows.to_batches()
    for batch in batches:
        if batch.column("value").null_count:
            batch = batch.filter(pc.is_valid(batch.column("value")))
        if not batch.num_rows:
            continue
        piece = BodyPiece(
            target,
            batch.column("value"),
            batch.column("wall").to_numpy(zero_copy_only=False),
            batch.column("logical").to_numpy(zero_copy_only=False),
        )
        if queues == 1:
            yield 0, piece
            continue
        places = queues_of(batch.column("key"), queues)
        for queue in np.unique(places):
            mask = places == queue
            if mask.all():
                yield int(queue), piece
            else:
                values = piece.values.filter(pa.array(mask))
                yield int(queue), BodyPiece(target, values, piece.walls[mask], piece.logicals[mask])


def queues_of(keys: pa.Array, queues: int) -> npt.NDArray[np.int64]:
    """A queue for each key: equal keys get the same one, in every process.

    A sum of the bytes, each weighted by its place, then mixed (Knuth's multiplicative hashing);
    it has to spread, not to withstand an opponent.
    """
    keys = keys.cast(pa.binary())
    bounds = np.frombuffer(keys.buffers()[1], dtype=np.int32)[
        keys.offset : keys.offset + len(keys) + 1
    ].astype(np.int64)
    lengths = np.diff(bounds)
    if not lengths.any():
        return np.zeros(len(keys), dtype=np.int64)
    data = np.frombuffer(keys.buffers()[2], dtype=np.uint8)[bounds[0] : bounds[-1]]
    starts = bounds[:-1] - bounds[0]
    place = np.arange(len(data), dtype=np.int64) - np.repeat(starts, lengths)
    weighted = (data.astype(np.uint64) + np.uint64(1)) * _WEIGHTS[place % len(_WEIGHTS)]
    filled = lengths > 0
    sums = np.zeros(len(keys), dtype=np.uint64)
    sums[filled] = np.add.reduceat(weighted, starts[filled])
    mixed = (sums ^ (sums >> np.uint64(29))) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed >> np.uint64(33)) % np.uint64(queues)).astype(np.int64)


_WEIGHTS = np.cumprod(np.full(256, 0x100000001B3, dtype=np.uint64), dtype=np.uint64)

"""Large transactions on disk until they commit.

The server sends a transaction above its ``logical_decoding_work_mem`` in pieces while it runs,
between other transactions, not knowing whether it will commit (protocol version 2). The pieces
are kept as they came, a file for each transaction, and decoded in bounded chunks when the
commit arrives. An abort of a subtransaction is remembered and its rows are left out then. A
transaction that the server sends whole, but that does not fit the receive buffer, is kept here
until its commit as well.

Nothing here outlives the connection: after a reconnect the server sends such a transaction
again from its beginning.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from changefeed.sources.decoded.disk import no_room
from changefeed.sources.decoded.spans import PADDING, Places
from changefeed.sources.postgres.pgoutput import Inbox, StreamMark


@dataclass(frozen=True, slots=True)
class SpoolChunk:
    """A stretch of a kept transaction, small enough to be decoded at once.

    Attributes:
        start: where it begins in the transaction.
        data: its bytes, and :data:`~changefeed.sources.decoded.spans.PADDING`.
        rows: places of the tags of its row messages in ``data``.
        marks: everything between them.
    """

    start: int
    data: bytearray
    rows: Places
    marks: tuple[StreamMark, ...]


@dataclass(frozen=True, slots=True)
class _Extent:
    """Where a chunk lies in the transaction's file, and how many row messages it has."""

    start: int
    length: int
    rows: int
    marks: tuple[StreamMark, ...]


class Spool:
    """Files of transactions in progress, under a folder that is ours alone."""

    def __init__(self, folder: Path, chunk: int = 8 << 20, *, logical: bool = False) -> None:
        """
        Args:
            folder: is emptied.
            chunk: bytes that are decoded at once at commit.
            logical: logical messages are taken, too.
        """
        self.chunk = chunk
        self._logical = logical
        self._folder = folder
        self._aborted: dict[int, set[int]] = {}
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def append(self, xid: int, frames: memoryview) -> None:
        """Keep a piece of a transaction.

        Raises:
            ChangefeedError: CF3003 there is no room.
        """
        try:
            with self._path(xid).open("ab") as file:
                file.write(frames)
        except OSError as error:
            raise no_room(error) from error

    def abort(self, xid: int, subtransaction: int) -> None:
        """Forget a transaction, or one part of it that was rolled back."""
        if xid == subtransaction:
            self.discard(xid)
        else:
            self._aborted.setdefault(xid, set()).add(subtransaction)

    def aborted(self, xid: int) -> set[int]:
        """The rolled-back parts of a transaction."""
        return self._aborted.get(xid, set())

    def scanned(self, xid: int) -> ScannedTransaction:
        """A complete transaction, to be read chunk by chunk as often as needed."""
        places = self.scratch(xid, "places")
        return ScannedTransaction(self._path(xid), places, self.chunk, logical=self._logical)

    def scratch(self, xid: int, name: str) -> Path:
        """A file for what is found out about a transaction; it goes with the transaction."""
        return self._folder / f"{xid}.{name}"

    def discard(self, xid: int) -> None:
        """Forget a transaction."""
        self._aborted.pop(xid, None)
        for path in self._folder.glob(f"{xid}.*"):
            path.unlink(missing_ok=True)

    def bytes(self) -> int:
        """How much is on disk."""
        return sum(path.stat().st_size for path in self._folder.iterdir())

    def _path(self, xid: int) -> Path:
        return self._folder / f"{xid}.frames"


class ScannedTransaction:
    """A kept transaction whose messages are found once, at the first pass over its chunks.

    Where the row messages lie is kept in a file beside it, so that further passes need not look
    for them again and memory does not grow with the transaction.
    """

    def __init__(self, frames: Path, places: Path, chunk: int, *, logical: bool = False) -> None:
        self.frames = frames
        self._logical = logical
        self._places = places
        self._chunk = chunk
        self._extents: list[_Extent] | None = None

    def chunks(self) -> Iterator[SpoolChunk]:
        """The transaction from its beginning; each chunk is good until the next is asked for."""
        if self._extents is None:
            yield from self._first_pass()
            return
        if not self._extents:
            return
        data = bytearray(max(extent.length for extent in self._extents) + PADDING)
        with self.frames.open("rb", buffering=0) as frames, self._places.open("rb") as places:
            for extent in self._extents:
                with memoryview(data) as view:
                    frames.readinto(view[: extent.length])
                rows = np.fromfile(places, np.int32, extent.rows).astype(np.intp)
                yield SpoolChunk(extent.start, data, rows, extent.marks)

    def _first_pass(self) -> Iterator[SpoolChunk]:
        extents: list[_Extent] = []
        if self.frames.exists():
            inbox, start = Inbox(self._chunk, logical=self._logical, kept=True), 0
            with self.frames.open("rb", buffering=0) as frames, self._places.open("wb") as places:
                while inbox.fill(lambda view: frames.readinto(view) or 0):
                    inbox.scan()
                    if inbox.full:
                        yield self._noted(inbox, start, extents, places.write)
                        start += inbox.place
                        inbox.drop(inbox.cut(everything=True))
                if inbox.rows or inbox.marks:
                    yield self._noted(inbox, start, extents, places.write)
        self._extents = extents

    def _noted(
        self, inbox: Inbox, start: int, extents: list[_Extent], write: Callable[[bytes], int]
    ) -> SpoolChunk:
        """Remember where the messages of a chunk lie."""
        rows = np.array(inbox.rows, np.intp)
        marks = tuple(inbox.marks)
        try:
            write(rows.astype(np.int32).tobytes())
        except OSError as error:
            raise no_room(error) from error
        extents.append(_Extent(start, inbox.place, len(rows), marks))
        return SpoolChunk(start, inbox.data, rows, marks)

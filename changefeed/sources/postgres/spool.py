"""Large transactions on disk until they commit.

The server sends a transaction above its ``logical_decoding_work_mem`` in pieces while it runs,
between other transactions, not knowing whether it will commit (protocol version 2). The pieces
are kept as they came, a file for each transaction with its checksum in memory, and decoded in
bounded chunks when the commit arrives. An abort of a subtransaction is remembered and its rows are
left out then. A transaction that the server sends whole, but that does not fit the receive buffer,
is kept here until its commit as well.

Nothing here outlives the connection: after a reconnect the server sends such a transaction
again from its beginning.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from changefeed.core.proofs import AlteredBytes, FileProof
from changefeed.sources.decoded.disk import altered, no_room
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
    """Where a chunk lies in the transaction's file, how many row messages it has, and the proofs
    of its bytes and of the places of these messages."""

    start: int
    length: int
    rows: int
    marks: tuple[StreamMark, ...]
    proof: FileProof
    proof_of_places: FileProof


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
        self._proofs: dict[int, FileProof] = {}
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
        self._proofs[xid] = self._proofs.get(xid, FileProof()).and_then(frames)

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
        return ScannedTransaction(
            self._path(xid), self._proofs.get(xid), places, self.chunk, logical=self._logical
        )

    def scratch(self, xid: int, name: str) -> Path:
        """A file for what is found out about a transaction; it goes with the transaction."""
        return self._folder / f"{xid}.{name}"

    def discard(self, xid: int) -> None:
        self._aborted.pop(xid, None)
        self._proofs.pop(xid, None)
        for path in self._folder.glob(f"{xid}.*"):
            path.unlink(missing_ok=True)

    def bytes(self) -> int:
        """How much is on disk."""
        return sum(path.stat().st_size for path in self._folder.iterdir())

    def _path(self, xid: int) -> Path:
        return self._folder / f"{xid}.frames"


class ScannedTransaction:
    """A kept transaction whose messages are found once, at the first pass over its chunks.

    Where the row messages lie is kept in a file next to it, so that further passes need not look
    for them again and memory does not grow with the transaction.
    """

    def __init__(
        self,
        frames: Path,
        proof: FileProof | None,
        places: Path,
        chunk: int,
        *,
        logical: bool = False,
    ) -> None:
        """``proof``: of the file ``frames``; None: nothing was kept."""
        self.frames = frames
        self._proof = proof
        self._logical = logical
        self._places = places
        self._chunk = chunk
        self._extents: list[_Extent] | None = None

    def chunks(self) -> Iterator[SpoolChunk]:
        """The transaction from its beginning; each chunk is good until the next is asked for.

        Raises:
            ChangefeedError: CF2101, the file is not what was written.
        """
        if self._extents is None:
            yield from self._first_pass()
            return
        if not self._extents:
            return
        data = bytearray(max(extent.length for extent in self._extents) + PADDING)
        with self._open(self.frames) as frames, self._open(self._places) as places:
            for extent in self._extents:
                with memoryview(data) as view:
                    frames.readinto(view[: extent.length])
                    numbers = np.fromfile(places, np.int32, extent.rows)
                    _check(self.frames, view[: extent.length], extent.proof)
                _check(self._places, numbers.view(np.uint8).data, extent.proof_of_places)
                yield SpoolChunk(extent.start, data, numbers.astype(np.intp), extent.marks)

    @staticmethod
    def _open(path: Path) -> io.FileIO:
        try:
            return path.open("rb", buffering=0)
        except OSError as error:
            raise altered(path, error) from error

    def _first_pass(self) -> Iterator[SpoolChunk]:
        extents: list[_Extent] = []
        if self._proof is not None:
            try:
                self._proof.verify(self.frames)
            except (OSError, AlteredBytes) as error:
                raise altered(self.frames, error) from error
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
        numbers = np.array(inbox.rows, np.int32)
        marks = tuple(inbox.marks)
        try:
            write(numbers.tobytes())
        except OSError as error:
            raise no_room(error) from error
        with memoryview(inbox.data) as view:
            proof = FileProof().and_then(view[: inbox.place])
        of_places = FileProof().and_then(numbers.view(np.uint8).data)
        extents.append(_Extent(start, inbox.place, len(numbers), marks, proof, of_places))
        return SpoolChunk(start, inbox.data, numbers.astype(np.intp), marks)


def _check(path: Path, content: memoryview, proof: FileProof) -> None:
    try:
        proof.check(content)
    except AlteredBytes as error:
        raise altered(path, error) from error

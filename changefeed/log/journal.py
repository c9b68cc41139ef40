"""Journal files: the bytes of frames, how they are found again, and where a torn tail begins.

A journal file is a 32-byte file header and frames, each aligned to 8 bytes::

    file header   magic (8 bytes) | number u64 | sync (8 random bytes) | crc u32 | 0 u32
    frame         sync | header length u32 | body length u64 | crc u32 | header | body

``header`` is JSON (see :mod:`changefeed.log.frame`), ``crc`` covers the two lengths and the
header. Every stored run of bytes of the body has its own crc in the header, so that a reader
of one table checks only the bytes of that table. Each file has a different sync marker, so rows
that contain bytes of another journal cannot look like a frame.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from changefeed.core.errors import ChangefeedError, Code

MAGIC: Final = b"CFLOG\x00\x00\x01"
SYNC_LENGTH: Final = 8

_FILE = struct.Struct("<8sQ8sII")
_FRAME = struct.Struct("<8sIQI")
_LENGTHS = struct.Struct("<IQ")

#: Where the first frame of a file begins.
FIRST_FRAME: Final = _FILE.size

#: A header may name thousands of small tables; a longer one was not written by this module.
_HEADER_LIMIT: Final = 256 * 1024 * 1024

#: How much a sequential scan reads at once.
_WINDOW: Final = 256 * 1024


def journal_name(number: int) -> str:
    """The file name of journal ``number``."""
    return f"journal-{number:012d}"


def segment_name(number: int, ordinal: int) -> str:
    """The file name of the ``ordinal``-th Parquet segment written for journal ``number``."""
    return f"segment-{number:012d}-{ordinal:06d}.parquet"


def padded(length: int) -> int:
    """``length`` rounded up to 8: Arrow wants its buffers aligned."""
    return (length + 7) & ~7


def file_header(number: int, sync: bytes) -> bytes:
    """The first 32 bytes of a journal file."""
    start = _FILE.pack(MAGIC, number, sync, 0, 0)[: 8 + 8 + SYNC_LENGTH]
    return start + struct.pack("<II", zlib.crc32(start), 0)


class DamagedFile(ChangefeedError):
    """CF3001 about a file; :attr:`file` is its name."""

    file = ""


def damaged(name: str, why: str, **facts: object) -> DamagedFile:
    """The error for bytes on disk that differ from what was written."""
    detail = ", ".join([f"file {name}", *(f"{k} {v}" for k, v in facts.items())])
    error = DamagedFile(Code.LOG_DAMAGED, f"change log is damaged: {why}", detail=detail)
    error.file = name
    return error


@dataclass(frozen=True, slots=True)
class Frame:
    """The extent of one frame in its file, and its decoded header."""

    offset: int
    header: dict[str, Any]
    body: int
    end: int


def encode_frame(sync: bytes, header: dict[str, Any], body: list[bytes]) -> list[bytes]:
    """The parts of a frame in file order; ``body`` parts are already padded."""
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (padded(len(text)) - len(text))
    lengths = _LENGTHS.pack(len(text), sum(map(len, body)))
    crc = zlib.crc32(text, zlib.crc32(lengths))
    return [sync + lengths + struct.pack("<I", crc) + text, *body]


class JournalFile:
    """A journal file open for reading; safe for several threads (positional reads only)."""

    __slots__ = ("fd", "name", "number", "sync")

    def __init__(self, root: Path, number: int) -> None:
        """Open it.

        Raises:
            FileNotFoundError: compaction or retention removed the file.
            ChangefeedError: CF3001, its first bytes are not a journal's.
        """
        self.number = number
        self.name = journal_name(number)
        self.fd = os.open(root / self.name, os.O_RDONLY)
        head = os.pread(self.fd, FIRST_FRAME, 0)
        expected = file_header(number, head[16 : 16 + SYNC_LENGTH].ljust(SYNC_LENGTH, b"\0"))
        if head != expected:
            os.close(self.fd)
            self.fd = -1
            raise damaged(self.name, "not a journal header")
        self.sync = head[16 : 16 + SYNC_LENGTH]

    def __del__(self) -> None:
        # Caches of bounded size hold this object; the file is closed with the last reference.
        if getattr(self, "fd", -1) >= 0:
            os.close(self.fd)
            self.fd = -1

    def read(self, offset: int, length: int) -> bytes:
        """Exactly ``length`` bytes at ``offset``.

        Raises:
            ChangefeedError: CF3001, the file is too short.
        """
        data = os.pread(self.fd, length, offset)
        while len(data) < length:  # pread may return fewer bytes (signals, 2 GB limit)
            more = os.pread(self.fd, length - len(data), offset + len(data))
            if not more:
                raise damaged(self.name, "file is too short", offset=offset, length=length)
            data += more
        return data

    def frames(self, start: int, end: int) -> Iterator[Frame]:
        """The frames in ``[start, end)``, all of which must be whole.

        Raises:
            ChangefeedError: CF3001 at the first one that is broken.
        """
        for frame in self.valid_frames(start, end):
            start = frame.end
            yield frame
        if start != end:
            raise damaged(self.name, "not a frame", offset=start, end=end)

    def valid_frames(self, start: int, end: int) -> Iterator[Frame]:
        """The frames from ``start`` on, up to the first one that is broken or extends past ``end``.

        Only headers are verified, not bodies; a read takes whole windows of the file.
        """
        base, window = start, b""
        while start + _FRAME.size <= end:
            if start + _FRAME.size > base + len(window):
                base, window = start, os.pread(self.fd, min(_WINDOW, end - start), start)
            frame = self._frame_at(start, end, base, window)
            if frame is None:
                return
            yield frame
            start = frame.end

    def _frame_at(self, start: int, end: int, base: int, window: bytes) -> Frame | None:
        at = start - base
        if len(window) < at + _FRAME.size:
            return None
        sync, header_length, body_length, crc = _FRAME.unpack_from(window, at)
        body = start + _FRAME.size + header_length
        stop = body + body_length
        if sync != self.sync or header_length > _HEADER_LIMIT or stop > end:
            return None
        if body <= base + len(window):
            text = window[at + _FRAME.size : at + _FRAME.size + header_length]
        else:
            text = os.pread(self.fd, header_length, start + _FRAME.size)
        lengths = window[at + SYNC_LENGTH : at + SYNC_LENGTH + _LENGTHS.size]
        if zlib.crc32(text, zlib.crc32(lengths)) != crc:
            return None
        return Frame(start, json.loads(text), body, stop)

    def valid_frame_after(self, start: int, end: int) -> int | None:
        """The offset of the first whole frame header after ``start``, if there is one.

        An append is durable before the next one begins, so a torn frame is always the last one. A
        whole frame after a broken one means that the disk lost or changed bytes.
        """
        at = start + 1
        while at < end:
            window = os.pread(self.fd, min(_WINDOW, end - at), at)
            if not window:
                return None
            found = window.find(self.sync)
            while found >= 0:
                if next(self.valid_frames(at + found, end), None) is not None:
                    return at + found
                found = window.find(self.sync, found + 1)
            at += max(len(window) - SYNC_LENGTH + 1, 1)
        return None

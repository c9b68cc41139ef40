"""Checksums that prove files, or parts of files, against what was written.

A checksum is kept apart from the bytes that it proves: in the frame that names a segment, in the
task that names a staged file. So a file that was exchanged for another valid one is noticed, too.
Small files that nothing else describes begin with their own checksum (:func:`sealed`).
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: How much of a file is read at once where it is not wanted in memory.
_BLOCK: Final = 1 << 18

_MARK: Final = "crc32 "


class AlteredBytes(ValueError):
    """Bytes differ from what was written. The text says how, and names no file."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """The bytes ``[start, end)`` of a file, and their CRC-32."""

    start: int
    end: int
    crc: int

    def read(self, fd: int, into: memoryview) -> None:
        """Read the stretch into ``into``, which is as long.

        Raises:
            AlteredBytes: the bytes are others.
            OSError: the disk failed.
        """
        at, crc = 0, 0
        while at < len(into):
            count = os.preadv(fd, [into[at : at + _BLOCK]], self.start + at)
            if not count:
                raise AlteredBytes(f"the file ends at {self.start + at}")
            crc = zlib.crc32(into[at : at + count], crc)
            at += count
        self._check(crc)

    def verify(self, fd: int) -> None:
        """Compare the bytes of the open file, in bounded memory; raises as :meth:`read`."""
        self._check(_crc(fd, self.start, self.end))

    def _check(self, crc: int) -> None:
        if crc != self.crc:
            raise AlteredBytes(f"bytes {self.start} to {self.end} have changed")


def stretches(marks: Iterable[Sequence[int]]) -> tuple[Stretch, ...]:
    """Neighbouring stretches, from ``[end, crc]`` of each; the first begins at 0."""
    found: list[Stretch] = []
    for end, crc in marks:
        found.append(Stretch(found[-1].end if found else 0, end, crc))
    return tuple(found)


def marks_of(path: Path, ends: Iterable[int]) -> list[list[int]]:
    """``[end, crc]`` of each of the neighbouring stretches of a file that end at ``ends``.

    Raises:
        OSError: the file cannot be read.
        AlteredBytes: it is shorter.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        marks: list[list[int]] = []
        for end in ends:
            start = marks[-1][0] if marks else 0
            marks.append([end, _crc(fd, start, end)])
        return marks
    finally:
        os.close(fd)


def _crc(fd: int, start: int, end: int) -> int:
    block, crc = memoryview(bytearray(min(_BLOCK, end - start))), 0
    while start < end:
        count = os.preadv(fd, [block[: end - start]], start)
        if not count:
            raise AlteredBytes(f"the file ends at {start}")
        crc = zlib.crc32(block[:count], crc)
        start += count
    return crc


@dataclass(frozen=True, slots=True)
class FileProof:
    """The size of a whole file, and the CRC-32 of its content."""

    size: int = 0
    crc: int = 0

    @classmethod
    def of(cls, path: Path) -> FileProof:
        """The proof of a file that was just written.

        Raises:
            OSError: it cannot be read.
        """
        size = path.stat().st_size
        [[_, crc]] = marks_of(path, [size])
        return cls(size, crc)

    def and_then(self, content: memoryview) -> FileProof:
        """The proof of the file with ``content`` appended."""
        return FileProof(self.size + len(content), zlib.crc32(content, self.crc))

    def verify(self, path: Path, *, grown: bool = False) -> None:
        """Compare a file with what was written, in bounded memory.

        Args:
            grown: it may have become longer.

        Raises:
            AlteredBytes: it is another one.
            OSError: it is gone or cannot be read.
        """
        size = path.stat().st_size
        if size != self.size and not (grown and size > self.size):
            raise AlteredBytes(f"it has {size} bytes, and had {self.size}")
        [[_, crc]] = marks_of(path, [self.size])
        if crc != self.crc:
            raise AlteredBytes("its bytes have changed")

    def check(self, content: memoryview) -> None:
        """Compare the content of the file.

        Raises:
            AlteredBytes: it is another one.
        """
        if len(content) != self.size:
            raise AlteredBytes(f"it has {len(content)} bytes, and had {self.size}")
        if zlib.crc32(content) != self.crc:
            raise AlteredBytes("its bytes have changed")


def sealed(text: str, name: str) -> str:
    """The content of a text file that proves itself: a line with the checksum, then ``text``.

    The checksum covers the name of the file, so another sealed file does not pass for it.
    """
    return f"{_MARK}{_of_text(name, text.encode()):08x}\n{text}"


def _of_text(name: str, text: bytes) -> int:
    return zlib.crc32(text, zlib.crc32(name.encode()))


def unsealed(content: bytes, name: str) -> str:
    """The text of a sealed file.

    Raises:
        AlteredBytes: the file is not what was written.
    """
    if not content.startswith(_MARK.encode()):
        raise AlteredBytes("it does not begin with its checksum")
    head, _, body = content.partition(b"\n")
    if head != f"{_MARK}{_of_text(name, body):08x}".encode():
        raise AlteredBytes("its bytes have changed")
    return body.decode()


@dataclass(frozen=True, slots=True)
class ProvedFile:
    """The name of a file and its proof, as one text: ``NAME SIZE CRC``."""

    name: str
    proof: FileProof

    @property
    def text(self) -> str:
        """What :meth:`parse` reads."""
        return f"{self.name} {self.proof.size} {self.proof.crc}"

    @classmethod
    def parse(cls, text: str) -> ProvedFile:
        """The file that has this text."""
        name, size, crc = text.rsplit(" ", 2)
        return cls(name, FileProof(int(size), int(crc)))

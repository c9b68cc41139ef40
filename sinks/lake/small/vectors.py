"""Deletion vectors of Delta: which rows of a data file are gone.

Formats: Delta's protocol, *Deletion Vectors* (descriptor, file, inline text), and the portable form
of 64-bit Roaring bitmaps, *RoaringFormatSpec*.
"""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Generator, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sinks.lake.small.table_files import TableFiles

#: Whether each row of a file is gone, by its number.
Gone = npt.NDArray[np.bool_]

_MAGIC = 1681511377
_FORMAT_VERSION = b"\x01"
_WITHOUT_RUNS, _WITH_RUNS = 12346, 12347
#: A bitmap with runs has a table of their places from so many containers on.
_PLACES_FROM = 4
#: The rows of a container, and how many of them it lists one by one at most.
_CONTAINER, _LISTED = 1 << 16, 4096
_CHARACTERS = (
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
)
_DIGITS = {character: number for number, character in enumerate(_CHARACTERS)}
#: Characters of a UUID in a descriptor.
_UUID = 20


def read_vector(descriptor: Mapping[str, Any], place: TableFiles, rows: int) -> Gone:
    """Read the vector of a file with ``rows`` rows by its descriptor in the table's log.

    Raises:
        ValueError: its format is not known here, or its checksum differs.
        OSError: its file cannot be read.
    """
    kind, text = descriptor["storageType"], descriptor["pathOrInlineDv"]
    if kind == "i":
        data = _from_z85(text)[: descriptor["sizeInBytes"]]
    elif kind == "u":
        name = f"deletion_vector_{uuid.UUID(bytes=_from_z85(text[-_UUID:]))}.bin"
        folder = f"{prefix}/" if (prefix := text[:-_UUID]) else ""
        size = descriptor["sizeInBytes"]
        part = place.read(f"{folder}{name}", descriptor.get("offset") or 0, size + 8)
        data = part[4:-4]
        if part != _framed(data) or len(data) != size:
            raise ValueError("a deletion vector is damaged")
    else:
        raise ValueError(f"deletion vectors of type {kind} are not read here")
    gone = np.zeros(rows, np.bool_)
    for first, marked in _containers(data):
        gone[first : first + len(marked)] |= marked[: max(0, rows - first)]
    if int(gone.sum()) != descriptor["cardinality"]:
        raise ValueError("a deletion vector has another number of rows than its descriptor")
    return gone


class VectorFile:
    """A new file of deletion vectors."""

    def __init__(self) -> None:
        self._id = uuid.uuid4()
        self._parts = [_FORMAT_VERSION]
        self._size = len(_FORMAT_VERSION)

    @property
    def name(self) -> str:
        """Its name in the table's folder."""
        return f"deletion_vector_{self._id}.bin"

    @property
    def empty(self) -> bool:
        """Whether it has no vector."""
        return len(self._parts) == 1

    @property
    def content(self) -> bytes:
        """All of it."""
        return b"".join(self._parts)

    def add(self, gone: Gone) -> dict[str, Any]:
        """Add a vector; returns its descriptor for the table's log."""
        data = _serialized(gone)
        part = _framed(data)
        descriptor = {
            "storageType": "u",
            "pathOrInlineDv": _z85(self._id.bytes),
            "offset": self._size,
            "sizeInBytes": len(data),
            "cardinality": int(gone.sum()),
        }
        self._parts.append(part)
        self._size += len(part)
        return descriptor


def _framed(data: bytes) -> bytes:
    """A vector in its file: size, bytes, checksum."""
    return struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))


# ------------------------------------------------------------------------------- bitmaps


def _serialized(gone: Gone) -> bytes:
    """A 64-bit bitmap whose high halves are zero: a file has fewer than 2**32 rows."""
    keys: list[int] = []
    containers: list[bytes] = []
    counts: list[int] = []
    for key in range(0, -(-len(gone) // _CONTAINER)):
        marked = gone[key * _CONTAINER : (key + 1) * _CONTAINER]
        count = int(marked.sum())
        if not count:
            continue
        if count <= _LISTED:
            content = np.flatnonzero(marked).astype("<u2").tobytes()
        else:
            whole = np.zeros(_CONTAINER, np.bool_)
            whole[: len(marked)] = marked
            content = np.packbits(whole, bitorder="little").tobytes()
        keys.append(key)
        counts.append(count)
        containers.append(content)
    head = struct.pack("<II", _WITHOUT_RUNS, len(keys))
    described = np.array([keys, np.array(counts) - 1], "<u2").T.tobytes() if keys else b""
    places, place = [], len(head) + len(described) + 4 * len(keys)
    for content in containers:
        places.append(place)
        place += len(content)
    bitmap = b"".join([head, described, np.array(places, "<u4").tobytes(), *containers])
    some = 1 if keys else 0
    outer = struct.pack("<iq", _MAGIC, some)
    return outer + (struct.pack("<i", 0) + bitmap if some else b"")


def _containers(data: bytes) -> Iterator[tuple[int, Gone]]:
    """The number of the first row of each container, and which of its rows are marked."""
    magic, bitmaps = struct.unpack_from("<iq", data)
    if magic != _MAGIC:
        raise ValueError("a deletion vector is of an unknown format")
    at = 12
    for _ in range(bitmaps):
        (high,) = struct.unpack_from("<I", data, at)
        at = yield from _bitmap(data, at + 4, high << 32)


def _bitmap(data: bytes, at: int, first: int) -> Generator[tuple[int, Gone], None, int]:
    """The containers of one bitmap; returns where it ends."""
    (cookie,) = struct.unpack_from("<I", data, at)
    at += 4
    runs = np.zeros(0, np.bool_)
    if cookie & 0xFFFF == _WITH_RUNS:
        count = (cookie >> 16) + 1
        flags = np.frombuffer(data, np.uint8, (count + 7) // 8, at)
        runs = np.unpackbits(flags, bitorder="little")[:count].astype(np.bool_)
        at += len(flags)
    elif cookie == _WITHOUT_RUNS:
        (count,) = struct.unpack_from("<I", data, at)
        at += 4
    else:
        raise ValueError("a bitmap is of an unknown format")
    described = np.frombuffer(data, "<u2", 2 * count, at).reshape(count, 2)
    at += 4 * count
    if not len(runs) or count >= _PLACES_FROM:
        at += 4 * count
    for number, (key, less) in enumerate(described.tolist()):
        marked = np.zeros(_CONTAINER, np.bool_)
        if len(runs) and runs[number]:
            (some,) = struct.unpack_from("<H", data, at)
            pairs = np.frombuffer(data, "<u2", 2 * some, at + 2).reshape(some, 2)
            for start, length in pairs.tolist():
                marked[start : start + length + 1] = True
            at += 2 + 4 * some
        elif less < _LISTED:
            marked[np.frombuffer(data, "<u2", less + 1, at)] = True
            at += 2 * (less + 1)
        else:
            packed = np.frombuffer(data, np.uint8, _CONTAINER // 8, at)
            marked = np.unpackbits(packed, bitorder="little").astype(np.bool_)
            at += _CONTAINER // 8
        yield first + key * _CONTAINER, marked
    return at


# ------------------------------------------------------------------------------- text


def _z85(data: bytes) -> str:
    """Bytes, as many as a multiple of four, as text (ZeroMQ's Z85)."""
    found: list[str] = []
    for (number,) in struct.iter_unpack(">I", data):
        digits = []
        for _ in range(5):
            number, digit = divmod(number, 85)
            digits.append(_CHARACTERS[digit])
        found += reversed(digits)
    return "".join(found)


def _from_z85(text: str) -> bytes:
    parts = []
    for start in range(0, len(text), 5):
        number = 0
        for character in text[start : start + 5]:
            number = number * 85 + _DIGITS[character]
        parts.append(struct.pack(">I", number))
    return b"".join(parts)

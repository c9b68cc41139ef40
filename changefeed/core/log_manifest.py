"""What a shared change log consists of: rows of the state database that name objects of a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TailPart:
    """Bytes ``[start, start + size)`` of a journal, in ``body`` or in the object ``object``.

    Attributes:
        crc: CRC-32 of the bytes.
    """

    journal: int
    start: int
    size: int
    crc: int
    object: str | None = None
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class LogManifest:
    """What a shared log consists of, as of one moment.

    Attributes:
        ledger: text of the ledger; None before the log began.
        tail: parts of journals, by journal and start, without their bodies.
        objects: size and object of each file that is one.
        notes: names of the files that the source keeps in addition.
    """

    ledger: str | None
    tail: tuple[TailPart, ...]
    objects: Mapping[str, tuple[int, str]]
    notes: frozenset[str]

"""What a shared change log consists of: rows of the state database that name objects of a store."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

#: So many characters at the begin of a ledger say which one it is: they have its generation.
MARK_LENGTH: Final = 100


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
    """

    ledger: str | None
    tail: tuple[TailPart, ...]
    objects: Mapping[str, tuple[int, str]]


@dataclass(frozen=True, slots=True)
class LogNews:
    """What was registered behind a place in a shared log.

    Attributes:
        mark: begin of the ledger's text; None if there is no log.
        begin: checksum of the first part of the journal that was asked for, which has random bytes:
            the journal of that number in a log that begins again has another.
        parts: of that journal, with their bodies.
    """

    mark: str | None
    begin: int | None
    parts: tuple[TailPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChange:
    """What changes in a shared log at once.

    Attributes:
        ledger: the new text of the ledger.
        tail: parts of journals that are new.
        cut: a journal and its end: parts that begin there or later go, before new ones come.
        objects: files that are objects now, with their size and object; they take the place of
            those of the same names, of a transaction that is read again.
        forget_journals: journals whose parts go.
        forget_objects: files that are no longer part of the log.
        notes: files that the source keeps in addition, new or changed.
        forget_notes: those that it no longer keeps.
    """

    ledger: str | None = None
    tail: Sequence[TailPart] = ()
    cut: tuple[int, int] | None = None
    objects: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    forget_journals: Collection[int] = ()
    forget_objects: Collection[str] = ()
    notes: Mapping[str, bytes] = field(default_factory=dict)
    forget_notes: Collection[str] = ()

    @property
    def only_part(self) -> TailPart | None:
        """The new part, if there is one and nothing else: a small flush."""
        if len(self.tail) != 1 or self != LogChange(tail=self.tail):
            return None
        return self.tail[0]

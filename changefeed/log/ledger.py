"""The two index files of a log directory, LEDGER and HEAD, and how each is changed atomically.

``LEDGER`` (its checksum and JSON, replaced by rename) lists the sealed journals in time order with
the segments they use, the live journal, and the files that are to be removed. It changes only when
a journal is sealed, merged or dropped: a few times an hour.

``HEAD`` (36 bytes, overwritten in place after each fsync of the journal) says how far the live
journal is durable and complete. While nothing is appended, readers read only this file. They
see neither torn nor unsynced frames. After a crash HEAD may be behind the journal, but never ahead
of it; the writer writes it again when it opens the log.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from changefeed.core.durable import read_durable, replace_durably
from changefeed.core.elapsed import ClockSample
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Frontier
from changefeed.core.faults import Point, fault_point
from changefeed.core.proofs import AlteredBytes
from changefeed.log.frame import decode_frontier, encode_frontier
from changefeed.log.journal import damaged
from changefeed.log.rows import Stamp

LOCK_NAME: Final = "LOCK"
LEDGER_NAME: Final = "LEDGER"
HEAD_NAME: Final = "HEAD"
FORMAT: Final = 2

_HEAD = struct.Struct("<8sQQQI")
_HEAD_MAGIC: Final = b"CFHEAD\x00\x01"


@dataclass(frozen=True, slots=True)
class SealedJournal:
    """A journal that no longer changes: the range that it covers and the files that it consists of.

    Attributes:
        length: end of its last frame.
        segments: Parquet files that its frames name, with their sizes.
        level: 0 for a journal as written, n + 1 for one that compaction made of level n.
        since: the log's time (:class:`LogTime`) from which its age counts; None until the next
            upkeep sets it.
    """

    number: int
    after: Stamp
    frontier: Frontier
    length: int
    rows: int
    segments: tuple[tuple[str, int], ...] = ()
    level: int = 0
    since: int | None = None

    @property
    def upto(self) -> Stamp:
        """The last timestamp it covers."""
        return self.frontier.at.wall, self.frontier.at.logical

    @property
    def bytes(self) -> int:
        """Its size on disk, segments included."""
        return self.length + sum(size for _, size in self.segments)


@dataclass(frozen=True, slots=True)
class LogTime:
    """The time by which ages in a log are counted. It advances with measured time, and does not
    jump when the clock of this machine or of the source is set.

    Attributes:
        at: ns; close to the wall clock as long as nobody sets that clock.
        read: what the machine's clocks showed at that time.
    """

    at: int
    read: ClockSample

    def on(self, read: ClockSample) -> LogTime:
        """The log's time when the clocks show ``read``."""
        return LogTime(self.at + read.since(self.read), read)


@dataclass(frozen=True, slots=True)
class Garbage:
    """A file that no new reader has needed since ``since`` (the log's time)."""

    name: str
    size: int
    since: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """The state of a log directory. A change makes a new object, which is written whole.

    ``time`` is the log's time at a recent upkeep; None before the first one.
    """

    generation: int
    next: int
    live: int
    base: Frontier | None = None
    sealed: tuple[SealedJournal, ...] = ()
    garbage: tuple[Garbage, ...] = field(default=())
    time: LogTime | None = None

    def changed(self, **fields: Any) -> Ledger:
        """The next generation."""
        return replace(self, generation=self.generation + 1, **fields)

    @property
    def last(self) -> Frontier | None:
        """The frontier at which the live journal begins."""
        return self.sealed[-1].frontier if self.sealed else self.base

    def to_json(self) -> str:
        """The text of the file."""
        return json.dumps(
            {
                "format": FORMAT,
                "generation": self.generation,
                "next": self.next,
                "live": self.live,
                "base": encode_frontier(self.base) if self.base else None,
                "sealed": [
                    {
                        "number": s.number,
                        "level": s.level,
                        "after": s.after,
                        "frontier": encode_frontier(s.frontier),
                        "length": s.length,
                        "rows": s.rows,
                        "segments": s.segments,
                        "since": s.since,
                    }
                    for s in self.sealed
                ],
                "garbage": [[g.name, g.size, g.since] for g in self.garbage],
                "time": _time_json(self.time),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Ledger:
        """The inverse.

        Raises:
            ChangefeedError: CF3001, it is not a ledger of this format.
        """
        try:
            data = json.loads(text)
            if data["format"] != FORMAT:
                raise ChangefeedError(
                    Code.LOG_DAMAGED,
                    f"the change log has format {data['format']}, and this version of changefeed "
                    f"reads format {FORMAT}",
                    detail=f"file {LEDGER_NAME}",
                )
            return cls(
                generation=data["generation"],
                next=data["next"],
                live=data["live"],
                base=decode_frontier(data["base"]) if data["base"] else None,
                sealed=tuple(_sealed(s) for s in data["sealed"]),
                garbage=tuple(Garbage(*g) for g in data["garbage"]),
                time=_time(data["time"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise damaged(LEDGER_NAME, "not a ledger") from error


def _sealed(data: dict[str, Any]) -> SealedJournal:
    return SealedJournal(
        number=data["number"],
        level=data["level"],
        after=(data["after"][0], data["after"][1]),
        frontier=decode_frontier(data["frontier"]),
        length=data["length"],
        rows=data["rows"],
        segments=tuple((name, size) for name, size in data["segments"]),
        since=data["since"],
    )


def _time_json(found: LogTime | None) -> list[Any] | None:
    if found is None:
        return None
    return [found.at, found.read.boot, found.read.ticks, found.read.wall]


def _time(data: list[Any] | None) -> LogTime | None:
    """The inverse of :func:`_time_json`."""
    if data is None:
        return None
    at, boot, ticks, wall = data
    return LogTime(at, ClockSample(boot, ticks, wall))


def read_ledger(root: Path) -> Ledger | None:
    """The ledger of a directory, None when it has none.

    Raises:
        ChangefeedError: CF3001, it is damaged.
    """
    try:
        return Ledger.from_json(read_durable(root / LEDGER_NAME))
    except FileNotFoundError:
        return None
    except (OSError, AlteredBytes) as error:
        raise damaged(LEDGER_NAME, "it cannot be read", reason=error) from error


def write_ledger(root: Path, ledger: Ledger, on_written: Callable[[], None] = lambda: None) -> None:
    """Replace the ledger; durable on return.

    Args:
        on_written: called when nothing that is left to do needs room.

    Raises:
        OSError: as :func:`changefeed.core.durable.replace_durably`.
    """

    def written() -> None:
        fault_point(Point.LOG_LEDGER_WRITTEN)
        on_written()

    fault_point(Point.LOG_LEDGER_WRITE)
    replace_durably(root / LEDGER_NAME, ledger.to_json(), on_written=written)
    fault_point(Point.LOG_LEDGER_RENAMED)


@dataclass(frozen=True, slots=True)
class Head:
    """How far the log may be read: ``length`` bytes of journal ``live``."""

    generation: int
    live: int
    length: int

    def to_bytes(self) -> bytes:
        """The bytes of the file."""
        head = _HEAD.pack(_HEAD_MAGIC, self.generation, self.live, self.length, 0)[:-4]
        return head + struct.pack("<I", zlib.crc32(head))

    @classmethod
    def from_bytes(cls, data: bytes) -> Head | None:
        """The inverse; None when the bytes are incomplete (read during a write)."""
        if len(data) != _HEAD.size:
            return None
        magic, generation, live, length, crc = _HEAD.unpack(data)
        if magic != _HEAD_MAGIC or zlib.crc32(data[:-4]) != crc:
            return None
        return cls(generation, live, length)


HEAD_SIZE: Final = _HEAD.size


def read_head(root: Path) -> Head | None:
    """What HEAD says; None where there is none, or none that is whole."""
    try:
        return Head.from_bytes((root / HEAD_NAME).read_bytes())
    except FileNotFoundError:
        return None

"""How files are called, so that sorting by name is time order.

    /[date]/[timestamp]-[uniquer]-[topic]-[schema-id].ndjson
    /[date]/[timestamp].RESOLVED

The timestamp of a data file is the smallest one its rows can have: one above what the feed had
delivered before them (:attr:`sinks.base.Batch.after`), or the beginning of their bucket where that
is later. So for a resolved timestamp R

* a file with rows that R covers was delivered after something below R, and its stamp is at most
  that of the rows, so at most R; on a tie ``-`` sorts before ``.``;
* a file delivered after R was resolved comes after at least R, so its stamp is above R.

A bucket (the minutes of ``partition_format=minute``, say) holds the rows of that time and no
others, and once a resolved timestamp is beyond its end nothing is added to it. Its manifests are

    /[bucket]/[last instant of the bucket]-[job]-[topic]-[schema-id].manifest
"""

from __future__ import annotations

import datetime as dt
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from changefeed.core.clock import Clock, Timestamp
from sinks.naming import shortened


@dataclass(frozen=True, slots=True)
class Buckets:
    """Folders by time. ``pattern`` is for strftime, ``nanos`` is how much time one has."""

    pattern: str
    nanos: int

    def start(self, wall: int) -> int:
        """When the bucket that ``wall`` falls into begins."""
        return wall - wall % self.nanos if self.nanos else 0

    def folder(self, stamp: Timestamp) -> str:
        """Folder of an instant; empty for ``flat``."""
        return (
            f"{Timestamp(self.start(stamp.wall)).datetime():{self.pattern}}" if self.nanos else ""
        )

    def begin(self, folder: str) -> int | None:
        """When the bucket of a folder begins; None for a folder that is no bucket."""
        try:
            moment = dt.datetime.strptime(folder, self.pattern).replace(tzinfo=dt.UTC)
        except ValueError:
            return None
        return round(moment.timestamp()) * 1_000_000_000


_MINUTE = 60 * 1_000_000_000

#: ``partition_format`` -> its buckets.
PARTITION_FORMATS = {
    "daily": Buckets("%Y-%m-%d", 24 * 60 * _MINUTE),
    "hourly": Buckets("%Y-%m-%d/%H", 60 * _MINUTE),
    "minute": Buckets("%Y-%m-%d/%H/%M", _MINUTE),
    "flat": Buckets("", 0),
}

MAX_LABEL = 150
"""Characters of the topic in a file name; with the rest it stays below 255, the usual limit."""

TRUNCATION = "TRUNCATE"
"""Extension of a file that stands for a TRUNCATE; the rest of its name is a data file's."""

_STEM = (
    r"(?P<stamp>\d{33})-(?P<session>[0-9a-f]{16})-(?P<job>\d+)-\d{10}-\d{5}-\w+-"
    r"(?P<topic>.+)-(?P<schema>\d+)"
)
_EXTENSION = r"(?:ndjson|csv|avro|parquet)(?:\.\w+)?"
_DATA = re.compile(rf"{_STEM}\.{_EXTENSION}")
_DATA_OR_TRUNCATION = re.compile(rf"{_STEM}\.(?:{_EXTENSION}|{TRUNCATION})")


@dataclass(frozen=True, slots=True)
class DataName:
    """What the name of a data file says. ``topic`` is the label: escaped, and cut when long."""

    job: int
    topic: str
    schema: int


def parse_name(name: str, *, truncations: bool = False) -> DataName | None:
    """Read the last part of a path; None for anything that is no data file of a feed.

    ``truncations``: files that stand for a TRUNCATE are read too.
    """
    found = (_DATA_OR_TRUNCATION if truncations else _DATA).fullmatch(name)
    return found and DataName(int(found["job"]), found["topic"], int(found["schema"]))


def file_order(files: Iterable[tuple[str, int]]) -> list[str]:
    """Paths of data files, and of files that tell of a TRUNCATE, in the order in which they were
    written.

    Names sort by time, and within a time and a writer by what was written first. A writer that
    died before its progress was saved has files of the times that the next one writes again, and
    the clocks of the two may differ: there the time that a file came decides.

    Args:
        files: path, and when the file came to its place (ns).
    """
    found = []
    for path, modified in files:
        name = path.rpartition("/")[2]
        if said := _DATA_OR_TRUNCATION.fullmatch(name):
            found.append(((said["stamp"], said["session"]), modified, name, path))
    began: dict[tuple[str, str], int] = {}
    for writer, modified, _, _ in found:
        began[writer] = min(modified, began.get(writer, modified))
    found.sort(key=lambda f: (f[0][0], began[f[0]], f[0][1], f[2]))
    return [path for *_, path in found]


def new_session(clock: Clock) -> str:
    """What is unique to a writer that begins now. It sorts after that of an earlier writer: what a
    writer that died had not saved is repeated in order, for readers that sort by name."""
    return f"{clock.now().wall // 1_000_000:012x}{secrets.token_hex(2)}"


@dataclass(frozen=True, slots=True)
class Namer:
    """Names for one writer. ``session`` is unique to it (:func:`new_session`), so no other reuses
    its names."""

    buckets: Buckets
    extension: str
    session: str

    def data(
        self,
        stamp: Timestamp,
        *,
        job: int,
        epoch: int,
        partition: int,
        number: int,
        attempt: str,
        topic: str,
        schema: int,
    ) -> str:
        """Path of a data file below the sink's directory.

        Files of one stamp sort by epoch, partition and number: the order they were written in.
        ``attempt`` makes the name of a repeated write another one. ``topic`` is the escaped name.
        """
        label = shortened(topic, MAX_LABEL)
        unique = f"{self.session}-{job}-{epoch:010d}-{partition:05d}-{number:06d}{attempt}"
        name = f"{stamp.file_stamp()}-{unique}-{label}-{schema}.{self.extension}"
        return self._in_folder(stamp, name)

    def resolved(self, at: Timestamp) -> str:
        """Path of the marker that everything at or below ``at`` is there."""
        return self._in_folder(at, f"{at.file_stamp()}.RESOLVED")

    def manifest(self, start: int, data: DataName) -> str:
        """Path of the list of a table's files in the bucket that begins at ``start``."""
        last = Timestamp(start + self.buckets.nanos - 1)
        name = f"{last.file_stamp()}-{data.job}-{data.topic}-{data.schema}.manifest"
        return self._in_folder(last, name)

    def _in_folder(self, stamp: Timestamp, name: str) -> str:
        folder = self.buckets.folder(stamp)
        return f"{folder}/{name}" if folder else name

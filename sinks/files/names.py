"""How files are called, so that sorting by name is time order.

    /[date]/[timestamp]-[uniquer]-[topic]-[schema-id].ndjson
    /[date]/[timestamp].RESOLVED

The timestamp of a data file is the smallest one its rows can have: one above the frontier of the
feed when the rows were delivered. So for a mark R

* a file that R covers was delivered with a frontier below R, its stamp is at most R, and on a tie
  ``-`` sorts before ``.``;
* a file delivered after R has a frontier of at least R, so its stamp is above R.
"""

from __future__ import annotations

from dataclasses import dataclass

from changefeed.clock import Timestamp
from sinks.naming import kafka_topic_name

#: ``partition_format`` -> strftime pattern of the folder.
PARTITION_FORMATS = {
    "daily": "%Y-%m-%d",
    "hourly": "%Y-%m-%d/%H",
    "minute": "%Y-%m-%d/%H/%M",
    "flat": "",
}

MAX_LABEL = 150
"""Characters of the topic in a file name; with the rest it stays below 255, the usual limit."""


@dataclass(frozen=True, slots=True)
class Namer:
    """Names for one writer. ``session`` is unique to it, so no other reuses its names."""

    partition_format: str
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
        ``attempt`` makes the name of a repeated write another one.
        """
        label = kafka_topic_name(topic, MAX_LABEL)
        unique = f"{self.session}-{job}-{epoch:010d}-{partition:05d}-{number:06d}{attempt}"
        name = f"{stamp.file_stamp()}-{unique}-{label}-{schema}.{self.extension}"
        return self._in_folder(stamp, name)

    def resolved(self, at: Timestamp) -> str:
        """Path of the marker that everything at or below ``at`` is there."""
        return self._in_folder(at, f"{at.file_stamp()}.RESOLVED")

    def _in_folder(self, stamp: Timestamp, name: str) -> str:
        pattern = PARTITION_FORMATS[self.partition_format]
        return f"{stamp.datetime():{pattern}}/{name}" if pattern else name

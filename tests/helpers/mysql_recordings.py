"""Binlogs as real servers sent them, to be decoded again without a server.

A recording is a pair of files under ``tests/recordings``: the bytes behind the request for the log,
and what the server said of itself and of the tables when all statements had run. ``record`` makes
one (see :mod:`tests.helpers.record_mysql`).
"""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from changefeed.core.clock import Timestamp
from changefeed.core.events import Change, ChangeBatch, Flush, Frontier
from changefeed.core.schema import TableName, TableSchema
from changefeed.sources.mysql.gtid import GtidSet, MariaGtid
from changefeed.sources.mysql.position import GtidPosition
from changefeed.sources.mysql.shapes import Shapes
from changefeed.sources.mysql.tablemap import Charset
from changefeed.sources.mysql.transactions import Assembler
from changefeed.sources.mysql.wire import EventBytes, Inbox, event_of

FOLDER = Path(__file__).parents[1] / "recordings"
FLAVORS = ("mysql", "mariadb")
SOURCE = "src"


class Described:
    """Stands for the server's catalog and the state's versions of schemas."""

    def __init__(self, schemas: dict[TableName, TableSchema]) -> None:
        self.schemas = schemas
        self.latest: dict[TableName, TableSchema] = {}
        self._versions = itertools.count(1)
        self._known: dict[str, TableSchema] = {}

    def describe(self, name: TableName) -> TableSchema | None:
        """As the table is at the end of the recording."""
        return self.schemas.get(name)

    def intern(self, schema: TableSchema) -> TableSchema:
        """Give a schema its number."""
        text = schema.to_json()
        if text not in self._known:
            self._known[text] = schema.with_version(next(self._versions))
        return self._known[text]


@dataclass(frozen=True)
class Recording:
    """What one server sent."""

    flavor: str
    data: bytes
    start: str
    charsets: dict[int, Charset]
    schemas: dict[TableName, TableSchema]
    #: By table, as the server prints them in the end, without nulls.
    rows: dict[str, list[dict[str, Any]]]

    @classmethod
    def load(cls, flavor: str) -> Recording:
        """Read the files."""
        told = json.loads((FOLDER / f"{flavor}.json").read_text())
        data = zlib.decompress((FOLDER / f"{flavor}.bin").read_bytes())
        schemas = [TableSchema.from_json(text) for text in told["schemas"]]
        return cls(
            flavor=flavor,
            data=data,
            start=told["start"],
            charsets={int(n): Charset(*some) for n, some in told["charsets"].items()},
            schemas={schema.table: schema for schema in schemas},
            rows=told["rows"],
        )

    def save(self) -> None:
        """Write the files."""
        told = {
            "start": self.start,
            "charsets": {n: [c.name, c.width] for n, c in sorted(self.charsets.items())},
            "schemas": [schema.to_json() for schema in self.schemas.values()],
            "rows": self.rows,
        }
        (FOLDER / f"{self.flavor}.json").write_text(json.dumps(told, ensure_ascii=False) + "\n")
        (FOLDER / f"{self.flavor}.bin").write_bytes(zlib.compress(self.data, 9))

    @property
    def tables(self) -> frozenset[tuple[str, str]]:
        """All that can be watched."""
        return frozenset((name.schema, name.name) for name in self.schemas)

    def place(self) -> GtidPosition:
        """Where the recording begins."""
        mariadb = self.flavor == "mariadb"
        return GtidPosition(MariaGtid.parse(self.start) if mariadb else GtidSet.parse(self.start))

    def assembler(
        self,
        folder: Path,
        described: Described | None = None,
        start: Frontier | None = None,
        **given: Any,
    ) -> Assembler:
        """One that stands where the recording begins (or at ``start``)."""
        state = described or Described(self.schemas)
        place = self.place()
        if start is None:
            start = Frontier(Timestamp(0), place.position, 0, place.history)
        else:
            mariadb = self.flavor == "mariadb"
            kind = MariaGtid if mariadb else GtidSet
            place = GtidPosition(kind.parse(start.history))
        shapes = Shapes(SOURCE, self.charsets, state.describe, state.intern, state.latest.get)
        made = Assembler(start, place, shapes, folder / "spool", folder / "kept", **given)
        made.watch(self.tables)
        return made

    def events(self) -> Iterator[EventBytes]:
        """The events one by one, as one piece of the network brought them."""
        inbox = Inbox(len(self.data))

        def receive(view: memoryview) -> int:
            view[: len(self.data)] = self.data
            return len(self.data)

        inbox.fill(receive)
        while packets := inbox.packets():
            yield from map(event_of, packets)

    def replay(
        self,
        folder: Path,
        *,
        data: bytes | None = None,
        chunk: int = 1 << 20,
        described: Described | None = None,
        start: Frontier | None = None,
        short: bool = True,
        **given: Any,
    ) -> Iterator[Flush]:
        """The flushes, ``chunk`` bytes of the network at a time.

        ``short``: see :meth:`Assembler.take_all`.
        """
        assembler = self.assembler(folder, described, start, **given)
        inbox, sent = Inbox(), 0
        whole = self.data if data is None else data

        def receive(view: memoryview) -> int:
            nonlocal sent
            some = whole[sent : sent + min(chunk, len(view))]
            view[: len(some)] = some
            sent += len(some)
            return len(some)

        while inbox.fill(receive):
            while packets := inbox.packets():
                yield from assembler.take_all(packets, short=short)
            yield from assembler.flush()


def changes(flushes: list[Flush]) -> list[Change]:
    """All changes in the order of the log."""
    found = [
        change
        for flush in flushes
        for event in flush.events
        if isinstance(event, ChangeBatch)
        for change in event.changes()
    ]
    return sorted(found, key=lambda change: change.seq)

"""Following a database in a test: a stream in a thread, and what came out of it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.events import Change, ChangeBatch, Event, Flush, Frontier
from changefeed.core.schema import TableName, TableSchema
from changefeed.sources.base import StreamRequest
from changefeed.sources.postgres.connect import connect
from changefeed.sources.postgres.details import read_details
from changefeed.sources.postgres.lsn import parse_lsn, position_of
from changefeed.sources.postgres.stream import LogicalSlot, ReplicationStream, StreamLimits
from changefeed.sources.postgres.types import TableDetails
from tests.services.postgres import Database

SLOT = "tail"
PUBLICATION = "tail"
_DEADLINE = 60.0


class Catalog:
    """Versions of schemas, as the real one gives them."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._latest: dict[TableName, TableSchema] = {}

    def intern(self, schema: TableSchema) -> TableSchema:
        latest = self._latest.get(schema.table)
        if latest is None or latest.fingerprint() != schema.fingerprint():
            latest = schema.with_version(next(self._numbers))
            self._latest[schema.table] = latest
        return latest

    def latest(self, table: TableName) -> TableSchema | None:
        return self._latest.get(table)

    def copy(self) -> Catalog:
        """Another one that knows the same."""
        made = Catalog()
        made._latest, made._numbers = dict(self._latest), itertools.count(1000)
        return made


class Tail:
    """One stream, read by a thread into lists."""

    def __init__(
        self,
        database: Database,
        folder: Path,
        *,
        start: Frontier | None = None,
        catalog: Catalog | None = None,
        on_flush: Callable[[Flush], None] | None = None,
        uri: str | None = None,
        **options: Any,
    ) -> None:
        self.database = database
        self.catalog = catalog or Catalog()
        self.flushes: list[Flush] = []
        self.error: ChangefeedError | None = None
        self.frontier = start or Frontier(Timestamp.ZERO, "")
        self._on_flush = on_flush
        self._changed = threading.Condition()
        self._ended = False
        limits = {each.name for each in fields(StreamLimits)} & options.keys()
        paced = {"heartbeat": 0.1, **{name: options.pop(name) for name in limits}}
        of_slot = {each.name for each in fields(LogicalSlot)} & options.keys()
        slot = LogicalSlot(
            **{
                "uri": uri or database.uri,
                "name": SLOT,
                "publication": PUBLICATION,
                "source": "src",
                "describe": self._describe,
                **{name: options.pop(name) for name in of_slot},
            }
        )
        request = StreamRequest(
            **{
                "start": self.frontier,
                "identity": "",
                "memo": dict,
                "intern": self.catalog.intern,
                "latest": self.catalog.latest,
                "names": lambda oid: (),
                "spool": folder / "spool",
                "folder": folder,
                **options,
            }
        )
        self.stream = ReplicationStream(slot, request, StreamLimits(**paced))
        self._thread = threading.Thread(target=self._run, name="tail", daemon=True)
        self._thread.start()

    def _describe(self, oids: Sequence[int]) -> Mapping[int, TableDetails]:
        with connect(self.database.uri) as connection:
            return read_details(connection, oids)

    def _run(self) -> None:
        try:
            for flush in self.stream:
                if self._on_flush:
                    self._on_flush(flush)
                with self._changed:
                    self.flushes.append(flush)
                    if flush.frontier:
                        self.frontier = flush.frontier
                        self.stream.acknowledge(flush.frontier.position)
                    self._changed.notify_all()
        except ChangefeedError as error:
            self.error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Wait until it holds; raises what the stream raised."""
        with self._changed:
            done = self._changed.wait_for(lambda: condition() or self._ended, _DEADLINE)
        if self.error:
            raise self.error
        assert done and condition(), "the stream did not get there in time"

    def wait_for_end(self) -> ChangefeedError | None:
        """Wait until the stream ends; its error."""
        self._thread.join(_DEADLINE)
        assert not self._thread.is_alive(), "the stream did not end"
        return self.error

    def catch_up(self) -> None:
        """Wait until all that committed before now is here."""
        [(lsn,)] = self.database.execute("select pg_current_wal_lsn()::text")
        position = position_of(parse_lsn(lsn))
        self.wait_for(lambda: self.frontier.position >= position)

    def close(self) -> None:
        """End the stream."""
        self.stream.close()
        self.wait_for_end()

    @property
    def events(self) -> list[Event]:
        """Everything so far, in order."""
        return [event for flush in self.flushes for event in flush.events]

    def changes(self, table: str | None = None) -> list[Change]:
        """The rows so far by sequence number, of all tables or one."""
        found = [
            change
            for event in self.events
            if isinstance(event, ChangeBatch) and table in (None, event.schema.table.name)
            for change in event.changes()
        ]
        return sorted(found, key=lambda change: change.seq)

    def batches(self, table: str) -> list[ChangeBatch]:
        """The batches of a table."""
        return [
            event
            for event in self.events
            if isinstance(event, ChangeBatch) and event.schema.table.name == table
        ]


def prepare(database: Database, tables: str = "", options: str = "") -> None:
    """A publication (of all tables unless named) and a slot."""
    what = f"table {tables}" if tables else "all tables"
    settings = f"with ({options})" if options else ""
    database.execute(f"create publication {PUBLICATION} for {what} {settings}")
    database.execute(f"select pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")


@contextmanager
def tailing(database: Database, folder: Path, **options: Any) -> Iterator[Tail]:
    """A tail that ends with the block."""
    tail = Tail(database, folder, **options)
    try:
        yield tail
    finally:
        tail.close()

"""Questions to a database by its driver, in a JVM that is started when first needed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from changefeed.core.errors import ChangefeedError, Code
from changefeed.sources.debezium.door import Door

#: A JVM that nobody needed for so long is ended, seconds.
IDLE_SECONDS = 60.0


class CatalogSession:
    """A connection: :meth:`rows` runs a statement of SQL, :meth:`command` one of MongoDB."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def rows(self, sql: str) -> list[list[str | None]]:
        """The rows of an answer, all values as text; none of a statement without one."""
        found: list[list[str | None]] = self._door.ask({"do": "query", "sql": sql})
        return found

    def value(self, sql: str) -> str:
        """The only value of an answer; empty for NULL or no row."""
        rows = self.rows(sql)
        return (rows[0][0] or "") if rows else ""

    def names(self, sql: str) -> list[tuple[str, str]]:
        """The rows of an answer of two columns: schema and name of tables."""
        return [(str(schema), str(name)) for schema, name in self.rows(sql)]

    def columns(self, catalog: str | None, schema: str | None, table: str) -> dict[str, Any]:
        """Columns and key of a table, by the driver's description."""
        found: dict[str, Any] = self._door.ask(
            {"do": "columns", "catalog": catalog, "schema": schema, "table": table}
        )
        return found

    def command(self, database: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a command of a database that has no SQL."""
        question = {"do": "command", "database": database, "command": json.dumps(command)}
        found: dict[str, Any] = json.loads(self._door.ask(question))
        return found

    def resume_token(self) -> str:
        """Where a change stream of MongoDB would begin now, as Debezium's offsets have it."""
        return str(self._door.ask({"do": "watch"}))


class Sessions:
    """One JVM with one connection, for one user at a time. Thread-safe."""

    def __init__(self, packs: Sequence[str], opening: Mapping[str, Any]) -> None:
        """``opening``: the command that lets the JVM connect."""
        self._packs = packs
        self._opening = opening
        self._lock = threading.RLock()
        self._door: Door | None = None
        self._timer: threading.Timer | None = None

    @contextmanager
    def session(self) -> Iterator[CatalogSession]:
        """A session for the block.

        Raises:
            ChangefeedError: CF2001, CF2002, CF4003.
        """
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            door = self._open()
            try:
                yield CatalogSession(door)
            finally:
                self._timer = threading.Timer(IDLE_SECONDS, self.close)
                self._timer.daemon = True
                self._timer.start()

    def ask(self, question: Callable[[CatalogSession], Any]) -> Any:
        """An answer; asked again by a new connection where the old one had broken."""
        with self._lock:
            fresh = self._door is None
            try:
                with self.session() as session:
                    return question(session)
            except ChangefeedError as error:
                if fresh or error.code not in (Code.SOURCE_UNREACHABLE, Code.STREAM_BROKE):
                    raise
                self.close()
                with self.session() as session:
                    return question(session)

    def _open(self) -> Door:
        if self._door is not None and self._door.alive:
            return self._door
        door = Door(self._packs, heap="128m")
        try:
            door.ask({"do": "open", **self._opening})
        except BaseException:
            door.close()
            raise
        self._door = door
        return door

    def close(self) -> None:
        """End the JVM; the next question starts another."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            door, self._door = self._door, None
        if door is not None:
            door.close()

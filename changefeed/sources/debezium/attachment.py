"""What a state holds at a database that Debezium reads: a start, and a list of tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Position
from changefeed.core.schema import TableName, TableSchema
from changefeed.sources.base import Attachment, CaptureResult, Memo, Stream, StreamRequest, Watch
from changefeed.sources.debezium.connectors.base import Connector
from changefeed.sources.debezium.sessions import CatalogSession, Sessions
from changefeed.sources.debezium.stream import DoorStream


class Server(Protocol):
    """What an attachment needs of its source."""

    name: str
    connector: Connector
    sessions: Sessions

    def identity(self) -> str:
        """Which database this is."""
        ...

    def described(self, session: CatalogSession, watch: Watch) -> TableSchema:
        """A table as it is now."""
        ...

    def describe_tables(self, tables: Sequence[TableName]) -> dict[TableName, TableSchema]:
        """The present shapes of tables that are there."""
        ...


class DoorAttachment(Attachment):
    """See :class:`changefeed.sources.base.Attachment`.

    The memo: ``owner``, ``start`` and its ``history`` (an offset of Debezium as JSON), ``tables``:
    pairs of schema and name, and what the connector keeps.
    """

    def __init__(self, source: Server, owner: str, memo: Memo | None) -> None:
        self._source = source
        self._memo: dict[str, Any] = dict(memo or {})
        self._owner = f"{owner}/{source.name}"
        for name, value in source.connector.memo(self._owner).items():
            self._memo.setdefault(name, value)

    @property
    def memo(self) -> Memo:
        return dict(self._memo)

    @property
    def holds(self) -> str:
        return self._source.connector.holds(self._memo)

    def check(self, watches: Sequence[Watch]) -> list[ChangefeedError]:
        connector = self._source.connector

        def find(session: CatalogSession) -> list[ChangefeedError]:
            return connector.server_problems(session)

        problems: list[ChangefeedError] = self._source.sessions.ask(find)
        return [*problems, *(each for found in self.check_tables(watches) for each in found)]

    def check_tables(self, watches: Sequence[Watch]) -> list[list[ChangefeedError]]:
        def find(session: CatalogSession) -> list[list[ChangefeedError]]:
            return [self._problems(session, watch) for watch in watches]

        found: list[list[ChangefeedError]] = self._source.sessions.ask(find)
        return found

    def _problems(self, session: CatalogSession, watch: Watch) -> list[ChangefeedError]:
        try:
            table = self._source.described(session, watch)
        except ChangefeedError as error:
            if error.code not in (Code.NAME_UNKNOWN, Code.TARGET_NOT_WATCHABLE):
                raise
            error.span = watch.span
            return [error]
        found = self._source.connector.table_problems(session, table, watch)
        for problem in found:
            problem.span = watch.span
        return found

    def capture(self, tables: Sequence[TableName], *, resume: bool) -> CaptureResult:
        connector = self._source.connector
        if resume and "start" not in self._memo:
            raise _nothing_held(self._source.name)
        watches = [Watch(name=table.name, schema=table.schema) for table in tables]
        found = self.check_tables(watches)
        problems = {
            table: problem[0] for table, problem in zip(tables, found, strict=True) if problem
        }
        good = [table for table in sorted(tables) if table not in problems]

        def hold(session: CatalogSession) -> None:
            if resume and not connector.still_held(session, self._memo):
                raise _nothing_held(self._source.name)
            connector.hold(session, self._memo, good)
            if not resume:
                position, offset = connector.begin(session, self._memo)
                self._memo["start"] = position
                self._memo["history"] = "" if offset is None else json.dumps(offset)

        self._source.sessions.ask(hold)
        self._memo["tables"] = [[table.schema, table.name] for table in good]
        return CaptureResult(problems=problems)

    def start(self) -> tuple[Position, str]:
        if "start" not in self._memo:
            raise _nothing_held(self._source.name)
        return str(self._memo["start"]), str(self._memo["history"])

    def stream(self, request: StreamRequest) -> Stream:
        if "start" not in self._memo:
            raise _nothing_held(self._source.name)
        if request.identity and (present := self._source.identity()) != request.identity:
            raise ChangefeedError(
                Code.SOURCE_IS_ANOTHER,
                f"source {self._source.name!r} is another database than before",
                detail=f"it is {present}, was {request.identity}",
            )
        return DoorStream(
            self._source.connector, self._source.name, request, self._memo, self._describe
        )

    def _describe(self, table: TableName) -> TableSchema | None:
        return self._source.describe_tables([table]).get(table)

    def release(self) -> None:
        if "start" not in self._memo:
            return
        connector = self._source.connector
        if connector.leaves_something:
            self._source.sessions.ask(lambda session: connector.release(session, self._memo))


def _nothing_held(name: str) -> ChangefeedError:
    return ChangefeedError(
        Code.SOURCE_LOG_GONE,
        f"no place in the log of source {name!r} is known where the change log begins",
    )

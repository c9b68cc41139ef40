"""What a state holds at a MySQL server: nothing but a start, a list of tables and a reader's id.

The server keeps its binlog for as long as its own settings say, whether it is read or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Protocol

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Frontier, Position
from changefeed.core.schema import TableName, TableSchema
from changefeed.sources.base import Attachment, CaptureResult, Memo, Stream, StreamRequest, Watch
from changefeed.sources.mysql import advice, checks, coordinates, describe
from changefeed.sources.mysql.address import Address
from changefeed.sources.mysql.ddl import Named
from changefeed.sources.mysql.defaults import LeftOut, read_left_out
from changefeed.sources.mysql.session import Sessions, connect
from changefeed.sources.mysql.stream import BinlogAccess, BinlogStream

#: Ids of readers that we choose are above those that people give to servers.
_LOWEST_ID, _IDS = 0x40000000, 0x3FFFFFFF


class Server(Protocol):
    """What an attachment needs of its source."""

    name: str
    address: Address
    sessions: Sessions

    def identity(self) -> str:
        """Which server this is."""
        ...

    def describe_tables(self, tables: Sequence[TableName]) -> dict[TableName, TableSchema]:
        """The present shapes of tables that are there."""
        ...


class MySQLAttachment(Attachment):
    """See :class:`changefeed.sources.base.Attachment`.

    The memo: ``server_id`` of the reader, ``flavor``, ``mode`` (``gtid`` or ``file``), ``start``
    and its ``history``, ``tables``: pairs of database and name, ``begin``: where a new log begins
    when that is not the present end, and ``left_out``: what INSERTs leave out, of tables that
    joined while the binlog did not have whole rows.
    """

    def __init__(self, source: Server, owner: str, memo: Memo | None) -> None:
        self._source = source
        self._memo: dict[str, Any] = dict(memo or {})
        digest = sha256(f"{owner}/{source.name}".encode()).digest()
        chosen = _LOWEST_ID + int.from_bytes(digest[:4], "big") % _IDS
        self._memo["server_id"] = source.address.server_id or self._memo.get("server_id", chosen)

    @property
    def memo(self) -> Memo:
        return dict(self._memo)

    @property
    def holds(self) -> str:
        return f"a binlog reader with server_id {self._memo['server_id']}"

    def check(self, watches: Sequence[Watch]) -> list[ChangefeedError]:
        return checks.check(self._source.address, self._source.address.database, watches)

    def check_tables(self, watches: Sequence[Watch]) -> list[list[ChangefeedError]]:
        with self._source.sessions.session() as session:
            return checks.table_problems(session, self._source.address.database, watches)

    def capture(self, tables: Sequence[TableName], *, resume: bool) -> CaptureResult:
        """See :class:`changefeed.sources.base.Attachment`.

        The binlog has every table: what is captured is what the stream keeps of it.
        """
        if resume and "start" not in self._memo:
            raise _nothing_held()
        watches = [Watch(name=table.name, schema=table.schema) for table in tables]
        with self._source.sessions.session() as session:
            found = checks.table_problems(session, "", watches)
            if resume:
                self._demand_same_mode(coordinates.mode_of(session))
            elif (begin := self._memo.get("begin")) is not None:
                self._memo.update(begin)
                self._demand_same_mode(coordinates.mode_of(session))
            else:
                mode = coordinates.mode_of(session)
                end = coordinates.present(session, mode)
                self._memo.update(
                    flavor=session.flavor, mode=mode, start=end.position, history=end.history
                )
        problems = {
            table: problem[0] for table, problem in zip(tables, found, strict=True) if problem
        }
        # One that is not there may have another name, or be dropped: the binlog shows which.
        refused = {t for t, problem in problems.items() if problem.code is not Code.NAME_UNKNOWN}
        self._memo["tables"] = [[t.schema, t.name] for t in sorted(tables) if t not in refused]
        self._note_left_out()
        return CaptureResult(problems=problems)

    def _note_left_out(self) -> None:
        """Keep what an INSERT leaves out (:mod:`.defaults`) of each table that joins, before a feed
        begins with it: an INSERT that a feed delivers comes behind that."""
        tables = [(str(database), str(name)) for database, name in self._memo["tables"]]
        known = {(noted[0], noted[1]): noted for noted in self._memo.get("left_out", ())}
        kept = [known[named] for named in tables if named in known]
        fresh = [named for named in tables if named not in known]
        with self._source.sessions.session() as session:
            if fresh and describe.row_image(session) != "FULL":
                found = read_left_out(session, fresh, str(self._memo["mode"]))
                kept += [[*named, left_out.as_json()] for named, left_out in sorted(found.items())]
        if kept or "left_out" in self._memo:
            self._memo["left_out"] = kept

    def start(self) -> tuple[Position, str]:
        if "start" not in self._memo:
            raise _nothing_held()
        return str(self._memo["start"]), str(self._memo["history"])

    def stream(self, request: StreamRequest) -> Stream:
        if "start" not in self._memo:
            raise _nothing_held()
        source = self._source
        with source.sessions.session() as session:
            self._demand_same_mode(coordinates.mode_of(session))
        self._demand_same_log(request)
        access = BinlogAccess(
            lambda: connect(source.address),
            source=source.name,
            flavor=str(self._memo["flavor"]),
            mode=str(self._memo["mode"]),
            server_id=int(self._memo["server_id"]),
            describe=self._describe,
            problem=self._problem,
            left_out=self._left_out,
            end=self._end,
        )
        return BinlogStream(access, request)

    def headroom(self, read: Frontier | None) -> list[str]:
        """See :class:`changefeed.sources.base.Attachment`: how long the server keeps its binlog."""
        with self._source.sessions.session() as session:
            in_gtids = self._memo.get("mode") == "gtid"
            if read is not None and in_gtids and not coordinates.reaches(session, read.history):
                raise ChangefeedError(
                    Code.SOURCE_LOG_GONE,
                    f"source {self._source.name!r} has removed transactions from its binlog that "
                    "were not read yet",
                )
            return [advice.kept(session)]

    def _demand_same_mode(self, present: str) -> None:
        """Positions by GTID and by file cannot be compared.

        Raises:
            ChangefeedError: CF2103 the server was switched from one to the other.
        """
        if present != self._memo["mode"]:
            raise ChangefeedError(
                Code.SOURCE_LOG_REPLACED,
                f"gtid_mode of source {self._source.name!r} was switched since its log began",
                detail=f"positions are of the kind {self._memo['mode']!r}, now they are "
                f"{present!r}",
                hint="RESCAN the feeds of this source: a new change log starts with the new kind.",
            )

    def _demand_same_log(self, request: StreamRequest) -> None:
        """The server has the transactions that were read: the one that they were read from, or one
        that took its place. The first server may be back without those of the second.

        Raises:
            ChangefeedError: CF2103 it lost some of them, CF2104 it is another server, and has
                not all of them.
        """
        present = self._source.identity()
        same = not request.identity or present == request.identity
        if self._memo["mode"] == "gtid":
            with self._source.sessions.session() as session:
                if coordinates.has(session, request.start.history):
                    return
        elif same:
            return
        if same:
            raise ChangefeedError(
                Code.SOURCE_LOG_REPLACED,
                f"source {self._source.name!r} does not have all transactions that were read",
                detail="its log was reset, the server was restored, or another server took its "
                "place and was read meanwhile",
            )
        raise ChangefeedError(
            Code.SOURCE_IS_ANOTHER,
            f"source {self._source.name!r} is another server than before",
            detail=f"server {present}, was {request.identity}, and it has not the transactions "
            "that were read",
        )

    def _describe(self, table: TableName) -> TableSchema | None:
        return self._source.describe_tables([table]).get(table)

    def _problem(self, table: TableName) -> ChangefeedError | None:
        with self._source.sessions.session() as session:
            return checks.kind_problem(session, table)

    def _left_out(self, named: Named) -> LeftOut | None:
        with self._source.sessions.session() as session:
            return read_left_out(session, [named], str(self._memo["mode"])).get(named)

    def _end(self) -> Position:
        with self._source.sessions.session() as session:
            return coordinates.present(session, str(self._memo["mode"])).position

    def release(self) -> None:
        """See :class:`changefeed.sources.base.Attachment`. Nothing is created at the server."""


def _nothing_held() -> ChangefeedError:
    return ChangefeedError(
        Code.SOURCE_LOG_GONE,
        "the position in the binlog where the change log would begin is not known",
    )

"""Where a stream stands, by GTIDs or by file and offset, and what was read before."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Protocol

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Position
from changefeed.sources.mysql.binlog import MariaEvent, MysqlGtid, misfit
from changefeed.sources.mysql.gtid import GtidSet, MariaGtid, file_position


class BinlogPosition(Protocol):
    """The end of what was read completely."""

    @property
    def position(self) -> Position:
        """As text that sorts."""
        ...

    @property
    def history(self) -> str:
        """What a later session needs to go on."""
        ...

    def passed(self, file: str, offset: int) -> None:
        """Everything before that offset was read, and no transaction is open."""
        ...


class GtidPosition:
    """By the GTIDs of all transactions that were read."""

    def __init__(self, gtids: GtidSet | MariaGtid) -> None:
        self.gtids = gtids

    @property
    def position(self) -> Position:
        return self.gtids.position

    @property
    def history(self) -> str:
        return self.gtids.text()

    def passed(self, file: str, offset: int) -> None:
        """Files have nothing to do with it."""


class FilePosition:
    """By a file of one server and an offset in it: ``<server_uuid> <file> <offset>``."""

    def __init__(self, server: str, file: str, offset: int) -> None:
        self.server, self.file, self.offset = server, file, offset

    @classmethod
    def parse(cls, history: str) -> FilePosition:
        """The inverse of :attr:`history`.

        Raises:
            ChangefeedError: CF2105 the text is none.
        """
        server, _, rest = history.partition(" ")
        file, _, offset = rest.rpartition(" ")
        if not file or not offset.isdigit():
            raise ChangefeedError(
                Code.UNEXPECTED_MESSAGE, "not a position in a binlog file", detail=history[:200]
            )
        return cls(server, file, int(offset))

    @property
    def position(self) -> Position:
        return file_position(self.file, self.offset)

    @property
    def history(self) -> str:
        return f"{self.server} {self.file} {self.offset}"

    def passed(self, file: str, offset: int) -> None:
        if file and file_position(file, offset) > self.position:
            self.file, self.offset = file, offset


#: Takes a transaction: its server or domain, its number, its moment, and what was before it.
Met = Callable[[str, int, int, tuple[int, int] | None], None]


class MysqlBegins:
    """Which transactions of a MySQL server begin, and which were read."""

    def __init__(self, read: GtidSet, met: Met | None) -> None:
        """
        Args:
            read: what was read, to be added to.
            met: takes note of each transaction.
        """
        self._read, self._met = read, met
        self._server_names: dict[bytes, str] = {}

    def has(self, event: MysqlGtid) -> bool:
        """The transaction was read before."""
        return (event.server, event.number) in self._read

    def meet(self, event: MysqlGtid) -> None:
        """A transaction begins.

        Raises:
            ChangefeedError: CF2103 it is an anonymous one.
        """
        if not event.number:
            raise ChangefeedError(
                Code.SOURCE_LOG_REPLACED, "the server no longer gives its transactions GTIDs"
            )
        if self._met is not None:
            self._met(self._server_name(event.server), event.number, event.commit_us, None)

    def add(self, event: MysqlGtid) -> None:
        self._read.add(event.server, event.number)

    def _server_name(self, server: bytes) -> str:
        name = self._server_names.get(server)
        if name is None:
            name = self._server_names[server] = str(uuid.UUID(bytes=server))
        return name


class MariaBegins:
    """Which transactions of a MariaDB server begin, and which were read."""

    def __init__(self, read: MariaGtid, met: Met | None) -> None:
        self._read, self._met = read, met
        #: Domains of which a transaction was met that was not read before.
        self._domains: set[int] = set()

    def has(self, event: MariaEvent) -> bool:
        """The transaction was read before, or one with a higher number of its domain."""
        return self._read.covers(event.domain, event.number)

    def meet(self, event: MariaEvent, seconds: int, *, known: bool) -> None:
        """A transaction begins, which was written at ``seconds``; ``known``: :meth:`has` it.

        Raises:
            ChangefeedError: CF2103 it was not read before, and will not be, for its number.
        """
        if self._met is not None:
            self._met(str(event.domain), event.number, seconds, self._read.last(event.domain))
        if not known:
            self._domains.add(event.domain)
        elif event.domain in self._domains:
            raise ChangefeedError(
                Code.SOURCE_LOG_REPLACED,
                f"transaction {event.domain}-{event.server}-{event.number} comes after "
                "transactions of higher numbers in its domain",
                hint="SET GLOBAL gtid_strict_mode = ON at the server, then RESCAN the feeds "
                "of this source.",
            )

    def add(self, event: MariaEvent) -> None:
        self._read.add(event.domain, event.server, event.number)


def mysql_begins(begins: MysqlBegins | MariaBegins) -> MysqlBegins:
    """Those of a log whose transactions have GTIDs of MySQL.

    Raises:
        ChangefeedError: CF2105 what was read is of MariaDB.
    """
    if not isinstance(begins, MysqlBegins):
        raise misfit("a GTID of MySQL in the log of MariaDB")
    return begins


def maria_begins(begins: MysqlBegins | MariaBegins) -> MariaBegins:
    """The same the other way round."""
    if not isinstance(begins, MariaBegins):
        raise misfit("a GTID of MariaDB in the log of MySQL")
    return begins


def begins_of(read_upto: BinlogPosition, met: Met | None) -> MysqlBegins | MariaBegins | None:
    """How the begins behind a position are counted; None where it is a file and an offset."""
    if not isinstance(read_upto, GtidPosition):
        return None
    if isinstance(read_upto.gtids, MariaGtid):
        return MariaBegins(read_upto.gtids, met)
    return MysqlBegins(read_upto.gtids, met)

"""Where a stream stands: by GTIDs, or by file and offset."""

from __future__ import annotations

from typing import Protocol

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Position
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

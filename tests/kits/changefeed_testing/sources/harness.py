"""The class that the author of a source implements for the list: one database to test against."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from changefeed.sources.base import Source


class UserSession(Protocol):
    """A connection of a user of the database; begins a transaction when first used."""

    def execute(self, sql: str) -> object:
        """Run one statement."""
        ...

    def commit(self) -> None:
        """End the transaction."""
        ...

    def rollback(self) -> None:
        """Undo the transaction."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


@dataclass(frozen=True, slots=True)
class Type:
    """A column type, and values of it.

    Attributes:
        sql: the type as CREATE TABLE takes it.
        logical: what :attr:`changefeed.core.schema.Column.logical` must be.
        values: SQL of each value, and the value that the log must hold.
    """

    sql: str
    logical: str
    values: Sequence[tuple[str, str | int | bool | None]]


class SourceHarness(ABC):
    """An empty database in which a case may do anything; each case gets a new one.

    The cases use SQL that PostgreSQL and MySQL share. Methods of this class cover the differences.
    """

    #: Cases the source cannot pass by its nature, with the reason.
    never: Mapping[str, str] = {}

    #: Tables have no ids, but the log tells which table got which name.
    logs_renames: bool = False

    #: How long a case waits for the stream, seconds.
    deadline: float = 60.0

    #: A folder that only this case uses.
    folder: Path

    @abstractmethod
    def source(self) -> Source:
        """A new object for the database, with the name ``shop``, as after a restart."""

    @abstractmethod
    def other(self) -> Source:
        """Another database, with the name ``shop`` and other changes in its log."""

    @abstractmethod
    def connect(self) -> UserSession:
        """A session without autocommit."""

    @abstractmethod
    def types(self) -> Sequence[Type]:
        """Every column type that the documentation of the source names."""

    @abstractmethod
    def lose_log(self, memo: Mapping[str, object]) -> None:
        """Make the source discard a part of its log that the attachment of ``memo`` still needs."""

    def quote(self, name: str) -> str:
        """A name as a quoted SQL identifier."""
        return '"' + name.replace('"', '""') + '"'

    def full_images(self, table: str) -> str:
        """SQL that makes the database log whole old rows of a table; empty: it always does."""
        return ""

    def hostile_names(self) -> Sequence[str]:
        """Names of tables and columns that fail in a source without correct quoting."""
        return ('O"Hara', "two words", "dot.ted", "per%cent", "Größe", "select", "a'b", "{x}", "\\")

    def row(self, row: dict[str, Any]) -> dict[str, Any]:
        """A row of the source with the columns that the SQL of a case has; a source has others
        if, for instance, its rows are documents."""
        return row

    # -- for the cases ----------------------------------------------------------------

    def execute(self, *statements: str) -> None:
        """Run statements in one transaction."""
        with self.session() as session:
            for sql in statements:
                if sql:
                    session.execute(sql)
            session.commit()

    @contextmanager
    def session(self) -> Iterator[UserSession]:
        """A session that ends with the block; changes that were not committed are undone."""
        session = self.connect()
        try:
            yield session
        finally:
            session.close()

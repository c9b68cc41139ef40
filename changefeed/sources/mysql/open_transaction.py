"""The transaction whose events are being read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from changefeed.core.schema import TableName, TableSchema
from changefeed.sources.decoded.stored import StoredTransaction
from changefeed.sources.mysql.ddl import DefinedTables
from changefeed.sources.mysql.shapes import ShapeChange


@dataclass(slots=True)
class ReadTransaction:
    """A transaction being read.

    Attributes:
        first: its first row event among those that wait.
        skip: it was read before.
        gtid: adds it to the position; None for an anonymous one.
        commit_us: when it committed, microseconds; 0 where the event of its end says so.
        changes: tables that look otherwise from here on.
        ddl: tables that its statements define, with what happens to each, and the statement.
        defined: the same, statement by statement, and the tables that each removes.
        stored: its rows that were put on disk, because it is large.
        begun: a BEGIN opened it; else one statement is the transaction.
        xid: the number in the event of its end.
        savepoints: by name, how many of its row events waited when each savepoint was set; -1:
            they are on disk since.
        mapped: numbers of the tables that are described for the present statement.
        again: tables that have to be read again, because the binlog does not have their changes,
            with the reason.
        lost: tables with rows, among those that were put on disk, that cannot be read, with the
            reason.
        unread: tables that it changes and nobody watches, by database and name.
    """

    first: int
    skip: bool = False
    gtid: Callable[[], None] | None = None
    commit_us: int = 0
    changes: list[ShapeChange] = field(default_factory=list)
    ddl: list[tuple[TableName, str, str]] = field(default_factory=list)
    defined: list[tuple[DefinedTables, list[tuple[str, str]]]] = field(default_factory=list)
    stored: StoredTransaction | None = None
    begun: bool = False
    xid: int = 0
    savepoints: dict[str, int] = field(default_factory=dict)
    mapped: set[int] = field(default_factory=set)
    again: dict[TableName, tuple[TableSchema, str]] = field(default_factory=dict)
    lost: dict[TableName, tuple[TableSchema, str]] = field(default_factory=dict)
    unread: set[tuple[str, str]] = field(default_factory=set)

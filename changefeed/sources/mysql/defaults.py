"""What an INSERT left out: the defaults of columns, and until when they hold.

With ``binlog_row_image = MINIMAL`` (and with ``NOBLOB`` for large columns) the binlog does not have
the columns that an INSERT gave no value, and the server gave them a constant: NULL, or the literal
behind DEFAULT. (A default that is computed is in the binlog.) The server's catalog has these
constants as they are *now*; they are used for an INSERT only where the binlog shows that nothing
changed the table between the two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Position
from changefeed.core.schema import Column
from changefeed.core.sql import quoted
from changefeed.core.types import Kind
from changefeed.sources.mysql import coordinates
from changefeed.sources.mysql.ddl import Named
from changefeed.sources.mysql.kept import read_kept, write_kept
from changefeed.sources.mysql.result import ServerError, read_rows
from changefeed.sources.mysql.session import MySQLSession, literal
from changefeed.sources.mysql.types import ColumnInfo, column_of
from changefeed.sources.mysql.values import log_column

#: In the folder that lives as long as the change log.
_FILE = "defaults"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What the columns of a table have where an INSERT leaves them out: what is not named is NULL.

    Attributes:
        since: the catalog was read after everything up to this position was committed.
        upto: and before anything behind this position was.
        constants: by column, the default as a value of the log.
        unknown: columns of which it is not known.
        computed: columns that are computed when they are read (VIRTUAL).
    """

    since: Position
    upto: Position
    constants: Mapping[str, Any] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    computed: tuple[str, ...] = ()

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> LeftOut:
        return cls(
            str(kept["since"]),
            str(kept["upto"]),
            dict(kept["constants"]),
            tuple(kept["unknown"]),
            tuple(kept["computed"]),
        )

    def as_json(self) -> dict[str, Any]:
        """As a memo or a file has it."""
        return asdict(self)

    def by_ordinal(self, columns: Sequence[Column]) -> dict[int, Any]:
        """The known values, by position."""
        return {
            ordinal: self.constants.get(column.name)
            for ordinal, column in enumerate(columns)
            if column.name not in self.unknown
        }


#: Of a table: what is known of it, or was said of it when it joined.
Ask = Callable[[Named], LeftOut | None]


def nothing(named: Named) -> LeftOut | None:
    """An :data:`Ask` that has no answer."""
    return None


def _defaults_of(kept: Iterable[Any]) -> list[tuple[Named, Position, LeftOut | None]]:
    return [
        ((database, table), str(defined), None if left_out is None else LeftOut.of(left_out))
        for database, table, defined, left_out in kept
    ]


class Defaults:
    """The defaults of the tables of one stream. What they say outlives the stream."""

    def __init__(self, folder: Path, start: Position, *, joined: Ask, read: Ask) -> None:
        """
        Args:
            folder: lives as long as the change log.
            start: where the stream begins; what came behind it comes again.
            joined: what was read of a table when it joined the source's tables.
            read: asks the server.

        Raises:
            ChangefeedError: CF3001 the file cannot be read.
        """
        self._path = folder / _FILE
        self._joined = joined
        self._read = read
        self._known: dict[Named, LeftOut] = {}
        #: Where a table was defined last.
        self._defined: dict[Named, Position] = {}
        #: Tables that the server did not have when it was asked.
        self._absent: set[Named] = set()
        self._changed = False
        for named, defined, known in read_kept(self._path, "defaults of columns", _defaults_of):
            if defined <= start:
                self._defined[named] = defined
            if known is not None:
                self._known[named] = known

    def save(self) -> None:
        """Make what is known durable, before a flush that relies on it is out.

        Raises:
            ChangefeedError: CF3004 the file cannot be written.
        """
        if not self._changed:
            return
        kept = []
        for named in sorted({*self._known, *self._defined}):
            known = self._known.get(named)
            kept.append([*named, self._defined.get(named, ""), known and known.as_json()])
        write_kept(self._path, kept)
        self._changed = False

    def defined(self, tables: Collection[Named], position: Position) -> None:
        """Statements defined tables in the transaction that ends at ``position``."""
        for named in tables:
            self._defined[named] = position
            self._absent.discard(named)
            self._changed = True

    def at(self, named: Named, position: Position) -> LeftOut | None:
        """What a transaction that begins at ``position`` left out; None where it is not known."""
        for left_out in (self._known.get(named), self._joined(named)):
            if left_out is not None and self._holds(named, left_out) and left_out.upto <= position:
                return left_out
        left_out = self.latest(named)
        return left_out if left_out is not None and left_out.upto <= position else None

    def latest(self, named: Named) -> LeftOut | None:
        """What is known of a table, whichever transactions it holds for."""
        left_out = self._known.get(named)
        if left_out is not None and self._holds(named, left_out):
            return left_out
        left_out = None if named in self._absent else self._read(named)
        if left_out is None:
            self._absent.add(named)
        else:
            self._known[named] = left_out
            self._changed = True
        return left_out

    def _holds(self, named: Named, left_out: LeftOut) -> bool:
        return left_out.since >= self._defined.get(named, "")


def read_left_out(
    session: MySQLSession, tables: Sequence[Named], mode: str
) -> dict[Named, LeftOut]:
    """What the server's catalog says of the tables that are there.

    Raises:
        ChangefeedError: CF2001 and others of the connection; CF2004 a table may not be read.
    """
    if not tables:
        return {}
    since = coordinates.present(session, mode).position
    pairs = ", ".join(f"({literal(database)}, {literal(name)})" for database, name in tables)
    rows = session.rows(
        "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, COLUMN_DEFAULT,"
        " EXTRA FROM information_schema.COLUMNS"
        f" WHERE (TABLE_SCHEMA, TABLE_NAME) IN ({pairs})"
        " ORDER BY TABLE_SCHEMA, TABLE_NAME, ORDINAL_POSITION",
        "read the description of tables",
    )
    found: dict[Named, LeftOut] = {}
    for named in dict.fromkeys((str(row[0]), str(row[1])) for row in rows):
        columns = [_DefaultOf.read(row[2:], session) for row in rows if (row[0], row[1]) == named]
        found[named] = LeftOut(
            since,
            "",
            _constants(session, named, columns),
            tuple(column.info.name for column in columns if column.sql is None),
            tuple(column.info.name for column in columns if column.virtual),
        )
    upto = coordinates.present(session, mode).position
    return {named: replace(left_out, upto=upto) for named, left_out in found.items()}


#: A literal as MariaDB's catalog has it; what is no literal is computed.
_LITERAL = re.compile(r"'(?:[^'\\]|'')*'|-?[0-9.]+(?:e[-+]?[0-9]+)?", re.I)
_BITS = re.compile(r"b'[01]+'")
#: Types whose literals the catalogs print as the server prints the values.
_PLAIN = frozenset(
    {
        "tinyint", "smallint", "mediumint", "int", "bigint", "year", "decimal", "float", "double",
        "varchar", "char", "enum", "set", "tinytext", "text", "mediumtext", "longtext", "date",
        "time", "datetime",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _DefaultOf:
    """The default of one column.

    Attributes:
        sql: an expression that has its value; None: not known, or it has none.
        null: it is NULL.
    """

    info: ColumnInfo
    sql: str | None
    null: bool = False
    virtual: bool = False

    @classmethod
    def read(cls, row: Sequence[Any], session: MySQLSession) -> _DefaultOf:
        name, kind, nullable, default, extra = row
        info, extra = ColumnInfo(name, kind, nullable == "YES"), str(extra).upper()
        if "GENERATED" in extra and "DEFAULT_GENERATED" not in extra:
            return cls(info, None, virtual="VIRTUAL" in extra)
        if "DEFAULT_GENERATED" in extra or "AUTO_INCREMENT" in extra:
            return cls(info, None)
        if default is None or (session.is_mariadb and default == "NULL"):
            return cls(info, "NULL", null=True) if info.nullable else cls(info, None)
        constant = not session.is_mariadb or _LITERAL.fullmatch(default) is not None
        if info.nullable and (constant or default.startswith(("'", "b'", "x'"))):
            # The server evaluates it, of a row that is not there; of a column that may not be
            # NULL that would be NULL.
            return cls(info, f"DEFAULT(x.{quoted(name)})")
        if info.data_type == "bit" and _BITS.fullmatch(default):
            width = ((info.sizes or (1,))[0] + 7) // 8
            return cls(info, f"LPAD({default}, {width}, x'00')")
        if session.is_mariadb and default.startswith("'"):
            default = default[1:-1].replace("''", "'")
        if info.data_type == "timestamp" and default.startswith("0000-00-00"):
            return cls(info, "NULL", null=True)  # what is no date is NULL in the log
        if not constant or info.data_type not in _PLAIN:
            return cls(info, None)
        return cls(info, literal(default.rstrip(" ") if info.data_type == "char" else default))


def _constants(
    session: MySQLSession, named: Named, columns: Sequence[_DefaultOf]
) -> dict[str, Any]:
    """The defaults that are not NULL, in the form of the log, as a scan would read them."""
    asked = [column for column in columns if column.sql is not None and not column.null]
    if not asked:
        return {}
    targets = [column_of(column.info) for column in asked]
    listed = ", ".join(
        f"{column.sql} + 0e0" if target.kind is Kind.FLOAT32 else str(column.sql)
        for column, target in zip(asked, targets, strict=True)
    )
    name = f"{quoted(named[0])}.{quoted(named[1])}"
    sql = f"SELECT {listed} FROM (SELECT 1 AS one) AS o LEFT JOIN {name} AS x ON FALSE"
    with session.explained("read the defaults of columns"):
        try:
            blocks = list(read_rows(session.packets(sql, len(asked)), len(asked)))
        except ServerError as error:
            raise session.server_error(error, "read the defaults of columns") from None
    try:
        return {
            column.name: log_column(column, values)[0].as_py()
            for column, values in zip(targets, blocks[0], strict=True)
        }
    except pa.ArrowException as error:
        raise ChangefeedError(
            Code.UNEXPECTED_MESSAGE,
            f"a default of table {named[0]}.{named[1]} is no value of its column",
        ) from error

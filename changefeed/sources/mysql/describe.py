"""Shapes and lists of tables, by ``information_schema``."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import BeforeImage, TableName, TableSchema
from changefeed.core.sql import quoted
from changefeed.sources.base import TableInfo, Watch
from changefeed.sources.mysql.session import MySQLSession, listed, literal
from changefeed.sources.mysql.types import ColumnInfo, column_of

#: Databases of the server itself.
SYSTEM = ("information_schema", "mysql", "performance_schema", "sys")

#: Settings of ``binlog_row_image`` with which the binlog has only the key of rows before a change,
#: or all but large columns.
KEY_IMAGES = frozenset({"MINIMAL", "NOBLOB"})
#: Tables that are altered all the time are described after so many looks.
_MOST_READS = 10
#: Storage engines with transactions and consistent snapshots.
TRANSACTIONAL = frozenset({"innodb", "rocksdb", "tokudb", "ndbcluster"})


@dataclass(frozen=True, slots=True)
class ServerTable:
    """A table as the catalog of the server has it.

    Attributes:
        kind: ``TABLE_TYPE``: ``BASE TABLE``, ``VIEW``, ``SYSTEM VERSIONED``, ``SEQUENCE``.
        engine: of storage, in lower case.
        columns: in the table's order, invisible ones too.
        key: names of the columns that distinguish rows; empty when there are none.
        key_is_primary: the key is the PRIMARY KEY.
        rows, bytes: by the server's statistics.
        partitioned: it has partitions.
        computed: names of columns that are computed when they are read (VIRTUAL).
        row_image: what the server's binlog has of rows: ``FULL``, ``MINIMAL``, ``NOBLOB``, and
            MariaDB's ``FULL_NODUP``, which has whole rows before a change.
    """

    database: str
    name: str
    kind: str
    engine: str
    columns: tuple[ColumnInfo, ...] = ()
    key: tuple[str, ...] = ()
    key_is_primary: bool = False
    rows: int = 0
    bytes: int = 0
    partitioned: bool = False
    computed: tuple[str, ...] = ()
    row_image: str = "FULL"

    @property
    def logs_whole_rows(self) -> bool:
        """The binlog has all columns of rows before a change. Without a key it always does."""
        return self.row_image not in KEY_IMAGES or not self.key

    @property
    def lacks_computed(self) -> tuple[str, ...]:
        """Columns that the binlog of MariaDB has not at all: it leaves out computed ones."""
        if self.row_image in ("MINIMAL", "FULL_NODUP"):
            return self.computed
        return ()

    @property
    def full_name(self) -> str:
        return f"{self.database}.{self.name}"

    def schema(self, source: str) -> TableSchema:
        """The shape, version 0."""
        places = {column.name: i for i, column in enumerate(self.columns)}
        keyless = not self.key
        return TableSchema(
            table=TableName(source, self.database, self.name),
            columns=tuple(map(column_of, self.columns)),
            key=tuple(range(len(places))) if keyless else tuple(places[n] for n in self.key),
            before_image=BeforeImage.FULL if self.logs_whole_rows else BeforeImage.KEY,
            keyless=keyless,
        )


def read_tables(
    session: MySQLSession, names: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], ServerTable]:
    """The tables (and views) among ``names``, database and name each, with their columns.

    No transaction holds these views of the server still: a table may be renamed or altered between
    two of them. So the keys are read between two equal answers about tables and columns.
    """
    if not names:
        return {}
    doing = "read the description of tables"
    pairs = ", ".join(f"({literal(database)}, {literal(name)})" for database, name in names)
    where = f"WHERE (TABLE_SCHEMA, TABLE_NAME) IN ({pairs})"
    image = row_image(session)
    heads, named = _heads(session, where, doing), _columns(session, where, doing)
    for _ in range(_MOST_READS):
        keys = _keys(session, where, doing)
        before = {head[:2] for head in heads}, named
        heads, named = _heads(session, where, doing), _columns(session, where, doing)
        if ({head[:2] for head in heads}, named) == before:
            break
    columns, computed = named
    return {
        (database, name): ServerTable(
            database=database,
            name=name,
            kind=kind.upper(),
            engine=engine.lower(),
            columns=tuple(columns.get((database, name), ())),
            key=keys.get((database, name), ((), False))[0],
            key_is_primary=keys.get((database, name), ((), False))[1],
            rows=int(rows),
            bytes=int(size),
            partitioned="partitioned" in options.lower(),
            computed=tuple(computed.get((database, name), ())) if session.is_mariadb else (),
            row_image=image,
        )
        for database, name, kind, engine, rows, size, options in heads
    }


def row_image(session: MySQLSession) -> str:
    """The server's setting ``binlog_row_image``, in capitals."""
    return session.variables("binlog_row_image").get("binlog_row_image", "FULL").upper()


def _heads(session: MySQLSession, where: str, doing: str) -> Sequence[tuple[Any, ...]]:
    return session.rows(
        "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, coalesce(ENGINE, ''),"
        " coalesce(TABLE_ROWS, 0), coalesce(DATA_LENGTH, 0), coalesce(CREATE_OPTIONS, '')"
        f" FROM information_schema.TABLES {where}",
        doing,
    )


def _columns(
    session: MySQLSession, where: str, doing: str
) -> tuple[Mapping[tuple[str, str], list[ColumnInfo]], Mapping[tuple[str, str], list[str]]]:
    rows = session.rows(
        "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, EXTRA"
        f" FROM information_schema.COLUMNS {where}"
        " ORDER BY TABLE_SCHEMA, TABLE_NAME, ORDINAL_POSITION",
        doing,
    )
    json = _json_columns(session, where, doing) if session.is_mariadb else frozenset()
    found: dict[tuple[str, str], list[ColumnInfo]] = defaultdict(list)
    computed: dict[tuple[str, str], list[str]] = defaultdict(list)
    for database, table, name, kind, nullable, extra in rows:
        is_json = (database, table, name) in json
        found[database, table].append(ColumnInfo(name, kind, nullable == "YES", is_json))
        if "VIRTUAL" in str(extra).upper():
            computed[database, table].append(name)
    return found, computed


def _json_columns(session: MySQLSession, where: str, doing: str) -> frozenset[tuple[str, str, str]]:
    """MariaDB's JSON columns: a CHECK constraint of the column's own name says ``json_valid``."""
    rows = session.rows(
        "SELECT CONSTRAINT_SCHEMA, TABLE_NAME, CONSTRAINT_NAME, CHECK_CLAUSE"
        " FROM information_schema.CHECK_CONSTRAINTS "
        + where.replace("TABLE_SCHEMA", "CONSTRAINT_SCHEMA"),
        doing,
    )
    return frozenset(
        (database, table, name)
        for database, table, name, clause in rows
        if clause.lower().replace("`", "").replace('"', "") == f"json_valid({name.lower()})"
    )


def _keys(
    session: MySQLSession, where: str, doing: str
) -> Mapping[tuple[str, str], tuple[tuple[str, ...], bool]]:
    """The primary key, else the first unique index over whole columns that are never NULL."""
    rows = session.rows(
        "SELECT TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, COLUMN_NAME, SUB_PART, NULLABLE"
        f" FROM information_schema.STATISTICS {where} AND NON_UNIQUE = 0"
        " ORDER BY TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX",
        doing,
    )
    indexes: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(dict)
    unfit: set[tuple[str, str, str]] = set()
    for database, table, index, column, part, nullable in rows:
        indexes[database, table].setdefault(index, []).append(column)
        if column is None or (part is not None and index != "PRIMARY") or nullable == "YES":
            unfit.add((database, table, index))
    found = {}
    for table, named in indexes.items():
        fit = {index: names for index, names in named.items() if (*table, index) not in unfit}
        if "PRIMARY" in fit:
            found[table] = (tuple(fit["PRIMARY"]), True)
        elif fit:
            found[table] = (tuple(fit[min(fit)]), False)
    return found


# ------------------------------------------------------------------------- one table


def resolve(watch: Watch, database: str) -> tuple[str, str]:
    """Database and name of a table as it was written.

    Raises:
        ChangefeedError: CF1101 neither the name nor the connection says which database.
    """
    schema = watch.schema or database
    if not schema:
        raise ChangefeedError(
            Code.NAME_UNKNOWN,
            f'table "{watch.name}" needs a database',
            hint=f"write it as <database>.{watch.name}, or name a database in the URI of the"
            " connection: mysql://user@host/database",
            span=watch.span,
        )
    return schema, watch.name


def unknown_table(session: MySQLSession, watch: Watch, database: str) -> ChangefeedError:
    """The error for a name that stands for no table that the user may see."""
    if not may_read(session, database, watch.name):
        # The server says so of each name in a database of which the user may see nothing.
        return ChangefeedError(
            Code.SOURCE_PERMISSION_MISSING,
            f'user {session.account()} may not read table "{database}.{watch.name}", or there is '
            "none",
            hint=grant_select(session, database, watch.name),
            span=watch.span,
        )
    near = difflib.get_close_matches(
        f"{database}.{watch.name}",
        [f"{d}.{n}" for d, n in _names(session)],
        n=1,
    )
    return ChangefeedError(
        Code.NAME_UNKNOWN,
        f'table "{database}.{watch.name}" does not exist',
        hint=f'did you mean "{near[0]}"?' if near else "SHOW TABLES lists what can be watched.",
        span=watch.span,
    )


def may_read(session: MySQLSession, database: str, name: str) -> bool:
    """Whether the server lets the user read a table of this name; true where there is none and
    the user may know that."""
    try:
        session.rows(f"SELECT 1 FROM {quoted(database)}.{quoted(name)} LIMIT 0", "read a table")
    except ChangefeedError as error:
        if error.code in (Code.SOURCE_UNREACHABLE, Code.SOURCE_BUSY):
            raise
        return error.code is not Code.SOURCE_PERMISSION_MISSING
    return True


def grant_select(session: MySQLSession, database: str, name: str) -> str:
    """The statement that lets the user read this one table."""
    named = ".".join(quoted(part, "`") for part in (database, name))
    return f"GRANT SELECT ON {named} TO {session.account()};"


def refusal(table: ServerTable, watch: Watch) -> ChangefeedError | None:
    """Why this is nothing that a changefeed can watch."""
    name = table.full_name
    if table.database.lower() in SYSTEM:
        why = f'table "{name}" belongs to the server itself'
    elif table.kind == "VIEW" or table.kind == "SYSTEM VIEW":
        why = f'"{name}" is a view: its rows are not in the binlog'
    elif table.kind == "SEQUENCE":
        why = f'"{name}" is a sequence'
    elif table.kind == "SYSTEM VERSIONED":
        why = f'table "{name}" is system-versioned: its history rows are in the binlog as rows'
    else:
        return None
    return ChangefeedError(
        Code.TARGET_NOT_WATCHABLE, why, hint="watch a base table.", span=watch.span
    )


def describe(session: MySQLSession, source: str, database: str, name: str) -> TableSchema:
    """The present shape of one table, version 0.

    Raises:
        ChangefeedError: CF1101 no such table, CF1302 it cannot be watched.
    """
    watch = Watch(name=name, schema=database)
    table = read_tables(session, [(database, name)]).get((database, name))
    if table is None:
        raise unknown_table(session, watch, database)
    if (problem := refusal(table, watch)) is not None:
        raise problem
    return table.schema(source)


# ------------------------------------------------------------------------- lists


def _names(session: MySQLSession, database: str | None = None) -> list[tuple[str, str]]:
    where = f"TABLE_SCHEMA NOT IN ({listed(SYSTEM)}) AND TABLE_TYPE = 'BASE TABLE'"
    if database is not None:
        where += f" AND TABLE_SCHEMA = {literal(database)}"
    rows = session.rows(
        f"SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE {where}",
        "list tables",
    )
    return sorted((schema, name) for schema, name in rows)


def matching(
    session: MySQLSession, source: str, database: str | None, patterns: Iterable[str] = ()
) -> list[TableName]:
    """Tables of a database (None: of all) whose ``name`` or ``database.name`` fits a glob.

    Raises:
        ChangefeedError: CF1101 there is no such database.
    """
    if database is not None:
        known = [str(row[0]) for row in session.rows("SHOW DATABASES")]
        if database not in known:
            near = difflib.get_close_matches(database, known, n=1)
            raise ChangefeedError(
                Code.NAME_UNKNOWN,
                f'database "{database}" does not exist, or the user may not see it',
                hint=f'did you mean "{near[0]}"?' if near else "",
            )
    globs = list(patterns)
    return [
        TableName(source, schema, name)
        for schema, name in _names(session, database)
        if not globs or any(_fits(schema, name, glob) for glob in globs)
    ]


def _fits(schema: str, name: str, glob: str) -> bool:
    return fnmatchcase(f"{schema}.{name}" if "." in glob else name, glob)


def table_list(session: MySQLSession, source: str, database: str) -> list[TableInfo]:
    """The rows of SHOW TABLES: the tables of ``database``, or of all where it is empty."""
    names = _names(session, database or None)
    tables = read_tables(session, names)
    return [
        TableInfo(
            name=TableName(source, *table),
            key=tables[table].key,
            identity="full" if tables[table].logs_whole_rows else tables[table].row_image.lower(),
            rows_estimate=tables[table].rows,
            bytes=tables[table].bytes,
            kind="partitioned table" if tables[table].partitioned else "table",
            note=_note(tables[table]),
        )
        for table in names
        if table in tables
    ]


def _note(table: ServerTable) -> str:
    if table.engine in TRANSACTIONAL:
        return "SET GLOBAL binlog_row_image = 'FULL';" if table.lacks_computed else ""
    return f"ALTER TABLE `{table.database}`.`{table.name}` ENGINE = InnoDB;"

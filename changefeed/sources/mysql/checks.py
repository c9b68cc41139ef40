"""What hinders a changefeed, all at once, with the statement that changes it. Changes nothing.

Three circles: the server (its binlog), the user (rights), the tables. A check that cannot be made
because another failed is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableName
from changefeed.sources.base import Watch
from changefeed.sources.mysql import describe, providers
from changefeed.sources.mysql.address import Address
from changefeed.sources.mysql.coordinates import end_query, end_right, file_end
from changefeed.sources.mysql.describe import ServerTable
from changefeed.sources.mysql.session import MySQLSession, connect

#: Oldest servers whose binlog names the columns of its rows.
OLDEST = {"mysql": (8, 0, 1), "mariadb": (10, 5, 0)}

#: Setting -> what it must be, and why.
_SETTINGS = {
    "binlog_format": ("ROW", "the binlog must hold rows"),
    "binlog_row_metadata": ("FULL", "the binlog must name the columns of its rows"),
}
#: MySQL: lets the binlog have parts of JSON values.
_VALUES = "binlog_row_value_options"


def check(address: Address, database: str, watches: Sequence[Watch]) -> list[ChangefeedError]:
    """Every problem of the server, the user and the tables; empty when a feed can be made.

    A server that cannot be reached is one problem.
    """
    try:
        session = connect(address)
    except ChangefeedError as error:
        return [error]
    try:
        problems = [*check_server(session), *check_user(session)]
        for found in table_problems(session, database, watches):
            problems += found
    finally:
        session.close()
    return problems


# ------------------------------------------------------------------------- the server


def check_server(session: MySQLSession) -> Iterator[ChangefeedError]:
    """Version and the settings of the binlog."""
    if session.version < OLDEST[session.flavor]:
        oldest = ".".join(map(str, OLDEST[session.flavor]))
        name = "MariaDB" if session.is_mariadb else "MySQL"
        yield _not_set_up(
            f"{name} {'.'.join(map(str, session.version))} is too old: {oldest} is the oldest "
            "version whose binlog names columns",
            "upgrade the server.",
        )
        return
    known = session.variables(
        "log_bin", "server_id", "binlog_order_commits", "gtid_mode", _VALUES, *_SETTINGS
    )
    if known.get("log_bin") not in ("ON", "1"):
        yield _not_set_up(
            "the server writes no binlog",
            providers.of(session).binlog,
        )
        return
    for name, (wanted, why) in _SETTINGS.items():
        if known.get(name, "").upper() != wanted:
            yield _not_set_up(
                f"{name} is {known.get(name)!r}, it must be '{wanted}': {why}",
                f"{set_variable(session, name, wanted)} -- open sessions keep the old value until "
                "they reconnect",
            )
    if known.get(_VALUES):
        yield _not_set_up(
            f"{_VALUES} is {known[_VALUES]!r}, it must be '': JSON values must be whole",
            set_variable(session, _VALUES, ""),
        )
    if known.get("server_id") == "0":
        yield _not_set_up(
            "server_id is 0: the server then allows no reader of its binlog",
            set_variable(session, "server_id", "1"),
        )
    if known.get("gtid_mode") == "ON" and known.get("binlog_order_commits") == "OFF":
        yield _not_set_up(
            "binlog_order_commits is 'OFF': an initial scan could not know which transactions "
            "its snapshot contains",
            set_variable(session, "binlog_order_commits", "ON"),
        )


def set_variable(session: MySQLSession, name: str, value: str) -> str:
    """What gives a variable of the server a value, for good: a statement, or the words for who
    runs a managed server."""
    return providers.of(session).setting(name, value)


def _not_set_up(message: str, hint: str) -> ChangefeedError:
    return ChangefeedError(Code.SOURCE_NOT_SET_UP, message, hint=hint)


# ------------------------------------------------------------------------- the user


def check_user(session: MySQLSession) -> Iterator[ChangefeedError]:
    """The rights to read the binlog and to know where it ends."""
    missing = []
    if not _may_replicate(session):
        missing.append("REPLICATION SLAVE")
    try:
        file_end(session)
    except ChangefeedError as error:
        if error.code is Code.SOURCE_PERMISSION_MISSING:
            missing.append(end_right(session.flavor, session.version))
    if missing:
        yield ChangefeedError(
            Code.SOURCE_PERMISSION_MISSING,
            f"user {session.account()} may not read the binlog: {' and '.join(missing)} "
            f"{'are' if len(missing) > 1 else 'is'} missing",
            hint=f"GRANT {', '.join(missing)} ON *.* TO {session.account()};",
        )


def _may_replicate(session: MySQLSession) -> bool:
    words = (" REPLICATION SLAVE", " ALL PRIVILEGES ON *.*", " REPLICATION REPLICA")
    grants = [str(row[0]).upper().replace(",", ", ") for row in session.rows("SHOW GRANTS")]
    globally = [grant for grant in grants if " ON *.* " in f"{grant} "]
    return any(word in grant for grant in globally for word in words)


# ------------------------------------------------------------------------- tables


def table_problems(
    session: MySQLSession, database: str, watches: Sequence[Watch]
) -> list[list[ChangefeedError]]:
    found: list[list[ChangefeedError]] = []
    names: list[tuple[str, str] | None] = []
    for watch in watches:
        try:
            names.append(describe.resolve(watch, database))
            found.append([])
        except ChangefeedError as error:
            names.append(None)
            found.append([error])
    tables = describe.read_tables(session, [name for name in names if name])
    filtered = _filters(session)
    for watch, name, problems in zip(watches, names, found, strict=True):
        if name is None:
            continue
        table = tables.get(name)
        if table is None:
            problems.append(describe.unknown_table(session, watch, name[0]))
        else:
            problems += _problems(session, table, watch, filtered)
    return found


def _problems(
    session: MySQLSession,
    table: ServerTable,
    watch: Watch,
    filtered: tuple[frozenset[str], frozenset[str]],
) -> Iterator[ChangefeedError]:
    if (problem := _kind_problem(table, watch)) is not None:
        yield problem
        if problem.code is Code.TARGET_NOT_WATCHABLE:
            return
    yield from image_problems(session, table, watch)
    do, ignore = filtered
    if (do and table.database not in do) or table.database in ignore:
        yield ChangefeedError(
            Code.SOURCE_NOT_SET_UP,
            f'changes of database "{table.database}" are not in the binlog',
            hint="take it out of binlog_ignore_db, or add it to binlog_do_db, in the server's "
            "configuration; then restart the server.",
            span=watch.span,
        )
    if not describe.may_read(session, table.database, table.name):
        yield ChangefeedError(
            Code.SOURCE_PERMISSION_MISSING,
            f"user {session.account()} may not read table {table.full_name}",
            hint=describe.grant_select(session, table.database, table.name),
            span=watch.span,
        )


def _kind_problem(table: ServerTable, watch: Watch) -> ChangefeedError | None:
    if (refusal := describe.refusal(table, watch)) is not None:
        return refusal
    if (reason := engine_problem(table)) is not None:
        return ChangefeedError(Code.SOURCE_NOT_SET_UP, reason[0], hint=reason[1], span=watch.span)
    return None


def kind_problem(session: MySQLSession, name: TableName) -> ChangefeedError | None:
    """Why a table cannot be watched, whatever the user's rights: its kind, or its engine."""
    named = (name.schema, name.name)
    table = describe.read_tables(session, [named]).get(named)
    return None if table is None else _kind_problem(table, Watch(name=name.name))


def image_problems(
    session: MySQLSession, table: ServerTable, watch: Watch
) -> Iterator[ChangefeedError]:
    """What the feed needs of rows and the binlog does not have (``binlog_row_image``)."""
    full = f"{set_variable(session, 'binlog_row_image', 'FULL')} -- open sessions keep the old"
    full += " value until they reconnect"
    if watch.diff and not table.logs_whole_rows:
        yield ChangefeedError(
            Code.SOURCE_NOT_SET_UP,
            "the old values of all columns are needed (diff, changed), and binlog_row_image is "
            f"{table.row_image!r}: the binlog has only a part of old rows of {table.full_name}",
            hint=f"{full}; or WITH row_images = 'store'",
            span=watch.span,
        )
    elif watch.whole and not table.logs_whole_rows:
        yield ChangefeedError(
            Code.SOURCE_NOT_SET_UP,
            f"each message replaces a row at the target, and binlog_row_image is "
            f"{table.row_image!r}: the binlog has only a part of new rows of {table.full_name}",
            hint=f"{full}; or WITH row_images = 'store'",
            span=watch.span,
        )
    if table.lacks_computed:
        yield ChangefeedError(
            Code.SOURCE_NOT_SET_UP,
            f"binlog_row_image is {table.row_image!r}, with which MariaDB does not write the "
            f"VIRTUAL column {table.lacks_computed[0]} of table {table.full_name} to its binlog",
            hint=full,
            span=watch.span,
        )


def engine_problem(table: ServerTable) -> tuple[str, str] | None:
    """Why the storage engine has no consistent image of the table, and what to do."""
    if table.engine in describe.TRANSACTIONAL:
        return None
    return (
        f"table {table.full_name} has storage engine {table.engine or 'none'}, which has no "
        "transactions: an initial scan would not be consistent",
        f"ALTER TABLE `{table.database}`.`{table.name}` ENGINE = InnoDB;",
    )


def _filters(session: MySQLSession) -> tuple[frozenset[str], frozenset[str]]:
    """The databases that alone are in the binlog (empty: all), and those that are not."""
    try:
        rows = session.mappings(end_query(session.version), "ask for the end of the binlog")
    except ChangefeedError as error:
        if error.code is Code.SOURCE_PERMISSION_MISSING:
            return frozenset(), frozenset()
        raise
    status = rows[0] if rows else {}
    do, ignore = (
        frozenset(filter(None, str(status.get(name) or "").split(",")))
        for name in ("Binlog_Do_DB", "Binlog_Ignore_DB")
    )
    return do, ignore

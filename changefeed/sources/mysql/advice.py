"""What does not hinder a feed of MySQL or MariaDB, but matters: sentences with the statement that
changes it. Changes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.sql import quoted
from changefeed.sources.base import Watch
from changefeed.sources.mysql import coordinates, describe, providers
from changefeed.sources.mysql.checks import set_variable
from changefeed.sources.mysql.describe import ServerTable
from changefeed.sources.mysql.session import MySQLSession

#: A binlog that is kept for less than this is hardly a safety net: seconds.
SHORT_RETENTION = 86_400

_CASCADE = re.compile(
    r"\s*CONSTRAINT [\"`](.+?)[\"`] FOREIGN KEY .* ON (?:DELETE|UPDATE) (?:CASCADE|SET NULL)"
)
#: A line of SHOW GRANTS: the rights, and the database they are for.
_GRANT = re.compile(r"GRANT (?P<rights>.+?) ON (?P<database>\*|[`\"](?:[^`\"]|``)+[`\"])\.\* TO ")
#: A line of SHOW GRANTS that gives roles, whose rights it does not show.
_ROLES = re.compile(r"GRANT [`'\"][^ ]* TO ")
_DATES = ("date", "datetime", "timestamp")


def warnings(session: MySQLSession, database: str, watches: Sequence[Watch]) -> list[str]:
    """All of it, of the server and of the tables that are there."""
    named = [describe.resolve(watch, database) for watch in watches if watch.schema or database]
    tables = describe.read_tables(session, named)
    found = [tables[place] for place in dict.fromkeys(named) if place in tables]
    return [
        *_server(session),
        *_images(session),
        *_locks(session, found),
        *_keys(found),
        *_zero_dates(session, found),
        *_cascades(session, found),
    ]


def _server(session: MySQLSession) -> Iterator[str]:
    known = session.variables(
        "gtid_mode", "binlog_expire_logs_seconds", "expire_logs_days", "log_slave_updates",
        "log_replica_updates", "read_only", "gtid_strict_mode",
    )  # fmt: skip
    if not session.is_mariadb and known.get("gtid_mode") != "ON":
        yield (
            "gtid_mode is not ON: the feed depends on the binlog files of this server, and needs "
            f"a RESCAN when a replica is promoted; {providers.of(session).gtids}"
        )
    if session.is_mariadb and known.get("gtid_strict_mode") != "ON":
        yield (
            "gtid_strict_mode is not ON: should two servers write to one domain, the numbers of "
            "transactions may go back, and the feeds stop (CF2103); "
            + set_variable(session, "gtid_strict_mode", "ON")
        )
    yield from _retention(session, known)
    updates = known.get("log_replica_updates", known.get("log_slave_updates"))
    if updates == "OFF" and known.get("read_only") not in ("OFF", "0", None):
        yield (
            "the server is read-only and does not write the changes it replicates to its own "
            "binlog (log_replica_updates): a feed would see none of them"
        )


def _retention(session: MySQLSession, known: Mapping[str, str]) -> Iterator[str]:
    provider = providers.of(session)
    if provider.hours:
        hours = _retained_hours(session)
        if hours is None or hours * 3600 < SHORT_RETENTION:
            kept = "unless 'binlog retention hours' is set" if not hours else f"after {hours} hours"
            yield (
                f"{provider.name} removes binlogs {kept}: if changefeed is down for longer, the "
                f"tables must be read again; {provider.retention}"
            )
        return
    seconds = _expiry(known)
    if 0 < seconds < SHORT_RETENTION:
        yield (
            f"the server removes binlogs after {seconds:.0f} s: if changefeed is down for longer, "
            f"the tables must be read again; {provider.retention}"
        )


def _expiry(known: Mapping[str, str]) -> float:
    """After how many seconds the server removes a binlog by its own settings; 0: never."""
    seconds = float(known.get("binlog_expire_logs_seconds") or 0)
    return seconds or 86_400 * float(known.get("expire_logs_days") or 0)


def kept(session: MySQLSession) -> str:
    """How long the server keeps its binlogs, as a sentence."""
    provider = providers.of(session)
    if provider.hours:
        hours: float | None = _retained_hours(session)
        if hours is None:
            return f"{provider.name} removes a binlog as soon as it can"
    else:
        hours = _expiry(session.variables("binlog_expire_logs_seconds", "expire_logs_days")) / 3600
    if not hours:
        return "the server removes no binlog by itself"
    return f"the server keeps a binlog for {hours:,.4g} hours"


def _retained_hours(session: MySQLSession) -> int | None:
    """The hours that Amazon's procedures have; None: not set, or the user may not ask."""
    try:
        rows = session.rows("CALL mysql.rds_show_configuration", "ask how long binlogs are kept")
    except ChangefeedError as error:
        if error.code in (Code.SOURCE_UNREACHABLE, Code.SOURCE_BUSY):
            raise
        return None
    known = {str(row[0]): row[1] for row in rows}
    hours = known.get("binlog retention hours")
    return int(hours) if hours else None


def _images(session: MySQLSession) -> Iterator[str]:
    image = describe.row_image(session)
    if image not in describe.KEY_IMAGES:
        return
    left = "columns that it did not set" if image == "MINIMAL" else "large columns"
    yield (
        f"binlog_row_image is '{image}': an update comes without the {left}; tables keep the "
        "values that they have, messages show that a value was not sent (unsent_values), and "
        "row_images = 'store' has every value"
    )
    if session.is_mariadb and image == "MINIMAL":
        yield (
            "MariaDB writes a REPLACE that finds its row as an update without the columns that it "
            "set to their defaults: targets keep the old values, as its own replicas do"
        )


# ------------------------------------------------------------------------- rights


def _locks(session: MySQLSession, tables: Sequence[ServerTable]) -> Iterator[str]:
    """The right that an initial scan needs where it finds no quiet moment."""
    grants = [str(row[0]) for row in session.rows("SHOW GRANTS")]
    if any(_ROLES.match(grant) for grant in grants):
        return  # What the roles may do is not shown: the scan finds out.
    if session.is_mariadb:
        without = "that finds no moment without commits within a second reads with one session only"
    elif coordinates.mode_of(session) == "gtid":
        without = "that finds no moment without commits within a second fails (CF2004)"
    else:
        without = "fails (CF2004), because without GTIDs it needs a lock for a moment"
    for database in dict.fromkeys(table.database for table in tables):
        if not any(may_lock(grant, database) for grant in grants):
            yield (
                f"user {session.account()} may not lock tables of database {database}: an initial "
                f"scan {without}; GRANT LOCK TABLES ON `{database}`.* TO {session.account()};"
            )


def may_lock(grant: str, database: str) -> bool:
    """Whether a line of SHOW GRANTS gives LOCK TABLES in a database.

    >>> may_lock("GRANT SELECT, LOCK TABLES ON `shop`.* TO `feeds`@`%`", "shop")
    True
    >>> may_lock("GRANT ALL PRIVILEGES ON `shop\\\\_%`.* TO `feeds`@`%`", "shop_eu")
    True
    >>> may_lock("GRANT LOCK TABLES ON `other`.* TO `feeds`@`%`", "shop")
    False
    """
    found = _GRANT.match(grant)
    if found is None:
        return False
    rights = [right.strip().upper() for right in found["rights"].split(",")]
    if not {"LOCK TABLES", "ALL PRIVILEGES"}.intersection(rights):
        return False
    if found["database"] == "*":
        return True
    letters = re.findall(r"\\.|.", found["database"][1:-1].replace("``", "`"))
    wild = {"%": ".*", "_": "."}
    pattern = "".join(wild.get(letter) or re.escape(letter[-1]) for letter in letters)
    return re.fullmatch(pattern, database) is not None


# ------------------------------------------------------------------------- tables


def _keys(tables: Sequence[ServerTable]) -> Iterator[str]:
    for table in tables:
        if not table.key and describe.refusal(table, Watch(table.name)) is None:
            yield (
                f"table {table.full_name} has no primary key and no unique index over columns that "
                "are NOT NULL: all its columns are its key, and equal rows are one document in "
                "Elasticsearch and have one key in topics; ALTER TABLE "
                f"`{table.database}`.`{table.name}` ADD PRIMARY KEY (..);"
            )


def _zero_dates(session: MySQLSession, tables: Sequence[ServerTable]) -> Iterator[str]:
    """Dates that are no dates, where the server lets them in."""
    mode = set(str(session.value("SELECT @@global.sql_mode") or "").split(","))
    if {"NO_ZERO_DATE", "NO_ZERO_IN_DATE"} <= mode and mode & _STRICT:
        return
    for table in tables:
        dates = [c.name for c in table.columns if c.column_type.lower().split("(")[0] in _DATES]
        if dates:
            stops = ", and stop the table if its key has one" if {*dates} & {*table.key} else ""
            yield (
                f"the server accepts dates like 0000-00-00 in table {table.full_name} "
                f"({', '.join(dates[:10])}): they are sent as NULL{stops}. sql_mode with "
                "STRICT_TRANS_TABLES, NO_ZERO_DATE and NO_ZERO_IN_DATE refuses them"
            )


_STRICT = {"STRICT_TRANS_TABLES", "STRICT_ALL_TABLES", "TRADITIONAL"}


def _cascades(session: MySQLSession, tables: Sequence[ServerTable]) -> Iterator[str]:
    """InnoDB does what a foreign key says by itself: the binlog does not have it."""
    for table in tables:
        name = f"{quoted(table.database)}.{quoted(table.name)}"
        try:
            # information_schema hides foreign keys of MariaDB from those who may only read.
            rows = session.rows(f"SHOW CREATE TABLE {name}")
        except ChangefeedError as error:
            if error.code in (Code.SOURCE_UNREACHABLE, Code.SOURCE_BUSY):
                raise
            continue  # It may not be read: a problem that the checks name.
        for line in str(rows[0][1]).splitlines():
            found = _CASCADE.match(line)
            if found is not None:
                yield (
                    f"foreign key {found[1]} of table {table.full_name} changes rows of this "
                    "table (CASCADE or SET NULL), and the server does not write those changes to "
                    "its binlog"
                )

"""The replication slot that we hold in a database: made, looked at and removed."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import errors, sql

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Position
from changefeed.core.figures import size_text
from changefeed.sources.postgres.connect import (
    BEHAVIOUR,
    PsycopgConnection,
    connect_replication,
    in_recovery,
)
from changefeed.sources.postgres.lsn import parse_lsn, position_of
from changefeed.sources.postgres.server import POLL_SECONDS, slot_waits

#: How long a dead reader may hold the slot before its server process is ended.
RELEASE_SECONDS = 10.0

#: First server with failover slots.
FAILOVER = 170_000


@dataclass(frozen=True, slots=True)
class SlotState:
    """What the server says of a replication slot.

    Attributes:
        exists: False if there is no such slot; the other fields then have their defaults.
        confirmed: everything up to here was acknowledged by us.
        lost: the server removed log that the slot still needs.
        active_pid: the server process that serves the slot now.
        reason: why it was invalidated, in the server's words.
        failover: standbys that synchronise slots have it after a promotion (version 17 and newer).
    """

    exists: bool
    plugin: str = ""
    database: str = ""
    confirmed: Position = ""
    lost: bool = False
    active_pid: int | None = None
    reason: str = ""
    failover: bool = False

    @property
    def unfinished(self) -> bool:
        """A session is still making it: the server shows a logical slot before it has a plugin
        and a position, and removes it again if the session gives up."""
        return bool(self.database) and not self.confirmed and self.active_pid is not None


def slot_state(connection: PsycopgConnection, slot: str) -> SlotState:
    """What ``pg_replication_slots`` says, with the columns this server version has."""
    version = connection.info.server_version
    status = "coalesce(s.wal_status, '')" if version >= 130_000 else "''"
    if version >= 170_000:
        reason = "coalesce(s.invalidation_reason, '')"
    elif version >= 160_000:
        reason = "CASE WHEN s.conflicting THEN 'conflict with recovery' ELSE '' END"
    else:
        reason = "''"
    row = connection.execute(
        sql.SQL(
            """
            SELECT s.plugin, s.database, s.confirmed_flush_lsn::text, s.restart_lsn IS NULL,
                   s.active_pid, {status}, {reason}, {failover}
            FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = %s
            """
        ).format(
            status=sql.SQL(status),
            reason=sql.SQL(reason),
            failover=sql.SQL("s.failover" if version >= FAILOVER else "false"),
        ),
        [slot],
    ).fetchone()
    if row is None:
        return SlotState(exists=False)
    plugin, database, confirmed, no_restart, pid, status, why, failover = row
    return SlotState(
        exists=True,
        plugin=plugin or "",
        database=database or "",
        confirmed=_position(confirmed),
        # An invalidated slot keeps a status like "reserved" on servers before 14.
        lost=bool(why) or no_restart or status == "lost",
        active_pid=pid,
        reason=why,
        failover=failover,
    )


def headroom(connection: PsycopgConnection, slot: str) -> list[str]:
    """How much WAL the server keeps for a slot that is there, and how much more it may keep."""
    safe = "safe_wal_size" if connection.info.server_version >= 130_000 else "NULL::int8"
    row = connection.execute(
        sql.SQL(
            """
            SELECT pg_catalog.pg_wal_lsn_diff(CASE WHEN pg_catalog.pg_is_in_recovery()
                       THEN pg_catalog.pg_last_wal_replay_lsn()
                       ELSE pg_catalog.pg_current_wal_lsn() END, restart_lsn)::int8, {safe}
            FROM pg_catalog.pg_replication_slots WHERE slot_name = %s
            """
        ).format(safe=sql.SQL(safe)),
        [slot],
    ).fetchone()
    if row is None:
        return []
    held, left = row
    limit = (
        "no limit is set (max_slot_wal_keep_size)"
        if left is None
        else f"the server drops the slot's log after {size_text(max(0, left))} more "
        "(max_slot_wal_keep_size)"
    )
    return [f"replication slot {slot} keeps {size_text(max(0, held))} of WAL; {limit}"]


def _position(lsn: str | None) -> Position:
    return position_of(parse_lsn(lsn)) if lsn else ""


def create_slot(
    connection: PsycopgConnection,
    slot: str,
    seconds: float = 2.0,
    primary: PsycopgConnection | None = None,
    *,
    failover: bool = True,
    clock: Clock = SYSTEM_CLOCK,
) -> bool:
    """Make the slot unless it is there; True when it was made.

    Waits until the transactions that are writing now have ended (so does the server), but not
    for ever; so does one that another session is making. They are those of ``primary``, where the
    slot is made on a standby. ``failover``: standbys that synchronise slots have it, where the
    server can.

    Raises:
        psycopg.Error: no free slot, right missing.
        ChangefeedError: CF2003 when another kind of slot has the name; CF2005 when a
            transaction outlasts ``seconds``.
    """
    give_up = clock.monotonic() + seconds
    while True:
        state = slot_state(connection, slot)
        if state.unfinished:
            if clock.monotonic() > give_up:
                raise slot_waits(primary or connection)
            clock.sleep(POLL_SECONDS)
        elif state.exists:
            _check_slot(connection, slot, state)
            return False
        elif _made_slot(connection, slot, seconds, primary, failover=failover):
            return True


def _made_slot(
    connection: PsycopgConnection,
    slot: str,
    seconds: float,
    primary: PsycopgConnection | None,
    *,
    failover: bool,
) -> bool:
    """Make the slot; False when another session was sooner."""
    # A failover slot is copied to standbys that ask for it, so that the feeds go on
    # after a promotion; without such a standby it behaves like any other.
    kept = ", false, false, true" if failover and _has_failover(connection) else ""
    try:
        # Waiting for a transaction is waiting for a lock of its own.
        connection.execute(f"SET statement_timeout = '{seconds:g}s'; SET lock_timeout = 0")
        connection.execute(
            sql.SQL(
                "SELECT pg_catalog.pg_create_logical_replication_slot(%s, 'pgoutput'{})"
            ).format(sql.SQL(kept)),
            [slot],
        )
    except errors.DuplicateObject:
        return False
    except errors.QueryCanceled as error:
        raise slot_waits(primary or connection) from error
    finally:
        if not connection.closed:
            _usual_limits(connection)
    return True


def _has_failover(connection: PsycopgConnection) -> bool:
    """A slot made on a standby cannot be copied to another one."""
    return connection.info.server_version >= FAILOVER and not in_recovery(connection)


def keep_through_failover(
    connection: PsycopgConnection, uri: str, slot: str, *, failover: bool = True
) -> None:
    """Make a failover slot of one that is none (a copy of another slot, or one that an upgrade of
    the server brought along), or the reverse. A slot that is being read stays as it is.

    Raises:
        ChangefeedError: no replication connection can be had.
    """
    state = slot_state(connection, slot)
    fit = state.exists and not state.lost and state.active_pid is None
    if not fit or state.failover is failover or not _has_failover(connection):
        return
    command = sql.SQL("ALTER_REPLICATION_SLOT {} (FAILOVER {})").format(
        sql.Identifier(slot), sql.SQL("true" if failover else "false")
    )
    with connect_replication(uri) as replication:
        try:
            replication.execute(command)
        except errors.ObjectInUse:
            return  # A reader came in between; it is tried again with the next change of tables.


def _usual_limits(connection: PsycopgConnection) -> None:
    for name in ("statement_timeout", "lock_timeout"):
        connection.execute(f"SET {name} = '{BEHAVIOUR[name]}'")


def _check_slot(connection: PsycopgConnection, slot: str, state: SlotState) -> None:
    database = connection.info.dbname
    if state.plugin == "pgoutput" and state.database == database:
        return
    kind = f"plugin {state.plugin}" if state.plugin else "physical"
    raise ChangefeedError(
        Code.SOURCE_NOT_SET_UP,
        f"replication slot {slot!r} exists but is not ours",
        detail=f"{kind}, database {state.database or '-'}; wanted pgoutput on {database}",
        hint=f"SELECT pg_drop_replication_slot('{slot}'); -- if nobody else uses it",
    )


def drop_slot(
    connection: PsycopgConnection,
    slot: str,
    seconds: float = RELEASE_SECONDS,
    clock: Clock = SYSTEM_CLOCK,
) -> bool:
    """Remove the slot; False when there was none.

    A server process that still serves it (its reader died without a word) is ended after
    ``seconds``: that one process, and only while it holds this very slot.

    Raises:
        ChangefeedError: CF2005 when the slot stays in use.
    """
    ask_at = clock.monotonic() + seconds
    give_up = ask_at + 30
    while True:
        state = slot_state(connection, slot)
        if not state.exists:
            return False
        try:
            connection.execute("SELECT pg_catalog.pg_drop_replication_slot(%s)", [slot])
            return True
        except errors.UndefinedObject:
            return False
        except errors.ObjectInUse as error:
            now = clock.monotonic()
            if now > give_up:
                raise ChangefeedError(
                    Code.SOURCE_BUSY,
                    f"replication slot {slot!r} stays in use",
                    detail=f"by the server process {state.active_pid}",
                    hint=f"SELECT pg_terminate_backend({state.active_pid}); "
                    f"SELECT pg_drop_replication_slot('{slot}');",
                ) from error
            if now > ask_at:
                _end_reader(connection, slot)
        clock.sleep(POLL_SECONDS)


def _end_reader(connection: PsycopgConnection, slot: str) -> None:
    connection.execute(
        "SELECT pg_catalog.pg_terminate_backend(active_pid)"
        " FROM pg_catalog.pg_replication_slots WHERE slot_name = %s AND active_pid IS NOT NULL",
        [slot],
    )

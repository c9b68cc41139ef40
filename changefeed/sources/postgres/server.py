"""What a server says of itself, and which of its sessions hold us up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Position
from changefeed.sources.postgres.connect import PsycopgConnection
from changefeed.sources.postgres.lsn import parse_lsn, position_of

#: How often we look again at what we wait for.
POLL_SECONDS = 0.05


def system_id(connection: PsycopgConnection) -> str:
    """``<system identifier>/<database oid>``: differs after a restore into a new cluster."""
    row = connection.execute(
        "SELECT (SELECT system_identifier::text FROM pg_catalog.pg_control_system()),"
        " (SELECT oid::text FROM pg_catalog.pg_database"
        "  WHERE datname = pg_catalog.current_database())"
    ).fetchone()
    assert row is not None
    return f"{row[0]}/{row[1]}"


def current_position(connection: PsycopgConnection) -> Position:
    """A place above every commit that was visible before the call, which the log will reach.

    The insert position would not do: it may point into the header of a page that nothing is
    ever written to while the server is idle. Nor would the flush position alone: commits with
    ``synchronous_commit = off`` are visible before they are flushed. So we commit a message
    of our own (no table is touched), which flushes all before it and gives the stream
    something to carry.
    """
    with connection.transaction():
        connection.execute("SET LOCAL synchronous_commit = local")
        connection.execute(
            "SELECT pg_catalog.pg_logical_emit_message(true, 'changefeed', 'position')"
        )
    row = connection.execute("SELECT pg_catalog.pg_current_wal_flush_lsn()::text").fetchone()
    assert row is not None
    return position_of(parse_lsn(row[0]))


def server_time(connection: PsycopgConnection) -> int:
    """The server's time, ns."""
    row = connection.execute(
        "SELECT (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::bigint"
    ).fetchone()
    assert row is not None
    return int(row[0]) * 1000


def settings(connection: PsycopgConnection, names: Sequence[str]) -> Mapping[str, Any]:
    """Server settings by name in their base unit as text; unknown ones are absent."""
    rows = connection.execute(
        "SELECT name, setting FROM pg_catalog.pg_settings WHERE name = ANY(%s)", [list(names)]
    )
    return dict(rows.fetchall())


def name_sessions(pids: Sequence[int]) -> str:
    return ", ".join(f"pid {pid}" for pid in pids)


def look_at_sessions(pids: Sequence[int]) -> str:
    return (
        "SELECT pid, xact_start, usename, state FROM pg_stat_activity WHERE pid = ANY("
        f"'{{{','.join(map(str, pids))}}}'); -- and COMMIT, ROLLBACK or pg_terminate_backend(pid)"
    )


def slot_waits(connection: PsycopgConnection) -> ChangefeedError:
    """Who has written something and not ended, in any database of the server."""
    rows = connection.execute(
        "SELECT pid FROM pg_catalog.pg_stat_activity WHERE backend_xid IS NOT NULL "
        "AND pid <> pg_catalog.pg_backend_pid() ORDER BY xact_start LIMIT 10"
    )
    pids = [pid for (pid,) in rows]
    row = connection.execute("SELECT count(*) FROM pg_catalog.pg_prepared_xacts").fetchone()
    prepared = bool(row and row[0])
    who = [name_sessions(pids)] * bool(pids)
    who += ["a prepared transaction"] * prepared
    return ChangefeedError(
        Code.SOURCE_BUSY,
        "the replication slot waits for transactions that have not ended: "
        + (", ".join(who) or "they ended just now"),
        hint=look_at_sessions(pids) + ("; SELECT * FROM pg_prepared_xacts;" if prepared else ""),
    )

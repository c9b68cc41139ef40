"""Reading from a standby: what it waits for from its primary, and what hinders or endangers it.

A publication is made on the primary, and a standby knows it once it has replayed that. A slot on a
standby begins at a record in which the primary lists its open transactions: the primary writes one
every 15 seconds while it is busy, or when it is asked (:class:`Prompter`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import psycopg
from psycopg import errors

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.errors import ChangefeedError, Code
from changefeed.sources.postgres import providers, server
from changefeed.sources.postgres.connect import PsycopgConnection, connect, in_recovery
from changefeed.sources.postgres.lsn import format_lsn, lsn_of, parse_lsn, position_of

#: First version with logical slots on a standby.
OLDEST = 160_000
#: How long the standby may take to replay what the primary wrote, seconds.
REPLAY_SECONDS = 5.0
#: How long a slot on a standby is waited for where the primary cannot be asked for the record that
#: it begins at, seconds: it writes one every 15.
UNPROMPTED_SECONDS = 25.0

_PROMPT_SECONDS = 0.2
_POLL_SECONDS = 0.02
_PROMPT = "SELECT pg_catalog.pg_log_standby_snapshot()"
#: Where the primary may not be asked, it writes the record by itself if its log has grown.
_GROW = "SELECT pg_catalog.pg_logical_emit_message(false, 'changefeed', 'grow')"


class Prompter:
    """While it is open, the primary writes down its open transactions every moment."""

    def __init__(self, primary: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._primary = primary
        self._clock = clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pg-prompter", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        statement = _PROMPT
        try:
            with connect(self._primary) as connection:
                while not self._stop.is_set():
                    try:
                        connection.execute(statement)
                    except errors.InsufficientPrivilege:
                        statement = _GROW
                        continue
                    self._clock.wait(self._stop, _PROMPT_SECONDS)
        except (ChangefeedError, psycopg.Error):
            # Who waits for the standby gives up in time, and says what it waited for.
            return


def prompts(primary: PsycopgConnection) -> bool:
    """Whether our role may ask the primary for the record that a slot on a standby begins at."""
    [allowed] = primary.execute(
        "SELECT pg_catalog.has_function_privilege('pg_catalog.pg_log_standby_snapshot()',"
        " 'EXECUTE')"
    ).fetchone() or (False,)
    return bool(allowed)


def await_replay(
    primary: PsycopgConnection,
    standby: PsycopgConnection,
    seconds: float = REPLAY_SECONDS,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Wait until the standby has everything that the primary has written by now.

    Raises:
        ChangefeedError: CF2005 it does not get there.
    """
    if not in_recovery(standby):
        return  # It was promoted: it replays nothing now.
    written = server.current_position(primary)
    deadline = clock.monotonic() + seconds
    while True:
        [replayed] = standby.execute(
            "SELECT pg_catalog.pg_last_wal_replay_lsn()::text"
        ).fetchone() or (None,)
        if replayed and position_of(parse_lsn(replayed)) >= written:
            return
        if clock.monotonic() > deadline:
            raise ChangefeedError(
                Code.SOURCE_BUSY,
                f"the standby lags: it has not replayed what the primary wrote {seconds:.0f} s ago",
                detail=f"it is to be at {format_lsn(lsn_of(written))}, and is at {replayed}",
                hint="SELECT * FROM pg_stat_wal_receiver; -- on the standby; "
                "SELECT * FROM pg_stat_replication; -- on the primary",
            )
        clock.sleep(_POLL_SECONDS)


# ------------------------------------------------------------------------- checks


def demand(primary: PsycopgConnection, standby: PsycopgConnection, named: str) -> None:
    """Refuse a server that must not be read in the place of the primary.

    Raises:
        ChangefeedError: CF2003, the first problem that :func:`check` finds.
    """
    for problem in check(primary, standby, named):
        raise problem


def check(
    primary: PsycopgConnection, standby: PsycopgConnection, named: str
) -> Iterator[ChangefeedError]:
    """What hinders reading from this server, in addition to what every server needs.

    ``named`` leads to the hosts of the connection without this one.
    """
    version = standby.info.server_version
    if version < OLDEST:
        yield ChangefeedError(
            Code.SOURCE_NOT_SET_UP,
            f"read_from leads to PostgreSQL {version // 10_000}, whose standbys cannot be read: "
            "16 is the oldest version that supports it",
            hint="take read_from out of the connection, or upgrade.",
        )
        return
    ours = server.system_id(standby)
    if server.system_id(primary) != ours or (not in_recovery(standby) and _strange(named, ours)):
        yield ChangefeedError(
            Code.SOURCE_NOT_SET_UP,
            "read_from leads to a server that is no standby of the primary: its system identifier "
            "or its database is another",
            hint="ALTER EXTERNAL CONNECTION .. AS '..?read_from=host:port' with the address of a "
            "physical standby.",
        )
        return
    known = server.settings(standby, ["hot_standby_feedback"])
    if in_recovery(standby) and known.get("hot_standby_feedback") != "on":
        yield ChangefeedError(
            Code.SOURCE_NOT_SET_UP,
            "hot_standby_feedback is off on the standby: a VACUUM on the primary would invalidate "
            "its replication slot, and end the initial scan",
            hint=f"{_setting(standby, 'hot_standby_feedback', 'on')} on the standby",
        )


def _strange(named: str, system_id: str) -> bool:
    """The named hosts are there, and are another server. One that is away was failed over."""
    try:
        with connect(named) as connection:
            return server.system_id(connection) != system_id
    except ChangefeedError:
        return False


def _setting(connection: PsycopgConnection, name: str, value: str) -> str:
    provider = providers.of(connection)
    reload = " SELECT pg_reload_conf();" if provider is providers.ITSELF else ""
    return provider.setting(name, value) + reload


def warnings(primary: PsycopgConnection, standby: PsycopgConnection) -> Iterator[str]:
    """What works but deserves a word."""
    if not in_recovery(standby):
        yield (
            "the server that read_from names is not a standby (or was promoted): changes are read "
            "from the primary itself"
        )
        return
    if not server.settings(standby, ["primary_slot_name"]).get("primary_slot_name"):
        yield (
            "the standby has no primary_slot_name: while it is disconnected, the primary does not "
            "know of its replication slot and may remove rows that it needs, which invalidates it "
            "(CF2102). SELECT pg_create_physical_replication_slot('standby'); on the primary, "
            + _setting(standby, "primary_slot_name", "'standby'")
            + " on the standby."
        )
    if not prompts(primary):
        role = primary.execute("SELECT pg_catalog.quote_ident(current_user)").fetchone()
        yield (
            "each initial scan waits up to 15 seconds for the primary. GRANT EXECUTE ON FUNCTION "
            f"pg_log_standby_snapshot() TO {role[0] if role else 'the role'}; in the primary's "
            "database avoids the wait."
        )

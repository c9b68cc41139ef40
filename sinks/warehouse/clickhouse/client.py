"""A ClickHouse database over HTTP: Arrow tables into staging, statements one after the other."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

# Its reader in C ends the process over a damaged answer (1.12); rows are loaded as Arrow, and
# what is read back are a few of them.
os.environ.setdefault("CLICKHOUSE_CONNECT_USE_C", "false")

import clickhouse_connect
import pyarrow as pa
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError
from clickhouse_connect.driver.httputil import check_env_proxy, get_pool_manager
from urllib3 import PoolManager

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.time_limits import PATIENCE, limit_pools
from sinks.warehouse.clickhouse.sql import ClickHouseDialect
from sinks.warehouse.dialect import SqlStatement, Warehouse
from sinks.warehouse.errors import UNREADABLE, unreadable

# It logs every failed request itself; what matters comes out as our error.
logging.getLogger("clickhouse_connect").addHandler(logging.NullHandler())

#: What the statements rely on, and a profile of the server might change.
SETTINGS: Mapping[str, object] = {
    "async_insert": 0,
    "date_time_overflow_behavior": "throw",
    "final": 0,
    "input_format_null_as_default": 0,
    # Equal blocks come on purpose, and are distinguished by version.
    "insert_deduplicate": 0,
    "insert_null_as_default": 0,
    "join_use_nulls": 0,
    "lightweight_deletes_sync": 2,
    "mutations_sync": 1,
    # Of several replicas every one answers with what was written before.
    "select_sequential_consistency": 1,
}

#: `date_time_overflow_behavior` and what else the statements use.
OLDEST = (24, 3)
_CONNECT_SECONDS = 10
#: Whole ones: the client takes no others.
_ANSWER_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is and how to log in. Shows no password."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    tls: bool = False
    authority: str | None = None


class ClickHouse(Warehouse):
    """One database of a server. Not connected until :meth:`connect`."""

    def __init__(
        self,
        address: Address,
        database: str,
        *,
        answer_seconds: int = _ANSWER_SECONDS,
        patience: float = PATIENCE,
    ) -> None:
        """The server may be silent for ``answer_seconds``, and a request may take ``patience``
        times as long."""
        self._answer_seconds, self._patience = answer_seconds, patience
        self.dialect = ClickHouseDialect()
        self.schema = database
        self.place = f"ClickHouse {address.host}/{database}"
        self._address = address
        self._client: Client | None = None
        self._pools: PoolManager | None = None

    # ------------------------------------------------------------------ connection

    def connect(self, *, make: bool = True) -> None:
        if self._client is not None:
            return
        at = self._address
        with self._explained("connecting"):
            client = clickhouse_connect.get_client(
                pool_mgr=self._connections(),
                host=at.host,
                port=at.port,
                username=at.user,
                password=at.password,
                secure=at.tls,
                settings=dict(SETTINGS),
                connect_timeout=_CONNECT_SECONDS,
                send_receive_timeout=self._answer_seconds,
                client_name="changefeed",
                autogenerate_session_id=False,
                # A statement may be tried again after a lost answer: that is the feed's to decide.
                query_retries=0,
            )
        self._client = client
        version = _version(str(client.server_version))
        if version < OLDEST:
            self.close()
            shown, wanted = (".".join(map(str, v)) for v in (version, OLDEST))
            raise ChangefeedError(
                Code.SINK_REFUSED_DATA,
                f"{self.place} is of version {shown}; {wanted} is the oldest supported version",
            )
        if make and not self._has_database():
            # IF NOT EXISTS would ask for the right to make one where there is one.
            self._command(self.dialect.create_schema(self.schema), "making the database")

    def _connections(self) -> PoolManager:
        at = self._address
        scheme = "https" if at.tls else "http"
        options: dict[str, Any] = {f"{scheme}_proxy": check_env_proxy(scheme, at.host, at.port)}
        if at.tls and at.authority:
            options["ca_cert"] = at.authority
        made: PoolManager = get_pool_manager(**options)
        limit_pools(made, self._answer_seconds, self._patience)
        self._pools = made
        return made

    def _has_database(self) -> bool:
        name = self.dialect.literal(self.schema)
        return bool(self.query(f"SELECT 1 FROM system.databases WHERE name = {name}"))

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()
        pools, self._pools = self._pools, None
        if pools is not None:
            pools.clear()

    @property
    def _connected(self) -> Client:
        if self._client is None:
            raise ChangefeedError(Code.SINK_UNREACHABLE, f"{self.place} is not connected")
        return self._client

    # ------------------------------------------------------------------ statements

    def run(self, statements: Sequence[SqlStatement]) -> None:
        """In order. What a statement did stays when a later one fails: each may be repeated."""
        for statement in statements:
            self._command(statement.sql, "a statement", statement.topic)

    def _command(self, sql: str, what: str, topic: str = "") -> None:
        client = self._connected
        with self._explained(what, topic):
            client.command(sql)

    def query(self, sql: str) -> list[tuple[object, ...]]:
        client = self._connected
        with self._explained("a query"):
            return [tuple(row) for row in client.query(sql).result_rows]

    def columns(self, table: str) -> dict[str, str]:
        text = self.dialect.literal
        rows = self.query(
            "SELECT name, type FROM system.columns "
            f"WHERE database = {text(self.schema)} AND table = {text(table)} ORDER BY position"
        )
        return {str(name): str(kind) for name, kind in rows}

    def engine(self, table: str) -> str:
        """The engine of a table or view, unquoted, with its arguments; empty when there is none."""
        text = self.dialect.literal
        rows = self.query(
            "SELECT if(engine = 'View', engine, engine_full) FROM system.tables "
            f"WHERE database = {text(self.schema)} AND name = {text(self.dialect.fit(table))}"
        )
        return str(rows[0][0]) if rows else ""

    def view_reads(self, view: str, table: str) -> bool:
        """The view's query names the table."""
        text, d = self.dialect.literal, self.dialect
        rows = self.query(
            "SELECT as_select FROM system.tables "
            f"WHERE database = {text(self.schema)} AND name = {text(d.fit(view))}"
        )
        return bool(rows) and d.fit(table) in str(rows[0][0])

    def order(self, table: str) -> set[str]:
        """Columns that a table is sorted by."""
        text = self.dialect.literal
        rows = self.query(
            f"SELECT name FROM system.columns WHERE database = {text(self.schema)} "
            f"AND table = {text(self.dialect.fit(table))} AND is_in_sorting_key = 1"
        )
        return {str(row[0]) for row in rows}

    def load(self, table: str, rows: pa.Table, load_id: str) -> None:
        """One block of Arrow: repeated, it is there twice, and the sink counts rows."""
        client = self._connected
        with self._explained("a load", table):
            client.insert_arrow(self.name(table), rows)

    # ------------------------------------------------------------------ errors

    @contextmanager
    def _explained(self, what: str, topic: str = "") -> Iterator[None]:
        """ClickHouse's errors inside come out as ChangefeedError, without their text: it repeats
        statements and values."""
        try:
            yield
        except UNREADABLE as error:
            raise unreadable(error, self.place, what) from None
        except (ClickHouseError, OSError) as error:
            found = sorted_out(error, self.place, what, topic)
            if found.code is Code.SINK_UNREACHABLE:
                self.close()
            raise found from None


def sorted_out(error: Exception, place: str, what: str, topic: str) -> ChangefeedError:
    """What to do about an error of ClickHouse, by its number."""
    number, name = getattr(error, "code", None), getattr(error, "name", None)
    if not isinstance(number, int):
        kind = type(error).__name__
        return ChangefeedError(
            Code.SINK_UNREACHABLE, f"{place} cannot be reached", detail=f"{what}; {kind}"
        )
    detail = f"{what}; error {number}" + (f" {name}" if name else "")
    code, found = _BY_NUMBER.get(number, ("", ""))
    if code:
        return ChangefeedError(
            code, f"{place} {found}", detail=detail, hint=_HINTS.get(code, ""), target=topic
        )
    if topic:
        return ChangefeedError(
            Code.SINK_CANNOT_TAKE_TABLE,
            f"{place} refused a statement about table {topic}",
            detail=detail,
            hint="system.query_log shows the whole message.",
            target=topic,
            about_row=number in _OF_ROW,
        )
    return ChangefeedError(Code.SINK_REFUSED_DATA, f"{place} refused a statement", detail=detail)


_LOST = (Code.SINK_UNREACHABLE, "lost something that existed")
_BUSY = (Code.SINK_BUSY, "is busy or has no room")
_LOGIN = (Code.SINK_REFUSED_LOGIN, "refused the login or a right is missing")
_HINTS: Mapping[str, str] = {
    Code.SINK_REFUSED_LOGIN: "the user needs CREATE DATABASE, or on the database SELECT, INSERT, "
    "ALTER, CREATE TABLE, CREATE VIEW, DROP TABLE, DROP VIEW and TRUNCATE.",
}

#: Error numbers of a value or of a constraint that a row breaks: CANNOT_PARSE_TEXT, _QUOTED_STRING,
#: _DATE, _DATETIME, _NUMBER, INCORRECT_DATA, VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE, NULL in a column
#: without, CANNOT_PARSE_UUID, DECIMAL_OVERFLOW, CANNOT_PARSE_BOOL, VIOLATED_CONSTRAINT.
_OF_ROW = frozenset({6, 26, 38, 41, 72, 117, 321, 349, 376, 407, 467, 469})

#: Error number of the server -> what to do (its ErrorCodes.cpp).
_BY_NUMBER: Mapping[int, tuple[str, str]] = {
    # UNKNOWN_TABLE, UNKNOWN_DATABASE, network and Keeper errors, read-only replicas
    **dict.fromkeys((60, 81, 32, 209, 210, 225, 242, 279, 999), _LOST),
    # timeouts, quota, too many queries or parts, no memory, no disk, aborted, replicas that lag
    **dict.fromkeys(
        (159, 201, 202, 203, 236, 241, 243, 252, 285, 289, 319, 394, 439, 473, 517, 519), _BUSY
    ),
    # READONLY, unknown user, wrong password, address, ACCESS_DENIED, AUTHENTICATION_FAILED
    **dict.fromkeys((164, 192, 193, 194, 195, 497, 516), _LOGIN),
}


def _version(text: str) -> tuple[int, int]:
    found: list[Any] = [part for part in text.split(".") if part.isdigit()]
    return (int(found[0]), int(found[1])) if len(found) > 1 else (0, 0)

"""A Snowflake schema: Parquet by PUT and COPY INTO into staging, MERGE in transactions.

* Files go to a temporary stage of the session, which ends with it.
* Any definition, a temporary table too, commits the transaction it stands in. So temporary
  tables of a round are made before it begins, and the first thing in it is to lock the rows of
  bookkeeping and to see that nobody moved them meanwhile.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
import snowflake.connector
from cryptography.hazmat.primitives import serialization
from snowflake.connector import errors as snow
from snowflake.connector.vendored.urllib3 import connectionpool

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.time_limits import PATIENCE, limit_connections
from sinks.base import SinkContext
from sinks.warehouse import applied as bookkeeping
from sinks.warehouse.dialect import SqlStatement
from sinks.warehouse.errors import UNREADABLE, readable
from sinks.warehouse.parts import FileWarehouse, PartFiles
from sinks.warehouse.snowflake.sql import DROP, TEMPORARY, SnowflakeDialect, folded

_STAGE = "_changefeed_stage"
_PARQUET = "FILE_FORMAT = (TYPE = PARQUET) MATCH_BY_COLUMN_NAME = CASE_SENSITIVE"
_SESSION = {
    "TIMEZONE": "UTC",
    "QUERY_TAG": "changefeed",
    "LOCK_TIMEOUT": 120,
    "CLIENT_TELEMETRY_ENABLED": False,
}

#: Numbers of Snowflake's messages. The session or its token is over: log in again.
_SESSION_OVER = frozenset({390104, 390111, 390112, 390114, 390195})
#: A lock was not to be had, too many wait for it, the statement was cancelled or took too long,
#: the account's or the service's limits.
_BUSY = frozenset({604, 625, 628, 630, 646, 370001, 390203})
#: No right, no warehouse to work with, no such role.
_RIGHTS = frozenset({606, 2043, 3001, 3003, 390186, 390189})
_GONE = frozenset({2003})
#: With SQLSTATE 22000: NULL in a column without, a text that is too long, a value too large.
_VALUES = frozenset({100072, 100078, 100082})
_NO_LOGIN = range(390100, 390500)

log = logging.getLogger("changefeed.sinks.snowflake")
# The library says on WARNING what it then raises, with addresses of the account in it.
logging.getLogger("snowflake.connector").setLevel(logging.ERROR)


@dataclass(frozen=True, slots=True)
class Limits:
    """How long things may take, in whole seconds: the connector takes no others.

    Attributes:
        login: for a login, with what is tried again.
        call: for a call, with what is tried again.
        idle: the service may be silent for so long.
        patience: an answer may take so many times as long.
    """

    login: int = 20
    call: int = 120
    idle: int = 60
    patience: float = PATIENCE


_POOLS = (connectionpool.HTTPConnectionPool, connectionpool.HTTPSConnectionPool)
#: What the connector makes its connections of, as it came.
_CONNECTIONS = {pool: pool.ConnectionCls for pool in _POOLS}


def _end_answers(limits: Limits) -> None:
    """Let every answer end. The connector makes its connections itself, some in threads of its own,
    from a copy of urllib3 that nobody else has: what a schema is given holds for the process."""
    for pool, connection in _CONNECTIONS.items():
        pool.ConnectionCls = limit_connections(connection, limits.idle, limits.patience)


@dataclass(frozen=True, slots=True)
class Login:
    """Who logs in where; ``host``, ``port`` and ``protocol`` follow from the account if empty."""

    account: str
    user: str
    password: str = field(default="", repr=False)
    warehouse: str = ""
    role: str = ""
    private_key: bytes = field(default=b"", repr=False)
    passphrase: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    authenticator: str = ""
    host: str = ""
    port: str = ""
    protocol: str = ""

    def arguments(self) -> dict[str, Any]:
        """For ``snowflake.connector.connect``.

        Raises:
            ChangefeedError: CF5002, the private key cannot be read.
        """
        found: dict[str, Any] = {
            name: value
            for name in (
                *("account", "user", "password", "warehouse", "role", "token"),
                *("authenticator", "host", "port", "protocol"),
            )
            if (value := getattr(self, name))
        }
        if self.private_key:
            found["private_key"] = self._der()
            found.setdefault("authenticator", "SNOWFLAKE_JWT")
        elif self.token:
            found.setdefault("authenticator", "oauth")
        return found

    def _der(self) -> bytes:
        password = self.passphrase.encode() or None
        try:
            load = (
                serialization.load_pem_private_key
                if self.private_key.lstrip().startswith(b"-----")
                else serialization.load_der_private_key
            )
            key = load(self.private_key, password)
        except (ValueError, TypeError):
            raise ChangefeedError(
                Code.SINK_REFUSED_LOGIN,
                "the private key of the Snowflake sink cannot be read",
                hint="private_key is base 64 of a PKCS #8 key, PEM or DER; an encrypted one "
                "needs passphrase.",
            ) from None
        return key.private_bytes(
            serialization.Encoding.DER,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )


@dataclass(frozen=True, slots=True)
class _Stand:
    """SQL that reads how far tables are, and SQL that keeps others from moving them."""

    look: str
    lock: str


_BEGIN, _COMMIT = SqlStatement("BEGIN"), SqlStatement("COMMIT")


@dataclass(frozen=True)
class StageFiles(PartFiles):
    """Files of a folder of a stage, ``@stage/folder/``. A task logs in by itself."""

    warehouse: SnowflakeWarehouse
    folder: str

    @contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        with tempfile.TemporaryDirectory(prefix="changefeed-") as folder:
            path = Path(folder, name)
            with path.open("wb") as file:
                yield file
            self.warehouse.connect(make=False)
            try:
                self.warehouse.put(path, self.folder)
            finally:
                self.warehouse.close()


class SnowflakeWarehouse(FileWarehouse):
    """A schema of a database. Not connected until :meth:`connect`."""

    most_files = 1_000
    compression = "snappy"

    def __init__(
        self, login: Login, database: str, schema: str, limits: Limits | None = None
    ) -> None:
        self._limits = limits or Limits()
        self.dialect = SnowflakeDialect()
        self.schema = schema
        self.place = f"Snowflake schema {login.account}/{database}/{schema}"
        self._login = login
        self._database = database
        self._connection: Any = None
        self._staged = False

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_connection": None, "_staged": False}

    # ------------------------------------------------------------------ connection

    def connect(self, *, make: bool = True) -> None:
        if self._connection is not None:
            return
        arguments, limits = self._login.arguments(), self._limits
        _end_answers(limits)
        with self._translated("connecting"), readable(self.place, "connecting"):
            connection = snowflake.connector.connect(
                **arguments,
                database=self.dialect.quote(self._database),
                autocommit=True,
                application="changefeed",
                login_timeout=limits.login,
                network_timeout=limits.call,
                socket_timeout=limits.idle,
                session_parameters=dict(_SESSION),
            )
        self._connection = connection
        self._staged = False
        if not make:
            return
        with self._translated("making the schema"):
            schema = self.dialect.quote(self.schema)
            self._execute(self.dialect.create_schema(self.schema))
            self._execute(f"USE SCHEMA {schema}")

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except (snow.Error, OSError, *UNREADABLE) as error:
                log.debug("closing the session failed: %s", type(error).__name__)

    def _execute(self, sql: str) -> list[tuple[object, ...]]:
        if self._connection is None:
            raise ChangefeedError(Code.SINK_UNREACHABLE, f"{self.place} is not connected")
        with readable(self.place, "a statement"), self._connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    # ------------------------------------------------------------------ statements

    def run(self, statements: Sequence[SqlStatement]) -> None:
        if len(statements) == 1:
            self._one(statements[0])
            return
        before = [s for s in statements if s.sql.startswith(TEMPORARY)]
        after = [s for s in statements if s.sql.startswith(DROP)]
        inside = [s for s in statements if not s.sql.startswith((TEMPORARY, DROP))]
        stand = self._stand(statements) if before else None
        stands = self.query(stand.look) if stand else []
        for statement in before:
            self._one(statement)
        self._one(_BEGIN)
        try:
            if stand is not None:
                self._one(SqlStatement(stand.lock))
                if self.query(stand.look) != stands:
                    raise ChangefeedError(
                        Code.SINK_BUSY, f"{self.place} is written by somebody else"
                    )
            for statement in inside:
                self._one(statement)
            self._one(_COMMIT)
        except BaseException:
            self._roll_back()
            raise
        for statement in after:
            self._one(statement)

    def _stand(self, statements: Sequence[SqlStatement]) -> _Stand:
        d = self.dialect
        table = self.name(bookkeeping.TABLE)
        topics = ", ".join(sorted({d.literal(s.topic) for s in statements}))
        where = f"WHERE {d.quote('table_name')} IN ({topics})"
        listed = ", ".join(map(d.quote, ("id", "version", "seq", "scanned")))
        node = d.quote("node")
        return _Stand(
            f"SELECT {listed} FROM {table} {where} ORDER BY {d.quote('id')}",
            f"UPDATE {table} SET {node} = {node} {where}",
        )

    def _one(self, statement: SqlStatement) -> None:
        with self._translated("a statement", statement.topic):
            self._execute(statement.sql)

    def _roll_back(self) -> None:
        try:
            self._execute("ROLLBACK")
        except (snow.Error, ChangefeedError, OSError) as error:
            # Without its session the transaction is rolled back by Snowflake.
            log.debug("ROLLBACK failed: %s", type(error).__name__)
            self.close()

    def query(self, sql: str) -> list[tuple[object, ...]]:
        with self._translated("a query"):
            return self._execute(sql)

    def columns(self, table: str) -> dict[str, str]:
        with self._translated("looking at a table", table):
            try:
                found = self._execute(f"DESCRIBE TABLE {self.name(table)}")
            except snow.ProgrammingError as error:
                if error.errno in _GONE:
                    return {}
                raise
        return {folded(str(row[0])): str(row[1]) for row in found}

    def folding(self, table: str) -> Mapping[str, str]:
        return self.probed_folding(table)

    # ------------------------------------------------------------------ loads

    def load(self, table: str, rows: pa.Table, load_id: str) -> None:
        """A file of its own name: a repeated load is another file, and the sink counts rows."""
        renamed = rows.rename_columns([folded(name) for name in rows.column_names])
        stage = self.name(_STAGE)  # a session that only compares has no schema of its own
        with (
            tempfile.TemporaryDirectory(prefix="changefeed-") as folder,
            self._translated("a load", table),
        ):
            if not self._staged:
                self._execute(f"CREATE TEMPORARY STAGE IF NOT EXISTS {stage}")
                self._staged = True
            path = Path(folder, f"{_plain(load_id)}.parquet")
            pq.write_table(renamed, path, compression="snappy")
            place = f"@{stage}/{_plain(load_id)}/"
            self.put(path, place)
            self._execute(f"COPY INTO {self.name(table)} FROM {place} {_PARQUET} PURGE = TRUE")

    def put(self, path: Path, place: str) -> None:
        """A local file goes to a stage, ``@stage/folder/``."""
        with self._translated("a file"):
            self._execute(f"PUT 'file://{path}' {place} AUTO_COMPRESS = FALSE OVERWRITE = TRUE")

    @contextmanager
    def part_files(self, context: SinkContext, name: str) -> Iterator[StageFiles]:
        # Not a temporary one, which only its own session has.
        stage = self.name(f"_changefeed_parts_{context.state}_{context.job_id}")
        with self._translated("making a stage"):
            self._execute(f"CREATE OR REPLACE STAGE {stage}")
        try:
            yield StageFiles(self, f"@{stage}/{name}/")
        finally:
            try:
                with self._translated("dropping a stage"):
                    self._execute(f"DROP STAGE IF EXISTS {stage}")
            except ChangefeedError as error:  # the next round replaces it
                log.warning("files of a scan stay in a stage for now: %s", error.message)

    def load_files(self, table: str, files: PartFiles, names: Sequence[str], load_id: str) -> None:
        assert isinstance(files, StageFiles)
        listed = ", ".join(map(self.dialect.literal, names))
        with self._translated("a load", table):
            copy = f"COPY INTO {self.name(table)} FROM {files.folder}"
            self._execute(f"{copy} FILES = ({listed}) {_PARQUET}")

    def file_column(self, name: str) -> str:
        return folded(name)

    # ------------------------------------------------------------------ errors

    @contextmanager
    def _translated(self, what: str, topic: str = "") -> Iterator[None]:
        """Snowflake's errors inside come out as ChangefeedError, without their text."""
        try:
            yield
        except ChangefeedError as error:
            if error.code is Code.SINK_UNREACHABLE:
                self.close()  # nobody knows how far the session is
            raise
        except (snow.Error, OSError) as error:
            found = self._sorted_out(error, what, topic)
            if found.code is Code.SINK_UNREACHABLE:
                self.close()
            raise found from None

    def _sorted_out(self, error: Exception, what: str, topic: str) -> ChangefeedError:
        number = getattr(error, "errno", None) or 0
        query = getattr(error, "sfqid", None)
        detail = f"{what}; {type(error).__name__} {number:06d}"
        detail += f", query {query}" if query else ""
        if number in _SESSION_OVER or number in _GONE:
            return ChangefeedError(
                Code.SINK_UNREACHABLE, f"{self.place}: what was there is gone", detail=detail
            )
        if number in _BUSY or isinstance(
            error, snow.TooManyRequests | snow.ServiceUnavailableError
        ):
            return ChangefeedError(Code.SINK_BUSY, f"{self.place} is busy", detail=detail)
        refused = isinstance(error, snow.ForbiddenError) or _login_refused(error)
        if refused or number in _RIGHTS or number in _NO_LOGIN:
            return ChangefeedError(
                Code.SINK_REFUSED_LOGIN,
                f"{self.place} refused the login or a right is missing",
                detail=detail,
                hint="the role needs USAGE on warehouse and database, and CREATE SCHEMA or, in "
                "the schema, CREATE TABLE and CREATE STAGE.",
            )
        if isinstance(error, snow.ProgrammingError | snow.DataError | snow.IntegrityError):
            if topic:
                return ChangefeedError(
                    Code.SINK_CANNOT_TAKE_TABLE,
                    f"{self.place} refused a statement about table {topic}",
                    detail=detail,
                    hint="Snowflake's query history shows the whole message.",
                    target=topic,
                    about_row=_of_row(number, str(getattr(error, "sqlstate", None) or "")),
                )
            return ChangefeedError(
                Code.SINK_REFUSED_DATA, f"{self.place} refused a statement", detail=detail
            )
        return ChangefeedError(
            Code.SINK_UNREACHABLE, f"{self.place} cannot be reached", detail=detail
        )


def _of_row(number: int, state: str) -> bool:
    """Whether a value is refused, or a constraint that a row breaks. 22000 is also the SQLSTATE of
    statements that do not fit their table."""
    return number in _VALUES or (state.startswith(("22", "23")) and state != "22000")


def _login_refused(error: Exception) -> bool:
    """The login's own number is inside the text of one number for all failed logins."""
    if getattr(error, "errno", None) != 250001:
        return False
    return "39010" in str(error) or "Incorrect username or password" in str(error)


def _plain(text: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in text)

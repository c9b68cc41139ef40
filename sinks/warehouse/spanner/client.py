"""A Spanner database over gRPC: transactions of mutations, definitions, looks.

Google's generated clients are used, one session and no pool: a sink is used by one thread, and what
a lost answer means is the feed's to decide. So no call is tried again here but a transaction that
Spanner itself aborted.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import google.auth
import grpc
import pyarrow as pa
from google.api_core import exceptions as api
from google.auth import exceptions as auth
from google.auth.credentials import Credentials
from google.cloud.spanner_admin_database_v1.services.database_admin import DatabaseAdminClient
from google.cloud.spanner_admin_database_v1.services.database_admin.transports import (
    DatabaseAdminGrpcTransport,
)
from google.cloud.spanner_v1 import types
from google.cloud.spanner_v1.services.spanner import SpannerClient
from google.cloud.spanner_v1.services.spanner.transports import SpannerGrpcTransport
from google.oauth2 import service_account
from google.rpc import error_details_pb2

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.errors import ChangefeedError, Code
from sinks.warehouse.dialect import SqlStatement, Warehouse
from sinks.warehouse.spanner.rows import Key, TooLarge, Value
from sinks.warehouse.spanner.sql import SpannerDialect

_HOST = "spanner.googleapis.com"
_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
#: Seconds a call may take; definitions and statements over whole tables take longer.
_CALL, _LONG = 120.0, 3_600.0
#: How often a transaction that Spanner aborted is begun again, and the longest pause in seconds.
_ATTEMPTS, _PAUSE = 10, 4.0
#: Seconds without use after which the session is replaced: Spanner forgets it after an hour.
_IDLE = 1_800.0
#: A login that was refused, in the text of an error with the status UNAVAILABLE.
_NO_TOKEN = re.compile(
    r"Getting metadata from plugin failed.*"
    r"(?:invalid_grant|invalid_client|unauthorized_client|Reauth)",
    re.DOTALL,
)
#: A unique index, a CHECK.
_OF_ROW = (api.AlreadyExists, api.OutOfRange)
#: What is in errors of a value that a column does not take, and of a foreign key.
_VALUE = re.compile(
    r"must not be NULL|Cannot specify a null value|exceeds the maximum size limit|"
    r"Could not parse|Foreign key\b"
)
_TRANSACTION = "a transaction"
#: Keys of a read: an answer has 10 MB at most and a key 8 kB.
_KEYS = 1_000

Result = TypeVar("Result")


class SpannerTransaction:
    """One read-write transaction: reads at once, writes when it commits."""

    def __init__(self, server: Spanner, session: str, id: bytes) -> None:
        self._server = server
        self._request = types.CommitRequest.pb(
            types.CommitRequest(session=session, transaction_id=id)
        )

    @property
    def writes(self) -> bool:
        """Something is to be written."""
        return bool(self._request.mutations)

    @property
    def request(self) -> Any:
        """The protobuf message of its commit."""
        return self._request

    def read(
        self, table: str, columns: Sequence[str], keys: Sequence[Key]
    ) -> Iterator[tuple[Value, ...]]:
        """The columns of the rows that have these keys, in an order of their own."""
        for start in range(0, len(keys), _KEYS):
            request = types.ReadRequest.pb(
                types.ReadRequest(session=self._request.session, table=table, columns=columns)
            )
            request.transaction.id = self._request.transaction_id
            for key in keys[start : start + _KEYS]:
                _fill(request.key_set.keys.add(), key)
            yield from self._server.read(types.ReadRequest.wrap(request))

    def query(
        self,
        sql: str,
        parameters: Mapping[str, Sequence[str]] | None = None,
        *,
        long: bool = False,
    ) -> list[tuple[Value, ...]]:
        """The rows of a SELECT. A parameter is an array of texts; ``long``: it reads a whole
        table."""
        request = types.ExecuteSqlRequest.pb(
            types.ExecuteSqlRequest(session=self._request.session, sql=sql)
        )
        request.transaction.id = self._request.transaction_id
        for name, texts in (parameters or {}).items():
            kind = request.param_types[name]
            kind.code, kind.array_element_type.code = types.TypeCode.ARRAY, types.TypeCode.STRING
            values = request.params.fields[name].list_value
            for text in texts:
                values.values.add().string_value = text
        timeout = _LONG if long else _CALL
        return self._server.execute(types.ExecuteSqlRequest.wrap(request), timeout)

    def upsert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Value]]) -> None:
        """Insert rows, or give those that are there these values in these columns."""
        if rows:
            self._write(self._request.mutations.add().insert_or_update, table, columns, rows)

    def update(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Value]]) -> None:
        """Change rows that are there."""
        if rows:
            self._write(self._request.mutations.add().update, table, columns, rows)

    def _write(
        self, write: Any, table: str, columns: Sequence[str], rows: Sequence[Sequence[Value]]
    ) -> None:
        write.table = table
        write.columns.extend(columns)
        for row in rows:
            _fill(write.values.add(), row)

    def delete(self, table: str, keys: Sequence[Key]) -> None:
        """Delete the rows that have these keys, if they are there."""
        if keys:
            gone = self._request.mutations.add().delete
            gone.table = table
            for key in keys:
                _fill(gone.key_set.keys.add(), key)

    def delete_all(self, table: str) -> None:
        """Delete all rows: one mutation, however many there are."""
        gone = self._request.mutations.add().delete
        gone.table = table
        gone.key_set.all_ = True


def _fill(row: Any, values: Sequence[Value]) -> None:
    add = row.values.add
    for value in values:
        if type(value) is str:
            add().string_value = value
        elif value is None:
            add().null_value = 0
        elif type(value) is bool:
            add().bool_value = value
        else:
            add().number_value = value


def _plain(row: Any) -> tuple[Value, ...]:
    found = []
    for value in row.values:
        kind = value.WhichOneof("kind")
        found.append(None if kind == "null_value" else getattr(value, kind))
    return tuple(found)


def streamed_rows(
    parts: Iterable[types.PartialResultSet], width: int
) -> Iterator[tuple[Value, ...]]:
    """Rows of ``width`` values out of a stream, which cuts rows anywhere, and texts too."""
    row: list[Value] = []
    begun: str | None = None
    for part in parts:
        values = list(_plain(types.PartialResultSet.pb(part)))
        if begun is not None and values:
            values[0], begun = f"{begun}{values[0]}", None
        if part.chunked_value:
            begun = str(values.pop())
        for value in values:
            row.append(value)
            if len(row) == width:
                yield tuple(row)
                row = []


class Spanner(Warehouse):
    """One database. Not connected until :meth:`connect`.

    ``endpoint`` is where an emulator listens: without TLS and without a login. ``credentials`` is
    the JSON text of a service account's key.
    """

    def __init__(
        self,
        project: str,
        instance: str,
        database: str,
        *,
        endpoint: str = "",
        credentials: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._clock = clock
        self.dialect: SpannerDialect = SpannerDialect()
        self.schema = ""
        self.place = f"Spanner database {project}/{instance}/{database}"
        self._database = f"projects/{project}/instances/{instance}/databases/{database}"
        self._endpoint = endpoint
        self._key = credentials
        self._client: SpannerClient | None = None
        self._admin: DatabaseAdminClient | None = None
        self._session = ""
        self._used = 0.0

    # ------------------------------------------------------------------ connection

    def connect(self, *, make: bool = True) -> None:
        if self._client is not None and self._clock.monotonic() - self._used > _IDLE:
            self.close()
        self._used = self._clock.monotonic()
        if self._client is not None:
            return
        with self._explained("connecting"):
            client = SpannerClient(transport=SpannerGrpcTransport(**self._transport()))
            try:
                made = client.create_session(database=self._database, retry=None, timeout=_CALL)
            except BaseException:
                client.transport.close()  # type: ignore[no-untyped-call]
                raise
        self._client, self._session = client, made.name

    def _transport(self) -> dict[str, Any]:
        if self._endpoint:
            # As Google's own transport: an answer may be larger than gRPC's 4 MB.
            options = [("grpc.max_receive_message_length", -1)]
            return {"channel": grpc.insecure_channel(self._endpoint, options=options)}
        return {"host": _HOST, "credentials": self._login()}

    def _login(self) -> Credentials:
        try:
            if self._key is None:
                found, _ = google.auth.default(scopes=_SCOPES)
                return found
            made: Credentials = service_account.Credentials.from_service_account_info(  # type: ignore[no-untyped-call]
                json.loads(self._key), scopes=_SCOPES
            )
            return made
        except ValueError:
            # Without its text, which may repeat a part of the key.
            raise ChangefeedError(
                Code.SINK_REFUSED_LOGIN,
                f"{self.place}: the service account's key cannot be read",
                detail="its private_key is no PEM, or a field is missing",
                hint="make a new JSON key of the account and name it in credentials.",
            ) from None

    @property
    def _connected(self) -> SpannerClient:
        if self._client is None:
            raise ChangefeedError(Code.SINK_UNREACHABLE, f"{self.place} is not connected")
        return self._client

    def close(self) -> None:
        client, self._client = self._client, None
        admin, self._admin = self._admin, None
        session, self._session = self._session, ""
        if client is not None:
            try:
                client.delete_session(name=session, retry=None, timeout=5.0)
            except (api.GoogleAPIError, auth.GoogleAuthError):
                pass  # Spanner forgets it after an hour without use
            client.transport.close()  # type: ignore[no-untyped-call]
        if admin is not None:
            admin.transport.close()  # type: ignore[no-untyped-call]

    # ------------------------------------------------------------------ transactions

    def transact(self, work: Callable[[SpannerTransaction], Result], *topics: str) -> Result:
        """Run ``work`` in a transaction, again when Spanner aborted it; durable on return.

        Args:
            work: reads and writes; repeated, it does the same.
            topics: the tables it is about, for blame.

        Raises:
            ChangefeedError: nothing was changed, except that the answer may have been lost.
        """
        pause = 0.02
        for attempt in range(_ATTEMPTS):
            with self._explained(_TRANSACTION, *topics):
                try:
                    return self._attempt(work)
                except api.Aborted as error:
                    if attempt == _ATTEMPTS - 1:
                        raise
                    wanted = _asked_pause(error)
            pause = min(_PAUSE, pause * 2)
            self._clock.sleep(max(wanted, pause * random.uniform(0.5, 1.0)))
        raise AssertionError("the last attempt returns or raises")

    def _attempt(self, work: Callable[[SpannerTransaction], Result]) -> Result:
        client = self._connected
        options = types.TransactionOptions(read_write=types.TransactionOptions.ReadWrite())
        begun = client.begin_transaction(
            session=self._session, options=options, retry=None, timeout=_CALL
        )
        transaction = SpannerTransaction(self, self._session, begun.id)
        try:
            result = work(transaction)
        except BaseException:
            self._roll_back(begun.id)
            raise
        if transaction.writes:
            client.commit(types.CommitRequest.wrap(transaction.request), retry=None, timeout=_CALL)
        else:
            self._roll_back(begun.id)
        return result

    def _roll_back(self, id: bytes) -> None:
        try:
            self._connected.rollback(
                session=self._session, transaction_id=id, retry=None, timeout=_CALL
            )
        except (api.GoogleAPIError, auth.GoogleAuthError, ChangefeedError):
            pass  # it ends by itself

    def read(self, request: types.ReadRequest) -> list[tuple[Value, ...]]:
        """The rows of a read."""
        found = self._connected.read(request, retry=None, timeout=_CALL)
        return [_plain(row) for row in types.ResultSet.pb(found).rows]

    def execute(
        self, request: types.ExecuteSqlRequest, timeout: float = _CALL
    ) -> list[tuple[Value, ...]]:
        """The rows of a query, in ``timeout`` seconds."""
        found = self._connected.execute_sql(request, retry=None, timeout=timeout)
        return [_plain(row) for row in types.ResultSet.pb(found).rows]

    def read_all(self, table: str, columns: Sequence[str]) -> Iterator[tuple[Value, ...]]:
        """The columns of all rows of a table as they are at one moment, by key."""
        now = types.TransactionOptions(read_only=types.TransactionOptions.ReadOnly(strong=True))
        request = types.ReadRequest(
            session=self._session,
            table=table,
            columns=columns,
            key_set=types.KeySet(all_=True),
            transaction=types.TransactionSelector(single_use=now),
        )
        with self._explained("a read of a table", table):
            parts = self._connected.streaming_read(request, retry=None, timeout=_LONG)
            yield from streamed_rows(parts, len(columns))

    def change_all(self, sql: str, topic: str) -> None:
        """A statement over a whole table: in many small transactions, so it may be seen half done
        and must be harmless to repeat (Partitioned DML)."""
        client = self._connected
        options = types.TransactionOptions(
            partitioned_dml=types.TransactionOptions.PartitionedDml()
        )
        for attempt in range(_ATTEMPTS):
            with self._explained("a statement over a table", topic):
                try:
                    begun = client.begin_transaction(
                        session=self._session, options=options, retry=None, timeout=_CALL
                    )
                    request = types.ExecuteSqlRequest(
                        session=self._session,
                        sql=sql,
                        transaction=types.TransactionSelector(id=begun.id),
                    )
                    for _ in client.execute_streaming_sql(request, retry=None, timeout=_LONG):
                        pass
                    return
                except api.Aborted:
                    if attempt == _ATTEMPTS - 1:
                        raise
            self._clock.sleep(random.uniform(0.5, 1.0) * min(_PAUSE, 0.1 * 2**attempt))

    # ------------------------------------------------------------------ definitions and looks

    def run(self, statements: Sequence[SqlStatement]) -> None:
        """Definitions, in order, in one operation: Spanner takes some seconds for each of those."""
        if not statements:
            return
        topics = {statement.topic for statement in statements}
        with self._explained("a definition", *topics):
            if self._admin is None:
                self._admin = DatabaseAdminClient(
                    transport=DatabaseAdminGrpcTransport(**self._transport())
                )
            self._admin.update_database_ddl(
                database=self._database,
                statements=[statement.sql for statement in statements],
                retry=None,
                timeout=_CALL,
            ).result(timeout=_LONG)  # type: ignore[no-untyped-call]

    def query(self, sql: str) -> list[tuple[object, ...]]:
        request = types.ExecuteSqlRequest(session=self._session, sql=sql)
        with self._explained("a query"):
            return [tuple(row) for row in self.execute(request)]

    def check_dialect(self) -> None:
        """The database speaks GoogleSQL.

        Raises:
            ChangefeedError: CF5002, it has the PostgreSQL dialect.
        """
        if ("POSTGRESQL",) in self.query(self.dialect.dialect_of):
            raise ChangefeedError(
                Code.SINK_REFUSED_LOGIN,
                f"{self.place} has the PostgreSQL dialect",
                hint="create a database with the GoogleSQL dialect: the dialect of a database "
                "cannot be changed.",
            )

    def columns(self, table: str) -> dict[str, str]:
        """See the base class.

        Raises:
            ChangefeedError: CF5006, the table is there, and its name differs in case.
        """
        rows = self.query(self.dialect.columns_of(table))
        if rows:
            self._same_name(table, str(rows[0][0]))
        return {str(name): str(kind) for _, name, kind in rows}

    def key(self, table: str) -> tuple[str, ...]:
        """The columns of a table's primary key.

        Raises:
            ChangefeedError: CF5006, as :meth:`columns`.
        """
        rows = self.query(self.dialect.key_of(table))
        if rows:
            self._same_name(table, str(rows[0][0]))
        return tuple(str(name) for _, name in rows)

    def _same_name(self, wanted: str, there: str) -> None:
        """To Spanner the two names are one: rows of two tables of the source would be mixed."""
        if wanted != there:
            raise ChangefeedError(
                Code.SINK_CANNOT_TAKE_TABLE,
                f"{self.place} has a table {there}, whose name differs from {wanted} only in case",
                detail=f"target {wanted}",
                hint="drop or rename the one that is there, or give the feed another database.",
            )

    def load(self, table: str, rows: pa.Table, load_id: str) -> None:
        """Spanner has no load jobs, and nothing is staged.

        Raises:
            AssertionError: always.
        """
        raise AssertionError("rows go to Spanner as mutations")

    # ------------------------------------------------------------------ errors

    @contextmanager
    def _explained(self, what: str, *topics: str) -> Iterator[None]:
        """Errors of Google's libraries inside come out as ChangefeedError, without their text: it
        repeats keys and values. ABORTED inside a transaction is for the caller."""
        try:
            yield
        except (api.GoogleAPIError, auth.GoogleAuthError, grpc.RpcError, TimeoutError) as error:
            found = sorted_out(error, self.place, what, topics)
            if found.code is Code.SINK_UNREACHABLE:
                self.close()
            raise found from None


def _asked_pause(error: api.Aborted) -> float:
    for detail in error.details or ():
        if isinstance(detail, error_details_pb2.RetryInfo):
            return float(detail.retry_delay.ToTimedelta().total_seconds())
    return 0.0


def sorted_out(
    error: BaseException, place: str, what: str, topics: Sequence[str] = ()
) -> ChangefeedError:
    """What to do about an error, by its gRPC status.

    ``topics`` are the tables it may be about: one of them is to blame when there is no other.
    """
    kind = type(error).__name__
    detail = f"{what}; {kind}"
    message = str(getattr(error, "message", "") or error)
    if isinstance(error, TimeoutError):
        # The operation may still end well: repeated, a definition does nothing that is done.
        return ChangefeedError(
            Code.SINK_UNREACHABLE, f"{place} did not finish in time", detail=detail
        )
    if isinstance(error, auth.TransportError | api.RetryError):
        return ChangefeedError(Code.SINK_UNREACHABLE, f"{place} cannot be reached", detail=detail)
    # gRPC asks for the login's token by a plugin, and says of any error in it UNAVAILABLE.
    refused = isinstance(error, api.ServiceUnavailable) and _NO_TOKEN.search(message)
    if refused or isinstance(error, auth.GoogleAuthError | api.Unauthorized | api.Forbidden):
        return ChangefeedError(
            Code.SINK_REFUSED_LOGIN,
            f"{place} refused the login or a right is missing",
            detail=detail,
            hint="the account needs the role Cloud Spanner Database User on the database, and "
            "spanner.databases.updateDdl.",
        )
    if isinstance(error, api.Aborted | api.TooManyRequests):
        return ChangefeedError(Code.SINK_BUSY, f"{place} is busy", detail=detail)
    if isinstance(error, api.NotFound) and re.search(r"\b(?:Database|Instance)\b", message):
        return ChangefeedError(
            Code.SINK_REFUSED_LOGIN,
            f"{place} is not there",
            detail=detail,
            hint="make the instance and the database first.",
        )
    if isinstance(error, api.NotFound):
        return ChangefeedError(
            Code.SINK_UNREACHABLE, f"{place} lost something that existed", detail=detail
        )
    if isinstance(error, api.InvalidArgument) and "too many mutations" in message:
        return TooLarge(
            Code.SINK_CANNOT_TAKE_TABLE if len(topics) == 1 else Code.SINK_REFUSED_DATA,
            f"{place} accepts fewer mutations at once",
            detail=f"{detail}; {', '.join(topics)}",
            hint="drop indexes of the target tables: their entries count as mutations too.",
            target=topics[0] if len(topics) == 1 else "",
        )
    if isinstance(error, api.ClientError) and not isinstance(error, api.Cancelled):
        blamed = [t for t in topics if t]
        if len(blamed) == 1:
            return ChangefeedError(
                Code.SINK_CANNOT_TAKE_TABLE,
                f"{place} refused a change of table {blamed[0]}",
                detail=detail,
                target=blamed[0],
                about_row=what == _TRANSACTION
                and (isinstance(error, _OF_ROW) or _VALUE.search(message) is not None),
            )
        return ChangefeedError(Code.SINK_REFUSED_DATA, f"{place} refused a change", detail=detail)
    return ChangefeedError(Code.SINK_UNREACHABLE, f"{place} cannot be reached", detail=detail)

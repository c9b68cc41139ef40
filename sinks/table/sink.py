"""``experimental-sql:///[connection-or-url]``: messages as rows of one SQL table.

    changefeed_messages (job_id, "table", message_id, key, value)

The RFC's table sink, for trying out feeds with only a database. ``message_id`` depends on the
message alone (timestamp, sequence number, key), sorts in time order, and with the job forms the
primary key, so a repeated message changes nothing. All rows of an epoch are one transaction, so a
reader sees whole epochs. The sink makes a Python object of each row, so it is not meant for high
volume.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import sqlalchemy as sa

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Resolved, Truncate
from changefeed.options import Feature
from sinks.base import Batch, Capabilities, Durability, Epoch, Receipt, Sink, SinkContext, Target

PREFIX = "experimental-sql:///"
TABLE = "changefeed_messages"

#: The driver of each dialect whose default driver is not the installed one.
_DRIVERS = {
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
}

_metadata = sa.MetaData()
messages = sa.Table(
    TABLE,
    _metadata,
    sa.Column("job_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("table", sa.String(249), primary_key=True),
    sa.Column("message_id", sa.String(120), primary_key=True),
    sa.Column("key", sa.Text),
    sa.Column("value", sa.Text),
)

_Row = dict[str, Any]


class MessageTableSink(Sink):
    """Writes messages into a table, each once."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        exactly_once=True,
        state_database=True,
        continues_scans=True,
        rewinds=True,
        features=frozenset({Feature.TRANSACTIONS}),
    )

    def __init__(self, uri: str, options: Mapping[str, object] | None = None) -> None:
        self._uri = uri
        #: None if the URI has no database: the sink then uses the state database.
        self._given = database_url(uri)
        self._engine: sa.Engine | None = None
        self._job = 0
        self._topics: tuple[str, ...] = ()
        self._lock = threading.Lock()
        self._pending: dict[int, list[_Row]] = {}

    def open(self, context: SinkContext) -> None:
        self._job = context.job_id
        self._topics = tuple(dict.fromkeys(t.topic for t in context.targets))
        self._url = self._database(context)
        with _translated(self._url):
            if self._engine is None:
                self._engine = sa.create_engine(self._url, pool_pre_ping=True, hide_parameters=True)
            _metadata.create_all(self._engine)

    def check(self, context: SinkContext) -> list[ChangefeedError]:
        """Connect to the database. The table is created when the feed begins."""
        url = self._database(context)
        file = url.database if url.get_backend_name() == "sqlite" else None
        if file and not os.path.exists(file) and os.access(os.path.dirname(file) or ".", os.W_OK):
            return []  # a connection would create the database
        with _translated(url):
            # A pool would keep the connection.
            sa.create_engine(url, poolclass=sa.NullPool, hide_parameters=True).connect().close()
        return []

    def _database(self, context: SinkContext) -> sa.URL:
        """The database of the URI, or else the state database.

        Raises:
            ChangefeedError: CF1201, neither is known.
        """
        found = self._given or database_url(self._uri, context.state_database)
        if found is None:
            raise ChangefeedError(
                Code.INVALID_URI,
                "the sink URI names no database",
                hint=f"write {PREFIX}postgresql://...",
            )
        return found

    def write(self, batch: Batch) -> Receipt:
        """Keep the rows until ``commit``, because an epoch is one transaction."""
        columns = ("key", "value", "wall", "logical", "seq")
        rows = batch.rows.select(list(columns)).to_pylist()
        found = [self._message(batch.target.topic, row) for row in rows]
        with self._lock:
            self._pending.setdefault(batch.epoch.number, []).extend(found)
        size = sum(len(row["key"] or b"") + len(row["value"] or b"") for row in rows)
        return Receipt(batch.partition, len(rows), size)

    def _message(self, topic: str, row: _Row) -> _Row:
        key, value = _text(row["key"]), _text(row["value"])
        # A tombstone follows its delete with the same sequence number, and rows of one table's
        # scan differ only in the key.
        digest = hashlib.sha256((key or "").encode()).hexdigest()[:16]
        stamp = Timestamp(row["wall"], row["logical"]).file_stamp()
        kind = "t" if value is None else "m"
        return self._row(topic, f"{stamp}-{row['seq'] or 0:020d}-{digest}-{kind}", key, value)

    def _row(self, topic: str, number: str, key: str | None, value: str | None) -> _Row:
        return {
            "job_id": self._job,
            "table": topic,
            "message_id": number,
            "key": key,
            "value": value,
        }

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> Durability:
        with self._lock:
            rows = self._pending.pop(epoch.number, [])
        self._insert(rows)
        return Durability.DURABLE

    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        with self._lock:
            self._pending.pop(epoch.number, None)

    def resolved(self, event: Resolved, payload: bytes) -> None:
        # ``~`` sorts after every message of the same instant.
        number = f"{event.at.file_stamp()}~resolved"
        self._insert([self._row(t, number, None, _text(payload)) for t in self._topics])

    def truncate(self, event: Truncate, target: Target, payload: bytes) -> None:
        number = f"{event.at.file_stamp()}-{event.seq:020d}-truncate"
        self._insert([self._row(target.topic, number, None, _text(payload))])

    def _insert(self, rows: Sequence[_Row]) -> None:
        if not rows or self._engine is None:
            return
        with _translated(self._url), self._engine.begin() as connection:
            connection.execute(_insert_new(connection.dialect.name), rows)

    def close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.dispose()
        with self._lock:
            self._pending.clear()


def _insert_new(dialect: str) -> sa.Executable:
    """An INSERT that skips rows whose key exists already."""
    if dialect == "postgresql":
        from sqlalchemy.dialects.postgresql import insert as postgres_insert

        return postgres_insert(messages).on_conflict_do_nothing()
    if dialect == "sqlite":
        from sqlalchemy.dialects.sqlite import insert as sqlite_insert

        return sqlite_insert(messages).on_conflict_do_nothing()
    if dialect in ("mysql", "mariadb"):
        return messages.insert().prefix_with("IGNORE")
    raise ChangefeedError(
        Code.NOT_SUPPORTED,
        f"experimental-sql does not know how to repeat an insert harmlessly on {dialect}",
        hint="use postgresql, sqlite, mysql or mariadb.",
    )


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()


def database_url(uri: str, state_url: str = "") -> sa.URL | None:
    """The database of a sink URI. An empty path means the state database ``state_url``, or None if
    that is unknown, too.

    Raises:
        ChangefeedError: CF1201; it does not repeat the URI, which may hold a password.
    """
    if not uri.lower().startswith(PREFIX):
        raise ChangefeedError(Code.INVALID_URI, f"the sink URI must start with {PREFIX}")
    text = uri[len(PREFIX) :] or state_url
    if not text:
        return None
    scheme, colon, rest = text.partition("://")
    if not colon:
        raise ChangefeedError(
            Code.INVALID_URI,
            "the sink URI names no database",
            hint=f"write the URL of a database after {PREFIX}, or nothing for the state database.",
        )
    try:
        url = sa.make_url(f"{_DRIVERS.get(scheme.lower(), scheme)}://{rest}")
        url.get_dialect()
    except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError, ValueError):
        # Not chained: SQLAlchemy's error repeats the URL.
        raise ChangefeedError(Code.INVALID_URI, "the sink URI is not a database URL") from None
    return url


@contextmanager
def _translated(url: sa.URL) -> Iterator[None]:
    """Errors of the database as ours, without the parameters of the statement, which are values of
    rows."""
    where = f"{url.drivername.partition('+')[0]} database {url.database or ''}".strip()
    try:
        yield
    except ImportError as error:
        name = error.name or "driver"
        raise ChangefeedError(
            Code.SINK_NEEDS_EXTRA, f"the {where} needs the package {name}"
        ) from None
    except sa.exc.DBAPIError as error:
        reason = type(error.orig).__name__
        if isinstance(error, sa.exc.DataError | sa.exc.IntegrityError):
            code, what = Code.SINK_REFUSED_DATA, "refused a row"
        elif isinstance(error, sa.exc.ProgrammingError | sa.exc.NotSupportedError):
            code, what = Code.SINK_REFUSED_LOGIN, "refused"
        else:
            code, what = Code.SINK_UNREACHABLE, "failed"
        raise ChangefeedError(code, f"the {where} {what}", detail=reason) from None

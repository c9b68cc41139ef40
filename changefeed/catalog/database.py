"""The state database underneath the catalog: SQLite in a directory, or PostgreSQL by URL.

Every write transaction is serial (SQLite ``BEGIN IMMEDIATE``, on PostgreSQL one advisory
lock), so the code above it reads, decides and writes without races, the same on both. Every
read sees one snapshot. A commit is on disk when :meth:`Database.write` returns
(``synchronous=FULL``): resolved timestamps rest on it.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from platformdirs import user_data_path
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Engine,
    PoolProxiedConnection,
    Select,
    Table,
    and_,
    create_engine,
    delete,
    event,
    func,
    insert,
    literal,
    select,
    text,
    update,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.schema import CreateSchema

from changefeed.catalog import tables, upgrades
from changefeed.catalog.sealing import SEALERS, Sealer, place_of_keys
from changefeed.core.clock import SYSTEM_CLOCK, Clock, SystemClock
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableName
from changefeed.core.state import StateLayout
from changefeed.core.telemetry import log
from changefeed.core.together import AskedTogether
from changefeed.core.uri import redact

#: How long a write waits for another process's write, seconds.
BUSY_SECONDS = 30.0
#: Between two attempts at a file that another process has locked, seconds.
_LOCKED_SECONDS = 0.01

#: How long a process may stand still within a write before PostgreSQL ends it: less than a lease
#: lasts, so that others can take what a frozen node has.
STALLED = "5s"

#: What SQLite says of a file whose bytes have changed.
_DAMAGE = (
    "malformed",
    "not a database",
    "unsupported file format",
    "corrupt",
    "Could not decode",
    "datatype mismatch",
    "no such column",
    "no such table",
)

#: How often a waiter looks for changes made by other processes, seconds.
POLL_SECONDS = 0.1

#: Advisory lock of the writers of a PostgreSQL state: any fixed number that no other program uses.
_WRITERS = 0x6368616E67656665

#: Key of ``meta`` whose value is the fingerprint of the key that secrets are encrypted by.
_KEY = "key"

#: No letters that need quoting in a name at a source, no look-alikes.
_ID_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"


#: The change counter.
_NUMBER: Final = select(tables.change.c.number)


class WriterTurns:
    """A lock that its takers get in the order in which they came, urgent ones first.

    Hundreds of feeds save their progress: a plain lock may let one thread wait for many seconds,
    and a heartbeat that late says that the node is dead.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._held = False
        #: Urgent takers and the others; each waits until its own lock is released.
        self.waiting: tuple[deque[threading.Lock], ...] = (deque(), deque())

    @contextmanager
    def take(self, *, urgent: bool = False) -> Iterator[None]:
        """Hold the lock; one thread must not take it twice."""
        waiting = self.waiting[0 if urgent else 1]
        turn = threading.Lock()
        turn.acquire()
        with self._mutex:
            if self._held:
                waiting.append(turn)
            else:
                self._held = True
                turn.release()
        try:
            # Who had the lock passes it on by this release.
            turn.acquire()
        except BaseException:
            with self._mutex:
                if turn in waiting:
                    waiting.remove(turn)
                else:
                    self._pass_on()
            raise
        try:
            yield
        finally:
            with self._mutex:
                self._pass_on()

    def _pass_on(self) -> None:
        for waiting in self.waiting:
            if waiting:
                waiting.popleft().release()
                return
        self._held = False


class Database:
    """Transactions and the change counter; thread-safe, usable by several processes."""

    #: For how long :meth:`wait` waits.
    clock: Clock = SYSTEM_CLOCK

    def __init__(
        self,
        engine: Engine,
        *,
        shown: str,
        directory: Path,
        home: Path | None = None,
        must_exist: bool = False,
        key: str | None = None,
    ) -> None:
        """``home``: the directory of a SQLite state; ``must_exist``: do not make a state; ``key``:
        where its keys are."""
        self._engine = self._reading = engine
        if engine.dialect.name != "sqlite":
            # PostgreSQL's default takes another snapshot for each query.
            self._reading = engine.execution_options(isolation_level="REPEATABLE READ")
            self._polling = engine.execution_options(isolation_level="AUTOCOMMIT")
        on_file = engine.dialect.name == "sqlite"
        self._version = AskedTogether(self._file_version if on_file else self._server_version)
        self._sealer = SEALERS[engine.dialect] = Sealer(shown, key)
        self._writer = engine.execution_options(changefeed_write=True)
        # Threads of one process queue here, not in SQLite's busy handler, which sleeps.
        self._turns = WriterTurns()
        self._changed = threading.Condition()
        self._closed = False
        event.listen(engine, "checkin", self._came_back)
        #: Reads the change counter of a SQLite state, and nothing else.
        self._counter: PoolProxiedConnection | None = None
        #: The same for PostgreSQL.
        self._poller: Connection | None = None
        self._counting = threading.Lock()
        self.shown = shown
        self.directory = directory
        self._home = home
        # A text: it is looked at in every round of every feed.
        self._path = str(StateLayout(home).database) if home is not None else None
        self._file = _identity(self._path) if self._path is not None else None
        try:
            self.state_id, sealed = self._prepare(must_exist=must_exist)
            if sealed:
                self._scrub()
        except BaseException:
            engine.dispose()
            raise

    @property
    def on_server(self) -> bool:
        return self._home is None

    @property
    def url(self) -> str:
        """The state as a SQLAlchemy URL; holds the password."""
        return self._engine.url.render_as_string(hide_password=False)

    @classmethod
    def open(
        cls,
        state: str | Path,
        directory: Path | None = None,
        busy_seconds: float = BUSY_SECONDS,
        *,
        must_exist: bool = False,
        key: str | None = None,
    ) -> Database:
        """Open or make the state ``DIR`` or ``postgresql://...``.

        Args:
            directory: where log and spool files go; a local state is its own.
            busy_seconds: how long a SQLite state is waited for that another process locks.
            must_exist: do not make a state where there is none.
            key: where the keys are that secrets are encrypted by; None: where
                CHANGEFEED_STATE_KEY says, if it is set. A state that is not encrypted is by now.

        Raises:
            ChangefeedError: CF6001 not reachable or not there, CF6002 of a version that cannot be
                upgraded, or newer, CF6008 its key is missing or another one,
                CF1201 a URL that is neither.
        """
        key = place_of_keys(key)
        text_ = str(state)
        if "://" not in text_:
            home = Path(text_).expanduser().absolute()
            if must_exist and not StateLayout(home).database.exists():
                _refuse_lost(home)
                raise _no_state(str(home))
            engine = _sqlite(home, busy_seconds)
            return cls(
                engine,
                shown=str(home),
                directory=directory or home,
                home=home,
                must_exist=must_exist,
                key=key,
            )
        if text_.partition("://")[0] not in ("postgresql", "postgres"):
            raise ChangefeedError(
                Code.INVALID_URI,
                f"state cannot be kept in {redact(text_)}",
                hint="--state takes a directory or a postgresql:// URL.",
            )
        engine = _postgres(text_)
        database = cls(
            engine,
            shown=redact(text_),
            directory=directory or Path(),
            must_exist=must_exist,
            key=key,
        )
        if directory is None:
            database.directory = user_data_path("changefeed", appauthor=False) / database.state_id
        return database

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that reads: everything in it is of one instant."""
        with self._reported(), self._reading.connect() as connection, connection.begin():
            try:
                yield connection
            except ValueError as error:
                if self._home is None:
                    raise
                # A row has a word or a number that nothing has written.
                raise self._damaged() from error

    @contextmanager
    def write(self, *, notify: bool = True, urgent: bool = False) -> Iterator[Connection]:
        """One serial transaction, durable on return.

        ``notify`` raises the change counter: False for progress and heartbeats, which come
        often and change nobody's plans. ``urgent``: before all writes of this process that wait,
        for what is worthless when it is late.
        """
        turn = self._turns.take(urgent=urgent)
        with self._reported(), turn, self._writer.connect() as connection:
            with connection.begin():
                if connection.dialect.name == "postgresql":
                    connection.execute(_take_turn())
                if notify or urgent:
                    # A version that this program is not made for may have upgraded the state.
                    upgrades.check(found := _meta(connection), self.shown)
                if notify:
                    # Only such writes have secrets, and the key may have been replaced since.
                    self._sealer.follow(found.get(_KEY))
                yield connection
                if notify:
                    number = tables.change.c.number
                    connection.execute(update(tables.change).values(number=number + 1))
        if notify:
            with self._changed:
                self._changed.notify_all()

    @contextmanager
    def append(self) -> Iterator[Connection]:
        """A transaction that writes beside the others, durable on return: on PostgreSQL it takes no
        part in their order. For rows that one owner alone writes, which hold a row that proves it.
        """
        if self._engine.dialect.name == "sqlite":
            with self.write(notify=False, urgent=True) as connection:
                yield connection
            return
        with self._reported(), self._writer.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def statement(self) -> Iterator[Connection]:
        """A connection to a server for one statement, which is a transaction."""
        with self._reported(), self._polling.connect() as connection:
            yield connection

    def version(self) -> int:
        """The change counter: one indexed read, for polling.

        A feed asks in each of its rounds, hundreds of times a second, so there is one question for
        all feeds that a heartbeat of the source wakes, by a connection of its own.
        """
        return self._version()

    def _file_version(self) -> int:
        # Without SQLAlchemy's pool, statement and transaction.
        with self._reported(), self._counting:
            if self._counter is None:
                raw = self._engine.raw_connection()
                raw.detach()
                self._counter = raw
            driver: Any = self._counter.dbapi_connection
            number = driver.execute(f"SELECT number FROM {tables.change.name}").fetchone()
            if self._closed:
                self._counter.close()
                self._counter = None
        return int(number[0])

    def _server_version(self) -> int:
        # Of a connection of its own, which is looked at no more than it is asked.
        with self._reported(), self._counting:
            try:
                number = self._asked_number()
            except DBAPIError:
                # The server may have ended it since the last time.
                number = self._asked_number()
            if self._closed:
                self._drop_poller()
        return number

    def _asked_number(self) -> int:
        if self._poller is None:
            self._poller = self._polling.connect()
            self._poller.detach()
        try:
            return int(self._poller.execute(_NUMBER).scalar_one())
        except BaseException:
            self._drop_poller()
            raise

    def _drop_poller(self) -> None:
        poller, self._poller = self._poller, None
        if poller is not None:
            poller.close()

    def wait(self, seen: int, timeout: float) -> int:
        """Return the counter once it differs from ``seen``, or after ``timeout`` seconds.

        A change by this process wakes at once, one by another within :data:`POLL_SECONDS`.
        """
        deadline = self.clock.monotonic() + timeout
        while True:
            with self._changed:
                current = self.version()
                left = deadline - self.clock.monotonic()
                if current != seen or left <= 0:
                    return current
                self.clock.wait(self._changed, min(POLL_SECONDS, left))

    def close(self) -> None:
        """Drop the connections, those in use as soon as they are free. The object can still be
        used, with a new connection each time."""
        self._closed = True
        with self._counting:
            counter, self._counter = self._counter, None
            self._drop_poller()
        if counter is not None:
            counter.close()
        self._engine.dispose()

    def _came_back(self, _connection: object, entry: ConnectionPoolEntry) -> None:
        # A pool that was disposed takes back what is in use, and never closes it.
        if self._closed:
            entry.close()

    def verify(self) -> int | None:
        """Compare the pages of ``state.db`` with each other; returns its bytes, None for a state on
        a server.

        Raises:
            ChangefeedError: CF6001, they do not fit together.
        """
        if self._path is None:
            return None
        with self.read() as connection:
            found = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalars().all()
        if found != ["ok"]:
            raise self._damaged()
        return os.stat(self._path).st_size

    @property
    def sealer(self) -> Sealer:
        """Seals what has no column of its own."""
        return self._sealer

    def rotate_key(self) -> tuple[str, int]:
        """Encrypt all secrets by the first of the keys, which are read again; returns its
        fingerprint and the number of values, 0 if it was in use already.

        Raises:
            ChangefeedError: CF6008, CF1208 there is no key, or a value has one that is not given.
        """
        first = self._sealer.first()
        with self.write() as connection:
            count = 0
            if self._sealer.current != first:
                count = self._seal_all(connection, first)
        # Also if it was in use already: an earlier statement may have ended before this.
        self._scrub()
        return first, count

    def _seal_all(self, connection: Connection, fingerprint: str) -> int:
        """Seal every secret by this key, and note it as the state's."""
        count = 0
        kept = self._sealer.open(_noted(connection, tables.LOG_PLACE) or "")
        found = [
            (column, list(connection.execute(select(*column.table.primary_key, column))))
            for column in tables.SEALED
        ]
        self._sealer.follow(fingerprint)
        for column, rows in found:
            (key,) = column.table.primary_key
            for row in rows:
                if row[1] is not None:
                    where = column.table.update().where(key == row[0])
                    connection.execute(where.values({column.name: row[1]}))
                    count += 1
        if kept:
            place = tables.meta.c.key == tables.LOG_PLACE
            sealed = self._sealer.seal(kept)
            connection.execute(update(tables.meta).where(place).values(value=sealed))
            count += 1
        connection.execute(delete(tables.meta).where(tables.meta.c.key == _KEY))
        connection.execute(insert(tables.meta).values(key=_KEY, value=fingerprint))
        return count

    def _take_key(self, connection: Connection, found: dict[str, str], *, new: bool) -> bool:
        """Use the key that the state is encrypted by; returns whether it is by now only.

        Raises:
            ChangefeedError: CF6008.
        """
        self._sealer.follow(found.get(_KEY))
        if _KEY in found or not self._sealer.has_keys:
            return False
        first = self._sealer.first()
        living = upgrades.living_nodes(connection, shared_time(connection, self.clock))
        if living:
            raise ChangefeedError(
                Code.STATE_KEY_NOT_USABLE,
                f"state {self.shown} is not encrypted and is to be, but nodes without the key use "
                f"it: {living}",
                hint="stop these nodes, then start them with the key.",
            )
        self._seal_all(connection, first)
        if not new:
            # Also a process that only lists feeds does this, and its user is to see it.
            log.warning(
                "state %s: its secrets are encrypted by key %s from now on; nodes and shells "
                "without it are refused", self.shown, first,
            )  # fmt: skip
        return not new

    def _scrub(self) -> None:
        """Leave nothing of what was overwritten in the file of the state and beside it."""
        if self._home is None:
            return
        database = StateLayout(self._home).database
        raw = self._engine.raw_connection()
        with self._reported(), self._turns.take():
            try:
                driver: Any = raw.dbapi_connection
                driver.execute("VACUUM")
                (busy, *_) = driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                raw.close()
        copies = sorted(file.name for file in database.parent.glob(f"{database.name}.format-*"))
        if busy:
            copies.append(f"{database.name}-wal")
        if copies:
            log.warning(
                "state %s: %s may still have secrets as they were before", self.shown,
                ", ".join(copies),
            )  # fmt: skip

    def _prepare(self, *, must_exist: bool) -> tuple[str, bool]:
        """Make the tables of a new state, or upgrade an old one; returns its id, and whether it was
        encrypted just now."""
        with self._reported(), self._turns.take(), self._writer.connect() as connection:
            with connection.begin():
                if connection.dialect.name == "postgresql":
                    connection.execute(_take_turn())
                if not connection.dialect.has_table(connection, "meta", schema=_schema(connection)):
                    if self._home is not None:
                        _refuse_orphans(self._home)
                    if must_exist:
                        raise _no_state(self.shown)
                    if connection.dialect.name == "postgresql":
                        schema = CreateSchema(tables.POSTGRES_SCHEMA, if_not_exists=True)
                        connection.execute(schema)
                    _create(connection)
                    new = True
                else:
                    new = False
                found = _meta(connection)
                if not upgrades.readable(found):
                    upgrades.upgrade(
                        connection,
                        found,
                        shown=self.shown,
                        now=shared_time(connection, self.clock),
                        file=StateLayout(self._home).database if self._home is not None else None,
                    )
                sealed = self._take_key(connection, found, new=new)
        return found["state_id"], sealed

    def _damaged(self) -> ChangefeedError:
        """CF6001, without the driver's text: it quotes what the file has, secrets too."""
        return ChangefeedError(
            Code.STATE_UNREACHABLE,
            f"cannot use state {self.shown}: state.db is damaged",
            hint="stop the node and put a backup of state.db back; sqlite3's .recover may save "
            "what is left of this one.",
        )

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Turn a database failure into CF6001: the driver's text may hold secrets of the URL."""
        if self._path is not None and _identity(self._path) != self._file:
            # SQLite would go on in a file that can no longer be opened.
            raise ChangefeedError(
                Code.STATE_UNREACHABLE,
                f"cannot use state {self.shown}: state.db was removed or replaced while in use",
                hint="stop the processes that use this state; put state.db (with its -wal) back, "
                "or a backup of it, before the next start.",
            )
        try:
            yield
        # A damaged file has text that cannot be decoded, also in SQLite's own messages.
        except (DBAPIError, sqlite3.Error, UnicodeDecodeError) as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            if _is_damage(cause):
                raise self._damaged() from error
            raise ChangefeedError(
                Code.STATE_UNREACHABLE,
                f"cannot use state {self.shown}: {_first_line(cause)}",
                hint=_hint(cause),
            ) from error
        except SQLAlchemyError as error:
            raise ChangefeedError(
                Code.STATE_UNREACHABLE, f"cannot use state {self.shown}: {type(error).__name__}"
            ) from error


def _no_state(shown: str) -> ChangefeedError:
    return ChangefeedError(
        Code.STATE_UNREACHABLE,
        f"there is no state in {shown}",
        hint="name the state that the node was started with (--state).",
    )


def _is_damage(cause: BaseException | None) -> bool:
    if isinstance(cause, UnicodeDecodeError):
        return True
    words = str(cause)
    return isinstance(cause, sqlite3.Error) and any(sign in words for sign in _DAMAGE)


def server_time(connection: Connection) -> int:
    """The time of a PostgreSQL server, ns: one clock for all machines that share the state."""
    micros = "SELECT (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::bigint"
    return int(connection.execute(text(micros)).scalar_one()) * 1_000


def shared_time(connection: Connection, clock: Clock) -> int:
    """The time, ns, by a clock that all nodes of the state share: the machine's, which is
    ``clock``, where they are on one (SQLite), the server's on PostgreSQL."""
    if connection.dialect.name != "postgresql":
        return clock.now().wall
    return server_time(connection)


def _identity(database: str) -> tuple[int, int] | None:
    try:
        found = os.stat(database)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _refuse_lost(home: Path) -> None:
    """Raise where ``state.db`` is gone or empty, and there was one."""
    path = StateLayout(home).database
    if path.exists() and path.stat().st_size:
        return
    _refuse_orphans(home)
    # SQLite begins one only when the file has its first page.
    wal = path.with_name(f"{path.name}-wal")
    if wal.exists() and wal.stat().st_size:
        raise ChangefeedError(
            Code.STATE_UNREACHABLE,
            f"cannot use state {home}: state.db is gone or empty, and {wal.name} is still there, "
            "which has its last changes",
            hint="put state.db back beside it, or a backup of it in place of both.",
        )


def _refuse_orphans(home: Path) -> None:
    """Raise CF6001 if a new state would take the place of a lost one whose change logs are there.

    Its feeds would be forgotten silently, and what they hold at their sources, which may make a
    server keep its log, would stay for ever.
    """
    logs = StateLayout(home).change_logs
    if logs:
        raise ChangefeedError(
            Code.STATE_UNREACHABLE,
            f"cannot use state {home}: state.db is gone or empty, and change logs of its feeds "
            f"are still there ({', '.join(log.name for log in logs)})",
            hint="put state.db back from a backup. To start over, move the folders log, spool and "
            f"source of {home} away, and drop what the lost state held at the sources (names that "
            "begin with changefeed_).",
        )


def _create(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        tables.prepare_for_postgres()
    tables.metadata.create_all(connection, checkfirst=False)
    state_id = "".join(secrets.choice(_ID_LETTERS) for _ in range(6))
    rows = [
        {"key": "format", "value": str(tables.FORMAT)},
        {"key": "readers", "value": str(upgrades.oldest_readers())},
        {"key": "state_id", "value": state_id},
    ]
    connection.execute(insert(tables.meta), rows)
    connection.execute(insert(tables.change).values(id=1, number=1))


def _noted(connection: Connection, key: str) -> str | None:
    query = select(tables.meta.c.value).where(tables.meta.c.key == key)
    found: str | None = connection.execute(query).scalar_one_or_none()
    return found


def _meta(connection: Connection) -> dict[str, str]:
    return {row.key: row.value for row in connection.execute(select(tables.meta))}


def _schema(connection: Connection) -> str | None:
    return tables.POSTGRES_SCHEMA if connection.dialect.name == "postgresql" else None


def _sqlite(home: Path, busy_seconds: float) -> Engine:
    """SQLAlchemy's engine on ``home/state.db``: readable by its owner only, because connections
    hold secrets."""
    path = StateLayout(home).database
    _refuse_lost(home)
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        # SQLite gives -wal and -shm the mode of the database file: make it first, closed. A file
        # that is there is left alone: closing any descriptor of it would drop the locks of this
        # process's other connections, and another process would then remove the -wal they use.
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except OSError as error:
        raise ChangefeedError(
            Code.STATE_UNREACHABLE,
            f"cannot use state {home}: {error.strerror}",
            hint="name a directory this user may write to with --state.",
        ) from error
    engine = create_engine(
        f"sqlite:///{path}",
        connect_args={"check_same_thread": False, "timeout": busy_seconds},
        pool_size=8,
        max_overflow=64,
    )

    def connected(dbapi: Any, _record: object) -> None:
        dbapi.isolation_level = None  # the driver's own BEGIN would not be IMMEDIATE
        _write_ahead(dbapi, busy_seconds)
        for pragma in ("synchronous=FULL", "foreign_keys=ON"):
            dbapi.execute(f"PRAGMA {pragma}")

    def began(connection: Connection) -> None:
        write = connection.get_execution_options().get("changefeed_write")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", began)
    return engine


def _write_ahead(dbapi: Any, busy_seconds: float) -> None:
    """Use a write-ahead log. SQLite itself does not wait for another process that sets the mode of
    a new file in the same moment."""
    deadline = SYSTEM_CLOCK.monotonic() + busy_seconds
    while True:
        try:
            dbapi.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or SYSTEM_CLOCK.monotonic() > deadline:
                raise
        time.sleep(_LOCKED_SECONDS)


def ends_when_stalled() -> ColumnElement[str]:
    """Selected first in a transaction of PostgreSQL that holds locks: the server ends it if its
    process stands still (frozen, or cut off), which else would hold up all nodes."""
    return func.set_config("idle_in_transaction_session_timeout", STALLED, True)


def _take_turn() -> Select[tuple[str, object]]:
    return select(ends_when_stalled(), func.pg_advisory_xact_lock(literal(_WRITERS, BigInteger)))


#: Parameters of connections, unless the URL has others. If the server's host or the network fails,
#: nothing closes a connection: a node would wait for an answer for many minutes, also when the
#: server is back.
_PATIENCE = {
    "connect_timeout": "10",
    "tcp_user_timeout": "10000",
    "keepalives_idle": "5",
    "keepalives_interval": "5",
    "keepalives_count": "2",
}


def _postgres(uri: str) -> Engine:
    try:
        url = make_url(uri).set(drivername="postgresql+psycopg")
    except SQLAlchemyError as error:
        raise ChangefeedError(Code.INVALID_URI, f"state URL {redact(uri)} is malformed") from error
    given = {name: value for name, value in _PATIENCE.items() if name not in url.query}
    url = url.update_query_dict(given)
    engine = create_engine(url, pool_size=8, max_overflow=64, pool_pre_ping=True)
    return engine.execution_options(schema_translate_map={None: tables.POSTGRES_SCHEMA})


def _first_line(cause: BaseException | None) -> str:
    """The driver's words without SQL, parameters and connection strings, which may hold secrets."""
    lines = str(cause).strip().splitlines()
    return lines[0] if lines else type(cause).__name__


def _hint(cause: BaseException | None) -> str:
    words = str(cause)
    if "locked" in words:
        return "another process holds the state; lsof state.db shows which."
    if "readonly" in words:
        return "this user may not write to state.db or its directory, or the disk is read-only."
    if "full" in words:
        return "free disk space where the state is kept."
    return "check that the location of the state exists and is writable."


class CatalogPart:
    """Base of the parts of :class:`changefeed.catalog.Catalog`."""

    def __init__(self, database: Database, clock: Clock | None = None) -> None:
        """``clock``: for all times; None: see :meth:`_now` and :meth:`_shared_now`."""
        self._database = database
        self._clock = clock or SystemClock()
        self._own_clock = clock is not None

    def _now(self) -> int:
        """This machine's time, ns: for what people read."""
        return self._clock.now().wall

    def _shared_now(self, transaction: Connection) -> int:
        """As of :func:`shared_time`; a clock that was given is for all times."""
        return self._now() if self._own_clock else shared_time(transaction, self._clock)


def named(table: Table, name: TableName) -> ColumnElement[bool]:
    """The rows of ``table`` that are about the source's table ``name``."""
    return and_(
        table.c.source == name.source, table.c.schema == name.schema, table.c.name == name.name
    )


T = TypeVar("T")


class CachedRead(Generic[T]):
    """Something read from the state, which is read again only after the state has changed."""

    def __init__(self, version: Callable[[], int], read: Callable[[], T]) -> None:
        """``version``: :meth:`changefeed.catalog.Catalog.version`."""
        self._version = version
        self._read = read
        self._seen: tuple[int, T] | None = None

    def __call__(self) -> T:
        """The value as of now."""
        # Before the value: a change in between makes the next call read again.
        version = self._version()
        seen = self._seen
        if seen is None or seen[0] != version:
            self._seen = seen = version, self._read()
        return seen[1]

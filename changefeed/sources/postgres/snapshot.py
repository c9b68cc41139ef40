"""The initial scan: a consistent image of the database, read in parts by any process.

    replication connection   CREATE_REPLICATION_SLOT ... TEMPORARY ... EXPORT_SNAPSHOT
          |                  -> consistent point (our position) and a snapshot of that instant
          v
    holder connection        imports the snapshot and exports it again; stays open
          |                  (the slot is dropped now: a long scan holds back no WAL)
          v
    reader connections       import it, one per process, reused for part after part

A part is a range of blocks (``ctid``) of one heap. It is read by ``COPY ... TO STDOUT`` inside
a savepoint that is rolled back afterwards, which lets go of the table's lock: DDL waits for one
part, not for the scan. Some DDL is not transactional for a snapshot (a rewrite by ``ALTER
TABLE`` makes the table look empty in it, a ``VACUUM FULL`` moves rows between blocks), so every
part proves under its lock that the table still has the file and the columns it had when the
parts were made.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import psycopg
import pyarrow as pa
import pyarrow.csv as pa_csv
from psycopg import errors, sql

from changefeed.errors import ChangefeedError
from changefeed.events import Position
from changefeed.schema import TableSchema
from changefeed.sources.base import DEFAULT_PART_BYTES, KeyRange
from changefeed.sources.postgres.connect import (
    Connection,
    connect,
    connect_replication,
    is_quiet,
    source_errors,
    translate,
)
from changefeed.sources.postgres.introspect import table_list
from changefeed.sources.postgres.lsn import parse_lsn, position_of
from changefeed.sources.postgres.values import text_column

#: How long to wait for transactions that were open when the scan began.
CONSISTENT_SECONDS = 300.0

#: A block of CSV that is turned into one batch. A longer row makes a longer block.
BLOCK_BYTES = 6 << 20

#: The server ends a reader that was left idle this long: a process that took part in a scan
#: must not hold back VACUUM after it.
READER_IDLE = "15s"


#: What psycopg hands out of a COPY.
Piece = bytes | bytearray | memoryview

#: Number, type and modifier of each column.
Shape = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class PostgresPart:
    """Blocks ``[low, high)`` of one heap; ``high`` None: to its end, wherever that is by then.

    Attributes:
        relation: schema and name of the heap: the table itself or a leaf partition.
        oid, file, shape: what the heap was when the parts were made.
        columns: positions in ``table.columns`` that are read; the others come out null.
        where: condition on the key, finished SQL, or empty.
        whole: the heap is read without a range.
    """

    uri: str = field(repr=False)
    snapshot: str
    table: TableSchema
    relation: tuple[str, str]
    oid: int
    file: int
    shape: Shape
    columns: tuple[int, ...]
    where: str
    low: int
    high: int | None
    whole: bool
    rows_estimate: int
    bytes_estimate: int

    def read(self) -> Iterator[pa.RecordBatch]:
        """See :meth:`changefeed.sources.base.ScanPart.read`."""
        return read_part(self)

    def query(self) -> sql.Composed:
        """The COPY statement."""
        columns = self.table.columns
        conditions: list[sql.Composable] = [sql.SQL(self.where)] if self.where else []
        if not self.whole:
            conditions.append(sql.SQL("ctid >= '({},0)'::pg_catalog.tid").format(self.low))
            if self.high is not None:
                conditions.append(sql.SQL("ctid < '({},0)'::pg_catalog.tid").format(self.high))
        return sql.SQL("COPY (SELECT {} FROM ONLY {}{}) TO STDOUT (FORMAT csv)").format(
            sql.SQL(", ").join(sql.Identifier(columns[i].name) for i in self.columns),
            sql.Identifier(*self.relation),
            sql.SQL(" WHERE ") + sql.SQL(" AND ").join(conditions)
            if conditions
            else sql.SQL(""),
        )


# ------------------------------------------------------------------------- the image


class PostgresSnapshot:
    """A snapshot of one instant, exported by a connection of its own until closed."""

    def __init__(
        self, uri: str, source: str, *, consistent_seconds: float = CONSISTENT_SECONDS
    ) -> None:
        """Take the snapshot.

        Raises:
            ChangefeedError: CF2005 when open transactions or a lack of free slots prevent it
                (try again), CF2001, CF2002, CF2004.
        """
        self._uri = uri
        self._source = source
        self._lock = threading.Lock()
        replication = connect_replication(uri)
        try:
            lsn, exported = _export(uri, replication, consistent_seconds)
            self._holder = connect(uri)
            try:
                with source_errors("open the snapshot of the initial scan"):
                    self._holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                    _import(self._holder, exported)
                    row = self._holder.execute("SELECT pg_catalog.pg_export_snapshot()")
                    self._exported: str = _one(row)[0]
            except BaseException:
                self._holder.close()
                raise
        finally:
            replication.close()
        self._position = position_of(parse_lsn(lsn))

    @property
    def position(self) -> Position:
        """The image shows what committed at or below this place in the log."""
        return self._position

    def parts(
        self,
        table: TableSchema,
        target_bytes: int = DEFAULT_PART_BYTES,
        *,
        columns: Sequence[int] | None = None,
        keys: KeyRange | None = None,
    ) -> Sequence[PostgresPart]:
        """Block ranges that together are the table, at least one for each heap that has any.

        Raises:
            ChangefeedError: CF2201 the snapshot is gone, or the table is not what ``table``
                says any more (describe it again), CF2202 it was dropped.
        """
        chosen = _chosen(table, columns)
        where = _key_condition(table, keys)
        with self._use("plan the initial scan") as holder:
            heaps = _heaps(holder, table)
            by_range = holder.info.server_version >= 140_000
        found: list[PostgresPart] = []
        for heap in heaps:
            ranges = (
                _ranges(heap.pages, heap.bytes, target_bytes)
                if by_range and heap.ranged
                else [(0, None, True)]
            )
            for low, high, whole in ranges:
                pages = (high or heap.pages) - low
                share = pages / heap.pages if heap.pages and not whole else 1.0
                found.append(
                    PostgresPart(
                        uri=self._uri,
                        snapshot=self._exported,
                        table=table,
                        relation=(heap.schema, heap.name),
                        oid=heap.oid,
                        file=heap.file,
                        shape=heap.shape,
                        columns=chosen,
                        where=where,
                        low=low,
                        high=high,
                        whole=whole,
                        rows_estimate=round(heap.rows * share),
                        bytes_estimate=round(heap.bytes * share),
                    )
                )
        return found

    def verify(self, table: TableSchema) -> None:
        """The table is readable and what ``table`` says.

        Raises:
            ChangefeedError: CF2201 it changed: describe it again; CF2004 no right to read it.
        """
        with self._use("read the table") as holder:
            _check_columns(holder, table)

    def rows_estimate(self, table: TableSchema) -> int:
        """About how many rows the table has, by the server's statistics and its size now."""
        with self._use("estimate the initial scan") as holder:
            infos = table_list(holder, self._source, oids=[table.oid])
        return infos[0].rows_estimate if infos else 0

    def alive(self) -> bool:
        """The holder's connection still stands."""
        return is_quiet(self._holder)

    def close(self) -> None:
        """End the snapshot, and the readers of it in this process that are idle."""
        self._holder.close()
        READERS.forget(self._uri, self._exported)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _use(self, doing: str) -> _HolderUse:
        return _HolderUse(self._holder, self._lock, doing)


class _HolderUse:
    """The holder's connection for a few queries; an error there means the image is gone.

    Queries run in a savepoint, so that a failing one does not end the transaction that
    keeps the snapshot, and their locks are let go.
    """

    def __init__(self, holder: Connection, lock: threading.Lock, doing: str) -> None:
        self._holder = holder
        self._lock = lock
        self._doing = doing

    def __enter__(self) -> Connection:
        self._lock.acquire()
        try:
            self._holder.execute("SAVEPOINT part")
        except psycopg.Error as error:
            self._lock.release()
            raise _gone(error) from error
        return self._holder

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._holder.execute("ROLLBACK TO SAVEPOINT part")
            self._holder.execute("RELEASE SAVEPOINT part")
        except psycopg.Error as lost:
            raise _gone(lost) from (error or lost)
        finally:
            self._lock.release()
        if isinstance(error, errors.UndefinedTable | errors.UndefinedColumn):
            raise ChangefeedError(
                "CF2201", f"a table changed during its initial scan: {error.diag.message_primary}"
            ) from error
        if isinstance(error, psycopg.Error):
            raise translate(error, self._doing) from error


def _export(
    uri: str, replication: psycopg.Connection[Any], seconds: float
) -> tuple[str, str]:
    """Make the temporary slot; its consistent point and the name of its snapshot.

    The server waits for all transactions that were open; the wait is bounded here, because
    one forgotten session would hold up every initial scan.
    """
    slot = f"changefeed_scan_{os.getpid()}_{secrets.token_hex(4)}"
    timer = threading.Timer(seconds, _cancel, args=(replication,))
    timer.daemon = True
    timer.start()
    try:
        row = replication.execute(
            f"CREATE_REPLICATION_SLOT {slot} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT"
        ).fetchone()
    except errors.QueryCanceled as error:
        raise _open_transactions(uri, seconds) from error
    except errors.ConfigurationLimitExceeded as error:
        raise ChangefeedError(
            "CF2005",
            "all replication slots of the server are in use",
            detail="an initial scan needs one for a moment",
            hint="SELECT slot_name, active FROM pg_replication_slots; -- drop what nobody uses,"
            " or raise max_replication_slots",
        ) from error
    except psycopg.Error as error:
        raise translate(error, "begin the initial scan") from error
    finally:
        timer.cancel()
    if row is None or not row[2]:
        raise ChangefeedError("CF2201", "the server gave no snapshot for the initial scan")
    return row[1], row[2]


def _cancel(connection: psycopg.Connection[Any]) -> None:
    try:
        connection.cancel()
    except psycopg.Error:
        # The connection is gone by itself: the waiting call ends with its own error.
        return


def _open_transactions(uri: str, seconds: float) -> ChangefeedError:
    """The error that names who was waited for."""
    with connect(uri) as connection, source_errors("look for open transactions"):
        rows = connection.execute(
            """
            SELECT pid, usename, extract(epoch FROM now() - xact_start)::int
            FROM pg_catalog.pg_stat_activity
            WHERE backend_xid IS NOT NULL AND pid <> pg_catalog.pg_backend_pid()
            ORDER BY xact_start LIMIT 3
            """
        ).fetchall()
    who = [f"pid {pid} of {user}, open for {age} s" for pid, user, age in rows]
    return ChangefeedError(
        "CF2005",
        f"the initial scan could not begin within {seconds:.0f} s: a transaction does not end",
        detail="; ".join(who),
        hint="COMMIT or ROLLBACK it, or SELECT pg_terminate_backend(pid); also look into "
        "pg_prepared_xacts.",
    )


def _import(connection: Connection, exported: str) -> None:
    connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(exported)))


def _gone(error: psycopg.Error) -> ChangefeedError:
    lost = translate(error, "go on with the initial scan")
    if lost.code.number in ("CF2002", "CF2004"):
        return lost
    return ChangefeedError(
        "CF2201",
        "the snapshot of the initial scan is gone",
        detail=lost.message,
        hint="the scan of the table starts again by itself.",
    )


def _one(cursor: psycopg.Cursor[Any]) -> Any:
    row = cursor.fetchone()
    if row is None:
        raise ChangefeedError("CF2201", "the server gave an empty answer")
    return row


# ------------------------------------------------------------------------- parts


@dataclass(frozen=True, slots=True)
class _Heap:
    """A table or leaf partition with rows of its own."""

    oid: int
    schema: str
    name: str
    ranged: bool
    pages: int
    bytes: int
    rows: float
    file: int
    shape: Shape


# A partition may be a foreign table; block ranges need the heap access method.
_HEAPS = """
    SELECT l.oid::int8, n.nspname, l.relname, l.relkind::text, coalesce(am.amname = 'heap', false),
           coalesce(pg_catalog.pg_relation_size(l.oid), 0)
               / current_setting('block_size')::int8,
           coalesce(pg_catalog.pg_table_size(l.oid), 0),
           coalesce(pg_catalog.pg_relation_filenode(l.oid), 0)::int8
    FROM (SELECT t.relid::oid FROM pg_catalog.pg_partition_tree(%(oid)s::oid) t WHERE t.isleaf
          UNION SELECT %(oid)s::oid) leaf(oid)
    JOIN pg_catalog.pg_class l ON l.oid = leaf.oid AND l.relkind <> 'p'
    JOIN pg_catalog.pg_namespace n ON n.oid = l.relnamespace
    LEFT JOIN pg_catalog.pg_am am ON am.oid = l.relam
    ORDER BY 2, 3
"""


def _heaps(holder: Connection, table: TableSchema) -> list[_Heap]:
    rows = holder.execute(_HEAPS, {"oid": table.oid}).fetchall()
    foreign = [f"{schema}.{name}" for _, schema, name, kind, *_ in rows if kind == "f"]
    if foreign:
        raise ChangefeedError(
            "CF2202",
            f"table {table.table} cannot be scanned: partition {foreign[0]} is a foreign table",
            hint="DETACH it, or watch it on the server that holds it.",
        )
    _check_columns(holder, table)
    density = _rows_per_page(holder, [row[0] for row in rows])
    names = [c.name for c in table.columns]
    return [
        _Heap(
            oid, schema, name, heap, pages, size, density[oid] * pages, file,
            _shape(holder, (schema, name), names),
        )
        for oid, schema, name, _, heap, pages, size, file in rows
    ]  # fmt: skip


def _check_columns(holder: Connection, table: TableSchema) -> None:
    """The table still has the columns of ``table``, of the same types.

    Raises:
        ChangefeedError: CF2201 it has other columns now, or is gone: describe it again.
    """
    names = [c.name for c in table.columns]
    shape = _shape(holder, (table.table.schema, table.table.name), names)
    types = holder.execute(
        "SELECT pg_catalog.format_type(t, m) FROM unnest(%s::oid[], %s::int4[])"
        " WITH ORDINALITY AS u(t, m, place) ORDER BY place",
        [[kind for _, kind, _ in shape], [modifier for _, _, modifier in shape]],
    ).fetchall()
    for column, (number, _, _), (spelled,) in zip(table.columns, shape, types, strict=True):
        if (column.number, column.type_name) != (number, spelled):
            raise _table_changed(table, f"column {column.name} is not what it was")


def _shape(connection: Connection, relation: tuple[str, str], names: Sequence[str]) -> Shape:
    """Number, type and modifier of each column as it is *now*; takes the table's lock.

    A query of the catalog would not do: inside the snapshot's transaction it shows the
    catalog of the snapshot, while COPY goes by the present one. So does a row description.
    """
    answer = connection.execute(
        sql.SQL("SELECT {} FROM ONLY {} LIMIT 0").format(
            sql.SQL(", ").join(map(sql.Identifier, names)), sql.Identifier(*relation)
        )
    ).pgresult
    if answer is None:
        raise ChangefeedError("CF2201", "the server gave an empty answer")
    return tuple(
        (answer.ftablecol(i), answer.ftype(i), answer.fmod(i)) for i in range(answer.nfields)
    )


def _rows_per_page(holder: Connection, oids: Sequence[int]) -> dict[int, float]:
    """Rows in a block, by the last ANALYZE or else by the width of the columns."""
    rows = holder.execute(
        """
        SELECT c.oid::int8, CASE
            WHEN c.relpages > 0 AND c.reltuples >= 0 THEN c.reltuples::float8 / c.relpages
            ELSE (current_setting('block_size')::float8 - 24) / (28 + (
                SELECT coalesce(sum(CASE WHEN a.attlen > 0 THEN a.attlen ELSE 32 END), 0)
                FROM pg_catalog.pg_attribute a
                WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)) END
        FROM pg_catalog.pg_class c WHERE c.oid = ANY (%s::oid[])
        """,
        [list(oids)],
    )
    return dict(rows.fetchall())


def _ranges(
    pages: int, size: int, target_bytes: int
) -> list[tuple[int, int | None, bool]]:
    """Ranges of blocks of about ``target_bytes`` with their share of large values.

    >>> _ranges(10, 10 * 8192, 4 * 8192)
    [(0, 4, False), (4, 8, False), (8, None, False)]
    >>> _ranges(0, 0, 8192)
    [(0, None, True)]
    """
    step = max(1, int(pages * target_bytes / size)) if size else 1
    if pages <= step:
        return [(0, None, True)]
    starts = list(range(0, pages, step))
    ends: list[int | None] = [*starts[1:], None]
    return [(low, high, False) for low, high in zip(starts, ends, strict=True)]


def _chosen(table: TableSchema, columns: Sequence[int] | None) -> tuple[int, ...]:
    if columns is None:
        return tuple(range(len(table.columns)))
    key = () if table.keyless else table.key
    return tuple(sorted({*columns, *key}))


#: Logical types whose order depends on a collation.
_COLLATED = frozenset({"text"})


def _key_condition(table: TableSchema, keys: KeyRange | None) -> str:
    """``(k1, k2) >= (..) AND (k1) < (..)`` with quoted literals.

    Text is compared by code point: the same rule as for rows of the stream, which the
    source's collation does not reach.
    """
    if keys is None:
        return ""
    conditions = [
        sql.SQL("{} {} {}").format(
            _row([_key_term(table, i) for i in range(len(values))]),
            sql.SQL(operator),
            _row([sql.Literal(value) for value in values]),
        )
        for operator, values in ((">=", keys.low), ("<", keys.high))
        if values
    ]
    return sql.SQL(" AND ").join(conditions).as_string(None)


def _key_term(table: TableSchema, place: int) -> sql.Composable:
    column = table.key_columns[place]
    name = sql.Identifier(column.name)
    if column.logical in _COLLATED:
        return name + sql.SQL('::pg_catalog.text COLLATE pg_catalog."C"')
    return name


def _row(terms: Iterable[sql.Composable]) -> sql.Composable:
    listed = list(terms)
    joined = sql.SQL(", ").join(listed)
    return sql.SQL("({})" if len(listed) == 1 else "ROW({})").format(joined)


# ------------------------------------------------------------------------- reading


class Readers:
    """Idle connections of this process that have imported a snapshot.

    A scan of 500 small tables reads its parts one after another on the same few connections.
    """

    def __init__(self) -> None:
        self._idle: dict[tuple[str, str], list[Connection]] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def take(self, uri: str, snapshot: str) -> Connection:
        """A connection inside a transaction with the snapshot.

        Raises:
            ChangefeedError: CF2201 the snapshot is gone; CF2001, CF2002 no connection.
        """
        while (connection := self._pop(uri, snapshot)) is not None:
            if is_quiet(connection):
                return connection
            connection.close()
        connection = connect(uri)
        try:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            _import(connection, snapshot)
            connection.execute(f"SET LOCAL idle_in_transaction_session_timeout = '{READER_IDLE}'")
        except psycopg.Error as error:
            connection.close()
            raise _gone(error) from error
        return connection

    def give_back(self, uri: str, snapshot: str, connection: Connection) -> None:
        """Keep the connection for the next part; at most one idle for each snapshot."""
        with self._lock:
            idle = self._idle.setdefault((uri, snapshot), [])
            if not idle:
                idle.append(connection)
                return
        connection.close()

    def forget(self, uri: str, snapshot: str) -> None:
        """Close what is idle for the snapshot."""
        with self._lock:
            idle = self._idle.pop((uri, snapshot), [])
        for connection in idle:
            connection.close()

    def _pop(self, uri: str, snapshot: str) -> Connection | None:
        with self._lock:
            if self._pid != os.getpid():
                # Forked: the sockets are the parent's. Drop them without a goodbye.
                self._idle, self._pid = {}, os.getpid()
            idle = self._idle.get((uri, snapshot))
            return idle.pop() if idle else None


READERS = Readers()


def read_part(part: PostgresPart) -> Iterator[pa.RecordBatch]:
    """The rows of a part; see :meth:`changefeed.sources.base.ScanPart.read`.

    Holds one block of text and its batch at a time. Leaving the iteration early closes the
    connection, which ends the COPY at the server.
    """
    connection = READERS.take(part.uri, part.snapshot)
    try:
        connection.execute("SAVEPOINT part")
        _prove_unchanged(connection, part)
        yield from _batches(connection, part)
        connection.execute("ROLLBACK TO SAVEPOINT part")
        connection.execute("RELEASE SAVEPOINT part")
    except psycopg.Error as error:
        connection.close()
        raise _reading_failed(part, error) from error
    except BaseException:
        connection.close()
        raise
    READERS.give_back(part.uri, part.snapshot, connection)


def _prove_unchanged(connection: Connection, part: PostgresPart) -> None:
    """Take the lock that keeps the table as it is, and compare it with what the part knows."""
    shape = _shape(connection, part.relation, [c.name for c in part.table.columns])
    (file,) = _one(
        connection.execute(
            "SELECT coalesce(pg_catalog.pg_relation_filenode(%s::oid), 0)::int8", [part.oid]
        )
    )
    if file != part.file:
        raise _table_changed(part.table, "it was truncated or rewritten")
    if shape != part.shape:
        raise _table_changed(part.table, "its columns changed")


def _table_changed(table: TableSchema, why: str) -> ChangefeedError:
    return ChangefeedError(
        "CF2201",
        f"table {table.table} changed during its initial scan: {why}",
        hint="the scan of the table starts again by itself.",
    )


def _batches(connection: Connection, part: PostgresPart) -> Iterator[pa.RecordBatch]:
    with connection.cursor() as cursor, cursor.copy(part.query()) as copy:
        for block in _blocks(copy):
            yield _batch(part, block)


def _blocks(rows: Iterable[Piece]) -> Iterator[bytes]:
    """Join the server's messages, one whole row each, to blocks."""
    block: list[Piece] = []
    size = 0
    for row in rows:
        block.append(row)
        size += len(row)
        if size >= BLOCK_BYTES:
            yield b"".join(block)
            block, size = [], 0
    if block:
        yield b"".join(block)


def _batch(part: PostgresPart, block: bytes) -> pa.RecordBatch:
    """A block of CSV as columns ``a0..an`` in log form."""
    table = part.table
    texts = parse_csv(block, len(part.columns))
    by_place = dict(zip(part.columns, texts, strict=True))
    count = len(texts[0])
    try:
        arrays = [
            text_column(column, by_place[i]) if i in by_place else pa.nulls(count, column.arrow)
            for i, column in enumerate(table.columns)
        ]
    except (pa.ArrowInvalid, ValueError) as error:
        raise ChangefeedError(
            "CF2202",
            f"table {table.table} cannot be scanned: a value does not fit the type of its column",
            hint="ALTER TABLE during the scan can do this: the scan starts again on RESUME.",
        ) from error
    names = [f"a{i}" for i in range(len(table.columns))]
    return pa.record_batch(arrays, names=names)


def parse_csv(block: bytes, columns: int) -> list[pa.Array]:
    """PostgreSQL's CSV without a header as string columns; NULL and '' stay apart.

    PostgreSQL writes NULL as nothing and the empty string as ``""``. A row of one NULL is an
    empty line, which is a row all the same.

    Raises:
        ChangefeedError: CF2202 the text is not UTF-8 (a SQL_ASCII database holds what it likes).
    """
    names = [str(i) for i in range(columns)]
    try:
        table = pa_csv.read_csv(
            pa.BufferReader(block),
            read_options=pa_csv.ReadOptions(
                column_names=names, block_size=len(block) + 1, use_threads=False
            ),
            parse_options=pa_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            convert_options=pa_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid as error:
        raise ChangefeedError(
            "CF2202",
            "the table holds text that is not valid UTF-8",
            hint="the database's encoding is SQL_ASCII or its text was damaged: repair the rows.",
        ) from error
    return [column.combine_chunks() for column in table.columns]


#: What a failing COPY says about the table rather than about the connection.
_CHANGED_STATES = frozenset({"42P01", "42703", "55000", "22023"})


def _reading_failed(part: PostgresPart, error: psycopg.Error) -> ChangefeedError:
    if error.sqlstate in _CHANGED_STATES:
        return _table_changed(part.table, error.diag.message_primary or "it was altered")
    known = translate(error, f"read table {part.table.table}")
    if known.code.number == "CF2003":
        return ChangefeedError("CF2202", known.message, detail=known.detail)
    if known.code.number in ("CF2002", "CF2004"):
        return known
    return ChangefeedError("CF2201", known.message, detail=known.detail, hint=known.hint)

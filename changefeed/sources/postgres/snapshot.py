"""The initial scan: a consistent image of the database, read in parts by any process.

    replication connection   CREATE_REPLICATION_SLOT ... TEMPORARY ... EXPORT_SNAPSHOT
          |                  -> consistent point (our position) and a snapshot of that instant
          v
    holder connection        imports the snapshot and exports it again; stays open
          |                  (the slot is dropped now: a long scan holds back no WAL)
          v
    reader connections       import it, one per process, reused for part after part

A part is a range of blocks (``ctid``) of one heap: a table, or each partition of one. How a part
is read, and why DDL does no harm meanwhile, is in :mod:`changefeed.sources.postgres.scan`.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import errors, sql

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Position
from changefeed.core.partition import Partition
from changefeed.core.schema import Column, KeyRange, TableSchema
from changefeed.core.types import Kind
from changefeed.core.unread import PartRange
from changefeed.sources.base import (
    DEFAULT_PART_BYTES,
    WHOLE_LOOKS,
    KeySet,
    ScanPart,
    Snapshot,
    leading,
)
from changefeed.sources.postgres.connect import (
    PsycopgConnection,
    connect,
    connect_replication,
    source_errors,
    translate,
)
from changefeed.sources.postgres.given import row_filter
from changefeed.sources.postgres.lsn import parse_lsn, position_of
from changefeed.sources.postgres.partitions import oid_of
from changefeed.sources.postgres.partitions import read as read_partition
from changefeed.sources.postgres.scan import (
    READERS,
    PostgresPart,
    Shape,
    import_snapshot,
    only_row,
    reading_failed,
    shape_now,
    snapshot_gone,
)
from changefeed.sources.postgres.standby import Prompter, await_replay
from changefeed.sources.scans import chosen_columns, table_changed

#: How long to wait for transactions that were open when the scan began.
CONSISTENT_SECONDS = 300.0

#: After this long the log names the transactions that are waited for.
TOLD_AFTER_SECONDS = 10.0

_logger = logging.getLogger(__name__)

#: A table is never cut into more parts than this.
MOST_PARTS = 10_000

# ------------------------------------------------------------------------- the image


class PostgresSnapshot(Snapshot):
    """A snapshot of one instant, exported by a connection of its own until closed."""

    def __init__(
        self,
        uri: str,
        source: str,
        *,
        primary: str | None = None,
        publication: str = "",
        consistent_seconds: float = CONSISTENT_SECONDS,
        told_after_seconds: float = TOLD_AFTER_SECONDS,
        on_wait: Callable[[str], None] = lambda what: None,
    ) -> None:
        """Take the snapshot. ``primary``: of the standby that ``uri`` leads to. ``publication``: an
        administrator's, whose row filters apply.

        It begins when the transactions have ended that are open now: ``on_wait`` gets their names
        every ``told_after_seconds`` and an empty text in the end, the log names them once, and
        ``consistent_seconds`` is the longest wait.

        Raises:
            ChangefeedError: CF2005 when open transactions or a lack of free slots prevent it,
                CF2201 when it was gone before it was kept (try again), CF2001, CF2002, CF2004.
        """
        self._uri = uri
        self._source = source
        self._publication = publication
        self._lock = threading.Lock()
        if primary:
            # What had committed when the scan was asked for is in it.
            _await_standby(primary, uri, consistent_seconds)
        replication = connect_replication(uri)
        try:
            with Prompter(primary) if primary else nullcontext():
                with _reporting_waits(told_after_seconds, primary or uri, on_wait):
                    lsn, exported = _export(primary or uri, replication, consistent_seconds)
            self._holder = connect(uri)
            try:
                with source_errors("open the snapshot of the initial scan"):
                    self._holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                    _import(self._holder, exported)
                    row = self._holder.execute("SELECT pg_catalog.pg_export_snapshot()")
                    self._exported: str = only_row(row)[0]
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
        keys: KeyRange | KeySet | None = None,
        partition: Partition | None = None,
    ) -> Sequence[PostgresPart]:
        """Block ranges that together are the table, at least one for each heap that has any. Rows
        of a :class:`KeySet` are one part of each heap, which its index finds.

        Raises:
            ChangefeedError: CF2201 the snapshot is gone, or the table is not what ``table``
                says any more (describe it again), CF2202 it cannot be read, CF1101 and CF1303
                the partition is not what it was.
        """
        chosen_keys = isinstance(keys, KeySet)
        heaps, where = self._heaps(table, keys, partition)
        return [
            self._part(
                heap, one, table, chosen_columns(table, columns), where, known=not chosen_keys
            )
            for heap in heaps
            for one in ([(0, None, True)] if chosen_keys else _cut(heap, target_bytes))
        ]

    def part_range(self, part: ScanPart) -> PartRange | None:
        """Blocks of the heap's present file: a row that another transaction moves there is in the
        stream."""
        if not isinstance(part, PostgresPart):
            return None
        low, high = ((str(at),) if at else None for at in (part.low, part.high))
        return PartRange(_place(part.oid, part.file), low, high)

    def rest(
        self,
        table: TableSchema,
        places: Collection[str],
        left: Sequence[PartRange],
        target_bytes: int = DEFAULT_PART_BYTES,
        *,
        keys: KeyRange | None = None,
        partition: Partition | None = None,
    ) -> Sequence[PostgresPart] | None:
        """See :meth:`changefeed.sources.base.Snapshot.rest`. A heap that is new is read whole; None
        if one was rewritten, truncated or detached since."""
        heaps, where = self._heaps(table, keys, partition)
        if not set(places) <= {_place(heap.oid, heap.file) for heap in heaps}:
            return None
        chosen = chosen_columns(table, None)
        found: list[PostgresPart] = []
        for heap in heaps:
            place = _place(heap.oid, heap.file)
            ranges = _cut(heap, target_bytes)
            for one in left if place in places else [PartRange(place)]:
                if one.place == place:
                    cut = _within(ranges, one)
                    found += (self._part(heap, each, table, chosen, where) for each in cut)
        return found

    def _heaps(
        self, table: TableSchema, keys: KeyRange | KeySet | None, partition: Partition | None
    ) -> tuple[list[_Heap], str]:
        """The heaps with rows of a table, and the condition on these rows."""
        where = _key_condition(table, keys)
        with self._use(table) as holder:
            if self._publication:
                published = row_filter(holder, self._publication, table.table_id)
                where = " AND ".join(filter(None, (where, published and f"({published})")))
            top = table.table_id if partition is None else _same_partition(holder, table, partition)
            heaps = _heaps(holder, table, top)
            if holder.info.server_version < 140_000:
                heaps = [replace(heap, ranged=False) for heap in heaps]
        return heaps, where

    def _part(
        self,
        heap: _Heap,
        blocks: _Blocks,
        table: TableSchema,
        columns: tuple[int, ...],
        where: str,
        *,
        known: bool = True,
    ) -> PostgresPart:
        """``known``: about how many rows there are."""
        low, high, whole = blocks
        pages = (heap.pages if high is None else high) - low
        share = max(0.0, pages / heap.pages) if heap.pages and not whole else 1.0
        return PostgresPart(
            uri=self._uri,
            snapshot=self._exported,
            table=table,
            relation=(heap.schema, heap.name),
            oid=heap.oid,
            file=heap.file,
            shape=heap.shape,
            columns=columns,
            where=where,
            low=low,
            high=high,
            whole=whole,
            rows_estimate=round(heap.rows * share) if known else 0,
            bytes_estimate=round(heap.bytes * share) if known else 0,
        )

    def close(self) -> None:
        """End the snapshot, and the readers of it in this process that are idle."""
        self._holder.close()
        READERS.forget(self._uri, self._exported)

    @contextmanager
    def _use(self, table: TableSchema) -> Iterator[PsycopgConnection]:
        """The holder's connection for a few queries; an error there means the image is gone.

        Queries run in a savepoint, so that a failing one does not end the transaction that
        keeps the snapshot, and their locks are let go.
        """
        with self._lock:
            try:
                self._holder.execute("SAVEPOINT part")
            except psycopg.Error as error:
                raise snapshot_gone(error) from error
            try:
                yield self._holder
            except psycopg.Error as error:
                raise reading_failed(table, error, self._holder.info.user) from error
            finally:
                try:
                    self._holder.execute("ROLLBACK TO SAVEPOINT part; RELEASE SAVEPOINT part")
                except psycopg.Error as lost:
                    raise snapshot_gone(lost) from lost


def _export(uri: str, replication: psycopg.Connection[Any], seconds: float) -> tuple[str, str]:
    """Make the temporary slot; its consistent point and the name of its snapshot.

    ``uri`` leads to where the transactions are that are waited for.

    The server waits for all transactions that were open; the wait is bounded here, because
    one forgotten session would hold up every initial scan.
    """
    slot = f"changefeed_scan_{os.getpid()}_{secrets.token_hex(4)}"
    try:
        with _cancelled_after(seconds, replication):
            row = replication.execute(
                f"CREATE_REPLICATION_SLOT {slot} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT"
            ).fetchone()
    except errors.QueryCanceled as error:
        raise _waited_in_vain(uri, seconds) from error
    except errors.ConfigurationLimitExceeded as error:
        raise ChangefeedError(
            Code.SOURCE_BUSY,
            "all replication slots of the server are in use",
            detail="an initial scan needs one for a moment",
            hint="SELECT slot_name, active FROM pg_replication_slots; -- drop what nobody uses,"
            " or raise max_replication_slots",
        ) from error
    except psycopg.Error as error:
        raise translate(error, "begin the initial scan") from error
    if row is None or not row[2]:
        raise ChangefeedError(
            Code.SCAN_INTERRUPTED, "the server gave no snapshot for the initial scan"
        )
    return row[1], row[2]


@contextmanager
def _cancelled_after(seconds: float, connection: psycopg.Connection[Any]) -> Iterator[None]:
    timer = threading.Timer(seconds, _cancel, args=(connection,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _reporting_waits(
    seconds: float, uri: str, on_wait: Callable[[str], None], clock: Clock = SYSTEM_CLOCK
) -> Iterator[None]:
    """Another thread reports every ``seconds`` which transactions the block waits for."""
    over = threading.Event()

    def report() -> None:
        logged = False
        while not clock.wait(over, seconds):
            try:
                who = _open_transactions(uri)
            except ChangefeedError as error:
                who = f"transactions that cannot be seen: {error.message}"
            if not over.is_set():
                on_wait(who)
            if not logged:
                logged = True
                _logger.warning(
                    "the initial scan waits for the transactions that were open before it: %s",
                    who or "none is open at the moment",
                )

    reporter = threading.Thread(target=report, name="pg-waits", daemon=True)
    reporter.start()
    try:
        yield
    finally:
        over.set()
        reporter.join()
        on_wait("")


def _await_standby(primary: str, uri: str, seconds: float) -> None:
    with connect(primary) as written, connect(uri) as read, source_errors("wait for the standby"):
        await_replay(written, read, seconds)


def _import(holder: PsycopgConnection, exported: str) -> None:
    try:
        import_snapshot(holder, exported)
    except psycopg.Error as error:
        # The walsender that exported it was ended in between, which no setup can prevent.
        raise snapshot_gone(error) from error


def _cancel(connection: psycopg.Connection[Any]) -> None:
    try:
        connection.cancel()
    except psycopg.Error:
        # The connection is gone by itself: the waiting call ends with its own error.
        return


def _waited_in_vain(uri: str, seconds: float) -> ChangefeedError:
    return ChangefeedError(
        Code.SOURCE_BUSY,
        f"the initial scan could not begin within {seconds:.0f} s: a transaction does not end",
        detail=_open_transactions(uri),
        hint="COMMIT or ROLLBACK it, or SELECT pg_terminate_backend(pid); also look into "
        "pg_prepared_xacts.",
    )


def _open_transactions(uri: str) -> str:
    """The oldest transactions that have written something, and prepared ones."""
    with connect(uri) as connection, source_errors("look for open transactions"):
        rows = connection.execute(
            """
            SELECT pid, usename, extract(epoch FROM now() - xact_start)::int
            FROM pg_catalog.pg_stat_activity
            WHERE backend_xid IS NOT NULL AND pid <> pg_catalog.pg_backend_pid()
            ORDER BY xact_start LIMIT 3
            """
        ).fetchall()
        prepared = connection.execute(
            """
            SELECT gid, owner, extract(epoch FROM now() - prepared)::int
            FROM pg_catalog.pg_prepared_xacts ORDER BY prepared LIMIT 3
            """
        ).fetchall()
    # Only pg_read_all_stats sees when another role's transaction began.
    who = [
        f"pid {pid} of {user}" + ("" if age is None else f", open for {age} s")
        for pid, user, age in rows
    ]
    who += [f'prepared "{gid}" of {owner}, for {age} s' for gid, owner, age in prepared]
    return "; ".join(who)


# ------------------------------------------------------------------------- parts


@dataclass(frozen=True, slots=True)
class _Heap:
    oid: int
    schema: str
    name: str
    ranged: bool
    pages: int
    bytes: int
    rows: float
    file: int
    shape: Shape


# A partition may be a foreign table; block ranges need the heap access method. The table's file
# comes twice: as it is now (the function), and as the snapshot's catalog has it. Rows in a block
# are those of the last ANALYZE, or else estimated by the width of the columns.
_HEAPS = """
    SELECT l.oid::int8, n.nspname, l.relname, l.relkind::text, coalesce(am.amname = 'heap', false),
           coalesce(pg_catalog.pg_relation_size(l.oid), 0)
               / current_setting('block_size')::int8,
           coalesce(pg_catalog.pg_table_size(l.oid), 0),
           CASE WHEN l.relpages > 0 AND l.reltuples >= 0 THEN l.reltuples::float8 / l.relpages
                ELSE (current_setting('block_size')::float8 - 24) / (28 + (
                    SELECT coalesce(sum(CASE WHEN a.attlen > 0 THEN a.attlen ELSE 32 END), 0)
                    FROM pg_catalog.pg_attribute a
                    WHERE a.attrelid = l.oid AND a.attnum > 0 AND NOT a.attisdropped)) END,
           coalesce(pg_catalog.pg_relation_filenode(l.oid), 0)::int8, l.relfilenode::int8
    FROM (SELECT t.relid::oid FROM pg_catalog.pg_partition_tree(%(top)s::oid) t WHERE t.isleaf
          UNION SELECT %(top)s::oid) leaf(oid)
    JOIN pg_catalog.pg_class l ON l.oid = leaf.oid AND l.relkind <> 'p'
    JOIN pg_catalog.pg_namespace n ON n.oid = l.relnamespace
    LEFT JOIN pg_catalog.pg_am am ON am.oid = l.relam
    ORDER BY 2, 3
"""


def _same_partition(holder: PsycopgConnection, table: TableSchema, partition: Partition) -> int:
    """The oid of a partition that still has the bounds a feed began with."""
    top = oid_of(holder, table, partition.name)
    if read_partition(holder, table, top, partition.name) != partition:
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            f"partition {partition.name} of {table.table} has other bounds now",
            hint=f"ALTER CHANGEFEED .. DROP {table.table.name}, then ADD it again.",
        )
    return top


def _heaps(holder: PsycopgConnection, table: TableSchema, top: int) -> list[_Heap]:
    """The relations with rows below ``top``: the table, or a partition of it."""
    rows = holder.execute(_HEAPS, {"top": top}).fetchall()
    foreign = [f"{schema}.{name}" for _, schema, name, kind, *_ in rows if kind == "f"]
    if foreign:
        raise ChangefeedError(
            Code.TABLE_NOT_SCANNABLE,
            f"table {table.table} cannot be scanned: partition {foreign[0]} is a foreign table",
            hint="DETACH it, or watch it on the server that holds it.",
        )
    if any(file != seen for *_, file, seen in rows):
        raise table_changed(table.table, "it was truncated or rewritten")
    own = _check_columns(holder, table)
    names = [c.name for c in table.columns]
    return [
        _Heap(
            oid=oid,
            schema=schema,
            name=name,
            ranged=ranged,
            pages=pages,
            bytes=size,
            rows=density * pages,
            file=file,
            shape=own if oid == table.table_id else shape_now(holder, (schema, name), names),
        )
        for oid, schema, name, _, ranged, pages, size, density, file, _ in rows
    ]


# A row description shows the type below a domain, so that is what is compared.
_COLUMNS = """
    SELECT a.attname, a.attnum, pg_catalog.format_type(a.atttypid, a.atttypmod),
           below.oid::int8, below.typmod
    FROM pg_catalog.pg_attribute a
    CROSS JOIN LATERAL (
        WITH RECURSIVE base(oid, typmod, level) AS (
            SELECT a.atttypid, a.atttypmod, 0
            UNION ALL
            SELECT t.typbasetype, t.typtypmod, base.level + 1
            FROM base JOIN pg_catalog.pg_type t ON t.oid = base.oid WHERE t.typtype = 'd'
        )
        SELECT oid, typmod FROM base ORDER BY level DESC LIMIT 1
    ) below
    WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
"""


def _check_columns(holder: PsycopgConnection, table: TableSchema) -> Shape:
    """The columns of ``table``, of the snapshot and of now are the same: as they are now.

    Raises:
        ChangefeedError: CF2201 they differ, or the table is gone: describe it again.
    """
    rows = holder.execute(_COLUMNS, [table.table_id])
    seen = {name: (number, spelled, (number, *below)) for name, number, spelled, *below in rows}
    names = [c.name for c in table.columns]
    now = shape_now(holder, (table.table.schema, table.table.name), names)
    for column, shape in zip(table.columns, now, strict=True):
        if seen.get(column.name) != (column.column_id, column.type_name, shape):
            raise table_changed(table.table, f"column {column.name} is not what it was")
    return now


#: The first block, the block behind the last (None: the end of the heap, wherever that is when it
#: is read), and whether it is all of the heap.
_Blocks = tuple[int, int | None, bool]


def _place(oid: int, file: int) -> str:
    return f"{oid}/{file}"


def _cut(heap: _Heap, target_bytes: int) -> list[_Blocks]:
    return _ranges(heap.pages, heap.bytes, target_bytes) if heap.ranged else [(0, None, True)]


def _within(ranges: Sequence[_Blocks], limits: PartRange) -> list[_Blocks]:
    """What of ``ranges``, which are a heap, is within the limits.

    >>> _within([(0, 4, False), (4, 8, False), (8, None, False)], PartRange("", ("2",), ("8",)))
    [(2, 4, False), (4, 8, False)]
    >>> _within([(0, None, True)], PartRange("", ("2",)))
    [(2, None, False)]
    """
    first = int(limits.low[0]) if limits.low else 0
    end = int(limits.high[0]) if limits.high else None
    found: list[_Blocks] = []
    for low, high, whole in ranges:
        begin = max(low, first)
        stop = high if end is None else end if high is None else min(high, end)
        if stop is None or begin < stop:
            found.append((begin, stop, whole and begin == 0 and stop is None))
    return found


def _ranges(pages: int, size: int, target_bytes: int) -> list[_Blocks]:
    """Ranges of blocks of about ``target_bytes`` with their share of large values.

    >>> _ranges(10, 10 * 8192, 4 * 8192)
    [(0, 4, False), (4, 8, False), (8, None, False)]
    >>> _ranges(0, 0, 8192)
    [(0, None, True)]
    """
    step = max(1, int(pages * target_bytes / size), pages // MOST_PARTS) if size else 1
    if pages <= step:
        return [(0, None, True)]
    starts = list(range(0, pages, step))
    ends: list[int | None] = [*starts[1:], None]
    return [(low, high, False) for low, high in zip(starts, ends, strict=True)]


def _key_condition(table: TableSchema, keys: KeyRange | KeySet | None) -> str:
    """``(k1, k2) >= (..) AND (k1) < (..)`` with quoted literals.

    Text is compared by code point: the same rule as for rows of the stream, which the
    source's collation does not reach.
    """
    if keys is None:
        return ""
    if isinstance(keys, KeySet):
        return _one_of(table, keys)
    conditions = [
        _compared(table, operator, values)
        for operator, values in ((">=", keys.low), ("<", keys.high))
        if values
    ]
    return sql.SQL(" AND ").join(conditions).as_string(None)


def _compared(table: TableSchema, operator: str, values: tuple[str, ...]) -> sql.Composable:
    return sql.SQL("{} {} {}").format(
        _row([_key_term(table, i) for i in range(len(values))]),
        sql.SQL(operator),
        _row([sql.Literal(value) for value in values]),
    )


#: Types that the index of a key has in the order of every target, and those of text.
_INDEXED = re.compile(r"smallint|integer|bigint|date|uuid|numeric\((1?\d|2[0-8]),0\)")
_TEXT = re.compile(r"text|character varying(\(\d+\))?")


def range_columns(table: TableSchema) -> int:
    """See :meth:`changefeed.sources.base.Source.range_columns`."""

    def by_index(column: Column) -> bool:
        return bool(_INDEXED.fullmatch(column.type_name))

    return leading(
        table.key_columns, by_index, lambda c: by_index(c) or bool(_TEXT.fullmatch(c.type_name))
    )


def key_after(
    connection: PsycopgConnection, table: TableSchema, low: tuple[str, ...] | None, rows: int
) -> tuple[str, ...] | None:
    """See :meth:`changefeed.sources.base.Source.key_after`."""
    columns = table.key_columns[: range_columns(table)]
    if columns[0].kind is Kind.TEXT:
        known = connection.execute(_ROWS, [table.table_id, table.table_id])
        rows = max(rows, only_row(known)[0] // WHOLE_LOOKS)
    terms = [_key_term(table, i) for i in range(len(columns))]

    def look(operator: str, offset: int) -> tuple[str, ...] | None:
        query = sql.SQL("SELECT {} FROM {} WHERE {} ORDER BY {} OFFSET {} LIMIT 1").format(
            sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(c.name)) for c in columns),
            sql.Identifier(table.table.schema, table.table.name),
            sql.SQL("true") if low is None else _compared(table, operator, low),
            sql.SQL(", ").join(terms),
            offset,
        )
        return connection.execute(query).fetchone()

    at = look(">=", rows)
    return look(">", 0) if at is not None and at == low else at  # so many rows have these values


#: About how many rows a table has, with its partitions.
_ROWS = """
    SELECT coalesce(sum(greatest(c.reltuples, 0)), 0)::int8 FROM pg_catalog.pg_class AS c
    WHERE c.relkind = 'r' AND (
        c.oid = %s OR c.oid IN (SELECT t.relid FROM pg_catalog.pg_partition_tree(%s) AS t))
"""


#: Types whose values in the log are what the server reads as this type, and finds by an index.
_FOUND_BY_VALUE = re.compile(
    r"smallint|integer|bigint|text|character varying(\(\d+\))?|uuid|date|boolean"
)


def reads_keys(table: TableSchema) -> bool:
    """See :meth:`changefeed.sources.base.Source.reads_keys`."""
    return not table.keyless and all(
        _FOUND_BY_VALUE.fullmatch(column.type_name) for column in table.key_columns
    )


def _one_of(table: TableSchema, keys: KeySet) -> str:
    """``(k1, k2) IN (('1', 'x'), ('2', 'y'))``: a literal takes the type of its column."""
    columns = [sql.Identifier(column.name) for column in table.key_columns]
    rows = [_row([sql.Literal(_key_text(value)) for value in key]) for key in keys.keys]
    condition = sql.SQL("{} IN ({})").format(_row(columns), sql.SQL(", ").join(rows))
    return condition.as_string(None)


def _key_text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _key_term(table: TableSchema, place: int) -> sql.Composable:
    column = table.key_columns[place]
    name = sql.Identifier(column.name)
    if column.kind is Kind.TEXT:
        return name + sql.SQL('::pg_catalog.text COLLATE pg_catalog."C"')
    return name


def _row(terms: Iterable[sql.Composable]) -> sql.Composable:
    listed = list(terms)
    joined = sql.SQL(", ").join(listed)
    return sql.SQL("({})" if len(listed) == 1 else "ROW({})").format(joined)

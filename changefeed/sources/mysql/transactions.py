"""Events of the binlog -> transactions, and what comes of them: flushes.

Pure: no socket, no clock. The same events after the same frontier give the same flushes, so a
crash between receiving and making durable changes nothing.

* The binlog has transactions in commit order, each as a whole. :mod:`.position` says which were
  read before.
* Statements of DDL go to :mod:`.definitions`, row events wait in :mod:`.waiting`.
* Rows of complete transactions are decoded together, a table at a time (:mod:`.decode`), and get
  timestamps, numbers and positions in :mod:`.flushes`.
* The rows of a transaction that grows too large go to disk
  (:mod:`changefeed.sources.decoded.stored`), and out in flushes without a frontier when it ends. A
  prepared XA transaction waits there for its decision, which may come days and restarts later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Flush, Frontier, Position
from changefeed.core.schema import BeforeImage, TableName, TableSchema
from changefeed.sources.decoded.flushes import LogCommit, ShapeChange
from changefeed.sources.decoded.stored import StoredRows, StoredTransaction
from changefeed.sources.decoded.unsent import fill_from_transaction
from changefeed.sources.mysql import binlog, ddl
from changefeed.sources.mysql.binlog import EventType, Header, QueryEvent, misfit
from changefeed.sources.mysql.decode import (
    DELETE,
    INSERT,
    OPERATIONS,
    SMALL_BYTES,
    PartialImages,
    PartialRows,
    find_rows,
)
from changefeed.sources.mysql.defaults import Ask, Defaults, nothing
from changefeed.sources.mysql.definitions import Definitions, Tables
from changefeed.sources.mysql.flushes import BinlogFlushes
from changefeed.sources.mysql.open_transaction import (
    PreparedTransactions,
    ReadTransaction,
    unknown_rows,
)
from changefeed.sources.mysql.partial_tables import (
    CALM_SECONDS,
    may_be_raised,
    parts_only,
)
from changefeed.sources.mysql.position import BinlogPosition as BinlogPosition
from changefeed.sources.mysql.position import (
    MariaBegins,
    Met,
    begins_of,
    maria_begins,
    mysql_begins,
)
from changefeed.sources.mysql.renames import Renames
from changefeed.sources.mysql.shapes import Shapes
from changefeed.sources.mysql.short_transactions import ShortTransaction, find_short
from changefeed.sources.mysql.tablemap import (
    TableShape,
    ends_statement,
    read_table_id,
    read_table_map,
    read_table_name,
)
from changefeed.sources.mysql.tokens import first_word
from changefeed.sources.mysql.waiting import (
    PendingEvents,
    WatchedTable,
    problem_of,
    unreadable,
)
from changefeed.sources.mysql.wire import EventBytes, Packet, event_of

#: Bytes of rows that are decoded together at most; a transaction above goes to disk.
BATCH_BYTES = 8 << 20

#: What is ready, if anything.
Flushes = Iterator[Flush] | None


class Assembler:
    """The state of one stream between its events and its flushes."""

    def __init__(
        self,
        start: Frontier,
        read_upto: BinlogPosition,
        shapes: Shapes,
        spool: Path,
        folder: Path,
        *,
        batch_bytes: int = BATCH_BYTES,
        small: int = SMALL_BYTES,
        met: Met | None = None,
        end: Callable[[], Position] = str,
        joined: Ask = nothing,
        left_out: Ask = nothing,
    ) -> None:
        """
        Args:
            start: everything up to there was read.
            read_upto: the same position, to be moved on.
            shapes: of the source's tables.
            spool: a folder of our own for large transactions; its content is rubbish.
            folder: one that outlives us, for prepared transactions.
            small: see :func:`changefeed.sources.mysql.decode.decode`.
            met: takes note of each transaction with a GTID.
            end: where the server's log ends now.
            joined: see :class:`changefeed.sources.mysql.defaults.Defaults`.
            left_out: the same, ``read``.
        """
        self._defaults = Defaults(folder, start.position, joined=joined, read=left_out)
        #: Tables of which the binlog had parts of rows: until when whole ones do not count.
        self._partial_until: dict[TableName, int] = {}
        self._read_upto = read_upto
        self._begins = begins_of(read_upto, met)
        self._mariadb = isinstance(self._begins, MariaBegins)
        self._shapes = shapes
        self._definitions = Definitions(shapes)
        self._spool = spool
        self._prepared = PreparedTransactions(folder / "xa")
        self._renames = Renames(folder, start.position)
        shapes.keep_in(folder)
        self._out = BinlogFlushes(start, read_upto, shapes, self._renames, end)
        self._batch_bytes = batch_bytes
        self._small = small
        self._wanted: Tables = frozenset()
        #: The wanted tables, by all their names.
        self._tables: Tables = frozenset()
        self._maps: dict[int, tuple[bytes, WatchedTable | None]] = {}
        self._maps_outdated = False
        self._waiting = PendingEvents()
        self._finished: list[tuple[int, LogCommit]] = []
        self._open: ReadTransaction | None = None
        #: Changes of shape that a transaction met which was rolled back: the next one reports them.
        self._carried: list[ShapeChange] = []
        self._checksums: bool | None = None
        self._file = ""
        self._offset = 0
        #: Heartbeats since the last other event.
        self.heartbeats = 0
        self._decided: list[tuple[str, StoredTransaction]] = []

    # ------------------------------------------------------------------------- outside

    @property
    def frontier(self) -> Frontier:
        """What was read completely so far."""
        return self._out.frontier

    @property
    def idle(self) -> bool:
        """No transaction is half read."""
        return self._open is None

    def watch(self, tables: Tables) -> None:
        """The tables of which rows are wanted from here on."""
        if tables != self._wanted:
            self._wanted = tables
            self._watch_renamed()

    def _watch_renamed(self) -> None:
        tables = self._renames.watched(self._wanted)
        if tables != self._tables:
            self._tables = tables
            self._definitions.watch(tables)
            if self._open is None:
                self._maps.clear()
            else:  # its rows refer to them
                self._maps_outdated = True

    def caught_up(self, now_ns: int) -> None:
        """The server had nothing more to send at that time."""
        if now_ns > self._out.last.version:
            self._out.pass_time(now_ns)
            changes = self._overdue(now_ns)
            if changes:
                position = self._read_upto.position
                commit = LogCommit(self._out.last, 0, now_ns // 1000, position)
                self._out.add_commit(commit)
                self._out.announce(changes, [], commit)

    def save(self) -> None:
        """Make durable what a later stream has to know, before a flush is out that relies on it.

        Raises:
            ChangefeedError: CF3004 a file cannot be written.
        """
        self._renames.save()
        self._defaults.save()
        self._shapes.save()

    def acknowledged(self, position: str) -> None:
        """Everything up to there is durable: decided XA transactions are not needed again."""
        while self._decided and self._decided[0][0] <= position:
            self._decided.pop(0)[1].discard()

    def take_all(self, packets: Sequence[Packet], *, short: bool = True) -> Iterator[Flush]:
        """Events in their order; what is ready because of them, each to be taken before the next.

        Args:
            short: take transactions in their shortest form as a whole; what comes out is the same.
        """
        at = 0
        while at < len(packets):
            if short and self._open is None:
                at = self._take_short(packets, at)
            if at < len(packets):
                yield from self.take(event_of(packets[at])) or ()
                at += 1

    def _take_short(self, packets: Sequence[Packet], at: int) -> int:
        """Take the transactions in their shortest form that come next, as :meth:`take` would.

        Returns:
            Where the first is that is not, or that something else speaks against.
        """
        if not self._checksums or self._carried or self._renames.pending:
            return at
        if self._begins is None:
            return at
        mariadb, waiting = self._mariadb, self._waiting
        while (found := find_short(packets, at, mariadb=mariadb)) is not None:
            data, start, end = found.table_map
            content = bytes(data[start + binlog.HEADER_SIZE : end])
            known = self._maps.get(read_table_id(data, start, end))
            if known is None or known[0] != content:
                break
            data, start, end = found.rows
            if len(waiting.data) + end - start >= self._batch_bytes:
                break
            if data[start + binlog.HEADER_SIZE : start + binlog.HEADER_SIZE + 6] != content[:6]:
                break
            table, first, operation = known[1], len(waiting), 0
            if table is not None:
                if table.problem:
                    break
                try:
                    operation, start, images = find_rows(
                        found.rows, found.kind, table.shape, table.heads
                    )
                except ChangefeedError:
                    break
                if images is not None or may_be_raised(table, operation):
                    break
            commit_us = self._begin_short(found)
            if commit_us is None:
                break
            if table is not None and end > start:
                waiting.add(table, operation, data, start, end)
            self._end_short(found, commit_us, first)
            at += 4 if mariadb else 5
        return at

    def _begin_short(self, found: ShortTransaction) -> int | None:
        """Count a transaction as read; when it committed, or None if nothing was done."""
        begins = self._begins
        if isinstance(begins, MariaBegins):
            event = binlog.read_maria_gtid(found.gtid, found.server_id)
            if event.alone or event.xid or begins.has(event):
                return None
            begins.meet(event, binlog.read_seconds(found.gtid), known=False)
            begins.add(event)
            return found.seconds * 1_000_000
        gtid = binlog.read_gtid(found.gtid)
        if begins is None or not gtid.number or not binlog.is_begin(found.begin):
            return None
        if begins.has(gtid):
            return None
        begins.meet(gtid)
        begins.add(gtid)
        return gtid.commit_us or found.seconds * 1_000_000

    def _end_short(self, found: ShortTransaction, commit_us: int, first: int) -> None:
        self.heartbeats = 0
        if found.end:
            self._offset = found.end
        if len(self._waiting) == first:
            self._out.reach(commit_us)
            return
        data, start, _ = found.commit
        number = data[start + binlog.HEADER_SIZE : start + binlog.HEADER_SIZE + 8]
        xid = int.from_bytes(number, "little", signed=True)
        self._finished.append((first, self._out.committed(commit_us, xid, touched=True)))

    def take(self, raw: EventBytes) -> Flushes:
        """One event as it came; what is ready because of it, to be taken before the next one."""
        header = binlog.read_header(raw)
        if self._checksums is None:
            if header.kind != EventType.FORMAT_DESCRIPTION:  # says itself whether it has one
                raw = binlog.without_guessed_checksum(raw)
        elif self._checksums and header.kind != EventType.FORMAT_DESCRIPTION:
            raw = binlog.strip_checksum(raw)
        if header.kind in _HEARTBEATS:
            self.heartbeats += 1
            if self._open is None:
                self._read_upto.passed(self._file, header.end)
            return None
        self.heartbeats = 0
        if header.end and not header.flags & binlog.ARTIFICIAL:
            self._offset = header.end
        ready = self._event(header, raw)
        if ready is None and self._open is None:
            self._read_upto.passed(self._file, self._offset)
        return ready

    def flush(self) -> Iterator[Flush]:
        """All complete transactions."""
        self._decode_finished()
        yield from self._out.flush(self.frontier)

    # -------------------------------------------------------------------------- events

    def _event(self, header: Header, raw: EventBytes) -> Flushes:
        kind = header.kind
        if kind in OPERATIONS:
            return self._rows(header, raw)
        action = _ACTIONS.get(kind)
        if action is not None:
            return action(self, header, raw)
        if kind not in binlog.MEANINGLESS and not header.flags & binlog.IGNORABLE:
            self._unknown(kind)
        return None

    def _unknown(self, kind: int) -> None:
        """An event of a type that is not known, and that is not to be left out: it may change the
        tables that are described for its statement, and no other."""
        error = misfit(f"type {kind}, which is not known")
        opened = self._open
        if opened is None or not opened.mapped:
            raise error
        if not opened.skip:
            for number in opened.mapped:
                if (known := self._maps[number][1]) is not None:
                    self._waiting.lose(known.schema, problem_of(error))

    def _format(self, header: Header, raw: EventBytes) -> None:
        self._checksums = binlog.read_format(raw)
        self._maps.clear()  # a server that was started again counts its tables from the begin
        self._drop_half()

    def _drop_half(self) -> None:
        """A server that crashed left the begin of a transaction at the end of a file."""
        if self._open is not None:
            self._waiting.split(self._open.first)
            self._carried += self._open.changes
            if self._open.stored is not None:
                self._open.stored.discard()
            self._open = None

    def _rotate(self, header: Header, raw: EventBytes) -> None:
        self._file, self._offset = binlog.read_rotate(raw)
        if self._open is None:
            self._read_upto.passed(self._file, self._offset)

    def _gtid(self, header: Header, raw: EventBytes) -> None:
        gtid = binlog.read_gtid(raw)
        opened = ReadTransaction(len(self._waiting), commit_us=gtid.commit_us)
        if self._begins is not None:
            begins = mysql_begins(self._begins)
            begins.meet(gtid)
            opened.skip = begins.has(gtid)
            opened.gtid = lambda: begins.add(gtid)
        self._drop_half()
        self._open = opened

    def _maria_gtid(self, header: Header, raw: EventBytes) -> None:
        gtid = binlog.read_maria_gtid(raw, header.server_id)
        opened = ReadTransaction(len(self._waiting), begun=not gtid.alone)
        if self._begins is not None:
            begins = maria_begins(self._begins)
            opened.skip = begins.has(gtid)
            begins.meet(gtid, header.seconds, known=opened.skip)
            opened.gtid = lambda: begins.add(gtid)
        self._drop_half()
        self._open = opened

    def _tagged(self, header: Header, raw: EventBytes) -> None:
        raise ChangefeedError(
            Code.SOURCE_NOT_SET_UP,
            "the binlog has transactions with a tagged GTID, which cannot be read",
            hint="run them with GTID_NEXT = 'AUTOMATIC'; then RESCAN the feeds of this source.",
        )

    def _payload(self, header: Header, raw: EventBytes) -> Iterator[Flush]:
        for inner in binlog.read_payload(raw):
            yield from self._event(binlog.read_header(inner), inner) or ()

    def _incident(self, header: Header, raw: EventBytes) -> None:
        raise ChangefeedError(
            Code.SOURCE_LOG_REPLACED,
            "the server says that its binlog lost changes (an incident event)",
        )

    def _query(self, header: Header, raw: EventBytes) -> Flushes:
        if binlog.is_begin(raw):
            if self._open is None:
                self._open = ReadTransaction(len(self._waiting))
            self._open.begun = True
            return None
        compressed = header.kind == EventType.MARIA_QUERY_COMPRESSED
        loads = header.kind == EventType.EXECUTE_LOAD_QUERY
        query = binlog.read_query(raw, compressed=compressed, loads=loads)
        first = first_word(query.text)
        opened = self._open
        if opened is None:
            opened = self._open = ReadTransaction(len(self._waiting))
        if first in ddl.FIRST_WORDS and not opened.skip:
            self._definitions.note(query, opened)
        if first == "BEGIN" or query.text.rstrip().endswith("START TRANSACTION"):
            opened.begun = True
        elif first == "XA":
            return self._xa(query, header, opened)
        elif first == "COMMIT" and opened.begun:
            return self._commit(header.seconds)
        elif first == "SAVEPOINT":
            rows = len(self._waiting) - opened.first
            opened.savepoints[ddl.savepoint(query.text)] = rows
        elif first == "ROLLBACK":
            self._rollback(query, opened)
        elif opened.begun:
            if not opened.skip:
                self._definitions.note_write(query, first, opened)
        else:
            return self._definition(query, first, header)
        return None

    def _rollback(self, query: QueryEvent, opened: ReadTransaction) -> None:
        """Written only where tables without transactions were changed as well."""
        name = ddl.savepoint(query.text)
        if not name:
            self._waiting.split(opened.first)
            self._carried += opened.changes
            self._forget(opened)
        elif not opened.skip:
            self._undo(opened, opened.savepoints.get(name, -1))

    def _undo(self, opened: ReadTransaction, since: int) -> None:
        """Drop the rows behind a savepoint, which were undone in tables with transactions; the
        others, and those of which some are on disk already, are read again."""
        if since >= 0:
            undone = self._waiting.split(opened.first + since).schemas()
            doubtful = [s for s in undone if self._shapes.problem(s.table) is not None]
        else:
            stored = opened.stored.schemas() if opened.stored is not None else []
            doubtful = [*stored, *self._waiting.schemas(opened.first)]
        for schema in doubtful:
            opened.again[schema.table] = (schema, _SAVEPOINT)

    def _forget(self, opened: ReadTransaction) -> None:
        if opened.stored is not None:
            opened.stored.discard()
        if opened.gtid is not None:
            opened.gtid()
        self._open = None

    def _definition(self, query: QueryEvent, first: str, header: Header) -> Flushes:
        opened = self._open
        if opened is not None and not opened.skip:
            emptied = self._definitions.take(query, first, opened)
            if emptied is not None:
                self._truncate(emptied, header.seconds)
                return None
        return self._commit(header.seconds)

    def _truncate(self, schema: TableSchema, seconds: int) -> None:
        opened = self._open
        self._decode_finished()
        commit = self._finish(seconds, touched=True)
        if commit is not None and opened is not None:
            self._ended(opened, commit)
            self._out.truncate(schema, commit.at)

    def _xid(self, header: Header, raw: EventBytes) -> Flushes:
        if self._open is None:
            raise misfit("a commit without a transaction")
        self._open.xid = int.from_bytes(binlog.body(raw).take(8), "little", signed=True)
        return self._commit(header.seconds)

    # ---------------------------------------------------------------------------- rows

    def _table_map(self, header: Header, raw: EventBytes) -> None:
        data, start, end = raw
        number = read_table_id(data, start, end)
        content = bytes(data[start + binlog.HEADER_SIZE : end])
        opened = self._open
        if opened is None:
            opened = self._open = ReadTransaction(len(self._waiting), begun=True)
        opened.mapped.add(number)
        known = self._maps.get(number)
        if known is not None and known[0] == content:
            if known[1] is None:
                opened.unread.add(read_table_name(data, start, end))
            return
        table: WatchedTable | None = None
        named = read_table_name(data, start, end)
        if named not in self._tables:
            opened.unread.add(named)
        else:
            if opened.skip:
                # Nothing is decoded, and what the table looks like is not known: it may have
                # changed since.
                self._maps[number] = _SKIPPED
                return
            try:
                table = self._described(named, raw, opened)
            except ChangefeedError as error:
                table = self._unreadable(named, error)
                if table is None:
                    opened.unread.add(named)
        self._maps[number] = (content, table)

    def _described(
        self, named: tuple[str, str], raw: EventBytes, opened: ReadTransaction
    ) -> WatchedTable:
        """A watched table as its map has it; what changed since the last one is reported."""
        shape = self._shapes.visible(read_table_map(*raw, mariadb=self._mariadb))
        if (rename := self._renames.awaiting(named)) is not None:
            rename.due = True
            old = self._shapes.name(*rename.old)
            read = named in self._wanted
            schema, changes = self._shapes.moved_with(old, shape, read=read)
            opened.changes += changes
        else:
            schema, change = self._shapes.resolve(shape)
            if change is not None:
                opened.changes.append(change)
        return WatchedTable(shape, schema)

    def _unreadable(self, named: tuple[str, str], error: ChangefeedError) -> WatchedTable | None:
        """A watched table whose map cannot be used; None: no feed has seen a row of it, and it is
        there no longer."""
        if error.code not in _OF_ONE_MAP:
            raise error
        schema = self._shapes.present(self._shapes.name(*named))
        return None if schema is None else unreadable(schema, problem_of(error))

    def _rows(self, header: Header, raw: EventBytes) -> Flushes:
        known = self._maps.get(read_table_id(*raw))
        if known is None:
            raise misfit("rows of a table that was not described")
        table, opened = known[1], self._open
        if opened is None:
            opened = self._open = ReadTransaction(len(self._waiting), begun=True)
        if ends_statement(*raw):
            opened.mapped.clear()
        if table is None or opened.skip:
            return None
        if table.problem:
            self._waiting.lose(table.schema, table.problem)
            return None
        try:
            self._add_rows(header, raw, table, opened)
        except ChangefeedError as error:
            if error.code not in _OF_ONE_EVENT:
                raise
            self._waiting.lose(table.schema, problem_of(error))
        return self._full(opened) if len(self._waiting.data) >= self._batch_bytes else None

    def _add_rows(
        self, header: Header, raw: EventBytes, table: WatchedTable, opened: ReadTransaction
    ) -> None:
        data, _, end = raw
        operation, start, images = find_rows(raw, header.kind, table.shape, table.heads)
        if images is not None or may_be_raised(table, operation):
            table = self._with_images(table, operation, images, header.seconds, opened)
        if header.kind in _COMPRESSED:
            data = binlog.maria_unpacked(bytes(data[start:end]))
            start, end = 0, len(data)
        if images is not None and not (images.before or images.after):
            # Not even how many they are is known.
            opened.again[table.schema.table] = (table.schema, _NO_COLUMNS)
        elif end > start:
            self._waiting.add(table, operation, data, start, end)

    def _with_images(
        self,
        table: WatchedTable,
        operation: int,
        images: PartialImages | None,
        seconds: int,
        opened: ReadTransaction,
    ) -> WatchedTable:
        """The table of an event whose rows have only these columns (None: all). What the binlog has
        of rows before a change is reported where it becomes less, and once it is more again."""
        shape, schema = table.shape, table.schema
        if operation != INSERT and not self._shapes.completed(schema):
            before = len(shape.columns) if images is None else len(images.before)
            if before == len(shape.columns):
                table = self._raised(table, seconds, opened)
            else:
                self._partial_until[schema.table] = seconds + CALM_SECONDS
                if schema.before_image is BeforeImage.FULL:
                    table = self._adopted(table, self._shapes.lowered(schema), opened)
        if images is None:
            return table
        if operation != INSERT and not set(schema.key) <= {*images.before}:
            raise parts_only(shape, "and not the key of the row before")
        named = (shape.database, shape.table)
        if operation != DELETE and self._mariadb:
            latest = self._defaults.latest(named)
            names = {shape.columns[i].name for i in images.after}
            if latest is not None and not names.issuperset(latest.computed):
                raise parts_only(shape, f"and not the VIRTUAL column {latest.computed[0]}")
        left_out = (
            self._defaults.at(named, self._read_upto.position) if operation == INSERT else None
        )
        version = left_out.upto if left_out is not None else ""
        known = table.parts.get((operation, images, version))
        if known is None:
            defaults = {} if left_out is None else left_out.by_ordinal(schema.columns)
            partial = PartialRows(images, defaults)
            known = replace(table, partial=partial, parts={})
            table.parts[operation, images, version] = known
        return known

    def _raised(self, table: WatchedTable, seconds: int, opened: ReadTransaction) -> WatchedTable:
        """The table with whole rows before, where that is how the server writes them now."""
        schema = table.schema
        if schema.before_image is BeforeImage.FULL or opened.stored is not None:
            return table
        if seconds < self._partial_until.get(schema.table, 0):
            return table
        self._partial_until[schema.table] = seconds + CALM_SECONDS
        raised = self._shapes.raised(schema, table.shape)
        return table if raised is None else self._adopted(table, raised, opened)

    def _adopted(
        self, table: WatchedTable, schema: TableSchema, opened: ReadTransaction
    ) -> WatchedTable:
        """Let the rows of the open transaction, and those to come, have this version of a table."""
        opened.changes.append(ShapeChange(table.schema, schema, rewritten=False))
        self._shapes.adopt(schema)
        self._waiting.adopt(schema, opened.first)
        if opened.stored is not None:
            opened.stored.adopt(schema)
        made = table.with_schema(schema)
        for number, (content, known) in self._maps.items():
            if known is table:
                self._maps[number] = (content, made)
            elif known is not None and known.schema.table == schema.table:
                self._maps[number] = (content, known.with_schema(schema))
        return made

    def _partial(self, header: Header, raw: EventBytes) -> None:
        known, opened = self._maps.get(read_table_id(*raw)), self._open
        if known is not None and known[1] is not None and opened is not None and not opened.skip:
            self._waiting.lose(known[1].schema, _JSON_CHANGES)

    def _full(self, opened: ReadTransaction) -> Iterator[Flush]:
        """Too many rows wait: complete transactions go out, the open one goes to disk if it is
        the large one."""
        tail = self._waiting.split(opened.first)
        self._decode_finished()
        yield from self._out.flush(self.frontier)
        self._waiting, opened.first = tail, 0
        if len(tail.data) >= self._batch_bytes // 2:
            self._store(opened)

    def _store(self, opened: ReadTransaction) -> None:
        if opened.stored is None:
            opened.stored = StoredTransaction(self._spool / "transaction")
        parts, count, _, lost = self._waiting.decoded(self._shapes.charsets, self._small)
        for schema, _, why in lost:
            opened.lost[schema.table] = (schema, why)
        kept = []
        for part in parts:
            number = part.number + opened.stored.rows
            one = np.zeros(len(number), np.intp)
            rows = fill_from_transaction(part.schema, part.rows, one)
            kept.append(StoredRows(part.schema, rows, number))
        opened.stored.append(kept, count)
        self._waiting, opened.first = PendingEvents(), 0
        opened.savepoints = dict.fromkeys(opened.savepoints, -1)

    def _commit(self, seconds: int) -> Flushes:
        opened = self._open
        if opened is None:
            raise misfit("a commit without a transaction")
        self._take_carried(opened)
        if opened.stored is not None:
            return self._commit_stored(opened, opened.stored, seconds, discard=True)
        if not opened.skip:
            opened.changes += self._overdue((opened.commit_us or seconds * 1_000_000) * 1000)
        touched = len(self._waiting) > opened.first
        marked = bool(opened.changes or opened.ddl or opened.again)
        if marked:
            tail = self._waiting.split(opened.first)
            self._decode_finished()
            self._waiting, opened.first = tail, 0
        commit = self._finish(seconds, touched=touched or marked)
        if commit is not None:
            self._ended(opened, commit)
            if touched:
                self._finished.append((opened.first, commit))
        return None

    def _overdue(self, wall: int) -> list[ShapeChange]:
        """Renames that no row has shown, and that nothing can undo now."""
        changes = []
        for rename in self._renames.overdue(wall):
            old, new = (self._shapes.name(*named) for named in (rename.old, rename.new))
            change = self._shapes.moved(old, new)
            if change is None:
                self._renames.forget(rename)
            else:
                rename.due = True
                changes.append(change)
        return changes

    def _take_carried(self, opened: ReadTransaction) -> None:
        if self._carried and not opened.skip:
            opened.changes, self._carried = [*self._carried, *opened.changes], []

    def _finish(self, seconds: int, *, touched: bool) -> LogCommit | None:
        """End the open transaction; None for one that was read before."""
        opened, self._open = self._open, None
        if opened is None:
            raise misfit("a commit without a transaction")
        if self._maps_outdated or len(self._maps) > 10_000:
            self._maps.clear()
            self._maps_outdated = False
        if opened.skip:
            return None
        commit_us = opened.commit_us or seconds * 1_000_000
        if opened.gtid is not None:
            opened.gtid()
        self._read_upto.passed(self._file, self._offset)
        return self._out.committed(commit_us, opened.xid, touched=touched)

    def _ended(self, opened: ReadTransaction, commit: LogCommit) -> None:
        """Report what a transaction did to tables, before its rows, and go by it."""
        self._out.announce(opened.changes, opened.ddl, commit)
        for schema, why in opened.again.values():
            self._out.read_again(schema, why, commit)
        if opened.defined:
            self._maps.clear()  # they have the shapes from before
            for found, gone in opened.defined:
                if found.kind != "TRUNCATE":
                    named = self._tables.intersection(self._definitions.tables_of(found))
                    self._defaults.defined(named, commit.position)
                self._renames.defined(
                    found, gone, self._tables, commit.position, commit.commit_us * 1000
                )
            self._watch_renamed()

    def _commit_stored(
        self,
        opened: ReadTransaction,
        stored: StoredTransaction,
        seconds: int,
        *,
        discard: bool,
    ) -> Iterator[Flush]:
        """Give out the rows that are on disk: flushes without a frontier, and one that has it."""
        if len(self._waiting) > opened.first:
            tail = self._waiting.split(opened.first)
            self._decode_finished()
            self._waiting = tail
            self._store(opened)
        self._decode_finished()
        yield from self._out.flush(self.frontier)
        self._adopt_stored(opened, stored)
        commit = self._finish(seconds, touched=True)
        if commit is None:
            return
        self._ended(opened, commit)
        yield from self._out.replay(stored, commit)
        for schema, why in opened.lost.values():
            self._out.lose(schema, why, commit)
        if discard:
            stored.discard()
        else:
            self._decided.append((self._read_upto.position, stored))
        yield from self._out.flush(self.frontier)

    def _adopt_stored(self, opened: ReadTransaction, stored: StoredTransaction) -> None:
        """Rows that were stored before the binlog had less, or more, of rows before a change."""
        for schema in stored.schemas():
            seen = self._shapes.seen(schema.table)
            if seen is None or seen.before_image is schema.before_image:
                continue
            if seen.before_image is BeforeImage.FULL and not self._shapes.completed(seen):
                seen = self._shapes.lowered(seen)
                self._adopted(WatchedTable(_NO_SHAPE, schema), seen, opened)
            stored.adopt(seen)

    # -------------------------------------------------------------------------- XA

    def _xa(self, query: QueryEvent, header: Header, opened: ReadTransaction) -> Flushes:
        verb, name = ddl.xa_verb(query.text)
        if not name:
            opened.begun = True
            return None
        if opened.skip:
            return self._commit(header.seconds)
        found = self._prepared.find(name)
        if found is None:
            if verb == "COMMIT" and self._tables:
                raise unknown_rows("was prepared before the binlog was read")
            return self._commit(header.seconds)
        stored, unread = found
        if verb == "COMMIT":
            for named in unread & self._tables:
                if (schema := self._shapes.present(self._shapes.name(*named))) is not None:
                    opened.again[schema.table] = (schema, _PREPARED)
            if stored.rows:
                return self._commit_stored(opened, stored, header.seconds, discard=False)
            self._commit(header.seconds)
        else:
            self._finish(header.seconds, touched=False)
        self._decided.append((self._read_upto.position, stored))
        return None

    def _xa_prepare(self, header: Header, raw: EventBytes) -> Flushes:
        one_phase, name = binlog.read_xa_prepare(raw)
        opened = self._open
        if opened is None:
            raise misfit("an XA PREPARE without a transaction")
        if one_phase:
            return self._commit(header.seconds)
        if not opened.skip:
            return self._prepare(opened, name, header.seconds)
        self._finish(header.seconds, touched=False)
        return None

    def _prepare(self, opened: ReadTransaction, name: str, seconds: int) -> Iterator[Flush]:
        """Keep the rows of a prepared transaction until it is decided."""
        tail = self._waiting.split(opened.first)
        self._decode_finished()
        yield from self._out.flush(self.frontier)
        self._waiting, opened.first = tail, 0
        self._store(opened)
        stored = opened.stored
        if stored is None:
            raise misfit("an XA PREPARE without a transaction")
        # Rows that cannot be read are none that the log has when the transaction commits.
        lost = {(table.schema, table.name) for table in [*opened.lost, *opened.again]}
        self._prepared.keep(name, stored, opened.unread | lost)
        opened.again.clear()
        opened.stored = None
        commit = self._finish(seconds, touched=False)
        if commit is not None:
            self._ended(opened, commit)

    # ------------------------------------------------------------------------ decoding

    def _decode_finished(self) -> None:
        """Decode the rows of all complete transactions, which are all that waits."""
        finished, self._finished = self._finished, []
        if not finished:
            return
        opened = self._open
        tail = None
        if opened is not None and opened.first < len(self._waiting):
            tail = self._waiting.split(opened.first)
        waiting, self._waiting = self._waiting, tail or PendingEvents()
        if opened is not None:
            opened.first = 0
        self._out.decode(waiting, finished, self._small)


#: What may be wrong with the description of one table, and with its rows in one event, and is no
#: matter of the other tables.
_OF_ONE_MAP = frozenset({Code.UNEXPECTED_MESSAGE, Code.NOT_SUPPORTED, Code.TARGET_NOT_WATCHABLE})
_OF_ONE_EVENT = frozenset({Code.UNEXPECTED_MESSAGE, Code.NOT_SUPPORTED, Code.SOURCE_NOT_SET_UP})
#: Why a table is read again, or cannot be read.
_SAVEPOINT = "a transaction went back to a savepoint beside tables without transactions"
_PREPARED = "an XA transaction commits whose rows could not be kept when it was prepared"
_NO_COLUMNS = "the binlog has no column of a changed row"
_JSON_CHANGES = (
    "there are only changes inside JSON values (SET GLOBAL binlog_row_value_options = ''; open "
    "sessions keep the old setting until they end)"
)
_NO_SHAPE = TableShape("", "", ())
_SKIPPED: tuple[bytes, None] = (b"skipped", None)
_HEARTBEATS = frozenset({int(EventType.HEARTBEAT), int(EventType.HEARTBEAT_V2)})
_COMPRESSED = frozenset(int(kind) for kind in EventType if "COMPRESSED" in kind.name)

EventHandler = Callable[[Assembler, Header, EventBytes], Flushes]
_ACTIONS: dict[int, EventHandler] = {
    EventType.FORMAT_DESCRIPTION: Assembler._format,
    EventType.ROTATE: Assembler._rotate,
    EventType.GTID: Assembler._gtid,
    EventType.ANONYMOUS_GTID: Assembler._gtid,
    EventType.GTID_TAGGED: Assembler._tagged,
    EventType.MARIA_GTID: Assembler._maria_gtid,
    EventType.QUERY: Assembler._query,
    EventType.MARIA_QUERY_COMPRESSED: Assembler._query,
    EventType.EXECUTE_LOAD_QUERY: Assembler._query,
    EventType.XID: Assembler._xid,
    EventType.TABLE_MAP: Assembler._table_map,
    EventType.PARTIAL_UPDATE_ROWS: Assembler._partial,
    EventType.TRANSACTION_PAYLOAD: Assembler._payload,
    EventType.XA_PREPARE: Assembler._xa_prepare,
    EventType.INCIDENT: Assembler._incident,
}

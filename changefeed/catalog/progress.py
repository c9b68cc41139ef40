"""How far each table of each feed is; written by the one node that holds the feed's lease."""

from __future__ import annotations

import threading
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Row, and_, bindparam, delete, insert, or_, select, update
from sqlalchemy import Connection as Transaction

from changefeed.catalog import tables
from changefeed.catalog.database import CatalogPart, Database, named
from changefeed.catalog.dead_letters import drop_letters, rename_letters
from changefeed.catalog.history import record
from changefeed.catalog.leases import check_lease
from changefeed.catalog.model import (
    DesiredStatus,
    RowRepair,
    Status,
    TableProgress,
    TableProof,
    TableState,
)
from changefeed.catalog.rows import Lease
from changefeed.core.clock import Clock, Timestamp
from changefeed.core.delays import Delays
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableName

_table = tables.job_table
_job = tables.job
_lease = tables.lease
_seen = tables.table_name

#: Columns that a runner changes, and those that a statement asks for.
# fmt: off
_MOVING = (
    "schema_version", "state", "scan_wanted", "scan_at", "done_upto", "start", "scan_rows",
    "scan_total", "emitted_rows", "emitted_bytes", "error", "error_code", "hint", "rescanned",
    "gap", "repair", "unread", "refused",
)
_ASKED = ("topic", "columns", "values_from", "values_to", "partition", "joined", "table_id")
# fmt: on
#: The values of a row that are fields of a table's progress as they are: all between its name and
#: the original one, in their order (see jobs.py).
_NAMES = [f.name for f in fields(TableProgress)[1:-1]]
_VALUES = itemgetter(*map(_table.c.keys().index, _NAMES))
_PARTS = itemgetter(*map(_table.c.keys().index, ("source", "schema", "name", "original")))
_STATE, _DONE_UPTO = map(_NAMES.index, ("state", "done_upto"))
#: Tables of jobs, in the order of listings.
_WITH_JOBS = (
    select(_table, _job.c.high_water)
    .join(_job, _job.c.id == _table.c.job_id)
    .order_by(_table.c.job_id, _table.c.source, _table.c.schema, _table.c.name)
)

#: One row of progress; parameters are those of :func:`_found_by` and :func:`_moving`.
_UPDATE = update(_table).where(
    _table.c.job_id == bindparam("of_job"),
    _table.c.source == bindparam("of_source"),
    _table.c.schema == bindparam("of_schema"),
    _table.c.name == bindparam("of_name"),
    # A RESCAN came between: what was done before it does not count.
    _table.c.rescan == bindparam("of_rescan"),
)

_HIGH_WATER = (
    update(_job).where(_job.c.id == bindparam("of_job")).values(high_water=bindparam("reached"))
)


class OfferedHighWaters:
    """High-waters that wait for the next :meth:`Progress.save_offered`, one a job; thread-safe.

    Attributes:
        news: set when there is one.
        hurried: set when a statement waits for one of them.
        saved: the last one of each job that was written in this way, until the job's progress is
            saved by itself.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offered: dict[int, tuple[Lease, Timestamp]] = {}
        self.news = threading.Event()
        self.hurried = threading.Event()
        self.saved: dict[int, Timestamp] = {}

    def offer(self, lease: Lease, high_water: Timestamp, *, soon: bool = False) -> None:
        """Let the next write have the high-water of a job of which nothing else has changed."""
        with self._lock:
            self._offered[lease.job_id] = lease, high_water
        if soon:
            self.hurried.set()
        self.news.set()

    def withdraw(self, job_id: int) -> None:
        """Forget what was offered for a job."""
        with self._lock:
            self._offered.pop(job_id, None)
            self.saved.pop(job_id, None)

    def take(self) -> dict[int, tuple[Lease, Timestamp]]:
        """Everything offered, which is then no longer offered."""
        with self._lock:
            taken, self._offered = self._offered, {}
        return taken

    def __len__(self) -> int:
        return len(self._offered)


class Progress(CatalogPart):
    """Part of :class:`changefeed.catalog.Catalog`."""

    def __init__(self, database: Database, clock: Clock | None = None) -> None:
        super().__init__(database, clock)
        self.offered = OfferedHighWaters()
        self._names_turn = threading.Lock()
        #: A version of the state, and the names of each job's tables then.
        self._names: tuple[int, Mapping[int, frozenset[TableName]]] = (-1, {})

    def tables(self, job_id: int) -> list[TableProgress]:
        """The tables of a job by name.

        ``done_upto`` of a running table is at least the job's high-water: a feed of a
        thousand quiet tables moves forward by one row, not by a thousand. A table that is to be
        paused is ``paused``, whether or not the feed's runner knows it already, and one that is to
        continue is ``pending``.
        """
        return self.tables_of_jobs([job_id])[job_id]

    def table_names(self, job_id: int, version: int) -> frozenset[TableName]:
        """The names of a job's tables, as of a version of the state or later. All feeds of a
        process ask after each change of the state: one query is for all of them."""
        with self._names_turn:
            if self._names[0] < version:
                read = self._database.version()  # what changes from here on is read again
                columns = _table.c.job_id, _table.c.source, _table.c.schema, _table.c.name
                names: dict[int, set[TableName]] = {}
                with self._database.read() as transaction:
                    for job, *name in transaction.execute(select(*columns)):
                        names.setdefault(job, set()).add(TableName(*name))
                self._names = read, {job: frozenset(found) for job, found in names.items()}
            return self._names[1].get(job_id, frozenset())

    def tables_of_jobs(self, job_ids: Sequence[int]) -> dict[int, list[TableProgress]]:
        """:meth:`tables` of several jobs, in one query."""
        found: dict[int, list[TableProgress]] = {job_id: [] for job_id in job_ids}
        with self._database.read() as transaction:
            for row in transaction.execute(_WITH_JOBS.where(_table.c.job_id.in_(found))):
                found[row.job_id].append(_as_asked(_progress(row, row.high_water)))
        return found

    def troubled_tables(self) -> dict[int, list[TableProgress]]:
        """The tables that have failed, are paused or differ from their targets, by job; jobs
        without one are left out."""
        found_at = _table.c.state == TableState.FAILED, _table.c.paused != 0
        with self._database.read() as transaction:
            rows = transaction.execute(
                _WITH_JOBS.where(or_(*found_at, _table.c.proof != TableProof()))
            )
            found: dict[int, list[TableProgress]] = {}
            for row in rows:
                table = _as_asked(_progress(row, row.high_water))
                if table.state.stands or table.differing:
                    found.setdefault(row.job_id, []).append(table)
            return found

    def watched(self, source: str) -> dict[TableName, list[str]]:
        """Names of the feeds that watch each table of a source (succeeded ones do not)."""
        with self._database.read() as transaction:
            rows = transaction.execute(
                select(_table.c.schema, _table.c.name, _job.c.name.label("feed"))
                .join(_job, _job.c.id == _table.c.job_id)
                .where(
                    _table.c.source == source,
                    _job.c.status.not_in([Status.DROPPED.value, Status.SUCCEEDED.value]),
                )
                .order_by(_job.c.id)
            )
            found: dict[TableName, list[str]] = {}
            for row in rows:
                found.setdefault(TableName(source, row.schema, row.name), []).append(row.feed)
            return found

    def save_progress(
        self,
        job_id: int,
        progress: Mapping[TableName, TableProgress],
        *,
        lease: Lease,
        high_water: Timestamp | None = None,
        delays: Delays | None = None,
    ) -> frozenset[TableName]:
        """Write tables (only those that changed need be given) and high-water in one step.

        A running table that is not given stands at the job's high-water or above. So when the
        high-water has to go back (a running table is given that stands below it: added, or
        trying again from where it failed), the tables that are not given are first written
        down at the old one: they lose nothing and repeat nothing.

        A table dropped by ALTER meanwhile stays dropped: what is given for it is ignored, as is
        what is given for a table that a RESCAN has asked for meanwhile. Adds the growth of the
        tables' emitted counters to the job's and to its rates. ``delays`` replaces what the job
        has; None leaves it.

        Returns:
            The tables that were given and not written.

        Raises:
            LeaseLost: another node holds the job by now; nothing was written.
        """
        now = self._now()
        # An older high-water must not be written after this, and lift tables that stand lower now.
        # One that is being written already is written before.
        self.offered.withdraw(job_id)
        with self._database.write(notify=False) as transaction:
            check_lease(transaction, lease)
            row = transaction.execute(
                select(
                    _job.c.high_water, _job.c.emitted_rows, _job.c.emitted_bytes, _job.c.rate
                ).where(_job.c.id == job_id)
            ).one()
            before = _stored(transaction, job_id, progress)
            moved = {
                name: table
                for name, table in progress.items()
                if name in before and before[name].rescan == table.rescan
            }
            if moved:
                transaction.execute(
                    _UPDATE, [_found_by(job_id, t) | _moving(t) for t in moved.values()]
                )
            rows = sum(max(0, t.emitted_rows - before[n].rows) for n, t in moved.items())
            size = sum(max(0, t.emitted_bytes - before[n].bytes) for n, t in moved.items())
            # A scan counts as emitted when it has ended, and for the rates as it goes on.
            lately = sum(max(0, _counted(t) - before[n].counted) for n, t in moved.items())
            values: dict[str, Any] = {}
            known = row.high_water
            reached = _no_higher(high_water or known, moved.values())
            if reached is not None and reached != known:
                if known is not None and reached < known:
                    _write_down(transaction, job_id, known, moved)
                values["high_water"] = reached
            if rows or size:
                values["emitted_rows"] = row.emitted_rows + rows
                values["emitted_bytes"] = row.emitted_bytes + size
            if lately or size:
                values["rate"] = row.rate.add(now, lately, size)
            if delays is not None:
                values["delays"] = delays
            if values:
                transaction.execute(update(_job).where(_job.c.id == job_id).values(**values))
        return frozenset(progress.keys() - moved.keys())

    def save_offered(self) -> None:
        """Write the high-waters of :attr:`offered` in one transaction; those of a job that another
        node holds by now are left out."""
        self.offered.news.clear()
        self.offered.hurried.clear()
        if not self.offered:
            return
        with self._database.write(notify=False) as transaction:
            # Here, not before: a feed that withdraws its own then comes before this transaction or
            # after it.
            offered = self.offered.take()
            rows = transaction.execute(
                select(_lease.c.job_id, _lease.c.node, _lease.c.token).where(
                    _lease.c.job_id.in_(offered)
                )
            )
            holders = {row.job_id: (row.node, row.token) for row in rows}
            written = {
                job_id: high_water
                for job_id, (lease, high_water) in offered.items()
                if holders.get(job_id) == (lease.node, lease.token)
            }
            if written:
                marks = [{"of_job": job, "reached": at} for job, at in written.items()]
                transaction.execute(_HIGH_WATER, marks)
        self.offered.saved.update(written)

    def living(self) -> frozenset[tuple[int, str]]:
        """The tables of the jobs that were not dropped and have not succeeded: number of the job,
        and ``source.schema.table`` as its sink knows the table."""
        ended = (Status.DROPPED.value, Status.SUCCEEDED.value)
        jobs = select(_job.c.id).where(
            _job.c.wanted != DesiredStatus.DROPPED.value, _job.c.status.not_in(ended)
        )
        columns = (_table.c.source, _table.c.schema, _table.c.name, _table.c.original)
        query = select(_table.c.job_id, *columns).where(_table.c.job_id.in_(jobs))
        with self._database.read() as transaction:
            rows = transaction.execute(query).all()
        return frozenset(
            (int(row.job_id), str(_original(row.source, row.original) or TableName(*row[1:4])))
            for row in rows
        )

    def add_tables(self, job_id: int, added: Iterable[TableProgress]) -> None:
        """Let a feed watch more tables; raises its generation.

        Raises:
            ChangefeedError: CF1302 one is watched already.
        """
        with self._database.write() as transaction:
            insert_tables(transaction, job_id, added, self._now())
            raise_generation(transaction, job_id, self._now())

    def fail_idle_tables(
        self, name: TableName, table_id: int, error: ChangefeedError, gap: int = 0
    ) -> None:
        """Fail a table in the feeds that are paused or failed, each at its progress.

        Feeds that run fail it themselves. ``gap``: the error is about the gap found then (ns).
        """
        stands = (Status.PAUSED.value, Status.FAILED.value)
        with self._database.read() as transaction:
            jobs = transaction.execute(
                select(_table.c.job_id)
                .join(_job, _job.c.id == _table.c.job_id)
                .where(
                    named(_table, name),
                    _table.c.table_id.in_((0, table_id)),
                    _job.c.status.in_(stands),
                )
            ).scalars()
            idle = list(jobs)
        for job_id in idle:
            known = next(table for table in self.tables(job_id) if table.table == name)
            if known.state is not TableState.RUNNING:
                continue
            with self._database.write() as transaction:
                transaction.execute(
                    update(_table)
                    .where(_table.c.job_id == job_id, named(_table, name))
                    .values(
                        state=TableState.FAILED.value,
                        done_upto=known.done_upto,
                        error=error.message,
                        error_code=error.code.number,
                        hint=error.hint,
                        gap=max(known.gap, gap),
                    )
                )

    def adopt_table_ids(self, ids: Mapping[TableName, int]) -> None:
        """Write down which table each name stands for, where a feed does not know it yet."""
        if not ids:
            return
        with self._database.write(notify=False) as transaction:
            for name, table_id in ids.items():
                transaction.execute(
                    update(_table)
                    .where(named(_table, name), _table.c.table_id == 0)
                    .values(table_id=table_id)
                )

    def rename_table(
        self,
        job_id: int,
        old: TableName,
        new: TableName,
        *,
        lease: Lease,
        text: str,
        targets: Sequence[str],
        statement: str,
        at: Timestamp | None = None,
    ) -> int | None:
        """Record that a table of a feed has another name at the source; its progress is kept.

        Raises the job's generation, because an ALTER that was planned before has the old name.

        Args:
            text: of the event in the job's history; ``at`` is when the rename was committed.
            targets, statement: those of the job, with the new name.

        Returns:
            The new generation; None if nothing was written, because the job has a table of the new
            name already, or no longer one of the old name.

        Raises:
            LeaseLost: another node holds the job by now; nothing was written.
        """
        now = self._now()
        with self._database.write() as transaction:
            check_lease(transaction, lease)
            if transaction.execute(select(_table).where(_is(job_id, new))).one_or_none():
                return None
            if not set_name(transaction, job_id, old, new):
                return None
            raise_generation(transaction, job_id, now)
            transaction.execute(
                update(_job).where(_job.c.id == job_id).values(targets=targets, statement=statement)
            )
            noted = now if at is None else at.wall
            record(transaction, noted, job_id, "rename", text, table=str(new))
            generation = select(_job.c.generation).where(_job.c.id == job_id)
            return int(transaction.execute(generation).scalar_one())

    def save_proof(self, job_id: int, table: TableName, proof: TableProof) -> None:
        """Write down how much of a table was compared with its target."""
        with self._database.write(notify=False) as transaction:
            transaction.execute(update(_table).where(_is(job_id, table)).values(proof=proof))

    def note_name(self, table: TableName, table_id: int) -> None:
        """Record that a table was seen under this name; :meth:`names` returns it from now on."""
        with self._database.write(notify=False) as transaction:
            note_name(transaction, table, table_id)

    def names(self, source: str, table_id: int) -> list[TableName]:
        """All names by which feeds may know a table: those of their progress, and later ones."""
        columns = (_table.c.schema, _table.c.name)
        seen = select(_seen.c.schema, _seen.c.name).where(
            _seen.c.source == source, _seen.c.table_id == table_id
        )
        known = select(*columns).where(_table.c.source == source, _table.c.table_id == table_id)
        with self._database.read() as transaction:
            found = {TableName(source, *row) for row in transaction.execute(seen.union(known))}
        return sorted(found)

    def drop_tables(self, job_id: int, names: Iterable[TableName]) -> None:
        """Let a feed watch fewer tables; raises its generation."""
        with self._database.write() as transaction:
            for name in names:
                delete_table(transaction, job_id, name)
            raise_generation(transaction, job_id, self._now())


def note_name(transaction: Transaction, table: TableName, table_id: int) -> None:
    """Record a name of a table, unless it is recorded already."""
    row = {
        "source": table.source,
        "table_id": table_id,
        "schema": table.schema,
        "name": table.name,
    }
    there = and_(*(_seen.c[name] == value for name, value in row.items()))
    if table_id and not transaction.execute(select(_seen).where(there)).one_or_none():
        transaction.execute(insert(_seen).values(**row))


def insert_tables(
    transaction: Transaction, job_id: int, added: Iterable[TableProgress], now: int
) -> None:
    """Insert rows of tables that the job does not have yet.

    Raises:
        ChangefeedError: CF1302 it has one of them.
    """
    rows = transaction.execute(
        select(_table.c.source, _table.c.schema, _table.c.name).where(_table.c.job_id == job_id)
    )
    watched = {TableName(*row) for row in rows}
    inserted = []
    for table in added:
        name = table.table
        if name in watched:
            raise ChangefeedError(
                Code.TARGET_NOT_WATCHABLE,
                f'target "{name.schema}.{name.name}" already watched by changefeed',
            )
        watched.add(name)
        row = {field: getattr(table, field) for field in _ASKED} | _moving(table)
        row |= {"job_id": job_id, "source": name.source, "schema": name.schema, "name": name.name}
        row |= {"added_at": table.added_at or now, "original": _parts(table.original)}
        inserted.append(row)
    if inserted:
        transaction.execute(insert(_table), inserted)


def delete_table(transaction: Transaction, job_id: int, name: TableName) -> None:
    """Forget a table of a job and how far it was."""
    transaction.execute(delete(_table).where(_is(job_id, name)))
    drop_letters(transaction, job_id, name)


def set_topic(transaction: Transaction, job_id: int, name: TableName, topic: str) -> None:
    """Let a table of a job go to another topic from now on."""
    transaction.execute(update(_table).where(_is(job_id, name)).values(topic=topic))


def set_name(transaction: Transaction, job_id: int, old: TableName, new: TableName) -> bool:
    """Give a table of a job the name that it has at the source now; false if the job has no table
    of the old name."""
    row = transaction.execute(select(_table).where(_is(job_id, old))).one_or_none()
    if row is None:
        return False
    original = _parts(_progress(row).renamed(new).original)
    transaction.execute(
        update(_table)
        .where(_is(job_id, old))
        .values(schema=new.schema, name=new.name, original=original)
    )
    rename_letters(transaction, job_id, old, new)
    note_name(transaction, new, row.table_id)
    return True


def set_progress(transaction: Transaction, job_id: int, upto: Timestamp) -> None:
    """Let all tables of a job go on from an instant, whatever they have delivered."""
    transaction.execute(
        update(_table)
        .where(_table.c.job_id == job_id)
        .values(
            state=TableState.PENDING.value,
            done_upto=upto,
            scan_at=None,
            rescan=_table.c.rescan + 1,  # what a node still saves does not count
        )
    )


def rescan_table(
    transaction: Transaction,
    job_id: int,
    name: TableName,
    now: int,
    high_water: Timestamp | None,
    table_id: int = 0,
    repair: RowRepair | None = None,
) -> int:
    """Owe a table of a job a scan, whatever state it is in; what it delivered it keeps.

    ``high_water`` is the job's: a running table stands there or above. ``table_id`` is that of
    another table that has the name by now: the changes of the old one do not concern it.
    ``repair`` are the rows that the scan is about, unless a scan of all is owed already.
    Returns the number of the RESCAN.
    """
    row = transaction.execute(select(_table).where(_is(job_id, name))).one()
    table = _raised(_progress(row), high_water)
    if table_id:
        table = replace(table, table_id=table_id, done_upto=None, scan_at=None)
    if repair is not None:
        repair = None if table.whole_scan_owed else repair.joined(table.repair)
    done = table.done_upto
    owed = replace(
        table,
        state=TableState.PENDING,
        scan_wanted=True,
        # Above any scan that a sink keeping progress knows of. A first scan that is under way
        # leaves its instant: rows as of then may be out.
        scan_at=table.scan_at if done is None else done.next(),
        scan_rows=0,
        error=None,
        error_code=None,
        hint="",
        repair=repair,
        unread=None,
    )
    asked = max(now, table.rescan + 1)
    transaction.execute(
        update(_table)
        .where(_is(job_id, name))
        .values(rescan=asked, table_id=owed.table_id, **_moving(owed))
    )
    return asked


def _found_by(job_id: int, table: TableProgress) -> dict[str, Any]:
    return {
        "of_job": job_id,
        "of_source": table.table.source,
        "of_schema": table.table.schema,
        "of_name": table.table.name,
        "of_rescan": table.rescan,
    }


class _StoredCounts(NamedTuple):
    rows: int
    bytes: int
    rescan: int
    scanned: int

    @property
    def counted(self) -> int:
        return self.rows + self.scanned


def _counted(table: TableProgress) -> int:
    return table.emitted_rows + (table.scan_rows if table.scan_wanted else 0)


def _moving(table: TableProgress) -> dict[str, Any]:
    return {field: getattr(table, field) for field in _MOVING}


def _stored(
    transaction: Transaction, job_id: int, progress: Mapping[TableName, TableProgress]
) -> dict[TableName, _StoredCounts]:
    if not progress:
        return {}
    rows = transaction.execute(
        select(
            _table.c.source,
            _table.c.schema,
            _table.c.name,
            _table.c.emitted_rows,
            _table.c.emitted_bytes,
            _table.c.rescan,
            _table.c.scan_rows,
            _table.c.scan_wanted,
        ).where(_table.c.job_id == job_id, _table.c.name.in_([n.name for n in progress]))
    )
    names = ((TableName(row.source, row.schema, row.name), row) for row in rows)
    return {
        name: _StoredCounts(
            row.emitted_rows,
            row.emitted_bytes,
            row.rescan,
            row.scan_rows if row.scan_wanted else 0,
        )
        for name, row in names
        if name in progress
    }


def _no_higher(high_water: Timestamp | None, given: Iterable[TableProgress]) -> Timestamp | None:
    """The high-water, but not above a running table of ``given``: reading would lift that one."""
    running = [
        table.done_upto
        for table in given
        if table.state is TableState.RUNNING and table.done_upto is not None
    ]
    return None if high_water is None else min([high_water, *running])


def _write_down(
    transaction: Transaction, job_id: int, high_water: Timestamp, given: Container[TableName]
) -> None:
    """Write the high-water to the running tables that are not ``given``, which stand there."""
    rows = transaction.execute(
        select(_table).where(_table.c.job_id == job_id, _table.c.state == TableState.RUNNING.value)
    ).all()
    for table in map(_progress, rows):
        lifted = _raised(table, high_water)
        if table.table not in given and lifted != table:
            transaction.execute(
                update(_table).where(_is(job_id, table.table)).values(done_upto=lifted.done_upto)
            )


def _raised(table: TableProgress, high_water: Timestamp | None) -> TableProgress:
    done = _reached(table.state, table.done_upto, high_water)
    return table if done is table.done_upto else replace(table, done_upto=done)


def _reached(
    state: TableState, done: Timestamp | None, high_water: Timestamp | None
) -> Timestamp | None:
    if state is not TableState.RUNNING or high_water is None:
        return done
    return high_water if done is None or done < high_water else done


def _as_asked(table: TableProgress) -> TableProgress:
    """A table in the state that statements want, once its place is known."""
    if table.paused and table.state is not TableState.FAILED:
        return replace(table, state=TableState.PAUSED)
    if not table.paused and table.state is TableState.PAUSED:
        return replace(table, state=TableState.PENDING)
    return table


def raise_generation(transaction: Transaction, job_id: int, now: int) -> None:
    """Let the job's runner read it again."""
    transaction.execute(
        update(_job)
        .where(_job.c.id == job_id)
        .values(generation=_job.c.generation + 1, modified=now)
    )


def _is(job_id: int, name: TableName) -> ColumnElement[bool]:
    return and_(_table.c.job_id == job_id, named(_table, name))


def _progress(row: Row[Any], high_water: Timestamp | None = None) -> TableProgress:
    """A table, raised to the high-water of its job."""
    cells = tuple(row)
    values = list(_VALUES(cells))
    # Before it is made: a copy of it takes longer than all the rest.
    values[_DONE_UPTO] = _reached(values[_STATE], values[_DONE_UPTO], high_water)
    source, schema, name, original = _PARTS(cells)
    values.append(_original(source, original))
    return TableProgress(TableName(source, schema, name), *values)


def _parts(name: TableName | None) -> tuple[str, ...]:
    return () if name is None else (name.schema, name.name)


def _original(source: str, parts: Sequence[str]) -> TableName | None:
    return TableName(source, *parts) if parts else None

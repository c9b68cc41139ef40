"""The job table: making, finding, moving, altering and forgetting feeds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection as Transaction
from sqlalchemy import Row, delete, func, insert, or_, select, text, tuple_, update

from changefeed.catalog import tables
from changefeed.catalog.database import named
from changefeed.catalog.dead_letters import retry_letters
from changefeed.catalog.grants import Grants, lacking, require_lawful
from changefeed.catalog.history import record
from changefeed.catalog.leases import check_lease
from changefeed.catalog.model import (
    DesiredStatus,
    Job,
    JobSpec,
    RowRepair,
    Status,
    TableProgress,
    TableState,
    check_move,
)
from changefeed.catalog.progress import (
    delete_table,
    insert_tables,
    raise_generation,
    rescan_table,
    set_name,
    set_progress,
    set_topic,
)
from changefeed.catalog.rows import Lease, RateWindow, ScheduledRun
from changefeed.catalog.schedules import KEPT_RUNS, begin_run
from changefeed.catalog.sources import begin_source
from changefeed.catalog.sources import save as save_source
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableName
from changefeed.core.uri import sink_location

_job = tables.job

#: Errors of a table whose changes the source did not send meanwhile.
_LEFT_OUT = (
    Code.SOURCE_NOT_SET_UP,
    Code.SOURCE_PERMISSION_MISSING,
    Code.NAME_UNKNOWN,
    Code.TARGET_NOT_WATCHABLE,
)


#: The values of a row that are fields of a job, which are its first ones, in their order: a listing
#: has hundreds of rows, and by their names they take four times as long.
_VALUES = itemgetter(*(_job.c.keys().index(f.name) for f in fields(Job) if f.name in _job.c))


class _Unset:
    """Default of a parameter that leaves the field as it is (None is a value of its own)."""


KEEP = _Unset()


class Jobs(Grants):
    """Part of :class:`changefeed.catalog.Catalog`."""

    #: How many dropped jobs stay, for their history.
    kept_dropped: int = 200
    #: How many runs of a schedule stay that are over or begin.
    kept_runs: int = KEPT_RUNS

    def create_job(self, spec: JobSpec, run: ScheduledRun | None = None) -> Job:
        """Store a feed, ``starting`` and wanted ``running``, with its tables. ``run`` is the run of
        a schedule that it is.

        Raises:
            ChangefeedError: CF1102 the name is taken; CF1303 its log cannot begin where it asks;
                CF1403 its owner lacks a right for it.
            RunConflict: the run is not due any more.
        """
        now = self._now()
        with self._database.write() as transaction:
            if spec.name is not None and _by_name(transaction, spec.name):
                raise ChangefeedError(Code.NAME_TAKEN, f'changefeed "{spec.name}" already exists')
            if spec.memo is not None:
                begin_source(transaction, spec.source, spec.memo, now)
            job_id = int(
                transaction.execute(
                    insert(_job)
                    .values(
                        # The made-up name needs the id: it is set below, in the same step.
                        name=spec.name if spec.name is not None else "",
                        source=spec.source,
                        sink_uri=spec.sink_uri,
                        targets=spec.targets,
                        options=spec.options,
                        statement=spec.statement,
                        status=Status.STARTING.value,
                        wanted=DesiredStatus.RUNNING.value,
                        reason="waits for a node",
                        created=now,
                        modified=now,
                        cursor=spec.cursor,
                        end_time=spec.end_time,
                        generation=1,
                        sinkless=spec.sinkless,
                        owner=spec.owner,
                        rate=RateWindow(),
                    )
                    .returning(_job.c.id)
                ).scalar_one()
            )
            if spec.name is None:
                _set(transaction, job_id, name=_free_name(transaction, job_id))
            insert_tables(transaction, job_id, spec.tables, now)
            # A right may have been revoked since the statement was planned.
            require_lawful(transaction, get_job(transaction, job_id))
            record(transaction, now, job_id, "status", "created")
            if run is not None:
                begin_run(transaction, run, job_id, self.kept_runs)
            return self._job(get_job(transaction, job_id))

    def next_id(self) -> int:
        """The id that :meth:`create_job` gives, unless another job is created first."""
        with self._database.read() as transaction:
            if transaction.dialect.name == "postgresql":
                sequence = f"{tables.POSTGRES_SCHEMA}.{_job.name}_id_seq"
                last = f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {sequence}"
            else:
                last = f"SELECT seq FROM sqlite_sequence WHERE name = '{_job.name}'"
            return 1 + int(transaction.execute(text(last)).scalar() or 0)

    def job(self, ref: str | int) -> Job:
        """The job with this name or id. A dropped one is found by id only.

        Raises:
            ChangefeedError: CF1101 no such feed.
        """
        with self._database.read() as transaction:
            return self._job(get_job(transaction, ref))

    def find_job(self, ref: str | int) -> Job | None:
        """Like :meth:`job`, but None when there is none."""
        with self._database.read() as transaction:
            row = _find(transaction, ref)
            return self._job(row) if row else None

    def jobs(self, include_finished: bool = True) -> list[Job]:
        """Jobs by id. ``include_finished=False`` leaves out succeeded ones, except those to drop.

        Failed ones stay: RESUME wants their log. Dropped ones are never here;
        see :meth:`dropped_jobs`.
        """
        query = select(_job).where(_job.c.status != Status.DROPPED.value)
        if not include_finished:
            query = query.where(
                or_(
                    _job.c.status != Status.SUCCEEDED.value,
                    _job.c.wanted == DesiredStatus.DROPPED.value,
                )
            )
        with self._database.read() as transaction:
            rows = transaction.execute(query.order_by(_job.c.id))
            return [self._job(row) for row in rows]

    def dropped_jobs(self) -> list[Job]:
        """The last :attr:`kept_dropped` dropped jobs by id, without secrets."""
        with self._database.read() as transaction:
            rows = transaction.execute(
                select(_job).where(_job.c.status == Status.DROPPED.value).order_by(_job.c.id)
            )
            return [self._job(row) for row in rows]

    def source_jobs(self, source: str) -> list[Job]:
        """Jobs that need what we hold at a source: not dropped, not succeeded; by id."""
        ended = (Status.DROPPED.value, Status.SUCCEEDED.value)
        query = select(_job).where(_job.c.source == source, _job.c.status.not_in(ended))
        with self._database.read() as transaction:
            return [self._job(row) for row in transaction.execute(query.order_by(_job.c.id))]

    def transition(
        self,
        job_id: int,
        status: Status,
        *,
        reason: str,
        error: ChangefeedError | None = None,
        lease: Lease | None = None,
        generation: int | None = None,
    ) -> Job:
        """Move a job. ``error`` is kept until the job is ``running`` or ``scanning`` again.

        With ``generation`` the job stays where it is if an ALTER has given it another one.

        With ``lease`` the move happens only while that lease is held, and the change counter stays:
        each feed of the node reads its tables when that rises, and no plan depends on where the
        node has moved a job.

        Raises:
            ChangefeedError: CF1301 the move is not allowed.
            LeaseLost: the lease is another node's.
        """
        now = self._now()
        with self._database.write(notify=lease is None) as transaction:
            if lease is not None:
                check_lease(transaction, lease)
            if generation in (None, get_job(transaction, job_id).generation):
                move_job(transaction, job_id, status, now, reason, error)
            return self._job(get_job(transaction, job_id))

    def request(self, job_id: int, wanted: DesiredStatus) -> Job:
        """Say where a person wants the job to be; the node that holds it moves it there.

        Raises:
            ChangefeedError: CF1403 it is to run, and its owner lacks a right for it.
        """
        with self._database.write() as transaction:
            job = self._job(row := get_job(transaction, job_id))
            if wanted is DesiredStatus.RUNNING:
                require_lawful(transaction, row)
            if job.wanted is not wanted:
                _set(transaction, job_id, wanted=wanted.value, modified=self._now())
            return self._job(get_job(transaction, job_id))

    def stands_still(self, job_id: int) -> Job:
        """Write that a job that is to be paused is, and why."""
        why = self.hindrance(job_id)
        reason = "paused by the user" if why is None else why.message
        return self.transition(job_id, Status.PAUSED, reason=reason, error=why)

    def hurry(self, job_id: int) -> None:
        """Make the node that runs a feed deliver what gathers, wherever that is."""
        once_more = update(_job).where(_job.c.id == job_id).values(hurried=_job.c.hurried + 1)
        with self._database.write() as transaction:
            transaction.execute(once_more)

    def take_generation(self, job_id: int, generation: int, lease: Lease) -> None:
        """Record which generation the job's runner works by from now on.

        Raises:
            LeaseLost: the lease is another node's.
        """
        with self._database.write(notify=False) as transaction:
            check_lease(transaction, lease)
            _set(transaction, job_id, taken=generation)

    def pause_wanted(self, job_id: int) -> Job:
        """Record that the node paused the job (``on_error = pause``): RESUME starts it again."""
        return self.request(job_id, DesiredStatus.PAUSED)

    def pause_tables(self, job_id: int, names: Collection[TableName], *, by: str = "") -> None:
        """Let a feed deliver nothing of these tables until :meth:`resume_tables`; each keeps its
        place. Raises the job's generation. ``by``: see :meth:`alter_job`."""
        now = self._now()
        self._set_paused(job_id, names, now, by, _signed("paused", by))

    def resume_tables(self, job_id: int, names: Collection[TableName], *, by: str = "") -> None:
        """Let tables that are paused go on from their places, and those that failed try again, as
        :meth:`retry_tables` does. Raises the job's generation."""
        self._set_paused(job_id, names, 0, "", _signed("resumed", by))
        self.retry_tables(job_id, names)

    def _set_paused(
        self, job_id: int, names: Collection[TableName], at: int, by: str, text: str
    ) -> None:
        table = tables.job_table
        with self._database.write() as transaction:
            for name in names:
                transaction.execute(
                    update(table)
                    .where(table.c.job_id == job_id, named(table, name))
                    .values(paused=at, paused_by=by)
                )
                record(transaction, self._now(), job_id, "status", text, table=str(name))
            raise_generation(transaction, job_id, self._now())

    def retry_tables(
        self,
        job_id: int,
        only: Collection[TableName] | None = None,
        *,
        skip: Timestamp | None = None,
        by: str = "",
    ) -> list[TableName]:
        """Let the failed tables of a job try again from where they stopped; gives their names.

        They are pending, unless they are paused: the runner places each at its own ``done_upto``
        (or scans it), which may be far below the job's high-water. Raises the job's generation when
        there were any. One that was lost (CF2106) and is there again is scanned, too, and so is one
        that was captured and had to be left out for a while: it could not be read (CF2003, CF2004),
        or its name belonged to no table (CF1101, CF1302).

        With ``skip`` only those try again that failed at this transaction, and leave it out; the
        history says that the user ``by`` wanted it.
        """
        table = tables.job_table
        failed = (table.c.job_id == job_id) & (table.c.state == TableState.FAILED.value)
        if only is not None:
            names = [(name.source, name.schema, name.name) for name in only]
            failed &= tuple_(table.c.source, table.c.schema, table.c.name).in_(names)
        values: dict[str, Any] = {"error": None, "error_code": None, "hint": ""}
        if skip is not None:
            failed &= table.c.refused == skip
            values["skipped"] = skip
        # While a table had another name its rows went there: what is missing is scanned.
        codes = [code.number for code in _LEFT_OUT]
        left_out = table.c.error_code.in_(codes) & table.c.done_upto.is_not(None)
        missed = (Code.TABLE_REPLACED.number, Code.TABLE_GAP.number)
        lost = failed & (table.c.error_code.in_(missed) | left_out)
        with self._database.write() as transaction:
            rows = transaction.execute(select(table).where(failed)).all()
            transaction.execute(
                update(table)
                .where(lost)
                .values(scan_wanted=True, scan_at=None, repair=None, unread=None)
            )
            transaction.execute(
                update(table).where(failed).values(state=TableState.PENDING.value, **values)
            )
            for row in rows if skip is not None else ():
                name = str(TableName(row.source, row.schema, row.name))
                text = _signed(f"the transaction at {skip} was skipped", by)
                text += ": its rows were not delivered, VERIFY names those that the target lacks"
                record(transaction, self._now(), job_id, "notice", text, table=name)
            if rows:
                raise_generation(transaction, job_id, self._now())
            return [TableName(row.source, row.schema, row.name) for row in rows]

    def alter_job(
        self,
        job_id: int,
        *,
        sink_uri: str | _Unset | None = KEEP,
        targets: Sequence[str] | None = None,
        options: Mapping[str, str] | None = None,
        statement: str | None = None,
        cursor: Timestamp | _Unset | None = KEEP,
        end_time: Timestamp | _Unset | None = KEEP,
        add: Sequence[TableProgress] = (),
        drop: Sequence[TableName] = (),
        topics: Mapping[TableName, str] | None = None,
        renamed: Mapping[TableName, TableName] | None = None,
        rescan: Mapping[TableName, int] | None = None,
        repair: Mapping[TableName, RowRepair] | None = None,
        letters: Collection[int] = (),
        begin: Timestamp | None = None,
        renew_log: bool = False,
        generation: int | None = None,
        noted: Sequence[str] = (),
        by: str = "",
    ) -> Job:
        """Change what a feed is, all in one step; raises its generation by one.

        ``add`` and ``drop`` are tables. ``renamed`` has the present names of tables that stay, by
        which ``topics`` (new topic names) and ``rescan`` know them.
        ``rescan`` are tables that are scanned again (one that failed starts again by that), and
        the number of another table that has the name by now, else 0. ``repair`` are tables of which
        only some rows are read again, among them those of the dead letters with the numbers
        ``letters``. ``begin`` is the instant that all tables go on from, for a
        feed that stands still. ``renew_log`` asks for a change log of the source that goes on: the
        node must not take the feed up with one that does not.
        ``generation`` is the one the change was planned on: if another ALTER came between,
        nothing is changed (CF1301).
        ``noted`` says what changes in options and address, without secrets, and ``by`` which user
        of the operating system changes it: both are kept as an event.
        """
        with self._database.write() as transaction:
            job = self._job(get_job(transaction, job_id))
            if generation is not None and generation != job.generation:
                raise ChangefeedError(
                    Code.WRONG_JOB_STATE,
                    f'changefeed "{job.name}" was altered by somebody else meanwhile',
                    hint="look at it with SHOW CREATE CHANGEFEED and try again.",
                )
            values: dict[str, Any] = {}
            if not isinstance(sink_uri, _Unset):
                values["sink_uri"] = sink_uri
            if targets is not None:
                values["targets"] = targets
            if options is not None:
                values["options"] = options
            if statement is not None:
                values["statement"] = statement
            if not isinstance(cursor, _Unset):
                values["cursor"] = cursor
            if not isinstance(end_time, _Unset):
                values["end_time"] = end_time
            values |= {"generation": job.generation + 1, "modified": self._now()}
            lawful = lacking(transaction, get_job(transaction, job_id)) is None
            for table in drop:
                delete_table(transaction, job_id, table)
            insert_tables(transaction, job_id, add, self._now())
            for table, now in (renamed or {}).items():
                set_name(transaction, job_id, table, now)
            for table, topic in (topics or {}).items():
                set_topic(transaction, job_id, table, topic)
            for table, table_id in (rescan or {}).items():
                rescan_table(transaction, job_id, table, self._now(), job.high_water, table_id)
            for table, rows in (repair or {}).items():
                asked = rescan_table(
                    transaction, job_id, table, self._now(), job.high_water, repair=rows
                )
                if letters:
                    retry_letters(transaction, job_id, table, letters, asked)
            if begin is not None:
                values["high_water"] = begin
                set_progress(transaction, job_id, begin)
            changed = [*_changes(add, drop, renamed or {}, rescan or {}, repair or {}), *noted]
            if changed:
                record(transaction, self._now(), job_id, "altered", _signed("; ".join(changed), by))
            if renew_log:
                save_source(transaction, job.source, self._now(), renewal=True)
            _set(transaction, job_id, **values)
            if lawful:
                require_lawful(transaction, get_job(transaction, job_id))
            return self._job(get_job(transaction, job_id))

    def rename_job(self, job_id: int, name: str, by: str = "") -> Job:
        """Give a feed another name; its id, progress and topics stay. ``by``: see
        :meth:`alter_job`.

        Raises:
            ChangefeedError: CF1102 the name is taken.
        """
        with self._database.write() as transaction:
            other = _by_name(transaction, name)
            if other and other.id != job_id:
                raise ChangefeedError(
                    Code.NAME_TAKEN,
                    f'changefeed "{name}" already exists',
                    hint="choose another name.",
                )
            now = self._now()
            if name != (old := get_job(transaction, job_id).name):
                renamed = _signed(f'renamed from "{old}" to "{name}"', by)
                record(transaction, now, job_id, "altered", renamed)
            _set(transaction, job_id, name=name, modified=now)
            return self._job(get_job(transaction, job_id))

    def give_job(self, job_id: int, owner: str | None, by: str = "") -> Job:
        """Let the rights of another user bound a feed, or nobody's. ``by``: see :meth:`alter_job`.

        Raises:
            ChangefeedError: CF1403 that user lacks a right for it.
        """
        with self._database.write() as transaction:
            if (old := get_job(transaction, job_id).owner) != owner:
                _set(transaction, job_id, owner=owner)
                require_lawful(transaction, get_job(transaction, job_id))
                now = self._now()
                given = _signed(f"owner changed from {_owner(old)} to {_owner(owner)}", by)
                record(transaction, now, job_id, "altered", given)
                raise_generation(transaction, job_id, now)
            return self._job(get_job(transaction, job_id))

    def delete_job(self, job_id: int) -> None:
        """Drop a job: progress, lease, events and secrets go, a row for SHOW JOBS stays.

        Of a sinkless feed nothing stays. The name is free afterwards. Dropping a dropped job,
        or one that no longer exists, does nothing.
        """
        now = self._now()
        with self._database.write() as transaction:
            row = _find(transaction, job_id)
            if row is None or row.status == Status.DROPPED.value:
                return
            for table in (tables.job_table, tables.lease, tables.event, tables.dead_letter):
                transaction.execute(delete(table).where(table.c.job_id == job_id))
            if row.sinkless:
                transaction.execute(delete(_job).where(_job.c.id == job_id))
                return
            _set(
                transaction,
                job_id,
                status=Status.DROPPED.value,
                wanted=DesiredStatus.DROPPED.value,
                reason="dropped",
                sink_uri=sink_location(row.sink_uri) if row.sink_uri is not None else None,
                options={},
                modified=now,
                finished=now,
            )
            dropped = select(_job.c.id).where(_job.c.status == Status.DROPPED.value)
            kept = dropped.order_by(_job.c.id.desc()).limit(self.kept_dropped)
            transaction.execute(
                delete(_job).where(
                    _job.c.status == Status.DROPPED.value,
                    _job.c.id.not_in(kept.scalar_subquery()),
                )
            )

    def _job(self, row: Row[Any]) -> Job:
        # The rates are the last two fields.
        return Job(*(*_VALUES(tuple(row)), *row.rate.per_second(self._now())))


_HEALTHY = frozenset({Status.SCANNING, Status.RUNNING, Status.SUCCEEDED})


def _changes(
    add: Sequence[TableProgress],
    drop: Sequence[TableName],
    renamed: Mapping[TableName, TableName],
    rescan: Mapping[TableName, int],
    repair: Mapping[TableName, RowRepair],
) -> list[str]:
    parts = [f"tables added: {_listed(table.table for table in add)}"] if add else []
    parts += [f"tables dropped: {_listed(drop)}"] if drop else []
    parts += [f"{table} is followed as {now}" for table, now in renamed.items()]
    parts += [f"tables scanned again: {_listed(rescan)}"] if rescan else []
    parts += [f"rows read again by key: {_listed(repair)}"] if repair else []
    return parts


def _signed(changed: str, by: str) -> str:
    return f"{changed} (by {by})" if by else changed


def _owner(name: str | None) -> str:
    if name is None:
        return "the admins"
    return f'"{name}"' if name else "a user who was dropped"


def _listed(names: Iterable[TableName]) -> str:
    return ", ".join(sorted(map(str, names)))


def move_job(
    transaction: Transaction,
    job_id: int,
    status: Status,
    now: int,
    reason: str,
    error: ChangefeedError | None = None,
) -> None:
    """Move a job, see :meth:`Jobs.transition`, in a transaction that is open."""
    old = get_job(transaction, job_id)
    before = old.status
    check_move(job_id, before, status)
    values: dict[str, Any] = {"status": status.value, "reason": reason}
    if error is not None:
        values |= {
            "error": error.message,
            "error_code": error.code.number,
            "hint": error.hint,
        }
    elif status in _HEALTHY:
        values |= {"error": None, "error_code": None, "hint": None}
    if status in _HEALTHY and old.started is None:
        values["started"] = now
    if status is not before:
        values["modified"] = now
        ended = status in (Status.FAILED, Status.SUCCEEDED, Status.DROPPED)
        values["finished"] = now if ended else None
        # An error is an event of its own, and its reason has the number and time of an attempt.
        why = f": {reason}" if reason not in ("", status.value) and error is None else ""
        record(transaction, now, job_id, "status", f"{before} -> {status}{why}")
    if error is not None:
        # A feed that a missing right, or its options, paused does not try again.
        kind = "error" if status in (Status.FAILED, Status.PAUSED) else "retry"
        record(transaction, now, job_id, kind, error.message, code=error.code.number)
    _set(transaction, job_id, **values)


def _by_name(transaction: Transaction, name: str) -> Row[Any] | None:
    return transaction.execute(
        select(_job).where(_job.c.name == name, _job.c.status != Status.DROPPED.value)
    ).one_or_none()


def _find(transaction: Transaction, ref: str | int) -> Row[Any] | None:
    if isinstance(ref, str):
        return _by_name(transaction, ref)
    return transaction.execute(select(_job).where(_job.c.id == ref)).one_or_none()


def get_job(transaction: Transaction, ref: str | int) -> Row[Any]:
    """The row of a job by name or id, see :meth:`Jobs.job`."""
    row = _find(transaction, ref)
    if row is not None:
        return row
    if isinstance(ref, int):
        # CockroachDB's words: its users look for them.
        raise ChangefeedError(
            Code.NAME_UNKNOWN, f"could not load job with job id {ref}", hint="SHOW JOBS lists them."
        )
    raise ChangefeedError(
        Code.NAME_UNKNOWN, f'changefeed "{ref}" does not exist', hint="SHOW CHANGEFEEDS lists them."
    )


def _set(transaction: Transaction, job_id: int, **values: Any) -> None:
    transaction.execute(update(_job).where(_job.c.id == job_id).values(**values))


def _free_name(transaction: Transaction, job_id: int) -> str:
    names = set(
        transaction.execute(
            select(_job.c.name).where(
                func.substr(_job.c.name, 1, 5) == "feed_",
                _job.c.status != Status.DROPPED.value,
            )
        ).scalars()
    )
    name, tries = f"feed_{job_id}", 1
    while name in names:
        tries += 1
        name = f"feed_{job_id}_{tries}"
    return name

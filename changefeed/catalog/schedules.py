"""Schedules and their runs.

A run begins in the transaction that makes its feed (:func:`begin_run`): whichever nodes try, one
makes it, and a node that dies has made it or not. What a failed run means for its schedule is
decided once, by the first node that sees the failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import Connection as Transaction
from sqlalchemy import Row, delete, insert, select, update

from changefeed.catalog import tables
from changefeed.catalog.database import CatalogPart
from changefeed.catalog.model import Status
from changefeed.catalog.rows import RunConflict, Schedule, ScheduledRun
from changefeed.core.errors import ChangefeedError, Code

#: How long after a failure a run is tried again, ns.
RETRY_AFTER = 60 * 1_000_000_000
#: Feeds of runs that are over which stay, for each schedule.
KEPT_RUNS = 10

_schedule = tables.schedule
_run = tables.schedule_run
_job = tables.job

_SAME = tuple(f.name for f in fields(Schedule) if f.name in _schedule.c)
_OVER = (Status.SUCCEEDED.value, Status.FAILED.value, Status.DROPPED.value)


class Schedules(CatalogPart):
    """Part of :class:`changefeed.catalog.Catalog`."""

    def create_schedule(self, schedule: Schedule) -> Schedule:
        """Store a schedule; returns it with id and name.

        Raises:
            ChangefeedError: CF1102 the name is taken.
        """
        values = {name: getattr(schedule, name) for name in _SAME if name != "id"}
        values["created"] = self._now()
        with self._database.write() as transaction:
            names = set(transaction.execute(select(_schedule.c.name)).scalars())
            if schedule.name in names:
                raise ChangefeedError(Code.NAME_TAKEN, f'schedule "{schedule.name}" already exists')
            made = insert(_schedule).values(**values).returning(_schedule.c.id)
            number = int(transaction.execute(made).scalar_one())
            if not schedule.name:
                free = (f"schedule_{number}{'_' * tries}" for tries in range(len(names) + 1))
                name = next(name for name in free if name not in names)
                _set(transaction, number, name=name)
        return next(each for each in self.schedules() if each.id == number)

    def replace_schedule(self, schedule: Schedule) -> None:
        """Store another definition of a schedule, and its next time; what it has met, and whether
        it is paused, stays."""
        stays = ("id", "name", "created", "paused", "error")
        values = {name: getattr(schedule, name) for name in _SAME if name not in stays}
        with self._database.write() as transaction:
            _set(transaction, schedule.id, **values)

    def schedules(self) -> list[Schedule]:
        """Every schedule with its runs, by name."""
        with self._database.read() as transaction:
            rows = transaction.execute(select(_schedule).order_by(_schedule.c.name)).all()
            runs = select(_run.c.schedule_id, _run.c.due, _job.c.id, _job.c.name, _job.c.status)
            runs = runs.join(_job, _job.c.id == _run.c.job_id).order_by(_job.c.id)
            made = transaction.execute(runs).all() if rows else []
        return [_read(row, [run for run in made if run.schedule_id == row.id]) for row in rows]

    def scheduled_jobs(self) -> set[int]:
        """The ids of the feeds that schedules have made."""
        with self._database.read() as transaction:
            return set(transaction.execute(select(_run.c.job_id)).scalars())

    def drop_schedule(self, schedule_id: int) -> None:
        """Forget a schedule; the feeds of its runs stay."""
        with self._database.write() as transaction:
            transaction.execute(delete(_schedule).where(_schedule.c.id == schedule_id))

    def pause_schedule(self, schedule_id: int) -> None:
        """Begin no more runs."""
        with self._database.write() as transaction:
            _set(transaction, schedule_id, paused=True)

    def resume_schedule(self, schedule_id: int, due: int) -> None:
        """Let a schedule that is paused run again, ``due`` at first. Its error stays until a run
        succeeds."""
        with self._database.write() as transaction:
            paused = (_schedule.c.id == schedule_id) & _schedule.c.paused
            transaction.execute(update(_schedule).where(paused).values(paused=False, due=due))

    # -- for nodes ------------------------------------------------------------------------

    def skip_run(self, run: ScheduledRun) -> None:
        """Leave a run out, if it is due still."""
        with self._database.write() as transaction:
            transaction.execute(update(_schedule).where(_due(run)).values(due=run.following))

    def fail_run(self, run: ScheduledRun, error: str) -> bool:
        """Note that a run could not begin, and do what its schedule says then; False if it is not
        due any more."""
        with self._database.write() as transaction:
            row = transaction.execute(select(_schedule).where(_due(run))).one_or_none()
            if row is not None:
                _note_failure(transaction, row, error, run.following, self._now())
            return row is not None

    def end_runs(self) -> list[tuple[str, str]]:
        """Note the runs that are over, and do what their schedules say of those that failed;
        returns the schedule and the error of each of these."""
        over = (
            select(_run.c.job_id, _run.c.schedule_id, _job.c.name, _job.c.status, _job.c.error)
            .join(_job, _job.c.id == _run.c.job_id)
            .where(_run.c.ended.is_(False), _job.c.status.in_(_OVER))
            .order_by(_job.c.id)
        )
        with self._database.read() as transaction:
            if transaction.execute(over).first() is None:
                return []
        failed = []
        with self._database.write() as transaction:
            for run in transaction.execute(over).all():
                of_run = _run.c.job_id == run.job_id
                transaction.execute(update(_run).where(of_run).values(ended=True))
                row = transaction.execute(
                    select(_schedule).where(_schedule.c.id == run.schedule_id)
                ).one_or_none()
                if row is None:
                    continue
                if run.status is Status.FAILED:
                    error = f"run {run.name} has failed: {run.error}"
                    _note_failure(transaction, row, error, row.due, self._now())
                    failed.append((row.name, error))
                elif run.status is Status.SUCCEEDED:
                    _set(transaction, row.id, error=None)
        return failed


def begin_run(transaction: Transaction, run: ScheduledRun, job_id: int, kept: int) -> None:
    """Make a feed the run of its schedule, in the transaction that makes the feed. Those of earlier
    runs go: the ones that failed, which would hold the source's log, and of the others all but the
    last, so that ``kept`` stay with this one.

    Raises:
        RunConflict: the run is not due any more.
    """
    moved = update(_schedule).where(_due(run)).values(due=run.following)
    if not transaction.execute(moved).rowcount:
        raise RunConflict
    over = (
        select(_job.c.id, _job.c.status)
        .join(_run, _run.c.job_id == _job.c.id)
        .where(_run.c.schedule_id == run.schedule_id, _run.c.ended, _job.c.status.in_(_OVER))
        .order_by(_job.c.id.desc())
    )
    known = transaction.execute(over).all()
    gone = [row.id for row in known if row.status is Status.FAILED]
    gone += [row.id for row in known if row.status is not Status.FAILED][kept - 1 :]
    transaction.execute(delete(_job).where(_job.c.id.in_(gone)))
    begun = {"schedule_id": run.schedule_id, "due": run.due, "ended": False}
    transaction.execute(insert(_run).values(job_id=job_id, **begun))


def _due(run: ScheduledRun) -> Any:
    of_run = (_schedule.c.id == run.schedule_id) & (_schedule.c.due == run.due)
    return of_run & _schedule.c.paused.is_(False)


def _note_failure(
    transaction: Transaction, row: Row[Any], error: str, following: int, now: int
) -> None:
    if row.on_failure == "retry":
        following = min(following, now + RETRY_AFTER)
    paused = row.paused or row.on_failure == "pause"
    _set(transaction, row.id, error=error, due=following, paused=paused)


def _set(transaction: Transaction, schedule_id: int, **values: Any) -> None:
    transaction.execute(update(_schedule).where(_schedule.c.id == schedule_id).values(**values))


def _read(row: Row[Any], runs: Sequence[Any]) -> Schedule:
    last = runs[-1] if runs else None
    return Schedule(
        **{name: getattr(row, name) for name in _SAME},
        last_due=last and last.due,
        job_id=last and last.id,
        job_name=last and last.name,
        job_status=last and str(last.status),
        under_way=tuple(run.name for run in runs if run.status.value not in _OVER),
    )

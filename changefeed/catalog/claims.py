"""What feeds need of the change log of their source, and the end of such a claim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import func, not_, or_, select, update

from changefeed.catalog import tables
from changefeed.catalog.database import CatalogPart
from changefeed.catalog.grants import lacking
from changefeed.catalog.history import record
from changefeed.catalog.jobs import get_job, move_job
from changefeed.catalog.model import DesiredStatus, Status, TableState
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code

_progress = tables.job_table
_job = tables.job

_IDLE = (Status.PAUSED.value, Status.FAILED.value)


class LogClaim(NamedTuple):
    """The log must keep everything above a timestamp for a feed, or for its tables that failed or
    are paused.

    Attributes:
        standing_tables: for those of its tables that have failed or are paused, while it works on
            the others.
        above: up to where it needs the log no more.
    """

    job_id: int
    standing_tables: bool
    above: Timestamp


class LogClaims(CatalogPart):
    """Part of :class:`changefeed.catalog.Catalog`.

    Paused and failed feeds have claims, and so have such tables: RESUME goes on without a
    gap. Only a claim that ended with :meth:`end_claim` counts no more, until RESUME renews it.
    """

    def oldest_needed(self, source: str) -> Timestamp | None:
        """The log of a source must keep everything above this; None: no feed needs anything.

        A feed that does not know its progress yet needs everything.
        """
        bounds = [_needed_above(row) for row in self._unfinished(source)]
        return min((bound for bound in bounds if bound is not None), default=None)

    def claims(self, source: str) -> list[LogClaim]:
        """The claims on the log of a source.

        Feeds that scan a table, or are to, are left out: they need the log to go on.
        """
        scanning = {TableState.PENDING, TableState.SCANNING}
        rows = self._unfinished(source)
        left_out = {row.job_id for row in rows if row.state in scanning}
        above: dict[tuple[int, bool], Timestamp] = {}
        for row in rows:
            bound = _needed_above(row)
            stands = row.state.stands and row.status not in _IDLE
            if bound is not None and row.job_id not in left_out:
                key = (row.job_id, stands)
                above[key] = min(bound, above.get(key, bound))
        return [LogClaim(*key, bound) for key, bound in above.items()]

    def end_claim(self, claim: LogClaim, message: str) -> bool:
        """Keep nothing more of the log for a feed that is paused or has failed, or for such
        tables; the feed, or the tables, fail with CF3006.

        Returns:
            False: the feed works, so that its node must end it first.
        """
        error = ChangefeedError(Code.CLAIM_ENDED, message)
        job_id, number = claim.job_id, error.code.number
        with self._database.write() as transaction:
            status = transaction.execute(
                select(_job.c.status).where(_job.c.id == job_id)
            ).scalar_one_or_none()
            if status in _IDLE:
                move_job(transaction, job_id, Status.FAILED, self._now(), message, error)
                wanted = {"wanted": DesiredStatus.RUNNING.value}
                not_dropped = _job.c.wanted != DesiredStatus.DROPPED.value
                if lacking(transaction, get_job(transaction, job_id)) is not None:
                    return True  # nothing but RESUME looks at the rights again
                transaction.execute(
                    update(_job).where(_job.c.id == job_id, not_dropped).values(wanted)
                )
            elif claim.standing_tables:
                stand = _progress.c.state.in_([state for state in TableState if state.stands])
                transaction.execute(
                    update(_progress)
                    .where(_progress.c.job_id == job_id, stand)
                    .values(
                        state=TableState.FAILED,
                        error=message,
                        error_code=number,
                        paused=0,
                        paused_by="",
                    )
                )
                record(transaction, self._now(), job_id, "error", message, code=number)
            else:
                return False
        return True

    def _unfinished(self, source: str) -> Sequence[Any]:
        """The progress of tables that are not done and still count, of feeds that are not done."""
        ended = Code.CLAIM_ENDED.number
        idle = _job.c.status.in_(_IDLE) & (func.coalesce(_job.c.error_code, "") == ended)
        failed = _progress.c.state == TableState.FAILED.value
        failed &= func.coalesce(_progress.c.error_code, "") == ended
        with self._database.read() as transaction:
            return transaction.execute(
                select(
                    _progress.c.job_id,
                    _progress.c.state,
                    _progress.c.scan_wanted,
                    _progress.c.scan_at,
                    _progress.c.done_upto,
                    _job.c.high_water,
                    _job.c.status,
                )
                .join(_job, _job.c.id == _progress.c.job_id)
                .where(
                    _progress.c.source == source,
                    _job.c.status.not_in([Status.DROPPED.value, Status.SUCCEEDED.value]),
                    _progress.c.state != TableState.DONE.value,
                    not_(or_(idle, failed)),
                )
            ).all()


def _needed_above(row: Any) -> Timestamp | None:
    """Up to where a table of a feed needs the log no more; None when a scan is still to begin."""
    done: Timestamp | None = row.done_upto
    high_water: Timestamp | None = row.high_water
    if row.state is TableState.RUNNING and high_water is not None:
        return max(done or high_water, high_water)
    began: Timestamp | None = done if done is not None else row.scan_at
    if began is not None:
        return began
    return None if row.scan_wanted else Timestamp.ZERO

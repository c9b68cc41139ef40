"""What happened to each job, for SHOW CHANGEFEED f ERRORS and EVENTS; bounded per job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection as Transaction
from sqlalchemy import Row, delete, insert, select

from changefeed.catalog import tables
from changefeed.catalog.database import CatalogPart
from changefeed.catalog.rows import JobEvent
from changefeed.core.clock import Timestamp

#: Events kept per job, the newest.
KEPT_EVENTS = 500

#: Kinds of which the same again, soon after, is counted: an outage must not push the history out.
#: The text of a retry may differ each time (a port, a duration); its code and table are its cause.
_COUNTED = ("status", "scan", "notice", "retry", "error", "dead_letter")

#: How many of the newest events are looked at for the same one: what one attempt after an error
#: may record.
_RECENT = 8

_event = tables.event


class Events(CatalogPart):
    """Part of :class:`changefeed.catalog.Catalog`."""

    #: How many events of a job :meth:`record_event` leaves.
    kept_events: int = KEPT_EVENTS

    def record_event(
        self,
        job_id: int,
        kind: str,
        text: str,
        *,
        table: str | None = None,
        code: str | None = None,
        at: Timestamp | None = None,
    ) -> None:
        """Note something for the person who asks later: never row values or secrets.

        ``kind`` is one of :data:`changefeed.catalog.rows.EVENT_KINDS`. ``at`` is when the source
        committed what the event is about (now by default); such an event comes again when a feed
        goes back after a crash, and is noted once.
        """
        with self._database.write(notify=False) as transaction:
            if at is not None and _noted(transaction, job_id, kind, text, table, at):
                return
            record(
                transaction,
                self._now() if at is None else at.wall,
                job_id,
                kind,
                text,
                table=table,
                code=code,
                kept=self.kept_events,
            )

    def events(self, job_id: int, limit: int = 100, kinds: Sequence[str] = ()) -> list[JobEvent]:
        """The newest events first; of the given kinds, or all."""
        query = select(_event).where(_event.c.job_id == job_id)
        if kinds:
            query = query.where(_event.c.kind.in_(list(kinds)))
        with self._database.read() as transaction:
            rows = transaction.execute(query.order_by(_event.c.id.desc()).limit(limit))
            return [
                JobEvent(table=mapping.pop("table_name"), **mapping)
                for mapping in map(dict, rows.mappings())
            ]


def _noted(
    transaction: Transaction, job_id: int, kind: str, text: str, table: str | None, at: Timestamp
) -> bool:
    same = select(_event.c.id).where(
        _event.c.job_id == job_id,
        _event.c.at == at.wall,
        _event.c.kind == kind,
        _event.c.table_name == table,
        _event.c.text == text,
    )
    return transaction.execute(same.limit(1)).first() is not None


def record(
    transaction: Transaction,
    now: int,
    job_id: int,
    kind: str,
    text: str,
    *,
    table: str | None = None,
    code: str | None = None,
    kept: int = KEPT_EVENTS,
) -> None:
    """Insert an event in a transaction that is open, and cut the job's list to the newest
    ``kept``. It takes the place of a recent one of the same cause, and counts it."""
    same = _recent(transaction, job_id, kind, text, table, code) if kind in _COUNTED else None
    if same is not None:
        transaction.execute(delete(_event).where(_event.c.id == same.id))
    transaction.execute(
        insert(_event).values(
            job_id=job_id,
            at=same.at if same else now,
            kind=kind,
            code=code,
            table_name=table,
            text=text,
            times=same.times + 1 if same else 1,
            last=now,
        )
    )
    oldest = (
        select(_event.c.id)
        .where(_event.c.job_id == job_id)
        .order_by(_event.c.id.desc())
        .offset(kept)
        .limit(1)
    )
    cut = transaction.execute(oldest).scalar_one_or_none()
    if cut is not None:
        transaction.execute(delete(_event).where(_event.c.job_id == job_id, _event.c.id <= cut))


def _recent(
    transaction: Transaction, job_id: int, kind: str, text: str, table: str | None, code: str | None
) -> Row[Any] | None:
    newest = select(_event).where(_event.c.job_id == job_id).order_by(_event.c.id.desc())
    for row in transaction.execute(newest.limit(_RECENT)):
        alike = (row.kind, row.table_name, row.code) == (kind, table, code)
        if alike and (kind == "retry" or row.text == text):
            return row
    return None

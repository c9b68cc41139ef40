"""Rows that were refused for themselves, kept until they are read again or discarded."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, delete, func, insert, select, update
from sqlalchemy import Connection as Transaction

from changefeed.catalog import tables
from changefeed.catalog.database import CatalogPart, named
from changefeed.catalog.history import record
from changefeed.catalog.leases import check_lease
from changefeed.catalog.rows import DeadLetter, Lease
from changefeed.core.clock import Timestamp
from changefeed.core.schema import TableName

_letter = tables.dead_letter

_SAME = (
    "identity", "position", "op", "code", "message", "digest", "key", "row", "id", "refused",
    "retry",
)  # fmt: skip


class DeadLetterBox(CatalogPart):
    """Part of :class:`changefeed.catalog.Catalog`."""

    def dead_letters_kept(self, job_id: int, letter: DeadLetter) -> tuple[int, int]:
        """How many letters of its table, and of the feed, there are beside this one. Those that
        are to be read again do not count."""
        query = (
            select(_letter.c.source, _letter.c.schema, _letter.c.name, func.count().label("rows"))
            .where(_letter.c.job_id == job_id, _letter.c.retry == 0, ~_same(letter))
            .group_by(_letter.c.source, _letter.c.schema, _letter.c.name)
        )
        with self._database.read() as transaction:
            counts = {TableName(*row[:3]): int(row.rows) for row in transaction.execute(query)}
        return counts.get(letter.table, 0), sum(counts.values())

    def keep_dead_letter(self, job_id: int, letter: DeadLetter, lease: Lease) -> bool:
        """Store a letter, or what it is by now; durable on return. Returns whether it is new.

        Raises:
            LeaseLost: another node holds the job by now; nothing was written.
        """
        now = self._now()
        values = {n: getattr(letter, n) for n in _SAME if n not in ("id", "refused", "retry")}
        values |= {"refused": now, "retry": 0}
        with self._database.write(notify=False) as transaction:
            check_lease(transaction, lease)
            there = and_(_letter.c.job_id == job_id, _same(letter))
            if transaction.execute(update(_letter).where(there).values(**values)).rowcount:
                return False
            name = letter.table
            place = {"source": name.source, "schema": name.schema, "name": name.name}
            transaction.execute(insert(_letter).values(job_id=job_id, **place, **values))
            record(
                transaction, now, job_id, "dead_letter", letter.message,
                table=str(name), code=letter.code,
            )  # fmt: skip
            return True

    def dead_letters(
        self, job_id: int, ids: Collection[int] = (), limit: int | None = None
    ) -> list[DeadLetter]:
        """The letters of a job, the oldest first; those with these numbers, or all."""
        query = select(_letter).where(_of(job_id, ids)).order_by(_letter.c.id).limit(limit)
        with self._database.read() as transaction:
            return [_read(row) for row in transaction.execute(query)]

    def dead_letter_counts(self) -> Mapping[int, int]:
        """How many letters each job has; jobs without one are left out."""
        query = select(_letter.c.job_id, func.count()).group_by(_letter.c.job_id)
        with self._database.read() as transaction:
            return {job_id: count for job_id, count in transaction.execute(query)}

    def discard_dead_letters(self, job_id: int, ids: Collection[int], by: str) -> int:
        """Remove letters, those with these numbers or all; returns how many."""
        with self._database.write() as transaction:
            count = transaction.execute(delete(_letter).where(_of(job_id, ids))).rowcount
            if count:
                said = (
                    f"{count:,} dead letters discarded" if count > 1 else "1 dead letter discarded"
                )
                record(transaction, self._now(), job_id, "altered", f"{said} (by {by})")
            return count

    def forget_delivered_letters(
        self, job_id: int, name: TableName, *, rescan: int, whole: Timestamp | None
    ) -> None:
        """Remove the letters of a table that a scan has made good.

        Args:
            rescan: the RESCAN that was carried out: rows that were to be read again with it were.
            whole: the instant of the scan, if it has read all rows of the table.
        """
        where = and_(_letter.c.job_id == job_id, named(_letter, name))
        with self._database.write(notify=False) as transaction:
            # Without the key and the row, which may be encrypted.
            known = select(_letter.c.id, _letter.c.retry, _letter.c.position, _letter.c.op)
            found = transaction.execute(known.where(where)).all()
            over = [
                row.id
                for row in found
                # A scan does not find that a row was deleted.
                if (0 < row.retry <= rescan)
                or (whole is not None and row.position < whole and row.op != "d")
            ]
            for start in range(0, len(over), 500):
                some = over[start : start + 500]
                transaction.execute(delete(_letter).where(_letter.c.id.in_(some)))


def retry_letters(
    transaction: Transaction, job_id: int, name: TableName, ids: Collection[int], rescan: int
) -> None:
    """Let letters of a table be read again with a RESCAN."""
    where = and_(_of(job_id, ids), named(_letter, name))
    transaction.execute(update(_letter).where(where).values(retry=rescan))


def rename_letters(transaction: Transaction, job_id: int, old: TableName, new: TableName) -> None:
    """Let the letters of a table have its present name."""
    where = and_(_letter.c.job_id == job_id, named(_letter, old))
    transaction.execute(update(_letter).where(where).values(schema=new.schema, name=new.name))


def drop_letters(transaction: Transaction, job_id: int, name: TableName) -> None:
    """Remove the letters of a table that leaves its feed."""
    where = and_(_letter.c.job_id == job_id, named(_letter, name))
    transaction.execute(delete(_letter).where(where))


def _same(letter: DeadLetter) -> ColumnElement[bool]:
    return and_(named(_letter, letter.table), _letter.c.identity == letter.identity)


def _of(job_id: int, ids: Collection[int]) -> ColumnElement[bool]:
    mine = _letter.c.job_id == job_id
    return and_(mine, _letter.c.id.in_(list(ids))) if ids else mine


def _read(row: Row[Any]) -> DeadLetter:
    same = {name: getattr(row, name) for name in _SAME}
    return DeadLetter(table=TableName(row.source, row.schema, row.name), **same)

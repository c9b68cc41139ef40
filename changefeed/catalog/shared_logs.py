"""What the shared log of a source consists of.

A shared log is what these rows say. The bytes of small flushes are in the rows themselves; rows
name objects for the rest (:mod:`changefeed.log.shared`). Whatever changes it does so in one
transaction that holds the row of the source's lease, so a node that has lost the lease, and does
not know it yet, registers nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict

from sqlalchemy import Connection as Transaction
from sqlalchemy import and_, bindparam, case, delete, func, insert, or_, select, update

from changefeed.catalog import tables
from changefeed.catalog.database import CatalogPart
from changefeed.catalog.leases import check_source, held_elsewhere, holds
from changefeed.catalog.rows import SourceLease
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.log_manifest import MARK_LENGTH, LogChange, LogManifest, LogNews, TailPart
from changefeed.core.timings import LONGEST_LEASE, SHORTEST_LEASE

_ledger = tables.log_ledger
_tail = tables.log_tail
_object = tables.log_object
_note = tables.log_note

_lease = tables.source_lease
#: Adds a part of a journal, if the lease is still the last one taken, and keeps it so meanwhile.
_ADD_PART = (
    insert(_tail)
    .from_select(
        list(_tail.c.keys()),
        select(*(bindparam(column.name, type_=column.type) for column in _tail.c))
        .where(
            _lease.c.source == bindparam("source"),
            _lease.c.node == bindparam("node"),
            _lease.c.token == bindparam("token"),
        )
        .with_for_update(read=True),
    )
    .returning(_tail.c.start)
)

#: In place of the ledger of a log that is on a node's disk, and is to be moved.
UNMOVED = ""

#: Key of ``meta`` whose value is :attr:`SharedLogs.lease_seconds`.
_LEASE = "lease"


class SharedLogs(CatalogPart):
    """Part of :class:`changefeed.catalog.Catalog`. Times as in
    :class:`~changefeed.catalog.leases.Leases`."""

    # -- the place ------------------------------------------------------------------------

    @property
    def log_place(self) -> str | None:
        """The address of the shared logs of this state; None: logs are in the nodes' folders."""
        found = self._noted(tables.LOG_PLACE)
        return None if found is None else self._database.sealer.open(found)

    def _noted(self, key: str) -> str | None:
        with self._database.read() as transaction:
            query = select(tables.meta.c.value).where(tables.meta.c.key == key)
            found: str | None = transaction.execute(query).scalar_one_or_none()
        return found

    def set_log_place(self, address: str) -> None:
        """Keep the logs of this state at ``address`` from now on. The log of a source that was
        captured is on a node's disk until that node has registered it (:meth:`unmoved_logs`).
        """
        with self._database.write() as transaction:
            known = delete(tables.meta).where(tables.meta.c.key == tables.LOG_PLACE)
            if not transaction.execute(known).rowcount:
                state, captured = tables.source_state.c, tables.captured.c
                # Not all that are known: nothing was captured for a feed that no node has run.
                begun = select(state.name).where(state.frontier.is_not(None))
                sends = select(captured.source)
                for name in transaction.execute(begun.union(sends)).scalars().all():
                    transaction.execute(insert(_ledger).values(source=name, ledger=UNMOVED))
            sealed = self._database.sealer.seal(address)
            transaction.execute(insert(tables.meta).values(key=tables.LOG_PLACE, value=sealed))

    def forget_log_place(self, leases: Sequence[SourceLease]) -> list[str]:
        """Keep the logs of this state in its node's folder from now on; returns the objects that no
        row names any more.

        Raises:
            ChangefeedError: CF6003, another node has taken one of the sources; nothing was changed.
        """
        objects: list[str] = []
        with self._database.write() as transaction:
            for lease in leases:
                check_source(transaction, lease)
                free = update(tables.source_lease).where(holds([lease]))
                transaction.execute(free.values(node=None, expires=0))
            for table in (_tail, _object):
                found = select(table.c.object).where(table.c.object.is_not(None))
                objects += transaction.execute(found).scalars()
            for table in (_tail, _object, _ledger, _note):
                transaction.execute(delete(table))
            transaction.execute(delete(tables.meta).where(tables.meta.c.key == tables.LOG_PLACE))
        return objects

    @property
    def lease_seconds(self) -> float | None:
        """How long leases last, for all nodes; None: as long as each node's timings say."""
        found = self._noted(_LEASE)
        return None if found is None else float(found)

    def set_lease_seconds(self, seconds: float) -> None:
        """See :attr:`lease_seconds`; a node takes it up when it starts.

        Raises:
            ChangefeedError: CF1204, a lease cannot last so short or long.
        """
        if not SHORTEST_LEASE <= seconds <= LONGEST_LEASE:
            raise ChangefeedError(
                Code.INVALID_OPTION_VALUE,
                f"a lease cannot last {seconds:g} s",
                hint=f"{SHORTEST_LEASE:g}s to {LONGEST_LEASE:g}s: its node renews it every second.",
            )
        with self._database.write() as transaction:
            transaction.execute(delete(tables.meta).where(tables.meta.c.key == _LEASE))
            transaction.execute(insert(tables.meta).values(key=_LEASE, value=str(seconds)))

    def unmoved_logs(self) -> set[str]:
        """The sources whose log is still on the disk of a node, and nowhere else."""
        with self._database.read() as transaction:
            query = select(_ledger.c.source).where(_ledger.c.ledger == UNMOVED)
            return set(transaction.execute(query).scalars())

    # -- what the log consists of ---------------------------------------------------------

    def log_manifest(self, source: str) -> LogManifest:
        """What the shared log of a source consists of."""
        parts = select(
            _tail.c.journal, _tail.c.start, _tail.c.size, _tail.c.crc, _tail.c.object
        ).where(_tail.c.source == source)
        with self._database.read() as transaction:
            ledger = transaction.execute(
                select(_ledger.c.ledger).where(_ledger.c.source == source)
            ).scalar_one_or_none()
            tail = transaction.execute(parts.order_by(_tail.c.journal, _tail.c.start))
            files = transaction.execute(select(_object).where(_object.c.source == source))
            return LogManifest(
                ledger or None,
                tuple(TailPart(*row) for row in tail),
                {row.name: (row.size, row.object) for row in files},
            )

    def tail_bodies(self, source: str, journal: int, start: int) -> Iterator[tuple[int, bytes]]:
        """The bytes in rows of a journal from ``start`` on: where each begins, and the bytes."""
        query = (
            select(_tail.c.start, _tail.c.body)
            .where(_tail.c.source == source, _tail.c.journal == journal, _tail.c.start >= start)
            .where(_tail.c.body.is_not(None))
            .order_by(_tail.c.start)
        )
        with self._database.read() as transaction:
            for row in transaction.execute(query):
                yield row.start, row.body

    def log_news(self, source: str, journal: int, start: int) -> LogNews:
        """What is registered of a journal from ``start`` on, and which ledger there is: one query,
        which is asked often."""
        behind = and_(
            _tail.c.source == _ledger.c.source,
            _tail.c.journal == journal,
            or_(_tail.c.start >= start, _tail.c.start == 0),
        )
        part = [_tail.c[name] for name in ("journal", "start", "size", "crc", "object")]
        # The first part is for its checksum.
        body = case((_tail.c.start >= start, _tail.c.body))
        query = (
            select(func.substr(_ledger.c.ledger, 1, MARK_LENGTH), *part, body)
            .select_from(_ledger.outerjoin(_tail, behind))
            .where(_ledger.c.source == source)
            .order_by(_tail.c.start)
        )
        with self._database.read() as transaction:
            rows = transaction.execute(query).all()
        parts = [TailPart(*list(row)[1:]) for row in rows if row.journal is not None]
        return LogNews(
            rows[0][0] or None if rows else None,
            parts[0].crc if parts and not parts[0].start else None,
            tuple(found for found in parts if found.start >= start),
        )

    def log_objects(self, source: str, names: Collection[str]) -> dict[str, tuple[int, str]]:
        """Size and object of those of the files of a log that are objects."""
        query = select(_object).where(_object.c.source == source, _object.c.name.in_(list(names)))
        with self._database.read() as transaction:
            return {row.name: (row.size, row.object) for row in transaction.execute(query)}

    def log_notes(self, source: str) -> dict[str, bytes]:
        """The files that the source keeps in addition to its log."""
        with self._database.read() as transaction:
            rows = transaction.execute(select(_note).where(_note.c.source == source))
            return {row.name: row.body for row in rows}

    def register(self, lease: SourceLease, change: LogChange) -> None:
        """Change a shared log in one transaction, durable on return.

        Raises:
            ChangefeedError: CF6003, another node has taken the source; nothing was changed.
        """
        source = lease.source
        part = change.only_part
        if part is not None and self._database.on_server:
            self._register_part(lease, part)
            return
        with self._fenced(lease) as transaction:
            if change.cut is not None:
                journal, end = change.cut
                ours = and_(_tail.c.source == source, _tail.c.journal == journal)
                transaction.execute(delete(_tail).where(ours, _tail.c.start >= end))
            for table, column, names in (
                (_tail, _tail.c.journal, change.forget_journals),
                (_object, _object.c.name, {*change.forget_objects, *change.objects}),
                (_note, _note.c.name, {*change.forget_notes, *change.notes}),
            ):
                if names:
                    ours = table.c.source == source
                    transaction.execute(delete(table).where(ours, column.in_(list(names))))
            if change.ledger is not None:
                values = {"ledger": change.ledger}
                done = transaction.execute(
                    update(_ledger).where(_ledger.c.source == source).values(values)
                )
                if not done.rowcount:
                    transaction.execute(insert(_ledger).values(source=source, **values))
            for table, rows in (
                (_tail, [asdict(part) for part in change.tail]),
                (
                    _object,
                    [{"name": n, "size": s, "object": o} for n, (s, o) in change.objects.items()],
                ),
                (_note, [{"name": name, "body": body} for name, body in change.notes.items()]),
            ):
                if rows:
                    transaction.execute(insert(table), [row | {"source": source} for row in rows])

    def _register_part(self, lease: SourceLease, part: TailPart) -> None:
        """One statement in place of four: each waits for the server's answer."""
        values = asdict(lease) | asdict(part)
        with self._database.statement() as connection:
            if connection.execute(_ADD_PART, values).first() is None:
                raise held_elsewhere(lease.source)

    @contextmanager
    def _fenced(self, lease: SourceLease) -> Iterator[Transaction]:
        with self._database.append() as transaction:
            check_source(transaction, lease)
            yield transaction

    def forget_shared_log(self, lease: SourceLease) -> list[str]:
        """Remove a shared log; returns the objects that no row names any more."""
        source = lease.source
        with self._fenced(lease) as transaction:
            objects: list[str] = []
            for table in (_tail, _object):
                named = table.c.source == source
                found = select(table.c.object).where(named, table.c.object.is_not(None))
                objects += transaction.execute(found).scalars()
            for table in (_tail, _object, _ledger, _note):
                transaction.execute(delete(table).where(table.c.source == source))
        return objects

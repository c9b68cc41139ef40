"""Who runs a job: leases that end by time, and the nodes that hold them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, astuple
from typing import Any, Final, TypeAlias

from sqlalchemy import Column, ColumnElement, Row, and_, delete, insert, select, tuple_, update
from sqlalchemy import Connection as Transaction

from changefeed.catalog import tables
from changefeed.catalog.database import CatalogPart, ends_when_stalled
from changefeed.catalog.rows import Lease, LeaseLost, NodeRow, SourceLease
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.processes import has_ended, process_space
from changefeed.core.timings import LONGEST_LEASE, NODE_TTL
from changefeed.core.version import __version__

AnyLease: TypeAlias = Lease | SourceLease

#: The column that names what a lease is on.
_KEYS: Final[dict[type[AnyLease], Column[Any]]] = {
    Lease: tables.lease.c.job_id,
    SourceLease: tables.source_lease.c.source,
}

_lease = tables.lease
_node = tables.node


class Leases(CatalogPart):
    """Part of :class:`changefeed.catalog.Catalog`.

    Time comes from one clock for all nodes: the machine's for a state on SQLite, the server's for
    one on PostgreSQL, so it does not matter how far the clocks of machines are apart. After that
    clock was set back, leases and heartbeats of the time before count as ended; those who live
    renew theirs within seconds. Should two nodes run one job, the token lets only the later one
    write.
    """

    def acquire_lease(self, job_id: int, node: str, ttl: float) -> Lease | None:
        """Take the right to run a job for ``ttl`` seconds; None while another node has it.

        A lease that ended, that was released, that is ours already, or whose node died on
        this machine can be taken. Each taking has a higher token: what an older holder still
        writes is refused.
        """
        token = self._acquire(_KEYS[Lease], job_id, node, ttl)
        return None if token is None else Lease(job_id, node, token)

    def acquire_source(
        self, source: str, node: str, ttl: float, instead_of: str | None = None
    ) -> SourceLease | None:
        """Take the right to capture a source, as :meth:`acquire_lease` does for a job; also while
        ``instead_of`` has it, a node that lives and cannot use it."""
        token = self._acquire(_KEYS[SourceLease], source, node, ttl, instead_of)
        return None if token is None else SourceLease(source, node, token)

    def _acquire(
        self, key: Column[Any], of: object, node: str, ttl: float, instead_of: str | None = None
    ) -> int | None:
        with self._database.write(notify=False, urgent=True) as transaction:
            now = self._shared_now(transaction)
            row = transaction.execute(select(key.table).where(key == of)).one_or_none()
            if row and row.node not in (None, node, instead_of) and _lasts(row.expires, now):
                holder = find_node(transaction, row.node)
                if holder is None or not has_ended(holder.pid, holder.host):
                    return None
            token = row.token + 1 if row else 1
            values = {"node": node, "token": token, "expires": now + int(ttl * 1e9)}
            if row:
                transaction.execute(update(key.table).where(key == of).values(values))
            else:
                transaction.execute(insert(key.table).values({key.name: of, **values}))
        return token

    def release_lease(self, lease: AnyLease) -> None:
        """Let others take the job or source at once. Releasing a lost lease does nothing."""
        self.release_leases([lease])

    def release_leases(self, leases: Sequence[AnyLease]) -> None:
        """As :meth:`release_lease`, in one change: each wakes all nodes of the state. All are of
        jobs, or all of sources."""
        if not leases:
            return
        with self._database.write() as transaction:
            free = update(_KEYS[type(leases[0])].table).where(holds(leases))
            transaction.execute(free.values(node=None, expires=0))

    def lease_holder(self, job_id: int) -> str | None:
        """The node whose lease on the job has not ended."""
        return self._holders(_KEYS[Lease], job_id).get(job_id)

    def job_holders(self) -> dict[int, str]:
        """The node of each job whose lease has not ended."""
        return self._holders(_KEYS[Lease])

    def feeds_of_nodes(self) -> dict[str, list[int]]:
        """The jobs of each node whose lease on them has not ended."""
        found: dict[str, list[int]] = {}
        for job_id, node in self.job_holders().items():
            found.setdefault(node, []).append(job_id)
        return found

    def source_holders(self) -> dict[str, str]:
        """The node of each source whose lease has not ended."""
        return self._holders(_KEYS[SourceLease])

    def _holders(self, key: Column[Any], of: object = None) -> dict[Any, str]:
        query = select(key, key.table.c.node, key.table.c.expires).order_by(key)
        with self._database.read() as transaction:
            rows = transaction.execute(query if of is None else query.where(key == of)).all()
            if not rows:
                return {}
            now = self._shared_now(transaction)
            return {of: node for of, node, expires in rows if node and _lasts(expires, now)}

    def register_node(
        self, node_id: str, pid: int, host: str | None = None, max_feeds: int | None = None
    ) -> NodeRow:
        """Say that a process runs jobs; forgets nodes long gone.

        ``host``: where the process id means a process; that of this process when not given.
        ``max_feeds``: how many feeds it has room for; None: any number.
        """
        with self._database.write() as transaction:
            now = self._shared_now(transaction)
            node = NodeRow(
                node_id,
                pid,
                host or process_space(),
                __version__,
                started=now,
                seen=now,
                max_feeds=max_feeds,
            )
            transaction.execute(delete(_node).where(_node.c.id == node_id))
            transaction.execute(delete(_node).where(_node.c.seen < now - 86_400 * 10**9))
            transaction.execute(insert(_node).values(asdict(node)))
        return node

    def heartbeat(
        self,
        node_id: str,
        leases: Collection[AnyLease] = (),
        ttl: float = 0.0,
        load: float = 0.0,
    ) -> set[AnyLease]:
        """Say that the node lives, at least every :data:`NODE_TTL` / 3 seconds, and let its leases
        end ``ttl`` seconds from now, all in one transaction. ``load``: of its machine.

        Returns:
            The leases that are another node's by now; a late renewal is fine while nobody took it.
        """
        lost = set(leases)
        with self._database.write(notify=False, urgent=True) as transaction:
            now = self._shared_now(transaction)
            lives = {"seen": now, "load": load}
            transaction.execute(update(_node).where(_node.c.id == node_id).values(lives))
            for kind, key in _KEYS.items():
                held = {lease for lease in leases if isinstance(lease, kind)}
                if held:
                    nodes = {lease.node for lease in held}
                    ours: ColumnElement[bool] = key.table.c.node.in_(nodes)
                    rows = select(key, key.table.c.node, key.table.c.token).where(ours)
                    kept = {kind(*row) for row in transaction.execute(rows)}
                    lost -= kept
                    if not kept <= held:
                        # Others are being taken or given back. Else the statement is short,
                        # however many leases there are.
                        ours = and_(ours, key.in_([row[0] for row in map(astuple, kept & held)]))
                    ends = now + int(ttl * 1e9)
                    transaction.execute(update(key.table).where(ours).values(expires=ends))
        return lost

    def drain_node(self, node_id: str, draining: bool) -> None:
        """Ask a node to give its sources to others and to take none, or to take them again."""
        with self._database.write() as transaction:
            values = {"draining": draining}
            transaction.execute(update(_node).where(_node.c.id == node_id).values(values))

    def unregister_node(self, node_id: str) -> None:
        """Forget a node that ends in good order."""
        with self._database.write() as transaction:
            transaction.execute(delete(_node).where(_node.c.id == node_id))

    def live_nodes(self, within: float = NODE_TTL) -> list[NodeRow]:
        """Nodes heard of ``within`` so many seconds and, on this machine, whose process is there;
        oldest first."""
        with self._database.read() as transaction:
            now, ttl = self._shared_now(transaction), int(within * 1e9)
            rows = transaction.execute(
                select(_node)
                .where(_node.c.seen >= now - ttl, _node.c.seen <= now + ttl)
                .order_by(_node.c.started, _node.c.id)
            )
            nodes = [_row_node(row) for row in rows]
        return [node for node in nodes if not has_ended(node.pid, node.host)]


def _lasts(expires: int, now: int) -> bool:
    """Whether a lease has not ended. One that ends later than any can was given before the clock
    was set back: it must not keep a job for as long as the clock was ahead.
    """
    return now < expires <= now + int(LONGEST_LEASE * 1e9)


def holds(leases: Sequence[AnyLease]) -> ColumnElement[bool]:
    """The rows that say that these leases, of one kind, are still the last ones taken."""
    key = _KEYS[type(leases[0])]
    rows = tuple_(key, key.table.c.node, key.table.c.token)
    return rows.in_([astuple(lease) for lease in leases])


def check_lease(transaction: Transaction, lease: Lease) -> None:
    """Raise :class:`LeaseLost` unless the lease is still the last one taken."""
    if transaction.execute(select(_lease.c.token).where(holds([lease]))).first() is None:
        raise LeaseLost(lease.job_id)


def check_source(transaction: Transaction, lease: SourceLease) -> None:
    """Raise CF6003 unless the lease is still the last one taken, and keep it so until the
    transaction ends."""
    query = select(tables.source_lease.c.token).where(holds([lease]))
    if transaction.dialect.name == "postgresql":
        query = query.add_columns(ends_when_stalled())
    if transaction.execute(query.with_for_update(read=True)).first() is None:
        raise held_elsewhere(lease.source)


def held_elsewhere(source: str) -> ChangefeedError:
    """The error for a source that another node captures."""
    return ChangefeedError(
        Code.STATE_HELD_BY_ANOTHER_NODE,
        f"another node captures {source!r} now",
        hint="SHOW NODES shows which.",
    )


def find_node(transaction: Transaction, node_id: str) -> NodeRow | None:
    """The row of a node, unless it ended in good order or long ago."""
    row = transaction.execute(select(_node).where(_node.c.id == node_id)).one_or_none()
    return _row_node(row) if row else None


def _row_node(row: Row[Any]) -> NodeRow:
    return NodeRow(**row._mapping)

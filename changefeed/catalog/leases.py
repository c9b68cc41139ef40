"""Who runs a job: leases that end by time, and the nodes that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Column, Row, delete, insert, select, tuple_, update
from sqlalchemy import Connection as Transaction

from changefeed.catalog import tables
from changefeed.catalog.database import CatalogPart
from changefeed.catalog.rows import Lease, LeaseLost, NodeRow
from changefeed.core.processes import has_ended, process_space
from changefeed.core.version import __version__

#: A node not heard of for this long is dead, seconds.
NODE_TTL = 10.0

#: No lease is given for longer, seconds.
LONGEST_LEASE = 60.0

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
        with self._database.write(notify=False) as transaction:
            now = self._shared_now(transaction)
            expires = now + int(ttl * 1e9)
            token = take_lease(transaction, _lease.c.job_id, job_id, node, now, expires)
            return None if token is None else Lease(job_id, node, token, expires)

    def renew_lease(self, lease: Lease, ttl: float) -> Lease:
        """The same lease, to end ``ttl`` seconds from now.

        Raises:
            LeaseLost: another node took it (a late renewal is fine while none did).
        """
        with self._database.write(notify=False, urgent=True) as transaction:
            check_lease(transaction, lease)
            expires = self._shared_now(transaction) + int(ttl * 1e9)
            transaction.execute(
                update(_lease).where(_lease.c.job_id == lease.job_id).values(expires=expires)
            )
        return Lease(lease.job_id, lease.node, lease.token, expires)

    def release_lease(self, lease: Lease) -> None:
        """Let others take the job at once. Releasing a lost lease does nothing."""
        with self._database.write() as transaction:
            transaction.execute(
                update(_lease)
                .where(_lease.c.job_id == lease.job_id, _lease.c.token == lease.token)
                .values(node=None, expires=0)
            )

    def lease_holder(self, job_id: int) -> str | None:
        """The node whose lease on the job has not ended."""
        with self._database.read() as transaction:
            row = transaction.execute(
                select(_lease.c.node, _lease.c.expires).where(_lease.c.job_id == job_id)
            ).one_or_none()
            return row.node if row and lasts(row.expires, self._shared_now(transaction)) else None

    def feeds_of_nodes(self) -> dict[str, list[int]]:
        """The jobs of each node whose lease on them has not ended."""
        with self._database.read() as transaction:
            now = self._shared_now(transaction)
            found: dict[str, list[int]] = {}
            for row in transaction.execute(select(_lease).order_by(_lease.c.job_id)):
                if row.node and lasts(row.expires, now):
                    found.setdefault(row.node, []).append(row.job_id)
        return found

    def register_node(self, node_id: str, pid: int, host: str | None = None) -> NodeRow:
        """Say that a process runs jobs; forgets nodes long gone.

        ``host``: where the process id means a process; that of this process when not given.
        """
        with self._database.write() as transaction:
            now = self._shared_now(transaction)
            node = NodeRow(node_id, pid, host or process_space(), __version__, now, now)
            transaction.execute(delete(_node).where(_node.c.id == node_id))
            transaction.execute(delete(_node).where(_node.c.seen < now - 86_400 * 10**9))
            transaction.execute(insert(_node).values(asdict(node)))
        return node

    def heartbeat(self, node_id: str, leases: Sequence[Lease] = (), ttl: float = 0.0) -> set[int]:
        """Say that the node lives, at least every :data:`NODE_TTL` / 3 seconds, and renew its
        leases as :meth:`renew_lease` does, all in one transaction.

        Returns:
            The jobs whose lease is another's by now.
        """
        ours = [(lease.job_id, lease.token, lease.node) for lease in leases]
        kept: set[int] = set()
        with self._database.write(notify=False, urgent=True) as transaction:
            now = self._shared_now(transaction)
            transaction.execute(update(_node).where(_node.c.id == node_id).values(seen=now))
            if ours:
                renewed = transaction.execute(
                    update(_lease)
                    .where(tuple_(_lease.c.job_id, _lease.c.token, _lease.c.node).in_(ours))
                    .values(expires=now + int(ttl * 1e9))
                    .returning(_lease.c.job_id)
                )
                kept = set(renewed.scalars())
        return {lease.job_id for lease in leases} - kept

    def unregister_node(self, node_id: str) -> None:
        """Forget a node that ends in good order."""
        with self._database.write() as transaction:
            transaction.execute(delete(_node).where(_node.c.id == node_id))

    def live_nodes(self) -> list[NodeRow]:
        """Nodes heard of lately and, on this machine, whose process is there; oldest first."""
        with self._database.read() as transaction:
            now, ttl = self._shared_now(transaction), int(NODE_TTL * 1e9)
            rows = transaction.execute(
                select(_node)
                .where(_node.c.seen >= now - ttl, _node.c.seen <= now + ttl)
                .order_by(_node.c.started, _node.c.id)
            )
            nodes = [_row_node(row) for row in rows]
        return [node for node in nodes if not has_ended(node.pid, node.host)]


def lasts(expires: int, now: int) -> bool:
    """Whether a lease has not ended. One that ends later than any can was given before the clock
    was set back: it must not keep a job for as long as the clock was ahead.
    """
    return now < expires <= now + int(LONGEST_LEASE * 1e9)


def check_lease(transaction: Transaction, lease: Lease) -> None:
    """Raise :class:`LeaseLost` unless the lease is still the last one taken."""
    row = transaction.execute(
        select(_lease.c.node, _lease.c.token).where(_lease.c.job_id == lease.job_id)
    ).one_or_none()
    if row is None or row.token != lease.token or row.node != lease.node:
        raise LeaseLost(lease.job_id)


def take_lease(
    transaction: Transaction, key: Column[Any], of: object, node: str, now: int, expires: int
) -> int | None:
    """Give a node the lease whose ``key`` is ``of``; returns its token. None while another node
    has it, which was not seen to end on this machine.
    """
    row = transaction.execute(select(key.table).where(key == of)).one_or_none()
    if row and row.node not in (None, node) and lasts(row.expires, now):
        holder = find_node(transaction, row.node)
        if holder is None or not has_ended(holder.pid, holder.host):
            return None
    values = {"node": node, "token": row.token + 1 if row else 1, "expires": expires}
    if row:
        transaction.execute(update(key.table).where(key == of).values(values))
    else:
        transaction.execute(insert(key.table).values({key.name: of, **values}))
    return int(values["token"])


def find_node(transaction: Transaction, node_id: str) -> NodeRow | None:
    """The row of a node, unless it ended in good order or long ago."""
    row = transaction.execute(select(_node).where(_node.c.id == node_id)).one_or_none()
    return _row_node(row) if row else None


def _row_node(row: Row[Any]) -> NodeRow:
    return NodeRow(row.id, row.pid, row.host, row.version, row.started, row.seen)

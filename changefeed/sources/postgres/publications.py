"""The publication that we make in a database, one per source (its slot: :mod:`.slots`).

    CREATE PUBLICATION p FOR TABLE ...

Everything here may be run again at any time and by several nodes at once: changes to a
publication are made under an advisory lock, and what is already right is left alone.

Adding a table to a publication needs care. A transaction that wrote to the table before it
was added, and commits after, would come out in part; on servers before the minor releases
of May 2025 the decoder may moreover go on to leave out the table, because it keeps what it
learned from such a transaction. So after the table was added we wait for the transactions that
were writing to it, and then touch the publication once more, which makes every decoder
look again. Which tables still wait is kept in the publication's comment: a crash in between
cannot make us forget.

The comment also has the number of the transaction that changed the publication last for us: what
has a younger row in the catalog was changed by others, and may have missed changes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from psycopg import errors, sql

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.errors import ChangefeedError, Code
from changefeed.sources.postgres.connect import PsycopgConnection
from changefeed.sources.postgres.server import (
    POLL_SECONDS,
    look_at_sessions,
    name_sessions,
    slot_waits,
)

#: What our publications carry.
PUBLISH = "insert, update, delete, truncate"

#: How long one call waits for transactions that were writing to a table when it was added. Most
#: end at once; who calls says why it waits for the others, and calls again.
SETTLE_SECONDS = 2.0

#: How long a change of the publication waits for a table that others have locked. While
#: it waits it holds up no reader and no writer, only other changes of the table's definition.
LOCK_SECONDS = 3.0

_COMMENT = "made by changefeed"
_SETTLING = re.compile(r"settling ([\d ]+)")
_CHANGED = re.compile(r"changed (\d+)")

# Advisory locks are per database; the first number marks them as ours.
_LOCK_CLASS = 0x6366_6564


@dataclass(frozen=True, slots=True)
class Member:
    """A table in, or for, a publication. ``children`` are the leaf partitions."""

    oid: int
    schema: str
    name: str
    partitioned: bool = False

    def clause(self) -> sql.Composable:
        """How ALTER PUBLICATION names it: without its inheritance children."""
        # ONLY is for inheritance; a partitioned table stands for all its partitions anyway.
        only = sql.SQL("" if self.partitioned else "ONLY ")
        return only + sql.Identifier(self.schema, self.name)


@dataclass(frozen=True, slots=True)
class PublicationChange:
    """What :func:`set_tables` did.

    ``refused`` became unsafe just before it was added. ``altered`` has the tables that others
    else's change of the publication concerned, with what it was; it is undone.
    """

    created: bool
    added: tuple[Member, ...]
    removed: tuple[Member, ...]
    refused: tuple[Member, ...] = ()
    altered: Mapping[int, str] = field(default_factory=dict)


# ------------------------------------------------------------------------- publication


def members(connection: PsycopgConnection, publication: str) -> dict[int, Member] | None:
    """The tables of a publication by oid; None when there is no such publication."""
    rows = connection.execute(
        """
        SELECT c.oid, n.nspname, c.relname, c.relkind = 'p'
        FROM pg_catalog.pg_publication p
        LEFT JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid
        LEFT JOIN pg_catalog.pg_class c ON c.oid = r.prrelid
        LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE p.pubname = %s
        """,
        [publication],
    ).fetchall()
    if not rows:
        return None
    return {
        oid: Member(oid, schema, name, part) for oid, schema, name, part in rows if oid is not None
    }


def set_tables(
    connection: PsycopgConnection,
    publication: str,
    wanted: Iterable[Member],
    unsafe: Callable[[Sequence[int]], Collection[int]] = lambda oids: (),
    lock_seconds: float = LOCK_SECONDS,
    *,
    create: bool = True,
) -> PublicationChange:
    """Make the publication exist and hold exactly ``wanted``.

    ``unsafe`` says which tables must not be published. It is asked of those that were added,
    under the lock that adding takes: a replica identity that is dropped at the same moment
    waits for our commit, or is seen here.

    Raises:
        psycopg.Error: a right is missing, or a table is gone.
        ChangefeedError: CF2005 one of the tables is locked; CF2102 the publication
            does not exist, and ``create`` is false.
    """
    target = {member.oid: member for member in wanted}
    with _publication_change(connection, publication, target, lock_seconds):
        before = members(connection, publication) or {}
        altered = changed_by_others(connection, publication, before) or {}
        dropped = _undo_changes(connection, publication)
        present = members(connection, publication)
        if present is None:
            if not (create or dropped):
                raise publication_gone(publication)
            _create(connection, publication, target.values())
        added = [m for oid, m in target.items() if oid not in (present or {})]
        removed = [m for oid, m in (present or {}).items() if oid not in target]
        if present is not None:
            _alter(connection, publication, "ADD", added)
            _alter(connection, publication, "DROP", removed)
        bad = set(unsafe([m.oid for m in added])) if added else set()
        refused = [m for m in added if m.oid in bad]
        added = [m for m in added if m.oid not in bad]
        _alter(connection, publication, "DROP", refused)
        waiting = settling(connection, publication) | {m.oid for m in added}
        waiting -= {m.oid for m in removed}
        changed = added or removed or refused or altered or present is None
        if changed or _last_change(connection, publication) is None:
            _remember(connection, publication, waiting)
    return PublicationChange(present is None, tuple(added), tuple(removed), tuple(refused), altered)


def publication_gone(publication: str) -> ChangefeedError:
    """CF2102: no publication of this name exists, and a slot has no use for a younger one."""
    return ChangefeedError(
        Code.SOURCE_LOG_GONE,
        f'publication "{publication}" was dropped: the replication slot is useless without it',
    )


@dataclass(frozen=True, slots=True)
class _Publication:
    """A row of ``pg_publication``.

    Attributes:
        xmin: number of the transaction that wrote the row, of 32 bits.
        broad: it holds all tables, or those of schemas.
        whole: it sends every kind of change, those of partitions as the partitioned table's.
        comment: empty when there is none.
        snapshot: of 64 bits; transactions from this number on are not seen in these values.
        tables: what the catalog has of its tables, by oid.
    """

    oid: int
    xmin: int
    broad: bool
    whole: bool
    comment: str
    snapshot: int
    tables: dict[int, _MemberRow]

    @property
    def last_change(self) -> int | None:
        """The number of the transaction that changed the publication last for us.

        None when our note is missing, or so long ago that numbers of 32 bits do not compare with
        it.
        """
        found = _CHANGED.search(self.comment)
        if found is None or self.snapshot - int(found[1]) >= 2**31:
            return None
        return int(found[1])


@dataclass(frozen=True, slots=True)
class _MemberRow:
    xmin: int
    restricted: bool


def _publication(connection: PsycopgConnection, publication: str) -> _Publication | None:
    """Read in one statement: of one instant, so that a publication that is dropped meanwhile is
    not one whose tables were taken out."""
    version = connection.info.server_version
    by_root = "p.pubviaroot" if version >= 130_000 else "true"
    schemas = (
        "EXISTS (SELECT FROM pg_catalog.pg_publication_namespace n WHERE n.pnpubid = p.oid)"
        if version >= 150_000
        else "false"
    )
    restricted = "r.prqual IS NOT NULL OR r.prattrs IS NOT NULL" if version >= 150_000 else "false"
    row = connection.execute(
        sql.SQL(
            """
            SELECT p.oid::int8, p.xmin::text::int8, p.puballtables OR {schemas},
                   p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate AND {by_root},
                   coalesce(pg_catalog.obj_description(p.oid, 'pg_publication'), ''),
                   pg_catalog.txid_snapshot_xmax(pg_catalog.txid_current_snapshot()),
                   (SELECT coalesce(pg_catalog.json_agg(pg_catalog.json_build_array(
                               r.prrelid::int8, r.xmin::text::int8, {restricted})), '[]')
                    FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = p.oid)
            FROM pg_catalog.pg_publication p WHERE p.pubname = %s
            """
        ).format(
            schemas=sql.SQL(schemas), by_root=sql.SQL(by_root), restricted=sql.SQL(restricted)
        ),
        [publication],
    ).fetchone()
    if row is None:
        return None
    *values, rows = row
    tables = {oid: _MemberRow(xmin, limited) for oid, xmin, limited in rows}
    oid, xmin, broad, whole, comment, snapshot = values
    return _Publication(oid, xmin, broad, whole, comment, snapshot, tables)


def changed_by_others(
    connection: PsycopgConnection, publication: str, tables: Collection[int]
) -> dict[int, str] | None:
    """Which of ``tables`` (that we had put into the publication) may have missed changes, and
    what was done to the publication; None when it is gone.

    A change that was taken back counts: what committed meanwhile is missing.
    """
    found = _publication(connection, publication)
    if found is None:
        return None
    name = f'publication "{publication}"'
    last = found.last_change
    if found.broad or _COMMENT not in found.comment:
        return dict.fromkeys(tables, f"{name} was dropped and created again")
    if not found.whole or younger(found.xmin, last):
        return dict.fromkeys(tables, f"{name} was altered")
    rows = found.tables
    reasons: dict[int, str] = {}
    # A table that was dropped left the publication with that: nothing of it is missing.
    dropped = set(tables) - rows.keys() - _existing(connection, tables)
    for oid in tables:
        if oid in dropped:
            continue
        if oid not in rows:
            reasons[oid] = f"the table was taken out of {name}"
        elif rows[oid].restricted:
            reasons[oid] = f"the table has a row filter or a column list in {name}"
        elif younger(rows[oid].xmin, last):
            reasons[oid] = f"the table was taken out of {name} and put back"
    return reasons


def _existing(connection: PsycopgConnection, tables: Collection[int]) -> set[int]:
    query = "SELECT oid::int8 FROM pg_catalog.pg_class WHERE oid = ANY(%s::oid[])"
    return {oid for (oid,) in connection.execute(query, [list(tables)])}


def younger(xmin: int, last: int | None) -> bool:
    """A row was written by a later transaction than ``last`` (of 64 bits; None: not known)."""
    return last is not None and 0 < (xmin - last) % 2**32 < 2**31


def _last_change(connection: PsycopgConnection, publication: str) -> int | None:
    found = _publication(connection, publication)
    return None if found is None else found.last_change


def _undo_changes(connection: PsycopgConnection, publication: str) -> bool:
    """Make of the publication what we made it; its tables are seen to by the caller.

    Returns whether it had to be dropped for that.
    """
    found = _publication(connection, publication)
    if found is None:
        return False
    named = sql.Identifier(publication)
    if found.broad:
        connection.execute(sql.SQL("DROP PUBLICATION {}").format(named))
        return True
    if not found.whole:
        connection.execute(
            sql.SQL("ALTER PUBLICATION {} SET ({})").format(named, _options(connection))
        )
    limited = [
        member
        for oid, member in (members(connection, publication) or {}).items()
        if found.tables[oid].restricted
    ]
    _alter(connection, publication, "DROP", limited)
    return False


@contextmanager
def _publication_change(
    connection: PsycopgConnection,
    publication: str,
    tables: Iterable[int],
    lock_seconds: float = LOCK_SECONDS,
) -> Iterator[None]:
    """A transaction in which nobody else changes the publication, and that waits for no lock
    longer than ``lock_seconds``."""
    try:
        with connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = '{lock_seconds:g}s'")
            _lock(connection, publication)
            yield
    except errors.LockNotAvailable as error:
        raise _locked(connection, sorted(tables)) from error


def _locked(connection: PsycopgConnection, tables: Sequence[int]) -> ChangefeedError:
    rows = connection.execute(
        """
        SELECT DISTINCT l.pid FROM pg_catalog.pg_locks l
        WHERE l.locktype = 'relation' AND l.granted AND l.relation = ANY(%s::oid[])
          AND l.database = (SELECT oid FROM pg_catalog.pg_database
                            WHERE datname = pg_catalog.current_database())
          AND l.mode NOT IN ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock')
          AND l.pid IS NOT NULL
        """,
        [list(tables)],
    )
    pids = sorted(pid for (pid,) in rows)
    who = name_sessions(pids) if pids else "another session"
    return ChangefeedError(
        Code.SOURCE_BUSY,
        f"a table cannot be added to the publication while it is locked by {who}",
        hint=look_at_sessions(pids) if pids else "it will be retried.",
    )


def of_others(
    connection: PsycopgConnection, publication: str, wanted: Iterable[int]
) -> dict[int, str]:
    """Tables that are still to be added and that only others may add, by name."""
    present = members(connection, publication) or {}
    rows = connection.execute(
        """
        SELECT c.oid::int8, pg_catalog.format('%%I.%%I', n.nspname, c.relname)
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE c.oid = ANY(%s::oid[]) AND NOT pg_catalog.pg_has_role(c.relowner, 'USAGE')
        """,
        [[oid for oid in wanted if oid not in present]],
    )
    return dict(rows.fetchall())


def _create(connection: PsycopgConnection, publication: str, tables: Iterable[Member]) -> None:
    listed = sql.SQL(", ").join(table.clause() for table in tables)
    statement = sql.SQL("CREATE PUBLICATION {}").format(sql.Identifier(publication))
    if listed.as_string(connection):
        statement += sql.SQL(" FOR TABLE ") + listed
    connection.execute(statement + sql.SQL(" WITH ({})").format(_options(connection)))


def _options(connection: PsycopgConnection) -> sql.Composable:
    options: list[sql.Composable] = [sql.SQL("publish = {}").format(sql.Literal(PUBLISH))]
    if connection.info.server_version >= 130_000:
        options.append(sql.SQL("publish_via_partition_root = true"))
    return sql.SQL(", ").join(options)


def _alter(
    connection: PsycopgConnection, publication: str, verb: str, tables: Sequence[Member]
) -> None:
    if not tables:
        return
    # DROP TABLE takes no ONLY for a plain table that has children it never held; naming
    # them the same way as ADD did is what the server expects.
    connection.execute(
        sql.SQL("ALTER PUBLICATION {} {} TABLE {}").format(
            sql.Identifier(publication),
            sql.SQL("ADD" if verb == "ADD" else "DROP"),
            sql.SQL(", ").join(table.clause() for table in tables),
        )
    )


def drop_publication(connection: PsycopgConnection, publication: str) -> None:
    with connection.transaction():
        _lock(connection, publication)
        connection.execute(
            sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(publication))
        )


def _lock(connection: PsycopgConnection, publication: str) -> None:
    connection.execute(
        "SELECT pg_catalog.pg_advisory_xact_lock(%s, pg_catalog.hashtext(%s))",
        [_LOCK_CLASS, publication],
    )


# ------------------------------------------------------------------------- settling


def settling(connection: PsycopgConnection, publication: str) -> set[int]:
    """Tables whose earlier writers had not been waited for."""
    row = connection.execute(
        "SELECT pg_catalog.obj_description(oid, 'pg_publication')"
        " FROM pg_catalog.pg_publication WHERE pubname = %s",
        [publication],
    ).fetchone()
    found = _SETTLING.search(row[0] or "") if row else None
    return {int(oid) for oid in found[1].split()} if found else set()


def _remember(connection: PsycopgConnection, publication: str, waiting: Iterable[int]) -> None:
    """Write into the comment which tables wait, and that this transaction is ours."""
    [number] = connection.execute("SELECT pg_catalog.txid_current()").fetchone() or (0,)
    oids = " ".join(str(oid) for oid in sorted(waiting))
    text = f"{_COMMENT}; changed {number}" + (f"; settling {oids}" if oids else "")
    connection.execute(
        sql.SQL("COMMENT ON PUBLICATION {} IS {}").format(
            sql.Identifier(publication), sql.Literal(text)
        )
    )


def settle(
    connection: PsycopgConnection,
    publication: str,
    seconds: float = SETTLE_SECONDS,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Wait for writers from before the tables were added, then make decoders look again.

    Raises:
        ChangefeedError: CF2005 when a transaction outlasts ``seconds``; what waits is still
            remembered, so the call can be repeated.
    """
    waiting = settling(connection, publication)
    if not waiting:
        return
    deadline = clock.monotonic() + seconds
    writers = _writers(connection, waiting)
    while writers:
        if clock.monotonic() > deadline:
            raise _still_writing(connection, writers)
        clock.sleep(POLL_SECONDS)
        writers &= _writers(connection, waiting)
    with _publication_change(connection, publication, waiting):
        connection.execute(
            sql.SQL("ALTER PUBLICATION {} SET (publish = {})").format(
                sql.Identifier(publication), sql.Literal(PUBLISH)
            )
        )
        _remember(connection, publication, settling(connection, publication) - waiting)


def await_elders(
    connection: PsycopgConnection,
    publication: str,
    seconds: float = SETTLE_SECONDS,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Wait until every transaction, of whatever tables, is over that began before the publication
    was last changed.

    Raises:
        ChangefeedError: CF2005 when one outlasts ``seconds``.
    """
    changed = _last_change(connection, publication)
    deadline = clock.monotonic() + seconds
    while True:
        row = connection.execute(
            "SELECT pg_catalog.txid_snapshot_xmin(pg_catalog.txid_current_snapshot())"
        ).fetchone()
        if row is None or changed is None or row[0] > changed:
            return
        if clock.monotonic() > deadline:
            raise slot_waits(connection)
        clock.sleep(POLL_SECONDS)


def _writers(connection: PsycopgConnection, tables: Iterable[int]) -> set[tuple[str, int | None]]:
    """Transactions that hold a lock only a writer takes: (virtual id, pid)."""
    rows = connection.execute(
        """
        SELECT DISTINCT l.virtualtransaction, l.pid
        FROM pg_catalog.pg_locks l
        JOIN (
            SELECT t AS oid FROM unnest(%(oids)s::oid[]) t
            UNION
            SELECT p.relid FROM unnest(%(oids)s::oid[]) t
            CROSS JOIN LATERAL pg_catalog.pg_partition_tree(t::regclass) p
        ) w ON w.oid = l.relation
        WHERE l.locktype = 'relation' AND l.granted
          AND l.database = (SELECT oid FROM pg_catalog.pg_database
                            WHERE datname = pg_catalog.current_database())
          AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
                         'AccessExclusiveLock')
          AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid()
        """,
        {"oids": sorted(tables)},
    )
    return {(virtual, pid) for virtual, pid in rows}


def _still_writing(
    connection: PsycopgConnection, writers: Iterable[tuple[str, int | None]]
) -> ChangefeedError:
    pids = sorted(pid for _, pid in writers if pid is not None)
    prepared = any(pid is None for _, pid in writers)
    who = [name_sessions(pids)] * bool(pids) + ["a prepared transaction"] * prepared
    return ChangefeedError(
        Code.SOURCE_BUSY,
        f"a transaction that wrote to the table before it was watched has not ended: "
        f"{', '.join(who)}",
        hint=look_at_sessions(pids) + ("; SELECT * FROM pg_prepared_xacts;" if prepared else ""),
    )

"""What a state holds at a PostgreSQL database: a replication slot and a publication of one name, or
an administrator's that the connection names (:mod:`.given`)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Protocol

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Frontier, Position
from changefeed.core.schema import TableName
from changefeed.core.sql import readable
from changefeed.sources.base import Attachment, CaptureResult, Memo, StreamRequest, Watch
from changefeed.sources.postgres import (
    checks,
    ddl_events,
    given,
    introspect,
    publications,
    server,
    slots,
    standby,
)
from changefeed.sources.postgres.address import Address
from changefeed.sources.postgres.connect import PsycopgConnection, Sessions
from changefeed.sources.postgres.given import GivenPublication, WantedTables
from changefeed.sources.postgres.handover import Predecessor, take_over
from changefeed.sources.postgres.logical_messages import is_messages
from changefeed.sources.postgres.lookup import Lookup
from changefeed.sources.postgres.slots import SlotState
from changefeed.sources.postgres.storage import Fingerprints, read_fingerprints
from changefeed.sources.postgres.stream import LogicalSlot, ReplicationStream
from changefeed.sources.postgres.types import TableDetails

#: PostgreSQL cuts names longer than this.
_NAME_MAX = 63


def object_name(owner: str, source: str) -> str:
    """The name of slot and publication of a state at a source: ``changefeed_<owner>_<source>``.

    Lower-case letters, digits and ``_``, at most 63; two sources never share one.
    """
    clean = re.sub(r"[^a-z0-9_]", "_", source.lower())
    name = f"changefeed_{owner}_{clean}"
    if clean == source and len(name) <= _NAME_MAX:
        return name
    digest = sha256(source.encode()).hexdigest()[:8]
    return f"{name[: _NAME_MAX - 9]}_{digest}"


def stored_of(memo: Memo) -> dict[int, Fingerprints]:
    """How the tables were stored when they joined, by oid."""
    return {int(oid): tuple(found) for oid, found in memo.get("stored", {}).items()}


@dataclass
class SetupPatience:
    """How long preparing a database waits for those who use it, in seconds.

    A slot waits for every transaction that is open, and each attempt begins its wait again: on a
    server that always has some transaction of a few seconds a short one would never succeed. So
    the wait is longer after each attempt that was too short.

    Attributes:
        settle: for transactions that wrote to a table when it joined the publication.
        lock: for a table that others have locked.
        slot: for the slot, at first.
        longest_slot: for the slot, at most.
    """

    settle: float = publications.SETTLE_SECONDS
    lock: float = publications.LOCK_SECONDS
    slot: float = 2.0
    longest_slot: float = 60.0
    _attempt: float = field(default=0.0, init=False)

    def create_slot(
        self,
        connection: PsycopgConnection,
        slot: str,
        *,
        least: float = 0.0,
        primary: PsycopgConnection | None = None,
        failover: bool = True,
    ) -> None:
        """Make the slot unless it is there; wait for ``least`` seconds before giving up.

        Raises:
            ChangefeedError: see :func:`changefeed.sources.postgres.slots.create_slot`.
        """
        seconds = max(least, min(self._attempt or self.slot, self.longest_slot))
        try:
            slots.create_slot(connection, slot, seconds, primary, failover=failover)
        except ChangefeedError:
            self._attempt = 2 * seconds
            raise
        self._attempt = 0.0


class Server(Protocol):
    """What an attachment needs of its source."""

    name: str
    address: Address
    sessions: Sessions
    readers: Sessions
    patience: SetupPatience

    def identity(self) -> str:
        """Which database this is."""
        ...

    def describe_oids(self, oids: Iterable[int]) -> dict[int, TableDetails]:
        """What the catalog knows now of tables in the stream; dropped ones are left out."""
        ...

    def unseen(self, xids: Collection[int]) -> set[int]:
        """Those of the transactions in the stream that a session does not see yet."""
        ...


class PostgresAttachment(Attachment):
    """See :class:`changefeed.sources.base.Attachment`. The memo: ``slot`` and ``publication``,
    the ``predecessor`` whose slot ours is a copy of, ``messages`` where logical ones are wanted,
    ``ddl`` where our event triggers are there, ``given`` where the publication is an
    administrator's (:class:`.given.GivenPublication`), ``stored`` with the storage of each table
    when it joined (:meth:`.storage.Storage.fingerprints`).
    """

    def __init__(self, source: Server, owner: str, memo: Memo | None) -> None:
        known = memo or {}
        self._source = source
        self._name = object_name(owner, source.name)
        self._sessions = source.sessions
        self._readers = source.readers
        self._streaming = True
        self._predecessor = Predecessor.of(known)
        self._messages = bool(known.get("messages"))
        self._ddl = bool(known.get("ddl"))
        self._stored = stored_of(known)
        #: What the connection names, for one that holds nothing yet.
        self._given: GivenPublication | None = None
        self.slot = self.publication = ""
        if "publication" in known or "slot" in known:
            self._given = GivenPublication.of(known)
            self.slot = str(known.get("slot") or self._name)
            self.publication = str(known.get("publication") or self.slot)
        else:
            self._begin()

    def _begin(self) -> None:
        """Hold what the connection says: what an administrator made, or objects of our own."""
        address = self._source.address
        self.slot = address.slot or self._name
        self.publication = address.publication or self.slot
        self._given = GivenPublication(bool(address.slot)) if address.publication else None

    @property
    def memo(self) -> Memo:
        before = {"predecessor": self._predecessor.memo()} if self._predecessor else {}
        messages = {"messages": True} if self._messages else {}
        ddl = {"ddl": True} if self._ddl else {}
        theirs = {"given": self._given.memo()} if self._given else {}
        fingerprints = {str(oid): list(found) for oid, found in self._stored.items()}
        stored = {"stored": fingerprints} if fingerprints else {}
        names = {"slot": self.slot, "publication": self.publication}
        return {**names, **before, **messages, **ddl, **theirs, **stored}

    @property
    def holds(self) -> str:
        if self._given is None:
            return f"slot {self.slot}, publication {self.publication}"
        return "" if self._given.slot else f"slot {self.slot}"

    def check(self, watches: Sequence[Watch]) -> list[ChangefeedError]:
        return checks.check(self._source.name, self._source.address, watches, self._plan)

    def check_tables(self, watches: Sequence[Watch]) -> list[list[ChangefeedError]]:
        with self._sessions.session("check tables") as connection:
            return checks.table_problems(connection, watches, self._plan)

    @property
    def _plan(self) -> checks.Plan:
        held = self._given
        return checks.Plan(
            self.slot,
            self.publication,
            publication_given=held is not None,
            slot_given=held is not None and held.slot,
            begun=held is not None and bool(held.start),
            failover=self._source.address.failover,
        )

    def capture(self, tables: Sequence[TableName], *, resume: bool) -> CaptureResult:
        """See :class:`changefeed.sources.base.Attachment`.

        The publication comes first: a slot is no use for a publication younger than itself.
        """
        self._messages = any(map(is_messages, tables))
        tables = [table for table in tables if not is_messages(table)]
        watches = [Watch(name=table.name, schema=table.schema) for table in tables]
        with self._sessions.session("prepare the database for changefeeds") as connection:
            if self._source.address.apart:
                with self._readers.session("look at the standby") as reader:
                    standby.demand(connection, reader, self._source.address.named)
            self._follow_connection(resume=resume)
            slot, publication = self.slot, self.publication
            if resume:
                self._demand_slot(self.state())
                if publications.members(connection, publication) is None:
                    raise publications.publication_gone(publication)
            relations = introspect.look_up(connection, watches)
            wanted: dict[int, publications.Member] = {}
            names: dict[int, TableName] = {}
            problems: dict[TableName, ChangefeedError] = {}
            for table, watch, relation in zip(tables, watches, relations, strict=True):
                problem = (
                    introspect.unknown_table(connection, watch)
                    if relation is None
                    else introspect.refusal(relation, watch)
                )
                if problem is not None:
                    problems[table] = problem
                elif relation is not None:
                    wanted[relation.oid] = relation.member()
                    names[relation.oid] = table
            altered = (
                self._publish(connection, relations, wanted, names, problems, create=not resume)
                if self._given is None
                else self._join(connection, self._given, relations, wanted, names, problems)
            )
            self._watch_ddl(connection)
            before = self._predecessor
            if self._given is not None and self._given.slot:
                self._take_slot(connection, self._given)
            elif before is None:
                self._make_slot(connection)
            elif not before.until:
                self._predecessor = take_over(connection, before, slot, publication)
            if self._given is None or not self._given.slot:
                self._keep_through_failover()
            if self._given is None:
                publications.settle(connection, publication, self._source.patience.settle)
            if self._source.address.apart:
                with self._readers.session("wait for the standby") as reader:
                    standby.await_replay(connection, reader)
            self._look_at_storage(connection, wanted)
            checks.name_role(problems.values(), connection.info.user)
        return CaptureResult(
            problems=problems,
            altered={names[oid]: why for oid, why in altered.items() if oid in names},
        )

    def _look_at_storage(self, connection: PsycopgConnection, oids: Collection[int]) -> None:
        """Note how tables are stored before their rows are read: what the stream sees first may be
        younger."""
        known = {oid: one for oid, one in self._stored.items() if oid in oids}
        new = [oid for oid in oids if oid not in known]
        publication = self.publication if self._given is not None else ""
        with connection.transaction():
            connection.execute("set transaction isolation level repeatable read, read only")
            self._stored = known | read_fingerprints(connection, new, publication)

    def _follow_connection(self, *, resume: bool) -> None:
        """The connection may name another publication or slot than the one that is held.

        Raises:
            ChangefeedError: CF2102, on ``resume``: no log is common to the two.
        """
        address = self._source.address
        held = self._given
        theirs = self.publication if held is not None else ""
        slot = self.slot if held is not None and held.slot else ""
        if (theirs, slot) == (address.publication, address.slot):
            return
        if resume:
            raise ChangefeedError(
                Code.SOURCE_LOG_GONE,
                "the connection names another publication or slot than the change log was read "
                "with: changes in between are unknown",
                detail=f"now {address.publication or 'a publication of changefeed'}, before "
                f"{theirs or 'a publication of changefeed'}",
            )
        self.release()
        self._begin()

    def _publish(
        self,
        connection: PsycopgConnection,
        relations: Sequence[introspect.Relation | None],
        wanted: dict[int, publications.Member],
        names: Mapping[int, TableName],
        problems: dict[TableName, ChangefeedError],
        *,
        create: bool,
    ) -> Mapping[int, str]:
        """Make our publication hold exactly the tables ``wanted`` that it can hold; which of its
        tables that a change of others concerned. ``problems`` gets the tables left out."""
        publication = self.publication
        # One table that is not ours to add must not keep the others out.
        for oid, name in publications.of_others(connection, publication, wanted).items():
            del wanted[oid]
            problems[names[oid]] = checks.not_ours(connection, [name])
        self._leave_unpublishable(connection, relations, wanted, names, problems)
        # Nor may a table leave that was renamed since the caller looked: it is looked up again.
        stay = {}
        if any(relation is None for relation in relations):
            stay = publications.members(connection, publication) or {}
        change = publications.set_tables(
            connection,
            publication,
            (stay | wanted).values(),
            lambda oids: checks.unsafe(connection, oids),
            self._source.patience.lock,
            create=create,
        )
        for member in change.refused:
            if member.oid in names:
                problems[names[member.oid]] = _unsafe_now(member)
        return change.altered

    def _join(
        self,
        connection: PsycopgConnection,
        held: GivenPublication,
        relations: Sequence[introspect.Relation | None],
        wanted: dict[int, publications.Member],
        names: Mapping[int, TableName],
        problems: dict[TableName, ChangefeedError],
    ) -> Mapping[int, str]:
        """The same with an administrator's publication, which has them or has not.

        Raises:
            ChangefeedError: CF2003 it is not there, or cannot be used.
        """
        before = held.tables if held.seen else ()
        found = given.look(connection, self.publication, {*wanted, *before})
        if found is None:
            there = [relation for relation in relations if relation is not None]
            raise checks.no_publication(connection, self.publication, there)
        for problem in given.publication_problems(found):
            raise problem
        found = given.settled(connection, found, self._source.patience.settle)
        for oid in list(wanted):
            missing = given.table_problem(found, oid)
            if missing is not None:
                del wanted[oid]
                problems[names[oid]] = missing
        self._leave_unpublishable(connection, relations, wanted, names, problems)
        # A table that was renamed since the caller looked is looked up again.
        stay = before if any(relation is None for relation in relations) else ()
        tables = tuple(sorted({*wanted, *stay}))
        self._given = replace(held, seen=found.ended - 1, tables=tables)
        return given.changes(found, held.seen, before)

    def _leave_unpublishable(
        self,
        connection: PsycopgConnection,
        relations: Sequence[introspect.Relation | None],
        wanted: dict[int, publications.Member],
        names: Mapping[int, TableName],
        problems: dict[TableName, ChangefeedError],
    ) -> None:
        """Leave out those that cannot be published without breaking their users' statements."""
        chosen = [r for r in relations if r is not None and r.oid in wanted]
        for oid, problem in checks.unpublishable(connection, chosen).items():
            del wanted[oid]
            problems[names[oid]] = problem

    def _take_slot(self, connection: PsycopgConnection, held: GivenPublication) -> None:
        """Begin with an administrator's slot at what is committed now: what the slot has of before
        may be older than its publication.

        Raises:
            ChangefeedError: it cannot be read.
        """
        if held.start:
            return
        with self._readers.session("look at the replication slot") as reader:
            problem = given.slot_problem(reader, self.slot, begun=False)
        if problem is not None:
            raise problem
        self._given = replace(held, start=server.current_position(connection))

    def _watch_ddl(self, connection: PsycopgConnection) -> None:
        """Make the event triggers that the connection wants, or remove those that it had. With an
        administrator's publication nothing is made or removed."""
        ours = self._given is None
        if self._source.address.ddl_events:
            self._ddl = ddl_events.make(connection, self.slot, allowed=ours)
        elif self._ddl:
            self._ddl = False
            if ours:
                ddl_events.remove(connection, self.slot)

    def _make_slot(self, connection: PsycopgConnection) -> None:
        """The slot, where the log is read; a standby must know the publication before."""
        address, patience = self._source.address, self._source.patience
        if not address.apart:
            failover = address.failover is not False
            patience.create_slot(connection, self.slot, failover=failover)
            return
        with self._readers.session("make the replication slot on the standby") as reader:
            state = slots.slot_state(reader, self.slot)
            if state.exists and not state.unfinished:
                return
            standby.await_replay(connection, reader)
            least = 0.0 if standby.prompts(connection) else standby.UNPROMPTED_SECONDS
            with standby.Prompter(address.primary):
                patience.create_slot(reader, self.slot, least=least, primary=connection)

    def _keep_through_failover(self) -> None:
        address = self._source.address
        with self._readers.session("look at the replication slot") as reader:
            slots.keep_through_failover(
                reader, address.reader, self.slot, failover=address.failover is not False
            )

    def altered(self, tables: Collection[int]) -> Mapping[int, str]:
        with self._sessions.session("look at the publication") as connection:
            if self._given is not None:
                return given.altered(connection, self.publication, self._given, tables)
            found = publications.changed_by_others(connection, self.publication, tables)
        if found is None:
            raise publications.publication_gone(self.publication)
        return found

    def headroom(self, read: Frontier | None) -> list[str]:
        """See :class:`changefeed.sources.base.Attachment`: what the slot keeps, and its limit."""
        with self._sessions.session("look at the publication") as connection:
            if publications.members(connection, self.publication) is None:
                raise publications.publication_gone(self.publication)
        with self._readers.session("look at the replication slot") as connection:
            self._demand_slot(slots.slot_state(connection, self.slot))
            return slots.headroom(connection, self.slot)

    def state(self) -> SlotState:
        """What the server says of our slot."""
        with self._readers.session("look at the replication slot") as connection:
            return slots.slot_state(connection, self.slot)

    def _demand_slot(self, state: SlotState) -> None:
        """Raises CF2102 unless the slot has its log."""
        hint = given.lost_slot_hint(state, self.slot) if self._plan.slot_given else ""
        if not state.exists:
            raise ChangefeedError(
                Code.SOURCE_LOG_GONE, f"replication slot {self.slot!r} no longer exists", hint=hint
            )
        if state.lost:
            raise ChangefeedError(
                Code.SOURCE_LOG_GONE,
                f"replication slot {self.slot!r} was invalidated by the server",
                detail=state.reason or "the server removed log that was still needed",
                hint=hint,
            )

    def start(self) -> tuple[Position, str]:
        """See :class:`changefeed.sources.base.Attachment`: what the slot has confirmed."""
        state = self.state()
        self._demand_slot(state)
        begun = self._given.start if self._given is not None else ""
        return begun or state.confirmed, ""

    def stream(self, request: StreamRequest) -> ReplicationStream:
        source, identity = self._source, request.identity
        if identity and (present := source.identity()) != identity:
            raise ChangefeedError(
                Code.SOURCE_IS_ANOTHER,
                f"source {source.name!r} is another database than before",
                detail=f"system identifier/database {present}, was {identity}",
            )
        before = self._predecessor
        theirs = before is not None and before.precedes(request.start.position)
        address = source.address
        slot = LogicalSlot(
            uri=address.reader,
            name=self.slot,
            publication=before.publication if before is not None and theirs else self.publication,
            source=source.name,
            describe=source.describe_oids,
            upto=before.until if before is not None and theirs else None,
            before=lambda: stored_of(request.memo()),
            lookup=Lookup(address.reader).fetch,
            primary=address.primary if address.apart else None,
            unseen=source.unseen,
            streaming=self._streaming,
            logical=lambda: bool(request.memo().get("messages")),
            wanted=WantedTables(request.memo),
            ddl=lambda: self.slot if request.memo().get("ddl") else "",
            decoding_failed=self._stop_streaming,
        )
        return ReplicationStream(slot, request)

    def _stop_streaming(self) -> None:
        """Later streams of this object get each transaction at its commit."""
        self._streaming = False

    def release(self) -> None:
        doing = "remove what changefeeds made in the database"
        held = self._given
        if held is None or not held.slot:
            with self._readers.session(doing) as connection:
                slots.drop_slot(connection, self.slot)
        if self._ddl and held is None:
            with self._sessions.session(doing) as connection:
                ddl_events.remove(connection, self.slot)
        if held is None:
            with self._sessions.session(doing) as connection:
                publications.drop_publication(connection, self.publication)


def _unsafe_now(member: publications.Member) -> ChangefeedError:
    return ChangefeedError(
        Code.SOURCE_NOT_SET_UP,
        f"table {readable(member.schema)}.{readable(member.name)} "
        "lost its replica identity just now",
        hint="give it a primary key or REPLICA IDENTITY FULL, then RESUME.",
    )

"""What a state holds at a PostgreSQL database: a replication slot and a publication of one name."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

from changefeed.core.errors import ChangefeedError
from changefeed.core.events import Position
from changefeed.core.schema import TableName
from changefeed.sources.base import Attachment, Captured, Memo, StreamRequest, Watch
from changefeed.sources.postgres import checks, introspect, setup
from changefeed.sources.postgres.connect import Connection
from changefeed.sources.postgres.lookup import Lookup
from changefeed.sources.postgres.setup import SlotState
from changefeed.sources.postgres.stream import ReplicationStream

if TYPE_CHECKING:
    from changefeed.sources.postgres.source import PostgresSource

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


class Patience:
    """How long the making of a slot may take: longer after each attempt that was too short."""

    def __init__(self) -> None:
        self.seconds = setup.SLOT_SECONDS

    def create_slot(self, connection: Connection, slot: str) -> None:
        """Make the slot unless it is there.

        Raises:
            ChangefeedError: see :func:`changefeed.sources.postgres.setup.create_slot`.
        """
        try:
            setup.create_slot(connection, slot, self.seconds)
        except ChangefeedError:
            self.seconds = min(2 * self.seconds, setup.LONGEST_SLOT_SECONDS)
            raise
        self.seconds = setup.SLOT_SECONDS


class PostgresAttachment(Attachment):
    """See :class:`changefeed.sources.base.Attachment`. The memo: ``slot`` and ``publication``."""

    def __init__(self, source: PostgresSource, owner: str, memo: Memo | None) -> None:
        name = object_name(owner, source.name)
        known = memo or {}
        self.slot = str(known.get("slot") or name)
        self.publication = str(known.get("publication") or self.slot)
        self._source = source
        self._sessions = source.sessions
        self._streaming = True

    @property
    def memo(self) -> Memo:
        """See :class:`changefeed.sources.base.Attachment`."""
        return {"slot": self.slot, "publication": self.publication}

    @property
    def holds(self) -> str:
        """See :class:`changefeed.sources.base.Attachment`."""
        return f"slot {self.slot}, publication {self.publication}"

    def check(self, watches: Sequence[Watch]) -> list[ChangefeedError]:
        """See :class:`changefeed.sources.base.Attachment`."""
        return checks.check(
            self._source.name,
            self._source.uri,
            watches,
            slot=self.slot,
            publication=self.publication,
        )

    def check_tables(self, watches: Sequence[Watch]) -> list[list[ChangefeedError]]:
        """See :class:`changefeed.sources.base.Attachment`."""
        with self._sessions.session("check tables") as connection:
            return checks.table_problems(connection, watches, self.publication)

    def capture(self, tables: Sequence[TableName], *, resume: bool) -> Captured:
        """See :class:`changefeed.sources.base.Attachment`.

        The publication comes first: a slot is no use for a publication younger than itself.
        """
        slot, publication = self.slot, self.publication
        watches = [Watch(name=table.name, schema=table.schema) for table in tables]
        with self._sessions.session("prepare the database for changefeeds") as connection:
            if resume:
                _demand_slot(setup.slot_state(connection, slot), slot)
                if setup.members(connection, publication) is None:
                    raise _publication_gone(publication)
            relations = introspect.look_up(connection, watches)
            wanted: dict[int, setup.Member] = {}
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
            # One table that is not ours to add must not keep the others out.
            for oid, (name, owner) in setup.of_others(connection, publication, wanted).items():
                del wanted[oid]
                problems[names[oid]] = _not_ours(name, owner)
            # Nor must one that cannot be published without breaking its users' statements.
            chosen = [r for r in relations if r is not None and r.oid in wanted]
            for oid, problem in checks.unpublishable(connection, chosen).items():
                del wanted[oid]
                problems[names[oid]] = problem
            change = setup.set_tables(
                connection,
                publication,
                wanted.values(),
                lambda oids: checks.unsafe(connection, oids),
            )
            for member in change.refused:
                problems[names[member.oid]] = _unsafe_now(member)
            self._source.patience.create_slot(connection, slot)
            setup.settle(connection, publication, setup.SETTLE_SECONDS)
        return Captured(
            problems=problems,
            altered={names[oid]: why for oid, why in change.altered.items() if oid in names},
        )

    def altered(self, tables: Collection[int]) -> Mapping[int, str]:
        """See :class:`changefeed.sources.base.Attachment`."""
        with self._sessions.session("look at the publication") as connection:
            found = setup.changed_by_others(connection, self.publication, tables)
        if found is None:
            raise _publication_gone(self.publication)
        return found

    def state(self) -> SlotState:
        """What the server says of our slot."""
        with self._sessions.session("look at the replication slot") as connection:
            return setup.slot_state(connection, self.slot)

    def start(self) -> tuple[Position, str]:
        """See :class:`changefeed.sources.base.Attachment`: what the slot has confirmed."""
        state = self.state()
        _demand_slot(state, self.slot)
        return state.confirmed, ""

    def stream(self, request: StreamRequest) -> ReplicationStream:
        """See :class:`changefeed.sources.base.Attachment`."""
        source, identity = self._source, request.identity
        if identity and (present := source.identity()) != identity:
            raise ChangefeedError(
                "CF2104",
                f"source {source.name!r} is another database than before",
                detail=f"system identifier/database {present}, was {identity}",
            )
        return ReplicationStream(
            source.uri,
            self.slot,
            self.publication,
            start=request.start,
            describe=source.describe_oids,
            intern=request.intern,
            source=source.name,
            spool_dir=request.spool,
            latest=request.latest,
            lookup=Lookup(source.uri).fetch,
            unseen=source.unseen,
            binary=source.binary,
            streaming=self._streaming,
            decoding_failed=self._stop_streaming,
            system_id=identity.partition("/")[0],
        )

    def _stop_streaming(self) -> None:
        """Later streams of this object get each transaction at its commit."""
        self._streaming = False

    def release(self) -> None:
        """See :class:`changefeed.sources.base.Attachment`."""
        with self._sessions.session("remove what changefeeds made in the database") as connection:
            setup.drop_slot(connection, self.slot)
            setup.drop_publication(connection, self.publication)


def _not_ours(name: str, owner: str) -> ChangefeedError:
    return ChangefeedError(
        "CF2004",
        f"only its owner may add table {name} to a publication",
        hint=f"GRANT {owner} TO <role of the connection>; then RESUME.",
    )


def _unsafe_now(member: setup.Member) -> ChangefeedError:
    return ChangefeedError(
        "CF2003",
        f"table {introspect.quoted(member.schema)}.{introspect.quoted(member.name)} "
        "lost its replica identity just now",
        hint="give it a primary key or REPLICA IDENTITY FULL, then RESUME.",
    )


def _publication_gone(publication: str) -> ChangefeedError:
    return ChangefeedError(
        "CF2102",
        f'publication "{publication}" was dropped: the replication slot is of no use without it',
    )


def _demand_slot(state: SlotState, slot: str) -> None:
    if not state.exists:
        raise ChangefeedError("CF2102", f"replication slot {slot!r} does not exist any more")
    if state.lost:
        raise ChangefeedError(
            "CF2102",
            f"replication slot {slot!r} was invalidated by the server",
            detail=state.reason or "the server removed log that was still needed",
        )

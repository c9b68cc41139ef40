"""PostgreSQL behind the protocol of a source: each method is one idea of another module."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from psycopg import conninfo

from changefeed.core.errors import ChangefeedError, raise_all
from changefeed.core.events import Frontier, Position
from changefeed.core.schema import TableName, TableSchema
from changefeed.sources.base import (
    KeyRange,
    PartitionInfo,
    Prepared,
    Sighting,
    SlotState,
    TableInfo,
    Watch,
)
from changefeed.sources.postgres import checks, introspect, partitions, setup
from changefeed.sources.postgres.connect import Connection, Sessions, connection_info
from changefeed.sources.postgres.details import read_details
from changefeed.sources.postgres.lookup import Lookup
from changefeed.sources.postgres.snapshot import PostgresSnapshot
from changefeed.sources.postgres.stream import ReplicationStream
from changefeed.sources.postgres.types import TableDetails
from changefeed.sources.postgres.wire import split_binary


class PostgresSource:
    """One database of a PostgreSQL server. Thread-safe; connects when first needed."""

    def __init__(self, name: str, uri: str) -> None:
        """``uri`` is libpq's, with its parameters; ``binary=true`` asks for a binary stream.

        Raises:
            ChangefeedError: CF1201, CF1202 the URI cannot be read.
        """
        self.name = name
        self._uri, self._binary = split_binary(uri)
        connection_info(self._uri)
        self._sessions = Sessions(self._uri)
        self._patience = setup.SLOT_SECONDS
        self._streaming = True

    def __repr__(self) -> str:
        return f"PostgresSource({self.name!r})"

    @property
    def database(self) -> str:
        """See :attr:`changefeed.sources.base.NamesDatabase.database`."""
        given = conninfo.conninfo_to_dict(connection_info(self._uri))
        return str(given.get("dbname") or given.get("user") or self.name)

    def range_problem(self, table: TableSchema, keys: KeyRange) -> ChangefeedError | None:
        """See :meth:`changefeed.sources.base.ChecksRanges.range_problem`."""
        with self._sessions.session("check a range of keys") as connection:
            return checks.range_problem(connection, table, keys)

    def close(self) -> None:
        """Close idle sessions; the object stays usable."""
        self._sessions.close()

    # -- what is there --------------------------------------------------------------------

    def check(
        self,
        watches: Sequence[Watch],
        *,
        slot: str | None = None,
        publication: str | None = None,
    ) -> list[ChangefeedError]:
        """See :meth:`changefeed.sources.base.Source.check`."""
        return checks.check(self.name, self._uri, watches, slot=slot, publication=publication)

    def table_problems(
        self, watches: Sequence[Watch], *, publication: str | None = None
    ) -> list[list[ChangefeedError]]:
        """See :meth:`changefeed.sources.base.ChecksTables.table_problems`."""
        with self._sessions.session("check tables") as connection:
            return checks.table_problems(connection, watches, publication)

    def warnings(self, watches: Sequence[Watch] = ()) -> list[str]:
        """What does not hinder a feed but deserves a notice."""
        with self._sessions.session("look at the server's settings") as connection:
            return checks.warnings(connection, watches)

    def tables(self, publication: str | None = None) -> list[TableInfo]:
        """See :meth:`changefeed.sources.base.Source.tables`."""
        with self._sessions.session("list tables") as connection:
            return introspect.table_list(connection, self.name, publication)

    def sight(self, tables: Sequence[TableName], numbers: Sequence[int]) -> Sighting:
        """See :meth:`changefeed.sources.base.NumbersTables.sight`."""
        with self._sessions.session("look for tables") as connection:
            seen = introspect.sight(connection, self.name, tables, numbers)
            unsafe = checks.unsafe(connection, sorted({*seen.numbers.values(), *seen.names}))
        return replace(seen, unsafe=unsafe)

    def describe(self, schema: str | None, name: str) -> TableSchema:
        """See :meth:`changefeed.sources.base.Source.describe`."""
        return self.describe_all([Watch(name=name, schema=schema)])[0]

    def partition(self, table: TableSchema, name: str) -> PartitionInfo:
        """See :meth:`changefeed.sources.base.Partitions.partition`."""
        with self._sessions.session("look at a partition") as connection:
            return partitions.find(connection, table, name)

    def partitions(self, table: TableSchema) -> list[str]:
        """See :meth:`changefeed.sources.base.Partitions.partitions`."""
        with self._sessions.session("list partitions") as connection:
            return partitions.names(connection, table)

    def describe_all(self, watches: Sequence[Watch]) -> list[TableSchema]:
        """Shapes of many tables at once, in order.

        Raises:
            ChangefeedError: CF1101 or CF1302 for each name that is no table to watch.
        """
        with self._sessions.session("describe tables") as connection:
            schemas, problems = introspect.describe(connection, self.name, watches)
        raise_all(problems)
        return [schemas[place] for place in range(len(watches))]

    def describe_tables(self, tables: Sequence[TableName]) -> dict[TableName, TableSchema]:
        """See :meth:`changefeed.sources.base.DescribesTables.describe_tables`."""
        watches = [Watch(name=table.name, schema=table.schema) for table in tables]
        with self._sessions.session("describe tables") as connection:
            schemas, _ = introspect.describe(connection, self.name, watches)
        return {tables[place]: schema for place, schema in schemas.items()}

    def describe_oids(self, oids: Iterable[int]) -> dict[int, TableDetails]:
        """What the catalog knows now of tables in the stream; dropped ones are left out."""
        with self._sessions.session("describe tables") as connection:
            return read_details(connection, oids)

    def matching(self, schema: str | None, patterns: Sequence[str] = ()) -> list[TableName]:
        """See :meth:`changefeed.sources.base.Source.matching`."""
        with self._sessions.session("list tables") as connection:
            return introspect.matching(connection, self.name, schema, patterns)

    # -- what we make there ---------------------------------------------------------------

    def prepare(
        self,
        *,
        slot: str,
        publication: str,
        tables: Sequence[TableName],
        expect_slot: bool = False,
    ) -> Prepared:
        """See :meth:`changefeed.sources.base.Source.prepare`.

        The publication comes first: a slot is no use for a publication younger than itself.
        """
        watches = [Watch(name=table.name, schema=table.schema) for table in tables]
        with self._sessions.session("prepare the database for changefeeds") as connection:
            if expect_slot:
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
            created = self._slot(connection, slot)
            setup.settle(connection, publication, setup.SETTLE_SECONDS)
        return Prepared(
            slot_created=created,
            added=tuple(names[member.oid] for member in change.added),
            removed=tuple(TableName(self.name, m.schema, m.name) for m in change.removed),
            problems=problems,
            altered={names[oid]: why for oid, why in change.altered.items() if oid in names},
        )

    def altered(self, publication: str, tables: Collection[int]) -> Mapping[int, str]:
        """See :meth:`changefeed.sources.base.WatchesPublication.altered`."""
        with self._sessions.session("look at the publication") as connection:
            found = setup.changed_by_others(connection, publication, tables)
        if found is None:
            raise _publication_gone(publication)
        return found

    def _slot(self, connection: Connection, slot: str) -> bool:
        """Make the slot; each attempt that was too short is followed by a longer one."""
        try:
            created = setup.create_slot(connection, slot, self._patience)
        except ChangefeedError:
            self._patience = min(2 * self._patience, setup.LONGEST_SLOT_SECONDS)
            raise
        self._patience = setup.SLOT_SECONDS
        return created

    def forget(self, *, slot: str, publication: str) -> None:
        """See :meth:`changefeed.sources.base.Source.forget`."""
        with self._sessions.session("remove what changefeeds made in the database") as connection:
            setup.drop_slot(connection, slot)
            setup.drop_publication(connection, publication)

    # -- places in the log ----------------------------------------------------------------

    def system_id(self) -> str:
        """See :meth:`changefeed.sources.base.Source.system_id`."""
        with self._sessions.session("identify the database") as connection:
            return setup.system_id(connection)

    def current_position(self) -> Position:
        """See :meth:`changefeed.sources.base.Source.current_position`."""
        with self._sessions.session("ask for the current position") as connection:
            return setup.current_position(connection)

    def slot_state(self, slot: str) -> SlotState:
        """See :meth:`changefeed.sources.base.Source.slot_state`."""
        with self._sessions.session("look at the replication slot") as connection:
            return setup.slot_state(connection, slot)

    def slot_position(self, slot: str) -> Position:
        """See :meth:`changefeed.sources.base.Source.slot_position`."""
        state = self.slot_state(slot)
        _demand_slot(state, slot)
        return state.confirmed

    # -- data -----------------------------------------------------------------------------

    def snapshot(self, tables: Sequence[TableSchema] = ()) -> PostgresSnapshot:
        """See :meth:`changefeed.sources.base.Source.snapshot`."""
        return PostgresSnapshot(self._uri, self.name)

    def stream(
        self,
        *,
        slot: str,
        publication: str,
        start: Frontier,
        system_id: str,
        intern: Callable[[TableSchema], TableSchema],
        spool: Path,
        latest: Callable[[TableName], TableSchema | None] | None = None,
    ) -> ReplicationStream:
        """See :meth:`changefeed.sources.base.Source.stream`."""
        if system_id and (present := self.system_id()) != system_id:
            raise ChangefeedError(
                "CF2104",
                f"source {self.name!r} is another database than before",
                detail=f"system identifier/database {present}, was {system_id}",
            )
        return ReplicationStream(
            self._uri,
            slot,
            publication,
            start=start,
            describe=self.describe_oids,
            intern=intern,
            source=self.name,
            spool_dir=spool,
            latest=latest,
            lookup=Lookup(self._uri).fetch,
            binary=self._binary,
            streaming=self._streaming,
            decoding_failed=self._stop_streaming,
            system_id=system_id.partition("/")[0],
        )

    def _stop_streaming(self) -> None:
        """Later streams of this object get each transaction at its commit."""
        self._streaming = False


def _not_ours(name: str, owner: str) -> ChangefeedError:
    return ChangefeedError(
        "CF2004",
        f"only its owner may add table {name} to a publication",
        hint=f"GRANT {owner} TO <role of the connection>; then RESUME.",
    )


def _unsafe_now(member: setup.Member) -> ChangefeedError:
    return ChangefeedError(
        "CF2003",
        f"table {checks.quoted(member.schema)}.{checks.quoted(member.name)} "
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

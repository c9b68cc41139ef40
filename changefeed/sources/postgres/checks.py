"""What hinders a changefeed, all at once, with the statement that mends it. Changes nothing.

Three circles: the server (settings, free slots), the role (rights), the tables. Each check is a
function that yields problems; a check that cannot be made because another failed is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import sql

from changefeed.core.errors import ChangefeedError, Code, Span
from changefeed.core.figures import size_text
from changefeed.core.schema import Column, KeyRange, TableSchema
from changefeed.core.sql import readable
from changefeed.core.types import Kind
from changefeed.sources.base import Watch
from changefeed.sources.postgres import (
    ddl_events,
    given,
    introspect,
    providers,
    publications,
    server,
    slots,
    standby,
)
from changefeed.sources.postgres.address import Address
from changefeed.sources.postgres.connect import (
    PsycopgConnection,
    connect,
    connect_replication,
    in_recovery,
    source_errors,
)
from changefeed.sources.postgres.details import identity_of
from changefeed.sources.postgres.introspect import Relation, read_scattered
from changefeed.sources.postgres.types import ReplicaIdentity

#: Oldest server that works.
OLDEST = 120_000
#: Log that an idle slot may keep without a word, bytes.
MUCH_LOG = 1 << 30
#: First server that publishes a partitioned table as itself.
PARTITIONED = 130_000


@dataclass(frozen=True, slots=True)
class Plan:
    """What a feed reads from: the names of slot and publication, or None where none is known yet.

    Attributes:
        publication_given, slot_given: an administrator makes it; else changefeed does.
        begun: a change log was begun with the administrator's slot.
        failover: the connection asks for a failover slot, or for none; None: it says nothing.
    """

    slot: str | None = None
    publication: str | None = None
    publication_given: bool = False
    slot_given: bool = False
    begun: bool = False
    failover: bool | None = None


def check(
    source: str,
    address: Address,
    watches: Sequence[Watch],
    plan: Plan,
) -> list[ChangefeedError]:
    """Every problem of the server, the role and the tables; empty when a feed can be made.

    A server that cannot be reached is one problem.
    """
    try:
        connection = connect(address.primary)
    except ChangefeedError as error:
        return [error]
    with connection, source_errors("check the source"):
        problems = [*check_server(connection, plan, read=not address.apart)]
        problems += check_role(connection)
        problems += check_publication(connection, plan, watches)
        if address.ddl_events and plan.slot is not None:
            theirs = (plan.publication or "") if plan.publication_given else ""
            problems += ddl_events.problems(connection, plan.slot, theirs)
        if address.apart:
            problems += check_standby(connection, address, plan)
        elif not _refused(problems):
            problems += check_replication(connection, address.reader)
        problems += check_tables(connection, source, watches, plan)
    return problems


def _refused(problems: Iterable[ChangefeedError]) -> bool:
    refusals = (Code.SOURCE_REFUSED_LOGIN, Code.SOURCE_PERMISSION_MISSING)
    return any(problem.code in refusals for problem in problems)


def check_standby(
    primary: PsycopgConnection, address: Address, plan: Plan
) -> Iterator[ChangefeedError]:
    """The server that is read is a standby of the primary, and has all that reading needs."""
    try:
        connection = connect(address.reader)
    except ChangefeedError as error:
        yield ChangefeedError(
            error.code.number,
            f"the standby that read_from names: {error.message}",
            detail=error.detail,
            hint=error.hint,
        )
        return
    with connection:
        found = [*standby.check(primary, connection, address.named)]
        yield from found
        if not found:
            yield from _check_log(connection, plan)
            yield from check_replication(connection, address.reader)


# ------------------------------------------------------------------------- the server


def check_server(
    connection: PsycopgConnection, plan: Plan, *, read: bool = True
) -> Iterator[ChangefeedError]:
    """Version, role of the server, settings, free slots and senders.

    ``read``: the log is read here, and not at a standby.
    """
    version = connection.info.server_version
    if version < OLDEST:
        yield ChangefeedError(
            Code.SOURCE_NOT_SET_UP,
            f"PostgreSQL {version // 10_000} is too old: 12 is the oldest supported version",
            hint="upgrade the server.",
        )
        return
    if in_recovery(connection):
        yield ChangefeedError(
            Code.SOURCE_NOT_SET_UP,
            "the server is a standby: a publication can only be created on the primary",
            hint="use the primary's address in the connection (target_session_attrs=read-write); "
            "from version 16 on read_from=host:port in it reads from this standby.",
        )
    yield from _check_log(connection, plan) if read else _check_level(connection)


def _check_log(connection: PsycopgConnection, plan: Plan) -> Iterator[ChangefeedError]:
    yield from _check_level(connection)
    known = server.settings(connection, ["max_replication_slots", "max_wal_senders"])
    yield from _check_free(connection, plan, known)
    if plan.slot_given and plan.slot is not None:
        problem = given.slot_problem(connection, plan.slot, begun=plan.begun)
        if problem is not None:
            yield problem
    if plan.failover:
        yield from _check_failover(connection, plan)


def _check_failover(connection: PsycopgConnection, plan: Plan) -> Iterator[ChangefeedError]:
    """The connection asks for a failover slot: the server has them, and a slot that is not ours to
    alter is one."""
    version = connection.info.server_version
    if version < slots.FAILOVER:
        yield ChangefeedError(
            Code.SOURCE_NOT_SET_UP,
            f"failover=true needs PostgreSQL 17 or newer, and the server is {version // 10_000}",
            hint="take failover out of the connection's URI.",
        )
    elif plan.slot_given and plan.slot is not None:
        state = slots.slot_state(connection, plan.slot)
        if state.exists and not state.failover:
            yield ChangefeedError(
                Code.SOURCE_NOT_SET_UP,
                f"failover=true, and replication slot {plan.slot} is no failover slot",
                hint=f"SELECT pg_drop_replication_slot('{plan.slot}'); SELECT "
                f"pg_create_logical_replication_slot('{plan.slot}', 'pgoutput', false, false, "
                "true); then ALTER CHANGEFEED .. RESCAN for the feeds that read it.",
            )


def _check_level(connection: PsycopgConnection) -> Iterator[ChangefeedError]:
    known = server.settings(connection, ["wal_level"])
    if known.get("wal_level") != "logical":
        yield ChangefeedError(
            Code.SOURCE_NOT_SET_UP,
            f"wal_level is {known.get('wal_level')!r}, it must be 'logical'",
            hint=providers.of(connection).logical,
        )


def _check_free(
    connection: PsycopgConnection, plan: Plan, known: Mapping[str, Any]
) -> Iterator[ChangefeedError]:
    present = plan.slot is not None and slots.slot_state(connection, plan.slot).exists
    # One slot and sender stay; an initial scan takes one more for a moment.
    needed = 1 if present else 2
    used = {
        "max_replication_slots": "SELECT count(*) FROM pg_catalog.pg_replication_slots",
        "max_wal_senders": "SELECT count(*) FROM pg_catalog.pg_stat_replication",
    }
    for name, query in used.items():
        free = int(known.get(name, 0)) - _value(connection, query)
        if free < needed:
            yield ChangefeedError(
                Code.SOURCE_NOT_SET_UP,
                f"{name} is {known.get(name)} and {max(free, 0)} are free: "
                f"a changefeed needs {needed}",
                detail="one stays in use, one more during an initial scan",
                hint=providers.of(connection).setting(name, str(int(known.get(name, 0)) + 10))
                + " -- then restart the server; or SELECT slot_name, active FROM "
                "pg_replication_slots and drop what nobody uses",
            )


def check_replication(connection: PsycopgConnection, uri: str) -> list[ChangefeedError]:
    """A replication connection can be had and leads to the same server."""
    try:
        with connect_replication(uri) as replication:
            row = replication.execute("IDENTIFY_SYSTEM").fetchone()
    except ChangefeedError as error:
        return [_explain_refusal(connection, error)]
    except psycopg.Error as error:
        reason = ChangefeedError(
            Code.SOURCE_NOT_SET_UP, f"no replication commands: {error.diag.message_primary}"
        )
        return [_explain_refusal(connection, reason)]
    mine = server.system_id(connection).partition("/")[0]
    if row is None or str(row[0]) != mine:
        return [
            ChangefeedError(
                Code.SOURCE_NOT_SET_UP,
                "a replication connection leads to another server than an ordinary one",
                hint="use the server's own address in the connection, not a load balancer's.",
            )
        ]
    return []


def _explain_refusal(connection: PsycopgConnection, error: ChangefeedError) -> ChangefeedError:
    if is_pooled(connection):
        return ChangefeedError(
            Code.SOURCE_NOT_SET_UP,
            "a connection pooler is in front of the server and refuses replication",
            detail=error.message,
            hint="use the server's own address and port in the connection, not the pooler's "
            "(PgBouncer, Supavisor, RDS Proxy and the like).",
        )
    return ChangefeedError(
        error.code.number,
        f"the server refuses a replication connection: {error.message}",
        hint="pg_hba.conf must allow the role to connect:  host <database> <role> <address> "
        "scram-sha-256",
    )


def is_pooled(connection: PsycopgConnection) -> bool:
    """A program between us and the server hands out connections.

    A pooler makes up the process id in the key for cancelling, since any server process may
    serve us; the server's own answer differs.
    """
    pid = _value(connection, "SELECT pg_catalog.pg_backend_pid()")
    return bool(pid != connection.info.backend_pid)


# ------------------------------------------------------------------------- the role

# rds_replication stands in for the attribute on RDS and Aurora; azure_pg_admin and
# cloudsqlsuperuser may set the attribute themselves, so it is there when they did.
_ROLE = """
    SELECT r.rolname,
           r.rolreplication OR r.rolsuper OR EXISTS (
               SELECT 1 FROM pg_catalog.pg_roles g
               WHERE g.rolname = 'rds_replication'
                 AND pg_catalog.pg_has_role(r.oid, g.oid, 'MEMBER'))
    FROM pg_catalog.pg_roles r WHERE r.rolname = current_user
"""


def check_role(connection: PsycopgConnection) -> Iterator[ChangefeedError]:
    """The right to replicate."""
    row = connection.execute(_ROLE).fetchone()
    if row is None:
        return
    role, replicates = row
    if not replicates:
        yield ChangefeedError(
            Code.SOURCE_PERMISSION_MISSING,
            f"role {readable(role)} may not open replication connections",
            hint=providers.of(connection).replication(readable(role)),
        )


def check_publication(
    connection: PsycopgConnection, plan: Plan, watches: Sequence[Watch]
) -> Iterator[ChangefeedError]:
    """The publication is there, or our role may make it of these tables."""
    found_by_name = introspect.look_up(connection, watches)
    relations = [r for r in found_by_name if r is not None]
    present = publications.members(connection, plan.publication) if plan.publication else None
    if plan.publication_given and plan.publication is not None:
        found = given.look(connection, plan.publication, [r.oid for r in relations])
        if found is None:
            yield no_publication(connection, plan.publication, relations)
        else:
            yield from given.publication_problems(found)
        return
    if present is not None and not _owns_publication(connection, plan.publication):
        publication = readable(plan.publication or "")
        role = readable(connection.info.user)
        yield ChangefeedError(
            Code.SOURCE_PERMISSION_MISSING,
            f"role {role} does not own publication {publication}",
            hint=f"ALTER PUBLICATION {publication} OWNER TO {role};",
        )
    by_oid = _facts(connection, relations)
    facts = [
        by_oid[r.oid]
        for r in relations
        if r.oid in by_oid and introspect.refusal(r, Watch(r.name)) is None
    ]
    strange = [t for t in facts if not t.owned and t.relation.oid not in (present or {})]
    if strange:
        partitioned = any(table.relation.partitioned for table in facts)
        problem = not_ours(
            connection,
            [table.name for table in strange],
            [table.name for table in facts],
            partitioned=partitioned,
        )
        problem.span = watches[found_by_name.index(strange[0].relation)].span
        yield problem
    elif present is None and not _may_create(connection):
        database, role = (
            readable(connection.info.dbname),
            readable(connection.info.user),
        )
        yield ChangefeedError(
            Code.SOURCE_PERMISSION_MISSING,
            f"role {role} may not create a publication in database {database}",
            hint=f"GRANT CREATE ON DATABASE {database} TO {role};",
        )


def not_ours(
    connection: PsycopgConnection,
    tables: Sequence[str],
    wanted: Sequence[str] = (),
    *,
    partitioned: bool = False,
) -> ChangefeedError:
    """Only its owner may add a table to a publication, and that need not be us: an administrator
    makes one of all tables ``wanted``."""
    listed = ", ".join(tables[:10]) + (", .." if len(tables) > 10 else "")
    make = given.statement(connection, given.SUGGESTED, wanted or tables, partitioned=partitioned)
    return ChangefeedError(
        Code.SOURCE_PERMISSION_MISSING,
        f"only its owner may add table {listed} to a publication"
        if len(tables) == 1
        else f"only their owner may add tables {listed} to a publication",
        hint=f"{make} -- as the owner; then ALTER EXTERNAL CONNECTION .. with the parameter "
        f"publication={given.SUGGESTED} in its URI",
    )


def no_publication(
    connection: PsycopgConnection, publication: str, relations: Sequence[Relation]
) -> ChangefeedError:
    names = [f"{readable(r.schema)}.{readable(r.name)}" for r in relations]
    partitioned = any(r.partitioned for r in relations)
    return ChangefeedError(
        Code.SOURCE_NOT_SET_UP,
        f"publication {publication} does not exist",
        hint=given.statement(connection, publication, names or [".."], partitioned=partitioned),
    )


def _may_create(connection: PsycopgConnection) -> bool:
    return bool(
        _value(
            connection,
            "SELECT pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE')",
        )
    )


def _owns_publication(connection: PsycopgConnection, publication: str | None) -> bool:
    return bool(
        _value(
            connection,
            "SELECT pg_catalog.pg_has_role(pubowner, 'USAGE')"
            " FROM pg_catalog.pg_publication WHERE pubname = %s",
            [publication],
        )
    )


# ------------------------------------------------------------------------- the tables


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What the checks of one table go by. ``leaves`` are its partitions with their identity,
    ``elsewhere`` says where an extension keeps its rows, ``foreign`` which partitions another
    server has."""

    relation: Relation
    owned: bool
    usable_schema: bool
    unreadable: tuple[str, ...]
    identity: ReplicaIdentity
    has_identity_key: bool
    generated_key: tuple[str, ...]
    policies: bool
    elsewhere: str
    leaves: tuple[tuple[str, ReplicaIdentity, bool], ...]
    unreadable_leaves: tuple[str, ...]
    foreign: tuple[str, ...]

    @property
    def name(self) -> str:
        """Quoted where SQL needs it."""
        return f"{readable(self.relation.schema)}.{readable(self.relation.name)}"


# A deferrable primary key is no replica identity; generated columns are not in the stream,
# so a key that has one is of no use to us.
_HAS_KEY = """
    CASE {c}.relreplident
        WHEN 'f' THEN true
        WHEN 'n' THEN false
        WHEN 'c' THEN false
        ELSE EXISTS (
            SELECT 1 FROM pg_catalog.pg_index i
            WHERE i.indrelid = {c}.oid AND i.indisvalid AND i.indimmediate
              AND CASE WHEN {c}.relreplident = 'i' THEN i.indisreplident ELSE i.indisprimary END)
    END
"""

_GENERATED_KEY = """
    SELECT a.attname::text FROM pg_catalog.pg_index i
    CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(number, place)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.number
    WHERE i.indrelid = c.oid AND k.place <= i.indnkeyatts AND a.attgenerated <> ''
      AND CASE WHEN c.relreplident = 'i' THEN i.indisreplident ELSE i.indisprimary END
"""

_FACTS = f"""
    SELECT c.oid::int8,
        pg_catalog.pg_has_role(c.relowner, 'USAGE'),
        pg_catalog.has_schema_privilege(c.relnamespace, 'USAGE'),
        CASE WHEN pg_catalog.has_table_privilege(c.oid, 'SELECT') THEN '{{}}' ELSE ARRAY(
            SELECT a.attname::text FROM pg_catalog.pg_attribute a
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
              AND a.attgenerated = ''
              AND NOT pg_catalog.has_column_privilege(c.oid, a.attnum, 'SELECT')
            ORDER BY a.attnum) END,
        c.relreplident::text, {_HAS_KEY.format(c="c")},
        ARRAY({_GENERATED_KEY}),
        pg_catalog.row_security_active(c.oid),
        ARRAY(
            SELECT json_build_array(ln.nspname, l.relname, l.relreplident::text,
                                    {_HAS_KEY.format(c="l")},
                                    pg_catalog.has_any_column_privilege(l.oid, 'SELECT'),
                                    l.relkind = 'f')
            FROM pg_catalog.pg_partition_tree(CASE WHEN c.relkind = 'p' THEN c.oid END) t
            JOIN pg_catalog.pg_class l ON l.oid = t.relid
            JOIN pg_catalog.pg_namespace ln ON ln.oid = l.relnamespace
            WHERE t.isleaf ORDER BY 1::text)
    FROM pg_catalog.pg_class c WHERE c.oid = ANY (%s::oid[])
"""


# Asked every few seconds of all captured tables.
_UNSAFE = f"""
    SELECT c.oid::int8 FROM pg_catalog.pg_class c
    WHERE c.oid = ANY (%s::oid[])
      AND (CASE WHEN c.relkind = 'p' THEN EXISTS (
               SELECT 1 FROM pg_catalog.pg_partition_tree(c.oid) t
               JOIN pg_catalog.pg_class l ON l.oid = t.relid
               WHERE t.isleaf AND NOT {_HAS_KEY.format(c="l")})
           ELSE NOT {_HAS_KEY.format(c="c")} END
           OR EXISTS ({_GENERATED_KEY}))
"""


def check_tables(
    connection: PsycopgConnection, source: str, watches: Sequence[Watch], plan: Plan
) -> list[ChangefeedError]:
    """Names, kinds, rights, replica identity of every table asked for."""
    found = table_problems(connection, watches, plan)
    return [problem for problems in found for problem in problems]


def table_problems(
    connection: PsycopgConnection, watches: Sequence[Watch], plan: Plan
) -> list[list[ChangefeedError]]:
    """The problems of each table asked for, in order."""
    found: list[list[ChangefeedError]] = []
    relations = introspect.look_up(connection, watches)
    facts = _facts(connection, [r for r in relations if r is not None])
    publication = (
        given.look(connection, plan.publication, facts)
        if plan.publication_given and plan.publication
        else None
    )
    for watch, relation in zip(watches, relations, strict=True):
        if relation is None:
            found.append([introspect.unknown_table(connection, watch)])
        elif refused := introspect.refusal(relation, watch):
            found.append([refused])
        elif relation.oid not in facts:  # dropped between the two queries
            found.append([introspect.unknown_table(connection, watch)])
        else:
            table = facts[relation.oid]
            listed = publication.tables.get(relation.oid) if publication else None
            if listed is not None and listed.columns is not None:
                needed = tuple(c for c in table.unreadable if c in listed.columns)
                table = replace(table, unreadable=needed)
            version = connection.info.server_version
            found.append(list(check_table(version, table, watch)))
            missing = given.table_problem(publication, relation.oid) if publication else None
            if missing is not None:
                missing.span = watch.span
                found[-1].insert(0, missing)
    name_role([problem for problems in found for problem in problems], connection.info.user)
    return found


def name_role(problems: Iterable[ChangefeedError], role: str) -> None:
    """Hints are statements to run: the role of the connection stands in them by its name."""
    for problem in problems:
        problem.hint = problem.hint.replace("<role of the connection>", readable(role))


def unpublishable(
    connection: PsycopgConnection, relations: Sequence[Relation]
) -> dict[int, ChangefeedError]:
    """The tables on which PostgreSQL would refuse UPDATE and DELETE once they are published."""
    problems: dict[int, ChangefeedError] = {}
    for oid, table in _facts(connection, relations).items():
        watch = Watch(table.relation.name, table.relation.schema)
        problem = next(_check_publishable(table, watch), None)
        if problem is not None:
            problems[oid] = problem
    return problems


def unsafe(connection: PsycopgConnection, oids: Sequence[int]) -> frozenset[int]:
    """Those of the tables for which :func:`unpublishable` has an error; cheap."""
    if not oids:
        return frozenset()
    return frozenset(oid for (oid,) in connection.execute(_UNSAFE, [list(oids)]))


def _facts(connection: PsycopgConnection, relations: Sequence[Relation]) -> dict[int, TableFacts]:
    by_oid = {relation.oid: relation for relation in relations}
    facts: dict[int, TableFacts] = {}
    elsewhere = read_scattered(connection, list(by_oid))
    for row in connection.execute(_FACTS, [list(by_oid)]):
        oid, owned, schema, unreadable, letter, has_key, generated, policies, leaves = row
        facts[oid] = TableFacts(
            relation=by_oid[oid],
            owned=owned,
            usable_schema=schema,
            unreadable=tuple(unreadable),
            identity=identity_of(letter),
            has_identity_key=has_key,
            generated_key=tuple(generated),
            policies=policies,
            elsewhere=elsewhere.get(oid, ""),
            leaves=tuple(
                (f"{readable(schema)}.{readable(name)}", identity_of(leaf), key)
                for schema, name, leaf, key, *_ in leaves
            ),
            unreadable_leaves=tuple(
                f"{readable(schema)}.{readable(name)}"
                for schema, name, *_, read, _ in leaves
                if not read
            ),
            foreign=tuple(
                f"{readable(schema)}.{readable(name)}" for schema, name, *_, far in leaves if far
            ),
        )
    return facts


def check_table(version: int, table: TableFacts, watch: Watch) -> Iterator[ChangefeedError]:
    """What hinders a feed of this one table, whatever publishes it."""
    if table.relation.partitioned and version < PARTITIONED:
        yield _problem(
            Code.SOURCE_NOT_SET_UP,
            watch,
            f"table {table.name} is partitioned: PostgreSQL 12 cannot publish it as one table",
            "upgrade the server to 13 or newer.",
        )
    yield from _check_rights(table, watch)
    yield from _check_identity(table, watch)
    if table.policies:
        yield _problem(
            Code.SOURCE_PERMISSION_MISSING,
            watch,
            f"row-level security of table {table.name} hides rows from an initial scan",
            "ALTER ROLE <role of the connection> BYPASSRLS; -- the stream sees all rows anyway",
        )


def _check_rights(table: TableFacts, watch: Watch) -> Iterator[ChangefeedError]:
    if not table.usable_schema:
        schema = readable(table.relation.schema)
        yield _problem(
            Code.SOURCE_PERMISSION_MISSING,
            watch,
            f"no right to use schema {schema}",
            f"GRANT USAGE ON SCHEMA {schema} TO <role of the connection>;",
        )
    if table.unreadable:
        yield _problem(
            Code.SOURCE_PERMISSION_MISSING,
            watch,
            f"no right to read table {table.name}",
            f"GRANT SELECT ON {table.name} TO <role of the connection>;",
            detail=f"columns {', '.join(table.unreadable[:10])}",
        )
    if table.unreadable_leaves:
        shown = table.unreadable_leaves[:20]
        rest = len(table.unreadable_leaves) - len(shown)
        yield _problem(
            Code.SOURCE_PERMISSION_MISSING,
            watch,
            f"no right to read {len(table.unreadable_leaves)} partitions of table {table.name}: an "
            "initial scan reads each of them by itself",
            f"GRANT SELECT ON {', '.join(shown)} TO <role of the connection>;"
            + (f" -- and on {rest} more" if rest else ""),
        )


def _check_identity(table: TableFacts, watch: Watch) -> Iterator[ChangefeedError]:
    """Old rows must be distinguishable, and carry what the feed needs of them."""
    publishable = not (table.elsewhere or table.foreign)
    for problem in _check_publishable(table, watch):
        publishable = publishable and problem.code is not Code.SOURCE_NOT_SET_UP
        yield problem
    if publishable:
        yield from _check_old_rows(table, watch)


def _check_publishable(table: TableFacts, watch: Watch) -> Iterator[ChangefeedError]:
    """Without a usable replica identity the *application's* updates would start to fail."""
    if table.elsewhere:
        yield _problem(
            Code.TARGET_NOT_WATCHABLE,
            watch,
            f"table {table.name} cannot be watched: {table.elsewhere}, and a publication of the "
            "table has none of them",
            "watch an ordinary table that the application, or a trigger, writes to as well.",
        )
        return
    if table.foreign:
        yield _problem(
            Code.TARGET_NOT_WATCHABLE,
            watch,
            f"table {table.name} cannot be watched: its partition {table.foreign[0]} is a foreign "
            "table, and PostgreSQL sends no changes of its rows",
            f"ALTER TABLE {table.name} DETACH PARTITION {table.foreign[0]}; or watch the table on "
            "the server that holds it.",
        )
        return
    if table.generated_key:
        yield _problem(
            Code.TARGET_NOT_WATCHABLE,
            watch,
            f"the key of table {table.name} has the generated column {table.generated_key[0]}, "
            "which PostgreSQL does not replicate",
            f"ALTER TABLE {table.name} REPLICA IDENTITY USING INDEX <unique index without it>;",
        )
    weak = [] if table.relation.partitioned else [(table.name, table.identity)]
    if table.has_identity_key:
        weak = []
    weak += [(name, leaf) for name, leaf, has_key in table.leaves if not has_key]
    if weak:
        yield _no_identity(table, watch, weak)


def _check_old_rows(table: TableFacts, watch: Watch) -> Iterator[ChangefeedError]:
    """Old rows carry all columns where the feed, or the table's own identity, says so."""
    short = [
        name
        for name, identity in [(table.name, table.identity)]
        + [(name, leaf) for name, leaf, _ in table.leaves]
        if identity is not ReplicaIdentity.FULL
    ]
    if watch.diff and short:
        yield _problem(
            Code.SOURCE_NOT_SET_UP,
            watch,
            "the old values of all columns are needed (diff, changed), and table "
            f"{table.name} logs only its key",
            _full(short),
        )
    elif table.identity is ReplicaIdentity.FULL and short:
        yield _problem(
            Code.SOURCE_NOT_SET_UP,
            watch,
            f"partitions of table {table.name} have another replica identity than the table: old "
            "rows would lack values",
            _full(short),
        )


def _no_identity(
    table: TableFacts, watch: Watch, weak: Sequence[tuple[str, ReplicaIdentity]]
) -> ChangefeedError:
    why = {
        ReplicaIdentity.CHANGE: "its replica identity is CHANGE, which pgoutput does not send "
        "(YugabyteDB keeps the one that a table has when the replication slot is made)",
        ReplicaIdentity.NOTHING: "its replica identity is NOTHING",
        ReplicaIdentity.INDEX: "the index of its replica identity is gone",
    }.get(weak[0][1], "it has no primary key (a deferrable one does not count)")
    return _problem(
        Code.SOURCE_NOT_SET_UP,
        watch,
        f"table {table.name} has no replica identity: {why}",
        _full([name for name, _ in weak]),
        detail=""
        if weak[0][1] is ReplicaIdentity.CHANGE
        else "while it is published, PostgreSQL refuses every UPDATE and DELETE on it",
    )


def _full(names: Sequence[str]) -> str:
    shown = [f"ALTER TABLE {name} REPLICA IDENTITY FULL;" for name in names[:20]]
    rest = len(names) - len(shown)
    return " ".join(shown) + (f" -- and {rest} more partitions" if rest > 0 else "")


def _problem(
    code: str, watch: Watch, message: str, hint: str, *, detail: str = ""
) -> ChangefeedError:
    span: Span | None = watch.span
    return ChangefeedError(code, message, detail=detail, hint=hint, span=span)


# ------------------------------------------------------------------------- ranges of keys


def range_problem(
    connection: PsycopgConnection, table: TableSchema, keys: KeyRange
) -> ChangefeedError | None:
    """Why no row can have a key in the range, by the server's own types and order."""
    columns = table.key_columns
    for side, bound in (("FROM", keys.low), ("TO", keys.high)):
        for column, text in zip(columns, bound or (), strict=False):
            try:
                connection.execute(
                    sql.SQL("SELECT %s::text::{}").format(sql.SQL(column.type_name)), [text]
                )
            except psycopg.DataError:
                return ChangefeedError(
                    Code.TARGET_NOT_WATCHABLE,
                    f"VALUES {side} ({text}) cannot be: {text} is no value of column "
                    f"{column.name}, which is {column.type_name}",
                )
    if keys.low is None or keys.high is None:
        return None
    shared = min(len(keys.low), len(keys.high))
    parts = [_ordered(column) for column in columns[:shared]]
    rows = [sql.SQL("ROW({})").format(sql.SQL(", ").join(parts)) for _ in range(2)]
    query = sql.SQL("SELECT {0} < {1}, {0} = {1}").format(*rows)
    low, high = keys.low[:shared], keys.high[:shared]
    row = connection.execute(query, [*low, *high, *low, *high]).fetchone()
    below, equal = row if row is not None else (True, False)
    if below or (equal and len(keys.high) > len(keys.low)):
        return None
    return ChangefeedError(
        Code.TARGET_NOT_WATCHABLE,
        f"VALUES FROM ({', '.join(keys.low)}) TO ({', '.join(keys.high)}) holds no key: "
        "the first bound must be below the second, which is not part of the range",
    )


def _ordered(column: Column) -> sql.Composable:
    """A bound as its column's type; text in the order of a feed, by code point."""
    value = sql.SQL("%s::text::{}").format(sql.SQL(column.type_name))
    return value + sql.SQL(' COLLATE "C"') if column.kind is Kind.TEXT else value


# ------------------------------------------------------------------------- notices


def warnings(
    connection: PsycopgConnection,
    watches: Sequence[Watch],
    reader: PsycopgConnection | None = None,
    much_log: int = MUCH_LOG,
) -> list[str]:
    """What works but deserves a word.

    ``reader`` is the standby that is read, if one is. Idle slots may keep ``much_log`` bytes.
    """
    notes: list[str] = []
    known = server.settings(
        reader or connection, ["max_slot_wal_keep_size", "idle_replication_slot_timeout"]
    )
    keep = known.get("max_slot_wal_keep_size")
    if keep is not None and int(keep) < 0:
        notes.append(
            "max_slot_wal_keep_size is unlimited: while no changefeed node runs, the slot retains "
            "WAL without limit and may fill the server's disk. "
            + providers.of(connection).setting("max_slot_wal_keep_size", "'50GB'")
            + " sets a limit."
        )
    elif keep is not None and int(keep) < 1024:
        notes.append(
            f"max_slot_wal_keep_size is only {keep} MB: a short pause of the node can lose the "
            "slot, and with it changes"
        )
    if known.get("idle_replication_slot_timeout", "0") != "0":
        notes.append(
            "idle_replication_slot_timeout is set: the server drops the slot's log when no node "
            "runs for that long"
        )
    if reader is None:
        notes += _unsynchronised(connection)
        notes += _held_back(connection, much_log)
    for watch, relation in zip(watches, introspect.look_up(connection, watches), strict=True):
        if relation is not None and _has_children(connection, relation):
            notes.append(
                f"table {watch} has tables that inherit from it: their rows are not part of it here"
            )
    return notes


def _unsynchronised(connection: PsycopgConnection) -> Iterator[str]:
    known = server.settings(connection, ["synchronized_standby_slots"])
    if known.get("synchronized_standby_slots") != "":
        return
    rows = connection.execute(
        "SELECT slot_name::text FROM pg_catalog.pg_replication_slots"
        " WHERE slot_type = 'physical' AND active AND NOT temporary ORDER BY 1"
    ).fetchall()
    if rows:
        names = ", ".join(name for (name,) in rows)
        yield (
            f"standbys follow this server (slot {names}) and synchronized_standby_slots is empty: "
            "one that is promoted may lack changes that were read already, and the feeds stop "
            "(CF2104). "
            + providers.of(connection).setting("synchronized_standby_slots", f"'{names}'")
            + " makes logical slots send only what these standbys have."
        )


def _held_back(connection: PsycopgConnection, much_log: int) -> Iterator[str]:
    rows = connection.execute(
        "SELECT slot_name::text, pg_catalog.pg_wal_lsn_diff("
        "CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()"
        " ELSE pg_catalog.pg_current_wal_lsn() END, restart_lsn)::int8"
        " FROM pg_catalog.pg_replication_slots WHERE NOT active AND restart_lsn IS NOT NULL"
        " ORDER BY 2 DESC"
    )
    for slot, held in rows:
        if held > much_log:
            yield (
                f"replication slot {slot} is not in use and keeps {size_text(held)} of WAL on "
                f"the server's disk. SELECT pg_drop_replication_slot('{slot}'); frees it, if "
                "nobody will read from it again."
            )


def _has_children(connection: PsycopgConnection, relation: Relation) -> bool:
    return relation.kind == "r" and bool(
        _value(
            connection,
            "SELECT count(*) FROM pg_catalog.pg_inherits WHERE inhparent = %s",
            [relation.oid],
        )
    )


# ------------------------------------------------------------------------- small things


def _value(connection: PsycopgConnection, query: str, parameters: Sequence[object] = ()) -> Any:
    row = connection.execute(query, parameters or None).fetchone()
    return row[0] if row else None

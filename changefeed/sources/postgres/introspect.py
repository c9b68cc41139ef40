"""What is in the database: names looked up, tables listed, what cannot be watched refused.

The shape of a table itself comes from :mod:`changefeed.sources.postgres.details`, which the
replication stream uses too: one table has one fingerprint wherever it was seen.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from psycopg import errors

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableName, TableSchema
from changefeed.core.sql import readable
from changefeed.sources.base import TableInfo, TableLocations, Watch
from changefeed.sources.postgres.connect import SEARCH_PATH, PsycopgConnection
from changefeed.sources.postgres.details import identity_of, read_details
from changefeed.sources.postgres.publications import Member
from changefeed.sources.postgres.types import ReplicaIdentity, schema_of


@dataclass(frozen=True, slots=True)
class Relation:
    """A row of ``pg_class`` that a name led to.

    Attributes:
        kind: ``relkind``.
        persistence: ``p`` permanent, ``u`` unlogged, ``t`` temporary.
        root: ``schema.name`` of the partitioned table it is a partition of, else empty.
        system: it belongs to the server itself.
        columns: how many columns it has.
    """

    oid: int
    schema: str
    name: str
    kind: str
    persistence: str
    root: str
    system: bool
    columns: int

    @property
    def partitioned(self) -> bool:
        """It is the root of partitions and holds no rows itself."""
        return self.kind == "p"

    def member(self) -> Member:
        """The relation as a publication names it."""
        return Member(self.oid, self.schema, self.name, self.partitioned)


_SYSTEM = "n.nspname IN ('pg_catalog', 'information_schema') OR n.nspname LIKE 'pg\\_%%'"

_RELATION = f"""
    SELECT c.oid::int8, n.nspname, c.relname, c.relkind::text, c.relpersistence::text,
           CASE WHEN c.relispartition THEN (
               SELECT rn.nspname || '.' || r.relname
               FROM pg_catalog.pg_class r
               JOIN pg_catalog.pg_namespace rn ON rn.oid = r.relnamespace
               WHERE r.oid = pg_catalog.pg_partition_root(c.oid)) ELSE '' END,
           ({_SYSTEM}) AND c.relpersistence <> 't',
           (SELECT count(*) FROM pg_catalog.pg_attribute a
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
    FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
"""

# An unqualified name is the first match on the role's search path, as in any SQL statement;
# the server's own schemas come last (they are not on current_schemas(false)).
_LOOK_UP = f"""
    SELECT w.place, found.* FROM unnest(%s::text[], %s::text[])
        WITH ORDINALITY AS w(schema, name, place)
    CROSS JOIN LATERAL (
        {_RELATION}
        WHERE c.relname = w.name
          AND CASE WHEN w.schema IS NULL
              THEN n.nspname = ANY ('pg_catalog'::name || current_setting('{SEARCH_PATH}')::name[])
              ELSE n.nspname = w.schema END
        ORDER BY array_position(current_setting('{SEARCH_PATH}')::name[], n.nspname) NULLS LAST
        LIMIT 1
    ) found
"""

_WATCHABLE = f"""
    c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition
    AND NOT ({_SYSTEM})
"""


def look_up(connection: PsycopgConnection, watches: Sequence[Watch]) -> list[Relation | None]:
    """What each name stands for, in order; None where there is nothing of that name."""
    rows = connection.execute(
        _LOOK_UP, [[w.schema for w in watches], [w.name for w in watches]]
    ).fetchall()
    found = {place: Relation(*rest) for place, *rest in rows}
    return [found.get(place) for place in range(1, len(watches) + 1)]


# An index look-up a table; a condition with OR would read the whole catalog.
_LOCATE = """
    SELECT c.oid::int8, n.nspname, c.relname
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = ANY (%s::oid[])
    UNION
    SELECT c.oid::int8, n.nspname, c.relname
    FROM unnest(%s::text[], %s::text[]) AS w(schema, name)
    JOIN pg_catalog.pg_namespace n ON n.nspname = w.schema
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
    WHERE c.relkind IN ('r', 'p')
"""


def locate(
    connection: PsycopgConnection, source: str, tables: Sequence[TableName], oids: Sequence[int]
) -> TableLocations:
    """Where the tables are now, by name and by oid, in one statement: one moment. A name that
    something else has, a view that took the place of a renamed table, is that of no table."""
    asked = set(tables)
    names = {
        oid: TableName(source, schema, name)
        for oid, schema, name in connection.execute(
            _LOCATE, [list(oids), [t.schema for t in tables], [t.name for t in tables]]
        )
    }
    return TableLocations(
        {name: oid for oid, name in names.items() if name in asked},
        {oid: names[oid] for oid in oids if oid in names},
    )


# ------------------------------------------------------------------------- refusals

_HINT_VIEW = "watch the tables that it reads."

#: relkind -> (what CockroachDB's kind of text calls it, hint).
_REFUSED_KINDS: Mapping[str, tuple[str, str]] = {
    "v": ("views", _HINT_VIEW),
    "m": ("materialized views", _HINT_VIEW),
    "S": ("sequences", "PostgreSQL does not replicate sequences logically."),
    "f": ("foreign tables", "watch the table on the server that holds it."),
    "i": ("indexes", ""),
    "I": ("indexes", ""),
    "c": ("composite types", ""),
    "t": ("system tables", ""),
}

_REFUSED_PERSISTENCE: Mapping[str, tuple[str, str]] = {
    "u": ("unlogged tables", "ALTER TABLE {name} SET LOGGED; -- their changes are not in the log"),
    "t": ("temporary tables", "their changes are not in the log."),
}


def refusal(relation: Relation, watch: Watch) -> ChangefeedError | None:
    """Why the relation cannot be watched, or None. The texts are CockroachDB's."""
    what, hint = _why_refused(relation)
    if not what:
        return None
    return ChangefeedError(
        Code.TARGET_NOT_WATCHABLE,
        f"CHANGEFEED cannot target {what}: {watch.name}",
        detail=f"{relation.schema}.{relation.name}",
        hint=hint,
        span=watch.span,
    )


def _why_refused(relation: Relation) -> tuple[str, str]:
    if relation.system:
        return "system tables", ""
    if relation.kind in _REFUSED_KINDS:
        return _REFUSED_KINDS[relation.kind]
    if relation.persistence in _REFUSED_PERSISTENCE:
        what, hint = _REFUSED_PERSISTENCE[relation.persistence]
        return what, hint.format(name=f"{relation.schema}.{relation.name}")
    if relation.root:
        return "partitions", f"watch its table: {relation.root} PARTITION {relation.name}"
    if relation.columns == 0:
        return "tables without columns", ""
    return "", ""


def unknown_table(connection: PsycopgConnection, watch: Watch) -> ChangefeedError:
    """The error for a name that leads nowhere, with the nearest that does."""
    hint = _suggestion(watch, watchable_names(connection))
    if watch.schema is not None and not _schema_exists(connection, watch.schema):
        return ChangefeedError(
            Code.NAME_UNKNOWN, f'schema "{watch.schema}" does not exist', hint=hint, span=watch.span
        )
    return ChangefeedError(
        Code.NAME_UNKNOWN, f'table "{watch}" does not exist', hint=hint, span=watch.span
    )


def _schema_exists(connection: PsycopgConnection, schema: str) -> bool:
    query = "SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = %s"
    return connection.execute(query, [schema]).fetchone() is not None


def _suggestion(watch: Watch, known: Sequence[tuple[str, str]]) -> str:
    elsewhere = [f"{schema}.{name}" for schema, name in known if name == watch.name]
    if elsewhere:
        return f'did you mean "{elsewhere[0]}"?'
    by_name = {name: f"{schema}.{name}" for schema, name in known}
    by_name |= {full: full for full in by_name.values()}
    near = difflib.get_close_matches(str(watch), by_name, n=1)
    near = near or difflib.get_close_matches(watch.name, by_name, n=1)
    return f'did you mean "{near[0]}"?' if near else "SHOW TABLES lists what can be watched."


# ------------------------------------------------------------------------- shapes


def describe(
    connection: PsycopgConnection, source: str, watches: Sequence[Watch], publication: str = ""
) -> tuple[dict[int, TableSchema], list[ChangefeedError]]:
    """Shapes by the position of the watch, and what is wrong with the others.

    ``publication``: see :func:`.details.read_details`.
    """
    schemas: dict[int, TableSchema] = {}
    problems: list[ChangefeedError] = []
    relations = look_up(connection, watches)
    oids = {r.oid for r in relations if r is not None}
    details = read_details(connection, oids, publication)
    for place, (watch, relation) in enumerate(zip(watches, relations, strict=True)):
        if relation is None or relation.oid not in details:
            problems.append(unknown_table(connection, watch))
        elif refused := refusal(relation, watch):
            problems.append(refused)
        else:
            schemas[place] = schema_of(details[relation.oid], source)
    return schemas, problems


# ------------------------------------------------------------------------- lists


def watchable_names(
    connection: PsycopgConnection, schema: str | None = None
) -> list[tuple[str, str]]:
    """(schema, name) of every table that can be watched, sorted."""
    query = f"""
        SELECT n.nspname, c.relname
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE {_WATCHABLE} AND (%(schema)s::text IS NULL OR n.nspname = %(schema)s)
        ORDER BY 1, 2
    """
    return connection.execute(query, {"schema": schema}).fetchall()


def matching(
    connection: PsycopgConnection, source: str, schema: str | None, patterns: Iterable[str] = ()
) -> list[TableName]:
    """Tables of a schema (None: of all) whose ``name`` or ``schema.name`` fits a glob.

    Tables that an extension brought (PostGIS's ``spatial_ref_sys``) are left out: nobody who
    says "all tables" means them.

    Raises:
        ChangefeedError: CF1101 there is no such schema.
    """
    if schema is not None and not _schema_exists(connection, schema):
        names = sorted({found for found, _ in watchable_names(connection)})
        near = difflib.get_close_matches(schema, names, n=1)
        raise ChangefeedError(
            Code.NAME_UNKNOWN,
            f'schema "{schema}" does not exist',
            hint=f'did you mean "{near[0]}"?' if near else "",
        )
    globs = list(patterns)
    mine = set(connection.execute(_EXTENSION_TABLES).fetchall())
    return [
        TableName(source, found, name)
        for found, name in watchable_names(connection, schema)
        if (found, name) not in mine
        and (not globs or any(_fits(found, name, glob) for glob in globs))
    ]


_EXTENSION_TABLES = """
    SELECT n.nspname, c.relname
    FROM pg_catalog.pg_depend d
    JOIN pg_catalog.pg_class c ON c.oid = d.objid
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.deptype = 'e'
"""


def _fits(schema: str, name: str, glob: str) -> bool:
    return fnmatchcase(f"{schema}.{name}" if "." in glob else name, glob)


# The columns of a table's key, as `key`; `c` is its row of pg_class.
_KEY = """LEFT JOIN LATERAL (
        SELECT array_agg(a.attname::text ORDER BY k.place) AS names
        FROM pg_catalog.pg_index i
        CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(number, place)
        JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.number
        WHERE i.indrelid = c.oid AND k.place <= i.indnkeyatts
          AND CASE WHEN c.relreplident = 'i' THEN i.indisreplident ELSE i.indisprimary END
    ) key ON true
"""

# The planner's rule for a table that was never analysed: assume an average width by type and
# full pages. Statistics are of the last ANALYZE; the size is of now.
_TABLES = f"""
    SELECT n.nspname, c.relname, c.relkind = 'p', c.relreplident::text,
           coalesce(key.names, '{{}}'), coalesce(size.rows, 0)::int8, coalesce(size.bytes, 0)::int8
    FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    {_KEY}
    LEFT JOIN LATERAL (
        SELECT sum(pg_catalog.pg_table_size(l.oid)) AS bytes, sum(CASE
            WHEN l.reltuples > 0 AND l.relpages > 0
            THEN l.reltuples::float8 / l.relpages * pages.n
            WHEN l.reltuples = 0 AND l.relpages > 0 THEN 0
            ELSE pages.n * (pages.size - 24) / (28 + width.bytes) END) AS rows
        FROM (SELECT c.oid WHERE c.relkind = 'r' UNION ALL
              SELECT t.relid FROM pg_catalog.pg_partition_tree(
                  CASE WHEN c.relkind = 'p' THEN c.oid END) t WHERE t.isleaf) leaf(oid)
        JOIN pg_catalog.pg_class l ON l.oid = leaf.oid AND l.relkind = 'r'
        CROSS JOIN LATERAL (
            SELECT pg_catalog.pg_relation_size(l.oid) / size AS n, size
            FROM (SELECT current_setting('block_size')::int8) b(size)) pages
        CROSS JOIN LATERAL (
            SELECT coalesce(sum(CASE WHEN a.attlen > 0 THEN a.attlen ELSE 32 END), 0) AS bytes
            FROM pg_catalog.pg_attribute a
            WHERE a.attrelid = l.oid AND a.attnum > 0 AND NOT a.attisdropped) width
    ) size ON true
    WHERE {_WATCHABLE}
    ORDER BY 1, 2
"""


# What the last ANALYZE counted: asks for no lock, as the sizes of files do.
_ESTIMATED_TABLES = f"""
    SELECT n.nspname, c.relname, c.relkind = 'p', c.relreplident::text,
           coalesce(key.names, '{{}}'), greatest(c.reltuples, 0)::int8,
           greatest(c.relpages, 0) * current_setting('block_size')::int8
    FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    {_KEY}
    WHERE {_WATCHABLE}
    ORDER BY 1, 2
"""

#: How long SHOW TABLES waits for a table that is being altered.
_LOCK_SECONDS = 1.0


def table_list(
    connection: PsycopgConnection, source: str, lock_seconds: float = _LOCK_SECONDS
) -> list[TableInfo]:
    """The rows of SHOW TABLES.

    Where a table is locked for longer than ``lock_seconds`` (an open transaction alters it), rows
    and bytes of all tables are those of the last ANALYZE.
    """
    try:
        with connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = '{lock_seconds:g}s'")
            rows = connection.execute(_TABLES).fetchall()
    except errors.LockNotAvailable:
        rows = connection.execute(_ESTIMATED_TABLES).fetchall()
    return [
        TableInfo(
            name=TableName(source, schema, name),
            key=tuple(key),
            identity=str(identity_of(letter)),
            rows_estimate=count,
            bytes=size,
            kind="partitioned table" if partitioned else "table",
            note=_note(schema, name, identity_of(letter), bool(key)),
        )
        for schema, name, partitioned, letter, key, count, size in rows
    ]


def _note(schema: str, name: str, identity: ReplicaIdentity, has_key: bool) -> str:
    """What CREATE CHANGEFEED would refuse of a table in SHOW TABLES."""
    nothing = identity in (ReplicaIdentity.NOTHING, ReplicaIdentity.CHANGE)
    if not nothing and (identity is not ReplicaIdentity.DEFAULT or has_key):
        return ""
    why = f"replica identity {identity}" if nothing else "no primary key"
    return f"{why}: ALTER TABLE {readable(schema)}.{readable(name)} REPLICA IDENTITY FULL; first"


_EXTENSIONS = """
    SELECT pg_catalog.to_regclass('_timescaledb_catalog.hypertable') IS NOT NULL,
           pg_catalog.to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL
"""
_HYPERTABLES = """
    SELECT c.oid::int8 FROM _timescaledb_catalog.hypertable h
    JOIN pg_catalog.pg_namespace n ON n.nspname = h.schema_name
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = h.table_name
    WHERE c.oid = ANY (%s::oid[])
"""
_DISTRIBUTED = """
    SELECT logicalrelid::oid::int8 FROM pg_catalog.pg_dist_partition
    WHERE logicalrelid::oid = ANY (%s::oid[])
"""


def read_scattered(connection: PsycopgConnection, oids: Sequence[int]) -> Mapping[int, str]:
    """Those of the tables that have their rows elsewhere, and where."""
    hyper, distributed = connection.execute(_EXTENSIONS).fetchone() or (False, False)
    found: dict[int, str] = {}
    if hyper:
        for (oid,) in connection.execute(_HYPERTABLES, [list(oids)]):
            found[oid] = "it is a hypertable of TimescaleDB, whose rows lie in chunks"
    if distributed:
        for (oid,) in connection.execute(_DISTRIBUTED, [list(oids)]):
            found[oid] = "it is distributed by Citus, and its rows lie in shards"
    return found

"""As much of ``pg_catalog`` and ``information_schema`` as clients look at: the views, their columns
and types. No row of it depends on who asks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from changefeed.pg.rewriting import type_of
from changefeed.pg.values import Value
from changefeed.pg.variables import Variables

#: The name of the only database.
DATABASE = "changefeed"

_CATALOG, _PUBLIC, _INFORMATION = 11, 2200, 13000
_FIRST_RELATION = 16384

#: oid: name, other name, size, category, oid of the array, oid of the element.
_TYPES: dict[int, tuple[str, str, int, str, int, int]] = {
    16: ("bool", "boolean", 1, "B", 1000, 0),
    18: ("char", '"char"', 1, "S", 1002, 0),
    19: ("name", "name", 64, "S", 1003, 18),
    20: ("int8", "bigint", 8, "N", 1016, 0),
    21: ("int2", "smallint", 2, "N", 1005, 0),
    23: ("int4", "integer", 4, "N", 1007, 0),
    25: ("text", "text", -1, "S", 1009, 0),
    26: ("oid", "oid", 4, "N", 1028, 0),
    701: ("float8", "double precision", 8, "N", 1022, 0),
    1009: ("_text", "text[]", -1, "A", 0, 25),
    1043: ("varchar", "character varying", -1, "S", 1015, 0),
    1184: ("timestamptz", "timestamp with time zone", 8, "D", 1185, 0),
    1700: ("numeric", "numeric", -1, "N", 1231, 0),
}

#: What all rows of pg_class and of pg_attribute end with.
_CLASS_REST: tuple[Value, ...] = (0, 1, 0, 0, 0, 0, 1, "n", 0, None, None, None)
_ATTRIBUTE_REST: tuple[Value, ...] = (
    *(-1, 0, 0, "", "", 0, 0, 0, -1, "p", ""),
    *(None, None, None, 0, 1),
)

Rows = Sequence[Sequence[Value]]
Catalog = dict[tuple[str, str], tuple[tuple[str, ...], Rows]]


def type_name(oid: object) -> str:
    """As ``format_type`` writes it."""
    found = _TYPES.get(oid) if isinstance(oid, int) else None
    return found[1] if found else str(oid)


def type_oid(name: object) -> int:
    """The inverse, of either name, 0 where there is no such type; an oid is one already."""
    if isinstance(name, int):
        return name
    return next((oid for oid, found in _TYPES.items() if str(name) in found[:2]), 0)


def relations(views: Iterable[str]) -> dict[str, int]:
    """The oid of each view."""
    return {name: _FIRST_RELATION + number for number, name in enumerate(sorted(views))}


def tables(views: Mapping[str, Sequence[str]], variables: Variables, user: str) -> Catalog:
    """Every table: its columns and rows."""
    oids = relations(views)
    columns = [
        (oids[view], view, number, name, type_of(name))
        for view, names in views.items()
        for number, name in enumerate(names, 1)
    ]
    made: Catalog = {}

    def add(schema: str, name: str, words: str, rows: Iterable[Sequence[Value]] = ()) -> None:
        made[schema, name] = (tuple(words.split()), list(rows))

    add(
        "pg_catalog",
        "pg_namespace",
        "oid nspname nspowner nspacl",
        [
            (_CATALOG, "pg_catalog", 10, None),
            (_PUBLIC, "public", 10, None),
            (_INFORMATION, "information_schema", 10, None),
        ],
    )
    add(
        "pg_catalog",
        "pg_class",
        "oid relname relnamespace reltype reloftype relowner relam relfilenode reltablespace"
        " relpages reltuples reltoastrelid relhasindex relisshared relpersistence relkind relnatts"
        " relchecks relhasrules relhastriggers relhassubclass relrowsecurity relforcerowsecurity"
        " relispopulated relreplident relispartition reloptions relpartbound relacl",
        [
            (
                oid,
                name,
                _PUBLIC,
                0,
                0,
                10,
                0,
                0,
                0,
                0,
                -1,
                0,
                0,
                0,
                "p",
                "v",
                len(views[name]),
                *_CLASS_REST,
            )
            for name, oid in oids.items()
        ],
    )
    add(
        "pg_catalog",
        "pg_attribute",
        "attrelid attname atttypid attlen attnum atttypmod attnotnull atthasdef attidentity"
        " attgenerated attisdropped attcollation attndims attstattarget attstorage attcompression"
        " attacl attfdwoptions attoptions atthasmissing attislocal",
        [
            (relation, name, kind, _TYPES[kind][2], number, *_ATTRIBUTE_REST)
            for relation, _, number, name, kind in columns
        ],
    )
    add(
        "pg_catalog",
        "pg_type",
        "oid typname typnamespace typowner typlen typbyval typtype typcategory typispreferred"
        " typisdefined typdelim typrelid typelem typarray typinput typreceive typnotnull"
        " typbasetype typtypmod typndims typcollation typdefault typsubscript",
        [
            (
                *(oid, name, _CATALOG, 10, size, 0, "b", category, 0, 1, ",", 0, element, array),
                *("array_in" if category == "A" else f"{name}in", "", 0, 0, -1, 0, 0, None, ""),
            )
            for oid, (name, _, size, category, array, element) in _TYPES.items()
        ],
    )
    add(
        "pg_catalog",
        "pg_database",
        "oid datname datdba encoding datcollate datctype datistemplate datallowconn datconnlimit"
        " dattablespace datacl",
        [(1, DATABASE, 10, 6, "C", "C", 0, 1, -1, 1663, None)],
    )
    roles = [(10, "changefeed", 0, 1, 0, 0, 1, 0, -1, None, 0, None)]
    role_columns = (
        "oid rolname rolsuper rolinherit rolcreaterole rolcreatedb rolcanlogin rolreplication"
        " rolconnlimit rolvaliduntil rolbypassrls rolconfig"
    )
    add("pg_catalog", "pg_roles", role_columns, roles)
    add(
        "pg_catalog",
        "pg_settings",
        "name setting unit category short_desc vartype source",
        [(name, value, None, "", "", "string", "session") for name, value in variables.all()],
    )
    add("pg_catalog", "pg_user", "usename usesysid usecreatedb usesuper", [(user, 10, 0, 0)])
    views_columns = "schemaname viewname viewowner definition"
    listed = [("public", name, "changefeed", "") for name in oids]
    add("pg_catalog", "pg_views", views_columns, listed)
    for name, words in _EMPTY.items():
        add("pg_catalog", name, words)
    add(
        "information_schema",
        "schemata",
        "catalog_name schema_name schema_owner",
        [(DATABASE, name, "changefeed") for name in ("public", "pg_catalog", "information_schema")],
    )
    add(
        "information_schema",
        "tables",
        "table_catalog table_schema table_name table_type is_insertable_into",
        [(DATABASE, "public", name, "VIEW", "NO") for name in oids],
    )
    add(
        "information_schema",
        "views",
        "table_catalog table_schema table_name view_definition is_updatable",
        [(DATABASE, "public", name, None, "NO") for name in oids],
    )
    add(
        "information_schema",
        "columns",
        "table_catalog table_schema table_name column_name ordinal_position column_default"
        " is_nullable data_type udt_schema udt_name is_identity is_generated is_updatable"
        " character_maximum_length numeric_precision numeric_scale datetime_precision",
        [
            (
                *(DATABASE, "public", view, name, number, None, "YES", _data_type(kind)),
                *("pg_catalog", _TYPES[kind][0], "NO", "NEVER", "NO", None, None, None, None),
            )
            for _, view, number, name, kind in columns
        ],
    )
    for name, words in _EMPTY_INFORMATION.items():
        add("information_schema", name, words)
    return made


def _data_type(oid: int) -> str:
    return "ARRAY" if _TYPES[oid][3] == "A" else _TYPES[oid][1]


#: Tables that clients join and that have no row here.
_EMPTY = {
    "pg_am": "oid amname",
    "pg_attrdef": "oid adrelid adnum adbin",
    "pg_auth_members": "roleid member grantor admin_option",
    "pg_collation": "oid collname collnamespace",
    "pg_constraint": "oid conname connamespace contype conrelid conindid confrelid conkey confkey"
    " confupdtype confdeltype confmatchtype condeferrable condeferred convalidated conparentid"
    " contypid",
    "pg_depend": "classid objid objsubid refclassid refobjid refobjsubid deptype",
    "pg_description": "objoid classoid objsubid description",
    "pg_enum": "oid enumtypid enumsortorder enumlabel",
    "pg_extension": "oid extname extversion extnamespace",
    "pg_foreign_server": "oid srvname",
    "pg_foreign_table": "ftrelid ftserver ftoptions",
    "pg_index": "indexrelid indrelid indnatts indisunique indisprimary indisclustered indisvalid"
    " indisready indkey indoption indexprs indpred indisreplident indnkeyatts",
    "pg_inherits": "inhrelid inhparent inhseqno inhdetachpending",
    "pg_matviews": "schemaname matviewname",
    "pg_policy": "oid polname polrelid polcmd polpermissive polroles polqual polwithcheck",
    "pg_proc": "oid proname pronamespace proargtypes prorettype prokind",
    "pg_publication": "oid pubname puballtables",
    "pg_publication_rel": "oid prpubid prrelid",
    "pg_range": "rngtypid rngsubtype rngmultitypid",
    "pg_rewrite": "oid rulename ev_class ev_type ev_enabled",
    "pg_sequence": "seqrelid seqtypid seqstart seqincrement seqmin seqmax seqcache seqcycle",
    "pg_statistic_ext": "oid stxrelid stxname stxnamespace stxkeys stxkind stxstattarget",
    "pg_tables": "schemaname tablename tableowner",
    "pg_tablespace": "oid spcname",
    "pg_trigger": "oid tgrelid tgname tgenabled tgisinternal tgconstraint tgparentid",
}
_EMPTY_INFORMATION = {
    "key_column_usage": "constraint_schema constraint_name table_schema table_name column_name"
    " ordinal_position",
    "referential_constraints": "constraint_schema constraint_name",
    "table_constraints": "constraint_schema constraint_name table_schema table_name"
    " constraint_type",
}

"""Reading :class:`TableDetails` from the catalog with one round trip each for tables and types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from changefeed.sources.postgres.connect import PsycopgConnection
from changefeed.sources.postgres.types import (
    FIRST_USER_OID,
    ColumnInfo,
    ReplicaIdentity,
    TableDetails,
    TypeInfo,
)

# pg_attribute.attgenerated is of version 12, our oldest. Generated columns are left out: the
# stream does not carry them (before version 18, and there only when asked).
_TABLES = """
select c.oid::int8, n.nspname, c.relname, c.relreplident,
  coalesce((select array_agg(a.attname::text order by k.place)
     from pg_index i, unnest(i.indkey::int2[]) with ordinality k(number, place), pg_attribute a
     where i.indrelid = c.oid and i.indisprimary and k.place <= i.indnkeyatts
       and a.attrelid = c.oid and a.attnum = k.number), '{}'),
  coalesce((select array_agg(a.attname::text order by k.place)
     from pg_index i, unnest(i.indkey::int2[]) with ordinality k(number, place), pg_attribute a
     where i.indrelid = c.oid and i.indisreplident and k.place <= i.indnkeyatts
       and a.attrelid = c.oid and a.attnum = k.number), '{}'),
  c.relkind = 'p', c.relfilenode::int8, c.relnatts
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.oid = any(%s::oid[])
"""

# Not pg_publication_tables: its function locks each table, and waits as long as an open transaction
# alters one. Ours name their tables, and partitions are published as their root.
_PUBLISHED = f"""
with p as (select oid, puballtables from pg_catalog.pg_publication where pubname = %s)
select r.prrelid::int8 from p join pg_catalog.pg_publication_rel r on r.prpubid = p.oid
union
select c.oid::int8 from p join pg_catalog.pg_class c
  on p.puballtables and c.relkind in ('r', 'p') and c.relpersistence = 'p'
  and c.oid >= {FIRST_USER_OID}
"""

_COLUMNS = """
select attrelid::int8, attname, attnum, atttypid::int8, atttypmod,
  format_type(atttypid, atttypmod), attnotnull,
  atthasmissing or atthasdef or attidentity <> '', xmin::text::int8
from pg_attribute
where attrelid = any(%s::oid[]) and attnum > 0 and not attisdropped and attgenerated = ''
order by attrelid, attnum
"""

# A table that is in the publication by its schema, too, has no column list.
_LISTED = """
select r.prrelid::int8, r.prattrs::int2[]
from pg_catalog.pg_publication p join pg_catalog.pg_publication_rel r on r.prpubid = p.oid
where p.pubname = %s and r.prrelid = any(%s::oid[]) and r.prattrs is not null
"""
#: First server with column lists.
_LISTS = 150_000

# Domains and arrays are followed down to what they are made of.
_TYPES = """
with recursive wanted(oid) as (
  select unnest(%s::oid[])
  union
  select below.oid from wanted w join pg_type t on t.oid = w.oid
  cross join lateral (
    select t.typbasetype where t.typbasetype <> 0
    union all
    select e.oid from pg_type e where e.typarray = t.oid
  ) below(oid)
)
select t.oid::int8, t.typname, n.nspname, t.typtype, t.typbasetype::int8, t.typtypmod,
  coalesce((select e.oid::int8 from pg_type e where e.typarray = t.oid), 0), t.typdelim
from wanted w join pg_type t on t.oid = w.oid join pg_namespace n on n.oid = t.typnamespace
"""

_IDENTITIES = {
    "c": ReplicaIdentity.CHANGE,
    "d": ReplicaIdentity.DEFAULT,
    "f": ReplicaIdentity.FULL,
    "i": ReplicaIdentity.INDEX,
    "n": ReplicaIdentity.NOTHING,
}


def published(connection: PsycopgConnection, publication: str) -> list[int]:
    """The oids of a publication's tables; no table is locked, and none is waited for."""
    return [oid for (oid,) in connection.execute(_PUBLISHED, (publication,)).fetchall()]


def identity_of(letter: str | bytes) -> ReplicaIdentity:
    """``relreplident`` as our word."""
    return _IDENTITIES[letter.decode() if isinstance(letter, bytes) else letter]


def read_details(
    connection: PsycopgConnection, oids: Iterable[int], publication: str = ""
) -> dict[int, TableDetails]:
    """What the catalog knows now of the tables ``oids``; dropped tables are left out.

    ``publication``: only the columns that it lists of a table, where it has a column list.
    """
    wanted = list(oids)
    tables = connection.execute(_TABLES, (wanted,)).fetchall()
    listed = _listed_columns(connection, publication, wanted) if publication else {}
    columns: dict[int, list[ColumnInfo]] = {}
    for table, *rest in connection.execute(_COLUMNS, (wanted,)).fetchall():
        column = ColumnInfo(*rest)
        if table not in listed or column.number in listed[table]:
            columns.setdefault(table, []).append(column)
    types = read_types(connection, {c.type_oid for many in columns.values() for c in many})
    return {
        oid: TableDetails(
            oid=oid,
            schema=schema,
            name=name,
            columns=tuple(columns.get(oid, ())),
            primary_key=tuple(primary),
            identity=identity_of(letter),
            identity_key=tuple(index),
            types=types,
            partitioned=partitioned,
            file=file,
            width=width,
        )
        for oid, schema, name, letter, primary, index, partitioned, file, width in tables
    }


def _listed_columns(
    connection: PsycopgConnection, publication: str, oids: Sequence[int]
) -> Mapping[int, frozenset[int]]:
    """The numbers of the columns that a publication lists, of the tables with such a list."""
    if connection.info.server_version < _LISTS:
        return {}
    rows = connection.execute(_LISTED, (publication, oids)).fetchall()
    return {oid: frozenset(numbers) for oid, numbers in rows}


def read_types(connection: PsycopgConnection, oids: Iterable[int]) -> dict[int, TypeInfo]:
    """The types ``oids`` and all they are made of."""
    rows: Sequence[Any] = connection.execute(_TYPES, (sorted(oids),)).fetchall()
    return {
        oid: TypeInfo(oid, name, schema, _letter(kind), base, typmod, element, _letter(delimiter))
        for oid, name, schema, kind, base, typmod, element, delimiter in rows
    }


def _letter(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value

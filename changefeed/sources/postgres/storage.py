"""What holds a table's rows, by the catalog: its heaps, and what decides how stored values read.

The catalog can be read by every role, and no table is locked for it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from changefeed.sources.postgres.connect import PsycopgConnection
from changefeed.sources.postgres.details import read_details
from changefeed.sources.postgres.types import FIRST_USER_OID, TableDetails

# A partition that is being detached concurrently belongs to its table no more for new statements.
# The column is of version 14.
_HEAPS = """
with recursive tree(root, oid, link) as (
  select root, root, '' from unnest(%s::oid[]) root
  union all
  select t.root, i.inhrelid, t.link || i.inhparent || ':' || i.xmin || ' '
  from tree t join pg_catalog.pg_class c on c.oid = t.oid and c.relkind = 'p'
  join pg_catalog.pg_inherits i on i.inhparent = t.oid
  where not coalesce((to_jsonb(i)->>'inhdetachpending')::bool, false)
)
select t.root::int8, c.oid::int8, n.nspname, c.relname, c.relfilenode::int8, t.link,
  c.xmin::text::int8
from tree t join pg_catalog.pg_class c on c.oid = t.oid and c.relkind <> 'p'
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
"""

# Labels by the number of their row: it stays when a label is renamed. Of a composite type what
# its values are made of, in order: the names of attributes are not in them.
_TYPES = f"""
with recursive wanted(root, oid) as (
  select root, root from unnest(%s::oid[]) root
  union
  select w.root, below.oid from wanted w join pg_catalog.pg_type t on t.oid = w.oid
  cross join lateral (
    select t.typbasetype
    union all
    select t.typelem
    union all
    select a.atttypid from pg_catalog.pg_attribute a
      where t.typtype = 'c' and a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped
    union all
    select r.rngsubtype from pg_catalog.pg_range r
      where t.typtype in ('r', 'm') and t.oid::text in
        (r.rngtypid::text, to_jsonb(r)->>'rngmultitypid')
  ) below(oid)
  where below.oid >= {FIRST_USER_OID}
)
select w.root::int8, t.oid::int8, t.typname, e.oid::text, e.enumlabel
from wanted w join pg_catalog.pg_type t on t.oid = w.oid
join pg_catalog.pg_enum e on e.enumtypid = t.oid
union all
select w.root::int8, t.oid::int8, t.typname, 'attributes',
  string_agg(concat_ws(':', a.attnum, a.atttypid, a.atttypmod), ' ' order by a.attnum)
from wanted w join pg_catalog.pg_type t on t.oid = w.oid and t.typtype = 'c'
join pg_catalog.pg_attribute a
  on a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped
group by 1, 2, 3
"""

# The name of version 12, our oldest; later ones keep it.
_HORIZON = "select txid_snapshot_xmin(txid_current_snapshot()) & 4294967295"


@dataclass(frozen=True, slots=True)
class Heap:
    """A table, or a partition of one (at any level) that holds rows.

    Attributes:
        schema, name: where it is.
        file: ``relfilenode``; another one once the rows were written elsewhere or removed as a
            whole. A foreign table has none (0).
        link: for each level between the table and the partition the parent and the transaction
            that attached it; empty for the table itself.
        writer: the transaction that wrote its row of the catalog (32 bits).
    """

    schema: str
    name: str
    file: int
    link: str = ""
    writer: int = 0


@dataclass(frozen=True, slots=True)
class TypeParts:
    """A type of the user: the labels of an enum by their number, or ``attributes``. ``columns``
    are the names of the table's columns that are made of it; they are not stored."""

    name: str
    parts: Mapping[str, str]
    columns: frozenset[str] = field(default=frozenset(), compare=False)


#: Of what holds a table's rows, of the types of the user that they are made of, and of the key's
#: columns their definitions and these types, which a memo of an earlier version lacks.
Fingerprints = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Storage:
    """What holds the rows of a table at one moment.

    Attributes:
        width: the highest number that a column ever had.
        columns: name, and the transaction that wrote its definition, by the column's number.
        heaps: by their oids.
        types: the types of the user that its columns are made of, by their oids.
        horizon: transactions older than this one (32 bits) had ended.
    """

    width: int
    columns: Mapping[int, tuple[str, int]]
    heaps: Mapping[int, Heap]
    types: Mapping[int, TypeParts]
    horizon: int

    def to_json(self) -> dict[str, Any]:
        return {
            "width": self.width,
            "columns": [[number, *column] for number, column in self.columns.items()],
            "heaps": [
                [o, h.schema, h.name, h.file, h.link, h.writer] for o, h in self.heaps.items()
            ],
            "types": [[oid, t.name, dict(t.parts)] for oid, t in self.types.items()],
            "horizon": self.horizon,
        }

    def fingerprints(self, key: Collection[str]) -> Fingerprints:
        """What decides whether rows changed since, in short; ``key`` as :func:`key_of` says."""
        heaps = sorted((oid, h.file, h.link) for oid, h in self.heaps.items())
        types = sorted((oid, sorted(t.parts.items())) for oid, t in self.types.items())
        keys = sorted((n, writer) for n, (name, writer) in self.columns.items() if name in key)
        of_keys = [(oid, parts) for oid, parts in types if self.types[oid].columns & set(key)]
        return _digest(heaps), _digest(types), _digest(keys), _digest(of_keys)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Storage:
        return cls(
            found["width"],
            {number: (name, writer) for number, name, writer in found["columns"]},
            {oid: Heap(*heap) for oid, *heap in found["heaps"]},
            {oid: TypeParts(name, parts) for oid, name, parts in found["types"]},
            found["horizon"],
        )


def _digest(what: object) -> str:
    return sha256(json.dumps(what).encode()).hexdigest()[:16]


def key_of(details: TableDetails) -> tuple[str, ...]:
    """The columns by which readers may know a row."""
    return (*details.primary_key, *details.identity_key)


def columns_of(details: TableDetails) -> dict[int, tuple[str, int]]:
    return {column.number: (column.name, column.writer) for column in details.columns}


def read_storage(
    connection: PsycopgConnection, tables: Mapping[int, TableDetails]
) -> dict[int, Storage]:
    """The storage of these tables, in the snapshot in which their details were read."""
    [(horizon,)] = connection.execute(_HORIZON).fetchall()
    heaps: dict[int, dict[int, Heap]] = {
        oid: {} if t.partitioned else {oid: Heap(t.schema, t.name, t.file)}
        for oid, t in tables.items()
    }
    partitioned = [oid for oid, table in tables.items() if table.partitioned]
    if partitioned:
        for root, oid, *heap in connection.execute(_HEAPS, (partitioned,)).fetchall():
            heaps[root][oid] = Heap(*heap)
    users: dict[int, dict[int, set[str]]] = {oid: {} for oid in tables}
    for oid, table in tables.items():
        for column in table.columns:
            if column.type_oid >= FIRST_USER_OID:
                users[oid].setdefault(column.type_oid, set()).add(column.name)
    parts = _read_types(connection, set().union(*users.values()))
    return {
        oid: Storage(
            table.width,
            columns_of(table),
            heaps[oid],
            _types_of(users[oid], parts),
            horizon,
        )
        for oid, table in tables.items()
    }


def _types_of(
    users: Mapping[int, set[str]], parts: Mapping[int, Mapping[int, TypeParts]]
) -> dict[int, TypeParts]:
    """What columns are made of; ``users``: the names of the columns of each type."""
    found: dict[int, TypeParts] = {}
    for of, names in users.items():
        for oid, made in parts.get(of, {}).items():
            before = found.get(oid, made).columns
            found[oid] = replace(made, columns=before | names)
    return found


def _read_types(
    connection: PsycopgConnection, oids: Collection[int]
) -> dict[int, dict[int, TypeParts]]:
    found: dict[int, dict[int, tuple[str, dict[str, str]]]] = {}
    if oids:
        rows = connection.execute(_TYPES, (sorted(oids),)).fetchall()
        for root, oid, name, key, text in rows:
            found.setdefault(root, {}).setdefault(oid, (name, {}))[1][key] = text
    return {
        root: {oid: TypeParts(*parts) for oid, parts in below.items()}
        for root, below in found.items()
    }


def read_fingerprints(
    connection: PsycopgConnection, oids: Collection[int], publication: str = ""
) -> dict[int, Fingerprints]:
    """Of these tables; dropped ones are left out. ``publication``: whose lists of columns count.
    In one snapshot, if the connection is in a transaction that has one."""
    tables = read_details(connection, oids, publication)
    storage = read_storage(connection, tables)
    return {oid: one.fingerprints(key_of(tables[oid])) for oid, one in storage.items()}

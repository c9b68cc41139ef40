"""PostgreSQL types as columns of the change log.

One rule for the stream and for the initial scan: all code that builds a
:class:`~changefeed.core.schema.TableSchema` calls :func:`column_of` and :func:`schema_of`, so the
same table has the same fingerprint wherever it was seen.

Domains are followed to their base type, enums are text, arrays are JSON text. A type without a
row here (composite, range, extension type, ...) is kept as PostgreSQL prints it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from changefeed.core.schema import BeforeImage, Column, TableName, TableSchema
from changefeed.core.sql import quoted
from changefeed.core.types import Kind, LogicalType


class ReplicaIdentity(StrEnum):
    """What a table logs of an old row: ``relreplident``. CHANGE is YugabyteDB's."""

    CHANGE = "change"
    DEFAULT = "default"
    FULL = "full"
    INDEX = "index"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class TypeInfo:
    """One row of ``pg_type``, as far as values need it.

    Attributes:
        oid: the type's number in its database.
        name: ``typname``, e.g. ``int4``, ``_int4``, ``mood``.
        schema: ``pg_catalog`` for what ships with the server.
        kind: ``typtype``: ``b`` base, ``c`` composite, ``d`` domain, ``e`` enum, ``r`` range,
            ``m`` multirange, ``p`` pseudo.
        base: of a domain, the type below it, else 0.
        base_typmod: of a domain, the modifier it gives the type below, else -1.
        element: of a true array type, its element type, else 0.
        delimiter: what separates this type's values in an array (a comma but for ``box``).
    """

    oid: int
    name: str
    schema: str = "pg_catalog"
    kind: str = "b"
    base: int = 0
    base_typmod: int = -1
    element: int = 0
    delimiter: str = ","


@dataclass(frozen=True, slots=True)
class ColumnInfo:
    """One row of ``pg_attribute``: a column as the catalog has it now.

    ``type_name`` is ``format_type(atttypid, atttypmod)``. ``has_default`` says that rows older
    than the column may hold a value in it although nobody wrote them: it has a default (also a
    missing value kept in the catalog, a sequence, an identity).
    """

    name: str
    number: int
    type_oid: int
    typmod: int
    type_name: str
    not_null: bool = False
    has_default: bool = False
    writer: int = 0


@dataclass(frozen=True, slots=True)
class TableDetails:
    """What the catalog knows of a table and a Relation message does not.

    Attributes:
        columns: every live column that can be published, in ``attnum`` order.
        primary_key: names of the primary key's columns in key order, empty without one.
        identity: ``relreplident``.
        identity_key: names of the columns of the index that is the replica identity
            (``REPLICA IDENTITY USING INDEX``), in index order.
        types: every type the columns need: their own, bases of domains, elements of arrays.
        partitioned: its rows are in its partitions.
        file: ``relfilenode``.
        width: the highest number that a column ever had.
    """

    oid: int
    schema: str
    name: str
    columns: tuple[ColumnInfo, ...]
    primary_key: tuple[str, ...]
    identity: ReplicaIdentity
    identity_key: tuple[str, ...] = ()
    types: Mapping[int, TypeInfo] = field(default_factory=dict)
    partitioned: bool = False
    file: int = 0
    width: int = 0


#: Names of types in pg_catalog.
_KNOWN = {
    "bool": Kind.BOOL,
    "int2": Kind.INT16,
    "int4": Kind.INT32,
    "int8": Kind.INT64,
    "oid": Kind.INT64,
    "float4": Kind.FLOAT32,
    "float8": Kind.FLOAT64,
    "numeric": Kind.DECIMAL,
    "json": Kind.JSON,
    "jsonb": Kind.JSON,
    "text": Kind.TEXT,
    "varchar": Kind.TEXT,
    "bpchar": Kind.TEXT,
    "name": Kind.TEXT,
    "char": Kind.TEXT,
    "bytea": Kind.BYTES,
    "uuid": Kind.UUID,
    "date": Kind.DATE,
    "time": Kind.TIME,
    "timetz": Kind.TIMETZ,
    "timestamp": Kind.TIMESTAMP,
    "timestamptz": Kind.TIMESTAMPTZ,
    "interval": Kind.INTERVAL,
}
_OTHER = LogicalType(Kind.OTHER)

#: Tables and types with lower numbers ship with the server.
FIRST_USER_OID = 16384

#: Extension types whose values are plain text, wherever the extension was installed.
_TEXT_EXTENSIONS = frozenset({"citext"})

#: Numbers of types that ship with every server, for a Relation message whose types the
#: catalog no longer has (a table dropped meanwhile).
BUILTIN: dict[int, TypeInfo] = {
    info.oid: info
    for info in [
        *(
            TypeInfo(oid, name)
            for oid, name in [
                (16, "bool"), (17, "bytea"), (18, "char"), (19, "name"), (20, "int8"),
                (21, "int2"), (23, "int4"), (25, "text"), (26, "oid"), (114, "json"),
                (142, "xml"), (700, "float4"), (701, "float8"), (790, "money"),
                (829, "macaddr"), (869, "inet"), (650, "cidr"), (1042, "bpchar"),
                (1043, "varchar"), (1082, "date"), (1083, "time"), (1114, "timestamp"),
                (1184, "timestamptz"), (1186, "interval"), (1266, "timetz"), (1560, "bit"),
                (1562, "varbit"), (1700, "numeric"), (2950, "uuid"), (3802, "jsonb"),
            ]
        ),
        *(
            TypeInfo(oid, name, element=element)
            for oid, name, element in [
                (1000, "_bool", 16), (1001, "_bytea", 17), (1002, "_char", 18),
                (1003, "_name", 19), (1016, "_int8", 20), (1005, "_int2", 21),
                (1007, "_int4", 23), (1009, "_text", 25), (1028, "_oid", 26),
                (199, "_json", 114), (143, "_xml", 142), (1021, "_float4", 700),
                (1022, "_float8", 701), (791, "_money", 790), (1040, "_macaddr", 829),
                (1041, "_inet", 869), (651, "_cidr", 650), (1014, "_bpchar", 1042),
                (1015, "_varchar", 1043), (1182, "_date", 1082), (1183, "_time", 1083),
                (1115, "_timestamp", 1114), (1185, "_timestamptz", 1184),
                (1187, "_interval", 1186), (1270, "_timetz", 1266), (1561, "_bit", 1560),
                (1563, "_varbit", 1562), (1231, "_numeric", 1700), (2951, "_uuid", 2950),
                (3807, "_jsonb", 3802),
            ]
        ),
    ]
}  # fmt: skip


def column_of(
    name: str,
    type_oid: int,
    typmod: int,
    types: Mapping[int, TypeInfo],
    *,
    type_name: str = "",
    not_null: bool = False,
    number: int = 0,
) -> Column:
    """The log column of a PostgreSQL column.

    Args:
        types: by oid; :data:`BUILTIN` is looked at too. A type found in neither is ``other``.
        type_name: PostgreSQL's own spelling (``format_type``); made up when empty.
    """
    return Column(
        name=name,
        type_name=type_name or spelled(type_oid, typmod, types),
        logical=_resolve(type_oid, typmod, types),
        nullable=not not_null,
        column_id=number,
    )


def schema_of(details: TableDetails, source: str, *, names: Sequence[str] = ()) -> TableSchema:
    """The table as the catalog has it now.

    Args:
        names: only these columns (a publication's column list), all when empty.
    """
    columns = [c for c in details.columns if not names or c.name in names]
    identity_key = key_names(details, details.identity, details.identity_key)
    return assemble_schema(details, source, columns, details.identity, identity_key)


def key_names(
    details: TableDetails | None, identity: ReplicaIdentity, flagged: Sequence[str]
) -> tuple[str, ...]:
    """Names of the columns that are the key, in order; empty for a table without a key.

    ``flagged`` are the columns that old rows carry: with ``USING INDEX`` they are the key
    unless the primary key lies within them, else the primary key is.
    """
    primary = details.primary_key if details else ()
    if identity is ReplicaIdentity.INDEX and flagged:
        if primary and set(primary) <= set(flagged):
            return primary
        ordered = details.identity_key if details else ()
        return ordered if set(ordered) == set(flagged) else tuple(flagged)
    if identity is ReplicaIdentity.DEFAULT and flagged and set(flagged) != set(primary):
        return tuple(flagged)
    return primary


def assemble_schema(
    details: TableDetails,
    source: str,
    columns: Sequence[ColumnInfo],
    identity: ReplicaIdentity,
    key: Sequence[str],
) -> TableSchema:
    """A table shape out of its parts; no key, or a key outside ``columns``: keyless."""
    places = {column.name: i for i, column in enumerate(columns)}
    keyless = not key or any(name not in places for name in key)
    return TableSchema(
        table=TableName(source, details.schema, details.name),
        columns=tuple(
            column_of(
                c.name,
                c.type_oid,
                c.typmod,
                details.types,
                type_name=c.type_name,
                not_null=c.not_null,
                number=c.number,
            )
            for c in columns
        ),
        key=tuple(range(len(columns))) if keyless else tuple(places[name] for name in key),
        before_image=BeforeImage.FULL if identity is ReplicaIdentity.FULL else BeforeImage.KEY,
        keyless=keyless,
        table_id=details.oid,
    )


def _find(oid: int, types: Mapping[int, TypeInfo]) -> TypeInfo | None:
    return types.get(oid) or BUILTIN.get(oid)


def _below_domains(
    oid: int, typmod: int, types: Mapping[int, TypeInfo]
) -> tuple[TypeInfo | None, int]:
    info = _find(oid, types)
    while info is not None and info.kind == "d":
        typmod = info.base_typmod
        info = _find(info.base, types)
    return info, typmod


def _resolve(oid: int, typmod: int, types: Mapping[int, TypeInfo]) -> LogicalType:
    info, typmod = _below_domains(oid, typmod, types)
    if info is None:
        return _OTHER
    if info.element:
        return _resolve_array(info, typmod, types)
    if info.kind == "e" or info.name in _TEXT_EXTENSIONS:
        return LogicalType(Kind.TEXT)
    if info.schema != "pg_catalog":
        return _OTHER
    kind = _KNOWN.get(info.name, Kind.OTHER)
    if kind is Kind.DECIMAL and typmod >= 4:
        return LogicalType(kind, _precision(typmod), _scale(typmod))
    return LogicalType(kind)


def _resolve_array(info: TypeInfo, typmod: int, types: Mapping[int, TypeInfo]) -> LogicalType:
    element, _ = _below_domains(info.element, -1, types)
    if element is None or element.delimiter != ",":
        return _OTHER  # box[]: elements hold commas themselves; kept as PostgreSQL prints it
    return LogicalType(Kind.ARRAY, element=_resolve(info.element, typmod, types))


def _precision(typmod: int) -> int:
    return (typmod - 4) >> 16 & 0xFFFF


def _scale(typmod: int) -> int:
    # PostgreSQL 15 widened the scale to a signed 11-bit number.
    scale = (typmod - 4) & 0x7FF
    return scale - 0x800 if scale & 0x400 else scale


_SQL_NAMES = {
    "bool": "boolean",
    "bpchar": "character",
    "char": '"char"',
    "float4": "real",
    "float8": "double precision",
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "time": "time without time zone",
    "timetz": "time with time zone",
    "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
    "varbit": "bit varying",
    "varchar": "character varying",
}
_WITH_LENGTH = frozenset({"bpchar", "varchar"})
_WITH_BITS = frozenset({"bit", "varbit"})
_WITH_DIGITS = frozenset({"time", "timetz", "timestamp", "timestamptz"})
_PLAIN = re.compile(r"[a-z_][a-z0-9_$]*\Z")


def spelled(oid: int, typmod: int, types: Mapping[int, TypeInfo]) -> str:
    """What ``format_type(oid, typmod)`` prints (with an empty ``search_path``), for when the
    catalog cannot be asked.

    >>> spelled(1700, 786438, {})
    'numeric(12,2)'
    """
    info = _find(oid, types)
    if info is None:
        return f"type {oid}"
    if info.element and (element := _find(info.element, types)):
        return spelled(element.oid, typmod, types) + "[]"
    if info.schema != "pg_catalog":
        return f"{_quoted(info.schema)}.{_quoted(info.name)}"
    base = _SQL_NAMES.get(info.name, info.name)
    if typmod < 0:
        return base
    if info.name in _WITH_LENGTH:
        return f"{base}({typmod - 4})"
    if info.name in _WITH_BITS:
        return f"{base}({typmod})"
    if info.name in _WITH_DIGITS:
        first, _, rest = base.partition(" ")
        return f"{first}({typmod}) {rest}"
    if info.name == "numeric":
        return f"{base}({_precision(typmod)},{_scale(typmod)})"
    return base


def _quoted(name: str) -> str:
    return name if _PLAIN.match(name) else quoted(name)

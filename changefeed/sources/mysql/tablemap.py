"""TABLE_MAP events: what the rows that follow look like.

With ``binlog_row_metadata=FULL`` the event names the columns, and says enough of their types to
write them as the server does in ``COLUMN_TYPE`` (without display widths, which mean nothing).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from changefeed.core.sql import literal
from changefeed.sources.mysql.binlog import HEADER_SIZE, ByteReader, misfit

#: MySQL allows 4096 columns, MariaDB as many.
MAX_COLUMNS = 4096


class ColumnType(IntEnum):
    """Types of columns in the binlog."""

    DECIMAL = 0
    TINY = 1
    SHORT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    NULL = 6
    TIMESTAMP = 7
    LONGLONG = 8
    INT24 = 9
    DATE = 10
    TIME = 11
    DATETIME = 12
    YEAR = 13
    NEWDATE = 14
    VARCHAR = 15
    BIT = 16
    TIMESTAMP2 = 17
    DATETIME2 = 18
    TIME2 = 19
    MARIA_BLOB_COMPRESSED = 140
    MARIA_VARCHAR_COMPRESSED = 141
    VECTOR = 242
    JSON = 245
    NEWDECIMAL = 246
    ENUM = 247
    SET = 248
    BLOB = 252
    VAR_STRING = 253
    STRING = 254
    GEOMETRY = 255


#: Types whose metadata have one byte, and two.
_ONE_BYTE = frozenset(
    {
        ColumnType.FLOAT, ColumnType.DOUBLE, ColumnType.TIMESTAMP2, ColumnType.DATETIME2,
        ColumnType.TIME2, ColumnType.BLOB, ColumnType.GEOMETRY, ColumnType.JSON,
        ColumnType.VECTOR, ColumnType.MARIA_BLOB_COMPRESSED,
    }
)  # fmt: skip
_TWO_BYTES = frozenset(
    {
        ColumnType.VARCHAR, ColumnType.VAR_STRING, ColumnType.BIT, ColumnType.NEWDECIMAL,
        ColumnType.STRING, ColumnType.ENUM, ColumnType.SET, ColumnType.MARIA_VARCHAR_COMPRESSED,
    }
)  # fmt: skip
_NUMBERS = frozenset(
    {
        ColumnType.TINY, ColumnType.SHORT, ColumnType.INT24, ColumnType.LONG, ColumnType.LONGLONG,
        ColumnType.YEAR, ColumnType.FLOAT, ColumnType.DOUBLE, ColumnType.NEWDECIMAL,
    }
)  # fmt: skip
_TEXTS = frozenset(
    {
        ColumnType.VARCHAR, ColumnType.VAR_STRING, ColumnType.STRING, ColumnType.BLOB,
        ColumnType.MARIA_VARCHAR_COMPRESSED, ColumnType.MARIA_BLOB_COMPRESSED,
    }
)  # fmt: skip
_LISTS = frozenset({ColumnType.ENUM, ColumnType.SET})
#: The "character set" of bytes.
BINARY = 63


@dataclass(frozen=True, slots=True)
class Charset:
    """What a collation number stands for: the set's name, and bytes of its longest character."""

    name: str
    width: int


Charsets = Mapping[int, Charset]


@dataclass(frozen=True, slots=True)
class ColumnShape:
    """One column in the binlog.

    Attributes:
        name: None without ``binlog_row_metadata=FULL``.
        wire: how its values are stored; ENUM and SET as such.
        meta: two bytes: high and low byte of what the type needs to know.
        collation: number; None where the column has none, or the server did not say.
        values: of an ENUM or SET, still encoded.
    """

    name: str | None
    wire: ColumnType
    meta: int
    nullable: bool
    unsigned: bool = False
    collation: int | None = None
    values: tuple[bytes, ...] = ()
    geometry: int = 0


@dataclass(frozen=True, slots=True)
class TableShape:
    """A table in the binlog.

    Attributes:
        columns: those that the table has for its users.
        key: positions of the primary key's columns.
        hidden: columns behind them that only the server sees; its rows have their values.
    """

    database: str
    table: str
    columns: tuple[ColumnShape, ...]
    key: tuple[int, ...] = ()
    hidden: tuple[ColumnShape, ...] = ()

    @property
    def named(self) -> bool:
        """The server sends the names of columns."""
        return all(column.name is not None for column in self.columns)

    @property
    def stored(self) -> tuple[ColumnShape, ...]:
        """All columns of its rows."""
        return self.columns + self.hidden

    def some(self, places: Sequence[int]) -> TableShape:
        """A table of some of the stored columns, without a key."""
        seen = len(self.columns)
        columns = tuple(self.columns[place] for place in places if place < seen)
        hidden = tuple(self.hidden[place - seen] for place in places if place >= seen)
        return replace(self, columns=columns, key=(), hidden=hidden)

    def without_hashes(self, shown: Collection[str]) -> TableShape:
        """The same with MariaDB's hashes of long UNIQUE keys as hidden columns: they are the last
        ones, and none of the columns that are ``shown`` to users."""
        end = len(self.columns)
        while end and _is_hash(self.columns[end - 1]) and self.columns[end - 1].name not in shown:
            end -= 1
        return replace(self, columns=self.columns[:end], hidden=self.columns[end:])

    @property
    def may_have_hashes(self) -> bool:
        """The last column may be a hash of a long UNIQUE key."""
        return bool(self.columns) and _is_hash(self.columns[-1])


def _is_hash(column: ColumnShape) -> bool:
    named = _HASH.fullmatch(column.name or "") is not None
    return named and column.wire is ColumnType.LONGLONG and column.unsigned


_HASH = re.compile(r"DB_ROW_HASH_\d+")


@dataclass(slots=True)
class _Metadata:
    signs: bytes | None = None
    default: tuple[int, dict[int, int]] | None = None
    charsets: list[int] | None = None
    list_default: tuple[int, dict[int, int]] | None = None
    list_charsets: list[int] | None = None
    names: list[str] | None = None
    sets: list[tuple[bytes, ...]] = field(default_factory=list)
    enums: list[tuple[bytes, ...]] = field(default_factory=list)
    geometries: list[int] = field(default_factory=list)
    key: list[int] = field(default_factory=list)


def read_table_id(data: bytes | bytearray, start: int, end: int) -> int:
    """The number that row events use for a table."""
    start += HEADER_SIZE
    if end - start < 8:
        raise misfit("it ends too early")
    return int.from_bytes(data[start : start + 6], "little")


def ends_statement(data: bytes | bytearray, start: int, end: int) -> bool:
    """A row event is the last one of its statement: the tables are described again for the next."""
    return bool(data[start + HEADER_SIZE + 6] & 1)


def read_table_name(data: bytes | bytearray, start: int, end: int) -> tuple[str, str]:
    """Database and table: all that matters where nobody watches it."""
    return _names(ByteReader(data, start + HEADER_SIZE + 8, end))


def _names(cursor: ByteReader) -> tuple[str, str]:
    database = cursor.text(cursor.number(1))
    cursor.take(1)
    table = cursor.text(cursor.number(1))
    cursor.take(1)
    return database, table


def read_table_map(
    data: bytes | bytearray, start: int, end: int, *, mariadb: bool = False
) -> TableShape:
    """The whole event.

    ``mariadb``: the server counts geometries among the columns with a character set.
    """
    cursor = ByteReader(data, start + HEADER_SIZE + 8, end)
    database, table = _names(cursor)
    count = cursor.packed()
    if not 0 < count <= MAX_COLUMNS:
        raise misfit(f"a table of {count} columns")
    kinds = cursor.take(count)
    types = _types(kinds, ByteReader(raw := cursor.take(cursor.packed()), 0, len(raw)))
    nulls = cursor.take((count + 7) // 8)
    found = _metadata(cursor)
    columns = _columns(types, nulls, found, mariadb)
    if any(ordinal >= count for ordinal in found.key):
        raise misfit("a key of columns that are not there")
    return TableShape(database, table, columns, tuple(found.key))


def _types(kinds: bytes, cursor: ByteReader) -> list[tuple[ColumnType, int]]:
    types = []
    for kind in kinds:
        try:
            wire = ColumnType(kind)
        except ValueError:
            raise misfit(f"a column of unknown type {kind}") from None
        meta = 0
        if wire in _ONE_BYTE:
            meta = cursor.number(1)
        elif wire in _TWO_BYTES:
            meta = cursor.number(2)
        if wire is ColumnType.STRING:
            wire, meta = _string(meta)
        elif wire is ColumnType.NEWDECIMAL:
            meta = (meta & 0xFF) << 8 | meta >> 8  # precision high, scale low
        types.append((wire, meta))
    if cursor.left:
        raise misfit("metadata of columns that are not there")
    return types


def _string(meta: int) -> tuple[ColumnType, int]:
    """CHAR, BINARY, ENUM and SET share a type; the real one is in the first byte, of which two
    bits belong to the length."""
    low, high = meta & 0xFF, meta >> 8
    if low & 0x30 != 0x30:
        return ColumnType.STRING, high | ((low & 0x30) ^ 0x30) << 4
    if low in (ColumnType.ENUM, ColumnType.SET):
        return ColumnType(low), high
    return ColumnType.STRING, high


def _metadata(cursor: ByteReader) -> _Metadata:
    found = _Metadata()
    while cursor.left:
        kind = cursor.number(1)
        part = cursor.take(cursor.packed())
        reader = _METADATA.get(kind)
        if reader is not None:  # a newer server says more than we need
            reader(ByteReader(part, 0, len(part)), found)
    return found


def _signs(cursor: ByteReader, found: _Metadata) -> None:
    found.signs = cursor.take(cursor.left)


def _numbers(cursor: ByteReader) -> list[int]:
    numbers = []
    while cursor.left:
        numbers.append(cursor.packed())
    return numbers


def _default(cursor: ByteReader) -> tuple[int, dict[int, int]]:
    first, *others = _numbers(cursor) or [BINARY]
    return first, dict(zip(others[::2], others[1::2], strict=False))


def _default_charset(cursor: ByteReader, found: _Metadata) -> None:
    found.default = _default(cursor)


def _list_default_charset(cursor: ByteReader, found: _Metadata) -> None:
    found.list_default = _default(cursor)


def _column_charsets(cursor: ByteReader, found: _Metadata) -> None:
    found.charsets = _numbers(cursor)


def _list_charsets(cursor: ByteReader, found: _Metadata) -> None:
    found.list_charsets = _numbers(cursor)


def _column_names(cursor: ByteReader, found: _Metadata) -> None:
    names = []
    while cursor.left:
        names.append(cursor.text(cursor.packed()))
    found.names = names


def _value_lists(cursor: ByteReader) -> list[tuple[bytes, ...]]:
    lists = []
    while cursor.left:
        count = cursor.packed()
        if count > 65535:
            raise misfit("a list of values that cannot be")
        lists.append(tuple(cursor.take(cursor.packed()) for _ in range(count)))
    return lists


def _set_values(cursor: ByteReader, found: _Metadata) -> None:
    found.sets = _value_lists(cursor)


def _enum_values(cursor: ByteReader, found: _Metadata) -> None:
    found.enums = _value_lists(cursor)


def _geometry(cursor: ByteReader, found: _Metadata) -> None:
    found.geometries = _numbers(cursor)


def _simple_key(cursor: ByteReader, found: _Metadata) -> None:
    found.key = _numbers(cursor)


def _prefix_key(cursor: ByteReader, found: _Metadata) -> None:
    found.key = _numbers(cursor)[::2]


_METADATA: dict[int, Callable[[ByteReader, _Metadata], None]] = {
    1: _signs,
    2: _default_charset,
    3: _column_charsets,
    4: _column_names,
    5: _set_values,
    6: _enum_values,
    7: _geometry,
    8: _simple_key,
    9: _prefix_key,
    10: _list_default_charset,
    11: _list_charsets,
}


def _columns(
    types: Sequence[tuple[ColumnType, int]], nulls: bytes, found: _Metadata, mariadb: bool
) -> tuple[ColumnShape, ...]:
    if found.names is not None and len(found.names) != len(types):
        raise misfit("another number of names than of columns")
    signs = iter(_bits(found.signs))
    texts = _collations(found.default, found.charsets)
    lists = _collations(found.list_default, found.list_charsets)
    sets, enums, shapes = iter(found.sets), iter(found.enums), iter(found.geometries)
    columns = []
    for ordinal, (wire, meta) in enumerate(types):
        collation: int | None = None
        values: tuple[bytes, ...] = ()
        if wire in _TEXTS:
            collation = next(texts, None)
        elif wire is ColumnType.GEOMETRY and mariadb:
            next(texts, None)
        elif wire in _LISTS:
            collation = next(lists, None)
            values = next(enums if wire is ColumnType.ENUM else sets, ())
        columns.append(
            ColumnShape(
                name=None if found.names is None else found.names[ordinal],
                wire=wire,
                meta=meta,
                nullable=bool(nulls[ordinal >> 3] >> (ordinal & 7) & 1),
                unsigned=wire in _NUMBERS and next(signs, False),
                collation=collation,
                values=values,
                geometry=next(shapes, 0) if wire is ColumnType.GEOMETRY else 0,
            )
        )
    return tuple(columns)


def _bits(data: bytes | None) -> list[bool]:
    """High bit first."""
    return [bool(byte >> bit & 1) for byte in data or b"" for bit in range(7, -1, -1)]


class _collations:
    """The collation of one column with characters after the other."""

    def __init__(
        self, default: tuple[int, dict[int, int]] | None, listed: list[int] | None
    ) -> None:
        self._default, self._listed, self._next = default, listed, 0

    def __iter__(self) -> _collations:
        return self

    def __next__(self) -> int:
        ordinal, self._next = self._next, self._next + 1
        if self._listed is not None and ordinal < len(self._listed):
            return self._listed[ordinal]
        if self._default is not None:
            return self._default[1].get(ordinal, self._default[0])
        raise StopIteration


# ---------------------------------------------------------------------------- type texts

_INTEGERS = {
    ColumnType.TINY: "tinyint",
    ColumnType.SHORT: "smallint",
    ColumnType.INT24: "mediumint",
    ColumnType.LONG: "int",
    ColumnType.LONGLONG: "bigint",
}
_PLAIN = {
    ColumnType.FLOAT: "float",
    ColumnType.DOUBLE: "double",
    ColumnType.DATE: "date",
    ColumnType.NEWDATE: "date",
    ColumnType.YEAR: "year",
    ColumnType.JSON: "json",
}
_TIMES = {
    ColumnType.TIMESTAMP: "timestamp",
    ColumnType.TIMESTAMP2: "timestamp",
    ColumnType.DATETIME: "datetime",
    ColumnType.DATETIME2: "datetime",
    ColumnType.TIME: "time",
    ColumnType.TIME2: "time",
}
_SIZES = {1: "tiny", 2: "", 3: "medium", 4: "long"}
_GEOMETRIES = (
    "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring",
    "multipolygon", "geometrycollection",
)  # fmt: skip


def type_text(column: ColumnShape, charsets: Charsets) -> str:
    """The column's type as the server writes it, without a display width."""
    wire, meta = column.wire, column.meta
    sign = " unsigned" if column.unsigned else ""
    if wire in _INTEGERS:
        return _INTEGERS[wire] + sign
    if wire is ColumnType.NEWDECIMAL:
        return f"decimal({meta >> 8},{meta & 0xFF}){sign}"
    if wire in (ColumnType.FLOAT, ColumnType.DOUBLE):
        return _PLAIN[wire] + sign
    if wire in _PLAIN:
        return _PLAIN[wire]
    if wire in _TIMES:
        return _TIMES[wire] + (f"({meta})" if meta else "")
    if wire is ColumnType.BIT:
        return f"bit({(meta >> 8) * 8 + (meta & 0xFF)})"
    if wire is ColumnType.GEOMETRY:
        known = column.geometry < len(_GEOMETRIES)
        return _GEOMETRIES[column.geometry] if known else "geometry"
    if wire in _LISTS:
        return _list_text(column, charsets)
    return _text_type(column, charsets)


def _list_text(column: ColumnShape, charsets: Charsets) -> str:
    texts = (decoded(value, column.collation, charsets) for value in column.values)
    listed = ",".join(map(literal, texts))
    return f"{'enum' if column.wire is ColumnType.ENUM else 'set'}({listed})"


def _text_type(column: ColumnShape, charsets: Charsets) -> str:
    wire, meta = column.wire, column.meta
    binary = column.collation in (BINARY, None)
    if wire in (ColumnType.BLOB, ColumnType.MARIA_BLOB_COMPRESSED):
        return _SIZES.get(meta, "long") + ("blob" if binary else "text")
    if wire is ColumnType.VECTOR:
        return "vector"
    if wire is ColumnType.MARIA_VARCHAR_COMPRESSED:
        meta -= 1  # of the byte that says how a value is compressed
    charset = None if column.collation is None else charsets.get(column.collation)
    length = meta // (charset.width if charset is not None and not binary else 1)
    if wire is ColumnType.STRING:
        return f"{'binary' if binary else 'char'}({length})"
    return f"{'varbinary' if binary else 'varchar'}({length})"


#: Character sets whose name in Python is another.
_CODECS = {
    "utf8mb4": "utf-8", "utf8mb3": "utf-8", "utf8": "utf-8", "ascii": "ascii",
    "binary": "latin-1", "latin1": "cp1252", "latin2": "iso8859-2", "latin5": "iso8859-9",
    "latin7": "iso8859-13", "greek": "iso8859-7", "hebrew": "iso8859-8", "cp1250": "cp1250",
    "cp1251": "cp1251", "cp1256": "cp1256", "cp1257": "cp1257", "cp850": "cp850",
    "cp852": "cp852", "cp866": "cp866", "koi8r": "koi8-r", "koi8u": "koi8-u",
    "macroman": "mac-roman", "macce": "mac-latin2", "tis620": "tis-620", "ucs2": "utf-16-be",
    "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be", "sjis": "shift_jis",
    "cp932": "cp932", "ujis": "euc_jp", "eucjpms": "euc_jp", "euckr": "euc_kr",
    "gb2312": "gb2312", "gbk": "gbk", "gb18030": "gb18030", "big5": "big5",
}  # fmt: skip


def codec(collation: int | None, charsets: Charsets) -> str:
    """Python's name of a column's character set.

    Raises:
        ChangefeedError: CF2105 a set that cannot be read here.
    """
    charset = None if collation is None else charsets.get(collation)
    if charset is None:
        return "utf-8"
    try:
        return _CODECS[charset.name]
    except KeyError:
        raise misfit(f"text in character set {charset.name}, which cannot be read") from None


def decoded(data: bytes, collation: int | None, charsets: Charsets) -> str:
    """Text of a column; a byte that is no character becomes U+FFFD."""
    name = codec(collation, charsets)
    if name == "cp1252":
        return cp1252(data)
    return data.decode(name, "replace")


def cp1252(data: bytes) -> str:
    """MySQL's latin1: Windows' set, whose five unused bytes stand for themselves."""
    try:
        return data.decode("cp1252")
    except UnicodeDecodeError:
        return "".join(
            chr(byte) if byte in _UNUSED else bytes([byte]).decode("cp1252") for byte in data
        )


_UNUSED = frozenset({0x81, 0x8D, 0x8F, 0x90, 0x9D})

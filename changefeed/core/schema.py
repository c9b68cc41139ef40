"""The schema of a table at one time, and how the change log stores each value.

A value is kept *without loss*: what has a fixed width and one spelling
(booleans, integers) as that Arrow type, everything else as text in the neutral log form
(:mod:`changefeed.core.types`). A ``raw`` value *is* one JSON token (numbers, json, arrays; NaN and
infinity are quoted already), so nothing is parsed or printed again on the way out. Typed sinks cast
by :attr:`Column.logical`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from changefeed.core.types import Form, Kind, LogicalType

if TYPE_CHECKING:
    import pyarrow as pa


class BeforeImage(StrEnum):
    """Which columns the source sends of a row as it was before an update or a delete."""

    #: The columns of the key alone.
    KEY = "key"
    #: Every column.
    FULL = "full"

    @property
    def words(self) -> str:
        """The image as text for users."""
        return f"before images of {'all columns' if self is BeforeImage.FULL else 'the key'}"


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """``source.schema.name``; ``source`` is the name of an external connection."""

    source: str
    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.source}.{self.schema}.{self.name}"


#: The key of a row: a value for each key column, as the change log has it.
RowKey = tuple[str | int | bool, ...]


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Rows whose key is in ``[low, high)``. A bound has values of a prefix of the key columns; None
    is no bound.

    Values are texts as in the statement, or in the log; the database parses them as the column's
    type. Text is compared by code point, whatever collation the database would use.
    """

    low: tuple[str, ...] | None = None
    high: tuple[str, ...] | None = None

    def sql(self, terms: Sequence[str], value: Callable[[int, str], str]) -> str:
        """The condition, in any SQL, written out, because a comparison of rows would not use an
        index everywhere; empty for all rows.

        Args:
            terms: the key columns, as what is compared.
            value: SQL of a bound's value, given the column's place in the key.
        """
        low, high = (self._from(at, terms, value) if at else "" for at in (self.low, self.high))
        return " AND ".join(filter(None, (low, high and f"NOT {high}")))

    @staticmethod
    def _from(
        bound: tuple[str, ...], terms: Sequence[str], value: Callable[[int, str], str]
    ) -> str:
        """A prefix of the key is at or above ``bound``."""
        alternatives: list[str] = []
        equal: list[str] = []
        for i, text in enumerate(bound):
            right, operator = value(i, text), ">=" if i == len(bound) - 1 else ">"
            alternatives.append(" AND ".join([*equal, f"{terms[i]} {operator} {right}"]))
            equal.append(f"{terms[i]} = {right}")
        return "(" + " OR ".join(f"({one})" for one in alternatives) + ")"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of one schema version.

    Attributes:
        name: as the source spells it.
        type_name: the source's own type text, e.g. ``numeric(12,2)``.
        logical: its neutral type.
        nullable: may be NULL.
        column_id: the source's number of the column, which survives a rename and is never given
            to another column of the table; 0 where the source has none.
    """

    name: str
    type_name: str
    logical: LogicalType
    nullable: bool = True
    column_id: int = 0

    @property
    def kind(self) -> Kind:
        """What its values are."""
        return self.logical.kind

    @property
    def form(self) -> Form:
        """How its values become JSON."""
        return self.logical.kind.form

    @property
    def physical(self) -> str:
        """See :attr:`changefeed.core.types.LogicalType.physical`."""
        return self.logical.physical

    @property
    def ref(self) -> int | str:
        """The identity of the column in all versions of its table: its id, or its name if it has
        none (a renamed column is then another column)."""
        return self.column_id or self.name

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type of the column in the log."""
        from changefeed.core.arrow import PHYSICAL

        return PHYSICAL[self.physical]


@dataclass(frozen=True, slots=True)
class TableSchema:
    """One version of a table's shape.

    Attributes:
        table: which table.
        columns: in the source's order.
        key: positions in ``columns`` that identify a row; every position when the table has no
            key (``keyless``).
        before_image: which columns old rows have. With ``FULL`` every column has a before value,
        else only the key columns.
        keyless: the table has no key: all columns serve as the key for it.
        table_id: the source's number of the table, which survives a rename and is never given to
            another table; 0 if it has none.
        version: number given by the catalog, 0 until it is stored.
    """

    table: TableName
    columns: tuple[Column, ...]
    key: tuple[int, ...]
    before_image: BeforeImage = BeforeImage.KEY
    keyless: bool = False
    table_id: int = 0
    version: int = field(default=0, compare=False)

    @property
    def key_columns(self) -> tuple[Column, ...]:
        """The columns that make the message key, in key order."""
        return tuple(self.columns[i] for i in self.key)

    @property
    def before_ordinals(self) -> tuple[int, ...]:
        """Positions of the columns that have a before value in the log."""
        if self.before_image is BeforeImage.FULL:
            return tuple(range(len(self.columns)))
        return tuple(sorted(self.key))

    def fingerprint(self) -> str:
        """A digest of everything except ``version``: equal schemas have equal fingerprints."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def with_version(self, version: int) -> TableSchema:
        """The same schema with the version number from the catalog."""
        return replace(self, version=version)

    def to_json(self) -> str:
        """A stable text form (without ``version``).

        States and fingerprints contain it, so the names in it must never change.
        """
        fields = {
            "table": asdict(self.table),
            "columns": [_stored(column) for column in self.columns],
            "key": self.key,
            "identity": _STORED_IMAGE[self.before_image],
            "keyless": self.keyless,
            "oid": self.table_id,
        }
        return json.dumps(fields, sort_keys=True)

    @classmethod
    def from_json(cls, text: str, version: int = 0) -> TableSchema:
        """The inverse of :meth:`to_json`."""
        data: dict[str, Any] = json.loads(text)
        return cls(
            table=TableName(**data["table"]),
            columns=tuple(_column(fields) for fields in data["columns"]),
            key=tuple(data["key"]),
            before_image=BeforeImage.FULL if data["identity"] == "full" else BeforeImage.KEY,
            keyless=data["keyless"],
            table_id=data["oid"],
            version=version,
        )

    def log_schema(self) -> pa.Schema:
        """The Arrow schema of this version's rows in the log: metadata, ``a<i>``, ``b<i>``.

        Columns are named by position, not by name: two source columns that differ only in
        case, or hold a dot, would collide in Spark.
        """
        import pyarrow as pa

        from changefeed.core.arrow import METADATA

        fields = list(METADATA)
        fields += [pa.field(f"a{i}", c.arrow) for i, c in enumerate(self.columns)]
        fields += [pa.field(f"b{i}", self.columns[i].arrow) for i in self.before_ordinals]
        return pa.schema(fields)


#: How :meth:`TableSchema.to_json` spells an image.
_STORED_IMAGE = {BeforeImage.KEY: "default", BeforeImage.FULL: "full"}


def _stored(column: Column) -> dict[str, Any]:
    return {
        "name": column.name,
        "type_name": column.type_name,
        "physical": column.physical,
        "form": column.form,
        "logical": str(column.logical),
        "nullable": column.nullable,
        "number": column.column_id,
    }


def _column(fields: dict[str, Any]) -> Column:
    return Column(
        fields["name"],
        fields["type_name"],
        LogicalType.parse(fields["logical"]),
        fields["nullable"],
        fields["number"],
    )

"""How rows of the source become rows of a Delta table, and which tables only Spark writes to."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from changefeed.core.schema import TableSchema
from sinks.lake.small.commit_log import COLUMN_ID, PHYSICAL_NAME, CommitLog, physical_name
from sinks.lake.small.partitions import is_partition_type
from sinks.lake.small.values import UnsupportedCase, arrow_type, delta_type
from sinks.lake.types import spark_type

#: Features of a table that do not change how a writer adds and marks rows, or only if a property
#: asks for that (Delta's protocol, *Valid Feature Names in Table Features*).
_FEATURES = {
    "appendOnly",
    "changeDataFeed",
    "checkConstraints",
    "clustering",
    "columnMapping",
    "deletionVectors",
    "domainMetadata",
    "invariants",
    "timestampNtz",
    "typeWidening",
    "typeWidening-preview",
    "vacuumProtocolCheck",
}
_NEEDS_SPARK = ("delta.enableChangeDataFeed", "delta.appendOnly", "delta.enableRowTracking")
#: The property of a column in Arrow's schema that Parquet keeps as the column's number.
_PARQUET_ID = "PARQUET:field_id"
#: The properties that a column may have.
_COLUMN_PROPERTIES = {PHYSICAL_NAME, COLUMN_ID, "comment", "delta.typeChanges"}


@dataclass(frozen=True, slots=True)
class TableForm:
    """How the columns of the source fill those of the table.

    Attributes:
        columns: for each column of the table, the number of the source's; -1: the version.
        types, names, ids: of the table's columns in files.
        keys: for each column of the key, the number of the table's column.
        sequence: the number of the table's column with the version.
        partitions: the numbers of columns whose values are those of a file, and not in it.
    """

    columns: tuple[int, ...]
    types: tuple[pa.DataType, ...]
    names: tuple[str, ...]
    ids: tuple[int | None, ...]
    keys: tuple[int, ...]
    sequence: int
    partitions: tuple[int, ...]

    @property
    def table_columns(self) -> pa.Schema:
        """The columns as they stand in files."""
        return pa.schema(
            [
                pa.field(name, kind, metadata=None if id_ is None else {_PARQUET_ID: str(id_)})
                for name, kind, id_ in zip(self.names, self.types, self.ids, strict=True)
            ]
        )

    @property
    def partition_names(self) -> list[str]:
        """The names of the columns that are not in files."""
        return [self.names[i] for i in self.partitions]

    @property
    def indexed(self) -> tuple[tuple[str, pa.DataType], ...]:
        """Names and types of the columns in the index: those of the key, and the version."""
        return tuple((self.names[i], self.types[i]) for i in (*self.keys, self.sequence))


def form_of(table: CommitLog, schema: TableSchema, sequence: str) -> TableForm:
    """How rows of the source's table become rows of this one.

    Raises:
        ValueError: only Spark writes to such a table.
    """
    features = {
        *table.protocol.get("writerFeatures", ()),
        *table.protocol.get("readerFeatures", ()),
    }
    if unknown := features - _FEATURES:
        raise ValueError(f"feature {min(unknown)} of the table")
    if table.setting("delta.enableDeletionVectors") != "true":
        raise ValueError("the table has no deletion vectors")
    for name, value in table.properties.items():
        needs = name in _NEEDS_SPARK and value == "true"
        if needs or name.startswith("delta.constraints."):
            raise ValueError(f"property {name} of the table")
    numbers = {column.name.lower(): i for i, column in enumerate(schema.columns)}
    numbers[sequence.lower()] = -1
    fields = table.fields
    clash = len(numbers) != len(schema.columns) + 1
    if clash or sorted(f["name"].lower() for f in fields) != sorted(numbers):
        raise ValueError("the table has other columns")
    for its in fields:
        if not its.get("nullable", True) or not set(its.get("metadata", {})) <= _COLUMN_PROPERTIES:
            raise ValueError(f"column {its['name']} has a rule")
    columns = tuple(numbers[f["name"].lower()] for f in fields)
    wanted = [spark_type(schema.columns[n].logical) if n >= 0 else "bigint" for n in columns]
    if [f["type"] for f in fields] != [delta_type(name) for name in wanted]:
        raise ValueError("the table has columns of other types")
    try:
        types = tuple(arrow_type(f["type"]) for f in fields)
    except UnsupportedCase as reason:
        raise ValueError(str(reason)) from reason
    keys = tuple(columns.index(number) for number in schema.key)
    if any(pa.types.is_floating(types[i]) for i in keys):
        raise ValueError("a key of floating-point numbers")
    divided = set(table.metadata.get("partitionColumns") or ())
    partitions = tuple(i for i, its in enumerate(fields) if its["name"] in divided)
    if len(partitions) < len(divided) or not all(is_partition_type(types[i]) for i in partitions):
        raise ValueError("the table has partitions by values of another type")
    return TableForm(
        columns,
        types,
        tuple(map(physical_name, fields)),
        tuple(f.get("metadata", {}).get(COLUMN_ID) for f in fields),
        keys,
        columns.index(-1),
        partitions,
    )

"""An extract -> typed and hashed rows."""

from __future__ import annotations

import difflib
import functools
import operator
from pathlib import Path
from typing import TYPE_CHECKING

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.spark_sql import quoted
from changefeed.core.uri import redact
from changefeed.dataset.config import column_type
from changefeed.dataset.csv_files import csv_options
from changefeed.dataset.extracts import data_files
from changefeed.dataset.model import (
    KEYHASH,
    NONKEYHASH,
    SENSITIVEHASH,
    Dataset,
    DatasetColumn,
    Hash,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: Whether a row is not as the dataset wants it.
FAULTY = "__changefeed_faulty"
#: Names of the columns that are wrong in a faulty row.
FAULTS = "_faults"
_CORRUPT, _CORRUPT_JSON = "_corrupt", "_corrupt_json"
#: Columns with the lines that Spark could not read, and what is wrong with these.
_LINES = {
    _CORRUPT: "(number of values)",
    _CORRUPT_JSON: "(not JSON)",
}
_ENDINGS = {".parquet": "parquet", ".csv": "csv", ".orc": "orc", ".json": "json", ".txt": "csv"}


def read_extract(session: SparkSession, dataset: Dataset, location: str) -> DataFrame:
    """The columns of the extract as it has them (CSV: as text), in the dataset's order.

    Raises:
        ChangefeedError: CF1302 nothing is there, a column is missing or the format is not known.
    """
    if location.startswith("jdbc:"):
        return _selected(dataset, _read_jdbc(session, location), location)
    form = dataset.format or _format(location)
    if form == "json":
        return _read_json(session, dataset, location)
    reader = session.read.format(form)
    if form != "csv":
        return _selected(dataset, reader.load(location), location)
    from pyspark.sql.types import StringType, StructField, StructType

    reader = csv_options(reader, data_files(location), dataset.delimiter, dataset.header)
    if dataset.header:
        named = reader.load(location)
        fields = [StructField(name, StringType()) for name in named.columns]
    else:
        fields = [StructField(c.name, StringType()) for c in dataset.columns]
    # A line with too few or too many values is kept as _corrupt, instead of filled with NULLs.
    schema = StructType([*fields, StructField(_CORRUPT, StringType())])
    reader = reader.schema(schema).option("columnNameOfCorruptRecord", _CORRUPT)
    # Of files elsewhere, Spark compares the headers with the schema.
    frame = reader.option("enforceSchema", not dataset.header).load(location)
    return _selected(dataset, frame, location)


def extract_columns(
    session: SparkSession, location: str, form: str | None, delimiter: str
) -> tuple[DatasetColumn, ...]:
    """The columns of an extract with the types that Spark reads or, of CSV, guesses.

    Raises:
        ChangefeedError: CF1204 a column's type cannot be compared, CF1302 there are no files.
    """
    if location.startswith("jdbc:"):
        frame = _read_jdbc(session, location)
    else:
        form = form or _format(location)
        reader = session.read.format(form)
        if form == "csv":
            reader = csv_options(reader, data_files(location), delimiter, header=True)
            reader = reader.option("inferSchema", True)
        frame = reader.load(location)
    columns = []
    for field in frame.schema.fields:
        kind = field.dataType.simpleString()
        # The numbers of later extracts may be larger than those of the first.
        wide = "bigint" if form == "csv" and kind == "int" else kind
        columns.append(DatasetColumn(field.name, column_type(wide, f"column {field.name}")))
    return tuple(columns)


def _read_json(session: SparkSession, dataset: Dataset, location: str) -> DataFrame:
    from pyspark.sql.types import DecimalType, StringType, StructField, StructType

    found = session.read.format("json").load(location)
    written = {name.lower(): name for name in found.columns}
    plain = _selected(dataset, found, location)
    wanted = plain.select(*[value_of(column).alias(column.name) for column in dataset.columns])
    # Spark takes a number with a point for a double, which has 15 digits. Spark 3 does so where the
    # column is of text because of other values, too.
    inexact = ("double", "string") if session.version.startswith("3.") else ("double",)
    fields = []
    for name in wanted.columns:
        kind, declared = plain.schema[name].dataType, wanted.schema[name].dataType
        if isinstance(declared, DecimalType) and kind.simpleString() in inexact:
            kind = DecimalType(38, declared.scale)
        fields.append(StructField(written[name.lower()], kind))
    schema = StructType([*fields, StructField(_CORRUPT_JSON, StringType())])
    reader = session.read.format("json").schema(schema)
    reader = reader.option("columnNameOfCorruptRecord", _CORRUPT_JSON)
    return _selected(dataset, reader.load(location), location)


def _read_jdbc(session: SparkSession, location: str) -> DataFrame:
    url, _, table = location.partition("#")
    if not table:
        raise ChangefeedError(
            Code.TARGET_NOT_WATCHABLE,
            "a JDBC extract does not name its table",
            hint="write it behind the URL: jdbc:postgresql://host/db#schema.table",
        )
    return session.read.format("jdbc").option("url", url).option("dbtable", table).load()


def _format(location: str) -> str:
    """By the name of the first data file."""
    files = data_files(location)
    if files is None:
        return _ENDINGS.get(Path(location).suffix, "parquet")
    if files:
        file = files[0]
        plain = file.with_suffix("") if file.suffix in (".gz", ".zst", ".bz2") else file
        return _ENDINGS.get(plain.suffix, "csv")
    raise ChangefeedError(
        Code.TARGET_NOT_WATCHABLE,
        f"there is no extract: {location} has no files",
        hint="check the path.",
    )


def _selected(dataset: Dataset, frame: DataFrame, location: str) -> DataFrame:
    names = {name.lower(): name for name in frame.columns}
    for column in dataset.columns:
        if column.name.lower() not in names:
            there = [name for name in frame.columns if name not in _LINES]
            close = difflib.get_close_matches(column.name, there, n=1)
            hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(there)}"
            if not there:
                hint = "its files are empty."
            raise ChangefeedError(
                Code.TARGET_NOT_WATCHABLE,
                f"the extract has no column {column.name}",
                hint=hint,
                detail=redact(location),
            )
    chosen = [frame[quoted(names[c.name.lower()])].alias(c.name) for c in dataset.columns]
    chosen += [frame[name] for name in _LINES if name in frame.columns]
    return frame.select(*chosen)


def typed_rows(dataset: Dataset, frame: DataFrame) -> DataFrame:
    """The rows cast to the dataset's types, with their hashes and :data:`FAULTY`."""
    faults = _faults(dataset, frame)
    faulty = functools.reduce(operator.or_, faults.values())
    values = [value_of(column).alias(column.name) for column in dataset.columns]
    return with_hashes(dataset, frame.select(*values, faulty.alias(FAULTY)))


def faulty_rows(dataset: Dataset, frame: DataFrame) -> DataFrame:
    """The rows of an extract that are not as the dataset wants them, as they are there, with the
    names of the columns that are wrong in :data:`FAULTS`."""
    from pyspark.sql import functions as F

    faults = _faults(dataset, frame)
    names = F.concat_ws(",", *[F.when(wrong, F.lit(name)) for name, wrong in faults.items()])
    return frame.withColumn(FAULTS, names).filter(F.col(FAULTS) != "")


def value_of(column: DatasetColumn) -> Column:
    """The column's value in its type; NULL if it cannot be one."""
    from pyspark.sql import functions as F

    return F.expr(f"try_cast({quoted(column.name)} AS {column.type})")


def _faults(dataset: Dataset, frame: DataFrame) -> dict[str, Column]:
    """For each thing that can be wrong with a row, whether it is; never NULL."""
    from pyspark.sql import functions as F

    faults = {}
    for column in dataset.columns:
        wrong = value_of(column).isNull()
        if column.nullable:
            wrong = wrong & F.col(quoted(column.name)).isNotNull()
        faults[column.name] = wrong
    for name, fault in _LINES.items():
        if name in frame.columns:
            faults[fault] = F.col(name).isNotNull()
    return faults


def with_hashes(dataset: Dataset, frame: DataFrame) -> DataFrame:
    """Typed rows with their hashes."""
    hashes = {
        KEYHASH: _hash(dataset.hash, dataset.keys),
        NONKEYHASH: _hash(dataset.hash, dataset.compared),
    }
    if dataset.sensitive_columns:
        # One of its own: who reads the other could find values by trying.
        hashes[SENSITIVEHASH] = _hash(dataset.hash, dataset.compared_sensitive)
    return frame.withColumns(hashes)


def _hash(kind: Hash, columns: tuple[DatasetColumn, ...]) -> Column:
    from pyspark.sql import functions as F

    values = [F.col(quoted(column.name)) for column in columns]
    if kind is Hash.MD5:
        options = {
            "ignoreNullFields": "false",
            "timeZone": "UTC",
            # Spark's own formats have milliseconds.
            "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
            "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
        }
        return F.md5(F.to_json(F.struct(*values), options)) if values else F.md5(F.lit(""))
    return F.xxhash64(*values, *_null_masks(values))


def key_checksum(dataset: Dataset) -> Column:
    """A hash of a row's key that does not depend on its ``keyhash``."""
    from pyspark.sql import functions as F

    values = [F.col(quoted(column.name)) for column in dataset.keys]
    # What comes first is the seed of what follows.
    return F.xxhash64(F.lit(1), *values, *_null_masks(values))


def _null_masks(values: list[Column]) -> list[Column]:
    """A bit for each NULL, which xxhash64 skips: (NULL, 'a') and ('a', NULL) would be equal."""
    from pyspark.sql import functions as F

    return [_null_mask(values[i : i + 32]) for i in range(0, len(values), 32)] or [F.lit(0)]


def _null_mask(values: list[Column]) -> Column:
    """A bit for each NULL, as a bigint. The bits are added up only where there is one."""
    from pyspark.sql import functions as F

    none = F.lit(0).cast("bigint")
    mask = none
    for place, value in enumerate(values):
        mask = mask + F.when(value.isNull(), F.lit(1 << place)).otherwise(F.lit(0))
    some = functools.reduce(operator.or_, [value.isNull() for value in values])
    return F.when(some, mask).otherwise(none)

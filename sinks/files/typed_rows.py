"""Files of Avro and Parquet read back as messages, in the order of their rows."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from changefeed.core.errors import ChangefeedError, Code
from changefeed.encoding.arrow_schema import parquet_rows
from sinks.copies import BARE, key_text, of_record, plain
from sinks.files.places.base import ReadablePlace

#: Columns of a Parquet file that are none of the table's begin with it.
_BESIDE = "__crdb__"
_EVENT = f"{_BESIDE}event_type"
#: Rows of a Parquet file that are Python objects at a time.
_ROWS = 10_000

#: A key as text, and the value of a message as JSON has it.
KeyedMessage = tuple[str | None, object]


def avro_messages(
    place: ReadablePlace, path: str, envelope: str, key: Sequence[str]
) -> Iterator[KeyedMessage]:
    """The messages of an Avro file; ``key``: the members of a row that are its key.

    Raises:
        ChangefeedError: CF1303 the file cannot be read, or a message has no key.
    """
    # Here, as it needs a package of an extra.
    from changefeed.encoding.avro.reading import DamagedContainer, container_records

    with place.open(path) as raw:
        try:
            for record in container_records(raw):
                value = plain(record)
                row = value.get("record" if envelope == BARE else "key") if value else None
                yield _key(row, key, path), of_record(value, envelope)
        except DamagedContainer as error:
            raise unreadable(path, str(error)) from error


def _key(row: object, key: Sequence[str], path: str) -> str:
    if not isinstance(row, dict) or not row.keys() >= set(key):
        raise unreadable(path, "a message has no key")
    return key_text([row[name] for name in key])


def parquet_messages(place: ReadablePlace, path: str, key: Sequence[str]) -> Iterator[KeyedMessage]:
    """The rows of a Parquet file as messages of the envelope ``wrapped``; ``key``: the columns of
    the key.

    Raises:
        ChangefeedError: CF1303 the file cannot be read, or has no such columns.
    """
    with tempfile.TemporaryFile() as whole:
        with place.open(path) as raw:
            shutil.copyfileobj(raw, whole, 1 << 20)
        try:
            with pq.ParquetFile(whole) as file:
                for batch in file.iter_batches(_ROWS):
                    yield from _rows(batch, key, path)
        except pa.ArrowInvalid as error:
            raise unreadable(path, "it is no Parquet file") from error


def _rows(batch: pa.RecordBatch, key: Sequence[str], path: str) -> Iterator[KeyedMessage]:
    if not {*key, _EVENT} <= set(batch.schema.names):
        raise unreadable(path, "it has no columns of the key, or of another format")
    gone = batch.column(_EVENT).to_pylist()
    for (name, row), op in zip(_keyed_rows(batch, key), gone, strict=True):
        yield name, {"after": None if op == "d" else row}


def source_rows(
    messages: Iterable[pa.RecordBatch], key: Sequence[str]
) -> Iterator[tuple[str, dict[str, object]]]:
    """Keys and rows of Parquet messages that are not in a file."""
    for batch in messages:
        yield from _keyed_rows(parquet_rows(batch), key)


def _keyed_rows(
    batch: pa.RecordBatch, key: Sequence[str]
) -> Iterator[tuple[str, dict[str, object]]]:
    names = [name for name in batch.schema.names if not name.startswith(_BESIDE)]
    columns = [_numbers(batch.column(name)).to_pylist() for name in names]
    for values in zip(*columns, strict=True):
        row = dict(zip(names, map(plain, values), strict=True))
        yield key_text([row[name] for name in key]), row


def _numbers(column: pa.Array) -> pa.Array:
    """Dates and times as numbers: Python's classes for them cannot hold all values."""
    return column.cast(_number(column.type))


def _number(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_number(kind.value_type))
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        return pa.int64()
    return kind


def unreadable(path: str, why: str, hint: str = "") -> ChangefeedError:
    """A file of the feed cannot be verified."""
    return ChangefeedError(
        Code.NOT_SUPPORTED,
        f"{path} cannot be verified: {why}",
        hint=hint or "another program may have written it, or the feed had other options then.",
    )

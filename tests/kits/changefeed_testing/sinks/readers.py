"""Reads targets as a consumer would, for validators."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import sqlalchemy as sa

from changefeed_testing.sinks.messages import Message, parse_message
from sinks.table.sink import messages as message_table

_DATA_NAME = re.compile(
    r"(?P<stamp>\d{33})-[0-9a-f]{16}-\d+-\d+-\d+-\w+-(?P<topic>.+)-(?P<schema>\d+)"
    r"\.(?:ndjson|csv)(?:\.\w+)?"
)


def visible_files(directory: Path) -> list[Path]:
    """The files that a reader sees: without hidden names, sorted by name."""
    found = (path for path in directory.rglob("*") if path.is_file())
    return sorted(
        p for p in found if not any(x.startswith(".") for x in p.relative_to(directory).parts)
    )


def file_bytes(path: Path) -> bytes:
    """The content of a file, decompressed."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(data)
    if path.suffix == ".zst":
        return _unpacked(data, "zstd")
    if path.suffix == ".lz4":
        return _unpacked(data, "lz4")
    return data


def _unpacked(data: bytes, codec: str) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
        return bytes(stream.read())


def read_files(directory: Path, topics: Iterable[str]) -> list[Message]:
    """The messages of a files sink in the order of the names; a marker reaches every topic.

    Manifests are left out: they repeat names.

    Raises:
        ValueError: a file has a name that the files sink does not use.
    """
    names = tuple(topics)
    paths = [path for path in visible_files(directory) if path.suffix != ".manifest"]
    return [message for path in paths for message in _of_file(path, names)]


def _of_file(path: Path, topics: tuple[str, ...]) -> Iterator[Message]:
    if path.suffix == ".RESOLVED":
        for topic in topics:
            yield parse_message(topic, 0, None, path.read_bytes())
        return
    match = _DATA_NAME.fullmatch(path.name)
    if match is None:
        raise ValueError(f"a file with a strange name: {path.name}")
    for line in file_bytes(path).splitlines():
        yield parse_message(match["topic"], 0, None, line)


def read_table(engine: sa.Engine) -> list[Message]:
    """The messages of an ``experimental-sql`` sink in the order of their ids."""
    columns = message_table.c
    query = sa.select(columns.table, columns.key, columns.value).order_by(columns.message_id)
    with engine.connect() as connection:
        rows = connection.execute(query).all()
    return [
        parse_message(topic, 0, key and key.encode(), value and value.encode())
        for topic, key, value in rows
    ]

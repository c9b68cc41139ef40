"""How files differ from their table: the last line of each key."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from changefeed.core.errors import ChangefeedError, Code
from sinks.copies import BARE, CopyComparison, exact
from sinks.files.names import MAX_LABEL, file_order, parse_name
from sinks.files.places.base import CanRead, FilePlace, PublishedFile
from sinks.naming import shortened

#: Envelopes of whole rows that tell of deletes.
ENVELOPES = ("wrapped", "bare", "enriched")
#: What a packed file's name ends in, and how Arrow calls the packing.
_PACKINGS = {"gz": "gzip", "zst": "zstd", "lz4": "lz4"}
#: The extension of files of lines of JSON.
_LINES = "ndjson"


def require_comparable(place: FilePlace, shown: str, envelope: str, json_lines: bool) -> CanRead:
    """The place, which can be read, of a feed whose files say which rows there are.

    Raises:
        ChangefeedError: CF1303.
    """
    if not isinstance(place, CanRead):
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            f"{shown} cannot be verified: it takes files, and has no listing of them",
        )
    if not json_lines:
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            "files of this feed's format cannot be verified yet",
            hint="VERIFY reads files of format = 'json'.",
        )
    if envelope not in ENVELOPES:
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            f"files of envelope = '{envelope}' cannot be verified: they do not tell of deletes",
            hint=f"these can: {', '.join(ENVELOPES)}.",
        )
    return place


def expect(copy: CopyComparison, messages: Iterable[pa.Table], envelope: str) -> None:
    """Take the messages of the rows that the source has."""
    for table in messages:
        copy.expect_messages(table, envelope, lambda key: _key(exact(key)), exact)


def hold(copy: CopyComparison, place: CanRead, job: int, topic: str, envelope: str) -> None:
    """Take what the files of a table say, one after the other as they were written.

    Raises:
        ChangefeedError: CF1303 a file of the feed is of another format, or no line of its
            envelope.
    """
    copy.replay(
        (
            message
            for path in data_files(place.every(), job, topic)
            for message in _messages(place, path, envelope)
        ),
        envelope,
    )


def data_files(files: Iterable[PublishedFile], job: int, topic: str) -> list[str]:
    """The paths of a table's data files, in the order in which they were written."""
    label = shortened(topic, MAX_LABEL)
    ours = []
    for file in files:
        said = parse_name(file.path.rpartition("/")[2])
        if said is not None and (said.job, said.topic) == (job, label):
            ours.append((file.path, file.modified))
    return file_order(ours)


def _messages(
    place: CanRead, path: str, envelope: str
) -> Iterator[tuple[str | None, dict[str, Any]]]:
    for number, line in enumerate(_lines(place, path), 1):
        try:
            value = exact(line)
        except ValueError as error:
            raise _unreadable(path, number) from error
        if not isinstance(value, dict):
            raise _unreadable(path, number)
        key, whole = _beside(value, envelope)
        if key is not None and not whole:
            raise _unreadable(path, number)  # of an envelope that the feed had before
        yield None if key is None else _key(key), value


def _beside(value: dict[str, Any], envelope: str) -> tuple[object, bool]:
    """The key in a line, None in a mark; and whether the line has the row where its envelope has
    it."""
    if envelope == BARE:
        beside = value.get("__crdb__")
        if not isinstance(beside, dict):
            return value, False
        return beside.get("key"), True
    payload = value.get("payload", value) if envelope == "enriched" else value
    if not isinstance(payload, dict):
        return value, False
    return payload.get("key", value.get("key")), "after" in payload


def _lines(place: CanRead, path: str) -> Iterator[bytes]:
    packing = _PACKINGS.get(path.rpartition(".")[2])
    plain = path if packing is None else path.rpartition(".")[0]
    if not plain.endswith(f".{_LINES}"):
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            f"{path} cannot be verified: the feed had another format when it was written",
            hint="VERIFY reads files of format = 'json'.",
        )
    with place.open(path) as raw:
        stream = raw if packing is None else pa.CompressedInputStream(raw, packing)
        yield from io.BufferedReader(stream, 1 << 20)


def _key(key: object) -> str:
    return json.dumps(key, ensure_ascii=False)


def _unreadable(path: str, line: int) -> ChangefeedError:
    return ChangefeedError(
        Code.NOT_SUPPORTED,
        f"{path} cannot be verified: line {line} is no message of the feed as it is now",
        hint="another program may have written it, or the feed had another envelope then.",
    )

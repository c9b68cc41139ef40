"""Rows of a range that a planner copied to a staging place, as an executor reads them.

Locations need none of our keys: paths, URLs of S3 that are good for a day, or, where the planner
had no keys itself, names that executors read with the keys of their machine.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import fs

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.proofs import AlteredBytes, FileProof
from changefeed.core.row_parts import parts_of
from changefeed.core.schema import TableSchema

#: For an answer of the store.
TIMEOUT = 60.0

_FAILED = (OSError, pa.ArrowException)


@dataclass(frozen=True)
class RowLocations:
    """Where the rows of a range are.

    Attributes:
        locations: of objects, in order.
        proofs: of the objects, in the same order.
        versions: the shapes that headers name by their number.
    """

    locations: tuple[str, ...]
    proofs: tuple[FileProof, ...]
    versions: tuple[TableSchema, ...] = ()

    def __repr__(self) -> str:
        # A URL is a right to read: it must not reach a log.
        return f"StagedRows({len(self.locations)} objects)"

    def files(self) -> Iterator[pa.Buffer]:
        """The content of the objects.

        Raises:
            ChangefeedError: CF3002 one is no longer there, CF3001 one cannot be read.
        """
        for location, proof in zip(self.locations, self.proofs, strict=True):
            content = _content(location)
            try:
                proof.check(memoryview(content))
            except AlteredBytes as failure:
                raise _unread(str(failure)) from None
            yield content

    def events(self) -> Iterator[tuple[TableSchema, pa.Table | Timestamp]]:
        """Rows of the log, and the instants of truncations, with the shape they have."""
        for content in self.files():
            for header, rows in parts_of(content):
                version = self.versions[header["version"]]
                yield version, Timestamp.parse(header["truncated"]) if rows is None else rows


def _content(location: str) -> pa.Buffer:
    try:
        if location.startswith("s3://"):
            system, path = fs.S3FileSystem(), location.removeprefix("s3://")
            with system.open_input_file(path) as file:
                return file.read_buffer()
        if location.startswith(("http://", "https://")):
            with urllib.request.urlopen(location, timeout=TIMEOUT) as answer:
                return pa.py_buffer(answer.read())
        with pa.OSFile(location) as file:
            return file.read_buffer()
    except urllib.error.HTTPError as failure:
        status = failure.code
        failure.close()
        raise (
            _gone(f"the store answers {status}")
            if status in (403, 404)
            else _unread(f"the store answers {status}")
        ) from None
    except FileNotFoundError:
        raise _gone("it is not there") from None
    except _FAILED as failure:
        raise _unread(type(failure).__name__) from None


def _gone(why: str) -> ChangefeedError:
    return ChangefeedError(
        Code.POSITION_TOO_OLD,
        f"staged rows of a reader cannot be read any more: {why}",
        hint="run the query again: its rows are staged anew. They are kept for a day.",
    )


def _unread(why: str) -> ChangefeedError:
    return ChangefeedError(
        Code.LOG_DAMAGED,
        f"staged rows of a reader cannot be read: {why}",
        hint="run the query again: its rows are staged anew; check the staging place.",
    )

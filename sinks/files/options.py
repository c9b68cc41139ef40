"""Parameters of ``file://`` and the options that concern files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from changefeed.errors import ChangefeedError
from changefeed.option_types import parse_size
from changefeed.uri import SinkURL
from sinks.files.names import PARTITION_FORMATS
from sinks.files.staged import SUFFIXES

DEFAULT_FILE_SIZE = 16_000_000
"""Bytes before compression after which a file is closed (CockroachDB's default, 16MB)."""

_EXTENSIONS = {"json": "ndjson", "csv": "csv"}


@dataclass(frozen=True, slots=True)
class FilesSettings:
    """A checked sink URI with its options."""

    directory: Path
    partition_format: str
    file_size: int
    topic_prefix: str
    extension: str
    compression: str


def parse(uri: str, options: Mapping[str, object]) -> FilesSettings:
    """Check a ``file://`` URI; touches nothing.

    Raises:
        ChangefeedError: the path is not absolute, or a parameter is unknown or wrong.
    """
    url = SinkURL(uri)
    if url.hosts or not url.path.startswith("/"):
        raise ChangefeedError(
            "CF1201",
            "a file sink needs an absolute path and no host",
            hint="write file:///directory, with three slashes.",
        )
    partition_format = url.take_choice("partition_format", tuple(PARTITION_FORMATS)) or "daily"
    size = url.take_str("file_size")
    prefix = url.take_str("topic_prefix", "") or ""
    url.finish()
    compression = str(options.get("compression") or "none")
    return FilesSettings(
        directory=Path(url.path),
        partition_format=partition_format,
        file_size=DEFAULT_FILE_SIZE if size is None else _size(size),
        topic_prefix=prefix,
        extension=_EXTENSIONS[str(options.get("format") or "json")] + SUFFIXES[compression],
        compression=compression,
    )


def _size(text: str) -> int:
    try:
        size = parse_size(text)
    except ValueError:
        size = 0
    if not size:
        raise ChangefeedError("CF1207", f"param file_size must be a size such as 16MB, not {text}")
    return size

"""Parameters of the files sinks' URIs, and the options that concern files.

Names of the stores' parameters are CockroachDB's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from changefeed.core.errors import ChangefeedError, Code, raise_all
from changefeed.core.parameters import Parameter, ParameterKind
from changefeed.options.types import parse_duration, parse_size
from sinks.files.names import PARTITION_FORMATS, Buckets
from sinks.files.places.spec import LOCAL, PLACE_PARAMETERS, PlaceSpec, place_of
from sinks.files.writers import FILE_FORMATS, FileFormat
from sinks.parameters import TOPIC_PREFIX, Parameters

DEFAULT_FILE_SIZE = 16_000_000
"""Bytes before compression after which a file is closed (CockroachDB's default, 16MB)."""

#: Seconds between two rounds of files: tens of files a day. Changes of the size of a file do not
#: wait for it.
FLUSH_INTERVAL = 3600.0
DAY = 24 * 3600.0
#: The same with ``resolved`` and no interval, which asks for a timestamp at every advance: a file
#: on a disk costs little, one in a store is paid for.
DISK_INTERVAL, STORE_INTERVAL = 1.0, 10.0

MANIFEST = ("yes", "no")

#: What the URIs of all the schemes take.
PARAMETERS = (
    *PLACE_PARAMETERS,
    Parameter(
        "partition_format",
        "The folders that files are put into, by time.",
        ParameterKind.CHOICE,
        tuple(PARTITION_FORMATS),
        next(iter(PARTITION_FORMATS)),
    ),
    Parameter(
        "manifest",
        "Whether a folder gets a manifest when it is complete.",
        ParameterKind.CHOICE,
        MANIFEST,
        "yes with partition_format=minute",
    ),
    Parameter(
        "file_size",
        "Bytes before compression at which a file ends.",
        ParameterKind.SIZE,
        default="16MB",
    ),
    Parameter(
        "flush_interval",
        "How long changes gather at most before they become files.",
        ParameterKind.DURATION,
        default="1h",
    ),
    TOPIC_PREFIX,
)


@dataclass(frozen=True, slots=True)
class FilesSettings:
    """A checked sink URI with its options.

    Attributes:
        buckets: folders by time.
        manifests: a bucket gets its manifests when it is closed.
        file_size: bytes before compression at which a file ends.
        flush_interval: seconds that changes gather in the change log before they become files,
            unless they fill one.
        resolved: seconds between two files of resolved timestamps; 0 if there is no fixed number.
        format: ``json``, ``csv``, ``avro`` or ``parquet``.
    """

    place: PlaceSpec
    buckets: Buckets
    manifests: bool
    file_size: int
    flush_interval: float
    resolved: float
    topic_prefix: str
    format: str
    compression: str

    @property
    def extension(self) -> str:
        """What follows the dot in the names of data files."""
        return self.files.extension + self.files.packings[self.compression]

    @property
    def files(self) -> FileFormat:
        """How files of the format are written."""
        return FILE_FORMATS[self.format]


def parse(uri: str, options: Mapping[str, object]) -> FilesSettings:
    """Check the URI and options of a files sink; touches nothing.

    Raises:
        ChangefeedError: all problems found (``Problems`` when there are several).
    """
    parameters = Parameters(uri, PARAMETERS)
    url, found = parameters.url, parameters.found
    place = place_of(parameters)
    partition = parameters.choice("partition_format")
    manifests = parameters.attempt(lambda: url.take_choice("manifest"), None)
    size = parameters.attempt(lambda: _size(parameters.text("file_size")), DEFAULT_FILE_SIZE)
    resolved = options.get("resolved")
    # Changes are files by the time a resolved timestamp is due, which waits for them.
    every = float(resolved) if isinstance(resolved, int | float) else 0.0
    usual = FLUSH_INTERVAL
    if resolved == 0:
        usual = DISK_INTERVAL if place.kind == LOCAL else STORE_INTERVAL
    interval = parameters.attempt(
        lambda: _interval(parameters.text("flush_interval"), usual), usual
    )
    prefix = parameters.text("topic_prefix") or ""
    parameters.attempt(url.finish, None)
    form = str(options.get("format") or next(iter(FILE_FORMATS)))
    compression = str(options.get("compression") or "none")
    packings = FILE_FORMATS[form].packings
    if compression not in packings:
        able = " or ".join(f"'{name}'" for name in packings if name != "none")
        problem = f"files of format={form} are incompatible with compression={compression}"
        found.append(
            ChangefeedError(Code.OPTION_DOES_NOT_FIT_SINK, problem, hint=f"they take {able}.")
        )
    buckets = PARTITION_FORMATS[partition]
    if manifests == "yes":
        found += _against_manifests(place, partition, options)
    raise_all(found)
    wanted = manifests == "yes" or (manifests is None and partition == "minute")
    return FilesSettings(
        place=place,
        buckets=buckets,
        manifests=wanted and place.lists,
        file_size=size,
        flush_interval=min(interval, every or interval),
        resolved=every,
        topic_prefix=prefix,
        format=form,
        compression=compression,
    )


def _against_manifests(
    place: PlaceSpec, partition: str, options: Mapping[str, object]
) -> list[ChangefeedError]:
    found = []
    if partition == "flat":
        found.append(
            ChangefeedError(
                Code.INVALID_PARAMETER,
                "param manifest needs buckets, and partition_format=flat has none",
                hint="use partition_format=minute, hourly or daily.",
            )
        )
    if not place.lists:
        problem = f"param manifest needs a listing of the files, which {place.scheme} has not"
        found.append(ChangefeedError(Code.INVALID_PARAMETER, problem))
    if "resolved" in options and options["resolved"] is None:
        found.append(
            ChangefeedError(
                Code.OPTIONS_CONTRADICT,
                "param manifest needs the option resolved: a bucket is closed by a resolved "
                "timestamp",
                hint="add resolved = '10s'.",
            )
        )
    return found


def _size(text: str | None) -> int:
    if text is None:
        return DEFAULT_FILE_SIZE
    try:
        size = parse_size(text)
    except ValueError:
        size = 0
    if not size:
        raise ChangefeedError(
            Code.INVALID_PARAMETER, f"param file_size must be a size such as 16MB, not {text}"
        )
    return size


def _interval(text: str | None, usual: float) -> float:
    if text is None:
        return usual
    try:
        seconds = parse_duration(text)
    except ValueError:
        seconds = -1.0
    if seconds < 0:
        problem = f"param flush_interval must be a duration such as 30s, not {text}"
        raise ChangefeedError(Code.INVALID_PARAMETER, problem)
    return seconds

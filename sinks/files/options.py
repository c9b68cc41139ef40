"""What the URI of a files sink says, and the options that concern files.

Names of the stores' parameters are CockroachDB's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.settings import ParameterKind, invalid, setting
from sinks.files.names import PARTITION_FORMATS, Buckets
from sinks.files.places.spec import LOCAL, PlaceSettings
from sinks.files.writers import FILE_FORMATS, FileFormat
from sinks.naming import TOPIC_PREFIX

DAY = 24 * 3600.0
#: The default of ``flush_interval`` with ``resolved`` and no interval, which asks for a timestamp
#: at every advance: a file on a disk costs little, one in a store is paid for.
DISK_INTERVAL, STORE_INTERVAL = 1.0, 10.0


@dataclass(frozen=True, kw_only=True)
class FilesSettings(PlaceSettings):
    """A place, and what files look like there."""

    partition_format: str = setting(
        next(iter(PARTITION_FORMATS)),
        "The folders that files are put into, by time.",
        values=tuple(PARTITION_FORMATS),
    )
    manifest: str | None = setting(
        None,
        "Whether a folder gets a manifest when it is complete.",
        values=("yes", "no"),
        shown="yes with partition_format=minute",
    )
    #: CockroachDB's default.
    file_size: int = setting(
        "16MB", "Bytes before compression at which a file ends.", ParameterKind.SIZE, least=1
    )
    #: Tens of files a day. Changes of the size of a file do not wait for it.
    longest_wait: float = setting(
        "1h",
        "How long changes gather at most before they become files.",
        ParameterKind.DURATION,
        name="flush_interval",
    )
    topic_prefix: str = setting("", TOPIC_PREFIX)

    @property
    def buckets(self) -> Buckets:
        """The folders by time."""
        return PARTITION_FORMATS[self.partition_format]

    @property
    def manifests(self) -> bool:
        """A bucket gets its manifests when it is closed."""
        wanted = self.manifest or ("yes" if self.partition_format == "minute" else "no")
        return wanted == "yes" and self.place.lists

    @property
    def resolved(self) -> float:
        """Seconds between two files of resolved timestamps; 0 if there is no fixed number."""
        resolved = self.options.get("resolved")
        return float(resolved) if isinstance(resolved, int | float) else 0.0

    @property
    def flush_interval(self) -> float:
        """Seconds that changes gather in the change log before they become files, unless they fill
        one. They are files by the time a resolved timestamp is due, which waits for them."""
        wait = self.longest_wait
        if self.options.get("resolved") == 0 and "flush_interval" not in self.given:
            wait = DISK_INTERVAL if self.place.kind == LOCAL else STORE_INTERVAL
        return min(wait, self.resolved or wait)

    @property
    def format(self) -> str:
        """``json``, ``csv``, ``avro`` or ``parquet``."""
        return str(self.options.get("format") or next(iter(FILE_FORMATS)))

    @property
    def compression(self) -> str:
        """Of files; ``none``: as they are."""
        return str(self.options.get("compression") or "none")

    @property
    def extension(self) -> str:
        """What follows the dot in the names of data files."""
        return self.files.extension + self.files.packings[self.compression]

    @property
    def files(self) -> FileFormat:
        """How files of the format are written."""
        return FILE_FORMATS[self.format]

    def check(self) -> Iterator[ChangefeedError]:
        yield from PlaceSettings.check(self)
        packings = self.files.packings
        if self.compression not in packings:
            able = " or ".join(f"'{name}'" for name in packings if name != "none")
            yield invalid(
                f"files of format={self.format} are incompatible with "
                f"compression={self.compression}",
                f"they take {able}.",
                Code.OPTION_DOES_NOT_FIT_SINK,
            )
        if self.manifest != "yes":
            return
        if self.partition_format == "flat":
            yield invalid(
                "param manifest needs buckets, and partition_format=flat has none",
                "use partition_format=minute, hourly or daily.",
            )
        if not self.place.lists:
            yield invalid(
                f"param manifest needs a listing of the files, which {self.uri.scheme} has not"
            )
        if "resolved" in self.options and self.options["resolved"] is None:
            yield invalid(
                "param manifest needs the option resolved: a bucket is closed by a resolved "
                "timestamp",
                "add resolved = '10s'.",
                Code.OPTIONS_CONTRADICT,
            )

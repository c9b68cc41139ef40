"""Where Spark runs and how it is configured, as the command line gives it."""

from __future__ import annotations

from dataclasses import dataclass, field

from changefeed.core.engines import LEAST_JOB_ROWS, EngineOption
from changefeed.core.errors import ChangefeedError, Code

__all__ = ["EngineOption", "SparkSettings", "check_staging", "parse_property"]

#: All cores of this machine.
LOCAL = "local"


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """How this process starts Spark when a feed first needs it.

    Attributes:
        master: Spark's master URL, or what else ``--spark`` takes: ``local``, ``existing``, the
            ``sc://`` URL of a Connect server, which may hold a secret; None: as ``local``.
        heap: memory of the driver's JVM, as ``2g``; None: a share of the machine's.
        conf: further Spark properties, which override changefeed's.
        engine: where bulk work of feeds runs that have no option ``engine``.
        staging: a place that node and executors reach, for rows from the one to the others;
            None: they see the same files. It may hold a secret.
        least_job_rows: bulk work of fewer rows never becomes a job; no flag sets it.
    """

    master: str | None = field(default=None, repr=False)
    heap: str | None = None
    conf: tuple[tuple[str, str], ...] = ()
    engine: EngineOption = EngineOption.AUTO
    staging: str | None = field(default=None, repr=False)
    least_job_rows: int = LEAST_JOB_ROWS

    @property
    def place(self) -> str:
        """Where Spark runs."""
        return self.master or LOCAL

    def over(self, other: SparkSettings) -> SparkSettings:
        """These settings, and the other's where none is given here; the properties of both."""
        merged = {**dict(other.conf), **dict(self.conf)}
        return SparkSettings(
            self.master or other.master,
            self.heap or other.heap,
            tuple(merged.items()),
            other.engine if self.engine is EngineOption.AUTO else self.engine,
            self.staging or other.staging,
            min(self.least_job_rows, other.least_job_rows),
        )


def parse_property(text: str) -> tuple[str, str]:
    """``spark.name=value``, the form of ``spark-submit --conf``.

    Raises:
        ChangefeedError: CF1204 when it is not of that form.
    """
    name, equals, value = text.partition("=")
    name = name.strip()
    if not equals or not name.startswith("spark."):
        raise ChangefeedError(
            Code.INVALID_OPTION_VALUE,
            f"invalid Spark property {name!r}",
            hint="write it as spark-submit does: --conf spark.executor.memory=4g",
        )
    return name, value.strip()


def check_staging(url: str) -> str:
    """The address of a staging place, unchanged.

    Raises:
        ChangefeedError: CF1201, CF1202.
    """
    from changefeed.spark.staging_place import staging_place

    staging_place(url)
    return url

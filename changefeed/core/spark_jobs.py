"""What a feed's jobs of Spark are called, and what is known of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote


@dataclass(frozen=True, slots=True)
class JobName:
    """What a feed's jobs of Spark are called.

    Attributes:
        feed, job_id: the feed.
        step: what they do, as ``scan 3``.
        table: what they do it with; empty if it is not one table.
        state: id of the state that has the feed: several may use one Spark.
    """

    feed: str
    job_id: int
    step: str
    table: str = ""
    state: str = ""

    @property
    def group(self) -> str:
        """The group of the jobs, which can be cancelled together."""
        return f"changefeed {self.feed} {self.step}"

    @property
    def text(self) -> str:
        """Their description in Spark's UI."""
        return " ".join(filter(None, ("changefeed", self.feed, self.table, self.step)))

    @property
    def tag(self) -> str:
        """All that :func:`job_of_tag` needs. It has no comma, which separates Spark's tags."""
        known = (self.state, str(self.job_id), self.feed, self.table, self.step)
        return "/".join([_TAG, *(quote(part, safe="") for part in known)])


#: The name of one piece of work: of a feed, or any other.
JobGroup = JobName | str

_TAG = "changefeed"


def job_of_tag(tag: str) -> JobName | None:
    """The inverse of :attr:`JobName.tag`; None of another tag."""
    first, *parts = tag.split("/")
    if first != _TAG or len(parts) != 5:
        return None
    state, job_id, feed, table, step = map(unquote, parts)
    return JobName(feed, int(job_id), step, table, state)


@dataclass(frozen=True, slots=True)
class SparkJob:
    """A job of Spark, of a feed.

    Attributes:
        id: Spark's number of it.
        table, step: see :class:`JobName`.
        status: ``running``, ``succeeded``, ``failed`` or ``unknown``.
        tasks, done, failed: how many tasks it has, have ended well, and have failed.
        started, ended: ns; ``ended`` is None of one that runs.
        read_rows, read_bytes, written_rows, written_bytes: of its stages, as far as Spark counts
            them and has kept them.
    """

    id: int
    table: str
    step: str
    status: str
    tasks: int
    done: int
    failed: int
    started: int
    ended: int | None = None
    read_rows: int = 0
    read_bytes: int = 0
    written_rows: int = 0
    written_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SparkJobs:
    """The jobs of a feed that Spark knows, the newest first; ``idle``: why it can know none."""

    jobs: Sequence[SparkJob] = ()
    idle: str = ""

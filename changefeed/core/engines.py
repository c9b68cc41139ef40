"""Where a feed's bulk work runs: in the node itself, or as a job of Spark.

Both run scans and backlogs of messages with the same functions, so the bytes are the same. They
differ in the number of processes and in the time to start. The choice compares two estimates.
Its constants were measured on two cores with rows of five columns on their way to Kafka
(docs/decisions/bulk-work.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

#: How much one thread of the node reads, encodes and delivers.
DRIVER_ROWS_A_SECOND = 280_000
#: The same in each task of a job.
TASK_ROWS_A_SECOND = 145_000
#: Into a warehouse that loads files (docs/decisions/warehouse-parts.md): how much the node reads,
#: stages, loads and merges; how much a task reads and stages, and the node loads and merges of it.
WAREHOUSE_ROWS_A_SECOND = 165_000
STAGED_ROWS_A_SECOND = 170_000
LOADED_ROWS_A_SECOND = 400_000
#: Until a session is there that has not been started: the JVM and the first Python workers.
SESSION_SECONDS = 11.0
#: A job in a session that is there: planning, tasks, a sink opened in each.
JOB_SECONDS = 0.3
#: Below this a job costs several times what the rows do, so the node makes them in any case.
LEAST_JOB_ROWS = 1_000


class EngineOption(StrEnum):
    """Where the user wants bulk work to run."""

    AUTO = "auto"
    SPARK = "spark"
    DRIVER = "driver"


@dataclass(frozen=True, slots=True)
class SparkState:
    """What the choice needs to know about the node's Spark.

    Attributes:
        ready: whether a session exists.
        cores: tasks that run at the same time.
        least_job_rows: work of fewer rows never becomes a job.
        hindrance: why its executors cannot run changefeed's functions; empty if they can, or if
            that is not known.
    """

    ready: bool
    cores: int
    least_job_rows: int = LEAST_JOB_ROWS
    hindrance: str = ""


@dataclass(frozen=True, slots=True)
class SparkReport:
    """What a node's Spark is, for people.

    Attributes:
        status: ``running``, or what it does or lacks instead.
        master: Spark's master URL, without secrets.
        cores: tasks that it runs at the same time now; an estimate until a session exists.
        version: of Spark; empty until a session exists.
        fast: changefeed's fast ways that the session allows; empty until a session exists.
        instead: for each of the other ways what happens instead, and what that costs.
    """

    status: str
    master: str
    cores: int
    version: str = ""
    fast: Sequence[str] = ()
    instead: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Work:
    """Bulk work of a feed.

    Attributes:
        rows: an estimate of the number of rows.
        tasks: the largest number of tasks.
        hindrance: why Spark cannot do it, whatever the option says; empty if it can.
        loads: what a job stages is loaded by the node.
    """

    rows: int
    tasks: int
    hindrance: str = ""
    loads: bool = False


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """Where work runs, and why, as text for users; ``hindered``: Spark cannot do it."""

    spark: bool
    reason: str
    hindered: bool = False


def choose_engine(asked: EngineOption, work: Work, state: SparkState) -> EngineChoice:
    """Compare how long the work would take in both places."""
    if hindrance := work.hindrance or state.hindrance:
        return EngineChoice(False, hindrance, hindered=True)
    if asked is EngineOption.DRIVER:
        return EngineChoice(False, "engine = 'driver'")
    if work.rows < state.least_job_rows:
        return EngineChoice(False, f"fewer than {state.least_job_rows:,} rows")
    if asked is EngineOption.SPARK:
        return EngineChoice(True, "engine = 'spark'")
    here = work.rows / (WAREHOUSE_ROWS_A_SECOND if work.loads else DRIVER_ROWS_A_SECOND)
    there = job_seconds(work, state)
    words = f"about {work.rows:,} rows: {here:.1f} s in the node, {there:.1f} s as a Spark job"
    return EngineChoice(there < here, words)


def job_seconds(work: Work, state: SparkState) -> float:
    """The estimated seconds of a Spark job for the work, including the start of the session."""
    tasks = max(1, min(work.tasks, state.cores))
    start = 0.0 if state.ready else SESSION_SECONDS
    if work.loads:
        start += work.rows / LOADED_ROWS_A_SECOND
    speed = STAGED_ROWS_A_SECOND if work.loads else TASK_ROWS_A_SECOND
    return start + JOB_SECONDS + work.rows / (tasks * speed)

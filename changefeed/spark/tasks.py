"""A number of tasks without a shuffle: task ``n`` runs one function with ``n``, in a worker."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from changefeed.core.spark_jobs import JobGroup
from changefeed.spark.executors import errors_packed
from changefeed.spark.progress import Listener, driver_host
from changefeed.spark.sealed import sealed
from changefeed.spark.session import NodeSpark

_RESULT = pa.schema([("task", pa.int32()), ("item", pa.int32()), ("rows", pa.int64()),
                     ("bytes", pa.int64())])  # fmt: skip
_RESULT_DDL = "task int, item int, rows bigint, bytes bigint"


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of a task for one item of its work, a table for instance."""

    item: int
    rows: int
    bytes: int


class Task(Protocol):
    """Runs in a worker; must pickle."""

    def __call__(self, number: int, report: Callable[[int, int], None]) -> list[TaskResult]:
        """Do the work of task ``number``; ``report`` takes rows and bytes so far."""
        ...


class FileTask(Protocol):
    """Runs in a worker with what is in one file; must pickle."""

    def __call__(
        self, number: int, content: pa.Buffer, report: Callable[[int, int], None]
    ) -> list[TaskResult]:
        """Do the work of task ``number``; see :class:`Task`."""
        ...


def run_tasks(
    spark: NodeSpark,
    task: Task,
    count: int,
    *,
    group: JobGroup,
    on_progress: Callable[[int, int], None],
) -> list[TaskResult]:
    """Run ``count`` tasks; returns their results when the last has ended.

    Spark retries a task that fails, which repeats it as a whole.

    Args:
        spark: started or not; waits for it.
        group: name for :meth:`NodeSpark.cancel`.
        on_progress: gets rows and bytes of all tasks now and then, from another thread.

    Raises:
        ChangefeedError: what the last attempt of a task raised; CF4002 Spark failed.
    """
    with (
        spark.use(group) as session,
        Listener(on_progress, driver_host(session)) as report,
        sealed(_Run(task, report), driver_host(session)) as run,
    ):
        numbers = session.range(count, numPartitions=count)
        rows = numbers.mapInArrow(run, _RESULT_DDL).collect()
    return [TaskResult(row["item"], row["rows"], row["bytes"]) for row in rows]


def run_files(
    spark: NodeSpark,
    task: FileTask,
    paths: Sequence[Path],
    *,
    group: JobGroup,
    on_progress: Callable[[int, int], None],
) -> list[TaskResult]:
    """As :func:`run_tasks`, with a task for each file of this machine.

    Executors read the file, from the staging place if there is one, and pass its content to the
    task. A file should be small enough to be in an executor's memory twice.
    """
    with (
        spark.shared([str(path) for path in paths]) as names,
        spark.use(group) as plain,
        Listener(on_progress, driver_host(plain)) as report,
        sealed(_RunFile(task, _numbers(names), report), driver_host(plain)) as run,
    ):
        session = plain.newSession()
        # By default several small files share a task.
        session.conf.set("spark.sql.files.maxPartitionBytes", "1")
        files = session.read.format("binaryFile").load(list(names)).select("path", "content")
        rows = files.mapInArrow(run, _RESULT_DDL).collect()
    return [TaskResult(row["item"], row["rows"], row["bytes"]) for row in rows]


def _numbers(names: Sequence[str]) -> dict[str, int]:
    return {name.rpartition("/")[2]: number for number, name in enumerate(names)}


class _RunFile:
    def __init__(
        self, task: FileTask, numbers: dict[str, int], report: Callable[[int, int, int], None]
    ) -> None:
        self._task = task
        self._numbers = numbers
        self._report = report

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path, content in zip(batch["path"], batch["content"], strict=True):
                number = self._numbers[path.as_py().rpartition("/")[2]]
                with errors_packed():
                    done = self._task(
                        number, content.as_buffer(), functools.partial(self._report, number)
                    )
                yield _result(number, done)


class _Run:
    def __init__(self, task: Task, report: Callable[[int, int, int], None]) -> None:
        self._task = task
        self._report = report

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                with errors_packed():
                    done = self._task(number, functools.partial(self._report, number))
                yield _result(number, done)


def _result(number: int, done: list[TaskResult]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"task": number, "item": d.item, "rows": d.rows, "bytes": d.bytes} for d in done],
        schema=_RESULT,
    )

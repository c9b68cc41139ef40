"""A number of tasks without a shuffle: task ``n`` runs one function with ``n``, in a worker."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from changefeed.spark.executors import errors_packed
from changefeed.spark.progress import Listener, driver_host
from changefeed.spark.session import NodeSpark

_RESULT = pa.schema([("task", pa.int32()), ("item", pa.int32()), ("rows", pa.int64()),
                     ("bytes", pa.int64())])  # fmt: skip
_RESULT_DDL = "task int, item int, rows bigint, bytes bigint"


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task did of one item of its work, a table for instance."""

    item: int
    rows: int
    bytes: int


class Task(Protocol):
    """Runs in a worker; must pickle."""

    def __call__(self, number: int, tell: Callable[[int, int], None]) -> list[TaskResult]:
        """Do the work of task ``number``; ``tell`` takes rows and bytes so far."""
        ...


class FileTask(Protocol):
    """Runs in a worker with what is in one file; must pickle."""

    def __call__(
        self, number: int, content: pa.Buffer, tell: Callable[[int, int], None]
    ) -> list[TaskResult]:
        """Do the work of task ``number``; see :class:`Task`."""
        ...


def run_tasks(
    spark: NodeSpark,
    task: Task,
    count: int,
    *,
    group: str,
    on_progress: Callable[[int, int], None],
) -> list[TaskResult]:
    """Run ``count`` tasks; returns what all of them did when the last has ended.

    A task that fails is tried again by Spark, and may be repeated as a whole.

    Args:
        spark: started or not; waits for it.
        group: name for :meth:`NodeSpark.cancel`.
        on_progress: told rows and bytes of all tasks now and then, from another thread.

    Raises:
        ChangefeedError: what the last attempt of a task raised; CF4002 Spark failed.
    """
    with spark.use(group) as session, Listener(on_progress, driver_host(session)) as tell:
        numbers = session.range(count, numPartitions=count)
        rows = numbers.mapInArrow(_Run(task, tell), _RESULT_DDL).collect()
    return [TaskResult(row["item"], row["rows"], row["bytes"]) for row in rows]


def run_files(
    spark: NodeSpark,
    task: FileTask,
    paths: Sequence[Path],
    *,
    group: str,
    on_progress: Callable[[int, int], None],
) -> list[TaskResult]:
    """Like :func:`run_tasks`, a task for each file of this machine: executors read it, from the
    staging place where there is one, and hand its content to the task.

    A file should be small enough to be in an executor's memory twice.
    """
    with (
        spark.shared([str(path) for path in paths]) as names,
        spark.use(group) as plain,
        Listener(on_progress, driver_host(plain)) as tell,
    ):
        session = plain.newSession()
        # Else several small files share a task.
        session.conf.set("spark.sql.files.maxPartitionBytes", "1")
        files = session.read.format("binaryFile").load(list(names)).select("path", "content")
        rows = files.mapInArrow(_RunFile(task, _numbers(names), tell), _RESULT_DDL).collect()
    return [TaskResult(row["item"], row["rows"], row["bytes"]) for row in rows]


def _numbers(names: Sequence[str]) -> dict[str, int]:
    return {name.rpartition("/")[2]: number for number, name in enumerate(names)}


class _RunFile:
    """The function that Spark calls with the files of a partition: one."""

    def __init__(
        self,
        task: FileTask,
        numbers: dict[str, int],
        tell: Callable[[int, int, int], None],
    ) -> None:
        self._task = task
        self._numbers = numbers
        self._tell = tell

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path, content in zip(batch["path"], batch["content"], strict=True):
                number = self._numbers[path.as_py().rpartition("/")[2]]
                with errors_packed():
                    done = self._task(
                        number, content.as_buffer(), functools.partial(self._tell, number)
                    )
                yield _result(number, done)


class _Run:
    """The function that Spark calls with the numbers of a partition: one."""

    def __init__(self, task: Task, tell: Callable[[int, int, int], None]) -> None:
        self._task = task
        self._tell = tell

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                with errors_packed():
                    done = self._task(number, functools.partial(self._tell, number))
                yield _result(number, done)


def _result(number: int, done: list[TaskResult]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"task": number, "item": d.item, "rows": d.rows, "bytes": d.bytes} for d in done],
        schema=_RESULT,
    )

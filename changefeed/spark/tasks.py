"""A number of tasks without a shuffle: task ``n`` runs one function with ``n``, in a worker."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from changefeed.spark.executors import errors_packed
from changefeed.spark.progress import Listener, driver_host
from changefeed.spark.session import SparkEngine

_RESULT = pa.schema([("task", pa.int32()), ("item", pa.int32()), ("rows", pa.int64()),
                     ("bytes", pa.int64())])  # fmt: skip
_RESULT_DDL = "task int, item int, rows bigint, bytes bigint"


@dataclass(frozen=True, slots=True)
class Done:
    """What a task did of one item of its work, a table for instance."""

    item: int
    rows: int
    bytes: int


class Task(Protocol):
    """Runs in a worker; must pickle."""

    def __call__(self, number: int, tell: Callable[[int, int], None]) -> list[Done]:
        """Do the work of task ``number``; ``tell`` takes rows and bytes so far."""
        ...


def run_tasks(
    engine: SparkEngine,
    task: Task,
    count: int,
    *,
    group: str,
    on_progress: Callable[[int, int], None],
) -> list[Done]:
    """Run ``count`` tasks; returns what all of them did when the last has ended.

    A task that fails is tried again by Spark, and may be repeated as a whole.

    Args:
        engine: started or not; waits for it.
        group: name for :meth:`SparkEngine.cancel`.
        on_progress: told rows and bytes of all tasks now and then, from another thread.

    Raises:
        ChangefeedError: what the last attempt of a task raised; CF4002 Spark failed.
    """
    with engine.use(group) as session, Listener(on_progress, driver_host(session)) as tell:
        numbers = session.range(count, numPartitions=count)
        rows = numbers.mapInArrow(_Run(task, tell), _RESULT_DDL).collect()
    return [Done(row["item"], row["rows"], row["bytes"]) for row in rows]


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
                yield pa.RecordBatch.from_pylist(
                    [
                        {"task": number, "item": d.item, "rows": d.rows, "bytes": d.bytes}
                        for d in done
                    ],
                    schema=_RESULT,
                )

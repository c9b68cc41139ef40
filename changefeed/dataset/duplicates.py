"""Keys that an extract has more than once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from changefeed.core.spark_sql import quoted
from changefeed.dataset.model import KEYHASH, Dataset, Hash

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: Rows of which one task sorts the hashes: 8 bytes each, twice in the worker's memory.
_TASK_ROWS = 8_000_000


def repeated_keys(dataset: Dataset, rows: DataFrame, count: int) -> tuple[DataFrame, int] | None:
    """The keys that appear in several rows, with their ``count``, in order, and how many keys these
    are; None for none.

    Tasks sort the hashes of the keys; only rows of equal hashes are compared by key.

    Args:
        dataset: names the key columns and the hash.
        rows: key columns and hashes, as they were written.
        count: how many rows there are.
    """
    from pyspark.sql import functions as F

    number = _number(dataset).alias(KEYHASH)
    tasks = -(-count // _TASK_ROWS)
    numbers = rows.select(number)
    # Equal hashes meet in one task.
    numbers = numbers.coalesce(1) if tasks <= 1 else numbers.repartition(tasks, KEYHASH)
    repeated = numbers.mapInArrow(_repeated, f"{KEYHASH} bigint")
    if repeated.isEmpty():
        return None
    keys = [quoted(column.name) for column in dataset.keys]
    suspects = rows.select(*keys, number).join(F.broadcast(repeated), KEYHASH, "left_semi")
    found = suspects.groupBy(*keys).count().filter("count > 1").orderBy(*keys)
    total = found.count()
    return (found, total) if total else None


def _number(dataset: Dataset) -> Column:
    """A number that is equal for equal keys."""
    from pyspark.sql import functions as F

    return F.col(KEYHASH) if dataset.hash is Hash.XXHASH else F.xxhash64(KEYHASH)


def _repeated(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The numbers that appear more than once among those of a task."""
    parts = [batch.column(0).to_numpy() for batch in batches]
    numbers = np.concatenate(parts) if parts else np.empty(0, np.int64)
    numbers.sort()
    repeated = np.unique(numbers[1:][numbers[1:] == numbers[:-1]])
    yield pa.record_batch([pa.array(repeated, pa.int64())], names=[KEYHASH])

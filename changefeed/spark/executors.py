"""Functions that run in Spark's Python workers, near the data, and what they send back.

Arrow batches go in and out; nothing runs per row. A ChangefeedError raised there arrives in the
driver unchanged (:mod:`changefeed.spark.failure`). Spark retries a failed task, so a function
may get the same rows twice, but never misses any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from changefeed.core.errors import ChangefeedError
from changefeed.spark.failure import pack


class PartDelivery(Protocol):
    """Delivers the finished messages of one part; must pickle.

    Called once for a part (again when its task is retried) with batches of the
    plan's :func:`~changefeed.encoding.formats.message_schema`; returns rows and bytes, durably
    delivered.
    """

    def __call__(self, part: int, batches: Iterator[pa.RecordBatch]) -> tuple[int, int]: ...


@dataclass(frozen=True, slots=True)
class PartResult:
    """The rows and bytes of one part that were delivered; ``staged``: in which files."""

    part: int
    rows: int
    bytes: int
    staged: tuple[str, ...] = ()


RECEIPT = pa.schema(
    [
        ("part", pa.int32()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("staged", pa.list_(pa.string())),
    ]
)
RECEIPT_DDL = "part int, rows bigint, bytes bigint, staged array<string>"


class Deliverer:
    """Passes the messages of a part to ``deliver``.

    ``report`` takes part, rows and bytes so far, and whether all of them are durable.
    """

    def __init__(
        self, deliver: PartDelivery, report: Callable[[int, int, int, bool], None] | None = None
    ) -> None:
        self._deliver = deliver
        self._report = report

    def __call__(self, part: int, batches: Iterable[pa.RecordBatch]) -> PartResult:
        """Deliver all messages of a part."""
        rows, size = self._deliver(part, self._counted(part, batches))
        if self._report is not None:
            self._report(part, rows, size, True)
        return PartResult(part, rows, size)

    def _counted(self, part: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = size = 0
        for batch in batches:
            yield batch
            rows += batch.num_rows
            size += batch.nbytes
            if self._report is not None:
                self._report(part, rows, size, False)


@contextmanager
def errors_packed() -> Iterator[None]:
    """Raise a ChangefeedError in a form that Spark passes on."""
    try:
        yield
    except ChangefeedError as error:
        raise RuntimeError(pack(error)) from error

"""Lanes whose rows come from files that the node made: for workers that do not see its log.

The node reads the range once and writes a file for each lane, which Spark hands to the lane's task
(:func:`changefeed.spark.tasks.run_files`), as parts of :mod:`changefeed.core.row_parts`. A header
says ``{"version": n, "clean": [..]}`` of rows, and ``{"upto": ".."}`` where the log
was read up to a timestamp: what came before is made durable there, as in :mod:`.lanes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from changefeed.capture.growing_log import LogAccess
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.proofs import AlteredBytes, FileProof
from changefeed.core.row_parts import parts_of, put_part
from changefeed.core.schema import TableSchema
from changefeed.feeds.chunks import Watermark
from changefeed.feeds.lanes import LaneDelivery, LaneRows
from changefeed.spark.tasks import TaskResult


def write_lanes(lanes: LaneDelivery, log: LogAccess, folder: Path) -> list[Path]:
    """Write the rows of each lane to a file of its own in ``folder``; in the lanes' order.

    Raises:
        ChangefeedError: the log failed.
        OSError: no room.
    """
    versions = {schema: number for number, schema in enumerate(lanes.versions)}
    paths = [folder / f"lane-{number:04d}" for number in range(lanes.count)]
    with ExitStack() as opened:
        files = [opened.enter_context(path.open("wb")) for path in paths]
        for item in lanes.items(log):
            if isinstance(item, Watermark):
                for file in files:
                    put_part(file, {"upto": str(item.upto)})
                continue
            rows = item.load()
            of = lanes.split(rows, item.schema)
            header = {
                "version": versions[item.schema],
                "clean": sorted(item.clean),
            }
            for number, file in enumerate(files):
                places = np.flatnonzero(of == number)
                if len(places):
                    put_part(file, header, rows.take(pa.array(places)))
    return paths


@dataclass(frozen=True)
class StagedLanes:
    """Delivers a lane out of the content of its file; pickles with :class:`.lanes.LaneDelivery`."""

    lanes: LaneDelivery
    proofs: tuple[FileProof, ...]

    def __call__(
        self, number: int, content: pa.Buffer, report: Callable[[int, int], None]
    ) -> list[TaskResult]:
        """Deliver lane ``number``; see :meth:`.lanes.LaneDelivery.__call__`.

        Raises:
            ChangefeedError: CF4002, the file is not the one that the node made.
        """
        try:
            self.proofs[number].check(memoryview(content))
        except AlteredBytes as failure:
            raise ChangefeedError(
                Code.SPARK_FAILED,
                f"the staged file of lane {number} is damaged: {failure}",
                hint="check the disks of the staging place and of the executors.",
            ) from None
        return self.lanes.deliver(number, _parts(content, tuple(self.lanes.versions)), report)


def _parts(content: pa.Buffer, versions: Sequence[TableSchema]) -> Iterator[LaneRows | Watermark]:
    for header, rows in parts_of(content):
        if rows is None:
            yield Watermark((), Timestamp.parse(header["upto"]))
        else:
            yield LaneRows(
                rows,
                versions[header["version"]],
                frozenset(header["clean"]),
            )

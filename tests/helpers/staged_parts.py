"""Scans whose parts are written to files as tasks of Spark write them, without Spark."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from sinks.base import Batch, PartWriter, Receipt, Sink, SparkAccess
from sinks.merged.rows import table_of


class SharedFolders:
    """What a sink that loads files needs of the node's Spark."""

    @contextmanager
    def shared_folder(self, folder: Path) -> Iterator[str]:
        """See :meth:`sinks.base.SparkAccess.shared_folder`."""
        try:
            yield str(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


#: For :attr:`sinks.base.SinkContext.spark`.
FOLDERS = cast(SparkAccess, SharedFolders())


class Killed(BaseException):
    """An attempt at a part ends."""


def write_scan(sink: Sink, batch: Batch) -> Receipt:
    """Write rows of a scan as three parts, the last of which is empty. Each comes three times: an
    attempt that dies with a row in its file, one whose receipt is lost, and one that counts."""
    assert sink.capabilities.loads_parts
    rows = table_of(batch.rows)
    half = rows.num_rows // 2
    parts = [rows.slice(0, half), rows.slice(half), rows.slice(0, 0)]

    def written(write: PartWriter) -> Sequence[Receipt]:
        carried = pickle.dumps(write)
        found = []
        for number, part in enumerate(parts):
            try:
                pickle.loads(carried)(number, _torn(part))
            except Killed:
                pass
            pickle.loads(carried)(number, iter([part]))
            found.append(pickle.loads(carried)(number, iter([part])))
        return found

    receipt = sink.write_parts(written, batch.epoch, batch.target, batch.schema)
    assert receipt.rows in (0, rows.num_rows)
    return receipt


def _torn(rows: pa.Table) -> Iterator[Any]:
    yield rows
    raise Killed

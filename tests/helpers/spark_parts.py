"""Parts of a made-up table and deliveries for scan tests; workers import this module."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from changefeed.core.errors import ChangefeedError

BATCHES = 3


@dataclass
class MadePart:
    """``rows`` rows in three batches; ``trouble`` says what goes wrong, ``marks`` where to note."""

    number: int
    rows: int = 30
    trouble: str = ""
    marks: str = ""

    def read(self) -> Iterator[pa.RecordBatch]:
        """Columns a0 (int4) and a1 (text)."""
        attempt = self._mark("read")
        for n in range(BATCHES):
            if self.trouble == "always" and n == 1:
                raise ChangefeedError("CF2202", "the part is broken", detail=f"{self.number}")
            if self.trouble == "once" and n == 1 and attempt == 1:
                raise ChangefeedError("CF2201", "the connection broke")
            if self.trouble == "die" and n == 1 and attempt == 1:
                os._exit(9)
            if self.trouble == "stall":
                self._mark("stalled")
                _wait_for(Path(self.marks, "go"))
            step = self.rows // BATCHES
            ids = range(self.number * 1000 + n * step, self.number * 1000 + (n + 1) * step)
            yield pa.record_batch(
                {
                    "a0": pa.array(ids, pa.int32()),
                    "a1": pa.array([None if i % 5 == 0 else f'te"xt\n{i}' for i in ids]),
                }
            )

    def _mark(self, what: str) -> int:
        """Note in a file that this happened; how often it has by now."""
        if not self.marks:
            return 1
        file = Path(self.marks, f"{what}-{self.number}")
        with open(file, "a") as out:
            out.write("x")
        return file.stat().st_size


def _wait_for(path: Path) -> None:
    import time

    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


@dataclass
class ToFiles:
    """Writes each part's messages to a file; a repeated part replaces it."""

    folder: str
    refuse: int = -1

    def __call__(self, part: int, batches: Iterator[pa.RecordBatch]) -> tuple[int, int]:
        rows = size = 0
        lines = []
        for batch in batches:
            if part == self.refuse:
                raise ChangefeedError("CF5003", "the sink refused it", hint="ask the sink")
            for message in batch.to_pylist():
                lines.append(
                    [message["key"].decode(), message["value"].decode(), message["op"],
                     message["wall"], message["logical"], message["seq"]]
                )  # fmt: skip
            rows += batch.num_rows
            size += batch.nbytes
        Path(self.folder, f"part-{part}").write_text(json.dumps(lines))
        return rows, size


def delivered(folder: Path) -> dict[int, list[list[object]]]:
    """What :class:`ToFiles` wrote, by part."""
    return {
        int(file.name.removeprefix("part-")): json.loads(file.read_text())
        for file in sorted(folder.glob("part-*"))
    }

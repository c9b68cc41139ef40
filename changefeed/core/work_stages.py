"""What the steps of a delivery cost: rows, bytes and time of each, for EXPLAIN ANALYZE."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from changefeed.core.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    import pyarrow as pa


class WorkStage(StrEnum):
    """A step of a row on its way; a row of a scan passes others than a change."""

    SCAN_READ = "scan: read"
    SCAN_QUERY = "scan: query"
    SCAN_ENCODE = "scan: encode"
    READ = "changes: read"
    QUERY = "changes: query"
    ENCODE = "changes: encode"


@dataclass(slots=True)
class StageCost:
    """What one stage gave, and how long its threads were in it."""

    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Flow:
    """Messages of a scan, or of changes.

    Attributes:
        rows, bytes: of all of them, as a consumer gets them.
        largest: bytes of the largest one.
        first, last: when they came, seconds since the feed began.
    """

    rows: int = 0
    bytes: int = 0
    largest: int = 0
    first: float = 0.0
    last: float = 0.0


class Stages:
    """Measures nothing."""

    def run(self, stage: WorkStage, work: Callable[[], pa.Table]) -> pa.Table:
        """The result of ``work``, which is the stage."""
        return work()

    def each(self, stage: WorkStage, batches: Iterable[pa.Table]) -> Iterable[pa.Table]:
        """The same tables; making each of them is the stage."""
        return batches


#: Of a feed that nobody measures.
UNMEASURED: Final = Stages()


class MeasuredStages(Stages):
    """Adds up what each stage costs, from any thread."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._costs: dict[WorkStage, StageCost] = {}

    def run(self, stage: WorkStage, work: Callable[[], pa.Table]) -> pa.Table:
        began = self._clock.monotonic()
        made = work()
        self._add(stage, made, self._clock.monotonic() - began)
        return made

    def each(self, stage: WorkStage, batches: Iterable[pa.Table]) -> Iterator[pa.Table]:
        began = self._clock.monotonic()
        for made in batches:
            self._add(stage, made, self._clock.monotonic() - began)
            yield made
            began = self._clock.monotonic()
        self._add(stage, None, self._clock.monotonic() - began)

    def costs(self) -> dict[WorkStage, StageCost]:
        """What was measured so far."""
        with self._lock:
            return {
                stage: StageCost(known.rows, known.bytes, known.seconds)
                for stage in WorkStage
                if (known := self._costs.get(stage)) is not None
            }

    def _add(self, stage: WorkStage, made: pa.Table | None, seconds: float) -> None:
        with self._lock:
            cost = self._costs.setdefault(stage, StageCost())
            cost.seconds += seconds
            if made is not None:
                cost.rows += made.num_rows
                cost.bytes += made.nbytes

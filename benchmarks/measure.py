"""What a process costs: CPU seconds and memory of it and its children, beside wall time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType

import psutil

from changefeed.spark.internals import abilities


@dataclass(frozen=True, slots=True)
class Cost:
    """What was used between two moments.

    ``first_seconds``: until the first row was there. ``steady``: the share of a core between the
    two calls of :meth:`Meter.steady`.
    """

    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int
    first_seconds: float = 0.0
    steady: float = 0.0

    @property
    def share(self) -> str:
        """``28% of a core, 34% with its start``: once it ran, and from the start of the process."""
        whole = self.cpu_seconds / self.wall_seconds
        return f"{self.steady:.0%} of a core, {whole:.0%} with its start"

    def per_row(self, rows: int) -> str:
        """``31,000 rows/s, 37.8 us of CPU a row, 512 MiB at most, first row after 6.1 s``."""
        rate = rows / self.wall_seconds if self.wall_seconds else 0.0
        cpu = self.cpu_seconds * 1e6 / rows if rows else 0.0
        return (
            f"{rate:,.0f} rows/s, {cpu:.1f} us of CPU a row, "
            f"{self.peak_bytes / 2**20:,.0f} MiB at most, "
            f"first row after {self.first_seconds:.1f} s"
        )


class Meter:
    """Watches processes, children included: ``with Meter(pid) as meter: ...; meter.cost``.

    CPU time of children that ended in between is counted as far as their parent waited for
    them. Memory is the sum of resident sizes, looked at every ``interval`` seconds.
    """

    def __init__(self, *pids: int, interval: float = 0.2) -> None:
        self._roots = [psutil.Process(pid) for pid in pids]
        self._interval = interval
        self._peak = 0
        self._seen: dict[int, float] = {}
        self._first = 0.0
        self._marks: list[tuple[float, float]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="meter", daemon=True)

    def __enter__(self) -> Meter:
        self._started_at = time.perf_counter()
        self._look()
        self._started_cpu = dict(self._seen)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._look()
        self._wall = time.perf_counter() - self._started_at
        self._stop.set()
        self._thread.join()

    @property
    def cost(self) -> Cost:
        """What was used while the ``with`` block ran."""
        used = sum(self._seen.values()) - sum(self._started_cpu.values())
        steady = 0.0
        if len(self._marks) == 2:
            (began, before), (ended, after) = self._marks
            steady = (after - before) / (ended - began)
        return Cost(self._wall, used, self._peak, self._first, steady)

    def first(self) -> None:
        """The first row is there."""
        self._first = time.perf_counter() - self._started_at

    def steady(self) -> None:
        """What is steady begins here, and ends at the second call."""
        self._look()
        self._marks.append((time.perf_counter(), sum(self._seen.values())))

    def _watch(self) -> None:
        while not self._stop.wait(self._interval):
            self._look()

    def _look(self) -> None:
        resident = 0
        for process in self._family():
            try:
                times = process.cpu_times()
                self._seen[process.pid] = times.user + times.system
                resident += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        self._peak = max(self._peak, resident)

    def _family(self) -> list[psutil.Process]:
        found = []
        for root in self._roots:
            try:
                found += [root, *root.children(recursive=True)]
            except psutil.NoSuchProcess:
                continue
        return found


@contextmanager
def public_ways() -> Iterator[None]:
    """For a block, internals of Spark count as missing; see SHOW SPARK."""
    looked = abilities.survey
    lacking = tuple(each for each in abilities.ABILITIES if not each.function)
    abilities.survey = lambda session: abilities.Survey(session.version, lacking)
    try:
        yield
    finally:
        abilities.survey = looked


def compiled(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without a ban on Python's compiled files: an installed program has them."""
    return {k: v for k, v in environment.items() if k != "PYTHONDONTWRITEBYTECODE"}


def slowest_imports(listing: str, count: int) -> list[tuple[str, float]]:
    """The ``count`` modules whose own code took longest to load, in milliseconds.

    ``listing`` is what ``python -X importtime`` wrote.
    """
    found = []
    for line in listing.splitlines():
        own, _, rest = line.removeprefix("import time:").partition("|")
        if own.strip().isdigit():
            found.append((rest.partition("|")[2].strip(), int(own) / 1000))
    return sorted(found, key=lambda each: -each[1])[:count]

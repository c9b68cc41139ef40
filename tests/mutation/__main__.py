"""Put faults into modules and see which no test notices.

    python -m tests.mutation                       every target, the sample of each
    python -m tests.mutation feeds/lanes --all     one target, every fault

Each fault is tried in a process of its own, which has the changed module in memory: no file is
touched. A fault survives when all tests of its target pass. The last result of each target is in
``results/`` beside this file. ``equal.txt`` lists faults that change nothing anybody can see, each
with the reason.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from types import CodeType, ModuleType

from tests.mutation.operators import Mutant, mutants

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
#: Faults tried of a target without ``--all``; the choice is the same in every run.
SAMPLE = 40
SECONDS = 120.0


@dataclass(frozen=True)
class Target:
    """A module, and the tests that are to notice its faults."""

    module: str
    tests: tuple[str, ...]

    @property
    def path(self) -> Path:
        """Its source."""
        return ROOT / (self.module.replace(".", "/") + ".py")


_FEED_TESTS = (
    "tests/unit/test_jobs_delivery.py",
    "tests/unit/test_jobs_scanning.py",
    "tests/unit/test_feed_life.py",
    "tests/unit/test_sink_session.py",
)
_LOG_TESTS = (
    "tests/unit/test_log_reader.py",
    "tests/unit/test_log_writer.py",
    "tests/properties/test_log_model.py",
)
TARGETS = {
    "feeds/checkpoint": Target("changefeed.feeds.checkpoint", ("tests/unit/test_checkpoint.py",)),
    "feeds/scan_coordinator": Target("changefeed.feeds.scan_coordinator", _FEED_TESTS),
    "feeds/delivery": Target("changefeed.feeds.delivery", _FEED_TESTS),
    "feeds/chunks": Target("changefeed.feeds.chunks", _FEED_TESTS),
    "feeds/lanes": Target("changefeed.feeds.lanes", ("tests/unit/test_engines.py",)),
    "core/engines": Target("changefeed.core.engines", ("tests/unit/test_engines.py",)),
    "core/clock": Target("changefeed.core.clock", ("tests/unit/test_clock.py",)),
    "encoding/select": Target("changefeed.encoding.select", ("tests/properties/test_messages.py",)),
    "log/writer": Target("changefeed.log.writer", _LOG_TESTS),
    "log/cut": Target("changefeed.log.cut", _LOG_TESTS),
}


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives one module its changed code."""

    def __init__(self, module: str, code: CodeType, path: Path) -> None:
        self._module = module
        self._code = code
        self._path = path

    def find_spec(
        self, fullname: str, path: object, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._module:
            return None
        spec = importlib.machinery.ModuleSpec(fullname, self, origin=str(self._path))
        spec.has_location = True
        return spec

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, module.__dict__)


def noticed(target: Target, mutant: Mutant) -> bool:
    """Some test of the target fails with the fault, or takes for ever."""
    child = os.fork()
    if child == 0:
        _run(target, mutant)
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status) != 0
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def _run(target: Target, mutant: Mutant) -> None:
    """In the child: import the changed module, run the tests, end."""
    status = 3
    try:
        with open(os.devnull, "w") as quiet:
            os.dup2(quiet.fileno(), 1)
            os.dup2(quiet.fileno(), 2)
        code = compile(mutant.tree, str(target.path), "exec")
        sys.meta_path.insert(0, _Changed(target.module, code, target.path))
        import pytest

        words = ["-x", "-q", "-n0", "-p", "no:cacheprovider", *target.tests]
        status = int(pytest.main([str(ROOT / w) if w.startswith("tests/") else w for w in words]))
    finally:
        os._exit(status)


def main(words: Sequence[str] | None = None) -> int:
    """Try the faults, print and write what survived; the status says whether any did."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--all", action="store_true", help="every fault, not a sample")
    given = parser.parse_args(words)
    unknown = set(given.targets) - TARGETS.keys()
    if unknown:
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    import pyarrow  # noqa: F401 - loaded once here, not in each child
    import pytest  # noqa: F401
    import sqlalchemy  # noqa: F401

    os.chdir(ROOT)
    equal = dict(line.split("  # ") for line in (HERE / "equal.txt").read_text().splitlines())
    alive = 0
    for name in given.targets or TARGETS:
        target = TARGETS[name]
        found = list(mutants(target.path.read_text()))
        chosen = found
        if not given.all and len(found) > SAMPLE:
            chosen = random.Random(name).sample(found, SAMPLE)
        survivors = []
        for mutant in sorted(chosen, key=lambda m: m.line):
            if not noticed(target, mutant):
                reason = equal.get(f"{name}: {mutant.what}")
                survivors.append(f"  {mutant.what}" + (f"  # {reason}" if reason else ""))
                alive += reason is None
        lines = [
            f"{name}, {date.today()}: {len(chosen)} of {len(found)} faults tried, "
            f"{len(survivors)} survived",
            *survivors,
        ]
        print("\n".join(lines), flush=True)
        result = HERE / "results" / f"{name.replace('/', '_')}.txt"
        result.write_text("\n".join(lines) + "\n")
    return 1 if alive else 0


if __name__ == "__main__":
    raise SystemExit(main())

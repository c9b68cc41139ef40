"""One statement from the command line, ``changefeed -c "SHOW JOBS"``, beside what Python costs.

Each round starts new processes one after another: ``python -c pass``, an interpreter that imports
the packages every statement needs (click, lark, SQLAlchemy with SQLite), and the command on a
state directory of its own. CPU is user and system time of the process; the least of all rounds is
what the work takes, and the median says how busy the machine was. ``--imports N`` also lists the
N modules whose own code took longest to load, as ``python -X importtime`` counts them; that
listing makes everything slower, so it is a run of its own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import compiled, slowest_imports

PACKAGES = "import click, lark, sqlalchemy, sqlalchemy.dialects.sqlite"


@dataclass(frozen=True, slots=True)
class Run:
    """What one process took, in seconds."""

    wall: float
    cpu: float


def run(words: list[str]) -> Run:
    """Run Python with ``words`` to its end.

    Raises:
        SystemExit: the process failed; its messages are on standard error.
    """
    begun = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.DEVNULL, env=compiled(os.environ)
    )
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} ended with status {process.returncode}")
    return Run(wall, used.ru_utime + used.ru_stime)


def listing(words: list[str]) -> str:
    """What ``-X importtime`` says of a run of Python with ``words``."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *words],
        capture_output=True,
        text=True,
        check=True,
        env=compiled(os.environ),
    )
    return done.stderr


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--statement", default="SHOW JOBS")
    parser.add_argument("--imports", type=int, default=0, metavar="N")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = ["-m", "shell", "--state", str(Path(folder) / "state"), "-c", options.statement]
        ways = {
            "python -c pass": ["-c", "pass"],
            "the packages it needs": ["-c", PACKAGES],
            f'changefeed -c "{options.statement}"': command,
        }
        # The first run makes the state and the cache of the grammar: it is not counted.
        run(command)
        runs: dict[str, list[Run]] = {name: [] for name in ways}
        for _ in range(options.rounds):
            for name, words in ways.items():
                runs[name].append(run(words))
        for name, all_of_it in runs.items():
            cpu = [each.cpu for each in all_of_it]
            wall = [each.wall for each in all_of_it]
            print(
                f"{name:34} CPU {min(cpu):.3f} s (median {statistics.median(cpu):.3f}), "
                f"wall {min(wall):.3f} s (median {statistics.median(wall):.3f})"
            )
        if options.imports:
            for module, milliseconds in slowest_imports(listing(command), options.imports):
                print(f"{milliseconds:8.1f} ms  {module}")


if __name__ == "__main__":
    main()

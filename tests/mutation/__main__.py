"""Put faults into modules and see which no test notices.

    python -m tests.mutation                       every target, the sample of each
    python -m tests.mutation feeds/lanes --all     one target, every fault
    python -m tests.mutation feeds/lanes --again   one target, only what survived last time

No file is touched: a fault is in the memory of a process of its own. It survives when all tests of
its target pass. The last result of each target is in ``results/`` beside this file, with a table of
all in its ``README.md``. ``equal.txt`` lists faults that change nothing anybody can see, each with
the reason.
"""

from __future__ import annotations

import argparse
import os
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from tests.mutation.operators import mutants
from tests.mutation.targets import ROOT, TARGETS
from tests.mutation.trial import survivors

HERE = Path(__file__).parent
#: Faults tried of a target without ``--all``; the choice is the same in every run.
SAMPLE = 40


@dataclass(frozen=True)
class Result:
    """What a run saw of one target: its file in ``results/``.

    Attributes:
        day: of the run.
        tried: how many faults, of ``found``.
        alive: the texts of those that survived.
    """

    day: str
    tried: int
    found: int
    alive: tuple[str, ...]

    @classmethod
    def read(cls, name: str) -> Result:
        """The last result of a target.

        Raises:
            SystemExit: there is none.
        """
        if not (path := _path(name)).exists():
            raise SystemExit(f"{name} has no result yet: leave out --again")
        first, *lines = path.read_text().splitlines()
        counts = re.search(r", (\S+): (\d+) of (\d+) faults tried", first)
        assert counts is not None, first
        alive = (line.partition(": ")[2].partition("  # ")[0] for line in lines)
        return cls(counts[1], int(counts[2]), int(counts[3]), tuple(alive))

    def write(self, name: str, told: Sequence[str]) -> None:
        """Put it in the place of the last one, and print it."""
        lines = [
            f"{name}, {self.day}: {self.tried} of {self.found} faults tried, "
            f"{len(self.alive)} survived",
            *told,
        ]
        print("\n".join(lines), flush=True)
        _path(name).write_text("\n".join(lines) + "\n")


def table() -> str:
    """The last result of each target that has one."""
    lines = [
        "# The last results",
        "",
        "Made by `python -m tests.mutation` out of the files beside it, which name what survived.",
        "",
        "| Target | Day | Faults | Tried | Noticed | Equal | Not noticed |",
        "|---|---|---|---|---|---|---|",
    ]
    known = reasons()
    for name in TARGETS:
        if _path(name).exists():
            of = Result.read(name)
            alive = len(of.alive)
            equal = sum(f"{name}: {what}" in known for what in of.alive)
            counts = (of.found, of.tried, of.tried - alive, equal, alive - equal)
            lines.append(f"| {name} | {of.day} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines) + "\n"


def reasons() -> dict[str, str]:
    """Why nobody can see a fault, by target and text."""
    return dict(line.split("  # ") for line in (HERE / "equal.txt").read_text().splitlines())


def _path(name: str) -> Path:
    return HERE / "results" / f"{name.replace('/', '_')}.txt"


def main(words: Sequence[str] | None = None) -> int:
    """Try the faults, print and write what survived; the status says whether any did."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--all", action="store_true", help="every fault, not a sample")
    how.add_argument("--again", action="store_true", help="only the faults that survived last time")
    given = parser.parse_args(words)
    unknown = set(given.targets) - TARGETS.keys()
    if unknown:
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    os.chdir(ROOT)
    equal = reasons()
    unexplained = 0
    for name in given.targets or TARGETS:
        target = TARGETS[name]
        found = list(mutants(target.path.read_text()))
        chosen, tried = found, len(found)
        if given.again:
            # What a test noticed, it notices still, as long as the module and its tests stay.
            last = Result.read(name)
            if last.found != len(found):
                raise SystemExit(f"{name} is another module by now: leave out --again")
            chosen, tried = [m for m in found if m.what in last.alive], last.tried
        elif not given.all and len(found) > SAMPLE:
            chosen, tried = random.Random(name).sample(found, SAMPLE), SAMPLE
        told = []
        alive = survivors(target, sorted(chosen, key=lambda m: m.line))
        for mutant in alive:
            reason = equal.get(f"{name}: {mutant.what}")
            told.append(
                f"  line {mutant.line}: {mutant.what}" + (f"  # {reason}" if reason else "")
            )
            unexplained += reason is None
        texts = tuple(m.what for m in alive)
        Result(str(date.today()), tried, len(found), texts).write(name, told)
        (HERE / "results" / "README.md").write_text(table())
    return 1 if unexplained else 0


if __name__ == "__main__":
    raise SystemExit(main())

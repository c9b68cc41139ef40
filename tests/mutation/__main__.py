"""Put faults into modules and see which no test notices.

    python -m tests.mutation                       every target, the sample of each
    python -m tests.mutation feeds/lanes --all     one target, every fault

No file is touched: a fault is in the memory of a process of its own. It survives when all tests of
its target pass. The last result of each target is in ``results/`` beside this file. ``equal.txt``
lists faults that change nothing anybody can see, each with the reason.
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from tests.mutation.operators import mutants
from tests.mutation.targets import ROOT, TARGETS
from tests.mutation.trial import survivors

HERE = Path(__file__).parent
#: Faults tried of a target without ``--all``; the choice is the same in every run.
SAMPLE = 40


def main(words: Sequence[str] | None = None) -> int:
    """Try the faults, print and write what survived; the status says whether any did."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--all", action="store_true", help="every fault, not a sample")
    given = parser.parse_args(words)
    unknown = set(given.targets) - TARGETS.keys()
    if unknown:
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    os.chdir(ROOT)
    equal = dict(line.split("  # ") for line in (HERE / "equal.txt").read_text().splitlines())
    alive = 0
    for name in given.targets or TARGETS:
        target = TARGETS[name]
        found = list(mutants(target.path.read_text()))
        chosen = found
        if not given.all and len(found) > SAMPLE:
            chosen = random.Random(name).sample(found, SAMPLE)
        chosen = sorted(chosen, key=lambda m: m.line)
        told = []
        for mutant in survivors(target, chosen):
            reason = equal.get(f"{name}: {mutant.what}")
            told.append(
                f"  line {mutant.line}: {mutant.what}" + (f"  # {reason}" if reason else "")
            )
            alive += reason is None
        lines = [
            f"{name}, {date.today()}: {len(chosen)} of {len(found)} faults tried, "
            f"{len(told)} survived",
            *told,
        ]
        print("\n".join(lines), flush=True)
        result = HERE / "results" / f"{name.replace('/', '_')}.txt"
        result.write_text("\n".join(lines) + "\n")
    return 1 if alive else 0


if __name__ == "__main__":
    raise SystemExit(main())

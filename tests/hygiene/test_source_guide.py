"""docs/source-guide.md names cases of the conformance list, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from changefeed_testing.sources.conformance import CASES

GUIDE = (Path(__file__).parents[2] / "docs" / "source-guide.md").read_text("utf-8")


def test_the_cases_of_the_guide_exist() -> None:
    contract = GUIDE.partition("## The contract")[2].partition("## Names and ids")[0]
    named = {
        name
        for sentence in re.findall(r"Cases? (`[^.]*)\.", contract)
        for name in re.findall(r"`(\w+)`", sentence)
    }
    assert len(named) > 15
    assert named <= {case.name for case in CASES}

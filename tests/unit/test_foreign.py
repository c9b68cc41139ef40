"""What other products write has a sentence with our spelling."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from changefeed.core.errors import ChangefeedError, Code
from changefeed.options import OPTIONS
from changefeed.sources.registry import open_source
from changefeed.sources.registry import schemes as source_schemes
from grammar import foreign
from grammar.parser import parse
from grammar.problems import SyntaxProblem
from sinks.registry import check as check_sink_uri
from sinks.registry import schemes as sink_schemes

DOCS = Path(__file__).parents[2] / "docs"
SCHEMES = ["cloudstorage", "gcpubsub", "nodelocal", "pulsar"]


def _options_of(page: str) -> set[str]:
    """Names like ``a.b`` at the begin of code in the first column of the tables of settings."""
    text = (DOCS / page).read_text("utf-8")
    rows = "".join(
        re.findall(r"(?m)^\| (?:setting|property|Kafka Connect) \|.*\n(?:\|.*\n)+", text)
    )
    cells = [row.split("|")[1] for row in rows.splitlines()]
    found = (re.findall(r"`([a-z]\w*(?:\.\w+)+)`", cell) for cell in cells)
    return {name for names in found for name in names}


def test_every_setting_in_the_guides_that_does_not_exist_here_has_a_hint() -> None:
    cockroach = (DOCS / "from-cockroachdb.md").read_text("utf-8")
    (missing,) = re.findall(r"<!-- options: missing -->\n(.*?)<!-- end -->", cockroach, re.DOTALL)
    names = {
        *_options_of("from-debezium.md"),
        *_options_of("from-kafka-connect.md"),
        *re.findall(r"`(\w+)`", missing),
    }
    assert len(names) > 35
    assert [name for name in sorted(names) if foreign.option(name) is None] == []


def test_no_option_of_ours_is_foreign() -> None:
    assert [name for name in OPTIONS if foreign.option(name)] == []
    ours = [*source_schemes(), *sink_schemes()]
    assert [scheme for scheme in ours if foreign.scheme(scheme)] == []


@pytest.mark.parametrize(
    ("statement", "word", "said"),
    [
        ("COMMENT ON CHANGEFEED f IS 'x'", "COMMENT", "no comments"),
        ("ALTER CHANGEFEED f COMMENT 'x'", "COMMENT", "no comments"),
        ("SHOW LINEAGE", "LINEAGE", "SHOW CHANGEFEED name LINEAGE"),
        ("CREATE SLO fresh", "SLO", "slo = '99% within 5m'"),
        ("SHOW JOBS WITH late AS (SHOW JOBS) SELECT * FROM late", "WITH", "write the condition"),
        ("SHOW CHANGEFEED JOBS WITH full_table_names", "WITH", "always listed"),
    ],
)
def test_a_statement_that_does_not_exist_has_a_hint(statement: str, word: str, said: str) -> None:
    with pytest.raises(SyntaxProblem) as caught:
        parse(statement)
    assert said in caught.value.hint
    assert statement[caught.value.span.start :].startswith(word)


def test_goals_and_comments_are_no_options() -> None:
    assert "slo = '99% within 5m'" in (foreign.option("max_lag") or "")
    assert "comments" in (foreign.option("comment") or "")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_scheme_of_another_product_has_a_hint(scheme: str) -> None:
    hint = foreign.scheme(scheme)
    assert hint
    assert [problem.hint for problem in check_sink_uri(f"{scheme}://place/folder")] == [hint]
    with pytest.raises(ChangefeedError) as caught:
        open_source("c", f"{scheme}://place/folder")
    assert (caught.value.code, caught.value.hint) == (Code.INVALID_URI, hint)

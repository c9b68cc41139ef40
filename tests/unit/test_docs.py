"""The guides say what is so: options, sinks, statuses and metrics that they name."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from changefeed.app import Application
from changefeed.monitor import StateCollector
from changefeed.options import OPTIONS
from changefeed.statements.health import STATUSES
from sinks.registry import BUILT_IN
from tests.docs.blocks import pages

DOCS = Path(__file__).parents[2] / "docs"
_spec = importlib.util.spec_from_file_location("site_hooks", DOCS / "site_hooks.py")
assert _spec is not None and _spec.loader is not None
site_hooks = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(site_hooks)

GUIDES = sorted(
    [
        *DOCS.glob("from-*.md"),
        DOCS / "operating.md",
        DOCS / "messages.md",
        DOCS.parent / "README.md",
    ]
)


def _listed(page: str, which: str) -> set[str]:
    (block,) = re.findall(rf"<!-- options: {which} -->\n(.*?)<!-- end -->", page, re.DOTALL)
    return set(re.findall(r"`(\w+)`", block))


def test_the_guide_for_cockroachdb_lists_options_that_exist_and_that_do_not() -> None:
    page = (DOCS / "from-cockroachdb.md").read_text("utf-8")
    here, missing = _listed(page, "here"), _listed(page, "missing")
    assert len(here) > 20 and len(missing) > 5
    assert here - set(OPTIONS) == set()
    assert missing & set(OPTIONS) == set()


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_options_that_are_given_a_value_exist(page: Path) -> None:
    given = re.findall(r"`(?:[^`\n]*, )?(\w+) = '[^`\n]*`", page.read_text("utf-8"))
    assert [name for name in given if name not in OPTIONS and name != "sink"] == []


def _tables(page: str) -> Iterator[list[str]]:
    """The lines of each table, with those that stand right behind it."""
    prose = re.sub(r"^ *```.*?^ *```", "", page, flags=re.DOTALL | re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n", prose):
        lines = [line.strip() for line in paragraph.splitlines()]
        begins = next((n for n, line in enumerate(lines) if line.startswith("|")), None)
        if begins is not None:
            yield lines[begins:]


@pytest.mark.parametrize("page", pages())
def test_tables_are_whole(page: str) -> None:
    """A line that is no row, or has other columns, ends or breaks a table where it is shown."""
    for header, rule, *rows in _tables((DOCS.parent / page).read_text("utf-8")):
        assert re.fullmatch(r"\|(?: *:?-+:? *\|)+", rule), header
        columns = len(re.findall(r"(?<!\\)\|", header))
        for row in (rule, *(row for row in rows if not row.startswith("<!--"))):
            assert row.startswith("|"), row
            assert len(re.findall(r"(?<!\\)\|", row)) == columns, row


@pytest.mark.parametrize("page", pages())
def test_prose_is_at_most_120_columns_wide(page: str) -> None:
    text = (DOCS.parent / page).read_text("utf-8")
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    rows = ("|", "#", "<", "[", "!")
    lines = [line for line in prose.splitlines() if not line.lstrip().startswith(rows)]
    # A link or a word that is longer cannot be broken.
    assert [line for line in lines if len(line) > 120 and " " in line.strip("-* ")] == []


def test_the_readme_names_sinks_that_exist() -> None:
    readme = (DOCS.parent / "README.md").read_text("utf-8")
    table = readme.partition("| sink | |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`([a-z0-9-]+):///?`", table))
    assert named - set(BUILT_IN) == set()
    assert {"kafka", "elasticsearch", "delta", "bigquery"} <= named


@pytest.mark.parametrize("scheme", sorted(name for name, sink in BUILT_IN.items() if sink.extra))
def test_a_sink_that_needs_an_extra_has_it_on_its_page(scheme: str) -> None:
    install = f"pip install 'changefeed[{BUILT_IN[scheme].extra}]'"
    found = [
        page.name
        for page in DOCS.glob("sink-*.md")
        if scheme in (text := page.read_text("utf-8")) and install in text
    ]
    assert found != []


def test_the_page_on_operating_has_every_status() -> None:
    page = (DOCS / "operating.md").read_text("utf-8")
    table = page.partition("## What a status means")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(STATUSES)


def test_the_page_on_operating_has_every_metric(tmp_path: Path) -> None:
    page = (DOCS / "operating.md").read_text("utf-8")
    table = page.partition("## Metrics")[2]
    listed = {name.removesuffix("_total") for name in re.findall(r"`(changefeed_\w+)", table)}
    with Application(str(tmp_path / "state")) as application:
        served = {metric.name for metric in StateCollector(application.interpreter).collect()}
    assert {name.removesuffix("_bucket") for name in listed} == served


def test_the_site_has_every_page_once() -> None:
    nav = re.findall(r": (\S+\.md)$", (DOCS.parent / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    assert sorted(nav) == sorted(
        ["index.md", *(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))]
    )


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=DOCS.parent, capture_output=True, text=True, timeout=120)
    assert built.returncode == 0, built.stderr
    pages = {page.relative_to(tmp_path).as_posix() for page in tmp_path.rglob("index.html")}
    assert {"index.html", "language/index.html", "decisions/log-files/index.html"} <= pages


def test_the_index_of_decisions_has_each_of_them() -> None:
    index = (DOCS / "decisions.md").read_text("utf-8")
    pages = {f"decisions/{page.name}": page for page in (DOCS / "decisions").glob("*.md")}
    assert set(re.findall(r"\]\((decisions/[^)]+)\)", index)) == set(pages)
    for page in pages.values():
        headings = re.findall(r"^## (.*)$", page.read_text("utf-8"), re.MULTILINE)
        assert headings == ["Context", "Measured", "Decision"], page.name


def test_the_home_of_the_site_is_the_readme_with_links_that_stay_inside() -> None:
    home = site_hooks.home((DOCS.parent / "README.md").read_text("utf-8"))
    targets = [t for t in re.findall(r"\]\(([^)\s]+)\)", home) if not re.match(r"[a-z]+:", t)]
    assert len(targets) > 20
    assert [t for t in targets if not (DOCS / t.partition("#")[0]).is_file()] == []
    assert site_hooks.inside("see [a](../a.py), [b](b.md)") == "see a, [b](b.md)"

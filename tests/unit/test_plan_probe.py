"""VALIDATE's look at a target, through the sinks themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from changefeed.catalog import Catalog
from changefeed.core.schema import TableName
from changefeed.options import Options, to_span
from changefeed.plan.sink_resolution import find_sink, probe_of
from grammar import nodes
from sinks.base import Target

TARGETS = (Target(TableName("shop", "public", "t"), "t"),)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    catalog = Catalog.open(tmp_path / "state")
    yield catalog
    catalog.close()


def codes(catalog: Catalog, uri: str | None) -> list[str]:
    sink = find_sink(catalog, uri, None)
    problems, _ = probe_of(catalog)(sink, Options.from_dict({}), TARGETS)
    return [problem.code.number for problem in problems]


@pytest.mark.parametrize(
    "uri",
    [
        "kafka://127.0.0.1:1",
        "elasticsearch://127.0.0.1:1/",
        "experimental-sql:///postgresql://u@127.0.0.1:1/d?connect_timeout=2",
    ],
)
def test_a_target_that_does_not_answer(
    catalog: Catalog, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sinks.kafka.topics.REQUEST_SECONDS", 1.0)
    assert codes(catalog, uri) == ["CF5001"]


def test_what_there_is_nothing_to_ask_of(catalog: Catalog, tmp_path: Path) -> None:
    assert codes(catalog, None) == []
    assert codes(catalog, "null://") == []
    assert codes(catalog, f"experimental-sql:///sqlite:///{tmp_path}/m.db") == []
    assert codes(catalog, "kafka://127.0.0.1:1?nothing=1") == [], "its URI is told without it"
    assert not (tmp_path / "m.db").exists()


def test_the_problem_points_at_the_uri(catalog: Catalog) -> None:
    span = to_span(nodes.Span(5, 9))
    sink = find_sink(catalog, "elasticsearch://127.0.0.1:1/", span)
    (problem,), _ = probe_of(catalog)(sink, Options.from_dict({}), ())
    assert problem.span == span


def test_what_a_sink_does_not_look_at_is_said(catalog: Catalog, tmp_path: Path) -> None:
    def overlooked(uri: str) -> list[str]:
        sink = find_sink(catalog, uri, None)
        problems, words = probe_of(catalog)(sink, Options.from_dict({}), TARGETS)
        assert problems == []
        return words

    (word,) = overlooked("delta:///gs://bucket/lake?fs.gs.auth.key=pa55word")
    assert word.startswith("gs://bucket/lake was not looked at")
    assert "pa55" not in word
    assert overlooked(f"delta://{tmp_path}/lake") == overlooked("null://") == []

"""A sink of another package is as good as ours: statements about one that an entry point brings."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from pathlib import Path

import pytest

from changefeed.core.errors import ChangefeedError, Problems
from changefeed.plan.sink_resolution import job_options
from sinks import registry
from tests.golden.world import World
from tests.helpers.foreign_sink import GREETING, PASSWORD

_URI = "shelf://host?shelf_token=s3cret&size=3"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    point = importlib.metadata.EntryPoint(
        "shelf", "tests.helpers.foreign_sink:ForeignSink", "changefeed.sinks"
    )
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point])
    registry._plugins.cache_clear()
    world = World(tmp_path)
    world.shop()
    yield world
    world.close()
    registry._plugins.cache_clear()


def test_it_takes_options_by_feature_and_its_own(world: World) -> None:
    world.run(
        f"CREATE CHANGEFEED f FOR shop.public.orders INTO '{_URI}' WITH history = 'append', "
        "on_drop = 'drop', greeting = 'hi', door_password = 'hunter2'"
    )
    _, options = job_options(world.catalog, world.catalog.job("f"))
    assert (options["history"], options[GREETING], options[PASSWORD]) == ("append", "hi", "hunter2")
    world.run("ALTER CHANGEFEED f SET greeting = 'hey' UNSET door_password")
    _, options = job_options(world.catalog, world.catalog.job("f"))
    assert (options[GREETING], options[PASSWORD]) == ("hey", "")


def test_nothing_shows_its_secrets(world: World) -> None:
    world.run(
        f"CREATE CHANGEFEED f FOR shop.public.orders INTO '{_URI}' WITH door_password = 'hunter2'"
    )
    for text in ("SHOW CREATE CHANGEFEED f", "SHOW CHANGEFEED f", "SHOW JOBS", "SHOW CHANGEFEEDS"):
        shown = str(world.run(text).rows)
        assert "shelf" in shown or text == "SHOW JOBS"
        assert "s3cret" not in shown and "hunter2" not in shown
    shown = str(world.run("SHOW CREATE CHANGEFEED f").rows)
    assert "door_password = 'redacted'" in shown and "shelf_token=redacted" in shown


@pytest.mark.parametrize(
    ("uri", "option", "message", "hint"),
    [
        (
            "shelf://h?siz=3",
            "diff",
            "unknown shelf sink query",
            'for "siz"? it takes shelf_token, size',
        ),
        ("shelf://h?size=big", "diff", "param size must be an integer", ""),
        ("shelf://h", "optimize = '1h'", "incompatible with option optimize", "delta, iceberg"),
        ("shelf://h", "greting = 'x'", 'invalid option "greting"', 'did you mean "greeting"?'),
        ("kafka://h:1", "greeting = 'x'", 'invalid option "greeting"', ""),
        ("kafka://h:1", "history = 'scd2'", "incompatible with option history", "shelf"),
    ],
)
def test_what_is_wrong_is_said_as_of_ours(
    world: World, uri: str, option: str, message: str, hint: str
) -> None:
    with pytest.raises(ChangefeedError) as caught:
        world.run(f"CREATE CHANGEFEED f FOR shop.public.orders INTO '{uri}' WITH {option}")
    error = caught.value
    problems = error.problems if isinstance(error, Problems) else [error]
    assert any(message in one.message and hint in one.hint for one in problems), problems

"""How the command line, the site and our own defaults decide on Spark's properties."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.spark.properties import (
    choose_properties,
    default_heap,
    launch_properties,
    our_properties,
    site_defaults,
)
from changefeed.spark.settings import SparkSettings, parse_property


def test_a_property_is_written_as_for_spark_submit() -> None:
    assert parse_property("spark.driver.extraJavaOptions=-Da=b") == (
        "spark.driver.extraJavaOptions",
        "-Da=b",
    )


@pytest.mark.parametrize("text", ["spark.ui.enabled", "driver.host=x", "=x", ""])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ChangefeedError, match="invalid Spark property") as caught:
        parse_property(text)
    assert caught.value.code.number == "CF1204"


def test_flags_of_the_subcommand_win_over_those_before_it() -> None:
    before = SparkSettings("local[1]", "1g", (("spark.a", "1"), ("spark.b", "1")))
    after = SparkSettings(None, "2g", (("spark.b", "2"),))
    assert after.over(before) == SparkSettings(
        "local[1]", "2g", (("spark.a", "1"), ("spark.b", "2"))
    )
    assert after.over(SparkSettings(least_job_rows=5)).least_job_rows == 5


def test_a_person_wins_over_the_site_and_the_site_over_our_defaults() -> None:
    ours = {"spark.ui.enabled": "false", "spark.scheduler.mode": "FAIR", "spark.x": "ours"}
    site = {"spark.ui.enabled": "true", "spark.x": "site", "spark.y": "site"}
    assert choose_properties(ours, site, {"spark.x": "person"}) == {
        "spark.ui.enabled": "true",
        "spark.scheduler.mode": "FAIR",
        "spark.x": "person",
        "spark.y": "site",
    }


def test_the_site_wins_over_our_defaults_before_spark_starts_too(tmp_path: Path) -> None:
    """Spark's launcher takes what is on its command line before the site's file."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(
        "# of the site\n\nspark.driver.memory   3g \nspark.jars=/a.jar,/b.jar\n"
        'spark.driver.extraJavaOptions: -Dx="a b"\n#spark.master x\n'
    )
    site = site_defaults(Path("/nowhere"), {"SPARK_HOME": str(tmp_path)})
    assert site == {
        "spark.driver.memory": "3g",
        "spark.jars": "/a.jar,/b.jar",
        "spark.driver.extraJavaOptions": '-Dx="a b"',
    }
    assert site_defaults(tmp_path, {}) == site
    assert site_defaults(tmp_path, {"SPARK_CONF_DIR": str(tmp_path / "none")}) == {}
    assert launch_properties(None, site, {}, [Path("/ours.jar")]) == {
        "spark.driver.memory": "3g",
        "spark.jars": "/a.jar,/b.jar,file:///ours.jar",
    }
    person = {"spark.jars": "/c.jar", "spark.x": "1"}
    assert launch_properties("2g", site, person, []) == {**person, "spark.driver.memory": "2g"}
    assert launch_properties(None, {}, {}, []) == {"spark.driver.memory": default_heap()}


def test_what_results_depend_on_stays_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    zone = "spark.sql.session.timeZone"
    with caplog.at_level(logging.WARNING):
        assert choose_properties({zone: "UTC"}, {}, {zone: "Asia/Tokyo"}) == {zone: "UTC"}
        ansi = our_properties("local[1]", 1, Path("/nowhere"))["spark.sql.ansi.enabled"]
    assert zone in caplog.text and ansi == "true"

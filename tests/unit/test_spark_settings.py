"""How the command line, the site and our own defaults decide on Spark's properties."""

from __future__ import annotations

import logging

import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.spark.properties import choose_properties
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


def test_what_results_depend_on_stays_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    zone = "spark.sql.session.timeZone"
    with caplog.at_level(logging.WARNING):
        assert choose_properties({zone: "UTC"}, {}, {zone: "Asia/Tokyo"}) == {zone: "UTC"}
    assert zone in caplog.text

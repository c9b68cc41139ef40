"""What a session allows of changefeed's fast ways is found without a job and said in a sentence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from changefeed.spark.internals.abilities import (
    ABILITIES,
    ARROW_FUNCTIONS,
    CANCEL,
    DELTA_ROUND,
    look,
)
from changefeed.spark.session import NodeSpark

pytestmark = pytest.mark.spark


def test_the_pinned_spark_has_all(spark_engine: NodeSpark) -> None:
    with spark_engine.use(packs=("delta",)) as session:
        assert look(session).missing == () and look(session).sentence == ""
    found = spark_engine.report()
    assert (found.status, found.version) == ("running", session.version)
    assert found.fast == tuple(ability.name for ability in ABILITIES) and not found.instead


@pytest.mark.parametrize(
    ("parts", "jar", "missing"),
    [
        ({"org.apache.spark.SparkContext": ("cancelJobGroup/1",)}, "", False),
        ({"org.apache.spark.SparkContext": ("cancelJobGroup/7",)}, "", True),
        ({"org.apache.spark.NoSuchContext": ()}, "", True),
        ({"org.apache.spark.NoSuchContext": ()}, "org.example.NoSuchJar", False),
    ],
)
def test_a_class_or_a_method_is_missing(
    spark_engine: NodeSpark, parts: dict[str, tuple[str, ...]], jar: str, missing: bool
) -> None:
    ability = replace(CANCEL, parts=parts, jar=jar, without="a job ends late")
    found = look(spark_engine.session(), [ability])
    assert found.missing == ((ability,) if missing else ())
    assert ("a job ends late" in found.sentence) is missing


def test_a_session_that_keeps_its_jvm_to_itself(
    spark_engine: NodeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = spark_engine.session()

    def refuse(self: Any) -> None:
        raise AttributeError("private")

    monkeypatch.setattr(SparkSession, "_jvm", property(refuse), raising=False)
    found = look(session)
    assert set(ABILITIES) - set(found.missing) == {ARROW_FUNCTIONS}
    assert DELTA_ROUND.without in found.sentence and session.version in found.sentence

"""What SHOW CHANGEFEED f JOBS reads of Spark: names, counts, nothing of other jobs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.spark_jobs import JobName
from changefeed.spark.internals import jobs
from changefeed.spark.internals.sessions import named
from changefeed.spark.session import NodeSpark
from tests.helpers.waiting import until

pytestmark = pytest.mark.spark

FEED = 4711
SCAN = JobName("a, b", FEED, "scan 1", "public.t", "s")
GROUP, DESCRIPTION, TAGS = "spark.jobGroup.id", "spark.job.description", "spark.job.tags"


def test_jobs_have_the_name_of_their_work_and_the_group_that_cancels_them(
    spark_engine: NodeSpark, tmp_path: Path
) -> None:
    query = JobName("a, b", FEED, "query", "public.t", "s")
    with spark_engine.use(SCAN) as session:
        context = session.sparkContext
        assert context.getLocalProperty(GROUP) == "changefeed a, b scan 1"
        assert context.getLocalProperty(DESCRIPTION) == "changefeed a, b public.t scan 1"
        session.range(500, numPartitions=2).write.parquet(str(tmp_path / "out"))
        with named(session, query):
            assert context.getLocalProperty(GROUP) == SCAN.group, "cancelled with the scan"
            assert context.getLocalProperty(DESCRIPTION) == query.text
            with pytest.raises(Exception, match="s3cret"):
                session.sql("SELECT raise_error('s3cret') FROM range(1)").collect()
        assert context.getLocalProperty(TAGS) == SCAN.tag
    with (
        spark_engine.use("something else") as session,
        named(session, replace(SCAN, state="another")),
    ):
        session.range(1).collect()

    def ended() -> bool:
        return [job.status for job in spark_engine.jobs_of("s", FEED).jobs] == [
            "failed",
            "succeeded",
        ]

    until(ended, "both jobs have ended")
    failed, written = spark_engine.jobs_of("s", FEED).jobs
    assert (failed.step, written.step, written.table) == ("query", "scan 1", "public.t")
    assert (written.tasks, written.done, written.failed) == (2, 2, 0)
    assert failed.failed >= 1 and failed.ended is not None and failed.ended >= failed.started
    assert (written.read_rows, written.written_rows) == (500, 500) and written.written_bytes > 500
    assert "s3cret" not in repr(failed)


def test_a_spark_that_keeps_its_jobs_to_itself(
    spark_engine: NodeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Any) -> None:
        raise AttributeError("private")

    spark_engine.session()
    for owner, name, value in (
        (jobs, "allows", lambda session, ability: False),
        (SparkSession, "_jvm", property(refuse)),
        (SparkSession, "sparkContext", property(refuse)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value, raising=False)
            with pytest.raises(ChangefeedError, match=r"see its jobs|Spark Connect") as caught:
                spark_engine.jobs_of("s", FEED)
        assert caught.value.code is Code.SPARK_NOT_AVAILABLE and caught.value.hint


def test_a_spark_that_was_not_started_is_not_started(tmp_path: Path) -> None:
    spark = NodeSpark(scratch=tmp_path)
    found = spark.jobs_of("s", FEED)
    assert not found.jobs and "not started" in found.idle
    assert spark.starts == 0

"""The jobs that Spark's own UI would show, from the store that it reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.spark_jobs import JobName, SparkJob, job_of_tag
from changefeed.spark.internals.abilities import (
    JOBS,
    MissingPart,
    allows,
    java_object,
    jvm_of,
)
from changefeed.spark.internals.sessions import require_classic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def jobs_of(session: SparkSession, state: str, feed: int) -> list[SparkJob]:
    """The jobs of a state's feed that run, and those that have ended and are kept; newest first.

    Raises:
        ChangefeedError: CF4003, this Spark does not let see its jobs.
    """
    require_classic(session, "SHOW CHANGEFEED f JOBS")
    try:
        store = _Store(session)
    except MissingPart as failure:
        raise ChangefeedError(
            Code.SPARK_NOT_AVAILABLE,
            "this Spark does not let programs see its jobs",
            hint=f"its UI shows them; their tags begin with changefeed/{state}/{feed}/.",
        ) from failure
    found = [
        _shown(job, name, store)
        for job, name in store.named()
        if (name.state, name.job_id) == (state, feed)
    ]
    return sorted(found, key=lambda job: job.id, reverse=True)


class _Store:
    def __init__(self, session: SparkSession) -> None:
        if not allows(session, JOBS):
            raise MissingPart("the store of Spark's UI cannot be reached")
        jvm = jvm_of(session)
        context: Any = session.sparkContext
        self._store = context._jsc.sc().statusStore()
        # One call for all that a job has, instead of one for each member.
        scala = java_object(jvm.com.fasterxml.jackson.module.scala, "DefaultScalaModule")
        self._mapper = jvm.com.fasterxml.jackson.databind.ObjectMapper().registerModule(scala)

    def _read(self, kept: Any) -> Any:
        return json.loads(self._mapper.writeValueAsString(kept))

    def named(self) -> Iterator[tuple[dict[str, Any], JobName]]:
        """The jobs that have a name of ours."""
        for job in self._read(self._store.jobsList(None)):
            for name in filter(None, map(job_of_tag, job["jobTags"])):
                yield job, name

    def stage(self, number: int) -> Mapping[str, Any]:
        """The last attempt of a stage; nothing if it is no longer kept."""
        from py4j.protocol import Py4JJavaError

        try:
            found: dict[str, Any] = self._read(self._store.lastStageAttempt(number))
        except Py4JJavaError:
            return {}
        return found


def _shown(job: Mapping[str, Any], name: JobName, store: _Store) -> SparkJob:
    stages = [store.stage(number) for number in job["stageIds"]]

    def counted(member: str) -> int:
        return sum(stage.get(member, 0) for stage in stages)

    return SparkJob(
        id=job["jobId"],
        table=name.table,
        step=name.step,
        status=job["status"].lower(),
        tasks=job["numTasks"] - job["numSkippedTasks"],
        done=job["numCompletedTasks"],
        failed=job["numFailedTasks"],
        started=_ns(job["submissionTime"]) or 0,
        ended=_ns(job["completionTime"]),
        read_rows=counted("inputRecords"),
        read_bytes=counted("inputBytes"),
        written_rows=counted("outputRecords"),
        written_bytes=counted("outputBytes"),
    )


def _ns(milliseconds: int | None) -> int | None:
    return None if milliseconds is None else milliseconds * 1_000_000

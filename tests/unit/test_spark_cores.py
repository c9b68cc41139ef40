"""How many tasks a Spark runs at once is looked up each time, since executors come and go."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from pyspark.sql import SparkSession

from changefeed.spark.attached import AttachedSession
from changefeed.spark.internals.sessions import core_count
from changefeed.spark.jvm_session import JvmSession, SessionSpec
from changefeed.spark.properties import our_properties


class Context:
    """A SparkContext, of whose executors some are there."""

    defaultParallelism = 2


class Session:
    """A classic session with settings."""

    def __init__(self, **settings: str) -> None:
        self.sparkContext = Context()
        self.settings = {f"spark.{name.replace('_', '.')}": v for name, v in settings.items()}
        self.conf = self

    def get(self, name: str, usual: str) -> str:
        return self.settings.get(name, usual)


def cores(session: Session) -> int:
    return core_count(cast(SparkSession, session))


def test_executors_that_dynamic_allocation_may_add_count() -> None:
    limit = {"dynamicAllocation_maxExecutors": "25", "executor_cores": "4"}
    assert cores(Session(**limit)) == 2
    assert cores(Session(**limit, dynamicAllocation_enabled="true")) == 100
    assert cores(Session(**limit, dynamicAllocation_enabled="true", task_cpus="2")) == 50
    assert cores(Session(dynamicAllocation_enabled="true", executor_cores="4")) == 2


def test_a_session_says_how_many_there_are_now(tmp_path: Path) -> None:
    spec = SessionSpec("spark://m:7077", 1, None, {}, {}, (), frozenset(), None, tmp_path)
    for life in (JvmSession(spec), AttachedSession(lambda: cast(Any, None), tmp_path)):
        session = Session()
        life.session.set_result(cast(SparkSession, session))
        assert life.cores == 2
        session.sparkContext.defaultParallelism = 40
        assert life.cores == 40


def test_shuffles_follow_this_machine_only_if_it_runs_them(tmp_path: Path) -> None:
    name = "spark.sql.shuffle.partitions"
    assert our_properties("local[3]", 3, tmp_path)[name] == "3"
    assert name not in our_properties("spark://m:7077", 3, tmp_path)

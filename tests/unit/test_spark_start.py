"""Who waits for Spark gets a session, however often it starts meanwhile; nobody prints values."""

from __future__ import annotations

import socket
import subprocess
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from changefeed.core.errors import ChangefeedError, Code
from changefeed.spark import session as spark_session
from changefeed.spark.internals.starting import quiet_py4j
from changefeed.spark.jvm import Jvm
from changefeed.spark.jvm_session import JvmSession, SessionSpec, check_master
from changefeed.spark.session import NodeSpark
from changefeed.spark.settings import SparkSettings


class Life:
    """A JVM that starts until another one takes its place, or fails."""

    fails = False
    made: list[Life]

    def __init__(self, spec: object, lost: object = None) -> None:
        self.session: Future[Any] = Future()
        self.packs: frozenset[str] = frozenset()
        self.begun = threading.Event()
        self.made.append(self)

    @property
    def over(self) -> bool:
        return self.session.done() and self.session.exception() is not None

    def begin(self, after: Life | None) -> None:
        if after is not None:
            after.session.set_exception(ChangefeedError(Code.SPARK_FAILED, "the JVM ended"))
            self.session.set_result("second")
        elif self.fails:
            self.session.set_exception(ChangefeedError(Code.SPARK_FAILED, "no master"))
        self.begun.set()


@pytest.fixture
def lives(monkeypatch: pytest.MonkeyPatch) -> list[Life]:
    monkeypatch.setattr(Life, "made", [], raising=False)
    monkeypatch.setattr(spark_session, "JvmSession", Life)
    return Life.made


def test_a_restart_for_packs_is_waited_for(lives: list[Life]) -> None:
    """A statement that came first failed with CF4002, although another session was starting."""
    spark = NodeSpark.of(SparkSettings())
    found: list[object] = []
    waiting = threading.Thread(target=lambda: found.append(spark.session()))
    waiting.start()
    while not (lives and lives[0].begun.is_set()):
        threading.Event().wait(0.001)
    spark._packs = frozenset({"delta"})
    spark._with_packs()
    waiting.join(10)
    assert found == ["second"] and len(lives) == 2


def test_a_start_that_fails_is_told(lives: list[Life], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Life, "fails", True)
    with pytest.raises(ChangefeedError, match="no master"):
        NodeSpark.of(SparkSettings()).session()
    assert len(lives) == 1


def test_a_master_that_does_not_answer_is_told_at_once() -> None:
    """Spark tries for 60 s."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for master in (f"spark://127.0.0.1:1,127.0.0.1:{port}", "yarn", "spark://nonsense"):
            check_master(master)
    with pytest.raises(ChangefeedError, match=f"spark://127.0.0.1:{port}: Connection refused") as e:
        check_master(f"spark://127.0.0.1:{port}")
    assert (e.value.code.number, e.value.action) == ("CF4002", "retry")
    assert "reaches it" in e.value.hint


def test_pyspark_prints_no_failure_of_a_query(capfd: pytest.CaptureFixture[str]) -> None:
    """It quotes values of rows there."""
    from pyspark.logger import PySparkLogger

    quiet_py4j()
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).error("The value 'abc' cannot be cast")
    assert "abc" not in capfd.readouterr().err


def test_a_jvm_that_ends_by_itself_is_missed(caplog: pytest.LogCaptureFixture) -> None:
    """One that was ended is not."""
    found: list[ChangefeedError] = []
    spec = SessionSpec("local[1]", 1, None, {}, {}, (), frozenset(), None, None)
    for ended in (True, False):
        life = JvmSession(spec, found.append)
        process = subprocess.Popen(["sleep", "60"], stdin=subprocess.PIPE)
        life.jvm = Jvm(process)
        life._ending = ended
        process.kill()
        life._watch()
        life.jvm.close_stdin()
    assert [error.message for error in found] == ["Spark's JVM ended (killed by signal 9)"]
    assert [record.getMessage() for record in caplog.records] == [
        "CF4002 Spark's JVM ended (killed by signal 9)"
    ]
    spark = NodeSpark()
    spark._lose(found[0])
    assert spark.lost is found[0] and not spark.ready
    spark.close()


def test_what_spark_is_before_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = NodeSpark(master="local[3]")
    found = spark.report()
    assert (found.master, found.cores, found.version) == ("local[3]", 3, "")
    assert found.status == "not started: it starts with the first feed that needs it"
    spark._lose(ChangefeedError(Code.SPARK_FAILED, "Spark's JVM ended (signal 9)"))
    assert spark.report().status == "not running: Spark's JVM ended (signal 9)"

    def none() -> None:
        raise ChangefeedError(Code.SPARK_NOT_AVAILABLE, "no Java was found")

    monkeypatch.setattr(spark_session, "spark_jars", none)
    assert NodeSpark(master="local[3]").report().status == "not available: no Java was found"


def test_tries_to_find_a_session_leave_no_folders(tmp_path: Path) -> None:
    """A feed tries again as long as the server of its Spark is away."""

    def find() -> Any:
        raise ConnectionError("no server")

    with NodeSpark(attached=find, scratch=tmp_path) as spark:
        for _ in range(3):
            with pytest.raises(ChangefeedError, match="cannot be used: ConnectionError"):
                spark.session()
        assert spark.starts >= 3
        assert len(list(tmp_path.iterdir())) == 1, "that of the last try"
    assert not list(tmp_path.iterdir())

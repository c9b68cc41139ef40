"""What Spark gets of a job's tasks: no secret that they carry, and workers can use it all the same.

Every way of a job of tasks is here; its workers return what only the opened task has.
"""

from __future__ import annotations

import hmac
import pickle
import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark.core.rdd
import pytest
from cryptography.hazmat.primitives import hpke
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.log_rows import scan_rows
from changefeed.encoding.plan import MessagePlan
from changefeed.scan.spark import row_frame, run_scan
from changefeed.spark.sealed import SealedFunction, sealed
from changefeed.spark.session import NodeSpark
from changefeed.spark.standing import StandingWorkers
from changefeed.spark.tasks import TaskResult, run_files, run_tasks
from tests.helpers import message_model as model
from tests.helpers.spark_parts import ToFiles, delivered

pytestmark = pytest.mark.spark

SECRET = "geheim-0815"
T = model.table([model.column("id", "int4", nullable=False), model.column("b", "text")])
AT = Timestamp(1_700_000_000_000_000_000, 3)


@dataclass
class PartWithUri:
    """One row, whose text is the URI of its source."""

    number: int
    uri: str = f"postgresql://u:{SECRET}@h/d"

    def read(self) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"a0": pa.array([self.number], pa.int32()), "a1": [self.uri]})


class ToFilesOfUser(ToFiles):
    """A sink with a password."""

    password = ""


@dataclass
class LengthOfSecret:
    """A task that says how long its secret is."""

    secret: str

    def __call__(self, number: int, report: Callable[[int, int], None]) -> list[TaskResult]:
        return [TaskResult(number, len(self.secret), 0)]

    def of_file(
        self, number: int, content: pa.Buffer, report: Callable[[int, int], None]
    ) -> list[TaskResult]:
        return self(number, report)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What PySpark pickles of Python functions, for Spark's JVM and all that it does with it."""
    seen: list[bytes] = []
    real = pyspark.core.rdd._prepare_for_python_RDD

    def spied(context: Any, command: Any) -> Any:
        found = real(context, command)
        seen.append(bytes(found[0]))
        return found

    monkeypatch.setattr(pyspark.core.rdd, "_prepare_for_python_RDD", spied)
    return seen


def by_scan(spark: NodeSpark, folder: Path) -> list[object]:
    deliver = ToFilesOfUser(str(folder))
    deliver.password = SECRET
    run_scan(
        spark, [PartWithUri(0), PartWithUri(1)], plan=MessagePlan(T, "t"), at=AT, deliver=deliver
    )
    return [SECRET in str(messages) for _, messages in sorted(delivered(folder).items())]


def by_workers_that_stay(spark: NodeSpark, folder: Path) -> list[object]:
    deliver = ToFilesOfUser(str(folder))
    deliver.password = SECRET
    parts = [PartWithUri(0), PartWithUri(1)]
    with StandingWorkers(spark, 1, "secret") as workers:
        plan, found = MessagePlan(T, "t"), workers.gathered()
        run_scan(spark, parts, plan=plan, at=AT, deliver=deliver, workers=found)
    return [SECRET in str(messages) for _, messages in sorted(delivered(folder).items())]


def by_rows(spark: NodeSpark, folder: Path) -> list[object]:
    shape = partial(scan_rows, T, at=AT)
    with row_frame(spark, [PartWithUri(0), PartWithUri(1)], schema=T, shape=shape) as frame:
        return [SECRET in row["a1"] for row in frame.orderBy("a0").collect()]


def by_tasks(spark: NodeSpark, folder: Path) -> list[object]:
    task = LengthOfSecret(SECRET)
    done = run_tasks(spark, task, 2, group="g", on_progress=lambda rows, size: None)
    return [d.rows == len(SECRET) for d in done]


def by_files(spark: NodeSpark, folder: Path) -> list[object]:
    paths = [folder / "0", folder / "1"]
    for path in paths:
        path.write_bytes(b"x")
    task = LengthOfSecret(SECRET).of_file
    done = run_files(spark, task, paths, group="g", on_progress=lambda rows, size: None)
    return [d.rows == len(SECRET) for d in done]


@pytest.mark.parametrize("way", [by_scan, by_workers_that_stay, by_rows, by_tasks, by_files])
def test_spark_gets_no_secret_and_workers_have_it(
    spark_engine: NodeSpark,
    tmp_path: Path,
    commands: list[bytes],
    way: Callable[[NodeSpark, Path], list[object]],
) -> None:
    assert way(spark_engine, tmp_path) == [True, True]
    assert commands
    assert all(SECRET.encode() not in command for command in commands)


# ------------------------------------------------------------------------------ without Spark


@dataclass
class Secret:
    """A function of batches with a secret."""

    secret: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"secret": [self.secret]})


def copied(task: SealedFunction) -> SealedFunction:
    travelled: SealedFunction = pickle.loads(pickle.dumps(task))
    return travelled


def test_it_opens_elsewhere_while_the_job_runs() -> None:
    with sealed(Secret(SECRET), "127.0.0.1") as task:
        assert SECRET.encode() not in pickle.dumps(task)
        assert SECRET not in repr(task) and repr(task.secret) not in repr(task)
        [batch] = copied(task)([])
        assert batch.to_pydict() == {"secret": [SECRET]}
    with sealed(Secret(SECRET), "127.0.0.1") as late:
        pass
    with pytest.raises(ChangefeedError, match="gets no key") as caught:
        copied(late).opened()
    assert caught.value.code.number == "CF4002"


def test_the_key_is_for_who_has_the_task_and_never_in_the_clear() -> None:
    with sealed(Secret(SECRET), "127.0.0.1") as task, sealed(Secret("other"), "127.0.0.1") as other:
        assert answer(task, bytes(32), bytes(32)) == b""
        stranger = SealedFunction(task.host, task.port, other.secret, task.content)
        with pytest.raises(ChangefeedError, match="gets no key"):
            stranger.opened()
        pair = X25519PrivateKey.generate()
        public = pair.public_key().public_bytes_raw()
        sent = answer(task, public, hmac.digest(task.secret, public, "sha256"))
        suite = hpke.Suite(hpke.KEM.X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.AES_256_GCM)
        key = suite.decrypt(sent, pair, task.secret)
        assert SECRET.encode() in AESGCM(key).decrypt(task.content[:12], task.content[12:], None)
        assert key not in sent


def answer(task: SealedFunction, public: bytes, proof: bytes) -> bytes:
    """What the node says to who asks for the key of a task."""
    with socket.create_connection((task.host, task.port)) as asking:
        asking.sendall(public + proof)
        return asking.makefile("rb").read()


# ------------------------------------------------------------------------------ settings

HIDDEN = {
    "credential": f"id:{SECRET}",
    "header.Authorization": SECRET,
    "uri": f"jdbc:postgresql://u:{SECRET}@h/d",
    "hadoop.fs.azure.account.key.a.net": SECRET,
    "s3.secret-access-key": SECRET,
}


def test_spark_shows_no_secret_of_a_setting(spark_engine: NodeSpark) -> None:
    """Its UI and event log hide the same settings as this listing."""
    session = spark_engine.session().newSession()
    catalog = "spark.sql.catalog.c"
    for name, value in {**HIDDEN, "warehouse": "/srv/lake"}.items():
        session.conf.set(f"{catalog}.{name}", value)
    shown = {row["key"]: row["value"] for row in session.sql("SET").collect()}
    assert shown[f"{catalog}.warehouse"] == "/srv/lake"
    assert {name for name in HIDDEN if "redacted" in shown[f"{catalog}.{name}"]} == set(HIDDEN)
    assert SECRET not in str(shown)

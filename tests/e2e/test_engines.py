"""A backlog by Spark in lanes has the bytes, and for each key the order, of the node's own."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from changefeed.api import Interpreter
from changefeed.core.engines import EngineOption
from changefeed.core.errors import ChangefeedError
from changefeed.feeds import backlog
from changefeed.spark.session import NodeSpark
from changefeed.spark.tasks import TaskResult, run_tasks
from changefeed.statements.context import NoHost
from changefeed_testing.sinks.readers import visible_files
from tests.conftest import LentSpark
from tests.e2e.feeds import Feeds, running
from tests.helpers.ordered import assert_in_order
from tests.helpers.waiting import until
from tests.services.kafka import KafkaBroker
from tests.services.postgres import Database
from tests.services.registry import FakeRegistry
from tests.services.webhook import WebhookServer

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres, pytest.mark.kafka]

#: The values of each key of each table, in order.
Values = dict[tuple[str, bytes], list[bytes | None]]

TABLES = """
create table t (a int primary key, b text);
create table named (shop text, n bigint, v text, primary key (shop, n));
create table plain (a int, b text);
alter table plain replica identity full
"""
ONE_BY_ONE = '{"Flush": {"Messages": 1, "Frequency": "5ms"}}'
CHANGES = (
    "insert into t select i, 'one ' || i from generate_series(1, 3000) i",
    "update t set b = 'two' where a % 2 = 0",
    "insert into named select 'shop ' || i % 7, i, '\"x\"' from generate_series(1, 2000) i",
    "delete from t where a % 5 = 0",
    "update t set a = a + 10000 where a % 7 = 0",
    "insert into plain select i % 10, 'y' from generate_series(1, 500) i",
    "update named set v = null where n % 3 = 0",
    "truncate named",
    "alter table t add column c int default 5",
    "insert into t select i, 'late', i from generate_series(20000, 22000) i",
    "update t set b = 'three', c = 9 where a % 3 = 0",
    "delete from plain where a = 3",
)


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[list[TaskResult]]:
    """What each job of a backlog did."""
    found: list[list[TaskResult]] = []

    def spied(*given: Any, **named: Any) -> list[TaskResult]:
        done = run_tasks(*given, **named)
        found.append(done)
        return done

    monkeypatch.setattr(backlog, "run_tasks", spied)
    return found


@pytest.fixture
def webhook() -> Iterator[WebhookServer]:
    server = WebhookServer()
    yield server
    server.stop()


def by_key(kafka: KafkaBroker, topics: dict[str, str]) -> Values:
    """The values of each key of each table, in order."""
    found: Values = defaultdict(list)
    for table, topic in topics.items():
        for record in kafka.messages(topic):
            if record.key is not None:
                found[table, record.key].append(record.value)
    return dict(found)


def test_a_backlog_in_lanes_is_the_backlog_of_the_node(
    tmp_path: Path,
    postgres: Database,
    kafka: KafkaBroker,
    topic: str,
    spark_engine: NodeSpark,
    jobs: list[list[TaskResult]],
) -> None:
    postgres.execute(TABLES)
    with running(tmp_path / "state", spark_engine) as feeds:
        feeds.connect(shop=postgres.uri)
        for engine in ("driver", "spark"):
            feeds.execute(
                f"CREATE CHANGEFEED {engine} FOR t, named, plain "
                f"INTO '{kafka.uri}?topic_prefix={topic}{engine}_' "
                f"WITH engine = '{engine}', updated, initial_scan = 'no', "
                "schema_change_policy = 'nobackfill'"
            )
            feeds.execute(f"PAUSE CHANGEFEED {engine}")
        for change in CHANGES:
            postgres.execute(change)
        for engine in ("driver", "spark"):
            feeds.execute(f"RESUME CHANGEFEED {engine}")
            feeds.sync(engine)
        delays = {engine: feeds.catalog.job(engine).delays for engine in ("driver", "spark")}
    assert delays["driver"].rows == delays["spark"].rows > 5_000
    assert jobs and all(len({done.item for done in job}) >= 1 for job in jobs)
    expected, found = (
        by_key(kafka, {table: f"{topic}{engine}_{table}" for table in ("t", "named", "plain")})
        for engine in ("driver", "spark")
    )
    assert len(expected) > 5_000
    assert found == expected


#: Every envelope of every format that a sink of messages takes.
MESSAGES = (
    "envelope = 'wrapped', updated, diff, mvcc_timestamp, key_in_value",
    "envelope = 'wrapped', key_column = 'b', unordered",
    "envelope = 'row', updated",
    "envelope = 'bare', updated, mvcc_timestamp",
    "envelope = 'key_only'",
    "envelope = 'changed', updated",
    "envelope = 'enriched', diff, updated",
    "envelope = 'debezium'",
    "format = 'avro', updated, diff",
    "format = 'avro', envelope = 'row'",
    "format = 'avro', envelope = 'bare', updated",
    "format = 'protobuf', updated, diff",
    "format = 'protobuf', envelope = 'bare', updated",
)
#: Each scan has an instant of its own, and these envelopes say when they were made.
MOMENTS = re.compile(rb"\d{19}\.\d{10}|(?<=\"ts_[mun]s\":)\s*\d+")
TYPES = """
create table t (
    a int primary key, b text, c numeric(12, 3), d timestamptz, e jsonb, f bytea, g text[],
    h double precision, i date, j boolean
);
alter table t replica identity full;
insert into t select i, 'tëxt "' || i, i / 7.0, timestamptz '2024-02-29 12:00+01' + i * interval
    '1 hour', jsonb_build_object('k', array[i, null]), decode(lpad(to_hex(i), 8, '0'), 'hex'),
    array['x', null, i::text], i / 3.0, date '2024-01-01' + i, i % 2 = 0
    from generate_series(1, 1500) i
"""
MORE_CHANGES = (
    "update t set b = null, c = c * 2 where a % 3 = 0",
    "update t set a = a + 5000 where a % 5 = 0",
    "delete from t where a % 7 = 0",
    "update t set e = '[1.50]', g = '{}', h = 'NaN', i = 'infinity' where a % 2 = 0",
)


@pytest.mark.extended
def test_every_format_and_envelope_is_the_same_bytes_by_either_engine(
    tmp_path: Path,
    postgres: Database,
    kafka: KafkaBroker,
    fake_registry: FakeRegistry,
    topic: str,
    spark_engine: NodeSpark,
    jobs: list[list[TaskResult]],
) -> None:
    """An initial scan and a backlog of each, with the messages of a key in the same order."""
    postgres.execute(TYPES)

    def names(engine: str) -> list[str]:
        return [f"{engine}{number}" for number in range(len(MESSAGES))]

    def read(engine: str) -> list[Values]:
        found = [by_key(kafka, {"t": f"{topic}{name}_t"}) for name in names(engine)]
        return [
            without_schema(each) if "avro" in options else each
            for each, options in zip(found, MESSAGES, strict=True)
        ]

    both = [*names("driver"), *names("spark")]
    with running(tmp_path / "state", spark_engine) as feeds:
        feeds.connect(shop=postgres.uri)
        for name, options in zip(both, MESSAGES * 2, strict=True):
            sink = f"{kafka.uri}?topic_prefix={topic}{name}_"
            if "avro" in options:
                options += f", confluent_schema_registry = '{fake_registry.url}'"
            engine = name.rstrip("0123456789")
            feeds.execute(
                f"CREATE CHANGEFEED {name} FOR t INTO '{sink}' WITH {options}, engine = '{engine}'"
            )
        for name in both:
            feeds.sync(name)
            feeds.execute(f"PAUSE CHANGEFEED {name}")
        scans = read("driver")
        assert all(len(scan) > 1400 for scan in scans)
        assert [masked(scan) for scan in read("spark")] == [masked(scan) for scan in scans]
        for change in MORE_CHANGES:
            postgres.execute(change)
        for name in both:
            feeds.execute(f"RESUME CHANGEFEED {name}")
        for name in both:
            feeds.sync(name)
            what = str(feeds.execute(f"SHOW CHANGEFEED {name}").rows)
            assert ("as a Spark job" in what) == name.startswith("spark"), name
    assert len(jobs) == len(MESSAGES)
    for options, scan, expected, found in zip(
        MESSAGES, scans, read("driver"), read("spark"), strict=True
    ):
        moment = MOMENTS if "enriched" in options or "debezium" in options else None
        if "unordered" in options:
            # Rows of different keys share a message key: the order of each row's changes holds.
            expected, found, scan = unordered(expected), unordered(found), {}
        assert changes_of(found, scan, moment) == changes_of(expected, scan, moment), options


def without_schema(values: Values) -> Values:
    """Avro without the number that the registry gave to the schema of this topic."""
    return {
        (table, key[5:]): [value and value[5:] for value in found]
        for (table, key), found in values.items()
    }


def masked(values: Values, moment: re.Pattern[bytes] | None = MOMENTS) -> Values:
    """The values without the instants that differ from feed to feed."""
    if moment is None:
        return values
    return {
        key: [value and moment.sub(b"0", value) for value in found] for key, found in values.items()
    }


def unordered(values: Values) -> Values:
    """The values of each key in an order that does not depend on when they came."""
    return {key: sorted(found, key=lambda value: value or b"") for key, found in values.items()}


def changes_of(values: Values, scan: Values, moment: re.Pattern[bytes] | None) -> Values:
    """What came after the initial scan; it is not empty."""
    found = {key: each[len(scan.get(key, ())) :] for key, each in values.items()}
    assert sum(map(len, found.values())) > 1000
    return masked(found, moment)


@pytest.mark.extended
@pytest.mark.parametrize("form", ["json", "csv", "parquet"])
def test_files_have_the_same_rows_by_either_engine(
    tmp_path: Path, postgres: Database, spark_engine: NodeSpark, form: str
) -> None:
    postgres.execute(TYPES)
    rows: dict[str, list[bytes]] = {}
    with running(tmp_path / "state", spark_engine) as feeds:
        feeds.connect(shop=postgres.uri)
        for engine in ("driver", "spark"):
            out = tmp_path / engine
            feeds.execute(
                f"CREATE CHANGEFEED {engine} FOR t INTO 'file://{out}' WITH engine = '{engine}', "
                f"format = '{form}', initial_scan = 'only'"
            )
            until(partial(over, feeds, engine))
            assert not feeds.catalog.job(engine).error
            rows[engine] = sorted(file_rows(out))
    assert len(rows["driver"]) == 1500
    assert rows["spark"] == rows["driver"]


@pytest.mark.extended
def test_a_backlog_into_files_is_the_backlog_of_the_node(
    tmp_path: Path, postgres: Database, spark_engine: NodeSpark, jobs: list[list[TaskResult]]
) -> None:
    """The same lines, and by the names of the files each key in the order of the log."""
    postgres.execute(TYPES)
    found: dict[str, dict[str, list[bytes]]] = {}
    with running(tmp_path / "state", spark_engine) as feeds:
        feeds.connect(shop=postgres.uri)
        for engine in ("driver", "spark"):
            feeds.execute(
                f"CREATE CHANGEFEED {engine} FOR t INTO "
                f"'file://{tmp_path / engine}?file_size=40kB&flush_interval=0s' "
                f"WITH engine = '{engine}', updated, diff, initial_scan = 'no'"
            )
            feeds.execute(f"PAUSE CHANGEFEED {engine}")
        for change in MORE_CHANGES:
            postgres.execute(change)
        for engine in ("driver", "spark"):
            feeds.execute(f"RESUME CHANGEFEED {engine}")
            feeds.sync(engine)
            found[engine] = defaultdict(list)
            for path in sorted(visible_files(tmp_path / engine), key=lambda path: path.name):
                for line in path.read_bytes().splitlines():
                    found[engine][json.dumps(json.loads(line)["key"])].append(line)
    assert any(len(job) > 1 for job in jobs), "several lanes have rows of the table"
    assert sum(map(len, found["driver"].values())) > 1_500
    assert found["spark"] == found["driver"]


def over(feeds: Feeds, name: str) -> bool:
    """The feed has ended by itself."""
    return feeds.catalog.job(name).status.finished


def file_rows(folder: Path) -> list[bytes]:
    """Lines as they are, and rows of columns by their text."""
    found: list[bytes] = []
    for path in visible_files(folder):
        if path.suffix == ".parquet":
            found += [str(row).encode() for row in pq.read_table(path).to_pylist()]
        else:
            found += path.read_bytes().splitlines()
    return found


@pytest.mark.extended
def test_a_warehouse_has_the_same_rows_by_either_engine(
    tmp_path: Path, postgres: Database, spark_engine: LentSpark
) -> None:
    """Its scan is a job. One writer keeps the order of changes: a backlog becomes none."""
    postgres.execute("create table t (a int primary key, b text); insert into t values (1, 'x')")
    before = len(spark_engine.jobs)
    with running(tmp_path / "state", spark_engine) as feeds:
        feeds.connect(shop=postgres.uri)
        with spark_engine.preferring(EngineOption.SPARK, least_job_rows=1):
            feeds.execute(f"CREATE CHANGEFEED f FOR t INTO 'duckdb://{tmp_path}/t.duckdb'")
            feeds.sync("f")
            postgres.execute("insert into t select i, 'y' from generate_series(2, 50) i")
            feeds.sync("f")
        assert feeds.verified() == ["f"]
    assert len(spark_engine.jobs) == before + 1


@pytest.mark.extended
def test_the_jobs_of_a_feed_are_shown_while_they_run_and_after(
    tmp_path: Path, postgres: Database, webhook: WebhookServer, spark_engine: NodeSpark
) -> None:
    postgres.execute(
        "create table t (a int primary key, b text);"
        "insert into t select i, 's3cret' from generate_series(1, 1500) i"
    )
    go_on = threading.Event()
    webhook.judge = lambda body: 200 if go_on.wait(60) else 500
    with running(tmp_path / "state", spark_engine) as feeds:
        feeds.connect(shop=postgres.uri)
        beside = Interpreter(feeds.catalog, host=NoHost(feeds.catalog))

        def jobs(feed: str, status: str) -> list[dict[str, Any]]:
            """Of a process without Spark, which asks the node."""
            found = beside.execute(f"SHOW CHANGEFEED {feed} JOBS", feeds.session)
            assert "s3cret" not in str(found)
            rows = [dict(zip(found.columns, row, strict=True)) for row in found.rows]
            return [row for row in rows if row["status"] == status]

        feeds.execute(f"CREATE CHANGEFEED f FOR t INTO '{webhook.uri}' WITH engine = 'spark'")
        try:
            until(lambda: jobs("f", "running"), "the scan is a job")
            [scan] = jobs("f", "running")
        finally:
            go_on.set()
        assert scan["table"].endswith(".public.t") and re.fullmatch(r"scan \d+", scan["step"])
        assert scan["tasks"] >= 1 and scan["tasks_done"] < scan["tasks"]
        feeds.execute(
            f"CREATE CHANGEFEED q INTO 'file://{tmp_path}/q' WITH engine = 'spark' "
            "AS SELECT a, upper(b) AS b FROM t"
        )
        feeds.sync("f")
        feeds.sync("q")
        until(lambda: not jobs("f", "running"), "the scan's job has ended")
        assert scan["spark_job"] in [job["spark_job"] for job in jobs("f", "succeeded")]
        until(lambda: jobs("q", "succeeded"), "the job of the query has ended")
        assert {(job["table"], job["step"]) for job in jobs("q", "succeeded")} == {
            (scan["table"], "query")
        }


def test_lanes_share_the_wait_for_a_slow_sink_and_keep_the_order(
    tmp_path: Path,
    postgres: Database,
    webhook: WebhookServer,
    spark_engine: NodeSpark,
    jobs: list[list[TaskResult]],
) -> None:
    """A worker that dies in the middle repeats messages; none is lost, none out of order."""
    postgres.execute("create table t (a int primary key, b int)")
    with running(tmp_path / "state", spark_engine) as feeds:
        feeds.connect(shop=postgres.uri)
        feeds.execute(
            f"CREATE CHANGEFEED f FOR t INTO '{webhook.uri}' "
            "WITH engine = 'spark', initial_scan = 'no', updated"
        )
        feeds.execute("PAUSE CHANGEFEED f")
        postgres.execute("insert into t select i, 0 from generate_series(1, 1500) i")
        for n in range(1, 4):
            postgres.execute(f"update t set b = {n}")
        feeds.execute("RESUME CHANGEFEED f")
        until(lambda: webhook.taken)
        kill_a_worker(spark_engine)
        feeds.sync("f")
    assert jobs
    assert_in_order(webhook.messages(["t"]), keys=1500, last=3)


def kill_a_worker(engine: NodeSpark) -> None:
    """End one Python worker of the session as a machine would that fails."""
    assert engine.pid is not None
    workers = [
        child
        for daemon in psutil.Process(engine.pid).children()
        for child in daemon.children()
        if "python" in child.name()
    ]
    if workers:
        os.kill(workers[0].pid, signal.SIGKILL)


@pytest.mark.extended
def test_a_stopped_feed_leaves_no_lane_behind(
    tmp_path: Path, postgres: Database, webhook: WebhookServer, spark_engine: NodeSpark
) -> None:
    postgres.execute("create table t (a int primary key, b int)")
    with running(tmp_path / "state", spark_engine) as feeds:
        feeds.connect(shop=postgres.uri)
        feeds.execute(
            f"CREATE CHANGEFEED f FOR t INTO '{webhook.uri}' WITH engine = 'spark', "
            f"initial_scan = 'no', webhook_sink_config = '{ONE_BY_ONE}'"
        )
        feeds.execute("PAUSE CHANGEFEED f")
        postgres.execute("insert into t select i, 0 from generate_series(1, 20000) i")
        feeds.execute("RESUME CHANGEFEED f")
        until(lambda: len(webhook.taken) > 20)
        feeds.execute("PAUSE CHANGEFEED f")
        until(lambda: status(feeds) == "paused")
        taken = len(webhook.taken)
        assert taken < 20000
        feeds.execute("RESUME CHANGEFEED f")
        feeds.sync("f")
    keys = {m.key for m in webhook.messages(["t"]) if m.is_row}
    assert len(keys) == 20000


def status(feeds: Feeds) -> str:
    return feeds.catalog.job("f").status.value


def test_a_feed_says_why_spark_does_not_do_what_it_was_asked_for(
    tmp_path: Path, postgres: Database
) -> None:
    """And no Spark is started for it."""
    postgres.execute("create table t (a int primary key); insert into t values (1), (2)")
    spark = NodeSpark(scratch=tmp_path / "spark")
    with running(tmp_path / "state", spark) as feeds:
        feeds.connect(shop=postgres.uri)
        create = f"CREATE CHANGEFEED f FOR t INTO '{postgres.uri}?schema=copy'"
        create += " WITH engine = 'spark'"
        explained = {row[0]: row[1] for row in feeds.execute(f"EXPLAIN {create}").rows}
        why = "the rows of this sink are staged by the node"
        assert explained["engine"] == f"driver: {why}"
        feeds.execute(create)
        postgres.execute("insert into t values (3)")
        feeds.sync("f")
        events = feeds.catalog.events(feeds.catalog.job("f").id, kinds=("engine",))
        assert not spark.ready and not (tmp_path / "spark").exists()
    assert [event.text for event in events] == [
        f"the node reads the table although engine = 'spark': {why}"
    ]


def test_an_engine_that_is_none_is_refused(
    tmp_path: Path, postgres: Database, spark_engine: NodeSpark
) -> None:
    postgres.execute("create table t (a int primary key)")
    with running(tmp_path / "state", spark_engine) as feeds:
        feeds.connect(shop=postgres.uri)
        with pytest.raises(ChangefeedError, match="unknown engine: flink"):
            feeds.execute("CREATE CHANGEFEED f FOR t INTO 'null://' WITH engine = 'flink'")

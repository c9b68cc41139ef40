"""Where bulk work runs, and which lane a row belongs to."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.engines import (
    JOB_SECONDS,
    LEAST_JOB_ROWS,
    LOADED_ROWS_A_SECOND,
    SESSION_SECONDS,
    EngineChoice,
    EngineOption,
    SparkState,
    Work,
    choose_engine,
    job_seconds,
)
from changefeed.core.schema import TableSchema
from changefeed.core.spark_jobs import JobName
from changefeed.feeds.backlog import count_lanes
from changefeed.feeds.lanes import lane_of
from changefeed.options import Options
from changefeed.plan.stages import EngineStage, SourceStage
from changefeed.scan.table import ScanWork
from sinks import registry
from tests.helpers import message_model as model

AUTO, SPARK, DRIVER = EngineOption.AUTO, EngineOption.SPARK, EngineOption.DRIVER
LAPTOP = SparkState(ready=False, cores=2)
WARM = SparkState(ready=True, cores=2)
CLUSTER = SparkState(ready=True, cores=16)
EAGER = SparkState(ready=True, cores=2, least_job_rows=1)


@pytest.mark.parametrize(
    ("asked", "rows", "state", "spark"),
    [
        (AUTO, 1_000_000, LAPTOP, False),  # the JVM starts for longer than the node works
        (AUTO, 1_000_000, WARM, False),  # two tasks are hardly faster than one thread
        (AUTO, 1_000_000, CLUSTER, True),
        (AUTO, 100_000_000, LAPTOP, True),
        (AUTO, 50_000, CLUSTER, False),  # less than a job costs
        (SPARK, LEAST_JOB_ROWS, LAPTOP, True),
        (SPARK, LEAST_JOB_ROWS - 1, CLUSTER, False),
        (SPARK, 1, EAGER, True),
        (AUTO, 1, EAGER, False),
        (DRIVER, 1_000_000_000, CLUSTER, False),
    ],
)
def test_the_faster_engine_is_chosen(
    asked: EngineOption, rows: int, state: SparkState, spark: bool
) -> None:
    choice = choose_engine(asked, Work(rows, 32), state)
    assert choice.spark is spark
    assert choice.reason


@pytest.mark.parametrize(
    ("cores", "rows", "spark"),
    [(1, 10_000_000, False), (2, 10_000_000, True), (2, 300_000, False), (16, 50_000, False)],
)
def test_a_warehouse_gains_by_tasks_what_the_node_need_not_load(
    cores: int, rows: int, spark: bool
) -> None:
    """The node loads and merges what tasks stage, and no number of them is faster than that."""
    work, state = Work(rows, 32, loads=True), SparkState(ready=True, cores=cores)
    assert choose_engine(AUTO, work, state).spark is spark
    assert job_seconds(work, state) > rows / LOADED_ROWS_A_SECOND


def test_work_that_spark_cannot_do_stays_and_says_why() -> None:
    choice = choose_engine(SPARK, Work(10**9, 32, "one writer"), CLUSTER)
    assert (choice.spark, choice.reason) == (False, "one writer")


@pytest.mark.parametrize("asked", [AUTO, SPARK])
@pytest.mark.parametrize("hindrance", ["", "the executors lack changefeed"])
def test_a_scan_into_a_lake_stays_where_executors_lack_our_functions(
    asked: EngineOption, hindrance: str
) -> None:
    choice = _scanned("delta", asked, replace(CLUSTER, hindrance=hindrance))
    assert choice.spark is not bool(hindrance)
    assert not hindrance or (choice.reason, choice.hindered) == (hindrance, True)


def _scanned(
    scheme: str, asked: EngineOption, state: SparkState, *, rows: int = 1_000_000, place: str = "/"
) -> EngineChoice:
    """Where a scan of eight parts into a sink runs; ``place``: of staged files."""
    host = SimpleNamespace(
        asked_engine=asked,
        has_query=False,
        limits=SimpleNamespace(option=""),
        sinks=SimpleNamespace(keeps=lambda sink: False, in_workers=lambda sink: True),
        sizes=SimpleNamespace(small_scan_rows=20_000),
        source_runtime=SimpleNamespace(
            source=SimpleNamespace(parts_travel=True, takes_workers=False)
        ),
        spark=SimpleNamespace(state=lambda: state, shared_place=SimpleNamespace(root=place)),
    )
    sink = SimpleNamespace(capabilities=registry.capabilities(scheme))
    name = JobName("f", 1, "scan 1")
    work = ScanWork(cast(Any, host), Timestamp(1), cast(Any, None), name, lambda: False)
    return work._engine(cast(Any, SimpleNamespace(sink=sink, typed=True)), rows, 8)


@pytest.mark.parametrize("scheme", ["duckdb", "bigquery", "snowflake"])
def test_auto_scans_into_a_warehouse_by_tasks_where_they_are_faster(scheme: str) -> None:
    assert _scanned(scheme, AUTO, WARM).spark
    assert not _scanned(scheme, AUTO, WARM, rows=100_000).spark
    assert not _scanned(scheme, AUTO, LAPTOP).spark
    assert _scanned(scheme, SPARK, LAPTOP, rows=100_000).spark


@pytest.mark.parametrize(
    ("scheme", "place", "why"),
    [
        ("duckdb", "s3a://b/f", "this sink loads files of a directory"),
        ("snowflake", "s3a://b/f", ""),
        ("redshift", "/", "the rows of this sink are staged by the node"),
        ("clickhouse", "/", "the rows of this sink are staged by the node"),
    ],
)
def test_a_warehouse_says_why_no_tasks_stage_its_scans(scheme: str, place: str, why: str) -> None:
    choice = _scanned(scheme, SPARK, CLUSTER, place=place)
    assert choice.spark is not bool(why)
    assert choice.reason.startswith(why) and choice.hindered is bool(why)


def test_a_job_is_as_wide_as_its_work() -> None:
    rows = 10_000_000
    one = job_seconds(Work(rows, 1), CLUSTER) - JOB_SECONDS
    eight = job_seconds(Work(rows, 8), CLUSTER) - JOB_SECONDS
    assert one == pytest.approx(8 * eight)
    cold = SparkState(ready=False, cores=16)
    assert job_seconds(Work(rows, 8), cold) - JOB_SECONDS - eight == pytest.approx(SESSION_SECONDS)


# -------------------------------------------------------------------------------------- lanes


def keyed(*kinds: str) -> TableSchema:
    return model.table(
        [model.column(f"k{i}", kind) for i, kind in enumerate(kinds)], key=range(len(kinds))
    )


def lanes(schema: TableSchema, keys: list[tuple[object, ...]], count: int) -> list[int]:
    rows = [model.change("c", key) for key in keys]
    return [int(n) for n in lane_of(model.log_table(schema, rows), schema, count)]


@pytest.mark.parametrize("kinds", [("int4",), ("int8",), ("text",), ("int2", "text"), ("bool",)])
def test_equal_keys_have_one_lane_wherever_they_stand(kinds: tuple[str, ...]) -> None:
    schema = keyed(*kinds)

    def key(n: int) -> tuple[object, ...]:
        made: dict[str, object] = {"text": "x" * (n % 300) + str(n), "bool": n % 2 == 0}
        return tuple(made.get(kind, n) for kind in kinds)

    keys = [key(n) for n in range(1000)]
    first = dict(zip(keys, lanes(schema, keys, 4), strict=True))
    again = lanes(schema, keys[::-1][:700], 4)
    assert again == [first[k] for k in keys[::-1][:700]]
    assert set(first.values()) <= set(range(4))


def test_a_delete_has_the_lane_of_its_row() -> None:
    schema = keyed("text", "int4")
    keys = [(f"k{n}", n % 3) for n in range(100)]
    deletes = [model.change("d", None, {"0": a, "1": b}) for a, b in keys]
    found = lane_of(model.log_table(schema, deletes), schema, 8)
    assert list(found) == lanes(schema, list(keys), 8)


@pytest.mark.parametrize("kind", ["int4", "int8", "text"])
def test_lanes_share_neighbouring_keys_about_evenly(kind: str) -> None:
    values: list[object] = [f"user-{n:06}" if kind == "text" else n * 8 for n in range(10_000)]
    counted = np.bincount(lanes(keyed(kind), [(v,) for v in values], 4), minlength=4)
    assert counted.min() > 2_000


def test_texts_differ_by_the_order_of_their_bytes() -> None:
    words = ["ab", "ba", "", "a", "aa", "b"]
    assert len(set(lanes(keyed("text"), [(word,) for word in words], 1 << 30))) == len(words)


def test_a_table_without_a_key_is_one_lane() -> None:
    schema = model.table(
        [model.column("a", "int4"), model.column("b", "text")], key=(0, 1), keyless=True
    )
    assert schema.keyless
    found = lanes(schema, [(n, str(n)) for n in range(100)], 4)
    assert len(set(found)) == 1


def test_a_slice_of_a_table_has_the_lanes_of_the_whole() -> None:
    schema = keyed("text")
    table = model.log_table(schema, [model.change("c", (f"k{n}",)) for n in range(50)])
    whole = lane_of(table, schema, 4)
    assert (lane_of(table.slice(20, 10), schema, 4) == whole[20:30]).all()
    parts = pa.concat_tables([table.slice(0, 7), table.slice(7)])
    assert (lane_of(parts, schema, 4) == whole).all()


@pytest.mark.parametrize(
    ("rows", "cores", "wanted"),
    [(2_000_000, 2, 2), (2_000_000, 100, 100), (2_000_000, 4000, 200), (5_000, 100, 10), (9, 4, 1)],
)
def test_cores_and_rows_limit_the_lanes(rows: int, cores: int, wanted: int) -> None:
    assert count_lanes(rows, cores) == wanted


def test_rows_of_which_none_is_left_have_no_lanes() -> None:
    """All rows of a chunk may be gone: a TRUNCATE of their own transaction removed them."""
    for schema in (keyed("text"), keyed("int8"), keyed("bool"), keyed("int2", "text")):
        assert list(lane_of(model.log_table(schema, []), schema, 4)) == []


def test_empty_texts_are_keys_like_others() -> None:
    schema = keyed("text")
    assert len(set(lanes(schema, [("",), ("",)], 4))) == 1
    assert lanes(schema, [("a",), ("",), ("b",), ("",)], 4)[1::2] == lanes(schema, [("",)] * 2, 4)


def test_each_column_of_a_key_counts() -> None:
    """All lanes work on a table of few tenants, on one whose second column is constant, and where
    the columns rise and fall together."""
    schema = keyed("int4", "int4")
    numbers = range(999)
    for keys in ([(1, n) for n in numbers], [(n, 1) for n in numbers], [(n, -n) for n in numbers]):
        assert set(lanes(schema, list(keys), 4)) == {0, 1, 2, 3}


STAGED = "the rows of this sink are staged by the node"
BOTH = "the node or a Spark job, whichever is estimated to be faster, for "


@pytest.mark.parametrize(
    ("sink", "options", "travel", "sessions", "line"),
    [
        ("webhook-https", {}, True, False, f"auto: {BOTH}scans and backlogs"),
        ("webhook-https", {}, False, True, f"auto: {BOTH}scans and backlogs"),
        (
            "webhook-https",
            {},
            False,
            False,
            f"auto: {BOTH}backlogs, not for scans: the snapshot of this source cannot leave the "
            "node",
        ),
        (
            "kafka",
            {"engine": "spark", "delivery": "exactly_once"},
            True,
            False,
            "driver: delivery = 'exactly_once' is one writer's transaction",
        ),
        (
            "kafka",
            {"engine": "spark", "transaction_metadata": "true"},
            True,
            False,
            "spark, except for a few rows, for scans, not for backlogs: transaction_metadata "
            "numbers the changes of all tables together",
        ),
        ("duckdb", {}, True, False, f"auto: {BOTH}scans, not for backlogs: {STAGED}"),
        ("postgresql", {"engine": "spark"}, True, False, f"driver: {STAGED}"),
        (
            "delta",
            {},
            False,
            False,
            "spark: merges are jobs; the snapshot of this source cannot leave the node",
        ),
        ("delta", {}, False, True, "spark: merges are jobs; a small scan is read by the node"),
        ("delta", {}, True, False, "spark: merges are jobs; a small scan is read by the node"),
        (
            "webhook-https",
            {"initial_scan_max_rate": "1MiB"},
            True,
            False,
            f"auto: {BOTH}backlogs, not for scans: a scan with initial_scan_max_rate is read by "
            "the node",
        ),
    ],
)
def test_explain_says_what_spark_can_do_with_this_source(
    sink: str, options: dict[str, str], travel: bool, sessions: bool, line: str
) -> None:
    abilities = registry.capabilities(sink)
    typed = Options.from_dict(options, abilities=abilities)
    source = SourceStage("shop", "", "", fresh=True, parts_travel=travel, takes_workers=sessions)
    assert list(EngineStage(typed, abilities, False, source).lines()) == [line]

"""The same feed with the same options: the same columns and values in a lake and in a warehouse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from changefeed.spark.session import NodeSpark
from changefeed_testing.sinks.merge_harness import MergeHarness
from changefeed_testing.sinks.merge_steps import feed_of
from changefeed_testing.sinks.rows import SourceDouble, delete, insert, table_of, truncate, update
from tests.conformance.test_lake import LakeHarness
from tests.conformance.test_warehouse import DuckDBHarness
from tests.helpers.lake import place_in

pytestmark = pytest.mark.spark

KEYED = table_of("t", key=("a",), a="int32", b="text", c="text")
KEYLESS = table_of("v", a="int32", b="text")
OTHER = table_of("w", key=("a",), a="int32")

#: What a lake numbers equal rows by; a warehouse has equal rows.
OCCURRENCE = "_occurrence"

ALL: Sequence[Mapping[str, object]] = [
    {"history": "append"},
    {"history": "scd2"},
    {"deletes": "soft"},
    {},
    {"deletes": "no"},
    {"history": "append", "deletes": "no"},
    {"history": "append", "deletes": "soft"},
    {"history": "scd2", "deletes": "soft"},
    {"history": "scd2", "sequence_column": "_version"},
    {"deletes": "soft", "sequence_column": "_version"},
    {"existing_target": "merge"},
    {"existing_target": "replace"},
]


def plain(row: Mapping[str, object], counted: bool) -> dict[str, object]:
    """A row with instants of UTC, without what equal rows are told apart by. Of rows that are
    counted the version says nothing: nobody knows which of some equal ones came or went."""
    ours = {OCCURRENCE, "_sequence_num"} if counted else {OCCURRENCE}
    return {
        name: value.astimezone(UTC).replace(tzinfo=None)
        if isinstance(value, datetime) and value.tzinfo is not None
        else value
        for name, value in row.items()
        if name not in ours
    }


def delivered(
    harness: MergeHarness, options: Mapping[str, object]
) -> dict[str, list[dict[str, object]]]:
    """What the tables hold after scans, changes and a TRUNCATE, step by step."""
    keyless = options.get("deletes") != "soft" and options.get("history") != "scd2"
    counted = keyless and options.get("existing_target") != "merge"
    recounted = options.get("history") != "append"
    tables = (KEYED, OTHER, KEYLESS) if counted else (KEYED, OTHER)
    source = SourceDouble(*tables)
    names = ["t", "v"] if counted else ["t"]
    source.load("t", [{"a": i, "b": "old", "c": "large"} for i in range(6)])
    if counted:
        source.load("v", [{"a": i // 2, "b": "old"} for i in range(5)])
    if "existing_target" in options:
        harness.make_foreign(harness.topic("t"))
    feed = feed_of(harness, source, options)
    found: dict[str, list[dict[str, object]]] = {}

    def look(step: str) -> None:
        for name in names:
            found_rows = harness.rows(harness.topic(name))
            rows = [plain(row, name == "v" and recounted) for row in found_rows]
            found[f"{step}, {name}"] = sorted(rows, key=lambda row: repr(sorted(row.items())))

    for name in names:
        broken = feed.open(harness.sink(options))
        feed.scan(broken, name, upto=3, end=False)
        broken.close()
    source.commit(insert("w", a=1))
    sink = feed.open(harness.sink(options))
    for name in names:
        feed.scan(feed.open(sink), name)
    look("a scan that broke off and a whole one")
    source.commit(insert("t", a=7, b="new", c="large"), update("t", {"a": 1}, ["c"], b="changed"))
    source.commit(update("t", {"a": 2}, a=8), delete("t", a=3), update("t", {"a": 1}, b="again"))
    if counted:
        source.commit(insert("v", a=0, b="old"), delete("v", a=1), update("v", {"a": 2}, b="new"))
    feed.deliver(sink)
    look("changes")
    source.commit(insert("t", a=3, b="back", c=None), delete("t", a=7))
    feed.deliver(sink)
    feed.deliver(sink, 0)
    look("the same again")
    source.commit(update("t", {"a": 4}, b="unseen"), delete("t", a=5), insert("t", a=6, b="unseen"))
    feed.place = len(source.log)  # never delivered: the scan finds it
    for name in names:
        feed.scan(feed.open(sink), name)
    look("another scan")
    source.commit(truncate("t"))
    source.commit(insert("t", a=9, b="last", c=None))
    feed.deliver(sink)
    look("a truncation")
    sink.close()
    return found


def _sets() -> Iterator[object]:
    """Format and options. `make test-all` has one set, of the format whose rounds
    take less. ``CHANGEFEED_TESTS=all`` has all of both formats."""
    usual = [("iceberg", 7)]
    for kind in ("delta", "iceberg"):
        for number, options in enumerate(ALL):
            more = () if (kind, number) in usual else (pytest.mark.everything,)
            yield pytest.param(
                kind,
                options,
                marks=(pytest.mark.extended, *more),
                id=f"{kind}-{'-'.join(f'{n}={v}' for n, v in options.items()) or 'plain'}",
            )


@pytest.mark.parametrize(("kind", "options"), list(_sets()))
def test_alike(
    kind: str, options: Mapping[str, object], tmp_path: Path, spark_engine: NodeSpark
) -> None:
    warehouse = delivered(DuckDBHarness(tmp_path / "shop.duckdb"), options)
    lake = delivered(LakeHarness(spark_engine, place_in(kind, tmp_path), tmp_path / "s"), options)
    assert list(lake) == list(warehouse)
    for step, rows in warehouse.items():
        assert lake[step] == rows, step
    assert any(rows for rows in warehouse.values())
    if "history" in options:
        changed = [row["c"] for row in lake["changes, t"] if row["b"] == "changed"]
        assert changed == ["large"], "an unsent value is that of the version before"

"""VERIFY CHANGEFEED: every difference between source and target is found, named and repaired."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest

from changefeed.api import Result
from changefeed.core.errors import ChangefeedError, Code
from tests.e2e.test_rescan import tamper
from tests.e2e.test_warehouse_feeds import WIDE, Bench, IntoDuckDB, IntoPostgreSQL, bench

__all__ = ["bench"]
pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres]


def verified(bench: Bench, words: str = "") -> Result:
    return bench.feeds.execute(f"VERIFY CHANGEFEED f {words}")


def left_behind(bench: Bench) -> list[tuple[object, ...]]:
    """Tables of a comparison that are still in the target."""
    return bench.read(
        "select table_name from information_schema.tables where table_name like '%verify%'"
    )


def test_equal_tables_are_equal(bench: Bench) -> None:
    """Values of every type: NaN, infinity, scale, time zones, json, arrays, bytes, NULL."""
    bench.source.execute(WIDE)
    bench.source.execute("create table n (a int)")
    bench.create("wide, t", ", deletes = 'soft'")
    bench.feeds.sync("f")
    bench.source.execute("delete from t where a = 1; update wide set small = 7 where id = 2")
    answer = verified(bench)
    assert (answer.rows, answer.failure) == ([], None)
    assert answer.notices == ["public.t: equal", "public.wide: equal"]
    assert not left_behind(bench)


def test_each_kind_of_difference_is_named_and_repaired(bench: Bench) -> None:
    bench.source.execute(WIDE)
    bench.create("wide, t")
    bench.feeds.sync("f")
    tamper(bench, "delete from shop.t where a = 2")
    tamper(bench, "insert into shop.t (a, b) values (99, 'invented')")
    tamper(bench, "update shop.t set b = null where a = 3")
    # Of each kind of type the least that can be wrong.
    changes = {
        "money": "12.31",
        "f8": "0",
        "raw": "'\\xdeaf'" if isinstance(bench, IntoPostgreSQL) else "unhex('deaf')",
        "tstz": "timestamptz '2024-03-31 01:02:03.000001+02'",
        "j": """'{"a": [1, null, "y"]}'""",
        "u": "'00000000-0000-0000-0000-000000000000'",
        "yes": "null",
        "d": "date '2024-02-28'",
    }
    for column, value in changes.items():
        tamper(bench, f"update shop.wide set {column} = {value} where id = 1")
    tamper(bench, "update shop.wide set f4 = 1 where id = 2")
    answer = verified(bench)
    assert answer.failure is not None and answer.failure.code is Code.TARGET_DIFFERS
    found = {(row[0], row[1]): row[2:] for row in answer.rows}
    assert found["public.t", "[2]"] == ("missing", '{"a": "2", "b": "row 2"}', None)
    assert found["public.t", "[99]"] == ("extra", None, '{"a": "99", "b": "invented"}')
    assert found["public.t", "[3]"] == ("changed", '{"b": "row 3"}', '{"b": null}')
    kind, source, target = found["public.wide", "[1]"]
    assert kind == "changed" and set(json.loads(str(source))) == set(changes)
    assert json.loads(str(target))["money"] == "12.31"
    assert json.loads(str(found["public.wide", "[2]"][1]))["f4"].lower() == "nan"
    assert len(found) == 5
    assert "public.t: 3 rows differ" in answer.notices

    one = verified(bench, "TABLE wide")
    assert {row[0] for row in one.rows} == {"public.wide"}
    answer = verified(bench, "REPAIR")
    assert len(answer.rows) == 5 and answer.failure is None
    assert "public.t: 3 rows were repaired by key: equal now" in answer.notices
    assert "public.wide: 2 rows were repaired by key: equal now" in answer.notices
    assert bench.same("t", "a, b") and not verified(bench).rows
    assert not left_behind(bench)


def test_rows_that_change_meanwhile_are_no_difference(bench: Bench) -> None:
    """Neither those that get new values nor those that go back to what they were."""
    bench.source.execute("insert into t select i, 'up' from generate_series(20, 99) i")
    bench.create("t")
    bench.feeds.sync("f")
    over = threading.Event()

    def write() -> None:
        number = 0
        while not over.wait(0.01):
            number += 1
            bench.source.execute(f"update t set b = 'v{number}' where a <= 5")
            bench.source.execute(f"insert into t values ({1000 + number}, 'new')")
            bench.source.execute(
                "update t set b = case b when 'up' then 'down' else 'up' end "
                "where a between 20 and 99 and random() < 0.5"
            )
            bench.source.execute(f"delete from t where a = {1000 + number - 20}")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        tamper(bench, "delete from shop.t where a = 7")
        answer = verified(bench)
    finally:
        over.set()
        writer.join()
    assert [row[:3] for row in answer.rows] == [("public.t", "[7]", "missing")]
    bench.equal = False


def test_a_file_that_another_program_has_open_is_waited_for(bench: Bench) -> None:
    """As the node has it that runs the feed, for the time of a round."""
    if not isinstance(bench, IntoDuckDB):
        pytest.skip("one program at a time is DuckDB's rule")
    bench.create("t")
    bench.feeds.sync("f")
    hold = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(bench.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdin is not None and other.stdout is not None
        other.stdout.readline()
        threading.Timer(1.5, other.stdin.close).start()
        assert verified(bench).notices == ["public.t: equal"]


def test_equal_rows_of_a_table_without_a_key_are_counted(bench: Bench) -> None:
    bench.source.execute("create table n (a int, b text); alter table n replica identity full")
    bench.source.execute("insert into n values (1, 'x'), (1, 'x'), (2, null), (2, null), (3, 'z')")
    bench.create("t, n")
    bench.feeds.sync("f")
    assert verified(bench).notices == ["public.n: equal", "public.t: equal"]
    tamper(bench, "delete from shop.n where a = 3")
    tamper(bench, "insert into shop.n (a, b) values (1, 'x')")
    tamper(bench, "insert into shop.n (a, b) values (9, 'new')")
    answer = verified(bench, "TABLE n")
    assert {row[1:] for row in answer.rows} == {
        ("[]", "missing", '1 x {"a": "3", "b": "z"}', None),
        ("[]", "count", '2 x {"a": "1", "b": "x"}', '3 x {"a": "1", "b": "x"}'),
        ("[]", "extra", None, '1 x {"a": "9", "b": "new"}'),
    }
    answer = verified(bench, "REPAIR")
    assert answer.failure is None
    because = "public.n was read again as a whole, because it has no key: equal now"
    assert because in answer.notices
    assert not left_behind(bench)


def test_what_cannot_be_compared_is_said(bench: Bench) -> None:
    bench.source.execute("create table n (a int primary key)")
    bench.create("t, n", ", history = 'append'")
    # Nothing was compared: a script would take an empty list for equal tables.
    with pytest.raises(ChangefeedError, match="history = 'append' cannot be verified"):
        verified(bench)
    with pytest.raises(ChangefeedError, match="cannot be verified") as refused:
        verified(bench, "TABLE n")
    assert refused.value.code is Code.NOT_SUPPORTED

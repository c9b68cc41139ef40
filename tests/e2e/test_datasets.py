"""Datasets compared by Spark: counts, content, repeats, crashes, and what is refused."""

from __future__ import annotations

import csv
import datetime as dt
import os
import signal
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from random import Random

import pyarrow.dataset as pads
import pytest

from changefeed.core import faults
from changefeed.core.errors import ChangefeedError
from changefeed.dataset import Dataset, effective_date, read_config
from changefeed.dataset.by_hash import RowCounts, can_compare, write_by_hash
from changefeed.dataset.compare import BROADCAST_BYTES
from changefeed.dataset.incoming import read_extract, typed_rows
from changefeed.dataset.run import run_dataset
from changefeed.spark.session import NodeSpark
from tests.helpers.datasets import article_config, article_days
from tests.helpers.hive_child import CONFIG

pytestmark = pytest.mark.spark

DAY1, DAY2, DAY3 = (dt.date(2019, 6, day) for day in (18, 19, 20))
Row = dict[str, object]


def write_csv(folder: Path, rows: Iterable[Sequence[object]]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "part.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return str(folder)


def config(folder: Path, columns: str, **more: str) -> Dataset:
    lines = [f"{key}: {value}" for key, value in more.items()]
    path = folder / "config.yaml"
    path.write_text(
        f"name: d\ncurrent_table_path: {folder}/current\nhistory_table_path: {folder}/history\n"
        + "\n".join(lines)
        + "\ncolumns:\n"
        + columns
    )
    return read_config(path)


KEYED = "- {name: a, type: int, key: true}\n- {name: b, type: string}\n"


def read(folder: Path) -> list[Row]:
    """Rows of a current dataset or a history, with the columns of its partitions."""
    found = pads.dataset(folder.resolve(), format="parquet", partitioning="hive").to_table()
    return [dict(row) for row in found.drop_columns(["keyhash", "nonkeyhash"]).to_pylist()]


def short(rows: list[Row]) -> list[tuple[object, ...]]:
    """``(a, b, operation, day of June 2019)`` in order of a."""
    made = [(r["a"], r["b"], r["OPERATION"], _day(r["EFF_START_DATE"])) for r in rows]
    return sorted(made, key=str)


def _day(value: object) -> int:
    assert isinstance(value, dt.date)
    return value.day


def test_example_of_the_article(spark_engine: NodeSpark, tmp_path: Path) -> None:
    dataset = read_config(article_config(tmp_path))
    day1, day2 = article_days(Random(5), 10_000)
    first = run_dataset(spark_engine, dataset, write_csv(tmp_path / "day1", day1), DAY1)
    assert first.counts == {"I": 10_000}
    second = run_dataset(spark_engine, dataset, write_csv(tmp_path / "day2", day2), DAY2)
    assert second.counts == {"I": 2_000, "U": 4_000, "D": 2_000, "N": 4_000}

    current = {tuple(row[f"keycol{i}"] for i in range(1, 6)): row for row in read(dataset.current)}
    before = {tuple(row[:5]): row for row in day1}
    assert len(current) == 10_000
    for row in day2:
        found, old = current[tuple(row[:5])], before.get(tuple(row[:5]))
        values = [found[f"nonkeycol{i}"] for i in range(1, 11)]
        assert values == pytest.approx([float(value) for value in row[5:]])
        operation = "I" if old is None else "N" if old == row else "U"
        assert found["OPERATION"] == operation
        assert found["EFF_START_DATE"] == (DAY1 if operation == "N" else DAY2)

    history = read(dataset.history)
    found_counts = Counter((str(row["EFF_DATE"]), row["OPERATION"]) for row in history)
    assert found_counts == {
        ("2019-06-18", "I"): 10_000,
        ("2019-06-19", "I"): 2_000,
        ("2019-06-19", "U"): 4_000,
        ("2019-06-19", "D"): 2_000,
    }
    deleted = {
        tuple(r[f"keycol{i}"] for i in range(1, 6)) for r in history if r["OPERATION"] == "D"
    }
    assert deleted == before.keys() - {tuple(row[:5]) for row in day2}


@pytest.mark.parametrize("kind", ["xxhash", "md5"])
def test_day_can_be_repeated(spark_engine: NodeSpark, tmp_path: Path, kind: str) -> None:
    dataset = config(tmp_path, KEYED, hash=kind)
    run_dataset(spark_engine, dataset, write_csv(tmp_path / "1", [(1, "x"), (2, "y")]), DAY1)
    wrong = write_csv(tmp_path / "wrong", [(1, "bad"), (9, "bad")])
    run_dataset(spark_engine, dataset, wrong, DAY2)
    right = write_csv(tmp_path / "right", [(1, "x"), (3, "z")])
    for _ in range(2):
        outcome = run_dataset(spark_engine, dataset, right, DAY2)
        assert outcome.counts == {"I": 1, "D": 1, "N": 1}
        assert short(read(dataset.current)) == [(1, "x", "N", 18), (3, "z", "I", 19)]
        assert short(read(dataset.history)) == [
            (1, "x", "I", 18),
            (2, "y", "D", 19),
            (2, "y", "I", 18),
            (3, "z", "I", 19),
        ]
    with pytest.raises(ChangefeedError, match="2019-06-18 is before 2019-06-19"):
        run_dataset(spark_engine, dataset, right, DAY1)
    # The day after is compared with the repeated day, by the hashes that are kept.
    outcome = run_dataset(spark_engine, dataset, right, DAY3)
    assert outcome.counts == {"N": 2}
    assert short(read(dataset.current)) == [(1, "x", "N", 18), (3, "z", "N", 19)]


@pytest.mark.parametrize("broadcast", [True, False])
def test_delta(spark_engine: NodeSpark, tmp_path: Path, broadcast: bool) -> None:
    most = BROADCAST_BYTES if broadcast else 0
    dataset = config(tmp_path, KEYED, extract_type="delta")
    first = write_csv(tmp_path / "1", [(1, "x"), (2, "y"), (3, "z")])
    run_dataset(spark_engine, dataset, first, DAY1, broadcast=most)
    delta = write_csv(tmp_path / "2", [(2, "Y"), (3, "z"), (4, "new")])
    outcome = run_dataset(spark_engine, dataset, delta, DAY2, broadcast=most)
    assert outcome.counts == {"I": 1, "U": 1, "X": 1, "N": 1}
    assert short(read(dataset.current)) == [
        (1, "x", "X", 18),
        (2, "Y", "U", 19),
        (3, "z", "N", 18),
        (4, "new", "I", 19),
    ]
    changes = [row for row in short(read(dataset.history)) if row[3] == 19]
    assert changes == [(2, "Y", "U", 19), (4, "new", "I", 19)]


@pytest.mark.parametrize("broadcast", [True, False])
def test_names_of_columns_may_hold_anything(
    spark_engine: NodeSpark, tmp_path: Path, broadcast: bool
) -> None:
    """A backtick is what Spark quotes names with, a dot what divides them."""
    most = BROADCAST_BYTES if broadcast else 0
    columns = "- {name: 'a.`b', type: int, key: true}\n- {name: 'c`.d', type: string}\n"
    dataset = config(tmp_path, columns, extract_type="delta")
    first = write_csv(tmp_path / "1", [(1, "x"), (2, "y")])
    run_dataset(spark_engine, dataset, first, DAY1, broadcast=most)
    delta = write_csv(tmp_path / "2", [(2, "z"), (3, "w")])
    outcome = run_dataset(spark_engine, dataset, delta, DAY2, broadcast=most)
    assert outcome.counts == {"I": 1, "U": 1, "X": 1}
    rows = {(row["a.`b"], row["c`.d"], row["OPERATION"]) for row in read(dataset.current)}
    assert rows == {(1, "x", "X"), (2, "z", "U"), (3, "w", "I")}


def test_nulls_and_ignored_columns(spark_engine: NodeSpark, tmp_path: Path) -> None:
    columns = (
        "- {name: a, type: int, key: true, nullable: true}\n- {name: b, type: string, key: true, "
        "nullable: true}\n- {name: c}\n- {name: d}\n- {name: loaded, ignore: true}\n"
    )
    dataset = config(tmp_path, columns)
    first = write_csv(tmp_path / "1", [(1, None, "p", None, "m"), (None, 1, None, "q", "m")])
    run_dataset(spark_engine, dataset, first, DAY1)
    # A value that moves between two columns, of the key and beside it, is another row.
    second = write_csv(tmp_path / "2", [(1, None, None, "p", "t"), (None, 1, None, "q", "t")])
    outcome = run_dataset(spark_engine, dataset, second, DAY2)
    assert outcome.counts == {"U": 1, "N": 1}
    assert {(r["a"], r["b"], r["c"], r["d"], r["loaded"]) for r in read(dataset.current)} == {
        (1, None, None, "p", "t"),
        (None, "1", None, "q", "t"),
    }


PEOPLE = (
    "- {name: a, type: int, key: true}\n- {name: b}\n"
    "- {name: ssn, sensitive: true}\n- {name: mail, sensitive: true, ignore: true}\n"
)


def apart(dataset: Dataset, output: str) -> list[tuple[object, ...]]:
    """``(a, ssn, mail, operation, day of June 2019)`` of the sensitive columns, in order of a."""
    assert dataset.sensitive is not None
    rows = read(dataset.sensitive / output)
    made = [(r["a"], r["ssn"], r["mail"], r["OPERATION"], _day(r["EFF_START_DATE"])) for r in rows]
    return sorted(made, key=str)


@pytest.mark.parametrize("kind", ["full", "delta"])
def test_sensitive_columns(spark_engine: NodeSpark, tmp_path: Path, kind: str) -> None:
    dataset = config(tmp_path, PEOPLE, extract_type=kind)
    first = [(1, "x", "111", "m1"), (2, "y", "222", "m2"), (3, "z", "333", "m3")]
    run_dataset(spark_engine, dataset, write_csv(tmp_path / "1", first), DAY1)
    second = [(1, "x", "111", "new"), (2, "y", "999", "m2"), (4, "v", None, "m4")]
    outcome = run_dataset(spark_engine, dataset, write_csv(tmp_path / "2", second), DAY2)
    gone = "D" if kind == "full" else "X"
    assert outcome.counts == {"I": 1, "U": 1, gone: 1, "N": 1}
    # Who is absent from the extract keeps the sensitive values, too.
    absent = [] if kind == "full" else [(3, "333", "m3", "X", 18)]
    assert apart(dataset, "current") == [
        (1, "111", "new", "N", 18),
        (2, "999", "m2", "U", 19),
        *absent,
        (4, None, "m4", "I", 19),
    ]
    deleted = [(3, "333", "m3", "D", 19)] if kind == "full" else []
    changed = [row for row in apart(dataset, "history") if row[4] == 19]
    assert changed == [(2, "999", "m2", "U", 19), *deleted, (4, None, "m4", "I", 19)]
    for output in (dataset.current, dataset.history):
        assert {"ssn", "mail"}.isdisjoint(read(output)[0])
    # The open hash says nothing of a sensitive value: who reads it cannot find one by trying.
    rows = pads.dataset(dataset.history, format="parquet").to_table().to_pylist()
    assert len({row["nonkeyhash"] for row in rows if row["a"] == 2}) == 1
    outcome = run_dataset(spark_engine, dataset, write_csv(tmp_path / "3", []), DAY3)
    assert outcome.counts == ({"D": 3} if kind == "full" else {"X": 4})
    assert dataset.sensitive is not None
    left = pads.dataset((dataset.sensitive / "current").resolve(), format="parquet")
    assert left.count_rows() == (0 if kind == "full" else 4)
    fifth = write_csv(tmp_path / "5", [(1, "x", "111", "m")])
    outcome = run_dataset(spark_engine, dataset, fifth, dt.date(2019, 6, 21))
    assert outcome.counts == ({"I": 1} if kind == "full" else {"N": 1, "X": 3})


def test_sensitive_columns_of_a_configuration_that_changes(
    spark_engine: NodeSpark, tmp_path: Path
) -> None:
    keyed = config(tmp_path, KEYED)
    run_dataset(spark_engine, keyed, write_csv(tmp_path / "1", [(1, "x"), (2, "y")]), DAY1)
    # New columns that are sensitive: they are NULL in what is known.
    dataset = config(tmp_path, PEOPLE)
    second = [(1, "x", "111", "m1"), (2, "y", None, None)]
    outcome = run_dataset(spark_engine, dataset, write_csv(tmp_path / "2", second), DAY2)
    assert outcome.counts == {"U": 1, "N": 1}
    # Other hashes are computed of the values that are kept apart.
    hashed = config(tmp_path, PEOPLE, hash="md5")
    outcome = run_dataset(spark_engine, hashed, write_csv(tmp_path / "3", second), DAY3)
    assert outcome.counts == {"N": 2}
    assert dataset.sensitive is not None
    dataset.sensitive.rename(tmp_path / "elsewhere")
    later = write_csv(tmp_path / "4", second)
    with pytest.raises(ChangefeedError, match="does not have the sensitive columns of version 3"):
        run_dataset(spark_engine, hashed, later, dt.date(2019, 6, 21))
    opened = config(tmp_path, PEOPLE.replace(", sensitive: true", ""))
    with pytest.raises(ChangefeedError, match="column ssn cannot become open"):
        run_dataset(spark_engine, opened, later, dt.date(2019, 6, 21))


def test_refused_rows_of_sensitive_columns_are_kept_apart(
    spark_engine: NodeSpark, tmp_path: Path
) -> None:
    dataset = config(tmp_path, PEOPLE)
    with pytest.raises(ChangefeedError) as caught:
        run_dataset(spark_engine, dataset, write_csv(tmp_path / "1", [("x", "b", "111", "")]), DAY1)
    assert dataset.sensitive is not None
    rejected = dataset.sensitive / "versions" / "rejected"
    assert str(rejected) in caught.value.hint
    [report] = rejected.glob("*.csv")
    assert "111" in report.read_text()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (report, rejected)] == [0o600, 0o700]
    left = [path.name for path in (dataset.sensitive / "versions").iterdir()]
    assert left == ["rejected"], "whole rows are removed"
    assert [path.name for path in dataset.versions.iterdir()] == ["lock"]


def test_decimals_of_json_keep_their_digits(spark_engine: NodeSpark, tmp_path: Path) -> None:
    columns = "- {name: A, type: int, key: true}\n- {name: b, type: 'decimal(38,10)'}\n"
    columns += "- {name: c, type: 'decimal(4,2)'}\n- {name: more, type: string}\n"
    dataset, extract = config(tmp_path, columns), tmp_path / "day.json"

    def run(date: dt.date, *lines: str) -> dict[str, int]:
        extract.write_text("\n".join(lines))
        return dict(run_dataset(spark_engine, dataset, str(extract), date).counts)

    more, second = '"more": {"x-y": 1.5}', '{"a": 2, "c": 1.5}'
    first = f'{{"a": 1, "b": 12345678901234567890.0000000001, "c": 1e1, {more}}}'
    assert run(DAY1, first, second) == {"I": 2}
    rows = sorted(read(dataset.current), key=lambda row: str(row["A"]))
    assert [row["b"] for row in rows] == [Decimal("12345678901234567890.0000000001"), None]
    assert [row["c"] for row in rows] == [Decimal(10), Decimal("1.50")]
    assert run(DAY2, first.replace("0001", "0002"), second) == {"U": 1, "N": 1}
    large = f'{{"a": 3, "c": 100.5, {more}}}'
    for line, fault in ((large, "c (decimal(4,2)): 1"), ("x", "(not JSON): 1")):
        with pytest.raises(ChangefeedError) as raised:
            run(DAY3, first, second, line)
        assert fault in raised.value.detail


def test_refused_extracts_change_nothing(spark_engine: NodeSpark, tmp_path: Path) -> None:
    dataset = config(tmp_path, KEYED)
    run_dataset(spark_engine, dataset, write_csv(tmp_path / "1", [(1, "x")]), DAY1)
    rejected = dataset.versions / "rejected"

    def refused(rows: list[tuple[object, ...]], header: bool = False) -> ChangefeedError:
        with pytest.raises(ChangefeedError) as caught:
            run_dataset(spark_engine, dataset, write_csv(tmp_path / "bad", rows), DAY2)
        assert short(read(dataset.current)) == [(1, "x", "I", 18)]
        assert short(read(dataset.history)) == [(1, "x", "I", 18)]
        return caught.value

    def report() -> list[list[str]]:
        (file,) = rejected.glob("*.csv")
        return list(csv.reader(file.read_text().splitlines()))

    error = refused([(1, "x"), (2, "y"), (2, "z"), (3, "p"), (3, "p")])
    assert "2 keys appear more than once" in error.message
    assert report() == [["a", "count"], ["2", "2"], ["3", "2"]]
    error = refused([("12x", "secret"), (None, "no key"), (5, "fine")])
    assert "a (int, not null): 2" in error.detail
    assert "secret" not in str(error) + error.detail + error.hint
    assert sorted(row[0] for row in report()[1:]) == ["", "12x"]
    error = refused([(7, "too", "many"), (8, "fine")])
    assert "(number of values): 1" in error.detail


def test_a_new_type_that_known_values_do_not_have(
    spark_engine: NodeSpark, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    dataset = config(tmp_path, KEYED)
    run_dataset(spark_engine, dataset, write_csv(tmp_path / "1", [(1, "abc"), (2, "5")]), DAY1)
    changed = config(tmp_path, KEYED.replace("b, type: string", "b, type: int"))
    later = write_csv(tmp_path / "2", [(1, "7"), (2, "5")])
    with pytest.raises(ChangefeedError, match="cannot be cast to the new types") as caught:
        run_dataset(spark_engine, changed, later, DAY2)
    assert caught.value.detail == "rows by column: b (int): 1"
    assert "keep the old type" in caught.value.hint
    run_dataset(spark_engine, dataset, later, DAY2)
    assert run_dataset(spark_engine, changed, later, DAY3).counts == {"N": 2}
    assert run_dataset(spark_engine, changed, later, DAY3).counts == {"N": 2}
    assert capfd.readouterr().err == ""


def test_csv_as_programs_write_it(spark_engine: NodeSpark, tmp_path: Path) -> None:
    """Quotes that are doubled, backslashes, line breaks; columns that are not compared."""
    dataset = config(tmp_path, "- {name: a, type: string, key: true}\n- {name: b}\n", header="true")
    values = ['say "hi", then', "C:\\dir\\", "two\nlines,or three", 'a"b']
    rows = [(str(number), value, "more") for number, value in enumerate(values)]
    first = write_csv(tmp_path / "1", [("a", "b", "c"), *rows])
    assert run_dataset(spark_engine, dataset, first, DAY1).counts == {"I": 4}
    assert [row["b"] for row in sorted(read(dataset.current), key=str)] == values
    short_line = write_csv(tmp_path / "2", [("a", "b", "c"), ("1", "x")])
    with pytest.raises(ChangefeedError, match="rows of the extract") as raised:
        run_dataset(spark_engine, dataset, short_line, DAY2)
    assert "(number of values): 1" in raised.value.detail


@pytest.mark.parametrize("kind", ["md5", "xxhash"])
def test_a_microsecond_is_a_difference(spark_engine: NodeSpark, tmp_path: Path, kind: str) -> None:
    columns = KEYED + "- {name: t, type: timestamp}\n- {name: n, type: timestamp_ntz}\n"
    dataset = config(tmp_path, columns, hash=kind)
    base = "2020-01-01 00:00:00.000001"
    first = write_csv(tmp_path / "1", [(key, "x", base, base) for key in (1, 2, 3)])
    run_dataset(spark_engine, dataset, first, DAY1)
    later = "2020-01-01 00:00:00.000002"
    changed = [(1, "x", base, base), (2, "x", later, base), (3, "x", base, later)]
    outcome = run_dataset(spark_engine, dataset, write_csv(tmp_path / "2", changed), DAY2)
    assert outcome.counts == {"N": 1, "U": 2}


def test_a_key_twice_whatever_its_column_is_called(spark_engine: NodeSpark, tmp_path: Path) -> None:
    dataset = config(tmp_path, "- {name: number, type: int, key: true}\n- {name: b}\n")
    with pytest.raises(ChangefeedError, match="1 key appears more than once"):
        run_dataset(spark_engine, dataset, write_csv(tmp_path / "1", [(1, "x"), (1, "y")]), DAY1)


def test_keys_with_one_hash_are_different_rows(spark_engine: NodeSpark, tmp_path: Path) -> None:
    """Rows are matched by hashes; where these match different keys, the keys are compared."""
    key = "- {name: a, type: bigint, key: true}\n- {name: k, type: bigint, key: true}\n"
    dataset = config(tmp_path, key + "- {name: b}\n- {name: c, type: int}\n")
    twin = (3, same_hash((1, 2), 3))
    first = [(1, 2, "x", 1), (5, 6, "y", 1), (7, 8, "z", 1)]
    run_dataset(spark_engine, dataset, write_csv(tmp_path / "1", first), DAY1)
    second = [(*twin, "x", 1), (5, 6, "y", 2), (7, 8, "z", 1)]
    outcome = run_dataset(spark_engine, dataset, write_csv(tmp_path / "2", second), DAY2)
    assert outcome.counts == {"I": 1, "U": 1, "D": 1, "N": 1}
    hashes = pads.dataset(dataset.history, format="parquet", partitioning="hive").to_table()
    of = {(r["a"], r["k"]): r["keyhash"] for r in hashes.to_pylist()}
    assert of[twin] == of[1, 2], "the hashes of the test are not equal"
    both = [*second, (1, 2, "x", 1)]
    outcome = run_dataset(spark_engine, dataset, write_csv(tmp_path / "3", both), DAY3)
    assert outcome.counts == {"I": 1, "N": 3}
    again = run_dataset(spark_engine, dataset, write_csv(tmp_path / "4", both), DAY3)
    assert again.counts == {"I": 1, "N": 3}


def same_hash(key: tuple[int, int], first: int) -> int:
    """``b`` with xxhash64(first, b) = xxhash64(key), the algorithm undone.

    For a long: seed + P5 + 8, xor f(long), and more that depends on these alone, where f(long) is
    rotate_left(long * P2, 31) * P1 (github.com/Cyan4973/xxHash, doc/xxhash_spec.md).
    """
    p1, p2, p3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
    p4, p5, mask = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5, (1 << 64) - 1

    def rotate(number: int, left: int) -> int:
        return ((number << left) | (number >> (64 - left))) & mask

    def mixed(number: int) -> int:
        return rotate(number * p2 & mask, 31) * p1 & mask

    def hashed(number: int, seed: int) -> int:
        made = (seed + p5 + 8 & mask) ^ mixed(number)
        made = rotate(made, 27) * p1 + p4 & mask
        made = (made ^ made >> 33) * p2 & mask
        made = (made ^ made >> 29) * p3 & mask
        return made ^ made >> 32

    seeds = [hashed(number, 42) + p5 + 8 & mask for number in (key[0], first)]
    wanted = mixed(key[1]) ^ seeds[0] ^ seeds[1]
    b = rotate(wanted * pow(p1, -1, 1 << 64) & mask, 33) * pow(p2, -1, 1 << 64) & mask
    return b - (1 << 64) if b >> 63 else b


def test_rows_are_matched_by_hash(spark_engine: NodeSpark, tmp_path: Path) -> None:
    """No join: the rows of both sides are written as they are read."""
    dataset = config(tmp_path, KEYED)
    first = write_csv(tmp_path / "1", [(1, "x"), (2, "y"), (3, "z")])
    base = run_dataset(spark_engine, dataset, first, DAY1).version
    second = write_csv(tmp_path / "2", [(2, "y"), (3, "Z"), (4, "w")])
    target = tmp_path / "written"
    with spark_engine.use("test") as session:
        rows = typed_rows(dataset, read_extract(session, dataset, second))
        current = session.read.parquet(str(base.rows)).drop("OPERATION")
        assert can_compare(session, dataset, base)
        written = write_by_hash(session, dataset, rows, current, base, DAY2, target)
    assert written == RowCounts({"N": 1, "U": 1, "I": 1, "D": 1}, 0)
    assert short(read(target)) == [
        (1, "x", "D", 19),
        (2, "y", "N", 18),
        (3, "Z", "U", 19),
        (4, "w", "I", 19),
    ]
    assert not (tmp_path / "hashes").exists()


def test_current_folder_of_somebody_else(spark_engine: NodeSpark, tmp_path: Path) -> None:
    dataset = config(tmp_path, KEYED)
    dataset.current.mkdir()
    (dataset.current / "precious.parquet").write_bytes(b"1")
    with pytest.raises(ChangefeedError, match="is no dataset of changefeed"):
        run_dataset(spark_engine, dataset, write_csv(tmp_path / "1", [(1, "x")]), DAY1)
    assert (dataset.current / "precious.parquet").read_bytes() == b"1"


@pytest.mark.extended
def test_more_rows_than_a_task_has_memory_for(tmp_path: Path) -> None:
    """Rows are joined by hash tables only where these fit; the table of a whole side does not."""
    config(tmp_path, KEYED, hash="md5")
    wide = "x" * 20_000
    write_csv(tmp_path / "1", ((key, f"{key}{wide}") for key in range(8_000)))
    write_csv(tmp_path / "2", ((key, f"{key}{wide}") for key in range(1_000, 9_000)))
    little = ["--heap", "1g", "--conf", "spark.memory.fraction=0.15"]
    first = command(tmp_path, "config.yaml", "1", "2019-06-18", *little)
    assert first.returncode == 0, first.stderr
    second = command(tmp_path, "config.yaml", "2", "2019-06-19", *little)
    assert second.returncode == 0, second.stderr
    for line in ("I           1,000  inserted", "D           1,000  deleted"):
        assert line in second.stdout


def command(folder: Path, *words: str, fault: str = "") -> subprocess.CompletedProcess[str]:
    """``changefeed dataset`` with some words, in a process of its own in ``folder``."""
    return subprocess.run(
        [sys.executable, "-m", "shell", "dataset", *words],
        cwd=folder,
        env={**os.environ, faults.VARIABLE: fault},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.extended
def test_command(tmp_path: Path) -> None:
    """The article's commands, in a process killed at the switch, then as they are."""
    path = article_config(tmp_path)
    day1, day2 = article_days(Random(7), 100)
    write_csv(tmp_path / "day1", day1)
    write_csv(tmp_path / "day2", day2)

    first = command(tmp_path, path.name, "day1", "2019-06-18")
    assert first.returncode == 0, first.stderr
    assert "I             100  inserted" in first.stdout
    killed = command(tmp_path, path.name, "day2", "2019-06-19", fault="dataset.switched:kill")
    assert killed.returncode == -signal.SIGKILL
    second = command(tmp_path, path.name, "day2", "2019-06-19")
    assert second.returncode == 0, second.stderr
    for line in (
        "I              20  inserted",
        "U              40  updated",
        "D              20  deleted",
        "N              40  unchanged",
    ):
        assert line in second.stdout
    wrong = command(tmp_path, path.name, "day2", "19.06.2019")
    assert wrong.returncode == 1
    assert "2019-06-18" in wrong.stderr


def test_effective_date() -> None:
    assert effective_date("2019-06-18") == DAY1
    for text in ("18.06.2019", "20190618", "2019-02-30", ""):
        with pytest.raises(ChangefeedError, match="invalid effective date"):
            effective_date(text)


def test_tables_of_a_catalog_in_memory_are_refused(spark_engine: NodeSpark, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.format(folder=tmp_path))
    dataset = read_config(path)
    with pytest.raises(ChangefeedError, match="session catalog is in memory") as caught:
        run_dataset(spark_engine, dataset, write_csv(tmp_path / "1", [(1,)]), DAY1)
    assert "spark.sql.catalogImplementation=hive" in caught.value.hint
    assert not dataset.current.exists()

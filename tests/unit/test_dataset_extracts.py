"""Which extract is compared next, and a dataset as a URI."""

from __future__ import annotations

import datetime as dt
import os
from dataclasses import replace
from pathlib import Path

import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.core.uri import sink_location
from changefeed.dataset.definition import (
    Definition,
    define,
    definition_of,
    marked,
    read_columns,
    uri_of,
)
from changefeed.dataset.extracts import (
    DATE_OF_NAME,
    ExtractSchedule,
    FoundExtract,
    absolute_location,
    check_files,
    check_name,
    check_schedule,
    date_of,
    last_arrived,
    next_extract,
)
from changefeed.dataset.model import Extract, Hash
from changefeed.dataset.store import ExtractMark, Version

TODAY = dt.date(2019, 6, 18)


def after(found: FoundExtract | None, made: float = 100.0) -> Version:
    """The version that a comparison with an extract made."""
    mark = None if found is None else found.mark
    return Version(1, TODAY, None, "", {}, Path("/v"), made, mark, sides={})


def test_one_file_is_due_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "in.csv"
    schedule = ExtractSchedule(str(file))
    assert next_extract(schedule, None, 0) is None
    file.write_text("1")
    first = next_extract(schedule, None, 0)
    assert first is not None and first.location == str(file) and first.mark.name == ""
    assert next_extract(schedule, after(first), 0) is None
    file.write_text("12")
    second = next_extract(schedule, after(first), 0)
    assert second is not None and second.mark != first.mark
    # A run of the command does not say which files it read.
    assert next_extract(schedule, after(None), 0) == second


def test_folder_is_one_extract_without_hidden_files(tmp_path: Path) -> None:
    (tmp_path / "_SUCCESS").write_text("")
    schedule = ExtractSchedule(f"file://{tmp_path}")
    assert next_extract(schedule, None, 0) is None
    (tmp_path / "part-1.csv").write_text("1")
    first = next_extract(schedule, None, 0)
    assert first is not None and first.location == str(tmp_path)
    (tmp_path / "part-2.csv").write_text("2")
    assert next_extract(schedule, after(first), 0) not in (None, first)


def test_each_match_of_a_glob_is_due_once_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("day2", "day1", "day3"):
        (tmp_path / name).mkdir()
    for name in ("day2", "day1"):
        (tmp_path / name / "part.csv").write_text("1")
    schedule = ExtractSchedule(f"{tmp_path}/day*")
    latest, names = None, []
    for _ in range(2):
        found = next_extract(schedule, latest, 0)
        assert found is not None
        names.append(found.mark.name)
        latest = after(found)
    assert names == ["day1", "day2"]
    os.utime(tmp_path / "day1" / "part.csv", (1, 1))
    assert next_extract(schedule, latest, 0) is None
    (tmp_path / "day3" / "part.csv").write_text("1")
    third = next_extract(schedule, latest, 0)
    assert third is not None and third.mark.name == "day3"


def test_names_of_matches_begin_with_the_first_wildcard(tmp_path: Path) -> None:
    """Files of equal names in one folder per day are as many extracts."""
    for day in ("2019-06-19", "2019-06-18", "2019-06-18-late", "_being_written"):
        (tmp_path / day).mkdir()
        (tmp_path / day / "stock.csv").write_text("1")
    for location in (f"{tmp_path}/*/stock.csv", f"{tmp_path}/*/"):
        schedule = ExtractSchedule(location, date=DATE_OF_NAME)
        latest, seen = None, []
        while found := next_extract(schedule, latest, 0):
            seen.append((found.mark.name.split("/")[0], date_of(schedule, found, TODAY).day))
            latest = after(found)
        assert seen == [("2019-06-18", 18), ("2019-06-18-late", 18), ("2019-06-19", 19)]
        last = last_arrived(schedule, None, 0)
        assert last is not None and last.mark == (latest and latest.extract)


def test_what_spark_is_still_writing_is_no_extract(tmp_path: Path) -> None:
    """Without a file that Spark reads a full extract would delete every row."""
    folder = tmp_path / "day1"
    made = folder / "_temporary" / "0" / "part-0.csv"
    made.parent.mkdir(parents=True)
    made.write_text("1")
    assert next_extract(ExtractSchedule(str(folder)), None, 0) is None
    for location in (str(folder), f"file://{folder}", f"{tmp_path}/day*"):
        with pytest.raises(ChangefeedError, match="there is no extract") as caught:
            check_files(location)
        assert caught.value.hint == "check the path."
    (folder / "_shop=1").mkdir()
    (folder / "_shop=1" / "part-0.csv").write_text("1")
    check_files(str(folder))
    assert next_extract(ExtractSchedule(str(folder)), None, 0) is not None


def test_a_name_that_spark_takes_for_a_pattern_is_refused(tmp_path: Path) -> None:
    """Spark read x1.csv for x[1].csv."""
    (tmp_path / "x[1].csv").write_text("1")
    schedule = ExtractSchedule(f"{tmp_path}/*.csv")
    found = next_extract(schedule, None, 0)
    assert found is not None
    with pytest.raises(ChangefeedError, match=r"extract x\[1\].csv as a pattern"):
        check_name(schedule, found)
    check_name(schedule, replace(found, location=f"{tmp_path}/x-1.csv"))


def test_the_last_that_arrived(tmp_path: Path) -> None:
    schedule = ExtractSchedule(str(tmp_path / "*.csv"))
    assert last_arrived(schedule, None, 0) is None
    for name in "bca":
        (tmp_path / f"{name}.csv").write_text(name)
    first, last = next_extract(schedule, None, 0), last_arrived(schedule, None, 0)
    assert first is not None and first.mark.name == "a.csv"
    assert last is not None and last.mark.name == "c.csv"
    assert last_arrived(schedule, after(last), 0) is None


def test_schedule_is_kept() -> None:
    schedule = ExtractSchedule("jdbc:x://h/d#t", every=60)
    assert next_extract(schedule, None, 0) is not None
    found = next_extract(schedule, after(None, made=100), 160)
    assert found is not None and found.location == "jdbc:x://h/d#t"
    assert next_extract(schedule, after(found, made=100), 159) is None


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        (ExtractSchedule("s3a://bucket/x"), "option every is needed"),
        (ExtractSchedule("/in/*.csv", every=1), "does not go with a glob"),
        (ExtractSchedule("/in/x.csv", date=DATE_OF_NAME), "needs a glob"),
        (ExtractSchedule("/in/{a,b}.csv"), "braces in a location"),
    ],
)
def test_schedules_that_could_not_be_kept(schedule: ExtractSchedule, said: str) -> None:
    with pytest.raises(ChangefeedError, match=said):
        check_schedule(schedule)


@pytest.mark.parametrize("name", ["stock-2019-06-19.csv", "20190619", "v20190699_2019-06-19"])
def test_date_of_a_name(name: str) -> None:
    schedule = ExtractSchedule("/in/*", date=DATE_OF_NAME)
    found = FoundExtract("", ExtractMark(name, "s"))
    assert date_of(schedule, found, TODAY) == dt.date(2019, 6, 19)
    assert date_of(replace(schedule, date=None), found, TODAY) == TODAY
    fixed = dt.date(2020, 1, 1)
    assert date_of(replace(schedule, date=fixed), found, TODAY) == fixed


def test_name_without_a_date() -> None:
    with pytest.raises(ChangefeedError, match="extract stock-1 holds no date"):
        date_of(
            ExtractSchedule("/in/*", date=DATE_OF_NAME),
            FoundExtract("", ExtractMark("stock-1", "s")),
            TODAY,
        )


def test_definition_survives_its_uri() -> None:
    columns = read_columns('id bigint, "unit ""net"" price" decimal(10, 2), `b,c` string')
    assert [c.name for c in columns] == ["id", 'unit "net" price', "b,c"]
    schedules = [
        ExtractSchedule("/in/a b&c?.csv", date=DATE_OF_NAME),
        ExtractSchedule("s3a://b/#x", every=90.5, date=dt.date(2019, 6, 18)),
    ]
    plain = define("st ock", marked(columns, ["ID"], ["b,c"]), Path("/data/st ock"))
    assert [c.key for c in plain.columns] == [True, False, False]
    assert [c.nullable for c in plain.columns] == [False, True, True]
    other = replace(
        plain,
        extract=Extract.DELTA,
        hash=Hash.MD5,
        format="csv",
        delimiter="|",
        header=False,
        current_table="db.stock",
        history_table="default.stock_history",
    )
    apart = define(
        "st ock",
        marked(columns, ["ID"], [], ['unit "net" price']),
        Path("/data/st ock"),
        sensitive=Path("/private/st ock"),
        sensitive_table="s.stock",
        sensitive_history_table="s.stock_history",
    )
    assert [c.name for c in apart.sensitive_columns] == ['unit "net" price']
    for dataset in (plain, other, apart):
        for schedule in schedules:
            made = Definition(dataset, schedule)
            assert definition_of(uri_of(made)) == made


def test_password_of_a_driver_is_not_shown() -> None:
    dataset = define("d", marked(read_columns("id int"), ["id"], []), Path("/data/d"))
    uri = uri_of(Definition(dataset, ExtractSchedule("jdbc:oracle:thin:scott/tiger@h#t", 60)))
    assert definition_of(uri).schedule.location == "jdbc:oracle:thin:scott/tiger@h#t"
    assert "tiger" not in sink_location(uri)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("name=d", "nom=d"), "unknown parameter nom"),
        (("name=d&", ""), "no parameter name"),
        (("int", "itn"), "column id: unknown type 'itn'"),
        (("columns=id%20int", "columns=id"), "columns cannot be read near 'id'"),
        (("extract=full", "extract=all"), "extract of the dataset must be one of full, delta"),
        (("keys=id", "keys=no"), "has no column no"),
        (("history=/data/d_history", "history=/data/d"), "are two folders"),
        (("hash=", "sensitive=no&hash="), "has no column no"),
        (("hash=", "sensitive=ID&hash="), "key column id cannot be sensitive"),
        (("hash=", "sensitive_table=db.t&hash="), "table db.t has nothing to show"),
        (("hash=", "current_table=a.b.c&hash="), "current_table of the dataset must be a table of"),
        (
            ("hash=", "current_table=t&history_table=default.T&hash="),
            "table default.t cannot show two outputs",
        ),
    ],
)
def test_wrong_definitions(change: tuple[str, str], said: str) -> None:
    dataset = define("d", marked(read_columns("id int"), ["id"], []), Path("/data/d"))
    uri = uri_of(Definition(dataset, ExtractSchedule("/in/x.csv")))
    assert change[0] in uri
    with pytest.raises(ChangefeedError, match=said):
        definition_of(uri.replace(*change))


def test_a_path_is_that_of_whoever_wrote_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither Spark's JVM nor the node works in the directory of the shell."""
    monkeypatch.chdir(tmp_path)
    assert absolute_location("in/day-*.csv") == str(tmp_path / "in/day-*.csv")
    for location in ("/in/day1", "file:///in/day1", "s3a://in/day1", "jdbc:x://h/d#t"):
        assert absolute_location(location) == location

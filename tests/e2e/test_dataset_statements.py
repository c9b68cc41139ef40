"""CREATE CHANGEFEED FOR DATASET: extracts that arrive become changes of a feed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pyarrow.dataset as pads
import pytest

from changefeed.apply import Declaration
from changefeed.catalog import Status
from changefeed.core.errors import ChangefeedError
from changefeed.core.timings import Timings
from changefeed.spark.session import NodeSpark
from changefeed_testing.sinks.readers import visible_files
from tests.e2e.feeds import Feeds, running
from tests.helpers.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.spark]

Change = tuple[int, str | None]


def put(path: Path, *rows: str, header: str = "id,item,seen") -> None:
    """An extract that is there at once, as one that was moved into place."""
    path.parent.mkdir(exist_ok=True)
    begun = path.with_name("." + path.name)
    begun.write_text("\n".join([header, *rows]) + "\n")
    begun.replace(path)


def changes(folder: Path) -> list[Change]:
    """``(id, item)`` of each message in their order, None for a delete."""
    found: list[dict[str, Any]] = [
        json.loads(line)
        for path in visible_files(folder)
        if path.suffix == ".ndjson"
        for line in path.read_text().splitlines()
    ]
    return [(m["key"][0], m["after"] and m["after"]["item"]) for m in found]


@pytest.fixture
def feeds(tmp_path: Path, spark_engine: NodeSpark) -> Any:
    timings = Timings(extract_look=0.2, rest_longest=1.0)
    with running(tmp_path / "state", spark_engine, timings=timings) as made:
        yield made


def arrived(out: Path, wanted: set[Change]) -> None:
    """Wait until exactly these changes came after what was there before."""
    until(lambda: set(changes(out)) >= wanted)


@pytest.mark.extended
def test_a_file_that_is_replaced_is_compared_again(feeds: Feeds, tmp_path: Path) -> None:
    extract, out = tmp_path / "in" / "stock.csv", tmp_path / "out"
    put(extract, "1,apple,09:00", "2,pear,09:00")
    create = (
        f"CREATE CHANGEFEED stock FOR DATASET '{extract}' KEY (id) EXCEPT (seen) "
        f"INTO 'file://{out}' WITH key_in_value"
    )
    shown = str(feeds.execute(f"EXPLAIN {create}").rows)
    assert "columns id bigint, item string, seen" in shown
    assert "a difference in seen is no update" in shown
    assert feeds.execute("SHOW EXTERNAL CONNECTIONS").rows == []
    feeds.execute(create)
    arrived(out, {(1, "apple"), (2, "pear")})
    # Twice on one day: each comparison adds to the day's history.
    put(extract, "1,apple,10:00", "2,plum,10:00", "3,fig,10:00")
    arrived(out, {(2, "plum"), (3, "fig")})
    put(extract, "1,apple,11:00", "3,fig,11:00")
    arrived(out, {(2, None)})
    put(extract, "1,apple,12:00", "3,kiwi,12:00")
    feeds.sync("stock")
    assert sorted(changes(out)[:2]) == [(1, "apple"), (2, "pear")]
    assert sorted(changes(out)[2:4]) == [(2, "plum"), (3, "fig")]
    assert changes(out)[4:] == [(2, None), (3, "kiwi")], "SYNC waits for an extract that is there"
    assert "stock" in str(feeds.execute("SHOW CREATE CHANGEFEED stock").rows)
    # The definition goes with the last feed that reads it; a feed of its name goes on.
    feeds.execute("CREATE CHANGEFEED other FOR stock.datasets.stock INTO 'null://'")
    feeds.execute("DROP CHANGEFEED stock")
    assert [row[0] for row in feeds.execute("SHOW EXTERNAL CONNECTIONS").rows] == ["stock"]
    feeds.execute("DROP CHANGEFEED other")
    assert feeds.execute("SHOW EXTERNAL CONNECTIONS").rows == []
    feeds.execute(create.replace(str(out), f"{out}2"))
    put(extract, "1,apple,13:00", "3,lime,13:00")
    feeds.sync("stock")
    assert (3, "lime") in changes(Path(f"{out}2"))


def test_a_feed_without_a_sink_leaves_no_connection(feeds: Feeds, tmp_path: Path) -> None:
    extract = tmp_path / "in" / "stock.csv"
    put(extract, "1,apple,09:00")
    stream = feeds.execute(f"CREATE CHANGEFEED FOR DATASET '{extract}' KEY (id)").stream
    assert stream is not None
    assert next(key for _, key, *_ in stream if key) == "[1]"
    assert len(feeds.execute("SHOW EXTERNAL CONNECTIONS").rows) == 1
    cast(Any, stream).close()
    assert feeds.execute("SHOW EXTERNAL CONNECTIONS").rows == []


@pytest.mark.extended
def test_each_file_of_a_glob_is_an_extract_with_its_date(feeds: Feeds, tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    put(folder / "stock-2019-06-18.csv", "1,apple,a")
    put(folder / "stock-2019-06-19.csv", "2,pear,a", "1,melon,b")
    feeds.execute(
        f"CREATE CHANGEFEED d FOR DATASET '{folder}/stock-*.csv' KEY (id) INTO 'file://{out}' "
        "WITH key_in_value, extract = 'delta', effective_date = 'name', "
        f"history_path = '{tmp_path}/history', current_path = '{tmp_path}/current'"
    )
    arrived(out, {(1, "apple"), (2, "pear"), (1, "melon")})
    # What an error of one extract keeps from the feed comes when the extract is corrected.
    put(folder / "stock-2019-06-20.csv", "3,fig,a", "3,kiwi,b")

    def refused() -> bool:
        rows = feeds.execute("SHOW CHANGEFEED d ERRORS").rows
        place = f"the keys are in {tmp_path}/current.versions/rejected"
        return "1 key appears more than once" in str(rows) and place in str(rows)

    with pytest.raises(ChangefeedError, match="1 key appears more than once") as caught:
        feeds.sync("d")
    assert "remove the rows that are too many" in caught.value.hint
    assert refused()
    until(lambda: feeds.catalog.job("d").status is Status.STALLED)
    assert "1 key appears more than once" in feeds.catalog.job("d").reason
    put(folder / "stock-2019-06-20.csv", "3,kiwi,b")
    feeds.sync("d")
    until(lambda: feeds.catalog.job("d").status is Status.RUNNING)
    assert changes(out)[3:] == [(3, "kiwi")]
    dates = sorted(path.name for path in (tmp_path / "history").glob("EFF_DATE=*"))
    assert dates == [f"EFF_DATE=2019-06-{day}" for day in (18, 19, 20)]


def test_sensitive_columns_are_kept_apart(feeds: Feeds, tmp_path: Path) -> None:
    extract, out, apart = tmp_path / "in" / "people.csv", tmp_path / "out", tmp_path / "private"
    header = "id,item,ssn"
    put(extract, "1,apple,one-1", "2,pear,two-2", header=header)
    create = (
        f"CREATE CHANGEFEED people FOR DATASET '{extract}' KEY (id) INTO 'file://{out}' "
        f"WITH key_in_value, sensitive = 'SSN', sensitive_path = '{apart}', "
        f"columns = 'id bigint, item string, ssn string', current_path = '{tmp_path}/current'"
    )
    shown = str(feeds.execute(f"EXPLAIN {create}").rows)
    assert f"sensitive columns ssn: kept apart in {apart}" in shown
    assert [row[0] for row in feeds.execute(f"VALIDATE {create}").rows] == ["ok"]
    feeds.execute(create)
    # Once it is there, the feed can be altered by its statement, the dataset cannot.
    again = create.replace("CREATE", "CREATE OR REPLACE")
    assert [row[0] for row in feeds.execute(f"EXPLAIN {again}").rows] == ["nothing"]
    same = feeds.execute(again.replace("columns = 'id bigint, item string, ssn string', ", ""))
    assert "as the statement says" in str(same.notices)
    [change] = feeds.execute(f"EXPLAIN {again}, resolved = '10s'").rows
    assert change == ("change", "resolved set to '10s'")
    with pytest.raises(ChangefeedError, match="its dataset stays as it was defined"):
        feeds.execute(again.replace("KEY (id)", "KEY (item)"))
    declaration = Declaration([create.replace("KEY (id)", "KEY (item)")], feeds.interpreter, {})
    with pytest.raises(ChangefeedError, match="its dataset stays as it was defined"):
        declaration.plan(prune=False)
    assert Declaration([create], feeds.interpreter, {}).plan(prune=False) == []
    arrived(out, {(1, "apple"), (2, "pear")})
    # Only the sensitive column is another: an update all the same.
    put(extract, "1,apple,one-1", "2,pear,new-2", header=header)
    feeds.sync("people")
    assert changes(out)[2:] == [(2, "pear")]
    messages = "".join(path.read_text() for path in visible_files(out))
    assert "ssn" not in messages and "new-2" not in messages
    for folder in (tmp_path / "current", tmp_path / "current_history"):
        found = pads.dataset(folder.resolve(), format="parquet", partitioning="hive").to_table()
        assert found.num_rows >= 2 and "ssn" not in found.column_names
    kept = pads.dataset((apart / "current").resolve(), format="parquet", partitioning="hive")
    rows = kept.to_table(columns=["id", "ssn"]).to_pylist()
    assert sorted((row["id"], row["ssn"]) for row in rows) == [(1, "one-1"), (2, "new-2")]
    feeds.execute("DROP CHANGEFEED people")
    assert (apart / "current").exists()
    opened = create.replace("sensitive = 'SSN', ", "").replace(f"sensitive_path = '{apart}', ", "")
    with pytest.raises(ChangefeedError, match="column ssn cannot become open"):
        feeds.execute(opened)


def test_what_is_refused(feeds: Feeds, tmp_path: Path) -> None:
    def refused(rest: str, match: str, hint: str = "") -> None:
        with pytest.raises(ChangefeedError, match=match) as caught:
            feeds.execute(f"CREATE CHANGEFEED c FOR DATASET {rest}")
        assert hint in caught.value.hint
        assert feeds.execute("SHOW EXTERNAL CONNECTIONS").rows == []

    columns = "columns = 'id bigint, item string'"
    place = f"'{tmp_path}/x.csv'"
    refused(f"{place} KEY (id) INTO 'null://'", "no extract yet to read the columns from")
    unknown = 'invalid option "extrakt"'
    wrong = "INTO 'null://' WITH extrakt = 'full'"
    refused(f"{place} KEY (id) {wrong}", unknown, 'did you mean "extract"?')
    refused(f"{place} KEY (id) INTO 'null://' WITH format = 'jsn'", "unknown format")
    refused(f"{place} KEY (id) INTO 'nul://'", "unsupported sink|nul")
    refused(f"{place} KEY (no) INTO 'null://' WITH {columns}", "has no column no")
    refused(f"{place} KEY (id, ID) INTO 'null://' WITH {columns}", "id is named twice")
    refused(f"{place} KEY (id) EXCEPT (id) INTO 'null://' WITH {columns}", "cannot be left out")
    refused(f"{place} KEY (id) INTO 'null://' WITH {columns}, extract = 'ful'", "unknown extract")
    refused(f"{place} KEY (id) INTO 'null://' WITH {columns}, every = 'x'", "is no interval")
    refused(f"{place} KEY (id) INTO 'nul://' WITH {columns}", "unsupported sink|nul")
    table = f"{place} KEY (id) INTO 'null://' WITH {columns}, history_table"
    refused(f"{table} = 'a.b.c'", "option history_table must be a table of Spark's session catalog")
    refused(f"{table} = 'db.t'", "session catalog is in memory", "catalogImplementation=hive")
    again = f"{table} = 'db.t', current_table = 'db.T'"
    refused(again, "table db.t cannot show two outputs of the dataset")
    apart = f"{place} KEY (id) INTO 'null://' WITH {columns}, sensitive"
    refused(f"{apart} = 'no'", "has no column no", "id, item")
    refused(f"{apart} = 'id'", "key column id cannot be sensitive", "joined")
    refused(f"{apart}_path = '/x'", "option sensitive_path needs the option sensitive", "ssn")
    inside = f"{apart} = 'item', sensitive_path = '{tmp_path}/c/x', current_path = '{tmp_path}/c'"
    refused(inside, "must be apart from")
    refused(f"'jdbc:x://h/d#t' KEY (id) INTO 'null://' WITH {columns}", "option every is needed")
    refused(f"{place} KEY (id) INTO 'null://' WITH {columns}, initial_scan = 'only'", "goes on")
    feeds.execute("CREATE EXTERNAL CONNECTION c AS 'postgresql://h/d' WITH check = 'no'")
    with pytest.raises(ChangefeedError, match='external connection "c" already exists'):
        feeds.execute(
            f"CREATE CHANGEFEED c FOR DATASET {place} KEY (id) INTO 'null://' WITH {columns}"
        )

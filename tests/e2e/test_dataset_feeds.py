"""Comparisons of a dataset as changes of a feed."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.dataset import Dataset, read_config
from changefeed.spark.session import NodeSpark
from changefeed_testing.sinks.readers import visible_files
from tests.e2e.feeds import Feeds, running
from tests.helpers.datasets import publish_rows
from tests.helpers.duckdb_file import opened
from tests.helpers.waiting import until

pytestmark = [pytest.mark.e2e]

DAYS = [dt.date(2019, 6, day) for day in range(18, 24)]
CONFIG = """
name: stock
current_table_path: {folder}/current
history_table_path: {folder}/history
columns:
- {{name: shop, type: string, key: true}}
- {{name: item, type: int, key: true}}
- {{name: price, type: "decimal(12,8)"}}
- {{name: seen, type: timestamp}}
- {{name: ratio, type: double}}
"""
SHAPE = pa.schema(
    [
        ("shop", pa.string()),
        ("item", pa.int32()),
        ("price", pa.decimal128(12, 8)),
        ("seen", pa.timestamp("us")),
        ("ratio", pa.float64()),
    ]
)
NOON = dt.datetime(2019, 6, 18, 12, 0, 0, 500000)


def rows(*made: tuple[str, int, str]) -> pa.Table:
    """Rows of a shop, an item and a price."""
    values = [
        {"shop": s, "item": i, "price": Decimal(p), "seen": NOON, "ratio": 0.5} for s, i, p in made
    ]
    return pa.Table.from_pylist(values, schema=SHAPE)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    path = tmp_path / "stock.yaml"
    path.write_text(CONFIG.format(folder=tmp_path))
    made = read_config(path)
    publish_rows(made, DAYS[0], {"I": rows(("a", 1, "1.5"), ("a", 2, "0.00000001"))})
    return made


@pytest.fixture
def feeds(tmp_path: Path, dataset: Dataset) -> Iterator[Feeds]:
    # Nothing here needs Spark: it is never started.
    with NodeSpark() as spark, running(tmp_path / "state", spark) as made:
        made.connect(lager=f"dataset://{tmp_path}/stock.yaml")
        yield made


def lines(folder: Path) -> list[dict[str, Any]]:
    """The messages of all files, in the order of their names."""
    return [
        json.loads(line, parse_float=Decimal)
        for path in visible_files(folder)
        if path.suffix == ".ndjson"
        for line in path.read_text().splitlines()
    ]


def short(messages: list[dict[str, Any]]) -> list[tuple[object, ...]]:
    """``(shop, item, price)``; of a delete the key and None."""
    return [(*m["key"], m["after"] and m["after"]["price"]) for m in messages]


def test_changes_of_runs_reach_files(feeds: Feeds, dataset: Dataset, tmp_path: Path) -> None:
    out = tmp_path / "out"
    feeds.execute(
        f"CREATE CHANGEFEED f FOR lager.datasets.stock INTO 'file://{out}' WITH key_in_value"
    )
    feeds.sync("f")
    scanned = lines(out)
    assert sorted(short(scanned), key=str) == [
        ("a", 1, Decimal("1.5")),
        ("a", 2, Decimal("1E-8")),
    ]
    assert scanned[0]["after"]["seen"] == "2019-06-18T12:00:00.5Z"
    assert scanned[0]["after"]["ratio"] == Decimal("0.5")
    publish_rows(
        dataset,
        DAYS[1],
        {"U": rows(("a", 1, "2")), "I": rows(("b", 1, "3")), "D": rows(("a", 2, "0.00000001"))},
    )
    feeds.sync("f")
    assert sorted(short(lines(out)[2:]), key=str) == [
        ("a", 1, Decimal(2)),
        ("a", 2, None),
        ("b", 1, Decimal(3)),
    ]
    # Runs while the feed is paused and no node works are read from the history.
    feeds.execute("PAUSE CHANGEFEED f")
    feeds.close()
    publish_rows(dataset, DAYS[2], {"N": rows(("a", 1, "2")), "U": rows(("b", 1, "4"))})
    publish_rows(dataset, DAYS[3], {"N": rows(("a", 1, "2")), "U": rows(("b", 1, "5"))})
    publish_rows(dataset, DAYS[4], {"N": rows(("a", 1, "2")), "D": rows(("b", 1, "5"))})
    feeds.open()
    feeds.execute("RESUME CHANGEFEED f")
    feeds.sync("f")
    assert short(lines(out)[5:]) == [("b", 1, Decimal(4)), ("b", 1, Decimal(5)), ("b", 1, None)]


def test_merged_table_equals_the_current_dataset(
    feeds: Feeds, dataset: Dataset, tmp_path: Path
) -> None:
    feeds.execute(
        f"CREATE CHANGEFEED w FOR lager.datasets.stock INTO 'duckdb:///{tmp_path}/w.duckdb'"
    )
    feeds.sync("w")
    changes = {
        "U": rows(("a", 1, "2")),
        "I": rows(("b", 1, "3")),
        "D": rows(("a", 2, "0.00000001")),
    }
    publish_rows(dataset, DAYS[1], changes)
    feeds.sync("w")
    feeds.execute("PAUSE CHANGEFEED w")
    with opened(tmp_path / "w.duckdb", read_only=True) as warehouse:
        found = warehouse.sql("SELECT shop, item, price, ratio FROM stock ORDER BY 1, 2").fetchall()
    assert found == [("a", 1, Decimal(2), 0.5), ("b", 1, Decimal(3), 0.5)]


def test_day_that_is_repeated_after_it_was_read(
    feeds: Feeds, dataset: Dataset, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    feeds.execute(f"CREATE CHANGEFEED f FOR lager.datasets.stock INTO 'file://{out}'")
    publish_rows(dataset, DAYS[1], {"U": rows(("a", 1, "9")), "N": rows(("a", 2, "1"))})
    feeds.sync("f")
    publish_rows(dataset, DAYS[1], {"U": rows(("a", 2, "7")), "N": rows(("a", 1, "1.5"))})

    def failed() -> bool:
        return "was replaced after its changes were read" in str(
            feeds.execute("SHOW CHANGEFEED f").rows
        )

    until(failed)
    feeds.execute("ALTER CHANGEFEED f RESCAN")
    feeds.sync("f")
    last = {message["after"]["item"]: message["after"]["price"] for message in lines(out)}
    assert last == {1: Decimal("1.5"), 2: Decimal(7)}


def test_what_is_refused(feeds: Feeds, tmp_path: Path) -> None:
    with pytest.raises(ChangefeedError, match='dataset "stok" does not exist'):
        feeds.execute("CREATE CHANGEFEED f FOR lager.datasets.stok INTO 'null://'")
    with pytest.raises(ChangefeedError, match="has no key ranges"):
        feeds.execute(
            "CREATE CHANGEFEED f FOR lager.datasets.stock VALUES FROM ('a') TO ('b') INTO 'null://'"
        )
    with pytest.raises(ChangefeedError, match="does not name the configuration"):
        feeds.connect(other="dataset:///somewhere")
        feeds.execute("CREATE CHANGEFEED f FOR other.datasets.stock INTO 'null://'")
    shown = feeds.execute("SHOW TABLES FROM lager").rows
    assert "stock" in str(shown) and "item" in str(shown)

"""The outputs of a dataset as tables of a Hive metastore, in a process of its own.

Spark's catalog is chosen when its session starts, and the session of the other tests has none.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from changefeed.core.child_path import import_path
from changefeed.core.errors import Code

pytestmark = [pytest.mark.e2e, pytest.mark.spark]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What :mod:`tests.helpers.hive_child` saw."""
    child = subprocess.run(
        [sys.executable, "-m", "tests.helpers.hive_child", str(tmp_path_factory.mktemp("hive"))],
        env={**os.environ, "PYTHONPATH": import_path()},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert child.returncode == 0, child.stderr
    found: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return found


def test_tables_of_the_command_follow_its_runs(seen: dict[str, Any]) -> None:
    found = seen["command"]
    assert found["no database"][0] == Code.NAME_UNKNOWN.number
    assert "CREATE DATABASE db" in found["no database"][2]
    code, message, _ = found["foreign"]
    assert code == Code.TARGET_NOT_OURS.number
    assert "db.orders_history exists in Spark's catalog, and changefeed did not make it" in message
    assert found["nothing happened"], "a table of somebody else is told before the comparison"
    assert found["first"] == [
        ["1", "apple", "I", "2019-06-18"],
        ["2", "pear", "I", "2019-06-18"],
    ]
    assert found["begun before"] == ["apple", "pear"], "a reader finishes with its version"
    assert found["second"] == [["1", "apple", "N"], ["3", "fig", "I"]]
    assert found["partitions"] == [
        "EFF_DATE=2019-06-18/OPERATION=I",
        "EFF_DATE=2019-06-19/OPERATION=D",
        "EFF_DATE=2019-06-19/OPERATION=I",
    ]
    assert found["deleted"] == ["pear"]
    assert found["partitions of the repeated day"] == [
        "EFF_DATE=2019-06-18/OPERATION=I",
        "EFF_DATE=2019-06-19/OPERATION=I",
    ]
    assert found["made again"] == 4
    assert found["current made again"] == [["1", "five"]]
    assert found["another dataset"][0] == Code.TARGET_NOT_OURS.number
    assert "shows another dataset" in found["another dataset"][1]


def test_a_change_of_the_columns_reaches_the_tables(seen: dict[str, Any]) -> None:
    found = seen["command"]
    assert found["added"] == [["1", "apple", "5"], ["2", "pear", "6"]]
    assert ["1", "5"] in found["added to the history"]
    assert ["3", "None"] in found["added to the history"], "from before the column was there"
    columns = ["Id", "price", "keyhash", "nonkeyhash", "EFF_START_DATE", "OPERATION"]
    assert found["changed"] == columns
    assert found["changed rows"] == [["1", "five"], ["2", "6"]]


def test_tables_of_a_feed(seen: dict[str, Any]) -> None:
    found = seen["feed"]
    assert found["create"][0] == Code.TARGET_NOT_OURS.number
    [row] = found["validate"]
    assert row[:4] == ["error", Code.TARGET_NOT_OURS.number, "option", "current_table"]
    assert found["connections"] == [], "a refused statement makes nothing"
    assert "db.stock (current dataset), db.stock_history (history)" in found["explain"]
    assert "current_table=db.stock&history_table=db.stock_history" in found["shown"]
    assert found["first"] == [["1", "apple"]]
    assert "buyer" not in found["columns"]
    assert found["buyers"] == [[["1", "Ann"]], [["1", "Ann"]]]
    assert found["theirs"] == [["1", "mine"]], "what is not ours is not touched"
    assert found["errors"] == 1, "an error is told once"
    assert found["buyers later"] == [["1", "Ann"], ["2", "Bob"]]
    assert found["second"] == found["after the feed"] == [["1", "apple"], ["2", "pear"]]

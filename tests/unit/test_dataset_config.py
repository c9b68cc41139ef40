"""The configuration of a dataset: what is accepted, and what an error says."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from changefeed.core.errors import ChangefeedError, Code
from changefeed.dataset import Extract, Hash, read_config, run
from changefeed.spark.failure import LOG
from changefeed.spark.session import NodeSpark
from changefeed.spark.settings import SparkSettings
from tests.helpers.datasets import article_config

GOOD = """
name: d
current_table_path: /data/current
history_table_path: /data/history
columns:
- {name: a, type: int, key: true}
- {name: b, type: "decimal(10,2)"}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "d.yaml"
    path.write_text(text)
    return path


def test_config_of_the_article(tmp_path: Path) -> None:
    dataset = read_config(article_config(tmp_path))
    assert [column.name for column in dataset.keys] == [f"keycol{i}" for i in range(1, 6)]
    assert {column.type for column in dataset.compared} == {"float"}
    assert dataset.current == tmp_path / "sample_data_current"
    assert dataset.versions == tmp_path / "sample_data_current_temp"
    assert (dataset.extract, dataset.hash, dataset.delimiter) == (Extract.FULL, Hash.XXHASH, ",")


def test_defaults(tmp_path: Path) -> None:
    dataset = read_config(written(tmp_path, GOOD))
    assert dataset.versions == Path("/data/current.versions")
    assert [column.nullable for column in dataset.columns] == [False, True]


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        ("name: d", "name: d\nhistory_path: x", "unknown key 'history_path'", "history_table_path"),
        ("key: true", "keys: true", "column a: unknown key 'keys'", "did you mean key?"),
        ("type: int", "type: intt", "column a: unknown type 'intt'", "did you mean int?"),
        (", key: true", "", "has no key column", "key: true"),
        ("{name: a", "{name: B", "column b appears twice", ""),
        ("{name: b", "{name: operation", "column operation has the name of a column", "reserved"),
        ("key: true", "key: true, ignore: true", "a key column cannot be ignored", ""),
        ("key: true", "key: 1", "column a: key must be true or false", ""),
        ("name: d\n", "", "name must be text", ""),
        ("name: d", "name: d\nextract_type: fall", "extract_type must be one of full, delta", ""),
        ("name: d", "name: d\nhash: sha", "hash must be one of xxhash, md5", ""),
        ("/data/history", "s3://bucket/h", "history_table_path must be a folder that this", ""),
        ("/data/history", "/data/current", "history_table_path must be a folder of its own", ""),
        ("columns:", "current_table: a.b.c\ncolumns:", "current_table must be a table of", ""),
        ("columns:", "history_table: d.o-d\ncolumns:", "history_table must be a table of", ""),
        (
            "columns:",
            "current_table: db.T\nhistory_table: db.t\ncolumns:",
            "table db.t cannot show two outputs",
            "another",
        ),
        ("key: true", "key: true, sensitive: true", "key column a cannot be sensitive", "key"),
        ("name: b", "sensitive: 1, name: b", "b: sensitive must be true or false", ""),
        (
            "columns:",
            "sensitive_history_table: db.t\ncolumns:",
            "table db.t has nothing to show",
            "sensitive",
        ),
        ("columns:", "columns: [", "is not valid YAML, line", ""),
    ],
)
def test_wrong_config(tmp_path: Path, old: str, new: str, message: str, hint: str) -> None:
    assert old in GOOD
    with pytest.raises(ChangefeedError) as caught:
        read_config(written(tmp_path, GOOD.replace(old, new, 1)))
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("orders", "default.orders"),
        ("Db.Orders_1", "db.orders_1"),
        ("spark_catalog.`db`.`orders`", "db.orders"),
    ],
)
def test_names_of_tables(tmp_path: Path, text: str, name: str) -> None:
    config = GOOD.replace("columns:", f"history_table: {text}\ncolumns:")
    dataset = read_config(written(tmp_path, config))
    assert (dataset.current_table, dataset.history_table) == (None, name)


def test_sensitive_columns(tmp_path: Path) -> None:
    text = GOOD.replace("name: b", "sensitive: true, name: b")
    dataset = read_config(written(tmp_path, text))
    assert dataset.sensitive == Path("/data/current_sensitive")
    assert [column.name for column in dataset.open_columns] == ["a"]
    assert [column.name for column in dataset.sensitive_columns] == ["b"]
    assert not dataset.compared
    assert [column.name for column in dataset.compared_sensitive] == ["b"]
    placed = "sensitive_table_path: {}\nsensitive_table: s.t\ncolumns:"
    dataset = read_config(written(tmp_path, text.replace("columns:", placed.format("/private"))))
    assert (dataset.sensitive, dataset.sensitive_table) == (Path("/private"), "s.t")
    for wrong in ("/data/history/x", "/data", "/data/current.versions"):
        with pytest.raises(ChangefeedError, match="must be apart from /data/"):
            read_config(written(tmp_path, text.replace("columns:", placed.format(wrong))))


def test_hashes_of_a_dataset_without_sensitive_columns_stay(tmp_path: Path) -> None:
    """Kept hashes are used again by a later version of changefeed."""
    dataset = read_config(written(tmp_path, GOOD))
    assert dataset.hashing == "eac318c1e0656651"


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ChangefeedError, match="No such file"):
        read_config(tmp_path / "none.yaml")


def test_the_log_of_spark_is_kept_when_it_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command has no state directory, which the hints of other errors of Spark name."""
    path = article_config(tmp_path)
    logs: list[Path] = []
    failures = [
        ChangefeedError(Code.SPARK_FAILED, "Spark failed: X", hint=f"{LOG} has the details."),
        ChangefeedError(Code.TARGET_NOT_WATCHABLE, "no column", hint="check it."),
    ]

    def fail(*_: object) -> None:
        raise failures[len(logs) - 1]

    def spark(_: SparkSettings, log: Path) -> contextlib.nullcontext[None]:
        logs.append(log)
        return contextlib.nullcontext()

    monkeypatch.setattr(run, "run_dataset", fail)
    monkeypatch.setattr(NodeSpark, "of", spark)
    with pytest.raises(ChangefeedError, match="Spark failed: X") as caught:
        run.run_config(path, "x.csv", "2019-06-18", SparkSettings())
    assert caught.value.hint == f"{logs[0]} has the details."
    with pytest.raises(ChangefeedError, match="no column"):
        run.run_config(path, "x.csv", "2019-06-18", SparkSettings())
    assert [log.exists() for log in logs] == [True, False]
    logs[0].unlink()

"""Extracts like those of the article "Change Data Capture at Scale using Spark"."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Mapping
from pathlib import Path
from random import Random
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from changefeed.dataset import Dataset
from changefeed.dataset.store import DatasetFolders

KEYS, VALUES = 5, 10


def article_config(folder: Path) -> Path:
    """Its ``config.yaml``, word for word but for the folders and the order of the columns' text."""
    columns = [
        f"- name: keycol{i}\n  type: string\n  key: true\n  ignore: false\n"
        for i in range(1, KEYS + 1)
    ] + [
        f"- name: nonkeycol{i}\n  type: float\n  key: false\n  ignore: false\n"
        for i in range(1, VALUES + 1)
    ]
    path = folder / "config.yaml"
    path.write_text(
        "---\nname: sample_data\n"
        f"current_table_path: file://{folder}/sample_data_current\n"
        f"temp_current_table_path: file://{folder}/sample_data_current_temp\n"
        f"history_table_path: file://{folder}/sample_data_history\n"
        'delimiter: ","\nextract_type: full\ncolumns:\n' + "".join(columns)
    )
    for name in ("sample_data_current", "sample_data_current_temp", "sample_data_history"):
        (folder / name).mkdir()
    return path


def article_days(random: Random, rows: int) -> tuple[list[list[str]], list[list[str]]]:
    """Two days: of the first, 20 % are deleted, 40 % updated; the second has 20 % new rows."""
    day1 = [_keys(random) + _values(random) for _ in range(rows)]
    fifth = rows // 5
    updated = [row[:KEYS] + _values(random) for row in day1[fifth : 3 * fifth]]
    new = [_keys(random) + _values(random) for _ in range(fifth)]
    return day1, updated + day1[3 * fifth :] + new


def _keys(random: Random) -> list[str]:
    return [str(UUID(int=random.getrandbits(128))) for _ in range(KEYS)]


def _values(random: Random) -> list[str]:
    return [repr(random.random()) for _ in range(VALUES)]


def publish_rows(
    dataset: Dataset, date: dt.date, rows: Mapping[str, pa.Table], *, added: bool = False
) -> None:
    """A run whose comparison gave these rows by operation, without Spark.

    A run of the same date replaces the one before, or is ``added`` to it. Where a dataset has
    sensitive columns, their files are those of the others.
    """
    store = DatasetFolders(dataset)
    with store.locked():
        latest = store.latest()
        base = latest
        if latest is not None and latest.date == date and not added:
            base = None if latest.base is None else store.version(latest.base)
        stage = store.stage()
        for operation, table in rows.items():
            (stage / f"OPERATION={operation}").mkdir(parents=True)
            pq.write_table(table, stage / f"OPERATION={operation}" / "part.parquet")
        if dataset.sensitive is not None:
            _, sensitive = store.stage_sensitive()
            shutil.copytree(stage, sensitive)
        store.publish(date, base, {o: table.num_rows for o, table in rows.items()}, [])

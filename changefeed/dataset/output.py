"""How the rows of a comparison are written."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from changefeed.dataset.model import KEYHASH, NONKEYHASH, OPERATION, Dataset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def write_rows(rows: DataFrame, target: Path, plain: Collection[str] = ()) -> None:
    """Add rows to the Parquet files of ``target``, a folder for each operation.

    Args:
        rows: with all columns of a version.
        target: the folder.
        plain: columns whose values hardly repeat, see :func:`unrepeated`.
    """
    writer = rows.write.mode("append").partitionBy(OPERATION)
    for name in (KEYHASH, NONKEYHASH, *plain):
        # A dictionary would be made and thrown away.
        writer = writer.option(f"parquet.enable.dictionary#{name}", "false")
    writer.parquet(str(target))


def unrepeated(rows: Path, dataset: Dataset) -> frozenset[str]:
    """The key columns that a version's files do not have as a dictionary of values, because it
    became too large.

    Parquet's writer begins each column with a dictionary (encoding PLAIN_DICTIONARY) and goes on
    with plain values where it is larger than a page (PLAIN).
    """
    # Parquet takes a dot in the name of an option for a field of a structure.
    wanted = {column.name for column in dataset.keys if "." not in column.name}
    found = set()
    for folder in rows.glob(f"{OPERATION}=*"):
        for file in sorted(folder.glob("*.parquet"))[:1]:
            groups = pq.read_metadata(file)
            if groups.num_row_groups:
                first = groups.row_group(0)
                columns = [first.column(place) for place in range(first.num_columns)]
                found |= {c.path_in_schema for c in columns if "PLAIN" in c.encodings}
    return frozenset(wanted & found)

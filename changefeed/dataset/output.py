"""How the rows of a comparison are written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from changefeed.dataset.model import KEYHASH, NONKEYHASH, OPERATION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def write_rows(rows: DataFrame, target: Path) -> None:
    """Add rows to the Parquet files of ``target``, a folder for each operation."""
    writer = rows.write.mode("append").partitionBy(OPERATION)
    for name in (KEYHASH, NONKEYHASH):
        # Hardly any hash appears twice: a dictionary of them would be made and thrown away.
        writer = writer.option(f"parquet.enable.dictionary#{name}", "false")
    writer.parquet(str(target))

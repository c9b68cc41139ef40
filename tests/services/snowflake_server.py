"""Runs the server of `fakesnow`, on the packages :mod:`.snowflake` gives it.

Four things of it are mended:

* Its MERGE is put together of several statements, knows no expressions in UPDATE SET and cannot
  stand in a transaction. DuckDB has a MERGE of its own by now, which does what Snowflake's does:
  the statement goes there as it is. How many rows it changed is not told.
* A timestamp that is NULL reached the client as 1970.
* COPY takes ``FILES`` of an external stage only.
* There is no DROP STAGE.
"""

from __future__ import annotations

from typing import Any

import fakesnow.arrow  # type: ignore[import-not-found]
import fakesnow.copy_into  # type: ignore[import-not-found]
import fakesnow.cursor  # type: ignore[import-not-found]
import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from fakesnow.cli import main  # type: ignore[import-not-found]

_timestamps = fakesnow.arrow.timestamp_to_sf_struct
_urls = fakesnow.copy_into._source_urls


def _merge(statement: Any) -> list[Any]:
    """The statement, and one whose result it shows (DuckDB cannot describe a MERGE)."""
    done = sqlglot.parse_one("SELECT 'done' AS status", read="duckdb")
    if isinstance(statement, sqlglot.exp.Drop) and statement.args.get("kind") == "STAGE":
        stage: Any = statement.find(sqlglot.exp.Table)
        sql = "DELETE FROM _fs_global._fs_information_schema._fs_stages WHERE database_name = "
        sql += f"current_database() AND schema_name = '{stage.db}' AND name = '{stage.name}'"
        return [sqlglot.parse_one(sql, read="duckdb"), done]
    if not isinstance(statement, sqlglot.exp.Merge):
        return [statement]
    return [statement, done]


def _files(source: str, files: list[str]) -> Any:
    if "://" in source:
        return _urls(source, files)
    return [f"{source.rstrip('/')}/{file}" for file in files]


def _timestamps_or_null(values: Any) -> Any:
    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    made = _timestamps(values.fill_null(0))
    return pa.StructArray.from_arrays(
        made.flatten(), fields=list(made.type), mask=pc.is_null(values)
    )


if __name__ == "__main__":
    fakesnow.cursor.transforms.merge = _merge
    fakesnow.copy_into._source_urls = _files
    fakesnow.arrow.timestamp_to_sf_struct = _timestamps_or_null
    main()

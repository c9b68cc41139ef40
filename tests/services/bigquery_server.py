"""Runs the emulator `local-bigquery`, on the interpreter and packages :mod:`.bigquery` gives it.

Two defects of it are mended, both of MERGE, which BigQuery allows in a transaction and with any
function: the emulator's learns that a transaction is open by asking DuckDB for another one, and
the very question breaks the open one off; and it writes and reads the statement once more, which
the named argument of PARSE_JSON does not survive.
"""

from __future__ import annotations

from typing import Any

import duckdb
from local_bigquery.cli import main  # type: ignore[import-not-found]
from local_bigquery.jobs import merge  # type: ignore[import-not-found]
from local_bigquery.sql.rules.json import wide_number_mode  # type: ignore[import-not-found]
from local_bigquery.sql.script import Interpreter  # type: ignore[import-not-found]

_OPENS = ("BEGIN",)
_CLOSES = ("COMMIT", "ROLLBACK")


class _InTransaction:
    """A cursor that refuses a second BEGIN by itself."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        self._cursor = cursor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def execute(self, sql: str, *rest: Any) -> duckdb.DuckDBPyConnection:
        if sql == "BEGIN":
            raise duckdb.TransactionException("a transaction is open")
        return self._cursor.execute(sql, *rest)


_run_merge, _run_sql = merge.run, Interpreter.sql


def _merge(cursor: duckdb.DuckDBPyConnection, tree: Any, context: Any) -> Any:
    open_one = getattr(context, "transaction_is_open", False)
    tree = tree.transform(wide_number_mode, context)
    return _run_merge(_InTransaction(cursor) if open_one else cursor, tree, context)


def _sql(self: Any, statement: Any) -> None:
    _run_sql(self, statement)
    word = statement.text.split(maxsplit=1)[0].upper()
    if word in (*_OPENS, *_CLOSES):
        self.context.transaction_is_open = word in _OPENS


if __name__ == "__main__":
    merge.run, Interpreter.sql = _merge, _sql
    main()

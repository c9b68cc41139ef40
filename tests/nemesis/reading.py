"""How the ledger reads a source: every value with its digits, without any code of the product."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pymysql

from tests.nemesis.ledger import Read, Row, Table, exact_json

if TYPE_CHECKING:
    Client = pymysql.Connection[pymysql.cursors.Cursor]


def of_postgres(connection: psycopg.Connection, named: str = "") -> Read:
    """Tables of PostgreSQL, as ``connection`` sees them now; ``named``: their name at present."""

    def read(table: Table) -> tuple[tuple[str, ...], list[Row]]:
        name = named or table.quoted
        found = connection.execute(
            "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0"
            " and not attisdropped order by attnum",
            [name],
        )
        columns = tuple(str(column) for (column,) in found.fetchall())
        rows = connection.execute(f"select to_jsonb(t)::text from {name} t").fetchall()
        return columns, [exact_json(text) for (text,) in rows]

    return read


def of_mysql(connection: Client) -> Read:
    """Tables of MySQL or MariaDB, as ``connection`` sees them now."""

    def read(table: Table) -> tuple[tuple[str, ...], list[Row]]:
        with connection.cursor() as cursor:
            cursor.execute(f"select * from {backticked(table.name)}")
            columns = tuple(str(column[0]) for column in cursor.description)
            found = cursor.fetchall()
        return columns, [_with_document(dict(zip(columns, row, strict=True))) for row in found]

    return read


def _with_document(row: dict[str, Any]) -> Row:
    """The driver gives JSON as text."""
    document = row.get("doc")
    return row if document is None else {**row, "doc": exact_json(document)}


def backticked(name: str) -> str:
    """A name in a statement of MySQL."""
    return "`" + name.replace("`", "``") + "`"

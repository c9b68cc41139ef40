"""Reading rows of a table under a snapshot, as batches in log form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import Column, TableSchema
from changefeed.core.types import FLOATS
from changefeed.sources.base import DEFAULT_PART_BYTES
from changefeed.sources.mysql.result import ServerError, Values, read_rows
from changefeed.sources.mysql.session import MySQLSession, quoted
from changefeed.sources.mysql.values import log_column, unusable_key

#: How much of an answer is read to no purpose so that its session can go on: more than a part has,
#: unless the table could not be divided.
SKIPPED_BYTES = 4 * DEFAULT_PART_BYTES


def expression(column: Column) -> str:
    """What to select so that the server prints the column without loss."""
    name = quoted(column.name)
    if column.kind in FLOATS:
        # A FLOAT would be printed with six digits, a DOUBLE(p,s) with s of them: a product is a
        # plain DOUBLE, with all that it needs. (A sum would lose the sign of -0.)
        return f"{name} * 1e0"
    if "zerofill" in column.type_name.lower() and column.logical.precision:
        return f"CAST({name} AS {str(column.logical).upper()})"
    return name


def query(table: TableSchema, columns: Sequence[int], where: str) -> str:
    """The SELECT of a part."""
    listed = ", ".join(expression(table.columns[i]) for i in columns)
    name = f"{quoted(table.table.schema)}.{quoted(table.table.name)}"
    return f"SELECT {listed} FROM {name}" + (f" WHERE {where}" if where else "")


def read_table(
    session: MySQLSession, table: TableSchema, columns: Sequence[int], where: str
) -> Iterator[pa.RecordBatch]:
    """The rows as batches of ``a0..an``; columns that are not asked for are NULL.

    Close the session if it is ``mid_answer`` afterwards: the connection failed, or much was left
    when the iteration ended early.

    Raises:
        ChangefeedError: CF2202 a value does not fit its column or its key; else the server's own
            error.
    """
    answer = session.packets(query(table, columns, where), len(columns))
    blocks = read_rows(answer, len(columns))
    while (block := _next(session, blocks)) is not None:
        try:
            yield _batch(table, columns, block)
        except BaseException:
            _skip(session, blocks)
            raise


def _skip(session: MySQLSession, blocks: Iterator[list[Values]]) -> None:
    """Read what is left of an answer, up to :data:`SKIPPED_BYTES`."""
    left = SKIPPED_BYTES
    while session.mid_answer and left > 0:
        try:
            block = _next(session, blocks)
        except ChangefeedError:
            return  # the reason why the iteration ended is on its way up
        left -= len(block[0].data) if block else left


def _next(session: MySQLSession, blocks: Iterator[list[Values]]) -> list[Values] | None:
    with session.explained("read a table"):
        try:
            block = next(blocks, None)
            session.mid_answer = block is not None
            return block
        except ServerError as error:
            session.mid_answer = False
            raise session.server_error(error, "read a table") from None


def _batch(table: TableSchema, columns: Sequence[int], block: list[Values]) -> pa.RecordBatch:
    count = len(block[0].starts)
    by_place = dict(zip(columns, block, strict=True))
    arrays = []
    for i, column in enumerate(table.columns):
        if i not in by_place:
            arrays.append(pa.nulls(count, column.arrow))
            continue
        try:
            arrays.append(log_column(column, by_place[i]))
        except (pa.ArrowInvalid, ValueError) as error:
            raise ChangefeedError(
                Code.TABLE_NOT_SCANNABLE,
                f"table {table.table} cannot be scanned: a value of column {column.name} is no "
                f"{column.type_name}",
                hint="ALTER TABLE during the scan can do this: the scan starts again on RESUME.",
            ) from error
    if problem := unusable_key(table, arrays):
        raise ChangefeedError(
            Code.TABLE_NOT_SCANNABLE,
            f"table {table.table} cannot be scanned: {problem}",
            hint="Then ALTER CHANGEFEED .. RESCAN the table.",
        )
    return pa.record_batch(arrays, names=[f"a{i}" for i in range(len(arrays))])

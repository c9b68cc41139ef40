"""Finds the rows of a batch that are refused for themselves, and delivers the others."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from changefeed.core.errors import ChangefeedError
from changefeed.core.table_errors import TableError


def row_error(error: ChangefeedError | TableError) -> ChangefeedError | None:
    """The error if it is about a single row, whichever of the two says so; else None."""
    found = error.error if isinstance(error, TableError) else error
    return found if found.about_row else None


def by_halves(
    rows: pa.Table,
    deliver: Callable[[pa.Table], None],
    refused: Callable[[pa.Table, ChangefeedError], None],
) -> None:
    """Deliver rows in their order; what fails is delivered half by half, so that in the end each
    row that is refused is alone.

    Args:
        deliver: makes the rows durable, or raises an error and has then undone what it can: rows
            that it has delivered nevertheless are delivered once more.
        refused: takes a single row, and why it is refused.

    Raises:
        ChangefeedError, TableError: one that is not about a row.
    """
    try:
        deliver(rows)
        return
    except (ChangefeedError, TableError) as error:
        found = row_error(error)
        if found is None:
            raise
    if rows.num_rows == 1:
        refused(rows, found)
        return
    half = rows.num_rows // 2
    by_halves(rows.slice(0, half), deliver, refused)
    by_halves(rows.slice(half), deliver, refused)


def sifted(
    rows: pa.Table, examine: Callable[[pa.Table], None]
) -> tuple[pa.Table, list[tuple[int, ChangefeedError]]]:
    """The rows without those that are refused before anything is delivered, and these: the place
    of each among ``rows``, rising, and why it is refused.

    Args:
        examine: raises the error of :func:`by_halves`'s ``deliver``, as far as it is known without
            delivering the rows.

    Raises:
        ChangefeedError, TableError: one that is not about a row.
    """
    found: list[tuple[int, ChangefeedError]] = []
    kept: list[pa.Table] = [rows.slice(0, 0)]
    place = 0

    def taken(some: pa.Table) -> None:
        nonlocal place
        examine(some)
        kept.append(some)
        place += some.num_rows

    def refused(row: pa.Table, error: ChangefeedError) -> None:
        nonlocal place
        found.append((place, error))
        place += 1

    by_halves(rows, taken, refused)
    return pa.concat_tables(kept), found

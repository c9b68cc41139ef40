"""Which values in log form a column of a target can hold: looked at in Arrow before any row is
staged, so that an error names table and column, and never a value."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import Column, TableSchema

_HINT = (
    "change the value or the column's type at the source, or leave the column out of the feed, "
    "then RESUME."
)


def decimal_pattern(whole: int, scale: int) -> str:
    """Texts of numbers that ``DECIMAL(whole + scale, scale)`` holds exactly."""
    digits = f"0*[0-9]{{0,{whole}}}" if whole else "0*"
    part = rf"(?:\.[0-9]{{0,{scale}}}0*)?"
    return f"-?{digits}{part}"


def require_values(
    schema: TableSchema,
    topic: str,
    column: Column,
    values: pa.ChunkedArray,
    *,
    kept_as: str,
    accepts: str,
    longest: int = 0,
    hint: str = _HINT,
) -> None:
    """Check that the target can hold each value of a column.

    Args:
        kept_as: the type of the target's column, for people.
        accepts: regular expression (RE2, whole text) of the texts it can hold; empty: all.
        longest: bytes of the longest text it can hold; 0: any.

    Raises:
        ChangefeedError: CF5006, naming table and column, never the value.
    """
    found = 0
    if accepts:
        accepted = pc.match_substring_regex(values, rf"\A(?:{accepts})\z")
        found += pc.sum(pc.invert(accepted)).as_py() or 0
    if longest:
        found += pc.sum(pc.greater(pc.binary_length(values), longest)).as_py() or 0
    if found:
        rows = f"{found} of {len(values)} rows"
        raise refused_value(schema, topic, column, unfit(kept_as), rows, hint)


def unfit(kept_as: str) -> str:
    """Of a column with a value that its type in the target does not have."""
    return f"has a value that {kept_as} cannot hold"


def refused_value(
    schema: TableSchema, topic: str, column: Column, why: str, detail: str, hint: str = _HINT
) -> ChangefeedError:
    """CF5006 for a column of rows; names no value."""
    return ChangefeedError(
        Code.SINK_CANNOT_TAKE_TABLE,
        f"{schema.table}: column {column.name} {why}",
        detail=f"target {topic}, source type {column.type_name}, {detail}",
        hint=hint,
        target=topic,
        about_row=True,
    )

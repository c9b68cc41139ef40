"""Rows as lists of SQL literals, for targets that take rows by INSERT only.

Whole Arrow columns become text; no row in Python. Literals are standard SQL: a quote is doubled, a
backslash is a backslash.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

#: Bytes of one INSERT: below the smallest limit there is (16 MB).
_PACKET = 4 << 20


def packets(rows: pa.Table) -> Iterator[str]:
    """Rows as lists of SQL values, ``(1,'x'),(2,NULL)``, each of some megabytes at most."""
    for batch in rows.to_batches(max_chunksize=5_000):
        lines = _join(_join(*map(_literals, batch.columns), by=","), before="(", behind=")")
        sizes = pc.binary_length(lines)
        start = size = 0
        for place, length in enumerate(sizes.to_numpy(zero_copy_only=False)):
            if size and size + length > _PACKET:
                yield _joined(lines.slice(start, place - start))
                start, size = place, 0
            size += length + 1
        if len(lines) > start:
            yield _joined(lines.slice(start))


def _join(*columns: pa.Array, by: str = "", before: str = "", behind: str = "") -> pa.Array:
    joined = pc.binary_join_element_wise(*columns, pa.scalar(by, pa.large_string()))
    if not before:
        return joined
    ends = [pa.scalar(text, pa.large_string()) for text in (before, behind, "")]
    return pc.binary_join_element_wise(ends[0], joined, *ends[1:])


def _joined(lines: pa.Array) -> str:
    whole = pa.LargeListArray.from_arrays([0, len(lines)], lines)
    return str(pc.binary_join(whole, pa.scalar(",", pa.large_string()))[0].as_py())


def _literals(column: pa.Array) -> pa.Array:
    if pa.types.is_string(column.type):
        doubled = pc.replace_substring(column.cast(pa.large_string()), "'", "''")
        text = _join(doubled, before="'", behind="'")
    elif pa.types.is_boolean(column.type):
        text = pc.if_else(column, "1", "0").cast(pa.large_string())
    else:
        text = column.cast(pa.large_string())
    return pc.fill_null(text, "NULL")

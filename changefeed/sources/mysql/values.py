r"""What the server prints -> the neutral form of the log, a column at a time.

* bool and integers become Arrow values;
* FLOAT and DOUBLE are printed by :func:`float_text`, here and by the binlog's decoder;
* ``2024-03-31 01:02:03.50`` becomes ``2024-03-31T01:02:03.50``, with a ``Z`` for a TIMESTAMP; what
  is no date (``0000-00-00``, ``2024-00-10``) becomes NULL, and stops a table whose key has it;
* bytes become ``\x`` and hexadecimal digits;
* line breaks between the tokens of MariaDB's JSON become spaces: a log value is one line.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.schema import Column, TableSchema
from changefeed.core.sql import quoted
from changefeed.core.types import DATES, Kind
from changefeed.sources.mysql.result import Values

_DIGITS = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint16)


def float_text(values: pa.Array) -> pa.Array:
    """``float32`` or ``float64`` values as the shortest digits that read back the same."""
    return values.cast(pa.string())


def hex_text(values: pa.Array) -> pa.Array:
    r"""Binary values as ``\x`` and two lower-case digits a byte."""
    count = len(values)
    _, offsets_buffer, data = values.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, count + 1, values.offset * 4)
    held = np.frombuffer(data or b"", np.uint8)[offsets[0] : offsets[-1]]
    lengths = np.diff(offsets).astype(np.int64)
    texts_at = np.zeros(count + 1, np.int64)
    np.cumsum(2 * lengths + 2, out=texts_at[1:])
    # Pairs of characters: "\x" in front of each value, then one pair a byte.
    pairs = np.empty(int(texts_at[-1]) // 2, np.uint16)
    fronts = texts_at[:-1] // 2
    is_front = np.zeros(len(pairs), np.bool_)
    is_front[fronts] = True
    pairs[is_front] = np.frombuffer(b"\\x", np.uint16)[0]
    pairs[~is_front] = _DIGITS[held]
    whole = pa.Array.from_buffers(
        pa.large_string(), count, [None, pa.py_buffer(texts_at), pa.py_buffer(pairs)]
    ).cast(pa.string())
    return whole if not values.null_count else pc.if_else(values.is_valid(), whole, None)


def unusable_key(table: TableSchema, values: Sequence[pa.Array]) -> str:
    """Why the table's key cannot distinguish rows with these values of all columns; empty: it
    can.

    A column of a key is never NULL at the server; it is here if its date is none.
    """
    for place in () if table.keyless else table.key:
        column = table.columns[place]
        if column.kind in DATES and values[place].null_count:
            name = column.name
            return (
                f"column {name!r} of the key has a value that is no date (0000-00-00, 2024-00-10): "
                "it would be NULL, and rows with such keys would become one. Give these rows "
                f"other dates (YEAR, MONTH or DAY of {quoted(name)} is 0), and the server an "
                "sql_mode with STRICT_TRANS_TABLES, NO_ZERO_DATE and NO_ZERO_IN_DATE"
            )
    return ""


def log_column(column: Column, values: Values) -> pa.Array:
    """A column of an answer as the column of the log.

    Raises:
        pa.ArrowInvalid: a value does not fit the type that the column has.
    """
    kind = column.kind
    if kind is Kind.BYTES:
        return hex_text(values.gather(pa.binary()))
    if kind is Kind.BOOL:
        bits = hex_text(values.gather(pa.binary()))
        return pc.not_equal(bits, "\\x00")
    texts = values.gather(pa.string())
    if column.physical != "string":
        return texts.cast(column.arrow)
    if kind in DATES:
        return moment_text(texts, kind)
    if kind is Kind.FLOAT32:
        # Read as a double, which it is exactly: the server prints a FLOAT with too few digits.
        return float_text(texts.cast(pa.float64()).cast(pa.float32()))
    if kind is Kind.FLOAT64:
        return float_text(texts.cast(pa.float64()))
    if kind is Kind.JSON:
        return one_line(texts)
    texts.validate(full=True)
    return texts


def moment_text(texts: pa.Array, kind: Kind) -> pa.Array:
    """Dates and moments as the server prints them; what is no date is NULL."""
    odd = pc.or_(pc.starts_with(texts, "0000"), pc.match_substring(texts, "-00"))
    if pc.any(odd).as_py():
        texts = pc.if_else(odd, None, texts)
    if kind is Kind.DATE:
        return texts
    texts = pc.replace_substring(texts, " ", "T", max_replacements=1)
    return pc.binary_join_element_wise(texts, "Z", "") if kind is Kind.TIMESTAMPTZ else texts


def one_line(texts: pa.Array) -> pa.Array:
    """JSON without line breaks between its tokens; inside strings JSON has none."""
    broken = pc.match_substring_regex(texts, r"[\r\n]")
    if not pc.any(broken).as_py():
        texts.validate(full=True)
        return texts
    return pc.replace_substring_regex(texts, r"[\r\n]", " ")

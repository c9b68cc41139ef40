"""A value of the log as JSON or CSV text: expressions that run in the JVM.

The log holds numbers, json and arrays as finished JSON tokens already (``raw``), so a row
becomes JSON by putting texts beside each other; nothing is parsed, and no digit is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
from pyspark.sql import Column as Expression
from pyspark.sql import functions as F

from changefeed.schema import Column, Form
from changefeed.spark.text import escaped

#: Text and expressions, in order.
Part = str | Expression

#: A character JSON does not allow inside a string as it is (RFC 8259, section 7).
MUST_ESCAPE = r'["\\\x00-\x1f]'

#: A field that must be quoted in CSV (RFC 4180), and one that would read as NULL otherwise.
MUST_QUOTE = r'[",\r\n]|^\s|\s\z|^\z'

_JSON_NULL = '{"__crdb_json_null__": true}'


def joined(parts: Iterable[Part]) -> Expression:
    """The parts beside each other; NULL when one of the expressions is NULL."""
    merged: list[Part] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        else:
            merged.append(part)
    expressions = [F.lit(part) if isinstance(part, str) else part for part in merged]
    if len(expressions) == 1:
        return expressions[0]
    return F.concat(*expressions)


def separated(parts: Sequence[Sequence[Part]], opening: str, closing: str) -> list[Part]:
    """``{a, b}``: the groups of parts with ``", "`` between them."""
    out: list[Part] = [opening]
    for i, group in enumerate(parts):
        if i:
            out.append(", ")
        out += group
    out.append(closing)
    return out


def string(text: str) -> str:
    """A constant as a JSON string, escaped like the values are."""
    return f'"{escaped(pa.array([text]))[0].as_py()}"'


def json_token(
    column: Column, name: str, *, clean: bool, null_as_object: bool = False
) -> list[Part]:
    """The JSON token of log column ``name``; ``null`` for NULL.

    ``clean`` promises that no value has a character JSON must escape.
    """
    value = F.col(name)
    null = F.lit("null")
    if column.form is Form.NATIVE:
        return [F.coalesce(value.cast("string"), null)]
    if column.form is Form.TEXT and clean:
        # Quotes as parts of their own: "text" never exists as a string that is copied again.
        quote = F.when(value.isNull(), "").otherwise('"')
        return [quote, F.coalesce(value, null), quote]
    if column.form is Form.TEXT:
        return [F.coalesce(_escaped(value), null)]
    if null_as_object and column.logical == "json":
        return [F.coalesce(F.when(F.trim(value) == "null", _JSON_NULL).otherwise(value), null)]
    return [F.coalesce(value, null)]


def _escaped(value: Expression) -> Expression:
    """A JSON string of any text.

    Spark's own writer escapes exactly, but makes a generator per value, so it gets those that
    need it. The text between the brackets of ``["..."]`` starts and ends with a quote, so
    trimming brackets takes one off each end.
    """
    exact = F.btrim(F.to_json(F.array(value)), F.lit("[]"))
    plain = F.concat(F.lit('"'), value, F.lit('"'))
    return F.when(value.rlike(MUST_ESCAPE), exact).otherwise(plain)


def csv_token(column: Column, name: str) -> Expression:
    """The CSV field of log column ``name``: nothing for NULL, ``""`` for an empty text.

    This is how PostgreSQL's own COPY tells them apart.
    """
    value = F.col(name)
    if column.form is Form.NATIVE:
        return F.coalesce(value.cast("string"), F.lit(""))
    if column.form is Form.RAW and column.logical.startswith(("decimal", "float")):
        return F.coalesce(F.btrim(value, F.lit('"')), F.lit(""))  # "NaN" is quoted for JSON only
    quoted = F.concat(F.lit('"'), F.replace(value, F.lit('"'), F.lit('""')), F.lit('"'))
    return F.coalesce(F.when(value.rlike(MUST_QUOTE), quoted).otherwise(value), F.lit(""))

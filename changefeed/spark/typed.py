"""A value of the log as a value of its type: expressions that run in the JVM.

The log holds text exactly as the source printed it. What cannot be held exactly by the type is
an error that names the column (CF4001), never another value; PostgreSQL's ``infinity`` has
numbers of its own (:mod:`changefeed.formats.types`).
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F

from changefeed.formats.types import (
    INFINITE_DAYS,
    INFINITE_MICROS,
    MINUS_INFINITE_DAYS,
    MINUS_INFINITE_MICROS,
    Kind,
    Typed,
)
from changefeed.spark.failure import VALUE_PREFIX

_QUOTE = '"'
#: Elements of these arrays hold no comma and no escapes in the log's text.
_SIMPLE = (Kind.BOOL, Kind.INT, Kind.DOUBLE, Kind.DECIMAL)


#: Makes of a value as its type (first) what a format wants; the log's value comes second.
Finish = Callable[[Typed, Expression, Expression], Expression]


def _as_is(kind: Typed, value: Expression, logged: Expression) -> Expression:
    return value


def typed_value(kind: Typed, value: Expression, column: str, finish: Finish = _as_is) -> Expression:
    """``value`` of the log as ``kind``. Moments are numbers (days, microseconds).

    A ``DECIMAL`` that is no number is NULL: :func:`not_a_number` of the log's value tells.
    ``column`` names the value in errors; ``finish`` is called for the value, or for each
    element of an array.
    """
    if kind.element is not None:
        return _array(kind.element, value, column, finish)
    return finish(kind, _CASTS[kind.kind](kind, value, column), value)


def not_a_number(value: Expression) -> Expression:
    """``NaN`` or ``Infinity`` of a numeric, without quotes; NULL for a number."""
    return F.when(value.startswith(_QUOTE), _unquoted(value))


def _unquoted(value: Expression) -> Expression:
    return F.btrim(value, F.lit(_QUOTE))


def _exactly(value: Expression, cast: Expression, column: str) -> Expression:
    """``cast``; an error where it is NULL and ``value`` is not."""
    wrong = f"a value of column {column} does not fit the type it has in this format"
    refused = F.raise_error(F.lit(f"{VALUE_PREFIX}{wrong}:end"))
    return F.when(value.isNotNull() & cast.isNull(), refused).otherwise(cast)


def _plain(to: str) -> Callable[[Typed, Expression, str], Expression]:
    """Booleans and integers are native in the log, but texts as elements of arrays."""

    def cast(kind: Typed, value: Expression, column: str) -> Expression:
        return _exactly(value, value.try_cast(to), column)

    return cast


def _string(kind: Typed, value: Expression, column: str) -> Expression:
    return _unquoted(value) if kind.number else value


def _double(kind: Typed, value: Expression, column: str) -> Expression:
    return _exactly(value, _unquoted(value).try_cast("double"), column)


def _decimal(kind: Typed, value: Expression, column: str) -> Expression:
    number = F.when(~value.startswith(_QUOTE), value)
    return _exactly(number, number.try_cast(f"decimal({kind.precision},{kind.scale})"), column)


def _bytes(kind: Typed, value: Expression, column: str) -> Expression:
    return _exactly(value, F.unhex(F.substring(value, 3, 2**31 - 1)), column)


def _time(kind: Typed, value: Expression, column: str) -> Expression:
    """``01:02:03.5``; PostgreSQL has ``24:00:00`` too."""
    seconds = sum_of(
        (F.substring(value, 1, 2), 3600),
        (F.substring(value, 4, 2), 60),
        (F.substring(value, 7, 2), 1),
    )
    fraction = F.rpad(F.substring(value, 10, 6), 6, "0").try_cast("long")
    return _exactly(value, seconds * F.lit(1_000_000).cast("long") + fraction, column)


def sum_of(*terms: tuple[Expression, int]) -> Expression:
    """The sum of texts that are whole numbers, each times its factor."""
    total = F.lit(0).cast("long")
    for text, factor in terms:
        total = total + text.try_cast("long") * F.lit(factor).cast("long")
    return total


def _date(kind: Typed, value: Expression, column: str) -> Expression:
    days = F.unix_date(_common_era(value).try_cast("date"))
    return _finite(value, days, column, "int", INFINITE_DAYS, MINUS_INFINITE_DAYS)


def _moment(kind: Typed, value: Expression, column: str) -> Expression:
    # The session's time zone is UTC, so a text without a zone is read as the wall clock it is.
    micros = F.unix_micros(_common_era(value).try_cast("timestamp"))
    return _finite(value, micros, column, "long", INFINITE_MICROS, MINUS_INFINITE_MICROS)


def _finite(
    value: Expression, number: Expression, column: str, to: str, most: int, least: int
) -> Expression:
    return (
        F.when(value == "infinity", F.lit(most).cast(to))
        .when(value == "-infinity", F.lit(least).cast(to))
        .otherwise(_exactly(value, number, column))
    )


def _common_era(value: Expression) -> Expression:
    """``0044-03-15 BC`` as ``-0043-03-15``: there is no year 0 at the source, but one in ISO."""
    year = F.substring_index(value, "-", 1)
    rest = F.regexp_replace(F.substring_index(value, " ", 1), r"^[0-9]+|\+00$", "")
    before = F.lpad((year.try_cast("int") - F.lit(1)).cast("string"), 4, "0")
    return F.when(value.endswith(" BC"), F.concat(F.lit("-"), before, rest)).otherwise(value)


def _array(element: Typed, value: Expression, column: str, finish: Finish) -> Expression:
    wrong = f"column {column} holds an array of several dimensions, which this format cannot"
    refused = F.raise_error(F.lit(f"{VALUE_PREFIX}{wrong}:end"))
    items = F.transform(
        _items(element, value), lambda item: typed_value(element, item, column, finish)
    )
    return F.when(value.startswith("[["), refused).otherwise(items)


def _items(element: Typed, value: Expression) -> Expression:
    """The elements as texts of the log, those of numbers with their quotes."""
    if element.kind not in _SIMPLE and not element.number:
        return F.from_json(value, "array<string>")
    # Spark's reader of JSON rounds numbers.
    inner = F.substring(value, F.lit(2), F.length(value) - F.lit(2))
    nothing = F.array().cast("array<string>")
    tokens = F.when(inner == "", nothing).otherwise(F.split(inner, ","))
    return F.transform(tokens, lambda item: F.when(item != "null", item))


_CASTS: dict[Kind, Callable[[Typed, Expression, str], Expression]] = {
    Kind.BOOL: _plain("boolean"),
    Kind.INT: _plain("long"),
    Kind.DOUBLE: _double,
    Kind.DECIMAL: _decimal,
    Kind.STRING: _string,
    Kind.BYTES: _bytes,
    Kind.DATE: _date,
    Kind.TIME: _time,
    Kind.TIMESTAMP: _moment,
    Kind.TIMESTAMPTZ: _moment,
}

"""Types of the log as types of Spark SQL, and how a logged text becomes such a value.

========================  ==================  ====================================================
logical type              column              a value that does not fit
========================  ==================  ====================================================
bool                      boolean
int16 int32 int64         smallint int bigint (Iceberg has no smallint: int)
float32 float64           float double        NaN and the infinities are values
decimal(p,s), p <= 38     decimal(p,s)        NaN, infinity: error
other decimals            string              numbers of any size, as the source writes them
                          decimal(p,s)        by the option ``numeric_type``: error
date                      date                infinity, BC: error
timestamp                 timestamp_ntz       infinity, BC: error
timestamptz               timestamp           infinity, BC: error
bytes                     binary
array<T>                  array<T>            more than one dimension, unless T is text: error
array<json>               string              the JSON array as the source writes it
json                      string, or variant  by the option ``json_type``
everything else           string              text as the source writes it (uuid, interval)
========================  ==================  ====================================================

What does not fit is found before rows are staged (:func:`accepted`). Casts run under ANSI rules,
so what that does not know (the year 294276 of a timestamp) is an error of Spark, and never a silent
null.
"""

from __future__ import annotations

import re
from dataclasses import replace

from changefeed.core.schema import Column, TableSchema
from changefeed.core.spark_sql import literal
from changefeed.core.types import TEXT_NUMBERS, Kind, LogicalType
from sinks.merged.values import decimal_pattern

_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)\Z")

#: The most digits a decimal of Spark has.
DIGITS = 38

#: The type of a column of JSON, if the feed wants it.
VARIANT = "variant"

_CALENDAR = ("date", "timestamp", "timestamp_ntz")

_TYPES = {
    Kind.BOOL: "boolean",
    Kind.INT16: "smallint",
    Kind.INT32: "int",
    Kind.INT64: "bigint",
    Kind.FLOAT32: "float",
    Kind.FLOAT64: "double",
    Kind.DATE: "date",
    Kind.TIMESTAMP: "timestamp_ntz",
    Kind.TIMESTAMPTZ: "timestamp",
    Kind.BYTES: "binary",
}

#: Wider types a column may become without its files being written again, by format.
WIDER: dict[str, frozenset[tuple[str, str]]] = {
    "delta": frozenset(
        {
            ("smallint", "int"),
            ("smallint", "bigint"),
            ("smallint", "double"),
            ("int", "bigint"),
            ("int", "double"),
            ("float", "double"),
            ("date", "timestamp_ntz"),
        }
    ),
    "iceberg": frozenset({("int", "bigint"), ("float", "double")}),
}


def spark_type(logical: LogicalType, *, small: bool = True) -> str:
    """The type of a column, as Spark's DDL writes it; ``small``: the format has smallint."""
    if logical.items is not None:
        return f"array<{spark_type(logical.items, small=small)}>"
    if 0 <= logical.scale <= logical.precision <= DIGITS and logical.precision:
        return str(logical)
    found = _TYPES.get(logical.kind, "string")
    return "int" if found == "smallint" and not small else found


def declared(schema: TableSchema, numbers: LogicalType | None) -> TableSchema:
    """The shape with ``numbers`` as the type of each decimal that would be a text otherwise; with
    None, the shape as it is."""
    if numbers is None:
        return schema
    columns = [replace(c, logical=_declared(c.logical, numbers)) for c in schema.columns]
    return replace(schema, columns=tuple(columns))


def _declared(logical: LogicalType, numbers: LogicalType) -> LogicalType:
    if logical.items is not None:
        return replace(logical, element=_declared(logical.items, numbers))
    is_text = logical.kind is Kind.DECIMAL and spark_type(logical) == "string"
    return numbers if is_text else logical


#: How the error of :func:`exact` begins; the number of the column follows.
UNFIT = "value does not fit column"


def exact(given: TableSchema, kept: TableSchema, number: int, text: str) -> str:
    """SQL of the logged value ``text`` of a column; an error where the digits that :func:`declared`
    gave it do not hold the value, which a cast would round."""
    logical = kept.columns[number].logical
    if given.columns[number].logical == logical:
        return text
    pattern = literal(f"^(?:{accepted(logical.innermost)})$")
    unfit = f"NOT {text} RLIKE {pattern}"
    if logical.items is not None:
        # Each by itself: Java's regular expressions recurse, and would end Spark at a long array.
        unfit = f"exists({_texts(logical.items, text)}, e -> NOT e RLIKE {pattern})"
    return f"CASE WHEN {unfit} THEN raise_error('{UNFIT} {number}') ELSE {text} END"


#: A number of the log, in regular expressions of Spark.
_NUMBER = "-?[0-9]+(?:[.][0-9]+)?"

#: What to do about a value that its column cannot hold.
BEYOND = (
    "infinity, BC dates, NaN in a numeric and numbers with more digits than numeric_type allows "
    "do not fit these types: select the column as text (col::text), or leave it out."
)

#: The calendar's texts that a cast takes: no infinity, no year before Christ.
_MOMENT = '[0-9]{4,6}-[^C"]*'
_ACCEPTED = {
    Kind.DATE: '[0-9]{4,7}-[^C"]*',
    Kind.TIMESTAMP: _MOMENT,
    Kind.TIMESTAMPTZ: _MOMENT,
}


def accepted(logical: LogicalType) -> str:
    """Regular expression (RE2, whole text) that each value in log form matches which a column of
    this type can hold; empty: all of them."""
    if logical.items is None:
        if logical.digits is not None and spark_type(logical) != "string":
            return decimal_pattern(logical.precision - logical.scale, logical.scale)
        return _ACCEPTED.get(logical.kind, "")
    if spark_type(logical.items) == "string":
        return r"(?s)\[.*"
    element = accepted(logical.items)
    if not element:
        return r"(?s)\[\s*(?:[^\[\s].*)?"
    one = rf'(?:null|"?(?:{element})"?)\s*'
    return rf"\[\s*(?:{one}(?:,\s*{one})*)?\]"


def typed(column: Column, text: str, *, variant: bool = False) -> str:
    """SQL that makes the logged value ``text`` (an SQL expression) one of the column's type;
    ``variant``: that is VARIANT."""
    if variant:
        return f"parse_json({text})"
    if column.physical != "string":
        return text
    if column.logical.items is not None:
        return _list(column.logical.items, text)
    if column.kind in TEXT_NUMBERS:
        # NaN and the infinities are in quotes, as JSON has no other way to say them.
        text = f"trim(BOTH '\"' FROM {text})"
    return _from_text(column.logical, text)


def _list(items: LogicalType, text: str) -> str:
    element = _from_text(items, "e")
    if items.kind is Kind.DECIMAL and element == "e":
        # The element may be an array itself, whose numbers are in quotes now.
        element = f"regexp_replace(e, '\"({_NUMBER})\"', '$1')"
    found = _texts(items, text)
    return found if element == "e" else f"transform({found}, e -> {element})"


def _texts(items: LogicalType, text: str) -> str:
    """SQL of the elements' texts."""
    if items.kind is Kind.DECIMAL:
        # Spark reads a number of JSON as a double, also where its text is wanted.
        text = f"regexp_replace({text}, '{_NUMBER}', '\"$0\"')"
    return f"from_json({text}, 'array<string>', map('mode', 'FAILFAST'))"


def _from_text(logical: LogicalType, text: str) -> str:
    if logical.kind is Kind.BYTES:
        return f"unhex(substring({text}, 3))"
    target = spark_type(logical)
    if target in _CALENDAR:
        # A cast to date ends at the first space: without it BC would be read as AD.
        text = f"replace({text}, ' BC', 'BC')"
    return text if target == "string" else f"cast({text} AS {target})"


def widens(old: str, new: str, table_format: str) -> bool:
    """A column of type ``old`` may become ``new`` in place."""
    if (old, new) in WIDER[table_format]:
        return True
    before, after = _DECIMAL.match(old), _DECIMAL.match(new)
    if not before or not after:
        return False
    more, scale = int(after[1]) - int(before[1]), int(after[2]) - int(before[2])
    return more >= scale >= 0 if table_format == "delta" else scale == 0 and more >= 0

r"""The neutral types of values: what a column holds, whatever its source calls it.

A kind is one row of :class:`Kind`: how the change log keeps its values, how their text looks, and
an example. All else has a fallback: what a format or a sink has no rule for goes as that text.

=================  ===========  ========  ===========================================
kind               physical     form      text
=================  ===========  ========  ===========================================
``bool``           ``bool``     native
``int16 .. int64`` the same     native
``float32/64``     ``string``   raw       a JSON number of the fewest digits that
                                          read back the same; ``"NaN"``,
                                          ``"Infinity"``, ``"-Infinity"`` in quotes
``decimal``        ``string``   raw       ``-12.50``: no exponent, zeros of the scale
                                          kept; not a number as for floats
``text``           ``string``   text      any text
``bytes``          ``string``   text      ``\xdead``: two digits a byte, lower case
``date``           ``string``   text      ``2024-03-31``, years of four digits or
                                          more, `` BC`` after those before Christ;
                                          ``infinity``, ``-infinity``
``time``           ``string``   text      ``01:02:03.5``, one to six digits after the
                                          point; up to ``24:00:00``
``timetz``         ``string``   text      a time and its offset: ``+02``, ``-03:30``
``timestamp``      ``string``   text      date, ``T`` and time; `` BC`` and infinity
                                          as for dates
``timestamptz``    ``string``   text      the same in UTC with ``Z``; before Christ
                                          with ``+00 BC``
``uuid``           ``string``   text      8-4-4-4-12 digits, lower case
``json``           ``string``   raw       one JSON value in one line
``array``          ``string``   raw       a JSON array; elements as JSON has them. Where
                                          its bounds do not begin at 1, a JSON string
                                          of the source's text: ``"[0:1]={1,2}"``
``interval other`` ``string``   text      as the source prints it
=================  ===========  ========  ===========================================

Every source converts to this form, in the stream and in the initial scan alike, and every encoder
reads it. A value of one column has one text, so that equal values are equal bytes.
:mod:`changefeed.core.log_form` finds values that are not in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Self


class Form(StrEnum):
    """How a value in the change log becomes JSON."""

    NATIVE = "native"
    """``true``, ``42``: a value of a fixed width, and one spelling."""
    RAW = "raw"
    """``1.50``, ``"NaN"``, ``{"a": 1}``: the same characters."""
    TEXT = "text"
    """``2024-03-31T01:02:03.5Z``: a JSON string of it."""


_DATE = r"\d{4,}-\d\d-\d\d"
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?|24:00:00"
_OFFSET = r"[+-]\d\d(?::\d\d(?::\d\d)?)?"
_NO_NUMBER = r'"NaN"|"Infinity"|"-Infinity"'
_FLOAT = rf"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|{_NO_NUMBER}"
_INFINITE = "infinity|-infinity"


class Kind(StrEnum):
    """What values of a column are.

    Attributes:
        form: how a value of the log becomes JSON.
        pattern: a regular expression for the texts of values; empty: any text, or none.
        sample: a value in the form of the log.
    """

    form: Form
    pattern: str
    sample: str

    def __new__(cls, name: str, form: Form, sample: str, pattern: str = "") -> Self:
        made = str.__new__(cls, name)
        made._value_ = name
        made.form, made.sample, made.pattern = form, sample, pattern
        return made

    BOOL = "bool", Form.NATIVE, "true"
    INT16 = "int16", Form.NATIVE, "1"
    INT32 = "int32", Form.NATIVE, "1"
    INT64 = "int64", Form.NATIVE, "1"
    FLOAT32 = "float32", Form.RAW, "1.5", _FLOAT
    FLOAT64 = "float64", Form.RAW, "1.5", _FLOAT
    DECIMAL = "decimal", Form.RAW, "1.5", rf"-?(?:0|[1-9]\d*)(?:\.\d+)?|{_NO_NUMBER}"
    TEXT = "text", Form.TEXT, "x"
    BYTES = "bytes", Form.TEXT, r"\x01", r"\\x(?:[0-9a-f]{2})*"
    DATE = "date", Form.TEXT, "2024-03-31", rf"{_DATE}(?: BC)?|{_INFINITE}"
    TIME = "time", Form.TEXT, "01:02:03", _TIME
    TIMETZ = "timetz", Form.TEXT, "01:02:03+00", rf"(?:{_TIME}){_OFFSET}"
    TIMESTAMP = (
        "timestamp",
        Form.TEXT,
        "2024-03-31T01:02:03.5",
        rf"{_DATE}T(?:{_TIME})(?: BC)?|{_INFINITE}",
    )
    TIMESTAMPTZ = (
        "timestamptz",
        Form.TEXT,
        "2024-03-31T01:02:03.5Z",
        rf"{_DATE}T(?:{_TIME})(?:Z|\+00 BC)|{_INFINITE}",
    )
    INTERVAL = "interval", Form.TEXT, "1 day"
    JSON = "json", Form.RAW, "{}"
    UUID = (
        "uuid",
        Form.TEXT,
        "6a2f4c1e-0d5b-4f0e-9a57-0c1f5f1f0c11",
        r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    )
    ARRAY = "array", Form.RAW, "[]"
    OTHER = "other", Form.TEXT, "x"


INTEGERS = frozenset({Kind.INT16, Kind.INT32, Kind.INT64})
FLOATS = frozenset({Kind.FLOAT32, Kind.FLOAT64})
#: Numbers that the log has as text, in quotes if they are ``"NaN"`` or infinite.
TEXT_NUMBERS = FLOATS | {Kind.DECIMAL}
#: Days and moments, which may be ``infinity``.
DATES = frozenset({Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ})
#: Digits that Spark's, Parquet's and Arrow's 128-bit decimals can have.
MOST_DIGITS = 38
#: Kinds that typed formats have a type for; decimals and arrays may have one.
_TYPED = INTEGERS | FLOATS | DATES | {Kind.BOOL, Kind.BYTES, Kind.TIME}
#: Values of the log are compared as they are: texts by code point.
COMPARED_AS_THEY_ARE = frozenset({Kind.BOOL, Kind.TEXT, Kind.UUID, Kind.TIME})
#: Values can be compared in log form.
ORDERED = INTEGERS | COMPARED_AS_THEY_ARE | DATES | {Kind.DECIMAL}


@dataclass(frozen=True, slots=True)
class LogicalType:
    """The type of a column, or of the elements of its arrays.

    Attributes:
        kind: what its values are.
        precision, scale: of a ``decimal(p,s)`` as the source declares it, where the scale may be
            below zero or above the precision; a decimal of any size has a precision of 0.
        element: of an array.
    """

    kind: Kind
    precision: int = 0
    scale: int = 0
    element: LogicalType | None = None

    @classmethod
    def parse(cls, text: str) -> LogicalType:
        """The inverse of ``str()``.

        Raises:
            ValueError: there is no such logical type.

        >>> LogicalType.parse("array<decimal(12,2)>").element.scale
        2
        """
        return _parsed(text)

    def __str__(self) -> str:
        """The text that states and fingerprints hold: ``decimal(12,2)``, ``array<int32>``."""
        if self.element is not None:
            return f"{self.kind}<{self.element}>"
        return f"{self.kind}({self.precision},{self.scale})" if self.precision else str(self.kind)

    @property
    def physical(self) -> str:
        """The Arrow type in the log: ``bool``, ``int16``, ``int32``, ``int64`` or ``string``."""
        return str(self.kind) if self.kind.form is Form.NATIVE else "string"

    @property
    def digits(self) -> tuple[int, int] | None:
        """The precision and the scale, ``0 <= scale <= precision``, that hold all values of a
        ``decimal(p,s)``; None for every other type."""
        if not self.precision:
            return None
        return max(self.precision - min(self.scale, 0), self.scale), max(self.scale, 0)

    @property
    def items(self) -> LogicalType | None:
        """The elements of an array where a typed format can read them: its text does not show
        whether an element is json or a nested array, which None stands for."""
        element = self.element
        return None if element is None or element.kind in (Kind.JSON, Kind.ARRAY) else element

    @property
    def is_text(self) -> bool:
        """Typed formats (Avro, protobuf, Parquet) have no type for it, but the text of its values:
        for decimals with more digits than others hold, too."""
        if self.kind is Kind.DECIMAL:
            return self.digits is None or self.digits[0] > MOST_DIGITS
        return self.items is None if self.kind is Kind.ARRAY else self.kind not in _TYPED

    @property
    def typed(self) -> LogicalType:
        """The type that typed formats hold it as: of what :attr:`is_text` a ``decimal`` or
        ``text``, of decimals one with ``0 <= scale <= precision``; else itself.

        >>> str(LogicalType.parse("decimal(3,-2)").typed)
        'decimal(5,0)'
        """
        if self.is_text:
            return LogicalType(Kind.DECIMAL if self.kind is Kind.DECIMAL else Kind.TEXT)
        if self.items is not None:
            return LogicalType(Kind.ARRAY, element=self.items.typed)
        return LogicalType(Kind.DECIMAL, *self.digits) if self.digits else self

    @property
    def innermost(self) -> LogicalType:
        """The elements of arrays however deep, or the type itself."""
        return self if self.element is None else self.element.innermost


_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")


@lru_cache(maxsize=4096)
def _parsed(text: str) -> LogicalType:
    if text.startswith("array<") and text.endswith(">"):
        return LogicalType(Kind.ARRAY, element=_parsed(text[len("array<") : -1]))
    if match := _DECIMAL.fullmatch(text):
        return LogicalType(Kind.DECIMAL, int(match[1]), int(match[2]))
    kind = next((kind for kind in Kind if kind == text != Kind.ARRAY), None)
    if kind is None:
        raise ValueError(f"no logical type: {text}")
    return LogicalType(kind)

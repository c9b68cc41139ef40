"""Expressions of a query as Spark has analysed it, and words for moments, such as ``'now'``, in
them.

Spark replaces these words by the time at which it reads a query. A query with ``timestamp 'now'``,
or with a constant text that becomes a date or a timestamp, would give another result after every
start of the node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, Self

#: Words that Spark replaces; ``epoch`` is always the same moment.
_WORDS = re.compile(r"\s*(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
#: Words before a string that make a date or a timestamp of it.
TYPED = frozenset({"DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ"})
_TYPES = frozenset({"date", "timestamp", "timestamp_ntz"})


class Expression(Protocol):
    """One expression, with those inside it."""

    @property
    def kind(self) -> str:
        """Spark's class, without its package."""
        ...

    @property
    def name(self) -> str:
        """Of a column, an alias or a Python function its name; else that of Spark's function."""
        ...

    @property
    def children(self) -> Sequence[Self]: ...

    @property
    def type(self) -> str:
        """The type, as SQL has it."""
        ...

    @property
    def json_type(self) -> str:
        """The type, as Spark writes it in JSON."""
        ...

    @property
    def nullable(self) -> bool: ...

    @property
    def deterministic(self) -> bool: ...

    @property
    def field(self) -> str:
        """The field that a ``GetStructField`` reads."""
        ...

    @property
    def aggregate(self) -> Self:
        """The function of an ``AggregateExpression``."""
        ...

    @property
    def place(self) -> tuple[int, int] | None:
        """First and last character in the analysed text; None if they are not known."""
        ...

    def constant(self) -> str | None:
        """The value as text if it does not depend on a row; else None."""
        ...

    def same(self, other: Any) -> bool:
        """Whether both have the same value on every row."""
        ...


class QueryPlan(Protocol):
    """The analysis of a query over one view."""

    @property
    def kind(self) -> str:
        """Spark's name of the last step: ``Project``, ``Aggregate``."""
        ...

    def columns(self) -> Sequence[Expression]:
        """The expression of each column."""
        ...

    def groups(self) -> Sequence[Expression]:
        """The expressions that it groups by; none if it groups by nothing."""
        ...

    def replaced(self) -> Sequence[Expression]:
        """All expressions, with functions like ``to_date`` replaced by what they stand for."""
        ...


def moment_in(text: str) -> str | None:
    """The word for a moment that a text begins with; None if it is none."""
    found = _WORDS.match(text)
    return found[1].lower() if found else None


def moments(expressions: Iterable[Expression]) -> Iterator[str]:
    """The words for moments in constants, also computed ones, that are cast to dates or
    timestamps."""
    for expression in expressions:
        for each in tree(expression):
            word = moment_in(_cast_constant(each) or "")
            if word:
                yield word


def _cast_constant(expression: Expression) -> str | None:
    if expression.kind != "Cast" or expression.type not in _TYPES:
        return None
    (child,) = expression.children
    return child.constant() if child.type == "string" else None


def tree(expression: Expression) -> Iterator[Expression]:
    """An expression and all expressions inside it."""
    yield expression
    for child in expression.children:
        yield from tree(child)

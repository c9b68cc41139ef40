"""Walks Spark's expressions from Python, and finds words for moments, such as ``'now'``, in them.

Spark replaces these words by the time at which it reads a query.

A query with ``timestamp 'now'``, or with a constant text that becomes a date or a timestamp, would
give another result after every start of the node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Words that Spark replaces; ``epoch`` is always the same moment.
_WORDS = re.compile(r"\s*(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
#: Words before a string that make a date or a timestamp of it.
TYPED = frozenset({"DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ"})
_TYPES = frozenset({"date", "timestamp", "timestamp_ntz"})


def moment_in(text: str) -> str | None:
    """The word for a moment that a text begins with; None if it is none."""
    found = _WORDS.match(text)
    return found[1].lower() if found else None


def moments(session: SparkSession, plan: Any) -> Iterator[str]:
    """The words for moments in the columns of an analysed plan: in constants, also computed ones,
    that are cast to dates or timestamps."""
    jvm: Any = session._jvm
    rules = jvm.org.apache.spark.sql.catalyst.optimizer
    # Replaces functions like to_date() by their expressions.
    replaced = getattr(getattr(rules, "ReplaceExpressions$"), "MODULE$").apply(plan)
    for expression in sequence(replaced.expressions()):
        for each in tree(expression):
            word = moment_in(_constant(each) or "")
            if word:
                yield word


def _constant(expression: Any) -> str | None:
    """The constant text that an expression casts to a date or a timestamp."""
    if expression.getClass().getSimpleName() != "Cast":
        return None
    child = expression.child()
    into, of = expression.dataType().simpleString(), child.dataType().simpleString()
    if into not in _TYPES or of != "string" or not child.foldable():
        return None
    value = child.eval(None)
    return None if value is None else str(value.toString())


# ------------------------------------------------------------------------------- walking


def sequence(items: Any) -> Iterator[Any]:
    """The elements of a Scala sequence."""
    for i in range(items.size()):
        yield items.apply(i)


def tree(expression: Any) -> Iterator[Any]:
    """An expression and all expressions inside it."""
    yield expression
    for child in sequence(expression.children()):
        yield from tree(child)

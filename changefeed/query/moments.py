"""Words for moments, such as ``'now'``: Spark replaces them by the time at which it reads a query.

A query with ``timestamp 'now'``, or with a constant text that becomes a date or a timestamp, would
tell another moment after every start of the node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What Spark replaces; ``epoch`` is the same moment always.
_WORDS = re.compile(r"\s*(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
#: Words before a string that make a date or a timestamp of it.
TYPED = frozenset({"DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ"})
_TYPES = frozenset({"date", "timestamp", "timestamp_ntz"})


def moment_in(text: str) -> str | None:
    """The word for a moment that a text begins with; None if it is none."""
    found = _WORDS.match(text)
    return found[1].lower() if found else None


def moments(session: SparkSession, plan: Any) -> Iterator[str]:
    """The words for moments in the columns of an analysed plan: constants, also computed ones,
    that become dates or timestamps."""
    jvm: Any = session._jvm
    rules = jvm.org.apache.spark.sql.catalyst.optimizer
    # Shows what functions like to_date() stand for.
    replaced = getattr(getattr(rules, "ReplaceExpressions$"), "MODULE$").apply(plan)
    expressions = replaced.expressions()
    for i in range(expressions.size()):
        for text in _constants(expressions.apply(i)):
            word = moment_in(text)
            if word:
                yield word


def _constants(expression: Any) -> Iterator[str]:
    """The constant texts that become dates or timestamps."""
    if expression.getClass().getSimpleName() == "Cast":
        child = expression.child()
        into, of = expression.dataType().simpleString(), child.dataType().simpleString()
        if into in _TYPES and of == "string" and child.foldable():
            value = child.eval(None)
            if value is not None:
                yield str(value.toString())
    children = expression.children()
    for i in range(children.size()):
        yield from _constants(children.apply(i))

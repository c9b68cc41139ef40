"""Words for moments, such as ``'now'``: Spark replaces them by the time at which it reads a query.

A query with ``timestamp 'now'``, or with a constant text that becomes a date or a timestamp, would
tell another moment after every start of the node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from changefeed.query.scala import sequence, tree

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
    for expression in sequence(replaced.expressions()):
        for each in tree(expression):
            word = moment_in(_constant(each) or "")
            if word:
                yield word


def _constant(expression: Any) -> str | None:
    """The constant text that an expression makes a date or a timestamp of."""
    if expression.getClass().getSimpleName() != "Cast":
        return None
    child = expression.child()
    into, of = expression.dataType().simpleString(), child.dataType().simpleString()
    if into not in _TYPES or of != "string" or not child.foldable():
        return None
    value = child.eval(None)
    return None if value is None else str(value.toString())

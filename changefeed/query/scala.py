"""Expressions and sequences of Spark's JVM, walked from Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def sequence(items: Any) -> Iterator[Any]:
    """The elements of a Scala sequence."""
    for i in range(items.size()):
        yield items.apply(i)


def tree(expression: Any) -> Iterator[Any]:
    """An expression and all that it is made of."""
    yield expression
    for child in sequence(expression.children()):
        yield from tree(child)

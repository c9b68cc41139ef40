"""Options of a statement's own, which stand in one list with those of the feed."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from changefeed.core.errors import Code
from changefeed.options import OptionReader, to_span
from grammar import nodes


def split_options(
    options: Sequence[nodes.Option], own: Collection[str], reading: OptionReader
) -> tuple[dict[str, nodes.Literal], tuple[nodes.Option, ...]]:
    """The values of the options ``own`` by name, and the other options, unread.

    One that is given twice or without a value is a problem of ``reading``, and left out.
    """
    values: dict[str, nodes.Literal] = {}
    others = []
    for node in options:
        span = to_span(node.span)
        if node.name not in own:
            others.append(node)
        elif node.name in values:
            reading.problem(
                Code.OPTIONS_CONTRADICT, f'option "{node.name}" specified multiple times', span
            )
        elif node.value is None or not node.value.text.strip():
            reading.problem(
                Code.INVALID_OPTION_VALUE, f'option "{node.name}" requires a value', span
            )
        else:
            values[node.name] = node.value
    return values, tuple(others)

"""Options that belong to one statement: alone, or in one list with those of the feed."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from changefeed.core.clock import SystemClock
from changefeed.core.errors import Code, raise_all
from changefeed.options import OptionReader, to_span
from grammar import nodes
from grammar.spelling import did_you_mean

#: The options of CREATE and ALTER EXTERNAL CONNECTION: name, values, meaning.
CONNECTION_OPTIONS: dict[str, tuple[tuple[str, ...], str]] = {
    "check": (("yes", "no"), "Whether the server is tried before the connection is stored.")
}


def wants_check(options: Sequence[nodes.Option], *, text: str = "") -> bool:
    """Whether the statement of a connection is to try the server; the default is yes.

    Raises:
        ChangefeedError: CF1203, CF1204, CF1205 an option is wrong.
    """
    reading = OptionReader(SystemClock(), text)
    given, others = split_options(options, CONNECTION_OPTIONS, reading)
    for node in others:
        near = did_you_mean(node.name, CONNECTION_OPTIONS)
        known = f"a connection takes {', '.join(CONNECTION_OPTIONS)}; what belongs to the server "
        known += "is a parameter of the URI."
        reading.problem(
            Code.UNKNOWN_OPTION,
            f'invalid option "{node.name}"',
            to_span(node.span),
            f'did you mean "{near}"?' if near else known,
        )
    value = given.get("check")
    values, _ = CONNECTION_OPTIONS["check"]
    if value is not None and value.text.lower() not in values:
        reading.problem(
            Code.INVALID_OPTION_VALUE,
            f"unknown check: {value.text}, valid values are 'yes' and 'no'",
            to_span(value.span),
        )
    raise_all(reading.problems)
    return value is None or value.text.lower() == "yes"


def split_options(
    options: Sequence[nodes.Option], own: Collection[str], reading: OptionReader
) -> tuple[dict[str, nodes.Literal], tuple[nodes.Option, ...]]:
    """The values of the options ``own`` by name, and the other options, unchecked.

    An option without a value or given twice is added to the problems of ``reading``.
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

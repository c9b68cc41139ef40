"""Options that belong to one statement: alone, or in one list with those of the feed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from changefeed.core.clock import SystemClock
from changefeed.core.errors import Code, raise_all
from changefeed.options import OptionReader, one_of, to_span
from grammar import nodes
from grammar.spelling import did_you_mean

#: The options of CREATE and ALTER EXTERNAL CONNECTION: name, values, meaning.
CONNECTION_OPTIONS: dict[str, tuple[tuple[str, ...], str]] = {
    "check": (("yes", "no"), "Whether the server is tried before the connection is stored.")
}


#: The options of CREATE and ALTER USER.
USER_OPTIONS: dict[str, tuple[tuple[str, ...], str]] = {
    "role": (("viewer", "operator", "admin"), "What the user may do."),
    "expires": ((), "When the token ends, from now: '90d', or 'never'."),
    "token": (("new",), "A new token in place of the old one (ALTER USER)."),
}

#: The options of CREATE SCHEDULE.
SCHEDULE_OPTIONS: dict[str, tuple[tuple[str, ...], str]] = {
    "first_run": ((), "When the first run is: 'now', or a timestamp."),
    "on_execution_failure": (
        ("reschedule", "retry", "pause"),
        "What follows a run that fails: the next time, another try after a minute, or a pause.",
    ),
    "on_previous_running": (
        ("wait", "skip", "start"),
        "What a run does while the one before is under way.",
    ),
}


def wants_check(options: Sequence[nodes.Option], *, text: str = "") -> bool:
    """Whether the statement of a connection is to try the server; the default is yes.

    Raises:
        ChangefeedError: CF1203, CF1204, CF1205 an option is wrong.
    """
    reading = OptionReader(SystemClock(), text)
    more = "; what belongs to the server is a parameter of the URI"
    given = own_values(options, CONNECTION_OPTIONS, "a connection", reading, more)
    raise_all(reading.problems)
    value = given.get("check")
    return value is None or value.text.lower() == "yes"


def own_values(
    options: Sequence[nodes.Option],
    own: Mapping[str, tuple[tuple[str, ...], str]],
    what: str,
    reading: OptionReader,
    more: str = "",
) -> dict[str, nodes.Literal]:
    """The values of a statement that takes the options ``own`` alone; problems go to ``reading``.

    ``what`` takes them, in the hint for another name, which ``more`` ends.
    """
    given, others = split_options(options, own, reading)
    for node in others:
        near = did_you_mean(node.name, own)
        reading.problem(
            Code.UNKNOWN_OPTION,
            f'invalid option "{node.name}"',
            to_span(node.span),
            f'did you mean "{near}"?' if near else f"{what} takes {', '.join(own)}{more}.",
        )
    for name, value in given.items():
        values, _ = own[name]
        if values and value.text.lower() not in values:
            reading.problem(
                Code.INVALID_OPTION_VALUE,
                # What stands in the place of a token may be one.
                f"unknown {name}{'' if name == 'token' else f': {value.text}'}, {one_of(values)}",
                to_span(value.span),
            )
    return given


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

"""The table of errors for users: the page ``docs/errors.md``, and the help texts of the shell.

A test compares the page with :func:`markdown`.
"""

from __future__ import annotations

from collections.abc import Iterator

from changefeed.core.errors import Action, Code, Scope

#: What follows from an error.
ACTIONS: dict[Action, str] = {
    Action.USER: "The statement is refused; a running feed that meets it fails.",
    Action.RETRY: "It is retried with growing pauses; a feed gives up after retry_for.",
    Action.STOP: "It is not retried until a person acts.",
}

#: What is affected.
SCOPES: dict[Scope, str] = {
    Scope.STATEMENT: "It concerns one statement.",
    Scope.TABLE: "In a running feed it stops one table; the other tables continue.",
    Scope.FEED: "It concerns one feed; other feeds continue.",
    Scope.SOURCE: "It concerns a source and all feeds that read it. Where the source reports it "
    "for one table, only that table stops.",
    Scope.NODE: "It concerns the node or its state, and with it every feed.",
}

_HEADINGS = {
    "10": "Syntax",
    "11": "Names",
    "12": "Options and URIs",
    "13": "Jobs and statements",
    "14": "Requests over HTTP",
    "20": "Source",
    "21": "Replication stream",
    "22": "Initial scan",
    "30": "Change log",
    "40": "Encoding and Spark",
    "41": "Schema changes",
    "50": "Sinks",
    "60": "State and node",
    "90": "Internal errors",
}

_HEAD = """\
# Error codes

Every error has a code. `\\h CF2003` in the shell shows what this page says of it. This page is made
from the table in `changefeed/core/errors.py`; `pytest tests/golden --rewrite` writes it again.

*Action* is what changefeed does with the error: `user` refuses the statement, or fails the feed
that meets it; `retry` tries again with growing pauses, and a feed gives up after `retry_for`;
`stop` requires manual action. *Scope* is what the error affects while feeds run: an error of
scope `table` stops one table of a feed, and the other tables go on. An error that a source reports
for one table stops only that table, too.
"""


def markdown() -> str:
    """The page of the documentation that lists all errors."""
    return "".join((_HEAD, *_tables()))


def _tables() -> Iterator[str]:
    for group, heading in _HEADINGS.items():
        yield f"\n## {heading}\n\n| code | meaning | action | scope | what to do |\n"
        yield "|---|---|---|---|---|\n"
        for code in Code:
            if code.number[2:4] == group:
                cells = (code.number, code.summary, code.action, code.scope, code.hint)
                yield f"| {' | '.join(_cell(text) for text in cells)} |\n".replace("|  |", "| |")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")

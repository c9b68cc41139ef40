"""VALIDATE: every problem of a statement as a table, or one row that says it is fine."""

from __future__ import annotations

from collections.abc import Sequence

from changefeed.core.errors import Action, ChangefeedError
from changefeed.core.uri import redact
from changefeed.plan.stages import FeedPlan

#: Columns of VALIDATE's answer.
COLUMNS = ("severity", "code", "where", "problem", "hint")

Row = tuple[str, str, str, str, str]


def problem_rows(
    plan: FeedPlan | None, problems: Sequence[ChangefeedError], warnings: Sequence[str], text: str
) -> list[Row]:
    """Errors in the order of the text, then warnings; ``ok`` when there is no error."""
    rows = [_row(problem, text) for problem in problems]
    notices = (*(plan.notices if plan else ()), *warnings)
    rows += [("warning", "", "", notice, "") for notice in notices]
    if not problems and plan is not None:
        count = len(plan.tables)
        tables = f"{count} {'table' if count == 1 else 'tables'}"
        sink = plan.sink.shown_uri or "this client"
        rows.insert(0, ("ok", "", "", f"{tables} of {plan.source.source} to {sink}", ""))
    return rows


def _row(problem: ChangefeedError, text: str) -> Row:
    message = f"{problem.message} ({problem.detail})" if problem.detail else problem.message
    where = _where(problem, text)
    return ("error", problem.code.number, where, message, problem.hint)


def _where(problem: ChangefeedError, text: str) -> str:
    """The words of the statement that the problem is about, else the part of the system."""
    if problem.span is not None and text:
        words = text[problem.span.start : problem.span.end].strip()
        return redact(words.strip("'")) if "://" in words else words
    number = problem.code.number
    if number.startswith("CF2"):
        return "source"
    if number.startswith("CF5"):
        return "sink"
    return "statement" if problem.action is Action.USER else ""

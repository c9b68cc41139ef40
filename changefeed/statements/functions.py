"""CREATE FUNCTION, DROP FUNCTION and SHOW FUNCTIONS: Python functions for CDC queries."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from changefeed.catalog import Function, Job
from changefeed.core.errors import ChangefeedError, Code
from changefeed.dataset.config import column_type
from changefeed.options import to_span
from changefeed.plan.names import unknown_name
from changefeed.plan.targets import parse_targets
from changefeed.query.functions import called, is_vectorized
from changefeed.statements.context import Context, Result, handles
from changefeed.statements.times import date
from changefeed.statements.values import Names
from grammar import nodes

_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*\Z")
#: Functions of a change that queries have already.
_OURS = frozenset(
    {
        "event_op", "event_timestamp", "event_schema_timestamp",
        "changefeed_creation_timestamp", "crdb_internal_mvcc_timestamp",
    }
)  # fmt: skip


COLUMNS = ("function", "python", "path", "takes", "used_by", "created")


@handles(nodes.CreateFunction)
def create_function(statement: nodes.CreateFunction, context: Context) -> Result:
    """CREATE FUNCTION."""
    function = _function(statement, context)
    _refuse_shadow(statement, context)
    try:
        made = context.catalog.create_function(function, statement.if_not_exists)
    except ChangefeedError as error:
        error.span = error.span or to_span(statement.name_span)
        raise
    notices = [] if made else [f'function "{function.name}" already exists, skipping']
    return Result("done", notices=notices, tag="CREATE FUNCTION")


@handles(nodes.DropFunction)
def drop_function(statement: nodes.DropFunction, context: Context) -> Result:
    """DROP FUNCTION: refused while a feed calls it."""
    name, span = statement.name, to_span(statement.name_span)
    users = _users(name, context)
    if users:
        raise ChangefeedError(
            Code.WRONG_JOB_STATE,
            f'function "{name}" is used by {", ".join(users)}',
            hint="DROP them first.",
            span=span,
        )
    if context.catalog.drop_function(name):
        return Result("done", tag="DROP FUNCTION")
    if statement.if_exists:
        notice = f'function "{name}" does not exist, skipping'
        return Result("done", notices=[notice], tag="DROP FUNCTION")
    names = (function.name for function in context.catalog.functions())
    raise unknown_name("function", name, names, "SHOW FUNCTIONS lists them.", statement.name_span)


def _refuse_shadow(statement: nodes.CreateFunction, context: Context) -> None:
    """Refuse the name of a function of Spark that feeds call: their queries would no longer
    compile, and the function could not be dropped."""
    name = statement.name
    if any(function.name == name for function in context.catalog.functions()):
        return
    users = _users(name, context)
    if users:
        raise ChangefeedError(
            Code.NAME_TAKEN,
            f"Spark SQL has a function {name}() of its own, used by {', '.join(users)}",
            hint="give yours another name.",
            span=to_span(statement.name_span),
        )


def _users(name: str, context: Context) -> list[str]:
    """The feeds whose queries call a function of this name."""
    jobs = context.catalog.jobs(include_finished=False)
    schedules = (s for s in context.catalog.schedules() if name in _called_in(s.targets))
    return [
        *(job.name for job in jobs if name in _of(job)),
        *(f"schedule {s.name}" for s in schedules),
    ]


@handles(nodes.ShowFunctions)
def show_functions(statement: nodes.ShowFunctions, context: Context) -> Result:
    """SHOW FUNCTIONS."""
    users: dict[str, list[str]] = {}
    for job in context.catalog.jobs(include_finished=False):
        for name in _of(job):
            users.setdefault(name, []).append(job.name)
    rows = [
        (
            f.signature,
            f.reference,
            f.path or None,
            "columns" if f.vectorized else "rows",
            Names(users.get(f.name, ())),
            date(f.created),
        )
        for f in context.catalog.functions()
    ]
    return Result(columns=COLUMNS, rows=list(rows))


def _function(statement: nodes.CreateFunction, context: Context) -> Function:
    reference = statement.reference.text
    span = to_span(statement.reference.span)
    if statement.name in _OURS:
        raise ChangefeedError(
            Code.NAME_TAKEN,
            f"{statement.name}() is a function of CDC queries already",
            span=to_span(statement.name_span),
        )
    if not _REFERENCE.match(reference):
        raise ChangefeedError(
            Code.INVALID_OPTION_VALUE,
            "a function is named as 'module:function'",
            hint="write AS 'package.module:function'.",
            span=span,
        )
    path = "" if statement.path is None else statement.path.text
    if path and not Path(path).is_absolute():
        raise ChangefeedError(
            Code.INVALID_OPTION_VALUE,
            "PATH is a folder from the root on",
            hint="write PATH '/opt/functions'.",
            span=to_span(statement.path.span if statement.path else None),
        )
    arguments = tuple(
        (name.text, column_type(kind, f"argument {name.text}"))
        for name, kind in statement.arguments
    )
    returns = column_type(statement.returns, "RETURNS")
    try:
        vectorized = is_vectorized(reference, path, len(arguments))
    except ChangefeedError as error:
        error.span = span
        raise
    now = context.clock.now().wall
    return Function(statement.name, arguments, returns, reference, path, vectorized, now)


def _of(job: Job) -> set[str]:
    """The functions that a job's query calls, Spark's own among them."""
    return _called_in(job.targets) if job.is_query else set()


def _called_in(targets: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for target in parse_targets(targets):
        if isinstance(target, nodes.TableTarget) and target.query is not None:
            found |= called(target.query)
    return found

"""Results and errors as JSON.

Programs get plain values, the very ones of ``--format json``. A client that shows results to a
person asks for ``display``: each cell then also says how a person reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from changefeed.api import (
    Cell,
    Estimate,
    Names,
    Rate,
    Result,
    Seconds,
    Session,
    ShownText,
    Size,
    plain_cell,
)
from changefeed.core.errors import Action, ChangefeedError, Code, Problems

#: The media type of an answer that comes line by line, and of an error.
LINES = "application/x-ndjson"
PROBLEM = "application/problem+json"

#: Values that a person reads in words of their own, by the name of the type in JSON.
MEASURES: dict[str, type[float]] = {
    "seconds": Seconds,
    "bytes": Size,
    "rate": Rate,
    "estimate": Estimate,
}
_TYPES: dict[type, str] = {
    **{kind: name for name, kind in MEASURES.items()},
    Names: "list",
    ShownText: "text",
    str: "text",
    int: "integer",
    float: "number",
}

#: What the number of an error means to a client of HTTP; the longest beginning counts.
_STATUS = {
    "CF10": HTTPStatus.BAD_REQUEST,
    "CF11": HTTPStatus.BAD_REQUEST,
    "CF12": HTTPStatus.BAD_REQUEST,
    Code.NAME_UNKNOWN: HTTPStatus.NOT_FOUND,
    Code.NAME_TAKEN: HTTPStatus.CONFLICT,
    Code.WRONG_JOB_STATE: HTTPStatus.CONFLICT,
    Code.TIMED_OUT: HTTPStatus.GATEWAY_TIMEOUT,
    Code.LOGIN_NEEDED: HTTPStatus.UNAUTHORIZED,
    Code.RIGHT_MISSING: HTTPStatus.FORBIDDEN,
    "CF2": HTTPStatus.BAD_GATEWAY,
    "CF5": HTTPStatus.BAD_GATEWAY,
    "CF6": HTTPStatus.SERVICE_UNAVAILABLE,
    "CF9": HTTPStatus.INTERNAL_SERVER_ERROR,
}


def status_of(error: ChangefeedError) -> HTTPStatus:
    """The status of an answer that is this error."""
    number = error.code.number
    for length in (6, 4, 3):
        if number[:length] in _STATUS:
            return _STATUS[number[:length]]
    retried = error.action is Action.RETRY
    return HTTPStatus.SERVICE_UNAVAILABLE if retried else HTTPStatus.UNPROCESSABLE_ENTITY


def problem(error: ChangefeedError, status: HTTPStatus | None = None) -> dict[str, Any]:
    """The body of such an answer (RFC 9457), with the fields that the shell prints as JSON.

    ``problems`` lists them where a statement has several.
    """
    body = {"title": error.code.summary, "status": int(status or status_of(error))}
    body |= error.fields()
    if isinstance(error, Problems):
        body["problems"] = [each.fields() for each in error.problems]
    return body


# -------------------------------------------------------------------------------- results


def result_form(result: Result, *, display: bool = False) -> dict[str, Any]:
    """A result as JSON, without its stream."""
    cell = _shown if display else plain_cell
    form: dict[str, Any] = {
        "tag": result.tag,
        "columns": [
            {"name": name, "type": _type_of(row[i] for row in result.rows)}
            for i, name in enumerate(result.columns)
        ],
        "rows": [[cell(value) for value in row] for row in result.rows],
        "notices": list(result.notices),
    }
    if result.name is not None:
        form["feed"] = {"id": result.job_id, "name": result.name}
    if result.failure is not None:
        form["failure"] = result.failure.fields()
    if display:
        form |= {"kind": result.kind, "vertical": result.vertical}
        if result.brief is not None:
            rows = [[_shown(value) for value in row] for row in result.brief.rows]
            form["brief"] = {"columns": list(result.brief.columns), "rows": rows}
        form["sections"] = [
            {"title": part.title, "facts": [[name, _shown(value)] for name, value in part.facts]}
            for part in result.sections
        ]
    return form


def _type_of(cells: Iterable[Cell]) -> str | None:
    """The type of the first cell that has a value; None where none has."""
    return next((_type(cell) for cell in cells if cell is not None), None)


def _type(cell: Cell) -> str:
    return next(name for kind, name in _TYPES.items() if isinstance(cell, kind))


def _shown(cell: Cell) -> Any:
    """A cell with how it is read: an object where that is not its plain value."""
    if isinstance(cell, (Names, *MEASURES.values())):
        return {_type(cell): plain_cell(cell)}
    if isinstance(cell, ShownText):
        return {"text": [str(cell), cell.words]}
    return cell


# -------------------------------------------------------------------------------- sessions


def session_form(session: Session) -> dict[str, Any]:
    """What a client sends with its next statement, so that USE lasts."""
    return {"source": session.source, "heard": sorted(session.heard)}


def restore_session(form: Mapping[str, Any], session: Session) -> None:
    """Take over what :func:`session_form` said."""
    session.source = form.get("source")
    session.heard = set(form.get("heard", ()))

"""Reads results and errors of the HTTP API back, as a client that shows them to a person can."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from changefeed.api import (
    Brief,
    Cell,
    FeedFacts,
    KnownNames,
    Names,
    Result,
    Seconds,
    Section,
    ShownColumn,
    ShownTable,
    ShownText,
    Summary,
)
from changefeed.core.errors import ChangefeedError, Code, Problems, Span
from changefeed.http.forms import MEASURES


def error_of(body: Mapping[str, Any]) -> ChangefeedError:
    """The error of an answer (:func:`changefeed.http.forms.problem`)."""
    found = [_error(fields) for fields in body.get("problems", ())]
    return Problems(found) if found else _error(body)


def _error(fields: Mapping[str, Any]) -> ChangefeedError:
    return ChangefeedError(
        Code.stored(fields.get("code")) or Code.INTERNAL_ERROR,
        str(fields.get("error", "")),
        detail=str(fields.get("detail", "")),
        hint=str(fields.get("hint", "")),
        span=Span(fields["start"], fields["end"]) if "start" in fields else None,
    )


def result_of(form: Mapping[str, Any]) -> Result:
    """The inverse of :func:`changefeed.http.forms.result_form` with ``display``."""
    brief, feed = form.get("brief"), form.get("feed") or {}
    return Result(
        form["kind"],
        tuple(column["name"] for column in form["columns"]),
        _rows(form["rows"]),
        list(form["notices"]),
        vertical=form["vertical"],
        job_id=feed.get("id"),
        name=feed.get("name"),
        failure=_error(form["failure"]) if "failure" in form else None,
        tag=form["tag"],
        brief=Brief(tuple(brief["columns"]), lambda: _rows(brief["rows"])) if brief else None,
        sections=tuple(
            Section(part["title"], [(name, _cell(value)) for name, value in part["facts"]])
            for part in form["sections"]
        ),
    )


def _rows(rows: Iterable[Sequence[Any]]) -> list[tuple[Cell, ...]]:
    return [tuple(_cell(value) for value in row) for row in rows]


def _cell(form: Any) -> Cell:
    if not isinstance(form, dict):
        cell: Cell = form
        return cell
    ((name, value),) = form.items()
    if name == "list":
        return Names(value)
    return ShownText(*value) if name == "text" else MEASURES[name](value)


# --------------------------------------------------------------------- what a prompt reads


def names_of(form: Mapping[str, Any]) -> KnownNames:
    """The inverse of ``asdict``, as in the next two."""
    feeds = (
        feed | {"options": tuple(feed["options"]), "tables": tuple(map(tuple, feed["tables"]))}
        for feed in form["feeds"]
    )
    known = {"feeds": tuple(FeedFacts(**f) for f in feeds), "users": tuple(form.get("users", ()))}
    return KnownNames(**{**form, **known})


def summary_of(form: Mapping[str, Any]) -> Summary:
    lag = form["worst_lag"]
    scanning = {name: (rows, total) for name, (rows, total) in form["scanning"].items()}
    worst = None if lag is None else Seconds(lag)
    return Summary(**{**form, "worst_lag": worst, "scanning": scanning})


def table_of(form: Mapping[str, Any]) -> ShownTable:
    columns = tuple(ShownColumn(**column) for column in form["columns"])
    return ShownTable(**{**form, "columns": columns, "partitions": tuple(form["partitions"])})

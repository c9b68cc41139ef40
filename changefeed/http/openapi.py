"""The OpenAPI document of the API, made of the table of resources."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from changefeed.core.version import __version__
from changefeed.http.events import EVENTS
from changefeed.http.forms import LINES, PROBLEM
from changefeed.http.resources import FACTS, RESOURCES, Fact, Resource
from changefeed.http.statements import SCHEMA

_CELL = {"type": ["string", "number", "null", "array"], "items": {"type": "string"}}
_ERROR = {
    "error": {"type": "string", "description": "What is wrong, in one sentence."},
    "code": {"type": "string", "pattern": "^CF[0-9]{4}$"},
    "detail": {"type": "string"},
    "hint": {"type": "string", "description": "What to do next."},
    "line": {"type": "integer", "description": "Line of the statement, from 1."},
    "start": {"type": "integer", "description": "Offset in the statement, in characters."},
    "end": {"type": "integer"},
}
_OBJECT = {"type": "object", "additionalProperties": _CELL}
_NOTICES = {"type": "array", "items": {"type": "string"}}
_SESSION = SCHEMA["properties"]["session"]
_SCHEMAS: dict[str, Any] = {
    "Error": {"type": "object", "required": ["error", "code"], "properties": _ERROR},
    "Problem": {
        "type": "object",
        "required": ["title", "status", "error", "code"],
        "properties": {
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "offset": {
                "type": "integer",
                "description": "Where the failed statement begins in the text; 0 if left out.",
            },
            **_ERROR,
            "problems": {"type": "array", "items": {"$ref": "#/components/schemas/Error"}},
            "results": {
                "type": "array",
                "description": "Of the statements before the one that failed.",
                "items": {"$ref": "#/components/schemas/Result"},
            },
        },
    },
    "Result": {
        "type": "object",
        "required": ["tag", "columns", "rows", "notices"],
        "properties": {
            "tag": {"type": "string"},
            "columns": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["name", "type"],
                    "properties": {
                        "name": {"type": "string"},
                        "type": {"type": ["string", "null"]},
                    },
                },
            },
            "rows": {"type": "array", "items": {"type": "array"}},
            "notices": _NOTICES,
            "feed": {"type": "object", "description": "What a CREATE made: id and name."},
            "failure": {"$ref": "#/components/schemas/Error"},
        },
    },
}


def _content(schema: Mapping[str, Any], kind: str = "application/json") -> dict[str, Any]:
    return {"content": {kind: {"schema": schema}}}


_PROBLEM = {
    "description": "An error: what is wrong, its code, and what to do.",
    **_content({"$ref": "#/components/schemas/Problem"}, PROBLEM),
}

_UNCHANGED = {"description": "The answer has the ETag of If-None-Match."}


def _parameters(
    path: str, query: Mapping[str, Mapping[str, Any]], required: bool = False
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", path)
    ]
    for name, schema in query.items():
        found.append({"name": name, "in": "query", "required": required, "schema": dict(schema)})
    return found


def _fact(fact: Fact) -> dict[str, Any]:
    return {
        "summary": fact.summary,
        "operationId": _identifier("GET", fact.path),
        "parameters": _parameters(fact.path, fact.query, required=True),
        "responses": {
            "200": {"description": "Done.", **_content(fact.answer)},
            "304": _UNCHANGED,
            "default": _PROBLEM,
        },
    }


def _operation(resource: Resource) -> dict[str, Any]:
    items = {"items": {"type": "array", "items": _OBJECT}, "notices": _NOTICES}
    listed = {"type": "object", "required": list(items), "properties": items}
    found: dict[str, Any] = {
        "summary": resource.summary,
        "operationId": _identifier(resource.method, resource.path),
        "parameters": _parameters(resource.path, resource.query),
        "responses": {
            "200": {"description": "Done.", **_content(_OBJECT if resource.one else listed)},
            "default": _PROBLEM,
        },
    }
    if resource.body:
        schema = {
            "type": "object",
            "additionalProperties": False,
            "properties": {name: dict(each) for name, each in resource.body.items()},
        }
        found["requestBody"] = _content(schema)
    if resource.method == "GET":
        found["responses"]["304"] = _UNCHANGED
    if resource.live:
        found["responses"]["200"]["content"][EVENTS] = {"schema": {"type": "string"}}
    return found


def _identifier(method: str, path: str) -> str:
    words = re.findall(r"\w+", path.removeprefix("/v1"))
    return "_".join([method.lower(), *words])


def _statements() -> dict[str, Any]:
    answer = {
        "type": "object",
        "required": ["results", "session"],
        "properties": {
            "results": {"type": "array", "items": {"$ref": "#/components/schemas/Result"}},
            "session": _SESSION,
        },
    }
    done: dict[str, Any] = {"description": "The results, in order.", **_content(answer)}
    done["content"] |= {kind: {"schema": {"type": "string"}} for kind in (LINES, EVENTS)}
    return {
        "summary": "Run statements; closing the request cancels.",
        "operationId": "post_statements",
        "requestBody": {"required": True, **_content(SCHEMA)},
        "responses": {"200": done, "default": _PROBLEM},
    }


#: JSON schemas of the fields of a body.
COMPLETED: dict[str, Any] = {"statement": {"type": "string"}}


def _completions() -> dict[str, Any]:
    body = {"type": "object", "additionalProperties": False, "properties": COMPLETED}
    texts = {"type": "array", "items": {"type": "string"}}
    answer = {
        "type": "object",
        "required": ["words", "kinds", "prefix", "quote"],
        "properties": {"words": texts, "kinds": texts}
        | {name: {"type": "string"} for name in ("prefix", "quote")},
    }
    return {
        "summary": "What may come at the end of a text that begins a statement.",
        "operationId": "post_completions",
        "requestBody": _content(body),
        "responses": {"200": {"description": "Done.", **_content(answer)}, "default": _PROBLEM},
    }


def _text(summary: str) -> dict[str, Any]:
    said = _content({"type": "string"}, "text/plain")
    responses = {"200": {"description": "Yes.", **said}, "503": {"description": "No.", **said}}
    return {"get": {"summary": summary, "responses": responses}}


def document() -> dict[str, Any]:
    """The whole document, as JSON has it."""
    paths: dict[str, dict[str, Any]] = {
        "/livez": _text("The process answers."),
        "/readyz": _text("The node runs, and its state can be read."),
        "/v1/statements": {"post": _statements()},
        "/v1/completions": {"post": _completions()},
    }
    paths |= {fact.path: {"get": _fact(fact)} for fact in FACTS}
    for resource in RESOURCES:
        paths.setdefault(resource.path, {})[resource.method.lower()] = _operation(resource)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "changefeed",
            "version": __version__,
            "description": "Changefeeds by SQL over HTTP. docs/http.md explains it.",
        },
        "paths": paths,
        "components": {"schemas": _SCHEMAS},
    }

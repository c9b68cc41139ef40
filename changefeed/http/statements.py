"""``POST /v1/statements``: statements in, results out; closing the request cancels.

The answer is one JSON document, or comes line by line (``Accept: application/x-ndjson``): each
result when its statement has ended, and the rows of a sinkless feed as they are committed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

from changefeed.api import Interpreter, Session, parsed_statement
from changefeed.core.errors import ChangefeedError, Code
from changefeed.http.events import ONE_FEED, going_on
from changefeed.http.forms import problem, restore_session, result_form, session_form
from grammar import nodes
from grammar.binding import ParameterValue
from grammar.split import split

#: JSON Schema of the body.
SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["statement"],
    "additionalProperties": False,
    "properties": {
        "statement": {
            "type": "string",
            "description": "One statement, or several with semicolons between them.",
        },
        "parameters": {
            "type": "array",
            "items": {"type": ["string", "number", "boolean"]},
            "description": "The values of $1, $2, .. of one statement.",
        },
        "session": {
            "type": "object",
            "additionalProperties": False,
            "description": "The session of the answer before: USE lasts by it.",
            "properties": {
                "source": {"type": ["string", "null"]},
                "heard": {"type": "array", "items": {"type": "string"}},
            },
        },
        "display": {
            "type": "boolean",
            "description": "Cells also say how a person reads them, as the shell shows them.",
        },
    },
}


@dataclass(frozen=True, slots=True)
class StatementRequest:
    """The body of a request, read."""

    statement: str
    session: dict[str, Any]
    display: bool
    parameters: tuple[ParameterValue, ...] = ()

    @classmethod
    def read(cls, body: Any) -> StatementRequest:
        """Check a body against :data:`SCHEMA`.

        Raises:
            ChangefeedError: CF1204.
        """
        if not isinstance(body, dict):
            raise _wrong("the body is a JSON object")
        unknown = sorted(body.keys() - SCHEMA["properties"].keys())
        if unknown:
            raise _wrong(f'there is no field "{unknown[0]}"')
        statement, session = body.get("statement"), body.get("session", {})
        if not isinstance(statement, str):
            raise _wrong('field "statement" is a text')
        parameters = body.get("parameters", [])
        if not isinstance(parameters, list) or not all(
            isinstance(value, ParameterValue) for value in parameters
        ):
            raise _wrong('field "parameters" is a list of texts, numbers, true and false')
        if not isinstance(body.get("display", False), bool):
            raise _wrong('field "display" is true or false')
        heard = session.get("heard", []) if isinstance(session, dict) else None
        if (
            not isinstance(heard, list)
            or session.keys() - SCHEMA["properties"]["session"]["properties"].keys()
            or not isinstance(session.get("source"), str | None)
            or not all(isinstance(name, str) for name in heard)
        ):
            raise _wrong('field "session" is what an answer had under this name')
        return cls(statement, session, body.get("display", False), tuple(parameters))


def _wrong(what: str) -> ChangefeedError:
    return ChangefeedError(
        Code.INVALID_OPTION_VALUE, what, hint='as {"statement": "SHOW CHANGEFEEDS"}.'
    )


@dataclass(slots=True)
class StatementRun:
    """The statements of one request at work.

    Attributes:
        interpreter: executes them.
        asked: the request.
        session: of the request; what it is at the end goes back to the client.
        streams: the client takes rows of a feed without a sink.
        last: the id of the last event that it saw, or empty at its first request; None where it
            does not take events.
        offset: where the statement at work begins in the text of the request.
    """

    interpreter: Interpreter
    asked: StatementRequest
    session: Session
    streams: bool
    last: str | None = None
    offset: int = 0

    def lines(self) -> Generator[dict[str, Any]]:
        """What the client gets, in order: ``result``, ``row`` of a sinkless feed, ``session`` at
        the end.

        Raises:
            ChangefeedError: a statement failed; those before it have run.
        """
        restore_session(self.asked.session, self.session)
        pieces = [piece for piece in split(self.asked.statement) if piece.text.strip()]
        if not pieces:
            raise ChangefeedError(Code.SYNTAX_ERROR, "there is no statement")
        if self.last and len(pieces) > 1:
            raise ChangefeedError(Code.INVALID_OPTION_VALUE, ONE_FEED)
        if self.asked.parameters and len(pieces) > 1:
            raise _wrong('field "parameters" goes with one statement')
        for piece in pieces:
            self.offset = piece.start
            yield from self._one(piece.text)
        yield {"session": session_form(self.session)}

    def problem(self, error: ChangefeedError) -> dict[str, Any]:
        """The error that ended the lines, as JSON has it."""
        return problem(error) | ({"offset": self.offset} if self.offset else {})

    def _one(self, text: str) -> Iterator[dict[str, Any]]:
        parameters = self.asked.parameters
        parsed = parsed_statement(text, parameters)
        endless = isinstance(parsed, nodes.CreateChangefeed) and parsed.sink is None
        if endless and not self.streams:
            raise ChangefeedError(
                Code.NOT_SUPPORTED,
                "the rows of a feed without INTO have no end",
                hint="ask for them as they come, with the header Accept: application/x-ndjson "
                "or text/event-stream.",
            )
        events = self.last is not None and (endless or self.last != "")
        resumed = going_on(parsed, self.last or "") if events else text
        result = self.interpreter.execute(resumed, self.session, parameters)
        stream = result.stream
        try:
            yield {"result": result_form(result, display=self.asked.display)}
            for row in stream or ():
                yield {"row": row}
        finally:
            # Closing takes the feed down: its job is gone when this returns.
            close = getattr(stream, "close", None)
            if close is not None:
                close()


def collected(run: StatementRun) -> tuple[dict[str, Any], ChangefeedError | None]:
    """The one document of a run, and the error that ended it, if one did."""
    results: list[dict[str, Any]] = []
    answer: dict[str, Any] = {"results": results}
    try:
        for line in run.lines():
            if "result" in line:
                results.append(line["result"])
            else:
                answer |= line
    except ChangefeedError as error:
        return run.problem(error) | answer, error
    return answer, None

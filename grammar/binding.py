"""Values for the parameters ``$1``, ``$2``, .. of a statement.

A value takes the place of its parameter as one token: a string, a number or a quoted name, which
the language takes there. Where strings, names and comments begin and end is decided before any
value is in the text, so no value can become more than that token.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite

from grammar import nodes
from grammar.nodes import Span
from grammar.parser import parse
from grammar.printer import string
from grammar.problems import SyntaxProblem
from grammar.split import LexemeKind, lexemes

#: What a parameter can be.
ParameterValue = str | int | float

#: A parameter with its number; a name may have a dollar in it.
PLACEHOLDER = re.compile(r"(?<![\w$])\$([1-9]\d{0,3})(?![\w$])")


def placeholders(text: str) -> list[int]:
    """The numbers of the parameters of a statement, in the order of the text."""
    return [
        int(number) for start, end in _open(text) for number in PLACEHOLDER.findall(text[start:end])
    ]


def substituted(
    text: str, make: Callable[[re.Match[str]], str], placeholder: re.Pattern[str] = PLACEHOLDER
) -> str:
    """``text`` with its parameters spelt in another way; what stands in quotes stays."""
    parts, position = [], 0
    for start, end in _open(text):
        # The pattern sees what is before a stretch, and a stretch ends at a quote or a comment.
        for found in placeholder.finditer(text, start, end):
            parts += [text[position : found.start()], make(found)]
            position = found.end()
    return "".join([*parts, text[position:]])


def _open(text: str) -> Iterator[tuple[int, int]]:
    """The stretches of a text that are in no string, quoted name or comment."""
    position = 0
    for lexeme in lexemes(text):
        if lexeme.kind is not LexemeKind.SEMICOLON:
            yield position, lexeme.start
            position = lexeme.end
    yield position, len(text)


@dataclass(frozen=True, slots=True)
class BoundStatement:
    """A statement with values in place of its parameters.

    Attributes:
        text: the whole.
        written: the text that had the parameters.
        places: the stretches of each parameter in ``written`` and in ``text``, in order.
        statement: ``text`` parsed; None if it is wrong.
    """

    text: str
    written: str
    places: tuple[tuple[Span, Span], ...]
    statement: nodes.Statement | None = None

    def in_written(self, start: int, end: int) -> tuple[int, int]:
        """Where a stretch of ``text`` is in ``written``; a part of a value is the whole
        parameter."""
        return self._before(start, True), self._before(end, False)

    def _before(self, offset: int, begins: bool) -> int:
        shift = 0
        for old, new in self.places:
            if offset < new.start or (offset == new.start and begins):
                break
            if offset < new.end or (offset == new.end and not begins):
                return old.start if begins else old.end
            shift = old.end - new.end
        return offset + shift


def bind(text: str, values: Sequence[ParameterValue]) -> BoundStatement:
    """Give a statement the values of its parameters.

    Where the language takes a name and no string, a text is the name, exactly as it is written.

    Raises:
        SyntaxProblem: the values are not as many as the parameters, or one stands in a CDC query.
            If the statement is wrong otherwise, it is bound all the same: parsing it says so.
    """
    numbers = placeholders(text)
    highest = max(numbers, default=0)
    if highest != len(values):
        what = f"the statement has {highest} parameters, and {len(values)} values are given"
        raise SyntaxProblem(what, Span(0, len(text)), (), "")
    names: set[int] = set()
    while True:
        bound = _bound(text, values, names)
        try:
            parsed = parse(bound.text)
        except SyntaxProblem as problem:
            starts = [new.start for _, new in bound.places]
            at = starts.index(problem.span.start) if problem.span.start in starts else -1
            if at < 0 or at in names or not isinstance(values[numbers[at] - 1], str):
                return bound
            names.add(at)  # there has to be a name
        else:
            _check_query(parsed, bound)
            return replace(bound, statement=parsed)


def probe(text: str) -> tuple[BoundStatement, list[ParameterValue]]:
    """A statement with values that it could have, and these: 1 where only a number can stand, else
    a text.

    Raises:
        SyntaxProblem: a parameter stands in a CDC query. If the statement is wrong otherwise, it
            has some values all the same.
    """
    numbers = placeholders(text)
    values: list[ParameterValue] = ["x"] * max(numbers, default=0)
    while True:
        bound = bind(text, values)
        if bound.statement is not None:
            return bound, values
        try:
            parse(bound.text)
        except SyntaxProblem as problem:
            starts = [new.start for _, new in bound.places]
            at = starts.index(problem.span.start) if problem.span.start in starts else -1
            if at < 0 or values[numbers[at] - 1] == 1:
                return bound, values
            values[numbers[at] - 1] = 1


def compared(bound: BoundStatement) -> dict[int, str]:
    """Of parameters that WHERE of a SHOW compares with a column: the column, by the number."""
    if not isinstance(bound.statement, nodes.ShowWhere) or bound.statement.where is None:
        return {}
    numbers = placeholders(bound.written)
    number_at = {new.start: n for n, (_, new) in zip(numbers, bound.places, strict=True)}
    return {
        number_at[value.span.start]: condition.column
        for condition in _conditions(bound.statement.where)
        for value in condition.values
        if value.span is not None and value.span.start in number_at
    }


def _conditions(test: nodes.Test) -> Iterator[nodes.Condition]:
    match test:
        case nodes.Condition():
            yield test
        case nodes.Negation():
            yield from _conditions(test.test)
        case _:
            for each in test.tests:
                yield from _conditions(each)


def _check_query(parsed: nodes.Statement, bound: BoundStatement) -> None:
    """Spark reads its strings with escapes of its own: there, a value could become more."""
    made = getattr(parsed, "statement", parsed)
    for target in getattr(made, "targets", ()):
        query = getattr(target, "query", None) and target.span
        for old, new in bound.places:
            if query and query.start <= new.start < query.end:
                raise SyntaxProblem(
                    "a parameter cannot stand in the SELECT of a CDC query",
                    old,
                    (),
                    "its expressions are Spark SQL: write the value in the query.",
                )


def _bound(text: str, values: Sequence[ParameterValue], names: Container[int]) -> BoundStatement:
    places: list[tuple[Span, Span]] = []
    shift = 0

    def spelt(found: re.Match[str]) -> str:
        nonlocal shift
        value = _spelt(values[int(found[1]) - 1], len(places) in names)
        old = Span(*found.span())
        places.append((old, Span(old.start + shift, old.start + shift + len(value))))
        shift += len(value) - len(found[0])
        return value

    return BoundStatement(substituted(text, spelt), text, tuple(places))


def _spelt(value: ParameterValue, as_name: bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace('"', '""') + '"' if as_name else string(value)
    return str(value) if isfinite(value) else string(str(value))

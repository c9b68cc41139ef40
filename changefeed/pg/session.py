"""The statements of one client: those of the language by the interpreter, SELECT over views, and
what clients state about transactions and settings. Knows no socket."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from changefeed.api import Interpreter, Session, parsed_statement
from changefeed.core.errors import ChangefeedError
from changefeed.pg.columns import STREAM, columns_of
from changefeed.pg.messages import PgError
from changefeed.pg.values import INT8, TIMESTAMPTZ, PgColumn, Value, stored
from changefeed.pg.variables import Variables
from changefeed.statements.values import PLAIN_INTEGERS
from grammar import nodes
from grammar.binding import ParameterValue, compared, placeholders, probe, substituted
from grammar.problems import SyntaxProblem
from grammar.split import blank_comments, split

T = TypeVar("T")

#: ``COPY (statement) TO STDOUT [..]``
_COPY = re.compile(r"COPY\s*\((?P<inner>.*)\)\s*TO\s+STDOUT\b\s*(?P<options>.*)$", re.I | re.S)
_COPY_OPTIONS = re.compile(r"(WITH\s*)?(\(?\s*(FORMAT\s+)?(?P<format>text|csv)\s*\)?)?\s*$", re.I)
_SELECTS = ("SELECT", "WITH", "TABLE", "(")

#: What a pool states before another takes the connection, and DEALLOCATE.
_FORGETTING = re.compile(
    r"(?:DEALLOCATE\s+(?:PREPARE\s+)?(?P<name>\w+|\"[^\"]+\")|(?P<word>DISCARD)\s+(?:ALL|TEMP\w*|"
    r"PLANS|SEQUENCES)|CLOSE\s+ALL|UNLISTEN\s+\*)$",
    re.I,
)

#: First words of what begins, ends and marks transactions.
_TRANSACTION = re.compile(
    r"(BEGIN|START|COMMIT|END|ROLLBACK|ABORT|SAVEPOINT|RELEASE)\b(\s+(?:WORK|TRANSACTION)\b)?"
    r"(?P<to>\s+TO\b)?",
    re.I,
)


@dataclass(slots=True)
class Answer:
    """What a statement answers.

    Attributes:
        columns: of the rows; None where the statement has none.
        rows: as they come; closing them ends a feed without a sink.
        tag: for CommandComplete; ``counted`` adds the number of rows.
        notices: sentences for the person.
        copies: the rows are sent as of COPY, in this format.
        forgets: a prepared statement that is dropped with it, ``*`` for all.
    """

    columns: Sequence[PgColumn] | None = None
    rows: Iterator[Sequence[Value]] = field(default_factory=lambda: iter(()))
    tag: str = ""
    counted: bool = False
    notices: list[str] = field(default_factory=list)
    warning: str = ""
    copies: str = ""
    forgets: str = ""

    def close(self) -> None:
        """End what gives the rows."""
        close = getattr(self.rows, "close", None)
        if close is not None:
            close()


@dataclass(frozen=True, slots=True)
class PgStatement:
    """A statement that was read.

    Attributes:
        text: without comments; ``start`` is its place in the query, in characters.
        kind: ``empty``, ``select``, ``transaction``, ``setting``, ``forgetting``,
            ``language``.
        parameters: types of its parameters.
        copies: as of :class:`Answer`.
    """

    text: str
    start: int
    kind: str
    parameters: tuple[int, ...] = ()
    copies: str = ""


class PgSession:
    """Everything of one client between its login and its end, but for what it is sent."""

    def __init__(self, interpreter: Interpreter, session: Session) -> None:
        self._interpreter = interpreter
        self.session = session
        self.variables = Variables(session.user)
        #: I: no transaction; T: in one; E: in one that failed.
        self.transaction = "I"
        self._changed = False

    def prepare(self, text: str, oids: Sequence[int] = ()) -> list[PgStatement]:
        """The statements of a query, each with its kind; one that is empty where there are none."""
        pieces = [
            self._prepared(piece.text, piece.start, oids) for piece in split(text) if piece.text
        ]
        return pieces or [PgStatement("", 0, "empty")]

    def _prepared(self, text: str, start: int, oids: Sequence[int]) -> PgStatement:
        copies, bare = "", blank_comments(text).rstrip()
        copied = _COPY.match(bare)
        if copied:
            options = _COPY_OPTIONS.match(" ".join(copied["options"].split()))
            if options is None:
                raise PgError("0A000", "COPY .. TO STDOUT has the format text or csv, no option")
            copies = (options["format"] or "text").lower()
            start, text = start + copied.start("inner"), text[slice(*copied.span("inner"))]
            bare = blank_comments(text).rstrip()
        lead = len(bare) - len(bare.lstrip())
        start, text, bare = start + lead, text[lead:], bare[lead:]
        upper = bare[:12].upper()
        if upper.startswith(_SELECTS):
            kind = "select"
        elif _TRANSACTION.match(bare):
            kind = "transaction"
        elif _FORGETTING.match(bare):
            kind = "forgetting"
        elif upper.startswith(("SET ", "SET\n", "RESET ")) or (
            upper.startswith("SHOW") and self.variables.shown(bare) is not None
        ):
            kind = "setting"
        else:
            kind = "language"
        if copies and kind not in ("select", "language"):
            raise PgError("0A000", "COPY takes a SELECT, or a statement that has rows")
        count = max(placeholders(text), default=0)
        types = [*oids, *[0] * (count - len(oids))]
        if kind == "select" and 0 in types:
            from changefeed.pg.views import parameter_types

            found = parameter_types(_marked(text))
            types = [each or found.get(number, 0) for number, each in enumerate(types, 1)]
        elif kind == "language" and 0 in types:
            found = _language_types(text)
            types = [each or found.get(number, 0) for number, each in enumerate(types, 1)]
        return PgStatement(text, start, kind, tuple(types), copies)

    def columns(
        self, prepared: PgStatement, values: Sequence[Value] | None = None
    ) -> Sequence[PgColumn] | None:
        """The columns of what a statement will answer, with its parameters if they are known;
        changes nothing.

        Raises:
            PgError, ChangefeedError: the statement is wrong.
        """
        if prepared.copies or prepared.kind in ("empty", "transaction", "forgetting"):
            return None
        if prepared.kind == "setting":
            shown = self.variables.shown(prepared.text)
            return None if shown is None else [PgColumn(shown[0])]
        # LIMIT takes no NULL.
        nothing = values or [0 if oid == INT8 else None for oid in prepared.parameters]
        if prepared.kind == "select":
            answer = self._guarded(prepared, lambda: self._select(prepared, nothing))
            answer.close()
            return answer.columns
        return self._guarded(prepared, lambda: self._language_columns(prepared, values))

    def _language_columns(
        self, prepared: PgStatement, values: Sequence[Value] | None
    ) -> Sequence[PgColumn] | None:
        try:
            # Without its values it is described with some that could be there.
            given = probe(prepared.text)[1] if values is None else _given(values)
        except SyntaxProblem:
            given = _given(values or [])
        parsed = parsed_statement(prepared.text, given)
        names = columns_of(parsed)
        if names is None and isinstance(parsed, nodes.Inquiry):
            names = self._interpreter.execute(parsed, self.session).columns
        return _typed(names) if names else None

    def run(self, prepared: PgStatement, values: Sequence[Value] = ()) -> Answer:
        """Carry out a statement.

        Raises:
            PgError, ChangefeedError: it failed.
        """
        if self.transaction == "E" and not _TRANSACTION.match(prepared.text):
            raise PgError(
                "25P02",
                "current transaction is aborted, commands ignored until end of transaction block",
                hint="ROLLBACK ends it.",
            )
        work: Callable[[], Answer] = {
            "empty": Answer,
            "select": lambda: self._select(prepared, values),
            "transaction": lambda: self._transaction(prepared.text),
            "setting": lambda: self._setting(prepared.text),
            "forgetting": lambda: self._forgetting(prepared.text),
            "language": lambda: self._language(prepared, values),
        }[prepared.kind]
        answer = self._guarded(prepared, work)
        answer.copies = prepared.copies
        return answer

    def _guarded(self, prepared: PgStatement, work: Callable[[], T]) -> T:
        try:
            return work()
        except ChangefeedError as error:
            raise PgError.of(error, prepared.start) from error

    def fail(self) -> None:
        """A statement failed: so has the transaction, if there is one."""
        if self.transaction == "T":
            self.transaction = "E"

    # -- kinds of statements --------------------------------------------------------------

    def _language(self, prepared: PgStatement, values: Sequence[Value]) -> Answer:
        given = _given(values)
        parsed = parsed_statement(prepared.text, given)
        # As text: errors then point into what was written.
        result = self._interpreter.execute(prepared.text, self.session, given)
        self._changed |= not isinstance(parsed, nodes.Inquiry)
        columns: Sequence[str] = result.columns
        rows: Iterator[Sequence[Value]]
        if result.stream is not None:
            columns, rows = STREAM, _first_three(result.stream)
        else:
            rows = iter([[stored(cell) for cell in row] for row in result.rows])
        notices = list(result.notices)
        if result.failure is not None:
            notices.append(f"{result.failure.message} ({result.failure.code.number})")
        return Answer(
            _typed(columns) if columns else None,
            rows,
            result.tag or _words(parsed),
            not result.tag and isinstance(parsed, nodes.Inquiry),
            notices,
        )

    def _select(self, prepared: PgStatement, values: Sequence[Value]) -> Answer:
        # Loaded with the first query: sqlglot takes 150 ms.
        from changefeed.pg.views import Views

        views = Views(self._interpreter, self.session, self.variables)
        columns, rows = views.select(_marked(prepared.text), values)
        return Answer(columns, rows, "SELECT", counted=True)

    def _setting(self, text: str) -> Answer:
        shown = self.variables.shown(text)
        if shown is not None:
            return Answer([PgColumn(shown[0])], iter([(shown[1],)]), "SHOW")
        return Answer(tag=self.variables.state(text) or "SET")

    def _forgetting(self, text: str) -> Answer:
        found = _FORGETTING.match(text)
        if found is None:
            raise AssertionError("the kind is forgetting")
        name = found["name"] or ""
        everything = name.upper() == "ALL" or text.upper().split()[-2:] == ["DISCARD", "ALL"]
        if found["word"]:
            self.variables.reset()
        tag = " ".join(text.upper().split()[: 1 if name and not everything else 2])
        name = name[1:-1] if name.startswith('"') else name.lower()
        return Answer(tag=tag, forgets="*" if everything else name)

    def _transaction(self, text: str) -> Answer:
        """Statements take effect at once: what is honest is the state that a client reads."""
        found = _TRANSACTION.match(text)
        if found is None:
            raise AssertionError("the kind is transaction")
        word, before = found[1].upper(), self.transaction
        if word in ("BEGIN", "START"):
            self.transaction, self._changed = ("T" if before == "I" else before), False
            return Answer(tag="BEGIN")
        if word in ("SAVEPOINT", "RELEASE"):
            if before == "I":
                raise PgError("25P01", f"{word} can only be used in transaction blocks")
            if before == "E":
                raise PgError("25P02", "current transaction is aborted")
            return Answer(tag=word)
        back = word in ("ROLLBACK", "ABORT")
        warning = ""
        if back and self._changed:
            warning = "statements of changefeed take effect at once: nothing was rolled back"
        self.transaction = "T" if found["to"] and before != "I" else "I"
        if self.transaction == "I":
            self._changed = False
        return Answer(tag="ROLLBACK" if back or before == "E" else "COMMIT", warning=warning)


def _typed(names: Sequence[str]) -> Sequence[PgColumn]:
    """The key of a row is JSON, that of a table a list."""
    return [PgColumn(name) if names is STREAM else PgColumn.named(name) for name in names]


def _first_three(stream: Iterator[Any]) -> Iterator[Sequence[Value]]:
    """Table, key and value of a stream, without what only the shell shows."""
    try:
        for row in stream:
            yield row[:3]
    finally:
        close = getattr(stream, "close", None)
        if close is not None:
            # Taking the feed down: its job is gone when this returns.
            close()


def _language_types(text: str) -> dict[int, int]:
    """Types of parameters of a statement, by their number; others are texts.

    A size or a duration is a text: the language takes '5m' for it.
    """
    try:
        bound, values = probe(text)
    except SyntaxProblem:
        return {}  # as the statement says when it runs
    found = {number: INT8 for number, value in enumerate(values, 1) if value == 1}
    for number, column in compared(bound).items():
        oid = PgColumn.named(column).oid
        if oid == TIMESTAMPTZ or column in PLAIN_INTEGERS:
            found[number] = oid
    return found


def _words(statement: nodes.Statement) -> str:
    """``SHOW`` of ShowChangefeeds: the first word of the statement's name."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(statement).__name__).split()[0].upper()


def _marked(text: str) -> str:
    """The query with ``:p1`` in place of ``$1``: sqlglot takes ``$1,$`` for a quote."""
    return substituted(text, lambda found: f":p{found[1]}")


def _given(values: Sequence[Value]) -> list[ParameterValue]:
    """The language has no NULL: an empty text stands for it."""
    return ["" if value is None else value for value in values]

"""What is wrong with a statement that does not parse: where, what would fit, what was meant.

A message never repeats what stands in quotes, because there stand URIs with passwords.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import lark
from lark import Lark, Token
from lark.parsers.lalr_interactive_parser import InteractiveParser

from grammar import foreign
from grammar.nodes import Span
from grammar.spelling import did_you_mean
from grammar.split import Lexeme, LexemeKind


class SyntaxProblem(Exception):
    """A statement that the grammar does not know.

    Attributes:
        message: one sentence, lower case, no full stop.
        span: what is wrong, as offsets into the statement; empty at its end.
        expected: what would fit there, in words: keywords in capitals, kinds as "a table name".
        hint: what was probably meant; empty when there is no good guess.
    """

    def __init__(self, message: str, span: Span, expected: tuple[str, ...], hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.span = span
        self.expected = expected
        self.hint = hint


#: Terminals that are not keywords, in a person's words.
WORDS = {
    "$END": "end of statement",
    "_SEMICOLON": "end of statement",
    "_COMMA": '","',
    "_TARGET_COMMA": '","',
    "_PREFIX_COMMA": '","',
    "_DOT": '"."',
    "_EQUAL": '"="',
    "_LPAR": '"("',
    "_RPAR": '")"',
    "COMPARISON": "a comparison",
    "CONNECTION_NAME": "a connection",
    "NEW_CONNECTION": "a name for the connection",
    "CONNECTION_STRING": "a connection",
    "NEW_CONNECTION_STRING": "a name for the connection",
    "FEED_NAME": "a changefeed",
    "NEW_FEED": "a name for the changefeed",
    "TABLE_PART": "a table name",
    "SCHEMA_PART": "a schema",
    "DATABASE_NAME": "a database",
    "TABLE_COLUMN": "a column",
    "PARTITION_NAME": "a partition",
    "TOPIC_NAME": "a topic name",
    "TOPIC_STRING": "a topic name",
    "RESULT_COLUMN": "a column of the listing",
    "OPTION_NAME": "an option",
    "NEW_USER": "a name for the user",
    "USER_NAME": "a user",
    "ROLE_NAME": "a role",
    "USER_OPTION_NAME": "an option",
    "NEW_SCHEDULE": "a name for the schedule",
    "NEW_SCHEDULE_STRING": "a name for the schedule",
    "SCHEDULE_NAME": "a schedule",
    "SCHEDULE_STRING": "a schedule",
    "SCHEDULE_ID": "a schedule",
    "SCHEDULE_OPTION_NAME": "an option",
    "RECURRENCE": "a quoted cron expression",
    "NEW_FUNCTION": "a name for the function",
    "FUNCTION_NAME": "a function",
    "ARGUMENT_NAME": "a name for an argument",
    "TYPE_NAME": "a type of Spark SQL",
    "FUNCTION_REFERENCE": "a quoted 'module:function'",
    "FUNCTION_PATH": "a quoted folder",
    "CONNECTION_OPTION_NAME": "an option",
    "CDC_OPTION_NAME": "an option",
    "DATASET_OPTION_NAME": "an option",
    "DATASET_LOCATION": "a quoted file, folder, glob or jdbc: URL",
    "EXTRACT_COLUMN": "a column of the extract",
    "TABLE_PATTERN": "a table or pattern",
    "PATTERN_STRING": "a table or pattern",
    "MESSAGE_PREFIX": "a quoted prefix or pattern",
    "SINK_URI": "a quoted sink URI",
    "CONNECTION_URI": "a quoted URI",
    "OPTION_STRING": "a value",
    "OPTION_QUANTITY": "a value",
    "OPTION_NUMBER": "a value",
    "OPTION_WORD": "a value",
    "STRING": "a string",
    "NUMBER": "a number",
    "JOB_ID": "a job id",
    "COUNT": "a count",
}

_URIS = frozenset({"SINK_URI", "CONNECTION_URI"})
_VALUES = frozenset({"OPTION_STRING", "STRING"})
_NAMES = frozenset(
    {
        "CONNECTION_NAME",
        "FEED_NAME",
        "NEW_FEED",
        "NEW_CONNECTION",
        "TABLE_PART",
        "TABLE_COLUMN",
        "TOPIC_NAME",
    }
)
_WORD = re.compile(r"[^\W\d][\w$]*")
_NAME = re.compile(rf'{_WORD.pattern}|"[^"]*(?:""[^"]*)*"')
_SCHEME = re.compile(r"""["]?[A-Za-z][A-Za-z0-9+.-]*:/""")
_LEXEME = re.compile(r"""'[^']*(?:''[^']*)*'|"[^"]*(?:""[^"]*)*"|[\w$]+|\s+|.""", re.DOTALL)

#: The first words of statements.
_FIRST = frozenset(
    {
        "ALTER",
        "CANCEL",
        "CHECK",
        "CREATE",
        "DROP",
        "EXPERIMENTAL",
        "EXPLAIN",
        "PAUSE",
        "RESUME",
        "SHOW",
        "SYNC",
        "USE",
        "VALIDATE",
    }
)

#: No more of a long token than this is repeated in a message.
QUOTED_LENGTH = 40


def keyword(terminal: str) -> str | None:
    """The keyword a terminal stands for, in capitals; None when it is no keyword."""
    return None if terminal in WORDS else terminal.removeprefix("_").partition("__")[0]


@dataclass(frozen=True, slots=True)
class ParseFailure:
    """The place where a parse stopped: all that the table of mistakes looks at."""

    source: str
    start: int
    text: str
    before: tuple[Token, ...]
    accepts: frozenset[str]

    @property
    def ended(self) -> bool:
        """The statement stopped too early."""
        return not self.text or self.text == ";"

    @property
    def rest(self) -> str:
        """The statement from the failure on."""
        return self.source[self.start :]

    @property
    def last(self) -> str:
        """The terminal of the last token that did fit."""
        return self.before[-1].type if self.before else ""

    @property
    def keywords(self) -> list[str]:
        """The keywords that would fit."""
        return sorted({word for name in self.accepts if (word := keyword(name))})


def _seen(failure: ParseFailure, terminal: str) -> bool:
    return any(token.type == terminal for token in failure.before)


def _trailing_comma(failure: ParseFailure) -> str | None:
    if failure.last != "_COMMA":
        return None
    reserved = failure.text.upper() in {"FROM", "INTO", "WITH", ")"}
    return "remove the comma before it" if failure.ended or reserved else None


def _comma_before_clause(failure: ParseFailure) -> str | None:
    """``FOR orders, INTO 'k'``: INTO was read as a table, and the string does not fit."""
    words = [token.upper() for token in failure.before[-2:]]
    if words[:1] == [","] and words[-1] in {"FROM", "INTO", "WITH"}:
        return f"remove the comma before {words[-1]}"
    return None


def _unquoted_uri(failure: ParseFailure) -> str | None:
    if not failure.accepts & _URIS:
        return None
    if _SCHEME.match(failure.rest):
        return "put the URI in single quotes"
    if "SINK_URI" in failure.accepts and not failure.ended:
        return "a sink is a URI in single quotes: 'kafka://host:port', 'external://connection'"
    return None


def _double_quotes(failure: ParseFailure) -> str | None:
    wants_string = failure.accepts & _VALUES and not failure.accepts & _NAMES
    if failure.text.startswith('"') and wants_string:
        return "strings take single quotes; double quotes are for names"
    return None


def _bare_string(failure: ParseFailure) -> str | None:
    if "STRING" in failure.accepts and _WORD.fullmatch(failure.text):
        return "strings take single quotes"
    return None


def _quoted_name(failure: ParseFailure) -> str | None:
    if failure.text.startswith("'") and failure.accepts & _NAMES:
        if "://" in failure.text:
            return "a source has a name here: CREATE EXTERNAL CONNECTION shop AS '...' gives it one"
        return "names take double quotes or none; single quotes are for strings"
    return None


def _missing_for(failure: ParseFailure) -> str | None:
    if "_AS" in failure.accepts and _seen(failure, "_INTO") and not _seen(failure, "_FOR"):
        if failure.text.upper() == "FOR":
            return "the order is FOR ... FROM ... INTO ... WITH ..."
        return (
            "FOR or AS SELECT is missing: CREATE CHANGEFEED [name] FOR table, ... INTO 'uri', or "
            "CREATE CHANGEFEED [name] INTO 'uri' AS SELECT ... FROM table"
        )
    if "_FOR" not in failure.accepts or failure.text.upper() in {"FRO", "FOF"}:
        return None
    if _seen(failure, "_CDC"):
        return "FOR is missing: CREATE CDC FOR table INTO KAFKA WITH ..."
    if did_you_mean(failure.text, ["FOR"]) and len(failure.text) > 2:
        return None
    return "FOR is missing: CREATE CHANGEFEED [name] FOR table, ... INTO 'uri'"


def _bare_parenthesis(failure: ParseFailure) -> str | None:
    if failure.text == "(" and failure.last == "_WITH":
        return "write WITH OPTIONS (...), or leave the parentheses out"
    return None


def _wrong_order(failure: ParseFailure) -> str | None:
    word = failure.text.upper()
    after = {"FROM": ("_INTO", "_WITH"), "INTO": ("_WITH",)}.get(word, ())
    if not _seen(failure, "_FOR") or not any(_seen(failure, name) for name in after):
        return None
    return "the order is FOR ... FROM ... INTO ... WITH ..."


def _twice(failure: ParseFailure) -> str | None:
    word = failure.text.upper()
    clause = word in {"FROM", "INTO", "WITH"} and word not in failure.keywords
    return f"{word} is given twice" if clause and _seen(failure, f"_{word}") else None


def _query_with_for(failure: ParseFailure) -> str | None:
    """``FOR t AS SELECT ..``"""
    last = failure.before[-1].upper() if failure.before else ""
    if last != "SELECT" or not _seen(failure, "_FOR"):
        return None
    return (
        "a CDC query has its table in the SELECT: CREATE CHANGEFEED [name] INTO 'uri' "
        "AS SELECT ... FROM table"
    )


#: First words of SQL that other tools run.
_QUERIES = frozenset(
    {"SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "COPY", "BEGIN", "TABLE", "VACUUM"}
)

_UNIT = re.compile(
    r"(ms|s|secs?|seconds?|m|mins?|minutes?|h|hours?|d|days?|w|weeks?)", re.IGNORECASE
)


def _foreign_statement(failure: ParseFailure) -> str | None:
    """Another product's statement."""
    return foreign.statement(failure.source, failure.start)


def _foreign_option(failure: ParseFailure) -> str | None:
    """``WITH snapshot.mode = 'never'``"""
    if failure.text not in {".", "-"} or failure.last not in {"OPTION_NAME", "OPTION_WORD"}:
        return None
    begin = failure.before[-1].start_pos or 0
    dotted = re.match(r"[\w$.-]+", failure.source[begin:])
    return foreign.option(dotted[0]) if dotted else None


def _foreign_target(failure: ParseFailure) -> str | None:
    """``FOR public.*``, ``FOR ALL TABLES``, ``FOR orders WHERE ..``"""
    words = [token.upper() for token in failure.before[-1:]] + [failure.text.upper()]
    if not _seen(failure, "_FOR") or _seen(failure, "_INTO") or _seen(failure, "_WITH"):
        return None
    if failure.text == "*" and failure.last == "_DOT":
        return "all tables of a schema are FOR SCHEMA name"
    if words == ["ALL", "TABLES"]:
        return "all tables are FOR DATABASE name, those of a schema FOR SCHEMA name"
    if failure.text.upper() == "WHERE":
        return "a condition needs a CDC query: INTO 'uri' AS SELECT * FROM table WHERE ..."
    if words[1] == "FAMILY":
        return "there are no column families here: name the columns, FOR orders (id, total)"
    if words[1] == "EXCEPT":
        return "name the columns that you want: FOR orders (id, total)"
    return None


def _query(failure: ParseFailure) -> str | None:
    if failure.before or failure.text.upper() not in _QUERIES:
        return None
    return (
        "this shell runs changefeed statements (\\h lists them): SHOW TABLES shows what can be "
        "watched, CREATE CHANGEFEED FOR table shows its rows here; psql runs queries"
    )


def _missing_into(failure: ParseFailure) -> str | None:
    if failure.text.startswith("'") and ":" in failure.text and "_INTO" in failure.accepts:
        return "INTO is missing: CREATE CHANGEFEED ... INTO 'uri'"
    return None


def _missing_semicolon(failure: ParseFailure) -> str | None:
    word = failure.text.upper()
    if failure.before and word in _FIRST and "$END" in failure.accepts:
        return f"is a ; missing before {word}?"
    return None


def _bare_duration(failure: ParseFailure) -> str | None:
    number = str(failure.before[-1]) if failure.before else ""
    if number.isdigit() and _UNIT.fullmatch(failure.text):
        begin = failure.before[-1].start_pos or 0
        written = failure.source[begin : failure.start + len(failure.text)]
        return f"put the duration in single quotes: '{written}'"
    return None


def _misspelt(failure: ParseFailure) -> str | None:
    if not _WORD.fullmatch(failure.text):
        return None
    near = did_you_mean(failure.text, failure.keywords)
    return f"did you mean {near}?" if near else None


#: Keywords that say what kind of target follows; misspelt, they are read as the name of a table.
_TARGET_KINDS = ("TABLE", "SCHEMA", "DATABASE")


def _misspelt_kind(failure: ParseFailure) -> str | None:
    """``FOR TABEL t``"""
    if failure.last != "TABLE_PART" or not _NAME.fullmatch(failure.text):
        return None
    written = str(failure.before[-1])
    alone = _WORD.fullmatch(written) and failure.before[-2].type != "_DOT"
    near = did_you_mean(written, _TARGET_KINDS) if alone else None
    if near is None or near == written.upper():
        return None
    return f"did you mean {near} in place of {written}?"


def _missing_equal(failure: ParseFailure) -> str | None:
    if failure.last.endswith("OPTION_NAME") and "_EQUAL" in failure.accepts:
        if failure.text.startswith("'") or failure.text[:1].isdigit():
            return "write option = value"
        if failure.text == ":":
            return "write option = value"
    return None


def _double_equal(failure: ParseFailure) -> str | None:
    if failure.text == "=" and failure.last in {"_EQUAL", "COMPARISON"}:
        return "one = is enough"
    return None


def _missing_option_comma(failure: ParseFailure) -> str | None:
    in_options = _seen(failure, "_WITH") or _seen(failure, "_SET")
    fits = "_COMMA" in failure.accepts and _WORD.fullmatch(failure.text)
    if in_options and fits and failure.text.upper() not in {"FROM", "INTO", "WITH", "AS"}:
        return "options are separated by commas; a value of several words needs single quotes"
    return None


def _unquoted_value(failure: ParseFailure) -> str | None:
    value = {"OPTION_WORD", "OPTION_NUMBER", "OPTION_QUANTITY"}
    wanted = failure.last in value or ("OPTION_STRING" in failure.accepts and failure.text)
    if wanted and not _WORD.fullmatch(failure.text) and failure.text not in ",;()":
        return "put the value in single quotes"
    return None


def _too_many_parts(failure: ParseFailure) -> str | None:
    if failure.text == "." and failure.last == "TABLE_PART":
        return "a name has at most three parts: source.schema.table"
    return None


#: Typical mistakes, the most telling first: the first that recognises the failure gives the hint.
MISTAKES: tuple[Callable[[ParseFailure], str | None], ...] = (
    _foreign_statement,
    _foreign_option,
    _foreign_target,
    _unquoted_uri,
    _query,
    _query_with_for,
    _double_quotes,
    _bare_string,
    _comma_before_clause,
    _missing_into,
    _quoted_name,
    _missing_semicolon,
    _bare_duration,
    _trailing_comma,
    _bare_parenthesis,
    _wrong_order,
    _twice,
    _too_many_parts,
    _double_equal,
    _missing_equal,
    _misspelt,
    _misspelt_kind,
    _missing_for,
    _missing_option_comma,
    _unquoted_value,
)


def explain(parser: Lark, source: str) -> SyntaxProblem:
    """The problem of a text that ``parser`` refuses."""
    failure = locate(parser, source)
    hint = next((found for look in MISTAKES if (found := look(failure))), "")
    return SyntaxProblem(
        _message(failure),
        Span(failure.start, failure.start + len(failure.text)),
        in_words(failure.accepts),
        hint,
    )


def locate(parser: Lark, source: str) -> ParseFailure:
    """Parse step by step up to the first token that does not fit."""
    steps = parser.parse_interactive(source)
    before: list[Token] = []
    try:
        for token in steps.iter_parse():
            before.append(token)
    except lark.UnexpectedToken:
        # The token that did not fit was already handed out; one the lexer refused was not.
        pass
    except lark.UnexpectedCharacters:
        pass
    accepts = accepted(steps)
    if before and _refused(steps.parser_state.value_stack, before[-1]):
        before.pop()
    end = (before[-1].start_pos or 0) + len(before[-1]) if before else 0
    start = end + len(source[end:]) - len(source[end:].lstrip())
    found = _LEXEME.match(source, start)
    text = found[0] if found else ""
    start = start if text else len(source.rstrip())
    return ParseFailure(source, start, text, tuple(before), accepts)


def accepted(steps: InteractiveParser) -> frozenset[str]:
    """The terminals that would fit where the parser stands."""
    return frozenset(steps.accepts())  # type: ignore[no-untyped-call]


def _refused(stack: list[object], token: Token) -> bool:
    return not any(value is token for value in stack)


def in_words(terminals: Iterable[str]) -> tuple[str, ...]:
    """Terminals as a person would name them: kinds first, then keywords, then punctuation."""
    words = {WORDS.get(name) or str(keyword(name)) for name in terminals}
    return tuple(sorted(words, key=_rank))


def _rank(word: str) -> tuple[int, str]:
    if word == "end of statement":
        return 3, word
    return (2 if word.startswith('"') else 1 if word.isupper() else 0), word


def _message(failure: ParseFailure) -> str:
    if failure.ended:
        return "syntax error at end of statement"
    if failure.text.startswith("'"):
        return "syntax error at a quoted string"
    if failure.text.startswith('"'):
        return "syntax error at a quoted name"
    text = failure.text
    if len(text) > QUOTED_LENGTH:
        text = text[:QUOTED_LENGTH] + "…"
    return f'syntax error at or near "{text}"'


_UNCLOSED = {
    LexemeKind.STRING: (
        "unterminated quoted string",
        "a quote inside a string is written twice: ''",
    ),
    LexemeKind.QUOTED: ("unterminated quoted identifier", "close the name with a double quote"),
    LexemeKind.BLOCK_COMMENT: ("unterminated /* comment", "comments nest: each /* needs its */"),
}


def unclosed(text: str, lexeme: Lexeme) -> SyntaxProblem:
    """The problem of a quote or comment that is never closed."""
    message, hint = _UNCLOSED[lexeme.kind]
    return SyntaxProblem(message, Span(lexeme.start, len(text.rstrip())), (), hint)


#: An excerpt of a long line keeps this many columns.
EXCERPT_WIDTH = 100


class TextSpan(Protocol):
    """Any span: of the syntax or of an error."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


def point(text: str, span: TextSpan, *, mask: Callable[[str], str] | None = None) -> str:
    """The line of ``text`` that ``span`` starts in, with carets under it.

    ``mask`` hides secrets and must keep the length: what is shown is ``mask(text)``.
    """
    shown = mask(text) if mask else text
    line_start = text.rfind("\n", 0, span.start) + 1
    line_end = text.find("\n", span.start)
    line_end = len(text) if line_end < 0 else line_end
    number = text.count("\n", 0, line_start) + 1
    line = shown[line_start:line_end].replace("\t", " ").rstrip("\r")
    column = span.start - line_start
    length = max(1, min(span.end, line_end) - span.start)
    line, column, length = _excerpt(line, column, length)
    label = f"LINE {number}: "
    indent = " " * (len(label) + _width(line[:column]))
    carets = "^" * max(1, _width(line[column : column + length]))
    return f"{label}{line}\n{indent}{carets}"


def _excerpt(line: str, column: int, length: int) -> tuple[str, int, int]:
    """The part of a long line around the place, with dots where it was cut."""
    if len(line) <= EXCERPT_WIDTH:
        return line, column, length
    start = max(0, min(column - EXCERPT_WIDTH // 2, len(line) - EXCERPT_WIDTH))
    end = start + EXCERPT_WIDTH
    head = "..." if start else ""
    tail = "..." if end < len(line) else ""
    kept = min(length, end - column)
    return head + line[start:end] + tail, column - start + len(head), kept


def _width(text: str) -> int:
    """Columns of a terminal that ``text`` takes."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )

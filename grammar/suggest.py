"""What may come next at the cursor, and what a misspelt word was meant to be.

The statement up to the cursor is cut back to its last whole token and parsed; what the parser
accepts there names the kinds of things that fit, because each kind has a terminal of its own.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

import lark
from lark import Token

from grammar.build import identifier, string
from grammar.parser import tables
from grammar.problems import accepted, keyword
from grammar.spelling import did_you_mean
from grammar.split import Lexeme, LexemeKind, blank_comments, lexemes

__all__ = ["KINDS", "Suggestions", "complete", "did_you_mean"]

#: Terminal -> the kind of thing it stands for.
KINDS = {
    "CONNECTION_NAME": "connection",
    "NEW_CONNECTION": "new_name",
    "CONNECTION_STRING": "connection",
    "NEW_CONNECTION_STRING": "new_name",
    "FEED_NAME": "feed",
    "NEW_FEED": "new_name",
    "JOB_ID": "job_id",
    "TABLE_PART": "table",
    "TABLE_PATTERN": "table",
    "PATTERN_STRING": "table",
    "MESSAGE_PREFIX": "message_prefix",
    "SCHEMA_PART": "schema",
    "DATABASE_NAME": "database",
    "TABLE_COLUMN": "column",
    "PARTITION_NAME": "partition",
    "TOPIC_NAME": "topic",
    "TOPIC_STRING": "topic",
    "RESULT_COLUMN": "result_column",
    "OPTION_NAME": "option",
    "NEW_USER": "new_name",
    "USER_NAME": "user",
    "ROLE_NAME": "role",
    "USER_OPTION_NAME": "user_option",
    "NEW_SCHEDULE": "new_name",
    "NEW_SCHEDULE_STRING": "new_name",
    "SCHEDULE_NAME": "schedule",
    "SCHEDULE_STRING": "schedule",
    "SCHEDULE_ID": "schedule",
    "SCHEDULE_OPTION_NAME": "schedule_option",
    "RECURRENCE": "recurrence",
    "NEW_FUNCTION": "new_name",
    "FUNCTION_NAME": "function",
    "ARGUMENT_NAME": "new_name",
    "TYPE_NAME": "type",
    "FUNCTION_REFERENCE": "function_reference",
    "FUNCTION_PATH": "function_reference",
    "CONNECTION_OPTION_NAME": "connection_option",
    "CDC_OPTION_NAME": "cdc_option",
    "DATASET_OPTION_NAME": "dataset_option",
    "DATASET_LOCATION": "dataset_location",
    "EXTRACT_COLUMN": "extract_column",
    "OPTION_STRING": "option_value",
    "OPTION_WORD": "option_value",
    "OPTION_NUMBER": "option_value",
    "OPTION_QUANTITY": "option_value",
    "SINK_URI": "sink_uri",
    "CONNECTION_URI": "connection_uri",
    "STRING": "value",
    "NUMBER": "value",
    "COUNT": "value",
}
_STRINGS = frozenset(
    {
        "SINK_URI",
        "CONNECTION_URI",
        "CONNECTION_STRING",
        "NEW_CONNECTION_STRING",
        "NEW_SCHEDULE_STRING",
        "SCHEDULE_STRING",
        "RECURRENCE",
        "DATASET_LOCATION",
        "FUNCTION_REFERENCE",
        "FUNCTION_PATH",
        "OPTION_STRING",
        "PATTERN_STRING",
        "MESSAGE_PREFIX",
        "TOPIC_STRING",
        "STRING",
    }
)
_PUNCTUATION = frozenset(
    {
        *("$END", "_SEMICOLON", "_COMMA", "_TARGET_COMMA", "_PREFIX_COMMA"),
        *("_DOT", "_EQUAL", "_LPAR", "_RPAR"),
    }
)
_TAIL = re.compile(r"[\w$]*\Z")
_OPTION_NAMES = frozenset(name for name in KINDS if name.endswith("OPTION_NAME"))
_FEEDS = frozenset({"FEED_NAME", "NEW_FEED"})
_ACTIONS = {"_ADD": "ADD", "_DROP": "DROP", "_SET": "SET", "_UNSET": "UNSET"}

#: A character that no terminal matches: it stops the lexer without ending the text, so that a
#: keyword that is a name when nothing follows stays a keyword.
_STOP = "\0"


@dataclass(frozen=True, slots=True)
class Suggestions:
    """What fits at the cursor.

    Attributes:
        kinds: of names and values that fit, out of the values of :data:`KINDS`.
        words: keywords that fit and start with ``prefix``, in capitals.
        prefix: the begun word before the cursor, without its opening quote.
        option: whose value is being typed.
        sink: the URI of the statement's INTO, as far as it stands before the cursor, or the
            word after INTO of CREATE CDC.
        quote: the open quote the cursor is in; empty outside one.
        path: the parts before ``prefix`` in a dotted name: ``shop.public.or`` has two.
        table: the parts of the last table named, for its columns.
        tables: the parts of every table named.
        source: the connection named after FROM.
        feed: the feed named, for its options and tables.
        feeds: every feed named so far.
        given: options that already stand in the list.
        listing: the keywords of a SHOW up to its clauses, in capitals: ``CHANGEFEED EVENTS``.
        column: the column of a listing that a value is being compared with.
        verb: the first word of the statement, in capitals.
        action: the last ADD, DROP, SET or UNSET of an ALTER CHANGEFEED.
    """

    kinds: frozenset[str] = frozenset()
    words: tuple[str, ...] = ()
    prefix: str = ""
    option: str | None = None
    sink: str | None = None
    quote: str = ""
    path: tuple[str, ...] = ()
    table: tuple[str, ...] = ()
    tables: tuple[tuple[str, ...], ...] = ()
    source: str | None = None
    feed: str | None = None
    feeds: tuple[str, ...] = ()
    given: frozenset[str] = frozenset()
    listing: str = ""
    column: str | None = None
    verb: str = ""
    action: str = ""


def complete(text: str, cursor: int | None = None) -> Suggestions:
    """What may come at ``cursor`` (the end of ``text`` when not given).

    Only what stands before the cursor counts. Inside a comment, or after a mistake, nothing fits.
    """
    head = text if cursor is None else text[:cursor]
    begun, opened = _current(head)
    if opened is not None and opened.comment:
        return Suggestions()
    if opened is not None:
        cut = opened.start
        quote, prefix = begun[cut], begun[cut + 1 :]
    else:
        tail = _TAIL.search(begun)
        cut = tail.start() if tail else len(begun)
        quote, prefix = "", begun[cut:]
    return _at(blank_comments(begun[:cut]), prefix, quote)


def _current(head: str) -> tuple[str, Lexeme | None]:
    """The statement that the end of ``head`` is in, and the quote or comment open there."""
    start = 0
    last: Lexeme | None = None
    for lexeme in lexemes(head):
        if lexeme.kind is LexemeKind.SEMICOLON:
            start = lexeme.end
        last = lexeme
    begun = head[start:]
    if last is None or last.start < start:
        return begun, None
    open_line = last.kind is LexemeKind.LINE_COMMENT and last.end == len(head)
    if last.closed and not open_line:
        return begun, None
    return begun, Lexeme(last.kind, last.start - start, last.end - start, closed=False)


def _at(whole: str, prefix: str, quote: str) -> Suggestions:
    steps = tables().parse_interactive(whole + _STOP)
    tokens: list[Token] = []
    try:
        for token in steps.iter_parse():
            tokens.append(token)
    except lark.UnexpectedToken:
        return Suggestions(prefix=prefix, quote=quote)
    except lark.UnexpectedCharacters as stop:
        if stop.pos_in_stream != len(whole):
            return Suggestions(prefix=prefix, quote=quote)
    fits = accepted(steps)
    if quote == "'":
        fits &= _STRINGS
    elif quote:
        fits = frozenset(name for name in fits if name in KINDS and name not in _STRINGS)
    kinds = frozenset(KINDS[name] for name in fits if name in KINDS)
    return _described(tokens, kinds, _words(fits, prefix, quote), prefix, quote)


def _words(fits: frozenset[str], prefix: str, quote: str) -> tuple[str, ...]:
    if quote:
        return ()
    keywords = {
        word for name in fits - _PUNCTUATION if name not in KINDS and (word := keyword(name))
    }
    return tuple(sorted(word for word in keywords if word.startswith(prefix.upper())))


def _described(
    tokens: list[Token],
    kinds: frozenset[str],
    words: tuple[str, ...],
    prefix: str,
    quote: str,
) -> Suggestions:
    names = [token for token in tokens if token.type in _OPTION_NAMES]
    named = _tables(tokens)
    return Suggestions(
        kinds,
        words,
        prefix,
        option=identifier(names[-1]) if names and "option_value" in kinds else None,
        sink=_sink(tokens),
        quote=quote,
        path=_path(tokens),
        table=named[-1] if named else (),
        tables=named,
        source=_last(tokens, {"CONNECTION_NAME"}),
        feed=_last(tokens, _FEEDS),
        feeds=tuple(identifier(token) for token in tokens if token.type in _FEEDS),
        given=frozenset(map(identifier, names)),
        listing=_listing(tokens),
        column=_last(tokens, {"RESULT_COLUMN"}) if "value" in kinds else None,
        verb=str(tokens[0]).upper() if tokens else "",
        action=_action(tokens),
    )


def _action(tokens: list[Token]) -> str:
    if not tokens or tokens[0].type != "_ALTER":
        return ""
    found = [token.type for token in tokens if token.type in _ACTIONS]
    return _ACTIONS[found[-1]] if found else ""


def _listing(tokens: list[Token]) -> str:
    if not tokens or tokens[0].type != "_SHOW":
        return ""
    clauses = {"_FROM", "_WHERE", "_ORDER", "_LIMIT"}
    head = itertools.takewhile(lambda token: token.type not in clauses, tokens[1:])
    return " ".join(keyword(token.type) or "" for token in head if token.type not in KINDS)


def _last(tokens: list[Token], types: frozenset[str] | set[str]) -> str | None:
    found = [token for token in tokens if token.type in types]
    return identifier(found[-1]) if found else None


def _sink(tokens: list[Token]) -> str | None:
    for token in reversed(tokens):
        if token.type == "SINK_URI":
            return string(token)
        if token.type in ("KAFKA", "ELASTICSEARCH"):
            return token.lower()
    return None


def _path(tokens: list[Token]) -> tuple[str, ...]:
    """The names right before the cursor that a dot joins to what is being typed."""
    parts: list[str] = []
    rest = tokens
    while len(rest) >= 2 and rest[-1].type == "_DOT":
        parts.insert(0, identifier(rest[-2]))
        rest = rest[:-2]
    return tuple(parts)


def _tables(tokens: list[Token]) -> tuple[tuple[str, ...], ...]:
    found: list[tuple[str, ...]] = []
    for index, token in enumerate(tokens):
        if token.type == "TABLE_PART":
            joined = index > 0 and tokens[index - 1].type == "_DOT"
            before = found.pop() if joined and found else ()
            found.append((*before, identifier(token)))
    return tuple(found)

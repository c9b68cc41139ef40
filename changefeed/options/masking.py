"""A statement as it may be echoed in an error, a log or the history: without its secrets.

What is known to be harmless is shown; everything else becomes asterisks. The other way around,
looking for secrets, cannot work: the statement is echoed because something in it is misspelt,
and then it may be the option, the parameter or the quote that would have named the secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from changefeed.core.errors import ChangefeedError
from changefeed.core.secret_names import is_secret
from changefeed.options.row import OPTIONS
from grammar.split import LexemeKind, lexemes

#: Words and signs outside of quotes. A word is everything between separators.
_BARE = re.compile(r"\s+|[,;()=<>!]|[^\s,;()=<>!]+")
#: A name, a dotted name or a pattern of names.
_NAME = re.compile(r"[\w$.*?]+")
#: A number, a date, or a number with a unit.
_QUANTITY = re.compile(r"[-+]?[\d.:TZ+-]+[A-Za-z]{0,7}")
_QUOTED_NAME = re.compile(r"[\w$ .*?-]{0,128}")
#: A look-up table, whose path cannot hold a password, and a column written with an alias.
_LOOKUP = re.compile(r"(?:\w+\.)?`/[\w./-]*`|`\w+`(?:\.`\w+`)*")
_COLUMN_OF = re.compile(r"[A-Za-z_]\w*\.[A-Za-z_]\w*")
#: A value that no option means as an address or a credential.
_PLAIN_VALUE = re.compile(r"(?:[\w .,+%$*()\[\]-]|(?<=\d):(?=\d)){0,128}")

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,40}://)([^/?#]*)([^?#]*)(.*)\Z", re.DOTALL)
_HOSTS = re.compile(
    r"(?:(?:[A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\])(?::\d{1,5})?(?:,(?!$)|$))*\Z", re.ASCII
)
_PATH = re.compile(r"[\w./{}-]*\Z")
_PARAMETER = re.compile(r"[A-Za-z_]{1,64}")
_PARAMETER_VALUE = re.compile(r"[\w.-]{0,64}")

#: Parameters whose values say nothing that an attacker could use.
_HARMLESS_PARAMETERS = frozenset(
    {
        "file_size",
        "flush_interval",
        "insecure_tls_skip_verify",
        "partition_format",
        "sasl_enabled",
        "sasl_handshake",
        "sasl_mechanism",
        "sslmode",
        "tls_enabled",
        "topic_name",
        "topic_prefix",
    }
)

#: Other names before a value: the sink of ALTER CHANGEFEED, an option of CREATE CDC and one of
#: CREATE EXTERNAL CONNECTION, two of CREATE USER, those of CREATE SCHEDULE.
_OTHER_NAMES = frozenset(
    {"check", "expires", "first_run", "on_execution_failure", "on_previous_running", "record"}
    | {"role", "sink"}
)
#: Words before a time or a length of time.
_BEFORE_TIMES = frozenset({"duration", "timeout", "transaction"})
#: What stands after RECURRING.
_CRON = re.compile(r"[\w @*/,#-]{0,64}")


@cache
def _known_values() -> frozenset[str]:
    words = (value.lower() for row in OPTIONS.values() for value in row.values)
    return frozenset({"true", "false", "yes", "no", "on", "off", *words})


def mask_statement(text: str) -> str:
    """``text`` with asterisks for everything that may be a secret; length, lines and offsets stay.

    Takes time in proportion to the length of the text.
    """
    return _Masker(text).run()


def hide_masked(error: ChangefeedError, text: str, shown: str) -> ChangefeedError:
    """Take a quoted word out of an error's message and hint where ``shown`` hides it.

    Args:
        error: its span are offsets into ``text``. It is changed in place.
        text: the statement as written.
        shown: the statement as :func:`mask_statement` shows it.
    """
    span = error.span
    if span is None or text[span.start : span.end] == shown[span.start : span.end]:
        return error
    word = text[span.start : span.end]
    for quoted in (word, word[:40] + "…"):
        error.message = _without(error.message, quoted)
        error.hint = _without(error.hint, quoted)
    error.args = (error.message, *error.args[1:])
    return error


def _without(message: str, word: str) -> str:
    pattern = re.compile(rf"""(["'])[^"']*{re.escape(word)}[^"']*\1""", re.IGNORECASE)
    return pattern.sub("a value that is not shown", message)


class _Masker:
    def __init__(self, text: str) -> None:
        self._text = text
        self._out: list[str] = []
        self._done = 0
        # The last two words or signs, in lower case, comments and white space left out.
        self._before = ("", "")
        self._joins = False
        self._listing = text.lstrip()[:5].lower().rstrip() == "show"

    def run(self) -> str:
        text = self._text
        for lexeme in lexemes(text):
            if self._done < lexeme.start and not self._bare(lexeme.start):
                return self._rest_hidden()
            piece = text[lexeme.start : lexeme.end]
            if lexeme.kind is LexemeKind.SEMICOLON:
                self._emit(piece)
                self._before = ("", "")
                self._joins = False
            elif lexeme.comment:
                self._emit(piece[:2] + _stars(piece[2:]))
            else:
                self._emit(self._quoted(piece, lexeme.kind, lexeme.closed))
                self._note(piece[1:-1] if lexeme.kind is LexemeKind.QUOTED else "'")
                if not lexeme.closed or _runs_on(text, lexeme.end):
                    return self._rest_hidden()
        if self._done < len(text) and not self._bare(len(text)):
            return self._rest_hidden()
        return "".join(self._out)

    def _emit(self, piece: str) -> None:
        self._out.append(piece)
        self._done += len(piece)

    def _note(self, word: str) -> None:
        self._before = (self._before[1], word[:64].lower())
        self._joins = self._joins or self._before[1] == "join"

    def _rest_hidden(self) -> str:
        return "".join([*self._out, _stars(self._text[self._done :])])

    def _bare(self, end: int) -> bool:
        """Emit the text outside of quotes up to ``end``; False if a secret may begin in it."""
        for word in self._words(end):
            if not word.isspace():
                if not self._word_is_harmless(word):
                    return False
                self._note(word)
            self._emit(word)
        return True

    def _words(self, end: int) -> Iterator[str]:
        for found in _BARE.finditer(self._text, self._done, end):
            yield found[0]

    def _word_is_harmless(self, word: str) -> bool:
        if word in ",;()=<>!":
            return True
        if self._is_value() and not (
            self._value_may_be_shown() or self._joins_by(word) or self._is_known_value(word)
        ):
            return False
        if self._before[1] == "join" and _LOOKUP.fullmatch(word):
            return True
        if _NAME.fullmatch(word) or _QUANTITY.fullmatch(word):
            return True
        return "://" in word and _masked_uri(word) == word

    def _is_value(self) -> bool:
        return self._before[1] == "="

    def _value_may_be_shown(self) -> bool:
        """Whether the word before ``=`` is an option without secrets, or a column of a listing."""
        option = OPTIONS.get(self._before[0])
        named = option is not None and not option.secret
        return self._listing or named or self._before[0] in _OTHER_NAMES

    def _is_known_value(self, value: str) -> bool:
        """A value that some option takes is no secret, even where the option is misspelt."""
        return value.lower() in _known_values() and not is_secret(self._before[0])

    def _joins_by(self, word: str) -> bool:
        """``o.customer = c.id`` in the ON of a look-up table."""
        own = self._before[0]
        columns = _COLUMN_OF.fullmatch(own) and _COLUMN_OF.fullmatch(word)
        return self._joins and columns is not None and not is_secret(own)

    def _quoted(self, piece: str, kind: LexemeKind, closed: bool) -> str:
        inner = piece[1:-1] if closed else piece[1:]
        quote = piece[-1] if closed else ""
        return piece[0] + self._content(inner, kind) + quote

    def _content(self, inner: str, kind: LexemeKind) -> str:
        if self._is_value() and not self._value_may_be_shown():
            return inner if self._is_known_value(inner) else _stars(inner)
        if "://" in inner:
            return _masked_uri(inner)
        if kind is LexemeKind.QUOTED:
            return inner if _QUOTED_NAME.fullmatch(inner) else _stars(inner)
        if self._before[1] in _BEFORE_TIMES:
            return inner if _QUANTITY.fullmatch(inner) else _stars(inner)
        if self._before[1] == "recurring":
            return inner if _CRON.fullmatch(inner) else _stars(inner)
        plain = self._is_value() or self._listing
        return inner if plain and _PLAIN_VALUE.fullmatch(inner) else _stars(inner)


def _runs_on(text: str, end: int) -> bool:
    """A word follows the closing quote directly: then the quote was part of the value."""
    return end < len(text) and bool(re.match(r"[^\s,;()=<>!.]", text[end]))


def _masked_uri(text: str) -> str:
    found = _URI.match(text)
    if not found:
        return _stars(text)
    scheme, authority, path, rest = found.groups()
    user, at, hosts = authority.rpartition("@")
    if "@" in path or "@" in rest or not _HOSTS.match(hosts):
        # A password may hold / ? # @: it is not clear where it ends.
        return scheme + _stars(text[len(scheme) :])
    public = not re.search(r"http|webhook", scheme, re.IGNORECASE) and _PATH.match(path)
    shown_path = path if public or path == "/" else _stars(path)
    return scheme + _stars(user) + at + hosts + shown_path + _masked_query(rest)


def _masked_query(rest: str) -> str:
    """Names and harmless values; nothing at all if one of the names is not known."""
    if not rest.startswith("?"):
        return _stars(rest)
    shown = []
    for part in rest[1:].split("&"):
        name, equal, value = part.partition("=")
        known = _PARAMETER.fullmatch(name) and equal
        if known and name.lower() in _HARMLESS_PARAMETERS and _PARAMETER_VALUE.fullmatch(value):
            shown.append(part)
        elif known and is_secret(name):
            shown.append(f"{name}={_stars(value)}")
        else:
            return "?" + _stars(rest[1:])
    return "?" + "&".join(shown)


_CHARACTER = re.compile(r"[^\r\n]")


def _stars(text: str) -> str:
    """An asterisk for each character; line breaks stay."""
    return _CHARACTER.sub("*", text)

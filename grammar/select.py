"""The SELECT of a CDC query: which table, which expressions, which condition.

Only the outer shape is read here: ``SELECT items FROM table [AS alias] [[LEFT] JOIN look-up AS
alias ON columns] [WHERE condition] [GROUP BY window, expressions]``. The expressions are Spark SQL
and stay text; Spark's own analyzer reads them when the feed is planned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from grammar.nodes import LookupJoin, QualifiedName, Query, Span
from grammar.problems import SyntaxProblem

_TOKEN = re.compile(
    r"(?P<string>'[^']*(?:''[^']*)*')"
    r'|(?P<quoted>"(?:[^"]|"")*"|`(?:[^`]|``)*`)'
    r"|(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?\w*)"
    r"|(?P<word>[^\W\d][\w$]*)"
    r"|(?P<other>\|>|<=>|<>|!=|<=|>=|==|\|\||::|->|=>|<<|>>|\S)"
)

#: Words that end a table reference or a condition, and what they would ask for.
_CLAUSES = {
    "GROUP": "GROUP BY",
    "HAVING": "HAVING",
    "ORDER": "ORDER BY",
    "SORT": "SORT BY",
    "CLUSTER": "CLUSTER BY",
    "DISTRIBUTE": "DISTRIBUTE BY",
    "LIMIT": "LIMIT",
    "OFFSET": "OFFSET",
    "QUALIFY": "QUALIFY",
    "WINDOW": "window functions",
    "LATERAL": "LATERAL VIEW",
    "PIVOT": "PIVOT",
    "UNPIVOT": "UNPIVOT",
    "TABLESAMPLE": "TABLESAMPLE",
    "UNION": "UNION",
    "INTERSECT": "INTERSECT",
    "EXCEPT": "EXCEPT",
    "MINUS": "MINUS",
}
_JOINS = frozenset({"JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "NATURAL", "ANTI", "SEMI"})
_WHY = {
    "HAVING": "the consumer of the groups can choose among them",
    "ORDER": "changes come in commit order",
    "LIMIT": "a changefeed never ends, so it has no last row",
}


@dataclass(frozen=True, slots=True)
class SparkToken:
    """A token of Spark SQL: what kind it is, its text, and where it stands."""

    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        """Offset behind it."""
        return self.start + len(self.text)

    @property
    def word(self) -> str:
        """In capitals where it is a bare word, else empty."""
        return self.text.upper() if self.kind == "word" else ""


def lexemes_of(text: str) -> list[SparkToken]:
    """The tokens of an expression in Spark SQL."""
    return [SparkToken(m.lastgroup or "", m[0], m.start()) for m in _TOKEN.finditer(text)]


def nested(tokens: Sequence[SparkToken]) -> Iterator[tuple[SparkToken, int]]:
    """Each token with the number of brackets it stands in; a bracket counts as outside itself."""
    depth = 0
    for token in tokens:
        if token.text in (")", "]"):
            depth -= 1
        yield token, depth
        if token.text in ("(", "["):
            depth += 1


def read_select(text: str, offset: int = 0) -> tuple[QualifiedName, Query]:
    """The table and the query of a SELECT.

    Args:
        text: from SELECT on, without comments and the final ``;``.
        offset: where ``text`` begins in its statement; spans are offsets into that.

    Raises:
        SyntaxProblem: it has a clause that a CDC query cannot have.
    """
    return _Reader(text, offset).read()


class _Reader:
    def __init__(self, text: str, offset: int) -> None:
        self._text = text
        self._offset = offset
        self._tokens = lexemes_of(text)
        self._place = 1

    def read(self) -> tuple[QualifiedName, Query]:
        self._refuse_anywhere()
        items = self._items()
        name = self._table()
        alias = self._alias()
        joins = tuple(self._joins((alias or name.parts[-1], name.parts[-1])))
        where = self._where()
        group = self._group()
        return name, Query(
            items=_canonical(self._text, items),
            alias=alias,
            where=_canonical(self._text, where),
            group=_canonical(self._text, group),
            joins=joins,
            spans=tuple(self._span(token) for token in (*items, *where, *group)),
        )

    # -- parts ------------------------------------------------------------------------------

    def _items(self) -> list[SparkToken]:
        first = self._peek()
        if first is not None and first.word == "DISTINCT":
            raise self._refused(first, "DISTINCT", "each change is a separate message")
        before = self._tokens[0]
        for token, depth in nested(self._tokens[1:]):
            if depth == 0 and token.word == "FROM" and before.word != "DISTINCT":
                break
            before = token
        else:
            raise self._expected("FROM", None)
        end = self._tokens.index(token)
        items = self._tokens[1:end]
        if not items:
            raise self._expected("an expression", token)
        self._place = end + 1
        return items

    def _table(self) -> QualifiedName:
        first = self._peek()
        if first is not None and first.text == "(":
            raise self._refused(first, "sub-query expressions", "name the table itself")
        parts = [self._name("a table name")]
        while len(parts) < 3 and self._next_is("."):
            self._place += 1
            parts.append(self._name("a table name"))
        if first is None:
            raise AssertionError("a table has a name")
        end = self._tokens[self._place - 1].end
        span = Span(self._offset + first.start, self._offset + end)
        return QualifiedName(tuple(parts), span=span)

    def _alias(self) -> str | None:
        token = self._peek()
        if token is None:
            return None
        if token.word == "AS":
            self._place += 1
            return self._name("an alias")
        if token.kind == "quoted" or (token.word and not self._ends_table(token)):
            return self._name("an alias")
        return None

    def _joins(self, tables: tuple[str, str]) -> Iterator[LookupJoin]:
        """Joins with look-up tables; ``tables`` are the names of the feed's own table."""
        taken = {name.lower() for name in tables}
        while True:
            first = self._peek()
            if first is None or first.word not in ("JOIN", "INNER", "LEFT"):
                return
            self._place += 1
            if first.word == "LEFT":
                self._skip("OUTER")
            if first.word != "JOIN":
                self._word("JOIN")
            join = self._join(tables, left=first.word == "LEFT")
            if join.alias.lower() in taken:
                token = SparkToken("word", join.alias, join.spans[0].start - self._offset)
                message = f"two tables of the query are named {join.alias}"
                raise SyntaxProblem(message, self._span(token), (), "give one another alias.")
            taken.add(join.alias.lower())
            yield join

    def _join(self, tables: tuple[str, str], *, left: bool) -> LookupJoin:
        name = self._lookup()
        named = self._skip("AS")
        token = self._peek()
        if token is None or token.word != "ON":
            alias = self._name("an alias of the look-up table")
        elif named or "/" in name.parts[-1]:
            raise self._expected("an alias of the look-up table", token)
        else:
            alias = name.parts[-1]
        self._word("ON")
        keys: list[tuple[str, str]] = []
        spans = [name.span or Span(0, 0)]
        while not keys or self._skip("AND"):
            begin = self._place
            pair, span = self._key(tables, alias, begin)
            keys.append(pair)
            spans.append(span)
        return LookupJoin(name.parts, alias, tuple(keys), left, tuple(spans))

    def _lookup(self) -> QualifiedName:
        """The name of a table of Spark: ``parquet.`/path``` or one of its catalog."""
        first = self._peek()
        if first is not None and first.text == "(":
            raise self._refused(first, "sub-query expressions", "name the look-up table itself")
        parts = [self._name("the name of a look-up table")]
        while self._next_is("."):
            self._place += 1
            parts.append(self._name("the name of a look-up table"))
        if first is None:
            raise AssertionError("a look-up table has a name")
        end = self._tokens[self._place - 1].end
        return QualifiedName(
            tuple(parts), span=Span(self._offset + first.start, self._offset + end)
        )

    def _key(self, tables: tuple[str, str], alias: str, begin: int) -> tuple[tuple[str, str], Span]:
        """``t.column = alias.column``, in either order."""
        left = self._side()
        if not self._next_is("=") and not self._next_is("=="):
            raise self._not_a_key(begin)
        self._place += 1
        right = self._side()
        last = self._tokens[self._place - 1]
        span = Span(self._offset + self._tokens[begin].start, self._offset + last.end)
        if left[0] == alias:
            left, right = right, left
        after = self._peek()
        ends = after is None or after.word in ("AND", "WHERE") or self._ends_table(after)
        if right[0] != alias or left[0] not in ("", *tables) or not ends:
            raise self._not_a_key(begin)
        return (left[1], right[1]), span

    def _side(self) -> tuple[str, str]:
        """The table, empty for none, and the column of a name."""
        parts = [self._name("a column")]
        if self._next_is("."):
            self._place += 1
            parts.append(self._name("a column"))
        return (parts[0], parts[1]) if len(parts) == 2 else ("", parts[0])

    def _not_a_key(self, begin: int) -> SyntaxProblem:
        here = self._tokens[begin : max(self._place, begin + 1)]
        span = Span(self._offset + here[0].start, self._offset + here[-1].end)
        return SyntaxProblem(
            "the ON of a look-up table can only be equalities of columns",
            span,
            ("table.column = look-up.column [AND ...]",),
            "put other conditions into the WHERE.",
        )

    def _skip(self, word: str) -> bool:
        token = self._peek()
        there = token is not None and token.word == word
        self._place += there
        return there

    def _word(self, word: str) -> None:
        if not self._skip(word):
            raise self._expected(word, self._peek())

    def _where(self) -> list[SparkToken]:
        token = self._peek()
        if token is None or token.word == "GROUP":
            return []
        if token.word != "WHERE":
            raise self._problem(token)
        self._place += 1
        return self._until("GROUP", "a condition")

    def _group(self) -> list[SparkToken]:
        if not self._skip("GROUP"):
            return []
        self._word("BY")
        return self._until("", "an expression")

    def _until(self, word: str, what: str) -> list[SparkToken]:
        """The tokens up to a word outside of brackets, or to the end; ``what`` they are."""
        found: list[SparkToken] = []
        rest = self._tokens[self._place :]
        for place, (each, depth) in enumerate(nested(rest), 1):
            if depth == 0 and word and each.word == word:
                break
            # window(..) and window.start are no clause.
            named = place < len(rest) and rest[place].text in ("(", ".")
            if depth == 0 and ((each.word in _CLAUSES and not named) or each.text in ("|>", ";")):
                raise self._problem(each)
            found.append(each)
        self._place += len(found)
        if not found:
            raise self._expected(what, self._peek())
        return found

    # -- what it cannot have ----------------------------------------------------------------

    def _refuse_anywhere(self) -> None:
        for token, depth in nested(self._tokens):
            if depth < 0:
                raise self._expected("the end of the query or an operator", token)
        for place, token in enumerate(self._tokens[1:], 1):
            after = self._tokens[place + 1].text if place + 1 < len(self._tokens) else ""
            if token.word == "SELECT":
                raise self._refused(token, "sub-query expressions", "a query sees one row")
            if token.word == "OVER" and (after == "(" or after[:1].isalpha()):
                before = self._tokens[place - 1]
                if before.text == ")":
                    raise self._refused(token, "window functions", "a query sees one row")

    def _problem(self, token: SparkToken) -> SyntaxProblem:
        if token.text == ",":
            return self._refused(token, "several tables", "make a changefeed for each")
        if token.word in _JOINS:
            what = f"{token.word} {'' if token.word == 'JOIN' else 'JOIN'}".strip()
            return self._refused(token, what, "look-up tables take JOIN and LEFT JOIN")
        if token.word in _CLAUSES:
            return self._refused(token, _CLAUSES[token.word], _WHY.get(token.word, ""))
        if token.text == "|>":
            return self._refused(token, "the pipe operator |>", "")
        return self._expected("WHERE or the end of the statement", token)

    def _ends_table(self, token: SparkToken) -> bool:
        return token.word == "WHERE" or token.word in _CLAUSES or token.word in _JOINS

    # -- tokens -----------------------------------------------------------------------------

    def _peek(self) -> SparkToken | None:
        return self._tokens[self._place] if self._place < len(self._tokens) else None

    def _next_is(self, text: str) -> bool:
        token = self._peek()
        return token is not None and token.text == text

    def _name(self, what: str) -> str:
        token = self._peek()
        if token is None or token.kind not in ("word", "quoted"):
            raise self._expected(what, token)
        self._place += 1
        return unquoted(token.text)

    def _span(self, token: SparkToken) -> Span:
        return Span(self._offset + token.start, self._offset + token.end)

    def _expected(self, what: str, token: SparkToken | None) -> SyntaxProblem:
        if token is None:
            end = self._offset + len(self._text.rstrip())
            message = f"the query ends where {what} is expected"
            return SyntaxProblem(message, Span(end, end), (what,), "")
        found = "a string" if token.kind == "string" else f'"{token.text}"'
        return SyntaxProblem(f"unexpected {found} in the query", self._span(token), (what,), "")

    def _refused(self, token: SparkToken, what: str, why: str) -> SyntaxProblem:
        verb = "are" if what[0].islower() and what.endswith("s") else "is"
        message = f"{what} {verb} not supported by CDC queries"
        shape = (
            "SELECT expression, ... FROM table [AS alias] [JOIN ...] [WHERE condition] "
            "[GROUP BY ...]"
        )
        hint = f"{why}; a CDC query is {shape}" if why else f"a CDC query is {shape}"
        return SyntaxProblem(message, self._span(token), (), hint)


def unquoted(text: str) -> str:
    """The name that a bare or quoted identifier stands for: bare ones in lower case."""
    if text[:1] in ('"', "`"):
        return text[1:-1].replace(text[0] * 2, text[0])
    return text.lower()


def _canonical(text: str, tokens: Sequence[SparkToken]) -> str:
    """The tokens on one line, with a space wherever there was white space."""
    parts: list[str] = []
    for place, token in enumerate(tokens):
        if place and text[tokens[place - 1].end : token.start]:
            parts.append(" ")
        parts.append(token.text)
    return "".join(parts)

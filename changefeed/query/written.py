"""The text of a query as SQL over one batch of changes, and the way back from places in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from changefeed.core.errors import ChangefeedError, Code, Span
from changefeed.core.schema import TableSchema
from changefeed.core.spark_sql import quoted
from changefeed.query.windows import CALL_LENGTH, WINDOW, is_window
from grammar import nodes
from grammar.select import SparkToken, lexemes_of, nested, unquoted

#: Columns of a batch in addition to those of the table.
ROW = "__cf_row"
ALWAYS = "__cf_always"
KEEP = "__cf_keep"
OP = "__cf_op"
TIME = "__cf_time"
PREV = "cdc_prev"

#: Functions of a change, and the batch's column that each one reads.
FUNCTIONS = {"event_op": OP, "event_timestamp": TIME}
#: The function that returns when the feed was created.
CREATION_TIME = "changefeed_creation_timestamp"
#: The function that returns when the version of the table was first seen.
SCHEMA_TIME = "event_schema_timestamp"
#: CockroachDB's hidden column for the same.
PSEUDO_COLUMNS = {"crdb_internal_mvcc_timestamp": TIME}
#: Columns that are not part of the row itself.
CHANGE_COLUMNS = frozenset({OP, TIME, PREV})


@dataclass(frozen=True, slots=True)
class Constants:
    """Values that are the same for every change of a table version. Nanoseconds since 1970 UTC.

    Attributes:
        created: when the changefeed was created.
        schema_seen: when the version of the table was first seen.
    """

    created: int = 0
    schema_seen: int = 0

    def literal(self, function: str) -> str | None:
        """The value of a function without arguments as SQL; None of any other."""
        value = {CREATION_TIME: self.created, SCHEMA_TIME: self.schema_seen}.get(function)
        return None if value is None else f"CAST('{value}' AS DECIMAL(30, 10))"


@dataclass
class SqlDraft:
    """SQL text that is being assembled; remembers which token of the query is where."""

    text: str = ""
    places: list[tuple[int, int, nodes.Span | None]] = field(default_factory=list)

    def add(self, text: str, span: nodes.Span | None = None) -> None:
        """Append text; ``span`` is its place in the statement."""
        if span is not None:
            self.places.append((len(self.text), len(self.text) + len(text), span))
        self.text += text

    def span(self, start: int, stop: int) -> Span | None:
        """The place in the statement of the characters from ``start`` to ``stop`` (inclusive)."""
        found = [s for low, high, s in self.places if low <= stop and start < high and s]
        return Span(min(s.start for s in found), max(s.end for s in found)) if found else None


@dataclass(frozen=True)
class SelectItem:
    """One expression of the SELECT: its tokens with their places, and its name if it has one."""

    tokens: tuple[tuple[SparkToken, nodes.Span | None], ...]

    @property
    def span(self) -> Span | None:
        """Its place in the statement."""
        spans = [span for _, span in self.tokens if span is not None]
        return Span(spans[0].start, spans[-1].end) if spans else None


class BatchSql:
    """A query's parts as SQL over a batch.

    Args:
        query: as the grammar has it.
        schema: the table's shape; ``*`` means its columns.
        constants: values of the functions of the feed.

    Raises:
        ChangefeedError: CF1303 ``x.*`` of something else than the table.
    """

    def __init__(
        self, query: nodes.Query, schema: TableSchema, constants: Constants | None = None
    ) -> None:
        self.schema = schema
        self._constants = constants or Constants()
        self.alias = query.alias or schema.table.name
        tokens = lexemes_of(query.items)
        conditions = lexemes_of(query.where)
        groups = lexemes_of(query.group)
        count = len(tokens) + len(conditions)
        spans: Sequence[nodes.Span | None] = query.spans or [None] * (count + len(groups))
        self.items = list(self._items(tokens, spans))
        self.where = list(zip(conditions, spans[len(tokens) : count], strict=True))
        self.group = list(zip(groups, spans[count:], strict=True))
        #: The conditions of inner joins, in addition to the WHERE.
        self._inner = [f"{quoted(j.alias)} IS NOT NULL" for j in query.joins if not j.left]

    @property
    def filtered(self) -> bool:
        """Whether the query selects only some rows."""
        return bool(self.where or self._inner)

    def _items(
        self, tokens: list[SparkToken], spans: Sequence[nodes.Span | None]
    ) -> Iterator[SelectItem]:
        begun: list[tuple[SparkToken, nodes.Span | None]] = []
        for (token, depth), span in zip(nested(tokens), spans, strict=False):
            if token.text == "," and depth == 0:
                yield from self._expanded(begun)
                begun = []
            else:
                begun.append((token, span))
        yield from self._expanded(begun)

    def _expanded(self, tokens: list[tuple[SparkToken, nodes.Span | None]]) -> Iterator[SelectItem]:
        texts = [token.text for token, _ in tokens]
        if not texts:
            raise ChangefeedError(Code.SYNTAX_ERROR, "an expression of the SELECT is empty")
        if texts[-1] != "*" or len(texts) not in (1, 3):
            yield SelectItem(tuple(tokens))
            return
        if len(texts) == 3 and unquoted(texts[0]) not in (self.alias, self.schema.table.name):
            span = tokens[0][1]
            raise ChangefeedError(
                Code.NOT_SUPPORTED,
                f"{texts[0]}.* is not supported by CDC queries",
                hint="name the fields you want.",
                span=None if span is None else Span(span.start, tokens[-1][1].end),  # type: ignore[union-attr]
            )
        for column in self.schema.columns:
            name = SparkToken("quoted", quoted(column.name), 0)
            yield SelectItem(((name, tokens[0][1]),))

    # -- texts ------------------------------------------------------------------------------

    def select(self, view: str, items: Sequence[int] | None = None) -> SqlDraft:
        """``SELECT items, row FROM view AS alias WHERE condition``; all items, or those given."""
        out = SqlDraft("SELECT ")
        for number in range(len(self.items)) if items is None else items:
            self._add(out, self.items[number].tokens)
            out.add(", ")
        out.add(f"`{ROW}` FROM {view} AS {quoted(self.alias)}")
        if self.filtered:
            out.add(f" WHERE `{ALWAYS}` OR (")
            self._add_condition(out)
            out.add(")")
        return out

    def grouped(self, view: str) -> SqlDraft:
        """``SELECT items, window FROM view AS alias WHERE condition GROUP BY groups``."""
        out = SqlDraft("SELECT ")
        for item in self.items:
            self._add(out, item.tokens)
            out.add(", ")
        out.add(f"`{WINDOW}` AS `{ROW}` FROM {view} AS {quoted(self.alias)}")
        if self.filtered:
            out.add(" WHERE ")
            self._add_condition(out)
        out.add(" GROUP BY ")
        self._add(out, self.group)
        return out

    def each(self, view: str, items: Sequence[tuple[int, str]]) -> SqlDraft:
        """A result for each row of the batch: whether it satisfies the WHERE (``__cf_keep``), and
        the items under these names, NULL where it does not.

        So an expression is never evaluated on a row that the WHERE excludes.
        """
        alias = quoted(self.alias)
        out = SqlDraft(f"SELECT `{ROW}`, `{KEEP}`")
        for number, name in items:
            out.add(f", IF(`{KEEP}`, (")
            self._add(out, self._unnamed(number, name))
            out.add(f"), NULL) AS {quoted(name)}")
        out.add(" FROM (SELECT *, ")
        if self.filtered:
            out.add(f"coalesce(`{ALWAYS}` OR (")
            self._add_condition(out)
            out.add("), false)")
        else:
            out.add("true")
        out.add(f" AS `{KEEP}` FROM {view} AS {alias}) AS {alias}")
        return out

    def _unnamed(self, number: int, name: str) -> Sequence[tuple[SparkToken, nodes.Span | None]]:
        """The tokens of an item without its alias."""
        tokens = self.items[number].tokens
        if len(tokens) < 3 or unquoted(tokens[-1][0].text).lower() != name.lower():
            return tokens
        if tokens[-2][0].word == "AS":
            return tokens[:-2]
        return tokens if tokens[-2][0].text == "." else tokens[:-1]

    def condition(self, view: str) -> SqlDraft:
        """The WHERE as the only column of a SELECT, to find out what it reads."""
        out = SqlDraft("SELECT (")
        self._add_condition(out)
        out.add(f") AS c FROM {view} AS {quoted(self.alias)}")
        return out

    def _add_condition(self, out: SqlDraft) -> None:
        out.add(" AND ".join(self._inner))
        if not self.where:
            return
        if self._inner:
            # One expression of Spark evaluates the right side only where the left one is true.
            out.add(" AND (")
        self._add(out, self.where)
        if self._inner:
            out.add(")")

    def _add(self, out: SqlDraft, tokens: Sequence[tuple[SparkToken, nodes.Span | None]]) -> None:
        place = 0
        while place < len(tokens):
            token, span = tokens[place]
            call = [t.text for t, _ in tokens[place + 1 : place + 3]] == ["(", ")"]
            after_dot = place > 0 and tokens[place - 1][0].text == "."
            name = token.text.lower() if token.kind == "word" and not after_dot else ""
            if self.group and is_window([t for t, _ in tokens[place : place + CALL_LENGTH]]):
                out.add(f"`{WINDOW}` ", span)
                place += CALL_LENGTH
                continue
            constant = self._constants.literal(name) if call else None
            if constant is not None:
                out.add(f"{constant} ", span)
                place += 3
                continue
            if name in FUNCTIONS and call:
                out.add(f"`{FUNCTIONS[name]}` ", span)
                place += 3
            elif name in PSEUDO_COLUMNS and not self._is_column(name):
                out.add(f"`{PSEUDO_COLUMNS[name]}` ", span)
                place += 1
            else:
                out.add(token.text, span)
                place += 1
                following = tokens[place][0].start if place < len(tokens) else -1
                # Tokens that were adjacent stay adjacent, as in r'..' and 1e3.
                if following != token.end:
                    out.add(" ")

    def _is_column(self, name: str) -> bool:
        return any(column.name.lower() == name for column in self.schema.columns)

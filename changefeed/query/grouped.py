"""Checks a query with GROUP BY: aggregates over the changes of each window of commit time.

The key of the result are the expressions that the query groups by, so the SELECT must have a column
for each of them; for the window ``window.start`` or ``window.end``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from changefeed.catalog.rows import Function
from changefeed.core.errors import ChangefeedError, Code, Span
from changefeed.core.schema import BeforeImage, Column, TableSchema
from changefeed.query.compile import VIEW, Analysis, QueryCompiler, batch_fields, refused
from changefeed.query.expressions import Expression, tree
from changefeed.query.model import CompiledQuery, LookupField, Output
from changefeed.query.types import output_column, output_sql
from changefeed.query.windows import (
    CALL_LENGTH,
    HINT,
    WINDOW,
    WINDOW_FIELD,
    is_window,
    window_length,
)
from changefeed.query.written import PREV, ROW, Constants, SqlDraft
from grammar import nodes
from grammar.printer import to_sql
from grammar.select import SparkToken, nested

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The column of the result that says when a row's window ends, microseconds since 1970 UTC.
END = "__cf_end"

#: Classes of Spark's aggregate functions whose result the order of rows decides, or which of
#: several rows with the same value comes first.
_BY_ORDER = frozenset(
    {
        "First", "Last", "AnyValue", "CollectList", "CollectSet", "ListAgg", "MaxBy", "MinBy",
        "Mode", "PandasMode", "ApproximatePercentile", "HistogramNumeric", "ReservoirSample",
    }
)  # fmt: skip
#: Follows the last token.
_END = SparkToken("", "", 0)
_ORDERED = (
    "its result depends on the order of rows, and a window may be evaluated again after a crash"
)


def compile_grouped(
    session: SparkSession,
    schema: TableSchema,
    query: nodes.Query,
    constants: Constants | None = None,
    functions: Sequence[Function] = (),
    lookups: Mapping[str, Sequence[LookupField]] | None = None,
) -> CompiledQuery:
    """:func:`.compile.compile_query` for a query with GROUP BY.

    Raises:
        ChangefeedError: as there; CF1303 too where the SELECT leaves out what it groups by.
    """
    compiler = _GroupedCompiler(session, schema, query, constants, functions, lookups or {})
    return compiler.compile()


class _GroupedCompiler(QueryCompiler):
    _steps = ("Project", "Aggregate")

    def compile(self) -> CompiledQuery:
        length = self._window_length()
        self._refuse_grouping_sets()
        self._refuse_names(WINDOW)
        self._lookups = [self._lookup(join) for join in self._query.joins]
        for item in self._sql.items:
            self._refuse_functions(item.tokens, allowed="agg_funcs")
            self._refuse_moments(item.tokens)
        for tokens in (self._sql.where, self._sql.group):
            self._refuse_functions(tokens)
            self._refuse_moments(tokens)
        fields = [*batch_fields(self._schema, lookups=self._lookups), WINDOW_FIELD]
        with self._empty_batch(fields):
            condition = self._condition()
            found = self._analysed(self._sql.grouped(self._empty))
            return self._grouped(found, condition, length)

    def _window_length(self) -> int | None:
        try:
            return window_length(self._query)
        except ChangefeedError as error:
            spans = [span for _, span in self._sql.group if span is not None]
            error.span = Span(spans[0].start, spans[-1].end) if spans else None
            raise

    def _refuse_grouping_sets(self) -> None:
        for (token, span), (behind, _) in pairwise([*self._sql.group, (_END, None)]):
            sets = token.word in ("ROLLUP", "CUBE") and behind.text == "("
            sets |= token.word == "GROUPING" and behind.word == "SETS"
            sets |= token.word == "WITH" and behind.word in ("ROLLUP", "CUBE")
            if sets:
                name = token.text if behind.text == "(" else f"{token.text} {behind.text}"
                raise refused(
                    f"{name.upper()} is not supported by CDC queries",
                    "a row of the result is known by all that the query groups by",
                    span,
                )

    def _refuse_functions(
        self, tokens: Sequence[tuple[SparkToken, nodes.Span | None]], *, allowed: str = ""
    ) -> None:
        for place, (token, span) in enumerate(tokens[:-1]):
            called = token.word == WINDOW.upper() and tokens[place + 1][0].text == "("
            if called and not is_window([t for t, _ in tokens[place : place + CALL_LENGTH]]):
                raise refused("other windows than of GROUP BY are not supported", HINT, span)
        super()._refuse_functions(tokens, allowed=allowed)

    def _function(self, name: str) -> tuple[str, str] | None:
        # window(..) of the commit time is a column here.
        known = super()._function(name)
        return None if name.lower() == WINDOW else known

    def _refuse_volatile(self, expression: Expression, written: SqlDraft) -> None:
        for each in tree(expression):
            if each.kind == "AggregateExpression" and each.aggregate.kind in _BY_ORDER:
                name = each.aggregate.name
                raise refused(
                    f"{name}() is not supported by CDC queries", _ORDERED, self._word(name)
                )
        super()._refuse_volatile(expression, written)

    # -- the result -------------------------------------------------------------------------

    def _grouped(
        self, found: Analysis, condition: Sequence[Expression], length: int | None
    ) -> CompiledQuery:
        columns, key = self._result_columns(found), self._group_key(found)
        for i in key:
            nullable = found.expressions[i].nullable
            columns[i] = replace(columns[i], nullable=nullable)
        expressions = [*found.expressions[:-1], *found.groups]
        where, read = self._columns_read(condition), self._columns_read([*expressions, *condition])
        schema = replace(
            self._schema, columns=tuple(columns), key=tuple(key), before_image=BeforeImage.KEY
        )
        target = nodes.TableTarget(
            nodes.QualifiedName((self._schema.table.schema, self._schema.table.name)),
            query=self._query,
        )
        kinds = [kind for _, kind in found.columns[:-1]]
        return CompiledQuery(
            text=to_sql(target),
            source=self._schema,
            schema=schema.with_version(self._schema.version),
            outputs=tuple(Output(None, i, kind) for i, kind in enumerate(kinds)),
            shown=len(columns),
            sql=self._windows_sql(kinds),
            row_sql="",
            inputs=tuple(i for i, c in enumerate(self._schema.columns) if c.name in read),
            filtered=self._sql.filtered,
            of_changes=True,
            tells_change=False,
            uses_prev=PREV in read,
            where_inputs=tuple(i for i, c in enumerate(self._schema.columns) if c.name in where),
            lookups=self._read_of([*expressions, *condition]),
            where_lookups=bool(self._read_of(condition)),
            window=length,
        )

    def _result_columns(self, found: Analysis) -> list[Column]:
        names = [name.lower() for name, _ in found.columns[:-1]]
        if len(names) != len(self._sql.items):
            raise ChangefeedError(
                Code.NOT_SUPPORTED,
                "an expression of the SELECT makes several columns, which CDC queries do not have",
                hint="name the fields you want.",
            )
        for i, name in enumerate(names):
            if name in names[:i] or self._unnamed(i, found.columns[i][0]):
                raise ChangefeedError(
                    Code.NOT_SUPPORTED,
                    f"the SELECT has two columns {name}"
                    if name in names[:i]
                    else "an expression of the SELECT has no name",
                    hint="write expression AS name: it is a column of the target.",
                    span=self._sql.items[i].span,
                )
        return [output_column(name, kind) for name, kind in found.columns[:-1]]

    def _group_key(self, found: Analysis) -> list[int]:
        key = []
        for number, group in enumerate(found.groups):
            place = next(
                (i for i, e in enumerate(found.expressions[:-1]) if _is_of_group(e, group)), None
            )
            if place is None:
                text, span = self._group_text(number)
                window = _named(group, WINDOW)
                wanted = f"{WINDOW}.start" if window else text
                raise ChangefeedError(
                    Code.NOT_SUPPORTED,
                    f"the query groups by {text}, which the SELECT leaves out",
                    detail="rows of the result are known by what they are grouped by",
                    hint=f"add {wanted} AS name to the SELECT.",
                    span=span,
                )
            key.append(place)
        return key

    def _group_text(self, number: int) -> tuple[str, Span | None]:
        parts: list[list[tuple[SparkToken, nodes.Span | None]]] = [[]]
        tokens = [token for token, _ in self._sql.group]
        for (token, depth), (_, span) in zip(nested(tokens), self._sql.group, strict=True):
            if token.text == "," and depth == 0:
                parts.append([])
            else:
                parts[-1].append((token, span))
        part = parts[number]
        first, last = part[0][1], part[-1][1]
        place = Span(first.start, last.end) if first and last else None
        return self._query.group[part[0][0].start : part[-1][0].end], place

    def _windows_sql(self, kinds: Sequence[str]) -> str:
        wanted = [f"{output_sql(f'c{i}', kind)} AS c{i}" for i, kind in enumerate(kinds)]
        names = [*(f"c{i}" for i in range(len(kinds))), ROW]
        inner = self._sql.grouped(VIEW).text
        end = f"unix_micros({ROW}.end) AS {END}"
        return f"SELECT {', '.join([end, *wanted])} FROM ({inner}) AS q({', '.join(names)})"


def _is_of_group(expression: Expression, group: Expression) -> bool:
    """Whether a column is a GROUP BY expression, or the begin or end of the window."""
    if expression.kind == "Alias":
        (expression,) = expression.children
    if expression.same(group):
        return not _named(group, WINDOW)  # a struct: its begin or its end is wanted
    return (
        _named(group, WINDOW)
        and expression.kind == "GetStructField"
        and expression.children[0].same(group)
    )


def _named(expression: Expression, name: str) -> bool:
    return expression.kind == "AttributeReference" and expression.name == name

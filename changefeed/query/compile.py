"""Checks a query against one version of its table, by Spark's own analyzer on an empty batch.

What Spark accepts and a changefeed cannot have is refused here: aggregates, functions with another
result in each call, expressions that make several rows of one.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from changefeed.catalog.rows import Function
from changefeed.core.errors import ChangefeedError, Code, Span
from changefeed.core.schema import BeforeImage, Column, TableSchema
from changefeed.core.spark_sql import quoted
from changefeed.query.expressions import TYPED, Expression, QueryPlan, moment_in, moments, tree
from changefeed.query.functions import check_calls
from changefeed.query.lookups import key_kind
from changefeed.query.model import CompiledQuery, LookupField, LookupTable, Output
from changefeed.query.plan_text import TextPlan, function_info_by_text
from changefeed.query.types import input_type, output_column, output_sql
from changefeed.query.written import (
    ALWAYS,
    CHANGE_COLUMNS,
    CREATION_TIME,
    FUNCTIONS,
    KEEP,
    OP,
    PREV,
    ROW,
    SCHEMA_TIME,
    TIME,
    BatchSql,
    Constants,
    SqlDraft,
)
from changefeed.spark.internals.abilities import PLANS, allows
from changefeed.spark.internals.arrow_types import spark_schema, spark_type
from changefeed.spark.internals.plans import AnalysedPlan, function_info, internal_error
from grammar import nodes
from grammar.printer import to_sql
from grammar.select import SparkToken
from grammar.spelling import did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_numbers = itertools.count(1)
#: The placeholder in :attr:`CompiledQuery.sql` for the name of the batch's view.
VIEW = "__cf_view__"

_GROUPS = {
    "agg_funcs": ("aggregate functions without GROUP BY", "each message is made of one change"),
    "window_funcs": ("window functions", "each message is made of one change"),
    "generator_funcs": ("functions that make several rows", "one change makes one message"),
    "table_funcs": ("table functions", "a query sees one row"),
}
_NO_AGGREGATES = (
    "aggregate functions without GROUP BY are not supported by CDC queries",
    "each message is made of one change",
)
_CHANGES = "its result differs from call to call, and a message may be sent again after a crash"
#: For PostgreSQL's and CockroachDB's ``->>`` and ``#>>``.
_JSON_HINT = "write get_json_object(column, '$.field'): Spark SQL has no operators for JSON paths."
_MOMENT = (
    "Spark replaces it by the time at which it reads the query, and a message may be sent again "
    "after a restart"
)
#: Classes of Spark's expressions that are deterministic to Spark and not to a changefeed.
_VOLATILE = frozenset(
    {
        "CurrentTimestamp", "Now", "CurrentDate", "CurDateExpressionBuilder", "CurrentTime",
        "LocalTimestamp", "CurrentTimeZone", "CurrentUser", "CurrentDatabase", "CurrentCatalog",
        "CurrentBatchTimestamp", "Rand", "Randn", "Uuid", "Shuffle", "Uniform", "RandStr",
        "MonotonicallyIncreasingID", "SparkPartitionID", "InputFileName", "InputFileBlockStart",
        "InputFileBlockLength", "SparkVersion", "CurrentTimestampExpressionBuilder",
        "CurrentTimeExpressionBuilder",
    }
)  # fmt: skip
_FORBIDDEN = {
    "CallMethodViaReflection": "it would call any Java method",
    "TryReflect": "it would call any Java method",
    "TimeWindow": "GROUP BY takes window(event_timestamp(), '1 minute')",
    "SlidingWindow": "GROUP BY takes window(event_timestamp(), '1 minute')",
    "SessionWindow": "GROUP BY takes window(event_timestamp(), '1 minute')",
}
#: Words before ``(`` that are not function names.
_NO_FUNCTIONS = frozenset({"LIKE", "ILIKE", "IN", "ANY", "SOME", "ALL", "AND", "OR", "NOT"})


def compile_query(
    session: SparkSession,
    schema: TableSchema,
    query: nodes.Query,
    constants: Constants | None = None,
    functions: Sequence[Function] = (),
    lookups: Mapping[str, Sequence[LookupField]] | None = None,
) -> CompiledQuery:
    """Compile a query for a table of this shape; the session knows ``functions``.

    ``lookups`` are the columns of the tables that it joins, by alias.

    Raises:
        ChangefeedError: CF1101 a name does not exist, CF1303 something that a CDC query cannot
            have, CF1001 Spark cannot read it, CF4004 a look-up does not fit. Places are offsets
            into the statement.
    """
    return QueryCompiler(session, schema, query, constants, functions, lookups or {}).compile()


@dataclass(frozen=True)
class Analysis:
    """A SELECT as Spark understood it: name and type of each column, its expression, and the
    expressions that it groups by."""

    columns: list[tuple[str, str]]
    expressions: Sequence[Expression]
    groups: Sequence[Expression]


class QueryCompiler:
    """Compiles one query for one shape of its table; :func:`compile_query` has the arguments.

    A subclass compiles queries with GROUP BY (:mod:`.grouped`).
    """

    #: Last steps of the plans that its queries may have.
    _steps: tuple[str, ...] = ("Project",)

    def __init__(
        self,
        session: SparkSession,
        schema: TableSchema,
        query: nodes.Query,
        constants: Constants | None,
        functions: Sequence[Function],
        lookups: Mapping[str, Sequence[LookupField]],
    ) -> None:
        self._functions = functions
        self._known = lookups
        self._lookups: list[LookupTable] = []
        self._session = session
        self._schema = schema
        self._query = query
        self._sql = BatchSql(query, schema, constants)
        #: The name of the empty batch's view for the analyzer. It is unique: queries of other
        #: feeds are compiled at the same time in the same session.
        self._empty = f"__cf_check_{next(_numbers)}"

    def compile(self) -> CompiledQuery:
        """The compiled query; raises what :func:`compile_query` names."""
        self._refuse_names()
        self._lookups = [self._lookup(join) for join in self._query.joins]
        for tokens in (*(item.tokens for item in self._sql.items), self._sql.where):
            self._refuse_functions(tokens)
            self._refuse_moments(tokens)
        with self._empty_batch(batch_fields(self._schema, lookups=self._lookups)):
            # The WHERE first: in the whole query, its errors name internal columns.
            condition = self._condition()
            return self._made(self._analysed(self._sql.select(self._empty)), condition)

    @contextmanager
    def _empty_batch(self, fields: Sequence[pa.Field]) -> Iterator[None]:
        # Rows of a function: of a table in memory the optimizer would drop every expression.
        empty = self._session.range(0).mapInArrow(_nothing, spark_schema(pa.schema(fields)))
        empty.createOrReplaceTempView(self._empty)
        try:
            yield
        finally:
            self._session.catalog.dropTempView(self._empty)

    # -- look-ups ---------------------------------------------------------------------------

    def _lookup(self, join: nodes.LookupJoin) -> LookupTable:
        fields = tuple(self._known[join.alias])
        spans = [core_span(span) for span in join.spans[1:]] or [None] * len(join.keys)
        keys, types = [], []
        for (own, other), span in zip(join.keys, spans, strict=True):
            ordinal = self._own_column(own, span)
            field = next((f for f in fields if f.name.lower() == other.lower()), None)
            if field is None:
                names = [f.name for f in fields]
                message = f"column {other} does not exist on {join.alias}"
                raise _no_name(message, other, names, span, Code.LOOKUP_NOT_USABLE)
            self._check_key(self._schema.columns[ordinal], field, span)
            keys.append((ordinal, field.name))
            types.append(field.spark_type)
        return LookupTable(join.parts, join.alias, tuple(keys), tuple(types), join.left, fields)

    def _own_column(self, name: str, span: Span | None) -> int:
        names = [column.name for column in self._schema.columns]
        same = [i for i, each in enumerate(names) if each == name]
        same = same or [i for i, each in enumerate(names) if each.lower() == name.lower()]
        if same:
            return same[0]
        table = self._schema.table
        message = f"column {name} does not exist on table {table.schema}.{table.name}"
        raise _no_name(message, name, names, span)

    def _check_key(self, column: Column, field: LookupField, span: Span | None) -> None:
        own = spark_type(input_type(column)).simpleString()
        kind = key_kind(own)
        if kind is None or kind != key_kind(field.spark_type):
            raise ChangefeedError(
                Code.LOOKUP_NOT_USABLE,
                f"{column.name} is {own} and {field.name} of the look-up table is "
                f"{field.spark_type}: they cannot be joined",
                hint="both must be integers, strings, dates or timestamps; a view of the look-up "
                "can cast its column.",
                span=span,
            )

    def _read_of(self, expressions: Sequence[Expression]) -> tuple[LookupTable, ...]:
        """The look-ups that the expressions read, each only with the columns that they read."""
        found = []
        for lookup in self._lookups:
            names = {name for each in expressions for name in _fields_read(each, lookup.alias)}
            if not names:
                continue
            whole = "*" in names
            fields = [f for f in lookup.fields if whole or f.name in names]
            # A struct has a field, also where only its existence is asked for.
            keys = {name for _, name in lookup.keys}
            fields = fields or [f for f in lookup.fields if f.name in keys][:1]
            found.append(replace(lookup, fields=tuple(fields)))
        return tuple(found)

    def _columns_read(self, expressions: Sequence[Expression]) -> set[str]:
        """Columns of the batch, with those that the look-ups are joined by."""
        names = {self._true_name(a) for each in expressions for a in _attributes(each)}
        for lookup in self._lookups:
            same = {name for name in names if name.lower() == lookup.alias.lower()}
            if same:
                names -= same
                names |= {self._schema.columns[i].name for i, _ in lookup.keys}
        return names

    # -- refusals ---------------------------------------------------------------------------

    def _refuse_names(self, *more: str) -> None:
        taken = {PREV, ROW, ALWAYS, OP, TIME, *more}
        for column in self._schema.columns:
            if column.name.lower() in taken:
                raise ChangefeedError(
                    Code.NOT_SUPPORTED,
                    f"a CDC query cannot read a table with a column {column.name}",
                    detail="the name has a meaning of its own in CDC queries",
                )
        names = {column.name.lower() for column in self._schema.columns} | taken
        for join in self._query.joins:
            if join.alias.lower() in names:
                raise ChangefeedError(
                    Code.NOT_SUPPORTED,
                    f"{join.alias} is a column of the table and the alias of a look-up table",
                    hint="give the look-up table another alias.",
                    span=core_span(join.spans[0]) if join.spans else None,
                )

    def _refuse_functions(
        self, tokens: Sequence[tuple[SparkToken, nodes.Span | None]], *, allowed: str = ""
    ) -> None:
        """``allowed`` is a group of functions that the query may have."""
        for place, (token, span) in enumerate(tokens[:-1]):
            before = tokens[place - 1][0].text if place else ""
            following = tokens[place + 1][0]
            called = following.text == "(" and before != "."
            if token.kind != "word" or not called or token.word in _NO_FUNCTIONS:
                continue
            known = self._function(token.text)
            if known is None:
                continue
            group, kind = known
            if group in _GROUPS and group != allowed:
                what, why = _GROUPS[group]
                raise refused(f"{what} are not supported by CDC queries", why, span)
            if kind in _VOLATILE:
                raise refused(f"{token.text}() is not supported by CDC queries", _CHANGES, span)
            if kind in _FORBIDDEN:
                raise refused(
                    f"{token.text}() is not supported by CDC queries", _FORBIDDEN[kind], span
                )

    def _refuse_moments(self, tokens: Sequence[tuple[SparkToken, nodes.Span | None]]) -> None:
        """Refuse words for moments in typed strings, as ``timestamp 'now'``."""
        for place, (token, _) in enumerate(tokens[:-1]):
            if token.word not in TYPED:
                continue
            # r'..' is a string, too.
            literal = place + (2 if tokens[place + 1][0].word == "R" else 1)
            for text, span in tokens[literal : literal + 1]:
                if text.kind == "string":
                    self._refuse_moment(moment_in(text.text[1:]), span)

    def _refuse_moment(self, word: str | None, span: nodes.Span | None) -> None:
        if word is not None:
            raise refused(f"'{word}' is not supported by CDC queries", _MOMENT, span)

    def _function(self, name: str) -> tuple[str, str] | None:
        own = allows(self._session, PLANS)
        return (function_info if own else function_info_by_text)(self._session, name.lower())

    # -- Spark's analysis -------------------------------------------------------------------

    def _analysed(self, written: SqlDraft) -> Analysis:
        from pyspark.errors import PySparkException

        try:
            frame = self._session.sql(written.text)
            made = frame.schema
            plan: QueryPlan
            if allows(self._session, PLANS):
                plan = AnalysedPlan(self._session, frame)
            else:
                names = self._session.table(self._empty).columns
                plan = TextPlan(self._session, written.text, names, made)
        except PySparkException as failure:
            raise self._translated(failure, written) from failure
        except Exception as failure:
            text = internal_error(failure)
            if text is None:
                raise
            raise self._unreadable(text) from failure
        if plan.kind not in self._steps:
            raise refused(*_NO_AGGREGATES, None)
        expressions, groups = plan.columns(), plan.groups()
        for word in moments(plan.replaced()):
            self._refuse_moment(word, self._moment(word))
        for number, expression in enumerate((*expressions, *groups)):
            with self._placed(number):
                self._refuse_volatile(expression, written)
                check_calls(tree(expression), self._functions)
        columns = [(f.name, f.dataType.simpleString()) for f in made.fields]
        return Analysis(columns, expressions, groups)

    @contextmanager
    def _placed(self, number: int) -> Iterator[None]:
        """Give an error without a place that of the item of the SELECT."""
        try:
            yield
        except ChangefeedError as error:
            if error.span is None and number < len(self._sql.items):
                error.span = self._sql.items[number].span
            raise

    def _condition(self) -> Sequence[Expression]:
        """The WHERE as Spark's expression; empty without a WHERE."""
        if not self._sql.filtered:
            return []
        found = self._analysed(self._sql.condition(self._empty))
        ((_, kind),) = found.columns
        if kind != "boolean":
            spans = [span for _, span in self._sql.where if span is not None]
            raise ChangefeedError(
                Code.NOT_SUPPORTED,
                f"the WHERE of a CDC query is true or false, not {kind}",
                span=Span(spans[0].start, spans[-1].end) if spans else None,
            )
        return found.expressions

    def _refuse_volatile(self, expression: Expression, written: SqlDraft) -> None:
        for each in tree(expression):
            kind = each.kind
            if kind in _VOLATILE or kind in _FORBIDDEN:
                name = each.name
                error = refused(
                    f"{name} is not supported by CDC queries",
                    _FORBIDDEN.get(kind, _CHANGES),
                    self._word(name),
                )
                # unix_timestamp() contains current_timestamp(), which the query does not name.
                error.span = error.span or _origin(each, written)
                raise error
        if not expression.deterministic:
            raise refused(
                "expressions that are not deterministic are not supported by CDC queries",
                _CHANGES,
                None,
            )

    def _word(self, name: str) -> nodes.Span | None:
        return next((s for token, s in self._tokens() if token.text.lower() == name.lower()), None)

    def _moment(self, word: str) -> nodes.Span | None:
        strings = ((t, span) for t, span in self._tokens() if t.kind == "string")
        return next((span for t, span in strings if moment_in(t.text[1:]) == word), None)

    def _tokens(self) -> list[tuple[SparkToken, nodes.Span | None]]:
        return [*(t for item in self._sql.items for t in item.tokens), *self._sql.where]

    def _translated(self, failure: Any, written: SqlDraft) -> ChangefeedError:
        condition = failure.getCondition() or ""
        parameters = failure.getMessageParameters() or {}
        span = None
        for context in failure.getQueryContext() or []:
            span = written.span(context.startIndex(), context.stopIndex())
            break
        if condition.startswith("UNRESOLVED_COLUMN"):
            return self._no_column(str(parameters.get("objectName", "")), span)
        if condition == "FIELD_NOT_FOUND":
            return _no_field(parameters, span)
        if condition == "UNRESOLVED_ROUTINE":
            return self._no_function(str(parameters.get("routineName", "")), span)
        if condition == "PARSE_SYNTAX_ERROR":
            near = str(parameters.get("error", "")).strip("'")
            return ChangefeedError(
                Code.SYNTAX_ERROR,
                f"Spark SQL cannot read the query near {near}" if near else "syntax error",
                hint=_JSON_HINT if near in (">", "->", "#") else "",
                span=span or core_span(self._word(near)),
            )
        if (failure.getSqlState() or "").startswith("22"):
            return ChangefeedError(
                Code.NOT_SUPPORTED, f"the query fails on every row: {condition}", span=span
            )
        sentence = _sentence(str(failure))
        return ChangefeedError(Code.NOT_SUPPORTED, f"the query is wrong: {sentence}", span=span)

    def _unreadable(self, text: str) -> ChangefeedError:
        """The error where Spark's analyzer has only an internal error; ``text`` is not shown."""
        # Spark 4.1 has this error without its text.
        if "COLUMN_IS_NOT_VARIANT_TYPE" in text:
            return ChangefeedError(
                Code.NOT_SUPPORTED,
                "the query is wrong: the operator : reads a VARIANT, which json columns are not",
                hint="write parse_json(column):field, or get_json_object(column, '$.field').",
                span=core_span(self._word(":")),
            )
        arrow = core_span(self._word("->"))
        return ChangefeedError(
            Code.NOT_SUPPORTED,
            "Spark SQL cannot read the query" + " at ->" * (arrow is not None),
            hint=_JSON_HINT if arrow else "take expressions away until it can.",
            span=arrow,
        )

    def _no_column(self, written: str, span: Span | None) -> ChangefeedError:
        name = written.replace("`", "")
        last = name.rpartition(".")[2]
        columns = [column.name for column in self._schema.columns]
        table = self._schema.table
        message = f"column {name} does not exist on table {table.schema}.{table.name}"
        for lookup in self._lookups:
            if any(field.name.lower() == last.lower() for field in lookup.fields):
                hint = f"it is a column of the look-up table: write {lookup.alias}.{last}."
                return ChangefeedError(Code.NAME_UNKNOWN, message, hint=hint, span=span)
        near = did_you_mean(last, [*columns, PREV])
        hint = f'did you mean "{near}"?' if near else f"its columns are: {', '.join(columns[:20])}."
        return ChangefeedError(Code.NAME_UNKNOWN, message, hint=hint, span=span)

    def _no_function(self, written: str, span: Span | None) -> ChangefeedError:
        name = written.replace("`", "")
        known = [row[0] for row in self._session.sql("SHOW FUNCTIONS").collect()]
        own = [*FUNCTIONS, CREATION_TIME, SCHEMA_TIME]
        if name in own:
            return ChangefeedError(
                Code.NOT_SUPPORTED, f"function {name}() takes no arguments", span=span
            )
        near = did_you_mean(name, [*known, *own])
        hint = f"did you mean {near}()?" if near else "Spark SQL's functions can be used."
        return ChangefeedError(
            Code.NAME_UNKNOWN, f"function {name}() does not exist", hint=hint, span=span
        )

    # -- the result -------------------------------------------------------------------------

    def _made(self, found: Analysis, condition: Sequence[Expression]) -> CompiledQuery:
        columns, outputs = self._outputs(found)
        shown = len(columns)
        key = self._key(columns, outputs)
        where = self._columns_read(condition)
        computed = [o.place for o in outputs if o.place is not None]
        evaluated = self._evaluated(computed, len(found.expressions) - 1)
        expressions = [found.expressions[place] for place in evaluated]
        names = self._columns_read(expressions)
        tells = bool(names & CHANGE_COLUMNS)
        # Without a WHERE every change is selected.
        of_changes = bool(where & CHANGE_COLUMNS) or (tells and not self._sql.filtered)
        read = names | where
        inputs = tuple(i for i, c in enumerate(self._schema.columns) if c.name in read)
        target = nodes.TableTarget(
            nodes.QualifiedName((self._schema.table.schema, self._schema.table.name)),
            query=self._query,
        )
        schema = replace(
            self._schema,
            columns=tuple(columns),
            key=tuple(key),
            before_image=BeforeImage.FULL
            if tells or self._schema.before_image is BeforeImage.FULL
            else BeforeImage.KEY,
        )
        return CompiledQuery(
            text=to_sql(target),
            source=self._schema,
            schema=schema.with_version(self._schema.version),
            outputs=tuple(outputs),
            shown=shown,
            sql=self._batch_sql(evaluated, outputs) if computed or self._sql.filtered else None,
            row_sql=self._row_sql(found, evaluated, outputs),
            inputs=inputs,
            filtered=self._sql.filtered,
            of_changes=of_changes,
            tells_change=tells,
            uses_prev=PREV in read,
            where_inputs=tuple(i for i, c in enumerate(self._schema.columns) if c.name in where),
            lookups=self._read_of([*expressions, *condition]),
            where_lookups=bool(self._read_of(condition)),
        )

    def _outputs(self, found: Analysis) -> tuple[list[Column], list[Output]]:
        ordinals = {column.name: i for i, column in enumerate(self._schema.columns)}
        columns: list[Column] = []
        outputs: list[Output] = []
        whole: set[int] = set()
        names: dict[str, int] = {}
        if len(found.columns) != len(self._sql.items) + 1:
            raise ChangefeedError(
                Code.NOT_SUPPORTED,
                "an expression of the SELECT makes several columns, which CDC queries do not have",
                hint="name the fields you want.",
            )
        for i, (name, kind) in enumerate(found.columns[:-1]):
            if name.lower() in names:
                raise ChangefeedError(
                    Code.NOT_SUPPORTED,
                    f"the SELECT has two columns {name}",
                    hint="give one of them another name: expression AS name.",
                    span=self._sql.items[i].span,
                )
            names[name.lower()] = i
            attribute = plain_column(found.expressions[i])
            ordinal = ordinals.get(self._true_name(attribute)) if attribute is not None else None
            if ordinal is not None and ordinal not in whole:
                column = self._schema.columns[ordinal]
                if column.name.lower() != name.lower():
                    column = replace(column, name=name)
                whole.add(ordinal)
                columns.append(column)
                outputs.append(Output(ordinal, None, kind))
            else:
                if self._unnamed(i, name):
                    raise ChangefeedError(
                        Code.NOT_SUPPORTED,
                        "an expression of the SELECT has no name",
                        hint="write expression AS name: it is a column of the target.",
                        span=self._sql.items[i].span,
                    )
                columns.append(output_column(name, kind))
                outputs.append(Output(None, i, kind))
        return columns, outputs

    def _true_name(self, attribute: Expression) -> str:
        """A column's own spelling: Spark ignores case and keeps what was typed."""
        name = attribute.name
        columns = self._schema.columns
        if any(column.name == name for column in columns):
            return name
        return next((c.name for c in columns if c.name.lower() == name.lower()), name)

    def _unnamed(self, i: int, name: str) -> bool:
        """Whether Spark made the name from the expression: ``(total * 2)``."""
        words = [token for token, _ in self._sql.items[i].tokens]
        bare = name.replace("_", "").isalnum()
        return not bare and words[-1].kind not in ("word", "quoted")

    def _key(self, columns: list[Column], outputs: list[Output]) -> list[int]:
        """Positions of the key; key columns that are not selected are appended."""
        key = []
        for ordinal in self._schema.key:
            place = next((i for i, o in enumerate(outputs) if o.ordinal == ordinal), None)
            if place is None:
                place = len(columns)
                columns.append(self._schema.columns[ordinal])
                outputs.append(Output(ordinal, None, ""))
            key.append(place)
        return key

    def _evaluated(self, computed: list[int], items: int) -> list[int]:
        """The items that a batch needs: only the expressions, unless one of them uses the name that
        another item gives to a plain column."""
        try:
            self._analysed(self._sql.select(self._empty, computed))
        except ChangefeedError:
            return list(range(items))
        return computed

    def _row_sql(self, found: Analysis, items: Sequence[int], outputs: Sequence[Output]) -> str:
        """As :meth:`_batch_sql`, with a result for each row of the batch."""
        named = {place: found.columns[place][0] for place in items}
        inner = self._sql.each(VIEW, list(named.items())).text
        wanted = [
            f"{output_sql(quoted(named[o.place]), o.spark_type)} AS c{o.place}"
            for o in outputs
            if o.place is not None
        ]
        return f"SELECT {', '.join([ROW, KEEP, *wanted])} FROM ({inner}) AS q"

    def _batch_sql(self, items: Sequence[int], outputs: Sequence[Output]) -> str:
        """The SELECT over a batch; only expressions are in its result."""
        wanted = [
            f"{output_sql(f'c{o.place}', o.spark_type)} AS c{o.place}"
            for o in outputs
            if o.place is not None
        ]
        names = [*(f"c{place}" for place in items), ROW]
        inner = self._sql.select(VIEW, items).text
        return f"SELECT {', '.join([ROW, *wanted])} FROM ({inner}) AS q({', '.join(names)})"


# ------------------------------------------------------------------------------- a batch


def batch_fields(
    schema: TableSchema,
    inputs: Sequence[int] | None = None,
    *,
    prev: bool = True,
    of_change: Collection[str] = (OP, TIME),
    lookups: Sequence[LookupTable] = (),
) -> list[pa.Field]:
    """The columns of a batch: those of the table that are read, the row before, changefeed's own,
    those of the change itself, and one for each look-up."""
    chosen = range(len(schema.columns)) if inputs is None else inputs
    fields = [pa.field(schema.columns[i].name, input_type(schema.columns[i])) for i in chosen]
    if prev:
        fields.append(pa.field(PREV, prev_type(schema)))
    return [
        *fields,
        pa.field(ROW, pa.int32(), nullable=False),
        pa.field(ALWAYS, pa.bool_(), nullable=False),
        *(pa.field(name, kind) for name, kind in _OF_CHANGE.items() if name in of_change),
        *(pa.field(lookup.alias, lookup.arrow) for lookup in lookups),
    ]


#: Columns of a batch that describe the change itself.
_OF_CHANGE = {OP: pa.string(), TIME: pa.decimal128(30, 10)}


def prev_type(schema: TableSchema) -> pa.DataType:
    """The type of ``cdc_prev``: a struct of the table's columns."""
    return pa.struct([pa.field(c.name, input_type(c)) for c in schema.columns])


def _nothing(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return iter(())


def _origin(expression: Expression, written: SqlDraft) -> Span | None:
    place = expression.place
    return None if place is None else written.span(*place)


def _attributes(expression: Expression) -> Iterator[Expression]:
    return (each for each in tree(expression) if each.kind == "AttributeReference")


def _fields_read(expression: Expression, alias: str) -> Iterator[str]:
    """The fields of the struct ``alias`` that an expression reads: ``*`` for the whole struct, the
    empty name where the expression only asks whether the struct is NULL."""
    for each in tree(expression):
        for child in each.children:
            if child.kind != "AttributeReference" or child.name.lower() != alias.lower():
                continue
            if each.kind == "GetStructField":
                yield each.field
            else:
                yield "" if each.kind in ("IsNull", "IsNotNull") else "*"


def _no_name(
    message: str, name: str, names: Sequence[str], span: Span | None, code: str = Code.NAME_UNKNOWN
) -> ChangefeedError:
    near = did_you_mean(name, names)
    hint = f'did you mean "{near}"?' if near else f"its columns are: {', '.join(names[:20])}."
    return ChangefeedError(code, message, hint=hint, span=span)


def plain_column(expression: Expression) -> Expression | None:
    """The column if the expression is only a column, perhaps with another name; else None."""
    if expression.kind == "Alias":
        return plain_column(expression.children[0])
    return expression if expression.kind == "AttributeReference" else None


def refused(message: str, why: str, span: nodes.Span | None) -> ChangefeedError:
    """CF1303 for something that a query cannot have."""
    return ChangefeedError(Code.NOT_SUPPORTED, message, detail=why, span=core_span(span))


def core_span(span: nodes.Span | None) -> Span | None:
    """A span of the syntax as one of an error."""
    return None if span is None else Span(span.start, span.end)


def _no_field(parameters: Mapping[str, str], span: Span | None) -> ChangefeedError:
    name = str(parameters.get("fieldName", "")).replace("`", "")
    known = [part.strip("` ") for part in str(parameters.get("fields", "")).split(", ")]
    return _no_name(f"field {name} does not exist", name, known, span)


def _sentence(text: str) -> str:
    """Spark's sentence without its error code and the quoted query."""
    first = text.strip().splitlines()[0] if text.strip() else "unknown error"
    if first.startswith("["):
        first = first.partition("] ")[2] or first
    first = first.partition(" SQLSTATE:")[0].partition("; line ")[0]
    return first[:300].rstrip(" .")

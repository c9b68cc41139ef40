"""Which columns the result of a CDC query is made of, as sqlglot reads the query: without Spark.

It describes a query that Spark has accepted and checks nothing. sqlglot takes 150 ms to load.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import sqlglot
from sqlglot import exp
from sqlglot.dialects.databricks import Databricks

from changefeed.core.schema import TableSchema
from changefeed.query.windows import WINDOW
from changefeed.query.written import OP, PREV, TIME, BatchSql
from grammar import nodes
from grammar.select import SparkToken, unquoted

#: What a change has beside its rows, in words.
_OF_CHANGE = {OP: "operation", TIME: "commit timestamp", WINDOW: "window of the commit timestamp"}
_VIEW = "t"
#: A node of a query; sqlglot's types differ from version to version.
Tree = Any


class _QuerySql(Databricks):
    """Spark SQL as CDC queries are evaluated: names may stand in double quotes."""

    class Tokenizer(Databricks.Tokenizer):
        QUOTES: ClassVar = ["'"]
        IDENTIFIERS: ClassVar = ["`", '"']


@dataclass(frozen=True, slots=True)
class Read:
    """Something that an expression reads.

    Attributes:
        column: its name; empty: no column, ``what`` says what it is.
        lookup: the look-up table that it belongs to; empty: the feed's own table.
        before: the value before the change is meant.
        what: ``operation``, ``commit timestamp``, ..
    """

    column: str = ""
    lookup: str = ""
    before: bool = False
    what: str = ""


@dataclass(frozen=True, slots=True)
class Derivation:
    """An expression: a column of the result, or a condition.

    Attributes:
        name: of the column; empty of a condition.
        how: ``copy``, ``computed``, ``aggregated``, ``filter``, ``join`` or ``group``.
        reads: without repetition.
        text: the expression as written; empty of a copy.
    """

    name: str
    how: str
    reads: tuple[Read, ...]
    text: str = ""


class QueryLineage:
    """Where the result of a query over one version of its table comes from.

    Attributes:
        columns: those of the SELECT, in its order.
        conditions: what decides which rows there are: WHERE, joins, GROUP BY.
        key: positions in ``columns`` of what the query groups by; empty without GROUP BY.
    """

    def __init__(self, query: nodes.Query, schema: TableSchema) -> None:
        self._query = query
        self._names = {column.name.lower(): column.name for column in schema.columns}
        self._lookups = {join.alias.lower(): ".".join(join.parts) for join in query.joins}
        self._sql = BatchSql(query, schema)
        self._select = BatchSql(replace(query, where="", joins=(), spans=()), schema)
        self._tables = {self._sql.alias.lower(), schema.table.name.lower()}
        #: What the columns of the SELECT read, by name: Spark lets later expressions use them.
        self._known: dict[str, tuple[Read, ...]] = {}
        grouped = self._groups()
        keys = {group.sql().lower() for group in grouped}
        self.columns: tuple[Derivation, ...] = ()
        self.key: tuple[int, ...] = ()
        for item in range(len(self._sql.items)):
            made = self._column(item)
            self._known.setdefault(made.name.lower(), made.reads)
            self.columns += (made,)
            by_window = made.how != "aggregated" and Read(what=_OF_CHANGE[WINDOW]) in made.reads
            if grouped and (by_window or self._expression(item).unalias().sql().lower() in keys):
                self.key += (item,)
        self.conditions = tuple(self._conditions(grouped))

    def _expression(self, item: int) -> Tree:
        return _parsed(self._select.select(_VIEW, [item]).text).expressions[0]

    def _groups(self) -> list[Tree]:
        if not self._query.group:
            return []
        try:
            return list(_parsed(self._select.grouped(_VIEW).text).args["group"].expressions)
        except sqlglot.errors.SqlglotError:
            return []

    def _column(self, item: int) -> Derivation:
        tokens = [token for token, _ in self._sql.items[item].tokens]
        text = self._query.items[tokens[0].start : tokens[-1].end]
        try:
            written = self._expression(item)
        except sqlglot.errors.SqlglotError:
            return Derivation(unquoted(tokens[-1].text), "computed", self._named(tokens), text)
        inner = written.unalias()
        name = written.alias_or_name or text
        reads = self._reads(inner)
        how = "aggregated" if inner.find(exp.AggFunc) else "computed"
        if isinstance(inner, exp.Column) and len(reads) == 1 and self._is_whole(inner):
            how, text = "copy", ""
            name = name if self._query.group else self._names.get(name.lower(), name)
        return Derivation(name, how, reads, text)

    def _is_whole(self, column: exp.Column) -> bool:
        """The value as it is, not a member of it."""
        parts = self._parts(column)
        return len(parts) == (2 if parts[0] in (PREV, *self._lookups) else 1)

    def _conditions(self, groups: Sequence[Tree]) -> Iterator[Derivation]:
        if self._query.where:
            try:
                asked = self._reads(_parsed(self._sql.condition(_VIEW).text))
            except sqlglot.errors.SqlglotError:
                asked = self._named([token for token, _ in self._sql.where])
            reads = tuple(read for read in asked if read.column != "*")  # of an inner join
            yield Derivation("", "filter", reads, self._query.where)
        for join in self._query.joins:
            for own, other in join.keys:
                table = self._lookups[join.alias.lower()]
                reads = (Read(self._names.get(own.lower(), own)), Read(other, table))
                yield Derivation("", "join", reads, f"{own} = {join.alias}.{other}")
        for group in groups:
            yield Derivation("", "group", self._reads(group), group.sql())

    # -- what an expression reads -----------------------------------------------------------

    def _named(self, tokens: Sequence[SparkToken]) -> tuple[Read, ...]:
        """All columns that are named, in syntax that sqlglot does not know."""
        names = dict.fromkeys(unquoted(token.text).lower() for token in tokens)
        return tuple(Read(self._names[name]) for name in names if name in self._names)

    def _reads(self, expression: Tree) -> tuple[Read, ...]:
        found = (read for column in expression.find_all(exp.Column) for read in self._read(column))
        return tuple(dict.fromkeys(found))

    def _parts(self, column: exp.Column) -> list[str]:
        """The parts of a name, in lower case, without the name of the table."""
        parts = [part.name.lower() for part in column.parts]
        return parts[1:] if len(parts) > 1 and parts[0] in self._tables else parts

    def _read(self, column: exp.Column) -> Sequence[Read]:
        first, *rest = self._parts(column)
        if first == PREV:
            chosen = rest[:1] or list(self._names)
            return [Read(self._names.get(name, name), before=True) for name in chosen]
        if first in self._names:
            return [Read(self._names[first])]
        if first in self._lookups:
            return [Read(column.parts[-len(rest)].name if rest else "*", self._lookups[first])]
        if first in _OF_CHANGE:
            return [Read(what=_OF_CHANGE[first])]
        return self._known.get(first, ())


def _parsed(text: str) -> Tree:
    return sqlglot.parse_one(text, dialect=_QuerySql)

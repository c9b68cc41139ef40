"""What one SQL warehouse is to the core: its language and its connection.

A target is written in three small pieces:

* a :class:`Dialect`: SQL text only, no connection, so it is tested as text. The methods here
  write what most databases understand; override those whose spelling differs.
* a :class:`Warehouse`: connects, runs statements, loads an Arrow table. Its errors are
  :class:`~changefeed.core.errors.ChangefeedError` sorted by what to do: CF5001 and CF5004 are tried
  again (gone, busy, conflict); CF5003 and CF5006 (a value or a change of shape that the target
  cannot take) stop the one table whose topic is the error's ``target``; CF5002 stops the feed.
* a subclass of :class:`~sinks.warehouse.sink.WarehouseSink` whose constructor reads the URI.

A database that is not written by SQL has a store of its own (:mod:`.spanner`) under the same
:class:`~sinks.warehouse.database_sink.DatabaseSink`.

How a batch travels, with the tables involved::

    write   Arrow rows, in log form, gather in memory and in files
    commit  what is left of them (sinks.merged.fold)     ──► _staging_<table>
            one atomic run of:
            lock and read _changefeed_applied               how far the table is complete
            what was not applied, typed                  ──► <table>
            _changefeed_applied moves, _staging_<table> is emptied of the batch

Staging columns hold values in **log form** (``changefeed/core/schema.py``): booleans and integers
as themselves, everything else as text. :class:`TypeRule` says how the text becomes the target's
type inside the diff query, and which texts the type cannot hold (checked in Arrow before loading,
so a refused value is reported by table and column, never by a database's message).
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from changefeed.core import sql
from changefeed.core.schema import Column
from changefeed.core.types import Kind, LogicalType
from sinks.merged.values import decimal_pattern

#: Types of columns that may have a collation, as catalogs print them.
_TEXTS = re.compile(
    r"(VARCHAR|CHAR|CHARACTER|CHARACTER VARYING|TEXT|STRING)(\(\d+\))?", re.IGNORECASE
)
#: Texts that a collation which compares bytes has for different.
_DIFFERENT = ("a", "A", "á")

#: The pattern of a :class:`TypeRule` that accepts every text.
ANY = ""


@dataclass(frozen=True, slots=True)
class TypeRule:
    """How a neutral type is kept in a target.

    Attributes:
        sql: the column's type in CREATE TABLE.
        cast: SQL that makes the type out of the log form; ``{x}`` is the staging column.
        accepts: regular expression (RE2, whole text) of the log forms the type can hold; empty
            is all of them. A text that does not match stops the table with CF5006.
        longest: bytes of the longest log form it can hold; 0 is any.
    """

    sql: str
    cast: str = "{x}"
    accepts: str = ANY
    longest: int = 0

    def of(self, expression: str) -> str:
        """The typed value of a staging expression."""
        return self.cast.replace("{x}", expression)


@dataclass(frozen=True, slots=True)
class SqlStatement:
    """One SQL statement and the topic (target table) it is about, for blame."""

    sql: str
    topic: str = ""


#: Dates and timestamps from year 1 to 9999: what most warehouses hold.
COMMON_ERA = r"[0-9]{4}-.*[^C]"
#: The same, and later years.
ANNO_DOMINI = r"[0-9]{4,6}-.*[^C]"
#: Arrays of one dimension.
FLAT_ARRAY = r"\[\s*(?:[^\[\s].*)?"


class Dialect:
    """SQL of one target, as text. Names are given unquoted; ``table`` arguments are finished.

    Attributes:
        name: for messages and documentation.
        types: rules by kind; a kind without one is kept as ``other`` is. ``decimal(p,s)`` and
            arrays go to :meth:`decimal` and :meth:`array`.
        staging_types: physical type in the log -> type of a staging column.
        key_text: a text type that can be a key.
        key_rules: type of a column -> how it is kept where the column is in the key: types that
            cannot be compared are texts there, and texts have a length.
        most_key_columns: of a primary key; 0 is any.
        max_name: longest identifier; longer ones are cut and end in a digest.
        folds_case: two names that differ only in case are one.
        transactional_ddl: CREATE and ALTER are part of an atomic run. Where not, the core runs
            each before, and makes them harmless to repeat.
        max_precision: digits of the largest exact decimal.
        true, false: literals.
        outer_joins: what ends a query whose outer joins give NULL where there is no row.
        counts: tables without a key can be kept (rows can be repeated by :meth:`copies`).
        keeps_key: CREATE TABLE declares the primary key (the target uses it to find rows).
        merges: there is a standard MERGE; else rows are deleted and inserted.
        widens_to_text: :meth:`widen_column` makes a text of an integer.
    """

    name: ClassVar[str] = ""
    types: ClassVar[Mapping[Kind, TypeRule]] = {}
    staging_types: ClassVar[Mapping[str, str]] = {
        "bool": "BOOLEAN",
        "int16": "SMALLINT",
        "int32": "INTEGER",
        "int64": "BIGINT",
        "string": "TEXT",
    }
    key_text: ClassVar[str] = "VARCHAR(255)"
    key_rules: ClassVar[Mapping[str, TypeRule]] = {}
    most_key_columns: ClassVar[int] = 0
    max_name: ClassVar[int] = 63
    folds_case: ClassVar[bool] = False
    transactional_ddl: ClassVar[bool] = True
    max_precision: ClassVar[int] = 38
    counts: ClassVar[bool] = True
    outer_joins: ClassVar[str] = ""
    keeps_key: ClassVar[bool] = False
    merges: bool = True
    widens_to_text: ClassVar[bool] = False
    true: ClassVar[str] = "TRUE"
    false: ClassVar[str] = "FALSE"

    # ------------------------------------------------------------------ names and types

    def quote(self, name: str) -> str:
        """A name as an identifier."""
        return sql.quoted(name)

    def literal(self, text: str) -> str:
        """A text as a string literal."""
        return sql.literal(text)

    def fit(self, name: str) -> str:
        """``name``, cut to :attr:`max_name` with a digest so that it stays unique."""
        if len(name.encode()) <= self.max_name:
            return name
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        head = name.encode()[: self.max_name - 9].decode(errors="ignore")
        return f"{head}_{digest}"

    def kept_of(self, name: str) -> str:
        """What the target keeps of the name of a column: its first bytes."""
        return name.encode()[: self.max_name].decode(errors="ignore")

    def canonical(self, name: str) -> str:
        """What two names have in common that are one table here: cut to what fits, and folded
        where names that differ only in case are one."""
        fitted = self.fit(name)
        return fitted.casefold() if self.folds_case else fitted

    def rule(self, column: Column, *, key: bool = False) -> TypeRule:
        """How a source column is kept here. ``key``: the column is part of the primary key."""
        found = self._rule(column.logical)
        return self.key_rules.get(found.sql, found) if key else found

    def _rule(self, logical: LogicalType) -> TypeRule:
        if logical.digits is not None:
            return self.decimal(*logical.digits)
        if logical.element is not None:
            return self.array(logical.element)
        return self.types.get(logical.kind) or self.types[Kind.OTHER]

    def unfit_key(self, key: Sequence[Column]) -> str:
        """Why no table here can have these columns as its primary key; empty: one can."""
        if not 0 < self.most_key_columns < len(key):
            return ""
        return f"its key has {len(key)} columns, and {self.name} takes {self.most_key_columns}"

    def decimal(self, precision: int, scale: int) -> TypeRule:
        """A number with declared digits; text where the target has not so many."""
        if precision > self.max_precision:
            return self.types[Kind.OTHER]
        sql = f"DECIMAL({precision},{scale})"
        accepts = decimal_pattern(precision - scale, scale)
        return TypeRule(sql, f"CAST({{x}} AS {sql})", accepts)

    def array(self, element: LogicalType) -> TypeRule:
        """A JSON array; targets without lists keep it as json."""
        return self.types[Kind.JSON]

    # ------------------------------------------------------------------ expressions

    def listed(self, names: Iterable[str], of: str = "") -> str:
        """Columns, separated by commas; ``of`` is the alias of their table."""
        prefix = f"{of}." if of else ""
        return ", ".join(prefix + self.quote(name) for name in names)

    def assigned(self, sets: Mapping[str, str]) -> str:
        """What follows SET, from column -> expression."""
        return ", ".join(f"{self.quote(name)} = {value}" for name, value in sets.items())

    def same(self, columns: Sequence[str], left: str, right: str) -> str:
        """Rows are equal in key columns, which hold no NULL."""
        return " AND ".join(f"{left}.{self.quote(c)} = {right}.{self.quote(c)}" for c in columns)

    def ordered(self, expression: str, column: Column) -> str:
        """A value of a key column as what is compared with a bound of a range: text by code point,
        a UUID as its text would be."""
        return expression

    def same_row(self, columns: Sequence[str], left: str, right: str) -> str:
        """Rows are equal in all ``columns``, NULL equal to NULL. Should be hashable: it is how
        rows of tables without a key are found."""
        return " AND ".join(
            f"{left}.{self.quote(c)} IS NOT DISTINCT FROM {right}.{self.quote(c)}" for c in columns
        )

    def distinct(self, columns: Sequence[str], source: str) -> tuple[str, str]:
        """SELECT list and GROUP BY list that make one row of equal rows of ``source``."""
        listed = self.listed(columns, source)
        return listed, listed

    def copies(self, count: str) -> str:
        """A join that repeats each row of a FROM clause ``count`` times, an expression."""
        return f"CROSS JOIN LATERAL generate_series(1, {count}) AS _copy(n)"

    def text_of(self, expression: str, rule: TypeRule) -> str:
        """SQL: a value of the rule's type as text, for people."""
        return f"CAST({expression} AS {self.staging_types['string']})"

    def instant(self, version: str) -> str:
        """SQL: ``_sequence_num`` (nanoseconds since 1970) as the target's timestamp."""
        return f"TIMESTAMP '1970-01-01' + ({version} / 1000) * INTERVAL '1 microsecond'"

    # ------------------------------------------------------------------ definitions

    def create_schema(self, schema: str) -> str:
        """Make the schema (dataset) that holds all tables."""
        return f"CREATE SCHEMA IF NOT EXISTS {self.quote(schema)}"

    def create_table(self, table: str, columns: Mapping[str, str], key: Sequence[str] = ()) -> str:
        """Make a table unless it is there. ``key`` columns are NOT NULL and, with
        :attr:`keeps_key`, the primary key; all others may be NULL (a column that was dropped at
        the source stays, and has no value in new rows)."""
        lines = [
            f"{self.quote(name)} {sql}{' NOT NULL' if name in key else ''}"
            for name, sql in columns.items()
        ]
        if key and self.keeps_key:
            lines.append(f"PRIMARY KEY ({self.listed(key)})")
        return f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(lines)})"

    def create_staging(self, table: str, columns: Mapping[str, str]) -> str:
        """Make a staging table (``_batch_id`` and ``_sequence_num`` are its first columns:
        partition by the one and cluster by the other where that exists). It need not outlive
        a crash."""
        return self.create_table(table, columns)

    def temporary(self, table: str, query: str) -> str:
        """A table for the rest of the run, out of a query; dropped by :meth:`drop_temporary`."""
        return f"CREATE TEMPORARY TABLE {self.quote(table)} AS {query}"

    def drop_temporary(self, table: str) -> str:
        """Let go of a table of :meth:`temporary`."""
        return f"DROP TABLE {self.quote(table)}"

    def drop_table(self, table: str) -> str:
        """Drop a table if it is there."""
        return f"DROP TABLE IF EXISTS {table}"

    def add_column(self, table: str, name: str, sql: str) -> str:
        """Add a column that may be NULL."""
        return f"ALTER TABLE {table} ADD COLUMN {self.quote(name)} {sql}"

    def rename_column(self, table: str, old: str, new: str) -> str:
        """Rename a column."""
        return f"ALTER TABLE {table} RENAME COLUMN {self.quote(old)} TO {self.quote(new)}"

    def widen_column(self, table: str, name: str, sql: str) -> str:
        """Give a column a wider type that holds all its values."""
        return f"ALTER TABLE {table} ALTER COLUMN {self.quote(name)} SET DATA TYPE {sql}"

    # ------------------------------------------------------------------ applying changes

    def delete_joined(self, table: str, source: str, alias: str, on: str) -> str:
        """Delete rows of ``table`` (alias ``target``) that have a partner in ``source``."""
        return f"DELETE FROM {table} AS target USING {source} AS {alias} WHERE {on}"

    def update_joined(
        self, table: str, source: str, alias: str, sets: Mapping[str, str], on: str
    ) -> str:
        """Update rows of ``table`` (alias ``target``) from their one partner in ``source``;
        ``sets`` is column -> expression."""
        sql = f"UPDATE {table} AS target SET {self.assigned(sets)}"
        return f"{sql} FROM {source} AS {alias} WHERE {on}"


class Warehouse(ABC):
    """A connection to one target. Used by one thread at a time; made unconnected.

    Attributes:
        dialect: its language.
        schema: where all tables are; empty for the target's default.
        place: host and database in words, for messages; holds no secret.
    """

    dialect: Dialect
    schema: str
    place: str

    def name(self, table: str) -> str:
        """A table's name, cut to what fits, with its schema, ready for SQL."""
        q = self.dialect.quote
        prefix = f"{q(self.schema)}." if self.schema else ""
        return prefix + q(self.dialect.fit(table))

    @abstractmethod
    def connect(self, *, make: bool = True) -> None:
        """Connect and make the schema if it is missing. Idempotent; called after :meth:`rest`
        and after an error too. Without ``make`` nothing is made there: a look, closed afterwards.

        Raises:
            ChangefeedError: CF5001 cannot be reached, CF5002 refused the login.
        """

    @abstractmethod
    def run(self, statements: Sequence[SqlStatement]) -> None:
        """Run them in order, all or nothing (where a target cannot, its strategy sees to it that
        each may be repeated), durable on return. DDL is among them only where
        ``dialect.transactional_ddl``, else it comes alone.

        Raises:
            ChangefeedError: sorted as the module says; nothing was changed, except that the
                answer to a commit may have been lost.
        """

    @abstractmethod
    def query(self, sql: str) -> list[tuple[object, ...]]:
        """The rows of a small SELECT."""

    @abstractmethod
    def columns(self, table: str) -> dict[str, str]:
        """Names of a table's columns, in order, with the target's type names; empty when there is
        no such table. ``table`` is not quoted and without schema."""

    def folding(self, table: str) -> Mapping[str, str]:
        """Columns of a table by which different texts may be equal -> what makes them so. Optional:
        none where the target does not say. ``table`` as in :meth:`columns`."""
        return {}

    def probed_folding(self, table: str) -> Mapping[str, str]:
        """:meth:`folding` where the catalog has no collations: texts that are compared with a
        column are equal by its collation. Reads no row."""
        names = [name for name, kind in self.columns(table).items() if _TEXTS.fullmatch(kind)]
        if not names:
            return {}
        d = self.dialect
        listed = ", ".join(f"{d.quote(name)} AS c{i}" for i, name in enumerate(names))
        parts = [f"SELECT {listed} FROM {self.name(table)} WHERE 1 = 0"]
        for text in _DIFFERENT:
            parts.append("SELECT " + ", ".join([d.literal(text)] * len(names)))
        counts = ", ".join(f"COUNT(DISTINCT c{i})" for i in range(len(names)))
        [found] = self.query(f"SELECT {counts} FROM ({' UNION ALL '.join(parts)}) AS texts")
        return {
            name: "a collation that ignores case or accents"
            for name, count in zip(names, found, strict=True)
            if count != len(_DIFFERENT)
        }

    @abstractmethod
    def load(self, table: str, rows: pa.Table, load_id: str) -> None:
        """Append rows to a staging table, by name of column. ``table`` as in :meth:`columns`.

        ``load_id`` is unique to these rows: repeated after a lost answer, it may load nothing.
        """

    def there(self) -> bool:
        """After ``connect(make=False)``: there is a place to look at."""
        return True

    def check_rights(self) -> None:
        """After ``connect(make=False)``: look whether the login may make tables. Optional.

        Raises:
            ChangefeedError: CF5002 it may not; the hint has the statement that allows it.
        """
        return None

    def identity(self) -> str:
        """The database's own identity, in the form of ``SinkContext.source``, where this can be a
        source too; empty where it cannot or does not say."""
        return ""

    def rest(self) -> None:
        """Nothing is in flight: what others wait for (a file's lock) may be let go. Optional."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Release everything."""

"""Which schema the rows of a table map have.

The binlog says how rows *were* at that place; the server's catalog says how the table is *now*. The
two are the same for almost every table at almost every time, and then the catalog's description
(which knows more: unique keys, MariaDB's JSON and UUID) is the schema. Where the binlog is older
than the catalog, the schema is made of the table map alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import BeforeImage, Column, TableName, TableSchema
from changefeed.sources.base import as_sent
from changefeed.sources.mysql.statements import first_word
from changefeed.sources.mysql.tablemap import Charsets, ColumnShape, TableShape, type_text
from changefeed.sources.mysql.types import ColumnInfo, column_of

Describe = Callable[[TableName], TableSchema | None]
Problem = Callable[[TableName], ChangefeedError | None]
Intern = Callable[[TableSchema], TableSchema]

#: Types that only the catalog knows, and how the binlog calls them.
_STORED_AS = {
    "uuid": "binary(16)",
    "inet6": "binary(16)",
    "inet4": "binary(4)",
}
_GEOMETRY = frozenset({"geomcollection", "geometrycollection"})


@dataclass(frozen=True, slots=True)
class ShapeChange:
    """A table has another shape, other values or other rows than before, as
    :class:`~changefeed.core.events.SchemaChange` describes it."""

    old: TableSchema
    new: TableSchema
    rewritten: bool
    moved: bool = False
    why: str = ""


def no_problem(table: TableName) -> ChangefeedError | None:
    """Every table can be watched."""
    return None


class Shapes:
    """The schemas of the tables of one stream."""

    def __init__(
        self,
        source: str,
        charsets: Charsets,
        describe: Describe,
        intern: Intern,
        latest: Describe,
        logged: Intern = as_sent,
        problem: Problem = no_problem,
    ) -> None:
        """
        Args:
            source: the name that table names begin with.
            charsets: what the server's collation numbers stand for.
            describe: the server's present description of a table.
            intern: gives a schema its version number.
            latest: the last shape that all feeds of a table know.
            logged: the shape in which rows go into the log, given the one that they are sent in.
            problem: why the server's table cannot be watched as it is now.
        """
        self._logged = logged
        self._problem = problem
        self.charsets = charsets
        self._source = source
        self._describe = describe
        self._intern = intern
        self._latest = latest
        self._known: dict[TableName, TableSchema] = {}
        self._statements: dict[TableName, list[str]] = {}

    def name(self, database: str, table: str) -> TableName:
        """The full name of a table of the source."""
        return TableName(self._source, database, table)

    def altered(self, name: TableName, statement: str) -> None:
        """Remember a definition of a table until its next row: it says what the map does not."""
        self._statements.setdefault(name, []).append(statement)

    def adopt(self, schema: TableSchema) -> None:
        """Rows of the table have this shape from here on."""
        self._known[schema.table] = schema

    def lowered(self, schema: TableSchema) -> TableSchema:
        """The shape of rows of which the binlog has only the key before a change."""
        return self._intern(replace(schema, before_image=BeforeImage.KEY, version=0))

    def raised(self, schema: TableSchema, shape: TableShape) -> TableSchema | None:
        """The shape with whole rows before, if the server's catalog describes the table so."""
        described = self._describe(schema.table)
        if described is None or described.before_image is not BeforeImage.FULL:
            return None
        if not self.fits(shape, described):
            return None
        return self._intern(replace(schema, before_image=BeforeImage.FULL, version=0))

    def completed(self, schema: TableSchema) -> bool:
        """The rows before are completed on their way into the log, whatever the binlog has."""
        sent = replace(schema, before_image=BeforeImage.KEY)
        return self._logged(sent).before_image is BeforeImage.FULL

    def seen(self, name: TableName) -> TableSchema | None:
        """The shape that the stream, or a feed, has seen; None where nobody has."""
        return self._known.get(name) or self._latest(name)

    def problem(self, name: TableName) -> ChangefeedError | None:
        """Why the server's table cannot be watched as it is now: what it is, or its engine."""
        return self._problem(name)

    def visible(self, shape: TableShape) -> TableShape:
        """The shape without columns that the server hides from its users."""
        if not shape.may_have_hashes:
            return shape
        name = self.name(shape.database, shape.table)
        shown = self._describe(name) or self.seen(name)
        return shape.without_hashes([c.name for c in shown.columns] if shown else ())

    def present(self, name: TableName) -> TableSchema | None:
        """The shape as far as the stream knows it, for a TRUNCATE."""
        known = self.seen(name)
        if known is None:
            described = self._describe(name)
            known = None if described is None else self._intern(described)
        if known is not None:
            self._known[name] = known
        return known

    def moved(self, old: TableName, new: TableName) -> ShapeChange | None:
        """A table has another name, and no row came under it; None if nobody knows its shape."""
        was = self.seen(old)
        like = was or self._describe(new)
        if like is None:
            return None
        now = self._intern(replace(like, table=new, version=0))
        if self.seen(new) is None:
            self._known[new] = now
        self._statements[new] = self._told(old, new)
        return ShapeChange(self._under(old, was, now), now, rewritten=False)

    def moved_with(
        self, old: TableName, shape: TableShape, *, read: bool
    ) -> tuple[TableSchema, list[ShapeChange]]:
        """A table has another name, under which rows of this shape come: their schema, and what
        readers are told; also those of a table that had the new name before, if any ``read`` it.

        Raises:
            ChangefeedError: see :meth:`resolve`.
        """
        new = self.name(shape.database, shape.table)
        told, was = self._told(old, new), self.seen(old)
        schema, change = self.resolve(shape, was)
        before = self._under(old, was, schema)
        moved = ShapeChange(before, schema, _rewritten(before, schema, told))
        return schema, [moved] if change is None or not read else [change, moved]

    def _told(self, old: TableName, new: TableName) -> list[str]:
        """What was done to a table since its last row beside the rename."""
        texts = [*self._statements.pop(old, []), *self._statements.pop(new, [])]
        return [text for text in texts if first_word(text) != "RENAME"]

    def _under(self, old: TableName, was: TableSchema | None, now: TableSchema) -> TableSchema:
        """The shape of a table under its old name, also if no row of it was ever read."""
        return was or self._intern(replace(now, table=old, version=0))

    def resolve(
        self, shape: TableShape, like: TableSchema | None = None
    ) -> tuple[TableSchema, ShapeChange | None]:
        """The schema of rows of this shape, and what changed since the last ones.

        ``like``: the shape under another name, of a table that is not known under this one.

        Raises:
            ChangefeedError: CF2003 the server does not send the names of columns, CF1302 it has
                something else under the name now, which cannot be watched.
        """
        name = self.name(shape.database, shape.table)
        if not shape.named:
            raise ChangefeedError(
                Code.SOURCE_NOT_SET_UP,
                f"the binlog does not name the columns of {name}",
                hint="SET GLOBAL binlog_row_metadata = 'FULL'; then RESCAN the feeds, since what"
                " is in the binlog already stays without names.",
            )
        known = self.seen(name)
        if known is not None and self.fits(shape, known):
            new = known
            if self._logged(known).before_image is not known.before_image:
                new = self._intern(replace(self._logged(known), version=0))
            self._known[name] = new
            return new, None if new is known else ShapeChange(known, new, rewritten=False)
        described = self._describe(name)
        if described is None and (problem := self._problem(name)) is not None:
            raise problem
        if described is not None and self.fits(shape, described):
            new = self._intern(self._logged(described))
        else:
            new = self._intern(self._logged(self._made(shape, known or like or described)))
        self._known[name] = new
        told = self._statements.pop(name, [])
        if known is None or known.fingerprint() == new.fingerprint():
            return new, None
        return new, ShapeChange(known, new, _rewritten(known, new, told))

    def fits(self, shape: TableShape, schema: TableSchema) -> bool:
        """Rows of the shape can be read as rows of the schema."""
        if len(shape.columns) != len(schema.columns):
            return False
        for told, column in zip(shape.columns, schema.columns, strict=True):
            if told.name != column.name:
                return False
            if canonical(column.type_name) != self._canonical(told):
                return False
        return not shape.key or (not schema.keyless and schema.key == shape.key)

    def _canonical(self, column: ColumnShape) -> str:
        return canonical(type_text(column, self.charsets))

    def _made(self, shape: TableShape, like: TableSchema | None) -> TableSchema:
        """A schema of what the binlog says; columns that are as in ``like`` stay as they are."""
        known = {} if like is None else {column.name: column for column in like.columns}
        columns = []
        for told in shape.columns:
            column = known.get(told.name or "")
            if column is None or canonical(column.type_name) != self._canonical(told):
                column = self._column(told)
            columns.append(column)
        places = {column.name: place for place, column in enumerate(columns)}
        key = shape.key
        if not key and like is not None and not like.keyless:
            # A unique index, which the map does not tell.
            names = [column.name for column in like.key_columns]
            if all(name in places for name in names):
                key = tuple(places[name] for name in names)
        if like is not None:
            return replace(
                like,
                table=self.name(shape.database, shape.table),
                columns=tuple(columns),
                key=key or tuple(range(len(columns))),
                keyless=not key,
                version=0,
            )
        return TableSchema(
            table=self.name(shape.database, shape.table),
            columns=tuple(columns),
            key=key or tuple(range(len(columns))),
            before_image=BeforeImage.FULL,
            keyless=not key,
        )

    def _column(self, told: ColumnShape) -> Column:
        text = type_text(told, self.charsets)
        return column_of(ColumnInfo(told.name or "", text, told.nullable))


def _rewritten(old: TableSchema, new: TableSchema, told: Sequence[str]) -> bool:
    """Rows that are there already read otherwise now, and were not sent.

    Columns that may be NULL and have no default were added: rows read as before, with nulls. That
    is so only if the statements that were ``told`` are ALTERs and name each of these columns: the
    stream may have begun behind others, and a table may have come by a RENAME.
    """
    before = {column.name: column for column in old.columns}
    added = [column for column in new.columns if column.name not in before]
    for column in new.columns:
        known = before.get(column.name)
        if known is not None and known.logical != column.logical:
            return True
    if not added:
        return False
    plain = all(first_word(text) == "ALTER" and not _FILLS.search(text) for text in told)
    everything = " ".join(told).casefold()
    named = all(column.name.casefold() in everything for column in added)
    return not (plain and named) or not all(column.nullable for column in added)


#: Words of an ALTER that may give a new column a value in old rows.
_FILLS = re.compile(r"\b(?:NOT\s+NULL|DEFAULT(?!\s+NULL\b)|AS\s*\(|CURRENT_TIMESTAMP)", re.I)
_WIDTH = re.compile(r"^((?:tiny|small|medium|big)?int|year)\(\d+\)")
_NOISE = re.compile(r" zerofill| /\*.*\*/", re.I)


def canonical(text: str) -> str:
    """A COLUMN_TYPE without what the binlog does not tell: widths of display."""
    head, quote, values = text.partition("'")
    head = _NOISE.sub("", _WIDTH.sub(r"\1", head.lower().strip()))
    if text.lower().rstrip().endswith("zerofill") and "unsigned" not in head:
        head += " unsigned"
    head = _STORED_AS.get(head, head)
    if head.startswith(("float(", "double(")):
        head = head.partition("(")[0] + head.partition(")")[2]
    if head in _GEOMETRY:
        head = "geometrycollection"
    return head + quote + values

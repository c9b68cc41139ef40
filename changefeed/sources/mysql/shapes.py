"""Which schema the rows of a table map have.

The binlog says how rows *were* at that place; the server's catalog says how the table is *now*. The
two are the same for almost every table at almost every time, and then the catalog's description
(which knows more: unique keys, MariaDB's JSON and UUID) is the schema. Where the binlog is older
than the catalog, the schema is made of the table map alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import BeforeImage, Column, TableName, TableSchema
from changefeed.core.types import Kind
from changefeed.sources.base import as_sent
from changefeed.sources.decoded.flushes import ShapeChange
from changefeed.sources.mysql.clauses import ColumnDefinition, Effect
from changefeed.sources.mysql.kept import read_kept, write_kept
from changefeed.sources.mysql.tablemap import Charsets, ColumnShape, TableShape, type_text
from changefeed.sources.mysql.types import ColumnInfo, canonical, column_of

#: In the folder of the change log.
_FILE = "dropped_columns.json"

Describe = Callable[[TableName], TableSchema | None]
Problem = Callable[[TableName], ChangefeedError | None]
Intern = Callable[[TableSchema], TableSchema]


@dataclass(slots=True)
class _StatementNotes:
    """What statements did to a table since its last row.

    Attributes:
        touched: names of columns that may look different in the next row, in lower case.
        announced: readers know that the table must be read again, whatever else its next row shows.
        why, moved: as of :class:`ShapeChange`, for a rename that readers learn of later.
    """

    touched: set[str] = field(default_factory=set)
    announced: bool = False
    why: str = ""
    moved: bool = False

    def add(self, done: Effect | _StatementNotes) -> None:
        """Take in what came later."""
        self.touched |= done.touched
        self.why = self.why or done.why
        self.moved |= done.moved


def _lost_of(kept: Iterable[Any]) -> list[tuple[str, str, list[str]]]:
    return [(database, table, list(names)) for database, table, names in kept]


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
        self._noted: dict[TableName, _StatementNotes] = {}
        #: By table, names of columns that it had and lost, in lower case. Kept next to the change
        #: log: a stream that begins behind the statement knows them, too.
        self._lost: dict[TableName, set[str]] = {}
        self._path: Path | None = None
        self._kept = 0

    def keep_in(self, folder: Path) -> None:
        """Know the columns that earlier streams of this change log saw dropped.

        Raises:
            ChangefeedError: CF3001 the file cannot be read.
        """
        self._path = folder / _FILE
        for database, table, names in read_kept(self._path, "dropped columns", _lost_of):
            self._lost.setdefault(self.name(database, table), set()).update(names)
        self._kept = self._count_lost()

    def save(self) -> None:
        """Make it durable, before a flush that relies on it is out.

        Raises:
            ChangefeedError: CF3004 the file cannot be written.
        """
        count = self._count_lost()
        if self._path is None or count == self._kept:
            return
        kept = [[t.schema, t.name, sorted(names)] for t, names in self._lost.items() if names]
        write_kept(self._path, kept)
        self._kept = count

    def _count_lost(self) -> int:
        return sum(map(len, self._lost.values()))

    def name(self, database: str, table: str) -> TableName:
        """The full name of a table of the source."""
        return TableName(self._source, database, table)

    def altered(self, name: TableName, done: Effect) -> Iterator[ShapeChange]:
        """A statement altered a table, which may have no row for long: what readers learn of it."""
        known, lost = self.seen(name), self._lost.setdefault(name, set())
        back = next((c.name for c in done.added if c.name.casefold() in lost), None)
        if back is not None and not done.why:
            # Targets keep dropped columns: the values there are not those of the new one.
            done = replace(done, why=f"ADD {back}, the name of a column that was dropped")
        lost |= {column.casefold() for column in done.dropped}
        done = replace(done, why=_sentence(done))
        self.defer(name, done)
        if known is None:
            return
        new = self._after(known, done)
        self._noted[name].announced |= bool(done.why)
        if new != known or done.why:
            self._known[name] = new
            again = {definition.name.casefold() for definition in done.added}
            gone = [(c, "") for c in sorted(done.dropped) if c.casefold() in again]
            renamed = (*done.renamed, *gone) if new != known else ()
            yield ShapeChange(
                known, new, bool(done.why), moved=done.moved, why=done.why, renamed=renamed
            )

    def defer(self, name: TableName, done: Effect) -> None:
        """Take note of what a statement did, for the next row under the name."""
        self._noted.setdefault(name, _StatementNotes()).add(done)

    def replaced(self, name: TableName, kind: str) -> Iterator[ShapeChange]:
        """Changes for readers: a statement of this kind gave the name to another table."""
        known = self.seen(name)
        self._noted[name] = _StatementNotes(announced=known is not None)
        if known is not None:
            why = f"{kind} TABLE: another table has the name, or rows of it were not read"
            described, new = self._describe(name), known
            if described is not None and _key(described) != _key(known):
                # Said now: a scan sends the rows under this key, and none may follow.
                new = self._known[name] = self._intern(self._logged(described))
            yield ShapeChange(known, new, rewritten=True, moved=True, why=why)

    def _after(self, known: TableSchema, done: Effect) -> TableSchema:
        """The shape of a table as far as a statement says itself what became of its columns: a
        scan may come before the next row, and targets follow shapes in the order of the log."""
        needed = done.added or done.changed or not known.keyless
        described = self._describe(known.table) if needed else None
        there = {} if described is None else {c.name.casefold(): c for c in described.columns}
        renamed = dict(done.renamed)
        changed = {definition.name.casefold(): definition for definition in done.changed}
        keys = () if known.keyless else known.key_columns
        columns = []
        for column in known.columns:
            if column.name in done.dropped and (done.key or column not in keys):
                continue
            name = renamed.get(column.name, column.name)
            definition = changed.get(name.casefold())
            now = None if definition is None else _defined(definition, there)
            columns.append(replace(now or column, name=name))
        new = (_defined(definition, there) for definition in done.added)
        columns += [column for column in new if column is not None]
        names = [column.name.casefold() for column in columns]
        if len(set(names)) < len(names):
            return known
        key_names = [renamed.get(column.name, column.name).casefold() for column in keys]
        if described is not None and there.keys() == set(names):
            if tuple(columns) != known.columns:
                order = list(there)
                columns.sort(key=lambda column: order.index(column.name.casefold()))
            if not known.keyless:
                key_names = _key(described)  # perhaps of another unique index
        if done.key:
            key_names = [name.casefold() for name in done.key]
        places = {column.name.casefold(): place for place, column in enumerate(columns)}
        if not places.keys() >= set(key_names):
            return known
        key = tuple(places[name] for name in key_names)
        listed = key or tuple(range(len(columns)))
        after = replace(known, columns=tuple(columns), key=listed, keyless=not key, version=0)
        return known if after == known else self._intern(after)

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
        """Why the server's table cannot be watched as it is now: its kind, or its engine."""
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
        noted = self._take_notes(old, new)
        self._noted[new] = _StatementNotes(noted.touched, announced=bool(noted.why))
        before = self._under(old, was, now)
        return ShapeChange(before, now, bool(noted.why), moved=noted.moved, why=noted.why)

    def moved_with(
        self, old: TableName, shape: TableShape, *, read: bool
    ) -> tuple[TableSchema, list[ShapeChange]]:
        """A table has another name, under which rows of this shape come: their schema, and what
        readers learn of; also those of a table that had the new name before, if any ``read`` it.

        Raises:
            ChangefeedError: see :meth:`resolve`.
        """
        new = self.name(shape.database, shape.table)
        noted, was = self._take_notes(old, new), self.seen(old)
        schema, change = self.resolve(shape, was)
        before = self._under(old, was, schema)
        rewritten = bool(noted.why) or _unexplained(before, schema, noted)
        moved = ShapeChange(before, schema, rewritten, moved=noted.moved, why=noted.why)
        return schema, [moved] if change is None or not read else [change, moved]

    def _take_notes(self, old: TableName, new: TableName) -> _StatementNotes:
        noted = self._noted.pop(old, _StatementNotes())
        # Readers of the old name know what was announced to them; the new name has none yet.
        found = _StatementNotes(noted.touched, noted.announced)
        found.add(self._noted.pop(new, _StatementNotes()))
        return found

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
            self._noted.pop(name, None)
            return new, None if new is known else ShapeChange(known, new, rewritten=False)
        described = self._describe(name)
        if described is None and (problem := self._problem(name)) is not None:
            raise problem
        if described is not None and self.fits(shape, described):
            new = self._intern(self._logged(described))
        else:
            new = self._intern(self._logged(self._made(shape, known or like or described)))
        self._known[name] = new
        noted = self._noted.pop(name, _StatementNotes())
        if known is None or known.fingerprint() == new.fingerprint():
            return new, None
        return new, ShapeChange(known, new, _unexplained(known, new, noted))

    def fits(self, shape: TableShape, schema: TableSchema) -> bool:
        """Rows of the shape can be read as rows of the schema."""
        if len(shape.columns) != len(schema.columns):
            return False
        for sent, column in zip(shape.columns, schema.columns, strict=True):
            if sent.name != column.name:
                return False
            if canonical(column.type_name) != self._canonical(sent):
                return False
        return not shape.key or (not schema.keyless and schema.key == shape.key)

    def _canonical(self, column: ColumnShape) -> str:
        return canonical(type_text(column, self.charsets))

    def _made(self, shape: TableShape, like: TableSchema | None) -> TableSchema:
        """A schema of what the binlog says; columns that are as in ``like`` stay as they are."""
        known = {} if like is None else {column.name: column for column in like.columns}
        columns = []
        for sent in shape.columns:
            column = known.get(sent.name or "")
            if column is None or canonical(column.type_name) != self._canonical(sent):
                column = self._column(sent)
            columns.append(column)
        places = {column.name: place for place, column in enumerate(columns)}
        key = shape.key
        if not key and like is not None and not like.keyless:
            # A unique index, which the map does not show.
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

    def _column(self, sent: ColumnShape) -> Column:
        text = type_text(sent, self.charsets)
        return column_of(ColumnInfo(sent.name or "", text, sent.nullable))


def _key(schema: TableSchema) -> list[str]:
    """Names of the key's columns, in lower case; none of a table without a key."""
    return [] if schema.keyless else [column.name.casefold() for column in schema.key_columns]


def _defined(definition: ColumnDefinition, there: Mapping[str, Column]) -> Column | None:
    """A column as a statement defines it, by the server's catalog if that still has it so; None:
    its type is none that is known."""
    text, nullable = definition.type, definition.nullable is not False
    made = column_of(ColumnInfo(definition.name, text, nullable))
    found, unknown = there.get(definition.name.casefold()), made.kind is Kind.OTHER
    if found is not None and (unknown or canonical(found.type_name) == canonical(text)):
        return replace(found, name=definition.name)
    return None if unknown else made


def _sentence(done: Effect) -> str:
    """Why a table has to be read again, for users; empty if it has not."""
    if not done.why:
        return ""
    if done.moved:
        return f"ALTER TABLE .. {done.why}: rows came or went without row events"
    return f"ALTER TABLE .. {done.why}: stored rows may have other values now"


def _unexplained(old: TableSchema, new: TableSchema, noted: _StatementNotes) -> bool:
    """Rows that are there may read differently now, and no statement says why: the stream may have
    begun behind it, or it is not in the binlog."""
    if noted.announced:
        return False
    before = {column.name: column for column in old.columns}
    for column in new.columns:
        known = before.get(column.name)
        other = known is None or known.logical != column.logical
        if other and column.name.casefold() not in noted.touched:
            return True
    return False

"""One target table: what Delta and Iceberg have in common, in SQL.

A table is a name in a session of Spark's. What it has recorded of the feed (the version up to
which it is complete) stands in its own commits, so it moves together with the rows.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from changefeed.core.clock import Timestamp
from changefeed.core.events import SchemaChange
from changefeed.core.schema import TableSchema
from changefeed.core.spark_sql import literal, quoted
from changefeed.options import TABLE_PROPERTIES, History
from changefeed.spark.internals.sessions import with_settings
from sinks.lake.place import HADOOP, LakePlace
from sinks.lake.shape import cannot, fit, wanted
from sinks.merged.applied import AppliedVersion
from sinks.merged.policy import TablePolicy
from sinks.ownership import Owner

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: What a commit says: the place and the timestamp it makes the table complete to.
APPLIED, RESOLVED, FEED = "changefeed.applied", "changefeed.resolved", "changefeed.feed"
#: Properties of a table: the source table it was made for, and the feed that keeps it.
SOURCE, OWNER, OWNER_FEED = "changefeed.source", "changefeed.owner", "changefeed.feed"
#: Property of a table: the place of the last change of shape it followed.
SHAPE = "changefeed.shape"
#: Property of a table that keeps all changes: the version of its last whole scan.
SCANNED = "changefeed.scanned"


@dataclass(frozen=True, slots=True)
class RoundRows:
    """The whole rows of a round.

    Attributes:
        frame: ``_op``, ``_v`` and typed ``c0..cn``, each key once.
        schema: of the rows.
        count: how many.
        key_bytes: size of their keys.
        bounds: by staged key column the smallest and the largest key, where they are known.
    """

    frame: DataFrame
    schema: TableSchema
    count: int
    key_bytes: int
    bounds: Mapping[str, tuple[object, object]]


class LakeTable(ABC):
    """A table of one format at one place.

    Args:
        session: a session of this sink's own.
        place: where its tables are.
        name: the table's, as a file name.
        policy: its columns that are ours.
        options: of the feed.
    """

    format: ClassVar[str]

    def __init__(
        self,
        session: SparkSession,
        place: LakePlace,
        name: str,
        policy: TablePolicy,
        options: Mapping[str, object],
    ) -> None:
        self.session = session
        self.place = place
        self.name = name
        self.policy = policy
        self.options = options

    @property
    def given_properties(self) -> Mapping[str, str]:
        """Properties that the feed asks for in a new table."""
        given = self.options.get(TABLE_PROPERTIES.name) or {}
        assert isinstance(given, Mapping)
        return given

    # -- the parts that differ --------------------------------------------------------------

    @property
    @abstractmethod
    def ident(self) -> str:
        """The table in SQL."""

    @abstractmethod
    def exists(self) -> bool:
        """There is such a table."""

    @abstractmethod
    def applied(self) -> AppliedVersion:
        """Up to where every change is in it, as it recorded itself."""

    @abstractmethod
    def setting(self, name: str) -> str | None:
        """A property of the table."""

    @abstractmethod
    def empty(self) -> bool:
        """It holds no row; known without reading any."""

    @abstractmethod
    def create(self, columns: Mapping[str, str], properties: Mapping[str, str]) -> None:
        """Make it."""

    @abstractmethod
    def replace(self, query: str) -> None:
        """Put the rows of a query in place of all there are."""

    @abstractmethod
    def noted(self, notes: Mapping[str, str], applied: AppliedVersion | None) -> dict[str, str]:
        """Session settings that put ``notes`` into the next commit, and ``applied``."""

    def upsert(self, rows: RoundRows) -> bool:
        """Bring whole rows in by a way quicker than MERGE, guarded the same; false: there is
        none for this table, and nothing was done."""
        return False

    @abstractmethod
    def append(self, rows: DataFrame) -> None:
        """Add rows whose columns have the table's names."""

    @abstractmethod
    def drop(self) -> None:
        """Remove it with its files."""

    @abstractmethod
    def optimize(self) -> None:
        """Join small files."""

    @abstractmethod
    def expire(self, older_than: float) -> None:
        """Let go of versions older than so many seconds, and of files only they need."""

    def floor(self) -> AppliedVersion:
        """Up to where nothing need come again: a shape is followed only after all transactions
        before it were committed."""
        return self.applied().latest(AppliedVersion(max(0, self.shape()[0] - 1)))

    def shape(self) -> tuple[int, int]:
        """Version and sequence number of the last change of shape it followed."""
        version, _, seq = (self.setting(SHAPE) or "0.0").partition(".")
        return int(version), int(seq)

    def marks(self) -> list[Owner]:
        """Whose it is; none where nobody said so."""
        return marks_of({name: self.setting(name) for name in (OWNER, OWNER_FEED)})

    def set_owner(self, owner: Owner) -> None:
        """Record whose it is from now on."""
        self.session.sql(f"ALTER TABLE {self.ident} SET {properties_sql(mark_of(owner))}")

    def delete_all(self) -> None:
        """All rows go."""
        self.run(f"DELETE FROM {self.ident}")

    def set_shape(self, version: int, seq: int) -> None:
        """Record that the table followed a change of shape."""
        self.session.sql(
            f"ALTER TABLE {self.ident} SET TBLPROPERTIES ({literal(SHAPE)} = '{version}.{seq}')"
        )

    def scanned(self) -> int:
        """Version of the last scan that was ended; 0 before there was one."""
        return int(self.setting(SCANNED) or 0)

    def set_scanned(self, version: int) -> None:
        """Record that a scan was ended."""
        self.session.sql(
            f"ALTER TABLE {self.ident} SET TBLPROPERTIES ({literal(SCANNED)} = '{version}')"
        )

    # -- shape ------------------------------------------------------------------------------

    def columns(self) -> dict[str, str]:
        """The columns it has."""
        return {
            field.name: field.dataType.simpleString()
            for field in self.session.table(self.ident).schema.fields
        }

    def ensure(self, schema: TableSchema, owner: Owner | None = None) -> bool:
        """Make the table, or add to it what is missing; true when it is new. ``owner`` is whose a
        new one is.

        Raises:
            ChangefeedError: CF5006, what is there cannot take these rows.
        """
        if self.policy.variants(schema) and self.session.version.startswith("3."):
            why = f"Spark {self.session.version} has no type VARIANT"
            raise cannot(schema, why, "leave json_type out, or use Spark 4.")
        if not self.exists():
            columns = wanted(schema, self.policy, self.format)
            properties = {SOURCE: str(schema.table)} if owner is None else mark_of(owner)
            try:
                self.create(columns, properties)
            except Exception as failure:
                if not self._properties_refused(failure):
                    raise
                said = str(failure).strip().partition("\n")[0][:300]
                raise cannot(
                    schema,
                    f"the table cannot be made with its table_properties: {said}",
                    "DROP the feed and CREATE it with properties that the format knows.",
                ) from failure
            return True
        found = fit(schema, self.policy, self.format, self.columns())
        if found.problems:
            raise found.problems[0]
        for name, kind in found.wider.items():
            self._widen(schema, name, kind)
        if found.missing:
            self._add(found.missing)
        return False

    def evolve(self, event: SchemaChange) -> None:
        """Follow a change of shape: columns keep their values through a new name.

        A dropped column stays, with nulls in new rows; where a new one takes its name it is
        put aside.

        Raises:
            ChangefeedError: CF5006, the change cannot be followed.
        """
        new = event.new
        if self.policy.history is not History.APPEND and not event.same_key:
            raise cannot(
                new,
                "its key is another one now",
                "DROP the feed, move the target away and CREATE the feed again.",
            )
        if not self.exists():
            return
        pairs = [(event.was(column), column.name) for column in new.columns]
        live = {was.name.lower() for was, _ in pairs if was is not None}
        moves = [(was.name, name) for was, name in pairs if was is not None and was.name != name]
        for was, name in pairs:
            if (was is None or was.name != name) and name.lower() not in live:
                self._put_aside(name)
        # Through names of nobody's, as two columns may have changed names with each other.
        for name, to in moves:
            self._rename(name, f"_{to}_renamed")
        for _, to in moves:
            self._rename(f"_{to}_renamed", to)
        self.ensure(new)

    def _rename(self, name: str, to: str) -> None:
        if name.lower() in {column.lower() for column in self.columns()}:
            self.session.sql(
                f"ALTER TABLE {self.ident} RENAME COLUMN {quoted(name)} TO {quoted(to)}"
            )

    def _put_aside(self, name: str) -> None:
        present = {column.lower() for column in self.columns()}
        number = 1
        while f"_{name}_dropped{number}".lower() in present:
            number += 1
        self._rename(name, f"_{name}_dropped{number}")

    def _add(self, columns: Mapping[str, str]) -> None:
        listed = ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())
        self.session.sql(f"ALTER TABLE {self.ident} ADD COLUMNS ({listed})")

    def _properties_refused(self, failure: Exception) -> bool:
        """Whether a table was not made because of what the feed asks for."""
        from pyspark.errors import AnalysisException, IllegalArgumentException

        refused = isinstance(failure, AnalysisException | IllegalArgumentException)
        return refused and bool(self.given_properties)

    def _widen(self, schema: TableSchema, name: str, kind: str) -> None:
        """Let a column of the table have a wider type.

        Raises:
            ChangefeedError: CF5006, this version of the format cannot do that.
        """
        self.session.sql(f"ALTER TABLE {self.ident} ALTER COLUMN {quoted(name)} TYPE {kind}")

    # -- rows -------------------------------------------------------------------------------

    @contextmanager
    def commit_notes(
        self, feed: str, upto: Timestamp | None = None, applied: AppliedVersion | None = None
    ) -> Iterator[None]:
        """What a commit inside the block says of itself. One statement a block: Delta takes a
        second one of the same ``applied`` for a repetition and does nothing.

        Args:
            feed: who wrote.
            upto: the timestamp of the feed whose state the table has with this commit.
            applied: changes up to there need not come again (a scan says nothing of changes).
        """
        notes = notes_of(feed, upto, applied)
        with self.set_for_now(self.noted(notes, applied)):
            yield

    @contextmanager
    def set_for_now(self, settings: Mapping[str, str]) -> Iterator[None]:
        """Settings that the session has inside the block."""
        with_settings(self.session, settings)
        try:
            yield
        finally:
            for name in settings:
                self.session.conf.unset(name)

    def run(self, statement: str, rows: int = 0, *, by_key: bool = False) -> None:
        """Run a statement that writes about so many rows, 0: of no matter how many. ``by_key``: it
        finds the table's rows by the keys of these.
        """
        self.session.sql(statement).collect()

    def layout_columns(self, option: object, columns: Mapping[str, str]) -> list[str]:
        """The parts of ``partition_by`` or ``cluster_by`` when the table has all their columns."""
        parts = split_columns(str(option)) if option else []
        names = {name.lower(): name for name in columns}
        return parts if all(column_of(part).lower() in names for part in parts) else []


def notes_of(
    feed: str, upto: Timestamp | None = None, applied: AppliedVersion | None = None
) -> dict[str, str]:
    """What a commit says of itself (:meth:`LakeTable.commit_notes`)."""
    notes = {FEED: feed}
    if upto is not None:
        notes[RESOLVED] = str(upto)
    if applied is not None:
        notes[APPLIED] = str(applied)
    return notes


def mark_of(owner: Owner) -> dict[str, str]:
    """The properties that say whose a table is.

    What is read again is in hexadecimal: SHOW TBLPROPERTIES hides a value that has one of the words
    of ``spark.redaction.regex`` in it, as the name of a table ``api_tokens`` has.
    """
    return {SOURCE: owner.table, OWNER: _hex(owner.text), OWNER_FEED: _hex(owner.feed)}


def marks_of(properties: Mapping[str, str | None]) -> list[Owner]:
    """The inverse of :func:`mark_of`, and of what earlier versions wrote: both as they are."""
    text, feed = properties.get(OWNER), properties.get(OWNER_FEED) or ""
    if not text:
        return []
    try:
        return [Owner.parse(_unhex(text), _unhex(feed))]
    except ValueError:
        return [Owner.parse(text, feed)]


def _hex(text: str) -> str:
    return text.encode().hex()


def _unhex(text: str) -> str:
    return bytes.fromhex(text).decode()


def split_columns(text: str) -> list[str]:
    """``day(created_at), region`` -> its parts: commas inside parentheses separate nothing."""
    parts, depth, current = [], 0, ""
    for char in text:
        depth += (char == "(") - (char == ")")
        if char == "," and not depth:
            parts.append(current.strip())
            current = ""
        else:
            current += char
    parts.append(current.strip())
    return [part for part in parts if part]


def column_of(part: str) -> str:
    """The column of a plain name or of a transform such as ``bucket(16, id)``."""
    inside = part.partition("(")[2].rpartition(")")[0]
    return (inside.rpartition(",")[2] if inside else part).strip().strip("`")


def properties_sql(properties: Mapping[str, str]) -> str:
    """A TBLPROPERTIES list."""
    listed = (f"{literal(name)} = {literal(value)}" for name, value in properties.items())
    return f"TBLPROPERTIES ({', '.join(listed)})"


def columns_sql(columns: Mapping[str, str]) -> str:
    """A column list."""
    return ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())


def as_json(notes: Mapping[str, str]) -> str:
    """Notes as one text."""
    return json.dumps(dict(notes), sort_keys=True)


def parts_sql(parts: Sequence[str]) -> str:
    """Columns and transforms as SQL; a plain name is quoted."""
    return ", ".join(part if "(" in part else quoted(part.strip("`")) for part in parts)


def reach(session: SparkSession, place: LakePlace) -> None:
    """Ask the NameNode of an HDFS for a file that is not there; nothing on any other filesystem.

    A failure is raised as Spark's. Delta would pass over it, and look for a table in each directory
    above, each time as long as the client waits.
    """
    from pyspark.errors import AnalysisException

    if not place.root.lower().startswith("hdfs:"):
        return
    reader = session.read
    for name, value in place.settings:
        inner = name.removeprefix("hadoop.")
        if inner.startswith(HADOOP):
            reader = reader.option(inner, value)
    try:
        reader.text(f"{place.root}/_changefeed_reached")
    except AnalysisException as failure:
        if failure.getCondition() != "PATH_NOT_FOUND":
            raise

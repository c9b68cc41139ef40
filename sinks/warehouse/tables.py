"""One target table: its names in the warehouse, its columns, and how it is kept."""

from __future__ import annotations

from dataclasses import dataclass

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableSchema
from changefeed.core.types import Kind
from changefeed.options import History
from sinks.merged.applied import AppliedVersion
from sinks.merged.policy import Removal, TablePolicy
from sinks.warehouse.applied import AppliedRow
from sinks.warehouse.dialect import Dialect, Warehouse
from sinks.warehouse.staging import BATCH, META, SEQUENCE, TargetShape

#: Names that statements use inside.
_INSIDE = frozenset({"_rank", "_next", "_one", "_change", "_row", "_copies"})


@dataclass(frozen=True)
class TargetTable:
    """A target table of one feed and all that belongs to it.

    ``view`` is what readers ask where ``name`` holds more than the rows that are; else empty.
    ``side`` is empty where sequence numbers are always in the rows.
    """

    d: Dialect
    topic: str
    name: str
    staging: str
    side: str
    scan: str
    policy: TablePolicy
    applied: AppliedRow
    view: str = ""

    @property
    def source(self) -> str:
        """The source table, ``source.schema.table``."""
        return self.applied.name

    @classmethod
    def of(
        cls, warehouse: Warehouse, topic: str, policy: TablePolicy, applied: AppliedRow
    ) -> TargetTable:
        """The table of a topic."""
        return cls(
            d=warehouse.dialect,
            topic=topic,
            name=warehouse.name(topic),
            staging=warehouse.name(staging_name(topic)),
            side=warehouse.name(side_name(topic)),
            scan=warehouse.name(scan_name(topic)),
            policy=policy,
            applied=applied,
        )

    def columns(self, schema: TableSchema) -> dict[str, str]:
        """Columns of the target and their SQL types."""
        d, keyed = self.d, not schema.keyless
        found = {
            c.name: d.rule(c, key=keyed and i in schema.key).sql
            for i, c in enumerate(schema.columns)
        }
        return found | self.extra()

    def extra(self) -> dict[str, str]:
        """Columns that we add to the source's."""
        d = self.d
        types = {
            Kind.INT64: d.staging_types["int64"],
            Kind.TEXT: d.staging_types["string"],
            Kind.BOOL: d.staging_types["bool"],
            Kind.TIMESTAMPTZ: d.types[Kind.TIMESTAMPTZ].sql,
        }
        return {name: types[kind] for name, kind in self.policy.own_columns().items()}

    @property
    def sequence(self) -> str:
        """The target's column of the sequence number; history always has one."""
        return self.policy.sequence or SEQUENCE

    def declared_key(self, schema: TableSchema) -> tuple[str, ...]:
        """Columns that identify a row of the target; none where it keeps several of a key."""
        if schema.keyless or self.policy.history is not History.OFF:
            return ()
        return tuple(c.name for c in schema.key_columns)

    def has_side(self, schema: TableSchema) -> bool:
        """A side table keeps the sequence number of each row."""
        return bool(self.side) and not self.policy.sequence and not schema.keyless

    def side_columns(self, schema: TableSchema) -> dict[str, str]:
        """Columns of the side table: the key and the number."""
        found = {c.name: self.d.rule(c, key=True).sql for c in schema.key_columns}
        return found | {SEQUENCE: self.d.staging_types["int64"]}

    def check(self, schema: TableSchema) -> None:
        """The table can be kept as the options say.

        Raises:
            ChangefeedError: CF5006, a name is taken by us, or the options need a key.
        """
        names = [c.name for c in schema.columns]
        ours = {*META, *self.extra(), *_INSIDE}
        taken = [n for n in names if n in ours or n.startswith("_keep_")]
        if taken:
            raise self.refused(schema, f"the column name {taken[0]} is used by the sink itself")
        cut: dict[str, str] = {}
        for name in names:
            other = cut.setdefault(self.d.kept_of(name), name)
            if other != name:
                raise self.refused(
                    schema,
                    f"columns {other} and {name} are alike in their first {self.d.max_name} bytes, "
                    f"and {self.d.name} keeps no more of a name",
                    hint="leave one of them out with a column list, or rename it at the source.",
                )
        folded = [n.casefold() for n in names]
        if self.d.folds_case and len(set(folded)) != len(folded):
            raise self.refused(schema, f"two columns differ only in case, {self.d.name} folds it")
        keyed = self.declared_key(schema) or self.has_side(schema)
        if why := self.d.unfit_key(schema.key_columns) if keyed else "":
            raise self.refused(schema, why, hint=OTHER_KEY)
        if schema.keyless and not self.d.counts and self.policy.removal is not Removal.RECORD:
            raise self.refused(schema, f"{self.d.name} needs a table with a key")
        self.policy.require_key(schema)

    def refused(self, schema: TableSchema, why: str, hint: str = "") -> ChangefeedError:
        """The table cannot be kept."""
        return ChangefeedError(
            Code.SINK_CANNOT_TAKE_TABLE,
            f"{schema.table}: {why}",
            detail=f"target {self.topic}",
            hint=hint,
            target=self.topic,
        )


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Rows of one table in its staging table, not applied yet.

    Attributes:
        batch: their ``_batch_id``.
        staging: the finished name of the staging table.
        rows: how many.
        scan: they are of a scan.
        missing: places of columns that the source did not send in some row.
        top: the last change.
    """

    shape: TargetShape
    batch: int
    staging: str
    rows: int
    scan: bool
    missing: frozenset[int]
    top: AppliedVersion

    def where(self, d: Dialect, alias: str = "staged") -> str:
        """SQL: the row is of this batch."""
        return f"{alias}.{d.quote(BATCH)} = {self.batch}"


#: What to do about a key that a target does not hold.
OTHER_KEY = (
    "give the table a shorter key at the source (REPLICA IDENTITY USING INDEX in PostgreSQL), keep "
    "its changes with history = 'append', which has no key, or choose another kind of target."
)


def staging_name(topic: str) -> str:
    """Of a target's staging table."""
    return f"_staging_{topic}"


def side_name(topic: str) -> str:
    """Of the table that keeps the sequence numbers of a target that has no column for them."""
    return f"_sequence_{topic}"


def scan_name(topic: str) -> str:
    """Of the table that gathers the scan of a target without a key."""
    return f"_scan_{topic}"

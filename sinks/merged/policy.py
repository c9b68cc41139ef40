"""The options of merged tables: how a feed wants its tables kept. Read here for every target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from changefeed.core.clock import SYSTEM_CLOCK
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableSchema
from changefeed.core.types import Kind, LogicalType
from changefeed.options import (
    DELETES,
    HISTORY,
    JSON_TYPE,
    NUMERIC_TYPE,
    ON_DROP,
    SEQUENCE_COLUMN,
    Deletes,
    ExistingTarget,
    History,
    JsonType,
    OnDrop,
)
from sinks.merged.history import (
    COMMITTED_AT,
    IS_CURRENT,
    OPERATION,
    ORDER,
    VALID_FROM,
    VALID_TO,
)
from sinks.ownership import NOT_OURS, policy_of

#: The column of a row's version, unless ``sequence_column`` names another one.
SEQUENCE = "_sequence_num"
#: The column that marks a row as deleted, unless the target uses this name for something else.
DELETED = "_deleted"


class MergeMode(StrEnum):
    """How changes are applied to a table."""

    APPEND = "append"
    """Each change is a row."""
    VERSIONS = "versions"
    """Each change ends the current version of its key and, unless it is a delete, begins one."""
    COUNT = "count"
    """There is no key: the sum of the changes says how many equal rows to add or remove."""
    MERGE = "merge"
    """Each key has one row, which the last change of the key writes or removes."""


class Removal(StrEnum):
    """What happens to rows of a table that the source no longer has."""

    RECORD = "record"
    """Nothing: another row says what happened."""
    END = "end"
    """Their version ends."""
    MARK = "mark"
    """They are marked as deleted."""
    DELETE = "delete"
    """They are removed."""


class ScanEnd(StrEnum):
    """What the end of a scan removes from a target."""

    NOTHING = "nothing"
    """Rows that the scan did not find stay."""
    OLDER = "older"
    """Rows of an older version, which no longer exist at the source (:class:`Removal`)."""
    REPLACED = "replaced"
    """All rows that are not of the scan: a row that it found cannot be told from an older one."""


@dataclass(frozen=True, slots=True)
class TablePolicy:
    """How a feed wants its tables kept.

    Attributes:
        sequence: name of the target's column with the row's version; empty: there is none.
        soft: a deleted row stays, marked in the column ``deleted``.
        history: old versions stay, too.
        deleted: name of the column that marks deleted rows.
        drop: if a table is dropped at the source, its target is dropped, too.
        existing: what happens to a target that has rows of others than the feed.
        retains: the feed delivers no deletes, so rows that a scan does not find stay.
        variant: JSON is VARIANT in a table that has the choice.
        numbers: the decimal that such a table has for numbers without declared digits, or with too
            many of them; None: they are texts.
    """

    sequence: str = SEQUENCE
    soft: bool = False
    history: History = History.OFF
    deleted: str = DELETED
    drop: bool = False
    existing: ExistingTarget = ExistingTarget.REFUSE
    retains: bool = False
    variant: bool = False
    numbers: LogicalType | None = None

    @classmethod
    def read(cls, options: Mapping[str, object], *, deleted: str = DELETED) -> TablePolicy:
        """The policy that the options of a feed describe.

        Args:
            options: by name, typed or as texts.
            deleted: the target's name of the column that marks a row as deleted.
        """
        deletes, numbers = options.get(DELETES.name), options.get(NUMERIC_TYPE.name)
        sequence = str(options.get(SEQUENCE_COLUMN.name) or SEQUENCE_COLUMN.default)
        return cls(
            sequence="" if sequence == "none" else sequence,
            soft=deletes == Deletes.SOFT,
            history=History(str(options.get(HISTORY.name) or History.OFF)),
            deleted=deleted,
            drop=options.get(ON_DROP.name) == OnDrop.DROP,
            existing=policy_of(options),
            retains=deletes == Deletes.NO,
            variant=options.get(JSON_TYPE.name) == JsonType.VARIANT,
            numbers=NUMERIC_TYPE.type.read(NUMERIC_TYPE.name, str(numbers), SYSTEM_CLOCK)
            if numbers
            else None,
        )

    @property
    def shared(self) -> bool:
        """Whether the target may hold rows of others than the feed; those have no version."""
        return self.existing is ExistingTarget.MERGE

    @property
    def removal(self) -> Removal:
        """What happens to rows that the source no longer has."""
        if self.history is History.APPEND:
            return Removal.RECORD
        if self.history is History.SCD2:
            return Removal.END
        return Removal.MARK if self.soft else Removal.DELETE

    def mode(self, schema: TableSchema) -> MergeMode:
        """How changes of a table are applied to its target."""
        if self.history is History.APPEND:
            return MergeMode.APPEND
        if self.history is History.SCD2:
            return MergeMode.VERSIONS
        return MergeMode.COUNT if schema.keyless else MergeMode.MERGE

    def variants(self, schema: TableSchema) -> frozenset[int]:
        """Places of the columns that are VARIANT: values of that type cannot be compared, as those
        of a key and of a table without one are."""
        if not self.variant or self.mode(schema) is MergeMode.COUNT:
            return frozenset()
        json = {i for i, column in enumerate(schema.columns) if column.kind is Kind.JSON}
        return frozenset(json.difference(schema.key))

    def scan_end(self, schema: TableSchema) -> ScanEnd:
        """What the end of a scan removes from the target of a table."""
        if self.mode(schema) is MergeMode.COUNT:
            return ScanEnd.REPLACED
        kept = self.retains or self.removal is Removal.RECORD
        return ScanEnd.NOTHING if kept else ScanEnd.OLDER

    @property
    def needs_key(self) -> bool:
        """Whether the policy needs a table with a key, because it must find rows again."""
        return self.removal in (Removal.END, Removal.MARK)

    def require_key(self, schema: TableSchema) -> None:
        """Check that a table has a key if the policy needs one.

        Raises:
            ChangefeedError: CF5006, it has none.
        """
        if not (schema.keyless and self.needs_key):
            return
        option = "deletes = 'soft'" if self.soft else "history = 'scd2'"
        raise ChangefeedError(
            Code.SINK_CANNOT_TAKE_TABLE,
            f"{schema.table}: {option} needs a table with a key",
            detail="without a key a row cannot be found again to mark or end it",
            hint="add a primary key at the source, leave out deletes = 'soft' and "
            "history = 'scd2', or keep every change with history = 'append'.",
        )

    def require_shareable(self, schema: TableSchema, what: str) -> None:
        """Check that rows of the feed can be told from other rows in the same target.

        Args:
            what: the target, for the message.

        Raises:
            ChangefeedError: CF5008, they cannot.
        """
        if self.mode(schema) is MergeMode.COUNT:
            raise ChangefeedError(
                NOT_OURS,
                f"{schema.table}: existing_target = 'merge' needs a key, to distinguish its rows "
                f"from those of {what}",
                hint="give the table a primary key, or choose another target with FOR table AS "
                "name.",
            )

    def own_columns(self) -> dict[str, Kind]:
        """Columns that are added to the source's, and the kinds of their values."""
        version = self.sequence or ("" if self.history is History.OFF else SEQUENCE)
        found = {version: Kind.INT64} if version else {}
        if self.history is History.APPEND:
            return found | {OPERATION: Kind.TEXT, ORDER: Kind.INT64, COMMITTED_AT: Kind.TIMESTAMPTZ}
        if self.history is History.SCD2:
            found |= {
                VALID_FROM: Kind.TIMESTAMPTZ,
                VALID_TO: Kind.TIMESTAMPTZ,
                IS_CURRENT: Kind.BOOL,
            }
        return found | ({self.deleted: Kind.BOOL} if self.soft else {})

    def require_comparable(self, schema: TableSchema) -> None:
        """Check that the target has the present rows of the table.

        Raises:
            ChangefeedError: CF1303, it does not have them.
        """
        if self.history is History.APPEND:
            raise ChangefeedError(
                Code.NOT_SUPPORTED,
                f"{schema.table}: a target with history = 'append' cannot be verified",
                detail="it has every change, but not the present state of a row",
            )

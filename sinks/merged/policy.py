"""How a feed wants its tables kept: the options of merged tables, read once for every target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableSchema
from changefeed.options import (
    DELETES,
    HISTORY,
    ON_DROP,
    SEQUENCE_COLUMN,
    Deletes,
    ExistingTarget,
    History,
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
#: The column that marks a row as deleted, where the target has no use of its own for the name.
DELETED = "_deleted"


class MergeMode(StrEnum):
    """How changes become part of a table."""

    APPEND = "append"
    """Each change is a row."""
    VERSIONS = "versions"
    """Each change ends the current version of its key and, unless it is a delete, begins one."""
    COUNT = "count"
    """There is no key: as many equal rows come or go as the changes say in sum."""
    MERGE = "merge"
    """Each key has one row, which its last change writes or removes."""


class Removal(StrEnum):
    """What happens to rows of a table that the source has no more."""

    RECORD = "record"
    """Nothing: another row says what happened."""
    END = "end"
    """Their version ends."""
    MARK = "mark"
    """They are marked as deleted."""
    DELETE = "delete"
    """They go."""


class ScanEnd(StrEnum):
    """What the end of a scan removes from a target."""

    NOTHING = "nothing"
    """Rows that the scan did not find stay."""
    OLDER = "older"
    """Rows of an older version no longer exist at the source (:class:`Removal`)."""
    REPLACED = "replaced"
    """All rows that are not the scan's: nothing tells one that it found from one of before."""


@dataclass(frozen=True, slots=True)
class TablePolicy:
    """How a feed wants its tables kept.

    Attributes:
        sequence: name of the target's column of the row's version; empty: it has none.
        soft: a deleted row stays, marked in the column ``deleted``.
        history: old versions stay too.
        deleted: name of that column.
        drop: a table dropped at the source is dropped.
        existing: what becomes of a target that holds rows which are not the feed's.
        retains: the feed delivers no deletes, so rows that a scan does not find stay.
    """

    sequence: str = SEQUENCE
    soft: bool = False
    history: History = History.OFF
    deleted: str = DELETED
    drop: bool = False
    existing: ExistingTarget = ExistingTarget.REFUSE
    retains: bool = False

    @classmethod
    def read(cls, options: Mapping[str, object], *, deleted: str = DELETED) -> TablePolicy:
        """What the options of a feed say.

        Args:
            options: by name, typed or as texts.
            deleted: how the target calls the column that marks a row as deleted.
        """
        deletes = options.get(DELETES.name)
        sequence = str(options.get(SEQUENCE_COLUMN.name) or SEQUENCE_COLUMN.default)
        return cls(
            sequence="" if sequence == "none" else sequence,
            soft=deletes == Deletes.SOFT,
            history=History(str(options.get(HISTORY.name) or History.OFF)),
            deleted=deleted,
            drop=options.get(ON_DROP.name) == OnDrop.DROP,
            existing=policy_of(options),
            retains=deletes == Deletes.NO,
        )

    @property
    def shared(self) -> bool:
        """The target may hold rows that are not the feed's; they have no version."""
        return self.existing is ExistingTarget.MERGE

    @property
    def removal(self) -> Removal:
        """What happens to rows that the source has no more."""
        if self.history is History.APPEND:
            return Removal.RECORD
        if self.history is History.SCD2:
            return Removal.END
        return Removal.MARK if self.soft else Removal.DELETE

    def mode(self, schema: TableSchema) -> MergeMode:
        """How changes of a table become part of its target."""
        if self.history is History.APPEND:
            return MergeMode.APPEND
        if self.history is History.SCD2:
            return MergeMode.VERSIONS
        return MergeMode.COUNT if schema.keyless else MergeMode.MERGE

    def scan_end(self, schema: TableSchema) -> ScanEnd:
        """What the end of a scan removes from the target of a table."""
        if self.mode(schema) is MergeMode.COUNT:
            return ScanEnd.REPLACED
        kept = self.retains or self.removal is Removal.RECORD
        return ScanEnd.NOTHING if kept else ScanEnd.OLDER

    @property
    def needs_key(self) -> bool:
        """Only a table with a key can be kept so: a row has to be found again."""
        return self.removal in (Removal.END, Removal.MARK)

    def require_key(self, schema: TableSchema) -> None:
        """A table without a key can be kept so.

        Raises:
            ChangefeedError: CF5006, it cannot.
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
        """Rows of the feed can be told from others in one target.

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

    def own_columns(self) -> dict[str, str]:
        """Columns that are added to the source's, and their logical types."""
        version = self.sequence or ("" if self.history is History.OFF else SEQUENCE)
        found = {version: "int64"} if version else {}
        if self.history is History.APPEND:
            return found | {OPERATION: "text", ORDER: "int64", COMMITTED_AT: "timestamptz"}
        if self.history is History.SCD2:
            found |= {VALID_FROM: "timestamptz", VALID_TO: "timestamptz", IS_CURRENT: "bool"}
        return found | ({self.deleted: "bool"} if self.soft else {})

    def require_comparable(self, schema: TableSchema) -> None:
        """A target that is kept so has rows as they are now.

        Raises:
            ChangefeedError: CF1303, it has none.
        """
        if self.history is History.APPEND:
            raise ChangefeedError(
                Code.NOT_SUPPORTED,
                f"{schema.table}: a target with history = 'append' cannot be verified",
                detail="it has every change, but not the present state of a row",
            )

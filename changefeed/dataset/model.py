"""What a dataset is: its columns, its keys, and the folders that hold what is known of it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from changefeed.core.errors import ChangefeedError, Code

#: The schema that datasets are in, as tables of a source.
SCHEMA: Final = "datasets"
#: Columns that a comparison adds to the dataset's own.
OPERATION: Final = "OPERATION"
EFF_START_DATE: Final = "EFF_START_DATE"
#: The column of the history's partitions: a run's effective date.
EFF_DATE: Final = "EFF_DATE"
KEYHASH: Final = "keyhash"
NONKEYHASH: Final = "nonkeyhash"
#: What a metastore takes as a name.
_TABLE = re.compile(r"(?:spark_catalog\.)?(?:([A-Za-z0-9_]+)\.)?([A-Za-z0-9_]+)\Z")
#: Where rows are whole: the hash of the sensitive columns, which is the ``nonkeyhash`` of their own
#: output.
SENSITIVEHASH: Final = "_sensitivehash"
ADDED: Final = (OPERATION, EFF_START_DATE, KEYHASH, NONKEYHASH)


class Extract(StrEnum):
    """What an extract holds: every row of the object, or those that may have changed."""

    FULL = "full"
    DELTA = "delta"


class Hash(StrEnum):
    """How hashes are computed: 64 bits of xxHash, or MD5 as text."""

    XXHASH = "xxhash"
    MD5 = "md5"


class Operation(StrEnum):
    """What a comparison says of a row."""

    INSERT = "I"
    UPDATE = "U"
    DELETE = "D"
    NOT_SUPPLIED = "X"
    NO_CHANGE = "N"


#: Operations whose rows are in the current dataset after a run.
IN_CURRENT: Final = (
    Operation.INSERT,
    Operation.UPDATE,
    Operation.NOT_SUPPLIED,
    Operation.NO_CHANGE,
)
#: Net changes: operations whose rows are in the history partition of a run.
IN_HISTORY: Final = (Operation.INSERT, Operation.UPDATE, Operation.DELETE)


@dataclass(frozen=True, slots=True)
class DatasetColumn:
    """A column of the extract.

    Attributes:
        name: in the extract and in the output.
        type: a type of Spark SQL, to which values are cast.
        key: part of the key that rows are matched by.
        ignore: kept, but a difference in it is not a change.
        nullable: NULL is allowed. Key columns must say so expressly.
        sensitive: kept apart from the other columns.
    """

    name: str
    type: str
    key: bool = False
    ignore: bool = False
    nullable: bool = True
    sensitive: bool = False


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset and where it lives.

    Attributes:
        name: for people.
        columns: in the order of the extract.
        current: where the present state is read (a link to the newest version).
        history: the folder of the history partitions, one for each effective date.
        versions: the folder of the versions that ``current`` points into; same filesystem.
        extract: what an extract holds.
        hash: how hashes are computed.
        format: of the extract: a format that Spark reads; None: by its file names.
        delimiter: of CSV.
        header: the first line of each CSV file names the columns.
        current_table: the table of Spark's catalog that shows the current dataset,
            ``database.table``; None: none.
        history_table: the same for the history.
        sensitive: the folder that the sensitive columns are kept in, apart from the others, with a
            ``current``, a ``history`` and versions of its own; None where there are none.
        sensitive_table: as ``current_table``, of the sensitive columns.
        sensitive_history_table: as ``history_table``, of the sensitive columns.
    """

    name: str
    columns: tuple[DatasetColumn, ...]
    current: Path
    history: Path
    versions: Path
    extract: Extract = Extract.FULL
    hash: Hash = Hash.XXHASH
    format: str | None = None
    delimiter: str = ","
    header: bool = False
    current_table: str | None = None
    history_table: str | None = None
    sensitive: Path | None = None
    sensitive_table: str | None = None
    sensitive_history_table: str | None = None

    @property
    def keys(self) -> tuple[DatasetColumn, ...]:
        """The key columns, in order."""
        return tuple(column for column in self.columns if column.key)

    @property
    def open_columns(self) -> tuple[DatasetColumn, ...]:
        """The columns of the current dataset, the history and the changes of a feed."""
        return tuple(column for column in self.columns if not column.sensitive)

    @property
    def sensitive_columns(self) -> tuple[DatasetColumn, ...]:
        """The columns that are kept apart."""
        return tuple(column for column in self.columns if column.sensitive)

    @property
    def compared(self) -> tuple[DatasetColumn, ...]:
        """The open columns of which a difference is an update."""
        return _compared(self.open_columns)

    @property
    def compared_sensitive(self) -> tuple[DatasetColumn, ...]:
        """The sensitive columns of which a difference is an update."""
        return _compared(self.sensitive_columns)

    @property
    def sides(self) -> dict[str, bool]:
        """Whether each column, by its name in lower case, is kept apart as sensitive."""
        return {column.name.lower(): column.sensitive for column in self.columns}

    @property
    def hashes(self) -> tuple[str, ...]:
        """The columns of hashes that whole rows have."""
        both = (KEYHASH, NONKEYHASH)
        return (*both, SENSITIVEHASH) if self.sensitive_columns else both

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables of Spark's catalog that show its outputs."""
        given = (
            self.current_table,
            self.history_table,
            self.sensitive_table,
            self.sensitive_history_table,
        )
        return tuple(name for name in given if name is not None)

    @property
    def hashing(self) -> str:
        """Stands for everything that the kept hashes depend on."""
        parts = [
            [(c.name, c.type.lower()) for c in self.keys],
            [(c.name, c.type.lower()) for c in self.compared],
        ]
        if self.sensitive_columns:
            parts.append([(c.name, c.type.lower()) for c in self.compared_sensitive])
        # What an MD5 is made from changed: it had no microseconds.
        scheme = "md5-2" if self.hash is Hash.MD5 else self.hash.value
        text = json.dumps([scheme, *parts])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _compared(columns: tuple[DatasetColumn, ...]) -> tuple[DatasetColumn, ...]:
    return tuple(column for column in columns if not column.key and not column.ignore)


def check_columns(dataset: Dataset) -> None:
    """Refuse columns that cannot be compared.

    Raises:
        ChangefeedError: CF1204 no key, a name twice, a name that the output needs itself, or a
            sensitive key.
    """
    seen: set[str] = set()
    for column in dataset.columns:
        folded = column.name.lower()
        if folded in seen:
            raise ChangefeedError(Code.INVALID_OPTION_VALUE, f"column {column.name} appears twice")
        if folded in {name.lower() for name in ADDED}:
            raise ChangefeedError(
                Code.INVALID_OPTION_VALUE,
                f"column {column.name} has the name of a column that the comparison adds",
                hint=f"rename it in the extract; reserved: {', '.join(ADDED)}.",
            )
        if column.key and column.sensitive:
            raise ChangefeedError(
                Code.INVALID_OPTION_VALUE,
                f"key column {column.name} cannot be sensitive",
                hint="the sensitive columns are joined to the others by the key.",
            )
        seen.add(folded)
    if not dataset.keys:
        raise ChangefeedError(
            Code.INVALID_OPTION_VALUE,
            f"dataset {dataset.name} has no key column",
            hint="mark at least one column with key: true; rows are matched by their key.",
        )


def table_name(text: str) -> str:
    """The name of a table as ``database.table``; a name without a database is in ``default``.

    Raises:
        ValueError: it is not of that form.
    """
    match = _TABLE.match(text.strip().replace("`", ""))
    if match is None:
        raise ValueError("a table of Spark's session catalog: db.orders")
    return f"{match[1] or 'default'}.{match[2]}".lower()


def sensitive_folder(
    columns: Sequence[DatasetColumn], current: Path, given: Path | None
) -> Path | None:
    """Where sensitive columns are kept: beside the current dataset unless ``given``; None where no
    column is sensitive."""
    if not any(column.sensitive for column in columns):
        return None
    return given or current.with_name(current.name + "_sensitive")


def check_outputs(dataset: Dataset) -> None:
    """Refuse one folder or one table for two outputs, and a folder inside another one.

    Raises:
        ChangefeedError: CF1204.
    """
    for table in dataset.tables:
        if dataset.tables.count(table) > 1:
            raise ChangefeedError(
                Code.INVALID_OPTION_VALUE,
                f"table {table} cannot show two outputs of the dataset",
                hint="name another one.",
            )
    sensitive = dataset.sensitive
    if sensitive is None:
        if dataset.sensitive_table or dataset.sensitive_history_table:
            raise ChangefeedError(
                Code.INVALID_OPTION_VALUE,
                f"table {dataset.sensitive_table or dataset.sensitive_history_table} has nothing "
                "to show: the dataset has no sensitive columns",
                hint="name the columns that are sensitive.",
            )
        return
    for folder in (dataset.current, dataset.history, dataset.versions):
        if sensitive.is_relative_to(folder) or folder.is_relative_to(sensitive):
            raise ChangefeedError(
                Code.INVALID_OPTION_VALUE,
                f"the folder of the sensitive columns, {sensitive}, must be apart from {folder}",
                hint="name another one.",
            )


def described(dataset: Dataset) -> dict[str, object]:
    """The columns as JSON: what a version's manifest keeps."""
    return {"hashing": dataset.hashing, "columns": [asdict(c) for c in dataset.columns]}

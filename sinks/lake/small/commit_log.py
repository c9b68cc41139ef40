"""Reads and writes the log of one Delta table.

Format: Delta's protocol, *Delta Log Entries* and *Checkpoints*. A commit is a file whose name is
the next version. Writing it fails if another writer has made that version
(:meth:`.table_files.TableFiles.commit`): a commit succeeds only if nobody else has committed since
this log was last read.
"""

from __future__ import annotations

import json
import re
import struct
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sinks.lake.small.table_files import LOG, LogFile, TableFiles

_COMMIT = re.compile(r"(\d{20})\.json\Z")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet\Z")
_ANY_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\..+\Z")
_OF_VERSION = re.compile(r"\.?(\d{20})\..+\Z")
_LAST = "_last_checkpoint"
_SECONDS = re.compile(r"interval (\d+) (second|minute|hour|day|week)s?\Z", re.I)
_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
#: Delta's defaults of the two properties, in seconds.
_LOG_RETENTION, _FILE_RETENTION = 30 * 86400.0, 7 * 86400.0

#: Milliseconds between two looks for expired versions: the log of 30 days may have millions.
_CLEAN_EVERY = 3_600_000

Action = dict[str, Any]
#: What identifies a data file in a version of the table: its path and its deletion vector.
FileKey = tuple[str, str]

#: Properties of a column: its name and its number in data files.
PHYSICAL_NAME, COLUMN_ID = "delta.columnMapping.physicalName", "delta.columnMapping.id"


class UnknownLog(Exception):
    """This module cannot read the log: its form is newer, or it is damaged or too large."""


#: Errors of a log, a vector or a data file that is damaged or has an unknown form.
UNREADABLE = (UnknownLog, ValueError, LookupError, struct.error, pa.ArrowException)


class CommitLog:
    """The state of a table as of :attr:`version`.

    Attributes:
        version: the last version that was read.
        protocol, metadata: the table's actions of these names.
        files: the ``add`` action of each data file, by path.
        applications: the ``txn`` action of each application.
        domains: the ``domainMetadata`` action of each domain.
    """

    def __init__(self, place: TableFiles, most_files: int) -> None:
        """Read the log.

        Args:
            place: the table's files.
            most_files: the log of a table with more data files is too large.

        Raises:
            UnknownLog
            OSError: a file cannot be read.
        """
        self.place = place
        self._most = most_files
        self.protocol: Action = {}
        self.metadata: Action = {}
        self.files: dict[str, Action] = {}
        self.applications: dict[str, Action] = {}
        self.domains: dict[str, Action] = {}
        self._gone: dict[FileKey, Action] = {}
        self._next_clean = 0
        names = [its.name for its in place.logged(self._before_checkpoint())]
        commits = {int(found[1]) for name in names if (found := _COMMIT.match(name))}
        whole = {int(found[1]) for name in names if (found := _CHECKPOINT.match(name))}
        some = {int(found[1]) for name in names if (found := _ANY_CHECKPOINT.match(name))}
        self._checkpoint = max(some, default=-1)
        if self._checkpoint >= 0 and self._checkpoint not in whole:
            raise UnknownLog("the last checkpoint has several files")
        if self._checkpoint >= 0:
            self._read_checkpoint()
        elif 0 not in commits:
            raise UnknownLog("the log has no begin")
        self.version = self._checkpoint
        self.follow()
        if self.version < max(commits, default=0) or not (self.protocol and self.metadata):
            raise UnknownLog("the log has a gap")

    def follow(self) -> bool:
        """Read the commits of other writers; returns whether there are any.

        Raises:
            UnknownLog
            OSError: a file cannot be read.
        """
        before = self.version
        while True:
            path = commit_path(self.version + 1)
            try:
                content = self.place.read(path)
            except FileNotFoundError:
                break
            try:
                actions = [json.loads(line) for line in content.splitlines() if line]
            except ValueError as failure:
                raise UnknownLog(f"{path} is damaged") from failure
            self._take(actions)
            self.version += 1
            if len(self.files) > self._most:
                raise UnknownLog("the table has many files")
        return self.version > before

    def commit(self, actions: Sequence[Action]) -> bool:
        """Write the next version durably; false: another writer has made it.

        Raises:
            OSError: the place failed. :meth:`is_lost` finds out whether the version is there.
        """
        try:
            self.place.commit(commit_path(self.version + 1), as_lines(actions))
        except FileExistsError:
            return False
        self._take(actions)
        self.version += 1
        return True

    def is_lost(self, millis: int) -> bool:
        """Whether a commit that failed is not there, and cannot come any more: where a store may
        still be at it, a commit without an action takes its version.

        Args:
            millis: the time, since 1970.

        Raises:
            OSError: it is not known.
        """
        if not self.place.certain:
            fence = commit_info(
                self.version, millis, "MERGE", {}, {}, {"isolationLevel": "Serializable"}
            )
            if self.commit([fence]):
                return True
        return not self.follow()

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        return {name: str(value) for name, value in self.metadata.get("configuration", {}).items()}

    def setting(self, name: str) -> str | None:
        """A property of the table; None: it is not set."""
        return self.properties.get(name)

    @property
    def fields(self) -> list[dict[str, Any]]:
        """The table's columns, as Spark writes a schema in JSON."""
        found: list[dict[str, Any]] = json.loads(self.metadata["schemaString"])["fields"]
        return found

    @property
    def rows(self) -> int:
        """How many rows the statistics of its files say it has, gone ones included."""
        return sum(map(rows_of, self.files.values()))

    @property
    def since_checkpoint(self) -> int:
        """How many versions follow the last checkpoint."""
        return self.version - self._checkpoint

    def is_exclusive(self) -> bool:
        """Whether a second commit of one version is refused here. Some stores that speak S3's
        protocol pass over the condition.

        Raises:
            OSError: a file cannot be read.
        """
        return self.place.refuses(commit_path(self.version))

    def _before_checkpoint(self) -> str:
        """A name just before those of the version that ``_last_checkpoint`` names; empty without
        one. What comes before may be millions of files, a log of 30 days."""
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            return f"{int(json.loads(self.place.read(f'{LOG}/{_LAST}'))['version']):020d}."
        return ""

    def _take(self, actions: Iterable[Mapping[str, Any]]) -> None:
        for action in actions:
            for name, body in action.items():
                if name == "add":
                    self.files[body["path"]] = body
                    self._gone.pop(file_key(body), None)
                elif name == "remove":
                    known = self.files.get(body["path"])
                    # The new ``add`` of a file with another vector may come before this.
                    if known is not None and file_key(known) == file_key(body):
                        del self.files[body["path"]]
                    self._gone[file_key(body)] = body
                elif name == "txn":
                    self.applications[body["appId"]] = body
                elif name == "metaData":
                    self.metadata = body
                elif name == "protocol":
                    self.protocol = body
                elif name == "domainMetadata":
                    self.domains[body["domain"]] = body

    # -- checkpoints ------------------------------------------------------------------------

    def _read_checkpoint(self) -> None:
        with self.place.parquet(_checkpoint_path(self._checkpoint)) as file:
            names = file.schema_arrow.names
            if "sidecar" in names or "checkpointMetadata" in names:
                raise UnknownLog("the checkpoint has sidecars")
            wanted = ["add", "txn", "metaData", "protocol", "domainMetadata"]
            table = file.read(columns=[name for name in wanted if name in names])
        if table["add"].length() - table["add"].null_count > self._most:
            raise UnknownLog("the table has many files")
        for name in table.column_names:
            kept = table[name].combine_chunks().drop_null()
            if name == "add":
                kept = _without(kept, "stats_parsed", "partitionValues_parsed")
            self._take({name: _plain(row)} for row in kept.to_pylist())

    def checkpoint(self, millis: int) -> None:
        """Write a checkpoint of :attr:`version`. ``millis``: the time, since 1970.

        Raises:
            UnknownLog: the form of the last checkpoint is not known here.
            OSError: a file cannot be read or written.
        """
        keeps = _seconds_of(self.setting("delta.deletedFileRetentionDuration"), _FILE_RETENTION)
        oldest = 0 if keeps is None else millis - int(keeps * 1000)
        gone = [a for a in self._gone.values() if (a.get("deletionTimestamp") or 0) > oldest]
        domains = [a for a in self.domains.values() if not a.get("removed")]
        parts = {
            "protocol": [_rows([self.protocol], _PROTOCOL)],
            "metaData": [_rows([self.metadata], _METADATA)],
            "txn": [_rows(self.applications.values(), _TXN)],
            "domainMetadata": [_rows(domains, _DOMAIN)],
            "add": [_rows([a | {"dataChange": False} for a in self.files.values()], _ADD)],
            "remove": [*self._old_removes(oldest), _rows(gone, _REMOVE)],
        }
        table = pa.concat_tables(
            [pa.table({name: rows}) for name, some in parts.items() for rows in some],
            promote_options="default",
        )
        content = pa.BufferOutputStream()
        pq.write_table(table, content, compression="snappy")
        self.place.replace(_checkpoint_path(self.version), content.getvalue())
        note = {"version": self.version, "size": len(table)}
        self.place.replace(f"{LOG}/{_LAST}", json.dumps(note).encode())
        self._checkpoint = self.version
        self._gone.clear()
        if millis >= self._next_clean:
            self._next_clean = millis + _CLEAN_EVERY
            self._clean(millis / 1000)

    def _clean(self, now: float) -> None:
        """Remove the files of expired versions, up to an expired checkpoint: readers need that and
        what follows it for each version that stays."""
        keeps = _seconds_of(self.setting("delta.logRetentionDuration"), _LOG_RETENTION)
        if keeps is None or self.setting("delta.enableExpiredLogCleanup") == "false":
            return
        expired: list[LogFile] = []
        oldest = 0
        for its in self.place.logged():
            if (found := _OF_VERSION.match(its.name)) is None:
                continue
            if its.written < now - keeps:
                expired.append(its)
                oldest = int(found[1]) if its.name.endswith(".checkpoint.parquet") else oldest
            elif not its.name.startswith("."):  # Hadoop's checksums come before everything else
                break  # those that follow are younger
        first = f"{oldest:020d}"
        self.place.remove(f"{LOG}/{its.name}" for its in expired if its.name.lstrip(".") < first)

    def _old_removes(self, oldest: int) -> list[pa.Array]:
        """The ``remove`` actions of the last checkpoint that stay: younger than ``oldest``, and of
        files that did not come back."""
        if self._checkpoint < 0:
            return []
        with self.place.parquet(_checkpoint_path(self._checkpoint)) as file:
            if "remove" not in file.schema_arrow.names:
                return []
            column = file.read(columns=["remove"])["remove"].combine_chunks().drop_null()
        names = {field.name for field in column.type}
        if not {"path", "deletionTimestamp", "dataChange"} <= names:
            raise UnknownLog("the last checkpoint has other columns")
        made = [
            pc.struct_field(column, field.name).cast(field.type)
            if field.name in names
            else pa.nulls(len(column), field.type)
            for field in _REMOVE
        ]
        column = pa.StructArray.from_arrays(made, fields=list(_REMOVE))
        young = pc.greater(pc.fill_null(pc.struct_field(column, "deletionTimestamp"), 0), oldest)
        present = pa.array(["\0".join(file_key(a)) for a in self.files.values()], pa.string())
        return [column.filter(pc.and_not(young, pc.is_in(_file_keys(column), present)))]


def _seconds_of(interval: str | None, default: float) -> float | None:
    """The length of an interval in a property; None: its form is not known here."""
    if interval is None:
        return default
    found = _SECONDS.match(interval.strip())
    return float(found[1]) * _UNITS[found[2].lower()] if found else None


def commit_info(
    read: int,
    millis: int,
    operation: str,
    parameters: Mapping[str, str],
    metrics: Mapping[str, int],
    more: Action,
) -> Action:
    """The action that describes a commit; ``read`` is the version that it follows, -1: none."""
    version = {} if read < 0 else {"readVersion": read}
    return {
        "commitInfo": {
            "timestamp": millis,
            "operation": operation,
            "operationParameters": dict(parameters),
            **version,
            "isBlindAppend": False,
            "operationMetrics": {name: str(value) for name, value in metrics.items()},
            "engineInfo": "changefeed",
            "txnId": str(uuid.uuid4()),
            **more,
        }
    }


def as_lines(actions: Iterable[Action]) -> bytes:
    """The content of a commit's file."""
    return "".join(json.dumps(its, separators=(",", ":")) + "\n" for its in actions).encode()


def commit_path(version: int) -> str:
    """The file of a commit."""
    return f"{LOG}/{version:020d}.json"


def _checkpoint_path(version: int) -> str:
    return f"{LOG}/{version:020d}.checkpoint.parquet"


def rows_of(action: Action) -> int:
    """How many rows the statistics of a data file say it has."""
    found = json.loads(action.get("stats") or "{}").get("numRecords")
    return found if isinstance(found, int) else 0


def physical_name(field: Mapping[str, Any]) -> str:
    """The name of a column in data files and their statistics."""
    name: str = field.get("metadata", {}).get(PHYSICAL_NAME, field["name"])
    return name


def file_key(action: Mapping[str, Any]) -> FileKey:
    """What identifies the data file of an ``add`` or ``remove`` action."""
    vector = action.get("deletionVector")
    if not vector:
        return action["path"], ""
    place = f"{vector['storageType']}{vector['pathOrInlineDv']}"
    return action["path"], place if vector.get("offset") is None else f"{place}@{vector['offset']}"


def _file_keys(actions: pa.StructArray) -> pa.Array:
    """:func:`file_key` of each row, both parts in one text."""
    vectors = pc.struct_field(actions, "deletionVector")
    kind, place, offset = (pc.struct_field(vectors, n) for n in range(3))
    at = pc.coalesce(pc.binary_join_element_wise("@", offset.cast(pa.string()), ""), "")
    vector = pc.coalesce(pc.binary_join_element_wise(kind, place, at, ""), "")
    return pc.binary_join_element_wise(pc.struct_field(actions, "path"), vector, "\0")


_MAP = pa.map_(pa.string(), pa.string())
_LIST = pa.list_(pa.string())


def _struct(*fields: tuple[str, pa.DataType]) -> pa.StructType:
    return pa.struct([pa.field(name, kind) for name, kind in fields])


_VECTOR = _struct(
    ("storageType", pa.string()),
    ("pathOrInlineDv", pa.string()),
    ("offset", pa.int32()),
    ("sizeInBytes", pa.int32()),
    ("cardinality", pa.int64()),
)
_ADD = _struct(
    ("path", pa.string()),
    ("partitionValues", _MAP),
    ("size", pa.int64()),
    ("modificationTime", pa.int64()),
    ("dataChange", pa.bool_()),
    ("stats", pa.string()),
    ("tags", _MAP),
    ("deletionVector", _VECTOR),
    ("baseRowId", pa.int64()),
    ("defaultRowCommitVersion", pa.int64()),
    ("clusteringProvider", pa.string()),
)
_REMOVE = _struct(
    ("path", pa.string()),
    ("deletionTimestamp", pa.int64()),
    ("dataChange", pa.bool_()),
    ("extendedFileMetadata", pa.bool_()),
    ("partitionValues", _MAP),
    ("size", pa.int64()),
    ("deletionVector", _VECTOR),
    ("baseRowId", pa.int64()),
    ("defaultRowCommitVersion", pa.int64()),
)
_TXN = _struct(("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64()))
_DOMAIN = _struct(("domain", pa.string()), ("configuration", pa.string()), ("removed", pa.bool_()))
_PROTOCOL = _struct(
    ("minReaderVersion", pa.int32()),
    ("minWriterVersion", pa.int32()),
    ("readerFeatures", _LIST),
    ("writerFeatures", _LIST),
)
_METADATA = _struct(
    ("id", pa.string()),
    ("name", pa.string()),
    ("description", pa.string()),
    ("format", _struct(("provider", pa.string()), ("options", _MAP))),
    ("schemaString", pa.string()),
    ("partitionColumns", _LIST),
    ("configuration", _MAP),
    ("createdTime", pa.int64()),
)


def _rows(actions: Iterable[Action], kind: pa.StructType) -> pa.Array:
    return pa.array([_pairs(action, kind) for action in actions], kind)


def _pairs(value: Any, kind: pa.DataType) -> Any:
    """A value of the log's JSON for Arrow: maps become pairs, unknown fields are left out."""
    if value is None or not isinstance(kind, pa.StructType):
        return list(value.items()) if value is not None and pa.types.is_map(kind) else value
    return {field.name: _pairs(value.get(field.name), field.type) for field in kind}


def _plain(row: Mapping[str, Any]) -> Action:
    """The action in JSON of a row of a checkpoint: maps as such, no fields without a value."""
    made: Action = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            made[name] = _plain(value)
        elif name in ("partitionValues", "tags", "configuration", "options"):
            if value is not None:
                made[name] = dict(value)
        elif value is not None:
            made[name] = value
    return made


def _without(rows: pa.StructArray, *names: str) -> pa.StructArray:
    fields = [field for field in rows.type if field.name not in names]
    kept = [pc.struct_field(rows, field.name) for field in fields]
    return pa.StructArray.from_arrays(kept, fields=fields)

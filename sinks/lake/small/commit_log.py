"""Reads and writes the log of one Delta table in a folder of this machine.

Format: Delta's protocol, *Delta Log Entries* and *Checkpoints*. A commit is a file whose name is
the next version. :func:`write_commit` writes it under another name and links it to its own, which
fails if another writer has made that version: a commit succeeds only if nobody else has committed
since this log was last read.
"""

from __future__ import annotations

import json
import os
import re
import struct
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from changefeed.core.durable import sync_path

_COMMIT = re.compile(r"(\d{20})\.json\Z")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet\Z")
_ANY_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\..+\Z")
_OF_VERSION = re.compile(r"\.?(\d{20})\..+\Z")
_LAST = "_last_checkpoint"
_SECONDS = re.compile(r"interval (\d+) (second|minute|hour|day|week)s?\Z", re.I)
_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
#: Delta's defaults of the two properties, in seconds.
_LOG_RETENTION, _FILE_RETENTION = 30 * 86400.0, 7 * 86400.0

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

    def __init__(self, folder: Path, most_files: int) -> None:
        """Read the log.

        Args:
            folder: of the table.
            most_files: the log of a table with more data files is too large.

        Raises:
            UnknownLog
            OSError: a file cannot be read.
        """
        self.folder = folder
        self._log = folder / "_delta_log"
        self._most = most_files
        self.protocol: Action = {}
        self.metadata: Action = {}
        self.files: dict[str, Action] = {}
        self.applications: dict[str, Action] = {}
        self.domains: dict[str, Action] = {}
        self._gone: dict[FileKey, Action] = {}
        names = os.listdir(self._log)
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
        while (path := self._commit_of(self.version + 1)).exists():
            try:
                actions = [json.loads(line) for line in path.read_bytes().splitlines() if line]
            except ValueError as failure:
                raise UnknownLog(f"{path.name} is damaged") from failure
            self._take(actions)
            self.version += 1
            if len(self.files) > self._most:
                raise UnknownLog("the table has many files")
        return self.version > before

    def commit(self, actions: Sequence[Action]) -> bool:
        """Write the next version durably; false: another writer has made it.

        Raises:
            OSError: the disk failed. :meth:`follow` finds out whether the version is there.
        """
        try:
            write_commit(self._commit_of(self.version + 1), actions)
        except FileExistsError:
            return False
        self._take(actions)
        self.version += 1
        return True

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
    def since_checkpoint(self) -> int:
        """How many versions follow the last checkpoint."""
        return self.version - self._checkpoint

    def _commit_of(self, version: int) -> Path:
        return self._log / f"{version:020d}.json"

    def _checkpoint_of(self, version: int) -> Path:
        return self._log / f"{version:020d}.checkpoint.parquet"

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
        with pq.ParquetFile(self._checkpoint_of(self._checkpoint)) as file:
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
        _put(self._checkpoint_of(self.version), content.getvalue(), os.replace)
        note = {"version": self.version, "size": len(table)}
        _put(self._log / _LAST, json.dumps(note).encode(), os.replace)
        self._checkpoint = self.version
        self._gone.clear()
        self._clean(millis / 1000)

    def _clean(self, now: float) -> None:
        """Remove the files of expired versions, up to an expired checkpoint: readers need that and
        what follows it for each version that stays."""
        keeps = _seconds_of(self.setting("delta.logRetentionDuration"), _LOG_RETENTION)
        if keeps is None or self.setting("delta.enableExpiredLogCleanup") == "false":
            return
        versions = {
            entry.path: (int(found[1]), entry.stat().st_mtime)
            for entry in os.scandir(self._log)
            if (found := _OF_VERSION.match(entry.name))
        }
        old = [
            version
            for path, (version, written) in versions.items()
            if path.endswith(".checkpoint.parquet") and written < now - keeps
        ]
        for path, (version, _) in versions.items():
            if version < max(old, default=0):
                Path(path).unlink(missing_ok=True)

    def _old_removes(self, oldest: int) -> list[pa.Array]:
        """The ``remove`` actions of the last checkpoint that stay: younger than ``oldest``, and of
        files that did not come back."""
        if self._checkpoint < 0:
            return []
        with pq.ParquetFile(self._checkpoint_of(self._checkpoint)) as file:
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


def write_commit(path: Path, actions: Iterable[Action]) -> None:
    """Write the file of a commit durably: all of it, or none.

    Raises:
        FileExistsError: another writer has made it.
        OSError: the disk failed. The file may be there.
    """
    lines = (json.dumps(each, separators=(",", ":")) + "\n" for each in actions)
    _put(path, "".join(lines).encode(), os.link)
    sync_path(path.parent)


def write_durably(path: Path, content: bytes | pa.Buffer) -> None:
    """Write a new file whose content survives a crash of the machine."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _put(path: Path, content: bytes | pa.Buffer, name: Callable[[Path, Path], None]) -> None:
    """Write a file under another name, and ``name`` it when it is whole."""
    fresh = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        write_durably(fresh, content)
        name(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


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

"""The log of one Delta table in a folder of this machine: read, followed, and written to.

Format: Delta's protocol, *Delta Log Entries* and *Checkpoints*. A commit is a file whose name is
the next version; the file is made under another name and linked to its own, which fails if another
writer has made that version. So a commit means: nobody has written since this log was last read.
"""

from __future__ import annotations

import json
import os
import re
import struct
import uuid
from collections.abc import Iterable, Mapping, Sequence
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
_LOG_RETENTION, FILE_RETENTION = 30 * 86400.0, 7 * 86400.0

Action = dict[str, Any]
#: A data file of one version: its path, and which deletion vector it has.
FileKey = tuple[str, str]


class UnknownLog(Exception):
    """A log that is not read here: of a newer form, damaged, or too large."""


#: What a log, a vector or a data file raises that is damaged, or of a form that is not known here.
UNREADABLE = (UnknownLog, ValueError, LookupError, struct.error, pa.ArrowException)


class CommitLog:
    """What the log of a table says, as of :attr:`version`.

    Attributes:
        version: the last version that was read.
        protocol, metadata: the table's actions of these names.
        files: the data files by path, as ``add`` actions.
        applications: the transaction identifiers, as ``txn`` actions.
        domains: the ``domainMetadata`` actions by name.
    """

    def __init__(self, folder: Path, most_files: int) -> None:
        """Read the log.

        Args:
            folder: the table's.
            most_files: a table with more data files is not read.

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
        """Read what others have committed since; returns whether somebody has.

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
        """Write the next version, durably; false if another writer has made it.

        Raises:
            OSError: the disk failed. Whether the version is there is not known: :meth:`follow`.
        """
        path = self._commit_of(self.version + 1)
        content = "".join(json.dumps(a, separators=(",", ":")) + "\n" for a in actions)
        fresh = self._log / f".{path.name}.{uuid.uuid4().hex}"
        try:
            write_durably(fresh, content.encode())
            os.link(fresh, path)
        except FileExistsError:
            return False
        finally:
            fresh.unlink(missing_ok=True)
        sync_path(self._log)
        self._take(actions)
        self.version += 1
        return True

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        return {name: str(value) for name, value in self.metadata.get("configuration", {}).items()}

    def setting(self, name: str) -> str | None:
        """One of the table's properties."""
        return self.properties.get(name)

    @property
    def fields(self) -> list[dict[str, Any]]:
        """The table's columns, as Spark writes a schema in JSON."""
        found: list[dict[str, Any]] = json.loads(self.metadata["schemaString"])["fields"]
        return found

    @property
    def since_checkpoint(self) -> int:
        """How many versions there are since the last checkpoint."""
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
                    # Of a file whose vector is replaced, the new one may stand before it.
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
            kept = table[name].drop_null()
            if name == "add":
                kept = _without(kept, "stats_parsed", "partitionValues_parsed")
            self._take({name: _plain(row)} for row in kept.to_pylist())

    def checkpoint(self, millis: int) -> None:
        """Write a checkpoint of :attr:`version`. ``millis``: the time, since 1970.

        Raises:
            UnknownLog: the last checkpoint is not of the form that is written here.
            OSError: it cannot be written.
        """
        keeps = seconds_of(self.setting("delta.deletedFileRetentionDuration"), FILE_RETENTION)
        oldest = 0 if keeps is None else millis - int(keeps * 1000)
        fresh = [a for a in self._gone.values() if (a.get("deletionTimestamp") or 0) > oldest]
        removes = pa.concat_arrays([*self._old_removes(oldest), _rows(fresh, _REMOVE)])
        columns = {
            "protocol": _rows([self.protocol], _PROTOCOL),
            "metaData": _rows([self.metadata], _METADATA),
            "txn": _rows(list(self.applications.values()), _TXN),
            "domainMetadata": _rows(
                [a for a in self.domains.values() if not a.get("removed")], _DOMAIN
            ),
            "add": _rows([a | {"dataChange": False} for a in self.files.values()], _ADD),
            "remove": removes,
        }
        count = sum(map(len, columns.values()))
        table, before = {}, 0
        for name, rows in columns.items():
            after = count - before - len(rows)
            nothing = (pa.nulls(some, rows.type) for some in (before, after))
            first, last = nothing
            table[name] = pa.concat_arrays([first, rows, last])
            before += len(rows)
        path = self._checkpoint_of(self.version)
        part = self._log / f".{path.name}.{uuid.uuid4().hex}"
        try:
            pq.write_table(pa.table(table), part, compression="snappy")
            sync_path(part)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
        note = self._log / _LAST
        part = note.with_name(f".{_LAST}.{uuid.uuid4().hex}")
        write_durably(part, json.dumps({"version": self.version, "size": count}).encode())
        os.replace(part, note)
        self._checkpoint = self.version
        self._gone.clear()
        self._clean(millis / 1000)

    def _clean(self, now: float) -> None:
        """Remove the log of versions that are older than the table keeps them, up to a checkpoint
        that is as old, so that each version that stays can be read."""
        keeps = seconds_of(self.setting("delta.logRetentionDuration"), _LOG_RETENTION)
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
        """Those of the last checkpoint that are not over, and of files that did not come back."""
        if self._checkpoint < 0:
            return []
        with pq.ParquetFile(self._checkpoint_of(self._checkpoint)) as file:
            if "remove" not in file.schema_arrow.names:
                return []
            column = file.read(columns=["remove"])["remove"].combine_chunks().drop_null()
        young = pc.greater(pc.fill_null(pc.struct_field(column, "deletionTimestamp"), 0), oldest)
        column = column.filter(young)
        paths = pc.struct_field(column, "path")
        back = pc.is_in(paths, value_set=pa.array(list(self.files), pa.string()))
        again = [
            place
            for place in pc.indices_nonzero(back).to_pylist()
            if file_key(_plain(column[place].as_py())) == file_key(self.files[paths[place].as_py()])
        ]
        if again:
            keep = [place for place in range(len(column)) if place not in set(again)]
            column = column.take(pa.array(keep, pa.int64()))
        names = {field.name for field in column.type}
        if not {"path", "deletionTimestamp", "dataChange"} <= names:
            raise UnknownLog("the last checkpoint has other columns")
        made = [
            pc.struct_field(column, field.name).cast(field.type)
            if field.name in names
            else pa.nulls(len(column), field.type)
            for field in _REMOVE
        ]
        return [pa.StructArray.from_arrays(made, fields=list(_REMOVE))]


def seconds_of(interval: str | None, default: float) -> float | None:
    """How long an interval of a table's property is; None: it is not read here."""
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
    """What a commit says of itself; ``read`` is the version that it follows, -1: none."""
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


def write_durably(path: Path, content: bytes) -> None:
    """A new file, whose content a crash of the machine leaves."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def file_key(action: Mapping[str, Any]) -> FileKey:
    """What tells an ``add`` or ``remove`` action from the others of its table."""
    vector = action.get("deletionVector")
    if not vector:
        return action["path"], ""
    place = f"{vector['storageType']}{vector['pathOrInlineDv']}"
    return action["path"], place if vector.get("offset") is None else f"{place}@{vector['offset']}"


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


def _rows(actions: Sequence[Mapping[str, Any]], kind: pa.StructType) -> pa.Array:
    return pa.array([_pairs(action, kind) for action in actions], kind)


def _pairs(value: Any, kind: pa.DataType) -> Any:
    """A value of the log's JSON as Arrow takes it: maps as pairs, unknown fields left out."""
    if value is None or not isinstance(kind, pa.StructType):
        return list(value.items()) if value is not None and pa.types.is_map(kind) else value
    return {field.name: _pairs(value.get(field.name), field.type) for field in kind}


def _plain(row: Mapping[str, Any]) -> Action:
    """A row of a checkpoint as its action in JSON: maps as such, no fields without a value."""
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


def _without(column: pa.ChunkedArray, *names: str) -> pa.ChunkedArray:
    kept = [field.name for field in column.type if field.name not in names]
    rows = column.combine_chunks()
    arrays = [pc.struct_field(rows, name) for name in kept]
    fields = [column.type.field(name) for name in kept]
    return pa.chunked_array([pa.StructArray.from_arrays(arrays, fields=fields)])

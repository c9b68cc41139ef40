"""A round of few rows into one Delta table, without Spark."""

from __future__ import annotations

import json
import logging
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from changefeed.core.clock import Clock
from changefeed.core.durable import sync_path
from changefeed.core.schema import TableSchema
from sinks.lake.small.commit_log import (
    UNREADABLE,
    Action,
    CommitLog,
    commit_info,
    file_key,
    write_durably,
)
from sinks.lake.small.key_index import (
    Flags,
    KeyBits,
    KeyHash,
    KeyHits,
    KeyIndex,
    Numbers,
    key_column,
)
from sinks.lake.small.values import (
    DELTA_NAMES,
    NotHere,
    arrow_type,
    statistics,
    table_values,
    versions,
)
from sinks.lake.small.vectors import Gone, VectorFile, read_vector
from sinks.lake.staging import OPERATION, VERSION, StagedFile
from sinks.lake.table import marks_of
from sinks.lake.types import spark_type
from sinks.ownership import Owner

log = logging.getLogger("changefeed.sinks.lake")

#: How the node names its data files, and up to which size, in bytes, it makes one of many.
_OURS, _SMALL_FILE = "changefeed-", 8 << 20
#: After so many failures of the disk in a row, the rounds of a table are Spark's.
_MOST_FAILURES = 3
#: How often a round is tried when others commit to the table at the same time.
_ATTEMPTS = 3

#: Features of a table that change nothing of how rows are added and marked, or only where a
#: property says so (Delta's protocol, *Valid Feature Names in Table Features*).
_FEATURES = {
    "appendOnly",
    "changeDataFeed",
    "checkConstraints",
    "clustering",
    "columnMapping",
    "deletionVectors",
    "domainMetadata",
    "invariants",
    "timestampNtz",
    "typeWidening",
    "typeWidening-preview",
    "vacuumProtocolCheck",
}
_NEEDS_SPARK = ("delta.enableChangeDataFeed", "delta.appendOnly", "delta.enableRowTracking")
_PHYSICAL, _ID = "delta.columnMapping.physicalName", "delta.columnMapping.id"
#: Where a column's number stands in Parquet, as Arrow calls it.
_FIELD_ID = "PARQUET:field_id"
#: What else a column may say of itself.
_COLUMN_WORDS = {_PHYSICAL, _ID, "comment", "delta.typeChanges"}
#: The version of a row of another writer, who gave it none: older than each.
_NO_VERSION = -(2**63)
#: Of a table that says nothing, in commits.
_CHECKPOINT_INTERVAL = 10
_TIGHT = '"tightBounds":true'


@dataclass(frozen=True, slots=True)
class SmallLimits:
    """Up to where rounds are the node's.

    Attributes:
        rows: of a round. Of more, a job costs less than it saves.
        files, indexed: data files of a table, and rows in them, whose log and index need too much
            memory beyond that.
        small_files: so many small files of a table become one.
        spare_entries: an index has at most so many entries beyond twice the rows of its table.
    """

    rows: int = 50_000
    files: int = 2_000
    indexed: int = 4_000_000
    small_files: int = 64
    spare_entries: int = 100_000


@dataclass(frozen=True, slots=True)
class CommitNotes:
    """What a commit says of itself.

    Attributes:
        user: for readers.
        application: the transaction identifier that Delta keeps, and its number; None: the rows
            are of a scan, which may come again.
    """

    user: str
    application: tuple[str, int] | None


@dataclass(slots=True)
class _File:
    """A data file that the index knows.

    Attributes:
        rows: how many it has, gone ones included.
        gone: which of them are gone; None: none.
        vector: the key of its action, from which ``gone`` is.
    """

    path: str
    rows: int
    gone: Gone | None = None
    vector: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True)
class _TableForm:
    """How the table's columns are filled.

    Attributes:
        columns: for each column of the table, the number of the source's; -1: the version.
        types, names: of its columns in files.
        ids: of its columns in files.
        keys: for each column of the key, the number of the table's column.
        sequence: the number of the table's column with the version.
    """

    columns: tuple[int, ...]
    types: tuple[pa.DataType, ...]
    names: tuple[str, ...]
    ids: tuple[int | None, ...]
    keys: tuple[int, ...]
    sequence: int

    @property
    def columns_of_files(self) -> pa.Schema:
        """The columns of a data file."""
        return pa.schema(
            [
                pa.field(name, kind, metadata=None if id_ is None else {_FIELD_ID: str(id_)})
                for name, kind, id_ in zip(self.names, self.types, self.ids, strict=True)
            ]
        )

    @property
    def index(self) -> tuple[tuple[str, pa.DataType], ...]:
        """What the index is made of."""
        wanted = (*self.keys, self.sequence)
        return tuple((self.names[i], self.types[i]) for i in wanted)


@dataclass(slots=True)
class _IndexedTable:
    """What is in memory of a table; ``files`` has the living ones by the numbers that the index has
    for them."""

    log: CommitLog
    shape: _TableForm
    index: KeyIndex
    hashing: KeyHash = field(default_factory=KeyHash)
    files: dict[int, _File] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    last_number: int = 0

    def add(self, file: _File) -> int:
        """Number a file."""
        self.last_number += 1
        number = self.numbers[file.path] = self.last_number
        self.files[number] = file
        return number

    def forget_lost(self) -> None:
        """Forget files that are not in the table any more."""
        for path in self.numbers.keys() - self.log.files.keys():
            del self.files[self.numbers.pop(path)]

    @property
    def rows(self) -> int:
        """How many rows the table has."""
        files = self.files.values()
        return sum(f.rows - (0 if f.gone is None else int(f.gone.sum())) for f in files)


class SmallRounds:
    """The rounds of one table, in one process.

    Args:
        folder: the table's.
        scratch: where the index may have files.
        owner: whose the table is. A folder of this name that is not the table which Spark writes
            to has no mark of it.
        sequence: the table's column with the version of a row.
    """

    def __init__(
        self,
        folder: Path,
        scratch: Path,
        owner: Owner,
        sequence: str,
        limits: SmallLimits,
        clock: Clock,
    ) -> None:
        self._folder = folder
        self._owner = owner
        self._scratch = scratch
        self._sequence = sequence
        self._limits = limits
        self._clock = clock
        self._known: _IndexedTable | None = None
        #: The schema whose rounds are Spark's, whatever is in them.
        self._refused = ""
        self._failures = 0

    def commit(self, files: Sequence[StagedFile], schema: TableSchema, notes: CommitNotes) -> bool:
        """Bring the rows of a round into the table; false: Spark is to do it, and sees by the
        commit's transaction identifier if it is done already.

        Each key comes once in the round, with all of its values.
        """
        shape = schema.fingerprint()
        if self._refused == shape or sum(file.rows for file in files) > self._limits.rows:
            return False
        try:
            for _ in range(_ATTEMPTS):
                known = self._current(schema)
                if notes.application is not None:
                    application, number = notes.application
                    done = known.log.applications.get(application)
                    if done is not None and done["version"] >= number:
                        return True
                if _Round(known, schema, files, self._millis()).commit(notes):
                    self._failures = 0
                    self._care_for(known)
                    return True
        except NotHere as reason:
            log.debug("a round of %s goes to Spark: %s", self._folder.name, reason)
        except UNREADABLE as reason:
            log.info("rounds of %s go to Spark: %s", self._folder.name, reason)
            self._refused = shape
            self.close()
        except OSError as failure:
            # Files of another user, a full disk: Spark says what is wrong, or can do it.
            log.info("a round of %s goes to Spark: %s", self._folder.name, failure.strerror)
            self._failures += 1
            lasting = isinstance(failure, PermissionError | FileNotFoundError)
            if lasting or self._failures >= _MOST_FAILURES:
                self._refused = shape
            self.close()
        except BaseException:
            self.close()  # the index may lack what was committed
            raise
        return False

    def close(self) -> None:
        """Forget the table."""
        if self._known is not None:
            self._known.index.close()
            self._known = None

    def _millis(self) -> int:
        return self._clock.now().wall // 1_000_000

    def _current(self, schema: TableSchema) -> _IndexedTable:
        """The table as of now.

        Raises:
            NotHere, UnknownLog, ValueError: its rounds are Spark's.
        """
        known = self._known
        if known is None:
            table, written = CommitLog(self._folder, self._limits.files), True
        else:
            table, written = known.log, known.log.follow()
        if not any(mark.same(self._owner) for mark in marks_of(table.properties)):
            raise ValueError("it is not this feed's table")
        shape = _shape(table, schema, self._sequence)
        if known is None or known.shape.index != shape.index:
            self.close()
            known = self._known = _IndexedTable(table, shape, KeyIndex(self._scratch))
            written = True
        known.shape = shape
        if written:
            _index_files(known, self._limits.indexed)
        return known

    def _care_for(self, known: _IndexedTable) -> None:
        """What a table needs now and then; the round is committed."""
        table = known.log
        interval = int(table.setting("delta.checkpointInterval") or _CHECKPOINT_INTERVAL)
        try:
            _join_files(known, self._millis(), self._limits.small_files)
            if table.since_checkpoint >= interval:
                table.checkpoint(self._millis())
                if known.index.entries > 2 * known.rows + self._limits.spare_entries:
                    self.close()  # keys of deleted rows: the next round makes another index
        except (NotHere, OSError, *UNREADABLE) as failure:
            # Readers do with what there is, and Spark's next commit may make a checkpoint.
            log.warning("no upkeep of %s: %s", self._folder.name, type(failure).__name__)
            self.close()


class _Round:
    def __init__(
        self, known: _IndexedTable, schema: TableSchema, files: Sequence[StagedFile], millis: int
    ) -> None:
        self._known = known
        self._log = known.log
        self._millis = millis
        parts = [pq.read_table(file.path, page_checksum_verification=True) for file in files]
        self._rows = pa.concat_tables(parts, promote_options="default").combine_chunks()
        self._schema = schema

    def commit(self, notes: CommitNotes) -> bool:
        """Write files and commit them; false: another writer was faster."""
        known, rows = self._known, self._rows
        values = self._values()
        keys = known.hashing.bits([key_column(values[i]) for i in known.shape.keys])
        come = versions(rows[VERSION].combine_chunks())
        deletes = np.asarray(pc.equal(rows[OPERATION], "d")).astype(np.bool_)
        hits = known.index.find(keys)
        if len(np.unique(keys.a)) < len(keys.a):
            raise NotHere("two rows of one key")
        there = hits.there & _alive(known, hits)
        newer = come >= hits.has
        marked, kept = there & newer, ~deletes & (newer | ~there)
        gone = _gone_with(known, hits, marked)
        added, table = self._added(values, kept)
        replaced, vectors = self._replaced(gone)
        counts = {
            "numTargetRowsInserted": int((kept & ~there).sum()),
            "numTargetRowsUpdated": int((kept & marked).sum()),
            "numTargetRowsDeleted": int((deletes & marked).sum()),
        }
        info = self._info(notes, counts, len(added))
        actions = [info, *self._noted(notes), *replaced, *added]
        if added or vectors:
            sync_path(self._log.folder)
        try:
            committed = self._log.commit(actions)
        except OSError:
            if not self._log.follow():
                self._remove([*added, *vectors])
            raise
        if not committed:
            self._remove([*added, *vectors])
            return False
        self._remember(gone, added, table, KeyBits(keys.a[kept], keys.b[kept]), come[kept])
        return True

    # -- rows -------------------------------------------------------------------------------

    def _values(self) -> list[pa.Array]:
        shape, columns = self._known.shape, self._schema.columns
        return [
            table_values(columns[number], self._rows[f"c{number}"].combine_chunks(), kind)
            if number >= 0
            else self._rows[VERSION].combine_chunks().cast(kind)
            for number, kind in zip(shape.columns, shape.types, strict=True)
        ]

    def _added(self, values: list[pa.Array], kept: Flags) -> tuple[list[Action], pa.Table | None]:
        if not kept.any():
            return [], None
        table = pa.table(values, self._known.shape.columns_of_files).filter(pa.array(kept))
        return [_data_file(self._log.folder, table, self._millis)], table

    def _replaced(self, gone: Mapping[int, Gone]) -> tuple[list[Action], list[Action]]:
        """Actions for files some of whose rows are gone now; and the file with their vectors."""
        vectors, actions = VectorFile(), []
        for number, rows in gone.items():
            action = self._log.files[self._known.files[number].path]
            actions.append(_without_file(action, self._millis))
            if not rows.all():
                new = action | {
                    "deletionVector": vectors.add(rows),
                    "stats": _wide(action, len(rows)),
                    "dataChange": True,
                }
                actions.append({"add": new})
        if len(vectors.content) <= 1:
            return actions, []
        write_durably(self._log.folder / vectors.name, vectors.content)
        return actions, [{"add": {"path": vectors.name}}]

    def _remove(self, made: Sequence[Action]) -> None:
        for action in made:
            (self._log.folder / action["add"]["path"]).unlink(missing_ok=True)

    # -- the commit -------------------------------------------------------------------------

    def _noted(self, notes: CommitNotes) -> list[Action]:
        if notes.application is None:
            return []
        application, number = notes.application
        return [{"txn": {"appId": application, "version": number, "lastUpdated": self._millis}}]

    def _info(self, notes: CommitNotes, counts: Mapping[str, int], added: int) -> Action:
        updated, deleted = counts["numTargetRowsUpdated"], counts["numTargetRowsDeleted"]
        metrics = {
            "numSourceRows": self._rows.num_rows,
            **counts,
            "numTargetRowsMatchedUpdated": updated,
            "numTargetRowsMatchedDeleted": deleted,
            "numTargetFilesAdded": added,
            "numOutputRows": updated + counts["numTargetRowsInserted"],
        }
        names = ("predicate", "matchedPredicates", "notMatchedPredicates")
        parameters, version = dict.fromkeys(names, "[]"), self._log.version
        more = {"isolationLevel": "Serializable", "userMetadata": notes.user}
        return commit_info(version, self._millis, "MERGE", parameters, metrics, more)

    def _remember(
        self,
        gone: Mapping[int, Gone],
        added: Sequence[Action],
        table: pa.Table | None,
        keys: KeyBits,
        come: Numbers,
    ) -> None:
        known = self._known
        known.forget_lost()
        for number, rows in gone.items():
            if (file := known.files.get(number)) is not None:
                file.gone, file.vector = rows, file_key(self._log.files[file.path])
        if table is not None:
            action = added[0]["add"]
            number = known.add(_File(action["path"], len(table), None, file_key(action)))
            places = np.full(len(table), number), np.arange(len(table))
            known.index.add(keys, *places, come)


# ------------------------------------------------------------------------------- files


def _data_file(folder: Path, table: pa.Table, millis: int, *, change: bool = True) -> Action:
    """Write a data file, durably but for its name; ``change``: its rows are new to readers."""
    path = folder / f"{_OURS}{uuid.uuid4()}.parquet"
    pq.write_table(table, path, compression="snappy")
    sync_path(path)
    return {
        "add": {
            "path": path.name,
            "partitionValues": {},
            "size": os.path.getsize(path),
            "modificationTime": millis,
            "dataChange": change,
            "stats": json.dumps(statistics(table), separators=(",", ":")),
        }
    }


def _without_file(action: Action, millis: int, *, change: bool = True) -> Action:
    kept = ("path", "partitionValues", "size", "deletionVector", "baseRowId", "tags")
    removed = {name: action[name] for name in kept if name in action}
    more = {"deletionTimestamp": millis, "dataChange": change, "extendedFileMetadata": True}
    return {"remove": removed | more}


def _join_files(known: _IndexedTable, millis: int, many: int) -> None:
    """Make one file of the many small ones that rounds have left, in a commit of its own.

    Raises:
        OSError, ValueError: a file cannot be read or written.
    """
    table, shape = known.log, known.shape
    small = [
        known.numbers[path]
        for path, action in table.files.items()
        if path.startswith(_OURS) and action["size"] < _SMALL_FILE
    ]
    if len(small) < many:
        return
    columns = shape.columns_of_files
    parts = []
    for number in small:
        file = known.files[number]
        rows = pq.read_table(table.folder / file.path)
        if file.gone is not None:
            rows = rows.filter(pa.array(~file.gone))
        found = set(rows.column_names)
        parts.append(
            pa.table(
                [
                    rows[f.name].cast(f.type) if f.name in found else pa.nulls(len(rows), f.type)
                    for f in columns
                ],
                columns,
            )
        )
    whole = pa.concat_tables(parts).combine_chunks()
    added = _data_file(table.folder, whole, millis, change=False)
    sync_path(table.folder)
    gone = [
        _without_file(table.files[known.files[number].path], millis, change=False)
        for number in small
    ]
    metrics = {"numAddedFiles": 1, "numRemovedFiles": len(gone)}
    more = {"isolationLevel": "SnapshotIsolation"}
    parameters = {"predicate": "[]", "zOrderBy": "[]"}
    info = commit_info(table.version, millis, "OPTIMIZE", parameters, metrics, more)
    if not table.commit([info, *gone, added]):
        (table.folder / added["add"]["path"]).unlink(missing_ok=True)
        return
    known.forget_lost()
    number = known.add(_File(added["add"]["path"], len(whole), None, file_key(added["add"])))
    keys = [key_column(whole.column(i).combine_chunks()) for i in shape.keys]
    has = versions(pc.fill_null(whole.column(shape.sequence).combine_chunks(), _NO_VERSION))
    places = np.full(len(whole), number), np.arange(len(whole))
    known.index.add(known.hashing.bits(keys), *places, has)


# ------------------------------------------------------------------------------- the index


def _alive(known: _IndexedTable, hits: KeyHits) -> Flags:
    """Whether the row of each hit is still there."""
    alive = np.zeros(len(hits.there), np.bool_)
    for number in np.unique(hits.files[hits.there]).tolist():
        file = known.files.get(number)
        if file is not None:
            here = hits.there & (hits.files == number)
            alive[here] = True if file.gone is None else ~file.gone[hits.rows[here]]
    return alive


def _gone_with(known: _IndexedTable, hits: KeyHits, marked: Flags) -> dict[int, Gone]:
    """For each file that loses rows, all of its rows that are gone then."""
    found = {}
    for number in np.unique(hits.files[marked]).tolist():
        file = known.files[number]
        gone = np.zeros(file.rows, np.bool_) if file.gone is None else file.gone.copy()
        gone[hits.rows[marked & (hits.files == number)]] = True
        found[number] = gone
    return found


def _index_files(known: _IndexedTable, most: int) -> None:
    """Follow what others have committed: their vectors, and the keys of their files.

    Raises:
        ValueError: the table has a key twice, or none in a row, or too many rows.
        NotHere, OSError: a file cannot be read.
    """
    parts = []
    if sum(map(_rows_of, known.log.files.values())) > most:
        raise ValueError("the table has many rows")
    known.forget_lost()
    for path, action in known.log.files.items():
        number = known.numbers.get(path)
        if number is None:
            if "://" in path or path.startswith("/"):
                raise ValueError("a data file is elsewhere")
            keys = _keys_in(known, known.log.folder / unquote(path))
            number = known.add(_File(path, len(keys)))
            parts.append((number, keys))
        file, vector = known.files[number], action.get("deletionVector")
        if file.vector != file_key(action):
            folder = known.log.folder
            file.gone = None if vector is None else read_vector(vector, folder, file.rows)
            file.vector = file_key(action)
    _add_files(known, parts)


def _rows_of(action: Action) -> int:
    """How many rows a data file has, where its statistics say so."""
    found = json.loads(action.get("stats") or "{}").get("numRecords")
    return found if isinstance(found, int) else 0


def _add_files(known: _IndexedTable, parts: Sequence[tuple[int, pa.Table]]) -> None:
    keys, files, places = [], [], []
    for number, table in parts:
        gone = known.files[number].gone
        here = np.arange(len(table)) if gone is None else np.flatnonzero(~gone)
        keys.append(table.take(pa.array(here)) if gone is not None else table)
        files.append(np.full(len(here), number))
        places.append(here)
    if not sum(map(len, files)):
        return
    whole = pa.concat_tables(keys).combine_chunks()
    columns = [whole.column(i).combine_chunks() for i in range(len(known.shape.keys))]
    if any(column.null_count for column in columns):
        raise ValueError("a row has no value in its key")
    has = pc.fill_null(whole.column(len(columns)).combine_chunks(), _NO_VERSION)
    bits = known.hashing.bits([key_column(column) for column in columns])
    if known.index.entries:
        hits = known.index.find(bits)
        if _alive(known, hits).any():
            raise ValueError("the table has a key twice")
    if not known.index.add(bits, np.concatenate(files), np.concatenate(places), versions(has)):
        raise ValueError("the table has a key twice")


def _keys_in(known: _IndexedTable, path: Path) -> pa.Table:
    wanted = known.shape.index
    with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
        if not {name for name, _ in wanted} <= set(file.schema_arrow.names):
            raise ValueError("a data file has other columns")
        table = file.read(columns=[name for name, _ in wanted])
    try:
        columns = [table[name].cast(kind) for name, kind in wanted]
    except pa.ArrowInvalid as failure:
        raise NotHere("a key of another type") from failure
    return pa.table(columns, [f"k{i}" for i in range(len(columns))])


# ------------------------------------------------------------------------------- the table


def _shape(table: CommitLog, schema: TableSchema, sequence: str) -> _TableForm:
    """How the rows of a source's table become those of this one.

    Raises:
        ValueError: the table is one that only Spark writes to.
    """
    features = {
        *table.protocol.get("writerFeatures", ()),
        *table.protocol.get("readerFeatures", ()),
    }
    if unknown := features - _FEATURES:
        raise ValueError(f"feature {min(unknown)} of the table")
    if table.setting("delta.enableDeletionVectors") != "true":
        raise ValueError("the table has no deletion vectors")
    for name in table.properties:
        needs = name in _NEEDS_SPARK and table.setting(name) == "true"
        if needs or name.startswith("delta.constraints."):
            raise ValueError(f"property {name} of the table")
    if table.metadata.get("partitionColumns"):
        raise ValueError("the table has partitions")
    numbers = {column.name.lower(): i for i, column in enumerate(schema.columns)}
    numbers[sequence.lower()] = -1
    fields = table.fields
    clash = len(numbers) != len(schema.columns) + 1
    if clash or sorted(f["name"].lower() for f in fields) != sorted(numbers):
        raise ValueError("the table has other columns")
    for its in fields:
        if not its.get("nullable", True) or not set(its.get("metadata", {})) <= _COLUMN_WORDS:
            raise ValueError(f"column {its['name']} has a rule")
    columns = tuple(numbers[f["name"].lower()] for f in fields)
    wanted = [spark_type(schema.columns[n].logical) if n >= 0 else "bigint" for n in columns]
    if [f["type"] for f in fields] != [DELTA_NAMES.get(name, name) for name in wanted]:
        raise ValueError("the table has columns of other types")
    try:
        types = tuple(arrow_type(f["type"]) for f in fields)
    except NotHere as reason:
        raise ValueError(str(reason)) from reason
    keys = tuple(columns.index(number) for number in schema.key)
    for i in keys:
        kind = types[i]
        if pa.types.is_floating(kind):
            raise ValueError("a key of floating-point numbers")
    return _TableForm(
        columns,
        types,
        tuple(f.get("metadata", {}).get(_PHYSICAL, f["name"]) for f in fields),
        tuple(f.get("metadata", {}).get(_ID) for f in fields),
        keys,
        columns.index(-1),
    )


def _wide(action: Action, rows: int) -> str:
    """The statistics of a file whose vector changes: its bounds hold more than its live rows. The
    text is changed, and not read and written, which would round decimals."""
    text = action.get("stats") or ""
    if '"tightBounds":false' in text:
        return text
    if text.count(_TIGHT) == 1 and not action.get("deletionVector"):
        return text.replace(_TIGHT, '"tightBounds":false')
    return json.dumps({"numRecords": rows, "tightBounds": False}, separators=(",", ":"))

"""A round of few rows into one Delta table, without Spark."""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from changefeed.core.clock import Clock
from changefeed.core.schema import TableSchema
from changefeed.spark.internals.delta import TIGHT_BOUNDS, WIDE_BOUNDS
from sinks.lake.small.commit_log import (
    COLUMN_ID,
    PHYSICAL_NAME,
    UNREADABLE,
    Action,
    CommitLog,
    FileKey,
    commit_info,
    file_key,
    physical_name,
)
from sinks.lake.small.key_index import (
    Flags,
    KeyBits,
    KeyHash,
    KeyHits,
    KeyIndex,
    Numbers,
    whole_numbers,
)
from sinks.lake.small.partitions import by_partition, is_partition_type, with_partition
from sinks.lake.small.table_files import TableFiles
from sinks.lake.small.values import (
    UnsupportedCase,
    arrow_type,
    delta_type,
    statistics,
    table_values,
)
from sinks.lake.small.vectors import Gone, VectorFile, read_vector
from sinks.lake.staging import OPERATION, VERSION, StagedFile
from sinks.lake.table import marks_of
from sinks.lake.types import spark_type
from sinks.ownership import Owner

log = logging.getLogger("changefeed.sinks.lake")

#: How the node names its data files; it joins those with fewer bytes.
_OURS, _SMALL_FILE = "changefeed-", 8 << 20
#: After so many failures of the disk in a row, Spark does the rounds of a table.
_MOST_FAILURES = 3
#: How often the node tries a round when others commit to the table at the same time.
_ATTEMPTS = 3

#: Features of a table that do not change how a writer adds and marks rows, or only if a property
#: asks for that (Delta's protocol, *Valid Feature Names in Table Features*).
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
#: The property of a column in Arrow's schema that Parquet keeps as the column's number.
_PARQUET_ID = "PARQUET:field_id"
#: The properties that a column may have.
_COLUMN_PROPERTIES = {PHYSICAL_NAME, COLUMN_ID, "comment", "delta.typeChanges"}
#: The version of a row to which another writer gave none: older than every other.
_NO_VERSION = -(2**63)
#: Rows that the index takes at once.
_ROWS_AT_ONCE = 1_000_000
#: Delta's default, in commits.
_CHECKPOINT_INTERVAL = 10


@dataclass(frozen=True, slots=True)
class SmallLimits:
    """Within these limits the node does a round itself.

    Attributes:
        rows: of a round; a larger one gains more from a job than the job costs. The sink checks it.
        files, indexed: data files of a table, and rows in them; log and index of a larger table
            need too much memory.
        small_files: the node joins so many small files of a table.
        at_once: the index of a table with more rows is made while Spark does its rounds.
        spare_entries: an index has at most so many entries beyond twice the rows of its table.
    """

    rows: int = 50_000
    files: int = 2_000
    indexed: int = 50_000_000
    small_files: int = 64
    at_once: int = 4_000_000
    spare_entries: int = 100_000


@dataclass(frozen=True, slots=True)
class CommitNotes:
    """What a commit records besides its rows.

    Attributes:
        user: for readers.
        application: the transaction identifier that Delta keeps, and its number; None: the rows
            belong to a scan, which may come again.
    """

    user: str
    application: tuple[str, int] | None


@dataclass(frozen=True, slots=True)
class _TableForm:
    """How the columns of the source fill those of the table.

    Attributes:
        columns: for each column of the table, the number of the source's; -1: the version.
        types, names, ids: of the table's columns in files.
        keys: for each column of the key, the number of the table's column.
        sequence: the number of the table's column with the version.
        partitions: the numbers of columns whose values are those of a file, and not in it.
    """

    columns: tuple[int, ...]
    types: tuple[pa.DataType, ...]
    names: tuple[str, ...]
    ids: tuple[int | None, ...]
    keys: tuple[int, ...]
    sequence: int
    partitions: tuple[int, ...]

    @property
    def table_columns(self) -> pa.Schema:
        """The columns as they stand in files."""
        return pa.schema(
            [
                pa.field(name, kind, metadata=None if id_ is None else {_PARQUET_ID: str(id_)})
                for name, kind, id_ in zip(self.names, self.types, self.ids, strict=True)
            ]
        )

    @property
    def partition_names(self) -> list[str]:
        """The names of the columns that are not in files."""
        return [self.names[i] for i in self.partitions]

    @property
    def indexed(self) -> tuple[tuple[str, pa.DataType], ...]:
        """Names and types of the columns in the index: those of the key, and the version."""
        return tuple((self.names[i], self.types[i]) for i in (*self.keys, self.sequence))


@dataclass(slots=True)
class _IndexedFile:
    """A data file that the index knows.

    Attributes:
        key: its path and the vector that ``gone`` was read from.
        gone: which of its rows are gone.
    """

    key: FileKey
    gone: Gone


@dataclass(slots=True)
class _IndexedTable:
    """A table whose keys are in an index.

    Attributes:
        version: the version of the table that the index has.
        files: the table's files by the numbers that the index has for them.
        numbers: the numbers by path.
    """

    log: CommitLog
    form: _TableForm
    index: KeyIndex
    hashing: KeyHash = field(default_factory=KeyHash)
    version: int = -1
    files: dict[int, _IndexedFile] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    last_number: int = 0

    @property
    def rows(self) -> int:
        """How many rows the table has."""
        return sum(len(file.gone) - int(file.gone.sum()) for file in self.files.values())

    def action(self, number: int) -> Action:
        """The ``add`` action of a file."""
        return self.log.files[self.files[number].key[0]]

    def alive(self, hits: KeyHits) -> Flags:
        """Whether the table still has the row of each hit."""
        alive = np.zeros(len(hits.there), np.bool_)
        for number in np.unique(hits.files[hits.there]).tolist():
            if (file := self.files.get(number)) is not None:
                here = hits.there & (hits.files == number)
                alive[here] = ~file.gone[hits.rows[here]]
        return alive

    def gone_with(self, hits: KeyHits, marked: Flags) -> dict[int, Gone]:
        """For each file that loses the marked rows, all of its rows that are gone then."""
        found = {}
        for number in np.unique(hits.files[marked]).tolist():
            gone = found[number] = self.files[number].gone.copy()
            gone[hits.rows[marked & (hits.files == number)]] = True
        return found

    def take_own(self, gone: Mapping[int, Gone]) -> None:
        """Follow a commit of the node's, by which files have lost the rows ``gone``."""
        self._forget_lost()
        for number, rows in gone.items():
            if (file := self.files.get(number)) is not None:
                file.gone, file.key = rows, file_key(self.action(number))
        self.version = self.log.version

    def add_indexed(self, action: Action, keys: KeyBits, versions: Numbers) -> None:
        """Index a new file, of which no row is gone."""
        number = self._add(action["path"], len(versions))
        self.index.add(keys, np.full(len(versions), number), np.arange(len(versions)), versions)

    def take_others(self, most: int, ended: Callable[[], bool] = lambda: False) -> None:
        """Follow the commits of others: the vectors of files, and the keys of new ones.

        Args:
            most: rows of the table.
            ended: the index is not wanted any more.

        Raises:
            ValueError: the table has a key twice, or none in a row, or more than ``most`` rows.
            UnsupportedCase, OSError: a file cannot be read. The index then has what it had, and
                what it has read of others.
        """
        files = self.log.files
        if sum(map(_rows_of, files.values())) > most:
            raise ValueError("the table has many rows")
        self._forget_lost()
        self._take_vectors(list(self.numbers))
        for paths in _batches({path: files[path] for path in files if path not in self.numbers}):
            if ended():
                return
            read = {path: self._keys_in(path) for path in paths}
            new = [(self._add(path, len(keys)), keys) for path, keys in read.items()]
            self._take_vectors(paths)
            self._index(new)
        self.version = self.log.version

    def _take_vectors(self, paths: Iterable[str]) -> None:
        """Read the vectors of files that have another one than was known."""
        for path in paths:
            action, file = self.log.files[path], self.files[self.numbers[path]]
            if file.key != file_key(action):
                vector, none = action.get("deletionVector"), np.zeros(len(file.gone), np.bool_)
                file.gone = read_vector(vector, self.log.place, len(none)) if vector else none
                file.key = file_key(action)

    def _add(self, path: str, rows: int) -> int:
        """Number a new file."""
        self.last_number += 1
        self.numbers[path] = self.last_number
        self.files[self.last_number] = _IndexedFile((path, ""), np.zeros(rows, np.bool_))
        return self.last_number

    def _forget_lost(self) -> None:
        """Forget files that the table no longer has."""
        for path in self.numbers.keys() - self.log.files.keys():
            del self.files[self.numbers.pop(path)]

    def _keys_in(self, path: str) -> pa.Table:
        """The indexed columns of a data file."""
        if "://" in path or path.startswith("/"):
            raise ValueError("a data file is elsewhere")
        wanted, values = self.form.indexed, self.log.files[path].get("partitionValues") or {}
        names = [name for name, _ in wanted if name not in self.form.partition_names]
        with self.log.place.parquet(unquote(path)) as opened:
            if not set(names) <= set(opened.schema_arrow.names):
                raise ValueError("a data file has other columns")
            table = opened.read(columns=names)
        try:
            table = with_partition(table, values, {n: k for n, k in wanted if n not in names})
            columns = [table[name].cast(kind) for name, kind in wanted]
        except pa.ArrowInvalid as failure:
            raise UnsupportedCase("a key of another type") from failure
        return pa.table(columns, [f"k{i}" for i in range(len(columns))])

    def _index(self, files: Sequence[tuple[int, pa.Table]]) -> None:
        """Index the keys of new files but for the rows that are gone."""
        numbers, places, keys = [], [], []
        for number, table in files:
            here = np.flatnonzero(~self.files[number].gone)
            numbers.append(np.full(len(here), number))
            places.append(here)
            keys.append(table if len(here) == len(table) else table.take(pa.array(here)))
        if not any(map(len, places)):
            return
        *columns, has = _arrays(pa.concat_tables(keys))
        if any(column.null_count for column in columns):
            raise ValueError("a row has no value in its key")
        bits = self.hashing.bits(columns)
        known = self.index.entries and self.alive(self.index.find(bits)).any()
        new = bits, np.concatenate(numbers), np.concatenate(places), _versions(has)
        if known or not self.index.add(*new):
            raise ValueError("the table has a key twice")


class _IndexMaker:
    """Makes the index of a large table in a thread of its own, one after the other."""

    _turn: ClassVar[threading.Lock] = threading.Lock()  # each takes half a gigabyte of memory

    def __init__(self, table: _IndexedTable, most: int) -> None:
        self._table = table
        self._most = most
        self._ended = threading.Event()
        self._made: Future[_IndexedTable] = Future()
        threading.Thread(target=self._make, name="index of a lake table", daemon=True).start()

    @property
    def done(self) -> bool:
        return self._made.done()

    def result(self) -> _IndexedTable:
        """The table with its index, as of when its log was read; only when it is done.

        Raises:
            UnsupportedCase, ValueError, OSError: see :meth:`_IndexedTable.take_others`.
        """
        return self._made.result()

    def end(self) -> None:
        """Stop soon, and leave nothing."""
        self._ended.set()
        if self._made.done():
            self._table.index.close()

    def _make(self) -> None:
        try:
            with self._turn:
                self._table.take_others(self._most, self._ended.is_set)
            self._made.set_result(self._table)
        except BaseException as failure:
            self._made.set_exception(failure)
            self._ended.set()
        if self._ended.is_set():
            self._table.index.close()


class SmallRounds:
    """The rounds of one table, in one process.

    Args:
        place: the table's files.
        scratch: where the index may have files.
        owner: of the table. Another place than that which Spark writes to has no mark of it.
        sequence: the table's column with the version of a row.

    Attributes:
        in_doubt: the last commit failed, and may be there.
    """

    def __init__(
        self,
        place: TableFiles,
        scratch: Path,
        owner: Owner,
        sequence: str,
        limits: SmallLimits,
        clock: Clock,
    ) -> None:
        self._place = place
        self._owner = owner
        self._scratch = scratch
        self._sequence = sequence
        self._limits = limits
        self._clock = clock
        self._known: _IndexedTable | None = None
        self._maker: _IndexMaker | None = None
        self.in_doubt = False
        #: The fingerprint of the schema whose rounds Spark does, whatever they have.
        self._refused = ""
        self._failures = 0

    def commit(self, files: Sequence[StagedFile], schema: TableSchema, notes: CommitNotes) -> bool:
        """Bring the rows of a round into the table; false: Spark must do it. By the commit's
        transaction identifier it sees whether that is done already.

        Each key comes once in the round, with all of its values.
        """
        self.in_doubt = False
        shape = schema.fingerprint()
        if self._refused == shape:
            return False
        try:
            for _ in range(_ATTEMPTS):
                known = self._current(schema)
                if notes.application is not None:
                    application, number = notes.application
                    done = known.log.applications.get(application)
                    if done is not None and done["version"] >= number:
                        return True
                if _commit_round(known, schema, files, notes, self._millis()):
                    self._failures = 0
                    self._care_for(known)
                    return True
        except UnsupportedCase as reason:
            log.debug("a round of %s goes to Spark: %s", self._place.name, reason)
        except UNREADABLE as reason:
            log.info("rounds of %s go to Spark: %s", self._place.name, reason)
            self._refused = shape
            self.close()
        except OSError as failure:
            # Another user's files, or a full disk: Spark raises an error that explains it, or can
            # do the round.
            log.info("a round of %s goes to Spark: %s", self._place.name, failure.strerror)
            self._failures += 1
            self.in_doubt = True
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
        if self._maker is not None:
            self._maker.end()
            self._maker = None
        if self._known is not None:
            self._known.index.close()
            self._known = None

    def _millis(self) -> int:
        return self._clock.now().wall // 1_000_000

    def _current(self, schema: TableSchema) -> _IndexedTable:
        """The table as of now.

        Raises:
            UnsupportedCase, UnknownLog, ValueError: Spark must do its rounds.
            OSError: a file cannot be read.
        """
        if (maker := self._maker) is not None:
            if not maker.done:
                raise UnsupportedCase("the index of its keys is being made")
            self._maker = None
            self._known = maker.result()
        known = self._known
        if known is None:
            table = CommitLog(self._place, self._limits.files)
            if not table.is_exclusive():
                raise ValueError("its store lets two writers write one file")
        else:
            table = known.log
            table.follow()
        if not any(mark.same(self._owner) for mark in marks_of(table.properties)):
            raise ValueError("it is not this feed's table")
        form = _form_of(table, schema, self._sequence)
        if known is None or known.form.indexed != form.indexed:
            self.close()
            rows = sum(map(_rows_of, table.files.values()))
            known = _IndexedTable(table, form, KeyIndex(self._scratch, rows))
            if rows > self._limits.at_once:
                self._maker = _IndexMaker(known, self._limits.indexed)
                raise UnsupportedCase("the index of its keys is made first")
            self._known = known
        known.form = form
        if known.version < table.version:
            known.take_others(self._limits.indexed)
        return known

    def _care_for(self, known: _IndexedTable) -> None:
        """Join small files and write a checkpoint if it is time; the round is committed."""
        table = known.log
        interval = int(table.setting("delta.checkpointInterval") or _CHECKPOINT_INTERVAL)
        try:
            _join_files(known, self._millis(), self._limits.small_files)
            if table.since_checkpoint >= interval:
                table.checkpoint(self._millis())
                if known.index.entries > 2 * known.rows + self._limits.spare_entries:
                    self.close()  # keys of deleted rows: the next round makes another index
        except (UnsupportedCase, OSError, *UNREADABLE) as failure:
            # Readers need neither, and Spark's next commit may write a checkpoint.
            log.warning("no upkeep of %s: %s", self._place.name, type(failure).__name__)
            self.close()


def _commit_round(
    known: _IndexedTable,
    schema: TableSchema,
    files: Sequence[StagedFile],
    notes: CommitNotes,
    millis: int,
) -> bool:
    """Write the rows of staged files and commit them; false: another writer was faster.

    Raises:
        UnsupportedCase, OSError
    """
    staged = [pq.read_table(file.path, page_checksum_verification=True) for file in files]
    rows = pa.concat_tables(staged, promote_options="default").combine_chunks()
    form, versions = known.form, rows[VERSION].combine_chunks()
    values = [
        versions.cast(kind)
        if number < 0
        else table_values(schema.columns[number], rows[f"c{number}"].combine_chunks(), kind)
        for number, kind in zip(form.columns, form.types, strict=True)
    ]
    keys = known.hashing.bits([values[i] for i in form.keys])
    come = whole_numbers(versions)
    deletes = np.asarray(pc.equal(rows[OPERATION], "d")).astype(np.bool_)
    hits = known.index.find(keys)
    if len(np.unique(keys.a)) < len(keys.a):
        raise UnsupportedCase("two rows of one key")
    there, newer = known.alive(hits), come >= hits.has
    marked, kept = there & newer, ~deletes & (newer | ~there)
    gone = known.gone_with(hits, marked)
    draft = _Draft(known.log, millis)
    if notes.application is not None:
        application, number = notes.application
        txn = {"appId": application, "version": number, "lastUpdated": millis}
        draft.actions.append({"txn": txn})
    draft.mark((known.action(number), lost) for number, lost in gone.items())
    new = pa.table(values, form.table_columns).filter(pa.array(kept))
    added = [
        (draft.add(rows, its), at) for its, at, rows in by_partition(new, form.partition_names)
    ]
    inserted, updated = int((kept & ~there).sum()), int((kept & marked).sum())
    deleted = int((deletes & marked).sum())
    metrics = {
        "numSourceRows": len(rows),
        "numTargetRowsInserted": inserted,
        "numTargetRowsUpdated": updated,
        "numTargetRowsDeleted": deleted,
        "numTargetRowsMatchedUpdated": updated,
        "numTargetRowsMatchedDeleted": deleted,
        "numTargetFilesAdded": len(added),
        "numOutputRows": updated + inserted,
    }
    parameters = dict.fromkeys(("predicate", "matchedPredicates", "notMatchedPredicates"), "[]")
    more = {"isolationLevel": "Serializable", "userMetadata": notes.user}
    info = commit_info(known.log.version, millis, "MERGE", parameters, metrics, more)
    if not draft.commit(info):
        return False
    known.take_own(gone)
    for action, at in added:
        known.add_indexed(action, KeyBits(keys.a[kept][at], keys.b[kept][at]), come[kept][at])
    return True


def _join_files(known: _IndexedTable, millis: int, many: int) -> None:
    """Make one file of the many small ones that rounds have left in a partition, in a commit of
    its own.

    Raises:
        OSError, ValueError: a file cannot be read or written.
    """
    small: dict[str, list[int]] = {}
    for path, action in known.log.files.items():
        if path.startswith(_OURS) and action["size"] < _SMALL_FILE:
            partition = json.dumps(action["partitionValues"], sort_keys=True)
            small.setdefault(partition, []).append(known.numbers[path])
    for partition, numbers in small.items():
        if len(numbers) >= many:
            _join(known, numbers, json.loads(partition), millis)


def _join(
    known: _IndexedTable, numbers: Sequence[int], partition: Mapping[str, str | None], millis: int
) -> None:
    table, form = known.log, known.form
    columns = form.table_columns
    kept = [field for field in columns if field.name not in form.partition_names]
    draft, parts = _Draft(table, millis, change=False), []
    for number in numbers:
        action, file = known.action(number), known.files[number]
        draft.remove(action)
        content = pa.BufferReader(table.place.read(action["path"]))
        rows = pq.read_table(content, schema=pa.schema(kept))
        parts.append(rows.filter(pa.array(~file.gone)))
    whole = pa.concat_tables(parts).combine_chunks()
    added = draft.add(whole, partition)
    metrics = {"numAddedFiles": 1, "numRemovedFiles": len(numbers)}
    parameters = {"predicate": "[]", "zOrderBy": "[]"}
    more = {"isolationLevel": "SnapshotIsolation"}
    if draft.commit(commit_info(table.version, millis, "OPTIMIZE", parameters, metrics, more)):
        known.take_own({})
        kinds = {name: columns.field(name).type for name in form.partition_names}
        indexed = with_partition(whole, partition, kinds).select([name for name, _ in form.indexed])
        *key, version = _arrays(indexed)
        known.add_indexed(added, known.hashing.bits(key), _versions(version))


class _Draft:
    """A commit that is being made. ``change``: readers of changes see its rows."""

    def __init__(self, log: CommitLog, millis: int, *, change: bool = True) -> None:
        self.actions: list[Action] = []
        self._log = log
        self._millis = millis
        self._change = change
        self._made: dict[str, pa.Buffer] = {}

    def add(self, rows: pa.Table, partition: Mapping[str, str | None]) -> Action:
        """Make a data file of a partition; returns its ``add`` action."""
        path, content = f"{_OURS}{uuid.uuid4()}.parquet", pa.BufferOutputStream()
        pq.write_table(rows, content, compression="snappy")
        self._made[path] = content.getvalue()
        action = {
            "path": path,
            "partitionValues": dict(partition),
            "size": self._made[path].size,
            "modificationTime": self._millis,
            "dataChange": self._change,
            "stats": _text(statistics(rows)),
        }
        self.actions.append({"add": action})
        return action

    def remove(self, action: Action) -> None:
        """Remove the data file of an ``add`` action."""
        kept = ("path", "partitionValues", "size", "deletionVector", "baseRowId", "tags")
        removed = {name: action[name] for name in kept if name in action} | {
            "deletionTimestamp": self._millis,
            "dataChange": self._change,
            "extendedFileMetadata": True,
        }
        self.actions.append({"remove": removed})

    def mark(self, files: Iterable[tuple[Action, Gone]]) -> None:
        """Make the vectors of files whose rows are gone; a file without a row left is removed."""
        vectors = VectorFile()
        for action, gone in files:
            self.remove(action)
            if not gone.all():
                new = {
                    "deletionVector": vectors.add(gone),
                    "stats": _wide(action, len(gone)),
                    "dataChange": self._change,
                }
                self.actions.append({"add": action | new})
        if not vectors.empty:
            self._made[vectors.name] = pa.py_buffer(vectors.content)

    def commit(self, info: Action) -> bool:
        """Write its files and commit it; false: another writer was faster, and nothing is left.

        Raises:
            OSError: the place failed. The commit may be there.
        """
        try:
            self._log.place.add(self._made)
        except OSError:
            self._remove_made()
            raise
        try:
            committed = self._log.commit([info, *self.actions])
        except OSError:
            if self._log.is_lost(self._millis):
                self._remove_made()
            raise
        if not committed:
            self._remove_made()
        return committed

    def _remove_made(self) -> None:
        with suppress(OSError):  # a VACUUM finds them
            self._log.place.remove(self._made)


def _wide(action: Action, rows: int) -> str:
    """The statistics of a file that loses rows: its bounds are those of its rows, gone ones
    included. The text is changed, not read and written, which would round decimals."""
    text = action.get("stats") or ""
    if WIDE_BOUNDS in text:
        return text
    if text.count(TIGHT_BOUNDS) == 1 and not action.get("deletionVector"):
        return text.replace(TIGHT_BOUNDS, WIDE_BOUNDS)
    return _text({"numRecords": rows, "tightBounds": False})


def _text(stats: Mapping[str, Any]) -> str:
    return json.dumps(stats, separators=(",", ":"))


def _rows_of(action: Action) -> int:
    """How many rows the statistics of a data file say it has."""
    found = json.loads(action.get("stats") or "{}").get("numRecords")
    return found if isinstance(found, int) else 0


def _batches(files: Mapping[str, Action]) -> Iterator[list[str]]:
    """The paths of files in groups of few rows: keys are large while they become bits."""
    batch: list[str] = []
    rows = 0
    for path, action in files.items():
        if batch and rows + _rows_of(action) > _ROWS_AT_ONCE:
            yield batch
            batch, rows = [], 0
        batch.append(path)
        rows += _rows_of(action)
    if batch:
        yield batch


def _arrays(table: pa.Table) -> list[pa.Array]:
    return [column.combine_chunks() for column in table.columns]


def _versions(column: pa.Array) -> Numbers:
    return whole_numbers(pc.fill_null(column, _NO_VERSION))


def _form_of(table: CommitLog, schema: TableSchema, sequence: str) -> _TableForm:
    """How rows of the source's table become rows of this one.

    Raises:
        ValueError: only Spark writes to such a table.
    """
    features = {
        *table.protocol.get("writerFeatures", ()),
        *table.protocol.get("readerFeatures", ()),
    }
    if unknown := features - _FEATURES:
        raise ValueError(f"feature {min(unknown)} of the table")
    if table.setting("delta.enableDeletionVectors") != "true":
        raise ValueError("the table has no deletion vectors")
    for name, value in table.properties.items():
        needs = name in _NEEDS_SPARK and value == "true"
        if needs or name.startswith("delta.constraints."):
            raise ValueError(f"property {name} of the table")
    numbers = {column.name.lower(): i for i, column in enumerate(schema.columns)}
    numbers[sequence.lower()] = -1
    fields = table.fields
    clash = len(numbers) != len(schema.columns) + 1
    if clash or sorted(f["name"].lower() for f in fields) != sorted(numbers):
        raise ValueError("the table has other columns")
    for its in fields:
        if not its.get("nullable", True) or not set(its.get("metadata", {})) <= _COLUMN_PROPERTIES:
            raise ValueError(f"column {its['name']} has a rule")
    columns = tuple(numbers[f["name"].lower()] for f in fields)
    wanted = [spark_type(schema.columns[n].logical) if n >= 0 else "bigint" for n in columns]
    if [f["type"] for f in fields] != [delta_type(name) for name in wanted]:
        raise ValueError("the table has columns of other types")
    try:
        types = tuple(arrow_type(f["type"]) for f in fields)
    except UnsupportedCase as reason:
        raise ValueError(str(reason)) from reason
    keys = tuple(columns.index(number) for number in schema.key)
    if any(pa.types.is_floating(types[i]) for i in keys):
        raise ValueError("a key of floating-point numbers")
    divided = set(table.metadata.get("partitionColumns") or ())
    partitions = tuple(i for i, its in enumerate(fields) if its["name"] in divided)
    if len(partitions) < len(divided) or not all(is_partition_type(types[i]) for i in partitions):
        raise ValueError("the table has partitions by values of another type")
    return _TableForm(
        columns,
        types,
        tuple(map(physical_name, fields)),
        tuple(f.get("metadata", {}).get(COLUMN_ID) for f in fields),
        keys,
        columns.index(-1),
        partitions,
    )

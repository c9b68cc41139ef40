"""A Delta table whose keys are in an index: what the node knows of its files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import ClassVar
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sinks.lake.small.commit_log import Action, CommitLog, FileKey, file_key, rows_of
from sinks.lake.small.key_index import (
    Flags,
    KeyBits,
    KeyHash,
    KeyHits,
    KeyIndex,
    Numbers,
    whole_numbers,
)
from sinks.lake.small.partitions import with_partition
from sinks.lake.small.table_form import TableForm
from sinks.lake.small.values import UnsupportedCase
from sinks.lake.small.vectors import Gone, read_vector

#: The version of a row to which another writer gave none: older than every other.
_NO_VERSION = -(2**63)
#: Rows that the index takes at once.
_ROWS_AT_ONCE = 1_000_000


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
class IndexedTable:
    """A table whose keys are in an index.

    Attributes:
        version: the version of the table that the index has.
        files: the table's files by the numbers that the index has for them.
        numbers: the numbers by path.
    """

    log: CommitLog
    form: TableForm
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
        if self.log.rows > most:
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
        *columns, has = arrays_of(pa.concat_tables(keys))
        if any(column.null_count for column in columns):
            raise ValueError("a row has no value in its key")
        bits = self.hashing.bits(columns)
        known = self.index.entries and self.alive(self.index.find(bits)).any()
        new = bits, np.concatenate(numbers), np.concatenate(places), versions_of(has)
        if known or not self.index.add(*new):
            raise ValueError("the table has a key twice")


class IndexMaker:
    """Makes the index of a large table in a thread of its own, one after the other."""

    _turn: ClassVar[threading.Lock] = threading.Lock()  # each takes half a gigabyte of memory

    def __init__(self, table: IndexedTable, most: int) -> None:
        self._table = table
        self._most = most
        self._ended = threading.Event()
        self._made: Future[IndexedTable] = Future()
        threading.Thread(target=self._make, name="lake-index", daemon=True).start()

    @property
    def done(self) -> bool:
        return self._made.done()

    def result(self) -> IndexedTable:
        """The table with its index, as of when its log was read; only when it is done.

        Raises:
            UnsupportedCase, ValueError, OSError: see :meth:`IndexedTable.take_others`.
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


def _batches(files: Mapping[str, Action]) -> Iterator[list[str]]:
    """The paths of files in groups of few rows: keys are large while they become bits."""
    batch: list[str] = []
    rows = 0
    for path, action in files.items():
        if batch and rows + rows_of(action) > _ROWS_AT_ONCE:
            yield batch
            batch, rows = [], 0
        batch.append(path)
        rows += rows_of(action)
    if batch:
        yield batch


def arrays_of(table: pa.Table) -> list[pa.Array]:
    return [column.combine_chunks() for column in table.columns]


def versions_of(column: pa.Array) -> Numbers:
    return whole_numbers(pc.fill_null(column, _NO_VERSION))

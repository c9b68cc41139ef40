"""A dataset as a source of changefeeds: ``dataset:///path/config.yaml``, or the URI of a
:class:`.definition.Definition`, which FOR DATASET makes.

Each comparison is one transaction: its I, U and D rows are inserts, updates and deletes. A place in
the log is the number of a version. The changes between two versions are the history partition
that names both, so a feed that was paused for a while reads what it missed from the history.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from changefeed.core.clock import SYSTEM_CLOCK, Clock, Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import ChangeBatch, Commits, Flush, Frontier, Position, SchemaChange
from changefeed.core.partition import Partition
from changefeed.core.schema import KeyRange, TableName, TableSchema
from changefeed.core.types import Kind
from changefeed.dataset.config import read_config
from changefeed.dataset.definition import definition_of
from changefeed.dataset.model import IN_CURRENT, OPERATION, SCHEMA, Dataset, Operation
from changefeed.dataset.store import ComparisonRun, DatasetFolders, check_file
from changefeed.query.types import log_text, output_column
from changefeed.sources.base import (
    DEFAULT_PART_BYTES,
    Attachment,
    CaptureResult,
    KeySet,
    Memo,
    Snapshot,
    Source,
    Stream,
    StreamRequest,
    TableInfo,
    Watch,
    range_of,
)

#: How often a stream looks for a new version.
POLL_SECONDS = 1.0
#: Rows of one flush.
BATCH_ROWS = 32_768

_OPS = {Operation.INSERT: "c", Operation.UPDATE: "u", Operation.DELETE: "d"}
_SAME = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "timestamp_ltz": "timestamp",
}
_DECIMAL = re.compile(r"(?:decimal|dec|numeric)(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?\Z")


class DatasetSource(Source):
    """The dataset of a configuration, as a source with one table."""

    def __init__(self, name: str, uri: str) -> None:
        self.name = name
        parts = urlsplit(uri)
        path = unquote(parts.path)
        self._defined: Dataset | None = None
        if parts.query and not parts.netloc:
            self._defined = definition_of(uri).dataset
        elif parts.netloc or not path.endswith((".yaml", ".yml")):
            raise ChangefeedError(
                Code.INVALID_URI,
                f"the URI of connection {name} does not name the configuration of a dataset"
                if name
                else "the URI does not name the configuration of a dataset",
                hint="write it as dataset:///path/config.yaml.",
            )
        self._path = Path(path)

    @property
    def dataset(self) -> Dataset:
        """As the configuration has it now."""
        return self._defined or read_config(self._path)

    def store(self) -> DatasetFolders:
        """Its folders."""
        return DatasetFolders(self.dataset)

    def identity(self) -> str:
        return str(self.dataset.current)

    def attach(self, owner: str, memo: Memo | None) -> DatasetAttachment:
        return DatasetAttachment(self, memo)

    def _table(self, dataset: Dataset) -> TableName:
        return TableName(self.name, SCHEMA, dataset.name)

    def tables(self) -> list[TableInfo]:
        dataset, latest = self.dataset, self.store().latest()
        counts = {} if latest is None else latest.counts
        size = 0 if latest is None else sum(f.stat().st_size for f in _files(latest.rows))
        return [
            TableInfo(
                name=self._table(dataset),
                key=tuple(column.name for column in dataset.keys),
                identity="key",
                rows_estimate=sum(n for o, n in counts.items() if o != Operation.DELETE),
                bytes=size,
                kind="table",
            )
        ]

    def describe(self, schema: str | None, name: str) -> TableSchema:
        dataset = self.dataset
        if name != dataset.name or schema not in (None, SCHEMA):
            raise ChangefeedError(
                Code.NAME_UNKNOWN,
                f'dataset "{name}" does not exist',
                hint=f"connection {self.name} has {SCHEMA}.{dataset.name}.",
            )
        columns = tuple(
            output_column(column.name, _plain_type(column.type)) for column in dataset.open_columns
        )
        for column in columns:
            if column.kind is Kind.BYTES:
                raise ChangefeedError(
                    Code.TARGET_NOT_WATCHABLE,
                    f"column {column.name} of dataset {name} is binary",
                    hint="use text.",
                )
        key = tuple(i for i, column in enumerate(dataset.open_columns) if column.key)
        return TableSchema(self._table(dataset), columns, key)

    def matching(self, schema: str | None, patterns: Sequence[str] = ()) -> list[TableName]:
        table = self._table(self.dataset)
        if schema not in (None, SCHEMA):
            raise ChangefeedError(Code.NAME_UNKNOWN, f'schema "{schema}" does not exist')
        texts = (table.name, f"{table.schema}.{table.name}")
        fits = not patterns or any(fnmatchcase(t, p) for t in texts for p in patterns)
        return [table] if fits else []

    def current_position(self) -> Position:
        return _position(self.newest())

    def newest(self) -> int:
        """The number of the current version; 0 before the first."""
        latest = self.store().latest()
        return 0 if latest is None else latest.number

    def range_problem(self, table: TableSchema, keys: KeyRange) -> ChangefeedError | None:
        return _no_ranges() if _limits(keys) else None

    def snapshot(self, tables: Sequence[TableSchema] = ()) -> Snapshot:
        return DatasetSnapshot(self.store())


class DatasetAttachment(Attachment):
    """Nothing is held at a dataset: its history is kept anyway."""

    def __init__(self, source: DatasetSource, memo: Memo | None) -> None:
        self._source = source
        self._memo: Memo = memo or {}

    @property
    def memo(self) -> Memo:
        return self._memo

    @property
    def holds(self) -> str:
        return "the history of the dataset"

    def check(self, watches: Sequence[Watch]) -> list[ChangefeedError]:
        problems = []
        for watch in watches:
            try:
                self._source.describe(watch.schema, watch.name)
            except ChangefeedError as error:
                error.span = watch.span
                problems.append(error)
        return problems

    def capture(self, tables: Sequence[TableName], *, resume: bool) -> CaptureResult:
        if "begin" not in self._memo:
            self._memo = {"begin": self._source.newest()}
        return CaptureResult()

    def start(self) -> tuple[Position, str]:
        if "begin" not in self._memo:
            raise ChangefeedError(
                Code.SOURCE_LOG_GONE, f"dataset {self._source.name} was not captured"
            )
        return _position(self._memo["begin"]), ""

    def stream(self, request: StreamRequest) -> Stream:
        if request.identity and request.identity != self._source.identity():
            raise ChangefeedError(
                Code.SOURCE_IS_ANOTHER, f"{self._source.name} is another dataset than before"
            )
        return DatasetStream(self._source, request)

    def release(self) -> None:
        self._memo = {}


class DatasetStream:
    """The versions after a frontier, as transactions."""

    def __init__(
        self, source: DatasetSource, request: StreamRequest, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._source = source
        self._request = request
        self._closed = threading.Event()
        #: Set when the next look should not wait.
        self._wake = threading.Event()
        self._clock = clock

    def __iter__(self) -> Iterator[Flush]:
        frontier = self._request.start
        while not self._closed.is_set():
            run = self._source.store().run_after(int(frontier.position))
            if run is None:
                frontier = Frontier(self._above(frontier), frontier.position, frontier.seq)
                yield Flush((), frontier)
                self._clock.wait(self._wake, POLL_SECONDS)
                self._wake.clear()
                continue
            for flush in self._transaction(run, frontier):
                yield flush
                frontier = flush.frontier or frontier

    def _above(self, frontier: Frontier) -> Timestamp:
        return max(self._clock.now(), frontier.at.next())

    def acknowledge(self, position: Position) -> None:
        """Nothing: the history stays."""

    def hasten(self) -> None:
        """Somebody waits for the frontier: look now."""
        self._wake.set()

    def close(self) -> None:
        self._closed.set()
        self._wake.set()

    def _transaction(self, run: ComparisonRun, before: Frontier) -> Iterator[Flush]:
        """The net changes of a comparison: parts without a frontier, then the end."""
        at, seq, ordinal = self._above(before), before.seq, 0
        name = self._source.dataset.name
        schema = self._request.intern(self._source.describe(SCHEMA, name))
        known = self._request.latest(schema.table)
        if known is not None and known.fingerprint() != schema.fingerprint():
            seq += 1
            yield Flush((SchemaChange(known, schema, at, seq),), None)
        try:
            for operation, op in _OPS.items():
                for values in _rows(run.files(operation), schema):
                    rows = _changes(schema, values, op, at, seq, ordinal, run.number)
                    seq, ordinal = seq + len(rows), ordinal + len(rows)
                    yield Flush((ChangeBatch(schema, rows),), None)
        except FileNotFoundError as error:
            raise self._replaced(run) from error
        if self._source.store().run_after(run.base) != run:
            raise self._replaced(run)
        position = _position(run.number)
        commits = Commits((at.wall,), (at.logical,), (position,), (run.number,))
        yield Flush((), Frontier(at, position, seq), commits)

    def _replaced(self, run: ComparisonRun) -> ChangefeedError:
        return ChangefeedError(
            Code.STREAM_BROKE,
            f"version {run.number} of dataset {self._source.dataset.name} was replaced while its "
            "changes were read",
        )


class DatasetSnapshot(Snapshot):
    """The current dataset at one version."""

    def __init__(self, store: DatasetFolders) -> None:
        self._version = store.latest()

    @property
    def position(self) -> Position:
        return _position(0 if self._version is None else self._version.number)

    def parts(
        self,
        table: TableSchema,
        target_bytes: int = DEFAULT_PART_BYTES,
        *,
        columns: Sequence[int] | None = None,
        keys: KeyRange | KeySet | None = None,
        partition: Partition | None = None,
    ) -> Sequence[DatasetPart]:
        keys = range_of(keys)
        if partition is not None or (keys is not None and _limits(keys)):
            raise _no_ranges()
        files = [] if self._version is None else _files(self._version.rows)
        return [DatasetPart(table, file) for file in files]

    def close(self) -> None:
        """Nothing is held."""


class DatasetPart:
    """One file of the current dataset."""

    def __init__(self, table: TableSchema, file: Path) -> None:
        self.table = table
        self._file = file

    @property
    def rows_estimate(self) -> int:
        return int(pq.read_metadata(self._file).num_rows)

    @property
    def bytes_estimate(self) -> int:
        return self._file.stat().st_size

    def read(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from _file_rows(self._file, self.table)
        except FileNotFoundError as error:
            raise ChangefeedError(
                Code.SCAN_INTERRUPTED, "the dataset was compared twice during the scan"
            ) from error


def _limits(keys: KeyRange) -> bool:
    return keys.low is not None or keys.high is not None


def _no_ranges() -> ChangefeedError:
    return ChangefeedError(
        Code.NOT_SUPPORTED, "a dataset has no key ranges and no partitions to watch"
    )


def _files(folder: Path) -> list[Path]:
    kept = {f"{OPERATION}={operation}" for operation in IN_CURRENT}
    return sorted(f for f in folder.glob("*/*.parquet") if f.parent.name in kept)


def _rows(files: Sequence[Path], schema: TableSchema) -> Iterator[pa.RecordBatch]:
    for file in files:
        yield from _file_rows(file, schema)


def _file_rows(file: Path, schema: TableSchema) -> Iterator[pa.RecordBatch]:
    """Rows of a file as columns ``a0..an`` in log form; raises as :func:`check_file`."""
    check_file(file)
    with pq.ParquetFile(file) as parquet:
        there = set(parquet.schema_arrow.names)
        for batch in parquet.iter_batches(BATCH_ROWS):
            columns = []
            for column in schema.columns:
                if column.name in there:
                    columns.append(log_text(column, _without_exponents(batch[column.name])))
                else:
                    columns.append(pa.nulls(len(batch), column.arrow))
            yield pa.record_batch(columns, names=[f"a{i}" for i in range(len(columns))])


def _without_exponents(values: pa.Array) -> pa.Array:
    """Decimals as text; Arrow writes very small ones as ``1E-7``."""
    if not pa.types.is_decimal(values.type):
        return values
    text = values.cast(pa.string())
    if not pc.any(pc.match_substring(text, "E")).as_py():
        return text
    return pa.array([None if v is None else format(v, "f") for v in values.to_pylist()])


def _changes(
    schema: TableSchema,
    values: pa.RecordBatch,
    op: str,
    at: Timestamp,
    seq: int,
    ordinal: int,
    number: int,
) -> pa.RecordBatch:
    """Rows in log form as changes of one transaction."""
    count = len(values)
    made: dict[str, pa.Array] = {
        "op": pa.repeat(op, count),
        "wall": pa.repeat(at.wall, count),
        "logical": pa.repeat(at.logical, count),
        "seq": pa.array(range(seq + 1, seq + 1 + count), pa.int64()),
        "ord": pa.array(range(ordinal, ordinal + count), pa.int32()),
        "xid": pa.repeat(number, count),
        "commit_us": pa.repeat(at.wall // 1000, count),
        "last": pa.repeat(True, count),
        "missing": pa.nulls(count, pa.string()),
    }
    gone = op == "d"
    for i, column in enumerate(schema.columns):
        made[f"a{i}"] = pa.nulls(count, column.arrow) if gone else values[f"a{i}"]
    for i in schema.before_ordinals:
        made[f"b{i}"] = values[f"a{i}"] if gone else pa.nulls(count, schema.columns[i].arrow)
    wanted = schema.log_schema()
    return pa.record_batch([made[f.name].cast(f.type) for f in wanted], schema=wanted)


def _plain_type(text: str) -> str:
    """The type as Spark calls it: ``long`` is ``bigint``."""
    folded = text.lower().replace(" ", "")
    match = _DECIMAL.match(folded)
    if match:
        return f"decimal({match[1] or 10},{match[2] or 0})"
    return _SAME.get(folded, folded)


def _position(number: int) -> Position:
    return f"{number:012d}"

"""Rounds, control events and progress: what is committed when, and what a feed knows after it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from changefeed.catalog import Catalog
from changefeed.catalog.model import JobSpec, TableProgress, TableState
from changefeed.core.clock import SYSTEM_CLOCK, Timestamp
from changefeed.core.errors import ChangefeedError, Code, Scope
from changefeed.core.events import SchemaChange, Truncate
from changefeed.core.schema import BeforeImage, Column, TableName, TableSchema
from changefeed.core.sizes import Sizes
from changefeed.core.table_errors import TableError, TableFailure
from changefeed.core.timings import Timings
from changefeed.core.types import LogicalType
from changefeed.feeds.checkpoint import Checkpoint
from changefeed.feeds.chunks import SLICE_BYTES, ControlItem, items
from changefeed.feeds.delivery import Delivery
from changefeed.feeds.feed import Feed
from changefeed.feeds.message_cache import MessageCache
from changefeed.log import LogPiece
from changefeed.scan.admission import ScanStopped
from changefeed.scan.host import scan_progress_key
from changefeed.scan.table import joined, read_parts
from sinks.base import Batch, Epoch, Receipt
from tests.helpers.waiting import until

A, B, C = (TableName("shop", "public", name) for name in "abc")


def shape(table: TableName) -> TableSchema:
    column = Column("k", "integer", LogicalType.parse("int32"), False, 1)
    return TableSchema(table, (column,), (0,), version=1)


def at(n: int) -> Timestamp:
    return Timestamp(n * 10)


@dataclass(frozen=True)
class Instants:
    """The rows of a piece: one for each instant."""

    instants: tuple[int, ...]

    def find(self, piece: LogPiece) -> pa.Table:
        fixed = {"op": "c", "logical": 0, "ord": 0, "xid": 1, "commit_us": 0, "last": True}
        rows = [fixed | {"wall": at(n).wall, "seq": n, "a0": n} for n in self.instants]
        return pa.Table.from_pylist(rows, schema=piece.schema.log_schema())


@dataclass(frozen=True)
class Texts:
    """The rows of a piece: one for each text."""

    texts: tuple[str, ...]

    def find(self, piece: LogPiece) -> pa.Table:
        made = Instants((piece.first_seq,)).find(replace(piece, schema=shape(A)))
        row = made.to_pylist()[0]
        rows = [row | {"a0": text} for text in self.texts]
        return pa.Table.from_pylist(rows, schema=piece.schema.log_schema())


@dataclass(frozen=True)
class Twice:
    """Two writes of one transaction to one row; a column of the second may not have been sent."""

    missing: str | None

    def find(self, piece: LogPiece) -> pa.Table:
        first, second = Instants((2, 2)).find(piece).to_pylist()
        rows = [
            first | {"seq": piece.first_seq, "last": False},
            second | {"seq": piece.last_seq, "op": "u", "missing": self.missing},
        ]
        return pa.Table.from_pylist(rows, schema=piece.schema.log_schema())


REFUSED_ROW = 3


class EveryRow:
    """A CDC query that selects everything."""

    def __init__(self) -> None:
        #: Of each chunk whether it was to give superseded rows, too.
        self.superseded: list[bool] = []

    def compiled(self, schema: TableSchema) -> Any:
        return SimpleNamespace(schema=schema, shape=None)

    def rows(
        self, schema: TableSchema, rows: pa.Table, plan: object, *, superseded: bool
    ) -> pa.Table:
        self.superseded.append(superseded)
        return rows


class MadePiece(LogPiece):
    """A piece without a log."""

    __slots__ = ()

    def load(self) -> pa.Table:
        return self._finder.find(self)


def rows_of(table: TableName, *instants: int) -> LogPiece:
    """A piece with a row for each instant."""
    return MadePiece(
        schema=shape(table),
        rows=len(instants),
        bytes=1,
        has_superseded=False,
        has_unsent=False,
        clean=frozenset(),
        first=at(instants[0]),
        last=at(instants[-1]),
        first_seq=instants[0],
        last_seq=instants[-1],
        path=None,
        row_group=None,
        whole=False,
        _parts=(),
        _store=cast(Any, None),
        _finder=Instants(instants),
    )


@dataclass
class FakeLog:
    """Gives out slices that were made before."""

    slices: list[tuple[int, list[Any]]]
    oldest: Timestamp = Timestamp.ZERO
    error: ChangefeedError | None = None
    max_bytes: int = 0
    #: The threads that have read it.
    readers: list[threading.Thread] = field(default_factory=list)

    def slice(
        self, bounds: Mapping[TableName, Timestamp], upto: Timestamp, max_rows: int, max_bytes: int
    ) -> Any:
        self.max_bytes = max_bytes
        self.readers.append(threading.current_thread())
        if self.error is not None:
            raise self.error
        end, events = self.slices.pop(0)
        controls = [e for e in events if not isinstance(e, LogPiece)]
        return SimpleNamespace(upto=at(end), events=events, control_events=controls)


@dataclass
class FakeSinkSession:
    """Writes down what it was told."""

    round_rows: int = 0
    evolves: bool = True
    takes_rows: bool = True
    done: list[Any] = field(default_factory=list)
    refuse: str = ""
    #: Where the rounds ended.
    ends: list[int] = field(default_factory=list)

    def write(self, batch: Batch) -> Receipt:
        self.done.append(("write", batch.epoch.number, batch.rows["a0"].to_pylist()))
        return Receipt(batch.partition, batch.rows.num_rows, 1)

    def commit(
        self,
        epoch: Epoch,
        receipts: Sequence[Receipt],
        tables: object,
        progress: Mapping[TableName, Timestamp],
    ) -> None:
        if receipts:
            places = {table.name: place.wall for table, place in progress.items()}
            self.ends.append(epoch.upto.wall)
            self.done.append(("commit", sum(r.rows for r in receipts), places))

    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        self.done.append(("abort", sum(r.rows for r in receipts)))

    def truncate(self, event: Truncate) -> None:
        self.done.append("truncate")

    def evolve(self, event: SchemaChange) -> None:
        self.done.append("evolve")
        if self.refuse:
            raise ChangefeedError(self.refuse, "cannot follow")


class Bench:
    """A feed of three tables, and what its sink is told."""

    def __init__(self, catalog: Catalog, sink: str = "null://", **options: str) -> None:
        spec = JobSpec(
            source="shop",
            targets=("TABLE a",),
            tables=tuple(TableProgress(name, name.name, scan_wanted=False) for name in (A, B, C)),
            sink_uri=sink,
            options=options,
        )
        self.catalog = catalog
        job = catalog.create_job(spec)
        lease = catalog.acquire_lease(job.id, "n", 60)
        assert lease is not None
        self.feed = Feed(catalog, job, lease)
        for name in (A, B, C):
            self.feed.update(name, state=TableState.RUNNING, done_upto=at(1))
        self.sink_session = FakeSinkSession()
        self.commits = 0
        self.shared = MessageCache()
        #: The last delivery.
        self.delivery: Delivery | None = None

    def deliver(
        self,
        *slices: tuple[int, list[Any]],
        upto: int | None = None,
        on_schema_change: Callable[[SchemaChange], None] = lambda event: None,
        on_rename: Callable[[SchemaChange], None] = lambda event: None,
        interrupted: Callable[[], bool] = lambda: False,
        log: FakeLog | None = None,
        scanned: bool = False,
        ahead: int = 1000,
        tables: Sequence[TableName] = (A, B, C),
        times: int = 1,
    ) -> int:
        """``times``: how often the same delivery moves the tables from the same bounds."""
        log = log or FakeLog(list(slices))
        made = self.delivery = Delivery(
            "f",
            log,
            self.shared,
            cast(Any, self.sink_session),
            Sizes(ahead_rows=ahead),
        )

        def committed() -> None:
            self.commits += 1

        bounds = {name: self.feed.tables[name].done_upto or at(0) for name in tables}
        told = {"scanned": True} if scanned else {}
        total = 0
        try:
            for _ in range(times):
                total += made.deliver(
                    self.feed,
                    bounds,
                    at(upto or slices[-1][0]),
                    on_schema_change=on_schema_change,
                    on_rename=on_rename,
                    after_commit=committed,
                    interrupted=interrupted,
                    **told,
                )
        finally:
            made.close()
        return total

    def done(self, *tables: TableName) -> list[int]:
        """How far tables are, in steps."""
        return [(self.feed.tables[name].done_upto or Timestamp.ZERO).wall for name in tables]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    catalog = Catalog.open(str(tmp_path))
    yield Bench(catalog)
    catalog.close()


@pytest.mark.parametrize(
    ("delivery", "scanned", "expected"),
    [
        ("at_least_once", True, [2, 5, 6, 7]),
        ("exactly_once", True, [2, 5, 6]),
        ("exactly_once", False, [2, 5, 6, 7]),
    ],
)
def test_what_the_scan_tells_is_told_once(
    tmp_path: Path, delivery: str, scanned: bool, expected: list[int]
) -> None:
    """Rows written at the scan's own instant come with its rows; their deletes do not."""
    catalog = Catalog.open(str(tmp_path))
    bench = Bench(catalog, "kafka://127.0.0.1:1", delivery=delivery)
    bench.sink_session.takes_rows = False
    written: list[tuple[int, bytes]] = []

    def write(batch: Batch) -> Receipt:
        written.extend(zip(*(batch.rows[n].to_pylist() for n in ("wall", "key")), strict=True))
        return Receipt(batch.partition, batch.rows.num_rows, 1)

    bench.sink_session.write = write  # type: ignore[method-assign]
    bench.deliver((5, [rows_of(A, 2, 5)]), (7, [rows_of(A, 6, 7)]), scanned=scanned)
    catalog.close()
    assert [wall // 10 for wall, _ in written] == expected


def test_transactions_are_told_after_their_changes_and_once(tmp_path: Path) -> None:
    """Also by a feed whose log is read again from before what it has told."""
    catalog = Catalog.open(str(tmp_path))
    bench = Bench(catalog, "kafka://127.0.0.1:1", transaction_metadata="")
    bench.sink_session.takes_rows = False
    written: list[Any] = []

    def write(batch: Batch) -> Receipt:
        for value in batch.rows["value"].to_pylist():
            told = json.loads(value)
            place = told.get("transaction")
            written.append(
                (told["status"], told["id"], told["event_count"])
                if "status" in told
                else (place["id"], place["total_order"])
            )
        return Receipt(batch.partition, batch.rows.num_rows, 1)

    bench.sink_session.write = write  # type: ignore[method-assign]
    # Each slice is read twice: to number its changes, and to deliver them.
    bench.deliver(*[(5, [rows_of(A, 2, 5), rows_of(B, 4)])] * 2)
    assert written[:3] == [(f"1:{at(n)}", 1) for n in (2, 5, 4)]
    assert written[3:] == [
        told
        for n in (2, 4, 5)
        for told in (("BEGIN", f"1:{at(n)}", None), ("END", f"1:{at(n)}", 1))
    ]
    written.clear()
    bench.deliver(*[(7, [rows_of(A, 7)])] * 2)
    last = f"1:{at(7)}"
    assert written == [(last, 1), ("BEGIN", last, None), ("END", last, 1)]
    catalog.close()


def keep_boundaries(bench: Bench) -> list[bytes]:
    """The values of the BEGIN and END messages that the sink is told."""
    told: list[bytes] = []

    def write(batch: Batch) -> Receipt:
        assert batch.rows.num_rows, "an empty batch is written"
        told.extend(v for v in batch.rows["value"].to_pylist() if b"status" in v)
        return Receipt(batch.partition, batch.rows.num_rows, 1)

    bench.sink_session.takes_rows = False
    bench.sink_session.write = write  # type: ignore[method-assign]
    return told


@pytest.mark.parametrize(
    ("envelope", "begins"),
    [("wrapped", b'{"status": "BEGIN", "id": "1:'), ("debezium", b'{"status":"BEGIN","id":"1:')],
)
def test_transactions_are_told_as_the_envelope_is_written(
    tmp_path: Path, envelope: str, begins: bytes
) -> None:
    catalog = Catalog.open(str(tmp_path))
    catalog.create_connection("shop", "postgresql://nobody@127.0.0.1:1/shop")
    bench = Bench(catalog, "kafka://127.0.0.1:1", transaction_metadata="", envelope=envelope)
    told = keep_boundaries(bench)
    bench.deliver(*[(5, [rows_of(A, 2)])] * 2)
    assert [value.startswith(begins) for value in told] == [True, False]
    catalog.close()


def test_a_slice_without_transactions_tells_of_none(tmp_path: Path) -> None:
    catalog = Catalog.open(str(tmp_path))
    bench = Bench(catalog, "kafka://127.0.0.1:1", transaction_metadata="")
    told = keep_boundaries(bench)
    bench.deliver(*[(5, [])] * 2)
    assert told == [] and bench.done(A) == [50]
    catalog.close()


def test_a_delivery_that_goes_back_does_not_tell_of_transactions_again(tmp_path: Path) -> None:
    """One table that is behind catches up: the others' transactions are told, to the last."""
    catalog = Catalog.open(str(tmp_path))
    bench = Bench(catalog, "kafka://127.0.0.1:1", transaction_metadata="")
    told = keep_boundaries(bench)
    bench.deliver(*[(5, [rows_of(A, 2, 5), rows_of(B, 4)])] * 4, times=2)
    assert len(told) == 6
    catalog.close()


@pytest.mark.parametrize(
    ("options", "shared"), [({}, (1, 1)), ({"transaction_metadata": ""}, (0, 0))], ids=str
)
def test_feeds_share_what_does_not_depend_on_their_other_tables(
    tmp_path: Path, options: dict[str, str], shared: tuple[int, int]
) -> None:
    """A change's number in its transaction does."""
    catalog = Catalog.open(str(tmp_path))
    cache = MessageCache()
    cache.feeds = 2
    for _ in range(2):
        bench = Bench(catalog, "kafka://127.0.0.1:1", **options)
        bench.shared = cache
        keep_boundaries(bench)
        slices = [(5, [rows_of(A, 2, 5)])] * (2 if options else 1)
        assert bench.deliver(*slices) == 2
    assert (cache.hits, cache.misses) == shared
    catalog.close()


@pytest.mark.parametrize("rescanned", [False, True])
@pytest.mark.parametrize("typed", [False, True])
def test_rows_without_their_old_values_stop_a_table_whose_messages_have_them(
    tmp_path: Path, typed: bool, rescanned: bool
) -> None:
    """Only where messages are made of them, and not while the table is scanned again."""
    catalog = Catalog.open(str(tmp_path))
    bench = Bench(catalog, "kafka://127.0.0.1:1", diff="")
    bench.sink_session.takes_rows = typed
    bench.sink_session.write = (  # type: ignore[method-assign]
        lambda batch: Receipt(batch.partition, batch.rows.num_rows, 1)
    )
    bench.feed.update(A, scan_wanted=rescanned)
    if typed or rescanned:
        assert bench.deliver((5, [rows_of(A, 2)])) == 1
    else:
        with pytest.raises(TableError, match="logs only its key now") as caught:
            bench.deliver((5, [rows_of(A, 2)]))
        assert caught.value.table == A and bench.done(A) == [10]
    catalog.close()


def test_what_the_log_knows_of_its_texts_says_nothing_of_a_query(tmp_path: Path) -> None:
    """Its result has other columns in their places, whose texts may need escapes."""
    catalog = Catalog.open(str(tmp_path))
    bench = Bench(catalog, "kafka://127.0.0.1:1")
    column = Column("k", "text", LogicalType.parse("text"), False, 1)
    piece = replace(
        rows_of(A, 2),
        schema=replace(shape(A), columns=(column,)),
        clean=frozenset({"a0"}),
        _finder=Texts(('"',)),
    )
    values: list[bytes] = []

    def write(batch: Batch) -> Receipt:
        values.extend(batch.rows["value"].to_pylist())
        return Receipt(batch.partition, batch.rows.num_rows, 1)

    bench.sink_session.takes_rows = False
    bench.sink_session.write = write  # type: ignore[method-assign]
    bench.feed.query = cast(Any, EveryRow())
    bench.deliver((5, [piece]))
    assert [json.loads(value)["after"] for value in values] == [{"k": '"'}]
    catalog.close()


@pytest.mark.parametrize(
    ("missing", "beside", "superseded"),
    [(None, False, False), (None, True, True), ('["v"]', False, True)],
)
def test_superseded_rows_go_to_the_sink_where_they_know_what_another_lacks(
    bench: Bench, missing: str | None, beside: bool, superseded: bool
) -> None:
    """A row of their chunk, or one of their transaction in the chunk beside it."""
    text = Column("v", "text", LogicalType.parse("text"), True, 2)
    schema = replace(shape(A), columns=(*shape(A).columns, text))
    changed = replace(schema, columns=(*shape(A).columns, replace(text, name="w")))
    twice, after = (
        replace(rows_of(A, first, first + 1), first=at(2), last=at(2)) for first in (2, 4)
    )
    twice = replace(twice, schema=schema, _finder=Twice(missing))
    after = replace(after, schema=changed, has_unsent=True, _finder=Twice(None))
    query = EveryRow()
    bench.feed.query = cast(Any, query)
    bench.deliver((5, [twice, after] if beside else [twice]))
    rows = [2, 2] if superseded else [2]
    assert bench.sink_session.done[0] == ("write", 1, rows)
    assert query.superseded[0] is superseded


THREE = ((5, [rows_of(A, 2, 5)]), (7, [rows_of(B, 7)]), (9, [rows_of(A, 8), rows_of(B, 9)]))


@pytest.mark.parametrize("ahead", [0, 3, 10**9])
def test_every_slice_is_committed(bench: Bench, ahead: int) -> None:
    """Whether the next chunk is encoded while this one is written, or after it."""
    assert bench.deliver(*THREE, ahead=ahead) == 5
    commits = [c for c in bench.sink_session.done if c[0] == "commit"]
    assert commits == [
        ("commit", 2, {"a": 50}),
        ("commit", 1, {"b": 70}),
        ("commit", 2, {"a": 90, "b": 90}),
    ]
    assert bench.done(A, B, C) == [90, 90, 90]
    assert bench.commits == 3


def test_a_few_rows_are_encoded_in_the_feeds_thread(bench: Bench) -> None:
    """During a backlog another one prepares what comes next."""
    log = FakeLog([*THREE])
    bench.deliver(log=log, upto=9)
    assert {t.name for t in log.readers} == {threading.current_thread().name}
    log = FakeLog([*THREE])
    bench.deliver(log=log, upto=9, ahead=3)
    assert [t.name.startswith("encode-f") for t in log.readers] == [False, False, True]


def test_a_round_is_as_large_as_the_sink_likes(bench: Bench) -> None:
    bench.sink_session.round_rows = 3
    bench.deliver(*THREE)
    commits = [c for c in bench.sink_session.done if c[0] == "commit"]
    assert commits == [("commit", 3, {"a": 70, "b": 70}), ("commit", 2, {"a": 90, "b": 90})]
    epochs = [c[1] for c in bench.sink_session.done if c[0] == "write"]
    assert epochs == [1, 1, 2, 2]
    assert bench.commits == 2


def test_what_is_delivered_is_counted_by_table(bench: Bench) -> None:
    bench.sink_session.round_rows = 1000
    bench.deliver(*THREE)
    counted = {name: bench.feed.tables[name] for name in (A, B, C)}
    assert [t.emitted_rows for t in counted.values()] == [3, 2, 0]
    assert [t.emitted_bytes for t in counted.values()] == [2, 2, 0]


def test_a_sink_may_have_enough_after_any_slice(bench: Bench) -> None:
    bench.sink_session.round_rows = 1000
    write = bench.sink_session.write

    def full(batch: Batch) -> Receipt:
        bench.sink_session.round_rows = 0
        return write(batch)

    bench.sink_session.write = full  # type: ignore[method-assign]
    bench.deliver(*THREE)
    assert [c[1] for c in bench.sink_session.done if c[0] == "commit"] == [2, 1, 2]


def test_a_round_ends_where_something_else_waits(bench: Bench) -> None:
    bench.sink_session.round_rows = 1000
    bench.deliver(*THREE, interrupted=lambda: True)
    assert [c for c in bench.sink_session.done if c[0] == "commit"] == [("commit", 2, {"a": 50})]
    assert bench.sink_session.ends == [50], "what lies beyond is not in it"
    assert bench.done(A, B, C) == [50, 50, 50]


def test_nothing_counts_before_its_commit(bench: Bench) -> None:
    bench.sink_session.round_rows = 1000
    # The second slice cannot be had.
    with pytest.raises(IndexError):
        bench.deliver((5, [rows_of(A, 2, 5)]), upto=9)
    assert bench.sink_session.done[-1] == ("abort", 2)
    assert bench.done(A) == [10]


def changed(table: TableName, when: int) -> SchemaChange:
    new = replace(shape(table), columns=(replace(shape(table).columns[0], name="key"),))
    return SchemaChange(shape(table), new, at(when), when)


def test_a_change_of_shape_comes_between_two_commits(bench: Bench) -> None:
    bench.sink_session.round_rows = 1000
    bench.deliver(
        (5, [rows_of(A, 5)]),
        (9, [rows_of(A, 7), rows_of(B, 6), changed(B, 8), rows_of(B, 9), rows_of(C, 7)]),
    )
    # Of the table before it in the slice everything is out, of its own what was before it.
    assert [d for d in bench.sink_session.done if d[0] != "write"] == [
        ("commit", 3, {"a": 90, "b": 79}),
        "evolve",
        ("commit", 2, {"b": 90, "c": 90}),
    ]
    assert bench.sink_session.ends == [79, 90]


def test_a_round_does_not_claim_what_comes_after_a_mark(bench: Bench) -> None:
    bench.sink_session.round_rows = 1000
    bench.deliver(
        (5, [rows_of(C, 5), rows_of(B, 4)]),
        (9, [rows_of(A, 6, 8), changed(A, 9), rows_of(C, 7)]),
    )
    # The first commit has rows of C, but not all up to the mark.
    assert bench.sink_session.ends == [50, 90]


def renamed(table: TableName, now: str, when: int) -> SchemaChange:
    new = replace(shape(TableName(table.source, table.schema, now)), table_id=7)
    return SchemaChange(replace(shape(table), table_id=7), new, at(when), when, rewritten=False)


X = TableName(A.source, A.schema, "x")


def test_a_delivery_ends_where_a_table_has_another_name(bench: Bench) -> None:
    """Before anybody goes by the new name, all rows under the old one are durable."""
    seen: list[SchemaChange] = []

    def followed(event: SchemaChange) -> None:
        assert bench.sink_session.done[-1] == ("commit", 1, {"a": 29})
        assert bench.done(A) == [29], "a crash after this meets the mark again"
        seen.append(event)

    event = renamed(A, "x", 3)
    assert bench.deliver((5, [rows_of(A, 2), event, rows_of(B, 4)]), on_rename=followed) == 1
    assert seen == [event] and bench.commits == 1
    assert bench.done(B) == [10], "nothing of another table is skipped"


def test_a_table_that_cannot_be_followed_fails_after_its_last_row(bench: Bench) -> None:
    def refused(event: SchemaChange) -> None:
        raise TableError(A, ChangefeedError(Code.TABLE_REPLACED, "no"))

    with pytest.raises(TableError) as caught:
        bench.deliver((5, [rows_of(A, 2), renamed(A, "x", 3)]), on_rename=refused)
    assert caught.value.table == A and bench.done(A) == [29]
    assert bench.sink_session.done[-2:] == [("commit", 1, {"a": 29}), ("abort", 0)]


def arrived(bench: Bench) -> None:
    """The feed follows ``a``: it is ``x`` by now."""
    known = bench.feed.tables.pop(A)
    bench.feed.tables[X] = replace(
        known, table=X, original=A, table_id=7, done_upto=at(3).previous()
    )


def arrival(event: SchemaChange) -> SchemaChange:
    """The event as the log gives it to a reader of the new name."""
    return replace(event, old=replace(event.old, table=event.new.table), arrived=True)


def test_a_column_that_came_with_the_name_reaches_the_target(bench: Bench) -> None:
    arrived(bench)
    event = renamed(A, "x", 3)
    wider = replace(
        event.new, columns=(*event.new.columns, replace(event.new.columns[0], name="z"))
    )
    seen: list[SchemaChange] = []
    bench.deliver(
        (5, [arrival(replace(event, new=wider)), rows_of(X, 4)]),
        on_schema_change=seen.append,
        tables=(X,),
    )
    assert [(change.old.table, change.new) for change in seen] == [(X, wider)]
    assert bench.sink_session.done[0] == "evolve"


def test_the_name_alone_changes_nothing_at_the_target(bench: Bench) -> None:
    arrived(bench)
    seen: list[SchemaChange] = []
    bench.deliver(
        (5, [arrival(renamed(A, "x", 3)), rows_of(X, 4)]), on_schema_change=seen.append, tables=(X,)
    )
    assert seen == [] and "evolve" not in bench.sink_session.done


@pytest.mark.parametrize(("table_id", "way_on"), [(7, "RESCAN public.x continues"), (0, "DROP")])
def test_two_renames_in_one_transaction_are_not_followed(
    bench: Bench, table_id: int, way_on: str
) -> None:
    """Progress has one instant for both: rows between them could be told twice, or never. RESCAN
    goes by the table's number, where the source has one."""
    arrived(bench)
    bench.feed.tables[X] = replace(bench.feed.tables[X], table_id=table_id)
    back = renamed(X, "a", 3)
    back = replace(back, old=replace(back.old, table_id=table_id))
    with pytest.raises(TableError, match="twice in one transaction") as caught:
        bench.deliver((5, [arrival(renamed(A, "x", 3)), back]), tables=(X,))
    assert way_on in (caught.value.error.hint or "")


def test_a_renamed_table_that_a_pattern_brought_leaves_in_its_own_time(bench: Bench) -> None:
    bench.feed.update(A, joined=True)
    assert bench.deliver((5, [rows_of(A, 2), renamed(A, "x", 3), rows_of(B, 4)])) == 2
    assert "evolve" not in bench.sink_session.done
    assert bench.done(A, B) == [50, 50]


def test_a_mark_of_another_table_that_had_the_name_means_nothing(bench: Bench) -> None:
    bench.feed.update(A, table_id=9)
    assert bench.deliver((5, [renamed(A, "x", 3), rows_of(B, 4)])) == 1


@pytest.mark.parametrize(
    ("scan_wanted", "done", "followed"),
    [
        (True, True, False),  # it has its name again, and is scanned by RESUME or RESCAN
        (True, False, True),  # its first scan goes on under the new name
        (False, True, True),
    ],
)
def test_a_rename_of_a_table_that_is_scanned_again_means_nothing(
    bench: Bench, scan_wanted: bool, done: bool, followed: bool
) -> None:
    bench.feed.update(A, scan_wanted=scan_wanted, done_upto=at(1) if done else None)
    seen: list[SchemaChange] = []
    bench.deliver((5, [renamed(A, "x", 3), rows_of(B, 4)]), on_rename=seen.append)
    assert bool(seen) is followed


@pytest.mark.parametrize(("known", "told"), [(7, 0), (0, 7), (7, 7)])
def test_a_rename_of_a_table_whose_identity_is_not_known_is_followed(
    bench: Bench, known: int, told: int
) -> None:
    bench.feed.update(A, table_id=known)
    event = renamed(A, "x", 3)
    seen: list[SchemaChange] = []
    event = replace(event, old=replace(event.old, table_id=told))
    bench.deliver((5, [event]), on_rename=seen.append)
    assert seen == [event]


def test_an_exception_nobody_planned_for_names_its_table(bench: Bench) -> None:
    def evolve(event: SchemaChange) -> None:
        raise KeyError("a value of a row")

    bench.sink_session.evolve = evolve  # type: ignore[method-assign]
    with pytest.raises(TableFailure) as caught:
        bench.deliver((5, [rows_of(B, 2), changed(A, 3)]))
    assert caught.value.table == A and isinstance(caught.value.__cause__, KeyError)


def test_a_sink_without_tables_needs_no_commit_there(bench: Bench) -> None:
    bench.sink_session.evolves = False
    bench.deliver((9, [rows_of(A, 7), changed(A, 8), rows_of(A, 9)]))
    commits = [d for d in bench.sink_session.done if d[0] == "commit"]
    assert commits == [("commit", 2, {"a": 90})]


def test_what_was_before_a_stop_is_delivered(bench: Bench) -> None:
    bench.sink_session.evolves = False

    def stop(event: SchemaChange) -> None:
        raise TableError(A, ChangefeedError("CF4101", "stop"))

    with pytest.raises(TableError):
        bench.deliver((9, [rows_of(A, 7), changed(A, 8), rows_of(A, 9)]), on_schema_change=stop)
    assert [d for d in bench.sink_session.done if d[0] != "write"] == [
        ("commit", 1, {"a": 79}),
        ("abort", 0),
    ]
    assert bench.done(A, B) == [79, 10]


def test_a_renamed_feed_delivers_under_its_new_name(bench: Bench) -> None:
    names: list[str] = []
    write = bench.sink_session.write

    def noted(batch: Batch) -> Receipt:
        names.append(batch.feed)
        return write(batch)

    bench.sink_session.write = noted  # type: ignore[method-assign]
    bench.deliver((5, [rows_of(A, 5)]))
    bench.feed.job = bench.catalog.rename_job(bench.feed.job.id, "better")
    bench.deliver((9, [rows_of(A, 9)]))
    assert names[-1] == "better" != names[0]


def test_rows_behind_a_change_are_judged_after_it(tmp_path: Path) -> None:
    """A backfill replaces them, whatever the source logs of old rows now; in a backlog, chunks are
    prepared in another thread."""
    catalog = Catalog.open(str(tmp_path))
    bench = Bench(catalog, "kafka://127.0.0.1:1", diff="")
    bench.sink_session.takes_rows = False
    bench.sink_session.write = (  # type: ignore[method-assign]
        lambda batch: Receipt(batch.partition, batch.rows.num_rows, 1)
    )
    delivered = []

    def backfill(event: SchemaChange) -> None:
        time.sleep(0.2)  # the other thread would have prepared the chunk by now
        bench.feed.update(A, scan_wanted=True)
        delivered.append(event)

    only_key = replace(changed(A, 8).new, before_image=BeforeImage.KEY)
    behind = replace(rows_of(A, 9), schema=only_key)
    full = replace(shape(A), before_image=BeforeImage.FULL)
    events = [replace(rows_of(A, 7), schema=full), changed(A, 8), behind]
    bench.deliver((9, events), on_schema_change=backfill, ahead=0)
    assert len(delivered) == 1
    catalog.close()


def test_a_truncation_comes_after_a_commit(bench: Bench) -> None:
    event = Truncate(shape(A), at(8), 8)
    bench.deliver((9, [rows_of(A, 7), event, rows_of(A, 9)]))
    kinds = [d if isinstance(d, str) else d[0] for d in bench.sink_session.done]
    assert kinds == ["write", "commit", "truncate", "write", "commit"]
    [told] = bench.catalog.events(bench.feed.job.id, kinds=["truncate"])
    assert (told.text, told.table) == ("all rows were removed", str(A))


def test_control_events_know_what_was_handed_out_before_them() -> None:
    events = [rows_of(A, 2), rows_of(B, 3), changed(B, 4), changed(C, 4)]
    found = items(FakeLog([(9, events)]), dict.fromkeys((A, B, C), at(1)), at(9))
    controls = [item for item in found if isinstance(item, ControlItem)]
    assert [(m.table, m.complete, m.upto) for m in controls] == [
        (B, (A,), at(9)),
        (C, (A, B), at(9)),
    ]


def test_one_table_below_the_log_fails_alone(bench: Bench) -> None:
    gone = ChangefeedError("CF3002", "position is older than the change log keeps")
    bench.feed.update(B, done_upto=at(0))
    with pytest.raises(TableError) as failed:
        bench.deliver(upto=9, log=FakeLog([], oldest=at(1), error=gone))
    assert (failed.value.table, failed.value.error) == (B, gone)
    with pytest.raises(ChangefeedError) as all_of_them:
        bench.deliver(upto=9, log=FakeLog([], oldest=at(5), error=gone))
    assert all_of_them.value is gone


def another(table: TableName) -> TableSchema:
    """A table of the same name that is not the one the feed began with."""
    return replace(shape(table), table_id=8)


def test_rows_of_another_table_that_has_the_name_are_not_delivered(bench: Bench) -> None:
    bench.feed.update(A, table_id=7)
    bench.feed.update(B, table_id=7)
    rows = replace(rows_of(A, 2), schema=another(A))
    with pytest.raises(TableError, match="another table has the name") as caught:
        bench.deliver((5, [rows]))
    assert caught.value.table == A and bench.sink_session.done == [("abort", 0)]
    with pytest.raises(TableError, match="another table has the name") as caught:
        bench.deliver((5, [Truncate(another(B), at(3), 3)]))
    assert caught.value.table == B and "truncate" not in bench.sink_session.done


@pytest.mark.parametrize(("code", "alone"), [("CF5003", True), ("CF5001", False)])
def test_a_target_that_cannot_follow_a_change(bench: Bench, code: str, alone: bool) -> None:
    """What the change asks too much of is its table's; a target that is away is everybody's."""
    assert (ChangefeedError(code, "x").scope is Scope.TABLE) is alone
    bench.sink_session.refuse = code
    with pytest.raises((TableError, ChangefeedError), match="cannot follow") as caught:
        bench.deliver((9, [rows_of(A, 7), changed(A, 8), rows_of(A, 9)]))
    assert isinstance(caught.value, TableError) is alone
    assert bench.done(A) == [79], "what was before the change is committed"


class Refusing(FakeSinkSession):
    """Its sink refuses the row of the instant 3, and knows it beforehand."""

    def examine(self, batch: Batch) -> None:
        if REFUSED_ROW in batch.rows["a0"].to_pylist():
            raise ChangefeedError("CF5006", "refused", about_row=True)

    def write(self, batch: Batch) -> Receipt:
        self.examine(batch)
        return super().write(batch)


@pytest.mark.parametrize("keeps", [True, False])
def test_a_row_that_is_refused_costs_no_delivery_of_halves(tmp_path: Path, keeps: bool) -> None:
    """Its letter is durable before a row behind it is: a sink then knows all up to that one as
    applied, and after a crash would never see the refused row again."""
    catalog = Catalog.open(str(tmp_path))
    bench = Bench(catalog, "delta:///lake", on_row_error="dead_letter" if keeps else "stop")
    session = bench.sink_session = Refusing()
    keep = bench.feed.refuse_row

    def refuse_row(
        schema: TableSchema, row: pa.Table, error: ChangefeedError, delivered: int = 0
    ) -> None:
        session.done.append(("refused", row["a0"].to_pylist(), delivered))
        keep(schema, row, error, delivered)

    bench.feed.refuse_row = refuse_row  # type: ignore[method-assign]
    again = [(5, [rows_of(A, 2, 3, 4, 5)])] * 2
    if keeps:
        bench.deliver(*again)
        assert [x.key for x in catalog.dead_letters(bench.feed.job.id)] == ["[3]"]
    else:
        with pytest.raises(TableError, match="refused"):
            bench.deliver(*again)
    catalog.close()
    done = [(step[0], step[-1]) for step in session.done if step[0] in ("write", "refused")]
    kept = [("refused", 3), ("write", [2, 4, 5])]
    assert done == (kept if keeps else [("write", [2]), ("refused", 0)])
    assert [step[1] for step in session.done if step[0] == "commit"] == [3 if keeps else 1]


@pytest.mark.parametrize(
    ("given", "most"),
    [({}, SLICE_BYTES), ({"max_memory": "8MiB"}, 1 << 20), ({"max_memory": "8GiB"}, SLICE_BYTES)],
)
def test_a_feed_reads_an_eighth_of_its_memory_at_once(
    tmp_path: Path, given: dict[str, str], most: int
) -> None:
    catalog = Catalog.open(str(tmp_path))
    log = FakeLog([(5, [])])
    Bench(catalog, **given).deliver(upto=5, log=log)
    catalog.close()
    assert log.max_bytes == most


def test_a_delivery_that_failed_reads_the_log_no_more(bench: Bench) -> None:
    """Its owner may begin another one, or close the log."""
    reading, rested = threading.Event(), []

    class SlowLog(FakeLog):
        def slice(self, *given: Any, **limits: Any) -> Any:
            if len(self.slices) == 1:
                reading.set()
                time.sleep(0.2)
                rested.append(True)
            return super().slice(*given, **limits)

    def refuse(*_: object) -> None:
        assert reading.wait(60)
        raise ChangefeedError("CF5001", "away")

    bench.sink_session.commit = refuse  # type: ignore[assignment,method-assign]
    with pytest.raises(ChangefeedError, match="away"):
        bench.deliver(upto=9, log=SlowLog([(5, [rows_of(A, 2)]), (9, [rows_of(A, 8)])]), ahead=0)
    assert rested, "the encoding thread was still at work"


def test_a_delivery_that_is_closed_leaves_no_thread(bench: Bench) -> None:
    bench.deliver(*THREE, ahead=0)
    assert bench.delivery is not None, "it may be kept for longer than it works"
    until(lambda: not any(t.name.startswith("encode-f_") for t in threading.enumerate()))


def test_the_first_place_of_a_table_is_that_of_its_rows(bench: Bench) -> None:
    """A table whose scan goes on has no place yet."""
    bench.feed.update(A, done_upto=None)
    bench.deliver((5, [rows_of(A, 2)]))
    assert bench.sink_session.done[-1] == ("commit", 1, {"a": 50})
    assert bench.done(A) == [50]


# ------------------------------------------------------------------------------- resolved


def test_resolved_waits_for_a_table_that_failed(bench: Bench) -> None:
    bench.feed.advance([A, C], at(9))
    bench.feed.advance([B], at(4))
    bench.feed.fail_table(B, ChangefeedError("CF5003", "refused"))
    assert bench.feed.high_water() == at(9)
    assert bench.feed.resolved(by_topic=False) == at(4)
    assert bench.feed.resolved(by_topic=True) == at(9), "nobody is told of the table's topic"
    bench.feed.tables[B] = replace(bench.feed.tables[B], topic="a")
    assert bench.feed.resolved(by_topic=True) == at(4), "a topic that another table shares"


def test_a_table_that_failed_before_its_scan_holds_resolved(bench: Bench) -> None:
    bench.feed.update(B, done_upto=None)
    bench.feed.fail_table(B, ChangefeedError("CF5003", "refused"))
    assert bench.feed.high_water() is not None
    assert bench.feed.resolved(by_topic=False) is None


def test_nothing_is_resolved_while_a_table_joins(bench: Bench) -> None:
    told: list[Timestamp] = []
    sink_session = SimpleNamespace(resolves_by_topic=False, resolves=True, resolved=told.append)
    joining = [True]
    checkpoint = Checkpoint(cast(Any, sink_session), lambda: joining[0], SYSTEM_CLOCK, Timings())
    with_resolved = bench.catalog.alter_job(bench.feed.job.id, options={"resolved": ""})
    feed = Feed(bench.catalog, with_resolved, bench.feed.lease)
    feed.tables = bench.feed.tables
    checkpoint.turn(feed)
    assert (told, checkpoint.resolved) == ([], None)
    joining[0] = False
    checkpoint.turn(feed)
    assert told == [at(1)]
    assert checkpoint.resolved == at(1)


# ------------------------------------------------------------------------------- exactly once


def test_a_feed_goes_on_from_the_places_of_its_sink(bench: Bench) -> None:
    bench.feed.advance([B], at(8))
    bench.feed.update(C, done_upto=None)
    bench.feed.take_progress({str(A): at(5), str(B): at(6), str(C): at(7)}, scans=True)
    assert bench.done(A, B) == [50, 80], "never back"
    assert bench.feed.tables[C].done_upto is None, "it has not begun: the place is of another life"


@pytest.mark.parametrize(
    ("place", "scans", "over"),
    [(at(7), True, True), (at(6), True, True), (at(5), True, False), (at(7), False, False)],
)
def test_a_whole_scan_is_not_repeated(
    bench: Bench, place: Timestamp, scans: bool, over: bool
) -> None:
    bench.feed.update(A, state=TableState.SCANNING, scan_wanted=True, scan_at=at(6), done_upto=None)
    bench.feed.take_progress({scan_progress_key(A): place}, scans=scans)
    table = bench.feed.tables[A]
    assert (table.state is TableState.RUNNING) is over
    assert table.scan_wanted is not over
    assert table.done_upto == (place if over else None)


# ------------------------------------------------------------------------------- reading


@dataclass(frozen=True)
class Part:
    """A part of a table with some rows."""

    number: int
    rows: int = 10
    error: ChangefeedError | None = None

    def read(self) -> Iterator[pa.RecordBatch]:
        for start in range(0, self.rows, 4):
            count = min(4, self.rows - start)
            yield pa.record_batch([[self.number * 100 + start + i for i in range(count)]], ["a0"])
        if self.error is not None:
            raise self.error


def test_parts_are_read_whole() -> None:
    parts = cast(Any, [Part(n) for n in range(30)])
    tables = list(joined(read_parts(parts, lambda: False), 50))
    assert all(table.num_rows >= 50 for table in tables[:-1])
    found = sorted(v for table in tables for v in table["a0"].to_pylist())
    assert found == [n * 100 + i for n in range(30) for i in range(10)]
    assert list(read_parts([], lambda: False)) == []


def test_an_error_of_a_part_is_raised() -> None:
    broken = ChangefeedError("CF2001", "gone")
    parts = cast(Any, [*(Part(n, 1000) for n in range(9)), Part(9, error=broken)])
    with pytest.raises(ChangefeedError) as raised:
        list(read_parts(parts, lambda: False))
    assert raised.value is broken


def test_reading_stops_when_it_is_told() -> None:
    seen: list[int] = []
    with pytest.raises(ScanStopped):
        for batch in read_parts(cast(Any, [Part(n) for n in range(99)]), lambda: len(seen) > 3):
            seen.append(batch.num_rows)
    assert len(seen) == 4

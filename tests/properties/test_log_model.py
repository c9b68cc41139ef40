"""The change log against a list in memory, under random appends, crashes, faults and upkeep."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from changefeed.core import faults
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.events import ChangeBatch, Event, Flush, SchemaChange, Truncate
from changefeed.core.schema import TableName, TableSchema
from changefeed.log import LogPiece, LogReader, LogSettings, LogWriter
from changefeed.log.journal import FIRST_FRAME, journal_name
from changefeed.log.ledger import HEAD_NAME
from tests.helpers.log_samples import (
    Row,
    batch,
    clocks,
    drop_process,
    flush,
    keys,
    narrow,
    position,
)

SECOND = 1_000_000_000
NAMES = ("a", "b", "c")

TINY = LogSettings(
    gc_ttl=200.0,
    max_age=400.0,
    segment_rows=8,
    group_rows=5,
    segment_target=2_000,
    segment_keep=2_600,
    roll_bytes=6_000,
    roll_frames=5,
    roll_age=30.0,
    pack_bytes=900,
    merge_fan=2,
    grace=20.0,
)


@dataclass
class Item:
    """A row or a mark as the model keeps it."""

    at: Timestamp
    seq: int
    kind: str
    version: int
    dirty: bool = False


@dataclass
class Model:
    """What the log must hold."""

    tables: dict[TableName, list[Item]] = field(default_factory=dict)
    commits: list[tuple[int, Timestamp]] = field(default_factory=list)
    at: Timestamp | None = None
    position: int = 0

    def between(self, table: TableName, after: Timestamp, upto: Timestamp) -> list[Item]:
        """The items of a table in ``(after, upto]``."""
        return [i for i in self.tables.get(table, ()) if after < i.at <= upto]


class LogMachine(RuleBasedStateMachine):
    """One writer, one reader, one model."""

    def __init__(self) -> None:
        super().__init__()
        memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # thousands of fsyncs
        self.root = Path(tempfile.mkdtemp(prefix="log-model-", dir=memory))
        self.model = Model()
        self.pending: list[tuple[TableName, Item]] = []
        self.wall = 1_000 * SECOND
        self.logical = 0
        self.seq = 0
        self.position = 0
        self.versions: dict[str, TableSchema] = {name: narrow(name) for name in NAMES}
        self.before: dict[str, TableSchema] = dict(self.versions)
        self.held: list[tuple[LogPiece, list[int]]] = []
        self.writer = LogWriter(self.root, TINY)
        self.reader = LogReader(self.root, cache_bytes=4_000)

    def teardown(self) -> None:
        self.writer.close()
        self.reader.close()
        shutil.rmtree(self.root)

    # ------------------------------------------------------------------------------ building

    def _tick(self, step: int) -> Timestamp:
        if step:
            self.wall += step * SECOND
            self.logical = 0
        else:
            self.logical += 1
        return Timestamp(self.wall, self.logical)

    def _events(
        self, plan: list[tuple[str, int, int]], at: Timestamp | None
    ) -> tuple[list[Event], list[tuple[TableName, Item]], list[Timestamp]]:
        """Transactions as events; ``at`` when all belong to one large transaction."""
        rows: dict[str, list[Row]] = {}
        events: list[Event] = []
        items: list[tuple[TableName, Item]] = []
        commits: list[Timestamp] = []

        def close(name: str) -> None:
            if rows.get(name):
                events.append(batch(self.versions[name], rows.pop(name)))

        for name, count, step in plan:
            when = at or self._tick(step)
            commits.append(when)
            table = narrow(name).table
            self.seq += 1
            if count == 0:
                close(name)
                events.append(Truncate(self.versions[name], when, self.seq))
                items.append((table, Item(when, self.seq, "truncate", 0)))
                continue
            if count == 1 and step == 2:
                close(name)
                old = self.versions[name]
                new = old.with_version(old.version + 1)
                events.append(SchemaChange(old, new, when, self.seq))
                items.append((table, Item(when, self.seq, "schema", 0)))
                self.versions[name] = new
                self.seq += 1
            version = self.versions[name].version
            for _ in range(count):
                dirty = self.seq % 7 == 0
                note = 'quo"te' if dirty else None if self.seq % 5 == 0 else f"n{self.seq}"
                rows.setdefault(name, []).append(Row(when, self.seq, note, last=self.seq % 3 != 0))
                items.append((table, Item(when, self.seq, "row", version, dirty)))
                self.seq += 1
        for name in list(rows):
            close(name)
        return events, items, commits

    def _flush(self, plan: list[tuple[str, int, int]], idle: int) -> Flush:
        """A complete flush after what is pending; remembers what it would add."""
        self.before = dict(self.versions)
        at = self._big if self.pending else None
        events, items, commits = self._events(plan, at)
        places = []
        for when in dict.fromkeys(commits):
            self.position += 1
            places.append((when, self.position))
        end = self._tick(idle) if idle or not commits else commits[-1]
        self.position += 1 if idle else 0
        self._adding = (items, [(p, t) for t, p in places], end, self.position)
        return flush(events, end, self.position, places, self.seq)

    def _applied(self) -> None:
        items, commits, end, where = self._adding
        for table, item in self.pending + items:
            self.model.tables.setdefault(table, []).append(item)
        self.pending = []
        self.model.commits += commits
        self.model.at, self.model.position = end, where

    # --------------------------------------------------------------------------------- rules

    plans = st.lists(
        st.tuples(st.sampled_from(NAMES), st.integers(0, 9), st.integers(0, 3)), max_size=5
    )

    @initialize(plan=plans)
    def first(self, plan: list[tuple[str, int, int]]) -> None:
        self.append(plan, 1)

    @rule(plan=plans, idle=st.integers(0, 40))
    def append(self, plan: list[tuple[str, int, int]], idle: int) -> None:
        self.writer.append(self._flush(plan, idle))
        self._applied()

    @rule(plan=plans)
    def append_part(self, plan: list[tuple[str, int, int]]) -> None:
        """A piece of a large transaction."""
        if not self.pending:
            self._big = self._tick(1)
            self.kept = dict(self.versions)
        events, items, _ = self._events([p for p in plan if p[1] > 1], self._big)
        self.writer.append(Flush(events, None))
        self.pending += items

    @precondition(lambda self: self.pending)
    @rule()
    def abandon(self) -> None:
        self.writer.abandon()
        self._forget_pending()

    def _forget_pending(self) -> None:
        if self.pending:
            self.versions = self.kept
        self.pending = []

    @rule(
        plan=plans,
        point=st.sampled_from(
            [
                faults.Point.LOG_APPEND_BEGIN,
                faults.Point.LOG_SEGMENT_WRITE,
                faults.Point.LOG_SEGMENT_SYNCED,
                faults.Point.LOG_APPEND_WRITE,
                faults.Point.LOG_APPEND_WRITTEN,
                faults.Point.LOG_ROLL_BEGIN,
                faults.Point.LOG_ROLL_CREATED,
                faults.Point.LOG_LEDGER_WRITE,
                faults.Point.LOG_LEDGER_WRITTEN,
            ]
        ),
    )
    def append_without_room(self, plan: list[tuple[str, int, int]], point: str) -> None:
        """The disk is full at some step; the same flush is stored when it is not any more."""
        wanted = self._flush(plan, 1)
        frontier = self.writer.frontier
        with faults.armed(f"{point}:full"):
            try:
                self.writer.append(wanted)
            except ChangefeedError as error:
                assert error.code.number == "CF3003"
                assert self.writer.frontier == frontier
                stored = False
            else:
                stored = True
        if not stored:
            self.writer.append(wanted)
        self._applied()

    @rule(plan=plans, whole=st.booleans(), share=st.floats(0, 1))
    def crash_in_append(self, plan: list[tuple[str, int, int]], whole: bool, share: float) -> None:
        """The process dies while a frame is on its way to the disk."""
        head = (self.root / HEAD_NAME).read_bytes()
        number, start = self.writer._live.number, self.writer._live.tally.end
        self.writer.append(self._flush(plan, 1))
        live = self.writer._live
        if live.number != number:
            # It rolled first: HEAD of a new journal without frames is what a crash leaves.
            start = FIRST_FRAME
        end = live.tally.end
        cut = end if whole else start + int((end - start) * share)
        drop_process(self.writer)
        if live.number == number:
            (self.root / HEAD_NAME).write_bytes(head)
        os.truncate(self.root / journal_name(live.number), cut)
        if live.number != number:
            drop_process_head = self.root / HEAD_NAME
            drop_process_head.write_bytes(head)
        self.writer = LogWriter(self.root, TINY)
        if cut == end:
            self._applied()
        else:
            self.versions = self.before
            self._forget_pending()

    @rule(crash=st.booleans())
    def reopen(self, crash: bool) -> None:
        if crash:
            drop_process(self.writer)
        else:
            self.writer.close()
        self.writer = LogWriter(self.root, TINY)
        self._forget_pending()

    @rule()
    def roll(self) -> None:
        rolled = self.writer.roll()
        assert not (rolled and self.pending)

    @rule(idle=st.integers(0, 60), lag=st.none() | st.integers(0, 500))
    def maintain(self, idle: int, lag: int | None) -> None:
        self._tick(idle)
        now = Timestamp(self.wall)
        keep = Timestamp(max(self.wall - lag * SECOND, 0)) if lag is not None else None
        before = self.writer.oldest
        self.writer.maintain(clocks(now), keep)
        after = self.writer.oldest
        assert after >= before
        if after > before:
            expired = self.wall - int(TINY.protection * SECOND)
            assert after.wall < self.wall - int(TINY.gc_ttl * SECOND)
            assert keep is None or after <= keep or after.wall < expired

    @rule()
    def maintain_without_room(self) -> None:
        with faults.armed(f"{faults.Point.LOG_COMPACT_WRITE}:full"):
            try:
                self.writer.maintain(clocks(Timestamp(self.wall)), Timestamp(0))
            except ChangefeedError as error:
                assert error.code.number == "CF3003"

    @rule()
    def refresh(self) -> None:
        frontier = self.reader.refresh()
        assert frontier is not None and frontier.at == self.model.at
        assert frontier.position == position(self.model.position)
        assert self.reader.oldest == self.writer.oldest

    @rule(
        lags=st.dictionaries(st.sampled_from(NAMES), st.integers(0, 300), min_size=1),
        ahead=st.none() | st.integers(0, 100),
        max_rows=st.integers(1, 60),
        max_bytes=st.sampled_from([1, 500, 3_000, 10**9]),
        fresh=st.booleans(),
    )
    def slice(
        self,
        lags: dict[str, int],
        ahead: int | None,
        max_rows: int,
        max_bytes: int,
        fresh: bool,
    ) -> None:
        if fresh:
            self.refresh()
        bounds = {
            narrow(name).table: Timestamp(max(self.wall - lag * SECOND, 0))
            for name, lag in lags.items()
        }
        oldest = self.writer.oldest
        bounds = {
            t: max(at, oldest) if at.wall % 3 or at >= oldest else at for t, at in bounds.items()
        }
        upto = Timestamp.MAX if ahead is None else Timestamp(self.wall - ahead * SECOND)
        try:
            got = self.reader.slice(bounds, upto, max_rows, max_bytes)
        except ChangefeedError as error:
            assert error.code.number == "CF3002"
            assert min(bounds.values()) < self.writer.oldest
            return
        self._check_slice(bounds, upto, max_rows, max_bytes, got.upto, list(got.events))

    def _check_slice(
        self,
        bounds: dict[TableName, Timestamp],
        upto: Timestamp,
        max_rows: int,
        max_bytes: int,
        reached: Timestamp,
        events: list[object],
    ) -> None:
        frontier = self.reader.frontier
        floor = min(bounds.values())
        if frontier is None:
            assert reached == floor and not events
            return
        goal = max(min(upto, frontier.at), floor)
        assert floor <= reached <= goal
        by_table: dict[TableName, list[object]] = {}
        for event in events:
            if isinstance(event, SchemaChange):
                by_table.setdefault(event.old.table, []).append(event)
            elif isinstance(event, LogPiece | Truncate):
                by_table.setdefault(event.schema.table, []).append(event)
        taken: list[Item] = []
        for table, after in bounds.items():
            wanted = self.model.between(table, after, reached)
            self._check_table(by_table.pop(table, []), wanted)
            taken += [i for i in wanted if i.kind == "row"]
        assert not by_table
        if reached < goal:
            assert taken, "a slice that stops early brings something"
        if len(taken) > max_rows:
            assert len({i.at for i in taken}) == 1, "only one transaction may exceed the limits"
        size = sum(e.bytes for e in events if isinstance(e, LogPiece))
        if size > max_bytes * 1.01 + 200:
            # Bytes of a part of a run are its share of the whole run.
            assert len({i.at for i in taken}) <= 1 + len(taken) // 4

    def _check_table(self, events: list[object], wanted: list[Item]) -> None:
        at = 0
        for event in events:
            if isinstance(event, Truncate | SchemaChange):
                kind = "truncate" if isinstance(event, Truncate) else "schema"
                assert (kind, event.at, event.seq) == (
                    wanted[at].kind,
                    wanted[at].at,
                    wanted[at].seq,
                )
                at += 1
                continue
            assert isinstance(event, LogPiece)
            mine = wanted[at : at + event.rows]
            at += event.rows
            self._check_piece(event, mine)
        assert at == len(wanted)

    def _check_piece(self, piece: LogPiece, items: list[Item]) -> None:
        assert {i.kind for i in items} == {"row"}
        assert {i.version for i in items} == {piece.schema.version}
        expected = [i.seq for i in items]
        rows = piece.load()
        assert keys(rows) == expected
        assert rows.schema == piece.schema.log_schema()
        assert [(i.at.wall, i.at.logical) for i in items] == list(
            zip(rows.column("wall").to_pylist(), rows.column("logical").to_pylist(), strict=True)
        )
        assert (piece.first, piece.last) == (items[0].at, items[-1].at)
        assert (piece.first_seq, piece.last_seq) == (expected[0], expected[-1])
        if any(i.dirty for i in items):
            assert "a1" not in piece.clean
        if not all(rows.column("last").to_pylist()):
            assert piece.has_superseded
        if len(self.held) < 20:
            self.held.append((piece, expected))

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 19), cold=st.booleans())
    def load_later(self, which: int, cold: bool) -> None:
        """A piece that somebody kept: its file may have been merged or dropped."""
        piece, expected = self.held.pop(which % len(self.held))
        if cold:
            for cache in (piece._store._files, piece._store._batches):
                cache.clear()
        try:
            assert keys(piece.load()) == expected
        except ChangefeedError as error:
            assert error.code.number == "CF3002"
            assert piece.first <= self.writer.oldest

    @rule(back=st.integers(0, 40))
    def position_to_time(self, back: int) -> None:
        self.reader.refresh()
        where = max(self.model.position - back, 0)
        found = self.reader.timestamp_at(position(where))
        below = [t for p, t in self.model.commits if p <= where]
        above = [t for p, t in self.model.commits if p > where]
        if found is None:
            assert not below or max(below) <= self.writer.oldest
            return
        assert not below or max(below) <= found
        assert not above or min(above) > found

    @invariant()
    def no_stray_files(self) -> None:
        """Every file is known: the live journal, the ledger's, the garbage, or pending."""
        known = {"LOCK", "HEAD", "LEDGER", journal_name(self.writer._live.number)}
        known |= {name for name, _ in self.writer._live.segments}
        for sealed in self.writer._ledger.sealed:
            known |= {journal_name(sealed.number)} | {name for name, _ in sealed.segments}
        known |= {g.name for g in self.writer._ledger.garbage}
        assert {p.name for p in self.root.iterdir()} == known

    @invariant()
    def counted(self) -> None:
        """The size the writer believes in is the size on disk."""
        names = [p for p in self.root.iterdir() if p.name.startswith(("journal-", "segment-"))]
        assert self.writer.bytes == sum(p.stat().st_size for p in names)


LENGTH = int(os.environ.get("CHANGEFEED_PROPERTY_EXAMPLES", "25"))

LogMachine.TestCase.settings = settings(
    max_examples=LENGTH,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


#: Runs the machine; ``CHANGEFEED_PROPERTY_EXAMPLES`` makes it longer.
TestLogMachine = pytest.mark.timeout(600)(LogMachine.TestCase)


def test_batches_of_the_samples_are_in_log_form() -> None:
    """The samples the model is built from have the schema the log demands."""
    made = batch(narrow("a"), [Row(Timestamp(1), 1)])
    assert isinstance(made, ChangeBatch)
    assert made.rows.schema == made.schema.log_schema()

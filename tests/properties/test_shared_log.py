"""The protocol of a shared log with two hosts: whatever dies, freezes or is lost, what was appended
is there, once, and a host that another has replaced adds nothing. Whoever follows the log sees a
part of it from its begin, in order.

The model is a list of appended flushes. Two hosts have a directory each; one of them is the owner.
The store and the state fail before or after they have done what was asked for. A third host
follows: it looks now and then, and has a reader that stays open.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sqlalchemy import Connection as Transaction

from changefeed.catalog import Catalog, SourceLease
from changefeed.core.clock import SystemClock, Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.log_manifest import LogChange
from changefeed.log import AppendedAhead, LogReader, LogSettings, LogWriter
from changefeed.log.follower import LogFollower
from changefeed.log.live import LiveJournal
from changefeed.log.objects import ObjectStore
from changefeed.log.shared import SharedLog
from changefeed.log.writer import lock_log
from changefeed.shared_logs import SourceManifest, SourceRegister
from tests.helpers.log_samples import SOURCE, Row, batch, clocks, drop_process, flush, keys, narrow

A = narrow("a")
HOSTS = ("one", "two")
#: Small, so that rolls, merges, segments and objects happen within a few steps.
SIZES = LogSettings(
    segment_rows=6,
    roll_frames=4,
    merge_fan=2,
    pack_bytes=10**9,
    grace=0.0,
    gc_ttl=10**9,
    copy_budget=3_000,
)
BEFORE, AFTER = "before", "after"


class Faults:
    """What goes wrong next: a call that fails before or after it has done its work."""

    def __init__(self) -> None:
        self.store = self.state = ""
        #: Whether the last call of the state has failed as was due.
        self.failed = False

    def around(self, which: str, work: Any) -> Any:
        """Do ``work``, or fail as is due."""
        due = getattr(self, which)
        setattr(self, which, "")
        self.failed = self.failed or bool(due)
        code = Code.LOG_STORE_UNREACHABLE if which == "store" else Code.STATE_UNREACHABLE
        if due == BEFORE:
            raise ChangefeedError(code, "a fault of the test")
        done = work()
        if due == AFTER:
            raise ChangefeedError(code, "a fault of the test")
        return done


class Store(ObjectStore):
    """A store that may fail to write."""

    faults: Faults

    def put(self, name: str, data: bytes | Path) -> None:
        self.faults.around("store", lambda: super(Store, self).put(name, data))


class Register(SourceRegister):
    """Rows of a state that may fail to be written, or to answer."""

    def __init__(self, catalog: Catalog, lease: SourceLease, faults: Faults) -> None:
        super().__init__(catalog, lease)
        self._faults = faults

    def register(self, change: LogChange) -> None:
        """Change the log, or fail as is due."""
        self._faults.around("state", lambda: super(Register, self).register(change))


class LookingClock(SystemClock):
    """While somebody waits, the follower looks."""

    def __init__(self, follower: LogFollower) -> None:
        self._follower = follower

    def sleep(self, seconds: float) -> None:
        self._follower.look()


class TwoHosts(RuleBasedStateMachine):
    """Runs a log on two hosts, and compares it with the list of what was appended."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="shared-log-"))
        self.catalog = Catalog.open(self.folder / "state")
        self.faults = Faults()
        self.wall = 1_000
        self.seq = 0
        #: The time of each row.
        self.walls: dict[int, int] = {}
        #: Rows whose append returned, and those of the last append that failed: they may be there.
        self.appended: list[int] = []
        self.doubtful: list[list[int]] = []
        #: What was appended ahead, and is not known to be registered, with its rows.
        self.flying: list[tuple[AppendedAhead, list[int]]] = []
        self.owner = ""
        self.writer: LogWriter | None = None
        self.frozen: dict[str, LogWriter] = {}
        self.take("one")
        assert self.writer is not None
        self.writer.append(flush([], Timestamp(self.wall), self.wall))
        #: What the follower's reader that stays open has read, and how far it is.
        self.read: list[int] = []
        self.read_upto: Timestamp = Timestamp(1_000)
        self.follow()

    def follow(self) -> None:
        """Begin to follow in an empty directory."""
        root = self.folder / "follower"
        root.mkdir()
        rows, store = SourceManifest(self.catalog, SOURCE), ObjectStore(str(self.folder / "store"))
        self.follower = LogFollower(rows, store, root, lock_log(root))
        self.follower.look()
        self.reader = LogReader(root, 4_000, LookingClock(self.follower))

    def teardown(self) -> None:
        for writer in [*self.frozen.values(), *([self.writer] if self.writer else [])]:
            drop_process(writer)
        self.reader.close()
        self.follower.close()
        self.catalog.close()
        shutil.rmtree(self.folder)

    # -- hosts ----------------------------------------------------------------------------

    def take(self, host: str) -> None:
        """Let a host take the source and open the log; what is frozen there is ended first."""
        if host in self.frozen:
            drop_process(self.frozen.pop(host))
        lease = self.catalog.acquire_source(SOURCE, f"{host}-{self.wall}", ttl=-1.0)
        assert lease is not None
        self.owner, self.lease = host, lease
        self.open()

    def open(self) -> None:
        """Open the log where its owner has it; the owner tries again after a fault."""
        root = self.folder / self.owner
        store = Store(str(self.folder / "store"))
        store.faults = self.faults
        while True:
            shared = SharedLog(
                Register(self.catalog, self.lease, self.faults),
                store,
                root,
                SOURCE,
                self.folder / f"{self.owner}-notes",
                inline=600,
            )
            try:
                self.writer = LogWriter(root, SIZES, shared)
                break
            except ChangefeedError as error:
                assert error.code in (Code.LOG_STORE_UNREACHABLE, Code.STATE_UNREACHABLE)
        # Registered in their order: some of the first.
        for count in range(len(self.doubtful), 0, -1):
            rows = self.appended + [seq for group in self.doubtful[:count] for seq in group]
            if self.shows(root, rows):
                self.appended = rows
                break
        self.doubtful = []

    def shows(self, root: Path, rows: list[int]) -> bool:
        """Whether readers of a directory see exactly these rows, less what was cut off."""
        with LogReader(root) as reader:
            if reader.frontier is None:
                return not rows
            after = max(Timestamp(1_000), reader.oldest)
            got = reader.slice({A.table: after}, Timestamp.MAX, 10**9, 10**12)
            found = [seq for piece in got.pieces for seq in keys(piece.load())]
            return found == [seq for seq in rows if Timestamp(self.walls[seq]) > after]

    def lose(self) -> LogWriter:
        """The owner's writer, which is no longer the owner's."""
        assert self.writer is not None
        self.land()
        self.flying = []
        writer, self.writer = self.writer, None
        return writer

    def land(self) -> None:
        """Take in what was registered of that which was appended ahead."""
        assert self.writer is not None
        for item, _ in self.flying:
            item.upload.wait()
        while self.flying and self.flying[0][0] not in self.writer._ahead:
            self.appended += self.flying.pop(0)[1]

    def begin(self) -> None:
        """Before a call that may fail; an upload may have failed already."""
        self.faults.failed = bool(self.flying)

    def reopen(self, *added: list[int]) -> None:
        """Open the log again after the state has failed: what was on its way may be there."""
        self.land()
        self.doubtful = [rows for _, rows in self.flying] + [rows for rows in added if rows]
        drop_process(self.lose())
        self.open()

    # -- rules ----------------------------------------------------------------------------

    @rule(count=st.integers(1, 12), parts=st.integers(1, 3), seen=st.booleans())
    def append(self, count: int, parts: int, seen: bool = False) -> None:
        """Append a transaction, large ones in parts and as segments; ``seen``: the follower looks
        at each part."""
        assert self.writer is not None
        added: list[int] = []
        self.begin()
        try:
            for part in range(parts):
                self.wall += 1
                rows = []
                for _ in range(count):
                    self.seq += 1
                    rows.append(Row(Timestamp(self.wall), self.seq))
                    added.append(self.seq)
                    self.walls[self.seq] = self.wall
                whole = part == parts - 1
                at = Timestamp(self.wall) if whole else None
                self.writer.append(flush([batch(A, rows)], at, self.wall))
                if not whole:
                    self.land()
                if seen:
                    self.land()
                    self.follower.look()
                    now = self.appended + added if whole else self.appended
                    assert self.shows(self.follower.root, now)
        except ChangefeedError as error:
            assert self.faults.failed, error
            if error.code is Code.LOG_STORE_UNREACHABLE:
                # Nothing of this flush is stored; capture would try again.
                self.abandon()
                return
            assert error.code is Code.STATE_UNREACHABLE
            with pytest.raises(ChangefeedError):
                self.writer.append(flush([], Timestamp(self.wall + 1), self.wall + 1))
            self.reopen(added)
        else:
            self.land()
            self.appended += added

    def abandon(self) -> None:
        """Take back an unfinished transaction. What flies is registered first, which may fail."""
        assert self.writer is not None
        while True:
            try:
                self.writer.abandon()
            except ChangefeedError as error:
                assert self.faults.failed, error
                if error.code is not Code.LOG_STORE_UNREACHABLE:
                    self.reopen()
                    return
            else:
                self.land()
                return

    @rule(count=st.integers(1, 12))
    def append_ahead(self, count: int) -> None:
        """Append a transaction whose objects are on their way when the call returns."""
        assert self.writer is not None
        self.wall += 1
        added = list(range(self.seq + 1, self.seq + 1 + count))
        self.seq += count
        self.walls |= dict.fromkeys(added, self.wall)
        at = Timestamp(self.wall)
        self.begin()
        try:
            rows = [Row(at, seq) for seq in added]
            item = self.writer.append(flush([batch(A, rows)], at, self.wall), ahead=True)
        except ChangefeedError as error:
            assert self.faults.failed, error
            if error.code is Code.LOG_STORE_UNREACHABLE:
                self.land()  # those before it fly on, and this one was not taken
            else:
                self.reopen()
        else:
            assert item is not None
            self.flying.append((item, added))
            self.land()

    @precondition(lambda self: self.flying)
    @rule()
    def register(self) -> None:
        """Wait until all that was appended ahead is durable."""
        assert self.writer is not None
        self.begin()
        try:
            self.writer.register(self.flying[-1][0])
        except ChangefeedError as error:
            assert self.faults.failed, error
            if error.code is not Code.LOG_STORE_UNREACHABLE:
                self.reopen()
                return
        self.land()

    @rule()
    def maintain(self) -> None:
        """Roll, merge, make objects, remove what is no longer needed."""
        assert self.writer is not None
        self.wall += 1
        self.begin()
        try:
            self.writer.roll()
            self.writer.maintain(clocks(Timestamp(self.wall)), Timestamp.ZERO)
        except ChangefeedError as error:
            assert self.faults.failed, error
            if error.code is Code.STATE_UNREACHABLE:
                self.reopen()
            else:
                assert error.code is Code.LOG_STORE_UNREACHABLE
        self.land()

    @rule(which=st.sampled_from(["store", "state"]), when=st.sampled_from([BEFORE, AFTER]))
    def fault(self, which: str, when: str) -> None:
        """Let the next write fail."""
        setattr(self.faults, which, when)

    @rule(host=st.sampled_from(HOSTS), loses=st.booleans())
    def die(self, host: str, loses: bool) -> None:
        """The owner is killed, maybe with its disk; a host goes on."""
        drop_process(self.lose())
        if loses:
            for folder in (self.folder / self.owner, self.folder / f"{self.owner}-notes"):
                shutil.rmtree(folder, ignore_errors=True)
        self.take(host)

    @rule(host=st.sampled_from(HOSTS))
    def die_in_an_append(self, host: str) -> None:
        """The owner is killed when a frame is in its copy, and not registered; a host goes on."""
        writer = self.lose()
        self.wall += 1
        self.faults.store, self.faults.state = "", BEFORE
        with pytest.MonkeyPatch.context() as patch:
            # A killed process does not take back what it has written.
            patch.setattr(LiveJournal, "_truncate", lambda *_: None)
            with pytest.raises(ChangefeedError):
                rows = [Row(Timestamp(self.wall), 10**7)]
                writer.append(flush([batch(A, rows)], Timestamp(self.wall), self.wall))
        self.faults.state = ""
        drop_process(writer)
        self.take(host)

    @rule()
    def hand_over(self) -> None:
        """The owner ends in good order; the other host goes on."""
        self.lose().close()
        self.take(HOSTS[self.owner == "one"])

    @precondition(lambda self: not self.frozen)
    @rule()
    def freeze(self) -> None:
        """The owner freezes; the other host takes its place."""
        self.frozen[self.owner] = self.lose()
        self.take(HOSTS[self.owner == "one"])

    @precondition(lambda self: self.frozen)
    @rule(many=st.booleans())
    def thaw(self, many: bool) -> None:
        """A host that was frozen goes on writing, until it notices that it is the owner no more."""
        self.faults.store = self.faults.state = ""
        _, writer = self.frozen.popitem()
        rows = [Row(Timestamp(self.wall + 500), 10**6 + i) for i in range(9 if many else 1)]
        more = flush([batch(A, rows)], Timestamp(self.wall + 500), self.wall + 500)
        ahead = [item.upload for item in writer._ahead]
        if ahead and ahead[0]._future.exception():
            # It failed before the host froze, and has not been asked for: it begins again.
            with pytest.raises(ChangefeedError, match="a fault of the test"):
                writer.append(more)
        with pytest.raises(ChangefeedError) as refused:
            writer.append(more)
        assert refused.value.code is Code.STATE_HELD_BY_ANOTHER_NODE
        with suppress(ChangefeedError):
            writer.maintain(clocks(Timestamp(self.wall + 501)), Timestamp.ZERO)
        drop_process(writer)

    @rule()
    def look(self) -> None:
        """The follower looks, and its reader reads on."""
        self.follower.look()
        self.reader.refresh()
        self.read_on()
        assert self.read == self.appended
        assert self.shows(self.follower.root, self.appended)

    def read_on(self) -> None:
        """Read what the reader's last look showed, even if files have moved since."""
        found = self.reader.slice({A.table: self.read_upto}, Timestamp.MAX, 10**9, 10**12)
        self.read += [seq for piece in found.pieces for seq in keys(piece.load())]
        self.read_upto = found.upto

    @rule()
    def lag(self) -> None:
        """The reader reads from what the follower has, which may be long ago; if that is gone, the
        follower's next look leads to what took its place."""
        self.read_on()
        assert self.read == self.appended[: len(self.read)]

    @rule()
    def follow_again(self) -> None:
        """The process that follows ends; another one begins."""
        self.reader.close()
        self.follower.close()
        shutil.rmtree(self.follower.root)
        self.follow()

    @rule()
    def cut(self) -> None:
        """Retention removes what the follower's reader has read."""
        assert self.writer is not None
        self.faults.store = self.faults.state = ""
        while self.flying:
            self.register()  # an upload may have failed already
        self.wall += 1
        self.writer.roll()
        self.writer.settings = replace(SIZES, gc_ttl=0.0, max_age=10.0**9)
        self.writer.maintain(clocks(Timestamp(self.wall)), self.read_upto)
        self.writer.settings = SIZES
        self.land()

    # -- what must hold -------------------------------------------------------------------

    @invariant()
    def nothing_is_lost_or_made_up(self) -> None:
        """The owner's readers see exactly what was appended."""
        if self.writer is not None:
            assert self.shows(self.folder / self.owner, self.appended)

    @invariant()
    def what_rows_name_is_there(self) -> None:
        """An object is written before a row names it, and removed after."""
        manifest = self.catalog.log_manifest(SOURCE)
        named = {name for _, name in manifest.objects.values()}
        named |= {part.object for part in manifest.tail if part.object}
        assert named <= {name for name, _ in ObjectStore(str(self.folder / "store")).names("")}


TwoHosts.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestTwoHosts = TwoHosts.TestCase


@pytest.fixture
def hosts() -> Iterator[TwoHosts]:
    """The model, for a history that a test writes."""
    found = TwoHosts()
    try:
        yield found
    finally:
        found.teardown()


def test_the_model_notices_a_row_before_its_object(
    hosts: TwoHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order is taken away: what is put is put after the next registration."""
    late: list[tuple[Store, str, bytes | Path]] = []
    put, register = Store.put, Register.register

    def registered(rows: Register, change: LogChange) -> None:
        register(rows, change)
        while late:
            put(*late.pop())

    monkeypatch.setattr(Store, "put", lambda *what: late.append(what))
    monkeypatch.setattr(Register, "register", registered)
    hosts.append(9, 1)
    hosts.what_rows_name_is_there()
    hosts.fault("store", BEFORE)
    hosts.append(9, 1)
    with pytest.raises(AssertionError):
        hosts.what_rows_name_is_there()


def test_the_model_notices_a_registration_that_does_not_wait_for_the_upload(
    hosts: TwoHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several flushes are on their way, and the row of one comes although its upload failed."""
    upload = SharedLog._upload

    def careless(log: SharedLog, name: str, data: bytes | None = None) -> str:
        try:
            return upload(log, name, data)
        except ChangefeedError:
            return f"{SOURCE}/{name}"

    monkeypatch.setattr(SharedLog, "_upload", careless)
    hosts.append_ahead(9)
    hosts.fault("store", BEFORE)
    hosts.append_ahead(9)
    hosts.what_rows_name_is_there()
    hosts.register()
    with pytest.raises(AssertionError):
        hosts.what_rows_name_is_there()


def test_the_model_notices_rows_out_of_their_order(
    hosts: TwoHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two flushes on their way the second is registered, and the first one not."""

    def hasty(writer: LogWriter, rest: int = 0) -> None:
        if len(writer._ahead) > rest:
            assert writer._shared is not None
            last = writer._ahead.pop()
            writer._shared.complete(last.upload)
            writer._ahead.clear()
            writer._reach(last.frontier, last.appended)

    hosts.append_ahead(9)
    hosts.append_ahead(9)
    monkeypatch.setattr(LogWriter, "_register_ahead", hasty)
    with pytest.raises((AssertionError, ChangefeedError)):
        hosts.register()
        hosts.die("two", loses=True)
        hosts.nothing_is_lost_or_made_up()


def test_a_name_that_was_given_up_leads_to_the_object_that_has_it_now(hosts: TwoHosts) -> None:
    """A part of a transaction is registered when its host fails; the next has a segment of the
    same name. The follower has begun between the two."""
    hosts.fault("state", AFTER)
    hosts.append(6, 2)
    hosts.follow_again()
    hosts.append(6, 1, seen=True)
    hosts.look()


def test_readers_fetch_a_segment_of_the_live_journal_whose_copy_was_removed(
    hosts: TwoHosts,
) -> None:
    assert hosts.writer is not None
    hosts.append(9, 1)
    hosts.writer.settings = replace(SIZES, copy_budget=0, roll_frames=100)
    hosts.writer.maintain(clocks(Timestamp(hosts.wall)), Timestamp.ZERO)
    assert not list((hosts.folder / "one").glob("segment-*"))
    hosts.nothing_is_lost_or_made_up()


def test_an_upload_that_failed_before_its_host_froze(hosts: TwoHosts) -> None:
    hosts.fault("store", BEFORE)
    hosts.append_ahead(9)
    hosts.freeze()
    hosts.append(1, 1)
    hosts.thaw(False)
    hosts.nothing_is_lost_or_made_up()


def test_the_state_fails_when_a_flush_is_given_up(hosts: TwoHosts) -> None:
    hosts.fault("store", BEFORE)
    hosts.append_ahead(9)
    hosts.fault("state", BEFORE)
    hosts.append(9, 1)
    hosts.nothing_is_lost_or_made_up()
    hosts.look()


def test_a_writer_that_was_frozen_registers_nothing_that_was_on_its_way(hosts: TwoHosts) -> None:
    hosts.append_ahead(9)
    hosts.append_ahead(9)
    hosts.freeze()
    hosts.append(1, 1)
    hosts.thaw(False)
    hosts.nothing_is_lost_or_made_up()
    hosts.look()


def test_the_model_notices_a_writer_without_a_fence(
    hosts: TwoHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token of the lease is not compared."""

    @contextmanager
    def unfenced(catalog: Catalog, lease: SourceLease) -> Iterator[Transaction]:
        with catalog._database.append() as transaction:
            yield transaction

    hosts.append(1, 1)
    hosts.freeze()
    hosts.append(1, 1)
    monkeypatch.setattr(Catalog, "_fenced", unfenced)
    with pytest.raises((AssertionError, ChangefeedError, pytest.fail.Exception)):
        hosts.thaw(False)
        hosts.take(hosts.owner)
        hosts.nothing_is_lost_or_made_up()

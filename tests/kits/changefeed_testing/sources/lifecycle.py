"""Cases about what is held at a source, restarts, and the end of the source's log."""

from __future__ import annotations

import json

from changefeed.core.errors import LOG_LOST, ChangefeedError, Code
from changefeed.core.events import Change, Flush
from changefeed.sources.base import Watch
from changefeed_testing.sources.harness import SourceHarness
from changefeed_testing.sources.reader import OWNER, State, capturing, reading
from changefeed_testing.sources.scans import TABLE, fill, refused


def attaching_changes_nothing(harness: SourceHarness) -> None:
    """attach() needs no server, and its memo is JSON by which it finds the same attachment."""
    source = harness.source()
    held = source.attach(OWNER, None)
    memo = json.loads(json.dumps(dict(held.memo)))
    again = harness.source().attach(OWNER, memo)
    assert (again.memo, again.holds) == (held.memo, held.holds)
    assert held.holds == held.holds.strip()
    held.release()
    held.release()


def capturing_twice_is_capturing(harness: SourceHarness) -> None:
    """capture() may be repeated, even by another object, and release() leaves nothing behind."""
    harness.execute(TABLE)
    state = State.of(harness)
    assert state.capture(harness.source(), "t").problems == {}
    start = state.attach(harness.source()).start()
    captured = state.capture(harness.source(), "t")
    assert captured.problems == {} and captured.altered == {}
    assert state.attach(harness.source()).start() == start
    held = state.attach(harness.source())
    assert held.check([Watch("t")]) == []
    held.release()
    held.release()
    state.attach(harness.source()).release()


def a_bad_table_keeps_no_other_out(harness: SourceHarness) -> None:
    """capture() names what it cannot capture, and captures the others."""
    harness.execute(TABLE)
    source = harness.source()
    table = source.describe(None, "t").table
    gone = type(table)(table.source, table.schema, "gone")
    held = source.attach(OWNER, None)
    try:
        captured = held.capture([table, gone], resume=False)
        assert {t.name: e.code for t, e in captured.problems.items()} == {"gone": Code.NAME_UNKNOWN}
    finally:
        held.release()


def a_table_joins_while_others_stream(harness: SourceHarness) -> None:
    """Every commit after capture() returned reaches a stream that was running before."""
    harness.execute(TABLE, "CREATE TABLE late (id INT NOT NULL PRIMARY KEY, v VARCHAR(200))")
    with capturing(harness, "t") as (state, reader):
        fill(harness, 20)
        for turn in range(5):
            assert state.capture(reader.source, "t", "late").problems == {}
            harness.execute(f"INSERT INTO late VALUES ({turn}, 'x')")
            reader.catch_up()
            assert [(c.after or {})["id"] for c in state.changes("late")] == list(range(turn + 1))
            state.capture(reader.source, "t")
            state.capture(reader.source, "t", "late")


def an_idle_source_moves_on(harness: SourceHarness) -> None:
    """The frontier rises without writes, and reaches current_position()."""
    harness.execute(TABLE)
    with capturing(harness, "t") as (state, reader):
        reader.catch_up()
        first = state.frontier
        assert first is not None
        reader.wait(lambda: state.frontier and state.frontier.at > first.at)
        for _ in range(3):
            reader.catch_up(reader.source.current_position())
        assert state.changes() == []


def positions_lie_above_what_committed(harness: SourceHarness) -> None:
    """current_position() is at or above each commit before it, and below each one after it, and
    server_time() is of the clock that stamps commits, if the source says it."""
    harness.execute(TABLE)
    with capturing(harness, "t") as (state, reader):
        places = []
        began = reader.source.server_time()
        for number in range(5):
            before = reader.source.current_position()
            harness.execute(f"INSERT INTO t VALUES ({number}, 'x')")
            places.append((before, reader.source.current_position()))
        ended = reader.source.server_time()
        reader.catch_up()
        positions = state.positions()
        if began is not None and ended is not None:
            # MariaDB stamps commits by the second.
            times = [change.at.wall for change in state.changes()]
            assert began - 10**9 <= min(times) and max(times) <= ended
        for change, (before, after) in zip(state.changes(), places, strict=True):
            assert before < positions[change.at] <= after


def a_restart_anywhere_loses_nothing(harness: SourceHarness) -> None:
    """From each frontier, a new process continues with the same rows and sequence numbers."""
    harness.execute(TABLE)
    source, state = harness.source(), State.of(harness, "first")
    state.capture(source, "t")
    try:
        with reading(state, source, acknowledge=False) as reader:
            for turn in range(6):
                fill(harness, 3, first=10 * turn)
                harness.execute(f"UPDATE t SET id = {10 * turn + 5} WHERE id = {10 * turn}")
                reader.catch_up()
        whole = [_seen(change) for change in state.changes()]
        places = [place for place, flush in enumerate(state.flushes) if flush.frontier]
        for place in places[:: max(1, len(places) // 6)]:
            assert _again(harness, state, place) == whole, f"from flush {place}"
    finally:
        state.attach(harness.source()).release()


def _again(harness: SourceHarness, first: State, place: int) -> list[tuple[object, ...]]:
    """The rows of the log up to a flush, followed by those of a new stream from there on."""
    state = State.of(harness, f"again-{place}", first)
    state.flushes = list(first.flushes[: place + 1])
    state.frontier = state.flushes[-1].frontier
    with reading(state, harness.source(), acknowledge=False) as reader:
        reader.catch_up()
    return [_seen(change) for change in state.changes()]


def _seen(change: Change) -> tuple[object, ...]:
    return change.op, change.seq, change.ordinal, repr(change.before), repr(change.after)


def a_restart_in_a_large_transaction(harness: SourceHarness) -> None:
    """A transaction that was read in part is sent again as a whole."""
    harness.execute(TABLE)
    source, state = harness.source(), State.of(harness, "first")
    state.capture(source, "t")
    try:
        fill(harness, 30_000)
        reader_state = State.of(harness, "second", state)
        with reading(reader_state, source) as reader:
            reader.wait(lambda: reader_state.flushes)
        with reading(reader_state, harness.source()) as reader:
            reader.catch_up()
        assert len({c.seq for c in reader_state.changes()}) == len(reader_state.changes()) == 30_000
    finally:
        state.attach(harness.source()).release()


def closing_ends_the_stream(harness: SourceHarness) -> None:
    """close() ends an idle stream, and the next stream may begin at once."""
    harness.execute(TABLE)
    with capturing(harness, "t") as (state, reader):
        reader.catch_up()
        reader.close()
        harness.execute("INSERT INTO t VALUES (1, 'x')")
        with reading(state, harness.source()) as again:
            again.catch_up()
        assert len(state.changes()) == 1


def a_lost_log_is_an_error(harness: SourceHarness) -> None:
    """If the source no longer has a part of its log, there is an error."""
    harness.execute(TABLE)
    source, state = harness.source(), State.of(harness)
    state.capture(source, "t")
    try:
        with reading(state, source) as reader:
            harness.execute("INSERT INTO t VALUES (1, 'x')")
            reader.catch_up()
        harness.execute("INSERT INTO t VALUES (2, 'missed')")
        harness.lose_log(state.memo or {})
        error = _resume(harness, state)
        assert error is not None and error.code in LOG_LOST, error
    finally:
        state.attach(harness.source()).release()


def _resume(harness: SourceHarness, state: State) -> ChangefeedError | None:
    """The error that a node gets when it resumes, if there is one."""
    try:
        state.capture(harness.source(), "t")
        with reading(state, harness.source()) as reader:
            reader.catch_up()
    except ChangefeedError as error:
        return error
    return None


def a_new_log_after_a_lost_one(harness: SourceHarness) -> None:
    """After release() a capture begins anew, whatever the memo has."""
    harness.execute(TABLE)
    state = State.of(harness)
    state.capture(harness.source(), "t")
    harness.execute("INSERT INTO t VALUES (1, 'before')")
    harness.lose_log(state.memo or {})
    state.attach(harness.source()).release()
    state.memo, state.identity = None, ""
    state.capture(harness.source(), "t")
    try:
        with reading(state, harness.source()) as reader:
            harness.execute("INSERT INTO t VALUES (2, 'after')")
            reader.catch_up()
        assert [change.after for change in state.changes()] == [{"id": 2, "v": "after"}]
    finally:
        state.attach(harness.source()).release()


def another_database_is_refused(harness: SourceHarness) -> None:
    """A database that replaced the captured one has another identity, and its log is not read."""
    harness.execute(TABLE)
    source, other = harness.source(), harness.other()
    assert source.identity() == harness.source().identity() != other.identity()
    state = State.of(harness)
    state.capture(source, "t")
    try:
        with reading(state, source) as reader:
            reader.catch_up()

        def read_other() -> None:
            with reading(state, other) as reader:
                reader.catch_up()

        refused(Code.SOURCE_IS_ANOTHER, read_other)
    finally:
        state.attach(harness.source()).release()


def flushes(state: State) -> list[Flush]:
    """The flushes that hold rows."""
    return [flush for flush in state.flushes if flush.events]

"""What every sink must do, as a list of cases over a harness.

A sink author writes a :class:`Harness` for the sink and one parametrised test:

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_my_sink(case: Case, my_harness: Harness) -> None:
        run_case(case, my_harness)

A case that a sink cannot pass *by its nature* is named in ``Harness.never`` with the reason, and
is not run; naming a case that does not exist is an error.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from changefeed.core.errors import Action, ChangefeedError, Code, Scope
from changefeed.core.halves import by_halves
from changefeed.options import Feature
from changefeed_testing.sinks.feed import FeedDouble, Write, at, delete, put
from changefeed_testing.sinks.messages import Message
from changefeed_testing.sinks.outside import assert_connects_to_nothing, assert_prints_nothing
from changefeed_testing.sinks.validators import (
    BeforeAfterValidator,
    FingerprintValidator,
    OrderValidator,
    ResolvedValidator,
    validate,
)
from sinks.base import Durability, Receipt, Sink

#: Five megabytes of text that never repeats.
LARGE_TEXT = "".join(f"{i:07d} " for i in range(655_360))


class Harness(Protocol):
    """One target to test a sink against; a fresh one for each case.

    A target that holds the newest version of each row and no other (documents by key) has a true
    attribute ``keeps_latest``. Its ``read`` returns the existing rows, without deleted ones, then
    the newest mark of each topic.

    A target that refuses messages for another reason than their size has an attribute
    ``refused_text``: a text of a row that it refuses.
    """

    never: Mapping[str, str]
    """Cases the sink cannot pass by its nature, with the reason."""

    secret: str
    """A password inside the URI of :meth:`sink`; empty when its URIs hold none."""

    max_message_bytes: int
    """Size from which the target refuses a message; 0 if it takes any size."""

    def sink(self) -> Sink:
        """A new, unopened sink on the target, as after a restart of the process."""
        ...

    def topic(self, table: str) -> str:
        """The finished topic name of a table."""
        ...

    def partitions(self) -> Mapping[str, int]:
        """How many partitions each topic has."""
        ...

    def read(self) -> Sequence[Message]:
        """All messages that a reader can see now, each partition in its order."""
        ...

    def raw(self) -> bytes:
        """All bytes of the target that a reader can see now, to search in."""
        ...

    def down(self) -> AbstractContextManager[None]:
        """Make the target unreachable during the block."""
        ...


@dataclass(frozen=True, slots=True)
class Case:
    """One thing a sink must do; ``run`` fails by an assertion."""

    name: str
    run: Callable[[Harness], None]

    def __str__(self) -> str:
        return self.name


def run_case(case: Case, harness: Harness) -> str:
    """Run a case; returns why it was not run, or nothing.

    Raises:
        AssertionError: the sink broke the case, or ``never`` names a case that does not exist.
    """
    unknown = set(harness.never) - {known.name for known in CASES}
    assert not unknown, f"never names unknown cases: {unknown}"
    if case.name in harness.never:
        return harness.never[case.name]
    case.run(harness)
    return ""


def _keeps_latest(harness: Harness) -> bool:
    return bool(getattr(harness, "keeps_latest", False))


def _feed(harness: Harness, *tables: str) -> FeedDouble:
    capabilities = harness.sink().capabilities
    topics = {table: harness.topic(table) for table in tables or ("t",)}
    return FeedDouble(
        topics,
        key_in_value=capabilities.key_in_value,
        topic_in_value=capabilities.topic_in_value,
    )


def _check(harness: Harness, feed: FeedDouble, *, repeats: bool = True) -> Sequence[Message]:
    """Check every guarantee on what a reader sees now, after the feed ended with a mark."""
    messages = harness.read()
    partitions = harness.partitions()
    validate(
        messages,
        OrderValidator(),
        ResolvedValidator(partitions),
        BeforeAfterValidator(feed.history),
        FingerprintValidator(
            feed.history.table, partitions, None if _keeps_latest(harness) else feed.history
        ),
    )
    if not repeats:
        seen = [(m.topic, m.key, m.at) for m in messages if m.is_row]
        assert len(seen) == len(set(seen)), "a row was delivered twice"
    return messages


def _rows(messages: Sequence[Message]) -> list[tuple[str | None, object]]:
    return [(m.key, m.after) for m in messages if m.is_row]


# ------------------------------------------------------------------------------ plain delivery


def delivers_in_order(harness: Harness) -> None:
    """Rows of a key come in the order they were written, over many epochs."""
    feed = _feed(harness)
    sink = feed.open(harness.sink())
    for step in range(1, 40, 2):
        writes = [put(step % 5, f"{step}", step), put((step + 1) % 5, f"{step + 1}", step + 1)]
        feed.deliver(sink, writes)
    feed.resolve(sink)
    messages = _check(harness, feed, repeats=False)
    assert len(_rows(messages)) == (5 if _keeps_latest(harness) else 40)
    sink.close()


def delivers_deletes(harness: Harness) -> None:
    """A delete arrives as one, and the row may come back."""
    feed = _feed(harness)
    sink = feed.open(harness.sink())
    feed.deliver(sink, [put(1, "x", 1), put(2, "x", 2), delete(1, 3)])
    feed.resolve(sink)
    feed.deliver(sink, [put(1, "y", 4), delete(2, 5)])
    feed.resolve(sink)
    _check(harness, feed)
    assert feed.history.table(harness.topic("t"), at(9)) == {"[1]": {"a": 1, "b": "y"}}
    sink.close()


def delivers_key_changes(harness: Harness) -> None:
    """A changed key is a delete of the old and an insert of the new one at one instant."""
    feed = _feed(harness)
    sink = feed.open(harness.sink())
    feed.deliver(sink, [put(1, "x", 1)])
    feed.deliver(sink, [delete(1, 2), put(2, "x", 2)])
    feed.deliver(sink, [delete(2, 3), put(1, "z", 3)])
    feed.resolve(sink)
    _check(harness, feed)
    sink.close()


def delivers_awkward_text(harness: Harness) -> None:
    """Quotes, newlines, NUL escapes, emoji and long values come through as they are."""
    feed = _feed(harness)
    sink = feed.open(harness.sink())
    texts = ['"', "\\", "line\nbreak", "\u0001", "\U0001f600 ☃", "", "x" * 100_000]
    feed.deliver(sink, [put(i, text, 1) for i, text in enumerate(texts)])
    feed.resolve(sink)
    _check(harness, feed)
    sink.close()


def delivers_large_values(harness: Harness) -> None:
    """A value of five megabytes arrives whole or stops its table; never a part of it."""
    feed = _feed(harness)
    sink = feed.open(harness.sink())
    writes = [put(1, LARGE_TEXT, 1), put(2, "small", 2)]
    if 0 < harness.max_message_bytes <= len(LARGE_TEXT):
        epoch = feed.epoch(at(2))
        try:
            sink.commit(epoch, feed.write(sink, epoch, writes))
        except ChangefeedError as error:
            assert error.code is Code.SINK_CANNOT_TAKE_TABLE, error.code.number
            assert "shop.public.t" in f"{error.message} {error.detail} {error.hint}"
        else:
            raise AssertionError("a value larger than the target takes was accepted")
        sink.abort(epoch, ())
        assert LARGE_TEXT[:1000].encode() not in harness.raw(), "a part of the value arrived"
    else:
        feed.deliver(sink, writes)
        feed.resolve(sink)
        _check(harness, feed)
    sink.close()


def delivers_schema_changes(harness: Harness) -> None:
    """Rows of two schema versions of a table arrive whole and in order."""
    feed = _feed(harness)
    sink = feed.open(harness.sink())
    feed.deliver(sink, [put(1, "old", 1)])
    feed.versions["t"] = 2
    feed.deliver(sink, [Write(1, {"a": 1, "b": "new", "c": "more"}, at(2))])
    feed.resolve(sink)
    _check(harness, feed)
    sink.close()


def delivers_several_tables(harness: Harness) -> None:
    """Each table has its topic; a mark reaches the quiet one too."""
    feed = _feed(harness, "t", "u")
    sink = feed.open(harness.sink())
    feed.deliver(sink, [put(1, "t", 1, "t"), put(1, "u", 1, "u"), put(2, "t", 2, "t")])
    feed.resolve(sink)
    feed.deliver(sink, [put(2, "t2", 3, "t")])
    feed.resolve(sink)
    messages = _check(harness, feed)
    assert {m.topic for m in messages if m.is_row} == {harness.topic("t"), harness.topic("u")}
    sink.close()


def resolves_everywhere(harness: Harness) -> None:
    """Every partition of every topic gets every mark, even without rows in between."""
    feed = _feed(harness, "t", "u")
    sink = feed.open(harness.sink())
    feed.deliver(sink, [put(key, "x", 1) for key in range(20)])
    first = feed.resolve(sink)
    second = feed.resolve(sink, at(5))
    messages = _check(harness, feed)
    places = {(t, p) for t, count in harness.partitions().items() for p in range(count)}
    for mark in (second,) if _keeps_latest(harness) else (first, second):
        reached = {(m.topic, m.partition) for m in messages if m.resolved == mark}
        assert reached == places, f"resolved {mark} reached {reached}, not {places}"
    sink.close()


def truncates(harness: Harness) -> None:
    """A TRUNCATE stands between the rows before it and those after it."""
    feed = _feed(harness)
    sink = feed.open(harness.sink())
    feed.deliver(sink, [put(1, "x", 1), put(2, "x", 1)], upto=at(2))
    feed.truncate(sink, "t", at(2))
    feed.deliver(sink, [put(3, "y", 3)])
    feed.resolve(sink)
    messages = _check(harness, feed)
    assert _keeps_latest(harness) or any(m.truncated == at(2) for m in messages)
    assert feed.history.table(harness.topic("t"), at(9)) == {"[3]": {"a": 3, "b": "y"}}
    sink.close()


def commits_nothing(harness: Harness) -> None:
    """An epoch without rows is legal, and a mark may follow it."""
    feed = _feed(harness)
    sink = feed.open(harness.sink())
    feed.deliver(sink, [put(1, "x", 1)])
    feed.deliver(sink, [], upto=at(5))
    feed.resolve(sink)
    _check(harness, feed, repeats=False)
    sink.close()


def opens_again(harness: Harness) -> None:
    """``open`` is idempotent and takes tables that joined later."""
    feed = _feed(harness, "t")
    sink = feed.open(harness.sink())
    feed.open(sink)
    feed.deliver(sink, [put(1, "x", 1)])
    more = _feed(harness, "t", "u")
    feed.targets |= more.targets
    feed.versions |= more.versions
    feed.open(sink)
    feed.deliver(sink, [put(1, "y", 2), put(7, "u", 2, "u")])
    feed.resolve(sink)
    _check(harness, feed, repeats=False)
    sink.close()


# ------------------------------------------------------------------------------- when it breaks


def replays_harmlessly(harness: Harness) -> None:
    """An epoch is delivered again by another run of the process: rows may repeat, in order."""
    feed = _feed(harness)
    writes = [put(1, "a", 1), put(1, "b", 2), delete(1, 3), put(1, "c", 4)]
    first = feed.open(harness.sink())
    epoch = feed.epoch(at(4))
    first.commit(epoch, feed.write(first, epoch, writes))
    second = feed.open(harness.sink())  # the first run died before its progress was stored
    feed.deliver(second, writes)
    feed.resolve(second)
    # A sink that keeps the feed's progress delivers exactly once only to feeds that read it.
    harmless = second.capabilities.exactly_once and not second.capabilities.keeps_progress
    _check(harness, feed, repeats=not harmless)
    first.close()
    second.close()


def survives_crash_before_commit(harness: Harness) -> None:
    """Rows that were written and not committed are written again from the start of the epoch."""
    feed = _feed(harness)
    writes = [put(1, "a", 1), put(1, "b", 2), put(2, "c", 3)]
    first = feed.open(harness.sink())
    feed.write(first, feed.epoch(at(3)), writes)
    first.close()  # what was in flight may or may not have arrived
    second = feed.open(harness.sink())
    feed.deliver(second, writes)
    feed.resolve(second)
    _check(harness, feed)
    second.close()


def commits_durably(harness: Harness) -> None:
    """What ``commit`` reported as durable can be read even if the sink is never closed."""
    feed = _feed(harness)
    sink = feed.open(harness.sink())
    feed.deliver(sink, [put(1, "x", 1), put(2, "y", 2)])
    assert sorted(key or "" for key, _ in _rows(harness.read())) == ["[1]", "[2]"]
    feed.resolve(sink)
    _check(harness, feed)
    sink.close()


def aborts(harness: Harness) -> None:
    """After ``abort`` a longer epoch with the same rows is written to the same sink."""
    feed = _feed(harness)
    sink = feed.open(harness.sink())
    feed.deliver(sink, [put(1, "a", 1)])
    epoch = feed.epoch(at(2))
    receipts = feed.write(sink, epoch, [put(1, "b", 2)])
    sink.abort(epoch, receipts)
    feed.deliver(sink, [put(1, "b", 2), put(1, "c", 3)])
    feed.resolve(sink)
    _check(harness, feed)
    sink.close()


def outlives_outage(harness: Harness) -> None:
    """While the target is down delivery fails with an error to retry; afterwards it goes on."""
    feed = _feed(harness)
    sink = feed.open(harness.sink())
    feed.deliver(sink, [put(1, "a", 1)])
    writes = [put(1, "b", 2), put(2, "c", 3)]
    epoch = feed.epoch(at(3))
    with harness.down():
        try:
            sink.commit(epoch, feed.write(sink, epoch, writes))
        except ChangefeedError as error:
            assert error.action is Action.RETRY, f"{error.code.number} is not tried again"
            sink.abort(epoch, ())
        else:
            raise AssertionError("commit succeeded while the target was away")
    feed.deliver(sink, writes)
    feed.resolve(sink)
    _check(harness, feed)
    sink.close()


def refuses_oversize(harness: Harness) -> None:
    """A message that is too large stops the feed; the error names table and limit, not the data."""
    feed = _feed(harness)
    sink = feed.open(harness.sink())
    text = "secret-value-" * (harness.max_message_bytes // 13 + 1)
    epoch = feed.epoch(at(2))
    try:
        sink.commit(epoch, feed.write(sink, epoch, [put(1, "small", 1), put(2, text, 2)]))
    except ChangefeedError as error:
        shown = f"{error.message} {error.detail} {error.hint}"
        assert error.code is Code.SINK_CANNOT_TAKE_TABLE, error.code.number
        assert "secret-value" not in shown
        assert "shop.public.t" in shown and str(harness.max_message_bytes) in shown, shown
        assert error.target == harness.topic("t"), error.target
    else:
        raise AssertionError("a message larger than the target takes was accepted")
    sink.abort(epoch, ())
    sink.close()


def finds_refused_rows(harness: Harness) -> None:
    """A row that is refused for itself is named as one: by halves it is found, and every other row
    arrives, in order (``on_row_error = 'dead_letter'``)."""
    text = getattr(harness, "refused_text", "")
    if not text and harness.max_message_bytes:
        text = "secret-value-" * (harness.max_message_bytes // 13 + 1)
    if not text or Feature.DEAD_LETTERS not in harness.sink().capabilities.features:
        return
    feed = _feed(harness)
    sink = feed.open(harness.sink())
    bad = {4, 11}
    writes = [put(n, text if n in bad else f"{n}", n) for n in range(1, 16)]
    writes.append(put(4, "good again", 16))
    found: list[int] = []

    def deliver(rows: pa.Table) -> None:
        epoch = feed.epoch(at(16))
        receipts: Sequence[Receipt] = ()
        try:
            receipts = feed.write(sink, epoch, [writes[n] for n in rows["n"].to_pylist()])
            assert sink.commit(epoch, receipts) is Durability.DURABLE
        except ChangefeedError:
            sink.abort(epoch, receipts)
            raise

    def refused(row: pa.Table, error: ChangefeedError) -> None:
        assert error.scope is Scope.TABLE and error.target == harness.topic("t")
        assert text[:20] not in f"{error.message} {error.detail} {error.hint}"
        found.append(row["n"][0].as_py() + 1)

    by_halves(pa.table({"n": list(range(len(writes)))}), deliver, refused)
    assert found == sorted(bad)
    latest = {key: after for key, after in _rows(harness.read())}
    assert latest == {
        f"[{n}]": {"a": n, "b": "good again" if n == 4 else f"{n}"} for n in range(1, 16) if n != 11
    }
    validate(harness.read(), OrderValidator())
    sink.close()


def writes_in_executors(harness: Harness) -> None:
    """Copies of the sink made by pickling write in other processes; the driver commits."""
    feed = _feed(harness)
    sink = feed.open(harness.sink())
    packed = pickle.dumps(sink)
    epoch = feed.epoch(at(30))
    receipts = []
    for start in (1, 11, 21):
        writes = [put(key, f"{key}", key) for key in range(start, start + 10)]
        feed.record(writes)
        worker: Sink = pickle.loads(packed)
        batches = feed.batches(epoch, writes)
        receipts += pickle.loads(pickle.dumps([worker.write(batch) for batch in batches]))
        worker.close()
    sink.commit(epoch, receipts)
    feed.delivered = at(30)
    feed.resolve(sink)
    messages = _check(harness, feed, repeats=False)
    assert len(_rows(messages)) == 30
    sink.close()


def connects_to_nothing(harness: Harness) -> None:
    """The constructor makes no connection: it works while the target is down, and leaves none."""
    _feed(harness).open(harness.sink()).close()  # a target must exist to be made unreachable
    with harness.down() if "outlives_outage" not in harness.never else nullcontext():
        sink = assert_connects_to_nothing(harness.sink)
    sink.close()


def prints_nothing(harness: Harness) -> None:
    """A sink writes nothing to standard output or error, which are the user's, even if it fails."""
    feed = _feed(harness)
    with assert_prints_nothing():
        sink = feed.open(harness.sink())
        feed.deliver(sink, [put(1, "a", 1)])
        feed.resolve(sink)
    if "outlives_outage" not in harness.never:
        epoch = feed.epoch(at(3))
        with harness.down(), assert_prints_nothing():
            with suppress(ChangefeedError):
                sink.commit(epoch, feed.write(sink, epoch, [put(1, "b", 2)]))
            sink.abort(epoch, ())
    with assert_prints_nothing():
        sink.close()


def hides_secrets(harness: Harness) -> None:
    """Nothing a sink says of itself, and nothing it writes, holds the password of its URI."""
    feed = _feed(harness)
    sink = feed.open(harness.sink())
    feed.deliver(sink, [put(1, "x", 1)])
    feed.resolve(sink)
    assert harness.secret not in repr(sink) + str(sink)
    assert harness.secret.encode() not in harness.raw()
    sink.close()


def _case(run: Callable[[Harness], None]) -> Case:
    return Case(run.__name__, run)


#: Every case, in the order of the documentation.
CASES: tuple[Case, ...] = tuple(
    _case(run)
    for run in (
        delivers_in_order,
        delivers_deletes,
        delivers_key_changes,
        delivers_awkward_text,
        delivers_large_values,
        delivers_schema_changes,
        delivers_several_tables,
        resolves_everywhere,
        truncates,
        commits_nothing,
        opens_again,
        replays_harmlessly,
        survives_crash_before_commit,
        commits_durably,
        aborts,
        outlives_outage,
        refuses_oversize,
        finds_refused_rows,
        writes_in_executors,
        hides_secrets,
        connects_to_nothing,
        prints_nothing,
    )
)

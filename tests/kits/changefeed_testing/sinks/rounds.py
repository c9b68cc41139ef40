"""Random rounds, broken off, repeated and scanned again: in the end the target equals the source.

For sinks that merge rows into tables, in addition to the list of
:mod:`changefeed_testing.sinks.merging`. The same seed always makes the same rounds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from changefeed_testing.sinks.merge_harness import MergeHarness
from changefeed_testing.sinks.merge_steps import feed_of, visible
from changefeed_testing.sinks.rows import (
    RowChange,
    RowFeed,
    SourceDouble,
    delete,
    insert,
    table_of,
    truncate,
    update,
)
from sinks.base import Sink

#: Deliver the log from a place to its end through a sink, and end the sink's process after a number
#: of its steps. If the round has fewer steps, return without an error, the whole round committed.
BreakOff = Callable[[RowFeed, Sink, int, int], object]
#: More steps than most rounds have.
MOST_STEPS = 8


def written_only(feed: RowFeed, sink: Sink, begin: int, steps: int) -> None:
    """Break off a round of a sink that commits a round at once: all rows are written and none is
    committed. For an odd number of steps all are committed, but the feed gets no result."""
    epoch, receipts = feed.write(sink, begin, len(feed.source.log))
    if steps % 2:
        feed.commit(sink, epoch, receipts)


def run_random_rounds(
    harness: MergeHarness,
    seed: int,
    options: Mapping[str, object] | None = None,
    cut: BreakOff = written_only,
    *,
    rounds: int = 8,
) -> None:
    """Rounds of random changes of a table with a key and, without ``options``, of one without.

    Before a round is delivered it may be broken off several times, each time with a new sink. It
    may begin before the end of the last round. After it, tables may be scanned again, where one
    scan is broken off first.

    Raises:
        AssertionError: after a round the target differed from the source.
    """
    options = dict(options or {})
    rng = random.Random(seed)
    keyless = [] if options else [table_of("v", a="int32", b="text")]
    source = SourceDouble(table_of("t", key=("a",), a="int32", b="text", c="text"), *keyless)
    feed = feed_of(harness, source, options)
    for number in range(rounds):
        for _ in range(rng.randint(1, 6)):
            changes = keyed_changes(rng, source, sends_all="history" in options)
            source.commit(*changes, *(keyless_changes(rng, source) if keyless else ()))
        begin = rng.choice([feed.place, feed.place, rng.randint(0, feed.place)])
        for _ in range(rng.randint(0, 3)):
            sink = feed.open(harness.sink(options))
            cut(feed, sink, begin, rng.randrange(MOST_STEPS))
            sink.close()
        sink = feed.open(harness.sink(options))
        feed.deliver(sink, begin)
        if rng.random() < 0.4:
            for table in source.schemas:
                feed.open(sink)
                feed.scan(sink, table, upto=rng.randrange(4), end=False)
                feed.open(sink)
                feed.scan(sink, table)
        sink.close()
        for table in source.schemas:
            found = visible(live(harness.rows(harness.topic(table))))
            truth = source.rows(table)
            assert found == truth, (
                f"seed {seed}, round {number}: {table} is {found}, the source has {truth}"
            )


def live(rows: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """The current rows: versions that have not ended, without rows marked as deleted."""
    return [
        row
        for row in rows
        if row.get("_is_current", True) and not row.get("_deleted") and not row.get("_is_deleted")
    ]


#: For each kind of update: the columns that the source does not send, and the columns that change.
_UPDATES: Sequence[tuple[Sequence[str], Mapping[str, object]]] = (
    ((), {"b": "up"}),
    ((), {"c": None}),
    (("b",), {"c": "up"}),
    (("b", "c"), {}),
)


def keyed_changes(rng: random.Random, source: SourceDouble, *, sends_all: bool) -> list[RowChange]:
    """Some changes of ``t`` in one transaction. With ``sends_all`` the source sends every value, as
    tables with history need."""
    keys = {row["a"] for row in source.rows("t")}
    found: list[RowChange] = []
    for _ in range(rng.randint(1, 5)):
        new, kind = rng.randrange(16), rng.random()
        old = rng.choice(sorted(keys, key=repr)) if keys else None
        if old is None or (kind < 0.4 and new not in keys):
            keys.add(new)
            found.append(
                insert("t", a=new, b=rng.choice([None, "", "x"]), c=rng.choice([None, "z"]))
            )
        elif kind < 0.65:
            unsent, sets = rng.choice(_UPDATES)
            found.append(update("t", {"a": old}, () if sends_all else unsent, **sets))
        elif kind < 0.8 and new not in keys:
            keys = keys - {old} | {new}
            found.append(update("t", {"a": old}, a=new, b="moved"))
        elif kind < 0.96:
            keys.discard(old)
            found.append(delete("t", a=old))
        else:
            keys.clear()
            found.append(truncate("t"))
    return found


def keyless_changes(rng: random.Random, source: SourceDouble) -> list[RowChange]:
    """Some changes of ``v`` in one transaction: equal rows are inserted and deleted one by one."""
    rows, found = source.rows("v"), []
    for _ in range(rng.randint(0, 4)):
        new: dict[str, object] = {"a": rng.randrange(2), "b": rng.choice(["p", "q", None])}
        kind = rng.random()
        if rows and kind < 0.5:
            old = rows.pop(rng.randrange(len(rows)))
            found.append(delete("v", **old) if kind < 0.25 else update("v", old, **new))
            if kind >= 0.25:
                rows.append(new)
        elif kind > 0.97:
            rows.clear()
            found.append(truncate("v"))
        else:
            rows.append(new)
            found.append(insert("v", **new))
    return found

"""What a merging sink does with tables that it did not make: cases over a :class:`MergeHarness`.

A :class:`~changefeed_testing.sinks.merge_harness.MergeHarness` creates such tables by
``make_foreign`` and reads them by ``foreign_rows``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from changefeed.core.errors import Action, ChangefeedError, Code
from changefeed.core.schema import TableSchema
from changefeed_testing.sinks.merge_harness import MergeHarness
from changefeed_testing.sinks.rows import (
    RowFeed,
    SourceDouble,
    delete,
    insert,
    ordered,
    table_of,
    truncate,
)
from sinks.base import Sink, SinkContext

#: The row of a foreign table.
THEIRS: Mapping[str, object] = {"a": 9, "b": "theirs"}


def _keyed(name: str = "t") -> TableSchema:
    return table_of(name, key=("a",), a="int32", b="text")


def _feed(
    harness: MergeHarness,
    source: SourceDouble,
    options: Mapping[str, object] | None = None,
    changed: Mapping[str, object] | None = None,
) -> RowFeed:
    """A feed whose contexts have the ``changed`` attributes, so that it counts as another feed."""

    def context(made: SinkContext) -> SinkContext:
        return harness.context(replace(made, **(changed or {})))  # type: ignore[arg-type]

    return RowFeed(
        source, harness.topic, options=options, write_scan=harness.write_scan, context=context
    )


def _refused(feed: RowFeed, sink: Sink, what: str) -> ChangefeedError:
    try:
        feed.deliver(sink, 0)
    except ChangefeedError as error:
        assert error.code is Code.TARGET_NOT_OURS, f"{error.code.number}: {error.message}"
        assert error.action is Action.STOP
        assert error.hint, "the error does not say how to go on"
        return error
    raise AssertionError(f"{what} was taken without a word")


def refuses_foreign_rows(harness: MergeHarness) -> None:
    """A table with rows and no ownership mark is refused and left unchanged; VALIDATE says so."""
    harness.make_foreign(harness.topic("t"))
    source = SourceDouble(_keyed())
    source.commit(insert("t", a=1, b="x"))
    feed = _feed(harness, source)
    asked = harness.sink()
    context = feed.context()
    targets = tuple(replace(t, schema=_keyed()) for t in context.targets)
    found = asked.check(replace(context, targets=targets))
    asked.close()
    assert [error.code for error in found] == [Code.TARGET_NOT_OURS], found
    sink = feed.open(harness.sink())
    error = _refused(feed, sink, "a table with rows of somebody else")
    assert harness.topic("t") in f"{error.message} {error.detail}", error.message
    sink.close()
    assert harness.foreign_rows(harness.topic("t")) == [THEIRS]


def keeps_foreign_rows(harness: MergeHarness) -> None:
    """``existing_target = 'merge'``: rows of other keys survive a scan and a TRUNCATE."""
    options = {"existing_target": "merge"}
    harness.make_foreign(harness.topic("t"))
    source = SourceDouble(_keyed())
    source.load("t", [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}])
    feed = _feed(harness, source, options)
    sink = feed.open(harness.sink(options))
    feed.scan(sink, "t")
    assert ordered(harness.foreign_rows(harness.topic("t"))) == ordered([*source.rows("t"), THEIRS])
    source.commit(delete("t", a=1))
    feed.deliver(sink)
    feed.open(sink)
    feed.scan(sink, "t")
    assert ordered(harness.foreign_rows(harness.topic("t"))) == ordered([*source.rows("t"), THEIRS])
    source.commit(truncate("t"))
    feed.deliver(sink)
    assert harness.foreign_rows(harness.topic("t")) == [THEIRS]
    sink.close()


def replaces_foreign_rows(harness: MergeHarness) -> None:
    """``existing_target = 'replace'``: foreign rows are removed once; later, no row of the feed."""
    options = {"existing_target": "replace"}
    harness.make_foreign(harness.topic("t"))
    source = SourceDouble(_keyed())
    source.commit(insert("t", a=1, b="x"))
    feed = _feed(harness, source, options)
    sink = feed.open(harness.sink(options))
    feed.deliver(sink)
    sink.close()
    source.commit(insert("t", a=2, b="y"))
    again = feed.open(harness.sink(options))
    feed.deliver(again)
    again.close()
    assert harness.foreign_rows(harness.topic("t")) == source.rows("t")


def refuses_targets_of_other_feeds(harness: MergeHarness) -> None:
    """The target of an existing feed is refused; that of a dropped feed may be used again."""
    source = SourceDouble(_keyed())
    source.commit(insert("t", a=1, b="x"))
    feed = _feed(harness, source)
    first = feed.open(harness.sink())
    feed.deliver(first)
    first.close()
    table = str(source.schemas["t"].table)
    later = SourceDouble(_keyed())
    later.commit(insert("t", a=2, b="y"))
    for changed in (
        {"job_id": 18, "feeds": frozenset({(17, table)})},
        {"job_id": 17, "state": "another-state"},
    ):
        other = _feed(harness, later, changed=changed)
        sink = other.open(harness.sink())
        _refused(other, sink, f"the target of another feed ({changed})")
        sink.close()
        assert harness.foreign_rows(harness.topic("t")) == source.rows("t")
    back = _feed(harness, source, changed={"job_id": 18})
    sink = back.open(harness.sink())
    source.commit(delete("t", a=1), insert("t", a=3, b="z"))
    back.scan(sink, "t")
    sink.close()
    assert harness.foreign_rows(harness.topic("t")) == source.rows("t")


def leaves_names_beside_alone(harness: MergeHarness) -> None:
    """A foreign table is not dropped if it has the name of one that a sink keeps for a target."""
    source = SourceDouble(_keyed(), table_of("v", a="int32", b="text"))
    sink = harness.sink()
    assert sink.capabilities.owns_targets
    beside = [name for table in ("t", "v") for name in sink.claims(harness.topic(table))[1:]]
    sink.close()
    for name in beside:
        harness.make_foreign(name)
    for table in ("t", "v"):
        source.load(table, [{"a": 1, "b": "x"}])
    feed = _feed(harness, source)
    source.commit(insert("t", a=2, b="y"), insert("v", a=2, b="y"))
    for table in ("t", "v"):
        sink = feed.open(harness.sink())
        try:
            feed.scan(sink, table)
        except ChangefeedError as error:
            assert error.code in (Code.TARGET_NOT_OURS, Code.SINK_CANNOT_TAKE_TABLE), error.message
        finally:
            sink.close()
    for name in beside:
        assert harness.foreign_rows(name) == [THEIRS], f"{name} was touched"


OWNING_CASES = (
    refuses_foreign_rows,
    keeps_foreign_rows,
    replaces_foreign_rows,
    refuses_targets_of_other_feeds,
    leaves_names_beside_alone,
)

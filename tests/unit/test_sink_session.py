"""Which sink objects a feed makes, and who may write to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from changefeed.catalog import Catalog, LeaseLost
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableName
from changefeed.core.table_errors import TableError
from changefeed.feeds.feed import Feed
from changefeed.feeds.sink_session import SinkSession
from changefeed.spark.session import NodeSpark
from sinks.base import Batch, Capabilities, Durability, Epoch, Receipt, Sink, SinkContext, Target


@pytest.mark.parametrize("installed", [True, False])
def test_executors_write_only_where_spark_is_installed(tmp_path: Path, installed: bool) -> None:
    catalog = cast(Catalog, SimpleNamespace(directory=str(tmp_path)))
    engine = cast(NodeSpark, SimpleNamespace(installed=installed))
    sink_session = SinkSession(catalog, cast(Feed, None), "node", engine)
    sink = cast(Sink, SimpleNamespace(capabilities=SimpleNamespace(executor=True)))
    assert sink_session.in_workers(sink) is installed


A, B = TableName("shop", "public", "a"), TableName("shop", "public", "b")


class RefusingSink:
    """Refuses every commit with the error that it was given."""

    capabilities = Capabilities()

    def __init__(self, error: ChangefeedError) -> None:
        self._error = error

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> Durability:
        raise self._error


def refused(tmp_path: Path, error: ChangefeedError, *tables: TableName) -> BaseException:
    """What the feed hears when a commit of these tables is refused."""
    catalog = cast(Catalog, SimpleNamespace(directory=str(tmp_path)))
    boundaries = Target(TableName("shop", "", "transaction"), "transactions")
    feed = SimpleNamespace(
        job=SimpleNamespace(name="f"),
        target=lambda table: Target(table, table.name),
        options={},
        boundaries=boundaries,
    )
    sink = RefusingSink(error)
    session = SinkSession(
        catalog, cast(Feed, feed), "node", cast(NodeSpark, None), cast(Sink, sink)
    )
    session._sink = cast(Sink, sink)
    with pytest.raises((ChangefeedError, TableError)) as caught:
        session.commit(Epoch(1, Timestamp(5)), [Receipt(0, 1, 1)], tables, {})
    return caught.value


def test_of_two_tables_only_the_one_whose_target_refused_fails(tmp_path: Path) -> None:
    error = ChangefeedError("CF5006", "cannot hold a value", target="b")
    failed = refused(tmp_path, error, A, B)
    assert isinstance(failed, TableError) and (failed.table, failed.error) == (B, error)


def test_a_word_of_the_message_blames_no_table(tmp_path: Path) -> None:
    """A table may be called ``a``, as in "refused a row"."""
    error = ChangefeedError("CF5003", "refused a row")
    assert refused(tmp_path, error, A, B) is error


def test_the_only_table_of_a_commit_is_the_one_that_failed(tmp_path: Path) -> None:
    failed = refused(tmp_path, ChangefeedError("CF5003", "refused a row"), B)
    assert isinstance(failed, TableError) and failed.table == B


def test_an_error_of_the_whole_sink_blames_no_table(tmp_path: Path) -> None:
    error = ChangefeedError("CF5001", "cannot reach the sink", target="b")
    assert refused(tmp_path, error, A, B) is error
    assert refused(tmp_path, error, B) is error


def test_the_topic_of_transactions_blames_no_table(tmp_path: Path) -> None:
    error = ChangefeedError("CF5006", "cannot hold a value", target="transactions")
    assert refused(tmp_path, error, A) is error


class UnreachableSink:
    """Its server is away when it is opened."""

    capabilities = Capabilities()

    def __init__(self) -> None:
        self.closed = False

    def open(self, context: object) -> None:
        raise ChangefeedError(Code.SINK_UNREACHABLE, "the server is away")

    def close(self) -> None:
        self.closed = True


@dataclass
class ClosedSink:
    """Notes whether it was closed."""

    capabilities = Capabilities()
    closed: bool = False

    def open(self, context: SinkContext) -> None:
        assert not self.closed

    def close(self) -> None:
        self.closed = True


EMPTY = SinkContext(feed="f", job_id=1, targets=(), options={}, node="n")


def test_a_sink_that_could_not_be_opened_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may hold a connection, or threads."""
    catalog = cast(Catalog, SimpleNamespace(directory=str(tmp_path)))
    sink = UnreachableSink()
    session = SinkSession(catalog, cast(Feed, SimpleNamespace()), "node", cast(NodeSpark, None))
    monkeypatch.setattr(session, "_prepared", lambda *, scan: sink)
    monkeypatch.setattr(session, "context", lambda: None)
    with pytest.raises(ChangefeedError, match="away"):
        session.open()
    session.close()
    assert sink.closed


def test_after_a_job_that_failed_another_sink_delivers_and_the_scan_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[ClosedSink] = []

    def prepared(*, scan: bool) -> ClosedSink:
        made.append(ClosedSink())
        return made[-1]

    catalog = cast(Catalog, SimpleNamespace(directory=str(tmp_path)))
    feed = SimpleNamespace(tables={}, options={})
    session = SinkSession(catalog, cast(Feed, feed), "node", cast(NodeSpark, None))
    monkeypatch.setattr(session, "_prepared", prepared)
    monkeypatch.setattr(session, "context", lambda *, scan=False: EMPTY)
    first, scan = session.open(), session.for_scan({})
    session.renew()
    assert [sink.closed for sink in made] == [True, False]
    assert session.open() is not first
    assert session.for_scan({}) is scan


def test_a_feed_without_its_lease_gives_nothing_to_its_sink(tmp_path: Path) -> None:
    def lost() -> None:
        raise LeaseLost(1)

    catalog = cast(Catalog, SimpleNamespace(directory=str(tmp_path)))
    # Any call of it would be an error of another kind.
    sink = cast(Sink, SimpleNamespace(capabilities=Capabilities()))
    feed = cast(Feed, SimpleNamespace(boundaries=None))
    session = SinkSession(catalog, feed, "node", cast(NodeSpark, None), sink, check_lease=lost)
    with pytest.raises(LeaseLost):
        session.open()
    session._sink = sink
    with pytest.raises(LeaseLost):
        session.write(cast(Batch, None))
    with pytest.raises(LeaseLost):
        session.commit(Epoch(1, Timestamp(5)), [Receipt(0, 1, 1)], [A], {})

"""The SQL table sink: once each, sorted by time, and nothing leaked by an error."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from changefeed.core.errors import ChangefeedError
from changefeed_testing.sinks.feed import FeedDouble, at, delete, put
from sinks.base import SinkContext
from sinks.registry import open_sink
from sinks.table.sink import MessageTableSink, database_url, messages


def ids(path: Path) -> list[str]:
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        found = connection.execute(sa.select(messages.c.message_id).order_by("message_id"))
        names = [row[0] for row in found]
    engine.dispose()
    return names


def test_a_replay_adds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    writes = [put(1, "x", 1), put(2, "x", 1), delete(1, 2)]
    feed = FeedDouble({"t": "t"})
    for _ in range(2):
        sink = open_sink(f"experimental-sql:///sqlite:///{path}")
        feed.open(sink)
        feed.deliver(sink, writes)
        feed.resolve(sink)
        sink.close()
    found = ids(path)
    assert len(found) == 4
    assert found == sorted(found)
    assert found[-1].startswith(at(2).file_stamp())
    assert found[-1].endswith("~resolved")


def test_the_state_database_is_the_default(tmp_path: Path) -> None:
    state = f"sqlite:///{tmp_path / 'state.db'}"
    sink = MessageTableSink("experimental-sql:///")
    feed = FeedDouble({"t": "t"})
    with pytest.raises(ChangefeedError, match="names no database"):
        feed.open(sink)
    feed.state_database = state
    feed.open(sink)
    feed.deliver(sink, [put(1, "x", 1)])
    sink.close()
    assert len(ids(tmp_path / "state.db")) == 1


def test_postgresql_gets_the_driver_we_install() -> None:
    url = database_url("experimental-sql:///postgresql://u:p@h/d")
    assert url is not None
    assert url.drivername == "postgresql+psycopg"


def test_errors_name_no_password_and_no_row() -> None:
    sink = open_sink("experimental-sql:///postgresql://app:hunter2@127.0.0.1:1/shop")
    with pytest.raises(ChangefeedError) as caught:
        FeedDouble({"t": "t"}).open(sink)
    error = caught.value
    assert error.code.number == "CF5001"
    assert error.message == "the postgresql database shop failed"
    assert "hunter2" not in f"{error.message} {error.detail} {error.hint} {error.__cause__}"
    assert error.__suppress_context__
    sink.close()


def test_an_epoch_is_one_transaction(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    sink = open_sink(f"experimental-sql:///sqlite:///{path}")
    feed = FeedDouble({"t": "t"})
    feed.open(sink)
    epoch = feed.epoch(at(2))
    receipts = feed.write(sink, epoch, [put(1, "x", 1)])
    receipts += feed.write(sink, epoch, [put(2, "x", 2)])
    assert ids(path) == []
    sink.commit(epoch, receipts)
    assert len(ids(path)) == 2
    sink.close()


@pytest.mark.parametrize("uri", ["experimental-sql:///shop", "experimental-sql://host/x"])
def test_what_is_no_database(uri: str) -> None:
    with pytest.raises(ChangefeedError) as caught:
        open_sink(uri)
    assert caught.value.code.number == "CF1201"


def test_a_look_makes_nothing(tmp_path: Path) -> None:
    for name, codes in (("m.db", []), ("no/such/folder/m.db", ["CF5001"])):
        sink = open_sink(f"experimental-sql:///sqlite:///{tmp_path / name}")
        try:
            found = sink.check(SinkContext("validate", 0, ()))
        except ChangefeedError as error:
            found = [error]
        sink.close()
        assert [error.code.number for error in found] == codes
    assert list(tmp_path.iterdir()) == []

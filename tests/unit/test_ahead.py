"""Items that are prepared while others are written: their order, their errors, and their end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.events import Truncate
from changefeed.core.schema import Column, TableName, TableSchema
from changefeed.core.types import LogicalType
from changefeed.feeds.ahead import Ahead, Workers
from changefeed.feeds.chunks import Chunk, ControlItem, Item, Watermark
from tests.helpers.waiting import until

ID = Column("id", "integer", LogicalType.parse("int32"), nullable=False, column_id=1)
TABLE = TableName("shop", "public", "orders")
SCHEMA = TableSchema(TABLE, (ID,), (0,))


class Rows(Chunk):
    """A chunk that says how many rows it has."""

    rows = 10

    def load(self) -> pa.Table:
        raise AssertionError("nobody reads it")


def chunk(number: int) -> Chunk:
    return Rows(SCHEMA, (), Timestamp.ZERO, Timestamp(9), number, (), False)


CONTROL = ControlItem(Truncate(SCHEMA, Timestamp(5), 5))
WATERMARK = Watermark((TABLE,), Timestamp(9))


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers("f")
    yield made
    made.close()
    until(lambda: not any("-f_" in thread.name for thread in threading.enumerate()))


def number(item: Item) -> Any:
    return item.number if isinstance(item, Chunk) else item


def ahead(
    workers: Workers,
    source: Iterator[Item],
    prepare: Callable[[Item], Any] = number,
    *,
    several: bool = True,
) -> Ahead[Any]:
    return Ahead(source, prepare, workers, several=several, least_rows=5)


def taken(items: Ahead[Any]) -> Iterator[Any]:
    while (item := items.next()) is not None:
        yield item
        if not isinstance(item, ControlItem):
            items.prepare_next()


@pytest.mark.parametrize("several", [True, False])
def test_items_come_in_their_order(workers: Workers, several: bool) -> None:
    """Also when a later one is ready first."""
    second = threading.Event()

    def prepare(item: Item) -> Any:
        if several and isinstance(item, Chunk):
            if item.number == 2:
                assert second.wait(60)
            if item.number == 3:
                second.set()
        return number(item)

    source: list[Item] = [chunk(1), chunk(2), WATERMARK, chunk(3), chunk(4), WATERMARK]
    items = ahead(workers, iter(source), prepare, several=several)
    assert list(taken(items)) == [1, 2, WATERMARK, 3, 4, WATERMARK]
    items.close()


def test_nothing_is_read_behind_a_control_event_before_it_is_done(workers: Workers) -> None:
    read: list[Any] = []

    def source() -> Iterator[Item]:
        given: list[Item] = [chunk(1), CONTROL, chunk(2)]
        for item in given:
            read.append(number(item))
            yield item

    items = ahead(workers, source())
    assert items.next() == 1
    items.prepare_next()
    assert items.next() is CONTROL
    workers.reader.submit(lambda: None).result()  # whatever was asked for is done
    assert read == [1, CONTROL]
    assert items.next() == 2
    assert items.next() is None
    items.close()


def test_an_error_comes_after_the_items_before_it(workers: Workers) -> None:
    """And that of the first item that fails."""

    def prepare(item: Item) -> Any:
        if isinstance(item, Chunk) and item.number > 2:
            raise ValueError(f"chunk {item.number}")
        return number(item)

    items = ahead(workers, iter([chunk(1), chunk(2), chunk(3), chunk(4)]), prepare)
    assert items.next() == 1
    items.prepare_next()
    assert items.next() == 2
    with pytest.raises(ValueError, match="chunk 3"):
        items.next()
    items.close()


def test_an_error_of_the_log_ends_the_reading(workers: Workers) -> None:
    def source() -> Iterator[Item]:
        yield chunk(1)
        yield chunk(2)
        raise OSError("the log is gone")

    items = ahead(workers, source())
    assert [items.next(), items.next()] == [1, 2]
    with pytest.raises(OSError, match="is gone"):
        items.next()
    items.close()


def test_who_closes_waits_for_what_is_being_prepared(workers: Workers) -> None:
    begun, go_on, done = threading.Event(), threading.Event(), []

    def prepare(item: Item) -> Any:
        if isinstance(item, Chunk) and item.number > 1:
            begun.set()
            assert go_on.wait(60)
            done.append(item.number)
        return number(item)

    endless = (chunk(i) for i in range(1, 1000))
    items = ahead(workers, endless, prepare)
    assert items.next() == 1
    assert begun.wait(60)
    closing = threading.Thread(target=items.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    go_on.set()
    closing.join(60)
    before = list(done)
    assert before and next(endless).number <= 5
    workers.preparers.submit(lambda: None).result()
    assert done == before

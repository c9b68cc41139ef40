"""Feeds of messages with a registered schema (Avro, protobuf): what is written to the source, and
what is the same whatever the format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.e2e.feeds import Feeds
from tests.helpers.waiting import until
from tests.services.kafka import KafkaBroker
from tests.services.postgres import Database
from tests.services.registry import Registry

#: Keys and values of a topic; a mark's key is None.
Reader = Callable[[str], list[tuple[Any, Any]]]

_FRUIT = """
create table fruit (
  id int primary key, name text, price numeric(12,2), born date, at timestamptz(6),
  seen timestamp, alarm time, tags text[], doc jsonb, data bytea, rate double precision,
  exact numeric
);
alter table fruit replica identity full;
insert into fruit values (1, 'pear', 1.50, '2024-03-31', '2024-03-31 01:02:03.123456+00',
  '2024-03-31 04:05:06', '07:08:09.5', '{a,null,"b c"}', '{"x": [1]}', '\\xdead', 0.1, 1.000)"""


def rows(messages: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Without marks."""
    return [(key, value) for key, value in messages if key is not None]


def by_commit(messages: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Rows by the time of their commit: lanes deliver side by side, in order for each key alone."""
    found = rows(messages)
    for one in found:
        stamps = [value["updated"] for key, value in found if key == one[0]]
        assert stamps == sorted(stamps), one[0]
    return sorted(found, key=lambda message: message[1]["updated"])


def into(format: str, kafka: KafkaBroker, registry: Registry) -> str:
    """INTO and WITH of a feed."""
    return (
        f"INTO '{kafka.uri}' WITH format = '{format}', confluent_schema_registry = '{registry.url}'"
    )


def feed_of_fruit(feeds: Feeds, postgres: Database, topic: str, target: str, second: str) -> None:
    """A feed of a table with a column of many a type, told of five rows: one that was there, its
    update, one that comes and goes, and the first with another column.

    Args:
        target: INTO and WITH.
        second: columns and values of the row that comes and goes, whose ``id`` is 2.
    """
    postgres.execute(_FRUIT)
    feeds.connect(shop=postgres.uri)
    feeds.execute(
        f"CREATE CHANGEFEED f FOR TABLE fruit AS {topic} {target}, diff, updated, resolved = '1s'"
    )
    feeds.sync("f")
    postgres.execute("update fruit set price = 2.00, name = null where id = 1")
    postgres.execute(f"insert into fruit {second}")
    postgres.execute("delete from fruit where id = 2")
    feeds.sync("f")
    postgres.execute("alter table fruit add column color text")
    postgres.execute("update fruit set color = 'green' where id = 1")
    feeds.sync("f")


def check_refused_table_stops_alone(
    feeds: Feeds, postgres: Database, topic: str, target: str, read: Reader
) -> None:
    """A number becomes a text, which none of the formats can read as one: of two tables that one
    stops, and nothing of its new shape is sent.

    Args:
        topic: the tables go to ``<topic>_1`` and ``<topic>_2``.
        target: INTO and WITH.
    """
    for name in ("one", "two"):
        postgres.execute(f"create table {name} (id int primary key, n int)")
        postgres.execute(f"insert into {name} values (1, 1)")
    feeds.connect(shop=postgres.uri)
    feeds.execute(
        f"CREATE CHANGEFEED f FOR TABLE one AS {topic}_1, TABLE two AS {topic}_2 {target}"
    )
    feeds.sync("f")
    postgres.execute("alter table one alter column n type text using 'x'")
    postgres.execute("update one set n = 'y'")
    postgres.execute("update two set n = 2")

    until(lambda: _error_of(feeds, "one"))
    assert "is not compatible with an earlier version" in _error_of(feeds, "one")
    until(lambda: len(rows(read(f"{topic}_2"))) == 2)
    assert [value["after"] for _, value in rows(read(f"{topic}_2"))][-1] == {"id": 1, "n": 2}
    assert [value["after"] for _, value in rows(read(f"{topic}_1"))] == [{"id": 1, "n": 1}]


def _error_of(feeds: Feeds, table: str) -> str:
    """Why a table of the feed failed; empty while it has not."""
    found = feeds.catalog.tables(feeds.catalog.job("f").id)
    return next(t.error or "" for t in found if t.table.name == table)

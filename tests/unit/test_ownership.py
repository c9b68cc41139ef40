"""Whose a target is: the rules, and names that several tables would share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changefeed.capture.expand import expand_job
from changefeed.catalog import TableState
from changefeed.core.errors import ChangefeedError, Problems
from changefeed.core.schema import TableName
from changefeed.options import ExistingTarget
from sinks.merged.policy import TablePolicy
from sinks.ownership import Claim, Owner, claim
from sinks.registry import open_sink, place_of
from sinks.warehouse.database_sink import DatabaseSink
from tests.golden.world import World, shape

ME = Owner("s", 2, "shop.public.t", "me")


def judged(*marks: Owner, rows: bool = True, **changed: Any) -> Claim | str:
    """What the feed may do, or the message of the refusal."""
    given: dict[str, Any] = {
        "feeds": frozenset({(2, "shop.public.t"), (1, "shop.public.t"), (2, "shop.x.t")}),
        "policy": ExistingTarget.REFUSE,
        "exists": True,
        "holds_rows": lambda: rows,
        "what": "table t",
        **changed,
    }
    try:
        return claim(ME, marks, **given)
    except ChangefeedError as error:
        assert error.code.number == "CF5008" and error.hint
        return error.message


@pytest.mark.parametrize("policy", list(ExistingTarget))
def test_the_target_of_a_feed_that_is_there_is_never_taken(policy: ExistingTarget) -> None:
    for other in (Owner("s", 1, "shop.public.t", "old"), Owner("s", 2, "shop.x.t", "me")):
        for exists in (True, False):
            found = judged(other, policy=policy, exists=exists, rows=False)
            assert "is kept by changefeed" in str(found), found


def test_what_a_feed_may_do_with_a_target() -> None:
    dropped, elsewhere = Owner("s", 7, "shop.public.t"), Owner("z", 2, "shop.public.t")
    assert judged(ME) is Claim.OURS
    assert judged(ME, dropped) is Claim.OURS
    assert judged(rows=False) is Claim.FREE
    assert judged(exists=False) is Claim.FREE
    assert judged(elsewhere, exists=False) is Claim.FREE
    assert judged(dropped) is Claim.RETURNED
    assert "was not made by this changefeed" in str(judged())
    assert "was made for another changefeed" in str(judged(elsewhere))
    assert "was made for another changefeed" in str(judged(elsewhere, rows=False))
    assert "shop.public.v" in str(judged(Owner("s", 7, "shop.public.v")))
    assert "a mark of an unknown form, '***'" in str(judged(Owner.parse("***")))
    # Another table stands in the target's place, or is kept in another way.
    assert "was not made by this changefeed" in str(judged(ME, usable=False))
    assert "was not made by this changefeed" in str(judged(dropped, usable=False))
    for marks in ((), (elsewhere,), (ME,)):
        usable = ME not in marks
        merged = judged(*marks, policy=ExistingTarget.MERGE, usable=usable)
        assert merged is Claim.MERGE
        assert judged(*marks, policy=ExistingTarget.REPLACE, usable=usable) is Claim.REPLACE


def test_of_two_feeds_that_an_earlier_version_let_in_the_older_keeps_the_target() -> None:
    assert "is kept by" in str(judged(ME, Owner("s", 1, "shop.public.t")))
    later = Owner("s", 3, "shop.public.t")
    assert judged(ME, later, feeds=frozenset({(3, "shop.public.t")})) is Claim.OURS


@given(st.from_regex(r"[a-z0-9]{6}", fullmatch=True), st.integers(1, 9999), st.text(min_size=1))
def test_a_mark_is_read_as_it_was_written(state: str, job: int, table: str) -> None:
    assert Owner.parse(Owner(state, job, table).text).same(Owner(state, job, table))


# ----------------------------------------------------------------------------- statements


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    made.shop()
    yield made
    made.close()


def refused(world: World, text: str) -> str:
    """The message of the CF5008 that a statement gets."""
    with pytest.raises(ChangefeedError) as caught:
        world.run(text)
    found = caught.value.problems if isinstance(caught.value, Problems) else [caught.value]
    assert {error.code.number for error in found} == {"CF5008"}, [e.message for e in found]
    assert all("AS name" in error.hint for error in found)
    return found[0].message


def topics(world: World, feed: str) -> dict[str, str]:
    job = world.catalog.find_job(feed)
    assert job is not None
    return {f"{t.table.schema}.{t.table.name}": t.topic for t in world.catalog.tables(job.id)}


def test_tables_of_one_name_are_called_by_their_schema(world: World) -> None:
    world.run("CREATE CHANGEFEED f FOR orders, audit.orders, items INTO 'duckdb:///srv/w.db'")
    assert topics(world, "f") == {
        "public.orders": "public_orders",
        "audit.orders": "audit_orders",
        "public.items": "items",
    }
    world.run("CREATE CHANGEFEED k FOR orders, audit.orders INTO 'kafka://broker'")
    assert set(topics(world, "k").values()) == {"orders"}


@pytest.mark.parametrize("uri", ["duckdb:///srv/w.db", "postgresql://h/d", "delta:///srv/l"])
def test_two_tables_never_share_a_target(world: World, uri: str) -> None:
    made = f"CREATE CHANGEFEED FOR orders AS o, customers AS o INTO '{uri}'"
    assert "its target o is that of table public.orders" in refused(world, made)
    assert world.catalog.jobs() == []


def test_names_that_the_target_takes_for_one_are_one(world: World) -> None:
    """Case, where it tells nothing apart; characters that are replaced."""
    text = "CREATE CHANGEFEED FOR orders AS \"O\", customers AS o INTO '{}'"
    assert "that of table public.orders" in refused(world, text.format("duckdb:///srv/w.db"))
    world.run(text.format("postgresql://h/d"))
    dots = "CREATE CHANGEFEED FOR orders AS \"a.b\", customers AS a_b INTO 'postgresql://h/e'"
    assert "its target a_b is that of table public.orders" in refused(world, dots)


@pytest.mark.parametrize("beside", ["_staging_o", "_scan_o", "_sequence_o"])
def test_a_target_is_no_table_that_the_sink_keeps_beside_another(world: World, beside: str) -> None:
    for first, second in (("o", beside), (beside, "o")):
        text = f"FOR orders AS {first}, customers AS {second} INTO 'postgresql://h/d'"
        assert "public.customers" in refused(world, f"CREATE CHANGEFEED {text}")


def test_a_target_is_not_the_bookkeeping(world: World) -> None:
    text = "CREATE CHANGEFEED FOR orders AS _changefeed_applied INTO 'postgresql://h/d'"
    assert "its own bookkeeping" in refused(world, text)


def test_two_feeds_never_share_a_target(world: World) -> None:
    world.run("CREATE CHANGEFEED f FOR orders INTO 'postgresql://u:p@h/d?schema=x&sslmode=disable'")
    again = "CREATE CHANGEFEED g FOR {} INTO 'postgresql://h/d?schema=x'"
    assert 'of changefeed "f"' in refused(world, again.format("audit.orders"))
    world.run("CREATE CHANGEFEED h FOR customers INTO 'postgresql://h/d?schema=x'")
    assert 'of changefeed "f"' in refused(world, "ALTER CHANGEFEED h ADD audit.orders")
    world.run("CREATE CHANGEFEED i FOR orders INTO 'postgresql://h/d?schema=y'")
    moved = "ALTER CHANGEFEED i INTO 'postgresql://h/d?schema=x'"
    assert 'of changefeed "f"' in refused(world, moved)


def test_a_table_that_joins_later_gets_no_target_of_another(world: World) -> None:
    source = world.sources["shop"]
    late = source.schemas.pop(TableName("shop", "audit", "orders"))
    world.run("CREATE CHANGEFEED f FOR SCHEMA public, SCHEMA audit INTO 'duckdb:///srv/w.db'")
    source.schemas[late.table] = late
    new = TableName("shop", "audit", "fresh")
    source.schemas[new] = shape(new, {"id": "bigint"}, ["id"])
    job = world.catalog.find_job("f")
    assert job is not None
    assert expand_job(world.catalog, job, source) == [str(new)]
    tables = {t.table: t for t in world.catalog.tables(job.id)}
    assert tables[late.table].state is TableState.FAILED
    assert tables[late.table].error_code == "CF5008"
    assert "its target orders is that of table public.orders" in str(tables[late.table].error)
    assert tables[new].state is TableState.PENDING


def test_feeds_that_write_to_one_topic_or_folder_are_told_of_each_other(world: World) -> None:
    world.run("CREATE CHANGEFEED f FOR orders INTO 'kafka://broker:9092'")
    made = world.run(
        "CREATE CHANGEFEED g FOR orders, items INTO 'kafka://broker:9092?tls_enabled=true'"
    )
    assert any('"f" writes to orders at the same place' in notice for notice in made.notices)
    apart = world.run("CREATE CHANGEFEED h FOR customers INTO 'kafka://broker:9092'")
    assert not any("at the same place" in notice for notice in apart.notices)
    world.run("CREATE CHANGEFEED i FOR orders INTO 'file:///srv/out'")
    beside = world.run("CREATE CHANGEFEED j FOR items INTO 'file:///srv/out/'")
    assert any('"i" writes to the same place' in notice for notice in beside.notices)


def test_the_place_of_a_sink() -> None:
    one = place_of("postgresql://u:p@Host:5432/d?sslmode=disable&schema=x")
    assert one == place_of("postgresql://v:q@host:5432/d/?schema=x")
    assert len({one, place_of("postgresql://host:5432/d"), place_of("redshift://host:5432/d")}) == 3
    assert place_of("kafka://b:1,a:2") == place_of("kafka://a:2,b:1?topic_prefix=x")
    for store, endpoint in (("s3", "AWS"), ("gs", "GCS"), ("azure", "AZURE")):
        here, there = (f"{store}://b/x?{endpoint}_ENDPOINT=http://{host}" for host in ("h", "i"))
        assert place_of(here) != place_of(there)


# ----------------------------------------------------------------------- names, every sink

#: URIs of the sinks with tables of their own, and whether case tells two of their names apart.
OWNERS = {
    "duckdb:///srv/w.db": False,
    "postgresql://h/d": True,
    "mysql://h/d": False,
    "redshift://h/d": False,
    "snowflake://u:p@a/d/s": True,
    "bigquery://p/d": True,
    "clickhouse://h/d": True,
    "spanner://p/i/d": False,
    "delta:///srv/l": True,
    "iceberg://c/n?type=hadoop&warehouse=/srv/l": True,
    "elasticsearch://h:9200": True,
}

_names = st.one_of(
    st.text("aAbB._", min_size=1, max_size=4),
    st.sampled_from(
        ["_staging_", "_scan_", "_sequence_", "_rows_", "changefeed_sequence_"]
    ).flatmap(lambda head: st.text("aAb.", min_size=1, max_size=3).map(lambda rest: head + rest)),
    st.text("aA", min_size=60, max_size=64),
    st.text(min_size=1, max_size=8),
    st.sampled_from(
        ["ä", "Ä", 'a"b', "a'b", "a b", "a/b", "\\", "%s", "{x}", "_changefeed_applied"]
    ),
)


def objects(sink: Any, topic: str) -> set[str]:
    """What the sink makes for a topic, as its statements name it."""
    if not isinstance(sink, DatabaseSink):
        return {topic}
    applied = sink._tables.strategy.applied(sink._tables.warehouse, "s/1", "shop.public.t")
    table = sink._tables.strategy.table(sink._tables.warehouse, topic, TablePolicy(), applied)
    return {table.name, table.staging, table.side, table.scan, table.view} - {""}


@pytest.mark.parametrize("uri", OWNERS)
def test_names_that_meet_in_the_target_are_known_to_meet(uri: str) -> None:
    """Two topics whose tables would be one table somewhere have a claim in common."""
    sink = open_sink(uri)
    assert sink.capabilities.owns_targets
    topic = getattr(sink, "topic")  # noqa: B009  not part of the protocol

    @settings(max_examples=300, deadline=None)
    @given(_names, _names)
    def meet(one: str, other: str) -> None:
        first, second = topic(one), topic(other)
        made = objects(sink, first), objects(sink, second)
        if not OWNERS[uri]:
            made = {n.lower() for n in made[0]}, {n.lower() for n in made[1]}
        if made[0] & made[1]:
            assert set(sink.claims(first)) & set(sink.claims(second)), (first, second)
        if first == second:
            assert sink.claims(first)[0] == sink.claims(second)[0]

    meet()

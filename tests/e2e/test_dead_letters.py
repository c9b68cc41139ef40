"""Rows that a sink refuses are kept as dead letters while the feed goes on, and come after all when
the cause is removed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from changefeed.api import Session
from changefeed.catalog import Status
from changefeed.core.errors import ChangefeedError
from changefeed.core.faults import armed
from changefeed.core.sizes import Sizes
from changefeed.monitor import Monitor
from changefeed.spark.session import NodeSpark
from changefeed.statements.rights import Role
from changefeed_testing.sinks.readers import read_files
from sinks.lake import merge
from tests.e2e.feeds import BRISK, Feeds, running
from tests.helpers.lake import Lake, place_in
from tests.helpers.waiting import until
from tests.services.elasticsearch import Elasticsearch
from tests.services.kafka import KafkaBroker
from tests.services.mariadb import PASSWORD, USER, MariaDB
from tests.services.postgres import Database
from tests.services.webhook import WebhookServer

pytestmark = [pytest.mark.e2e, pytest.mark.postgres]

LETTERS = "WITH on_row_error = 'dead_letter'"


@pytest.fixture
def feeds(tmp_path: Path, postgres: Database) -> Iterator[Feeds]:
    with running(tmp_path / "state", timings=BRISK) as feeds:
        feeds.connect(shop=postgres.uri)
        yield feeds


@dataclass
class Target:
    """A sink that refuses rows whose ``v`` is negative, until it is mended."""

    uri: str
    rows: Callable[[], dict[int, int]]
    mend: Callable[[], object]


@pytest.fixture(params=["postgresql", "webhook"])
def target(request: pytest.FixtureRequest, postgres: Database) -> Iterator[Target]:
    if request.param == "postgresql":
        postgres.execute(
            "create schema copy; create table copy.t (a int primary key, v int, "
            "constraint positive check (v >= 0))"
        )
        yield Target(
            f"{postgres.uri}?schema=copy",
            lambda: dict(postgres.execute("select a, v from copy.t")),
            lambda: postgres.execute("alter table copy.t drop constraint positive"),
        )
        return
    broken = {"v"}
    server = WebhookServer(judge=lambda body: 422 if broken and b'"v": -' in body else 200)
    try:
        yield Target(server.uri, lambda: _latest(server), broken.clear)
    finally:
        server.stop()


def _latest(server: WebhookServer) -> dict[int, int]:
    rows: dict[int, int] = {}
    for message in server.messages(["t"]):
        if message.after is not None:
            rows[message.after["a"]] = message.after["v"]
        elif message.is_row and message.key is not None:
            rows.pop(json.loads(message.key)[0], None)
    return rows


def letters(feeds: Feeds, name: str = "f") -> list[dict[str, Any]]:
    answer = feeds.execute(f"SHOW CHANGEFEED {name} DEAD LETTERS")
    return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]


def create(feeds: Feeds, target: Target, options: str = LETTERS) -> None:
    more = ", existing_target = 'merge'" if target.uri.startswith("postgresql") else ""
    feeds.execute(f"CREATE CHANGEFEED f FOR t INTO '{target.uri}' {options}{more}")


def test_refused_rows_are_kept_and_come_when_the_target_is_mended(
    feeds: Feeds, postgres: Database, target: Target
) -> None:
    """Of a scan and of changes; later changes of the same key are delivered, and RETRY never puts
    an older row in the place of a newer one."""
    postgres.execute(
        "create table t (a int primary key, v int);"
        "insert into t select i, i from generate_series(1, 50) i;"
        "update t set v = -v where a in (7, 31)"
    )
    create(feeds, target)
    feeds.sync("f")
    assert [(x["key"], x["change"]) for x in letters(feeds)] == [("[7]", "scan"), ("[31]", "scan")]
    assert target.rows() == {a: a for a in range(1, 51) if a not in (7, 31)}
    # Other rows of the same transaction, and of the same key afterwards, go on.
    postgres.execute("insert into t values (60, 60), (61, -61), (62, 62)")
    postgres.execute("update t set v = -5 where a = 5")
    postgres.execute("update t set v = 55 where a = 5; update t set v = 77 where a = 7")
    feeds.sync("f")
    found = letters(feeds)
    assert [x["key"] for x in found] in (["[7]", "[31]", "[61]", "[5]"], ["[7]", "[31]", "[61]"])
    assert {x["key"]: json.loads(str(x["row"])) for x in found}["[61]"] == {"a": 61, "v": -61}
    kept = dict(target.rows())
    assert (kept[5], kept[7], kept[62], 61 in kept, 31 in kept) == (55, 77, 62, False, False)
    (row,) = feeds.execute("SHOW CHANGEFEEDS").rows
    assert f"{len(found)} rows were refused: SHOW CHANGEFEED f DEAD LETTERS" in str(row[3])
    # Nothing was mended: they are refused once more, and stay.
    feeds.execute("RETRY CHANGEFEED f DEAD LETTERS")
    until(lambda: {x["key"] for x in letters(feeds)} == {"[31]", "[61]"})
    until(lambda: {x["state"] for x in letters(feeds)} == {"kept"})
    target.mend()
    feeds.execute("RETRY CHANGEFEED f DEAD LETTERS")
    feeds.sync("f")
    until(lambda: not letters(feeds))
    assert target.rows() == dict(postgres.execute("select a, v from t"))


@pytest.fixture
def copy(postgres: Database) -> Target:
    """A table of PostgreSQL; the scan of its feed has nothing to refuse."""
    postgres.execute(
        "create schema copy; create table copy.t (a int primary key, v int, "
        "constraint positive check (v >= 0));"
        "create table t (a int primary key, v int);"
        "insert into t select i, i from generate_series(1, 20) i"
    )
    return Target(
        f"{postgres.uri}?schema=copy",
        lambda: dict(postgres.execute("select a, v from copy.t")),
        lambda: postgres.execute("alter table copy.t drop constraint positive"),
    )


def test_a_crash_between_letter_and_progress_repeats_and_counts_nothing_twice(
    feeds: Feeds, postgres: Database, copy: Target
) -> None:
    create(feeds, copy)
    feeds.sync("f")
    with armed("dead_letter.kept@2:error") as broke:
        postgres.execute("insert into t values (31, 31), (32, -32), (33, -33), (34, 34)")
        until(broke)
    feeds.sync("f")
    assert [x["key"] for x in letters(feeds)] == ["[32]", "[33]"]
    assert copy.rows() == {a: a for a in (*range(1, 21), 31, 34)}
    job = feeds.catalog.job("f")
    events = feeds.catalog.events(job.id, kinds=["dead_letter"])
    assert [event.times for event in events] == [2]
    # The node's successor goes on from there.
    feeds.close()
    feeds.open()
    postgres.execute("insert into t values (35, 35)")
    feeds.sync("f")
    assert (35 in copy.rows(), len(letters(feeds))) == (True, 2)


def test_a_feed_fails_at_its_limit_and_goes_on_after_a_retry(
    feeds: Feeds, postgres: Database, copy: Target
) -> None:
    create(feeds, copy, f"{LETTERS}, dead_letter_limit = '2'")
    feeds.sync("f")
    postgres.execute("insert into t select i, -i from generate_series(31, 34) i")
    until(lambda: feeds.catalog.job("f").status is Status.FAILED)
    job = feeds.catalog.job("f")
    assert (job.error_code, len(letters(feeds))) == ("CF5009", 2)
    assert "dead_letter_limit is 2" in str(job.error)
    copy.mend()
    feeds.execute("RETRY CHANGEFEED f DEAD LETTERS")
    feeds.sync("f")
    until(lambda: not letters(feeds))
    assert copy.rows() == dict(postgres.execute("select a, v from t"))


def test_who_may_see_and_remove_letters(feeds: Feeds, postgres: Database, copy: Target) -> None:
    create(feeds, copy)
    postgres.execute("insert into t values (4711, -4711), (32, -32)")
    feeds.sync("f")
    one, two = letters(feeds)
    viewer = Session(client="tests", role=Role.VIEWER)
    seen = feeds.interpreter.execute("SHOW CHANGEFEED f DEAD LETTERS", viewer)
    assert "4711" not in repr(seen) and "32" not in [row[-2] for row in seen.rows]
    assert [row[-1] for row in seen.rows] == [None, None]
    assert "role operator" in seen.notices[0]
    texts = repr(feeds.execute("SHOW CHANGEFEED f EVENTS").rows)
    texts += (feeds.state / "node.log").read_text() if (feeds.state / "node.log").exists() else ""
    assert "4711" not in texts
    metrics = Monitor(feeds.interpreter, lambda: None).metrics()[1].decode()
    assert 'changefeed_dead_letters{feed="f",job_id="1",source="shop"} 2.0' in metrics
    # VERIFY knows the rows.
    verified = feeds.execute("VERIFY CHANGEFEED f")
    assert [row[1:3] for row in verified.rows] == [
        ("[32]", f"missing (dead letter {two['letter']})"),
        ("[4711]", f"missing (dead letter {one['letter']})"),
    ]
    with pytest.raises(ChangefeedError, match="has no dead letter 99"):
        feeds.execute("DISCARD CHANGEFEED f DEAD LETTERS 99")
    feeds.execute(f"DISCARD CHANGEFEED f DEAD LETTERS {one['letter']}")
    assert [x["letter"] for x in letters(feeds)] == [two["letter"]]
    (event, *_) = feeds.catalog.events(feeds.catalog.job("f").id, kinds=["altered"])
    assert event.text.startswith("1 dead letter discarded (by ")


def test_without_the_option_the_table_stops_as_before(
    feeds: Feeds, postgres: Database, copy: Target
) -> None:
    create(feeds, copy, "WITH deletes = 'hard'")
    feeds.sync("f")
    postgres.execute("insert into t values (31, -31)")
    until(lambda: feeds.catalog.job("f").status is Status.FAILED)
    assert (feeds.catalog.job("f").error_code, letters(feeds)) == ("CF5006", [])
    # With it, RESUME goes on from there.
    feeds.execute("ALTER CHANGEFEED f SET on_row_error = 'dead_letter'")
    feeds.execute("RESUME CHANGEFEED f")
    postgres.execute("insert into t values (32, 32)")
    feeds.sync("f")
    assert ([x["key"] for x in letters(feeds)], 32 in copy.rows()) == (["[31]"], True)


def test_a_value_that_no_file_can_hold(feeds: Feeds, postgres: Database, tmp_path: Path) -> None:
    """Of a table without a key, too, whose rows cannot be read again alone."""
    postgres.execute(
        "create table t (a int primary key, n numeric(9,2)); create table u (n numeric(9,2));"
        "alter table u replica identity full;"
        "insert into t values (1, 1), (2, 'NaN'), (3, 3); insert into u values ('NaN'), (1)"
    )
    options = f"{LETTERS}, format = 'parquet'"
    feeds.execute(f"CREATE CHANGEFEED f FOR t, u INTO 'file://{tmp_path}/out' {options}")
    feeds.sync("f")
    postgres.execute("insert into t values (4, 'NaN'), (5, 5)")
    feeds.sync("f")
    found = sorted((x["table"], x["key"], x["row"]) for x in letters(feeds))
    assert found == [
        ("public.t", "[2]", '{"a": 2, "n": "NaN"}'),
        ("public.t", "[4]", '{"a": 4, "n": "NaN"}'),
        ("public.u", "[]", '{"n": "NaN"}'),
    ]
    postgres.execute("update t set n = 0 where n = 'NaN'")
    feeds.sync("f")
    answer = feeds.execute("RETRY CHANGEFEED f DEAD LETTERS")
    assert answer.rows == [(2, "f")]
    assert answer.notices == ["1 letter of tables without a key stay: RESCAN these tables"]
    until(lambda: [x["table"] for x in letters(feeds)] == ["public.u"])
    with pytest.raises(ChangefeedError, match="has no key"):
        feeds.execute("RETRY CHANGEFEED f DEAD LETTERS")
    postgres.execute("update u set n = 0 where n = 'NaN'")
    feeds.execute("ALTER CHANGEFEED f RESCAN u")
    feeds.sync("f")
    # A scan makes the row good, and says nothing of one that was deleted.
    until(lambda: [x["change"] for x in letters(feeds)] == ["delete"])
    feeds.execute("DISCARD CHANGEFEED f DEAD LETTERS")
    assert not letters(feeds)


def test_sinks_and_feeds_that_cannot_say_which_row(feeds: Feeds, postgres: Database) -> None:
    postgres.execute("create table t (a int primary key)")
    for sink, options, code in (
        ("INTO 'experimental-sql:///'", "", "CF1206"),
        ("", "", "CF1206"),
        ("INTO 'kafka://127.0.0.1:1'", ", delivery = 'exactly_once'", "CF1205"),
        ("INTO 'kafka://127.0.0.1:1'", ", transaction_metadata", "CF1205"),
    ):
        with pytest.raises(ChangefeedError) as caught:
            feeds.execute(f"CREATE CHANGEFEED f FOR t {sink} {LETTERS}{options}")
        assert caught.value.code.number == code


def test_a_message_too_large_for_its_topic(
    feeds: Feeds, postgres: Database, kafka: KafkaBroker
) -> None:
    """Whether the broker refuses it, or the sink knows the limit before; until the topic takes
    it."""
    kafka.create_topic("letters_t", 2, **{"max.message.bytes": "2000"})
    kafka.create_topic("letters_u", 1, **{"max.message.bytes": "1000000"})
    postgres.execute(
        "create table t (a int primary key, b text); create table u (a int primary key, b text);"
        "insert into t select i, 'x' from generate_series(1, 30) i;"
        "insert into t select i, string_agg(md5(random()::text), '')"
        " from generate_series(31, 32) i, generate_series(1, 200) group by 1"
    )
    feeds.execute(
        f"CREATE CHANGEFEED f FOR t AS letters_t, u AS letters_u INTO '{kafka.uri}' {LETTERS}"
    )
    feeds.sync("f")
    postgres.execute(
        "insert into u select 1, string_agg(md5(random()::text), '')"
        " from generate_series(1, 40000);"
        "insert into u values (2, 'x'); insert into t values (33, 'y')"
    )
    feeds.sync("f")
    found = letters(feeds)
    assert [(x["key"], x["code"]) for x in found] == [
        (k, "CF5006") for k in ("[31]", "[32]", "[1]")
    ]
    assert all("bytes, more than the " in str(x["problem"]) for x in found)
    assert "of topic" in str(found[0]["problem"]) or "topic letters_t" in str(found[0]["problem"])
    assert len(str(found[-1]["row"])) < 2_000
    seen = {json.loads(r.key)[0] for r in kafka.messages("letters_t") if r.key}
    assert seen == {*range(1, 31), 33}
    for topic in ("letters_t", "letters_u"):
        _set_limit(kafka, topic, 4_000_000)
    feeds.execute("RETRY CHANGEFEED f DEAD LETTERS")
    feeds.sync("f")
    until(lambda: not letters(feeds))
    assert {31, 32} <= {json.loads(r.key)[0] for r in kafka.messages("letters_t") if r.key}
    assert {json.loads(r.key)[0] for r in kafka.messages("letters_u") if r.key} == {1, 2}


def _set_limit(kafka: KafkaBroker, topic: str, size: int) -> None:
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
    )

    entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = kafka.admin()
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(10)


@pytest.mark.extended
def test_a_document_that_does_not_fit_its_mapping(
    feeds: Feeds, postgres: Database, elasticsearch: Elasticsearch
) -> None:
    postgres.execute(
        "create table t (id int primary key, doc jsonb);"
        "insert into t values (1, '{\"a\": 1}'), (2, '17'), (3, '{}')"
    )
    feeds.execute(
        f"CREATE CHANGEFEED f FOR t INTO '{elasticsearch.uri}/?index_prefix=letters_' {LETTERS}"
    )
    feeds.sync("f")
    postgres.execute("insert into t values (4, '18'), (5, '{}')")
    feeds.sync("f")
    assert [x["key"] for x in letters(feeds)] == ["[2]", "[4]"]
    assert set(elasticsearch.documents("letters_t")) == {"1", "3", "5"}
    postgres.execute("update t set doc = '{}' where id = 2; delete from t where id = 4")
    feeds.execute("RETRY CHANGEFEED f DEAD LETTERS")
    feeds.sync("f")
    until(lambda: not letters(feeds))
    assert set(elasticsearch.documents("letters_t")) == {"1", "2", "3", "5"}


@pytest.fixture
def database(mariadb: MariaDB) -> Iterator[str]:
    with mariadb.database() as name:
        yield name


@pytest.fixture
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty target of the kind that the test is parametrised with."""
    kind, get = request.param, request.getfixturevalue
    if kind == "duckdb":
        yield f"duckdb://{tmp_path}/copy.duckdb"
    elif kind == "mysql":
        port, database = get("mariadb").port, get("database")
        yield f"mysql://{USER}:{PASSWORD}@127.0.0.1:{port}/{database}"
    elif kind == "snowflake":
        server = get("snowflake")
        yield server.uri(server.database(), "shop", "load_interval=0")
    elif kind == "bigquery":
        with get("bigquery").dataset() as name:
            yield get("bigquery").uri(name, "load_interval=0")
    else:
        with get(kind).database() as name:
            yield get(kind).uri(name)


@pytest.mark.extended
@pytest.mark.parametrize(
    "uri",
    [
        *("duckdb", "mysql"),
        *(
            pytest.param(kind, marks=getattr(pytest.mark, kind))
            for kind in ("bigquery", "snowflake", "clickhouse")
        ),
    ],
    indirect=True,
)
def test_a_value_that_a_table_cannot_hold(feeds: Feeds, postgres: Database, uri: str) -> None:
    keeps_dates_before_christ(feeds, postgres, uri)


def keeps_dates_before_christ(feeds: Feeds, postgres: Database, uri: str) -> None:
    """As dead letters, of a scan and of a change, until they are changed at the source."""
    postgres.execute(
        "create table old (a int primary key, d date);"
        "insert into old select i, date '2024-01-01' + i from generate_series(1, 40) i;"
        "update old set d = '0044-03-15 BC' where a in (3, 17)"
    )
    feeds.execute(f"CREATE CHANGEFEED f FOR old INTO '{uri}' {LETTERS}")
    feeds.sync("f")
    postgres.execute(
        "insert into old values (50, '0044-03-15 BC'), (51, now()); delete from old where a = 17"
    )
    feeds.sync("f")
    assert [x["key"] for x in letters(feeds)] == ["[3]", "[17]", "[50]"]
    assert {x["code"] for x in letters(feeds)} == {"CF5006"}
    # 17 is in neither, and of 1 the target has an older version.
    postgres.execute("update old set d = '0044-03-15 BC' where a = 1")
    feeds.sync("f")
    kept = {x["key"]: x["letter"] for x in letters(feeds)}
    answer = feeds.execute("VERIFY CHANGEFEED f")
    assert {row[1]: row[2] for row in answer.rows} == {
        "[1]": f"changed (dead letter {kept['[1]']})",
        "[3]": f"missing (dead letter {kept['[3]']})",
        "[50]": f"missing (dead letter {kept['[50]']})",
    }
    postgres.execute("update old set d = now() where d < '0001-01-01'")
    feeds.execute("RETRY CHANGEFEED f DEAD LETTERS")
    feeds.sync("f")
    until(lambda: not letters(feeds))
    assert feeds.execute("VERIFY CHANGEFEED f").failure is None


@pytest.mark.extended
@pytest.mark.spark
def test_a_row_on_which_a_query_fails(
    tmp_path: Path, postgres: Database, spark_engine: NodeSpark
) -> None:
    postgres.execute(
        "create table t (a int primary key, v int); alter table t replica identity full;"
        "insert into t values (1, 1), (2, 0), (3, 3)"
    )
    with running(tmp_path / "state", spark_engine, timings=BRISK) as feeds:
        feeds.connect(shop=postgres.uri)
        feeds.execute(
            f"CREATE CHANGEFEED f INTO 'file://{tmp_path}/out' {LETTERS}"
            " AS SELECT a, 6 / v AS w FROM t"
        )
        feeds.sync("f")
        postgres.execute("insert into t values (4, 0), (5, 5)")
        feeds.sync("f")
        found = letters(feeds)
        assert [x["key"] for x in found] == ["[2]", "[4]"]
        assert "DIVIDE_BY_ZERO" in str(found[0]["problem"])
        assert json.loads(str(found[1]["row"])) == {"a": 4, "v": 0}
        assert {m.key for m in read_files(tmp_path / "out", ["t"]) if m.is_row} == {
            "[1]",
            "[3]",
            "[5]",
        }
        postgres.execute("update t set v = 2 where a = 2; delete from t where a = 4")
        answer = feeds.execute("RETRY CHANGEFEED f DEAD LETTERS")
        assert "its table is read as a whole" in answer.notices[0]
        feeds.sync("f")
        until(lambda: not letters(feeds))


def test_a_feed_goes_on_behind_a_transaction_that_is_skipped(
    feeds: Feeds, postgres: Database, target: Target
) -> None:
    """Only the one that SHOW names, with everything before it delivered; VERIFY names what is
    missing, and the history says who skipped it."""
    postgres.execute("create table t (a int primary key, v int); insert into t values (1, 1)")
    create(feeds, target, "WITH on_row_error = 'stop'")
    feeds.sync("f")
    feeds.execute("PAUSE CHANGEFEED f")
    postgres.execute("insert into t values (2, 2)")
    postgres.execute("insert into t values (3, 3), (4, -4), (5, 5)")
    postgres.execute("insert into t values (6, 6)")
    postgres.execute("insert into t values (7, -7)")
    feeds.execute("RESUME CHANGEFEED f")
    first = _failed_at(feeds)
    # A webhook takes rows of other keys that come behind the refused one, too.
    assert 2 in target.rows() and not {4, 7} & set(target.rows())
    for wrong in ("1.0000000000", f"{first} ", ""):
        with pytest.raises(ChangefeedError) as caught:
            feeds.execute(f"ALTER CHANGEFEED f SKIP TRANSACTION '{wrong}'")
        assert (caught.value.code.number, str(first) in caught.value.hint) == ("CF1301", True)
    answer = feeds.execute(f"ALTER CHANGEFEED f SKIP TRANSACTION '{first}'")
    assert answer.rows == [("public.t", first)]
    # The next one that is refused is another one.
    until(lambda: feeds.catalog.job("f").status is Status.FAILED)
    second = _failed_at(feeds)
    assert second > first and target.rows().get(6) == 6
    with pytest.raises(ChangefeedError, match="failed at the transaction"):
        feeds.execute(f"ALTER CHANGEFEED f SKIP TRANSACTION '{first}'")
    feeds.execute(f"ALTER CHANGEFEED f SKIP TRANSACTION '{second}'")
    postgres.execute("insert into t values (8, 8)")
    feeds.sync("f")
    assert {1, 2, 6, 8} <= set(target.rows()) and not {4, 7} & set(target.rows())
    events = [str(row[3]) for row in feeds.execute("SHOW CHANGEFEED f EVENTS").rows]
    user = Session().user
    assert [
        e for e in events if e.startswith(f"the transaction at {first} was skipped (by {user})")
    ]
    (row,) = feeds.execute("SHOW CHANGEFEED f TABLES").rows
    assert row[-1] is None, "it has not failed any more"
    if target.uri.startswith("postgresql"):
        found = feeds.execute("VERIFY CHANGEFEED f")
        missing = {text for row in found.rows for text in map(str, row) if text.startswith("[")}
        assert found.failure is not None and len(found.rows) == 3, missing


def _failed_at(feeds: Feeds) -> str:
    """The transaction that SHOW names, once the feed has failed at one."""
    until(lambda: feeds.catalog.job("f").status is Status.FAILED)
    (row,) = feeds.execute("SHOW CHANGEFEED f TABLES").rows
    at = str(row[-1])
    assert f"ALTER CHANGEFEED f SKIP TRANSACTION '{at}'" in str(row[-2])
    return at


#: Changes after the scan, which are one round where no row of it is refused.
CHANGES = """
    begin; insert into t values (50, 50), (51, 'NaN'), (52, 52);
    update t set n = 'NaN' where a = 1; delete from t where a = 2; commit;
    insert into t values (53, 53, '294276-12-31 23:59:59');
    update t set n = 7 where a = 17; insert into u values ('infinity', '{}')
"""


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_value_that_a_lake_cannot_hold(
    kind: str, tmp_path: Path, postgres: Database, spark_engine: NodeSpark
) -> None:
    """Of scans, which Spark would read otherwise, and of changes, with each way of keeping a table;
    also a value of which only Spark knows that it does not fit (53)."""
    lake = Lake(spark_engine, place_in(kind, tmp_path))
    postgres.execute(
        "create table t (a int primary key, n numeric(9,2), at timestamp);"
        "insert into t select i, i from generate_series(1, 40) i;"
        "update t set n = 'NaN' where a in (3, 17); update t set at = '-infinity' where a = 20;"
        "create table u (d date, n int[]); alter table u replica identity full;"
        "insert into u values ('2024-01-01', '{1}'), ('0044-03-15 BC', '{1}'), (null, '{{1},{2}}')"
    )
    ways = {"f": "", "soft": ", deletes = 'soft'", "past": ", history = 'scd2'"}
    ways["every"] = ", history = 'append'"
    with running(tmp_path / "state", spark_engine, timings=BRISK) as feeds:
        feeds.restart(Sizes(small_scan_rows=0))
        feeds.connect(shop=postgres.uri)
        for name, more in ways.items():
            tables = "t, u" if name == "f" else f"t AS {name}"
            feeds.execute(
                f"CREATE CHANGEFEED {name} FOR {tables} INTO '{lake.uri}' {LETTERS}{more}"
            )
        for name in ways:
            feeds.sync(name)
            found = {x["key"] for x in letters(feeds, name) if x["key"] != "[]"}
            assert found == {"[3]", "[17]", "[20]"}, name
        assert {x["code"] for x in letters(feeds)} == {"CF5006"}
        assert lake.query("select n from {u}") == [([1],)]
        postgres.execute(CHANGES)
        for name in ways:
            feeds.sync(name)
            found = {x["key"] for x in letters(feeds, name) if x["change"] != "scan"}
            assert found - {"[]"} == {"[51]", "[1]", "[53]"}, name
            assert len(letters(feeds, name)) == (9 if name == "f" else 6)
        expected = {a: a for a in (*range(1, 41), 50, 52) if a not in (2, 3, 20)} | {17: 7}
        assert _now(lake, "{t}") == expected
        assert _now(lake, "{soft} where not " + merge.DELETED[kind]) == expected
        assert _now(lake, "{past} where _is_current") == expected
        assert len(lake.query("select a from {every}")) == 37 + 4
        # What only Spark finds it cannot compare.
        postgres.execute("update t set at = null where a = 53")
        feeds.sync("soft")
        verified = feeds.execute("VERIFY CHANGEFEED soft").rows
        kinds = {row[1]: str(row[2]).partition(" (dead letter ")[0] for row in verified}
        assert kinds == {"[1]": "changed"} | dict.fromkeys(("[3]", "[20]", "[51]"), "missing")
        # Mended at the source, the rows come as changes; RETRY asks what is left, and it is good.
        postgres.execute("update t set n = 0 where n = 'NaN'; update t set at = null")
        for name in ways:
            feeds.sync(name)
            feeds.execute(f"RETRY CHANGEFEED {name} DEAD LETTERS")
        until(lambda: {x["key"] for name in ways for x in letters(feeds, name)} == {"[]"})
        feeds.execute("ALTER CHANGEFEED f DROP u")
        assert feeds.execute("VERIFY CHANGEFEED f").failure is None


@pytest.mark.extended
@pytest.mark.spark
def test_a_constraint_of_a_delta_table(
    tmp_path: Path, postgres: Database, spark_engine: NodeSpark
) -> None:
    """Mended at the target. Iceberg has no constraints."""
    lake = Lake(spark_engine, place_in("delta", tmp_path))
    postgres.execute(
        "create table t (a int primary key, n numeric(9,2)); insert into t values (1, 1)"
    )
    with running(tmp_path / "state", spark_engine, timings=BRISK) as feeds:
        feeds.connect(shop=postgres.uri)
        feeds.execute(f"CREATE CHANGEFEED f FOR t INTO '{lake.uri}' {LETTERS}")
        feeds.sync("f")
        lake.query("ALTER TABLE {t} ADD CONSTRAINT small CHECK (n < 1000)")
        postgres.execute("insert into t values (60, 60), (61, 5000), (62, 62)")
        feeds.sync("f")
        (letter,) = letters(feeds)
        assert letter["key"] == "[61]" and _now(lake, "{t}") == {1: 1, 60: 60, 62: 62}
        (difference,) = feeds.execute("VERIFY CHANGEFEED f").rows
        assert difference[1:3] == ("[61]", f"missing (dead letter {letter['letter']})")
        lake.query("ALTER TABLE {t} DROP CONSTRAINT small")
        feeds.execute("RETRY CHANGEFEED f DEAD LETTERS")
        feeds.sync("f")
        until(lambda: not letters(feeds))
        assert _now(lake, "{t}")[61] == 5000


def _now(lake: Lake, rows: str) -> dict[int, int]:
    return {a: int(n) for a, n in lake.query(f"select a, n from {rows}")}

"""Feeds from a real PostgreSQL into a real Elasticsearch: the index equals the table."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from changefeed.spark.session import NodeSpark
from tests.e2e.feeds import EITHER_ENGINE, Feeds, running
from tests.helpers.waiting import until
from tests.nemesis.service import Service
from tests.services.elasticsearch import MAJORS, Elasticsearch, OpenSearch
from tests.services.http_faults import FaultyProxy, answer, cut, lose_answer
from tests.services.postgres import Database

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.spark,
    pytest.mark.postgres,
    pytest.mark.elasticsearch,
]

_numbers = itertools.count(1)


class Bench:
    """One database, one state, index names of its own."""

    def __init__(self, feeds: Feeds, db: Database, server: Elasticsearch) -> None:
        self.feeds = feeds
        self.db = db
        self.server = server
        self.prefix = f"e2e{next(_numbers)}_"
        #: A test that leaves an index as it should not be says so.
        self.equal = True
        feeds.connect(shop=db.uri)

    def create(self, name: str, targets: str, options: str = "", parameters: str = "") -> None:
        uri = f"{self.server.uri}/?index_prefix={self.prefix}{parameters}"
        more = f" WITH {options}" if options else ""
        self.feeds.execute(f"CREATE CHANGEFEED {name} FOR {targets} INTO '{uri}'{more}")

    def documents(self, table: str = "t") -> dict[str, dict[str, Any]]:
        return self.server.documents(f"{self.prefix}{table}")

    def status(self, name: str) -> str:
        return self.feeds.catalog.job(name).status.value


@pytest.fixture
def bench(
    tmp_path: Path, postgres: Database, elasticsearch: Elasticsearch, spark_engine: NodeSpark
) -> Iterator[Bench]:
    postgres.execute(
        "create table t (a int primary key, b text, n numeric(12, 2));"
        "insert into t select i, 'row ' || i, i * 1.5 from generate_series(1, 10) i"
    )
    with running(tmp_path / "state", spark_engine) as feeds:
        made = Bench(feeds, postgres, elasticsearch)
        yield made
        if made.equal:
            feeds.verified()


def truth(db: Database, sql: str = "select to_jsonb(t), a from t") -> dict[str, Any]:
    return {str(key): row for row, key in db.execute(sql)}


@pytest.mark.parametrize("elasticsearch", MAJORS, indirect=True)
def test_the_index_equals_the_table(bench: Bench) -> None:
    bench.create("f", "t", "resolved = '200ms'")
    bench.feeds.sync("f")
    assert bench.documents() == truth(bench.db)
    bench.db.execute("update t set b = 'new' where a <= 3")
    bench.db.execute("delete from t where a = 4")
    bench.db.execute("update t set a = 100 where a = 5")
    bench.db.execute("update t set a = 4 where a = 6")
    bench.db.execute("insert into t values (200, 'x \"quoted\" \\ \n line', 0.10)")
    bench.feeds.sync("f")
    assert bench.documents() == truth(bench.db)
    with bench.db.connect(autocommit=False) as connection:
        connection.execute("delete from t where a = 1")
        connection.execute("insert into t values (1, 'again', null)")
        connection.execute("update t set a = 7000 where a = 7")
        connection.execute("update t set a = 7 where a = 8")
    bench.feeds.sync("f")
    assert bench.documents() == truth(bench.db)
    source = bench.server.call("GET", f"/{bench.prefix}t/_source/2")
    assert source == {"a": 2, "b": "new", "n": 3.0}


@EITHER_ENGINE
def test_schema_changes_bring_fields(bench: Bench) -> None:
    bench.create("f", "t")
    bench.feeds.sync("f")
    bench.db.execute("alter table t add column more jsonb, add column at timestamptz")
    bench.db.execute(
        "insert into t values (11, 'x', 1, '{\"k\": [1]}', '2024-01-01 00:00:00.5+00')"
    )
    bench.feeds.sync("f")
    bench.db.execute("alter table t rename column b to label")
    bench.db.execute("update t set label = 'after' where a = 1")
    bench.feeds.sync("f")
    documents = bench.documents()
    assert documents["11"]["more"] == {"k": [1]}
    assert documents["11"]["at"] == "2024-01-01T00:00:00.5Z"
    assert documents["1"]["label"] == "after"
    fields = bench.server.mapping(f"{bench.prefix}t")
    kinds = {name: field["type"] for name, field in fields.items()}
    assert kinds == {
        **{"a": "long", "b": "text", "n": "double", "more": "flattened", "at": "date"},
        "label": "text",
    }
    # A renamed column is another field; documents get it when their row changes, or by this.
    answer = bench.feeds.execute("VERIFY CHANGEFEED f")
    assert {row[1] for row in answer.rows} >= {"[2]", "[11]"}
    assert bench.feeds.execute("VERIFY CHANGEFEED f REPAIR").failure is None


@EITHER_ENGINE
def test_a_truncated_table_is_an_empty_index(bench: Bench) -> None:
    bench.create("f", "t", "resolved")
    bench.feeds.sync("f")
    with bench.db.connect(autocommit=False) as connection:
        connection.execute("insert into t values (50, 'before', 1)")
        connection.execute("truncate t")
        connection.execute("insert into t values (1, 'after', 1)")
    bench.feeds.sync("f")
    assert bench.documents() == truth(bench.db)
    until(lambda: bench.server.documents(f"{bench.prefix}changefeed_resolved"))


@EITHER_ENGINE
def test_one_bad_document_stops_its_table_or_goes_to_the_dead_letters(bench: Bench) -> None:
    bench.db.execute("create table j (id int primary key, doc jsonb)")
    bench.db.execute("insert into j values (1, '{\"a\": 1}')")
    letters = f"{bench.prefix}letters"
    bench.create("strict", "t, j AS strict_j")
    bench.create("lenient", "j AS lenient_j", parameters=f"&dead_letter_index={letters}")
    bench.feeds.sync("lenient")
    bench.feeds.sync("strict")
    bench.db.execute("insert into j values (2, '17')")
    bench.db.execute("insert into j values (3, '{}')")
    bench.feeds.sync("lenient")
    assert set(bench.documents("lenient_j")) == {"1", "3"}
    (letter,) = bench.server.documents(letters).values()
    assert letter["document"] == '{"id": 2, "doc": 17}'
    bench.db.execute("update t set b = 'goes on' where a = 1")
    until(lambda: bench.documents()["1"]["b"] == "goes on")

    def reason() -> str:
        found = bench.feeds.catalog.tables(bench.feeds.catalog.job("strict").id)
        return next(t.error or "" for t in found if t.table.name == "j")

    until(reason)
    assert "refused documents of table shop.public.j: 1 document: " in reason()
    assert "field doc of type flattened" in reason()
    answer = bench.feeds.execute("VERIFY CHANGEFEED lenient")
    assert [row[:3] for row in answer.rows] == [("public.j", "[2]", "missing")]
    bench.equal = False


def test_wrapped_documents_and_chosen_columns(bench: Bench) -> None:
    bench.db.execute("alter table t replica identity full")
    bench.create("f", "t (a, b)", "envelope = 'wrapped', diff, updated")
    bench.feeds.sync("f")
    bench.db.execute("update t set b = 'new' where a = 1")
    bench.db.execute("delete from t where a = 2")
    bench.feeds.sync("f")
    documents = bench.documents()
    assert "2" not in documents
    assert documents["1"]["after"] == {"a": 1, "b": "new"}
    assert documents["1"]["before"] == {"a": 1, "b": "row 1"}
    fields = bench.server.mapping(f"{bench.prefix}t")
    assert set(fields["after"]["properties"]) == {"a", "b"}


def test_a_large_scan_goes_through_executors(bench: Bench) -> None:
    bench.db.execute("insert into t select i, 'row ' || i, i from generate_series(11, 30000) i")
    bench.db.execute("analyze t")
    bench.create("f", "t")
    bench.feeds.sync("f")
    bench.server.call("POST", f"/{bench.prefix}t/_refresh")
    assert bench.server.call("GET", f"/{bench.prefix}t/_count")["count"] == 30_000
    total = bench.server.call(
        "GET", f"/{bench.prefix}t/_search?size=0", {"aggs": {"sum": {"sum": {"field": "a"}}}}
    )
    assert total["aggregations"]["sum"]["value"] == 30_000 * 30_001 / 2


@EITHER_ENGINE
def test_a_busy_cluster_and_a_lost_answer_lose_nothing(bench: Bench) -> None:
    with FaultyProxy(bench.server.port) as proxy:
        proxy.script.extend([answer(429), lose_answer, cut, answer(503)])
        uri = f"elasticsearch://127.0.0.1:{proxy.port}/?index_prefix={bench.prefix}"
        bench.feeds.execute(f"CREATE CHANGEFEED f FOR t INTO '{uri}'")
        bench.feeds.sync("f")
        assert bench.documents() == truth(bench.db)
        proxy.script.extend([lose_answer, answer(502), cut])
        bench.db.execute("update t set b = 'new' where a <= 3")
        bench.db.execute("delete from t where a = 4")
        bench.feeds.sync("f")
        assert bench.documents() == truth(bench.db)
        assert not proxy.script
        bench.feeds.execute("DROP CHANGEFEED f")


def test_a_feed_into_opensearch_says_so(
    tmp_path: Path, postgres: Database, opensearch: OpenSearch, spark_engine: NodeSpark
) -> None:
    postgres.execute("create table t (a int primary key); insert into t values (1)")
    words = f"this server is OpenSearch {opensearch.version}, not Elasticsearch"
    with running(tmp_path / "state", spark_engine) as feeds:
        feeds.connect(shop=postgres.uri)
        create = f"CREATE CHANGEFEED f FOR t INTO 'elasticsearch://ann:s3cret@{opensearch.address}'"
        found = feeds.execute(f"VALIDATE {create}")
        (problem,) = (dict(zip(found.columns, row, strict=True)) for row in found.rows)
        assert (problem["severity"], problem["code"]) == ("error", "CF1303")
        assert words in str(problem["problem"]) and "s3cret" not in str(problem)
        feeds.execute(create)
        until(lambda: feeds.catalog.job("f").status.value == "failed")
        job = feeds.catalog.job("f")
        assert (job.error or "").startswith(f"{words}: http://{opensearch.address}")
        assert job.error_code == "CF1303" and "s3cret" not in str(job.error)
        assert "version 8 or 9" in (job.hint or "")
    assert opensearch.call("GET", "/_cat/indices?format=json") == []


@pytest.mark.extended
def test_killed_at_every_place_the_index_equals_the_table(
    tmp_path: Path, postgres: Database, elasticsearch: Elasticsearch
) -> None:
    """The node is killed with rows in the index of which it has not written down the progress."""
    postgres.execute(
        "create table t (a int primary key, b text, n numeric(12, 2));"
        "insert into t select i, 'row ' || i, i from generate_series(1, 10) i"
    )
    prefix = f"killed{next(_numbers)}_"
    service = Service(tmp_path / "state")
    try:
        service.execute(f"CREATE EXTERNAL CONNECTION shop AS '{postgres.uri}'")
        uri = f"{elasticsearch.uri}/?index_prefix={prefix}"
        service.execute(f"CREATE CHANGEFEED f FOR shop.public.t INTO '{uri}'")
        step = itertools.count(1)
        for place in ("scan.before_end", "runner.after_commit@2"):
            service.start(f"{place if '@' in place else f'{place}@1'}:kill")
            deadline = time.monotonic() + 120
            while service.running:
                assert time.monotonic() < deadline, f"{place} was not reached"
                n = next(step)
                postgres.execute(f"update t set n = n + 1, a = -a where a % 10 = {n % 10}")
                postgres.execute(f"delete from t where a = {100 + n - 3}")
                postgres.execute(f"insert into t values ({100 + n}, 'new', {n})")
                time.sleep(0.2)
            assert service.exit_status == -9, place
        service.start()
        service.sync("f")
        assert elasticsearch.documents(f"{prefix}t") == truth(postgres)
    finally:
        print(service.last_words())
        service.close()

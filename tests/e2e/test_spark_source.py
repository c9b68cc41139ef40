"""Readers: from a statement to a query of Spark, batch and stream."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, Window, functions
from pyspark.sql.streaming.query import StreamingQuery

from changefeed import spark_source
from changefeed.spark.session import NodeSpark
from tests.e2e.feeds import Feeds
from tests.helpers.waiting import until
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e, pytest.mark.postgres, pytest.mark.spark]

SECONDS = 120.0

Row = tuple[Any, ...]


@pytest.fixture
def spark(spark_engine: NodeSpark) -> SparkSession:
    session = spark_engine.session()
    spark_source.register(session)
    return session


class Copy:
    """A copy of the table by key, kept as a consumer of Delta's change data feed keeps one: each
    batch's last change of a key, by ``_change_type`` and ``_commit_version``."""

    def __init__(self) -> None:
        self.rows: dict[Any, Row] = {}
        self.seen: list[tuple[str, Any]] = []

    def merge(self, batch: DataFrame, number: int) -> None:
        changes = sorted(batch.collect(), key=lambda row: row["_commit_version"])
        for row in changes:
            kind, values = row["_change_type"], tuple(row)[:-3]
            self.seen.append((kind, values[0]))
            if kind == "truncate":
                self.rows.clear()
            elif kind == "delete":
                self.rows.pop(values[0], None)
            # Deletes of a version go first: a change of key is a delete and an insert.
            elif kind != "update_preimage":
                self.rows[values[0]] = values


def stream(spark: SparkSession, feeds: Feeds, reader: str, **options: str) -> DataFrame:
    found = spark.readStream.format("changefeed").option("state", str(feeds.state))
    found = found.option("table", "shop.public.t").option("reader", reader)
    return found.options(**options).load()


def start(frame: DataFrame, copy: Copy, checkpoint: Path) -> StreamingQuery:
    writer = frame.writeStream.foreachBatch(copy.merge)
    return writer.option("checkpointLocation", str(checkpoint)).start()


def source(db: Database) -> dict[Any, Row]:
    return {row[0]: tuple(row) for row in db.execute("select * from t order by id")}


def wait(query: StreamingQuery, db: Database, copy: Copy) -> None:
    """Wait until the copy equals the source."""

    def equal() -> bool:
        error = query.exception()
        assert error is None, error
        return copy.rows == source(db)

    until(equal, seconds=SECONDS)


def test_a_query_that_is_stopped_and_restarted_equals_the_source(
    feeds: Feeds, postgres: Database, spark: SparkSession, tmp_path: Path
) -> None:
    postgres.execute(
        "create table t (id int primary key, name text, price numeric(10,2));"
        "alter table t replica identity full;"
        "insert into t select i, 'row ' || i, i / 4.0 from generate_series(1, 500) i"
    )
    feeds.connect(shop=postgres.uri)
    copy = Copy()
    query = start(stream(spark, feeds, "r"), copy, tmp_path / "checkpoint")
    wait(query, postgres, copy)
    postgres.execute("update t set name = 'new' where id % 3 = 0")
    wait(query, postgres, copy)
    query.stop()
    postgres.execute("update t set id = id + 1000 where id % 7 = 0; delete from t where id % 5 = 0")
    query = start(stream(spark, feeds, "r"), copy, tmp_path / "checkpoint")
    wait(query, postgres, copy)
    query.stop()
    assert ("update_preimage", 3) in copy.seen

    read = spark.read.format("changefeed").option("state", str(feeds.state))
    read = read.option("table", "shop.public.t")
    counts = counted(read.load())
    assert counts["update_preimage"] == counts["update_postimage"] == 166
    # What the log has: the scan is not in it. Keys that changed are a delete and an insert.
    assert counts["delete"] - counts["insert"] == 500 - len(copy.rows)
    first = read.load().agg({"_commit_version": "min"}).collect()[0][0]
    one = read.option("startingVersion", first).option("endingVersion", first).load()
    assert counted(one) == {"update_preimage": 166, "update_postimage": 166}


def counted(frame: DataFrame) -> dict[str, int]:
    """How many changes of each kind."""
    return {row[0]: row[1] for row in frame.groupBy("_change_type").count().collect()}


def failure(query: StreamingQuery) -> str:
    """What a query has ended with."""
    until(lambda: query.exception() is not None, seconds=SECONDS)
    return str(query.exception())


def test_the_error_of_a_stream_is_the_last_that_spark_says(
    feeds: Feeds, postgres: Database, spark: SparkSession, tmp_path: Path
) -> None:
    postgres.execute("create table t (id int primary key)")
    feeds.connect(shop=postgres.uri)
    without = spark.readStream.format("changefeed").option("state", str(feeds.state))
    query = start(without.option("table", "shop.public.t").load(), Copy(), tmp_path / "without")
    said = failure(query)
    assert "ChangefeedError: a streaming query needs the option reader" in said
    assert "HINT: choose a name" in said and "UnboundLocalError" not in said
    query = start(stream(spark, feeds, "r", endingVersion="1"), Copy(), tmp_path / "ending")
    said = failure(query)
    assert "a streaming query has no end" in said and "UnboundLocalError" not in said


@pytest.mark.extended
def test_changes_of_the_table_and_truncations(
    feeds: Feeds, postgres: Database, spark: SparkSession, tmp_path: Path
) -> None:
    postgres.execute(
        "create table t (id int primary key, name text); insert into t values (1, 'a')"
    )
    feeds.connect(shop=postgres.uri)
    copy, checkpoint = Copy(), tmp_path / "checkpoint"
    query = start(stream(spark, feeds, "r"), copy, checkpoint)
    wait(query, postgres, copy)
    postgres.execute("alter table t add column more int; update t set more = 2")
    assert "has changed since the query began: more" in failure(query)
    query = start(stream(spark, feeds, "r"), copy, checkpoint)
    wait(query, postgres, copy)
    postgres.execute("truncate t; insert into t values (5, 'b', 6)")
    assert "was truncated" in failure(query)
    query = start(stream(spark, feeds, "r", truncate="row"), copy, checkpoint)
    wait(query, postgres, copy)
    query.stop()
    assert "no checkpoint" in failure(start(stream(spark, feeds, "r"), Copy(), tmp_path / "other"))


def upsert(target: str, batch: DataFrame, number: int) -> None:
    """A consumer as they are written for Delta's change data feed: merges the last change of each
    key, by ``_change_type`` and ``_commit_version``."""
    newest = Window.partitionBy("id").orderBy(functions.col("_commit_version").desc())
    changes = batch.where("_change_type <> 'update_preimage'")
    latest = changes.withColumn("place", functions.row_number().over(newest)).where("place = 1")
    latest.createOrReplaceTempView("latest")
    batch.sparkSession.sql(
        f"MERGE INTO delta.`{target}` AS t USING latest AS s ON t.id = s.id "
        "WHEN MATCHED AND s._change_type = 'delete' THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET name = s.name, price = s.price "
        "WHEN NOT MATCHED AND s._change_type <> 'delete' "
        "THEN INSERT (id, name, price) VALUES (s.id, s.name, s.price)"
    )


#: What is done to the source and to a Delta table alike.
EDITS = (
    "insert into {t} values (1, 'a', 1.50), (2, 'b', 2), (3, null, 3), (4, 'd', 4)",
    "update {t} set name = 'new', price = price * 2 where id in (2, 3)",
    "delete from {t} where id = 1",
    "insert into {t} values (1, 'again', 0.25), (9, 'late', null)",
)


@pytest.mark.extended
def test_a_consumer_of_delta_s_change_data_feed_runs_unchanged(
    feeds: Feeds, postgres: Database, spark_engine: NodeSpark, tmp_path: Path
) -> None:
    """Started twice for the changes until then, over Delta's own table and over our source."""
    shape = "(id int, name {text}, price {number})"
    postgres.execute(
        f"create table t {shape.format(text='text', number='numeric(10,2)')};"
        "alter table t add primary key (id); alter table t replica identity full"
    )
    feeds.connect(shop=postgres.uri)
    feeds.execute("CREATE CHANGEFEED seen FOR shop.public.t INTO 'null://'")
    feeds.sync("seen")
    with spark_engine.use(packs=("delta",)) as session:
        spark_source.register(session)
        delta = shape.format(text="string", number="decimal(10,2)")
        origin, copies = tmp_path / "origin", {name: tmp_path / name for name in ("own", "ours")}
        session.sql(
            f"CREATE TABLE delta.`{origin}` {delta} USING delta "
            "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
        )
        for copy in copies.values():
            session.sql(f"CREATE TABLE delta.`{copy}` {delta} USING delta")
        sources = {
            "own": session.readStream.format("delta").option("readChangeFeed", "true"),
            "ours": session.readStream.format("changefeed").option("reader", "r"),
        }
        sources["own"] = sources["own"].option("startingVersion", 0)
        sources["ours"] = sources["ours"].option("state", str(feeds.state))
        sources["ours"] = sources["ours"].option("table", "shop.public.t")
        for edits in (EDITS[:2], EDITS[2:]):
            for edit in edits:
                session.sql(edit.format(t=f"delta.`{origin}`"))
                postgres.execute(edit.format(t="t"))
            feeds.sync("seen")
            found = []
            for name, copy in copies.items():
                changes = sources[name].load(str(origin) if name == "own" else None)
                writer = changes.writeStream.trigger(availableNow=True)
                writer = writer.option("checkpointLocation", f"{copy}.checkpoint")
                merge = partial(upsert, str(copy))
                writer.foreachBatch(merge).start().awaitTermination()
                rows = session.sql(f"SELECT * FROM delta.`{copy}` ORDER BY id").collect()
                found.append([tuple(row) for row in rows])
            assert found[0] == found[1] == [tuple(row) for row in source(postgres).values()]
    assert [row[0] for row in found[1]] == [1, 2, 3, 4, 9]

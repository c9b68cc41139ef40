"""YugabyteDB's CREATE CDC from a real PostgreSQL to a real broker: what each ``record`` sends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.spark.session import NodeSpark
from tests.e2e.feeds import running
from tests.services.kafka import KafkaBroker
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres, pytest.mark.kafka]


def test_records(
    tmp_path: Path, postgres: Database, kafka: KafkaBroker, topic: str, spark_engine: NodeSpark
) -> None:
    tables = {"change_t": "CHANGE", "after_t": "AFTER", "all_t": "ALL"}
    for table in tables:
        postgres.execute(
            f"create table {table} (a int primary key, b text, c jsonb);"
            f"alter table {table} replica identity full;"
            f"insert into {table} values (1, 'x', null)"
        )
    postgres.execute("create table weak_t (a int primary key, b text)")
    into = f"INTO KAFKA WITH cluster_address = 'http://{kafka.bootstrap}'"
    with running(tmp_path / "state", spark_engine) as feeds:
        feeds.connect(shop=postgres.uri)
        for table, record in tables.items():
            feeds.execute(
                f"CREATE CDC FOR shop.{table} {into}, topic = '{topic}_{table}', record = {record}"
            )
            feeds.sync(f"cdc_shop_{table}")
        with pytest.raises(ChangefeedError, match="old values of all columns are needed"):
            feeds.execute(f"CREATE CDC FOR shop.weak_t {into}, record = CHANGE")
        for table in tables:
            postgres.execute(f"update {table} set c = '[1]' where a = 1")
            postgres.execute(f"update {table} set b = null")
            postgres.execute(f"update {table} set b = b")
            postgres.execute(f"update {table} set a = 2")
            postgres.execute(f"delete from {table}")
            feeds.sync(f"cdc_shop_{table}")
            feeds.execute(f"DROP CDC FOR shop.{table}")
    found = {
        table: [
            ((r.key or b"").decode(), json.loads(r.value) if r.value else None)
            for r in kafka.messages(f"{topic}_{table}")
        ]
        for table in tables
    }
    first, second = {"a": 1, "b": "x", "c": None}, {"a": 1, "b": "x", "c": [1]}
    third, moved = {"a": 1, "b": None, "c": [1]}, {"a": 2, "b": None, "c": [1]}
    assert found["change_t"] == [
        ("[1]", first),
        ("[1]", {"c": [1]}),
        ("[1]", {"b": None}),
        ("[1]", {}),
        ("[1]", None),
        ("[2]", moved),
        ("[2]", None),
    ]
    assert [value for _, value in found["after_t"]] == [
        *(first, second, third, third, None, moved, None)
    ]
    images = [(value["before"], value["after"]) for _, value in found["all_t"] if value]
    assert images == [
        *((None, first), (first, second), (second, third), (third, third)),
        *((third, None), (None, moved), (moved, None)),
    ]

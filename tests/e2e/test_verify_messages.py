"""VERIFY CHANGEFEED of copies kept as messages: documents of an index, last messages of a topic."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from changefeed.api import Result
from changefeed.core.errors import ChangefeedError, Code
from changefeed.spark.session import NodeSpark
from tests.e2e.feeds import Feeds, running
from tests.e2e.test_warehouse_feeds import WIDE
from tests.helpers.waiting import until
from tests.services.elasticsearch import Elasticsearch
from tests.services.kafka import KafkaBroker
from tests.services.postgres import Database
from tests.services.registry import FakeRegistry

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres]

SMALL = (
    "create table t (a int primary key, b text, n numeric(12, 2));"
    "insert into t select i, 'row ' || i, i * 1.5 from generate_series(1, 10) i;"
)
CHANGES = "delete from t where a = 1; update t set b = 'new' where a = 2;"

_numbers = itertools.count(1)


def slow(*parameters: object) -> Any:
    """Another of its kind, which `make test` leaves to `make test-all`."""
    return pytest.param(*parameters, marks=pytest.mark.extended)


@pytest.fixture
def feeds(tmp_path: Path, postgres: Database, spark_engine: NodeSpark) -> Iterator[Feeds]:
    postgres.execute(SMALL + WIDE)
    with running(tmp_path / "state", spark_engine) as made:
        made.connect(shop=postgres.uri)
        yield made
    left = [path.name for path in tmp_path.rglob("verify-*")]
    assert not left, "the file of a comparison stays"


def verified(feeds: Feeds, words: str = "") -> Result:
    return feeds.execute(f"VERIFY CHANGEFEED f {words}")


def named(answer: Result) -> set[tuple[Any, ...]]:
    return {tuple(row) for row in answer.rows}


class TestElasticsearch:
    pytestmark = pytest.mark.elasticsearch

    @pytest.fixture
    def prefix(self) -> str:
        return f"verify{next(_numbers)}_"

    def create(self, feeds: Feeds, server: Elasticsearch, prefix: str, options: str = "") -> None:
        uri = f"{server.uri}/?index_prefix={prefix}"
        feeds.execute(f"CREATE CHANGEFEED f FOR t, wide INTO '{uri}'{options}")
        feeds.sync("f")

    @pytest.mark.parametrize("envelope", ["row", *map(slow, ["wrapped", "bare"])])
    def test_values_of_every_type_are_equal(
        self,
        feeds: Feeds,
        postgres: Database,
        elasticsearch: Elasticsearch,
        prefix: str,
        envelope: str,
    ) -> None:
        self.create(
            feeds, elasticsearch, prefix, f" WITH envelope = '{envelope}', updated, mvcc_timestamp"
        )
        postgres.execute(CHANGES)
        answer = verified(feeds)
        assert (answer.rows, answer.failure) == ([], None)
        assert answer.notices == ["public.t: equal", "public.wide: equal"]

    def test_each_kind_of_difference_is_named_and_repaired(
        self, feeds: Feeds, elasticsearch: Elasticsearch, prefix: str
    ) -> None:
        self.create(feeds, elasticsearch, prefix)
        index = f"/{prefix}t"
        elasticsearch.call("DELETE", f"{index}/_doc/2")
        elasticsearch.call("PUT", f"{index}/_doc/99", {"a": 99, "b": "invented", "n": 1.25})
        elasticsearch.call("POST", f"{index}/_update/3", {"doc": {"b": None}})
        elasticsearch.call("POST", f"{index}/_update/4", {"doc": {"n": 6.01}})
        elasticsearch.call("POST", f"{index}/_update/5", {"doc": {"n": 7.5}})  # 7.50 of the source
        answer = verified(feeds)
        assert answer.failure is not None and answer.failure.code is Code.TARGET_DIFFERS
        assert named(answer) == {
            ("public.t", "[2]", "missing", '{"a": 2, "b": "row 2", "n": 3}', None),
            ("public.t", "[99]", "extra", None, '{"a": 99, "b": "invented", "n": 1.25}'),
            ("public.t", "[3]", "changed", '{"b": "row 3"}', '{"b": null}'),
            ("public.t", "[4]", "changed", '{"n": 6}', '{"n": 6.01}'),
        }
        before = elasticsearch.call("GET", f"{index}/_doc/6")["_version"]
        answer = verified(feeds, "REPAIR")
        assert answer.failure is None
        assert "public.t: 4 rows were repaired by key: equal now" in answer.notices
        assert elasticsearch.call("GET", f"{index}/_doc/6")["_version"] == before
        assert verified(feeds).notices == ["public.t: equal", "public.wide: equal"]


class TestKafka:
    pytestmark = pytest.mark.kafka

    def create(
        self, feeds: Feeds, kafka: KafkaBroker, options: str = "", policy: str = "compact"
    ) -> str:
        prefix = f"verify{next(_numbers)}_"
        for table in ("t", "wide"):
            kafka.create_topic(prefix + table, partitions=3, **{"cleanup.policy": policy})
        uri = f"{kafka.uri}?topic_prefix={prefix}"
        feeds.execute(f"CREATE CHANGEFEED f FOR t, wide INTO '{uri}'{options}")
        feeds.sync("f")
        return prefix

    @pytest.mark.parametrize(
        "options",
        [
            " WITH updated, resolved = '100ms', key_in_value",
            slow(" WITH envelope = 'row', delivery = 'exactly_once'"),
            slow(" WITH envelope = 'enriched'"),
            slow(" WITH envelope = 'debezium'"),
            slow(" WITH envelope = 'bare', updated, topic_in_value"),
        ],
    )
    def test_the_last_messages_are_the_table(
        self, feeds: Feeds, postgres: Database, kafka: KafkaBroker, options: str
    ) -> None:
        self.create(feeds, kafka, options, policy="delete")
        postgres.execute(CHANGES)
        # Told by messages without a key, which a compacted topic would refuse.
        postgres.execute("truncate wide")
        postgres.execute("insert into wide (id, t) values (7, 'after it')")
        answer = verified(feeds)
        assert (answer.rows, answer.failure) == ([], None)
        assert answer.notices == ["public.t: equal", "public.wide: equal"]

    @pytest.mark.parametrize(
        "envelope", ["bare", *map(slow, ["wrapped", "row", "enriched", "debezium"])]
    )
    def test_avro_is_read_with_the_schemas_of_the_registry(
        self,
        feeds: Feeds,
        postgres: Database,
        kafka: KafkaBroker,
        fake_registry: FakeRegistry,
        envelope: str,
    ) -> None:
        more = "" if envelope == "debezium" else ", updated"
        prefix = self.create(
            feeds,
            kafka,
            f" WITH format = 'avro', envelope = '{envelope}'{more}, resolved = '100ms',"
            f" confluent_schema_registry = '{fake_registry.url}'",
            policy="delete",
        )
        postgres.execute(CHANGES)
        postgres.execute("alter table t add column c bytea; update t set c = '\\xff00' where a = 3")
        postgres.execute("truncate wide")
        postgres.execute("insert into wide (id, t) values (7, 'after it')")
        answer = verified(feeds)
        assert (answer.rows, answer.failure) == ([], None)
        assert answer.notices == ["public.t: equal", "public.wide: equal"]
        registered = [r for r in fake_registry.requests if r.startswith("POST")]

        # The message of one row at the key of another, and a row that is deleted.
        held = {m.key: m for m in kafka.messages(f"{prefix}t") if m.key and m.value}
        [third, fourth] = [next(m for k, m in held.items() if k[-1] == 2 * n) for n in (3, 4)]
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        producer.produce(f"{prefix}t", fourth.value, third.key, third.partition)
        producer.produce(f"{prefix}t", None, fourth.key, fourth.partition)
        producer.flush()
        answer = verified(feeds, "TABLE t")
        assert answer.failure is not None
        assert named(answer) == {
            (
                "public.t",
                "[3]",
                "changed",
                r'{"a": 3, "b": "row 3", "n": 4.5, "c": "\\xff00"}',
                '{"a": 4, "b": "row 4", "n": 6, "c": null}',
            ),
            ("public.t", "[4]", "missing", '{"a": 4, "b": "row 4", "n": 6, "c": null}', None),
        }
        assert registered == [r for r in fake_registry.requests if r.startswith("POST")]

    @pytest.mark.parametrize(
        ("envelope", "registered"),
        [
            ("wrapped", True),
            slow("bare", False),
            slow("row", True),
            slow("enriched", False),
        ],
    )
    def test_protobuf_is_read_with_its_types(
        self,
        feeds: Feeds,
        postgres: Database,
        kafka: KafkaBroker,
        fake_registry: FakeRegistry,
        envelope: str,
        registered: bool,
    ) -> None:
        asked = f", confluent_schema_registry = '{fake_registry.url}'" if registered else ""
        prefix = self.create(
            feeds,
            kafka,
            f" WITH format = 'protobuf', envelope = '{envelope}', updated, resolved = '100ms'"
            + asked,
            policy="delete",
        )
        postgres.execute(CHANGES)
        postgres.execute("alter table t add column c bytea; update t set c = '\\xff00' where a = 3")
        answer = verified(feeds)
        assert (answer.rows, answer.failure) == ([], None)
        assert answer.notices == ["public.t: equal", "public.wide: equal"]
        held = {m.key: m for m in kafka.messages(f"{prefix}t") if m.key and m.value}
        [third, fourth] = [next(m for k, m in held.items() if k[-1] == n) for n in (3, 4)]
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        producer.produce(f"{prefix}t", fourth.value, third.key, third.partition)
        producer.flush()
        assert {row[:3] for row in named(verified(feeds, "TABLE t"))} == {
            ("public.t", "[3]", "changed")
        }
        producer.produce(f"{prefix}t", b"\xff" * 20, third.key, third.partition)
        producer.flush()
        with pytest.raises(ChangefeedError, match="not in the protobuf") as refused:
            verified(feeds, "TABLE t")
        assert refused.value.code is Code.NOT_SUPPORTED

    def test_a_message_of_somebody_else_is_refused(
        self, feeds: Feeds, kafka: KafkaBroker, fake_registry: FakeRegistry
    ) -> None:
        prefix = self.create(
            feeds,
            kafka,
            f" WITH format = 'avro', confluent_schema_registry = '{fake_registry.url}'",
        )
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        producer.produce(f"{prefix}t", "not Avro", "k", 0)
        producer.flush()
        with pytest.raises(ChangefeedError, match="not in the Avro") as refused:
            verified(feeds, "TABLE t")
        assert refused.value.code is Code.NOT_SUPPORTED

    def test_each_kind_of_difference_is_named(self, feeds: Feeds, kafka: KafkaBroker) -> None:
        prefix = self.create(feeds, kafka)
        partitions = {m.key: m.partition for m in kafka.messages(f"{prefix}t")}
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        for key, value in (
            ("[2]", None),
            ("[99]", {"after": {"a": 99, "b": "invented", "n": 1}}),
            ("[3]", {"after": {"a": 3, "b": None, "n": 4.5}}),
        ):
            text = None if value is None else json.dumps(value)
            producer.produce(f"{prefix}t", text, key, partitions.get(key.encode(), 0))
        producer.flush()
        answer = verified(feeds)
        assert answer.failure is not None
        assert named(answer) == {
            ("public.t", "[2]", "missing", '{"a": 2, "b": "row 2", "n": 3}', None),
            ("public.t", "[99]", "extra", None, '{"a": 99, "b": "invented", "n": 1}'),
            ("public.t", "[3]", "changed", '{"b": "row 3"}', '{"b": null}'),
        }

    @pytest.mark.parametrize(
        "options",
        [
            " WITH updated, delivery = 'exactly_once'",
            *map(
                slow,
                [
                    " WITH envelope = 'row'",
                    " WITH envelope = 'bare', updated",
                    " WITH envelope = 'enriched'",
                    " WITH envelope = 'debezium'",
                    " WITH format = 'avro', updated, confluent_schema_registry = '{registry}'",
                ],
            ),
        ],
    )
    def test_rows_are_repaired_one_by_one(
        self,
        feeds: Feeds,
        postgres: Database,
        kafka: KafkaBroker,
        fake_registry: FakeRegistry,
        options: str,
    ) -> None:
        prefix = self.create(feeds, kafka, options.format(registry=fake_registry.url))
        postgres.execute("insert into t values (50, 'for a while', 1)")
        feeds.sync("f")
        postgres.execute("delete from t where a = 50")
        feeds.sync("f")
        held = {m.key: m for m in kafka.messages(f"{prefix}t") if m.key and m.value}
        two, three, gone = (self.of_row(list(held.values()), number) for number in (2, 3, 50))
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        producer.produce(f"{prefix}t", None, two.key, two.partition)
        producer.produce(f"{prefix}t", two.value, three.key, three.partition)
        producer.produce(f"{prefix}t", two.value, gone.key, gone.partition)
        producer.flush()
        before = len(self.of_rows(kafka, prefix))
        answer = verified(feeds, "REPAIR")
        assert {row[2] for row in answer.rows} == {"missing", "changed", "extra"}
        assert "public.t: 3 rows were repaired by key: equal now" in answer.notices
        assert answer.failure is None
        made = self.of_rows(kafka, prefix)[before:]
        ends = 1 if "debezium" in options else 0  # a tombstone follows a delete
        assert len(self.of_rows(kafka, prefix)) == before + 3 + ends, made
        # The feed goes on.
        postgres.execute(CHANGES)
        assert verified(feeds).failure is None

    def of_rows(self, kafka: KafkaBroker, prefix: str) -> list[Any]:
        return [m for m in kafka.messages(f"{prefix}t") if m.key]

    def of_row(self, held: list[Any], number: int) -> Any:
        """The message of a row, whose key is of JSON or of Avro."""
        text = re.compile(rf"\b{number}\b")
        avro = held[0].key[0] == 0  # which writes a small number as twice the number
        return next(
            m for m in held if (m.key[-1] == 2 * number if avro else text.search(m.key.decode()))
        )

    @pytest.mark.parametrize("options", [" WITH envelope = 'key_only'"])
    def test_messages_that_do_not_tell_the_rows_are_refused(
        self, feeds: Feeds, kafka: KafkaBroker, options: str
    ) -> None:
        self.create(feeds, kafka, options)
        with pytest.raises(ChangefeedError, match="cannot be verified") as refused:
            verified(feeds, "TABLE t")
        assert refused.value.code is Code.NOT_SUPPORTED

    def test_a_topic_that_lost_messages_is_refused(self, feeds: Feeds, kafka: KafkaBroker) -> None:
        from confluent_kafka import TopicPartition

        prefix = self.create(feeds, kafka)
        from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__ there
            AlterConfigOpType,
            ConfigEntry,
            ConfigResource,
        )

        entry = ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(
            ConfigResource.Type.TOPIC, f"{prefix}t", incremental_configs=[entry]
        )
        admin = kafka.admin()
        for done in admin.incremental_alter_configs([resource]).values():
            done.result(30)
        asked = [TopicPartition(f"{prefix}t", p, 1) for p in range(3)]
        for done in admin.delete_records(asked).values():
            done.result(30)
        with pytest.raises(ChangefeedError, match="its oldest messages are gone"):
            verified(feeds, "TABLE t")


class TestFiles:
    def create(self, feeds: Feeds, folder: Path, query: str = "", options: str = "") -> None:
        feeds.execute(
            f"CREATE CHANGEFEED f FOR t, wide INTO 'file://{folder}{query}' "
            f"WITH resolved = '100ms'{options}"
        )
        feeds.sync("f")

    def files(self, folder: Path) -> list[Path]:
        return sorted(path for path in folder.rglob("*-t-*.ndjson") if ".tmp" not in path.parts)

    @pytest.mark.parametrize(
        ("query", "options"),
        [
            ("?partition_format=minute&file_size=2kb", ", updated, compression = 'gzip'"),
            pytest.param(
                "", ", envelope = 'enriched', compression = 'zstd'", marks=pytest.mark.extended
            ),
            pytest.param("", ", envelope = 'bare'", marks=pytest.mark.extended),
        ],
    )
    def test_the_last_lines_are_the_table(
        self, feeds: Feeds, postgres: Database, tmp_path: Path, query: str, options: str
    ) -> None:
        folder = tmp_path / "out"
        self.create(feeds, folder, query, options)
        for number in range(5):
            postgres.execute(
                f"insert into t values ({100 + number}, 'é', null); delete from t where a = 3;"
            )
            postgres.execute(f"insert into t values (3, 'again {number}', 1.10)")
            feeds.sync("f")
        assert named(verified(feeds)) == set()
        postgres.execute("truncate t; insert into t values (7, 'after', 2)")
        assert named(verified(feeds)) == set()

    def test_a_restarted_node_repeats_and_the_order_stands(
        self, feeds: Feeds, postgres: Database, tmp_path: Path
    ) -> None:
        self.create(feeds, tmp_path / "out")
        for number in range(3):
            postgres.execute(f"update t set b = 'life {number}'")
            feeds.sync("f")
            feeds.close()
            feeds.open()
        assert named(verified(feeds)) == set()

    def test_each_kind_of_difference_is_named_and_repaired(
        self, feeds: Feeds, postgres: Database, tmp_path: Path
    ) -> None:
        folder = tmp_path / "out"
        self.create(feeds, folder)
        [file] = self.files(folder)
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        lines = [line for line in lines if line["key"] != [2]]
        for line in lines:
            if line["key"] == [4]:
                line["after"]["b"] = "another"
        lines.append({"after": {"a": 99, "b": "nobody's", "n": 1.0}, "key": [99]})
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        answer = verified(feeds, "TABLE t")
        assert {tuple(row)[1:] for row in answer.rows} == {
            ("[2]", "missing", '{"a": 2, "b": "row 2", "n": 3}', None),
            ("[4]", "changed", '{"b": "row 4"}', '{"b": "another"}'),
            ("[99]", "extra", None, '{"a": 99, "b": "nobody\'s", "n": 1}'),
        }
        assert answer.failure is not None
        before = self.size(folder)
        answer = verified(feeds, "TABLE t REPAIR")
        assert answer.failure is None
        assert "public.t: 3 rows were repaired by key: equal now" in answer.notices
        assert self.size(folder) == before + 3, "the other rows are not written again"

    def test_files_prove_themselves(self, feeds: Feeds, tmp_path: Path) -> None:
        """A target without ranges of keys is compared as a whole."""
        self.create(feeds, tmp_path / "out", options=", verify = '1s', verify_repair")
        [file] = self.files(tmp_path / "out")
        before = self.size(tmp_path / "out")
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join(line for line in lines if '"key": [2]' not in line))

        def said() -> list[str]:
            events = feeds.catalog.events(feeds.catalog.job("f").id, kinds=["verify"])
            return [event.text for event in reversed(events)]

        until(lambda: len(said()) > 1)
        assert said() == [
            "1 row differs: missing [2]",
            "public.t: 1 row was repaired by key: equal now",
        ]
        assert self.size(tmp_path / "out") == before

    def size(self, folder: Path) -> int:
        """Messages of rows in the files of ``t``."""
        return sum(
            "key" in line for file in self.files(folder) for line in file.read_text().splitlines()
        )

    def test_what_cannot_be_compared_is_said(self, feeds: Feeds, tmp_path: Path) -> None:
        folder = tmp_path / "out"
        self.create(feeds, folder)
        [file] = self.files(folder)
        file.write_text('{"a": 1}\n{"key": [1], "a": 1}\n')
        with pytest.raises(ChangefeedError, match=r"line 2 is no message of the feed") as caught:
            verified(feeds, "TABLE t")
        assert caught.value.code is Code.NOT_SUPPORTED
        file.rename(file.with_suffix(".avro"))
        with pytest.raises(ChangefeedError, match="another format when it was written") as caught:
            verified(feeds, "TABLE t")
        assert caught.value.code is Code.NOT_SUPPORTED

    @pytest.mark.parametrize(
        "options",
        [
            ", format = 'avro', compression = 'snappy'",
            ", format = 'parquet', updated",
            slow(", format = 'avro', compression = 'zstd', envelope = 'bare'"),
            slow(", format = 'avro', compression = 'gzip', envelope = 'enriched'"),
            slow(", format = 'parquet', envelope = 'bare', compression = 'zstd'"),
        ],
    )
    def test_typed_files_are_read_back(
        self, feeds: Feeds, postgres: Database, tmp_path: Path, options: str
    ) -> None:
        folder = tmp_path / "out"
        self.create(feeds, folder, options=options)
        postgres.execute(CHANGES)
        feeds.sync("f")
        assert named(verified(feeds)) == set()
        postgres.execute("truncate t; insert into t values (7, 'after', 2), (8, null, null)")
        assert named(verified(feeds)) == set()
        # Without the last file the topic's last word is the TRUNCATE.
        files = sorted(path for path in folder.rglob("*-t-*") if ".tmp" not in path.parts)
        assert [path.suffix for path in files].count(".TRUNCATE") == 1
        last = files[-1]
        kept = last.read_bytes()
        last.unlink()
        answer = verified(feeds, "TABLE t")
        assert {tuple(row)[1:] for row in answer.rows} == {
            ("[7]", "missing", '{"a": 7, "b": "after", "n": 2}', None),
            ("[8]", "missing", '{"a": 8, "b": null, "n": null}', None),
        }
        last.write_bytes(kept[: len(kept) // 2])
        with pytest.raises(ChangefeedError, match="cannot be verified") as caught:
            verified(feeds, "TABLE t")
        assert caught.value.code is Code.NOT_SUPPORTED

    def test_rows_that_share_a_message_key_are_refused(
        self, feeds: Feeds, postgres: Database, tmp_path: Path
    ) -> None:
        postgres.execute("update t set b = 'shared'")
        feeds.execute(
            f"CREATE CHANGEFEED f FOR t INTO 'file://{tmp_path}/out' "
            "WITH key_column = 'b', unordered"
        )
        feeds.sync("f")
        with pytest.raises(ChangefeedError, match="key_column = 'b' several rows") as caught:
            verified(feeds, "TABLE t")
        assert caught.value.code is Code.NOT_SUPPORTED

    def test_lines_of_csv_are_refused(self, feeds: Feeds, tmp_path: Path) -> None:
        folder = tmp_path / "csv"
        options = " WITH format = 'csv', initial_scan = 'only'"
        feeds.execute(f"CREATE CHANGEFEED f FOR t INTO 'file://{folder}'{options}")
        with pytest.raises(ChangefeedError, match="delivers an initial scan") as caught:
            verified(feeds)
        assert caught.value.code is Code.NOT_SUPPORTED

"""EXPLAIN's example is what is delivered, byte for byte, for a row with those values.

Only times, and the source's numbers of transactions and places in its log, are others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from changefeed.encoding.avro import reading as avro
from changefeed.encoding.binary_format import header
from changefeed.encoding.protobuf import reading as protobuf
from changefeed.encoding.protobuf.schema import message_header
from tests.e2e.feeds import Feeds, running
from tests.helpers.waiting import until
from tests.services.kafka import KafkaBroker
from tests.services.postgres import Database
from tests.services.registry import FakeRegistry

pytestmark = [pytest.mark.e2e, pytest.mark.kafka, pytest.mark.postgres, pytest.mark.slow]

_TABLE = """
create table shown (
  id bigint primary key, name text, price numeric(12,2), doc jsonb, at timestamptz, yes boolean,
  day date, data bytea, rate double precision, tags text[], one uuid, span interval
);
alter table shown replica identity full;
insert into shown (id) values (1)"""
#: The values that EXPLAIN makes up.
_VALUES = """
update shown set name = 'x', price = 1.50, doc = '{}', at = '2024-03-31T01:02:03.5Z', yes = true,
  day = '2024-03-31', data = '\\x01', rate = 1.5, tags = '{}',
  one = '6a2f4c1e-0d5b-4f0e-9a57-0c1f5f1f0c11', span = '1 day'"""

#: Options by topic, into Kafka.
_TEXT = {
    "wrapped": "diff, updated, mvcc_timestamp, key_in_value, topic_in_value",
    "row": "envelope = 'row', updated",
    "bare": "envelope = 'bare', topic_in_value",
    "key_only": "envelope = 'key_only'",
    "enriched": "envelope = 'enriched', enriched_properties = 'source', diff",
    "changed": "envelope = 'changed', updated",
    "debezium": "envelope = 'debezium'",
    "debezium_schema": "envelope = 'debezium', schemas_enable",
    "transaction": "updated, transaction_metadata",
}
_TYPED = {
    "wrapped": "diff, updated, key_in_value, topic_in_value",
    "row": "envelope = 'row', updated",
    "bare": "envelope = 'bare', updated",
    "key_only": "envelope = 'key_only'",
    "enriched": "envelope = 'enriched', enriched_properties = 'source', diff",
    "debezium": "envelope = 'debezium'",
}

#: Their bytes have other lengths each time, so what they say is compared.
_OWN_NUMBERS = ("enriched", "debezium")
_STAMP = r"\d{19}\.\d{10}"
_OWN = r'"(job_id|txId|sequence|ts_\w\w)": ?("(?:[^"\\]|\\.)*"|\d+)'


@pytest.fixture
def feeds(tmp_path: Path, postgres: Database) -> Iterator[Feeds]:
    postgres.execute(_TABLE)
    with running(tmp_path / "state") as made:
        made.connect(shop=postgres.uri)
        yield made


def shown(feeds: Feeds, statement: str) -> list[str]:
    """The example of a statement, and what is below it."""
    lines = [str(row[1]) for row in feeds.execute(f"EXPLAIN {statement}").rows]
    begin = next(n for n, line in enumerate(lines) if ", for example: " in line)
    return [lines[begin].partition(", for example: ")[2], *lines[begin + 1 :]]


def same(text: str) -> str:
    """Without what each change has for itself."""
    text = re.sub(_OWN, r'"\1":<own>', re.sub(_STAMP, "<stamp>", text))
    return re.sub(r'"\d+:<stamp>"', "<transaction>", text)


def as_json(members: Any) -> str:
    """What a reader gets, as EXPLAIN writes it."""

    def scalar(value: Any) -> str:
        return f"\\x{value.hex()}" if isinstance(value, bytes) else str(value)

    return json.dumps(members, default=scalar)


def present(part: Any) -> Any:
    """Without the members that a message of protobuf does not have."""
    if not isinstance(part, dict):
        return part
    return {name: present(member) for name, member in part.items() if member is not None}


def test_messages(
    feeds: Feeds, postgres: Database, kafka: KafkaBroker, fake_registry: FakeRegistry
) -> None:
    registry = f", confluent_schema_registry = '{fake_registry.url}'"
    options = {f"json_{name}": given for name, given in _TEXT.items()}
    for form in ("avro", "protobuf"):
        for name, given in _TYPED.items():
            if (form, name) != ("protobuf", "debezium"):
                options[f"{form}_{name}"] = f"format = '{form}', {given}{registry}"
    examples = {}
    for topic, given in options.items():
        with_ = f"INTO '{kafka.uri}' WITH initial_scan = 'no', {given}"
        statement = f"CREATE CHANGEFEED {topic} FOR TABLE shown AS {topic} {with_}"
        examples[topic] = shown(feeds, statement)
        feeds.execute(statement)
    postgres.execute(_VALUES)
    postgres.execute(_VALUES)

    def schema(found: int) -> str:
        _, answer = fake_registry.answer("GET", f"/schemas/ids/{found}", None)
        assert isinstance(answer, dict)
        return str(answer["schema"])

    for topic, (example, below, *_) in examples.items():
        feeds.sync(topic)
        form, _, name = topic.partition("_")
        # Of the first update the columns were NULL before, which one envelope shows.
        record = kafka.messages(topic, 2)[0 if name == "changed" else 1]
        key, value = record.key or b"", record.value
        if form == "json":
            real = f"{key.decode()} -> {'no value' if value is None else value.decode()}"
            assert same(example) == same(real), topic
            continue
        size = len(header(0)) if form == "avro" else len(message_header(0))
        real = "no value" if value is None else value[size:].hex()
        stamp = re.compile("(3[0-9]){19}2e(30){10}")
        if not name.startswith(_OWN_NUMBERS):
            wanted = f"in bytes, without a registry's id: {key[size:].hex()} -> {real}"
            assert stamp.sub("<stamp>", below) == stamp.sub("<stamp>", wanted), topic
        read = (avro if form == "avro" else protobuf).reader_by_id(schema)
        texts = [
            "no value"
            if part is None
            else as_json(read(part) if form == "avro" else present(read(part)))
            for part in (key, value)
        ]
        assert same(example) == same(" -> ".join(texts)), topic


def _has(folder: Path, pattern: str) -> bool:
    return any(folder.rglob(pattern))


def test_rows_of_files(feeds: Feeds, postgres: Database, tmp_path: Path) -> None:
    postgres.execute(_VALUES)
    for name, given, ending in (
        ("wrapped", "format = 'parquet', diff, updated", "parquet"),
        ("bare", "format = 'parquet', envelope = 'bare', initial_scan = 'no'", "parquet"),
        ("line", "format = 'csv', initial_scan = 'only'", "csv"),
    ):
        into = f"INTO 'file://{tmp_path}/{name}?flush_interval=0s' WITH {given}"
        statement = f"CREATE CHANGEFEED {name} FOR TABLE shown {into}"
        example = shown(feeds, statement)[0]
        feeds.execute(statement)
        if ending == "parquet":
            feeds.sync(name)
            postgres.execute(_VALUES)
            feeds.sync(name)
        folder = tmp_path / name
        until(partial(_has, folder, f"*.{ending}"))
        last = max(folder.rglob(f"*.{ending}"), key=lambda path: path.name)
        if ending == "csv":
            assert example == last.read_text().strip()
            continue
        rows = pq.ParquetFile(last).read().to_pylist()
        assert same(example) == same(as_json(rows[-1])), name

"""Types and numbers of protobuf messages, their registry, and what versions say to each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from google.protobuf import text_format

from changefeed.core.arrow import MESSAGE_SCHEMA
from changefeed.core.clock import Timestamp
from changefeed.core.errors import Action, ChangefeedError
from changefeed.core.formats import Format
from changefeed.core.schema import BeforeImage, Column, TableSchema
from changefeed.core.shapes import Envelope
from changefeed.encoding.encode import encode_messages
from changefeed.encoding.formats import message_schema
from changefeed.encoding.plan import MessagePlan, SchemaIds
from changefeed.encoding.protobuf.schema import (
    NUMBERS,
    PROTO_KEY,
    control,
    control_proto,
    key_proto,
    message_header,
    value_proto,
)
from changefeed.encoding.registered import FeedSchemas, feed_schemas
from changefeed.options import Options
from changefeed.plan.example import example
from sinks.kafka.options import KafkaSettings
from tests.helpers.avro_model import column
from tests.helpers.message_model import change, log_table, table
from tests.helpers.proto_reader import file_of, message_class
from tests.services.registry import FakeRegistry


def numbered(number: int, name: str, kind: str, nullable: bool = True) -> Column:
    return replace(column(name, kind, nullable), column_id=number)


A, B = numbered(1, "a", "bigint", nullable=False), numbered(3, "b", "text")
T = table([A, B], before_image=BeforeImage.FULL)
PLAN = MessagePlan(T, "t", format=Format.PROTOBUF)
AT = Timestamp(1, 2)


# ------------------------------------------------------------------------------- the texts


def test_key_and_wrapped_value() -> None:
    plan = replace(PLAN, diff=True, updated=True, key_in_value=True, avro_namespace="shop.eu.")
    assert key_proto(plan) == (
        """\
syntax = "proto3";
package shop.eu;

message t_key {
  optional int64 a = 1; // a bigint NOT NULL
}
"""
    )
    assert value_proto(plan) == (
        """\
syntax = "proto3";
package shop.eu;

message t_envelope {
  t_row before = 1;
  t_row after = 2;
  optional string updated = 7;
  t_envelope_key key = 9;
  optional string table = 13;
  optional string resolved = 14;
  optional string truncate = 15;
}

message t_row {
  optional int64 a = 1; // a bigint NOT NULL
  optional string b = 3; // b text
}

message t_envelope_key {
  optional int64 a = 1; // a bigint NOT NULL
}
"""
    )


def test_a_row_and_its_types() -> None:
    kinds = [
        "boolean", "smallint", "real", "double precision", "numeric(20,4)", "bytea", "uuid",
        "jsonb", "date", "time without time zone", "timestamp with time zone", "integer[]",
        "date[]", "jsonb[]",
    ]  # fmt: skip
    columns = [numbered(n, f"c{n}", kind) for n, kind in enumerate(kinds, 1)]
    plan = MessagePlan(
        table(columns), "my-topic", Envelope.ROW, Format.PROTOBUF, mvcc_timestamp=True
    )
    assert value_proto(plan) == (
        """\
syntax = "proto3";

import "google/protobuf/timestamp.proto";

message my_u002d_topic_row {
  optional bool c1 = 1; // c1 boolean
  optional int32 c2 = 2; // c2 smallint
  optional float c3 = 3; // c3 real
  optional double c4 = 4; // c4 double precision
  optional string c5 = 5; // c5 numeric(20,4)
  optional bytes c6 = 6; // c6 bytea
  optional string c7 = 7; // c7 uuid
  optional string c8 = 8; // c8 jsonb
  optional string c9 = 9; // c9 date
  optional string c10 = 10; // c10 time without time zone
  google.protobuf.Timestamp c11 = 11; // c11 timestamp with time zone
  my_u002d_topic_int32_array c12 = 12; // c12 integer[]
  my_u002d_topic_string_array c13 = 13; // c13 date[]
  optional string c14 = 14; // c14 jsonb[]
  my_u002d_topic_crdb __crdb__ = 18999;
}

message my_u002d_topic_crdb {
  optional string mvcc_timestamp = 8;
  optional string table = 13;
  optional string resolved = 14;
  optional string truncate = 15;
}

message my_u002d_topic_int32_array {
  message element {
    optional int32 value = 1;
  }
  repeated element items = 1;
}

message my_u002d_topic_string_array {
  message element {
    optional string value = 1;
  }
  repeated element items = 1;
}
"""
    )


def test_other_envelopes() -> None:
    bare = value_proto(replace(PLAN, envelope=Envelope.BARE))
    assert bare is not None
    assert "  t_row record = 3;\n  optional string table = 13;\n" in bare
    assert value_proto(replace(PLAN, envelope=Envelope.KEY_ONLY)) is None
    source = (("changefeed_sink", "kafka"), ("job_id", "7"), ("source_name", "shop"))
    enriched = value_proto(
        replace(PLAN, envelope=Envelope.ENRICHED, source=source, updated=True, mvcc_timestamp=True)
    )
    assert enriched is not None
    first, _, third = file_of(enriched).message_type
    assert [f.name for f in first.field] == [
        "after", "op", "source", "ts_ns", "table", "resolved", "truncate",
    ]  # fmt: skip
    assert {f.name: f.number for f in third.field} == {
        name: NUMBERS[name] for name in (field.name for field in third.field)
    }
    assert third.name == "t_source"
    assert len(third.field) == 8


def test_numbers_of_members_are_never_two_in_one() -> None:
    """They are in messages of every envelope: a number that changes is another field."""
    assert len(set(NUMBERS.values())) == len(NUMBERS)
    assert not any(19_000 <= number <= 19_999 for number in NUMBERS.values())


def test_arrays_of_keys_are_types_of_their_own() -> None:
    """Key and value are files that one program may compile both of."""
    plan = MessagePlan(table([numbered(1, "k", "text[]")]), "t", format=Format.PROTOBUF)
    key = {message.name for message in file_of(key_proto(plan)).message_type}
    value = {message.name for message in file_of(value_proto(plan) or "").message_type}
    assert key == {"t_key", "t_key_string_array"}
    assert value == {"t_envelope", "t_row", "t_string_array"}


@pytest.mark.parametrize("topic", ["message", "string", "option", "1st", "a b"])
def test_topics_that_are_words_of_the_language(topic: str) -> None:
    text = value_proto(replace(PLAN, topic=topic))
    assert text is not None
    assert message_class(text).DESCRIPTOR.name.endswith("_envelope")


def test_names_of_columns() -> None:
    """Escaped as in Avro. Of two that a compiler takes for one in JSON the later gets its number
    added."""
    names = ["user_name", "userName", "username", "_id", "my col", "1st", "two\nlines", "optional"]
    columns = [numbered(n, name, "integer") for n, name in enumerate(names, 1)]
    columns += [numbered(9, "a.b", "integer"), numbered(10, "a_u002e_b", "integer")]
    columns += [numbered(11, "xn13", "integer"), numbered(12, "x", "integer")]
    columns += [numbered(13, "X", "integer"), numbered(14, "__crdb__", "integer")]
    text = value_proto(MessagePlan(table(columns), "t", Envelope.ROW, Format.PROTOBUF))
    assert text is not None
    assert [line for line in text.splitlines() if " int32 " in line] == [
        "  optional int32 user_name = 1; // user_name integer",
        "  optional int32 userName_n2 = 2; // userName integer",
        "  optional int32 username_n3 = 3; // username integer",
        "  optional int32 _id = 4; // _id integer",
        "  optional int32 my_u0020_col = 5; // my col integer",
        "  optional int32 _u0031_st = 6; // 1st integer",
        "  optional int32 two_u000a_lines = 7; // two lines integer",
        "  optional int32 optional = 8; // optional integer",
        "  optional int32 a_u002e_b = 9; // a.b integer",
        "  optional int32 a_u002e_b_n10 = 10; // a_u002e_b integer",
        "  optional int32 xn13 = 11; // xn13 integer",
        "  optional int32 x = 12; // x integer",
        "  optional int32 X_n13_n13 = 13; // X integer",
        "  optional int32 __crdb___n14 = 14; // __crdb__ integer",
    ]
    assert "  t_crdb __crdb__ = 18999;" in text.splitlines()


def test_a_package_called_google() -> None:
    """Names are looked up from the inside: ``google.protobuf`` would be looked for in there."""
    schema = table([A, numbered(2, "at", "timestamp with time zone")])
    plan = MessagePlan(schema, "t", format=Format.PROTOBUF, avro_namespace="my.google.")
    text = value_proto(plan) or ""
    assert "  .google.protobuf.Timestamp at = 2;" in text
    assert 'import "google/protobuf/timestamp.proto";' in text


def test_a_number_beyond_those_of_columns_is_refused() -> None:
    schema = table([A, numbered(18_999, "high", "text")])
    plan = MessagePlan(schema, "t", format=Format.PROTOBUF)
    with pytest.raises(ChangefeedError, match="column high of t has the number 18999") as caught:
        value_proto(plan)
    assert caught.value.code.number == "CF1302"
    with pytest.raises(ChangefeedError, match="column high of t has the number 18999"):
        encode_messages(log_table(schema, []), plan)


def test_a_source_without_numbers_has_positions() -> None:
    schema = table([column("x", "text"), column("y", "text")])
    text = value_proto(MessagePlan(schema, "t", Envelope.ROW, Format.PROTOBUF)) or ""
    assert [line.split(";")[0] for line in text.splitlines() if "// " in line] == [
        "  optional string x = 1",
        "  optional string y = 2",
    ]


def test_explain_shows_the_members_in_their_order() -> None:
    plan = replace(PLAN, updated=True)
    stamp = '"1536242855577149065.0000000000"'
    value = f'{{"after": {{"a": 1, "b": "x"}}, "updated": {stamp}}}'
    assert example(plan).read == ('{"a": 1}', value)


def test_messages_without_a_registry_say_their_type() -> None:
    bare = message_schema(PLAN).field("value")
    assert bare.metadata[PROTO_KEY].decode() == value_proto(PLAN)
    assert message_schema(replace(PLAN, registered=SchemaIds(1, 2))) is MESSAGE_SCHEMA


# ------------------------------------------------------------------------------- messages

ROW = 'a: 1 b: "y"'
SHAPES: list[tuple[MessagePlan, str, str | None]] = [
    (PLAN, f"after {{ {ROW} }}", ""),
    (
        replace(PLAN, diff=True, key_in_value=True, topic_in_value=True),
        f'before {{ a: 1 b: "x" }} after {{ {ROW} }} key {{ a: 1 }} topic: "t"',
        'before { a: 1 b: "x" } key { a: 1 } topic: "t"',
    ),
    (replace(PLAN, envelope=Envelope.ROW), ROW, None),
    (replace(PLAN, envelope=Envelope.BARE), f"record {{ {ROW} }}", "record { a: 1 }"),
    (
        replace(PLAN, envelope=Envelope.ENRICHED),
        f'after {{ {ROW} }} op: "u" ts_ns: 5',
        'op: "d" ts_ns: 5',
    ),
]


@pytest.mark.parametrize(("plan", "update", "delete"), SHAPES)
def test_an_update_and_a_delete(plan: MessagePlan, update: str, delete: str | None) -> None:
    """As Google's runtime prints them."""
    image = {"0": 1, "1": "x"}
    rows = log_table(T, [change("u", [1, "y"], image), change("d", None, image)])
    made = encode_messages(rows, plan, now_ns=5).to_pylist()
    kind = message_class(value_proto(plan) or "")
    found = [
        None if m["value"] is None else text_format.MessageToString(kind.FromString(m["value"]))
        for m in made
    ]
    assert [text and " ".join(text.split()) for text in found] == [update, delete]
    keys = message_class(key_proto(plan))
    assert [keys.FromString(m["key"]).a for m in made] == [1, 1]


# ------------------------------------------------------------------------------- versions


def values(schema: TableSchema, *rows: list[Any]) -> list[bytes]:
    plan = MessagePlan(schema, "t", Envelope.ROW, Format.PROTOBUF)
    made = encode_messages(log_table(schema, [change("c", row) for row in rows]), plan)
    return [message["value"] for message in made.to_pylist()]


def reader(schema: TableSchema) -> Any:
    text = value_proto(MessagePlan(schema, "t", Envelope.ROW, Format.PROTOBUF))
    assert text is not None
    return message_class(text)


def test_every_version_of_a_table_reads_every_other() -> None:
    """A column added, one dropped, one renamed, one dropped and made again."""
    renamed, again = numbered(4, "d", "integer"), numbered(6, "b", "text")
    old = table([A, B, numbered(4, "c", "integer"), numbered(5, "e", "text")])
    new = table([A, renamed, again, numbered(7, "f", "date")])
    (written,) = values(old, [1, "x", 7, "gone"])
    read = reader(new).FromString(written)
    assert (read.a, read.d) == (1, 7)
    assert not read.HasField("b")
    assert not read.HasField("f")
    (written,) = values(new, [2, 8, "again", "2024-03-31"])
    read = reader(old).FromString(written)
    assert (read.a, read.c) == (2, 8)
    assert not read.HasField("b")


# ------------------------------------------------------------------------------- marks


@pytest.mark.parametrize("member", ["resolved", "truncate"])
@pytest.mark.parametrize("envelope", sorted({*Envelope} - {Envelope.CHANGED, Envelope.DEBEZIUM}))
def test_marks_are_read_with_their_type_and_that_of_values(envelope: Envelope, member: str) -> None:
    table = PLAN.schema.table if member == "truncate" else None
    data = control(envelope, member, AT, table)
    own = control_proto(envelope, "t", "")
    texts = [own, value_proto(replace(PLAN, envelope=envelope)) or own]
    for text in texts:
        read = message_class(text).FromString(data)
        inner = read.__crdb__ if envelope is Envelope.ROW else read
        assert getattr(inner, member) == "1.0000000002"
        assert len(inner.ListFields()) == (2 if table else 1)
        assert inner.table == ("shop.public.t" if table else "")
        assert read.DESCRIPTOR.name == message_class(texts[0]).DESCRIPTOR.name


# ------------------------------------------------------------------------------- the registry


def schemas(registry: FakeRegistry, **options: str) -> FeedSchemas:
    given = {"format": "protobuf", "confluent_schema_registry": registry.url, **options}
    found = feed_schemas(Options.from_dict(given), "kafka://localhost")
    assert found is not None
    return found


def test_the_header_is_confluents() -> None:
    assert message_header(258) == b"\0\0\0\x01\x02\0"


def test_types_are_registered_once(fake_registry: FakeRegistry) -> None:
    feed = schemas(fake_registry, avro_schema_prefix="shop.")
    plan = feed.registered(PLAN)
    assert feed.registered(PLAN) is plan
    assert fake_registry.subjects == {
        "shop.t-key": [key_proto(replace(PLAN, avro_namespace="shop."))],
        "shop.t-value": [value_proto(replace(PLAN, avro_namespace="shop."))],
    }
    assert plan.registered is not None
    made = encode_messages(log_table(T, [change("c", [1, "x"])]), plan).to_pylist()
    assert made[0]["key"].startswith(message_header(plan.registered.key))
    assert made[0]["value"].startswith(message_header(plan.registered.value))


def test_marks_have_a_subject_of_their_own(fake_registry: FakeRegistry) -> None:
    """Beside the rows' types, theirs would be a version that lost its messages."""
    feed = schemas(fake_registry)
    feed.registered(PLAN)
    resolved = feed.controls(["t", "t"], "resolved", AT)["t"]
    truncate = feed.controls(["t"], "truncate", AT, PLAN.schema.table)["t"]
    assert fake_registry.subjects["t-mark"] == [control_proto(Envelope.WRAPPED, "t", "")]
    assert len(fake_registry.subjects["t-value"]) == 1
    head = message_header(fake_registry.ids[control_proto(Envelope.WRAPPED, "t", "")])
    assert resolved == head + control(Envelope.WRAPPED, "resolved", AT)
    assert truncate == head + control(Envelope.WRAPPED, "truncate", AT, PLAN.schema.table)
    assert len(fake_registry.requests) == 3


def test_an_incompatible_type_is_an_error_of_its_table(fake_registry: FakeRegistry) -> None:
    feed = schemas(fake_registry)
    feed.registered(PLAN)
    changed = table([A, numbered(3, "b", "bigint")], before_image=BeforeImage.FULL)
    with pytest.raises(ChangefeedError) as caught:
        feed.registered(replace(PLAN, schema=changed))
    assert (caught.value.code.number, caught.value.action) == ("CF5003", Action.STOP)
    assert "shop.public.t is not compatible with an earlier version" in caught.value.message
    grown = table(
        [A, numbered(3, "c", "text"), numbered(4, "d", "date")], before_image=BeforeImage.FULL
    )
    assert feed.registered(replace(PLAN, schema=grown)).registered is not None


# ------------------------------------------------------------------------------- Kafka's URI


def test_kafka_takes_protobuf_with_and_without_a_registry() -> None:
    KafkaSettings.read("kafka://localhost", {"format": "protobuf"})
    KafkaSettings.read(
        "kafka://localhost?confluent_schema_registry=http://h:1/x", {"format": "protobuf"}
    )
    with pytest.raises(ChangefeedError, match="http or https"):
        KafkaSettings.read(
            "kafka://localhost?confluent_schema_registry=ftp://h", {"format": "protobuf"}
        )
    assert feed_schemas(Options.from_dict({"format": "protobuf"}), "kafka://localhost") is None

"""Types, names and schemas of typed formats, and the registry they are registered in."""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
import ssl
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from changefeed.core.arrow import MESSAGE_SCHEMA
from changefeed.core.clock import Timestamp
from changefeed.core.errors import Action, ChangefeedError
from changefeed.core.formats import Format
from changefeed.core.schema import BeforeImage
from changefeed.core.shapes import Envelope
from changefeed.core.types import Kind, LogicalType
from changefeed.encoding.arrow_schema import (
    AVRO_CODECS,
    SYNC_SIZE,
    avro_block,
    avro_header,
)
from changefeed.encoding.avro.schema import (
    control,
    control_schema,
    key_schema,
    schema_text,
    value_schema,
)
from changefeed.encoding.binary_format import identifier
from changefeed.encoding.formats import message_schema
from changefeed.encoding.parquet import parquet_fields
from changefeed.encoding.plan import MessagePlan, SchemaIds
from changefeed.encoding.registered import FeedSchemas, feed_schemas
from changefeed.encoding.registry import SchemaRegistry, parse_registry
from changefeed.encoding.typed_values import (
    INFINITE_DAYS,
    INFINITE_MICROS,
    MINUS_INFINITE_DAYS,
    MINUS_INFINITE_MICROS,
    typed_values,
)
from changefeed.options import Options
from changefeed.plan.example import example
from sinks.kafka.options import KafkaSettings
from tests.helpers.avro_model import column
from tests.helpers.message_model import table
from tests.services.registry import FakeRegistry, cannot_read

T = table(
    [column("a", "bigint", nullable=False), column("b", "text")], before_image=BeforeImage.FULL
)
PLAN = MessagePlan(T, "t", format=Format.AVRO)
AT = Timestamp(1, 2)


# ------------------------------------------------------------------------------- types


@pytest.mark.parametrize(
    ("logical", "typed"),
    [
        ("decimal(12,2)", "decimal(12,2)"),
        ("decimal(38,0)", "decimal(38,0)"),
        ("decimal(39,0)", "decimal"),
        ("decimal(3,-2)", "decimal(5,0)"),
        ("decimal(37,-2)", "decimal"),
        ("decimal(2,5)", "decimal(5,5)"),
        ("decimal", "decimal"),
        ("array<decimal(4,1)>", "array<decimal(4,1)>"),
        ("array<decimal(2,5)>", "array<decimal(5,5)>"),
        ("array<uuid>", "array<text>"),
        ("array<json>", "text"),
        ("array<array<int32>>", "text"),
        ("other", "text"),
        ("int16", "int16"),
    ],
)
def test_types(logical: str, typed: str) -> None:
    found = LogicalType.parse(logical)
    assert str(found.typed) == typed
    assert found.is_text == found.typed.is_text == (typed in ("decimal", "text"))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("plain_1", "plain_1"),
        ("public.t", "public_u002e_t"),
        ("my-table", "my_u002d_table"),
        ("1st", "_u0031_st"),
        ("ü", "_u00fc_"),
        ("", "_"),
    ],
)
def test_names_are_escaped_as_cockroachdb_does(text: str, name: str) -> None:
    assert identifier(text) == name


# ------------------------------------------------------------------------------- schemas


def field(name: str, kind: Any, note: str = "") -> dict[str, Any]:
    made = {"name": name, "type": ["null", kind], "default": None}
    return made | ({"__crdb__": note} if note else {})


ROW = [field("a", "long", "a bigint NOT NULL"), field("b", "string", "b text")]


def record(name: str, fields: list[Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": fields}


def test_key_and_wrapped_value() -> None:
    plan = replace(PLAN, diff=True, updated=True, avro_namespace="super")
    assert key_schema(plan) == record("t", ROW[:1]) | {"namespace": "super"}
    assert value_schema(plan) == record(
        "t_envelope",
        [
            field("before", record("t_before", ROW)),
            field("after", record("t", ROW)),
            field("updated", "string"),
        ],
    ) | {"namespace": "super"}


def test_other_envelopes() -> None:
    bare = replace(PLAN, envelope=Envelope.BARE, mvcc_timestamp=True)
    stamp = field("mvcc_timestamp", "string")
    assert value_schema(bare) == record("t_envelope", [field("record", record("t", ROW)), stamp])
    row = replace(PLAN, envelope=Envelope.ROW, updated=True)
    meta = field("__crdb__", record("t_crdb", [field("updated", "string")]))
    assert value_schema(row) == record("t", [meta, *ROW])
    assert value_schema(replace(PLAN, envelope=Envelope.KEY_ONLY)) is None
    enriched = value_schema(replace(PLAN, envelope=Envelope.ENRICHED, source=(("job_id", "7"),)))
    assert enriched is not None
    assert [f["name"] for f in enriched["fields"]] == ["after", "op", "source", "ts_ns"]


def test_columns_that_are_one_in_avro_are_refused() -> None:
    schema = table([column("a.b", "text"), column("a_u002e_b", "text")])
    with pytest.raises(ChangefeedError, match=r"columns a\.b and a_u002e_b of t have the same"):
        key_schema(MessagePlan(table(schema.columns, (0, 1)), "t", format=Format.AVRO))


@pytest.mark.parametrize("envelope", [Envelope.WRAPPED, Envelope.BARE, Envelope.ROW])
def test_marks_and_values_can_be_read_as_one_another(envelope: Envelope) -> None:
    values = value_schema(replace(PLAN, envelope=envelope))
    marks = control_schema(envelope, "t", "", "resolved")
    assert cannot_read(values, marks) == ""
    assert cannot_read(marks, values) == ""
    datum = control(marks, envelope, "resolved", AT)
    read: Any = fastavro.schemaless_reader(io.BytesIO(datum), marks, None)
    inner = read["__crdb__"] if envelope is Envelope.ROW else read
    assert inner == {"resolved": "1.0000000002"}
    truncated = control_schema(envelope, "t", "", "truncate")
    assert cannot_read(values, truncated) == cannot_read(truncated, marks) == ""
    datum = control(truncated, envelope, "truncate", AT, PLAN.schema.table)
    read = fastavro.schemaless_reader(io.BytesIO(datum), truncated, None)
    inner = read["__crdb__"] if envelope is Envelope.ROW else read
    assert inner == {"table": "shop.public.t", "truncate": "1.0000000002"}


def test_explain_shows_the_members_in_their_order() -> None:
    plan = replace(PLAN, updated=True, diff=True)
    row = '{"a": 1, "b": "x"}'
    stamp = "1536242855577149065.0000000000"
    value = f'{{"before": {row}, "after": {row}, "updated": "{stamp}"}}'
    # A branch of a union, and a string's length, twice the number each.
    datum = "02" + "020202" + "0278" + "02" + "020202" + "0278" + "023c" + stamp.encode().hex()
    assert list(example(plan).lines()) == [
        f'{{"a": 1}} -> {value}',
        f"in bytes, without a registry's id: 0202 -> {datum}",
    ]
    flat = '{"a": 1, "b": "x", "__crdb__event_type": "u"}'
    assert list(example(replace(PLAN, format=Format.PARQUET)).lines()) == [flat]
    assert list(example(replace(PLAN, envelope=Envelope.KEY_ONLY)).lines()) == [
        '{"a": 1} -> no value',
        "in bytes, without a registry's id: 0202 -> no value",
    ]


# ------------------------------------------------------------------------------- columns


def test_only_typed_values_have_columns_of_their_own() -> None:
    assert message_schema(replace(PLAN, format=Format.JSON)) is MESSAGE_SCHEMA
    assert message_schema(replace(PLAN, registered=SchemaIds(1, 2))) is MESSAGE_SCHEMA
    bare = message_schema(PLAN).field("value")
    assert json.loads(bare.metadata[b"avro.schema"]) == value_schema(PLAN)
    parquet = replace(PLAN, format=Format.PARQUET, updated=True, diff=True)
    assert [(f.name, f.type) for f in parquet_fields(parquet)] == [
        ("a", pa.int64()),
        ("b", pa.string()),
        ("__crdb__event_type", pa.string()),
        ("__crdb__updated", pa.string()),
        ("__crdb__diff", pa.string()),
    ]


def test_a_column_named_like_one_of_ours_is_refused() -> None:
    schema = table([column("a", "bigint"), column("__crdb__event_type", "text")])
    with pytest.raises(ChangefeedError, match="__crdb__event_type of t has the name"):
        parquet_fields(MessagePlan(schema, "t", format=Format.PARQUET))


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_a_container_is_read_by_fastavro(compression: str) -> None:
    schema = value_schema(replace(PLAN, envelope=Envelope.ROW))
    assert schema is not None
    rows = [{"a": n, "b": "x" * n} for n in range(100)]
    datums = []
    for row in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, row)
        datums.append(out.getvalue())
    arrow = message_schema(replace(PLAN, envelope=Envelope.ROW))
    sync = bytes(SYNC_SIZE)
    values = pa.array(datums, pa.binary())
    file = avro_header(arrow, sync, compression)
    file += avro_block(values.slice(0, 60), sync, compression)
    file += avro_block(values.slice(60), sync, compression)
    assert list(fastavro.reader(io.BytesIO(file))) == rows


@pytest.mark.parametrize("compression", ["snappy", "zstd"])
def test_blocks_of_codecs_that_fastavro_lacks_here(compression: str) -> None:
    """Avro specification: snappy blocks end with the CRC-32 of the data, big-endian."""
    assert set(AVRO_CODECS) == {"none", "gzip", "snappy", "zstd"}
    sync = bytes(range(SYNC_SIZE))
    block = avro_block(pa.array([b"one ", b"two"], pa.binary()), sync, compression)
    assert block[0] == 4  # two datums
    size = block[1] // 2
    packed = block[2 : 2 + size]
    assert block[2 + size :] == sync
    if compression == "snappy":
        packed, crc = packed[:-4], packed[-4:]
        assert crc == zlib.crc32(b"one two").to_bytes(4, "big")
    assert pa.decompress(packed, 7, codec=compression, asbytes=True) == b"one two"


# ------------------------------------------------------------------------------- the registry


def schemas(registry: FakeRegistry, **options: str) -> FeedSchemas:
    given = {"format": "avro", "confluent_schema_registry": registry.url, **options}
    found = feed_schemas(Options.from_dict(given), "kafka://localhost")
    assert found is not None
    return found


def test_schemas_are_registered_once(fake_registry: FakeRegistry) -> None:
    feed = schemas(fake_registry, avro_schema_prefix="super")
    plan = feed.registered(PLAN)
    assert feed.registered(PLAN) is plan
    assert fake_registry.requests == [
        "POST /subjects/supert-key/versions",
        "POST /subjects/supert-value/versions",
    ]
    assert plan.registered is not None
    (value,) = fake_registry.schemas("supert-value")
    assert value["namespace"] == "super"
    assert fake_registry.ids[json.dumps(value, sort_keys=True)] == plan.registered.value

    payload = feed.controls(["t", "t"], "resolved", AT)["t"]
    assert feed.controls(["t"], "resolved", AT) == {"t": payload}
    assert len(fake_registry.requests) == 3
    assert len(fake_registry.schemas("supert-value")) == 2


def test_tables_of_one_topic_have_subjects_of_their_own(fake_registry: FakeRegistry) -> None:
    options = Options.from_dict({"format": "avro"})
    uri = f"kafka://localhost?topic_name=all&confluent_schema_registry={fake_registry.url}"
    feed = feed_schemas(options, uri)
    assert feed is not None
    feed.registered(replace(PLAN, topic="all"))
    assert sorted(fake_registry.subjects) == ["t-key", "t-value"]


def test_what_is_no_feed_with_a_registry() -> None:
    avro = Options.from_dict({"format": "avro"})
    assert feed_schemas(avro, "file:///tmp/x") is None
    assert feed_schemas(avro, None) is None
    assert feed_schemas(Options.from_dict({}), "kafka://localhost") is None


def refusal(feed: FeedSchemas, plan: MessagePlan = PLAN) -> ChangefeedError:
    with pytest.raises(ChangefeedError) as caught:
        feed.registered(plan)
    return caught.value


def test_an_incompatible_schema_is_an_error_of_its_table(fake_registry: FakeRegistry) -> None:
    feed = schemas(fake_registry)
    feed.registered(PLAN)
    changed = table([T.columns[0], column("b", "bigint")], before_image=BeforeImage.FULL)
    error = refusal(feed, replace(PLAN, schema=changed))
    assert (error.code.number, error.action) == ("CF5003", Action.STOP)
    assert "shop.public.t is not compatible with an earlier version" in error.message
    assert "t-value" in error.detail
    grown = table([*T.columns, column("c", "date")], before_image=BeforeImage.FULL)
    assert feed.registered(replace(PLAN, schema=grown)).registered is not None


def test_a_registry_that_is_away_is_tried_again(fake_registry: FakeRegistry) -> None:
    feed = schemas(fake_registry)
    fake_registry.stop()
    error = refusal(feed)
    assert (error.code.number, error.action) == ("CF5001", Action.RETRY)
    assert fake_registry.url in error.message
    fake_registry.start()
    fake_registry.failing = 503
    assert refusal(feed).code.number == "CF5001"
    fake_registry.failing = 0
    assert feed.registered(PLAN).registered is not None


def test_a_login_is_used_and_never_shown(fake_registry: FakeRegistry) -> None:
    fake_registry.login = "app:p@ss/word"
    address = fake_registry.url.replace("://", "://app:p%40ss%2Fword@")
    assert schemas(fake_registry, confluent_schema_registry=address).registered(PLAN).registered
    wrong = address.replace("word", "WRONG")
    error = refusal(schemas(fake_registry, confluent_schema_registry=wrong))
    assert error.code.number == "CF5002"
    shown = f"{error.message} {error.detail} {error.hint} {parse_registry(wrong)!r}"
    assert not any(part in shown for part in ("p@ss", "p%40ss", "WRONG"))
    stored = Options.from_dict({"format": "avro", "confluent_schema_registry": wrong})
    assert "WRONG" not in str(stored.display())


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("localhost:8081", "must be an http or https URL"),
        ("ftp://h", "must be an http or https URL"),
        ("http://h?wat=1", "unknown schema registry query parameters"),
        ("http://h?timeout=soon", "param timeout of the schema registry must be a duration"),
        ("https://h?ca_cert=%21", "param ca_cert of the schema registry must be base 64 encoded"),
        ("https://h?client_cert=aGk=", "client_cert requires client_key to be set"),
    ],
)
def test_wrong_addresses(address: str, message: str) -> None:
    with pytest.raises(ChangefeedError, match=message):
        parse_registry(address)


def test_certificates_of_the_address_are_used(tmp_path: Path) -> None:
    trustme = pytest.importorskip("trustme")
    ca = trustme.CA()
    pem = base64.b64encode(ca.cert_pem.bytes()).decode().replace("+", "%2B")
    registry = SchemaRegistry(parse_registry(f"https://localhost:1?ca_cert={pem}&timeout=2s"))
    context = registry._connected()._rest_client.verify
    assert isinstance(context, ssl.SSLContext)
    assert len(context.get_ca_certs()) == 1
    registry.close()


# ------------------------------------------------------------------------------- Kafka's URI


@pytest.mark.parametrize(
    ("query", "options", "message"),
    [
        ("", {"format": "avro"}, "format=avro to Kafka requires confluent_schema_registry"),
        (
            "?confluent_schema_registry=http://h",
            {"format": "json"},
            "is only usable with format=avro",
        ),
        ("?avro_schema_prefix=x", {"format": "json"}, "is only usable with format=avro"),
        (
            "?confluent_schema_registry=http://h",
            {"format": "avro", "confluent_schema_registry": "http://h"},
            "is given as a parameter of the URI and as an option",
        ),
        ("?confluent_schema_registry=h", {"format": "avro"}, "no scheme found|http or https"),
    ],
)
def test_kafka_wants_a_registry_for_avro(query: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(ChangefeedError, match=message):
        KafkaSettings.read(f"kafka://localhost{query}", options)
    KafkaSettings.read(
        "kafka://localhost?confluent_schema_registry=http://h:1/x", {"format": "avro"}
    )


def test_no_schema_leaves_that_avro_does_not_allow() -> None:
    inner = {"type": "record", "name": "twice", "fields": []}
    fields = [{"name": name, "type": inner} for name in ("a", "b")]
    with pytest.raises(fastavro.schema.SchemaParseException, match="twice"):
        schema_text({"type": "record", "name": "outer", "fields": fields})
    # The text is ours, not what fastavro makes of it.
    plain = {"type": "record", "name": "outer", "fields": fields[:1]}
    assert json.loads(schema_text(plain)) == plain


@pytest.mark.parametrize(
    ("kind", "rest"),
    [
        (Kind.DATE, ""),
        (Kind.TIMESTAMP, "T10:00:00"),
        (Kind.TIMESTAMPTZ, "T10:00:00Z"),
    ],
)
@pytest.mark.parametrize("rare", ["12024-02-03{}", "0044-03-15{} BC", "infinity", "-infinity"])
def test_moments_that_arrow_does_not_read_are_numbers_beside_others(
    kind: Kind, rest: str, rare: str
) -> None:
    """Arrow reads what is usual, in one go, and must refuse the rest, not read it in its way."""
    word, usual = rare.format(rest), f"2024-02-03{rest}"
    found = typed_values(LogicalType(kind), pa.array([usual, None, word]), "c")
    alone = typed_values(LogicalType(kind), pa.array([usual]), "c")
    assert found[0] == alone[0] and not found[1].is_valid
    day = 1 if kind is Kind.DATE else 86_400_000_000
    if "infinity" in word:
        days = kind is Kind.DATE
        much = INFINITE_DAYS if days else INFINITE_MICROS
        little = MINUS_INFINITE_DAYS if days else MINUS_INFINITE_MICROS
        assert found[2].as_py() == (little if word.startswith("-") else much)
    elif word.endswith("BC"):
        # 44 BC is the year -43 of ISO, and the calendar repeats after 400 years.
        gone = (found[0].as_py() - found[2].as_py()) // day
        assert gone == (dt.date(2424, 2, 3) - dt.date(357, 3, 15)).days
    else:
        # 10,000 years are 25 times 400 years, which have 146,097 days each.
        assert found[2].as_py() - found[0].as_py() == 25 * 146_097 * day

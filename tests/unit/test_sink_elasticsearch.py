"""Elasticsearch: names, parameters, request bodies, mappings and verdicts, without a server."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pyarrow as pa
import pytest

from changefeed.core.arrow import MESSAGE_SCHEMA
from changefeed.core.clock import ManualClock, Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.schema import Column, TableName, TableSchema
from changefeed.core.types import LogicalType
from changefeed.core.uri import sink_location
from sinks.base import SinkContext, Target
from sinks.elasticsearch import body, mapping
from sinks.elasticsearch.answers import OperationOutcome, Verdict, outcomes
from sinks.elasticsearch.bulk import PATIENCE_SECONDS, Bulk, counted
from sinks.elasticsearch.client import HttpAnswer
from sinks.elasticsearch.options import MAX_INDEX_BYTES, ElasticsearchSettings, index_name
from sinks.registry import check, open_sink

# ------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("orders", "orders"),
        ("Orders", "orders"),
        ("shop.public.orders", "shop.public.orders"),
        ("größe", "größe"),
        ("two words", "two_u0020_words"),
        ('a/b\\c*d?e"f<g>h|i,j#k:l', None),
        ("_prisma_migrations", "u005f_prisma_migrations"),
        ("-x", "u002d_x"),
        (".hidden", "u002e_hidden"),
        ("*", "u002a_"),
        ("a_u0020_b", "a_u005f_u0020_b"),
    ],
)
def test_index_names(name: str, index: str | None) -> None:
    found = index_name(name)
    assert not set(found) & set('\\/*?"<>| ,#:') and found[0] not in "_-+."
    assert index is None or found == index


def test_different_long_names_stay_different() -> None:
    one, two = index_name("ü" * 300), index_name("ü" * 301)
    assert one != two and max(len(one.encode()), len(two.encode())) <= MAX_INDEX_BYTES


# --------------------------------------------------------------------------------- parameters


def test_parameters() -> None:
    settings = ElasticsearchSettings.read(
        "elasticsearch+https://ann:s%3Acret@a:9201,b/es/?index_prefix=Shop_&bulk_size=10"
        "&bulk_bytes=1MB&in_flight=2&refresh=wait_for&timeout=5s&json=stored"
        "&dead_letter_index=letters&ca_cert=UEVN",
        {"compression": "gzip", "envelope": "wrapped"},
    )
    assert settings.hosts == (("a", 9201), ("b", 9200))
    assert (settings.secure, settings.path_prefix, settings.tls.ca_cert) == (True, "/es", "PEM")
    assert settings.authorization == "Basic YW5uOnM6Y3JldA=="
    assert settings.index_of("Orders") == "shop_orders"
    assert settings.resolved_index == "shop_changefeed_resolved"
    assert (settings.bulk_size, settings.bulk_bytes, settings.in_flight) == (10, 1_000_000, 2)
    assert (settings.refresh, settings.timeout, settings.json) == ("wait_for", 5.0, "stored")
    assert (settings.compress, settings.envelope) == (True, "wrapped")
    assert "cret" not in repr(settings)


@pytest.mark.parametrize(
    ("key", "header"), [("aWQ6a2V5", "ApiKey aWQ6a2V5"), ("id:key", "ApiKey aWQ6a2V5")]
)
def test_api_keys_in_both_spellings(key: str, header: str) -> None:
    assert ElasticsearchSettings.read(f"elasticsearch://h?api_key={key}").authorization == header
    assert "aWQ" not in sink_location(f"elasticsearch://h?api_key={key}")


@pytest.mark.parametrize(
    ("uri", "code", "words"),
    [
        ("elasticsearch://", "CF1201", "names no host"),
        ("elasticsearch://h?index_prefx=a", "CF1202", "[index_prefx]"),
        ("elasticsearch://h?bulk_size=0", "CF1207", "between 1 and"),
        ("elasticsearch://h?bulk_bytes=much", "CF1207", "a size such as"),
        ("elasticsearch://h?timeout=soon", "CF1207", "a duration such as"),
        ("elasticsearch://h?refresh=maybe", "CF1207", "one of false, true, wait_for"),
        ("elasticsearch://h?ca_cert=UEVN", "CF1207", "ca_cert needs TLS"),
        ("elasticsearch+https://h?client_cert=UEVN", "CF1207", "requires client_key"),
        ("elasticsearch://u:p@h?api_key=k", "CF1207", "exclude each other"),
        ("elasticsearch://h?dead_letter_index=A*", "CF1207", "dead_letter_index"),
    ],
)
def test_wrong_parameters(uri: str, code: str, words: str) -> None:
    (error,) = check(uri)
    assert error.code.number == code
    assert words in error.message


def test_a_message_key_of_another_column_is_refused() -> None:
    with pytest.raises(ChangefeedError) as caught:
        open_sink("elasticsearch://h", {"key_column": "b"})
    assert caught.value.code.number == "CF1206"


def test_a_certificate_that_is_none_is_said_at_open() -> None:
    certificates = "client_cert=UEVN&client_key=UEVN&insecure_tls_skip_verify=true"
    sink = open_sink(f"elasticsearch+https://127.0.0.1:1?{certificates}")
    with pytest.raises(ChangefeedError) as caught:
        sink.open(SinkContext("f", 1, ()))
    sink.close()
    assert (caught.value.code.number, "cannot be read" in caught.value.message) == ("CF5002", True)


# ------------------------------------------------------------------------------------- bodies


def _column(name: str, logical: str) -> Column:
    return Column(name, logical, LogicalType.parse(logical))


def _schema(*columns: Column, key: tuple[int, ...] = (0,), keyless: bool = False) -> TableSchema:
    return TableSchema(TableName("shop", "public", "t"), columns, key, keyless=keyless)


def _messages(*rows: tuple[str, str | None, str, Timestamp]) -> pa.RecordBatch:
    table = pa.Table.from_pylist(
        [
            {
                "key": key.encode(),
                "value": None if value is None else value.encode(),
                "wall": at.wall,
                "logical": at.logical,
                "seq": 0,
                "op": op,
            }
            for key, value, op, at in rows
        ],
        schema=MESSAGE_SCHEMA,
    )
    return table.combine_chunks().to_batches()[0]


INTEGER = Column("a", "integer", LogicalType.parse("int32"))


def test_operations() -> None:
    batch = _messages(
        ("[1]", '{"a": 1}', "c", Timestamp(5)),
        ("[2]", None, "d", Timestamp(7, 2)),
        ("[3]", '{"after": null}', "d", Timestamp(8)),
        ("[4]", '{"a": 4}', "r", Timestamp(1_700_000_000_000_000_000, 3)),
    )
    lines = body.operations('x"y', _schema(INTEGER), batch)
    text = bytes(body.data(lines)).decode()
    assert [json.loads(line) for line in text.splitlines()] == [
        _action("index", "1", 5),
        {"a": 1},
        _action("delete", "2", 9),
        _action("delete", "3", 8),
        _action("index", "4", 1_700_000_000_000_000_003),
        {"a": 4},
    ]
    # A slice is a part of the same buffer.
    assert bytes(body.data(lines.slice(1, 2))).decode() == "".join(
        f"{line}\n" for line in text.splitlines()[2:4]
    )
    assert bytes(body.data(lines.slice(4))) == b""


def _action(name: str, document_id: str, version: int) -> dict[str, Any]:
    return {
        name: {
            "_index": 'x"y',
            "_id": document_id,
            "version": version,
            "version_type": "external_gte",
        }
    }


LONG = "ü" * 300
TEXT, DECIMAL, JSON = (
    _column("b", "text"),
    _column("n", "decimal(9,2)"),
    _column("j", "json"),
)


@pytest.mark.parametrize(
    ("columns", "key", "document_id"),
    [
        ([INTEGER], [17], "17"),
        ([TEXT], ["x"], "x"),
        ([TEXT], ['say "hi" \\ \n'], 'say "hi" \\ \n'),
        ([TEXT], ["17"], "17"),
        ([DECIMAL], "[1.50]", "1.50"),
        ([DECIMAL], '["NaN"]', "NaN"),
        ([INTEGER, TEXT], [17, "x, y"], '[17, "x, y"]'),
        ([INTEGER, TEXT], [17, '"'], '[17, "\\""]'),
        ([JSON], '[{"a": "b"}]', '[{"a": "b"}]'),
        ([TEXT], ["ü" * 256], "ü" * 256),
        ([TEXT], ['"' * 512], '"' * 512),
    ],
)
def test_ids(columns: list[Column], key: object, document_id: str) -> None:
    text = key if isinstance(key, str) else json.dumps(key, ensure_ascii=False)
    schema = _schema(*columns, key=tuple(range(len(columns))))
    tokens = body.id_tokens(pa.array([text.encode()], pa.binary()), body.plain_key(schema))
    assert json.loads(tokens[0].as_py()) == document_id


def test_ids_that_do_not_fit_are_digests() -> None:
    keys = [json.dumps([key], ensure_ascii=False).encode() for key in ("", LONG, LONG + "x", "a")]
    found = [json.loads(t.as_py()) for t in body.id_tokens(pa.array(keys, pa.binary()), True)]
    assert found[3] == "a"
    assert len(set(found)) == 4
    assert all(i.startswith("sha256-") and len(i) == 71 for i in found[:3])


def test_portions_keep_rows_and_bytes() -> None:
    lines = pa.array([b"x" * size for size in (5, 5, 5, 30, 1, 1, 1)], pa.binary())
    assert [len(p) for p in body.portions(lines, 100, 10)] == [2, 1, 1, 3]
    assert [len(p) for p in body.portions(lines, 2, 1000)] == [2, 2, 2, 1]
    assert [len(p) for p in body.portions(lines.slice(3), 100, 31)] == [2, 2]
    assert list(body.portions(lines.slice(7), 1, 1)) == []


# ----------------------------------------------------------------------------------- mappings


@pytest.mark.parametrize(
    ("logical", "kind"),
    [
        ("int16", "long"),
        ("int64", "long"),
        ("float32", "double"),
        ("decimal(18,0)", "long"),
        ("decimal(19,0)", "double"),
        ("decimal(15,2)", "double"),
        ("decimal", "double"),
        ("bool", "boolean"),
        ("text", "text"),
        ("uuid", "keyword"),
        ("other", "keyword"),
        ("timestamptz", "date"),
        ("date", "date"),
        ("interval", "keyword"),
        ("bytes", "keyword"),
        ("json", "flattened"),
        ("array<array<int32>>", "long"),
    ],
)
def test_fields(logical: str, kind: str) -> None:
    field = mapping.field_of(_column("x", logical), "flattened")
    assert field["type"] == kind
    wide = logical in ("decimal", "decimal(19,0)")
    assert ("exact" in field.get("fields", {})) == wide


def test_only_delivered_columns_get_fields() -> None:
    schema = _schema(INTEGER, TEXT, DECIMAL)
    shape = mapping.shape_of(b'{"__crdb__": {"updated": "1.0"}, "a": 1, "n": 2}', "bare")
    assert list(mapping.properties(schema, shape, "flattened")) == ["a", "n", "__crdb__"]
    shape = mapping.shape_of(b'{"after": {"a": 1}, "before": null, "updated": "1.0"}', "wrapped")
    found = mapping.properties(schema, shape, "flattened")
    assert found["before"] == found["after"] == {"properties": {"a": {"type": "long"}}}
    assert found["updated"]["type"] == "keyword"


def test_only_what_is_missing_is_added() -> None:
    there = {"a": {"type": "keyword"}, "o": {"properties": {"b": {"type": "long"}}}}
    wanted: dict[str, mapping.FieldMapping] = {
        "a": {"type": "long"},
        "o.b": {"type": "long"},
        "o.c": {"type": "long"},
        "d": {"type": "long"},
    }
    assert list(mapping.missing(wanted, there)) == ["o.c", "d"]


@pytest.mark.parametrize(
    ("kind", "logical", "clash"),
    [
        ("long", "int32", False),
        ("long", "decimal(9,0)", False),
        ("long", "decimal(9,2)", True),
        ("long", "text", True),
        ("double", "int64", False),
        ("double", "array<decimal>", False),
        ("date", "timestamptz", False),
        ("date", "int64", True),
        ("boolean", "text", True),
        ("keyword", "int64", False),
        ("geo_point", "other", False),
    ],
)
def test_clashes(kind: str, logical: str, clash: bool) -> None:
    schema = _schema(_column("x", logical))
    assert bool(mapping.clashes(schema, ["x"], {"x": {"type": kind}})) == clash


def test_a_wide_table_raises_the_limit_of_fields() -> None:
    narrow = dict.fromkeys("abc", mapping.field_of(TEXT, "flattened"))
    wide = {f"c{i}": mapping.field_of(TEXT, "flattened") for i in range(600)}
    assert "index.mapping.total_fields.limit" not in mapping.settings(narrow)
    assert mapping.settings(wide)["index.mapping.total_fields.limit"] == 2400


# ----------------------------------------------------------------------------------- verdicts


@pytest.mark.parametrize(
    ("status", "kind", "verdict"),
    [
        (200, "", Verdict.DONE),
        (201, "", Verdict.DONE),
        (404, "", Verdict.DONE),
        (409, "version_conflict_engine_exception", Verdict.DONE),
        (429, "es_rejected_execution_exception", Verdict.RETRY),
        (429, "cluster_block_exception", Verdict.RETRY),
        (403, "cluster_block_exception", Verdict.RETRY),
        (503, "unavailable_shards_exception", Verdict.RETRY),
        (403, "security_exception", Verdict.FORBIDDEN),
        (400, "document_parsing_exception", Verdict.REFUSED),
        (400, "strict_dynamic_mapping_exception", Verdict.REFUSED),
        (404, "index_not_found_exception", Verdict.NO_INDEX),
        (400, "index_closed_exception", Verdict.NO_INDEX),
    ],
)
def test_verdicts(status: int, kind: str, verdict: Verdict) -> None:
    error = {"error": {"type": kind, "reason": "because"}} if kind else {}
    (outcome,) = outcomes({"items": [{"index": {"status": status, **error}}]})
    assert outcome.verdict is verdict


def test_errors_count_and_show_no_values() -> None:
    reason = "[1:45] failed to parse field [{}] of type [long] in document with id 's3cret'"
    found = [
        OperationOutcome(400, "document_parsing_exception", reason.format("after.j.s3cret"))
    ] * 2
    shown = counted(found)
    assert shown == "2 documents: 2 x document_parsing_exception (field after.j of type long)"


def test_settings_have_no_secret_in_their_address() -> None:
    settings = ElasticsearchSettings.read("elasticsearch+https://u:pw@h:1,i:2/p/?index=x")
    assert settings.shown == "https://h:1,i:2/p"


# ------------------------------------------------------------------------------------- pauses


class BusyCluster:
    """Turns every request away."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.asked: list[float] = []

    def call(self, *_: object, **named: object) -> HttpAnswer:
        self.asked.append(self._clock.monotonic())
        return HttpAnswer(429, b"")


def test_a_busy_cluster_is_asked_ever_later_until_patience_ends() -> None:
    clock = ManualClock()
    cluster: Any = BusyCluster(clock)
    bulk = Bulk(
        cluster,
        ElasticsearchSettings.read("elasticsearch://h:1"),
        lambda refused: None,
        clock=clock,
    )
    bulk.add(Target(TableName("s", "public", "t"), "t"), pa.array([b"{}\n"], pa.binary()))
    with pytest.raises(ChangefeedError) as caught:
        bulk.settle()
    bulk.close()
    pauses = [after - before for before, after in itertools.pairwise(cluster.asked)]
    assert caught.value.code.number == "CF5004"
    assert PATIENCE_SECONDS / 2 < sum(pauses) <= PATIENCE_SECONDS
    assert 5 < len(pauses) < 50 and pauses[0] < 1 < pauses[-1]

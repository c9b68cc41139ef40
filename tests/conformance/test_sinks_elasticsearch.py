"""Elasticsearch against the list of what a sink must do, and what is its own: mappings, marks.

All of it on both majors, but for what does not depend on the server: requests of one row, TLS.
"""

from __future__ import annotations

import base64
import itertools
import json
import ssl
import urllib.error
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

from changefeed.core.arrow import MESSAGE_SCHEMA
from changefeed.core.clock import Timestamp
from changefeed.core.errors import Action, ChangefeedError
from changefeed.core.events import Resolved, Truncate
from changefeed.core.schema import Column, TableName, TableSchema
from changefeed.core.types import LogicalType
from changefeed_testing.sinks.conformance import CASES, Case, run_case
from changefeed_testing.sinks.messages import Message, parse_message
from sinks.base import Batch, Epoch, Sink, SinkContext, Target
from sinks.elasticsearch.sink import ElasticsearchSink
from sinks.ownership import Owner
from sinks.registry import open_sink
from tests.services.cache import server_folder
from tests.services.certificates import write_certificates
from tests.services.elasticsearch import (
    DEFAULT_MAJOR,
    MAJORS,
    MAX_CONTENT_BYTES,
    OPENSEARCH_VERSION,
    Elasticsearch,
    OpenSearch,
    SecureElasticsearch,
)
from tests.services.http_faults import FaultyProxy, answer, cut

pytestmark = pytest.mark.elasticsearch

on_every_major = pytest.mark.parametrize("elasticsearch", MAJORS, indirect=True)

_numbers = itertools.count(1)


class Harness:
    """Indices of its own on the shared server, reached through a proxy that can be cut off."""

    never: Mapping[str, str] = {}
    secret = "s3cret"
    max_message_bytes = MAX_CONTENT_BYTES
    keeps_latest = True

    def __init__(self, server: Elasticsearch, proxy: FaultyProxy, parameters: str) -> None:
        self._server = server
        self._proxy = proxy
        self._prefix = f"conformance{next(_numbers)}_"
        self._parameters = parameters
        self._used: dict[str, None] = {}

    def sink(self) -> Sink:
        address = f"ann:{self.secret}@127.0.0.1:{self._proxy.port}"
        uri = f"elasticsearch://{address}/?index_prefix={self._prefix}{self._parameters}"
        return open_sink(uri)

    def topic(self, table: str) -> str:
        self._used[table] = None
        return f"{self._prefix}{table}"

    def partitions(self) -> Mapping[str, int]:
        return {self.topic(table): 1 for table in list(self._used)}

    def read(self) -> Sequence[Message]:
        found = []
        for topic in self.partitions():
            for key, document in self._server.documents(topic).items():
                value = json.dumps(document).encode()
                found.append(parse_message(topic, 0, f"[{key}]".encode(), value))
        for mark in self._server.documents(f"{self._prefix}changefeed_resolved").values():
            at = Timestamp.parse(mark["resolved"])
            found.append(Message(mark["index"], 0, resolved=at))
        return found

    def raw(self) -> bytes:
        found = self._server.call("GET", f"/{self._prefix}*/_search?size=1000")
        return json.dumps(found).encode()

    @contextmanager
    def down(self) -> Iterator[None]:
        self._proxy.always = cut
        yield
        self._proxy.always = None


@pytest.mark.parametrize(
    ("elasticsearch", "parameters"),
    [*((major, "") for major in MAJORS), (DEFAULT_MAJOR, "&bulk_size=1&in_flight=3")],
    indirect=["elasticsearch"],
    ids=[*map(str, MAJORS), "one-by-one"],
)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_elasticsearch(case: Case, parameters: str, elasticsearch: Elasticsearch) -> None:
    with FaultyProxy(elasticsearch.port, matching="/") as proxy:
        reason = run_case(case, Harness(elasticsearch, proxy, parameters))
    if reason:
        pytest.skip(f"never: {reason}")


# ------------------------------------------------------------------------------------ mappings


def column(name: str, logical: str) -> Column:
    return Column(name, logical, LogicalType.parse(logical))


ID = Column("id", "integer", LogicalType.parse("int32"), nullable=False, column_id=1)


class Table:
    """One table written to its own index."""

    def __init__(self, server: Elasticsearch, parameters: str = "", **options: object) -> None:
        self.server = server
        self.target = Target(TableName("shop", "public", "t"), f"mapping{next(_numbers)}")
        self.sink = ElasticsearchSink(f"{server.uri}/?{parameters}", options)
        self.sink.open(SinkContext("f", 1, (self.target,)))
        self._version = itertools.count(1)

    @property
    def index(self) -> str:
        return self.target.topic

    def write(self, columns: Sequence[Column], *values: str) -> None:
        """Rows of a schema as their JSON, keys from 1."""
        schema = TableSchema(self.target.table, (ID, *columns), (0,))
        at = next(self._version)
        rows = [
            {"key": f"[{i}]".encode(), "value": v.encode(), "wall": at, "logical": 0, "op": "u"}
            for i, v in enumerate(values, start=1)
        ]
        table = pa.Table.from_pylist(rows, schema=MESSAGE_SCHEMA)
        epoch = Epoch(at, Timestamp(at))
        receipt = self.sink.write(Batch("f", epoch, 0, self.target, schema, table))
        self.sink.commit(epoch, [receipt])

    def found(self, query: Mapping[str, Any]) -> list[str]:
        """Ids of the documents a search finds."""
        self.server.call("POST", f"/{self.index}/_refresh")
        answer = self.server.call("GET", f"/{self.index}/_search", {"query": query})
        return sorted(hit["_id"] for hit in answer["hits"]["hits"])


@on_every_major
def test_every_type_is_found_by_what_it_is(elasticsearch: Elasticsearch) -> None:
    columns = [
        column("n", "decimal"),
        column("at", "timestamptz"),
        column("day", "date"),
        column("words", "text"),
        column("doc", "json"),
        column("tags", "array<text>"),
        column("place", "other"),
        column("data", "bytes"),
        column("a.b", "int32"),
    ]
    table = Table(elasticsearch)
    table.write(
        columns,
        '{"id": 1, "n": 12345678901234567890.10, "at": "2024-03-31T01:02:03.123456Z",'
        ' "day": "2024-03-31", "words": "Quick brown fox", "doc": {"a": {"b": [1, "x"]}},'
        ' "tags": ["red", "green"], "place": "(1,2)", "data": "\\\\xdead", "a.b": 7}',
        '{"id": 2, "n": "NaN", "at": "infinity", "day": "0044-03-15 BC", "words": null,'
        ' "doc": null, "tags": null, "place": null, "data": null, "a.b": null}',
    )
    assert table.found({"range": {"n": {"gt": 1e19}}}) == ["1"]
    assert table.found({"term": {"n.exact": "12345678901234567890.10"}}) == ["1"]
    assert table.found({"range": {"at": {"gte": "2024-03-31T01:02:03"}}}) == ["1"]
    precise = {"gt": "2024-03-31T01:02:03.123455Z", "lt": "2024-03-31T01:02:03.123457Z"}
    assert table.found({"range": {"at.nanos": precise}}) == ["1"]
    assert table.found({"range": {"day": {"gte": "2024-01-01"}}}) == ["1"]
    assert table.found({"match": {"words": "brown"}}) == ["1"]
    assert table.found({"term": {"words.keyword": "Quick brown fox"}}) == ["1"]
    assert table.found({"term": {"doc.a.b": "x"}}) == ["1"]
    assert table.found({"match": {"tags": "green"}}) == ["1"]
    assert table.found({"term": {"place": "(1,2)"}}) == ["1"]
    assert table.found({"term": {"a.b": 7}}) == ["1"]
    assert table.found({"exists": {"field": "_ignored"}}) == ["2"]
    source = elasticsearch.call("GET", f"/{table.index}/_doc/1?filter_path=_source")
    assert source["_source"]["data"] == "\\xdead"
    table.sink.close()


@on_every_major
def test_new_columns_get_fields_and_others_stay(elasticsearch: Elasticsearch) -> None:
    table = Table(elasticsearch)
    own = {"id": {"type": "keyword"}, "place": {"type": "geo_point"}}
    elasticsearch.call("PUT", f"/{table.index}", {"mappings": {"properties": own}})
    place = column("place", "other")
    table.write([place], '{"id": 1, "place": "1,2"}')
    assert elasticsearch.mapping(table.index) == own
    table.write([place, column("more", "int64")], '{"id": 1, "place": "1,2", "more": 5}')
    assert elasticsearch.mapping(table.index) == {**own, "more": {"type": "long"}}
    assert table.found({"term": {"more": 5}}) == ["1"]
    table.sink.close()


@on_every_major
def test_an_index_template_says_what_it_knows_better(elasticsearch: Elasticsearch) -> None:
    table = Table(elasticsearch)
    fields = {"place": {"type": "geo_point"}, "code": {"type": "keyword", "doc_values": False}}
    template = {
        "index_patterns": [table.index],
        "template": {
            "settings": {"number_of_shards": 2},
            "mappings": {"dynamic": True, "_meta": {"team": "search"}, "properties": fields},
        },
    }
    elasticsearch.call("PUT", f"/_index_template/{table.index}", template)
    columns = [column("place", "other"), column("code", "text"), column("words", "text")]
    table.write(columns, '{"id": 1, "place": "1,2", "code": "A b", "words": "A b", "more": 1}')
    words = {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}}
    made = elasticsearch.call("GET", f"/{table.index}")[table.index]
    assert made["mappings"] == {
        "dynamic": "false",
        "_meta": {
            "team": "search",
            "changefeed": {"table": "shop.public.t", "owner": "/1/shop.public.t", "feed": "f"},
        },
        "properties": {"id": {"type": "long"}, **fields, "words": words},
    }
    assert made["settings"]["index"]["number_of_shards"] == "2"
    around = {"geo_distance": {"distance": "1km", "place": "1,2"}}
    assert table.found(around) == table.found({"term": {"code": "A b"}}) == ["1"]
    elasticsearch.call("DELETE", f"/_index_template/{table.index}")
    table.sink.close()


@on_every_major
def test_a_type_the_field_cannot_take_stops_the_table(elasticsearch: Elasticsearch) -> None:
    table = Table(elasticsearch)
    table.write([column("n", "int32")], '{"id": 1, "n": 1}')
    table.write([column("n", "int64")], '{"id": 1, "n": 5000000000}')
    with pytest.raises(ChangefeedError) as caught:
        table.write([column("n", "text")], '{"id": 1, "n": "one"}')
    error = caught.value
    assert error.code.number == "CF5003"
    assert table.index in error.message.split()
    assert error.message.endswith('as they are now: column "n" is text, the field is long')
    table.sink.close()


@on_every_major
def test_columns_that_are_not_delivered_get_no_field(elasticsearch: Elasticsearch) -> None:
    table = Table(elasticsearch, envelope="wrapped")
    columns = [column("shown", "text"), column("hidden", "text")]
    table.write(columns, '{"after": {"id": 1, "shown": "x"}, "before": null, "updated": "1.0"}')
    fields = elasticsearch.mapping(table.index)
    assert set(fields) == {"after", "before", "updated"}
    assert set(fields["after"]["properties"]) == set(fields["before"]["properties"])
    assert set(fields["after"]["properties"]) == {"id", "shown"}
    assert table.found({"match": {"after.shown": "x"}}) == ["1"]
    table.sink.close()


@on_every_major
def test_why_an_index_takes_no_fields_is_said(elasticsearch: Elasticsearch) -> None:
    table = Table(elasticsearch)
    elasticsearch.call(
        "PUT", f"/{table.index}", {"settings": {"index.mapping.total_fields.limit": 1}}
    )
    with pytest.raises(ChangefeedError) as caught:
        table.write([column("n", "int32")], '{"id": 1, "n": 4711}')
    error = caught.value
    assert error.code.number == "CF5003"
    assert table.index in error.message.split() and "(table shop.public.t)" in error.message
    assert "Limit of total fields [1] has been exceeded" in error.detail
    assert "4711" not in error.detail
    table.sink.close()


def strangers(server: Elasticsearch, policy: str = "refuse") -> Table:
    """A table whose index holds a document of somebody else."""
    table = Table(server, existing_target=policy)
    server.call("PUT", f"/{table.index}/_doc/9?refresh=true", {"id": 9, "mine": "precious"})
    return table


def precious(table: Table) -> bool:
    """The document of somebody else is there as it was."""
    path = f"/{table.index}/_doc/9?filter_path=_source"
    try:
        found = table.server.call("GET", path)
    except urllib.error.HTTPError:
        return False
    return bool(found["_source"] == {"id": 9, "mine": "precious"})


def test_an_index_with_documents_of_somebody_else_is_left_alone(
    elasticsearch: Elasticsearch,
) -> None:
    table = strangers(elasticsearch)
    before = elasticsearch.call("GET", f"/{table.index}/_mapping")
    (problem,) = table.sink.check(SinkContext("validate", 0, (table.target,)))
    assert problem.code.number == "CF5008" and "existing_target" in problem.hint
    schema = TableSchema(table.target.table, (ID,), (0,))
    with pytest.raises(ChangefeedError, match="was not made by this changefeed"):
        table.write([], '{"id": 1}')
    with pytest.raises(ChangefeedError, match="was not made by this changefeed"):
        table.sink.end_scan(table.target, schema, Timestamp(10**18))
    assert precious(table)
    assert elasticsearch.call("GET", f"/{table.index}/_mapping") == before
    table.sink.close()


@pytest.mark.parametrize(("policy", "left"), [("merge", True), ("replace", False)])
def test_what_becomes_of_documents_of_somebody_else(
    elasticsearch: Elasticsearch, policy: str, left: bool
) -> None:
    table = strangers(elasticsearch, policy)
    schema = TableSchema(table.target.table, (ID,), (0,))
    table.write([], '{"id": 1}', '{"id": 2}')
    elasticsearch.call("POST", f"/{table.index}/_refresh")
    table.sink.end_scan(table.target, schema, Timestamp(10**18))
    assert precious(table) is left
    table.sink.close()


@on_every_major
def test_validate_says_whose_the_index_is(elasticsearch: Elasticsearch) -> None:
    table = Table(elasticsearch)
    table.write([column("n", "int32")], '{"id": 1, "n": 1}')
    other = TableName("shop", "public", "other")
    fresh, free = f"{table.index}_fresh", Target(other, f"{table.index}_free")
    elasticsearch.call("PUT", f"/{free.topic}")
    sink = ElasticsearchSink(elasticsearch.uri)
    targets = (table.target, free, Target(TableName("shop", "public", "fresh"), fresh))
    assert sink.check(SinkContext("validate", 0, targets)) == []
    taken = Target(other, table.index)
    (problem,) = sink.check(SinkContext("validate", 0, (free, taken)))
    assert problem.code.number == "CF5008"
    assert (
        f'index {table.index} was made for changefeed "f", table shop.public.t' in problem.message
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        elasticsearch.call("GET", f"/{fresh}")
    assert caught.value.code == 404
    caught.value.close()
    sink.close()
    table.sink.close()


@pytest.mark.parametrize("name", ["_id", "_source"])
def test_a_column_with_a_name_of_elasticsearch(name: str, elasticsearch: Elasticsearch) -> None:
    table = Table(elasticsearch)
    with pytest.raises(ChangefeedError) as caught:
        table.write([column(name, "text")], f'{{"id": 1, "{name}": "x"}}')
    assert (caught.value.code.number, name in caught.value.message) == ("CF5003", True)
    table.sink.close()


def test_a_table_without_a_key_is_refused(elasticsearch: Elasticsearch) -> None:
    table = Table(elasticsearch)
    schema = TableSchema(table.target.table, (ID,), (0,), keyless=True)
    row = {"key": b"[1]", "value": b'{"id": 1}', "wall": 1, "logical": 0, "op": "c"}
    rows = pa.Table.from_pylist([row], schema=MESSAGE_SCHEMA)
    with pytest.raises(ChangefeedError) as caught:
        table.sink.write(Batch("f", Epoch(1, Timestamp(1)), 0, table.target, schema, rows))
    assert caught.value.code.number == "CF5003"
    assert "has no key" in caught.value.message
    table.sink.close()


@on_every_major
def test_a_mark_is_set_when_a_search_sees_the_rows(elasticsearch: Elasticsearch) -> None:
    prefix = f"marks{next(_numbers)}_"
    sink = ElasticsearchSink(f"{elasticsearch.uri}/?index_prefix={prefix}")
    target = Target(TableName("shop", "public", "t"), f"{prefix}t")
    sink.open(SinkContext("f", 1, (target,)))
    settings = {"index.refresh_interval": "-1"}
    elasticsearch.call("PUT", f"/{target.topic}", {"settings": settings})
    schema = TableSchema(target.table, (ID,), (0,))
    row = {"key": b"[1]", "value": b'{"id": 1}', "wall": 9, "logical": 0, "op": "c"}
    rows = pa.Table.from_pylist([row], schema=MESSAGE_SCHEMA)
    epoch = Epoch(1, Timestamp(9))
    sink.commit(epoch, [sink.write(Batch("f", epoch, 0, target, schema, rows))])
    assert elasticsearch.call("GET", f"/{target.topic}/_count")["count"] == 0
    sink.resolved(Resolved(Timestamp(1_700_000_000_123_456_789, 1)), b"")
    assert elasticsearch.call("GET", f"/{target.topic}/_count")["count"] == 1
    (mark,) = elasticsearch.documents(f"{prefix}changefeed_resolved").items()
    assert mark == (
        f"f:{target.topic}",
        {
            "feed": "f",
            "index": target.topic,
            "table": "shop.public.t",
            "resolved": "1700000000123456789.0000000001",
            "time": "2023-11-14T22:13:20.123456789Z",
        },
    )
    sink.close()


def test_a_search_sees_what_a_scan_did_before_a_mark_says_so(elasticsearch: Elasticsearch) -> None:
    """The marks are set by another object than the one that scans: that one shows its rows."""
    target = Target(TableName("shop", "public", "t"), f"scan{next(_numbers)}")
    settings = {"index.refresh_interval": "-1"}
    elasticsearch.call("PUT", f"/{target.topic}", {"settings": settings})
    sink = ElasticsearchSink(elasticsearch.uri)
    sink.open(SinkContext("f", 1, (target,), resolved=True, scan=True))
    schema = TableSchema(target.table, (ID,), (0,))

    def scanned(at: int, *keys: int) -> list[str]:
        rows = [
            {"key": f"[{k}]".encode(), "value": b'{"id": %d}' % k, "wall": at, "op": "r"}
            for k in keys
        ]
        table = pa.Table.from_pylist([{"logical": 0, **row} for row in rows], schema=MESSAGE_SCHEMA)
        epoch = Epoch(at, Timestamp(at))
        receipt = sink.write(Batch("f", epoch, 0, target, schema, table, scan=True))
        sink.commit(epoch, [receipt])
        return ids()

    def ids() -> list[str]:
        found = elasticsearch.call("GET", f"/{target.topic}/_search")["hits"]["hits"]
        return sorted(hit["_id"] for hit in found)

    assert scanned(5, 1, 2, 3) == ["1", "2", "3"]
    assert scanned(9, 1, 2) == ["1", "2", "3"]
    sink.end_scan(target, schema, Timestamp(9))
    assert ids() == ["1", "2"]
    sink.close()


# --------------------------------------------------------------------------------- OpenSearch


def test_opensearch_is_called_by_its_name(opensearch: OpenSearch) -> None:
    sink = ElasticsearchSink(f"elasticsearch://ann:s3cret@{opensearch.address}")
    context = SinkContext("f", 1, (Target(TableName("shop", "public", "t"), "t"),))
    for act in (sink.open, sink.check):
        with pytest.raises(ChangefeedError) as caught:
            act(context)
        error = caught.value
        assert error.code.number == "CF1303"
        assert error.message == f"this server is OpenSearch {OPENSEARCH_VERSION}, not Elasticsearch"
        assert opensearch.address in error.detail
        assert "Elasticsearch, version 8 or 9" in error.hint
        assert "s3cret" not in f"{error.detail} {error.hint}"
    sink.close()


def test_opensearch_that_may_not_be_asked_is_told_by_what_it_refuses(
    opensearch: OpenSearch,
) -> None:
    """Its security plugin may forbid the question, a proxy take the header with its name away."""
    with FaultyProxy(opensearch.port, matching="/_nodes") as proxy:
        proxy.always = answer(403)
        sink = ElasticsearchSink(f"elasticsearch://127.0.0.1:{proxy.port}")
        target = Target(TableName("shop", "public", "t"), "t")
        sink.open(SinkContext("f", 1, (target,)))
        schema = TableSchema(target.table, (ID,), (0,))
        row = {"key": b"[1]", "value": b'{"id": 1}', "wall": 1, "logical": 0, "op": "c"}
        rows = pa.Table.from_pylist([row], schema=MESSAGE_SCHEMA)
        with pytest.raises(ChangefeedError) as caught:
            sink.write(Batch("f", Epoch(1, Timestamp(1)), 0, target, schema, rows))
        sink.close()
    assert caught.value.code.number == "CF1303"
    assert f"this server is OpenSearch {OPENSEARCH_VERSION}" in caught.value.message
    assert opensearch.call("GET", "/_cat/indices?format=json") == []


# -------------------------------------------------------------------------------------- login


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    write_certificates(folder)
    return folder


@pytest.fixture
def secure(elasticsearch: Elasticsearch, certificates: Path) -> Iterator[FaultyProxy]:
    """The server behind TLS that demands a client's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server-keystore.pem")
    context.load_verify_locations(certificates / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    with FaultyProxy(elasticsearch.port, matching="/", tls=context) as proxy:
        yield proxy


def encoded(path: Path) -> str:
    return quote(base64.b64encode(path.read_bytes()))


def opened(proxy: FaultyProxy, parameters: str, login: str = "") -> None:
    sink = ElasticsearchSink(f"elasticsearch+https://{login}127.0.0.1:{proxy.port}/?{parameters}")
    try:
        sink.open(SinkContext("f", 1, ()))
    finally:
        sink.close()


def test_tls_with_certificates_on_both_sides(secure: FaultyProxy, certificates: Path) -> None:
    client = "".join(
        f"&{name}={encoded(certificates / file)}"
        for name, file in {"client_cert": "client.pem", "client_key": "client.key"}.items()
    )
    opened(secure, f"ca_cert={encoded(certificates / 'ca.pem')}{client}", "ann:pw@")
    opened(secure, f"insecure_tls_skip_verify=true{client}&api_key=id:key")
    sent = [request.headers.get("authorization") for request in secure.seen]
    assert sent == ["Basic YW5uOnB3", "ApiKey aWQ6a2V5"]
    for parameters in (
        client.removeprefix("&"),  # an authority nobody knows
        f"ca_cert={encoded(certificates / 'ca.pem')}",  # no certificate of ours
    ):
        with pytest.raises(ChangefeedError) as caught:
            opened(secure, parameters)
        assert caught.value.code.number in ("CF5001", "CF5002")
        assert "BEGIN" not in f"{caught.value.message} {caught.value.detail}"
    assert len(secure.seen) == 2


# ------------------------------------------------------------------------------------- rights

#: What docs/sink-elasticsearch.md asks for.
PRIVILEGES = ("create_index", "view_index_metadata", "manage", "index", "delete", "read")


@pytest.fixture(scope="module")
def guarded() -> Iterator[SecureElasticsearch]:
    """A server that asks who comes."""
    with server_folder("elasticsearch") as folder:
        server = SecureElasticsearch(folder, PRIVILEGES)
        server.start()
        yield server
        server.stop()


T = Target(TableName("shop", "public", "t"), "feed_t")
T_SCHEMA = TableSchema(T.table, (ID, column("doc", "json")), (0,))


def deliver(
    sink: ElasticsearchSink, *rows: tuple[int, str | None, int], target: Target = T
) -> None:
    """Key, the JSON of ``doc`` (None deletes) and version of rows, in a commit of their own."""
    table = pa.Table.from_pylist(
        [
            {
                "key": f"[{key}]".encode(),
                "value": doc and f'{{"id": {key}, "doc": {doc}}}'.encode(),
                "wall": version,
                "logical": 0,
                "op": "u" if doc else "d",
            }
            for key, doc, version in rows
        ],
        schema=MESSAGE_SCHEMA,
    )
    epoch = Epoch(1, Timestamp(max(version for _, _, version in rows)))
    sink.commit(epoch, [sink.write(Batch("f", epoch, 0, target, T_SCHEMA, table))])


@pytest.mark.extended
def test_the_rights_we_ask_for_are_enough(guarded: SecureElasticsearch) -> None:
    parameters = "index_prefix=feed_&dead_letter_index=feed_letters"
    sink = ElasticsearchSink(f"{guarded.uri_of('feed')}/?{parameters}")
    context = SinkContext("f", 1, (T,), resolved=True)
    assert sink.check(context) == []
    sink.open(context)
    deliver(sink, (1, "{}", 1), (2, "{}", 1), (3, "{}", 1), (4, "4711", 1))
    deliver(sink, (1, None, 2), (2, '{"a": 1}', 3))
    wider = TableSchema(T.table, (*T_SCHEMA.columns, column("more", "text")), (0,), version=2)
    row = {"key": b"[5]", "value": b'{"id": 5, "doc": {}, "more": "x"}', "wall": 4, "op": "c"}
    rows = pa.Table.from_pylist([{"logical": 0, **row}], schema=MESSAGE_SCHEMA)
    epoch = Epoch(2, Timestamp(4))
    sink.commit(epoch, [sink.write(Batch("f", epoch, 0, T, wider, rows))])
    sink.end_scan(T, wider, Timestamp(3))
    assert guarded.versions("feed_t") == {"2": 3, "5": 4}
    assert guarded.mapping("feed_t")["more"]["type"] == "text"
    sink.resolved(Resolved(Timestamp(5)), b"")
    assert list(guarded.documents("feed_changefeed_resolved")) == ["f:feed_t"]
    assert [d["id"] for d in guarded.documents("feed_letters").values()] == ["4"]
    sink.truncate(Truncate(wider, Timestamp(9), 9), T, b"{}")
    assert guarded.documents("feed_t") == {}
    sink.close()


def refused(act: Callable[[], object]) -> str:
    """What is said of a login or a right that is missing; never the password."""
    with pytest.raises(ChangefeedError) as caught:
        act()
    assert (caught.value.code.number, caught.value.action) == ("CF5002", Action.STOP)
    said = f"{caught.value.message} | {caught.value.detail} | {caught.value.hint}"
    assert "s3cret" not in said and "4711" not in said
    return said


@pytest.mark.extended
def test_what_a_user_may_not_do_is_said(guarded: SecureElasticsearch) -> None:
    context = SinkContext("f", 1, (T,))
    wrong = ElasticsearchSink(guarded.uri_of("feed").replace("feed-", "other-"))
    for act in (wrong.open, wrong.check):
        said = refused(partial(act, context))
        assert "refused the login" in said and guarded.address in said
    wrong.close()

    strange = Target(T.table, "elsewhere")
    sink = ElasticsearchSink(guarded.uri_of("feed"))
    (problem,) = sink.check(SinkContext("f", 1, (strange,)))
    assert (problem.code.number, "elsewhere" in problem.message) == ("CF5002", True)
    sink.open(SinkContext("f", 1, (strange,)))
    assert "elsewhere" in refused(lambda: deliver(sink, (1, '"4711"', 1), target=strange))
    sink.close()

    own, other = (Target(T.table, index) for index in ("feed_own", "feed_read"))
    fields = {"id": {"type": "long"}, "doc": {"type": "keyword"}}
    for target in (own, other):
        owner = Owner.of(SinkContext("f", 1, (own, other)), target)
        mark = {"changefeed": {"table": owner.table, "owner": owner.text, "feed": owner.feed}}
        mappings = {"properties": fields, "_meta": mark}
        guarded.call("PUT", f"/{target.topic}", {"mappings": mappings})
    reader = ElasticsearchSink(f"{guarded.uri_of('reader')}/?json=stored")
    reader.open(SinkContext("f", 1, (own, other)))
    deliver(reader, (1, '"4711"', 1), target=own)
    said = refused(lambda: deliver(reader, (1, '"4711"', 1), target=other))
    assert said.startswith("this user may not write to index feed_read | 1 document: ")
    assert all(privilege in said for privilege in PRIVILEGES)
    reader.close()
    assert guarded.versions("feed_own") == {"1": 1}
    assert guarded.documents("feed_read") == {}

"""Small parts of the planner: words, globs, values, names, messages."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from math import inf
from typing import Any, cast

import fastavro
import pytest

from changefeed.catalog.model import MOVES, Status, TableProgress, check_move
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.figures import count_text, duration_text, size_text
from changefeed.core.formats import Format
from changefeed.core.schema import TableName
from changefeed.core.shapes import Deletes, Envelope
from changefeed.encoding.avro.schema import value_schema
from changefeed.encoding.compile import origin_of, source_members, table_messages
from changefeed.encoding.encode import encode_messages
from changefeed.options import Options, parse_options
from changefeed.plan import cdc
from changefeed.plan.example import example
from changefeed.plan.tables import check_row_images
from changefeed.plan.targets import parse_targets, target_text
from changefeed.sources.mysql import MySQLSource
from changefeed.sources.postgres import PostgresSource
from changefeed.statements.values import Names, Rate, Seconds, Size
from grammar import nodes
from grammar.parser import parse
from tests.golden.world import shape
from tests.helpers.message_model import change, log_table

T = TableName("shop", "public", "t")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.05, "50ms"),
        (1.5, "1.5s"),
        (59.96, "60s"),
        (60, "1m"),
        (125, "2m 5s"),
        (3600, "1h"),
        (25 * 3600, "25h"),
        (3 * 86_400 + 4 * 3600 + 5, "3d 4h"),
        (-90, "-1m 30s"),
        (inf, "ever"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (123_456, "123 kB"), (3.2e12, "3.2 TB")],
)
def test_sizes(size: float, text: str) -> None:
    assert size_text(size) == text


def test_counts() -> None:
    assert [count_text(x) for x in (0, 0.4, 12.6, 1_234_567)] == ["0", "0.4", "13", "1,234,567"]


def test_values_are_numbers_for_json_and_words_for_people() -> None:
    row = [Seconds(125.0), Size(1500), Rate(12), Names(("a", "b"))]
    assert [str(value) for value in row] == ["2m 5s", "1.5 kB", "12", "a, b"]
    assert json.loads(json.dumps(row)) == [125.0, 1500.0, 12.0, ["a", "b"]]


@pytest.mark.parametrize(
    "texts",
    [
        ("public.t",),
        ("SCHEMA s INCLUDE TABLES a, b*", "public.t (a, b) VALUES FROM (1) TO ('x') AS topic"),
        ("DATABASE shop EXCLUDE TABLES 'Odd Name'", "SCHEMA s", 'public."Odd Name"'),
    ],
)
def test_target_texts_round_trip(texts: tuple[str, ...]) -> None:
    assert tuple(map(target_text, parse_targets(texts))) == texts


def test_what_may_become_what() -> None:
    check_move(1, Status.STARTING, Status.SCANNING)
    check_move(1, Status.PAUSED, Status.FAILED)
    check_move(1, Status.DROPPED, Status.DROPPED)
    for status in Status:
        assert status is Status.DROPPED or Status.DROPPED in MOVES[status]
        assert status.finished == (MOVES[status] <= {Status.DROPPED})
    with pytest.raises(ChangefeedError):
        check_move(1, Status.SUCCEEDED, Status.RUNNING)


def options(text: str) -> Options:
    statement = parse(f"CREATE CHANGEFEED FOR t INTO 'kafka://k' WITH {text}")
    assert isinstance(statement, nodes.CreateChangefeed)
    return parse_options(statement.options, scheme="kafka")


def test_options_reach_the_messages() -> None:
    schema = shape(T, {"a": "bigint", "b": "text", "h": "jsonb"}, ["a"])
    progress = TableProgress(T, "topic", columns=("b",), values_from=("1",), values_to=("5",))
    given = options(
        "envelope = 'enriched', enriched_properties = 'source', diff, updated, key_in_value, "
        "headers_json_column_name = 'h', deletes = 'no', unordered, key_column = 'b', "
        """extra_headers = '{"x": "y"}', encode_json_value_null_as_object"""
    )
    plan = table_messages(given, progress, schema, source_members("shop", 7, "kafka"))
    assert plan.envelope is Envelope.ENRICHED and plan.format is Format.JSON
    assert plan.diff and plan.updated and plan.key_in_value and plan.json_null_as_object
    assert (plan.projection, plan.key_from, plan.key_to) == (("b",), ("1",), ("5",))
    assert (plan.headers_column, plan.key_column) == ("h", "b")
    assert plan.extra_headers == (("x", "y"),)
    assert dict(plan.source or ())["job_id"] == "7"
    assert table_messages(options("updated"), progress, schema).source is None


@pytest.mark.parametrize("format", ["json", "avro", "protobuf"])
@pytest.mark.parametrize(
    ("uri", "database"), [("postgresql://h/?dbname=x", "shop"), ("mysql://h", "public")]
)
def test_the_source_of_a_message_names_its_database(format: str, uri: str, database: str) -> None:
    """Of MySQL, whose databases are what other sources call schemas, that of the table."""
    schema = shape(T, {"a": "bigint"}, ["a"])
    given = options(f"envelope = 'enriched', enriched_properties = 'source', format = '{format}'")
    members, origin = source_members("shop", 7, "kafka"), origin_of(uri, "shop")
    plan = table_messages(given, TableProgress(T, "t"), schema, members, origin=origin)
    row = log_table(schema, [change("u", [1], {"0": 1})])
    [value] = encode_messages(row, plan)["value"].to_pylist()
    if format == "json":
        assert json.loads(value)["source"]["database_name"] == database
    elif format == "avro":
        read: Any = fastavro.schemaless_reader(
            io.BytesIO(value), cast(Any, value_schema(plan)), None
        )
        assert read["source"]["database_name"] == database
    else:
        length = bytes([len(database)])
        assert b"\xaa\x01" + length + database.encode() in value  # field 21, a text


@pytest.mark.parametrize("given", ["envelope = 'enriched'", "updated", "envelope = 'key_only'"])
def test_messages_that_name_no_database_differ_by_none(given: str) -> None:
    schema = shape(T, {"a": "bigint"}, ["a"])
    progress, origin = TableProgress(T, "t"), origin_of("postgresql://h/one", "one")
    named = table_messages(options(given), progress, schema, origin=origin)
    assert named == table_messages(options(given), progress, schema)


def test_two_feeds_with_equal_options_share_their_messages() -> None:
    schema = shape(T, {"a": "bigint"}, ["a"])
    progress = TableProgress(T, "t")
    one = table_messages(options("updated"), progress, schema, source_members("shop", 1, "kafka"))
    two = table_messages(options("updated"), progress, schema, source_members("shop", 2, "kafka"))
    assert one == two and one.fingerprint == two.fingerprint


@pytest.mark.parametrize(
    ("given", "op"),
    [({"key_from": ("5",), "key_to": ("9",)}, "u"), ({"deletes": Deletes.ONLY}, "d")],
)
def test_a_row_that_is_not_wanted_has_an_example(given: dict[str, Any], op: str) -> None:
    schema = shape(T, {"a": "bigint", "b": "text"}, ["a"])
    plan = table_messages(options("envelope = 'enriched'"), TableProgress(T, "t"), schema)
    plan = replace(plan, **given)
    after = {"a": 1, "b": "x"} if op == "u" else None
    key, value = example(plan).read
    assert (json.loads(value)["op"], json.loads(value)["after"]) == (op, after)
    assert key == '{"a": 1}'


@pytest.mark.parametrize(
    ("text", "sink", "wanted"),
    [
        ("cluster_address = 'http://k:9092'", "kafka://k:9092", "envelope=row"),
        (
            "cluster_address = 'https://k:9092/', record = AFTER",
            "kafka://k:9092?tls_enabled=true",
            "envelope=row",
        ),
        ("cluster_address = 'k:1,l:2', record = ALL", "kafka://k:1,l:2", "envelope=wrapped diff"),
        ("cluster_address = 'k', record = CHANGE", "kafka://k", "envelope=changed"),
        ("cluster_address = 'k', envelope = 'bare', updated", "kafka://k", "envelope=bare updated"),
    ],
)
def test_create_cdc(text: str, sink: str, wanted: str) -> None:
    statement = parse(f"CREATE CDC FOR ns.t INTO KAFKA WITH {text}")
    assert isinstance(statement, nodes.CreateCdc)
    made = cdc.translate(statement)
    assert made.name == "cdc_ns_t" and made.sink is not None and made.sink.text == sink
    shown = [f"{o.name}={o.value.text}" if o.value else o.name for o in made.options]
    assert " ".join(shown) == wanted


def test_row_images_are_refused_where_the_source_does_not_heed_them() -> None:
    """A source that ignores them, and diff, would have been accepted otherwise."""
    statement = parse("CREATE CHANGEFEED FOR t WITH diff, row_images = 'store'")
    assert isinstance(statement, nodes.CreateChangefeed)
    options = parse_options(statement.options, scheme="kafka")
    assert check_row_images(PostgresSource("shop", "postgresql://u@localhost/shop"), options) == []
    source = MySQLSource("shop", "mysql://u@localhost/shop")
    assert check_row_images(source, options) == []
    source.takes_row_images = False
    [problem] = check_row_images(source, options)
    assert problem.code is Code.NOT_SUPPORTED
    assert "PostgreSQL, MySQL and MariaDB" in problem.message
    assert check_row_images(source, parse_options(())) == []

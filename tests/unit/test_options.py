"""The option table row by row, sinks, storing, showing, ALTER, and CREATE CDC."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest

from changefeed.core.clock import ManualClock, Timestamp
from changefeed.core.errors import ChangefeedError, Problems
from changefeed.core.quantities import parse_duration, parse_size
from changefeed.core.types import LogicalType
from changefeed.options import (
    CURSOR,
    DELIVERY,
    DIFF,
    ENVELOPE,
    INITIAL_SCAN,
    KAFKA_SINK_CONFIG,
    KEY_IN_VALUE,
    OPTIONS,
    REDACTED,
    RESOLVED,
    RETRY_FOR,
    Envelope,
    Feature,
    Guarantee,
    InitialScan,
    OptionRow,
    Options,
    alter_options,
    mask_statement,
    own_option,
    parse_add_options,
    parse_new_cursor,
    parse_options,
    redact_option,
)
from changefeed.options.docs import listing
from changefeed.options.relations import RELATIONS
from changefeed.options.sink_config import table_properties
from changefeed.options.types import (
    DecimalType,
    Json,
    Moment,
    Text,
    ValueRule,
    parse_moment,
)
from changefeed.plan.cdc import CDC_OPTIONS, parse_cdc_options
from grammar import nodes
from grammar.parser import parse
from grammar.printer import to_sql
from sinks.registry import capabilities, takers
from tests.golden import runner

NOW = 1_700_000_000_000_000_000


@dataclass(frozen=True)
class Abilities:
    """A sink's abilities; the defaults are Kafka's."""

    formats: tuple[str, ...] = ("json",)
    envelopes: tuple[str, ...] = ()
    key_in_value: bool = False
    topic_in_value: bool = False
    exactly_once: bool = False
    resolved: bool = True
    owns_targets: bool = False
    compressions: tuple[str, ...] = ("none", "gzip")
    features: frozenset[Feature] = frozenset(Feature)
    options: tuple[OptionRow[Any], ...] = ()


def nodes_of(written: str) -> tuple[nodes.Option, ...]:
    statement = parse(f"CREATE CHANGEFEED FOR t WITH {written}")
    assert isinstance(statement, nodes.CreateChangefeed)
    return statement.options


def given(written: str, scheme: str = "kafka", sink: Abilities | None = None) -> Options:
    return parse_options(
        nodes_of(written), scheme=scheme, capabilities=sink, clock=ManualClock(NOW)
    )


def problems_of(error: ChangefeedError) -> list[ChangefeedError]:
    return error.problems if isinstance(error, Problems) else [error]


def refused(written: str, sink: Abilities, scheme: str = "kafka") -> list[str]:
    with pytest.raises(ChangefeedError) as caught:
        given(written, scheme, sink)
    return [f"{problem.code.number} {problem.message}" for problem in problems_of(caught.value)]


def refused_with(written: str, sink: Abilities) -> list[ChangefeedError]:
    with pytest.raises(ChangefeedError) as caught:
        given(written, "any", sink)
    return problems_of(caught.value)


# ------------------------------------------------------------------------------- the table


#: What an option has a meaning with only.
NEEDED = {
    "enriched_properties": ", envelope = enriched",
    "schemas_enable": ", envelope = debezium",
    "confluent_schema_registry": ", format = avro",
    "avro_schema_prefix": ", format = avro",
    "transaction_topic": ", transaction_metadata",
    "dead_letter_limit": ", on_row_error = 'dead_letter'",
    "dead_letter_share": ", on_row_error = 'dead_letter'",
    "verify_repair": ", verify = '24h'",
    "verify_max_rate": ", verify = '24h'",
}


@pytest.mark.parametrize("row", OPTIONS.values(), ids=list(OPTIONS))
def test_every_row_is_whole(row: OptionRow[object]) -> None:
    assert row.summary.endswith("."), "a summary is a sentence"
    assert row.example.startswith(row.name)
    assert bool(row.shown_default) == (row.type.takes is not ValueRule.NOTHING)
    needed = NEEDED.get(row.name, "")
    able = Abilities(formats=(), exactly_once=True)
    assert row.name in given(row.example + needed, "any", able).given
    if row.feature is not None:
        poor = replace(able, features=frozenset(Feature) - {row.feature})
        alone = f"CF1206 this sink is incompatible with option {row.name}"
        also = [OPTIONS[o].feature for o in needed.split() if o in OPTIONS].count(row.feature)
        problems = refused(row.example + needed, poor)
        assert problems[0] == alone and len(problems) == 1 + also


OWN = own_option(
    "greeting",
    Text(),
    "hello",
    summary="What is said first.",
    example="greeting = 'hi'",
    shown="hello",
    alterable=False,
)
OWN_SECRET = own_option(
    "front_password", Text(), "", summary="Opens.", example="front_password = 'x'", secret=True
)
OF_A_PLUGIN = Abilities(features=frozenset(), options=(OWN, OWN_SECRET))


def test_a_sink_brings_options_of_its_own() -> None:
    options = given("greeting = 'hi', front_password = 's3cret'", "plugin", OF_A_PLUGIN)
    assert (options[OWN], options[OWN_SECRET]) == ("hi", "s3cret")
    assert given("diff", "plugin", OF_A_PLUGIN)[OWN] == "hello"
    assert Options.from_dict(options.to_dict(), abilities=OF_A_PLUGIN)[OWN] == "hi"
    assert refused("greeting = 'hi'", Abilities()) == ['CF1203 invalid option "greeting"']
    (error,) = refused_with("greetin = 'hi'", OF_A_PLUGIN)
    assert error.hint.startswith('did you mean "greeting"?')
    helped = {row.name: row for row in listing(OF_A_PLUGIN)}
    assert helped["greeting"].group == "Of the sink"
    assert "history" not in helped
    changes = nodes_of("greeting = 'hey'")
    with pytest.raises(ChangefeedError, match='cannot alter option "greeting"'):
        alter_options(options, changes, capabilities=OF_A_PLUGIN, clock=ManualClock(NOW))
    with pytest.raises(ChangefeedError, match="incompatible with option greeting"):
        alter_options(options, (), (), capabilities=Abilities(), clock=ManualClock(NOW))


def test_where_the_sink_is_not_looked_at_its_own_options_are_shown_without_secrets() -> None:
    options = given("greeting = 'hi', front_password = 's3cret'", "plugin", OF_A_PLUGIN)
    assert options.display() == {"greeting": "hi", "front_password": REDACTED}
    stored = Options.from_dict(options.to_dict())
    assert stored.display() == {"greeting": "hi", "front_password": REDACTED}
    assert "s3cret" not in mask_statement("CREATE CHANGEFEED FOR t WITH front_password = 's3cret'")


@pytest.mark.parametrize(("name", "secret"), [("history", False), ("hush", True), ("pwd", False)])
def test_an_own_option_has_a_name_of_its_own_that_tells_a_secret(name: str, secret: bool) -> None:
    with pytest.raises(ValueError, match=f"option {name}"):
        own_option(name, Text(), "", summary="x.", example=name, secret=secret)


def test_an_option_that_the_sink_does_not_take_names_those_that_do() -> None:
    poor = Abilities(features=frozenset())
    with pytest.raises(ChangefeedError) as caught:
        parse_options(nodes_of("history = scd2"), capabilities=poor, takers=takers)
    assert "clickhouse, delta, duckdb" in caught.value.hint
    assert "spanner" not in caught.value.hint and "null" not in caught.value.hint


def test_every_option_and_rule_has_a_golden_error() -> None:
    texts = [
        case.output
        for file in ("errors", "relations")
        for case in runner.cases(runner.FOLDER / "options" / f"{file}.txt")
    ]
    for relation in RELATIONS:
        named = (relation.first.row.name, relation.second.row.name)
        assert any(all(name in text for name in named) for text in texts), named
        assert any(relation.because in text for text in texts), relation.because


def test_lookup_is_by_row_and_by_name() -> None:
    options = given("resolved = '10s', retry_for = forever")
    resolved: float | None = options[RESOLVED]
    assert resolved == options["resolved"] == 10.0
    assert options[RETRY_FOR] == math.inf
    assert options[INITIAL_SCAN] is InitialScan.YES
    assert options.given == {"resolved", "retry_for"}
    assert set(options) == set(OPTIONS)
    with pytest.raises(KeyError):
        options["formt"]


# ------------------------------------------------------------------------------- sinks


def test_a_sink_refuses_what_it_cannot() -> None:
    files = Abilities(
        formats=("json", "csv"),
        envelopes=("wrapped", "row"),
        key_in_value=True,
        resolved=False,
        compressions=("gzip",),
    )
    assert refused("envelope = key_only, resolved, compression = lz4", files, "file") == [
        "CF1206 this sink is incompatible with envelope=key_only",
        "CF1206 this sink is incompatible with option resolved",
        "CF1206 this sink is incompatible with compression=lz4",
    ]
    assert refused("format = csv, initial_scan = 'only'", Abilities()) == [
        "CF1206 this sink is incompatible with format=csv"
    ]
    assert given("compression = none, envelope = none", "file", files)[ENVELOPE] is Envelope.ROW


def test_exactly_once_needs_a_sink_that_can() -> None:
    assert refused("delivery = exactly_once", Abilities()) == [
        "CF1206 this sink is incompatible with delivery=exactly_once"
    ]
    assert given("delivery = at_least_once", sink=Abilities())[DELIVERY] is Guarantee.AT_LEAST_ONCE
    able = given("delivery = exactly_once", sink=Abilities(exactly_once=True))
    assert able[DELIVERY] is Guarantee.EXACTLY_ONCE


def test_a_sink_without_keys_puts_the_key_into_the_value() -> None:
    files = Abilities(formats=("json", "csv"), key_in_value=True)
    assert given("diff", "file", files)[KEY_IN_VALUE] is True
    assert given("envelope = row", "file", files)[KEY_IN_VALUE] is False
    assert given("format = csv, initial_scan_only", "file", files)[KEY_IN_VALUE] is False
    assert "key_in_value" not in given("diff", "file", files).given


# ------------------------------------------------------------------------------- storing


def test_options_come_back_from_the_job_table() -> None:
    written = (
        "envelope = diff, resolved, cursor = '-10m', kafka_sink_config = '{\"ClientID\": \"c\"}'"
    )
    options = given(written)
    stored = options.to_dict()
    assert stored == {
        "envelope": "diff",
        "resolved": "",
        "cursor": "1699999400000000000.0000000000",
        "kafka_sink_config": '{"ClientID": "c"}',
    }
    again = Options.from_dict(stored)
    assert again == options
    assert again.given == options.given
    assert again[DIFF] is True
    assert again[CURSOR] == Timestamp(NOW - 600_000_000_000)
    assert again[KAFKA_SINK_CONFIG].client_id == "c"


def test_a_stored_end_in_the_past_is_no_error() -> None:
    options = Options.from_dict({"end_time": "1.0000000000", "cursor": "9223372036854775807"})
    assert options["end_time"] == Timestamp(1)


def test_an_option_of_another_version() -> None:
    with pytest.raises(ChangefeedError, match='invalid option "quickly"') as caught:
        Options.from_dict({"quickly": "99%"}, abilities=Abilities())
    assert caught.value.code.number == "CF1203"


# ------------------------------------------------------------------------------- showing


def test_secrets_are_not_shown() -> None:
    options = given("""extra_headers = '{"Authorization": "s3cret"}', diff, on_error = pause""")
    assert options.display() == {"extra_headers": REDACTED, "diff": "", "on_error": "pause"}
    assert "s3cret" not in repr(options)
    printed = ", ".join(map(to_sql, options.nodes()))
    assert printed == "extra_headers = 'redacted', diff, on_error = 'pause'"


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("2019-01-01", "2019-01-01T00:00:00Z"),
        ("2019-01-01 01:02:03.000004+01:00", "2019-01-01T00:02:03.000004Z"),
        ("1546300800000000000", "2019-01-01T00:00:00Z"),
        # A date cannot say these: nanoseconds, and a place inside a transaction's instant.
        ("1546300800000000001", "1546300800000000001.0000000000"),
        ("1546300800000000000.0000000007", "1546300800000000000.0000000007"),
    ],
)
def test_an_instant_is_shown_as_a_date_that_means_the_same(written: str, shown: str) -> None:
    options = given(f"cursor = '{written}'")
    assert options.display() == {"cursor": shown}
    assert ", ".join(map(to_sql, options.nodes())) == f"cursor = '{shown}'"
    assert given(f"cursor = '{shown}'")[CURSOR] == options[CURSOR]


def test_redact_option() -> None:
    assert redact_option("extra_headers", "{}") == REDACTED
    assert redact_option("metrics_label", "x") == "x"
    assert redact_option("unknown", "http://u:pw@h") == "http://u:redacted@h"


def test_mask_statement_keeps_offsets() -> None:
    text = "WITH Extra_Headers = '{\"a\": \"it''s\"}', key_column = 'c', x = 'k://u:pw@h'"
    shown = mask_statement(text)
    assert len(shown) == len(text)
    assert shown == "WITH Extra_Headers = '**************', key_column = 'c', x = '**********'"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("JOIN parquet.`/look/c` AS c ON o.customer = c.id", None),
        ("JOIN `db`.`t` AS c ON o.a = c.id AND o.b=c.b", None),
        ("ON o.customer = c.id", "ON o.customer = ****"),
        ("JOIN c ON o.password = c.id", "JOIN c ON o.password = ****"),
        ("JOIN parquet.`s3://k:pw@b` AS c", "JOIN **************************"),
        ("JOIN c `/hun/ter`", "JOIN c **********"),
        ("JOIN c ON a = hunter", "JOIN c ON a = ******"),
    ],
)
def test_a_look_up_table_is_shown_in_an_echoed_statement(text: str, shown: str | None) -> None:
    assert mask_statement(text) == (shown or text)


def test_an_error_echoes_the_statement_without_its_secrets() -> None:
    text = "CREATE CHANGEFEED FOR t INTO 'kafka://u:s3cret@h' WITH formt"
    statement = parse(text)
    assert isinstance(statement, nodes.CreateChangefeed)
    with pytest.raises(ChangefeedError) as caught:
        parse_options(statement.options, scheme="kafka", text=text)
    assert caught.value.text == "CREATE CHANGEFEED FOR t INTO 'kafka://********@h' WITH formt"
    assert caught.value.span is not None
    assert caught.value.text[caught.value.span.start : caught.value.span.end] == "formt"


def test_help_lists_what_a_sink_takes() -> None:
    kafka = {entry.name: entry for entry in listing(capabilities("kafka"))}
    assert {entry.name for entry in listing()} == set(OPTIONS)
    assert not any(name.startswith("webhook_") for name in kafka)
    of_files = {entry.name for entry in listing(capabilities("file"))}
    assert {"headers_json_column_name", "extra_headers", "kafka_sink_config"} <= set(
        kafka
    ) - of_files
    assert "webhook_auth_header" not in of_files
    assert kafka["format"].values == "json, csv, avro, protobuf, parquet"
    assert kafka["format"].default == "json"
    assert kafka["resolved"].values == "duration"


# ------------------------------------------------------------------------------- ALTER


def altered(current: Options, written: str) -> Options:
    statement = parse(f"ALTER CHANGEFEED f {written}")
    assert isinstance(statement, nodes.AlterChangefeed)
    changes: list[nodes.Option] = []
    removed: list[nodes.Name] = []
    for action in statement.actions:
        if isinstance(action, nodes.AlterSet):
            changes.extend(action.options)
        if isinstance(action, nodes.AlterUnset):
            removed.extend(action.names)
    return alter_options(current, changes, removed, scheme="kafka", clock=ManualClock(NOW))


def test_alter_changes_a_copy() -> None:
    current = given("diff, resolved = '10s', cursor = '-10m'")
    new = altered(current, "SET resolved = '5s', updated UNSET diff")
    assert new.to_dict() == {
        "resolved": "5s",
        "updated": "",
        "cursor": "1699999400000000000.0000000000",
    }
    assert new[INITIAL_SCAN] is InitialScan.NO
    assert (new[RESOLVED], new[DIFF]) == (5.0, False)
    assert current[RESOLVED] == 10.0


def test_a_new_cursor_is_an_instant() -> None:
    clock = ManualClock(10**18)
    (back,) = nodes_of("cursor = '-1h'")
    assert parse_new_cursor(back, clock=clock) == Timestamp(10**18 - 3_600 * 10**9)
    (offset,) = nodes_of("""cursor = 'debezium:{"lsn": 1}'""")
    with pytest.raises(ChangefeedError, match="once, when it is created"):
        parse_new_cursor(offset, clock=clock)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("SET initial_scan = 'no'", 'cannot alter option "initial_scan"'),
        ("SET no_initial_scan", 'cannot alter option "no_initial_scan"'),
        ("UNSET cursor", 'cannot unset option "cursor"'),
        ("UNSET end_time", 'cannot unset option "end_time"'),
        ("UNSET sink", 'cannot unset option "sink"'),
        ("SET sink", 'cannot alter option "sink"'),
        ("UNSET qux", 'invalid option "qux"'),
        ("SET qux", 'invalid option "qux"'),
        ("SET updated UNSET updated", 'option "updated" specified multiple times'),
        (
            "SET unordered",
            "resolved timestamps cannot be guaranteed to be correct in unordered mode",
        ),
        ("SET envelope = row", "diff is only usable with envelope=wrapped"),
    ],
)
def test_what_alter_refuses(written: str, message: str) -> None:
    with pytest.raises(ChangefeedError) as caught:
        altered(given("diff, resolved"), written)
    assert [problem.message for problem in problems_of(caught.value)] == [message]


def test_the_end_of_a_running_feed_does_not_stop_alter() -> None:
    current = Options.from_dict({"end_time": "1"})
    assert altered(current, "SET diff")[DIFF] is True


def test_add_takes_initial_scan_alone() -> None:
    assert parse_add_options(()) is InitialScan.YES
    assert parse_add_options(nodes_of("initial_scan = 'no'")) is InitialScan.NO
    assert parse_add_options(nodes_of("no_initial_scan")) is InitialScan.NO
    assert parse_add_options(nodes_of("initial_scan_only")) is InitialScan.ONLY
    with pytest.raises(ChangefeedError, match='option "diff" is not allowed with ADD'):
        parse_add_options(nodes_of("diff"))


# ------------------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("-0", 0),
        ("10s", 10),
        ("1.5s", 1.5),
        (".5m", 30),
        ("100ms", 0.1),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("-10m", -600),
        ("+5 minutes", 300),
        ("2 days", 172800),
        ("1 hr 2 secs", 3602),
        ("7US", 7e-6),
        ("3µs", 3e-6),
        ("1w", 604800),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds, abs=0)


@pytest.mark.parametrize("text", ["", "-", "s", "10", "1x", "1s2", "--1s", "1..5s", "1s,", "٣s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("64MB", 64_000_000),
        ("64MiB", 64 * 2**20),
        ("1.5 GiB", 3 * 2**29),
        ("2k", 2000),
        ("2Ki", 2048),
        ("10B", 10),
        ("1tib", 2**40),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-1", "1 PB", "1iB", "1.2.3MB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="invalid size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("5", Timestamp(5)),
        ("5.0000000007", Timestamp(5, 7)),
        ("-10s", Timestamp(NOW - 10_000_000_000)),
        ("1us", Timestamp(NOW + 1000)),
        ("1970-01-01", Timestamp(0)),
        ("1970-01-01 00:00:01Z", Timestamp(10**9)),
        ("1970-01-01T01:00:00.000001+01:00", Timestamp(1000)),
    ],
)
def test_moments(text: str, moment: Timestamp) -> None:
    assert parse_moment(text, Timestamp(NOW)) == moment


@pytest.mark.parametrize("text", ["", "soon", "1969-12-31", "2999-01-01", "-100000d"])
def test_what_is_no_moment(text: str) -> None:
    with pytest.raises(ValueError, match="timestamp"):
        parse_moment(text, Timestamp(NOW))


def test_the_present_is_no_future() -> None:
    clock = ManualClock(NOW)
    assert Moment(past=True).read("cursor", str(NOW), clock) == Timestamp(NOW)
    with pytest.raises(ValueError, match="is in the future"):
        Moment(past=True).read("cursor", str(NOW + 1), clock)


def test_a_text_may_have_as_many_bytes_as_its_limit() -> None:
    clock = ManualClock(NOW)
    assert Text(limit=4).read("label", "éé", clock) == "éé"
    with pytest.raises(ValueError, match="at most 4 bytes"):
        Text(limit=4).read("label", "ééx", clock)


def test_json_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(ValueError, match="too deeply nested"):
        Json(dict).read("extra_headers", "[" * 200_000, ManualClock(NOW))


# ------------------------------------------------------------------------------- CREATE CDC


def cdc(written: str, kind: str = "KAFKA") -> tuple[str, tuple[nodes.Option, ...]]:
    statement = parse(f"CREATE CDC FOR t INTO {kind} WITH {written}")
    assert isinstance(statement, nodes.CreateCdc)
    return statement.kind, statement.options


def test_cdc_options() -> None:
    found = parse_cdc_options(
        *cdc("cluster_address = 'http://localhost:9092/', topic = 'x', record = ALL, updated")
    )
    assert (found.cluster_address, found.target) == ("localhost:9092", "x")
    assert found.record is nodes.CdcRecord.ALL
    assert [option.name for option in found.others] == ["updated"]
    found = parse_cdc_options(*cdc("cluster_address = 'h:1'", "ELASTICSEARCH"))
    assert (found.cluster_address, found.target) == ("h:1", None)
    assert found.record is nodes.CdcRecord.AFTER
    assert set(CDC_OPTIONS) == {"cluster_address", "topic", "index", "record"}


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("topic = 't'", 'option "cluster_address" is needed'),
        ("cluster_address", 'option "cluster_address" requires a value'),
        ("cluster_address = 'h', index = 'i'", "this sink is incompatible with option index"),
        ("cluster_address = 'h', topic = a, topic = b", 'option "topic" specified multiple times'),
        (
            "cluster_address = 'h', record = AFTR",
            "unknown record: AFTR, valid values are 'AFTER', 'CHANGE' and 'ALL'",
        ),
    ],
)
def test_what_cdc_refuses(written: str, message: str) -> None:
    with pytest.raises(ChangefeedError) as caught:
        parse_cdc_options(*cdc(written))
    assert caught.value.message == message


def test_a_known_value_of_a_misspelt_option_is_shown() -> None:
    text = "CREATE CHANGEFEED f FOR t INTO 'null://' WITH formt = 'json', difff = true, x = 'a1'"
    assert mask_statement(text) == text.replace("'a1'", "'**'")
    secret = "CREATE CHANGEFEED f FOR t INTO 'null://' WITH api_secret = 'json', pasword = 'horse'"
    assert mask_statement(secret) == secret.replace("json", "****").replace("horse", "*****")


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ('{"delta.appendOnly": true}', 'the feed itself decides property "delta.appendOnly"'),
        ('{"changefeed.owner": "6d65"}', 'the feed itself decides property "changefeed.owner"'),
        ('{"format-version": 1}', "format-version must be 2 or 3"),
        ('{"a": ["b"]}', 'the value of property "a" must be a string, number or boolean'),
        ('{"a": null}', 'the value of property "a" must be a string, number or boolean'),
    ],
)
def test_properties_that_a_table_cannot_have(written: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        Json(table_properties).read("table_properties", written, ManualClock(NOW))


def test_properties_of_tables_are_texts() -> None:
    written = '{"a": true, "b": 16, "c": "x", "format-version": 3}'
    found = Json(table_properties).read("table_properties", written, ManualClock(NOW))
    assert found == {"a": "true", "b": "16", "c": "x", "format-version": "3"}


def test_the_type_of_numbers_is_read() -> None:
    read = partial(DecimalType().read, "numeric_type", clock=ManualClock(NOW))
    assert read(" Decimal( 38 , 18 ) ") == LogicalType.parse("decimal(38,18)")
    assert read("String") is None


@pytest.mark.parametrize(
    "text", ["", "decimal", "decimal(39,2)", "decimal(0,0)", "decimal(5,6)", "decimal(5)", "text"]
)
def test_another_type_of_numbers_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"numeric_type must be 'string', or 'decimal\(p,s\)'"):
        DecimalType().read("numeric_type", text, ManualClock(NOW))

"""The shapes of messages, letter by letter: language reference, section Messages."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any, cast

import fastavro
import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Scope
from changefeed.core.formats import Format
from changefeed.core.schema import BeforeImage, Column
from changefeed.core.shapes import Deletes, Envelope, Unsent
from changefeed.core.types import Kind, LogicalType
from changefeed.encoding.avro.schema import value_schema
from changefeed.encoding.encode import STRETCH_ROWS, encode_messages
from changefeed.encoding.plan import MessagePlan, control_payload
from changefeed.encoding.typed_rows import RowPlan
from changefeed.encoding.unsent import UNSENT
from tests.helpers.message_model import change, column, log_table, messages, table

T = table([column("a", "int4", nullable=False), column("b", "text")], before_image=BeforeImage.FULL)
AT = "1536242855577149065.0000000000"
UPDATE = change("u", [1, "y"], {"0": 1, "1": "x"})
DELETE = change("d", None, {"0": 1, "1": "y"})

Message = tuple[str, str | None]

SHAPES: list[tuple[MessagePlan, Message, Message]] = [
    (
        MessagePlan(T, "t"),
        ("[1]", '{"after": {"a": 1, "b": "y"}}'),
        ("[1]", '{"after": null}'),
    ),
    (
        MessagePlan(
            T, "t", diff=True, updated=True, mvcc_timestamp=True, key_in_value=True,
            topic_in_value=True,
        ),
        (
            "[1]",
            '{"after": {"a": 1, "b": "y"}, "before": {"a": 1, "b": "x"}, "key": [1], '
            f'"mvcc_timestamp": "{AT}", "topic": "t", "updated": "{AT}"}}',
        ),
        (
            "[1]",
            '{"after": null, "before": {"a": 1, "b": "y"}, "key": [1], '
            f'"mvcc_timestamp": "{AT}", "topic": "t", "updated": "{AT}"}}',
        ),
    ),
    (MessagePlan(T, "t", Envelope.ROW), ("[1]", '{"a": 1, "b": "y"}'), ("[1]", None)),
    (
        MessagePlan(T, "t", Envelope.ROW, updated=True),
        ("[1]", f'{{"__crdb__": {{"updated": "{AT}"}}, "a": 1, "b": "y"}}'),
        ("[1]", None),
    ),
    (
        MessagePlan(T, "t", Envelope.BARE),
        ("[1]", '{"__crdb__": {"key": [1]}, "a": 1, "b": "y"}'),
        ("[1]", '{"__crdb__": {"key": [1]}, "a": 1, "b": null}'),
    ),
    (MessagePlan(T, "t", Envelope.CHANGED), ("[1]", '{"b": "y"}'), ("[1]", None)),
    (
        MessagePlan(T, "t", Envelope.CHANGED, updated=True),
        ("[1]", f'{{"__crdb__": {{"updated": "{AT}"}}, "b": "y"}}'),
        ("[1]", None),
    ),
    (MessagePlan(T, "t", Envelope.KEY_ONLY), ("[1]", None), ("[1]", None)),
    (
        MessagePlan(
            T, "t", Envelope.ENRICHED, diff=True, key_in_value=True, updated=True,
            mvcc_timestamp=True, source=(("changefeed_sink", "kafka"), ("job_id", "12")),
        ),
        (
            '{"a": 1}',
            '{"after": {"a": 1, "b": "y"}, "before": {"a": 1, "b": "x"}, "key": {"a": 1}, '
            '"op": "u", "source": {"changefeed_sink": "kafka", "job_id": "12", '
            f'"mvcc_timestamp": "{AT}", "primary_keys": ["a"], "schema_name": "public", '
            f'"table_name": "t", "ts_hlc": "{AT}", "ts_ns": 1536242855577149065}}, "ts_ns": 5}}',
        ),
        (
            '{"a": 1}',
            '{"after": null, "before": {"a": 1, "b": "y"}, "key": {"a": 1}, '
            '"op": "d", "source": {"changefeed_sink": "kafka", "job_id": "12", '
            f'"mvcc_timestamp": "{AT}", "primary_keys": ["a"], "schema_name": "public", '
            f'"table_name": "t", "ts_hlc": "{AT}", "ts_ns": 1536242855577149065}}, "ts_ns": 5}}',
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("plan", "update", "delete"), SHAPES)
def test_shape(plan: MessagePlan, update: Message, delete: Message) -> None:
    made = encode_messages(log_table(T, [UPDATE, DELETE]), plan, now_ns=5)
    found = [(m["key"].decode(), m["value"] and m["value"].decode()) for m in made.to_pylist()]
    assert found == [update, delete]


#: Envelopes whose marks stand beside no row's own columns.
OBJECTS = (Envelope.WRAPPED, Envelope.ENRICHED, Envelope.DEBEZIUM)


@pytest.mark.parametrize("envelope", Envelope)
def test_marks(envelope: Envelope) -> None:
    for member in ("resolved", "truncate"):
        text = f'{{"{member}": "1.0000000002"}}'
        if envelope not in OBJECTS:
            text = f'{{"__crdb__": {text}}}'
        assert control_payload(envelope, member, Timestamp(1, 2)) == text.encode()
    text = '{"table": "shop.public.t", "truncate": "1.0000000002"}'
    if envelope not in OBJECTS:
        text = f'{{"__crdb__": {text}}}'
    assert control_payload(envelope, "truncate", Timestamp(1, 2), T.table) == text.encode()


def test_unsent_values_are_marked() -> None:
    """Neither NULL nor a value of another time stands for a value that is not known."""
    names = [("k", "int4"), ("v", "text"), ("j", "jsonb"), ("b", "text"), ("l", "text")]
    columns = [column(name, kind) for name, kind in names]
    columns[3] = replace(columns[3], type_name="bytea", logical=LogicalType(Kind.BYTES))
    columns[4] = replace(columns[4], type_name="text[]", logical=LogicalType.parse("array<text>"))
    schema = table(columns)
    rows = [
        change("u", [1, None, "1", "\\x00", "[]"], {"0": 1}, missing='["v"]'),
        change("u", [2, None, None, None, None], {"0": 2}, missing='["v", "j", "b", "l"]'),
        change("u", [3, None, None, None, None], {"0": 3}),
    ]
    made = encode_messages(
        log_table(schema, rows), MessagePlan(schema, "t"), frozenset({"a1", "a3"})
    )
    after = [json.loads(m["value"])["after"] for m in made.to_pylist()]
    assert after == [
        {"k": 1, "v": UNSENT, "j": 1, "b": "\\x00", "l": []},
        {"k": 2, "v": UNSENT, "j": UNSENT, "b": "\\x" + UNSENT.encode().hex(), "l": [UNSENT]},
        {"k": 3, "v": None, "j": None, "b": None, "l": None},
    ]
    avro = MessagePlan(schema, "t", format=Format.AVRO)
    data = encode_messages(log_table(schema, rows), avro).to_pylist()[1]["value"]
    read: Any = fastavro.schemaless_reader(io.BytesIO(data), cast(Any, value_schema(avro)), None)
    assert read["after"] == {
        "k": 2, "v": UNSENT, "j": json.dumps(UNSENT), "b": UNSENT.encode(), "l": [UNSENT],
    }  # fmt: skip


def test_unsent_values_are_left_out() -> None:
    """In every envelope, also where the first column is meant, and of types without room."""
    names = [("v", "text"), ("k", "int4"), ("n", "int8"), ("j", "jsonb")]
    schema = replace(table([column(name, kind) for name, kind in names]), key=(1,))
    rows = [
        change("u", [None, 1, 5, None], {"1": 1}, missing='["v", "j"]'),
        change("u", ["x", 2, None, "{}"], {"1": 2}, missing='["n"]'),
        change("u", [None, 3, None, None], {"1": 3}),
        change("d", None, {"1": 4}),
    ]
    expected = [
        {"k": 1, "n": 5},
        {"v": "x", "k": 2, "j": {}},
        {c: None for c, _ in names} | {"k": 3},
    ]
    for envelope in (Envelope.WRAPPED, Envelope.ENRICHED, Envelope.ROW, Envelope.BARE):
        for updated in (False, True):
            plan = MessagePlan(schema, "t", envelope=envelope, updated=updated, unsent=Unsent.OMIT)
            made = encode_messages(log_table(schema, rows), plan)["value"].to_pylist()
            values = [json.loads(value) for value in made[:3]]
            if envelope in (Envelope.WRAPPED, Envelope.ENRICHED):
                values = [value["after"] for value in values]
            for value in values:
                value.pop("__crdb__", None)
            assert values == expected
    projected = MessagePlan(schema, "t", projection=("k",), unsent=Unsent.OMIT)
    made = encode_messages(log_table(schema, rows), projected)["value"].to_pylist()
    assert made[:3] == [b'{"after": {"k": %d}}' % k for k in (1, 2, 3)]


@pytest.mark.parametrize("envelope", [Envelope.WRAPPED, Envelope.ROW, Envelope.DEBEZIUM])
def test_no_message_without_a_value(envelope: Envelope) -> None:
    schema = table([column("k", "int4"), column("v", "text"), column("w", "text")])
    rows = [change("u", [1, None, "x"], {"0": 1}, missing='["v"]')]
    plan = MessagePlan(schema, "t", envelope=envelope, unsent=Unsent.FAIL)
    with pytest.raises(ChangefeedError, match=r"column v .* was not sent, .*'fail'") as caught:
        encode_messages(log_table(schema, rows), plan)
    assert caught.value.code.number == "CF4001" and caught.value.scope is Scope.TABLE
    with pytest.raises(ChangefeedError, match=r"column v .* was not sent"):
        RowPlan(plan).rows(log_table(schema, rows))
    without = replace(plan, projection=("k", "w"))
    assert encode_messages(log_table(schema, rows), without).num_rows == 1
    assert RowPlan(without).rows(log_table(schema, rows)).num_rows == 1


@pytest.mark.parametrize("unsent", [Unsent.MARK, Unsent.OMIT])
def test_a_message_whose_key_was_not_sent_is_an_error(unsent: Unsent) -> None:
    """It would be another key's message."""
    schema = table([column("k", "int4"), column("v", "text")])
    rows = [change("u", [1, None], {"0": 1}, missing='["v"]')]
    plan = MessagePlan(schema, "t", key_column="v", unsent=unsent)
    with pytest.raises(ChangefeedError, match=r"column v .* was not sent, and it is the key"):
        encode_messages(log_table(schema, rows), plan)


@pytest.mark.parametrize("unsent", [Unsent.MARK, Unsent.OMIT])
def test_a_message_whose_headers_were_not_sent_is_an_error(unsent: Unsent) -> None:
    schema = table([column("k", "int4"), column("h", "jsonb")])
    rows = [change("u", [1, None], {"0": 1}, missing='["h"]')]
    plan = MessagePlan(schema, "t", headers_column="h", unsent=unsent)
    with pytest.raises(ChangefeedError, match=r"column h .* was not sent, and it is the headers"):
        encode_messages(log_table(schema, rows), plan)


#: Logical types, and what stands for a value in formats with types; None: there is no room.
ROOM: dict[str, tuple[Any, Any, Any]] = {
    "text": (UNSENT, UNSENT, UNSENT),
    "json": (json.dumps(UNSENT),) * 3,
    "bytes": (UNSENT.encode(),) * 3,
    "decimal": (UNSENT, UNSENT, UNSENT),
    "decimal(12,2)": (UNSENT, UNSENT, None),
    "array<text>": ([UNSENT], [UNSENT], [UNSENT]),
    "array<uuid>": ([UNSENT], [UNSENT], [UNSENT]),
    "array<bytes>": ([UNSENT.encode()],) * 3,
    "array<int32>": (None, None, None),
    "array<decimal(12,2)>": (None, None, None),
    "array<timestamptz>": (None, None, None),
}


@pytest.mark.parametrize("logical", ROOM)
@pytest.mark.parametrize("place", [0, 1, 2], ids=["avro", "protobuf", "parquet"])
def test_unsent_values_in_formats_with_types(logical: str, place: int) -> None:
    """The placeholder in the column's own type, or an error that says what to do."""
    schema = table(
        [column("k", "int4"), replace(column("v", "text"), logical=LogicalType.parse(logical))]
    )
    written = (Format.AVRO, Format.PROTOBUF, Format.PARQUET)[place]
    plan = MessagePlan(schema, "t", format=written)
    rows = [change("u", [1, None], {"0": 1}, missing='["v"]')]
    expected = ROOM[logical][place]
    if expected is None:
        with pytest.raises(ChangefeedError, match=r"column v of .* was not sent") as caught:
            encode_messages(log_table(schema, rows), plan)
        assert caught.value.code.number == "CF4001"
        assert "REPLICA IDENTITY FULL" in caught.value.hint
        return
    value: Any = encode_messages(log_table(schema, rows), plan).to_pylist()[0]["value"]
    if written is Format.PARQUET:
        assert value["v"] == expected
    elif written is Format.AVRO:
        found: Any = fastavro.schemaless_reader(
            io.BytesIO(value), cast(Any, value_schema(plan)), None
        )
        assert found["after"]["v"] == expected
    else:
        [element] = expected if isinstance(expected, list) else [expected]
        data = element if isinstance(element, bytes) else element.encode()
        assert value.endswith(bytes([len(data)]) + data)


def test_an_unsent_number_is_a_text_of_json_and_an_error_where_it_has_no_placeholder() -> None:
    schema = table([column("k", "int4"), column("n", "int8")])
    plan = MessagePlan(schema, "t")
    made = encode_messages(
        log_table(schema, [change("u", [1, None], {"0": 1}, missing='["n"]')]), plan
    )
    assert json.loads(made["value"][0].as_py())["after"] == {"k": 1, "n": UNSENT}
    for refusing, missing in ((plan, "k"), (replace(plan, envelope=Envelope.DEBEZIUM), "n")):
        rows = [change("u", [1, None], {"0": 1}, missing=f'["{missing}"]')]
        with pytest.raises(ChangefeedError, match=rf"column {missing} .*was not sent") as caught:
            encode_messages(log_table(schema, rows), refusing)
        assert "REPLICA IDENTITY FULL" in caught.value.hint


def test_no_rows() -> None:
    plan = MessagePlan(T, "t")
    assert encode_messages(log_table(T, []), plan).num_rows == 0


def test_clean_columns_are_taken_at_their_word() -> None:
    rows = log_table(T, [UPDATE])
    made = encode_messages(rows, MessagePlan(T, "t"), frozenset({"a1", "b1"}))
    assert made["value"][0].as_py() == b'{"after": {"a": 1, "b": "y"}}'


@pytest.mark.parametrize("columns", [1, pytest.param(120, marks=pytest.mark.extended)])
def test_many_rows_keep_their_order(columns: int) -> None:
    schema = table([column("id", "int8"), *(column(f"c{i}", "text") for i in range(columns))])
    rows = [
        change("u", [n, *[f'te"xt {n}' if n % 3 else None] * columns], seq=n, last=n % 7 > 0)
        for n in range(STRETCH_ROWS + 500)
    ]
    plan = MessagePlan(schema, "t", updated=True)
    made = encode_messages(log_table(schema, rows), plan)
    assert made.drop_columns(["headers"]).to_pylist() == messages(plan, rows)


@pytest.mark.parametrize(
    ("kind", "values", "low", "high", "kept"),
    [
        ("int4", [1, 2, 10, 11], ("2",), ("11",), [2, 10]),
        ("text", ["a", "b", "ba", "c"], ("b",), ("c",), ["b", "ba"]),
        ("numeric", ["1", "9.99", "10.000", "101"], ("9.99",), ("101",), ["9.99", "10.000"]),
        ("bool", [False, True], ("true",), (), [True]),
    ],
)
def test_key_range(
    kind: str,
    values: list[object],
    low: tuple[str, ...],
    high: tuple[str, ...],
    kept: list[object],
) -> None:
    schema = table([column("k", kind), column("b", "text")])
    plan = MessagePlan(schema, "t", key_from=low, key_to=high)
    rows = [change("c", [value, "x"], seq=n) for n, value in enumerate(values)]
    rows += [change("d", None, {"0": value}, seq=10 + n) for n, value in enumerate(values)]
    made = encode_messages(log_table(schema, rows), plan)
    wanted = [n for n, value in enumerate(values) if value in kept]
    assert made["seq"].to_pylist() == wanted + [10 + n for n in wanted]


def test_key_range_of_two_columns_and_of_times() -> None:
    moment = Column("at", "timestamptz", LogicalType.parse("timestamptz"))
    schema = table([moment, column("n", "int4")], key=(0, 1))
    keys = [
        ("2024-01-01T00:00:03Z", 5),
        ("2024-01-01T00:00:03Z", 6),
        ("2024-01-01T00:00:03.5Z", 1),
        ("2024-01-01T00:00:04Z", 1),
    ]
    plan = MessagePlan(
        schema, "t", key_from=("2024-01-01T00:00:03Z", "6"), key_to=("2024-01-01T00:00:04Z",)
    )
    rows = [change("c", key, seq=n) for n, key in enumerate(keys)]
    assert encode_messages(log_table(schema, rows), plan)["seq"].to_pylist() == [1, 2]


def test_key_range_of_dates_far_away() -> None:
    """Dates are texts: years of five digits, and none, sort as the type does."""
    schema = table([Column("d", "date", LogicalType.parse("date"))])
    days = ["-infinity", "0001-01-01", "9999-12-31", "10000-01-01", "120000-01-01", "infinity"]
    rows = [change("c", [day], seq=n) for n, day in enumerate(days)]
    for n, low in enumerate(days):
        plan = MessagePlan(schema, "t", key_from=(low,))
        made = encode_messages(log_table(schema, rows), plan)
        assert made["seq"].to_pylist() == list(range(n, len(days)))
    rows.append(change("c", ["0044-03-15 BC"], seq=9))
    with pytest.raises(ChangefeedError, match="before the year 1") as caught:
        encode_messages(log_table(schema, rows), plan)
    assert caught.value.code.number == "CF4001"


@pytest.mark.parametrize("kind", ["interval", "float8"])
def test_key_range_of_a_type_that_only_sounds_ordered(kind: str) -> None:
    logical = {"interval": "interval", "float8": "float64"}[kind]
    schema = table([Column("k", kind, LogicalType.parse(logical))])
    plan = MessagePlan(schema, "t", key_from=("1",))
    with pytest.raises(ChangefeedError, match=f"not supported on a key of type {kind}"):
        encode_messages(log_table(schema, [change("c", ["1"])]), plan)


def test_key_range_on_a_type_without_an_order_here() -> None:
    schema = table([column("k", "jsonb")])
    plan = MessagePlan(schema, "t", key_from=("{}",))
    with pytest.raises(ChangefeedError, match="not supported on a key of type jsonb") as caught:
        encode_messages(log_table(schema, [change("c", ["1"])]), plan)
    assert caught.value.code.number == "CF1302"


def test_projection_keeps_the_key_and_the_order() -> None:
    schema = table([column(name, "int4") for name in ("x", "k", "y")], key=(1,))
    plan = MessagePlan(schema, "t", projection=("y",))
    made = encode_messages(log_table(schema, [change("c", [1, 2, 3])]), plan)
    assert made["value"][0].as_py() == b'{"after": {"k": 2, "y": 3}}'


@pytest.mark.parametrize(("deletes", "ops"), [("yes", "ud"), ("no", "u"), ("only", "d")])
def test_deletes(deletes: str, ops: str) -> None:
    plan = MessagePlan(T, "t", deletes=Deletes(deletes))
    made = encode_messages(log_table(T, [UPDATE, DELETE]), plan)
    assert "".join(made["op"].to_pylist()) == ops


H = table([column("k", "int4"), column("h", "jsonb"), column("b", "text")])


@pytest.mark.parametrize(
    ("value", "extra", "headers"),
    [
        (None, (), None),
        ("null", (), None),
        ('{"x": "1"}', (), '{"x": "1"}'),
        ("{}", (), None),
        (None, (("e", "é"),), '{"e": "é"}'),
        ("{ }", (("e", "1"),), '{"e": "1"}'),
        (' {"x": "1"} ', (("e", "1"),), '{"e": "1", "x": "1"}'),
    ],
)
def test_headers(
    value: str | None,
    extra: tuple[tuple[str, str], ...],
    headers: str | None,
) -> None:
    plan = MessagePlan(H, "t", headers_column="h", extra_headers=extra)
    made = encode_messages(log_table(H, [change("c", [1, value, "y"])]), plan)
    assert made["headers"].to_pylist() == [headers]
    assert made["value"][0].as_py() == b'{"after": {"k": 1, "b": "y"}}'


def test_headers_that_are_no_object() -> None:
    plan = MessagePlan(H, "t", headers_column="h")
    rows = log_table(H, [change("c", [1, "[17]", "y"])])
    with pytest.raises(ChangefeedError) as caught:
        encode_messages(rows, plan)
    assert caught.value.code.number == "CF4001"
    assert caught.value.message == "the headers column h of t holds JSON that is not an object"
    assert "17" not in str(caught.value.detail)


def test_csv() -> None:
    schema = table(
        [column("k", "int4"), column("b", "text"), column("n", "numeric"), column("t", "bool")]
    )
    rows = [
        change("r", [1, "plain", "1.50", True]),
        change("r", [2, 'say "hi", you\n', '"NaN"', None]),
        change("r", [3, "", None, False]),
        change("r", [4, None, "1e+10", False]),
        change("r", [5, " x", "0", False]),
    ]
    plan = MessagePlan(schema, "t", format=Format.CSV)
    made = encode_messages(log_table(schema, rows), plan)
    assert [m["value"].decode() for m in made.to_pylist()] == [
        "1,plain,1.50,true",
        '2,"say ""hi"", you\n",NaN,',
        '3,"",,false',
        "4,,1e+10,false",
        '5," x",0,false',
    ]

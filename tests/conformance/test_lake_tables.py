"""What lake tables hold: values of every type, refused values, layout, notes, upkeep."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.events import Resolved
from changefeed.core.schema import Column, TableName, TableSchema
from changefeed.core.types import LogicalType
from changefeed.spark.internals.arrow_types import frame_of
from changefeed.spark.session import NodeSpark
from sinks.base import Batch, Difference, Epoch, SinkContext, Target
from sinks.lake.sink import LakeSink
from sinks.lake.table import LakeTable
from sinks.registry import open_sink
from tests.conformance.test_lake import watched
from tests.helpers.lake import Lake, place_in

pytestmark = pytest.mark.spark

Values = tuple[str, str, object, object]

#: Logical type, physical type, the logged value, and what a reader gets.
VALUES: tuple[Values, ...] = (
    ("bool", "bool", True, True),
    ("int16", "int16", -32768, -32768),
    ("int64", "int64", 2**63 - 1, 2**63 - 1),
    ("float32", "string", "0.1", pytest.approx(0.1, rel=1e-6)),
    ("float64", "string", "1e+300", 1e300),
    ("float64", "string", '"-Infinity"', float("-inf")),
    ("decimal(12,2)", "string", "-9999999999.99", Decimal("-9999999999.99")),
    ("decimal(38,0)", "string", "9" * 38, Decimal("9" * 38)),
    ("decimal", "string", "1.5000", "1.5000"),
    ("decimal", "string", '"NaN"', "NaN"),
    ("date", "string", "2024-02-29", dt.date(2024, 2, 29)),
    ("timestamp", "string", "2024-03-31T01:02:03.5", dt.datetime(2024, 3, 31, 1, 2, 3, 500_000)),
    (
        "timestamptz", "string", "2024-03-31T01:02:03.123456Z",
        dt.datetime(2024, 3, 31, 1, 2, 3, 123456, dt.UTC),
    ),
    ("bytes", "string", "\\x00ff10", bytearray(b"\x00\xff\x10")),
    ("json", "string", '{"b": 1.50, "a": [1, null]}', '{"b": 1.50, "a": [1, null]}'),
    ("uuid", "string", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", None),
    ("interval", "string", "1 day 02:03:04", "1 day 02:03:04"),
    ("array<int32>", "string", "[1,null,-3]", [1, None, -3]),
    ("array<text>", "string", '["a","b \\" c",null]', ["a", 'b " c', None]),
    ("array<decimal(4,1)>", "string", "[1.5,null]", [Decimal("1.5"), None]),
    (
        "array<decimal(38,20)>", "string", "[-123456789012345678.01234567890123456789,null]",
        [Decimal("-123456789012345678.01234567890123456789"), None],
    ),
    # Digits that no double has.
    (
        "array<decimal>", "string", '[12345678901234567890.10,null,"NaN",-0.50,7]',
        ["12345678901234567890.10", None, "NaN", "-0.50", "7"],
    ),
    ("array<json>", "string", '[{"a": 1.2345678901234567890},"1",1.50]', None),
    ("array<float64>", "string", '[0.5,"NaN"]', None),
    ("array<timestamptz>", "string", '["2024-01-01T00:00:00Z"]', None),
    ("array<bytes>", "string", '["\\\\x0a"]', [bytearray(b"\n")]),
    ("array<bool>", "string", "[true,false,null]", [True, False, None]),
)  # fmt: skip

#: Values without a place in the column's type.
REFUSED = (
    # The last one of PostgreSQL, beyond those of Spark, which says so itself.
    ("timestamp", "294276-12-31T23:59:59"),
    ("timestamptz", "infinity"),
    ("timestamp", "-infinity"),
    ("date", "0044-03-15 BC"),
    ("timestamp", "0044-03-15T01:02:03 BC"),
    ("timestamptz", "0044-03-15T01:02:03Z BC"),
    ("decimal(4,2)", '"NaN"'),
    ("array<int32>", "[[1,2],[3,4]]"),
    ("array<date>", '["2024-01-01","infinity"]'),
    ("array<decimal(4,2)>", '[1.50,null,"NaN"]'),
    ("array<text>", '"[0:1]={1,2}"'),
)


def schema_of(*columns: tuple[str, str]) -> TableSchema:
    """Table ``t``: key ``id`` and columns ``v0..`` of (logical, physical) types."""
    made = [Column("id", "int4", LogicalType.parse("int32"), False, 1)]
    for n, (logical, _) in enumerate(columns):
        made.append(Column(f"v{n}", logical, LogicalType.parse(logical), True, n + 2))
    return TableSchema(TableName("s", "public", "t"), tuple(made), (0,))


class Bench:
    """One sink object on one place."""

    def __init__(
        self,
        engine: NodeSpark,
        uri: str,
        folder: Path,
        options: Mapping[str, object],
        source: str = "t",
    ):
        self.lake = Lake(engine, uri)
        self.target = Target(TableName("s", "public", source), "t")
        sink = open_sink(uri, options)
        assert isinstance(sink, LakeSink)
        self.sink = sink
        self._context = SinkContext(
            "feed", 1, (self.target,), options, spark=engine, scratch=str(folder / "scratch")
        )
        self.sink.open(self._context)
        self.epoch = 0

    def round(self, schema: TableSchema, version: int, *rows: tuple[str, tuple[Any, ...]]) -> None:
        """Write and commit changes of one version: operation and values."""
        self.epoch += 1
        found: list[dict[str, object]] = []
        for n, (op, values) in enumerate(rows):
            row: dict[str, object] = {
                "op": op, "wall": version, "logical": 0, "seq": self.epoch * 100 + n, "ord": n,
                "xid": 1, "commit_us": version // 1000, "last": True, "missing": None,
            }  # fmt: skip
            side = "b" if op == "d" else "a"
            found.append(row | {f"{side}{i}": value for i, value in enumerate(values)})
        table = pa.Table.from_pylist(found, schema=schema.log_schema())
        epoch = Epoch(self.epoch, Timestamp(version))
        receipt = self.sink.write(Batch("feed", epoch, 0, self.target, schema, table))
        self.sink.commit(epoch, [receipt])

    def differences(
        self, schema: TableSchema, rows: Mapping[int, tuple[Any, ...]]
    ) -> list[Difference]:
        """How the table differs from rows of the source, by key."""
        found = [
            {f"a{i}": value for i, value in enumerate((key, *values))}
            | {"op": "r", "wall": 1, "logical": 0, "seq": 0, "ord": 0, "xid": 1, "last": True}
            for key, values in rows.items()
        ]
        table = pa.Table.from_pylist(found, schema=schema.log_schema())
        return self.sink.compare(self._context, self.target, schema, [table], 10)


@pytest.fixture(params=["delta", "iceberg"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def options() -> dict[str, object]:
    return {}


@pytest.fixture
def bench(
    kind: str, tmp_path: Path, spark_engine: NodeSpark, options: dict[str, object]
) -> Iterator[Bench]:
    made = Bench(spark_engine, place_in(kind, tmp_path), tmp_path, options)
    yield made
    made.sink.close()


def test_values(bench: Bench) -> None:
    schema = schema_of(*((logical, physical) for logical, physical, _, _ in VALUES))
    bench.round(schema, 1000, ("c", (1, *(v for _, _, v, _ in VALUES))))
    bench.round(schema, 2000, ("c", (2, *(None for _ in VALUES))))
    [row, nothing] = (row[:-1] for row in bench.lake.query("select * from {t} order by id"))
    assert nothing == (2, *(None for _ in VALUES))
    for (logical, _, logged, want), got in zip(VALUES, row[1:], strict=True):
        if logical == "timestamptz":
            got = got.astimezone(dt.UTC)
        if logical == "array<timestamptz>":
            got, want = (
                [at.astimezone(dt.UTC) for at in got],
                [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)],
            )
        if logical == "array<float64>":
            assert got[0] == 0.5 and got[1] != got[1]
            continue
        assert got == (logged if want is None else want), logical


@pytest.mark.parametrize("options", [{"json_type": "variant"}])
def test_json_as_variant(bench: Bench, kind: str) -> None:
    plain, schema = schema_of(("text", "string")), schema_of(("text", "string"), ("json", "string"))
    bench.round(plain, 1000, ("c", (9, "before")))
    # A key that comes twice, and a column that comes later.
    bench.round(
        schema,
        2000,
        ("c", (1, "x", '{"b": 1.50, "a": [1, null]}')),
        ("c", (2, "y", '{"a": 2, "a": 3}')),
        ("c", (3, "z", None)),
    )
    bench.round(schema, 3000, ("u", (3, "w", '"text"')), ("d", (1, "x", None)))
    bench.round(schema, 4000, ("c", (1, "x", '{"b": 1.50, "a": [1, null]}')))
    assert bench.lake.columns("t")["v1"] == "variant"
    found = bench.lake.query(
        "select id, to_json(v1), variant_get(v1, '$.a[0]', 'int') from {t} order by id"
    )
    assert found == [
        (1, '{"a":[1,null],"b":1.5}', 1),
        (2, '{"a":3}', None),
        (3, '"text"', None),
        (9, None, None),
    ]
    rows = {1: ("x", '{"a": [1, null], "b": 1.5}'), 2: ("y", '{"a": 3}'), 3: ("w", '"text"')}
    assert bench.differences(schema, {**rows, 9: ("before", None)}) == []
    [difference] = bench.differences(schema, {**rows, 9: ("before", '{"a": 1}')})
    assert difference.key == "[9]" and difference.source == '{"v1": "{\\"a\\":1}"}'


@pytest.mark.parametrize("options", [{"numeric_type": LogicalType.parse("decimal(20,6)")}])
def test_numbers_without_digits_as_decimals(bench: Bench) -> None:
    """What the decimal does not hold stops the table: no cast rounds it, whichever way it takes."""
    schema = schema_of(("decimal", "string"), ("array<decimal>", "string"), ("text", "string"))
    bench.round(schema, 1000, ("c", (1, "1.50", "[-0.000001,null]", "x")))
    bench.round(schema, 2000, ("c", (2, "-3", None, "y")), ("u", (1, "2.5", "[]", "x")))
    kept = bench.lake.columns("t")
    assert (kept["v0"], kept["v1"]) == ("decimal(20,6)", "array<decimal(20,6)>")
    rows = "select id, v0, v1 from {t} order by id"
    two, three = Decimal("2.500000"), Decimal("-3.000000")
    assert bench.lake.query(rows) == [(1, two, []), (2, three, None)]
    for values in (("0.0000001", None, "x"), (None, "[0.0000001]", "x"), ("1" * 15, None, "x")):
        with pytest.raises(ChangefeedError) as raised:
            bench.round(schema, 3000, ("c", (3, *values)))
        assert raised.value.code.number == "CF5006"
        assert "column v0" in raised.value.message or "column v1" in raised.value.message

    def scan(version: int, *values: tuple[str, str]) -> None:
        bench.epoch += 1
        found = [
            {
                "op": "r", "wall": version, "logical": 0, "seq": n, "ord": 0, "xid": 1,
                "last": True, "commit_us": 1,
                "a0": n + 10, "a1": number, "a2": numbers, "a3": "z",
            }
            for n, (number, numbers) in enumerate(values)
        ]  # fmt: skip
        table = pa.Table.from_pylist(found, schema=schema.log_schema())
        epoch = Epoch(bench.epoch, Timestamp(version))
        with bench.lake.engine.use() as session:
            frame = frame_of(session, table)
            bench.sink.write_scan(frame, epoch, bench.target, schema)

    # One regular expression for the whole array would end Java at a long one, or not end.
    long = ",".join(["10000000000000.500000"] * 2000)
    for column, refused in (("v0", ("0.1234567", "[]")), ("v1", ("1", f"[{long},0.1234567]"))):
        with pytest.raises(ChangefeedError) as raised:
            scan(4000, ("1.5", "[1.5]"), refused)
        assert raised.value.code.number == "CF5003"
        assert f"column {column} of table t" in raised.value.message
        assert bench.lake.query(rows) == [(1, two, []), (2, three, None)]
    scan(4000, ("1.5", f"[{long}]"))
    assert bench.lake.query("select size(v1) from {t} where id = 10") == [(2000,)]
    scan(5000, ("1.5", "[1.5]"), ("0.1234560", "[0.1234560,null]"))
    one, half = Decimal("1.500000"), Decimal("0.123456")
    assert bench.lake.query(rows)[2:] == [(10, one, [one]), (11, half, [half, None])]
    same = {1: ("2.50", "[]", "x"), 2: ("-3", None, "y"), 10: ("1.5", "[1.5]", "z")}
    assert bench.differences(schema, {**same, 11: ("0.123456", "[0.123456,null]", "z")}) == []
    [difference] = bench.differences(schema, {**same, 11: ("0.123457", "[0.123456,null]", "z")})
    assert difference.key == "[11]"


@pytest.mark.parametrize("kind", ["iceberg"])  # the casts are the same
def test_a_value_without_a_place_stops_the_table_and_is_not_told(bench: Bench) -> None:
    for version, (logical, value) in enumerate(REFUSED, 1):
        schema = replace(
            schema_of((logical, "string")), table=TableName("s", "public", f"t{version}")
        )
        bench.target = Target(schema.table, f"t{version}")
        with pytest.raises(ChangefeedError) as raised:
            bench.round(schema, version, ("c", (1, value)))
        error = raised.value
        by_spark = version == 1
        assert error.code.number == ("CF5003" if by_spark else "CF5006"), (logical, error.message)
        assert "column v0" in error.message and error.about_row, error.message
        assert f"t{version}" in error.message and error.target == f"t{version}"
        assert value not in f"{error.message} {error.detail}"


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["delta"])  # Iceberg has no constraints
@pytest.mark.parametrize("options", [{}, {"deletes": "soft"}])
def test_a_constraint_of_the_table_is_about_a_row(bench: Bench) -> None:
    schema = schema_of(("text", "string"))
    bench.round(schema, 1000, ("c", (1, "x")))
    bench.lake.query("ALTER TABLE {t} ADD CONSTRAINT word CHECK (v0 <> 'secret-value')")
    with pytest.raises(ChangefeedError) as raised:
        bench.round(schema, 2000, ("c", (2, "y")), ("c", (3, "secret-value")))
    error = raised.value
    assert (error.code.number, error.about_row, error.target) == ("CF5006", True, "t")
    assert "secret-value" not in str(error.fields())
    assert bench.lake.query("select id from {t}") == [(1,)]


#: A property of each format that a reader sees.
ASKED = {
    "delta": {"delta.enableChangeDataFeed": "true", "delta.enableRowTracking": "true"},
    "iceberg": {"format-version": "3", "write.parquet.compression-codec": "gzip"},
}


@pytest.mark.extended
@pytest.mark.parametrize(
    ("kind", "options"), [(kind, {"table_properties": asked}) for kind, asked in ASKED.items()]
)
def test_properties_that_the_feed_asks_for(bench: Bench, kind: str) -> None:
    schema = schema_of(("text", "string"))
    bench.round(schema, 1000, ("c", (1, "x")), ("c", (2, "y")))
    bench.round(schema, 2000, ("u", (1, "z")), ("d", (2, None)))
    assert bench.lake.query("select id, v0 from {t}") == [(1, "z")]
    made = dict(bench.lake.query("show tblproperties {t}"))
    assert {name: made.get(name) for name in ASKED[kind]} == ASKED[kind]
    if kind == "delta":
        path = bench.lake.table("t").split("`")[1]
        changes = f"select _change_type, id, v0 from table_changes_by_path('{path}', 0)"
        assert set(bench.lake.query(changes)) == {
            ("insert", 1, "x"), ("insert", 2, "y"), ("update_preimage", 1, "x"),
            ("update_postimage", 1, "z"), ("delete", 2, "y"),
        }  # fmt: skip


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["delta"])  # Iceberg takes any name
@pytest.mark.parametrize("options", [{"table_properties": {"delta.noSuchThing": "true"}}])
def test_a_property_that_the_format_does_not_know(bench: Bench) -> None:
    with pytest.raises(ChangefeedError, match=r"table_properties: .*noSuchThing") as raised:
        bench.round(schema_of(("text", "string")), 1000, ("c", (1, "x")))
    assert raised.value.code.number == "CF5006"


@pytest.mark.extended
@pytest.mark.parametrize("options", [{"partition_by": "v0", "optimize": 0.001, "expire": 0.001}])
def test_partitions_notes_resolved_and_upkeep(bench: Bench, kind: str) -> None:
    schema = schema_of(("text", "string"))
    start = 1_700_000_000_000_000_000
    for n in range(3):
        bench.round(schema, start + n, ("c", (n, "x")), ("u", (0, f"y{n}")))
    assert sorted(bench.lake.query("select id, v0 from {t}")) == [(0, "y2"), (1, "x"), (2, "x")]
    notes = [note for note in bench.lake.notes("t") if "changefeed.applied" in note]
    assert notes[-1] == {
        "changefeed.applied": str(start + 2),
        "changefeed.feed": "feed",
        "changefeed.resolved": str(Timestamp(start + 2)),
    }
    history = (
        "describe history {t}"
        if kind == "delta"
        else f"select * from {bench.lake.table('t')}.snapshots"
    )
    operations = {str(value) for row in bench.lake.query(history) for value in row}
    assert {"OPTIMIZE", "replace"} & operations
    properties = dict(bench.lake.query("show tblproperties {t}"))
    if kind == "delta":
        assert properties["delta.logRetentionDuration"] == "interval 1 seconds"
        assert properties["delta.checkpointInterval"] == "50"
    # What was applied outlives the upkeep.
    bench.sink.close()
    bench.sink.open(bench._context)
    bench.round(schema, start + 2, ("c", (7, "again")))
    assert len(bench.lake.query("select * from {t}")) == 3
    for n in (1, 2):
        bench.sink.resolved(Resolved(Timestamp(start + n)), b"")
    stated = bench.lake.query("select feed, resolved from {_changefeed_resolved}")
    assert stated == [("feed", str(Timestamp(start + 2)))]


@pytest.mark.parametrize("options", [{"cluster_by": "v0", "sequence_column": "_version"}])
def test_clusters_and_the_name_of_the_version(bench: Bench) -> None:
    schema = schema_of(("text", "string"))
    bench.round(schema, 5, ("c", (1, "x")))
    bench.round(schema, 6, ("u", (1, "y")))
    assert bench.lake.query("select id, v0, _version from {t}") == [(1, "y", 6)]
    clash = replace(
        schema,
        columns=(
            *schema.columns,
            Column("_version", "int4", LogicalType.parse("int32"), True, 9),
        ),
    )
    with pytest.raises(ChangefeedError, match="_version") as raised:
        bench.round(clash, 7, ("c", (2, "x", 1)))
    assert raised.value.code.number == "CF5006"


@pytest.mark.extended
def test_another_writer_is_asked_again(bench: Bench, kind: str) -> None:
    """Rows that somebody else put there do no harm, and a newer version of a row stays."""
    schema = schema_of(("text", "string"))
    bench.round(schema, 5, ("c", (1, "x")))
    bench.lake.query(
        f"insert into {bench.lake.table('t')} values (2, 'theirs', 9), (3, 'theirs', null)"
    )
    bench.round(schema, 6, ("u", (2, "older")), ("u", (3, "newer")), ("c", (4, "new")))
    assert sorted(bench.lake.query("select id, v0 from {t}")) == [
        (1, "x"),
        (2, "theirs"),
        (3, "newer"),
        (4, "new"),
    ]


@pytest.mark.parametrize("kind", ["iceberg"])  # the log of a Delta table hides nothing
def test_a_table_with_the_name_of_a_secret_is_known_again(
    kind: str, tmp_path: Path, spark_engine: NodeSpark
) -> None:
    """SHOW TBLPROPERTIES shows no value that has the word "token" in it."""
    place, schema = place_in(kind, tmp_path), schema_of(("text", "string"))
    for version in (1, 2):
        bench = Bench(spark_engine, place, tmp_path, {}, "api_tokens")
        bench.round(schema, version, ("c", (version, "x")))
        bench.sink.close()
    assert sorted(bench.lake.query("select id from {t}")) == [(1,), (2,)]
    with pytest.raises(ChangefeedError, match='was made for changefeed "feed", table s'):
        Bench(spark_engine, place, tmp_path, {}, "api_passwords").round(schema, 3, ("c", (3, "x")))


@pytest.mark.parametrize("kind", ["iceberg"])
def test_a_round_shuffles_only_rows_of_the_table_that_may_match(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[str] = []
    run = LakeTable.run

    def explained(table: LakeTable, statement: str, rows: int = 0, **how: bool) -> None:
        plans.extend(row[0] for row in table.session.sql(f"EXPLAIN {statement}").collect())
        run(table, statement, rows, **how)

    monkeypatch.setattr(LakeTable, "run", explained)
    bench.sink.filtered_bytes = 0
    schema = schema_of(("text", "string"))
    bench.round(schema, 5, ("c", (1, "x")), ("c", (2, "y")), ("c", (3, "z")))
    bench.round(schema, 6, ("u", (1, "newer")), ("d", (2, None)), ("c", (4, "new")))
    assert sorted(bench.lake.query("select id, v0 from {t}")) == [
        (1, "newer"),
        (3, "z"),
        (4, "new"),
    ]
    assert "might_contain" in plans[-1]


@pytest.mark.parametrize("kind", ["iceberg"])
def test_a_large_round_keeps_to_the_order_somebody_gave_a_table(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    spread = watched(monkeypatch)
    bench.sink.spread_rows = 1
    schema = schema_of(("text", "string"))
    bench.round(schema, 5, ("c", (1, "x")))
    bench.lake.query(f"alter table {bench.lake.table('t')} add partition field v0")
    bench.round(schema, 6, ("u", (1, "y")), ("c", (2, "x")))
    assert spread == [True, False]
    assert sorted(bench.lake.query("select id, v0 from {t}")) == [(1, "y"), (2, "x")]

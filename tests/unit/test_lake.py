"""Lake sinks without Spark: URIs, types, staged rows, places, upkeep."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from changefeed.core.clock import ManualClock, Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.schema import Column, TableName, TableSchema
from changefeed.core.spark_sql import literal, quoted
from changefeed.core.types import Kind, LogicalType
from changefeed.core.uri import redact
from changefeed.options import History
from changefeed.spark.internals.delta import DeltaFile
from sinks.base import Batch, Epoch, Target
from sinks.lake import delta_round
from sinks.lake import sink as lake_sink
from sinks.lake.failure import explained
from sinks.lake.place import place_of
from sinks.lake.sink import DeltaSink, LakeSink
from sinks.lake.staging import StagedFile, bounds, settled, stage
from sinks.lake.table import column_of, split_columns
from sinks.lake.types import spark_type, typed, widens
from sinks.lake.upkeep import Upkeep
from sinks.merged.applied import AppliedVersion
from sinks.merged.fold import groups_of
from sinks.merged.policy import MergeMode
from sinks.registry import open_sink

# ------------------------------------------------------------------------------- place


@pytest.mark.parametrize(
    ("uri", "root", "packs"),
    [
        ("delta:///srv/lake", "/srv/lake", ("delta",)),
        ("delta:///srv/lake/", "/srv/lake", ("delta",)),
        ("delta:///s3a://bucket/lake", "s3a://bucket/lake", ("delta", "hadoop-aws")),
        ("iceberg://c/n?type=hadoop&warehouse=/srv/w", "/srv/w", ("iceberg",)),
        ("iceberg://c/a.b?type=rest&uri=https://h/api&warehouse=w", "w", ("iceberg",)),
    ],
)
def test_places(uri: str, root: str, packs: tuple[str, ...]) -> None:
    place = place_of(uri)
    assert (place.root, place.packs) == (root, packs)


def test_catalog_settings() -> None:
    place = place_of(
        "iceberg://c/a/b?type=jdbc&uri=jdbc:postgresql://h/db&warehouse=s3a://b/w"
        "&jdbc.user=u&jdbc.password=p&fs.s3a.endpoint=http://127.0.0.1:9"
    )
    assert place.namespace == ("a", "b")
    assert dict(place.settings) == {
        "type": "jdbc",
        "uri": "jdbc:postgresql://h/db",
        "warehouse": "s3a://b/w",
        "jdbc.schema-version": "V1",
        "jdbc.user": "u",
        "jdbc.password": "p",
        "hadoop.fs.s3a.endpoint": "http://127.0.0.1:9",
        "hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    }
    assert place.packs == ("iceberg", "hadoop-aws", "postgresql-jdbc")
    assert "p'" not in repr(place)


def test_settings_of_hdfs() -> None:
    nobody_waits = {
        "ipc.client.connect.timeout": "10000",
        "ipc.client.connect.max.retries": "2",
        "ipc.client.connect.max.retries.on.timeouts": "0",
        "ipc.client.rpc-timeout.ms": "30000",
    }
    assert dict(place_of("delta:///hdfs://nn:8020/lake").settings) == nobody_waits
    # A service of several NameNodes has a name that only settings tell.
    place = place_of(
        "iceberg://c/n?type=hadoop&warehouse=hdfs://east/lake&dfs.nameservices=east"
        "&dfs.ha.namenodes.east=a,b&ipc.client.rpc-timeout.ms=60000"
    )
    assert dict(place.settings) == {
        "type": "hadoop",
        "warehouse": "hdfs://east/lake",
        **{f"hadoop.{name}": value for name, value in nobody_waits.items()},
        "hadoop.ipc.client.rpc-timeout.ms": "60000",
        "hadoop.dfs.nameservices": "east",
        "hadoop.dfs.ha.namenodes.east": "a,b",
    }


@pytest.mark.parametrize(
    ("uri", "code", "says"),
    [
        ("delta:///hdfs://me:pw@nn:8020/lake", "CF1201", "HDFS has no user"),
        ("delta://host/lake", "CF1201", "no host"),
        ("delta:///lake?optmize=1h", "CF1202", "optmize"),
        ("delta:relative", "CF1201", "absolute"),
        ("iceberg://c/n?warehouse=/w", "CF1207", "type must be"),
        ("iceberg://c/n?type=hive&warehouse=/w", "CF1207", "type must be one of"),
        ("iceberg://c?type=hadoop&warehouse=/w", "CF1201", "namespace"),
        ("delta:///hdfs://nn:abc/lake", "CF1201", "a port that is none"),
        ("delta:///hdfs://[::1/lake", "CF1201", "a port that is none"),
        ("iceberg://c/n?type=hadoop&warehouse=hdfs://nn:99999/w", "CF1201", "a port that is none"),
        ("iceberg://c/n?type=hadoop", "CF1207", "warehouse"),
        ("iceberg://c/n?type=rest", "CF1207", "uri"),
        ("iceberg://c/n?type=hadoop&warehouse=/w&uri=x", "CF1207", "has no uri"),
        ("iceberg://c/n?type=hadoop&warehouse=/w&tokn=x", "CF1202", "tokn"),
        ("iceberg://a-b/n?type=hadoop&warehouse=/w", "CF1201", "names a catalog"),
        ("delta://user:pw@/lake", "CF1201", "no user"),
    ],
)
def test_wrong_places(uri: str, code: str, says: str) -> None:
    with pytest.raises(ChangefeedError, match=says) as raised:
        place_of(uri)
    assert raised.value.code.number == code
    assert "pw" not in str(raised.value)


def test_secrets_of_uris_are_hidden() -> None:
    uri = "delta:///s3a://b/l?fs.s3a.access.key=AKIA&fs.s3a.secret.key=topsecret"
    assert "topsecret" not in redact(uri)
    assert "AKIA" not in redact(uri)
    rest = "iceberg://c/n?type=rest&uri=https://h&token=topsecret&credential=id:topsecret"
    assert "topsecret" not in redact(rest)


def test_the_version_of_a_row_needs_its_column() -> None:
    with pytest.raises(ChangefeedError, match="cannot be none") as raised:
        open_sink("delta:///x", {"sequence_column": "none"})
    assert raised.value.code.number == "CF1206"


def test_names_of_tables() -> None:
    assert DeltaSink("delta:///x").topic("my table/..") == "my_u0020_table_u002f_.."


@pytest.mark.parametrize(
    ("parameters", "files", "packs"),
    [
        ("warehouse=w", "", ()),
        ("warehouse=s3://b/w", "S3FileIO", ("hadoop-aws", "iceberg-aws")),
        ("warehouse=w&s3.endpoint=http://h", "S3FileIO", ("hadoop-aws", "iceberg-aws")),
        ("io-impl=org.apache.iceberg.aws.s3.S3FileIO", "S3FileIO", ("hadoop-aws", "iceberg-aws")),
        ("warehouse=s3a://b&fs.s3a.endpoint=http://h", "HadoopFileIO", ("hadoop-aws",)),
        ("warehouse=s3://b&io-impl=com.example.Files", "Files", ()),
    ],
)
def test_who_reads_the_files_of_a_rest_catalog(
    parameters: str, files: str, packs: tuple[str, ...]
) -> None:
    place = place_of(f"iceberg://c/n?type=rest&uri=https://h/api&{parameters}")
    settings = dict(place.settings)
    assert settings.get("io-impl", "").rpartition(".")[2] == files
    assert place.packs == ("iceberg", *packs)
    # The default is a class that those packs do not have.
    client = "urlconnection" if files == "S3FileIO" else None
    assert settings.get("http-client.type") == client


def test_where_a_place_is_is_shown_without_secrets() -> None:
    place = place_of("iceberg://c/n?type=rest&uri=https://u:pw@h/api?key=pw&token=pw2")
    assert place.shown == "https://h/api"
    assert place_of("delta:///s3a://b/lake").shown == "s3a://b/lake"


def test_what_failures_of_a_catalog_are_told_as() -> None:
    def error(text: str) -> tuple[str, str]:
        found = explained(RuntimeError(text), "t", "https://h/api")
        assert found is not None
        return found.code.number, f"{found.message} {found.detail}"

    refused = "org.apache.iceberg.exceptions.NotAuthorizedException: Not authorized: pa55word"
    assert error(refused) == ("CF5002", "https://h/api refuses access target t")
    gone = "org.apache.iceberg.exceptions.RESTException: Error occurred while processing GET"
    assert error(gone) == ("CF5001", "cannot reach https://h/api target t")
    lacking = "java.lang.NoClassDefFoundError: software/amazon/awssdk/services/s3/S3Client"
    assert error(lacking)[0] == "CF4003"
    waits = "RemoteException(org.apache.hadoop.hdfs.server.namenode.SafeModeException): Cannot .."
    assert error(waits)[0] == "CF5004"
    page = "org.apache.hadoop.ipc.RpcException: RPC response exceeds maximum data length"
    assert error(page) == ("CF5001", "https://h/api does not answer as a NameNode target t")
    assert explained(RuntimeError("something else"), "t", "https://h/api") is None


@pytest.mark.parametrize(
    "raised", ["[USER_RAISED_EXCEPTION] {} SQLSTATE: P0001", "java.lang.RuntimeException: {}"]
)
def test_a_number_that_a_decimal_does_not_hold_is_named_by_its_column(raised: str) -> None:
    """By Spark 4 and by Spark 3.5."""
    failure = RuntimeError(raised.format("value does not fit column 1") + " 0.1234567")
    found = explained(failure, "t", columns=["id", "amount"])
    assert found is not None and found.about_row
    assert (
        found.message == "a value of column amount of table t does not fit the type of its column"
    )
    assert found.detail == "target t: more digits than numeric_type allows"


# ------------------------------------------------------------------------------- types


@pytest.mark.parametrize(
    ("logical", "kind"),
    [
        ("int16", "smallint"),
        ("decimal(12,2)", "decimal(12,2)"),
        ("decimal(39,2)", "string"),
        ("decimal(2,-3)", "string"),
        ("decimal(2,3)", "string"),
        ("decimal", "string"),
        ("timestamptz", "timestamp"),
        ("timestamp", "timestamp_ntz"),
        ("array<decimal(4,1)>", "array<decimal(4,1)>"),
        ("array<json>", "string"),
        ("json", "string"),
        ("timetz", "string"),
    ],
)
def test_types(logical: str, kind: str) -> None:
    assert spark_type(LogicalType.parse(logical)) == kind


def test_iceberg_has_no_smallint() -> None:
    assert spark_type(LogicalType(Kind.INT16), small=False) == "int"
    assert spark_type(LogicalType.parse("array<int16>"), small=False) == "array<int>"


def test_casts() -> None:
    def column(physical: str, logical: str) -> Column:
        return Column("x", "", LogicalType.parse(logical))

    assert typed(column("int64", "int64"), "c1") == "c1"
    assert typed(column("string", "json"), "c1") == "c1"
    assert typed(column("string", "bytes"), "c1") == "unhex(substring(c1, 3))"
    assert typed(column("string", "date"), "c1") == "cast(replace(c1, ' BC', 'BC') AS date)"
    assert typed(column("string", "float64"), "c1") == "cast(trim(BOTH '\"' FROM c1) AS double)"


@pytest.mark.parametrize(
    ("old", "new", "delta", "iceberg"),
    [
        ("int", "bigint", True, True),
        ("smallint", "int", True, False),
        ("decimal(10,2)", "decimal(12,2)", True, True),
        ("decimal(10,2)", "decimal(12,4)", True, False),
        ("decimal(10,2)", "decimal(11,4)", False, False),
        ("bigint", "int", False, False),
        ("int", "string", False, False),
    ],
)
def test_widening(old: str, new: str, delta: bool, iceberg: bool) -> None:
    assert (widens(old, new, "delta"), widens(old, new, "iceberg")) == (delta, iceberg)


def test_layout_options_are_split_at_commas_outside_of_parentheses() -> None:
    assert split_columns("day(at), bucket(16, id),region") == [
        "day(at)",
        "bucket(16, id)",
        "region",
    ]
    assert [column_of(part) for part in ("day(at)", "bucket(16, id)", "`a b`")] == [
        "at",
        "id",
        "a b",
    ]


def test_names_and_texts_in_sql() -> None:
    assert quoted("a`b") == "`a``b`"
    assert literal("it's \\ so") == "'it\\'s \\\\ so'"


# ------------------------------------------------------------------------------- staging

SCHEMA = TableSchema(
    TableName("s", "public", "t"),
    (
        Column("v", "text", LogicalType.parse("text"), True, 1),
        Column("k", "int4", LogicalType.parse("int32"), False, 2),
    ),
    (1,),
)


def batch(*changes: tuple[str, int, int, Any], missing: bool = False, scan: bool = False) -> Batch:
    """Changes as (op, version, key, value)."""
    rows = []
    for seq, (op, version, key, value) in enumerate(changes):
        row: dict[str, object] = {
            "op": op, "wall": version, "logical": 0, "seq": seq, "ord": 0, "xid": 1,
            "commit_us": 1, "last": True, "missing": '["v"]' if missing else None,
        }  # fmt: skip
        row |= {"b1": key} if op == "d" else {"a0": value, "a1": key}
        rows.append(row)
    table = pa.Table.from_pylist(rows, schema=SCHEMA.log_schema())
    target = Target(SCHEMA.table, "t")
    return Batch("f", Epoch(1, Timestamp(99)), 0, target, SCHEMA, table, scan=scan)


def staged(folder: Path, name: str, made: Batch, **more: Any) -> StagedFile | None:
    arguments: dict[str, Any] = {"history": History.OFF, **more}
    return stage(made, folder / name, **arguments)


def content(file: StagedFile | None) -> list[tuple[object, ...]]:
    assert file is not None
    table = pq.read_table(file.path)
    assert table.num_rows == file.rows
    return [(r["_op"], r["_v"], r["c1"], r["c0"]) for r in table.to_pylist()]


def test_the_last_row_of_a_key_is_staged(tmp_path: Path) -> None:
    made = batch(("c", 5, 1, "a"), ("u", 6, 1, "b"), ("c", 6, 2, "x"), ("d", 7, 1, None))
    file = staged(tmp_path, "a.parquet", made)
    assert content(file) == [("c", 6, 2, "x"), ("d", 7, 1, None)]
    assert file is not None
    assert file.last == AppliedVersion(7, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]


@pytest.mark.parametrize("history", [History.APPEND, History.SCD2])
def test_history_keeps_all_versions(tmp_path: Path, history: History) -> None:
    """Also those that a later row of their transaction superseded: one may know a value that a
    later one, of another file, lacks. The file says that it has some."""
    made = batch(("c", 5, 1, "a"), ("u", 6, 1, "b"))
    file = staged(tmp_path, "a", made, history=history)
    assert len(content(file)) == 2
    assert file is not None and not file.superseded
    flags = made.rows.set_column(7, "last", pa.array([False, True]))
    file = staged(tmp_path, "b", replace(made, rows=flags), history=history)
    assert len(content(file)) == 2
    assert file is not None and file.superseded


def test_unknown_values_keep_every_row_until_all_are_known(tmp_path: Path) -> None:
    first = staged(tmp_path, "a", batch(("u", 5, 1, "a"), ("u", 5, 2, "b")))
    made = batch(("u", 6, 1, None), ("u", 7, 1, None), ("u", 7, 3, None), missing=True)
    second = staged(tmp_path, "b", made)
    assert first and second
    assert (second.rows, second.incomplete) == (3, True)
    [kept] = settled([first, second], MergeMode.MERGE)
    assert content(kept) == [("u", 5, 2, "b"), ("u", 7, 1, "a"), ("u", 7, 3, None)]
    assert pq.read_table(kept.path)["_missing"].to_pylist() == [None, None, ",0,"]
    assert (kept.incomplete, kept.last, bounds([kept], "c1")) == (True, second.last, (1, 3))


def test_what_a_later_row_of_its_transaction_superseded_goes(tmp_path: Path) -> None:
    made = batch(("c", 5, 1, "a"), ("u", 5, 1, "b"), ("u", 6, 1, "c"))
    flags = made.rows.set_column(7, "last", pa.array([False, True, True]))
    file = staged(tmp_path, "a", replace(made, rows=flags), history=History.SCD2)
    assert file is not None
    [kept] = settled([file], MergeMode.VERSIONS)
    assert content(kept) == [("u", 5, 1, "b"), ("u", 6, 1, "c")]
    assert not kept.incomplete


def test_two_texts_of_one_number_are_one_key() -> None:
    rows = pa.table({"f": ["-0", "0", "1"], "l": ["[-0, -0,-0.5]", "[0, 0,-0.5]", "[0, 0,-0.5]"]})
    assert groups_of(rows.columns, [Kind.FLOAT64, Kind.FLOAT32]).tolist() == [0, 0, 1]
    assert groups_of(rows.columns, [Kind.TEXT, Kind.TEXT]).tolist() == [0, 1, 2]


def test_a_later_file_goes_before(tmp_path: Path) -> None:
    first = staged(tmp_path, "a", batch(("c", 5, 1, "a"), ("c", 5, 2, "b")))
    second = staged(tmp_path, "b", batch(("u", 6, 2, "c"), ("c", 6, 3, "d")))
    third = staged(tmp_path, "c", batch(("d", 7, 1, None)))
    assert first and second and third
    kept = settled([first, second, third], MergeMode.MERGE)
    assert [content(file) for file in kept] == [
        [("u", 6, 2, "c"), ("c", 6, 3, "d")],
        [("d", 7, 1, None)],
    ]
    assert bounds(kept, "c1") == (1, 3)


# ------------------------------------------------------------------------------- places


def test_places_inside_a_transaction() -> None:
    whole, part = AppliedVersion(6), AppliedVersion(7, 40)
    assert (whole.whole, part.whole) == (6, 6)
    assert whole.latest(part) == part
    assert part.latest(AppliedVersion(7)) == AppliedVersion(7)
    assert AppliedVersion(7).latest(part) == AppliedVersion(7)
    assert [AppliedVersion.parse(str(a)) for a in (whole, part)] == [whole, part]
    assert whole.covers(AppliedVersion(6, 99))
    assert not whole.covers(AppliedVersion(7, 1))
    assert part.covers(AppliedVersion(7, 40))
    assert not part.covers(AppliedVersion(7, 41))


# ------------------------------------------------------------------------------- upkeep


class Table:
    """What upkeep asks of a table."""

    name = "t"

    def __init__(self) -> None:
        self.done: list[object] = []
        self.fails = False

    def optimize(self) -> None:
        if self.fails:
            raise OSError("no")
        self.done.append("optimize")

    def expire(self, older_than: float) -> None:
        self.done.append(older_than)


def test_upkeep_comes_in_its_own_time() -> None:
    clock = ManualClock(0)
    upkeep = Upkeep(60.0, 7 * 86_400.0, clock)
    table: Any = Table()
    for at in (0, 59, 61, 62, 100, 122):
        clock.wall = at * 10**9
        upkeep.after_commit(table)
    week = 7 * 86_400.0
    assert table.done == ["optimize", week, "optimize", week]
    clock.wall, table.fails = 500 * 10**9, True
    upkeep.after_commit(table)
    assert table.done[-1] == week, "a failure is for the log"


def test_no_upkeep_unless_asked_for() -> None:
    table: Any = Table()
    upkeep = Upkeep(None, None, ManualClock(10**18))
    upkeep.after_commit(table)
    assert table.done == []


# ------------------------------------------------------------------------------- rounds


def test_the_pace_follows_what_a_merge_usually_takes() -> None:
    sink = open_sink("delta:///srv/lake", {})
    assert isinstance(sink, LakeSink)
    paces = []
    for took in (20.0, 4.0, 3.0, 12.0, 11.0, 100.0, 90.0, 0.1):
        sink.pace.after(took)
        paces.append(sink.pacing().seconds)
    # The first, cold one says nothing; a single slow one is taken for an exception.
    assert paces == [1.0, 4.0, 3.0, 3.0, 11.0, 11.0, 30.0, 1.0]


def test_a_backlog_is_merged_in_rounds_of_what_fits(tmp_path: Path) -> None:
    sink = open_sink("delta:///srv/lake", {})
    assert isinstance(sink, LakeSink)
    assert sink.pacing().rows == lake_sink.MOST_ROWS > sink.capabilities.pacing.rows
    file = staged(tmp_path, "a", batch(("c", 1, 1, "x")))
    assert file is not None
    sink._staged["a"] = replace(file, bytes=lake_sink.MOST_BYTES)
    assert sink.pacing().rows == 0, "bytes on disk"
    sink._staged["a"] = replace(file, bytes=lake_sink.MOST_FOLDED)
    assert sink.pacing().rows == lake_sink.MOST_ROWS
    sink._staged["a"] = replace(file, bytes=lake_sink.MOST_FOLDED, missing=frozenset({0}))
    assert sink.pacing().rows == 0, "rows in memory"
    keys = pa.table({"c0": pa.array(["x" * 1000] * (lake_sink.MOST_KEY_BYTES // 1000 + 1))})
    sink._staged["a"] = replace(file, keys=keys)
    assert sink.pacing().rows == 0, "keys in memory"
    sink.abort(Epoch(1, Timestamp(1)), [])
    assert sink.pacing().rows == lake_sink.MOST_ROWS


def test_many_keys_are_joined_without_holding_them() -> None:
    (few_bytes, few_rows), (more_bytes, more_rows) = delta_round.BROADCAST, delta_round.HASHED
    rounds = [
        (1, 1), (few_bytes, few_rows), (few_bytes + 1, 1), (1, few_rows + 1),
        (more_bytes, more_rows), (more_bytes + 1, 1), (1, more_rows + 1),
    ]  # fmt: skip
    joins = [delta_round._join(size, rows) for size, rows in rounds]
    assert joins == ["broadcast"] * 2 + ["shuffle_hash"] * 3 + ["merge"] * 2


class _File:
    """The little of an AddFile that is asked."""

    def __init__(self, stats: str | None) -> None:
        self._stats = stats

    def stats(self) -> str | None:
        return self._stats


def test_what_a_file_says_of_its_keys() -> None:
    limits: dict[str | None, tuple[object, object]] = {"c-1": (10, 20)}
    said = '{"numRecords": 3, "minValues": {"c-1": 5, "x": 1}, "maxValues": {"c-1": 12, "x": 2}}'
    assert delta_round._ranges(DeltaFile(_File(said)), limits) == [(10, 20, 5, 12)]
    for nothing in (None, "", "{}", '{"minValues": {"c-1": 5}}', said.replace("12", '"12"')):
        assert delta_round._ranges(DeltaFile(_File(nothing)), limits) is None


def test_bounds_are_looked_for_in_files_where_they_leave_much_out() -> None:
    assert delta_round._small_part(((10, 20, 0, 50), (10, 20, 5, 100)))
    assert not delta_round._small_part(((10, 70, 0, 50), (10, 70, 5, 100)))

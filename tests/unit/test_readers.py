"""Rows of the log as changes, and a table's log cut into ranges."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa
import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.events import ChangeBatch, SchemaChange, Truncate
from changefeed.core.proofs import FileProof
from changefeed.core.s3_urls import S3Signer
from changefeed.core.schema import BeforeImage, Column, TableName, TableSchema
from changefeed.core.types import Kind, LogicalType
from changefeed.encoding.unsent import UNSENT
from changefeed.log import LogSettings, LogWriter
from changefeed.readers.changes import ChangeRows, change_schema
from changefeed.readers.range_copies import RangeCopies
from changefeed.readers.reader import moment, table_name, version
from changefeed.readers.subscription import subscribe
from changefeed.readers.table_log import OnTruncate, Range, Selection, TableLog, lost_columns
from tests.helpers.log_samples import flush

NAME = TableName("shop", "public", "t")

ID = Column("id", "bigint", LogicalType.parse("int64"), False, 1)
NOTE = Column("note", "text", LogicalType.parse("text"), True, 2)
PRICE = Column("price", "numeric(10,2)", LogicalType.parse("decimal(10,2)"), True, 3)
WHEN = Column("at", "timestamptz", LogicalType.parse("timestamptz"), True, 4)
PLAIN = TableSchema(NAME, (ID, NOTE), (0,), version=1)
FULL = replace(PLAIN, before_image=BeforeImage.FULL)
TYPED = TableSchema(NAME, (ID, PRICE, WHEN), (0,), version=1)


def at(wall: int, logical: int = 0) -> Timestamp:
    return Timestamp(wall * 1_000_000, logical)


def row(
    op: str, when: Timestamp, after: Sequence[Any], before: Sequence[Any] = (), **also: Any
) -> dict[str, Any]:
    """One row of the log: values by position, those before in the order of ``before_ordinals``."""
    return {"op": op, "when": when, "after": after, "before": before, "last": True, **also}


def rows(schema: TableSchema, *given: dict[str, Any]) -> pa.Table:
    """Rows in the log's schema; sequence numbers rise from the wall clock."""
    made = []
    for number, one in enumerate(given):
        when: Timestamp = one["when"]
        fields: dict[str, Any] = {
            "op": one["op"],
            "wall": when.wall,
            "logical": when.logical,
            "seq": when.wall // 1000 + number,
            "ord": number,
            "xid": 1,
            "commit_us": when.wall // 1000,
            "last": one["last"],
            "missing": one.get("missing"),
        }
        fields |= {f"a{i}": value for i, value in enumerate(one["after"])}
        fields |= {f"b{i}": v for i, v in zip(schema.before_ordinals, one["before"], strict=False)}
        made.append(fields)
    return pa.Table.from_pylist(made, schema=schema.log_schema())


def told(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """Kind and columns of the table, a tuple per change."""
    return [
        (r["_change_type"], *(v for n, v in r.items() if not n.startswith("_")))
        for r in batch.to_pylist()
    ]


# ------------------------------------------------------------------------------------ changes


def test_whole_old_rows_give_pairs_and_whole_deletes() -> None:
    changes = ChangeRows(FULL).of(
        rows(
            FULL,
            row("c", at(5), (1, "a")),
            row("u", at(6), (1, "b"), (1, "a")),
            row("d", at(7), (None, None), (1, "b")),
            row("r", at(8), (2, "scanned")),
        ),
        FULL,
    )
    assert told(changes) == [
        ("insert", 1, "a"),
        ("update_preimage", 1, "a"),
        ("update_postimage", 1, "b"),
        ("delete", 1, "b"),
        ("insert", 2, "scanned"),
    ]
    versions = changes["_commit_version"].to_pylist()
    assert versions == [str(at(w)) for w in (5, 6, 6, 7, 8)]
    assert [m.microsecond for m in changes["_commit_timestamp"].to_pylist()] == [
        w * 1000 for w in (5, 6, 6, 7, 8)
    ]


def test_old_keys_alone_give_no_preimages_and_deletes_by_key() -> None:
    changes = ChangeRows(PLAIN).of(
        rows(
            PLAIN,
            row("u", at(6), (1, "b"), (1,)),
            row("d", at(7), (None, None), (1,)),
        ),
        PLAIN,
    )
    assert told(changes) == [("update_postimage", 1, "b"), ("delete", 1, None)]


def test_versions_compare_as_texts_in_commit_order() -> None:
    stamps = [Timestamp(1_700_000_000_000_000_000, 9), Timestamp(1_700_000_000_000_000_000, 10)]
    changes = ChangeRows(PLAIN).of(
        rows(PLAIN, *(row("c", s, (i, "x")) for i, s in enumerate(stamps))), PLAIN
    )
    versions = changes["_commit_version"].to_pylist()
    assert versions == [str(s) for s in stamps]
    assert versions == sorted(versions)


def test_a_transaction_shows_one_change_a_key() -> None:
    changes = ChangeRows(FULL).of(
        rows(
            FULL,
            row("u", at(6), (1, "first"), (1, "a"), last=False),
            row("u", at(6), (1, "second"), (1, "a")),
        ),
        FULL,
    )
    assert told(changes) == [("update_preimage", 1, "a"), ("update_postimage", 1, "second")]


def test_values_have_the_types_of_their_columns() -> None:
    schema = change_schema(TYPED)
    assert schema.field("price").type == pa.decimal128(10, 2)
    assert schema.field("at").type == pa.timestamp("us", tz="UTC")
    changes = ChangeRows(TYPED).of(
        rows(TYPED, row("c", at(5), (1, "1.50", "2024-03-31T01:02:03.5Z"))), TYPED
    )
    ((_, _, price, when),) = told(changes)
    assert price == Decimal("1.50")
    assert when.isoformat() == "2024-03-31T01:02:03.500000+00:00"


def test_no_decimal_is_nan() -> None:
    with pytest.raises(ChangefeedError, match="price is NaN") as error:
        ChangeRows(TYPED).of(rows(TYPED, row("c", at(5), (1, '"NaN"', None))), TYPED)
    assert error.value.code.number == "CF4001"


def test_a_value_that_was_not_sent_is_marked() -> None:
    changes = ChangeRows(PLAIN).of(
        rows(PLAIN, row("u", at(5), (1, None), (1,), missing='["note"]')), PLAIN
    )
    assert told(changes) == [("update_postimage", 1, UNSENT)]


def test_a_column_may_not_have_a_name_that_readers_use() -> None:
    clash = replace(PLAIN, columns=(ID, replace(NOTE, name="_Change_Type")))
    with pytest.raises(ChangefeedError) as error:
        change_schema(clash)
    assert error.value.code.number == "CF1302"


def test_rows_of_an_older_version_come_in_the_shape_of_the_newer() -> None:
    wider = TableSchema(
        NAME,
        (
            replace(ID, type_name="text", logical=LogicalType(Kind.TEXT)),
            replace(NOTE, name="comment"),  # renamed: the source's number is the same
            replace(PRICE, column_id=9),
        ),
        (0,),
        version=2,
    )
    changes = ChangeRows(wider).of(rows(PLAIN, row("c", at(5), (1, "a"))), PLAIN)
    assert changes.schema.names[:3] == ["id", "comment", "price"]
    assert told(changes) == [("insert", "1", "a", None)]
    assert lost_columns(PLAIN, wider) == ["id", "note"]
    assert lost_columns(PLAIN, replace(PLAIN, columns=(ID, NOTE, PRICE))) == []


def test_a_value_that_does_not_fit_the_newer_type_is_an_error() -> None:
    number = replace(NOTE, type_name="bigint", logical=LogicalType(Kind.INT64))
    newer = replace(PLAIN, columns=(ID, number), version=2)
    with pytest.raises(ChangefeedError, match="note was a text once"):
        ChangeRows(newer).of(rows(PLAIN, row("c", at(5), (1, "a"))), PLAIN)


def test_no_rows_are_no_changes() -> None:
    assert ChangeRows(FULL).of(rows(FULL), FULL).num_rows == 0


# ---------------------------------------------------------------------------------- the log


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[LogWriter]:
    """A log that begins at 1000; 50 rows make a segment."""
    with LogWriter(tmp_path, LogSettings(segment_rows=50, group_rows=20, grace=0.0)) as made:
        made.append(flush([], at(1000), 1))
        yield made


def put(writer: LogWriter, wall: int, schema: TableSchema, *given: dict[str, Any]) -> None:
    batch = rows(schema, *given).combine_chunks().to_batches()[0]
    writer.append(flush([ChangeBatch(schema, batch)], at(wall), wall, [(at(wall), wall)]))


def table_log(root: Path, **also: Any) -> TableLog:
    return TableLog(root, Selection(NAME), **also)


def read(ranges: Sequence[Range]) -> list[tuple[Any, ...]]:
    """What executors would read: each range went through pickle."""
    copies = [pickle.loads(pickle.dumps(part)) for part in ranges]
    return [change for part in copies for batch in part.read() for change in told(batch)]


def test_ranges_hold_each_change_once_and_cut_no_transaction(
    writer: LogWriter, tmp_path: Path
) -> None:
    wanted = []
    for wall in range(1001, 1021):
        changes = [row("c", at(wall), (wall * 100 + i, "x")) for i in range(7)]
        put(writer, wall, PLAIN, *changes)
        wanted += [("insert", wall * 100 + i, "x") for i in range(7)]
    log = table_log(tmp_path, range_rows=20)
    span = log.span(at(1000), at(1020))
    assert len(span.ranges) == 10
    assert read(span.ranges) == wanted
    assert span.upto == at(1020)
    assert all(part.after < part.upto for part in span.ranges)
    assert log.reach(at(1000), at(1020), 20) == at(1002)
    assert read(log.span(at(1010), at(1012)).ranges) == wanted[70:84]
    log.close()


def test_a_selection_has_its_columns_and_keys_alone(writer: LogWriter, tmp_path: Path) -> None:
    put(writer, 1001, PLAIN, row("c", at(1001), (1, "a")), row("c", at(1001), (7, "b")))
    log = TableLog(tmp_path, Selection(NAME, columns=("id",), values_from=("5",)))
    assert read(log.span(at(1000), at(1001)).ranges) == [("insert", 7)]


def truncated(writer: LogWriter) -> None:
    put(writer, 1001, PLAIN, row("c", at(1001), (1, "a")))
    writer.append(flush([Truncate(PLAIN, at(1002), 5_000_000)], at(1002), 1002))
    put(writer, 1003, PLAIN, row("c", at(1003), (2, "b")))


def test_a_truncation_is_an_error_a_row_or_nothing(writer: LogWriter, tmp_path: Path) -> None:
    truncated(writer)
    inserts = [("insert", 1, "a"), ("insert", 2, "b")]
    with pytest.raises(ChangefeedError, match="was truncated") as error:
        read(table_log(tmp_path).span(at(1000), at(1003)).ranges)
    assert error.value.code.number == "CF1303"
    skipped = table_log(tmp_path, on_truncate=OnTruncate.SKIP).span(at(1000), at(1003))
    assert read(skipped.ranges) == inserts
    said = table_log(tmp_path, on_truncate=OnTruncate.ROW).span(at(1000), at(1003))
    assert read(said.ranges) == [inserts[0], ("truncate", None, None), inserts[1]]


def test_a_span_tells_the_shapes_of_its_rows(writer: LogWriter, tmp_path: Path) -> None:
    newer = replace(PLAIN, columns=(ID, NOTE, PRICE), version=2)
    put(writer, 1001, PLAIN, row("c", at(1001), (1, "a")))
    batch = rows(newer, row("c", at(1002), (2, "b", "3.00"))).to_batches()[0]
    change = SchemaChange(PLAIN, newer, at(1002), 1)
    writer.append(flush([change, ChangeBatch(newer, batch)], at(1002), 1002))
    span = table_log(tmp_path).span(at(1000), at(1002), newer)
    assert [v.version for v in span.versions] == [1, 2]
    assert span.changes == (change,)
    assert read(span.ranges) == [("insert", 1, "a", None), ("insert", 2, "b", Decimal("3.00"))]


def test_a_span_with_changes_that_could_not_be_read_is_an_error(
    writer: LogWriter, tmp_path: Path
) -> None:
    put(writer, 1001, PLAIN, row("c", at(1001), (1, "a")))
    lost = SchemaChange(PLAIN, PLAIN, at(1002), 1, rewritten=True, unreadable=True, why="odd rows")
    writer.append(flush([lost], at(1002), 1002))
    put(writer, 1003, PLAIN, row("c", at(1003), (2, "b")))
    with pytest.raises(ChangefeedError, match="odd rows") as error:
        table_log(tmp_path).span(at(1000), at(1003))
    assert error.value.code.number == "CF2108"
    # A scan that begins later has the changes.
    assert read(table_log(tmp_path).span(at(1002), at(1003)).ranges) == [("insert", 2, "b")]


def test_a_log_that_another_machine_does_not_see_is_an_error(
    writer: LogWriter, tmp_path: Path
) -> None:
    part = Range(tmp_path, Selection(NAME), None, at(1000), at(2000))
    with pytest.raises(ChangefeedError, match="was promised"):
        read([part])


def test_staged_ranges_have_what_the_log_has_and_need_none_of_its_files(
    writer: LogWriter, tmp_path: Path
) -> None:
    newer = replace(PLAIN, columns=(ID, NOTE, PRICE), version=2)
    truncated(writer)
    batch = rows(newer, row("c", at(1004), (2, "b", "3.00"))).to_batches()[0]
    change = SchemaChange(PLAIN, newer, at(1004), 1)
    writer.append(flush([change, ChangeBatch(newer, batch)], at(1004), 1004))
    span = table_log(tmp_path, on_truncate=OnTruncate.ROW).span(at(1000), at(1004), newer)
    expected = read(span.ranges)
    assert len(expected) == 4
    place = tmp_path / "place"
    staging = RangeCopies(str(place))
    staged, names = staging.stage(span.ranges)
    unseen = [replace(part, log=tmp_path / "elsewhere") for part in staged]
    assert read(unseen) == expected
    staging.remove(names[:1])
    with pytest.raises(ChangefeedError, match="cannot be read any more") as error:
        read(unseen)
    assert error.value.code.number == "CF3002"
    staging.close()
    assert list(place.iterdir()) == []


def scan_range(folder: Path, *files: str) -> Range:
    """A range of a scan."""
    proofs = tuple(FileProof.of(Path(f)) if Path(f).exists() else FileProof() for f in files)
    return Range(
        folder, Selection(NAME), None, at(1), at(1), files=files, proofs=proofs, version=PLAIN
    )


def test_a_staged_scan_has_the_rows_of_its_files(tmp_path: Path) -> None:
    found = rows(PLAIN, row("r", at(1), (1, "a")), row("r", at(1), (2, "b")))
    for name in ("one.arrow", "two.arrow"):
        with pa.ipc.new_file(str(tmp_path / name), found.schema) as file:
            file.write_table(found)
    files = tuple(str(tmp_path / name) for name in ("one.arrow", "two.arrow"))
    part = scan_range(tmp_path, *files)
    expected = read([part])
    assert len(expected) == 4
    staged, _ = RangeCopies(str(tmp_path / "place")).stage([part])
    for path in files:
        Path(path).unlink()
    assert read(staged) == expected
    one, two = sorted(path for path in (tmp_path / "place").rglob("*") if path.is_file())
    whole = one.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for content in (flipped, whole[:-1], b"", whole + whole, two.read_bytes()):
        if bytes(content) == whole:
            continue
        one.write_bytes(content)
        with pytest.raises(ChangefeedError, match="staged rows of a reader") as error:
            read(staged)
        assert error.value.code.number == "CF3001"


def test_old_ranges_of_planners_that_are_gone_are_removed(tmp_path: Path) -> None:
    place, day = tmp_path / "place", 90_000
    old, fresh = (place / f"changefeed-ranges-{n * 32}" / "00000001" for n in "ab")
    theirs = place / "changefeed-ranges-of-mine" / "00000001"
    for path in (old, fresh, theirs):
        path.parent.mkdir(parents=True)
        path.write_text("x")
    for path in (old, theirs):
        os.utime(path, (time.time() - day,) * 2)
    RangeCopies(str(place)).stage([])
    assert not old.exists() and fresh.exists() and theirs.exists()


def test_a_place_that_cannot_be_written_is_an_error(writer: LogWriter, tmp_path: Path) -> None:
    put(writer, 1001, PLAIN, row("c", at(1001), (1, "a")))
    (tmp_path / "file").write_text("")
    span = table_log(tmp_path).span(at(1000), at(1001))
    with pytest.raises(ChangefeedError, match="rows cannot be staged") as error:
        RangeCopies(str(tmp_path / "file")).stage(span.ranges)
    assert error.value.code.number == "CF4002"
    with pytest.raises(ChangefeedError, match="not in HDFS"):
        RangeCopies("hdfs://namenode:8020/rows")


def test_who_signs_is_in_the_address_or_in_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = {"access_key": "A", "secret_key": "S", "endpoint_override": "h:1", "scheme": "http"}
    assert S3Signer.of(given) == S3Signer("A", "S", "", "us-east-1", "http://h:1")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    assert S3Signer.of({}) is None
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "E")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "X")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert S3Signer.of({}) == S3Signer("E", "X", "", "eu-west-1")
    assert S3Signer.of({"role_arn": "arn:aws:iam::1:role/feeds"}) is None


def test_files_that_may_not_be_read_are_an_error_that_names_the_way(
    writer: LogWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*given: object) -> None:
        raise PermissionError("HEAD")

    monkeypatch.setattr("changefeed.readers.table_log.LogReader", refused)
    monkeypatch.setattr("changefeed.core.proofs.FileProof.verify", refused)
    logged = Range(tmp_path, Selection(NAME), None, at(1000), at(1001))
    scanned = scan_range(tmp_path, "one.arrow")
    for part in (logged, scanned):
        with pytest.raises(ChangefeedError, match="may not be read here") as error:
            read([part])
        assert "staging" in error.value.hint


@pytest.mark.parametrize("endpoint", ["", "http://127.0.0.1:9000"])
@pytest.mark.parametrize(("token", "method"), [("", "GET"), ("a/b+c=", "GET"), ("", "DELETE")])
def test_a_signed_url_is_the_one_of_amazons_client(endpoint: str, token: str, method: str) -> None:
    from botocore.auth import S3SigV4QueryAuth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    keys = S3Signer("AKIA", "s3cr3t+/s3cr3t", token, "eu-west-1", endpoint)
    signed = keys.url("bucket", "of/range 1", at(1).datetime(), seconds=600, method=method)
    plain = signed.partition("?")[0]
    theirs = AWSRequest(method, plain)
    signer = S3SigV4QueryAuth(
        Credentials("AKIA", "s3cr3t+/s3cr3t", token or None), "s3", "eu-west-1", expires=600
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("botocore.auth.get_current_datetime", lambda: at(1).datetime())
        signer.add_auth(theirs)
    assert dict(parse_qsl(urlsplit(signed).query)) == dict(parse_qsl(urlsplit(theirs.url).query))
    assert "s3cr3t" not in signed and "s3cr3t" not in repr(keys)


def test_a_scan_that_is_gone_is_an_error(tmp_path: Path) -> None:
    files = (str(tmp_path / "gone.arrow"),)
    part = scan_range(tmp_path, *files)
    with pytest.raises(ChangefeedError, match="scan no longer exists") as error:
        read([part])
    assert error.value.code.number == "CF3002"


# ------------------------------------------------------------------------------------- names


def test_names_of_tables_have_three_parts() -> None:
    assert table_name("shop.public.t") == NAME
    assert table_name('shop."my.schema"."a ""b"""') == TableName("shop", "my.schema", 'a "b"')
    for wrong in ("", "t", "public.t", "a.b.c.d", "shop..t", 'shop.public."t'):
        with pytest.raises(ChangefeedError) as error:
            table_name(wrong)
        assert error.value.code.number == "CF1101"


def test_versions_and_moments_are_checked() -> None:
    assert version("17.0000000003", "o") == Timestamp(17, 3)
    assert moment("1970-01-01T00:00:01+00:00", "o") == Timestamp(1_000_000_000)
    for parse in (version, moment):
        with pytest.raises(ChangefeedError, match="option o") as error:
            parse("yesterday", "o")
        assert error.value.code.number == "CF1204"


def test_a_reader_makes_no_state(tmp_path: Path) -> None:
    missing = tmp_path / "typo"
    with pytest.raises(ChangefeedError, match=f"there is no state in {missing}") as caught:
        subscribe(str(missing), "shop.public.t", reader="r")
    assert caught.value.code.number == "CF6001" and "--state" in caught.value.hint
    assert not missing.exists()

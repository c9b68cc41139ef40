"""What small rounds ask of every place of a Delta table's files."""

from __future__ import annotations

import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sinks.lake.files import S3Access
from sinks.lake.place import LakePlace, place_of
from sinks.lake.small.table_files import (
    LOG,
    LocalTableFiles,
    StoredTableFiles,
    TableFiles,
    files_by_table,
)
from tests.helpers.lake import by_hadoop, in_a_store
from tests.services.s3 import KEY, SECRET, S3Server

FIRST, SECOND = f"{LOG}/{0:020d}.json", f"{LOG}/{1:020d}.json"


@pytest.fixture(params=["disk", "s3"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> TableFiles:
    if request.param == "disk":
        (tmp_path / "t" / LOG).mkdir(parents=True)
        return LocalTableFiles(tmp_path / "t")
    s3: S3Server = request.getfixturevalue("s3")
    by_table = files_by_table(place_of(in_a_store(s3, f"files-{uuid.uuid4().hex}")), None, {})
    assert by_table is not None
    return by_table("t")


def test_a_commit_is_written_once(files: TableFiles) -> None:
    assert files.name == "t"
    files.commit(FIRST, b"one")
    with pytest.raises(FileExistsError):
        files.commit(FIRST, b"two")
    assert files.read(FIRST) == b"one" and files.refuses(FIRST)
    assert files.read(FIRST) == b"one"
    with pytest.raises(FileNotFoundError):
        files.read(SECOND)


def test_the_log_is_listed_in_order(files: TableFiles) -> None:
    for number in (11, 2, 7):
        files.replace(f"{LOG}/{number:020d}.json", b"x")
    files.replace(f"{LOG}/{7:020d}.checkpoint.parquet", pa.py_buffer(b"old"))
    files.replace(f"{LOG}/{7:020d}.checkpoint.parquet", pa.py_buffer(b"new"))
    files.add({"data.parquet": pa.py_buffer(b"d")})
    everything = list(files.logged())
    assert [its.name.lstrip("0") for its in everything] == [
        "2.json", "7.checkpoint.parquet", "7.json", "11.json"
    ]  # fmt: skip
    assert all(its.written > 1.7e9 for its in everything)
    assert [its.name.lstrip("0") for its in files.logged(f"{7:020d}.")] == [
        "7.checkpoint.parquet", "7.json", "11.json"
    ]  # fmt: skip
    assert files.read(f"{LOG}/{7:020d}.checkpoint.parquet") == b"new"
    files.remove([f"{LOG}/{7:020d}.json", f"{LOG}/{8:020d}.json"])
    assert len(list(files.logged())) == 3


@pytest.mark.parametrize("rows", [10, 2_000_000])
def test_parts_of_files_are_read(files: TableFiles, rows: int) -> None:
    """Also of those that are too large to be read as a whole."""
    table = pa.table({"a": pa.array(range(rows)), "b": pa.array([uuid.uuid4().hex] * rows)})
    content = pa.BufferOutputStream()
    pq.write_table(table, content, use_dictionary=False, compression="none", row_group_size=500_000)
    files.add({"1.parquet": content.getvalue(), "2.bin": pa.py_buffer(b"0123456789")})
    with files.parquet("1.parquet") as opened:
        assert opened.read(columns=["a"]).equals(table.select(["a"]))
    assert files.read("2.bin", 3, 4) == b"3456" and files.read("2.bin", 7) == b"789"
    with pytest.raises(FileNotFoundError), files.parquet("3.parquet"):
        pass


def test_a_request_that_was_repeated_is_one_commit(s3: S3Server) -> None:
    """The client repeats what the store has done and then failed to answer."""
    access = S3Access.of(by_hadoop(s3))
    files = StoredTableFiles(s3.bucket(f"files-{uuid.uuid4().hex}"), "lake/t", access)
    files.commit(FIRST, b"ours")
    files.commit(FIRST, b"ours")
    assert files.read(FIRST) == b"ours"


def test_a_store_that_passes_over_the_condition_is_found_out(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = S3Access.of(by_hadoop(s3))
    files = StoredTableFiles(s3.bucket(f"files-{uuid.uuid4().hex}"), "lake/t", access)
    files.commit(FIRST, b"one")
    monkeypatch.setattr(StoredTableFiles, "_create", StoredTableFiles.replace)
    assert not files.refuses(FIRST)
    assert files.read(FIRST) == b"one"


def test_errors_of_a_store_name_no_secret(s3: S3Server) -> None:
    access = S3Access.of(by_hadoop(s3) | {"fs.s3a.endpoint": "http://127.0.0.1:1"})
    files = StoredTableFiles("none", "lake/t", access)
    for failing in (lambda: files.commit(FIRST, b"x"), lambda: list(files.logged())):
        with pytest.raises(OSError, match="the store failed") as raised:
            failing()
        assert SECRET not in str(raised.value) and KEY not in str(raised.value)
    assert SECRET not in repr(access)


@pytest.mark.parametrize(
    ("root", "session", "known"),
    [
        ("s3a://b/lake", {}, True),
        ("s3a://b/lake", {"fs.s3a.threads.max": "3", "fs.s3a.bucket.c.encryption.key": "x"}, True),
        ("s3a://b/lake", {"fs.s3a.encryption.algorithm": "SSE-KMS"}, False),
        ("s3a://b/lake", {"fs.s3a.bucket.b.encryption.algorithm": "SSE-KMS"}, False),
        ("s3a://b/lake", {"fs.s3a.aws.credentials.provider": "their.Own"}, False),
        ("s3a://b", {}, False),
        ("s3a://b/a lake", {}, False),
        ("hdfs://b/lake", {}, False),
    ],
)
def test_what_only_spark_can_do_is_left_to_it(
    root: str, session: dict[str, str], known: bool
) -> None:
    settings = {f"spark.hadoop.{name}": value for name, value in session.items()}
    assert (files_by_table(LakePlace("delta", root), None, settings) is not None) == known

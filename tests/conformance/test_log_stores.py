"""The stores of shared logs: what each of them must do, and what it reports when it cannot."""

from __future__ import annotations

import resource
import uuid
from pathlib import Path

import pytest

from changefeed.core.errors import ChangefeedError, Code
from changefeed.log.objects import ObjectStore
from changefeed.readers.range_copies import RangeCopies
from sinks.files.options import FilesSettings
from sinks.files.sink import open_place
from tests.services import stores
from tests.services.http_faults import FaultyProxy, answer, cut
from tests.services.s3 import S3Server
from tests.unit.test_readers import scan_range

STORES = pytest.mark.parametrize(
    "store",
    [
        "s3",
        pytest.param("gcs", marks=pytest.mark.extended),
        pytest.param("azure", marks=pytest.mark.extended),
    ],
    indirect=True,
)


def check(store: ObjectStore, folder: Path) -> None:
    """Write, read, list and remove."""
    store.probe()
    large = folder / "large"
    large.write_bytes(bytes(range(256)) * 20_000)
    store.put("a/one", b"1")
    store.put("a/large", large)
    store.put("a/b/two", b"")
    assert store.get("a/one") == b"1" and store.get("a/b/two") == b""
    store.fetch("a/large", folder / "copy", 5_120_000)
    assert (folder / "copy").read_bytes() == large.read_bytes()
    assert {name for name, _ in store.names("a")} == {"a/one", "a/large", "a/b/two"}
    assert all(at > 10**18 for _, at in store.names("a"))
    assert list(store.names("nothing")) == []
    with pytest.raises(ChangefeedError) as short:
        store.fetch("a/one", folder / "other", 7)
    assert short.value.code is Code.LOG_STORE_UNREACHABLE and not (folder / "other").exists()
    store.remove(["a/one", "a/gone", "a/large", "a/b/two"])
    assert list(store.names("a")) == []
    with pytest.raises(ChangefeedError, match="cannot be read") as gone:
        store.get("a/one")
    assert gone.value.code is Code.LOG_STORE_UNREACHABLE


def test_a_directory(tmp_path: Path) -> None:
    check(ObjectStore(str(tmp_path / "store")), tmp_path)


@STORES
def test_a_store(store: stores.ObjectStore, tmp_path: Path) -> None:
    bucket = store.bucket(f"logs-{uuid.uuid4().hex[:8]}")
    found = ObjectStore(store.uri(f"{bucket}/folder"))
    assert found.shown == f"{store.scheme}://{bucket}/folder"
    check(found, tmp_path)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("ftp://host/logs", "logs cannot be kept there"),
        ("s3:///logs", "logs cannot be kept there"),
        ("s3://b?AUTH=implicit", r"unknown log store query parameters: \[AUTH\]"),
        ("s3://b?AWS_ENDPOINT=ftp://x", "param AWS_ENDPOINT of the log store must be an http"),
        ("s3://b?ASSUME_ROLE=r&AWS_ACCESS_KEY_ID=K", "ASSUME_ROLE does not go with a key"),
        ("gs://b?CREDENTIALS=s3cr3t", "must be the JSON key of a service account"),
        ("azure://c/logs", "AZURE_ACCOUNT_NAME must be provided"),
        ("azure://c?AZURE_ACCOUNT_NAME=a&AZURE_ACCOUNT_KEY=s3cr3t!", "must be base 64"),
    ],
)
def test_what_is_no_address_of_a_store(address: str, words: str) -> None:
    with pytest.raises(ChangefeedError, match=words) as refused:
        ObjectStore(address)
    assert "s3cr3t" not in f"{refused.value} {refused.value.hint} {refused.value.detail}"


@STORES
def test_a_store_that_cannot_be_used(store: stores.ObjectStore) -> None:
    """No bucket, and nobody there: the error names the place, and no secret."""
    nowhere = ObjectStore(store.uri(f"none-{uuid.uuid4().hex[:8]}/x"))
    silent = ObjectStore(store.uri("bucket/x", port=9))
    for found in (nowhere, silent):
        with pytest.raises(ChangefeedError) as refused:
            found.get("a")
        assert refused.value.code is Code.LOG_STORE_UNREACHABLE
        assert found.shown in refused.value.message
        assert store.secret not in str(refused.value)


def test_a_directory_without_room(tmp_path: Path) -> None:
    """Nothing of an object that did not fit stays: the next try has another name."""
    found = ObjectStore(str(tmp_path / "store"))
    found.put("a/small", b"1")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))
    try:
        with pytest.raises(ChangefeedError, match=": File too large") as full:
            found.put_new("a/large", bytes(2_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert full.value.code is Code.LOG_STORE_UNREACHABLE
    assert {name for name, _ in found.names("")} == {"a/small"}


def test_an_object_is_one_request(s3: S3Server) -> None:
    """What a store is paid for: an upload in parts takes three, and pyarrow writes a marker of the
    folder for each object that it deletes."""
    with FaultyProxy(s3.port, matching="/") as proxy:
        bucket = s3.bucket(f"logs-{uuid.uuid4().hex[:8]}")
        store = ObjectStore(s3.uri(f"{bucket}/x", port=proxy.port))
        store.put("a/b", bytes(1_000_000))
        store.remove(["a/b", "a/none"])
        assert [request.method for request in proxy.seen] == ["PUT", "DELETE", "DELETE"]
        assert list(store.names("")) == []


def test_a_delete_that_is_refused_is_made_by_the_client(s3: S3Server) -> None:
    """It repeats a request, and its errors are known."""
    with FaultyProxy(s3.port, matching="/") as proxy:
        bucket = s3.bucket(f"logs-{uuid.uuid4().hex[:8]}")
        store = ObjectStore(s3.uri(f"{bucket}/x", port=proxy.port))
        store.put("a/b", b"1")
        for fault in (answer(503), cut):
            store.put("a/b", b"1")
            proxy.script.append(fault)
            store.remove(["a/b"])
            assert list(store.names("a")) == []


def test_what_is_staged_is_removed_with_one_request(s3: S3Server, tmp_path: Path) -> None:
    """Files of a sink, and copies of ranges for executors."""
    rows = tmp_path / "rows"
    rows.write_bytes(b"rows")
    with FaultyProxy(s3.port, matching="/") as proxy:
        uri = s3.uri(f"{s3.bucket(f'logs-{uuid.uuid4().hex[:8]}')}/x", port=proxy.port)
        open_place(FilesSettings.read(uri).place).prepare(1, "0")
        # An upload in parts comes first.
        assert [request.method for request in proxy.seen] == ["POST", "PUT", "POST", "DELETE"]
        copies = RangeCopies(uri)
        _, names = copies.stage([scan_range(tmp_path, str(rows))])
        proxy.seen.clear()
        copies.remove(names)
        assert [request.method for request in proxy.seen] == ["DELETE"]
        assert list(ObjectStore(uri).names("")) == []

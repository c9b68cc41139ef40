"""Files in object stores: the list every sink passes, and what only a store can get wrong.

S3 is moto, Google Cloud Storage is fake-gcs-server, Azure is Azurite. Only the last looks who
is there.
"""

from __future__ import annotations

import base64
import itertools
import json
import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from pyarrow import fs

from changefeed.core.clock import ManualClock
from changefeed.core.errors import Action, ChangefeedError
from changefeed_testing.sinks.conformance import CASES, Case, run_case
from changefeed_testing.sinks.feed import FeedDouble, at, put
from changefeed_testing.sinks.messages import Message
from changefeed_testing.sinks.readers import file_bytes, read_files, visible_files
from sinks.base import Sink
from sinks.files.last_rows import data_files
from sinks.files.places import objects
from sinks.files.places.base import ReadablePlace
from sinks.files.sink import FilesSink
from sinks.registry import open_sink
from tests.services.azure import ACCOUNT, AzureServer
from tests.services.gcs import TOKEN, GcsServer
from tests.services.proxy import Proxy
from tests.services.s3 import SECRET
from tests.services.stores import ObjectStore

_numbers = itertools.count(1)
STORES = pytest.mark.parametrize("store", ["s3", "gcs", "azure"], indirect=True)


def made(uri: str, options: Mapping[str, Any] | None = None) -> FilesSink:
    """A sink whose client of Google's repeats a request that fails for a second, not for ten."""
    sink = open_sink(uri, options)
    assert isinstance(sink, FilesSink)
    sink.google_seconds = 1
    return sink


@pytest.fixture
def bucket(store: ObjectStore) -> str:
    """A bucket of the test alone."""
    return store.bucket(f"feeds{next(_numbers)}")


@pytest.fixture
def proxy(store: ObjectStore) -> Iterator[Proxy]:
    with store.proxied() as made:
        yield made


class StoreHarness:
    never: Mapping[str, str] = {"refuses_oversize": "an object takes a line of any length"}
    max_message_bytes = 0

    def __init__(
        self, store: ObjectStore, bucket: str, proxy: Proxy, folder: Path, more: str, **options: Any
    ) -> None:
        self.secret = store.secret
        self._store, self._bucket, self._proxy, self._folder = store, bucket, proxy, folder
        self._uri = store.uri(f"{bucket}/case/deep", proxy.port, f"&{more}")
        self._options = options
        self._used: dict[str, None] = {}

    def sink(self) -> Sink:
        return made(self._uri, self._options)

    def topic(self, table: str) -> str:
        self._used[table] = None
        return table

    def partitions(self) -> Mapping[str, int]:
        return dict.fromkeys(self._used, 1)

    def there(self) -> Path:
        """What is in the bucket, as files."""
        folder = self._folder / str(next(_numbers))
        return self._store.download(self._bucket, "case/deep", folder)

    def read(self) -> Sequence[Message]:
        return read_files(self.there(), self._used)

    def raw(self) -> bytes:
        return b"".join(file_bytes(path) for path in visible_files(self.there()))

    def down(self) -> AbstractContextManager[None]:
        return self._proxy.spoiling("cut")


#: Where many small packed files could differ from few.
SMALL = {"delivers_in_order", "delivers_schema_changes", "truncates", "writes_in_executors"}
KINDS = [(case, "plain") for case in CASES]
KINDS += [(case, "small-zstd") for case in CASES if case.name in SMALL]


@STORES
@pytest.mark.parametrize(("case", "kind"), KINDS, ids=str)
def test_conformance(
    case: Case, kind: str, store: ObjectStore, bucket: str, proxy: Proxy, tmp_path: Path
) -> None:
    if kind == "plain":
        harness = StoreHarness(store, bucket, proxy, tmp_path, "partition_format=daily")
    else:
        more = "partition_format=minute&file_size=100"
        harness = StoreHarness(store, bucket, proxy, tmp_path, more, compression="zstd")
    reason = run_case(case, harness)
    if reason:
        pytest.skip(f"never: {reason}")


def opened(uri: str) -> tuple[Sink, FeedDouble]:
    sink = made(uri)
    feed = FeedDouble({"t": "t", "u": "u"}, key_in_value=True)
    feed.open(sink)
    return sink, feed


def failure(uri: str, *secrets: str) -> ChangefeedError:
    with pytest.raises(ChangefeedError) as caught:
        FeedDouble({"t": "t"}).open(made(uri))
    shown = f"{caught.value.message}{caught.value.detail}{caught.value.hint}"
    assert not any(secret in shown for secret in (SECRET, *secrets))
    return caught.value


@STORES
def test_nothing_is_there_before_commit_nor_after_a_crash(store: ObjectStore, bucket: str) -> None:
    sink, feed = opened(store.uri(f"{bucket}/crash", more="&file_size=100"))
    epoch = feed.epoch(at(1))
    feed.write(sink, epoch, [put(n, "x" * 60, 1) for n in range(5)])
    assert store.objects(bucket) == []
    sink.close()
    assert store.objects(bucket) == []


@STORES
@pytest.mark.parametrize("query", ["", "&partition_format=minute", "&partition_format=flat"])
def test_files_are_found_and_read_again(store: ObjectStore, bucket: str, query: str) -> None:
    sink, feed = opened(store.uri(f"{bucket}/found/deep", more=f"&file_size=100{query}"))
    wrote = []
    for number in range(3):
        feed.deliver(sink, [put(number, "x" * 60, 1), put(number, "y", 2), put(1, "z", 2, "u")])
        wrote += [("x" * 60, 1), ("y", 2)]
    feed.resolve(sink)
    assert isinstance(sink, FilesSink)
    place = sink._place
    assert isinstance(place, ReadablePlace)
    paths = data_files(place.every(), sink._job, "t")
    assert paths == sorted(paths) and len(paths) > 3
    lines = []
    for path in paths:
        with place.open(path) as stream:
            lines += stream.read().splitlines()
    assert len(lines) == len(wrote)
    assert data_files(place.every(), sink._job + 1, "t") == []
    sink.close()


@STORES
def test_an_executor_puts_and_an_abort_removes(store: ObjectStore, bucket: str) -> None:
    sink, feed = opened(store.uri(f"{bucket}/executor"))
    worker: Sink = pickle.loads(pickle.dumps(sink))
    epoch = feed.epoch(at(1))
    receipts = feed.write(worker, epoch, [put(1, "x", 1), put(1, "x", 1, "u")])
    worker.close()
    assert len(store.objects(bucket)) == 2
    sink.abort(epoch, receipts)
    assert store.objects(bucket) == []
    sink.close()


@pytest.mark.parametrize(
    ("store", "mode"),
    [("s3", "500"), ("s3", "503"), ("s3", "cut"), ("gcs", "503"), ("gcs", "cut"), ("azure", "cut")],
    indirect=["store"],
)
def test_a_store_that_fails_is_tried_again(
    store: ObjectStore, bucket: str, proxy: Proxy, mode: str
) -> None:
    """An upload of many parts is cut in the middle: no object, and everything again later."""
    sink, feed = opened(store.uri(f"{bucket}/fails", proxy.port))
    writes = [put(n, "x" * 1_000_000, 1) for n in range(12)]
    epoch = feed.epoch(at(1))
    receipts = feed.write(sink, epoch, writes)
    with proxy.spoiling(mode, after=3_000_000), pytest.raises(ChangefeedError) as caught:
        sink.commit(epoch, receipts)
    assert caught.value.action is Action.RETRY, caught.value.code.number
    assert proxy.spoiled and store.secret not in caught.value.message
    assert visible(store, bucket) == []
    sink.abort(epoch, receipts)
    feed.deliver(sink, writes)
    assert len(visible(store, bucket)) == 1
    sink.close()


def visible(store: ObjectStore, path: str) -> list[fs.FileInfo]:
    """What a reader lists: nothing that is below a folder that begins with a dot."""
    selector = fs.FileSelector(path, recursive=True, allow_not_found=True)
    files = [i for i in store.client().get_file_info(selector) if i.type == fs.FileType.File]
    return [i for i in files if not any(part[0] == "." for part in i.path.split("/"))]


@pytest.mark.parametrize("store", ["s3", "gcs"], indirect=True)
def test_no_object_is_seen_half_written(store: ObjectStore, bucket: str, proxy: Proxy) -> None:
    """A commit ends after each of its requests in turn, as if the process had ended there."""
    writes = [put(1, "x" * 500, 1)]
    for number in range(20):
        sink, feed = opened(store.uri(f"{bucket}/cut{number}", proxy.port))
        epoch = feed.epoch(at(1))
        receipts = feed.write(sink, epoch, writes)
        failed = False
        with proxy.refusing_after(number):
            try:
                sink.commit(epoch, receipts)
            except ChangefeedError as error:
                assert store.secret not in error.message
                failed = True
        sizes = [info.size for info in visible(store, f"{bucket}/cut{number}")]
        if failed:
            assert sizes == []
        else:
            assert len(sizes) == 1 and sizes[0] > 500 and number > 0
        sink.close()
        if not proxy.spoiled:
            return
        proxy.spoiled = 0
    raise AssertionError("a commit takes more requests than expected")


@STORES
def test_what_is_wrong_is_said(store: ObjectStore) -> None:
    missing = failure(store.uri("no-such-bucket/x"), store.secret)
    assert (missing.code.number, "make the bucket" in missing.hint) == ("CF5002", True), (
        missing.message
    )
    names = {"s3": "NO_SUCH_BUCKET", "gs": "NOT_FOUND, 404", "azure": "ContainerNotFound, 404"}
    assert names[store.scheme] in missing.message
    nobody = failure(store.uri("feeds/x", 1), store.secret)
    assert nobody.code.number == "CF5001"
    reasons = {"s3": "connect", "gs": "Could not connect to server", "azure": "connection"}
    assert reasons[store.scheme] in nobody.message


def test_azure_refuses_another_key(azure: AzureServer) -> None:
    azure.bucket("locked")
    wrong = base64.b64encode(b"wrong-secret").decode()
    uri = f"azure://locked/x?AZURE_ACCOUNT_NAME={ACCOUNT}&AZURE_ACCOUNT_KEY={quote(wrong)}"
    refused = failure(f"{uri}&AZURE_ENDPOINT=http://127.0.0.1:{azure.port}", wrong)
    assert refused.code.number == "CF5002"
    assert refused.message.endswith("refused the login: AuthorizationFailure, 403")


@contextmanager
def answering(
    status: int, content: bytes, kind: str, seen: list[str], **more: str
) -> Iterator[str]:
    """A server that has one answer for everything; ``seen`` gets the logins it is shown."""

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            seen.append(self.headers.get("Authorization") or body.decode("latin-1"))
            self.send_response(status)
            if self.command != "HEAD":
                self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(0 if self.command == "HEAD" else len(content)))
            for name, value in more.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_POST = do_GET = do_HEAD = do_DELETE = do_PUT

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def refusal(scheme: str, status: int, name: str) -> tuple[str, bytes, str]:
    """A URI without endpoint, and what the store answers with a text that must not be shown."""
    if scheme == "gs":
        error = {
            "code": status,
            "message": SECRET,
            "errors": [{"domain": "global", "reason": name}],
        }
        return (
            f"gs://feeds/x?BEARER_TOKEN={quote(TOKEN)}&GCS_ENDPOINT=",
            json.dumps({"error": error}).encode(),
            "application/json",
        )
    content = f"<Error><Code>{name}</Code><Message>{SECRET}</Message></Error>".encode()
    if scheme == "s3":
        login = "AWS_ACCESS_KEY_ID=a&AWS_SECRET_ACCESS_KEY=wrong-secret&AWS_REGION=us-east-1"
        return f"s3://feeds/x?{login}&AWS_ENDPOINT=", content, "application/xml"
    login = "AZURE_ACCOUNT_NAME=a&AZURE_ACCOUNT_KEY=d3Jvbmctc2VjcmV0"
    return f"azure://feeds/x?{login}&AZURE_ENDPOINT=", content, "application/xml"


@pytest.mark.parametrize(
    ("scheme", "status", "name", "code"),
    [
        ("s3", 403, "AccessDenied", "CF5002"),
        ("s3", 403, "SignatureDoesNotMatch", "CF5002"),
        ("s3", 403, "InvalidAccessKeyId", "CF5002"),
        ("s3", 403, "RequestTimeTooSkewed", "CF5001"),
        ("s3", 503, "SlowDown", "CF5004"),
        ("gs", 401, "authError", "CF5002"),
        ("gs", 403, "forbidden", "CF5002"),
        ("gs", 403, "rateLimitExceeded", "CF5004"),
        ("gs", 429, "rateLimitExceeded", "CF5004"),
        ("gs", 503, "backendError", "CF5001"),
        ("azure", 403, "AuthorizationPermissionMismatch", "CF5002"),
        ("azure", 403, "AccountIsDisabled", "CF5002"),
        ("azure", 503, "ServerBusy", "CF5004"),
    ],
)
def test_refusals_of_the_store(scheme: str, status: int, name: str, code: str) -> None:
    """moto and fake-gcs-server let everybody in, so this server only refuses."""
    uri, content, kind = refusal(scheme, status, name)
    with answering(status, content, kind, [], **{"x-ms-error-code": name}) as address:
        refused = failure(f"{uri}{quote(address, safe='')}", "wrong-secret", TOKEN)
    assert refused.code.number == code, refused.message
    assert ("refused the login: " in refused.message) == (code == "CF5002")


def test_google_is_shown_the_token() -> None:
    seen: list[str] = []
    with answering(403, b"{}", "application/json", seen) as address:
        failure(f"gs://feeds/x?BEARER_TOKEN={quote(TOKEN)}&GCS_ENDPOINT={quote(address)}", TOKEN)
    assert f"Bearer {TOKEN}" in seen


def test_google_gets_a_token_for_a_key(gcs: GcsServer) -> None:
    """A service account's key names the server that gives tokens for it."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
    gcs.bucket("keyed")
    seen: list[str] = []
    token = json.dumps({"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"})
    account = {"type": "service_account", "client_email": "feeds@shop", "private_key": pem}

    def uri(address: str) -> str:
        text = json.dumps({**account, "token_uri": f"{address}/token"})
        return (
            f"gs://keyed/x?CREDENTIALS={quote(base64.b64encode(text.encode()))}"
            f"&GCS_ENDPOINT=http://127.0.0.1:{gcs.port}"
        )

    with answering(200, token.encode(), "application/json", seen) as address:
        sink, feed = opened(uri(address))
        feed.deliver(sink, [put(1, "x", 1)])
        sink.close()
    (asked,) = seen
    assert parse_qs(asked)["grant_type"] == ["urn:ietf:params:oauth:grant-type:jwt-bearer"]
    assert len(gcs.objects("keyed/x")) == 1
    no = json.dumps({"error": "invalid_grant", "error_description": SECRET}).encode()
    with answering(400, no, "application/json", []) as address:
        refused = failure(uri(address), pem)
    assert refused.code.number == "CF5002" and "CREDENTIALS" in refused.message


@STORES
def test_the_manifest_of_a_minute(store: ObjectStore, bucket: str, tmp_path: Path) -> None:
    sink, feed = opened(store.uri(f"{bucket}/minutes", more="&partition_format=minute"))
    feed.deliver(sink, [put(1, "x", 1), put(2, "x", 59), put(3, "x", 61)])
    feed.resolve(sink)
    there = store.download(bucket, "minutes", tmp_path)
    (manifest,) = there.rglob("*.manifest")
    (entry,) = json.loads(manifest.read_text())["entries"]
    prefix = f"{store.scheme}://{bucket}/minutes/"
    assert entry["url"].startswith(prefix)
    data = there / entry["url"].removeprefix(prefix)
    assert data.parent == manifest.parent
    assert data.stat().st_size == entry["meta"]["content_length"]
    assert file_bytes(data).count(b"\n") == 2
    sink.close()


@STORES
def test_buckets_of_an_earlier_run_are_closed(
    store: ObjectStore, bucket: str, tmp_path: Path
) -> None:
    """Also those that an executor wrote, and below a bucket without a prefix."""
    uri = store.uri(bucket, more="&partition_format=minute")
    crashed, before = opened(uri)
    worker: Sink = pickle.loads(pickle.dumps(crashed))
    epoch = before.epoch(at(1))
    before.write(worker, epoch, [put(1, "x", 1)])
    worker.close()
    crashed.close()
    sink, feed = opened(uri)
    feed.deliver(sink, [put(2, "x", 61), put(3, "x", 121)])
    feed.resolve(sink)
    sink.close()
    there = store.download(bucket, "", tmp_path)
    assert len(list(there.rglob("*.manifest"))) == 2


def test_google_folders_of_other_programs(gcs: GcsServer, tmp_path: Path) -> None:
    """The console makes an empty object for a folder, without the sign that the client makes."""
    import urllib.request

    gcs.bucket("console")
    address = f"http://127.0.0.1:{gcs.port}/upload/storage/v1/b/console/o?uploadType=media"
    request = urllib.request.Request(f"{address}&name=feeds%2F", data=b"", method="POST")
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200
    sink, feed = opened(gcs.uri("console/feeds", more="&partition_format=minute"))
    feed.deliver(sink, [put(1, "x", 1), put(3, "x", 61)])
    feed.resolve(sink)
    sink.close()
    there = gcs.download("console", "feeds", tmp_path)
    assert len(list(there.rglob("*.manifest"))) == 1


def test_azure_shows_nothing_between_upload_and_copy(
    azure: AzureServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client begins each upload with an empty blob, so that one has to be out of sight."""
    azure.bucket("between")
    sink, feed = opened(azure.uri("between/x"))
    seen: list[list[str]] = []
    upload = objects.ObjectPlace._upload

    def watched(place: objects.ObjectPlace, path: str, content: Any) -> None:
        with place._system.open_output_stream(path, compression=None):
            seen.append([info.path for info in visible(azure, "between")])
        seen.append(azure.objects("between"))
        upload(place, path, content)
        raise OSError("the process ended here")

    with monkeypatch.context() as patched:
        patched.setattr(objects.ObjectPlace, "_upload", watched)
        with pytest.raises(ChangefeedError):
            feed.deliver(sink, [put(1, "x", 1)])
    assert seen == [[], ["part"]] and visible(azure, "between") == []
    sink.close()


def test_azure_leftovers_are_swept(azure: AzureServer) -> None:
    """What an upload that was cut has left is removed when it is old; nothing else is."""
    azure.bucket("swept")
    foreign = [".tmp/theirs", ".tmp/other/part", f".tmp/{'b' * 16}/part", f".tmp/{'b' * 16}/more"]
    for name in (f".tmp/{'a' * 16}/part", "kept", *foreign):
        with azure.client().open_output_stream(f"swept/x/{name}") as stream:
            stream.write(b"half")
    opened(azure.uri("swept/x"))[0].close()
    stays = ["kept", "more", "part", "part", "theirs"]
    assert sorted(azure.objects("swept/x")) == sorted([*stays, "part"])
    later = made(azure.uri("swept/x"))
    later.clock = ManualClock(time.time_ns() + 7200 * 10**9)
    FeedDouble({"t": "t"}, key_in_value=True).open(later)
    later.close()
    assert sorted(azure.objects("swept/x")) == stays


def test_an_address_is_not_a_part_of_the_name() -> None:
    """What stands for the store in errors and manifests has no parameters in it."""
    sink = made(f"gs://b/x?BEARER_TOKEN=t&GCS_ENDPOINT={quote('http://127.0.0.1:1')}")
    with pytest.raises(ChangefeedError) as caught:
        FeedDouble({"t": "t"}).open(sink)
    assert urlsplit(caught.value.message.split()[0]).query == ""

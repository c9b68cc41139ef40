"""Files in an object store: the list every sink passes, and what only a store can get wrong."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from pyarrow import fs

from changefeed.errors import Action, ChangefeedError
from sinks.base import Sink
from sinks.registry import open_sink
from sinks.testing.conformance import CASES, Case, run_case
from sinks.testing.feed import Feed, at, put
from sinks.testing.messages import Message
from sinks.testing.readers import file_bytes, read_files, visible_files
from tests.services.s3 import KEY, SECRET, Proxy, S3Server

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def bucket(s3: S3Server) -> str:
    return s3.bucket("feeds")


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[Proxy]:
    made = Proxy(s3.port)
    yield made
    made.close()


class S3Harness:
    never: Mapping[str, str] = {"refuses_oversize": "an object takes a line of any length"}
    secret = SECRET
    max_message_bytes = 0

    def __init__(self, s3: S3Server, proxy: Proxy, folder: Path, more: str, **options: object):
        self.prefix = f"case{next(_numbers)}/deep"
        self._s3, self._proxy, self._folder = s3, proxy, folder
        self._uri = f"s3://feeds/{self.prefix}?{s3.parameters(proxy.port)}&{more}"
        self._options = options
        self._used: dict[str, None] = {}

    def sink(self) -> Sink:
        return open_sink(self._uri, self._options)

    def topic(self, table: str) -> str:
        self._used[table] = None
        return table

    def partitions(self) -> Mapping[str, int]:
        return dict.fromkeys(self._used, 1)

    def _there(self) -> Path:
        folder = self._folder / str(next(_numbers))
        return self._s3.download("feeds", self.prefix, folder)

    def read(self) -> Sequence[Message]:
        return read_files(self._there(), self._used)

    def raw(self) -> bytes:
        return b"".join(file_bytes(path) for path in visible_files(self._there()))

    def down(self) -> AbstractContextManager[None]:
        return self._proxy.spoiling("cut")


#: Where many small packed files could differ from few.
SMALL = {"delivers_in_order", "delivers_schema_changes", "truncates", "writes_in_executors"}
KINDS = [(case, "plain") for case in CASES]
KINDS += [(case, "small-zstd") for case in CASES if case.name in SMALL]


@pytest.mark.parametrize(("case", "kind"), KINDS, ids=str)
def test_conformance(
    case: Case, kind: str, s3: S3Server, bucket: str, proxy: Proxy, tmp_path: Path
) -> None:
    if kind == "plain":
        harness = S3Harness(s3, proxy, tmp_path, "partition_format=daily")
    else:
        more = "partition_format=minute&file_size=100"
        harness = S3Harness(s3, proxy, tmp_path, more, compression="zstd")
    reason = run_case(case, harness)
    if reason:
        pytest.skip(f"never: {reason}")


def opened(s3: S3Server, prefix: str, port: int = 0, more: str = "") -> tuple[Sink, Feed]:
    sink = open_sink(f"s3://feeds/{prefix}?{s3.parameters(port)}{more}")
    feed = Feed({"t": "t", "u": "u"}, key_in_value=True)
    feed.open(sink)
    return sink, feed


def objects(s3: S3Server, prefix: str) -> list[str]:
    """Every object below the prefix, hidden ones too; not the markers of folders."""
    selector = fs.FileSelector(f"feeds/{prefix}", recursive=True, allow_not_found=True)
    found = s3.client().get_file_info(selector)
    return sorted(info.base_name for info in found if info.type == fs.FileType.File)


def failure(s3: S3Server, uri: str) -> ChangefeedError:
    with pytest.raises(ChangefeedError) as caught:
        Feed({"t": "t"}).open(open_sink(uri))
    shown = f"{caught.value.message}{caught.value.detail}{caught.value.hint}"
    assert SECRET not in shown and "wrong-secret" not in shown
    return caught.value


def test_nothing_is_there_before_commit_nor_after_a_crash(s3: S3Server, bucket: str) -> None:
    sink, feed = opened(s3, "crash", more="&file_size=100")
    epoch = feed.epoch(at(1))
    feed.write(sink, epoch, [put(n, "x" * 60, 1) for n in range(5)])
    assert objects(s3, "crash") == []
    sink.close()
    assert objects(s3, "crash") == []


def test_an_executor_puts_and_an_abort_removes(s3: S3Server, bucket: str) -> None:
    sink, feed = opened(s3, "executor")
    worker: Sink = pickle.loads(pickle.dumps(sink))
    epoch = feed.epoch(at(1))
    receipts = feed.write(worker, epoch, [put(1, "x", 1), put(1, "x", 1, "u")])
    worker.close()
    assert len(objects(s3, "executor")) == 2
    sink.abort(epoch, receipts)
    assert objects(s3, "executor") == []
    sink.close()


@pytest.mark.parametrize("mode", ["500", "503", "cut"])
def test_a_store_that_fails_is_tried_again(
    s3: S3Server, bucket: str, proxy: Proxy, mode: str
) -> None:
    """An upload of many parts is cut in the middle: no object, and everything again later."""
    prefix = f"fails{mode}"
    sink, feed = opened(s3, prefix, proxy.port)
    writes = [put(n, "x" * 1_000_000, 1) for n in range(12)]
    epoch = feed.epoch(at(1))
    receipts = feed.write(sink, epoch, writes)
    with proxy.spoiling(mode, after=3_000_000), pytest.raises(ChangefeedError) as caught:
        sink.commit(epoch, receipts)
    assert caught.value.action is Action.RETRY, caught.value.code.number
    assert proxy.spoiled and SECRET not in caught.value.message
    assert objects(s3, prefix) == []
    sink.abort(epoch, receipts)
    feed.deliver(sink, writes)
    assert len(objects(s3, prefix)) == 1
    sink.close()


def test_what_is_wrong_is_said(s3: S3Server, bucket: str) -> None:
    query = s3.parameters()
    missing = failure(s3, f"s3://no-such-bucket/x?{query}")
    assert (missing.code.number, "make the bucket" in missing.hint) == ("CF5002", True)
    assert "NO_SUCH_BUCKET" in missing.message
    nobody = failure(
        s3,
        "s3://feeds/x?AWS_ACCESS_KEY_ID=a&AWS_SECRET_ACCESS_KEY=wrong-secret"
        "&AWS_REGION=us-east-1&AWS_ENDPOINT=http%3A%2F%2F127.0.0.1%3A1",
    )
    assert nobody.code.number == "CF5001"


@pytest.mark.parametrize(
    ("status", "name", "code"),
    [
        (403, "AccessDenied", "CF5002"),
        (403, "SignatureDoesNotMatch", "CF5002"),
        (403, "InvalidAccessKeyId", "CF5002"),
        (503, "SlowDown", "CF5004"),
    ],
)
def test_refusals_of_the_store(status: int, name: str, code: str) -> None:
    """moto lets everybody in, so this server only refuses."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    from threading import Thread

    class Refuses(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            text = f"<Error><Code>{name}</Code><Message>{SECRET}</Message></Error>".encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_POST = do_PUT

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Refuses)
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        query = f"AWS_ACCESS_KEY_ID={KEY}&AWS_SECRET_ACCESS_KEY=wrong-secret&AWS_REGION=us-east-1"
        endpoint = f"AWS_ENDPOINT=http://127.0.0.1:{server.server_address[1]}"
        with pytest.raises(ChangefeedError) as caught:
            Feed({"t": "t"}).open(open_sink(f"s3://feeds/x?{query}&{endpoint}"))
    finally:
        server.shutdown()
        server.server_close()
    assert caught.value.code.number == code, caught.value.message
    assert SECRET not in caught.value.message


def test_the_manifest_of_a_minute(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    sink, feed = opened(s3, "minutes", more="&partition_format=minute")
    feed.deliver(sink, [put(1, "x", 1), put(2, "x", 59), put(3, "x", 61)])
    feed.resolve(sink)
    there = s3.download("feeds", "minutes", tmp_path)
    (manifest,) = there.rglob("*.manifest")
    (entry,) = json.loads(manifest.read_text())["entries"]
    prefix = "s3://feeds/minutes/"
    assert entry["url"].startswith(prefix)
    data = there / entry["url"].removeprefix(prefix)
    assert data.parent == manifest.parent
    assert data.stat().st_size == entry["meta"]["content_length"]
    assert file_bytes(data).count(b"\n") == 2
    sink.close()

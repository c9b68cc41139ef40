"""Files by HTTP PUT, and the way HDFS goes: written under a hidden name, then renamed.

There is no HDFS here: a local filesystem of the same client library stands for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from pyarrow import fs

from changefeed.core.errors import Action, ChangefeedError
from changefeed_testing.sinks.conformance import CASES, Case, run_case
from changefeed_testing.sinks.feed import FeedDouble, put
from changefeed_testing.sinks.messages import Message
from changefeed_testing.sinks.readers import file_bytes, read_files, visible_files
from sinks.base import Sink
from sinks.files.places import objects
from sinks.registry import open_sink
from tests.services.putserver import PutServer

SECRET = "hunter2 hunter2"


class FolderHarness:
    never: Mapping[str, str] = {"refuses_oversize": "a file takes a line of any length"}
    secret = ""
    max_message_bytes = 0

    def __init__(
        self, uri: str, folder: Path, down: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._uri, self._folder, self._down = uri, folder, down
        self._used: dict[str, None] = {}

    def sink(self) -> Sink:
        return open_sink(self._uri, {"compression": "lz4"})

    def topic(self, table: str) -> str:
        self._used[table] = None
        return table

    def partitions(self) -> Mapping[str, int]:
        return dict.fromkeys(self._used, 1)

    def read(self) -> Sequence[Message]:
        return read_files(self._folder, self._used)

    def raw(self) -> bytes:
        return b"".join(file_bytes(path) for path in visible_files(self._folder))

    def down(self) -> AbstractContextManager[None]:
        return self._down()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PutServer]:
    running = PutServer(tmp_path / "www", login=f"al:{SECRET}")
    yield running
    running.stop()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_by_put(case: Case, server: PutServer) -> None:
    login = f"al:{SECRET.replace(' ', '%20')}"
    uri = f"http://{login}@127.0.0.1:{server.port}/a%20b/feeds?partition_format=hourly"
    harness = FolderHarness(uri, server.root / "a b" / "feeds", server.down)
    harness.secret = SECRET
    reason = run_case(case, harness)
    if reason:
        pytest.skip(f"never: {reason}")


@pytest.mark.parametrize(
    ("status", "code"),
    [(500, "CF5001"), (507, "CF5004"), (429, "CF5004"), (403, "CF5002"), (405, "CF5002")],
)
def test_answers_of_a_server(server: PutServer, status: int, code: str) -> None:
    server.login, server.status = "", status
    sink = open_sink(f"http://127.0.0.1:{server.port}/x")
    feed = FeedDouble({"t": "t"}, key_in_value=True)
    feed.open(sink)
    with pytest.raises(ChangefeedError) as caught:
        feed.deliver(sink, [put(1, "x", 1)])
    sink.close()
    assert caught.value.code.number == code
    assert str(status) in caught.value.message


def test_no_server() -> None:
    sink = open_sink("http://127.0.0.1:1/x")
    feed = FeedDouble({"t": "t"}, key_in_value=True)
    feed.open(sink)
    with pytest.raises(ChangefeedError) as caught:
        feed.deliver(sink, [put(1, "x", 1)])
    sink.close()
    assert (caught.value.code.number, caught.value.action) == ("CF5001", Action.RETRY)


# ------------------------------------------------------------------------------- renames


@pytest.mark.parametrize("case", CASES, ids=str)
def test_by_rename(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "_hdfs", lambda arguments: fs.LocalFileSystem())
    folder = tmp_path / "out"

    def down() -> AbstractContextManager[None]:
        raise AssertionError("not run")

    harness = FolderHarness(f"hdfs://namenode:8020{folder}", folder, down)
    harness.never = {
        **harness.never,
        "outlives_outage": "the local filesystem that stands in for HDFS does not go away",
        "hides_secrets": "the URI holds no secret",
    }
    reason = run_case(case, harness)
    if reason:
        pytest.skip(f"never: {reason}")


def test_hdfs_without_its_library() -> None:
    sink = open_sink("hdfs://namenode:8020/x")
    with pytest.raises(ChangefeedError) as caught:
        FeedDouble({"t": "t"}).open(sink)
    assert caught.value.code.number in ("CF5005", "CF5001")
    if caught.value.code.number == "CF5005":
        assert "CLASSPATH" in caught.value.hint

"""The command itself, as a process, against a real PostgreSQL."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import pty
import re
import select
import selectors
import signal
import sqlite3
import struct
import subprocess
import sys
import termios
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from changefeed_testing.sinks.readers import read_files
from tests.helpers.waiting import until
from tests.services.kafka import KafkaBroker
from tests.services.postgres import Database
from tests.services.webhook import WebhookServer

ROOT = Path(__file__).parents[2]

#: Spark starts in each of these processes; on a busy machine that takes long.
PATIENCE = 150.0

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.postgres,
    pytest.mark.spark,
    pytest.mark.timeout(2 * PATIENCE),
]


class Shell:
    """``changefeed`` on one state."""

    def __init__(self, folder: Path) -> None:
        self._words = [sys.executable, "-m", "shell", "--state", str(folder / "state")]
        self._words += ["--heap", "1g"]
        self.environment = {
            **os.environ,
            "XDG_DATA_HOME": str(folder / "data"),
            "PYTHONPATH": str(ROOT),
        }

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """To its end."""
        return subprocess.run(
            [*self._words, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=PATIENCE,
        )

    def rows(self, statement: str) -> list[dict[str, object]]:
        """What a statement answers."""
        ran = self.run("--format", "jsonl", "-c", statement)
        assert ran.returncode == 0, ran.stderr
        return [json.loads(line) for line in ran.stdout.splitlines()]

    @contextmanager
    def running(self, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """In the background; killed if it is still there at the end."""
        process = subprocess.Popen(
            [*self._words, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
        )
        with process:  # its end is waited for, also if the test fails meanwhile
            try:
                yield process
            finally:
                process.kill()


def read_until(process: subprocess.Popen[bytes], text: bytes, *, errors: bool = False) -> bytes:
    """What a process wrote, once ``text`` is in it."""
    stream = process.stderr if errors else process.stdout
    assert stream is not None
    seen, deadline = b"", time.monotonic() + PATIENCE
    with selectors.DefaultSelector() as ready:
        ready.register(stream, selectors.EVENT_READ)
        while text not in seen:
            left = deadline - time.monotonic()
            assert left > 0 and ready.select(left), f"{text!r} did not come: {seen!r}"
            more = os.read(stream.fileno(), 65536)
            assert more, f"the process ended: {seen!r} {process.communicate()[1]!r}"
            seen += more
    return seen


@pytest.fixture
def shop(postgres: Database, tmp_path: Path) -> Shell:
    """A shell whose connection ``shop`` has a table of two rows."""
    postgres.execute("create table orders (id int primary key, note text)")
    postgres.execute("insert into orders values (1, 'a'), (2, 'b')")
    shell = Shell(tmp_path)
    made = shell.run("-c", f"CREATE EXTERNAL CONNECTION shop AS '{postgres.uri}'")
    assert made.returncode == 0, made.stderr
    return shell


def jobs_left(shell: Shell) -> list[object]:
    """Names of jobs that are not dropped."""
    return [row["name"] for row in shell.rows("SHOW JOBS") if row["status"] != "dropped"]


def slots(postgres: Database) -> list[tuple[object, ...]]:
    """Replication slots of this database at the server."""
    with postgres.connect() as connection:
        query = "select slot_name from pg_replication_slots where database = current_database()"
        return connection.execute(query).fetchall()


def test_a_state_is_made_equal_to_a_file_while_a_node_runs(
    shop: Shell, postgres: Database, tmp_path: Path
) -> None:
    postgres.execute("create table customers (id int primary key)")
    postgres.execute("insert into customers values (7)")
    lake, script = tmp_path / "lake", tmp_path / "feeds.sql"
    feed = f"CREATE CHANGEFEED lake FOR orders INTO '{lake.as_uri()}' WITH resolved = '1s';"
    script.write_text(f"USE shop;\n{feed}\n")
    applied = shop.run("apply", str(script))
    assert (applied.returncode, applied.stdout) == (0, "+ changefeed lake\n1 made\n")
    with shop.running("start") as node:
        read_until(node, b"running", errors=True)
        assert shop.run("-c", "SYNC ALL CHANGEFEEDS TIMEOUT '120s'").returncode == 0
        assert shop.run("apply", str(script), "--plan").returncode == 0
        script.write_text(f"USE shop;\n{feed.replace('FOR orders', 'FOR orders, customers')}\n")
        planned = shop.run("apply", str(script), "--plan")
        assert planned.returncode == 2 and "add public.customers" in planned.stdout
        assert shop.run("apply", str(script)).returncode == 0
        assert shop.run("-c", "SYNC ALL CHANGEFEEDS TIMEOUT '120s'").returncode == 0
        (row,) = shop.rows("SHOW CHANGEFEED lake TABLES WHERE emitted_rows = 1")
        assert row["table"] == "public.customers"
        exported = shop.run("export")
        assert exported.returncode == 0
        script.write_text(exported.stdout)
        assert shop.run("apply", str(script), "--plan", "--prune").returncode == 0


def test_a_feed_through_its_life(shop: Shell, postgres: Database, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    script = tmp_path / "feeds.sql"
    script.write_text(
        f"CREATE CHANGEFEED lake FOR orders INTO '{lake.as_uri()}' WITH resolved = '1s';\n"
        "SYNC CHANGEFEED lake TIMEOUT '120s';\n"
        "SHOW CHANGEFEEDS;\n"
        "PAUSE CHANGEFEED lake;\n"
    )
    first = shop.run("--format", "jsonl", "-f", str(script))
    assert first.returncode == 0, first.stderr
    created, synced, listed, paused = map(json.loads, first.stdout.splitlines())
    assert created["name"] == synced["name"] == listed["name"] == "lake"
    assert listed["status"] == "running"
    assert paused["status"] == "paused"
    assert delivered(lake) == {1: "a", 2: "b"}

    postgres.execute("insert into orders values (3, 'c')")
    refused = shop.run("-c", "SYNC CHANGEFEED lake")
    assert refused.returncode == 1
    assert 'changefeed "lake" is paused' in refused.stderr

    # RESUME alone needs no node, and says that none runs.
    resumed = shop.run("-c", "RESUME CHANGEFEED lake")
    assert resumed.returncode == 0, resumed.stderr
    assert "changefeed start" in resumed.stderr
    again = shop.run("-c", "SYNC CHANGEFEED lake TIMEOUT '120s'", "-c", "DROP CHANGEFEED lake")
    assert again.returncode == 0, again.stderr
    assert delivered(lake) == {1: "a", 2: "b", 3: "c"}
    assert jobs_left(shop) == []
    assert slots(postgres) == []


def delivered(lake: Path) -> dict[int, str]:
    """The rows of all files, the last value of each key."""
    rows: dict[int, str] = {}
    for file in sorted(lake.rglob("*.ndjson")):
        for line in file.read_text().splitlines():
            after = json.loads(line)["after"]
            rows[after["id"]] = after["note"]
    return rows


def test_ctrl_c_ends_a_sinkless_stream_and_leaves_nothing(shop: Shell, postgres: Database) -> None:
    with shop.running("-c", "CREATE CHANGEFEED FOR orders") as stream:
        read_until(stream, b'orders,[2],"{""after"": {""id"": 2, ""note"": ""b""}}"\n')
        postgres.execute("insert into orders values (3, 'live')")
        read_until(stream, b"live")
        stream.send_signal(signal.SIGINT)
        # Impatience changes nothing: the job is taken down all the same.
        stream.send_signal(signal.SIGINT)
        assert stream.wait(PATIENCE) == 130
    assert jobs_left(shop) == []
    assert slots(postgres) == []


def stream_rows(page: str, statement: str, count: int) -> list[list[str]]:
    """The first rows of a sinkless feed over HTTP; then the client leaves."""
    request = urllib.request.Request(
        f"{page}v1/statements",
        json.dumps({"statement": statement}).encode(),
        {"Content-Type": "application/json", "Accept": "application/x-ndjson"},
    )
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        lines = (json.loads(line) for line in answer)
        rows = (line["row"] for line in lines if "row" in line)
        return sorted(itertools.islice(rows, count))


class Terminal:
    """A process on a terminal of its own."""

    def __init__(self, words: list[str], environment: dict[str, str]) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.process = subprocess.Popen(
            # Its own session, so that the terminal is the one that Ctrl-C comes from.
            ["setsid", "--ctty", "--wait", *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment | {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"},
        )
        os.close(slave)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)

    def type(self, keys: str, wanted: str) -> str:
        """What the screen got until ``wanted`` was on it."""
        os.write(self.master, keys.encode())
        seen, deadline = "", time.monotonic() + PATIENCE
        while wanted not in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen):
            left = max(0.0, deadline - time.monotonic())
            assert select.select([self.master], [], [], left)[0], f"{wanted!r} did not come: {seen}"
            seen += os.read(self.master, 65536).decode(errors="replace")
        return seen


@pytest.mark.extended
def test_the_prompt_at_a_node_elsewhere(shop: Shell, postgres: Database, tmp_path: Path) -> None:
    with shop.running("start", "--http", "127.0.0.1:0", "--http-login") as node:
        said = read_until(node, b"/healthz", errors=True)
        url = re.findall(rb"http://127\.0\.0\.1:\d+", said)[0].decode()
        (made,) = shop.rows("CREATE USER ann WITH role = 'admin'")
        environment = shop.environment | {"CHANGEFEED_TOKEN": str(made["token"])}
        command = [sys.executable, "-m", "shell", "--url", url]
        with Terminal(command, environment) as screen:
            # The greeting: what is typed before it is not for the prompt.
            screen.type("", "\\q leaves.")
            # Offered once the node has named its tables: then, or later in a menu.
            screen.type("\\d ord\t", "orders")
            screen.type("\x15\\d orders\r", "NOTICE: shop.public.orders")
            screen.type("CREATE CHANGEFEED FOR orders;\r", '"note": "b"')
            postgres.execute("insert into orders values (3, 'live')")
            screen.type("", '"note": "live"')
            screen.type("\x03", "the stream ended after 3 rows; other feeds continue")
            assert jobs_left(shop) == []
            feed = f"CREATE CHANGEFEED f FOR orders INTO '{(tmp_path / 'f').as_uri()}'"
            screen.type(f"{feed};\r", "is running")
            screen.type("PAUSE CHANGEFEED f;\r", "paused")
            screen.type("SHOW CHANGEFEED adit;\r", "^^^^")
            node.send_signal(signal.SIGTERM)
            assert node.wait(PATIENCE) == 0
            screen.type("SHOW JOBS;\r", "CF6001: the node at")
            os.write(screen.master, b"\\q\r")
            assert screen.process.wait(PATIENCE) == 0


@pytest.mark.extended
def test_a_schedule_exports_a_table_whichever_node_lives(
    shop: Shell, postgres: Database, tmp_path: Path
) -> None:
    """The second run begins in a node that is killed then, and is there once."""
    folder = tmp_path / "export"

    def exported() -> dict[str, object]:
        return {str(m.key): m.after for m in read_files(folder, ("orders",)) if m.is_row}

    def runs() -> list[tuple[object, object]]:
        feeds = shop.rows("SHOW CHANGEFEEDS ORDER BY job_id")
        return [(feed["name"], feed["status"]) for feed in feeds]

    (made,) = shop.rows(
        f"CREATE SCHEDULE nightly FOR CHANGEFEED orders INTO '{folder.as_uri()}' "
        "RECURRING '@yearly' WITH SCHEDULE OPTIONS first_run = now"
    )
    first = f"nightly_{str(made['first_run'])[:19].translate({45: None, 58: None, 32: '_'})}"
    with shop.running("start") as node:
        until(lambda: runs() == [(first, "succeeded")], "the first run", PATIENCE)
        assert exported() == {"[1]": {"id": 1, "note": "a"}, "[2]": {"id": 2, "note": "b"}}
        folder.rename(tmp_path / "first")
        postgres.execute("delete from orders where id = 1")
        postgres.execute("insert into orders select n, 'c' from generate_series(3, 5000) n")
        # A time that has come. A node that has seen the end of the first run reads schedules again
        # when the counter of changes rises.
        with closing(sqlite3.connect(tmp_path / "state" / "state.db")) as state:
            state.execute("update schedule set due = 1700000000000000000")
            state.execute("update change set number = number + 1")
            state.commit()
            begun = "select count(*) = 2 from schedule_run"
            until(lambda: state.execute(begun).fetchone()[0], "the second run", PATIENCE)
        node.kill()
    second = "nightly_20231114_221320"
    with shop.running("start"):
        until(lambda: runs() == [(first, "succeeded"), (second, "succeeded")], "its end", PATIENCE)
        until(lambda: not slots(postgres), "the slot of the source is gone", PATIENCE)
    with postgres.connect() as connection:
        rows = connection.execute("select id, note from orders").fetchall()
    assert exported() == {f"[{n}]": {"id": n, "note": note} for n, note in rows}
    (schedule,) = shop.rows("SHOW SCHEDULES")
    assert (schedule["job_status"], schedule["error"]) == ("succeeded", None)


@pytest.mark.extended
@pytest.mark.parametrize("over", ["http", pytest.param("kafka", marks=pytest.mark.kafka)])
def test_a_node_sends_runs_as_lineage(
    over: str, shop: Shell, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Of a feed that ends before the first look, and of one that is dropped."""
    server = WebhookServer(authorization="Bearer sesame")
    uri = f"{server.uri}?token=sesame"
    topic = ""
    if over == "kafka":
        broker: KafkaBroker = request.getfixturevalue("kafka")
        topic = request.getfixturevalue("topic")
        uri = f"{broker.uri}?topic={topic}"

    def events() -> list[tuple[str, dict[str, Any]]]:
        """Keys, and events."""
        if not topic:
            return [("", each.value) for each in list(server.requests)]
        found = broker.messages(topic)
        return [((each.key or b"").decode(), json.loads(each.value or b"")) for each in found]

    def kinds(feed: str) -> list[str]:
        return [event["eventType"] for _, event in events() if event["job"]["name"] == feed]

    try:
        with shop.running("start", "--openlineage", uri) as node:
            made = f"FOR orders INTO '{(tmp_path / 'x').as_uri()}'"
            export = f"CREATE CHANGEFEED export {made} WITH initial_scan = 'only'"
            ran = shop.run("-c", export, "-c", f"CREATE CHANGEFEED copy {made}")
            assert ran.returncode == 0, ran.stderr
            until(lambda: "START" in kinds("copy"), "a run", PATIENCE)
            assert shop.run("-c", "DROP CHANGEFEED copy").returncode == 0
            until(lambda: kinds("copy")[-1] == "ABORT", "its end", PATIENCE)
            assert kinds("export") == ["START", "COMPLETE"]
            node.send_signal(signal.SIGTERM)
            assert node.wait(PATIENCE) == 0
        for key, event in events():
            job = event["job"]
            assert key == (f"run:{job['namespace']}/{job['name']}" if topic else "")
            assert event["inputs"][0]["name"].endswith(".public.orders")
    finally:
        server.stop()


@pytest.mark.extended
def test_a_node_sends_metrics_and_traces_to_a_collector(
    shop: Shell, postgres: Database, tmp_path: Path
) -> None:
    collector = WebhookServer()
    lake = tmp_path / "lake"
    feed = f"CREATE CHANGEFEED f FOR orders INTO '{lake.as_uri()}?flush_interval=1s'"

    def spans() -> set[tuple[str, str, str, int]]:
        """Name, feed, table and rows of each span."""
        found = set()
        for request in list(collector.requests):
            if request.path != "/v1/traces":
                continue
            sent = ExportTraceServiceRequest.FromString(request.body)
            for one in sent.resource_spans[0].scope_spans[0].spans:
                said = {a.key: a.value.string_value or a.value.int_value for a in one.attributes}
                texts = (one.name, str(said.get("feed")), str(said.get("table", "")))
                found.add((*texts, int(said.get("rows", 0))))
        return found

    try:
        with shop.running("start", "--otlp", f"http://127.0.0.1:{collector.port}") as node:
            assert shop.run("-c", feed, "-c", "SYNC CHANGEFEED f").returncode == 0
            postgres.execute("insert into orders values (3, 'c'), (4, 'd'), (5, 'e')")
            assert shop.run("-c", "SYNC CHANGEFEED f").returncode == 0
            paths = ("/v1/metrics", "/v1/traces")
            until(lambda: {r.path for r in collector.requests} == set(paths), "both", PATIENCE)
            node.send_signal(signal.SIGTERM)
            assert node.wait(PATIENCE) == 0
    finally:
        collector.stop()
    table = "shop.public.orders"
    scanned = {("changefeed.scan", "f", table, 2), ("changefeed.scan.part", "f", table, 2)}
    changed = {("changefeed.delivery", "f", "", 3), ("changefeed.write", "f", table, 3)}
    assert scanned | changed | {("changefeed.commit", "f", table, 3)} <= spans()
    metrics = [request.body for request in collector.requests if request.path == "/v1/metrics"]
    assert b"changefeed_emitted_rows_total" in metrics[-1]
    assert not any(postgres.uri.encode() in request.body for request in collector.requests)


def test_the_service_runs_feeds_until_it_is_told_to_stop(
    shop: Shell, postgres: Database, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    with shop.running("start", "--http", "127.0.0.1:0") as node:
        said = read_until(node, b"/healthz", errors=True)
        assert b"started" in said
        page = re.findall(rb"http://127\.0\.0\.1:\d+/", said)[0].decode()
        second = shop.run("start")
        assert second.returncode == 3
        assert "CF6003" in second.stderr
        made = shop.run(
            "-c",
            f"CREATE CHANGEFEED lake FOR orders INTO '{lake.as_uri()}'",
            "-c",
            "SYNC CHANGEFEED lake TIMEOUT '120s'",
        )
        assert made.returncode == 0, made.stderr
        assert "no node runs for this state" not in made.stderr
        assert delivered(lake) == {1: "a", 2: "b"}
        for path, words in (("v1/feeds", "lake"), ("metrics", 'feed="lake"'), ("healthz", "ok")):
            with urllib.request.urlopen(page + path, timeout=30) as answer:
                assert words in answer.read().decode()
        streamed = stream_rows(page, "CREATE CHANGEFEED FOR orders", 2)
        assert [row[:2] for row in streamed] == [["orders", "[1]"], ["orders", "[2]"]]
        until(lambda: jobs_left(shop) == ["lake"], "the feed of a client that left is removed")
        node.send_signal(signal.SIGTERM)
        out, errors = node.communicate(timeout=PATIENCE)
        assert node.returncode == 0
        assert out == b""
        assert b"stopped" in errors.splitlines()[-1]
    assert shop.run("-c", "DROP CHANGEFEED lake").returncode == 0
    assert slots(postgres) == []

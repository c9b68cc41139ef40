"""``changefeed --url``: statements at a node elsewhere, with the output of a shell on its host."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from changefeed.api import Result, Session
from changefeed.backend import Backend, LocalBackend, RemoteBackend
from changefeed.core.errors import ChangefeedError
from changefeed.http.client import RemoteNode
from grammar.binding import ParameterValue
from shell.cli import cli
from shell.client import Client
from shell.commands import run_local
from shell.diagnostics import Diagnostics
from shell.render.formats import OutputFormat
from shell.settings import ScriptOnError, ShellSettings
from tests.golden.world import NOW
from tests.helpers.served import Bench

MADE = "CREATE CHANGEFEED f FOR orders, items INTO 'kafka://k:9092'"

#: Listings, notices, errors with and without a place, several problems, a statement in lines.
SCRIPT = """USE shop;
SHOW CHANGEFEEDS; SHOW CHANGEFEED f;
SHOW CHANGEFEED f EVENTS;
SHOW CHANGEFEED f
  TABLES;
SHOW CHANGEFEED adit;
SHOW JOBS WHERE nothing = 1;
CREATE CHANGEFEED x FOR orders INTO 'kafka://k' WITH formt = 'json', envelop = 'row';
CREATE CHANGEFEED;
VALIDATE CREATE CHANGEFEED y FOR missing INTO 'kafka://k:9092';
SHOW CONNECTIONS
"""


class _Here(LocalBackend):
    """The state of a test."""

    def __init__(self, bench: Bench) -> None:
        super().__init__("here")
        self.bench, self.own = bench, Session(client="shell")

    @property
    def session(self) -> Session:
        return self.own

    def execute(self, parsed: Any, text: str, parameters: Sequence[ParameterValue] = ()) -> Result:
        return self.bench.world.interpreter.execute(text, self.own, parameters)


def output(backend: Backend, script: str, form: OutputFormat) -> tuple[str, str, int]:
    out, said = io.StringIO(), io.StringIO()
    client = Client(
        backend,
        ShellSettings(format=form, on_error=ScriptOnError.CONTINUE),
        Diagnostics(said, as_json=form.structured),
        local=run_local,
        out=out,
    )
    client.run_script(script.splitlines(keepends=True), "file.sql")
    backend.close()
    return out.getvalue(), said.getvalue(), client.status


@pytest.mark.parametrize("form", OutputFormat, ids=str)
def test_the_output_is_that_of_a_shell_on_the_host(bench: Bench, form: OutputFormat) -> None:
    bench.world.run(MADE)
    bench.world.node.deliver("f", NOW - 90 * 10**9, rows=50)
    here = output(_Here(bench), SCRIPT, form)
    there = output(RemoteBackend(bench.server.address, ""), SCRIPT, form)
    assert there == here
    assert here[2] == 1 and here[1].count("CF") >= 5


def run(bench: Bench, *words: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Exit status, output and errors of the command."""
    done = CliRunner().invoke(cli, ["--url", bench.server.address, *words], env=env)
    return done.exit_code, done.stdout, done.stderr


def test_the_command_runs_statements_files_and_its_own_commands(
    bench: Bench, tmp_path: Path
) -> None:
    bench.world.run("CREATE EXTERNAL CONNECTION other AS 'postgresql://o/o' WITH check = 'no'")
    file = tmp_path / "a.sql"
    file.write_text(f"{MADE};\n\\conninfo\n")
    status, out, said = run(bench, "--source", "shop", "-f", str(file), "-c", "SHOW JOBS")
    assert (status, "changefeed will emit to topic orders" in said) == (0, True)
    assert f"node    {bench.server.address}\nsource  shop\n" in out and ",f," in out
    status, out, said = run(bench, "--source", "shop", "-c", "\\d visits", "-c", "\\d orders")
    assert "page,text,yes," in out and "id,bigint,no,1\n" in out
    assert "shop.public.visits, before images" in said and "has no key" in said
    status, _, said = run(bench, "-c", "\\d orders")
    assert status == 1 and "there is no source to ask" in said, "there are two sources"
    assert run(bench, "-c", "") == (0, "", ""), "the node is asked all the same"
    status, _, said = run(bench, "--source", "nothing", "-c", "")
    assert status == 1 and "CF1101" in said


def test_a_node_that_is_not_there_or_is_none(bench: Bench) -> None:
    with bench.serve() as server:
        address = server.address
    done = CliRunner().invoke(cli, ["--url", address, "--format", "json", "-c", "SHOW JOBS"])
    error = json.loads(done.stderr)
    assert done.exit_code == 3 and error["code"] == "CF6001" and address in error["error"]


class _Other(BaseHTTPRequestHandler):
    """A server of something else."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(int(self.path.strip("/").partition("/")[0]))
        self.send_header("Location", "http://elsewhere/")
        self.end_headers()
        self.wfile.write(b"<html>" if "502" in self.path else b"{}")

    def log_message(self, *_: object) -> None:
        """Silence."""


@pytest.fixture
def other() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Other)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("status", [200, 302, 502])
def test_a_server_of_something_else(other: str, status: int) -> None:
    node = RemoteNode(f"{other}/{status}", "t0ken")
    with pytest.raises(ChangefeedError) as caught:
        node.execute("SHOW JOBS", Session())
    node.close()
    if status != 302:
        assert caught.value.code.number == "CF6001"
    assert "elsewhere" not in str(caught.value), "no redirection is followed"


def test_the_token_of_a_user(bench: Bench, tmp_path: Path) -> None:
    token = str(bench.world.run("CREATE USER ann WITH role = 'viewer'").rows[0][-1])
    file = tmp_path / "token"
    file.write_text(token + "\n")
    with bench.serve(logins=True) as server:
        words = ["--url", server.address, "-c", "SHOW JOBS"]
        for extra, env, wanted in (
            ([], {"CHANGEFEED_TOKEN": ""}, "CF1402"),
            ([], {"CHANGEFEED_TOKEN": token}, ""),
            (["--token-file", str(file)], {"CHANGEFEED_TOKEN": "wrong"}, ""),
            (["-c", "DROP USER ann"], {"CHANGEFEED_TOKEN": token}, "CF1403"),
        ):
            done = CliRunner().invoke(cli, [*words, *extra], env=env)
            assert done.exit_code == bool(wanted) and wanted in done.stderr, done.output
            assert token not in done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--url", "ftp://k"], "write http://host:port"),
        (["--url", "https://u:t0ken@k"], "CHANGEFEED_TOKEN"),
        (["--url", "http://k", "--state", "x"], "do not go with --url"),
        (["--token-file", "x"], "goes with --url"),
        (["--url", "http://k", "start"], "--url does not go with start"),
        (["--url", "http://k", "--token-file", "/nothing"], "No such file"),
    ],
)
def test_flags_that_do_not_go_together(words: list[str], said: str) -> None:
    done = CliRunner().invoke(cli, words)
    assert done.exit_code in (1, 2) and said in done.output and "t0ken" not in done.output


def test_a_token_does_not_leave_the_machine_in_the_clear() -> None:
    with pytest.raises(ChangefeedError, match="in the clear") as caught:
        RemoteNode("http://192.0.2.1:8080", "t0ken")
    assert "t0ken" not in repr(caught.value)


def test_rows_of_a_feed_without_a_sink_come_until_it_ends(bench: Bench) -> None:
    rows = [("orders", "[1]", '{"a": "x\u2028y\\n"}', "c"), (None, None, '{"resolved": "1"}', "r")]
    ended = threading.Event()
    waits = threading.Event()

    def stream() -> Iterator[Any]:
        try:
            yield from rows
            while not waits.wait(0.05):
                yield rows[0]
        finally:
            ended.set()

    result = Result("stream", stream=stream(), tag="CREATE CHANGEFEED")
    bench.world.interpreter.execute = lambda *_: result  # type: ignore[method-assign]
    node = RemoteNode(bench.server.address)
    found = node.execute("CREATE CHANGEFEED FOR orders", Session(), endless=True)
    assert found.stream is not None
    assert [next(found.stream), next(found.stream)] == rows
    found.stream.close()  # type: ignore[attr-defined]
    assert ended.wait(20), "closing ends the feed at the node"
    node.close()


def test_an_error_of_a_stream_is_the_error_of_the_statement(bench: Bench) -> None:
    node = RemoteNode(bench.server.address)
    with pytest.raises(ChangefeedError) as caught:
        node.execute("CREATE CHANGEFEED FOR adit", Session(), endless=True)
    assert caught.value.code.number == "CF1101" and caught.value.text is not None
    node.close()

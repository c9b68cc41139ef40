"""The prompt of ``changefeed --url``: what it reads of a node, and what happens when it goes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from click.testing import CliRunner
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from changefeed.backend import RemoteBackend
from changefeed.core.errors import ChangefeedError
from changefeed.http.client import RemoteNode
from changefeed.http.server import HttpServer
from shell.cli import cli
from shell.client import Client
from shell.commands import run_local
from shell.diagnostics import Diagnostics
from shell.repl.complete import ShellCompleter
from shell.repl.loop import Loop, greet
from shell.repl.names import NameCache
from shell.repl.progress import look
from shell.repl.prompt import make_prompt
from shell.repl.toolbar import Watcher, line
from shell.settings import ShellSettings
from tests.golden.world import NOW
from tests.helpers.served import Bench
from tests.helpers.waiting import until

MADE = "CREATE CHANGEFEED f FOR orders, items INTO 'kafka://k:9092' WITH resolved = '1s'"


@pytest.fixture
def backend(bench: Bench) -> Iterator[RemoteBackend]:
    backend = RemoteBackend(bench.server.address, "")
    backend.check()
    yield backend
    backend.close()


def test_a_node_elsewhere_knows_what_the_interpreter_knows(
    bench: Bench, backend: RemoteBackend
) -> None:
    here, there = bench.world.interpreter, backend.facts
    bench.world.run(MADE)
    bench.world.node.deliver("f", NOW - 90 * 10**9, rows=50)
    assert there.names() == here.names() and there.names().source == "shop"
    assert there.summary() == here.summary() and str(there.summary().worst_lag) == "1m 30s"
    assert there.tables("shop") == here.tables("shop") and ("audit", "log") in there.tables("shop")
    for name in (("orders",), ("audit", "log"), ("public", "visits")):
        assert there.table("shop", name) == here.table("shop", name)
    for source, name in (("shop", ("Nothing",)), ("nowhere", ("orders",))):
        errors = []
        for facts in (here, there):
            with pytest.raises(ChangefeedError) as caught:
                facts.table(source, name)
            errors.append((str(caught.value), caught.value.hint))
        assert errors[0] == errors[1]


@pytest.mark.parametrize(
    ("text", "offered"),
    [
        ("CREATE CHANGEFEED FOR or", "orders"),
        ("CREATE CHANGEFEED FOR orders INTO 'null://' WITH key_column = '", "'customer'"),
        ("PAUSE CHANGEFEED ", "f"),
        ("ALTER CHANGEFEED f UNSET ", "resolved"),
        ("USE ", "shop"),
    ],
)
def test_names_are_completed(bench: Bench, backend: RemoteBackend, text: str, offered: str) -> None:
    bench.world.run(MADE)
    completer = ShellCompleter(NameCache(backend))

    def found() -> list[str]:
        document = Document(text, len(text))
        return [c.text for c in completer.get_completions(document, CompleteEvent())]

    until(lambda: offered.strip("'") in [text.strip("'") for text in found()], f"{offered}")


def typed(backend: RemoteBackend, *lines: str) -> tuple[str, str]:
    """Output and errors of a prompt at which these lines were typed."""
    out, said = io.StringIO(), io.StringIO()
    client = Client(
        backend, ShellSettings(), Diagnostics(said), local=run_local, out=out, interactive=True
    )
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        prompt = make_prompt(
            ShellCompleter(NameCache(backend)),
            InMemoryHistory(),
            lambda *_: [],
            source=keys,
            output=DummyOutput(),
        )
        greet(client)
        keys.send_text("".join(f"{line}\n" for line in lines) + "\x04")
        Loop(client, prompt, NameCache(backend)).run()
    return out.getvalue(), said.getvalue()


def test_the_prompt_runs_statements_and_local_commands(
    bench: Bench, backend: RemoteBackend
) -> None:
    bench.world.run(MADE)
    out, said = typed(backend, "SHOW CHANGEFEED adit;", "\\d orders", "PAUSE CHANGEFEED f;")
    assert "changefeed 0" in said and f", node {bench.server.address}\n" in said
    assert "CF1101" in said and "LINE 1: SHOW CHANGEFEED adit\n                        ^^^^" in said
    assert "numeric(12,2)" in out and "paused" in out
    client = Client(backend, ShellSettings(), Diagnostics(), local=run_local)
    scan = look(client, "f")
    assert scan is not None and scan.status == "paused" and look(client, "gone") is None


def test_the_prompt_outlives_its_node(bench: Bench, backend: RemoteBackend) -> None:
    watcher = Watcher(backend, lambda: None)
    assert "no node" not in line(watcher._read(), "", 200)[0][1]
    with bench.serve() as gone:
        address = backend.facts.url = gone.address  # type: ignore[attr-defined]
        assert watcher._read().problem == ""
    said = typed(backend, "SHOW JOBS;", "\\q")[1]
    assert f"CF6001: the node at {address} cannot be used: Connection refused" in said
    assert "Connection refused" in watcher._read().problem
    backend.facts.url = bench.server.address  # type: ignore[attr-defined]
    assert "CF" not in typed(backend, "SHOW JOBS;")[1] and watcher._read().problem == ""


def test_a_certificate_that_is_not_trusted(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, cert, key = trustme.CA(), tmp_path / "cert.pem", tmp_path / "key.pem"
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(key)
    issued.cert_chain_pems[0].write_to_path(cert)
    application = bench.server._server.config.app
    with HttpServer("127.0.0.1", 0, application, tls=(str(cert), str(key))) as server:  # type: ignore[arg-type]
        done = CliRunner().invoke(cli, ["--url", server.address, "-c", "SHOW JOBS"])
        assert done.exit_code == 3 and "its certificate is not trusted: " in done.stderr
        assert "SSL_CERT_FILE" in done.stderr and "[SSL" not in done.stderr
        trusted = tmp_path / "ca.pem"
        authority.cert_pem.write_to_path(trusted)
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
        node = RemoteNode(server.address)
        assert node.summary().feeds == 0
        node.close()

"""Each code block of a page is executed, planned or compared with what it shows.

Statements of changefeed are executed as they are typed, against tables that stand still and hosts
that are not asked (:mod:`tests.docs.planned`). ``test_pages.py`` runs on real servers what this
cannot: statements of servers, and queries. ``tests/e2e/test_examples.py`` runs the examples' files.
A block whose page and language are in no list here fails the test.
"""

from __future__ import annotations

import ast
import asyncio
import configparser
import inspect
import json
import re
import shlex
import textwrap
import time
import tomllib
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import psycopg
import pyarrow as pa
import pytest

import changefeed
import changefeed.spark_source
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Problems
from changefeed.core.formats import Format
from changefeed.core.shapes import Envelope
from changefeed.dataset.config import read_config
from changefeed.dataset.model import OPERATION
from changefeed.encoding.plan import MessagePlan
from changefeed.encoding.protobuf.schema import value_proto
from changefeed.pg.server import PgServer
from changefeed.query.probe import takes_arrow
from changefeed.sources.registry import ENTRY_POINT_GROUP
from changefeed.spark_source.settings import KNOWN
from changefeed_testing.sources import conformance as source_conformance
from grammar.parser import parse
from grammar.split import split
from shell.cli import cli
from shell.diagnostics import error_json
from sinks import registry as sink_registry
from sinks.base import Capabilities
from sinks.webhook.client import signature
from tests.docs.blocks import ROOT, Block, all_blocks, blocks, is_of_a_server
from tests.docs.planned import PagesWorld, plan
from tests.golden import message_page
from tests.golden.world import NOW, World
from tests.helpers.message_model import table
from tests.helpers.served import Bench
from tests.unit.test_protobuf import numbered

#: Takes the blocks of one page and language, and an empty folder.
Check = Callable[[list[Block], Path], None]

SQL = [block for block in all_blocks() if block.language == "sql"]

#: Statements of servers: where they are run as they are typed, or why they cannot be.
SERVERS = {
    "README.md": "tests/docs/test_pages.py",
    "docs/messages.md": "tests/docs/test_pages.py",
    "docs/operating.md": "tests/docs/test_pages.py",
    "docs/source-postgresql.md": "tests/docs/test_pages.py",
    "docs/source-mysql.md": "an administrator's; tests/services/mysql.py starts with them",
    "examples/copy/README.md": "Amazon Redshift needs an account",
}

#: Commands that are not changefeed's, psql or make, and what holds them.
FOREIGN_COMMANDS = {
    "bq": "Google's client",
    "curl": "tests/e2e/test_typed_examples.py types it, and http_answers below",
    "duckdb": "tests/e2e/test_typed_examples.py types it",
    "echo": "feeds changefeed, whose words are read here",
    "openssl": "makes 32 random bytes; tests/unit/test_state_key.py has keys like that",
    "find": "tests/e2e/test_typed_examples.py types it",
    "kafka-console-consumer.sh": "tests/e2e/test_typed_examples.py types it",
    "pip": "tests/hygiene/test_wheel.py installs it",
    "python": "tests/e2e/test_typed_examples.py types it",
    "spark-submit": "tests/e2e/test_spark_submit.py types it",
}


def test_no_block_is_left_out() -> None:
    known = {"sql", "sh"}
    left = [b for b in all_blocks() if b.language not in known]
    assert [str(b) for b in left if (b.page, b.language) not in {**CHECKS, **PICTURES}] == []
    assert {(b.page, b.language) for b in left} == {*CHECKS, *PICTURES}, "a block is gone"


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """An empty folder, in memory where the machine has one there: a state waits for its disk."""
    place = Path("/dev/shm")
    with TemporaryDirectory(dir=place if place.is_dir() else tmp_path) as folder:
        yield Path(folder)


#: What the references of the pages refer to.
VARIABLES = ("SHOP_PASSWORD", "KAFKA_PASSWORD", "HOOKS_TOKEN")


@pytest.mark.parametrize("block", SQL, ids=str)
def test_statements_are_planned(
    block: Block, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "secret")
    if "ROTATE KEY" in block.text:
        monkeypatch.setenv("CHANGEFEED_STATE_KEY", b64encode(bytes(32)).decode())
    mine = plan(block, memory)
    foreign = len([text for text in block.statements() if is_of_a_server(text)])
    assert mine or foreign
    assert not foreign or block.page in SERVERS


def test_the_lists_name_pages_that_are_there() -> None:
    pages = {block.page for block in SQL}
    assert set(SERVERS) - pages == set()
    for page in SERVERS:
        assert any(is_of_a_server(text) for b in blocks(page) for text in b.statements())


# ----------------------------------------------------------------------- commands


@pytest.mark.parametrize("block", [b for b in all_blocks() if b.language == "sh"], ids=str)
def test_commands_have_the_words_that_they_give(block: Block) -> None:
    for command in block.commands():
        for part in command.split("|"):
            words = shlex.split(part, comments=True)
            if words[:1] == ["sudo"]:
                words = words[3:]  # -u USER
            name = Path(words[0]).name
            if name == "changefeed":
                check_changefeed(words[1:])
            elif name == "make":
                targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
                assert words[1] in targets
            elif name == "psql":
                assert words[-2] == "-c" or words[-1].endswith(".sql")
                assert all((ROOT / word).is_file() for word in words if word.endswith(".sql"))
            else:
                assert name in FOREIGN_COMMANDS or name in ("sort", "xargs"), command


def check_changefeed(words: list[str]) -> None:
    """The flags exist, and the statements parse."""
    context = cli.make_context("changefeed", list(words))
    for text in context.params["commands"]:
        parse(text)
    for file in context.params["files"]:
        path = ROOT / file
        assert not file.startswith("examples/") or path.is_file()
        for piece in split(path.read_text()) if path.is_file() else ():
            parse(piece.text)
    rest = [*context._protected_args, *context.args]
    if rest:
        command = cli.commands[rest[0]]
        assert isinstance(command, click.Command)
        command.make_context(rest[0], rest[1:], parent=context)


# ----------------------------------------------------------------------- the other languages


def readme_message(found: list[Block], folder: Path) -> None:
    """The encoder writes what the README shows for an update under the options of its feed."""
    (block,) = found
    shown = json.loads(block.text)
    number, status, total = shown["after"].values()
    made = message_page._messages("WITH diff").replace("12.50", str(total) + "0")
    update = next(line for line in made.splitlines() if line.startswith("update"))
    wanted = json.loads(update.partition("  ")[2].partition("  ")[2])
    for image in ("after", "before"):
        kept = {name: wanted[image][name] for name in shown[image] if name != "id"}
        assert kept == {name: value for name, value in shown[image].items() if name != "id"}
    assert list(shown) == list(wanted)
    assert (number, status) == (3, "paid")


def dataset_config(found: list[Block], folder: Path) -> None:
    (block,) = found
    config = folder / "config.yaml"
    config.write_text(block.text)
    read = read_config(config)
    assert (read.name, [column.name for column in read.columns]) == (
        "sample_data",
        ["keycol1", "nonkeycol1"],
    )


def dataset_console(found: list[Block], folder: Path) -> None:
    (block,) = found
    commands = [line[2:] for line in block.text.splitlines() if line.startswith("$ ")]
    assert len(commands) == 2
    for command in commands:
        check_changefeed(shlex.split(command)[1:])


def query_functions(found: list[Block], folder: Path) -> None:
    """The functions do what the page says, and are called as it says."""
    names: dict[str, Any] = {}
    for block in found:
        exec(block.text, names)
    rows, columns = names["bucket"], names["shout"]
    assert (rows(17, 16), rows(None, 16)) == (1, None)
    assert columns(pa.array(["open", None])).to_pylist() == ["OPEN", None]
    assert (takes_arrow(rows), takes_arrow(columns)) == (False, True)


def dataset_reading(found: list[Block], folder: Path) -> None:
    (block,) = found
    columns = set(re.findall(r"\b([A-Z_]{5,})\b", block.text))
    assert columns == {"EFF_DATE", OPERATION}
    ast.parse(block.text)


def spark_source(found: list[Block], folder: Path) -> None:
    """What ``tests/e2e/test_spark_source.py`` and ``test_readers.py`` run, by the same names."""
    for block in found:
        ast.parse(block.text)
        assert set(re.findall(r'\.option\(\s*"(?!checkpointLocation)(\w+)"', block.text)) <= set(
            KNOWN
        )
    stream, batch, plain, cluster = found
    assert callable(changefeed.spark_source.register)
    assert callable(changefeed.spark_source.executor_properties)
    assert "spark_source.executor_properties()" in cluster.text
    assert "foreachBatch" in stream.text and "spark.read." in batch.text
    (call,) = [
        node
        for node in ast.walk(ast.parse(plain.text))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "changefeed.subscribe"
    ]
    words = {word.arg or "": None for word in call.keywords}
    inspect.signature(changefeed.subscribe).bind(*[None for _ in call.args], **words)


def python_programs(found: list[Block], folder: Path) -> None:
    """They run against a node with the feed that they name."""
    world = World(folder)
    world.shop()
    world.run("CREATE CHANGEFEED orders_feed FOR orders INTO 'null://'")
    world.node.deliver("orders_feed", NOW)
    world.logs["shop"] = Timestamp(NOW)
    program, awaited = found
    with closing(world), Bench(world).server as server:
        names: dict[str, Any] = {"token": None, "changefeed": changefeed}
        names["interval_end"] = Timestamp(NOW).datetime()
        exec(program.text.replace("https://node.example:8443", server.address), names)
        text = awaited.text.replace("https://node.example:8443", server.address)
        exec("async def program():\n" + textwrap.indent(text, "    "), names)
        asyncio.run(names["program"]())


def attached_session(found: list[Block], folder: Path) -> None:
    """What ``tests/e2e/test_attached_spark.py`` runs, by the same names."""
    (block,) = found
    (attach, execute) = [n for n in ast.walk(ast.parse(block.text)) if isinstance(n, ast.Call)]
    assert ast.unparse(attach.func) == "changefeed.attach"
    inspect.signature(changefeed.attach).bind(*attach.args)
    assert ast.unparse(execute.func) == "node.execute"
    (statement,) = execute.args
    assert isinstance(statement, ast.Constant) and isinstance(statement.value, str)
    parse(statement.value)


def sink_guide(found: list[Block], folder: Path) -> None:
    own, features, conformance, merging = found
    names: dict[str, object] = {"pytest": pytest}
    header = """
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar
from changefeed.core.errors import ChangefeedError
from changefeed.core.settings import Parameter, Settings, setting
from changefeed.core.uri import invalid_uri
from sinks.base import Capabilities, Sink
"""
    exec(header + own.text, names)
    kind: Any = names["MySink"]
    kind.__abstractmethods__ = frozenset()  # the page leaves the methods out
    made = kind("mysink://host/?token=a&parallel=7")
    settings = made.settings
    assert (settings.uri.host, settings.token, settings.parallel) == ("host", "a", 7)
    assert isinstance(kind.capabilities, Capabilities)
    header += """
from changefeed.options import Feature, own_option
from changefeed.options.types import Text
from sinks.base import Accepts
"""
    exec(header + features.text, names)
    kind = names["MySink"]
    assert [option.name for option in kind.capabilities.options] == ["greeting"]
    for block in (conformance, merging):
        body = {"pytest": pytest, "MyHarness": object}
        exec("from __future__ import annotations\n" + block.text, body)
        assert callable(body["test_my_sink"])


def source_guide(found: list[Block], folder: Path) -> None:
    (block,) = found
    names = {"pytest": pytest, **vars(source_conformance)}
    exec("from __future__ import annotations\n" + block.text, names)
    assert callable(names["test_my_source"])


def webhook_receiver(found: list[Block], folder: Path) -> None:
    (block,) = found
    names: dict[str, Callable[..., bool]] = {}
    exec("import hashlib, hmac, time\n" + block.text, names)
    genuine, body = names["genuine"], b'{"payload": []}'
    signed = signature("k3y", body, time.time())
    assert genuine(b"k3y", signed, body)
    assert not genuine(b"k3y", signed, body + b" ")
    assert not genuine(b"other", signed, body)
    assert not genuine(b"k3y", signature("k3y", body, time.time() - 3600), body)


def entry_points(group: str) -> Check:
    def check(found: list[Block], folder: Path) -> None:
        (block,) = found
        ((_, named),) = tomllib.loads(block.text)["project"].items()
        assert list(named) == [group]

    return check


def protobuf(found: list[Block], folder: Path) -> None:
    """Each member of the page is in the generated types, with its number."""
    (block,) = found
    columns = [
        numbered(1, "id", "bigint", nullable=False),
        numbered(3, "total", "numeric(20,4)"),
        numbered(4, "at", "timestamp with time zone"),
        numbered(6, "tags", "text[]"),
    ]
    schema = table(columns)
    made = str(
        value_proto(
            MessagePlan(
                schema, "orders", Envelope.WRAPPED, Format.PROTOBUF, diff=True, updated=True
            )
        )
    )
    members = re.findall(r"^ +(.*? \w+ = \d+);", block.text, re.MULTILINE)
    assert len(members) == 10
    assert [member for member in members if f"  {member};" not in made] == []


def service_unit(found: list[Block], folder: Path) -> None:
    (block,) = found
    unit = configparser.ConfigParser(strict=True, interpolation=None)
    unit.read_string(block.text)
    check_changefeed(shlex.split(unit["Service"]["ExecStart"])[1:])


def shell_error(found: list[Block], folder: Path) -> None:
    """The error of the statement that language.md shows."""
    (block,) = found
    statement = "CREATE CHANGEFEED FOR orders INTO 'kafka://k' WITH formt = 'json'"
    assert statement in (ROOT / "docs/language.md").read_text()
    with closing(PagesWorld(folder)) as world, pytest.raises(ChangefeedError) as caught:
        world.run("CREATE EXTERNAL CONNECTION shop AS 'postgresql://app:pw@db:5432/shop'")
        world.run(statement)
    error = caught.value
    (problem,) = error.problems if isinstance(error, Problems) else [error]
    assert error_json(problem) == block.text.strip()


#: How the blocks of a page in a language of their own are held.
def http_answers(found: list[Block], folder: Path) -> None:
    """Each curl of the page is asked; a block of JSON below it is a part of the answer."""
    world = World(folder)
    world.shop()
    world.run("CREATE CHANGEFEED first FOR orders INTO 'null://'")
    bench = Bench(world)
    shown = {block.line: json.loads(block.text) for block in found}
    compared = 0
    with bench.server:
        for block in blocks("docs/http.md"):
            if block.language != "sh" or not block.text.startswith("curl"):
                continue
            status, answer = _curled(bench, shlex.split(block.commands()[0])[1:])
            below = block.line + block.text.count("\n") + 3
            if below in shown:
                assert _part_of(shown[below], answer), (str(block), status, answer)
                compared += 1
    world.close()
    assert compared == len(found)


def queries_of_a_client(found: list[Block], folder: Path) -> None:
    """Each statement is run by psycopg."""
    with closing(World(folder)) as world:
        world.shop()
        world.run("CREATE CHANGEFEED f FOR orders INTO 'null://'")
        with PgServer("127.0.0.1", 0, world.interpreter) as server:
            host, _, port = server.address.rpartition(":")
            with psycopg.connect(host=host, port=port, user="me", autocommit=True) as client:
                for block in found:
                    for piece in split(block.text):
                        text = piece.text
                        if text.startswith("COPY"):
                            with client.cursor().copy(text) as copied:
                                assert list(copied)
                        elif text:
                            assert client.execute(text).description, text


def _curled(bench: Bench, words: list[str]) -> tuple[int, Any]:
    headers: dict[str, str] = {}
    method = body = path = None
    while words:
        word = words.pop(0)
        if word == "-H":
            name, _, value = words.pop(0).partition(": ")
            headers[name] = value
        elif word == "-d":
            body = words.pop(0).encode()
        elif word == "-X":
            method = words.pop(0)
        elif not word.startswith("-"):
            path = word.removeprefix("http://127.0.0.1:8080")
    assert path is not None
    status, _, text = bench.ask(path, body, method, **headers)
    return status, next(json.loads(line) for line in text.splitlines())


def _part_of(shown: Any, answer: Any) -> bool:
    if isinstance(shown, dict):
        return all(name in answer and _part_of(shown[name], answer[name]) for name in shown)
    if isinstance(shown, list):
        return len(shown) == len(answer) and all(map(_part_of, shown, answer))
    return bool(shown == answer)


CHECKS: Mapping[tuple[str, str], Check] = {
    ("README.md", "json"): readme_message,
    ("docs/datasets.md", "console"): dataset_console,
    ("docs/datasets.md", "python"): dataset_reading,
    ("docs/datasets.md", "yaml"): dataset_config,
    ("docs/formats.md", "proto"): protobuf,
    ("docs/http.md", "json"): http_answers,
    ("docs/operating.md", "ini"): service_unit,
    ("docs/shell.md", "json"): shell_error,
    ("docs/pg.md", "psql"): queries_of_a_client,
    ("docs/python.md", "python"): python_programs,
    ("docs/queries.md", "python"): query_functions,
    ("docs/sink-guide.md", "python"): sink_guide,
    ("docs/sink-guide.md", "toml"): entry_points(sink_registry.GROUP),
    ("docs/sink-webhook.md", "python"): webhook_receiver,
    ("docs/source-guide.md", "python"): source_guide,
    ("docs/source-guide.md", "toml"): entry_points(ENTRY_POINT_GROUP),
    ("docs/spark.md", "python"): attached_session,
    ("docs/spark-source.md", "python"): spark_source,
}

#: What is no language: pictures, names of files, and output that other tests compare.
PICTURES = {
    ("ARCHITECTURE.md", "text"): "pictures; import-linter holds the layers",
    ("CONTRIBUTING.md", "text"): "which package may import which; import-linter holds it",
    ("docs/datasets.md", "text"): "syntax; tests/golden/test_language.py holds it",
    ("docs/formats.md", "text"): "a record of the file of schemas, shortened",
    ("docs/language.md", ""): "made from the grammar: tests/golden/test_language.py",
    ("docs/messages.md", ""): "made by the encoder: tests/golden/message_page.py",
    ("docs/operating.md", "text"): "a line of the log: tests/unit/test_log_format.py",
    ("docs/python.md", "text"): "cells; tests/unit/test_magic.py runs such",
    ("docs/queries.md", "text"): "syntax; tests/golden/parse holds it",
    ("docs/sink-files.md", "text"): "names of files, and a shortened manifest",
    ("docs/sink-guide.md", "text"): "the order of calls",
    ("docs/sink-webhook.md", "text"): "a request, shortened: tests/e2e/test_webhook.py",
    ("docs/source-guide.md", "text"): "the order of calls",
    ("examples/copy/README.md", "text"): "names of files, shortened",
}


@pytest.mark.parametrize(
    ("page", "language"), [pytest.param(*key, id=" ".join(key)) for key in CHECKS]
)
def test_other_languages(page: str, language: str, tmp_path: Path) -> None:
    found = [block for block in blocks(page) if block.language == language]
    assert found
    CHECKS[page, language](found, tmp_path)

"""``changefeed doctor``: what it finds, and that its bundle has no secrets."""

from __future__ import annotations

import json
import resource
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from changefeed.api import Result
from changefeed.catalog import Status
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.state import StateLayout
from changefeed.doctor import examine, write_bundle
from shell.cli import cli
from shell.exits import Exit
from tests.golden.world import SECRETS, World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "state")
    world.shop()
    world.run("CREATE CHANGEFEED orders FOR orders INTO 'null://'")
    yield world
    world.close()


def of(result: Result, place: str) -> list[tuple[object, ...]]:
    return [tuple(row[i] for i in (0, 1, 3, 4)) for row in result.rows if row[2] == place]


def test_what_is_well_has_a_row(world: World) -> None:
    found = examine(world.interpreter)
    assert found.failure is None
    assert {row[0] for row in found.rows} <= {"ok", "warning"}
    [(severity, _, name, said)] = of(found, "feed")
    assert (severity, name) == ("ok", "orders") and "nothing is wrong" in str(said)
    assert [row[2] for row in of(found, "connection") if row[0] == "ok"] == ["shop"]


def test_a_feed_that_failed_and_a_connection_that_is_refused(world: World) -> None:
    world.fail("orders", ChangefeedError(Code.SINK_UNREACHABLE, "the broker does not answer"))
    world.catalog.create_connection("gone", "kafka://127.0.0.1:1?max_message_bytes=s3cret")
    found = examine(world.interpreter)
    failed = ("error", "CF5001", "orders, sink null://", "the broker does not answer")
    assert of(found, "feed") == [
        failed,
        ("warning", "", "orders", "orders is failed: the broker does not answer"),
    ]
    assert found.failure is not None and "the broker" not in str(of(found, "connection"))
    [(severity, code, _, said)] = [r for r in of(found, "connection") if r[2] == "gone"]
    assert severity == "error" and str(code).startswith("CF") and "max_message_bytes" in str(said)
    assert found.failure is not None
    assert not any(secret in str(found.rows) for secret in SECRETS)


def test_a_table_that_failed_fails_the_command(world: World) -> None:
    world.fail_table("orders", "orders", "CF4101 the key changed")
    found = examine(world.interpreter)
    [said] = [row[3] for row in of(found, "feed") if row[0] == "error"]
    assert "orders: the key changed" in str(said) and found.failure is not None


def test_a_feed_that_has_succeeded_is_no_problem(world: World) -> None:
    job = world.catalog.job("orders")
    world.catalog.transition(job.id, Status.SUCCEEDED, reason="all rows are delivered")
    found = examine(world.interpreter)
    assert of(found, "feed") == [] and found.failure is None


def test_limits_of_the_machine(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
    [(severity, _, where, said)] = [
        row for row in of(examine(world.interpreter), "machine") if row[0] == "warning"
    ]
    assert (severity, where) == ("warning", "open files") and "may open 256 files" in str(said)


def test_the_bundle_has_what_helps_and_no_secret(world: World, tmp_path: Path) -> None:
    world.catalog.create_connection(
        "store", "postgresql://u:hunter2@127.0.0.1:1/s3?password=s3cret"
    )
    log = StateLayout(Path(world.catalog.directory)).node_log
    log.write_text("node started\n")
    file = tmp_path / "help.zip"
    write_bundle(world.interpreter, examine(world.interpreter), file)
    with zipfile.ZipFile(file) as bundle:
        texts = {name: bundle.read(name).decode() for name in bundle.namelist()}
    assert set(texts) == {"doctor.json", "show.json", "packages.txt", "node.log"}
    shown = json.loads(texts["show.json"])
    assert shown["SHOW CHANGEFEEDS"][0]["name"] == "orders"
    assert shown["SHOW CHANGEFEED orders EVENTS LIMIT 1000"][0]["kind"]
    assert [row["name"] for row in shown["SHOW EXTERNAL CONNECTIONS"]] == ["shop", "store"]
    assert "pyarrow==" in texts["packages.txt"] and texts["node.log"] == "node started\n"
    assert not any(secret in text for text in texts.values() for secret in SECRETS)


def test_the_command_ends_with_a_status(world: World, tmp_path: Path) -> None:
    """The sources of this world are no servers, so the command cannot reach them."""
    state = ["doctor", "--state", str(world.catalog.directory)]
    run = CliRunner().invoke(cli, [*state, "--bundle", str(tmp_path / "no" / "b.zip")])
    assert run.exit_code != 0 and "No such file or directory" in run.output
    run = CliRunner().invoke(cli, ["--format", "json", *state, "--bundle", str(tmp_path / "b.zip")])
    assert run.exit_code == Exit.CONNECTION, run.output
    assert [r["severity"] for r in json.loads(run.stdout) if r["place"] == "connection"] == [
        "error"
    ]
    assert (tmp_path / "b.zip").stat().st_size > 500
    gone = CliRunner().invoke(cli, ["doctor", "--state", str(tmp_path / "gone")])
    assert isinstance(gone.exception, ChangefeedError)
    assert gone.exception.code.number == "CF6001" and not (tmp_path / "gone").exists()

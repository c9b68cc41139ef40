"""What other users of the machine, and files in the current directory, can do to a capture."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import psutil
import pytest

from changefeed.app import Application
from changefeed.capture.process import Notice
from changefeed.capture.standby import CaptureTask, Standby
from changefeed.capture.supervisor import CaptureSupervisor
from changefeed.catalog import Catalog
from changefeed.core.state import StateLayout
from tests.helpers.waiting import until


def test_the_password_of_a_state_is_no_argument_of_the_capture() -> None:
    url = "postgresql://feeds:PASSWORD@127.0.0.1:1/state"
    heard: list[Notice] = []
    supervisor = CaptureSupervisor.for_source(url, CaptureTask("shop"), heard.append)
    supervisor.start()
    try:
        until(lambda: supervisor.pid is not None)
        process = psutil.Process(supervisor.pid)
        # Until then it is a copy of this process.
        until(lambda: "changefeed.capture" in process.cmdline())
        assert not any("PASSWORD" in argument for argument in process.cmdline())
        until(lambda: heard)
    finally:
        supervisor.stop()
    # The state was asked for: the URL reached the child another way.
    assert heard[0].kind == "error" and heard[0].code == "CF6001"
    assert all("PASSWORD" not in notice.message + notice.detail for notice in heard)


def on_standby(state: str) -> tuple[Standby, psutil.Process]:
    """A capture on standby and its process."""
    before = set(psutil.Process().children())
    ready = Standby(state)
    (child,) = set(psutil.Process().children()) - before
    return ready, child


def test_a_capture_on_standby_reads_what_it_is_told_and_only_once(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    Catalog.open(state).close()
    heard: list[Notice] = []
    ready = Standby(state)
    supervisor = CaptureSupervisor.for_source(state, CaptureTask("shop"), heard.append, ready=ready)
    supervisor.start()
    try:
        until(lambda: heard)
        assert ready.take(CaptureTask("another")) is None
    finally:
        supervisor.stop()
        ready.close()
    # It began to capture the source, which the state does not have.
    assert (heard[0].code, "shop" in heard[0].message) == ("CF1101", True), heard[0]


def test_a_capture_on_standby_ends_with_its_node(tmp_path: Path) -> None:
    ready, child = on_standby(str(tmp_path / "state"))
    ready.close()
    assert not child.is_running()
    assert ready.take(CaptureTask("shop")) is None


@pytest.mark.parametrize("dies", ["before", "after"])
def test_a_capture_on_standby_that_died_is_no_loss(tmp_path: Path, dies: str) -> None:
    state = str(tmp_path / "state")
    Catalog.open(state).close()
    heard: list[Notice] = []
    ready, child = on_standby(state)
    supervisor = CaptureSupervisor.for_source(state, CaptureTask("shop"), heard.append, ready=ready)
    if dies == "before":
        child.kill()
        until(lambda: child.status() == psutil.STATUS_ZOMBIE)
    supervisor.start()
    try:
        if dies == "after":
            until(lambda: supervisor.pid is not None)
            child.kill()
        # One that is started in its place gets as far as it would have.
        until(lambda: any(notice.code == "CF1101" for notice in heard))
    finally:
        supervisor.stop()
        ready.close()


@pytest.mark.parametrize("path", ["", ".:", "relative"])
def test_a_capture_runs_no_code_of_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    state, folder = tmp_path / "state", tmp_path / "somebody"
    Catalog.open(str(state)).close()
    folder.mkdir()
    for name in ("grammar", "sinks", "changefeed", "argparse", "sitecustomize"):
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", path)
    heard: list[Notice] = []
    supervisor = CaptureSupervisor.for_source(str(state), CaptureTask("shop"), heard.append)
    supervisor.start()
    try:
        until(lambda: heard)
    finally:
        supervisor.stop()
    assert not (tmp_path / "ran").exists()
    assert heard[0].code == "CF1101", heard[0]


def test_a_state_directory_for_everybody_keeps_its_rows_to_itself(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o755)
    state.chmod(0o755)
    layout = StateLayout(state)
    layout.log("shop").mkdir(parents=True)
    layout.log("shop").parent.chmod(0o755)
    layout.node_log.write_text("from an earlier version\n")
    layout.node_log.chmod(0o644)
    before = os.umask(0o022)
    try:
        with Application(str(state)) as application:
            application.start_node()
            modes = {
                path.name: stat.S_IMODE(path.stat().st_mode)
                for path in state.iterdir()
                if not path.name.startswith("state.db")
            }
    finally:
        os.umask(before)
    assert {name for name, mode in modes.items() if mode & 0o077} == set()
    assert {"log", "spool", "work", "node.log", "spark.log"} <= modes.keys()
    assert "chmod 700" in layout.node_log.read_text()

"""What other users of the machine, and files in the current directory, can do to a capture."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import psutil
import pytest

from changefeed.app import Application
from changefeed.capture.process import Notice
from changefeed.capture.supervisor import CaptureSupervisor
from changefeed.catalog import Catalog
from changefeed.core.state import StateLayout
from tests.waiting import until


def test_the_password_of_a_state_is_no_argument_of_the_capture() -> None:
    url = "postgresql://feeds:PASSWORD@127.0.0.1:1/state"
    heard: list[Notice] = []
    supervisor = CaptureSupervisor.for_source(url, "shop", heard.append)
    supervisor.start()
    try:
        until(lambda: supervisor.pid is not None)
        process = psutil.Process(supervisor.pid)
        # Until then it is a copy of this process.
        until(lambda: "changefeed.capture.process" in process.cmdline())
        assert not any("PASSWORD" in argument for argument in process.cmdline())
        until(lambda: heard)
    finally:
        supervisor.stop()
    # The state was asked for: the URL reached the child another way.
    assert heard[0].kind == "error" and heard[0].code == "CF6001"
    assert all("PASSWORD" not in notice.message + notice.detail for notice in heard)


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
    supervisor = CaptureSupervisor.for_source(str(state), "shop", heard.append)
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

"""What a service manager hears of a node (systemd, ``Type=notify``)."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import cast
from unittest.mock import MagicMock

import pytest

from changefeed import service
from changefeed.app import Application
from changefeed.service import notify_manager, serve_until_stopped


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The manager's end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield heard


def test_a_service_is_ready_lives_and_stops(manager: socket.socket, tmp_path: Path) -> None:
    state, heard = tmp_path / "state", tmp_path / "stderr"
    with heard.open("wb") as errors:
        node = subprocess.Popen(
            [sys.executable, "-m", "shell", "start", "--state", str(state), "--log-format=json"],
            env={**os.environ, "HOME": str(tmp_path)},
            stderr=errors,
        )
    try:
        assert manager.recv(100) == b"READY=1"
        assert manager.recv(100) == b"WATCHDOG=1"
        node.terminate()
        while (fact := manager.recv(100)) == b"WATCHDOG=1":
            pass  # one more may have been on its way
        assert fact == b"STOPPING=1"
        assert node.wait(60) == 0
    finally:
        node.kill()
        node.wait()
    lines = [json.loads(line) for line in heard.read_text().splitlines()]
    assert lines[-1]["message"] == "stopped" and {line["level"] for line in lines} == {"INFO"}
    kept = [json.loads(line) for line in (state / "node.log").read_text().splitlines()]
    assert f"state {state}" in kept[0]["message"], "node.log has the form, too"


@pytest.mark.extended
def test_a_start_with_a_wrong_address_leaves_nothing_in_the_state(tmp_path: Path) -> None:
    state = tmp_path / "state"
    begun = subprocess.run(
        [sys.executable, "-m", "shell", "start", "--state", str(state), "--otlp", "collector"],
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert begun.returncode and "no scheme found for the address of --otlp" in begun.stderr
    assert not (state / "node.log").exists()


@pytest.mark.extended
def test_a_node_that_the_manager_aborts_shows_its_stacks(
    manager: socket.socket, tmp_path: Path
) -> None:
    with (tmp_path / "stderr").open("wb") as errors:
        node = subprocess.Popen(
            [sys.executable, "-m", "shell", "start", "--state", str(tmp_path / "state")],
            env={**os.environ, "HOME": str(tmp_path)},
            stderr=errors,
        )
    assert manager.recv(100) == b"READY=1"
    node.send_signal(signal.SIGABRT)
    assert node.wait(60) == -signal.SIGABRT
    said = (tmp_path / "stderr").read_text()
    assert "serve_until_stopped" in said and "_pulse" in said


class Hanging:
    """A node whose pulse stands still."""

    beats = 7

    def __init__(self, stopping: threading.Event) -> None:
        self._looks = 0
        self._stopping = stopping

    def check_node(self) -> None:
        """Its threads are all there."""
        self._looks += 1
        if self._looks == 2:
            self._stopping.set()


def test_a_pulse_that_hangs_is_not_called_alive(manager: socket.socket) -> None:
    stopping = threading.Event()
    serve_until_stopped(cast(Application, Hanging(stopping)), stopping)
    assert [manager.recv(100) for _ in range(2)] == [b"READY=1", b"STOPPING=1"]


def test_a_manager_that_is_gone_or_was_never_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind("\0changefeed-test-" + tmp_path.name)
        monkeypatch.setenv("NOTIFY_SOCKET", "@changefeed-test-" + tmp_path.name)
        notify_manager("READY=1")
        assert heard.recv(100) == b"READY=1"
    notify_manager("STOPPING=1")
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify_manager("STOPPING=1")


_WITHOUT = {"loading": nullcontext, "faulthandler": MagicMock(), "Standby": MagicMock()}


def test_a_node_looks_seldom_for_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, instead in _WITHOUT.items():
        monkeypatch.setattr(service, name, instead)
    monkeypatch.setattr("changefeed.app.load_node", MagicMock())
    before = gc.get_threshold()
    try:
        gc.set_threshold(700)
        with service.node_process("state"):
            # More than a listing of two hundred feeds makes: see COLLECTED.
            assert gc.get_threshold()[0] > 9_000
    finally:
        gc.set_threshold(*before)

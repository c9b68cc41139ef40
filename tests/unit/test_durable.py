"""Files that a crash of the machine leaves whole."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from changefeed.core import durable
from changefeed.core.durable import read_durable, replace_durably
from changefeed.core.telemetry import log, log_to


def test_a_file_is_replaced_and_its_name_made_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(durable, "sync_path", synced.append)
    path = tmp_path / "memo.json"
    for text in ("old", "new"):
        replace_durably(path, text)
        assert read_durable(path) == text
    assert synced == [tmp_path, tmp_path]
    assert list(tmp_path.iterdir()) == [path] and stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_disk_that_fails_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "memo.json"
    replace_durably(path, "old")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace_durably(path, "new")
    assert read_durable(path) == "old"
    assert list(tmp_path.iterdir()) == [path], "a full disk keeps no half of a file"


def test_a_log_that_cannot_be_written_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = log_to(tmp_path / "node.log")
    try:
        with monkeypatch.context() as full:
            full.setattr(
                handler, "flush", lambda: (_ for _ in ()).throw(OSError(28, "disk is full"))
            )
            for number in range(3):
                log.error("message %s", number)
        told = capsys.readouterr().err
        assert told.count("\n") == 1 and "node.log cannot be written" in told
        assert "disk is full" in told and "Traceback" not in told
        log.error("it goes on")
        assert "it goes on" in (tmp_path / "node.log").read_text()
    finally:
        log.removeHandler(handler)
        handler.close()

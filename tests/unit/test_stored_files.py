"""``changefeed log verify``: every damaged file of a state is named, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from changefeed import stored_files
from changefeed.app import Application
from changefeed.catalog.model import JobSpec
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.state import StateLayout
from changefeed.dataset.definition import Definition, uri_of
from changefeed.dataset.extracts import ExtractSchedule
from changefeed.log import LogSettings, LogWriter
from changefeed.log.journal import JournalFile
from changefeed.log.ledger import read_ledger
from changefeed.sources.mysql.kept import write_kept
from tests.helpers.log_samples import clocks
from tests.properties.test_damage import (
    at,
    make_dataset,
    make_histories,
    make_images,
    make_log,
    make_prepared,
    make_reader,
    make_witnesses,
)
from tests.unit.test_dataset_store import dataset_in

ROOT = Path(__file__).parents[2]
WORDS = [sys.executable, "-m", "shell", "--format", "jsonl"]


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateLayout]:
    """A state whose source ``shop`` has a log, row images and notes, and a reader."""
    layout = StateLayout(tmp_path / "state")
    with Application(str(layout.root)) as application:
        application.catalog.save_source_state("shop", memo={"slot": "s"}, holds="slot s")
        spec = JobSpec("shop", (), (), "copy", sink_uri=f"reader://{layout.root}/r")
        application.catalog.create_job(spec)
        make_dataset(tmp_path)
        definition = Definition(dataset_in(tmp_path), ExtractSchedule("/x/*.csv"))
        application.catalog.create_connection("days", uri_of(definition))
    for folder in (layout.log("shop"), layout.images("shop") / "orders"):
        folder.mkdir(parents=True)
    make_log(layout.log("shop"))
    make_images(layout.images("shop") / "orders")
    beside = layout.beside_log("shop")
    write_kept(beside / "renames", [["a", "b"]])
    make_witnesses(beside)
    make_histories(beside)
    for name in ("schema-history", "schema-history.proof"):
        (beside / "one" / name).rename(beside / name)
    make_prepared(beside)
    make_reader(layout.root)
    yield layout


def verified(layout: StateLayout) -> Sequence[tuple[object, ...]]:
    with Application(str(layout.root)) as application:
        result = application.verify_files()
    hurt = [row for row in result.rows if row[4] is not None]
    assert bool(hurt) == (result.failure is not None)
    return hurt or result.rows


def test_whole_files(state: StateLayout) -> None:
    rows = verified(state)
    counts = {row[1]: row[2] for row in rows}
    log = state.log("shop")
    assert counts == {
        "indexes": 1,
        "journals": len(list(log.glob("journal-*"))) - _replaced(log, "journal"),
        "segments": len(list(log.glob("segment-*"))) - _replaced(log, "segment"),
        "row images": 1 + len(list(state.images("shop").glob("orders/run-*"))),
        "notes": 5,
        "prepared transactions": 6,
        "readers": 6,
        "datasets": 19,
        "state": 1,
    }


def test_a_log_that_begins_another_journal_meanwhile_is_read_whole(
    state: StateLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its index and HEAD are two files, which are read one after the other."""
    whole = verified(state)
    ledger = read_ledger(state.log("shop"))
    assert ledger is not None
    before = [replace(ledger, live=ledger.live + 9, sealed=())]
    monkeypatch.setattr(
        stored_files, "read_ledger", lambda root: before.pop() if before else read_ledger(root)
    )
    assert verified(state) == whole


def _replaced(log: Path, kind: str) -> int:
    """Files that compaction replaced, which wait for their removal."""
    text = (log / "LEDGER").read_text().partition("\n")[2]
    return sum(name.startswith(kind) for name, *_ in json.loads(text)["garbage"])


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ("log/shop/LEDGER", "CF3001"),
        ("log/shop/HEAD", "CF3001"),
        ("log/shop/journal-*", "CF3001"),
        ("log/shop/segment-*", "CF3001"),
        ("images/shop/orders/run-*", "CF3005"),
        ("images/shop/orders/MANIFEST", "CF3005"),
        ("source/shop/renames", "CF3001"),
        ("source/shop/witness-1", "CF3001"),
        ("source/shop/schema-history", "CF3001"),
        ("source/shop/xa/*/00000001.arrow", "CF3001"),
        ("source/shop/xa/*/note", "CF3001"),
        ("../history/*19/_version", "CF3001"),
        ("r/PLACE", "CF3001"),
        ("r/SCAN", "CF3001"),
        ("r/scan-*/*", "CF3001"),
    ],
)
def test_a_damaged_file_is_named(state: StateLayout, files: str, code: str) -> None:
    path = sorted(state.root.glob(files))[-1]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    [(source, _, _, _, name, damage, feeds, remedy)] = verified(state)
    assert (source, feeds) == (("days", "") if files.startswith("..") else ("shop", "copy"))
    assert path.name in f"{name} {damage}" and code in str(damage) and remedy


def test_a_segment_says_which_row_group(state: StateLayout) -> None:
    path = sorted(state.log("shop").glob("segment-*"))[-1]
    content = bytearray(path.read_bytes())
    content[8] ^= 1
    path.write_bytes(content)
    [row] = verified(state)
    assert "row group 0" in str(row[5])
    path.unlink()
    [row] = verified(state)
    assert "gone" in str(row[5])


def test_files_that_are_let_go_meanwhile_are_no_damage(
    state: StateLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node drops history between the look at the index and that at a file."""
    log = state.log("shop")
    before = {path.name for path in log.iterdir()}
    with LogWriter(log, LogSettings(segment_rows=20, grace=0.0)) as writer:

        def opened(root: Path, number: int) -> JournalFile:
            for later in (1_000_000, 2_000_000):
                writer.roll()
                writer.maintain(clocks(at(later)), Timestamp.MAX)
            return JournalFile(root, number)

        monkeypatch.setattr(stored_files, "JournalFile", opened)
        rows = verified(state)
    assert len(before - {path.name for path in log.iterdir()}) > 2
    assert not [row for row in rows if row[4] is not None]


def test_status_and_ctrl_c(state: StateLayout) -> None:
    words = [*WORDS, "--state", str(state.root), "log", "verify"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    whole = subprocess.run(words, capture_output=True, env=environment, timeout=60, check=True)
    assert [json.loads(line)["what"] for line in whole.stdout.splitlines()][:2] == [
        "state",
        "indexes",
    ]
    files = sum(json.loads(line)["files"] for line in whole.stdout.splitlines())
    notice = json.loads(whole.stderr)["notice"]
    assert notice.startswith(f"read {files} files, ") and "journals" in notice
    # It waits here for a writer.
    note = state.beside_log("shop") / "renames"
    ledger = state.log("shop") / "LEDGER"
    ledger.unlink()
    os.mkfifo(ledger)
    with subprocess.Popen(words, stderr=subprocess.PIPE, env=environment) as process:
        end = time.monotonic() + 60
        while True:
            try:
                writing = os.open(ledger, os.O_WRONLY | os.O_NONBLOCK)
                break
            except OSError:
                assert time.monotonic() < end and process.poll() is None
                time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        # A signal right before the read does not interrupt it: then the read has to end.
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=2)
        os.close(writing)
        assert process.wait(timeout=60) == 130
        assert process.stderr is not None and b"Traceback" not in process.stderr.read()
    note.write_bytes(b"")
    ledger.unlink()
    hurt = subprocess.run(words, capture_output=True, env=environment, timeout=60, check=False)
    assert hurt.returncode == 5 and b"renames" in hurt.stdout
    assert json.loads(hurt.stderr.splitlines()[-1])["code"] == "CF3001"


def test_no_state_is_made(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "none", tmp_path / "empty"):
        with pytest.raises(ChangefeedError, match=f"there is no state in {folder}") as error:
            Application(str(folder), must_exist=True)
        assert error.value.code.number == "CF6001"
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]

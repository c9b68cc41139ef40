"""Files that feeds rely on, damaged in every way: nothing wrong is read from any of them.

What is read of a damaged file equals what was written, or the read fails with the code of the
room, and the error names the file.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.images.runs import KeyBatch
from changefeed.images.states import StoreState
from changefeed.images.store import ImageStore, StoreSizes, pack_keys
from changefeed.log import LogReader, LogSettings, LogWriter
from changefeed.sources.mysql.kept import read_kept, write_kept
from tests.helpers.log_samples import Row, batch, clocks, flush, narrow, wide

#: How many single bits are flipped in each file.
BITS = 40

SMALL, LARGE = narrow("small"), wide("large")


def at(step: int) -> Timestamp:
    return Timestamp(step * 1_000_000_000)


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Attributes:
        make: makes a folder with at least two of the files.
        read: everything that the folder has, in a form that can be compared.
        files: which of the files in the folder are damaged.
        code: what a read of a damaged file raises.
        unread: a file that reads as nothing is a loss that somebody else notices.
    """

    make: Callable[[Path], None]
    read: Callable[[Path], object]
    files: str
    code: Code
    unread: bool = False


# --------------------------------------------------------------------------------- change log


def make_log(root: Path) -> None:
    """Segments and rows in the journal, merged and not, and a journal that is live."""
    rng = random.Random(5)
    with LogWriter(root, LogSettings(segment_rows=100, pack_bytes=1 << 30)) as writer:
        for step in range(1, 7):
            notes = [f"{rng.getrandbits(120):030x}" for _ in range(150)]
            rows = [Row(at(step), step * 1000 + n, note) for n, note in enumerate(notes)]
            few = [Row(at(step), step * 1000 + n, notes[n]) for n in range(9)]
            commits = [(at(step), step)]
            events = [batch(LARGE, rows), batch(SMALL, few)]
            writer.append(flush(events, at(step), step, commits))
            if step in (2, 4):
                writer.roll()
                writer.maintain(clocks(at(step)))


def read_log(root: Path) -> object:
    """As after a restart: the log is opened for writing, and then read by a feed."""
    LogWriter(root, LogSettings(segment_rows=100, pack_bytes=1 << 30)).close()
    return read_log_only(root)


def read_log_only(root: Path) -> object:
    """As a process reads it that does not write."""
    with LogReader(root) as log:
        if log.frontier is None:
            return None
        bounds = dict.fromkeys((SMALL.table, LARGE.table), log.oldest)
        got = log.slice(bounds, Timestamp.MAX, 10**9, 10**12)
        # Bounds inside of runs, which read the timestamps alone.
        cut = log.slice(dict.fromkeys(bounds, at(3)), at(5), 200, 10**12)
        place = log.timestamp_at(log.frontier.position)
        pieces = [(p.first, p.last, p.load().to_pylist()) for p in [*got.pieces, *cut.pieces]]
        return log.frontier, log.oldest, place, pieces


# --------------------------------------------------------------------------------- row images


def make_images(root: Path) -> None:
    """Several runs, of different layers."""
    rng = random.Random(7)
    store = ImageStore.create(root, LARGE, at(1), StoreSizes(memory=1 << 30, age=1))
    store.state = StoreState.LIVE
    for step in range(2, 5):
        rows = [Row(at(step), n, f"{rng.getrandbits(120):030x}") for n in range(step, 300, step)]
        columns = batch(LARGE, rows).rows
        values = [columns.column(f"a{i}") for i in range(len(LARGE.columns))]
        keys = KeyBatch.of(pack_keys(store.key, [values[i] for i in LARGE.key]))
        store.put(keys, values, pa.array([True] * len(rows)))
        store.committed(at(step))


def read_images(root: Path) -> object:
    store = ImageStore.open(root)
    asked = pa.array([n * 10 for n in range(300)], LARGE.columns[LARGE.key[0]].arrow)
    rows = store.find(KeyBatch.of(pack_keys(store.key, [asked])))
    return store.at, rows.at.tolist(), [column.to_pylist() for column in rows.columns]


# ------------------------------------------------------------------------------ source's notes


def make_notes(root: Path) -> None:
    for name, first in (("defaults", 0), ("renames", 50)):
        write_kept(root / name, [[f"t{n}", n] for n in range(first, first + 40)])


def read_notes(root: Path) -> object:
    return [read_kept(root / name, "notes", list) for name in ("defaults", "renames")]


KINDS = {
    "segment": Kind(make_log, read_log, "segment-*", Code.LOG_DAMAGED),
    "journal": Kind(make_log, read_log, "journal-*", Code.LOG_DAMAGED),
    "ledger": Kind(make_log, read_log, "LEDGER", Code.LOG_DAMAGED),
    "head": Kind(make_log, read_log_only, "HEAD", Code.LOG_DAMAGED, unread=True),
    "image run": Kind(make_images, read_images, "run-*", Code.ROW_IMAGES_LOST),
    "image manifest": Kind(make_images, read_images, "MANIFEST", Code.ROW_IMAGES_LOST),
    "source's notes": Kind(make_notes, read_notes, "*", Code.LOG_DAMAGED, unread=True),
}


def damages(
    content: bytes, others: list[bytes], draw: random.Random
) -> Iterator[tuple[str, bytes]]:
    """The content with one damage each."""
    for _ in range(BITS):
        place, bit = draw.randrange(len(content)), draw.randrange(8)
        flipped = bytearray(content)
        flipped[place] ^= 1 << bit
        yield f"bit {bit} of byte {place}", bytes(flipped)
    for _ in range(8):
        yield "cut", content[: draw.randrange(len(content))]
        yield "its begin is missing", content[draw.randrange(1, len(content)) :]
    yield "empty", b""
    yield "zeros", bytes(len(content))
    for _ in range(8):
        size = draw.randint(1, max(1, len(content) // 4))
        one = draw.randint(0, len(content) - 2 * size)
        other = draw.randint(one + size, len(content) - size)
        parts = (content[:one], content[other : other + size], content[one + size : other])
        yield "swapped", b"".join((*parts, content[one : one + size], content[other + size :]))
    for another in others:
        yield "another file of the kind", another
    yield "longer", content + b"\0" * 64


@pytest.mark.parametrize("name", KINDS)
def test_nothing_wrong_is_read(tmp_path: Path, name: str) -> None:
    kind, draw = KINDS[name], random.Random(name)
    whole = tmp_path / "whole"
    whole.mkdir()
    kind.make(whole)
    right = kind.read(whole)
    files = sorted(path for path in whole.glob(kind.files))
    assert files
    reported = 0
    for file in files:
        content = file.read_bytes()
        others = [path.read_bytes() for path in files if path != file]
        changed = [(how, data) for how, data in damages(content, others, draw) if data != content]
        for number, (how, data) in enumerate([*changed, ("gone", None)]):
            hurt = tmp_path / f"hurt-{number}"
            shutil.copytree(whole, hurt)
            (hurt / file.name).unlink()
            if data is not None:
                (hurt / file.name).write_bytes(data)
            try:
                got = kind.read(hurt)
            except ChangefeedError as error:
                assert error.code is kind.code, (file.name, how, error)
                assert file.name in f"{error.message} {error.detail}", (file.name, how, str(error))
                reported += 1
            else:
                lost = kind.unread and got in (None, right, [[], []])
                assert got == right or lost or how == "gone", (file.name, how)
            shutil.rmtree(hurt)
    assert reported > len(files) * BITS // 2 or kind.unread

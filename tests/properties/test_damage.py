"""Files that feeds rely on, damaged in every way: nothing wrong is read from any of them.

What is read of a damaged file equals what was written, or the read fails with the code of the
room, and the error names the file.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.durable import prove
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.log_rows import scan_rows
from changefeed.core.proofs import FileProof
from changefeed.core.schema import KeyRange, TableSchema
from changefeed.dataset.model import IN_HISTORY
from changefeed.dataset.store import DatasetFolders, check_file
from changefeed.images.runs import KeyBatch
from changefeed.images.states import StoreState
from changefeed.images.store import ImageStore, StoreSizes, pack_keys
from changefeed.log import LogReader, LogSettings, LogWriter
from changefeed.readers.table_log import Range, Selection
from changefeed.sources.debezium.snapshot import DoorPart
from changefeed.sources.debezium.stream import has_history
from changefeed.sources.decoded.repeats import Repeats
from changefeed.sources.decoded.rows import CREATED, UPDATED, DecodedRows
from changefeed.sources.decoded.stored import StoredRows, StoredTransaction
from changefeed.sources.mysql.continuity import Continuity
from changefeed.sources.mysql.gtid import GtidSet
from changefeed.sources.mysql.kept import read_kept, write_kept
from changefeed.sources.mysql.open_transaction import PreparedTransactions
from changefeed.sources.postgres.spool import ScannedTransaction, Spool
from sinks.base import Batch, ConsumerProgress, Epoch, ScanFiles, SinkContext, Target
from sinks.reader.sink import ReaderSink
from tests.helpers.log_samples import Row, batch, clocks, flush, narrow, wide
from tests.helpers.postgres_messages import Table, row
from tests.unit.test_dataset_store import DAY1, DAY2, dataset_in, publish

#: How many single bits are flipped in the files of a kind, and in each of them at least.
BITS, LEAST = 80, 8

SMALL, LARGE = narrow("small"), wide("large")


def at(step: int) -> Timestamp:
    return Timestamp(step * 1_000_000_000)


#: Reads everything that a folder has, in a form that can be compared.
Read = Callable[[], object]


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Attributes:
        make: makes a folder with at least two of the files; what it returns reads it, again and
            again.
        files: which of the files in the folder are damaged.
        code: what a read of a damaged file raises.
        unread: a damaged file may be passed over, as if it were not there.
        grows: another program appends to it.
    """

    make: Callable[[Path], Read]
    files: str
    code: Code
    unread: bool = False
    grows: bool = False


def apart(make: Callable[[Path], None], read: Callable[[Path], object]) -> Callable[[Path], Read]:
    """As a process does that did not write the files."""

    def made(root: Path) -> Read:
        make(root)
        return lambda: read(root)

    return made


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


def make_witnesses(root: Path) -> None:
    """As two flushes leave them."""
    continuity = Continuity(root, "server")
    origin = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
    for number in (7, 8):
        continuity.met(origin, number, 1_000_000 + number, None)
        continuity.save(idle=True)
    continuity.close()


def read_witnesses(root: Path) -> object:
    known = GtidSet.parse("3e11fa47-71ca-11e1-9e33-c80aa9429562:1-9")
    begin = Continuity(root, "server").begin(known)
    assert isinstance(begin, GtidSet)
    return begin.text()


def make_histories(root: Path) -> Read:
    """Debezium's, of two sources."""
    places = [root / name / "schema-history" for name in ("one", "two")]
    for place in places:
        place.parent.mkdir()
        place.write_text(f'{{"ddl": "CREATE TABLE {place.parent.name} (id int)"}}\n' * 40)
        prove(place)
    size = places[0].stat().st_size
    return lambda: [has_history(path) and path.read_bytes()[:size] for path in places]


# ---------------------------------------------------------------- transactions on their way in


def stored_rows(schema: TableSchema, first: int, count: int, op: int) -> StoredRows:
    """Changes of the same keys whatever ``first`` is."""
    rows = [Row(at(1), n, f"{first + n:060d}") for n in range(count)]
    columns = batch(schema, rows).rows
    after = [columns.column(f"a{i}") for i in range(len(schema.columns))]
    before = [after[i] if op == UPDATED else pa.nulls(count, after[i].type) for i in
              schema.before_ordinals]  # fmt: skip
    ops = np.full(count, op, np.uint8)
    key = [after[i] for i in schema.key]
    decoded = DecodedRows(np.arange(count), ops, after, before, key)
    return StoredRows(schema, decoded, np.arange(first, first + count))


def fill(stored: StoredTransaction, *stretches: int) -> None:
    for number, op in enumerate(stretches):
        first = number * 200
        parts = [stored_rows(LARGE, first, 90, op), stored_rows(SMALL, first + 100, 90, op)]
        stored.append(parts, 200)


def replayed(stored: StoredTransaction) -> object:
    return [
        (part.schema, part.number.tolist(), part.marked.op.tolist(), str(part.marked.stays),
         *(column.to_pylist() for column in (*part.rows.after, *part.marked.before)))
        for parts in stored.replay()
        for part in parts
    ]  # fmt: skip


def make_decoded(root: Path) -> Read:
    stored = StoredTransaction(root / "transaction")
    fill(stored, CREATED, UPDATED, UPDATED)

    def read() -> object:
        stored._verified = False  # a process reads them once
        return replayed(stored)

    return read


def make_prepared(root: Path) -> Read:
    for name in ("one", "two"):
        stored = StoredTransaction(root / "transaction")
        fill(stored, UPDATED)
        PreparedTransactions(root / "xa").keep(name, stored, {("shop", name)})

    def read() -> object:
        found = [PreparedTransactions(root / "xa").find(name) for name in ("one", "two")]
        return [one and (one[0].rows, one[1], replayed(one[0])) for one in found]

    return read


def make_spool(root: Path) -> Read:
    """Frames of PostgreSQL, of two transactions."""
    spool = filled_spool(root)
    return lambda: [chunks_of(spool.scanned(xid)) for xid in (7, 8)]


def make_spool_again(root: Path) -> Read:
    """Frames of PostgreSQL that were read once."""
    spool = filled_spool(root)
    scanned = [spool.scanned(xid) for xid in (7, 8)]
    for each in scanned:
        chunks_of(each)
    return lambda: [chunks_of(each) for each in scanned]


def filled_spool(root: Path) -> Spool:
    spool = Spool(root / "spool", 1000)
    table = Table(1, "t", {"k": 25, "v": 25}, ("k",))
    for xid in (7, 8):
        for number in range(50):
            frame = row("I", table, (str(number), f"{xid}-{number:050d}"), xid=xid)
            spool.append(xid, memoryview(frame))
    return spool


def chunks_of(scanned: ScannedTransaction) -> list[object]:
    return [(c.start, bytes(c.data), c.rows.tolist(), c.marks) for c in scanned.chunks()]


def make_repeats(root: Path, *, sorted_: bool) -> Read:
    """What a large transaction remembers of its keys, before and after they are compared."""
    repeats = Repeats(root / "records", root / "found", at_once=100)
    for start in (0, 500, 700):
        key = pa.array(np.arange(start % 300, start % 300 + 90))
        repeats.add(0, [key], np.full(90, UPDATED, np.uint8), np.arange(start, start + 90))
    repeats.sort()
    repeats.close()  # what it wrote is read by the names

    def read() -> object:
        if not sorted_:
            repeats.sort()
        repeats._taken = 0
        taken = [repeats.take() for _ in range(3)]
        return [(t.place.tolist(), t.kind.tolist(), t.first.tolist()) for t in taken]

    return read


# --------------------------------------------------------------------------- rows of scans


def make_reader(root: Path) -> Read:
    """The directory of a reader whose scan is whole."""
    target = Target(SMALL.table, "small")
    to = ReaderSink(f"reader://{root}/r")
    to.open(SinkContext("feed", 1, state="abcdef", targets=(target,)))
    for number in range(3):
        notes = pa.array([f"{number}-{n:040d}" for n in range(80)])
        rows = scan_rows(SMALL, pa.record_batch({"a0": pa.array(range(80)), "a1": notes}), at(1))
        epoch = Epoch(1, at(1))
        part = Batch("feed", epoch, number, target, SMALL, rows, scan=True)
        to.commit(epoch, [to.write(part)])
    to.end_scan(target, SMALL, at(1))
    to.move(ConsumerProgress(idle=at(3), planned=at(3)))

    def read() -> object:
        sink = ReaderSink(f"reader://{root}/r")
        scan = sink.scanned()
        rows = None if scan is None else scanned_rows(scan)
        return sink.belongs("abcdef", 1), sink.consumer(), rows

    return read


def scanned_rows(scan: ScanFiles) -> object:
    part = Range(
        Path("/none"), Selection(SMALL.table), None, scan.at, scan.at,
        files=scan.files, proofs=scan.proofs, version=scan.schema,
    )  # fmt: skip
    return scan.at, scan.rows, [rows.to_pylist() for rows in part.read()]


def make_door_scan(root: Path) -> Read:
    """What Debezium pushed of a table."""
    batches = []
    for name in ("0-0.arrow", "0-1.arrow"):
        columns = batch(SMALL, [Row(at(1), n, f"{name}{n:060d}") for n in range(300)]).rows
        rows = pa.record_batch([columns["a0"], columns["a1"]], names=["a0", "a1"])
        with pa.OSFile(str(root / name), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as to:
            for start in (0, 100, 200):
                to.write_batch(rows.slice(start, 100))
        proof = FileProof.of(root / name)
        batches += [(root / name, proof, number) for number in range(3)]
    part = DoorPart(SMALL, tuple(batches), (0, 1), KeyRange(), 600, 10_000)
    return lambda: [rows.to_pylist() for rows in part.read()]


def make_dataset(root: Path) -> Read:
    """Two comparisons of a dataset."""
    dataset = dataset_in(root)
    publish(dataset, DAY1, {"I": [*range(200)]})
    publish(dataset, DAY2, {"I": [500], "U": [*range(90)], "N": [*range(90, 199)], "D": [199]})

    def read() -> object:
        store = DatasetFolders(dataset)
        latest, run = store.latest(), store.run_after(1)
        assert latest is not None
        store.check_rows(latest)
        if run is None:
            return None
        files = [file for operation in IN_HISTORY for file in run.files(operation)]
        try:
            for file in files:
                check_file(file)
        except FileNotFoundError:
            return None
        return latest, run, [file.read_bytes() for file in files]

    return read


KINDS = {
    "segment": Kind(apart(make_log, read_log), "segment-*", Code.LOG_DAMAGED),
    "journal": Kind(apart(make_log, read_log), "journal-*", Code.LOG_DAMAGED),
    "ledger": Kind(apart(make_log, read_log), "LEDGER", Code.LOG_DAMAGED),
    "head": Kind(apart(make_log, read_log_only), "HEAD", Code.LOG_DAMAGED, unread=True),
    "image run": Kind(apart(make_images, read_images), "run-*", Code.ROW_IMAGES_LOST),
    "image manifest": Kind(apart(make_images, read_images), "MANIFEST", Code.ROW_IMAGES_LOST),
    "source's notes": Kind(apart(make_notes, read_notes), "*", Code.LOG_DAMAGED),
    "witness": Kind(
        apart(make_witnesses, read_witnesses), "witness-*", Code.LOG_DAMAGED, unread=True
    ),
    "schema history": Kind(make_histories, "*/schema-history", Code.LOG_DAMAGED, grows=True),
    "its proof": Kind(make_histories, "*/schema-history.proof", Code.LOG_DAMAGED),
    "decoded spool": Kind(make_decoded, "transaction/*.arrow", Code.STREAM_BROKE),
    "prepared rows": Kind(make_prepared, "xa/*/*.arrow", Code.LOG_DAMAGED),
    "prepared note": Kind(make_prepared, "xa/*/note", Code.LOG_DAMAGED),
    "frames": Kind(make_spool, "spool/*.frames", Code.STREAM_BROKE),
    "frames again": Kind(make_spool_again, "spool/*.frames", Code.STREAM_BROKE),
    "places of rows": Kind(make_spool_again, "spool/*.places", Code.STREAM_BROKE),
    "keys": Kind(partial(make_repeats, sorted_=False), "records", Code.STREAM_BROKE),
    "keys again": Kind(partial(make_repeats, sorted_=True), "records", Code.STREAM_BROKE),
    "compared keys": Kind(partial(make_repeats, sorted_=True), "found", Code.STREAM_BROKE),
    "reader": Kind(make_reader, "r/[OSP]*", Code.LOG_DAMAGED),
    "reader's scan": Kind(make_reader, "r/scan-*/*", Code.LOG_DAMAGED),
    "dataset": Kind(make_dataset, "current.versions/000002/rows/**/*", Code.LOG_DAMAGED),
    "dataset's manifest": Kind(make_dataset, "current.versions/*/manifest.json", Code.LOG_DAMAGED),
    "history": Kind(make_dataset, "history/*19/**/*", Code.LOG_DAMAGED),
    "Debezium's scan": Kind(make_door_scan, "*.arrow", Code.SCAN_INTERRUPTED),
}


def damages(
    content: bytes, others: list[bytes], draw: random.Random, bits: int
) -> Iterator[tuple[str, bytes]]:
    """The content with one damage each."""
    for _ in range(bits):
        place, bit = draw.randrange(len(content)), draw.randrange(8)
        flipped = bytearray(content)
        flipped[place] ^= 1 << bit
        yield f"bit {bit} of byte {place}", bytes(flipped)
    for _ in range(max(3, bits // 5)):
        yield "cut", content[: draw.randrange(len(content))]
        yield "its begin is missing", content[draw.randrange(1, len(content)) :]
    yield "empty", b""
    yield "zeros", bytes(len(content))
    for _ in range(max(3, bits // 5)):
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
    place, whole = tmp_path / "place", tmp_path / "whole"
    place.mkdir()
    read = kind.make(place)
    shutil.copytree(place, whole, symlinks=True)
    right = read()
    files = sorted(path.relative_to(whole) for path in whole.glob(kind.files) if path.is_file())
    assert files
    reported, bits = 0, max(LEAST, BITS // len(files))

    def read_with(file: Path, data: bytes | None) -> object:
        """What is read with one file damaged, or gone; an error is a result, too."""
        shutil.rmtree(place)
        shutil.copytree(whole, place, symlinks=True)
        if data is None:
            (place / file).unlink()
        else:
            (place / file).write_bytes(data)
        try:
            return read()
        except ChangefeedError as error:
            return error

    for file in files:
        content = (whole / file).read_bytes()
        others = [(whole / path).read_bytes() for path in files if path != file]
        gone = read_with(file, None)
        allowed = [right, gone] if kind.unread else [right]
        for how, data in damages(content, others, draw, bits):
            if data == content or (kind.grows and data.startswith(content)):
                continue
            got = read_with(file, data)
            if isinstance(got, ChangefeedError):
                assert got.code is kind.code, (file, how, got)
                assert file.name in f"{got.message} {got.detail}", (file, how, str(got))
                assert got.hint, (file, how, str(got))
                reported += 1
            else:
                assert got in allowed, (file, how)
    assert reported > len(files) * bits // 2 or kind.unread

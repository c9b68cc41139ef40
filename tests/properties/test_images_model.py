"""Random changes through a store of row images, held against a dict of the true rows."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from changefeed.core.clock import Timestamp
from changefeed.images.complete import complete, follow
from changefeed.images.runs import KeyBatch
from changefeed.images.states import StoreState
from changefeed.images.store import ImageStore, StoreSizes, pack_keys
from tests.helpers.image_changes import SCHEMA, Sent, Table, batch

#: Everything a store does happens in a few dozen rows.
SMALL = StoreSizes(memory=1_500, age=5_000)


def held(store: ImageStore, keys: int) -> dict[object, tuple[object, ...]]:
    """All rows of the store."""
    asked = pa.array(range(keys), pa.int32())
    images = store.find(KeyBatch.of(pack_keys(store.key, [asked])))
    rows = list(zip(*(column.to_pylist() for column in images.columns), strict=True))
    return {key: rows[at] for key, at in enumerate(images.at.tolist()) if at >= 0}


def check(rows: pa.RecordBatch, expected: list[dict[str, object]]) -> None:
    names = [*(f"a{i}" for i in range(5)), *(f"b{i}" for i in range(5))]
    assert [{n: row[n] for n in names} for row in rows.to_pylist()] == expected
    assert rows["missing"].null_count == rows.num_rows
    assert rows.schema == SCHEMA.log_schema()


@pytest.mark.parametrize("seed", range(24))
def test_rows_are_whole_and_the_store_has_the_table(seed: int, tmp_path: Path) -> None:
    """Batches of any size, transactions that write a key many times or change it, parts of
    transactions, TRUNCATE, merges, and a crash that leaves the last checkpoint, from which on the
    log is read again."""
    draw = random.Random(seed)
    table = Table(seed, keys=draw.choice([2, 6, 40]))
    store = ImageStore.create(tmp_path / "images", SCHEMA, Timestamp.ZERO, SMALL)
    store.state = StoreState.LIVE
    store.checkpoint()
    log: list[tuple[Timestamp, pa.RecordBatch | None]] = []
    seq = 1
    for _ in range(60):
        kind = draw.random()
        if kind < 0.05:
            table.at = Timestamp(table.at.wall + 1_000)
            table.rows.clear()
            store.truncate()
            log.append((table.at, None))
        elif kind < 0.2:
            sent = table.transaction(draw.randint(2, 60))
            cut = draw.randint(1, len(sent) - 1)
            while cut < len(sent) and sent[cut].missing and sent[cut].op == ord("c"):
                cut += 1  # the halves of a changed key come together
            parts = [part for part in (sent[:cut], sent[cut:]) if part]
            for part in parts[:-1]:
                store.begin_part()
                seq = _step(store, part, seq, log, sent)
            seq = _step(store, parts[-1], seq, log, sent)
            store.end_parts()
        else:
            sent = []
            for _ in range(draw.randint(1, 5)):
                sent += table.transaction(draw.choice([1, 1, 3, 10]))
            seq = _step(store, sent, seq, log)
        if draw.random() < 0.1:
            # A crash after the append.
            store = ImageStore.open(store.folder, SMALL)
            _again(store, log)
        store.committed(table.at)
        if draw.random() < 0.2:
            store.merge(lambda: False, whole=draw.random() < 0.3)
        assert held(store, table.keys) == table.rows
    store.checkpoint()
    assert held(ImageStore.open(store.folder, SMALL), table.keys) == table.rows
    named = {path.name for path in store.folder.iterdir()}
    assert len(named) <= 12, "what is merged away is removed"


def _step(
    store: ImageStore,
    sent: list[Sent],
    seq: int,
    log: list[tuple[Timestamp, pa.RecordBatch | None]],
    whole: list[Sent] | None = None,
) -> int:
    rows, expected = batch(SCHEMA, sent, seq, whole)
    done = complete(store, SCHEMA, rows, in_part=sent[0].at if whole else None)
    check(done, expected)
    log.append((sent[-1].at, rows))
    return seq + len(sent)


def _again(store: ImageStore, log: list[tuple[Timestamp, pa.RecordBatch | None]]) -> None:
    """Read the log again from the last checkpoint on."""
    for at, rows in log:
        if rows is None:
            if at > store.checkpoint_at:
                store.truncate()
            continue
        wall = rows["wall"].to_numpy()
        follow(store, SCHEMA, rows.filter(pa.array(wall > store.checkpoint_at.wall)))

"""Scan and stream together are the table: nothing missing between them, nothing twice."""

from __future__ import annotations

import itertools
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.events import ChangeBatch, Frontier, Position
from changefeed.core.schema import TableSchema
from changefeed.sources.base import StreamRequest
from changefeed.sources.postgres import PostgresSource
from changefeed.sources.postgres.attachment import PostgresAttachment
from tests.conformance.conftest import ALL
from tests.services.postgres import Database

pytestmark = pytest.mark.postgres


class Writer(threading.Thread):
    """Transactions of a few inserts, updates and deletes on ``t``; some are rolled back."""

    def __init__(self, postgres: Database, seed: int) -> None:
        super().__init__(daemon=True)
        self._postgres = postgres
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        self.commits = 0
        self.stop = threading.Event()

    def run(self) -> None:
        with self._postgres.connect(autocommit=False) as connection:
            while not self.stop.is_set():
                # In the order of the keys, or the two writers would meet in a deadlock.
                count = self._random.randint(1, 20)
                for key in sorted(self._random.choices(range(1, 601), k=count)):
                    value = f"{next(self._numbers)}" + "x" * self._random.choice([1, 50])
                    if self._random.random() < 0.3:
                        connection.execute("delete from t where id = %s", [key])
                    else:
                        connection.execute(
                            "insert into t values (%s, %s)"
                            " on conflict (id) do update set v = excluded.v",
                            [key, value],
                        )
                if self._random.random() < 0.2:
                    connection.rollback()
                else:
                    connection.commit()
                    self.commits += 1


def apply_stream(
    source: PostgresSource,
    held: PostgresAttachment,
    spool: Path,
    rows: dict[int, str],
    *,
    after: Position,
    upto: Position,
) -> None:
    """Apply the changes of commits above ``after`` and up to ``upto``."""
    versions = itertools.count(1)

    def intern(schema: TableSchema) -> TableSchema:
        return schema.with_version(next(versions))

    stream = held.stream(
        StreamRequest(
            start=Frontier(Timestamp.ZERO, ""),
            identity=source.identity(),
            memo=lambda: held.memo,
            intern=intern,
            latest=lambda table: None,
            names=lambda oid: (),
            spool=spool,
            folder=spool,
        )
    )
    for flush in stream:
        commits = flush.commits
        known = dict(
            zip(zip(commits.wall, commits.logical, strict=True), commits.position, strict=True)
        )
        for event in flush.events:
            assert isinstance(event, ChangeBatch)
            for change in event.changes():
                if known[change.at.wall, change.at.logical] <= after:
                    continue
                _apply(rows, change.op, change.before, change.after)
        if flush.frontier is not None:
            stream.acknowledge(flush.frontier.position)
            if flush.frontier.position >= upto:
                break
    stream.close()


def _apply(
    rows: dict[int, str], op: str, before: dict[str, Any] | None, after: dict[str, Any] | None
) -> None:
    if op == "d":
        assert before is not None
        rows.pop(before["id"], None)
    else:
        assert after is not None
        rows[after["id"]] = after["v"]


@ALL
def test_scan_and_stream_are_the_table(
    postgres: Database, source: PostgresSource, tmp_path: Path
) -> None:
    postgres.execute("create table t (id int primary key, v text)")
    postgres.execute("create table other (id int primary key)")
    postgres.execute("insert into t select i, 'start' from generate_series(1, 500) i")
    held = source.attach(postgres.name, None)
    table = source.describe(None, "t")
    writers = [Writer(postgres, seed) for seed in (1, 2)]
    try:
        held.capture([source.describe(None, "other").table], resume=False)
        for writer in writers:
            writer.start()
        both = [table.table, source.describe(None, "other").table]
        assert held.capture(both, resume=True).problems == {}
        rows: dict[int, str] = {}
        with source.snapshot() as snapshot:
            for part in snapshot.parts(table, 8192):
                for batch in part.read():
                    rows |= dict(zip(*(c.to_pylist() for c in batch.columns), strict=True))
        wanted = min(w.commits for w in writers) + 30
        deadline = time.monotonic() + 60
        while min(w.commits for w in writers) < wanted:
            assert all(w.is_alive() for w in writers) and time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        for writer in writers:
            writer.stop.set()
            if writer.ident:
                writer.join(30)
    upto = source.current_position()
    apply_stream(source, held, tmp_path, rows, after=snapshot.position, upto=upto)
    assert rows == dict(postgres.execute("select id, v from t"))
    held.release()

"""The totals of a scan: of all its tables, before the first row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from changefeed.catalog.model import TableProgress
from changefeed.core.clock import Timestamp
from changefeed.core.engines import EngineOption
from changefeed.core.errors import ChangefeedError
from changefeed.core.schema import TableName, TableSchema
from changefeed.core.sizes import Sizes
from changefeed.scan import thread
from changefeed.scan.thread import SnapshotScan

NAMES = [TableName("shop", "public", name) for name in ("orders", "customers", "broken")]
ROWS = {"orders": 20_000, "customers": 200}


class Image:
    """A snapshot in which one table cannot be read."""

    position = "1"

    def parts(self, schema: TableSchema, size: int, **_: object) -> Sequence[object]:
        if schema.table.name not in ROWS:
            raise ChangefeedError("CF2106", "it was dropped")
        half = ROWS[schema.table.name] // 2
        return [SimpleNamespace(rows_estimate=half)] * 2

    def part_range(self, part: object) -> None:
        return None


class Source:
    """A source without a server."""

    parts_travel = True

    def describe(self, schema: str, name: str) -> TableSchema:
        return TableSchema(TableName("shop", schema, name), (), ())

    @contextmanager
    def snapshot(self, tables: object) -> Iterator[Image]:
        yield Image()


def test_every_table_counts_before_the_first_row(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, dict[str, int], str]] = []

    class Work:
        delivered = False

        def __init__(self, *_: object, **__: object) -> None:
            pass

        def read(self, schema: TableSchema, parts: Sequence[object], *_: object) -> None:
            totals = {name.name: table.total for name, table in scan.tables.items()}
            seen.append((schema.table.name, totals, scan.text()))

    monkeypatch.setattr(thread, "ScanWork", Work)
    runtime = SimpleNamespace(
        source=Source(),
        wait_captured=lambda *_: None,
        tables=SimpleNamespace(logged=lambda shape: shape),
        log=SimpleNamespace(wait_position=lambda *_: Timestamp(5)),
    )
    host = SimpleNamespace(
        name="f",
        job_id=1,
        state="s",
        source_runtime=runtime,
        needs_spark=False,
        asked_engine=EngineOption.AUTO,
        promised=lambda: None,
        recognise=lambda shape: None,
        intern_schema=lambda shape: shape,
        wake=lambda: None,
        spark=SimpleNamespace(cancel=lambda group: None),
        sizes=Sizes(),
    )
    scan = SnapshotScan(cast(Any, host), [TableProgress(name, name.name) for name in NAMES])
    scan.timestamp_saved.set()
    scan.run()
    assert scan.error is None
    totals = {"orders": 20_000, "customers": 200, "broken": 0}
    assert [(table, counted) for table, counted, _ in seen] == [
        ("orders", totals),
        ("customers", totals),
    ]
    assert seen[0][2] == "initial scan: 0 of 3 tables, 0 of about 20200 rows"
    broken = scan.tables[NAMES[2]].error
    assert broken is not None and broken.message == "it was dropped"

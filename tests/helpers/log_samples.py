"""Tables, rows and flushes for tests of the change log."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from changefeed.core.clock import Timestamp
from changefeed.core.elapsed import ClockSample
from changefeed.core.events import ChangeBatch, Commits, Event, Flush, Frontier
from changefeed.core.schema import BeforeImage, Column, TableName, TableSchema
from changefeed.core.types import Form, LogicalType
from changefeed.log import LogWriter

SOURCE = "shop"


def clocks(at: Timestamp, *, leap: int = 0, boot: str = "first") -> ClockSample:
    """The clocks of a machine at ``at``, that of the wall set forward by ``leap`` ns."""
    return ClockSample(boot, at.wall if boot == "first" else 0, at.wall + leap)


def table_name(name: str) -> TableName:
    """A table of the sample source."""
    return TableName(SOURCE, "public", name)


def narrow(name: str, version: int = 1) -> TableSchema:
    """A table of a key and a text."""
    return TableSchema(
        table=table_name(name),
        columns=(
            Column("id", "bigint", LogicalType.parse("int64"), False, 1),
            Column("note", "text", LogicalType.parse("text"), True, 2),
        ),
        key=(0,),
        version=version,
    )


def wide(name: str, texts: int = 13, version: int = 1) -> TableSchema:
    """A table of a key, a JSON column and many texts, with full old rows."""
    columns = [
        Column("id", "bigint", LogicalType.parse("int64"), False, 1),
        Column("doc", "jsonb", LogicalType.parse("json"), True, 2),
    ]
    for i in range(texts):
        columns.append(Column(f"t{i}", "text", LogicalType.parse("text"), True, 3 + i))
    return TableSchema(
        table=table_name(name),
        columns=tuple(columns),
        key=(0,),
        before_image=BeforeImage.FULL,
        version=version,
    )


@dataclass(frozen=True)
class Row:
    """What a test says about one row; the rest is made up from it."""

    at: Timestamp
    seq: int
    note: str | None = "x"
    last: bool = True
    missing: str | None = None

    @property
    def key(self) -> int:
        """The row's key."""
        return self.seq * 10


def batch(schema: TableSchema, rows: Sequence[Row]) -> ChangeBatch:
    """Rows as a batch; every column beyond the key holds the note (JSON in raw columns)."""
    arrays: dict[str, list[Any]] = {
        "op": ["c" for _ in rows],
        "wall": [r.at.wall for r in rows],
        "logical": [r.at.logical for r in rows],
        "seq": [r.seq for r in rows],
        "ord": list(range(len(rows))),
        "xid": [r.at.wall % 1000 for r in rows],
        "commit_us": [r.at.wall // 1000 for r in rows],
        "last": [r.last for r in rows],
        "missing": [r.missing for r in rows],
    }
    for i, column in enumerate(schema.columns):
        arrays[f"a{i}"] = [_value(column, r) for r in rows]
    for i in schema.before_ordinals:
        arrays[f"b{i}"] = [None for _ in rows]
    return ChangeBatch(schema, pa.RecordBatch.from_pydict(arrays, schema=schema.log_schema()))


def _value(column: Column, row: Row) -> Any:
    if column.physical != "string":
        return row.key
    if column.form is Form.RAW:
        return '{"a": 1}'
    return row.note


def position(number: int) -> str:
    """A source position."""
    return f"{number:016X}"


def flush(
    events: Sequence[Event],
    at: Timestamp | None,
    where: int = 0,
    commits: Sequence[tuple[Timestamp, int]] = (),
    seq: int = 0,
) -> Flush:
    """A flush whose frontier is ``at`` and position ``where``; ``commits`` as (time, position)."""
    return Flush(
        events=tuple(events),
        frontier=Frontier(at, position(where), seq) if at is not None else None,
        commits=Commits(
            wall=[t.wall for t, _ in commits],
            logical=[t.logical for t, _ in commits],
            position=[position(p) for _, p in commits],
            xid=[p for _, p in commits],
        ),
    )


def keys(table: pa.Table) -> list[int]:
    """Sequence numbers of loaded rows."""
    return list(table.column("seq").to_pylist())


def drop_process(writer: LogWriter) -> None:
    """Let go of a writer the way a killed process does: nothing is flushed, cut or tidied."""
    writer._live.close()
    assert writer._lock_fd is not None
    os.close(writer._head_fd)
    os.close(writer._lock_fd)
    writer._lock_fd = None
    writer._broken = "its process is gone"

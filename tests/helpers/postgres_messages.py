"""Writing pgoutput messages as a server would, for tests that need no server."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from changefeed.sources.postgres.types import (
    BUILTIN,
    ColumnInfo,
    ReplicaIdentity,
    TableDetails,
    spelled,
)

_EPOCH_US: Final = 946_684_800_000_000


class Unchanged:
    """A large value that the server leaves out."""

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged()

Cell = str | bytes | None | Unchanged
Cells = Sequence[Cell]


@dataclass(frozen=True)
class Table:
    """A table as messages and the catalog describe it. ``key`` are names."""

    oid: int
    name: str
    columns: Mapping[str, int]
    key: tuple[str, ...] = ()
    identity: ReplicaIdentity = ReplicaIdentity.DEFAULT
    defaults: frozenset[str] = field(default_factory=frozenset)

    def details(self) -> TableDetails:
        """What the catalog says of it."""
        return TableDetails(
            oid=self.oid,
            schema="public",
            name=self.name,
            columns=tuple(
                ColumnInfo(
                    name, i + 1, oid, -1, spelled(oid, -1, {}), name in self.key,
                    name in self.defaults,
                )
                for i, (name, oid) in enumerate(self.columns.items())
            ),
            primary_key=self.key,
            identity=self.identity,
            types=BUILTIN,
        )  # fmt: skip


def frame(message: bytes, lsn: int = 0) -> bytes:
    """A message as CopyData."""
    body = b"w" + struct.pack(">QQq", lsn, lsn, 0) + message
    return b"d" + struct.pack(">i", len(body) + 4) + body


def keepalive(lsn: int, sent_us: int, reply: bool = False) -> bytes:
    """A keepalive as CopyData."""
    body = b"k" + struct.pack(">QqB", lsn, sent_us - _EPOCH_US, reply)
    return b"d" + struct.pack(">i", len(body) + 4) + body


def begin(commit_lsn: int, commit_us: int, xid: int) -> bytes:
    return frame(b"B" + struct.pack(">QqI", commit_lsn, commit_us - _EPOCH_US, xid))


def commit(commit_lsn: int, end_lsn: int, commit_us: int) -> bytes:
    return frame(b"C" + struct.pack(">BQQq", 0, commit_lsn, end_lsn, commit_us - _EPOCH_US))


def relation(table: Table, xid: int | None = None) -> bytes:
    letter = {"default": b"d", "full": b"f", "index": b"i", "nothing": b"n"}[table.identity]
    body = struct.pack(">I", table.oid) + b"public\0" + table.name.encode() + b"\0" + letter
    body += struct.pack(">H", len(table.columns))
    for name, oid in table.columns.items():
        flagged = table.identity is ReplicaIdentity.FULL or (
            name in table.key and table.identity is not ReplicaIdentity.NOTHING
        )
        body += struct.pack(">B", flagged) + name.encode() + b"\0" + struct.pack(">Ii", oid, -1)
    return frame(b"R" + _xid(xid) + body)


def row(
    kind: str,
    table: Table,
    new: Cells | None = None,
    old: Cells | None = None,
    *,
    old_kind: str = "K",
    xid: int | None = None,
) -> bytes:
    """``kind`` is I, U or D; ``old_kind`` K (key only) or O (whole row)."""
    body = kind.encode() + _xid(xid) + struct.pack(">I", table.oid)
    if old is not None:
        body += old_kind.encode() + _tuple(old)
    if new is not None:
        body += b"N" + _tuple(new)
    return frame(body)


def truncate(tables: Sequence[Table], xid: int | None = None) -> bytes:
    oids = b"".join(struct.pack(">I", table.oid) for table in tables)
    return frame(b"T" + _xid(xid) + struct.pack(">IB", len(tables), 0) + oids)


def logical(
    lsn: int, prefix: str, content: bytes, *, transactional: bool = True, xid: int | None = None
) -> bytes:
    """What ``pg_logical_emit_message`` wrote, in a record that ends at ``lsn``."""
    head = struct.pack(">BQ", transactional, lsn) + prefix.encode() + b"\0"
    return frame(b"M" + _xid(xid) + head + struct.pack(">I", len(content)) + content)


def stream_start(xid: int, first: bool) -> bytes:
    return frame(b"S" + struct.pack(">IB", xid, first))


def stream_stop() -> bytes:
    return frame(b"E")


def stream_commit(xid: int, commit_lsn: int, end_lsn: int, commit_us: int) -> bytes:
    times = struct.pack(">QQq", commit_lsn, end_lsn, commit_us - _EPOCH_US)
    return frame(b"c" + struct.pack(">IB", xid, 0) + times)


def stream_abort(xid: int, subtransaction: int) -> bytes:
    return frame(b"A" + struct.pack(">II", xid, subtransaction))


def _xid(xid: int | None) -> bytes:
    return b"" if xid is None else struct.pack(">I", xid)


def _tuple(cells: Cells) -> bytes:
    out = struct.pack(">H", len(cells))
    for cell in cells:
        if cell is None:
            out += b"n"
        elif isinstance(cell, Unchanged):
            out += b"u"
        else:
            kind, data = (b"b", cell) if isinstance(cell, bytes) else (b"t", cell.encode())
            out += kind + struct.pack(">i", len(data)) + data
    return out

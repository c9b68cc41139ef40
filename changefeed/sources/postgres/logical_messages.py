"""Logical messages (``pg_logical_emit_message``) as rows of a table that nobody made.

A message lies among the row messages of its transaction, so it is numbered, kept and put into the
log as they are. Its place in the server's log is the key of its row. Server and stream know tables
by oid; that of this one is 0, which no table has.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.logical_messages import BYTES, CONTENT, PREFIX
from changefeed.core.schema import Column, TableName, TableSchema
from changefeed.core.types import Kind, LogicalType
from changefeed.sources.decoded.rows import CREATED, DecodedRows
from changefeed.sources.decoded.spans import Places, Spans, gather
from changefeed.sources.postgres.columns import Block
from changefeed.sources.postgres.garbage import garbage, readable
from changefeed.sources.postgres.pgoutput import TAG_OFFSET, TRANSACTIONAL

#: In the place of a table's oid.
LOGICAL_OID = 0
#: The first version of PostgreSQL whose pgoutput sends them.
FIRST_VERSION = 140_000
#: No schema of the user's begins with ``pg_``.
_SCHEMA, _NAME = "pg_logical", "messages"
#: What messages of our own have for a prefix; they are nobody's content.
OWN_PREFIX = "changefeed"
_OWN_PREFIXES = OWN_PREFIX + "."

_TEXT = LogicalType(Kind.TEXT)
_COLUMNS = (
    Column("lsn", "bigint", LogicalType(Kind.INT64), nullable=False, column_id=1),
    Column(PREFIX, "text", _TEXT, nullable=False, column_id=2),
    Column("transactional", "boolean", LogicalType(Kind.BOOL), nullable=False, column_id=3),
    Column(CONTENT, "text", _TEXT, column_id=4),
    Column(BYTES, "bytea", LogicalType(Kind.BYTES), column_id=5),
)
#: Two hexadecimal digits of each byte.
_DIGITS = np.frombuffer("".join(f"{n:02x}" for n in range(256)).encode(), np.uint16)


def messages_table(source: str) -> TableName:
    """What stands in the place of a table of the source."""
    return TableName(source, _SCHEMA, _NAME)


def is_messages(table: TableName) -> bool:
    """The name stands for logical messages."""
    return (table.schema, table.name) == (_SCHEMA, _NAME)


def messages_schema(source: str) -> TableSchema:
    """The shape of messages as rows, version 0."""
    return TableSchema(messages_table(source), _COLUMNS, (0,))


def decode_messages(
    block: Block, tags: Places, *, streamed: bool = False, wanted: bool = True
) -> DecodedRows:
    """Decode the logical messages at ``tags``; our own are left out.

    Args:
        wanted: messages are read; else all are left out.
        streamed: of a streamed transaction, with its number behind the tag.

    Raises:
        ChangefeedError: CF2105 a message cannot be read.
    """
    with readable("a logical message"):
        return _decode(block, tags, 5 if streamed else 1, wanted)


def with_prefix(
    block: Block, tags: Places, prefix: str, *, streamed: bool = False
) -> list[tuple[int, bytes]]:
    """The contents of the logical messages at ``tags`` that have this prefix, each with its index
    among them.

    Raises:
        ChangefeedError: CF2105 a message cannot be read.
    """
    with readable("a logical message"):
        _, prefixes, spans = _read(block, tags, 5 if streamed else 1)
        mine = np.flatnonzero(pc.equal(prefixes, prefix).to_numpy(zero_copy_only=False))
        if not len(mine):
            return []
        chosen = gather(Spans(block.data, spans[0][mine], spans[1][mine]))
        return list(zip(mine.tolist(), chosen.view(pa.binary()).to_pylist(), strict=True))


def _read(
    block: Block, tags: Places, header: int
) -> tuple[Places, pa.StringArray, tuple[Places, Places]]:
    """Where the flags of messages lie, their prefixes, and where their contents begin and end."""
    data = block.data
    flags = tags + header
    length = tags - TAG_OFFSET + 1
    frame_ends = length + block.word(length)
    starts = flags + 9
    # The prefix ends with a zero byte.
    first, last = int(starts.min()), int(frame_ends.max())
    zeros = np.flatnonzero(data[first:last] == 0) + first
    ends = zeros[np.searchsorted(zeros, starts)]
    contents = ends + 5
    if (contents > frame_ends).any() or (contents + block.word(ends + 1) != frame_ends).any():
        raise garbage("a logical message whose length is wrong")
    prefix = gather(Spans(data, starts, ends))
    prefix.validate(full=True)
    return flags, prefix, (contents, frame_ends)


def _decode(block: Block, tags: Places, header: int, wanted: bool) -> DecodedRows:
    data = block.data
    flags, prefix, (contents, frame_ends) = _read(block, tags, header)
    text, binary = _texts(gather(Spans(data, contents, frame_ends)))
    lsn = pa.array(_long(block, flags + 1))
    columns = [lsn, prefix, pa.array((data[flags] & TRANSACTIONAL).astype(np.bool_)), text, binary]
    ours = pc.or_(pc.equal(prefix, OWN_PREFIX), pc.starts_with(prefix, _OWN_PREFIXES))
    theirs = pc.invert(ours) if wanted else pa.array(np.zeros(len(prefix), np.bool_))
    columns = [column.filter(theirs) for column in columns]
    count = len(columns[0])
    return DecodedRows(
        message=np.flatnonzero(theirs.to_numpy(zero_copy_only=False)),
        op=np.full(count, CREATED, np.uint8),
        after=columns,
        before=[pa.nulls(count, pa.int64())],
        key=[columns[0]],
    )


def _long(block: Block, places: Places) -> npt.NDArray[np.int64]:
    high, low = (block.word(at).astype(np.int64) & 0xFFFFFFFF for at in (places, places + 4))
    return high << 32 | low


def _texts(contents: pa.StringArray) -> tuple[pa.Array, pa.Array]:
    """The contents that are text (UTF-8 without a zero byte), and the others as bytes of the log,
    each null where the other is not."""
    raw = contents.view(pa.binary())
    count = len(raw)
    if not pc.any(pc.match_substring(raw, b"\0")).as_py():
        try:
            return raw.cast(pa.string()), pa.nulls(count, pa.string())
        except pa.ArrowInvalid:
            pass  # not all of them
    fits = pa.array([_is_text(value) for value in raw.to_pylist()], pa.bool_())
    nothing = pa.scalar(None, pa.binary())
    text = pc.if_else(fits, raw, nothing).cast(pa.string())
    return text, _hexadecimal(pc.if_else(fits, nothing, raw))


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in value


def _hexadecimal(values: pa.BinaryArray) -> pa.StringArray:
    sizes = pc.fill_null(pc.binary_length(values), 0).to_numpy()
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(2 * sizes, out=offsets[1:])
    whole = b"".join(value for value in values.to_pylist() if value is not None)
    digits = _DIGITS[np.frombuffer(whole, np.uint8)]
    made = pa.StringArray.from_buffers(len(values), pa.py_buffer(offsets), pa.py_buffer(digits))
    return pc.if_else(values.is_valid(), pc.binary_join_element_wise("\\x", made, ""), None)

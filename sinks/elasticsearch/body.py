"""Messages as the lines of a bulk request, column by column.

    {"index":{"_index":"orders","_id":"17","version":1536242855577149065,"version_type":"external_gte"}}
    {"id": 17, "total": 12.50}

The value is the document, byte for byte. Building 100,000 operations is a dozen Arrow kernels;
no row becomes a Python object unless its key is empty or longer than an id may be.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.schema import Column, TableSchema
from changefeed.core.types import TEXT_NUMBERS, Form

MAX_ID_BYTES = 512
"""Elasticsearch's limit of ``_id``, in bytes of UTF-8."""


def operations(index: str, schema: TableSchema, rows: pa.RecordBatch) -> pa.Array:
    """Each row's operation: the action's line and, but for a delete, the document's.

    ``rows`` has the schema of messages; a row is a delete when its ``op`` says so or it has no
    value. The version is the commit timestamp as one number (:attr:`Timestamp.version`).
    """
    value = rows.column("value")
    deleted = pc.or_(pc.equal(rows.column("op"), "d"), pc.is_null(value))
    ids = id_tokens(rows.column("key"), plain_key(schema))
    version = pc.add(rows.column("wall"), pc.cast(rows.column("logical"), pa.int64()))
    versions = pc.cast(pc.cast(version, pa.string()), pa.binary())
    name = json.dumps(index, ensure_ascii=False)
    index_head, delete_head = (_bytes(f'{{"{op}":{{"_index":{name},"_id":') for op in _OPS)
    some_deletes = pc.any(deleted).as_py()
    return pc.binary_join_element_wise(
        pc.if_else(deleted, delete_head, index_head) if some_deletes else index_head,
        ids,
        _VERSION,
        versions,
        _TYPE,
        pc.if_else(deleted, _NOTHING, value) if some_deletes else value,
        pc.if_else(deleted, _NOTHING, _NEWLINE) if some_deletes else _NEWLINE,
        _NOTHING,
    )


def _bytes(text: str) -> pa.Scalar:
    return pa.scalar(text.encode(), pa.binary())


_OPS = ("index", "delete")
_VERSION = _bytes(',"version":')
#: Older than what is there: refused. The same again: taken, so a repeat is no conflict.
_TYPE = _bytes(',"version_type":"external_gte"}}\n')
_NEWLINE, _NOTHING = _bytes("\n"), _bytes("")


def plain_key(schema: TableSchema) -> bool:
    """Ids are the plain values of the only key column, not the key's JSON."""
    return len(schema.key) == 1 and _is_plain(schema.columns[schema.key[0]])


def _is_plain(column: Column) -> bool:
    return column.form is not Form.RAW or column.kind in TEXT_NUMBERS


def id_tokens(keys: pa.Array, plain: bool) -> pa.Array:
    """The JSON text of each id, made of the message key (a JSON array).

    ``plain``: ``[17]`` is ``"17"`` and ``["x"]`` is ``"x"``. Else the id is the key itself as text,
    ``[17, "x"]``. An id that would be empty or too long is ``sha256-`` and the key's digest.
    """
    if plain:
        inner = pc.binary_slice(keys, 1, -1)
        quoted = pc.binary_join_element_wise(_QUOTE, inner, _QUOTE, _NOTHING)
        tokens = pc.if_else(pc.starts_with(inner, '"'), inner, quoted)
    else:
        escaped = pc.replace_substring(keys, "\\", "\\\\")
        escaped = pc.replace_substring(escaped, '"', '\\"')
        tokens = pc.binary_join_element_wise(_QUOTE, escaped, _QUOTE, _NOTHING)
    size = pc.binary_length(tokens)
    # The token is never shorter than what it says, so only these need a look.
    doubtful = pc.or_(pc.less_equal(size, 2), pc.greater(size, MAX_ID_BYTES + 2))
    if not pc.any(doubtful).as_py():
        return tokens
    pairs = zip(keys.filter(doubtful).to_pylist(), tokens.filter(doubtful).to_pylist(), strict=True)
    return pc.replace_with_mask(
        tokens, doubtful, pa.array([_fitting(k, t) for k, t in pairs], pa.binary())
    )


_QUOTE = _bytes('"')


def _fitting(key: bytes, token: bytes) -> bytes:
    if 0 < len(json.loads(token).encode()) <= MAX_ID_BYTES:
        return token
    return f'"{_digest(key)}"'.encode()


def fitting_id(text: str) -> str:
    """``text``, or its digest where it is too long for an id."""
    data = text.encode()
    return text if len(data) <= MAX_ID_BYTES else _digest(data)


def _digest(data: bytes) -> str:
    return f"sha256-{hashlib.sha256(data).hexdigest()}"


def deletion(index: str, document_id: str, version: int, kind: str) -> bytes:
    """One delete with a version of the type ``kind``."""
    action = {"_index": index, "_id": document_id, "version": version, "version_type": kind}
    return json.dumps({"delete": action}, ensure_ascii=False).encode() + b"\n"


def document(index: str, document_id: str, version: int, content: object) -> bytes:
    """One document of our own with a version."""
    action = {"_index": index, "_id": document_id, "version": version}
    lines = ({"index": {**action, "version_type": "external_gte"}}, content)
    return b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines)


def offsets(lines: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Where each operation begins in the data of ``lines``, and where the last one ends."""
    found = np.frombuffer(lines.buffers()[1], np.int32)
    return found[lines.offset : lines.offset + len(lines) + 1]


def data(lines: pa.Array) -> memoryview:
    """All operations as they go into a request; not a copy."""
    if not len(lines):
        return memoryview(b"")
    places = offsets(lines)
    return memoryview(lines.buffers()[2])[places[0] : places[-1]]


def portions(lines: pa.Array, rows: int, size: int) -> Iterator[pa.Array]:
    """``lines`` in slices of at most ``rows`` operations and ``size`` bytes, one at least."""
    places, start = offsets(lines), 0
    while start < len(lines):
        fits = int(np.searchsorted(places, int(places[start]) + size, side="right")) - 1 - start
        count = min(max(fits, 1), rows, len(lines) - start)
        yield lines.slice(start, count)
        start += count

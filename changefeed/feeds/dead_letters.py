"""Keeps rows that cannot be encoded, or that the sink refuses, as dead letters of the feed.

A letter is durable in the state before the progress of the feed passes its row. A row that comes
again after a crash, or in another scan, is the same letter.
"""

from __future__ import annotations

import hashlib
import json

import pyarrow as pa

from changefeed.catalog import Catalog, Lease
from changefeed.catalog.rows import DeadLetter
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.faults import Point, fault_point
from changefeed.core.schema import TableSchema
from changefeed.core.telemetry import log
from changefeed.encoding.json_tokens import joined, json_token, string
from changefeed.options import (
    DEAD_LETTER_LIMIT,
    DEAD_LETTER_SHARE,
    ON_ROW_ERROR,
    OnRowError,
    Options,
)

#: A larger row is kept without its large values: a limit of letters is one of bytes then, too.
ROW_BYTES = 64 << 10
VALUE_BYTES = 1 << 10
#: The share of refused rows means nothing of fewer letters.
LEAST_FOR_SHARE = 10


class LetterKeeper:
    """The dead letters of one feed. Used by the feed's thread and by that of its scan."""

    def __init__(self, catalog: Catalog, job_id: int, name: str, lease: Lease, options: Options):
        self._catalog, self._job_id, self._name, self._lease = catalog, job_id, name, lease
        #: Whether the feed keeps any; else a row that is refused stops its table.
        self.wanted = options[ON_ROW_ERROR] is OnRowError.DEAD_LETTER
        self._limit = options[DEAD_LETTER_LIMIT]
        self._share = options[DEAD_LETTER_SHARE]

    def keep(
        self, schema: TableSchema, row: pa.Table, error: ChangefeedError, *, delivered: int
    ) -> None:
        """Keep one row of the log, or of a scan in the log's columns. Durable on return.

        Args:
            delivered: rows of its table that were delivered before.

        Raises:
            ChangefeedError: CF5009, there are too many; the row is not kept.
        """
        letter = letter_of(schema, row, error)
        of_table, of_feed = self._catalog.dead_letters_kept(self._job_id, letter)
        if of_feed >= self._limit:
            raise _too_many(
                f"{of_feed:,} rows of the feed were refused, the last one for: {error.message}; "
                f"its dead_letter_limit is {self._limit:,}",
                error,
            )
        known = of_table + 1
        if known > LEAST_FOR_SHARE and known > self._share * (delivered + known):
            share = f"{100 * self._share:g}%"
            raise _too_many(
                f"{known:,} of {delivered + known:,} rows of {schema.table} were refused, the last "
                f"one for: {error.message}; its dead_letter_share is {share}",
                error,
            )
        if self._catalog.keep_dead_letter(self._job_id, letter, self._lease):
            log.warning(
                "feed %s: %s: a row is kept as a dead letter: %s",
                self._name,
                schema.table,
                error.message,
            )
        fault_point(Point.DEAD_LETTER_KEPT)


def _too_many(message: str, error: ChangefeedError) -> ChangefeedError:
    return ChangefeedError(Code.TOO_MANY_DEAD_LETTERS, message, detail=error.detail)


def letter_of(schema: TableSchema, row: pa.Table, error: ChangefeedError) -> DeadLetter:
    """The letter of one row in the log's columns."""
    [found] = row.select(["op", "wall", "logical", "seq", "missing"]).to_pylist()
    op, at = found["op"], Timestamp(found["wall"], found["logical"])
    side = "b" if op == "d" else "a"
    places = schema.before_ordinals if side == "b" else range(len(schema.columns))
    unknown = set(json.loads(found["missing"])) if found["missing"] else set()
    key = [] if schema.keyless else [row[f"{side}{i}"][0].as_py() for i in schema.key]
    written = {
        i: _token(schema, row, side, i) for i in places if schema.columns[i].name not in unknown
    }
    if sum(map(len, written.values())) > ROW_BYTES:
        written = {i: _cut(token) for i, token in written.items()}
    members = (f"{string(schema.columns[i].name)}: {token}" for i, token in written.items())
    text = f"{{{', '.join(members)}}}"
    key_text = json.dumps(key, ensure_ascii=False)
    digest = hashlib.sha256(f"{schema.table}{key_text if key else text}".encode()).hexdigest()
    # A scan reads a row at another instant each time: it is one letter, whichever scan found it.
    place = f"scan {digest}" if op == "r" else f"{at} {found['seq']}"
    return DeadLetter(
        table=schema.table,
        identity=place,
        position=at,
        op=op,
        code=error.code.number,
        message=error.explained,
        digest=digest[:16],
        key=key_text,
        row=text,
    )


def _token(schema: TableSchema, row: pa.Table, side: str, i: int) -> str:
    values = row[f"{side}{i}"].combine_chunks()
    return str(joined(json_token(schema.columns[i], values, clean=False), 1)[0].as_py())


def _cut(token: str) -> str:
    if len(token) <= VALUE_BYTES:
        return token
    return json.dumps(f"({len(token):,} characters were left out)")

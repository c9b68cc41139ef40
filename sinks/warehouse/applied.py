"""How far each table of a feed is complete in the target: one row of ``_changefeed_applied``.

========== =================================================================================
id         the feed in the world and its table: ``<state>/<job>/<source.schema.table>``
feed       the feed's name, for people
table_name the target table
version    everything up to this version is in the target ...
seq        ... and of this very version everything up to this number in the log
scanned    version of the last whole scan
resolved   the feed's last resolved timestamp: tables with an equal one are of one instant
node       who changed the row last
========== =================================================================================

The row changes in the same transaction as the target. Changes at or below (version, seq) are
skipped when they come again, so a replayed insert cannot bring back a deleted row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sinks.warehouse.dialect import Dialect

TABLE = "_changefeed_applied"

_NEW = ("id", "feed", "table_name", "version", "seq", "scanned")

#: Characters of an ``id``.
_LONGEST = 255

#: A number above every ``seq`` of a log.
LAST = 2**63 - 1


def columns(d: Dialect) -> dict[str, str]:
    """Columns and SQL types of the table."""
    number, text = d.staging_types["int64"], d.staging_types["string"]
    key = d.key_text
    return {
        "id": key,
        "feed": text,
        "table_name": text,
        "version": number,
        "seq": number,
        "scanned": number,
        "resolved": text,
        "node": text,
    }


@dataclass(frozen=True, slots=True)
class AppliedRow:
    """The statements about one row. ``table`` is :data:`TABLE`, finished."""

    d: Dialect
    table: str
    job: str
    name: str

    @property
    def id(self) -> str:
        """The row's key; a very long name is cut and ends in a digest."""
        text = f"{self.job}/{self.name}"
        if len(text) <= _LONGEST:
            return text
        return f"{text[: _LONGEST - 17]}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    @property
    def stored(self) -> str:
        """The table that holds the row."""
        return self.table

    @property
    def _where(self) -> str:
        return f"WHERE {self.d.quote('id')} = {self.d.literal(self.id)}"

    def value(self, column: str) -> str:
        """A scalar subquery of one column."""
        q = self.d.quote
        return f"coalesce((SELECT max({q(column)}) FROM {self.table} {self._where}), 0)"

    def read(self) -> str:
        """``version, seq, scanned``; no row for a table that is new."""
        q = self.d.quote
        return f"SELECT {q('version')}, {q('seq')}, {q('scanned')} FROM {self.table} {self._where}"

    def marks(self, topics: Sequence[str]) -> str:
        """``id, feed, table_name, version, seq, scanned`` of this row and of every row whose
        target has one of these names."""
        q, d = self.d.quote, self.d
        names = d.listed(_NEW)
        column = f"lower({q('table_name')})" if d.folds_case else q("table_name")
        listed = ", ".join(d.literal(t.lower() if d.folds_case else t) for t in topics)
        return (
            f"SELECT {names} FROM {self.table} "
            f"WHERE {q('id')} = {d.literal(self.id)} OR {column} IN ({listed})"
        )

    def forget_others(self, ids: Sequence[str]) -> str:
        """Rows of feeds that are gone."""
        listed = ", ".join(map(self.d.literal, ids))
        return f"DELETE FROM {self.stored} WHERE {self.d.quote('id')} IN ({listed})"

    def insert(self, feed: str, topic: str) -> str:
        """Make the row unless it is there."""
        text = self.d.literal
        return (
            f"INSERT INTO {self.table} ({self.d.listed(_NEW)}) "
            f"SELECT {text(self.id)}, {text(feed)}, {text(topic)}, 0, 0, 0 "
            f"FROM (SELECT 1 AS one) AS o "
            f"WHERE NOT EXISTS (SELECT 1 FROM {self.table} {self._where})"
        )

    def lock(self, node: str) -> str:
        """First of a run: another run that changes the table waits, or fails, until it ends."""
        return (
            f"UPDATE {self.table} SET {self.d.quote('node')} = {self.d.literal(node)} {self._where}"
        )

    def reset(self) -> str:
        """The target is new and empty: nothing was applied to it."""
        q = self.d.quote
        return (
            f"UPDATE {self.table} SET {q('version')} = 0, {q('seq')} = 0, {q('scanned')} = 0 "
            f"{self._where}"
        )

    def above(self, version: str, seq: str) -> str:
        """SQL: the change (two expressions) was not applied yet."""
        done, number = self.value("version"), self.value("seq")
        return f"({version} > {done} OR ({version} = {done} AND {seq} > {number}))"

    def advance(self, version: int, seq: int) -> str:
        """Everything up to this change is applied."""
        at, number = self.d.quote("version"), self.d.quote("seq")
        return (
            f"UPDATE {self.table} SET {number} = {seq}, {at} = {version} {self._where} "
            f"AND ({at} < {version} OR ({at} = {version} AND {number} < {seq}))"
        )

    def scanned(self, version: int) -> str:
        """A whole scan of this version is in the target."""
        return f"UPDATE {self.table} SET {self.d.quote('scanned')} = {version} {self._where}"

    def forget(self) -> str:
        """The table is gone."""
        return f"DELETE FROM {self.stored} {self._where}"


def resolved(d: Dialect, table: str, ids: Iterable[str], at: str) -> str:
    """These tables of a feed are complete up to this timestamp."""
    listed = ", ".join(map(d.literal, ids))
    return (
        f"UPDATE {table} SET {d.quote('resolved')} = {d.literal(at)} "
        f"WHERE {d.quote('id')} IN ({listed})"
    )

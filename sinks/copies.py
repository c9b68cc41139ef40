"""Copies kept as messages, compared with the source: documents by id, messages by key.

Both sides go through the file of the comparison (:mod:`sinks.comparison_file`): what the source has
now, encoded as the feed encodes it, and what the target holds. Only the row in a message counts;
when it was made, and why, differs by nature.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableSchema
from sinks.base import Difference
from sinks.comparison_file import ComparisonFile, Unequal, batches

#: The envelope whose deletes have the key's columns, and NULL in the others.
BARE = "bare"
#: Members of a message that are not columns of the row, in the flat envelopes.
_BESIDE = "__crdb__"
#: A number with a fraction or an exponent, as it is kept: ``12.50`` and ``1.25e1`` are equal.
_NUMBER = "\0number"

Row = Mapping[str, object]


def exact(text: bytes | str) -> Any:
    """JSON with numbers as exact as they are written."""
    return json.loads(text, parse_float=_number)


def _number(text: str) -> object:
    return {_NUMBER: str(Decimal(text).normalize())}


def plain(value: object) -> Any:
    """A value of another format as :func:`exact` gives JSON's: numbers alike that are equal, and
    bytes as PostgreSQL writes them."""
    if isinstance(value, Decimal):
        return {_NUMBER: str(value.normalize())}
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    return value


def key_text(values: Sequence[object]) -> str:
    """A text that equal keys (of :func:`plain`) have alike."""
    return json.dumps(values, ensure_ascii=False)


def of_record(value: object, envelope: str) -> object:
    """The value of a typed message as JSON has it: in ``bare``, whose row is a record of its own
    there, the columns stand at the top."""
    if envelope != BARE or not isinstance(value, dict):
        return value
    row = value.get("record")
    return {_BESIDE: value} if row is None else row


def row_of(envelope: str, value: object) -> Row | None:
    """The row in the value of a message (of :func:`exact`); None where it tells of a delete.

    Raises:
        ChangefeedError: CF1303 the messages of the envelope do not hold whole rows.
    """
    if envelope not in _ROWS:
        raise ChangefeedError(
            Code.NOT_SUPPORTED, f"messages of envelope = '{envelope}' cannot be verified"
        )
    found = _ROWS[envelope](value) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else None


def whole_row(envelope: str, value: object) -> Row:
    """The row in the value of a message that is no delete."""
    row = row_of(envelope, value)
    if row is None:
        raise AssertionError("a row of the source is no delete")
    return row


def _flat(value: Mapping[str, object]) -> object:
    return {name: cell for name, cell in value.items() if name != _BESIDE}


def _after(value: Mapping[str, object]) -> object:
    return value.get("after")


def _payload(value: Mapping[str, object]) -> object:
    payload = value.get("payload", value)
    return payload.get("after") if isinstance(payload, dict) else None


_ROWS: Mapping[str, Callable[[Mapping[str, object]], object]] = {
    "wrapped": _after,
    "row": _flat,
    "bare": _flat,
    "enriched": _payload,
    "debezium": _payload,
}

#: Envelopes of whole rows.
WHOLE_ROWS = tuple(_ROWS)


class CopyComparison(ComparisonFile):
    """What the source has and what the target holds, by an id that both give to a row.

    A context manager: at its end the file is gone.
    """

    def __init__(
        self,
        folder: str,
        schema: TableSchema,
        *,
        read: Callable[[int], object],
        keyed: bool = False,
    ) -> None:
        """
        Args:
            folder, read: see :class:`ComparisonFile`.
            schema: of the rows at the source, which have a key.
            keyed: ids are the keys of messages. What the target does with a row follows from
                these, whatever the row itself says.
        """
        super().__init__(folder, read)
        self._keyed = keyed
        self._key = [column.name for column in schema.key_columns]
        #: What the key's columns are called in messages, in the key's order.
        self.key_members: Sequence[str] = self._key
        #: The columns of the source's rows, once there was one.
        self.names: tuple[str, ...] | None = None

    def expect(self, rows: Iterable[tuple[str, Row]]) -> None:
        """Rows of the source, each id once."""
        for many in batches(rows):
            if self.names is None:
                self.names = tuple(many[0][1])
            self._file.executemany(
                "INSERT OR REPLACE INTO source (id, row) VALUES (?, ?)",
                [(name, _text(row, self.names)) for name, row in many],
            )

    def hold(
        self, rows: Iterable[tuple[str, Row | None]], part: int = 0, *, doubt: bool = False
    ) -> None:
        """What the target holds, in its order: a later row replaces one of the same id, None
        deletes it. With ``doubt`` a row whose other columns are all NULL may be a delete."""
        for many in batches(rows):
            last = dict(many)
            kept = [
                (name, part, _text(row, self.names), doubt and self._only_key(row))
                for name, row in last.items()
                if row is not None
            ]
            self._file.executemany(
                "INSERT OR REPLACE INTO target (id, part, row, vague) VALUES (?, ?, ?, ?)", kept
            )
            gone = [(name,) for name, row in last.items() if row is None]
            self._file.executemany("DELETE FROM target WHERE id = ?", gone)
            # As many bytes as if all of them were as long as those that stay.
            size = sum(len(name) + len(text) for name, _, text, _ in kept)
            self._read(size * len(many) // max(len(kept), 1))

    def _only_key(self, row: Row) -> bool:
        return all(value is None or name in self.key_members for name, value in row.items())

    def clear(self, part: int) -> None:
        """What came so far with ``part`` is gone (TRUNCATE)."""
        self._file.execute("DELETE FROM target WHERE part = ?", (part,))

    def differences(self, limit: int) -> list[Difference]:
        """Rows that are not alike, at most ``limit``: missing and changed ones first, by id."""
        return [self._difference(found) for found in self.unequal(limit)]

    def _difference(self, found: Unequal) -> Difference:
        source, target = json.loads(found.source or "null"), json.loads(found.target or "null")
        row = target if source is None else source
        kind = "extra" if source is None else "missing" if target is None else "changed"
        key, values = self._key_text(found.id, row), self._values(found.id, row)
        if kind == "changed":
            names = [column for column in source if target[column] != source[column]]
            source, target = ({name: side[name] for name in names} for side in (source, target))
        ours, theirs = (None if s is None else _plain_json(s) for s in (source, target))
        return Difference(kind, key, ours, theirs, values)

    def _values(self, name: str, row: Mapping[str, object]) -> tuple[str | int | bool, ...]:
        """The key's values; none where neither the id nor the row shows them as they are."""
        found = _of_key(name, self._key) if self._keyed else None
        values = [row.get(column) for column in self._key] if found is None else found
        known = tuple(value for value in values if isinstance(value, str | int | bool))
        return known if len(known) == len(values) else ()

    def _key_text(self, name: str, row: Mapping[str, object]) -> str:
        """The key's values; of messages that show them otherwise or not at all, the id."""
        if not row.keys() >= set(self._key):
            return name
        return _plain_json([row[column] for column in self._key])


def _of_key(text: str, columns: Sequence[str]) -> list[object] | None:
    """The values in a key of JSON; None where they are not beside each other in it."""
    try:
        key = json.loads(text)
    except ValueError:
        return None
    if isinstance(key, dict):
        key = [key[column] for column in columns if column in key]
    return key if isinstance(key, list) and len(key) == len(columns) else None


def _text(row: Row, names: tuple[str, ...] | None) -> str:
    """The columns that the source has, in its order, one that is not there as null; all of a row
    where the source has no row."""
    wanted = row if names is None else {name: row.get(name) for name in names}
    return json.dumps(wanted, ensure_ascii=False, separators=(",", ":"), sort_keys=False)


def _plain_json(value: object) -> str:
    """JSON for people, numbers as they were."""
    if isinstance(value, dict):
        if _NUMBER in value:
            return format(Decimal(str(value[_NUMBER])), "f")
        members = (
            f"{json.dumps(n, ensure_ascii=False)}: {_plain_json(v)}" for n, v in value.items()
        )
        return f"{{{', '.join(members)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_plain_json, value))}]"
    return json.dumps(value, ensure_ascii=False)

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

import pyarrow as pa

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableSchema
from sinks.base import Difference
from sinks.comparison_file import ROWS_AT_ONCE, ComparisonFile, batches

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
        self._keyed = keyed
        self._key = [schema.columns[i].name for i in schema.key]
        #: What the key's columns are called in messages.
        self._key_members = frozenset(self._key)
        self._names: tuple[str, ...] | None = None
        super().__init__(folder, "part INTEGER, row TEXT, vague INTEGER", read)

    def expect(self, rows: Iterable[tuple[str, Row]]) -> None:
        """Rows of the source, each id once."""
        for many in batches(rows):
            if self._names is None:
                self._names = tuple(many[0][1])
            self._file.executemany(
                "INSERT OR REPLACE INTO source VALUES (?, 0, ?, 0)",
                [(name, _text(row, self._names)) for name, row in many],
            )

    def expect_messages(
        self,
        messages: pa.Table,
        envelope: str,
        key: Callable[[bytes], str],
        value: Callable[[bytes], object],
    ) -> None:
        """The messages of rows of the source: ``key`` and ``value`` read what the feed writes.

        Raises:
            ChangefeedError: CF1303 no row can be told from its delete.
        """
        for batch in messages.to_batches():
            pairs = zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True)
            self.expect((key(k), _whole(row_of(envelope, value(v)))) for k, v in pairs)
        names = self._names
        if envelope == BARE and names is not None and self._key_members.issuperset(names):
            raise ChangefeedError(
                Code.NOT_SUPPORTED,
                "messages of envelope = 'bare' without a column beside the key cannot be verified: "
                "a row looks like its delete",
            )

    def call_key(self, names: Iterable[str]) -> None:
        """The columns of the key have other names in messages."""
        self._key_members = frozenset(names)

    def hold(
        self, rows: Iterable[tuple[str, Row | None]], part: int = 0, *, doubt: bool = False
    ) -> None:
        """What the target holds, in its order: a later row replaces one of the same id, None
        deletes it. With ``doubt`` a row whose other columns are all NULL may be a delete."""
        for many in batches(rows):
            last = dict(many)
            kept = [
                (name, part, _text(row, self._names), doubt and self._only_key(row))
                for name, row in last.items()
                if row is not None
            ]
            self._file.executemany("INSERT OR REPLACE INTO target VALUES (?, ?, ?, ?)", kept)
            gone = [(name,) for name, row in last.items() if row is None]
            self._file.executemany("DELETE FROM target WHERE id = ?", gone)
            # As many bytes as if all of them were as long as those that stay.
            size = sum(len(name) + len(text) for name, _, text, _ in kept)
            self._read(size * len(many) // max(len(kept), 1))

    def _only_key(self, row: Row) -> bool:
        return all(value is None or name in self._key_members for name, value in row.items())

    def replay(
        self, messages: Iterable[tuple[str | None, object]], envelope: str, part: int = 0
    ) -> None:
        """Messages in their order: a key as text, and what :func:`row_of` takes.

        A message without a key is a resolved timestamp, or tells of a TRUNCATE: what came before
        it with ``part`` is gone.
        """
        waiting: list[tuple[str, Row | None]] = []
        for key, value in messages:
            if key is not None:
                waiting.append((key, None if value is None else row_of(envelope, value)))
            elif value is not None and _truncates(value):
                waiting.clear()
                self.clear(part)
            if len(waiting) >= ROWS_AT_ONCE:
                self.hold(waiting, part, doubt=envelope == BARE)
                waiting.clear()
        self.hold(waiting, part, doubt=envelope == BARE)

    def clear(self, part: int) -> None:
        """What came so far with ``part`` is gone (TRUNCATE)."""
        self._file.execute("DELETE FROM target WHERE part = ?", (part,))

    def differences(self, limit: int) -> list[Difference]:
        """Rows that are not alike, at most ``limit``: missing and changed ones first, by id."""
        wanting = self._file.execute(
            "SELECT s.id, s.row, CASE WHEN NOT t.vague THEN t.row END "
            "FROM source s LEFT JOIN target t ON t.id = s.id "
            "WHERE t.row IS NOT s.row ORDER BY s.id LIMIT ?",
            (limit,),
        ).fetchall()
        found = [self._difference(*row) for row in wanting]
        extra = self._file.execute(
            "SELECT t.id, t.row FROM target t LEFT JOIN source s ON s.id = t.id "
            "WHERE s.id IS NULL AND NOT t.vague ORDER BY t.id LIMIT ?",
            (limit - len(found),),
        ).fetchall()
        return found + [
            Difference(
                "extra", self._key_text(name, row), None, _shown(row), self._values(name, row)
            )
            for name, row in ((name, json.loads(text)) for name, text in extra)
        ]

    def _difference(self, name: str, source: str, target: str | None) -> Difference:
        row = json.loads(source)
        if target is None:
            return Difference(
                "missing", self._key_text(name, row), _shown(row), None, self._values(name, row)
            )
        held = json.loads(target)
        names = [column for column in row if held[column] != row[column]]
        return Difference(
            "changed",
            self._key_text(name, row),
            _shown({column: row[column] for column in names}),
            _shown({column: held[column] for column in names}),
            self._values(name, row),
        )

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


def _whole(row: Row | None) -> Row:
    if row is None:
        raise AssertionError("a row of the source is no delete")
    return row


def _truncates(found: object) -> bool:
    if not isinstance(found, dict):
        return False
    # Where it stands depends on the envelope. Avro's records have all their members, some empty.
    places = (found, found.get("payload"), found.get("__crdb__"))
    return any(isinstance(place, dict) and place.get("truncate") is not None for place in places)


def _text(row: Row, names: tuple[str, ...] | None) -> str:
    """The columns that the source has, in its order, one that is not there as null; all of a row
    where the source has no row."""
    wanted = row if names is None else {name: row.get(name) for name in names}
    return json.dumps(wanted, ensure_ascii=False, separators=(",", ":"), sort_keys=False)


def _shown(row: Mapping[str, object]) -> str:
    return _plain_json(row)


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

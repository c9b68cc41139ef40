"""Keys and values in Debezium's envelope; as JSON, what Kafka Connect's ``JsonConverter`` writes.

Their members come in Debezium's order and without spaces.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.schema import BeforeImage
from changefeed.core.version import __version__
from changefeed.encoding.debezium.fields import field_of
from changefeed.encoding.debezium.schemas import key_schema, value_schema, with_schema
from changefeed.encoding.debezium.tokens import tokens
from changefeed.encoding.images import TokenRows
from changefeed.encoding.json_tokens import Part, joined, string


@dataclass(frozen=True, slots=True)
class SourceBlock:
    """The ``source`` member of all messages of a stretch; a None ``schema`` is left out."""

    version: str
    connector: str
    name: str
    snapshot: str
    database: str
    schema: str | None
    table: str


T = TypeVar("T")


class Messages(ABC, Generic[T]):
    """The messages of a stretch of log rows; every column is encoded once.

    ``T`` is the kind of piece that a format concatenates.
    """

    def __init__(self, rows: TokenRows) -> None:
        self.rows = rows
        self.plan = rows.plan
        self._made: dict[str, list[T]] = {}

    @abstractmethod
    def keys(self) -> pa.Array:
        """The message keys."""

    @abstractmethod
    def values(self) -> pa.Array:
        """The message values."""

    @abstractmethod
    def known(self, i: int, values: pa.Array) -> list[T]:
        """Values of the log of column ``i``.

        Raises:
            ChangefeedError: CF4001, a value does not fit.
        """

    @abstractmethod
    def unknown(self, i: int) -> list[T]:
        """The substitute for a value that the source did not send: null, or zero where the column
        is NOT NULL, as in Debezium's messages."""

    def member(self, side: str, i: int) -> list[T]:
        """Column ``i`` of the row after the change, or before it."""
        if side == "b" and i not in self.rows.known:
            return self.unknown(i)
        name = f"{side}{i}"
        if name not in self._made:
            self._made[name] = self.known(i, self.rows.column(name))
        return self._made[name]

    def shows_before(self, side: str) -> bool | pa.Array | None:
        """Which messages have a row before: of deletes all (at least its key), else those for which
        the source sent all of it. None: none has."""
        rows = self.rows
        if side == "b":
            return True
        if self.plan.schema.before_image is not BeforeImage.FULL or not rows.known:
            return None
        return rows.had_before if pc.any(rows.had_before).as_py() else None

    @property
    def source(self) -> SourceBlock:
        """The origin of the rows."""
        origin, table = self.plan.origin, self.plan.schema.table
        return SourceBlock(
            version=__version__,
            connector=origin.connector,
            name=table.source,
            snapshot=str(self.rows.scan).lower(),
            database=origin.database_of(table),
            schema=None if origin.schema_is_database else table.schema,
            table=table.name,
        )


class JsonMessages(Messages[Part]):
    """Keys and values as JSON, with their schemas where the plan wants them."""

    def keys(self) -> pa.Array:
        plan = self.plan
        head = with_schema(key_schema(plan, plan.topic)) if plan.schemas_enabled else ""
        return self.rows.choose(lambda side: self._text(head, self._object(side, plan.message_key)))

    def values(self) -> pa.Array:
        plan = self.plan
        head = with_schema(value_schema(plan, plan.topic)) if plan.schemas_enabled else ""
        return self.rows.choose(lambda side: self._text(head, self._envelope(side)))

    def known(self, i: int, values: pa.Array) -> list[Part]:
        column = self.plan.schema.columns[i]
        return [tokens(field_of(column), column, values)]

    def unknown(self, i: int) -> list[Part]:
        column = self.plan.schema.columns[i]
        return ["null" if column.nullable else field_of(column).zero]

    def _text(self, head: str, parts: Sequence[Part]) -> pa.Array:
        return joined([head, *parts, "}"] if head else parts, self.rows.count)

    def _object(self, side: str, columns: Sequence[int]) -> list[Part]:
        parts: list[Part] = []
        for i in columns:
            opening = "," if parts else "{"
            name = string(self.plan.schema.columns[i].name)
            parts += [f"{opening}{name}:", *self.member(side, i)]
        return [*parts, "}"] if parts else ["{}"]

    def _envelope(self, side: str) -> list[Part]:
        now, columns = self.rows.now_ns, self.plan.columns
        return [
            '{"before":',
            *self._before(side),
            ',"after":',
            *(["null"] if side == "b" else self._object("a", columns)),
            ',"source":',
            *self._source(),
            ',"transaction":',
            *self.rows.transaction(""),
            ',"op":"',
            "d" if side == "b" else self.rows.column("op"),
            f'","ts_ms":{now // 1_000_000},"ts_us":{now // 1_000},"ts_ns":{now}}}',
        ]

    def _before(self, side: str) -> list[Part]:
        there = self.shows_before(side)
        if there is None:
            return ["null"]
        image = self._object("b", self.plan.columns)
        if isinstance(there, bool):
            return image
        return [pc.if_else(there, joined(image, self.rows.count), "null")]

    def _source(self) -> list[Part]:
        rows, source = self.rows, self.source
        micros = rows.column("commit_us")
        texts = micros.cast(pa.string())
        millis = pc.divide(micros, 1_000).cast(pa.string())
        schema = "" if source.schema is None else f'"schema":{string(source.schema)},'
        first = {"version": source.version, "connector": source.connector, "name": source.name}
        return [
            json.dumps(first, ensure_ascii=False, separators=(",", ":"))[:-1],
            ',"ts_ms":',
            millis,
            f',"snapshot":"{source.snapshot}","db":{string(source.database)}',
            ',"sequence":"[null,\\"',
            rows.column("seq").cast(pa.string()),
            '\\"]","ts_us":',
            texts,
            ',"ts_ns":',
            texts,
            f'000,{schema}"table":{string(source.table)},"txId":',
            *(["null"] if rows.scan else [rows.column("xid").cast(pa.string())]),
            "}",
        ]


def with_tombstones(messages: pa.RecordBatch) -> pa.RecordBatch:
    """Adds after each delete a message with its key and no value, so that compaction of the topic
    removes the key."""
    deletes = pc.equal(messages.column("op"), "d").to_numpy(zero_copy_only=False)
    if not deletes.any():
        return messages
    times = np.where(deletes, 2, 1)
    doubled = messages.take(pa.array(np.repeat(np.arange(len(deletes)), times)))
    tombstone = np.zeros(len(doubled), dtype=bool)
    tombstone[np.cumsum(times)[deletes] - 1] = True
    place = doubled.schema.get_field_index("value")
    values = pc.if_else(pa.array(tombstone), None, doubled.column("value"))
    return doubled.set_column(place, doubled.schema.field(place), values)

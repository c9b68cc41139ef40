"""Keys and values in Debezium's envelope, as Kafka Connect's ``JsonConverter`` writes them.

Their members come in Debezium's order and without spaces.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed import __version__
from changefeed.core.schema import BeforeImage
from changefeed.encoding.debezium.fields import field_of
from changefeed.encoding.debezium.schemas import key_schema, value_schema, with_schema
from changefeed.encoding.debezium.tokens import tokens
from changefeed.encoding.images import Rows
from changefeed.encoding.json_tokens import Part, joined, string
from changefeed.encoding.plan import MessagePlan


class DebeziumMessages:
    """The messages of a stretch of log rows; every column becomes tokens once."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._plan = rows.plan
        self._made: dict[str, pa.Array] = {}

    def keys(self) -> pa.Array:
        """The message keys: objects."""
        head = with_schema(key_schema(self._plan)) if self._plan.schemas_enabled else ""
        return self._rows.choose(lambda side: self._text(head, self._key(side)))

    def values(self) -> pa.Array:
        """The message values."""
        head = with_schema(value_schema(self._plan)) if self._plan.schemas_enabled else ""
        return self._rows.choose(lambda side: self._text(head, self._envelope(side)))

    def _text(self, head: str, parts: Sequence[Part]) -> pa.Array:
        return joined([head, *parts, "}"] if head else parts, self._rows.count)

    def _key(self, side: str) -> list[Part]:
        return _object([(i, self._token(side, i)) for i in self._plan.message_key], self._plan)

    def _envelope(self, side: str) -> list[Part]:
        now = self._rows.now_ns
        return [
            '{"before":',
            *self._before(side),
            ',"after":',
            *(["null"] if side == "b" else self._after()),
            ',"source":',
            *self._source(),
            ',"transaction":null,"op":"',
            "d" if side == "b" else self._rows.column("op"),
            f'","ts_ms":{now // 1_000_000},"ts_us":{now // 1_000},"ts_ns":{now}}}',
        ]

    # -- the row ----------------------------------------------------------------------------

    def _after(self) -> list[Part]:
        return _object([(i, self._token("a", i)) for i in self._plan.columns], self._plan)

    def _before(self, side: str) -> list[Part]:
        """The row before, where the source sent the whole of it. Of a delete the key is always
        there; what is not known of the others is null, or zero where the column is NOT NULL."""
        rows, plan = self._rows, self._plan
        if side == "b":
            return _object([(i, self._before_token(i)) for i in plan.columns], plan)
        if plan.schema.before_image is not BeforeImage.FULL or not rows.known:
            return ["null"]
        if not pc.any(rows.had_before).as_py():
            return ["null"]
        image = _object([(i, self._before_token(i)) for i in plan.columns], plan)
        return [pc.if_else(rows.had_before, joined(image, rows.count), "null")]

    def _before_token(self, i: int) -> Part:
        if i in self._rows.known:
            return self._token("b", i)
        column = self._plan.schema.columns[i]
        return "null" if column.nullable else field_of(column).zero

    def _token(self, side: str, i: int) -> pa.Array:
        name = f"{side}{i}"
        if name not in self._made:
            column = self._plan.schema.columns[i]
            self._made[name] = tokens(field_of(column), column, self._rows.column(name))
        return self._made[name]

    # -- where it comes from ------------------------------------------------------------------

    def _source(self) -> list[Part]:
        plan, rows = self._plan, self._rows
        origin, table = plan.origin, plan.schema.table
        micros = rows.column("commit_us")
        texts = micros.cast(pa.string())
        millis = pc.divide(micros, 1_000).cast(pa.string())
        schema = "" if origin.schema_is_database else f'"schema":{string(table.schema)},'
        database = table.schema if origin.schema_is_database else origin.database
        first = {
            "version": __version__,
            "connector": origin.connector,
            "name": table.source,
        }
        return [
            json.dumps(first, ensure_ascii=False, separators=(",", ":"))[:-1],
            ',"ts_ms":',
            millis,
            f',"snapshot":"{str(rows.scan).lower()}","db":{string(database)}',
            ',"sequence":"[null,\\"',
            rows.column("seq").cast(pa.string()),
            '\\"]","ts_us":',
            texts,
            ',"ts_ns":',
            texts,
            f'000,{schema}"table":{string(table.name)},"txId":',
            *(["null"] if rows.scan else [rows.column("xid").cast(pa.string())]),
            "}",
        ]


def _object(members: Sequence[tuple[int, Part]], plan: MessagePlan) -> list[Part]:
    parts: list[Part] = []
    for i, token in members:
        opening = "," if parts else "{"
        parts += [f"{opening}{string(plan.schema.columns[i].name)}:", token]
    return [*parts, "}"] if parts else ["{}"]


def with_tombstones(messages: pa.RecordBatch) -> pa.RecordBatch:
    """After each delete a message of its key without a value, so that compaction of the topic
    drops the key."""
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

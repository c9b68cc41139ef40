"""A message as EXPLAIN shows it: what the encoder makes of a made-up row."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from changefeed.core.formats import TRAITS
from changefeed.core.schema import Column
from changefeed.core.shapes import Deletes, Envelope
from changefeed.core.types import Form, Kind
from changefeed.encoding.plan import MessagePlan

if TYPE_CHECKING:
    import pyarrow as pa

    from changefeed.encoding.registry import RegistrySchema

#: When the example's change was committed and encoded, in nanoseconds.
NOW = 1536242855577149065
_XID = 571

_BITS = re.compile(r"bit(?: varying)?\((\d+)\)\Z")
_CHOICE = re.compile(r"(?:enum|set)\('((?:[^']|'')*)'", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Example:
    """A message.

    Attributes:
        key, value: byte for byte, None where it has none; a row of Parquet is a dict of columns.
        read: both as text: JSON of what a reader gets, of what is not JSON.
        typed: the bytes are no text.
    """

    key: bytes | None
    value: bytes | Mapping[str, Any] | None
    read: tuple[str, str]
    typed: bool

    def lines(self) -> Iterator[str]:
        """For people: the message as text, and under it its bytes if they are no text."""
        key, value = self.read
        yield f"{key} -> {value or 'no value'}" if key else value
        if self.typed:
            value = self.value.hex() if isinstance(self.value, bytes) else "no value"
            yield f"in bytes, without a registry's id: {(self.key or b'').hex()} -> {value}"


def example(plan: MessagePlan) -> Example:
    """The message of an update, or of a delete where only these are sent.

    The bytes of Avro and protobuf are those behind the id that a schema registry gives a schema.
    """
    # Arrow, which the encoding needs, is not loaded for a statement that has no use of it.
    from changefeed.encoding.encode import encode_messages
    from changefeed.encoding.transactions import TransactionOrders

    line = TRAITS[plan.format].line
    # The row need not be one of those that are wanted.
    plan = replace(plan, key_from=(), key_to=(), within=(), registered=None)
    rows, orders = made_up(plan), TransactionOrders()
    orders.add(plan.schema.table, rows)
    orders.number()
    made = encode_messages(rows, plan, now_ns=NOW, scan=line, orders=orders)
    # What follows a delete in Debezium's envelope is left out.
    message = made.slice(0, 1).to_pylist()[0]
    key = None if line or TRAITS[plan.format].row_alone else message["key"]
    value = message["value"]
    return Example(key, value, _read(plan, key, value), TRAITS[plan.format].schemas)


def made_up(plan: MessagePlan) -> pa.Table:
    """The change that becomes the example, as a row of the log.

    In the envelope that shows what changed, every column but those of the key was NULL before.
    """
    import pyarrow as pa

    schema = plan.schema
    gone = plan.deletes is Deletes.ONLY
    row: dict[str, Any] = {
        "op": "d" if gone else "c" if plan.logical else "u",
        "wall": NOW,
        "logical": 0,
        "seq": 1,
        "ord": 0,
        "xid": _XID,
        "commit_us": NOW // 1_000,
        "last": True,
    }
    for i, column in enumerate(schema.columns):
        if not gone:
            row[f"a{i}"] = _value(column)
    for i in schema.before_ordinals:
        if i in schema.key or plan.envelope is not Envelope.CHANGED:
            row[f"b{i}"] = _value(schema.columns[i])
    return pa.Table.from_pylist([row], schema=schema.log_schema())


def _value(column: Column) -> Any:
    """A value that the column could have."""
    if column.form is Form.NATIVE:
        return True if column.physical == "bool" else 1
    kind = column.kind
    if precision := column.logical.precision:
        scale = column.logical.scale
        whole = "1" if precision > scale else "0"
        return whole + ("." + "5".ljust(scale, "0") if scale > 0 else "0" * -scale)
    written = column.type_name.strip()
    if kind is Kind.INTERVAL and written.lower().startswith("time"):  # MySQL's
        return "01:02:03"
    if kind is Kind.OTHER and (bits := _BITS.match(written.lower())):
        return "1" * int(bits[1])
    if kind is Kind.TEXT and (choice := _CHOICE.match(written)):
        return choice[1].replace("''", "'")
    return kind.sample


def _read(plan: MessagePlan, key: bytes | None, value: Any) -> tuple[str, str]:
    """Key and value as text: JSON of what a reader of typed bytes gets."""
    from changefeed.encoding.formats import FORMATS

    if plan.content:
        return _text(key), "the content of the message"
    schemas = FORMATS[plan.format].schemas(plan.envelope)
    if schemas is None:
        return _text(key), _text(value)
    return _decoded(schemas.key(plan), key), _decoded(schemas.value(plan), value)


def _text(part: bytes | Mapping[str, Any] | None) -> str:
    return part.decode() if isinstance(part, bytes) else "" if part is None else _json(part)


def _decoded(schema: RegistrySchema | None, data: bytes | None) -> str:
    from changefeed.encoding.avro import reading as avro
    from changefeed.encoding.protobuf import reading as protobuf

    if schema is None or data is None:
        return ""
    if schema.kind == "AVRO":
        return _json(avro.reader_of(schema.text)(data))
    return _json(_present(protobuf.reader_of(schema.text)(data)))


def _present(part: Any) -> Any:
    """Without members that the message does not have."""
    if not isinstance(part, dict):
        return part
    return {name: _present(member) for name, member in part.items() if member is not None}


def _json(members: Any) -> str:
    return json.dumps(members, ensure_ascii=False, default=_scalar)


def _scalar(value: Any) -> str:
    return f"\\x{value.hex()}" if isinstance(value, bytes) else str(value)

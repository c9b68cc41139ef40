"""What an Avro message must say, in plain Python: the oracle of the tests of binary formats.

Takes rows of the log (dicts of ``a0``, ``b0``, ..) and shares nothing with the code under test
but the plan.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from changefeed.core.schema import Column
from changefeed.core.shapes import Envelope
from changefeed.core.types import LogicalType
from changefeed.encoding.plan import MessagePlan
from tests.helpers.message_model import Row, shown_columns

#: Type name -> (physical, form, logical), as the PostgreSQL source has them.
KINDS: dict[str, str] = {
    "boolean": "bool",
    "smallint": "int16",
    "integer": "int32",
    "bigint": "int64",
    "real": "float32",
    "double precision": "float64",
    "numeric": "decimal",
    "numeric(20,4)": "decimal(20,4)",
    "numeric(50,2)": "decimal(50,2)",
    "numeric(3,-2)": "decimal(3,-2)",
    "numeric(2,5)": "decimal(2,5)",
    "text": "text",
    "bytea": "bytes",
    "uuid": "uuid",
    "jsonb": "json",
    "date": "date",
    "time without time zone": "time",
    "time with time zone": "timetz",
    "timestamp without time zone": "timestamp",
    "timestamp with time zone": "timestamptz",
    "interval": "interval",
    "inet": "other",
    "integer[]": "array<int32>",
    "numeric[]": "array<decimal>",
    "double precision[]": "array<float64>",
    "boolean[]": "array<bool>",
    "text[]": "array<text>",
    "date[]": "array<date>",
    "bytea[]": "array<bytes>",
    "jsonb[]": "array<json>",
}

#: What a format makes of a value of the log, by its logical type.
Reading = Callable[[str, Any], Any]

_EPOCH = dt.datetime(1970, 1, 1)
_INFINITE = {
    "date": {"infinity": 2**31 - 1, "-infinity": -(2**31)},
    "timestamp": {"infinity": 9223372036825200000, "-infinity": -9223372036832400000},
}


def column(name: str, kind: str, nullable: bool = True) -> Column:
    """A column of one of :data:`KINDS`."""
    return Column(name, kind, LogicalType.parse(KINDS[kind]), nullable)


def typed(logical: str, value: Any) -> Any:
    """A value of the log as Avro's plain types hold it (moments as numbers)."""
    if value is None:
        return None
    if logical.startswith("array<"):
        element = logical[6:-1]
        if element == "json":
            return value
        items = json.loads(value, parse_float=str, parse_int=str)
        return [None if i is None else _element(element, i) for i in items]
    return _scalar(logical, value)


def _element(logical: str, item: Any) -> Any:
    if logical == "bool":
        return item
    quoted = logical.startswith(("decimal", "float")) and item in ("NaN", "Infinity", "-Infinity")
    return _scalar(logical, f'"{item}"' if quoted else item)


def _scalar(logical: str, value: Any) -> Any:
    if logical == "bool":
        return value
    if logical.startswith("int") and logical != "interval":
        return int(value)
    if logical.startswith("float"):
        return float(value.strip('"'))
    if logical.startswith("decimal"):
        digits = _digits(logical)
        return value.strip('"') if digits is None or '"' in value else Decimal(value)
    if logical == "bytes":
        return bytes.fromhex(value[2:])
    if logical == "date":
        return _INFINITE["date"].get(value, _days(value))
    if logical in ("timestamp", "timestamptz"):
        return moment(value)
    if logical == "time":
        return _time(value)
    return value


def moment(text: str) -> Any:
    """Microseconds since 1970 of a timestamp of the log."""
    return _INFINITE["timestamp"].get(text, _micros(text))


def _digits(logical: str) -> tuple[int, int] | None:
    if "(" not in logical:
        return None
    precision, scale = map(int, logical[8:-1].split(","))
    precision, scale = max(precision - min(scale, 0), scale), max(scale, 0)
    return None if precision > 38 else (precision, scale)


def _days(text: str) -> int | None:
    if text.endswith("infinity"):
        return None
    body, _, era = text.partition(" ")
    year, month, day = body.split("-")
    wanted = 1 - int(year) if era == "BC" else int(year)
    # A cycle of the calendar has 400 years and 146,097 days: into the years Python has.
    cycles = (wanted - 2000) // 400
    return (dt.date(wanted - 400 * cycles, int(month), int(day)) - _EPOCH.date()).days + (
        146_097 * cycles
    )


def _micros(text: str) -> int | None:
    if text.endswith("infinity"):
        return None
    date, _, rest = text.partition("T")
    time, _, era = rest.partition(" ")
    days = _days(f"{date} {era}".strip())
    clock = time.removesuffix("Z").removesuffix("+00")
    return (days or 0) * 86_400_000_000 + _time(clock)


def _time(text: str) -> int:
    clock, _, fraction = text.partition(".")
    hours, minutes, seconds = map(int, clock.split(":"))
    return (hours * 3600 + minutes * 60 + seconds) * 1_000_000 + int(fraction.ljust(6, "0") or 0)


def _columns(
    plan: MessagePlan, row: Row, side: str, columns: list[int], read: Reading
) -> dict[str, Any]:
    shapes = plan.schema.columns
    return {shapes[i].name: read(str(shapes[i].logical), row.get(f"{side}{i}")) for i in columns}


def key_of(plan: MessagePlan, row: Row, read: Reading = typed) -> dict[str, Any]:
    """The message key."""
    names = [c.name for c in plan.schema.columns]
    columns = list(plan.schema.key) if plan.key_column is None else [names.index(plan.key_column)]
    return _columns(plan, row, "b" if row["op"] == "d" else "a", columns, read)


def value_of(plan: MessagePlan, row: Row, now: int, read: Reading = typed) -> dict[str, Any] | None:
    """The message value."""
    delete = row["op"] == "d"
    columns = shown_columns(plan)
    stamp = f"{row['wall']}.{row['logical']:010d}"
    stamps = {"updated": plan.updated, "mvcc_timestamp": plan.mvcc_timestamp}
    meta: dict[str, Any] = {name: stamp for name, shown in stamps.items() if shown}
    if plan.topic_in_value:
        meta["topic"] = plan.topic
    if plan.envelope is Envelope.KEY_ONLY or (plan.envelope is Envelope.ROW and delete):
        return None
    if plan.envelope is Envelope.ROW:
        return ({"__crdb__": meta} if meta else {}) | _columns(plan, row, "a", columns, read)
    if plan.envelope is Envelope.BARE:
        record = _columns(plan, row, "b" if delete else "a", columns, read)
        for i in columns:
            if delete and i not in plan.schema.key:
                record[plan.schema.columns[i].name] = None
        return {"record": record, **meta}
    after = None if delete else _columns(plan, row, "a", columns, read)
    out: dict[str, Any] = {"after": after}
    if plan.diff:
        known = [i for i in columns if i in plan.schema.before_ordinals]
        there = delete or any(row.get(f"b{i}") is not None for i in plan.schema.key)
        out["before"] = _columns(plan, row, "b", known, read) if there else None
    if plan.envelope is Envelope.ENRICHED:
        meta = {k: v for k, v in meta.items() if k == "topic"}
        out |= {"op": {"d": "d", "u": "u"}.get(row["op"], "c"), "ts_ns": now}
    if plan.key_in_value:
        out["key"] = key_of(plan, row, read)
    return out | meta

"""The examples of ``docs/messages.md``: what the encoder writes for the options above them.

The page's prose is written by hand. A block that begins with ``WITH ...`` (or ``no options``) is
followed by the messages of one table's changes under these options; the table of marks has
a row for each envelope.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from changefeed.catalog.model import TableProgress
from changefeed.core.clock import ManualClock, Timestamp
from changefeed.core.schema import BeforeImage, TableName, TableSchema
from changefeed.core.shapes import Envelope
from changefeed.encoding.compile import origin_of, source_members, table_messages
from changefeed.encoding.encode import encode_messages
from changefeed.encoding.plan import MessagePlan, control_payload
from changefeed.encoding.transactions import TransactionOrders, boundary_messages
from changefeed.options import parse_options
from grammar.nodes import CreateChangefeed
from grammar.parser import parse
from tests.helpers.message_model import Row, change, column, log_table

#: 2026-12-24 09:12 UTC.
_COMMITTED = 1_798_103_520_000_000_000
_SECOND = 1_000_000_000
#: Between the commit of a change and its encoding.
_DELAY = 7_000_000

SCHEMA = TableSchema(
    TableName("shop", "public", "orders"),
    (
        column("id", "int8", nullable=False),
        column("status", "text"),
        column("total", "numeric"),
        column("note", "text"),
    ),
    (0,),
    BeforeImage.FULL,
)


def _row(op: str, second: int, after: Sequence[object] | None, before: Sequence[object]) -> Row:
    wall = _COMMITTED + second * _SECOND
    old = {str(i): value for i, value in enumerate(before)}
    return change(op, after, old, wall=wall, commit_us=wall // 1_000, seq=second)


_NEW = (7, "new", "12.50", None)
_PAID = (7, "paid", "12.50", None)

#: What happened to the row, and the row of the change log that says so.
CHANGES: tuple[tuple[str, Row], ...] = (
    ("scan", _row("r", 0, _NEW, ())),
    ("insert", _row("c", 1, _NEW, ())),
    ("update", _row("u", 2, _PAID, _NEW)),
    ("delete", _row("d", 3, None, _PAID)),
)

_EXAMPLE = re.compile(r"^```\n(no options|WITH .*)\n(?:.*\n)*?```$", re.MULTILINE)
_BOUNDARIES = re.compile(r"^```\nBEGIN and END\n(?:.*\n)*?```$", re.MULTILINE)
_MARKS = re.compile(
    r"(?<=^\| envelope \| resolved \| TRUNCATE \|\n\|---\|---\|---\|\n)(?:\|.*\n)+", re.M
)


def filled(page: str) -> str:
    """The page with the encoder's output in the place of its examples."""
    page = _EXAMPLE.sub(lambda found: f"```\n{found[1]}\n{_messages(found[1])}\n```", page)
    page = _BOUNDARIES.sub(lambda _: f"```\nBEGIN and END\n{_boundaries()}\n```", page)
    return _MARKS.sub(lambda _: _marks(), page)


def _messages(options: str) -> str:
    shaped = _plan("" if options == "no options" else options)
    # The longest messages stand for the others.
    long = shaped.source is not None or shaped.schemas_enabled
    changes = CHANGES[2:3] if long else CHANGES
    lines = []
    for name, row in changes:
        log = log_table(SCHEMA, [row])
        scan, now = row["op"] == "r", row["wall"] + _DELAY
        orders = TransactionOrders()
        orders.add(SCHEMA.table, log)
        orders.number()
        made = encode_messages(log, shaped, now_ns=now, scan=scan, orders=orders)
        for message in made.to_pylist():
            value = "(no value)" if message["value"] is None else message["value"].decode()
            lines.append(f"{name:<6}  {message['key'].decode()}  {value}")
    return "\n".join(lines)


def _boundaries() -> str:
    orders = TransactionOrders()
    orders.add(SCHEMA.table, log_table(SCHEMA, [row for name, row in CHANGES if name == "update"]))
    orders.number()
    made = boundary_messages(orders.transactions, debezium=False, schemas_enabled=False)
    return "\n".join(f"{m['key'].decode()}  {m['value'].decode()}" for m in made.to_pylist())


def _plan(options: str) -> MessagePlan:
    """How a feed with these options writes a row of the table."""
    statement = f"CREATE CHANGEFEED FOR orders INTO 'kafka://localhost:9092' {options}"
    node = parse(statement)
    assert isinstance(node, CreateChangefeed)
    parsed = parse_options(
        node.options, scheme="kafka", text=statement, clock=ManualClock(_COMMITTED)
    )
    progress = TableProgress(table=SCHEMA.table, topic="orders")
    members, origin = source_members("shop", 17, "kafka"), origin_of("postgresql://db/shop", "shop")
    return table_messages(parsed, progress, SCHEMA, members, origin=origin)


def _marks() -> str:
    at = Timestamp(_COMMITTED + 10 * _SECOND, 0)
    lines = []
    for envelope in Envelope:
        resolved = control_payload(envelope, "resolved", at).decode()
        truncate = control_payload(envelope, "truncate", at, SCHEMA.table).decode()
        lines.append(f"| `{envelope.value}` | `{resolved}` | `{truncate}` |\n")
    return "".join(lines)

"""Dummy work after the start: a fresh JVM runs the first batches ten times slower."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pyarrow as pa

from changefeed.schema import Column, Form, TableName, TableSchema
from changefeed.spark.encode import encode_small
from changefeed.spark.plan import MessagePlan

if TYPE_CHECKING:
    from changefeed.spark.session import SparkEngine

#: After some 20 batches the JIT has compiled what matters.
BATCHES = 20

_SCHEMA = TableSchema(
    TableName("", "", "warm_up"),
    (
        Column("id", "int8", "int64", Form.NATIVE, "int64", False),
        Column("text", "text", "string", Form.TEXT, "text"),
        Column("amount", "numeric", "string", Form.RAW, "decimal"),
    ),
    (0,),
)


def warm_up(engine: SparkEngine) -> None:
    """Send small batches through, then start Python workers for the first scan.

    Raises:
        ChangefeedError: what Spark raised.
    """
    rows = _rows()
    plans = (MessagePlan(_SCHEMA, "warm_up"), MessagePlan(_SCHEMA, "warm_up", updated=True))
    for n in range(BATCHES):
        encode_small(engine, rows, plans[n % 2], frozenset({"a1"}) if n % 4 else frozenset())
    with engine.use() as session:
        session.range(engine.cores, numPartitions=engine.cores).mapInArrow(
            _same, "id long"
        ).collect()


def _rows() -> pa.Table:
    fixed: dict[str, object] = {
        "op": "u", "wall": 1, "logical": 0, "seq": 1, "ord": 0, "xid": 1, "commit_us": 1,
        "last": True, "a1": "text", "a2": "1.50",
    }  # fmt: skip
    rows = [{**fixed, "a0": n} for n in range(50)]
    return pa.Table.from_pylist(rows, schema=_SCHEMA.log_schema())


def _same(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    yield from batches

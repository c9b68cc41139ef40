"""Bulk rate of the Elasticsearch sink beside helpers.parallel_bulk fed from memory.

    python -m benchmarks.elasticsearch [--rows 200000] [--size 200] [--rounds 3] [--url HOST:PORT]

Both write the same documents, with the same versions, request size and requests in flight, into
fresh indices of one mapping on one server (started for the run unless ``--url`` names one), in
turn, the order changing from round to round. ``parallel_bulk`` is the limit: it gets finished
Python objects and does nothing but send them. Documents are counted afterwards, so a figure
without delivery cannot come out. CPU is this process's, the client side alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from elasticsearch import Elasticsearch as Client
from elasticsearch import helpers

from changefeed.core.arrow import MESSAGE_SCHEMA
from changefeed.core.clock import Timestamp
from changefeed.core.schema import Column, TableName, TableSchema
from changefeed.core.types import LogicalType
from sinks.base import Batch, Epoch, SinkContext, Target
from sinks.elasticsearch.sink import ElasticsearchSink

START = 1_700_000_000_000_000_000
BATCH_ROWS = 50_000
JAVA = "-Xms1g -Xmx1g -XX:+UseSerialGC"
BULK_SIZE, BULK_BYTES, IN_FLIGHT = 5_000, 8_000_000, 4
#: Seconds for one request; the client alone would give up after ten, on a busy machine too early.
TIMEOUT = 60

SCHEMA = TableSchema(
    TableName("shop", "public", "orders"),
    (
        Column("id", "bigint", LogicalType.parse("int64"), nullable=False, column_id=1),
        Column("customer", "text", LogicalType.parse("text"), column_id=2),
        Column("total", "numeric(12,2)", LogicalType.parse("decimal(12,2)"), column_id=3),
        Column("at", "timestamptz", LogicalType.parse("timestamptz"), column_id=4),
        Column("note", "bytea", LogicalType.parse("bytes"), column_id=5),
    ),
    (0,),
    version=1,
)


@dataclass(frozen=True)
class Figures:
    """One run."""

    seconds: float
    cpu: float


def messages(count: int, size: int) -> list[pa.Table]:
    """Finished messages of the ``row`` envelope, documents of about ``size`` bytes."""
    filler = "x" * max(1, size - 110)
    found = []
    for start in range(0, count, BATCH_ROWS):
        ids = range(start, min(start + BATCH_ROWS, count))
        values = [
            f'{{"id": {i}, "customer": "customer {i % 1000}", "total": {i % 9999}.50,'
            f' "at": "2024-03-31T01:02:03.{i % 1000000:06d}Z", "note": "{filler}"}}'
            for i in ids
        ]
        columns = [
            pa.array([f"[{i}]" for i in ids]).cast(pa.binary()),
            pa.array(values).cast(pa.binary()),
            pa.array(START + np.arange(start, ids.stop)),
            pa.array(np.zeros(len(ids), np.int32)),
            pa.array(np.arange(start, ids.stop)),
            pa.array(["c"] * len(ids)),
            pa.nulls(len(ids), pa.string()),
        ]
        found.append(pa.table(columns, schema=MESSAGE_SCHEMA))
    return found


def actions(tables: list[pa.Table], index: str) -> list[dict[str, Any]]:
    """The same as parallel_bulk wants them."""
    return [
        {
            "_op_type": "index",
            "_index": index,
            "_id": row["key"][1:-1].decode(),
            "version": row["wall"],
            "version_type": "external_gte",
            "_source": json.loads(row["value"]),
        }
        for table in tables
        for row in table.select(["key", "value", "wall"]).to_pylist()
    ]


def ours(url: str, tables: list[pa.Table], index: str) -> Figures:
    """Through the sink, an epoch a batch as the engine does it."""
    sink = ElasticsearchSink(
        f"elasticsearch://{url}/?bulk_size={BULK_SIZE}&bulk_bytes={BULK_BYTES}"
        f"&in_flight={IN_FLIGHT}"
    )
    target = Target(SCHEMA.table, index)
    sink.open(SinkContext("bench", 1, (target,)))
    began = _clocks()
    for number, rows in enumerate(tables, start=1):
        epoch = Epoch(number, Timestamp(START))
        sink.commit(epoch, [sink.write(Batch("bench", epoch, 0, target, SCHEMA, rows))])
    figures = _since(began)
    sink.close()
    return figures


def theirs(url: str, tables: list[pa.Table], index: str) -> Figures:
    """Through ``helpers.parallel_bulk``, from a list in memory."""
    todo = actions(tables, index)
    with Client(f"http://{url}", connections_per_node=IN_FLIGHT, request_timeout=TIMEOUT) as client:
        began = _clocks()
        done = helpers.parallel_bulk(
            client,
            todo,
            thread_count=IN_FLIGHT,
            chunk_size=BULK_SIZE,
            max_chunk_bytes=BULK_BYTES,
        )
        deque(done, maxlen=0)
        return _since(began)


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _since(began: tuple[float, float]) -> Figures:
    return Figures(time.perf_counter() - began[0], time.process_time() - began[1])


WAYS: dict[str, Callable[[str, list[pa.Table], str], Figures]] = {
    "changefeed": ours,
    "parallel_bulk": theirs,
}


def server(stack: ExitStack, url: str) -> str:
    """The server to use; one for this run when none is named."""
    if url:
        return url
    from tests.services.cache import server_folder
    from tests.services.elasticsearch import Elasticsearch

    folder = stack.enter_context(server_folder("elasticsearch"))
    own = Elasticsearch(folder, {"http.max_content_length": "100mb"}, JAVA).start()
    stack.callback(own.stop)
    return own.address


def rounds(url: str, tables: list[pa.Table], count: int) -> Iterator[tuple[str, Figures]]:
    """Every way once a round, after one round that warms the server up."""
    rows = sum(table.num_rows for table in tables)
    mappings = _mapping(url, tables[0].slice(0, 1))
    with Client(f"http://{url}", request_timeout=TIMEOUT) as client:
        for number in range(count + 1):
            ways = list(WAYS.items())
            for name, way in ways if number % 2 else reversed(ways):
                index = f"bench-{name}-{number}"
                client.indices.delete(index=index, ignore_unavailable=True)
                client.indices.create(index=index, mappings=mappings)
                figures = way(url, tables, index)
                client.indices.refresh(index=index)
                found = client.count(index=index)["count"]
                if found != rows:
                    raise SystemExit(f"{name}: {found} documents instead of {rows}")
                client.indices.delete(index=index)
                if number:
                    yield name, figures


def _mapping(url: str, one: pa.Table) -> dict[str, Any]:
    """The mapping that the sink makes, for both."""
    ours(url, [one], "bench-mapping")
    with Client(f"http://{url}", request_timeout=TIMEOUT) as client:
        found = client.indices.get_mapping(index="bench-mapping")["bench-mapping"]["mappings"]
        client.indices.delete(index="bench-mapping")
    found.pop("_meta", None)
    return dict(found)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--size", type=int, default=200, help="bytes of a document")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--url", default="", help="host:port of a server; else one is started")
    words = parser.parse_args()
    tables = messages(words.rows, words.size)
    runs: dict[str, list[Figures]] = {name: [] for name in WAYS}
    with ExitStack() as stack:
        for name, figures in rounds(server(stack, words.url), tables, words.rounds):
            runs[name].append(figures)
            print(
                f"{name:14} {words.rows / figures.seconds:10,.0f} rows/s"
                f" {figures.cpu / words.rows * 1e6:8.2f} us CPU/row"
            )
    rate = {n: words.rows / statistics.median(f.seconds for f in fs) for n, fs in runs.items()}
    cpu = {n: statistics.median(f.cpu for f in fs) for n, fs in runs.items()}
    print(
        f"median: {rate['changefeed']:,.0f} against {rate['parallel_bulk']:,.0f} rows/s,"
        f" {rate['changefeed'] / rate['parallel_bulk']:.2f} x the rate,"
        f" {cpu['changefeed'] / cpu['parallel_bulk']:.2f} x the client's CPU"
    )


if __name__ == "__main__":
    main()

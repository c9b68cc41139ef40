"""How an index differs from its table: documents by id."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import pyarrow as pa

from changefeed.core.schema import TableSchema
from sinks.base import Difference, Target
from sinks.copies import CopyComparison, Row, exact, row_of
from sinks.elasticsearch import body
from sinks.elasticsearch.client import Cluster
from sinks.elasticsearch.marks import show
from sinks.elasticsearch.sweep import documents


def compare(
    cluster: Cluster,
    copy: CopyComparison,
    target: Target,
    schema: TableSchema,
    messages: Iterable[pa.Table],
    *,
    envelope: str,
    least: int,
    limit: int,
) -> list[Difference]:
    """Rows that source and index do not have alike.

    Args:
        copy: empty.
        messages: of the rows at the source.
        least: documents of lower versions are not the feed's.
    """
    for table in messages:
        for batch in table.to_batches():
            copy.expect(_expected(batch, schema, envelope))
    show(cluster, [target.topic])
    for hits in documents(cluster, target, source=True):
        copy.hold(
            (hit["_id"], row_of(envelope, hit["_source"]))
            for hit in hits
            if hit["_version"] >= least
        )
    return copy.differences(limit)


def _expected(
    batch: pa.RecordBatch, schema: TableSchema, envelope: str
) -> Iterator[tuple[str, Row]]:
    ids = body.id_tokens(batch.column("key"), body.plain_key(schema)).to_pylist()
    for token, value in zip(ids, batch.column("value").to_pylist(), strict=True):
        row = row_of(envelope, exact(value))
        if row is None:
            raise AssertionError("a row of the source is no delete")
        yield json.loads(token), row

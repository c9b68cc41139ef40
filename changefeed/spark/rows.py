"""Rows of the log as a Spark DataFrame, and the DataFrame of their messages."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from changefeed.spark.envelope import expressions
from changefeed.spark.plan import MessagePlan
from changefeed.spark.segment import Segment
from changefeed.spark.sides import NOW

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Metadata that messages and filters need.
META = ("op", "wall", "logical", "seq", "last")


def messages(
    frame: DataFrame,
    plan: MessagePlan,
    clean: frozenset[str],
    *,
    scan: bool = False,
    now_ns: int | None = None,
    also: Sequence[str] = (),
) -> DataFrame:
    """The messages of the rows of ``frame``: lazily, in the JVM.

    The columns are those of :data:`changefeed.events.MESSAGE_SCHEMA`, then ``also``.
    """
    made = expressions(plan, clean, scan=scan)
    frame = frame.withColumn(NOW, F.lit(now_ns or time.time_ns()))
    if made.where is not None:
        frame = frame.where(made.where)
    return frame.select(
        made.key.alias("key"),
        made.value.alias("value"),
        *(F.col(name) for name in ("wall", "logical", "seq", "op")),
        made.headers.alias("headers"),
        *also,
    )


def from_segments(
    session: SparkSession, segments: Sequence[Segment], plan: MessagePlan
) -> DataFrame:
    """The columns a plan needs of rows in files of the log.

    The ranges are checked row by row: a file may hold rows of several deliveries. Files must
    be compressed with zstd or snappy, or not at all: Spark's reader of Parquet's LZ4_RAW (what
    pyarrow writes for ``lz4``) fails now and then with "all input must be consumed".
    """
    log = plan.schema.log_schema()
    wanted = pa.schema([log.field(name) for name in (*META, *plan.inputs)])
    reader = session.read.schema(from_arrow_schema(wanted))
    frames = [
        reader.parquet(str(segment.path)).where(
            F.col("seq").between(segment.first_seq, segment.last_seq)
        )
        for segment in segments
    ]
    result = frames[0]
    for frame in frames[1:]:
        result = result.unionAll(frame)
    return result


@contextmanager
def from_table(
    session: SparkSession, table: pa.Table, plan: MessagePlan, scratch: Path, parts: int
) -> Iterator[DataFrame]:
    """The same of rows in memory, which go through temporary files, one for each core.

    Spark has a reader of Parquet in the JVM; its own way for big Arrow data is four times
    slower.
    """
    needed = table.select([*META, *plan.inputs])
    step = max(1, -(-needed.num_rows // parts))
    with TemporaryDirectory(prefix="rows-", dir=scratch) as folder:
        segments = []
        for start in range(0, needed.num_rows, step):
            path = Path(folder, f"{start}.parquet")
            pq.write_table(
                needed.slice(start, step),
                path,
                compression="none",
                use_dictionary=False,
                write_statistics=False,
            )
            segments.append(path)
        schema = from_arrow_schema(needed.schema)
        yield session.read.schema(schema).parquet(*map(str, segments))

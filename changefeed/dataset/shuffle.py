"""How a comparison's rows are shuffled and joined, whatever their number.

A hash table of one side's rows is the fastest join, but Spark fails where the table does not fit
into a task's memory, and the size of rows is known only when they have been shuffled. So rows are
shuffled into many parts; Spark's adaptive execution puts small parts together, and joins by hash
tables if every part is small enough, else by sorting, which may use the disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from changefeed.spark.internals.sessions import another_session, core_count, with_settings
from changefeed.spark.properties import is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: A part's bytes in a task's memory are about the shuffled ones, or three times as many where they
#: are compressed; the table and what reads and writes beside it take as much again.
_SHARE_OF_TASK = 1 / 6
_SMALLEST_PART, _LARGEST_PART = 16 << 20, 256 << 20
#: What Spark keeps of a heap for itself, and the share of the rest that joins may have.
_RESERVED, _FOR_EXECUTION = 300 << 20, 0.6
#: The heap of a JVM of Spark where the properties do not say it.
_HEAP = "1g"
#: Tasks at a time of an executor for which the properties do not say it.
_EXECUTOR_CORES = 8
#: What a row is assumed to take at least.
_ROW_BYTES = 128
#: Powers of two of the units of sizes.
_UNITS = {"k": 10, "m": 20, "g": 30, "t": 40}
_MOST_PARTS = 1_000


def size_bytes(text: str) -> int:
    """Bytes of a size as Spark writes memory: ``2g``, ``512m``; a bare number is in mebibytes."""
    number, unit = text.strip().lower().removesuffix("b"), 20
    if number[-1:] in _UNITS:
        number, unit = number[:-1], _UNITS[number[-1]]
    return int(number) << unit


def part_bytes(heap: int, tasks: int) -> int:
    """The size of a shuffled part that becomes a hash table; smaller ones are put together.

    Args:
        heap: bytes of the JVM that runs tasks.
        tasks: how many it runs at the same time.
    """
    memory = max(0, heap - _RESERVED) * _FOR_EXECUTION / tasks
    return min(_LARGEST_PART, max(_SMALLEST_PART, int(memory * _SHARE_OF_TASK)))


def count_parts(rows: int, data: int, part: int, cores: int) -> int:
    """Parts to shuffle into.

    Args:
        rows: of the larger side.
        data: bytes of the larger side in memory, a guess.
        part: bytes of a part.
        cores: tasks that run at the same time.
    """
    size = max(rows * _ROW_BYTES, data)
    return max(cores, min(_MOST_PARTS, -(-size // part)))


def comparing_session(plain: SparkSession, rows: int, data: int) -> SparkSession:
    """A session of the same Spark with the settings for one comparison; see :func:`count_parts`."""
    session = another_session(plain)
    context, conf = session.sparkContext, session.conf
    cores = core_count(plain)
    if is_local(context.master or ""):
        heap, tasks = conf.get("spark.driver.memory", _HEAP), cores
    else:
        heap = conf.get("spark.executor.memory", _HEAP)
        tasks = int(conf.get("spark.executor.cores", None) or _EXECUTOR_CORES)
    part = part_bytes(size_bytes(heap or _HEAP), tasks)
    settings = {
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.shuffle.partitions": str(count_parts(rows, data, part, cores)),
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": str(part),
        "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold": str(part),
    }
    return with_settings(session, settings)

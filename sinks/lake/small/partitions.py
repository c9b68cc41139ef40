"""Partitions of a Delta table: the values of some columns stand in the log, one for each file.

Format: Delta's protocol, *Partition Value Serialization*.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sinks.lake.small.values import UnsupportedCase

#: Partitions that a round of few rows may have; more files are better written by a job.
_MOST = 100

#: Values of a file by column, as texts.
Partition = Mapping[str, str | None]


def is_partition_type(kind: pa.DataType) -> bool:
    """Whether values of a type are written here as Spark writes them."""
    same = pa.types.is_integer, pa.types.is_boolean, pa.types.is_date32, pa.types.is_string
    return any(each(kind) for each in same)


def by_partition(
    rows: pa.Table, names: Sequence[str]
) -> Iterator[tuple[Partition, npt.NDArray[np.int64], pa.Table]]:
    """Rows by the values of the named columns: the values, which rows, and these rows without the
    columns.

    Raises:
        UnsupportedCase: there are many partitions, or a text is empty, which Spark makes NULL.
    """
    if not len(rows):
        return
    if not names:
        yield {}, np.arange(len(rows)), rows
        return
    texts = [rows[name].combine_chunks().cast(pa.string()) for name in names]
    if any(pc.any(pc.equal(text, "")).as_py() for text in texts):
        raise UnsupportedCase("an empty text as the value of a partition")
    found = pa.table(texts, list(names)).append_column("at", pa.array(np.arange(len(rows))))
    groups = found.group_by(list(names)).aggregate([("at", "list")])
    if len(groups) > _MOST:
        raise UnsupportedCase("a round of many partitions")
    rest = rows.drop_columns(list(names))
    for group in groups.to_pylist():
        at = np.array(group.pop("at_list"), np.int64)
        yield group, at, rest.take(pa.array(at))


def with_partition(rows: pa.Table, values: Partition, kinds: Mapping[str, pa.DataType]) -> pa.Table:
    """The rows of a file with the columns of its partition, of these types, at their end.

    Raises:
        ValueError: a value is missing, or of another type.
    """
    for name, kind in kinds.items():
        if name not in values:
            raise ValueError("a file has no value of its partition")
        value = pa.scalar(values[name], pa.string()).cast(kind)
        rows = rows.append_column(name, pa.repeat(value, len(rows)))
    return rows

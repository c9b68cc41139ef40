"""Rows of an extract against the current dataset -> what became of each row.

Rows are matched by the hash of their key and, where two hashes are equal, by the key itself, so a
collision of hashes never joins two rows. Rows that match differ when the hashes of their other
columns differ, those of the open ones or those of the sensitive ones.

============  =========  =================================  ==================
in extract    in current  operation                          EFF_START_DATE
============  =========  =================================  ==================
yes           no         I                                  the run's date
yes           yes        U, or N when the hashes are equal  the run's date; kept
no            yes        D (full) or X (delta)              the run's date; kept
============  =========  =================================  ==================
"""

from __future__ import annotations

import datetime as dt
import functools
import operator
from typing import TYPE_CHECKING

from changefeed.core.spark_sql import quoted
from changefeed.dataset.incoming import FAULTY
from changefeed.dataset.model import (
    EFF_START_DATE,
    KEYHASH,
    OPERATION,
    Dataset,
    Extract,
    Operation,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: A delta of at most this many bytes on disk is sent to every executor instead of shuffled.
BROADCAST_BYTES = 32 << 20


def compare(
    dataset: Dataset,
    incoming: DataFrame,
    current: DataFrame | None,
    date: dt.date,
    *,
    small: bool = False,
) -> DataFrame:
    """One row for each key of either side: columns, hashes, operation, date, and :data:`.FAULTY`.

    Args:
        dataset: describes both sides.
        incoming: typed and hashed rows.
        current: rows of the current dataset; None on the first run.
        date: the run's effective date.
        small: the extract is a delta that fits into every executor.
    """
    from pyspark.sql import functions as F

    today = F.lit(date)
    if current is None:
        return _shaped(dataset, incoming, F.lit(Operation.INSERT.value), today)
    if small and dataset.extract is Extract.DELTA:
        return _compare_small(dataset, incoming, current, today)
    new, old = incoming.alias("n"), current.alias("o")
    joined = new.join(old, _same_key(dataset), "full_outer")
    supplied, known = F.col(f"n.{KEYHASH}").isNotNull(), F.col(f"o.{KEYHASH}").isNotNull()
    changed = _changed(dataset)
    absent = Operation.DELETE if dataset.extract is Extract.FULL else Operation.NOT_SUPPLIED
    operation = (
        F.when(~known, Operation.INSERT.value)
        .when(~supplied, absent.value)
        .when(changed, Operation.UPDATE.value)
        .otherwise(Operation.NO_CHANGE.value)
    )
    kept = (Operation.NO_CHANGE.value, Operation.NOT_SUPPLIED.value)
    date_column = F.when(operation.isin(*kept), F.col(f"o.{EFF_START_DATE}")).otherwise(today)
    names = [*(c.name for c in dataset.columns), *dataset.hashes]
    taken = [
        F.when(supplied, F.col(f"n.{quoted(name)}"))
        .otherwise(F.col(f"o.{quoted(name)}"))
        .alias(name)
        for name in names
    ]
    faulty = F.coalesce(F.col(f"n.{FAULTY}"), F.lit(False)).alias(FAULTY)
    return joined.select(
        *taken, faulty, date_column.alias(EFF_START_DATE), operation.alias(OPERATION)
    )


def _compare_small(
    dataset: Dataset, incoming: DataFrame, current: DataFrame, today: Column
) -> DataFrame:
    """The same for a small delta: the current dataset is not shuffled."""
    from pyspark.sql import functions as F

    new = F.broadcast(incoming).alias("n")
    found = current.alias("o").join(new, _same_key(dataset), "left_outer")
    supplied = F.col(f"n.{KEYHASH}").isNotNull()
    changed = _changed(dataset)
    operation = (
        F.when(~supplied, Operation.NOT_SUPPLIED.value)
        .when(changed, Operation.UPDATE.value)
        .otherwise(Operation.NO_CHANGE.value)
    )
    date = F.when(operation == Operation.UPDATE.value, today).otherwise(
        F.col(f"o.{EFF_START_DATE}")
    )
    names = [*(c.name for c in dataset.columns), *dataset.hashes]
    taken = [
        F.when(supplied, F.col(f"n.{quoted(name)}"))
        .otherwise(F.col(f"o.{quoted(name)}"))
        .alias(name)
        for name in names
    ]
    faulty = F.coalesce(F.col(f"n.{FAULTY}"), F.lit(False)).alias(FAULTY)
    known = found.select(*taken, faulty, date.alias(EFF_START_DATE), operation.alias(OPERATION))
    keys = [quoted(c.name) for c in dataset.keys]
    met = current.alias("o").join(new, _same_key(dataset), "left_semi").select(KEYHASH, *keys)
    fresh = incoming.alias("n").join(F.broadcast(met).alias("o"), _same_key(dataset), "left_anti")
    return known.unionByName(_shaped(dataset, fresh, F.lit(Operation.INSERT.value), today))


def _shaped(dataset: Dataset, rows: DataFrame, operation: Column, date: Column) -> DataFrame:
    names = [*(c.name for c in dataset.columns), *dataset.hashes, FAULTY]
    plain = [quoted(name) for name in names]
    return rows.select(*plain, date.alias(EFF_START_DATE), operation.alias(OPERATION))


def _changed(dataset: Dataset) -> Column:
    from pyspark.sql import functions as F

    pairs = [F.col(f"n.{name}") != F.col(f"o.{name}") for name in dataset.hashes if name != KEYHASH]
    return functools.reduce(operator.or_, pairs)


def _same_key(dataset: Dataset) -> Column:
    """The condition of the joins: equal hashes, then equal keys.

    Spark joins by every equation that it finds between the two sides, and would hash and copy the
    key columns of each row once more. ``least`` hides theirs, so the one number is the join's key
    and the columns are compared only where it is equal.
    """
    from pyspark.sql import functions as F

    same = [
        F.col(f"n.{quoted(column.name)}").eqNullSafe(F.col(f"o.{quoted(column.name)}"))
        for column in dataset.keys
    ]
    hashes = F.col(f"n.{KEYHASH}") == F.col(f"o.{KEYHASH}")
    return hashes & (same[0] if len(same) == 1 else F.least(*same))

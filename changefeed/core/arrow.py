"""Arrow types and schemas of the change log and of encoded messages.

They are separate from :mod:`changefeed.core.schema` and :mod:`changefeed.core.events` so that a
statement, which reads and writes no rows, runs without loading Arrow.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

import pyarrow as pa

#: Arrow types of :attr:`changefeed.core.schema.Column.physical`.
PHYSICAL: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "string": pa.string(),
}

#: What every change carries besides the row. One row of the log is one change.
#:
#: ``op``       ``c`` insert, ``u`` update (key unchanged), ``d`` delete, ``r`` read by a scan.
#:              An update that changes the key is two rows: ``d`` of the old, ``c`` of the new.
#: ``wall``, ``logical``  commit timestamp (HLC); all rows of a transaction share it.
#: ``seq``      sequence number of the change, rising through the whole log of a source.
#: ``ord``      position of the change inside its transaction, from 0.
#: ``xid``      transaction id at the source, 0 for a scan.
#: ``commit_us``  the source's own commit time, microseconds since 1970 UTC.
#: ``last``     false where a later change of the same key in the same transaction supersedes
#:              this one. On the row that stays, ``b*`` is the image before the transaction.
#: ``missing``  names of columns (JSON array) whose value the source did not send and that
#:              could not be looked up; null almost always.
METADATA: tuple[pa.Field, ...] = (
    pa.field("op", pa.string(), nullable=False),
    pa.field("wall", pa.int64(), nullable=False),
    pa.field("logical", pa.int32(), nullable=False),
    pa.field("seq", pa.int64(), nullable=False),
    pa.field("ord", pa.int32(), nullable=False),
    pa.field("xid", pa.int64(), nullable=False),
    pa.field("commit_us", pa.int64(), nullable=False),
    pa.field("last", pa.bool_(), nullable=False),
    pa.field("missing", pa.string()),
)

#: Columns of finished messages, as the Spark stages hand them to a sink. ``key`` and
#: ``value`` are finished bytes (a null value is a tombstone). ``headers`` is a JSON object.
MESSAGE_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("wall", pa.int64()),
        pa.field("logical", pa.int32()),
        pa.field("seq", pa.int64()),
        pa.field("op", pa.string()),
        pa.field("headers", pa.string()),
    ]
)


def keep_pandas_out() -> None:
    """Keep pyarrow from importing pandas in this process, unless pandas is loaded already.

    pyarrow imports pandas at the first conversion of a Python list, only to ask whether the list
    is one of pandas' types. That takes a third of a second of CPU, and changefeed does not use
    pandas. Code that imports pandas later still gets it; only pyarrow's own conversions to and
    from pandas do not work. Call this where a process of changefeed begins.
    """
    if "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([None])  # pyarrow looks for pandas once
    finally:
        sys.meta_path.remove(_NoPandas)


class _NoPandas:
    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is kept out of this process", name=name)
        return None

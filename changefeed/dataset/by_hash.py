"""An extract against the current dataset by hashes alone, without a join of their rows.

The hashes and dates of the current dataset are sorted into files that every task maps into its
memory. Each row of the extract is looked up there while it is read, and is written once, without a
shuffle. Then the rows of the current dataset whose key the extract does not have are read and
written.

Different keys may have the same hash. A checksum of the keys of all matched rows, with another
hash, is taken on both sides: where the two differ, or where one side has a hash twice, the caller
compares by :func:`.compare.compare`, which looks at the keys themselves.
"""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.proofs import AlteredBytes, FileProof
from changefeed.core.spark_sql import quoted
from changefeed.dataset.incoming import FAULTY, key_checksum
from changefeed.dataset.model import (
    EFF_START_DATE,
    IN_CURRENT,
    KEYHASH,
    NONKEYHASH,
    OPERATION,
    Dataset,
    Extract,
    Hash,
    Operation,
)
from changefeed.dataset.output import unrepeated, write_rows
from changefeed.dataset.store import Version
from changefeed.spark.executors import errors_packed
from changefeed.spark.internals.abilities import ARROW_FUNCTIONS, allows
from changefeed.spark.internals.arrow_types import arrow_function, frame_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: Rows that the driver sorts the hashes of: about 100 bytes each while it does.
_MOST_ROWS = 16_000_000
#: Rows of the current dataset whose hashes are sent to every task, some 100 bytes each.
_BROADCAST_ROWS = 2_000_000
#: What a row of an extract can be.
_SUPPLIED = (Operation.NO_CHANGE, Operation.UPDATE, Operation.INSERT)
#: Stands for an operation where a row is not as the dataset wants it.
_FAULTY_ROWS = "faulty"
_FOUND, _CHECKSUM = "__changefeed_found", "__changefeed_checksum"
_Hashes = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class RowCounts:
    """How many rows were written.

    Attributes:
        counts: rows by operation; operations of no row are absent.
        faulty: rows of the extract that are not as the dataset wants them.
    """

    counts: Mapping[str, int]
    faulty: int


@dataclass(frozen=True, slots=True)
class _HashIndex:
    """The hashes and dates of a version's rows as arrays in files, in the order of the keys', and
    the proofs of the files."""

    files: tuple[tuple[Path, FileProof], ...]

    @classmethod
    def write(cls, folder: Path, rows: Path) -> _HashIndex | None:
        """Fill a folder; None where a key's hash appears twice.

        Args:
            folder: does not exist.
            rows: of the version, a folder for each operation.
        """
        columns = _columns(rows, [KEYHASH, NONKEYHASH, EFF_START_DATE])
        keys = columns[KEYHASH].to_numpy(zero_copy_only=False)
        order = np.argsort(keys)
        keys = keys[order]
        if _repeats(keys):
            return None
        others = columns[NONKEYHASH].to_numpy(zero_copy_only=False)
        days = columns[EFF_START_DATE].cast(pa.int32()).to_numpy(zero_copy_only=False)
        folder.mkdir()
        files = []
        arrays = (("keys", keys), ("others", others[order]), ("days", days[order]))
        for name, array in arrays:
            path = folder / f"{name}.npy"
            np.save(path, array)
            files.append((path, FileProof.of(path)))
        return cls(tuple(files))

    def keys(self) -> _Hashes:
        """The hashes of the keys, sorted."""
        return _mapped(*self.files[0])

    def found(self) -> Column:
        """Of a row of the extract: its operation, and the date that stays if nothing changed."""

        def look_up(batches: Iterator[tuple[pa.Array, pa.Array]]) -> Iterator[pa.Array]:
            with errors_packed():
                keys, others, days = (_mapped(path, proof) for path, proof in self.files)
            for key, other in batches:
                yield _found(keys, others, days, key, other)

        made = arrow_function(look_up, "operation string, since date")
        return made(KEYHASH, NONKEYHASH)


@lru_cache(maxsize=3)
def _mapped(path: Path, proof: FileProof) -> np.ndarray[Any, Any]:
    """An array of the index, once in each process.

    Raises:
        ChangefeedError: CF4002, the file is not what was written.
    """
    try:
        proof.verify(path)
    except (OSError, AlteredBytes) as error:
        raise ChangefeedError(
            Code.SPARK_FAILED,
            "the index of the dataset's rows is damaged",
            detail=f"file {path}: {error}",
            hint="run the comparison again: it makes another index; check the disk under the "
            "dataset.",
        ) from error
    array: np.ndarray[Any, Any] = np.load(path, mmap_mode="r")
    return array


def _found(
    keys: _Hashes,
    others: _Hashes,
    days: np.ndarray[Any, np.dtype[np.int32]],
    key: pa.Array,
    other: pa.Array,
) -> pa.StructArray:
    """The operations and dates of one batch."""
    wanted = key.to_numpy(zero_copy_only=False)
    # Neighbours are looked up one after the other, which is kind to the processor's cache.
    order = np.argsort(wanted)
    places = np.empty(len(wanted), np.int64)
    places[order] = np.searchsorted(keys, wanted[order])
    places[places == len(keys)] = 0
    known = keys[places] == wanted
    same = known & (others[places] == other.to_numpy(zero_copy_only=False))
    codes = np.where(same, 0, np.where(known, 1, 2)).astype(np.int8)
    names = pa.array([operation.value for operation in _SUPPLIED])
    operations = pa.DictionaryArray.from_arrays(pa.array(codes), names).cast(pa.string())
    since = pa.array(days[places], pa.int32(), mask=~same).cast(pa.date32())
    return pa.StructArray.from_arrays([operations, since], names=["operation", "since"])


def can_compare(session: SparkSession, dataset: Dataset, base: Version) -> bool:
    """Whether :func:`write_by_hash` compares extracts with this version in this session."""
    return (
        allows(session, ARROW_FUNCTIONS)
        and base.hashing == dataset.hashing
        and dataset.hash is Hash.XXHASH
        and not dataset.sensitive_columns
        and 0 < sum(base.counts.get(o, 0) for o in IN_CURRENT) <= _MOST_ROWS
    )


def write_by_hash(
    session: SparkSession,
    dataset: Dataset,
    incoming: DataFrame,
    current: DataFrame,
    base: Version,
    date: dt.date,
    target: Path,
) -> RowCounts | None:
    """Write the rows of both sides with their operations.

    Args:
        session: where the work is done.
        dataset: describes both sides.
        incoming: typed and hashed rows of the extract.
        current: rows of the current dataset.
        base: its version.
        date: the run's effective date.
        target: a folder that does not exist.

    Returns:
        None where the hashes cannot tell; what was written is removed. With faulty rows the
        rows of the current dataset were not written.
    """
    folder = target.with_name("hashes")
    try:
        written = None
        index = _HashIndex.write(folder, base.rows)
        if index is not None:
            written = _write(session, dataset, incoming, current, base, index, date, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if written is None:
        shutil.rmtree(target, ignore_errors=True)
    return written


def _write(
    session: SparkSession,
    dataset: Dataset,
    incoming: DataFrame,
    current: DataFrame,
    base: Version,
    index: _HashIndex,
    date: dt.date,
    target: Path,
) -> RowCounts | None:
    plain = unrepeated(base.rows, dataset)
    supplied = _write_supplied(dataset, incoming, index, date, target, plain)
    if supplied.faulty:
        return RowCounts(supplied.counts, supplied.faulty)
    hashes = np.sort(_columns(target, [KEYHASH])[KEYHASH].to_numpy(zero_copy_only=False))
    if _repeats(hashes):
        return None
    absent = np.setdiff1d(index.keys(), hashes, assume_unique=True)
    matched = _write_absent(session, dataset, current, absent, date, target, plain)
    if matched != supplied.matched:
        return None
    counts = dict(supplied.counts)
    if len(absent):
        counts[_absence(dataset).value] = len(absent)
    return RowCounts(counts, 0)


@dataclass(frozen=True, slots=True)
class _ExtractRows:
    """What became of the rows of an extract.

    Attributes:
        counts: rows by operation.
        faulty: rows that are not as the dataset wants them.
        matched: checksum of the keys of the rows that the current dataset has, too.
    """

    counts: Mapping[str, int]
    faulty: int
    matched: int


def _write_supplied(
    dataset: Dataset,
    incoming: DataFrame,
    index: _HashIndex,
    date: dt.date,
    target: Path,
    plain: Collection[str],
) -> _ExtractRows:
    """Write the rows of the extract."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    operation = F.col(f"{_FOUND}.operation")
    rows = incoming.withColumn(_FOUND, index.found()).select(
        *_same(dataset),
        F.coalesce(F.col(f"{_FOUND}.since"), F.lit(date)).alias(EFF_START_DATE),
        F.when(F.col(FAULTY), _FAULTY_ROWS).otherwise(operation).alias(OPERATION),
        F.when(operation != Operation.INSERT.value, key_checksum(dataset)).alias(_CHECKSUM),
    )
    seen = Observation()
    observed = rows.observe(seen, F.bit_xor(_CHECKSUM).alias("matched"))
    write_rows(observed.drop(_CHECKSUM), target, plain)
    # The files know how many rows they have; Spark would count row by row.
    counts = _count_rows(target)
    faulty = counts.pop(_FAULTY_ROWS, 0)
    return _ExtractRows(counts, faulty, seen.get["matched"] or 0)


def _write_absent(
    session: SparkSession,
    dataset: Dataset,
    current: DataFrame,
    absent: _Hashes,
    date: dt.date,
    target: Path,
    plain: Collection[str],
) -> int:
    """Write the rows of the current dataset that the extract does not have.

    Returns:
        The checksum of the keys of all others.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    checked = current.withColumn(_CHECKSUM, key_checksum(dataset))
    checksum = F.bit_xor(_CHECKSUM).alias("keys")
    if not len(absent):
        found = checked.agg(checksum).collect()
        return found[0]["keys"] or 0
    hashes = frame_of(session, pa.table({KEYHASH: absent}))
    if len(absent) <= _BROADCAST_ROWS:
        hashes = F.broadcast(hashes)
    every, gone = Observation(), Observation()
    rows = checked.observe(every, checksum).join(hashes, KEYHASH, "left_semi")
    operation = _absence(dataset)
    if operation is Operation.DELETE:
        rows = rows.withColumn(EFF_START_DATE, F.lit(date))
    rows = rows.select(
        *_same(dataset), EFF_START_DATE, F.lit(operation.value).alias(OPERATION), _CHECKSUM
    )
    write_rows(rows.observe(gone, checksum).drop(_CHECKSUM), target, plain)
    matched: int = (every.get["keys"] or 0) ^ (gone.get["keys"] or 0)
    return matched


def _absence(dataset: Dataset) -> Operation:
    return Operation.DELETE if dataset.extract is Extract.FULL else Operation.NOT_SUPPLIED


def _same(dataset: Dataset) -> list[str]:
    """The columns that are the same on both sides."""
    return [quoted(name) for name in (*(c.name for c in dataset.columns), *dataset.hashes)]


def _count_rows(rows: Path) -> dict[str, int]:
    """Rows by operation, of what :func:`.output.write_rows` wrote."""
    counts: dict[str, int] = {}
    for file in sorted(rows.glob(f"{OPERATION}=*/*.parquet")):
        operation = file.parent.name.partition("=")[2]
        counts[operation] = counts.get(operation, 0) + pq.read_metadata(file).num_rows
    return counts


def _columns(rows: Path, names: list[str]) -> dict[str, pa.Array]:
    """Columns of all files of a version, which are a folder for each operation."""
    files = sorted(rows.glob(f"{OPERATION}=*/*.parquet"))
    parts = [pq.ParquetFile(file).read(columns=names) for file in files]
    if not parts:
        return {KEYHASH: pa.array([], pa.int64())}
    whole = pa.concat_tables(parts)
    return {name: whole.column(name).combine_chunks() for name in names}


def _repeats(hashes: _Hashes) -> bool:
    """Whether sorted hashes have one twice."""
    return bool((hashes[1:] == hashes[:-1]).any())

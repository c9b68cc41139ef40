"""One run: an extract is compared, checked and published, or nothing changes."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from changefeed.core.clock import Clock
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.spark_sql import quoted
from changefeed.dataset.by_hash import RowCounts, can_compare, write_by_hash
from changefeed.dataset.compare import BROADCAST_BYTES, compare
from changefeed.dataset.config import read_config
from changefeed.dataset.definition import Definition
from changefeed.dataset.duplicates import repeated_keys
from changefeed.dataset.extracts import (
    FoundExtract,
    absolute_location,
    check_files,
    check_name,
    data_files,
    date_of,
    effective_date,
    next_extract,
)
from changefeed.dataset.incoming import (
    FAULTS,
    FAULTY,
    faulty_rows,
    read_extract,
    typed_rows,
    value_of,
    with_hashes,
)
from changefeed.dataset.model import (
    EFF_START_DATE,
    KEYHASH,
    NONKEYHASH,
    OPERATION,
    SENSITIVEHASH,
    Dataset,
    DatasetColumn,
    Extract,
    Hash,
    Operation,
    described,
)
from changefeed.dataset.output import write_rows
from changefeed.dataset.shuffle import comparing_session
from changefeed.dataset.spark_use import SparkUse
from changefeed.dataset.store import DatasetFolders, ExtractMark, Version, check_sides
from changefeed.dataset.tables import Registration, check_tables, register
from changefeed.spark.failure import LOG
from changefeed.spark.internals.sessions import require_classic
from changefeed.spark.session import NodeSpark
from changefeed.spark.settings import SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What a run did.

    Attributes:
        dataset: what was compared.
        version: what is current now.
        seconds: how long the run took, without Spark's start.
    """

    dataset: Dataset
    version: Version
    seconds: float

    @property
    def counts(self) -> Mapping[str, int]:
        """Rows by operation; operations of no row are absent."""
        return self.version.counts


def run_dataset(
    spark: SparkUse,
    dataset: Dataset,
    extract: str,
    date: dt.date,
    *,
    broadcast: int = BROADCAST_BYTES,
) -> RunOutcome:
    """Compare an extract with the current dataset and make the result the current dataset.

    A run that is repeated with its date replaces what the first run of that date did.

    Args:
        spark: where the work is done.
        dataset: what is compared.
        extract: a file, folder or glob that Spark reads, or ``jdbc:url#table``.
        date: the run's effective date, not before that of the run before.
        broadcast: an extract of at most so many bytes is handed to each executor whole.

    Raises:
        ChangefeedError: CF1204 the date is before the last one; CF1302 the extract cannot be
            compared (rows that do not cast, keys that are NULL or appear twice), or a column
            became sensitive or open; CF4002 Spark
            failed. Current dataset and history are as before, unless the message says that the
            extract was compared. For the tables: see :func:`.tables.check_tables`.
    """
    check_files(extract)
    store = DatasetFolders(dataset)
    with store.locked():
        base = _base(store, dataset, date)
        check_sides(dataset, store.latest())
        registration = Registration.of(dataset)
        if registration.names:
            with spark.use(f"dataset {dataset.name}") as session:
                check_tables(session, registration)
        outcome = _run(spark, store, dataset, extract, date, base, broadcast=broadcast)
        _register(spark, store, dataset)
        return outcome


def _register(spark: SparkUse, store: DatasetFolders, dataset: Dataset) -> None:
    try:
        register(spark, dataset, store)
    except ChangefeedError as error:
        raise ChangefeedError(
            error.code,
            "the extract was compared, but Spark's catalog does not show the result: "
            + error.message,
            detail=error.detail,
            hint=error.hint or "the next run tries again.",
        ) from error


def run_next(
    spark: SparkUse, definition: Definition, found: FoundExtract, clock: Clock
) -> RunOutcome | None:
    """Compare the extract that is due, if it is still the one that was found.

    A second run of a date is compared with the first one and adds to its history.

    Args:
        spark: where the work is done.
        definition: the dataset, and where its extracts come from.
        found: what :func:`.extracts.next_extract` gave a while ago.
        clock: for the day of the run.

    Returns:
        None where another node has compared it since, or its files are others by now.

    Raises:
        ChangefeedError: see :func:`run_dataset`; CF1301 another run is at work.
    """
    dataset, schedule = definition.dataset, definition.schedule
    store = DatasetFolders(dataset, clock)
    with store.locked():
        latest = store.latest()
        now = clock.now().wall / 1e9
        if next_extract(schedule, latest, now) != found:
            return None
        check_name(schedule, found)
        date = date_of(schedule, found, dt.datetime.fromtimestamp(now, dt.UTC).date())
        if latest is not None and date < latest.date:
            raise _too_early(dataset, date, latest)
        check_sides(dataset, latest)
        return _run(spark, store, dataset, found.location, date, latest, found.mark)


def _run(
    spark: SparkUse,
    store: DatasetFolders,
    dataset: Dataset,
    extract: str,
    date: dt.date,
    base: Version | None,
    mark: ExtractMark | None = None,
    *,
    broadcast: int = BROADCAST_BYTES,
) -> RunOutcome:
    """A run on the locked store."""
    with spark.use(f"dataset {dataset.name}") as session:
        require_classic(session, "a dataset")
        began = time.monotonic()
        try:
            counts = _stage(session, store, dataset, extract, base, date, broadcast)
        except BaseException:
            store.discard()
            raise
    version = store.publish(date, base, counts, described(dataset)["columns"], mark)
    return RunOutcome(dataset, version, time.monotonic() - began)


def run_config(config: Path, extract: str, date: str, settings: SparkSettings) -> RunOutcome:
    """One run as a command gives it, with a Spark of its own.

    Raises:
        ChangefeedError: see :func:`.config.read_config`, :func:`effective_date` and
            :func:`run_dataset`; what is wrong with the words is found before Spark starts. If Spark
            failed, its log is kept, and the hint names it.
    """
    dataset, day = read_config(config), effective_date(date)
    handle, name = tempfile.mkstemp(prefix="changefeed-spark-", suffix=".log")
    os.close(handle)
    kept = False
    try:
        with NodeSpark.of(settings, Path(name)) as spark:
            return run_dataset(spark, dataset, absolute_location(extract), day)
    except ChangefeedError as error:
        kept = LOG in error.hint
        error.hint = error.hint.replace(LOG, name)
        raise
    finally:
        if not kept:
            os.unlink(name)


def _base(store: DatasetFolders, dataset: Dataset, date: dt.date) -> Version | None:
    latest = store.latest()
    if latest is None or latest.date < date:
        return latest
    if latest.date == date:
        return None if latest.base is None else store.version(latest.base)
    raise _too_early(dataset, date, latest)


def _too_early(dataset: Dataset, date: dt.date, latest: Version) -> ChangefeedError:
    return ChangefeedError(
        Code.INVALID_OPTION_VALUE,
        f"effective date {date} is before {latest.date}, the date of the current dataset",
        hint=f"extracts of {dataset.name} are compared in the order of their dates.",
    )


def _stage(
    session: SparkSession,
    store: DatasetFolders,
    dataset: Dataset,
    extract: str,
    base: Version | None,
    date: dt.date,
    broadcast: int,
) -> dict[str, int]:
    size = _bytes(extract)
    known_rows = 0 if base is None else sum(base.counts.values())
    known_size = None if base is None else _bytes(str(base.rows))
    session = comparing_session(session, known_rows, max(size or 0, known_size or 0))
    rows = read_extract(session, dataset, extract)
    incoming = typed_rows(dataset, rows)
    if base is not None:
        store.check_rows(base)
    current = None if base is None else _current_rows(session, store, dataset, base)
    small = dataset.extract is Extract.DELTA and size is not None and size <= broadcast
    stage = whole = store.stage()
    if dataset.sensitive_columns:
        whole, sensitive = store.stage_sensitive()
    written = None
    if (
        base is not None
        and current is not None
        and not small
        and can_compare(session, dataset, base)
    ):
        written = write_by_hash(session, dataset, incoming, current, base, date, whole)
    unique = written is not None
    if written is None:
        written = _write_by_key(compare(dataset, incoming, current, date, small=small), whole)
    if written.faulty:
        raise _refused_rows(dataset, faulty_rows(dataset, rows), store)
    counts = dict(written.counts)
    if not unique and counts.keys() & {"I", "U", "N"}:
        _check_unique(session, dataset, whole, counts, store)
    if dataset.sensitive_columns:
        _divide(session, dataset, whole, stage, sensitive)
    return counts


def _write_by_key(compared: DataFrame, target: Path) -> RowCounts:
    """Write the rows of a comparison and count them."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    seen = Observation()
    metrics = [
        F.count_if(F.col(OPERATION) == operation.value).alias(operation.value)
        for operation in Operation
    ]
    faulty = F.count_if(FAULTY).alias("faulty")
    write_rows(compared.observe(seen, faulty, *metrics).drop(FAULTY), target)
    found = seen.get
    return RowCounts(
        {o.value: found[o.value] for o in Operation if found[o.value]}, found["faulty"]
    )


def _divide(
    session: SparkSession, dataset: Dataset, whole: Path, stage: Path, sensitive: Path
) -> None:
    """Whole rows as two outputs that the key joins; the whole rows are removed."""
    from pyspark.sql import functions as F

    beside = [KEYHASH, EFF_START_DATE, OPERATION]
    outputs = (
        (stage, [c.name for c in dataset.open_columns], NONKEYHASH),
        (
            sensitive,
            [c.name for c in (*dataset.keys, *dataset.sensitive_columns)],
            SENSITIVEHASH,
        ),
    )
    if not any(whole.glob("*=*")):
        for folder, _, _ in outputs:
            folder.mkdir()
    else:
        rows = session.read.parquet(str(whole))
        for folder, names, hash_ in outputs:
            columns = [F.col(quoted(name)) for name in (*names, *beside)]
            output = rows.select(*columns, F.col(hash_).alias(NONKEYHASH))
            output.write.partitionBy(OPERATION).parquet(str(folder))
    shutil.rmtree(whole)


def _current_rows(
    session: SparkSession, store: DatasetFolders, dataset: Dataset, base: Version
) -> DataFrame:
    """The rows that the extract is compared with, with the hashes they were written with."""
    from pyspark.sql import functions as F

    rows = session.read.parquet(str(base.rows)) if any(base.rows.glob("*=*")) else None
    if rows is None:
        hashed = "STRING" if dataset.hash is Hash.MD5 else "BIGINT"
        schema = ", ".join(
            [f"{quoted(c.name)} {c.type}" for c in dataset.columns]
            + [f"{EFF_START_DATE} DATE"]
            + [f"{name} {hashed}" for name in dataset.hashes]
        )
        rows = session.createDataFrame([], schema)
    elif dataset.sensitive_columns:
        rows = _with_sensitive(session, store, dataset, base, rows)
    there = {name.lower() for name in rows.columns}
    columns = [
        (F.col(quoted(c.name)) if c.name.lower() in there else F.lit(None))
        .cast(c.type)
        .alias(c.name)
        for c in dataset.columns
    ]
    _check_new_types(dataset, rows, rows.select(*columns))
    if base.hashing == dataset.hashing:
        return rows.select(*columns, EFF_START_DATE, *dataset.hashes)
    # Keys, types or the hash of the configuration changed since.
    return with_hashes(dataset, rows.select(*columns, EFF_START_DATE))


def _check_new_types(dataset: Dataset, rows: DataFrame, cast: DataFrame) -> None:
    """Refuse a type of the configuration that values of the current dataset do not have.

    Raises:
        ChangefeedError: CF1302.
    """
    from pyspark.sql import functions as F

    before = {field.name.lower(): field.dataType for field in rows.schema.fields}
    changed = [
        c for c in dataset.columns
        if before.get(c.name.lower(), cast.schema[c.name].dataType) != cast.schema[c.name].dataType
    ]  # fmt: skip
    if not changed:
        return
    lost = [F.count_if(F.col(quoted(c.name)).isNotNull() & value_of(c).isNull()) for c in changed]
    counts = rows.select(*lost).collect()[0]
    parts = [f"{c.name} ({c.type}): {n}" for c, n in zip(changed, counts, strict=True) if n]
    if parts:
        raise ChangefeedError(
            Code.TARGET_NOT_WATCHABLE,
            "values of the current dataset cannot be cast to the new types of their columns",
            detail=f"rows by column: {', '.join(parts)}",
            hint="keep the old type, or start with new folders for the current dataset and the "
            "history.",
        )


def _with_sensitive(
    session: SparkSession,
    store: DatasetFolders,
    dataset: Dataset,
    base: Version,
    rows: DataFrame,
) -> DataFrame:
    """The rows of a version with the columns that it kept apart.

    Raises:
        ChangefeedError: CF1302 the folder of the sensitive columns does not have the version.
    """

    folder = store.sensitive_rows(base.number)
    if folder is None:
        known = [c.name for c in dataset.sensitive_columns if base.sides.get(c.name.lower())]
        if not known:
            # They are new.
            return rows
        raise ChangefeedError(
            Code.TARGET_NOT_WATCHABLE,
            f"{dataset.sensitive} does not have the sensitive columns of version {base.number}: "
            f"{', '.join(known)}",
            hint="give the dataset the folder of sensitive columns that it was made with.",
        )
    apart = session.read.parquet(str(folder))
    there = {name.lower() for name in apart.columns}
    # The version's own keys: those of the configuration may be others by now.
    keys = sorted(there & {c.name.lower() for c in dataset.open_columns})
    same = rows[KEYHASH] == apart[KEYHASH]
    for key in keys:
        same = same & rows[quoted(key)].eqNullSafe(apart[quoted(key)])
    wanted = [c.name for c in dataset.sensitive_columns if c.name.lower() in there]
    return rows.join(apart, same, "left_outer").select(
        *[rows[quoted(name)] for name in rows.columns],
        *[apart[quoted(name)] for name in wanted],
        apart[NONKEYHASH].alias(SENSITIVEHASH),
    )


def _bytes(extract: str) -> int | None:
    """The size of an extract on this machine; None of one elsewhere."""
    files = data_files(extract)
    if not files:
        return None
    # Columnar files are smaller than their rows.
    return 4 * sum(file.stat().st_size for file in files)


def _refused_rows(dataset: Dataset, bad: DataFrame, store: DatasetFolders) -> ChangefeedError:
    """Which columns of how many rows are wrong; the rows are reported."""
    from pyspark.sql import functions as F

    _write_report(bad.withColumnRenamed(FAULTS, "wrong_columns"), store)
    names = F.explode(F.split(F.col(FAULTS), ",")).alias("name")
    rows = bad.select(names).groupBy("name").count().orderBy(F.desc("count"), "name").collect()
    columns = {column.name: column for column in dataset.columns}
    parts = [f"{row[0]}{_wanted(columns.get(row[0]))}: {row[1]}" for row in rows]
    return ChangefeedError(
        Code.TARGET_NOT_WATCHABLE,
        "rows of the extract do not have the types of the dataset, or have no value where one is "
        "needed",
        detail=f"rows by column: {', '.join(parts)}",
        hint=f"the rows are in {store.rejected}, and nothing was changed; correct the extract, or "
        "type and nullable of the column.",
    )


def _write_report(rows: DataFrame, store: DatasetFolders) -> None:
    texts = [rows[quoted(name)].cast("string").alias(name) for name in rows.columns]
    rows.select(*texts).coalesce(1).write.mode("overwrite").csv(str(store.rejected), header=True)
    store.protect_rejected()


def _wanted(column: DatasetColumn | None) -> str:
    if column is None:
        return ""
    return f" ({column.type}{'' if column.nullable else ', not null'})"


def _check_unique(
    session: SparkSession,
    dataset: Dataset,
    stage: Path,
    counts: Mapping[str, int],
    store: DatasetFolders,
) -> None:
    """Refuse an extract that has a key twice: no rule could say which row is right."""
    from pyspark.sql import functions as F

    supplied = [o for o in ("I", "U", "N") if o in counts]
    rows = session.read.parquet(str(stage)).filter(F.col(OPERATION).isin(supplied))
    repeated = repeated_keys(dataset, rows, sum(counts[o] for o in supplied))
    if repeated is None:
        return
    keys, total = repeated
    _write_report(keys, store)
    raise ChangefeedError(
        Code.TARGET_NOT_WATCHABLE,
        f"{total} {'key appears' if total == 1 else 'keys appear'} more than once in the extract",
        detail=f"key columns: {', '.join(column.name for column in dataset.keys)}",
        hint=f"the keys are in {store.rejected}, and nothing was changed; remove the rows that are "
        "too many, or add key columns.",
    )

"""The outputs of a dataset as tables of Spark's session catalog, such as a Hive metastore.

Both tables are external: the catalog knows where the files are, and DROP TABLE leaves them.

=======  =======================================  ================================================
output   location                                 partitions
=======  =======================================  ================================================
current  the folder of one version; each run      Spark finds them in the folder, so one ALTER TABLE
         sets it to the new one                   switches the table from a version to the next
history  the folder of the history                in the catalog, which a run brings up to date
=======  =======================================  ================================================

A table has the dataset's folder as a property; one without it has another owner and is
not touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.spark_sql import literal, quoted
from changefeed.dataset.model import (
    EFF_DATE,
    EFF_START_DATE,
    KEYHASH,
    NONKEYHASH,
    OPERATION,
    Dataset,
    Hash,
)
from changefeed.dataset.spark_use import SparkUse
from changefeed.dataset.store import DatasetFolders, Version
from changefeed.spark.internals.sessions import another_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The session catalog of Spark, by the name that it always has.
_CATALOG = "spark_catalog"
#: Of a table that a dataset made: the folder of its current dataset, and the version it shows.
_OWNER = "changefeed.dataset"
_VERSION = "changefeed.version"
#: A partition that is added or dropped goes into a statement with so many others.
_AT_ONCE = 200

#: A partition: the values of its columns in the order of the folders.
Partition = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Registration:
    """What a dataset needs to have its tables in the catalog.

    Attributes:
        owner: stands for the dataset in the tables' properties.
        names: of the tables, ``database.table``.
    """

    owner: str
    names: tuple[str, ...]

    @classmethod
    def of(cls, dataset: Dataset) -> Registration:
        """The tables that a dataset is to have; none for most."""
        return cls(str(dataset.current), dataset.tables)


def check_tables(session: SparkSession, registration: Registration) -> None:
    """Refuse tables that could not be registered; changes nothing.

    Raises:
        ChangefeedError: CF1101 a database does not exist; CF1303 the catalog is one that ends with
            the session; CF5008 a table has another owner.
    """
    if not registration.names:
        return
    if session.conf.get("spark.sql.catalogImplementation") != "hive":
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            f"table {registration.names[0]} cannot be registered: Spark's session catalog is in "
            "memory, and nobody else sees its tables",
            hint="give Spark a Hive metastore: --conf spark.sql.catalogImplementation=hive --conf "
            "spark.hadoop.hive.metastore.uris=thrift://host:9083.",
        )
    for name in registration.names:
        database = name.partition(".")[0]
        if not session.catalog.databaseExists(f"{_CATALOG}.{database}"):
            raise ChangefeedError(
                Code.NAME_UNKNOWN,
                f"database {database} of table {name} does not exist in Spark's catalog",
                hint=f"create it: CREATE DATABASE {database}.",
            )
        _is_ours(session, name, registration.owner)


def _is_ours(session: SparkSession, name: str, owner: str) -> Mapping[str, str] | None:
    """The properties of a table that the dataset made; None where there is no table.

    Raises:
        ChangefeedError: CF5008 it has another owner.
    """
    if not session.catalog.tableExists(_full(name)):
        return None
    rows = session.sql(f"SHOW TBLPROPERTIES {_in_catalog(name)}").collect()
    properties = {row["key"]: row["value"] for row in rows}
    if properties.get(_OWNER) == owner:
        return properties
    whose = properties.get(_OWNER)
    raise ChangefeedError(
        Code.TARGET_NOT_OURS,
        f"table {name} exists in Spark's catalog, and "
        + (f"shows another dataset, {whose}" if whose else "changefeed did not make it"),
        hint="name another table, or drop this one.",
    )


def register(spark: SparkUse, dataset: Dataset, store: DatasetFolders) -> bool:
    """Make the tables of a dataset show its current version. The store is locked.

    Returns:
        Whether there was anything to do; Spark is used only then.

    Raises:
        ChangefeedError: see :func:`check_tables`; CF4002 Spark or the metastore failed. What was
            not done is done by the next call.
    """
    latest, registration = store.latest(), Registration.of(dataset)
    if latest is None or is_registered(dataset, store):
        return False
    with spark.use(f"dataset {dataset.name}") as shared:
        # With settings of its own, and without what the other session remembers of the tables.
        session = another_session(shared)
        check_tables(session, registration)
        for output in _outputs(dataset, store, latest):
            _register_output(session, output, registration.owner, latest.number)
    store.keep_registration(_wanted(dataset, store, latest))
    return True


def is_registered(dataset: Dataset, store: DatasetFolders) -> bool:
    """The tables show the current version, or there are none to have, or no version yet.

    Looks at the folders only: a table that was dropped is made again by the next run.
    """
    latest = store.latest()
    if latest is None or not Registration.of(dataset).names:
        return True
    return store.registration() == _wanted(dataset, store, latest)


def _wanted(dataset: Dataset, store: DatasetFolders, version: Version) -> dict[str, object]:
    outputs = {o.name: [o.schema, str(o.location)] for o in _outputs(dataset, store, version)}
    return {"version": version.number, "tables": outputs}


@dataclass(frozen=True, slots=True)
class _Output:
    """A table to have.

    Attributes:
        name: ``database.table``.
        columns: the columns that its files have, with their types in Spark's words.
        partitions: the columns of its folders, in their order.
        location: the folder of its files.
        tracked: the catalog has its partitions.
    """

    name: str
    columns: tuple[tuple[str, str], ...]
    partitions: tuple[tuple[str, str], ...]
    location: Path
    tracked: bool

    @property
    def schema(self) -> str:
        """All columns as DDL."""
        return ", ".join(f"{quoted(n)} {t}" for n, t in (*self.columns, *self.partitions))


def _outputs(dataset: Dataset, store: DatasetFolders, version: Version) -> Iterator[_Output]:
    hashed = "string" if dataset.hash is Hash.MD5 else "bigint"
    beside = ((KEYHASH, hashed), (NONKEYHASH, hashed), (EFF_START_DATE, "date"))
    columns = (*((c.name, c.type) for c in dataset.open_columns), *beside)
    yield from _pair(
        (dataset.current_table, dataset.history_table), columns, version.rows, dataset.history
    )
    apart = store.sensitive_rows(version.number)
    # A version of before the dataset had sensitive columns has nothing to show.
    if dataset.sensitive is not None and apart is not None:
        kept = (*dataset.keys, *dataset.sensitive_columns)
        yield from _pair(
            (dataset.sensitive_table, dataset.sensitive_history_table),
            (*((c.name, c.type) for c in kept), *beside),
            apart,
            store.sensitive_history,
        )


def _pair(
    names: tuple[str | None, str | None],
    columns: tuple[tuple[str, str], ...],
    rows: Path,
    history: Path,
) -> Iterator[_Output]:
    operation, date = (OPERATION, "string"), (EFF_DATE, "date")
    if names[0] is not None:
        yield _Output(names[0], columns, (operation,), rows.resolve(), tracked=False)
    if names[1] is not None:
        yield _Output(names[1], columns, (date, operation), history.resolve(), tracked=True)


def _register_output(session: SparkSession, output: _Output, owner: str, version: int) -> None:
    # Where it is true, the catalog has the partitions of a new table, each with a location of its
    # own; where it is false, the catalog cannot even be asked for those that it has.
    managed = "true" if output.tracked else "false"
    session.conf.set("spark.sql.hive.manageFilesourcePartitions", managed)
    known = _is_ours(session, output.name, owner)
    if known is not None and not _fit_columns(session, output):
        # An external table: its files stay.
        session.sql(f"DROP TABLE {_in_catalog(output.name)}")
        known = None
    if known is None:
        _create(session, output, owner)
    else:
        place = literal(_uri(output.location))
        session.sql(f"ALTER TABLE {_in_catalog(output.name)} SET LOCATION {place}")
    if output.tracked:
        _fit_partitions(session, output)
    session.sql(
        f"ALTER TABLE {_in_catalog(output.name)} SET TBLPROPERTIES ('{_VERSION}' = '{version}')"
    )


def _create(session: SparkSession, output: _Output, owner: str) -> None:
    names = ", ".join(quoted(name) for name, _ in output.partitions)
    session.sql(
        f"CREATE TABLE {_in_catalog(output.name)} ({output.schema}) USING parquet "
        f"PARTITIONED BY ({names}) LOCATION {literal(_uri(output.location))} "
        f"TBLPROPERTIES ('{_OWNER}' = {literal(owner)})"
    )


def _fit_columns(session: SparkSession, output: _Output) -> bool:
    """Add the columns that a table lacks; False where it has one that is another or too many."""
    there = _types(session.table(_full(output.name)).schema)
    wanted = _types(session.createDataFrame([], output.schema).schema)
    if any(wanted.get(name) != kind for name, kind in there.items()):
        return False
    missing = [
        f"{quoted(name)} {kind}" for name, kind in output.columns if name.lower() not in there
    ]
    if missing:
        session.sql(f"ALTER TABLE {_in_catalog(output.name)} ADD COLUMNS ({', '.join(missing)})")
    return True


def _types(schema: Any) -> dict[str, str]:
    return {field.name.lower(): field.dataType.simpleString() for field in schema.fields}


def _fit_partitions(session: SparkSession, output: _Output) -> None:
    """Make the catalog's partitions those of the folder."""
    names = [name for name, _ in output.partitions]
    listed = session.sql(f"SHOW PARTITIONS {_in_catalog(output.name)}").collect()
    known = {_partition(row[0]) for row in listed}
    pattern = "/".join(f"{name}=*" for name in names)
    there = {
        _partition(str(folder.relative_to(output.location)))
        for folder in output.location.glob(pattern)
    }
    for action, some in (
        ("ADD IF NOT EXISTS", sorted(there - known)),
        ("DROP IF EXISTS", sorted(known - there)),
    ):
        between = " " if action.startswith("ADD") else ", "
        for begin in range(0, len(some), _AT_ONCE):
            specs = [_spec(names, values) for values in some[begin : begin + _AT_ONCE]]
            session.sql(f"ALTER TABLE {_in_catalog(output.name)} {action} {between.join(specs)}")


def _partition(path: str) -> Partition:
    return tuple(part.partition("=")[2] for part in path.split("/"))


def _spec(names: Sequence[str], values: Partition) -> str:
    pairs = ", ".join(f"{quoted(n)} = {literal(v)}" for n, v in zip(names, values, strict=True))
    return f"PARTITION ({pairs})"


def _full(name: str) -> str:
    return f"{_CATALOG}.{name}"


def _in_catalog(name: str) -> str:
    database, _, table = name.partition(".")
    return f"{_CATALOG}.{quoted(database)}.{quoted(table)}"


def _uri(folder: Path) -> str:
    # Spark encodes it itself.
    return f"file://{folder}"

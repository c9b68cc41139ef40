"""``duckdb:///file``: tables of a DuckDB database file.

DuckDB locks the file for the process that has it open, so the sink opens it for a round and lets
go of it afterwards: between rounds others may read it. Sinks of one process share it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, ClassVar

import pyarrow as pa

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.proofs import AlteredBytes, FileProof, ProvedFile
from changefeed.core.settings import Parameter, Settings, setting
from changefeed.core.types import Kind, LogicalType
from changefeed.core.uri import invalid_uri
from sinks.base import Capabilities, PartPlace, SinkContext
from sinks.merged.values import decimal_pattern
from sinks.warehouse.dialect import (
    ANNO_DOMINI,
    FLAT_ARRAY,
    Dialect,
    SqlStatement,
    TypeRule,
)
from sinks.warehouse.errors import explained
from sinks.warehouse.parts import FileWarehouse, PartFiles, PartsSink

if TYPE_CHECKING:
    import duckdb

_INFINITY = "|-?infinity"
#: Digits of a numeric without declared ones: 20 before and 18 behind the point.
_WHOLE, _SCALE = 20, 18
_FREE = f"DECIMAL({_WHOLE + _SCALE},{_SCALE})"

_LISTS: Mapping[Kind, str] = {
    Kind.BOOL: "BOOLEAN",
    Kind.INT16: "SMALLINT",
    Kind.INT32: "INTEGER",
    Kind.INT64: "BIGINT",
    Kind.FLOAT32: "FLOAT",
    Kind.FLOAT64: "DOUBLE",
    Kind.TEXT: "VARCHAR",
    Kind.UUID: "UUID",
    Kind.DATE: "DATE",
    Kind.TIMESTAMP: "TIMESTAMP",
}


class DuckDBDialect(Dialect):
    """DuckDB 1.4 and newer (MERGE)."""

    name = "DuckDB"
    folds_case = True
    max_name = 255
    key_text = "VARCHAR"
    widens_to_text = True
    staging_types: ClassVar[Mapping[str, str]] = {
        **Dialect.staging_types,
        "string": "VARCHAR",
    }
    types: ClassVar[Mapping[Kind, TypeRule]] = {
        Kind.BOOL: TypeRule("BOOLEAN"),
        Kind.INT16: TypeRule("SMALLINT"),
        Kind.INT32: TypeRule("INTEGER"),
        Kind.INT64: TypeRule("BIGINT"),
        Kind.FLOAT32: TypeRule("FLOAT", "CAST({x} AS FLOAT)"),
        Kind.FLOAT64: TypeRule("DOUBLE", "CAST({x} AS DOUBLE)"),
        Kind.DECIMAL: TypeRule(_FREE, f"CAST({{x}} AS {_FREE})", decimal_pattern(_WHOLE, _SCALE)),
        Kind.TEXT: TypeRule("VARCHAR"),
        Kind.BYTES: TypeRule("BLOB", "unhex(substr({x}, 3))"),
        Kind.DATE: TypeRule("DATE", "CAST({x} AS DATE)", ANNO_DOMINI + _INFINITY),
        Kind.TIME: TypeRule("TIME", "CAST({x} AS TIME)"),
        Kind.TIMETZ: TypeRule("TIMETZ", "CAST({x} AS TIMETZ)"),
        Kind.TIMESTAMP: TypeRule("TIMESTAMP", "CAST({x} AS TIMESTAMP)", ANNO_DOMINI + _INFINITY),
        Kind.TIMESTAMPTZ: TypeRule(
            "TIMESTAMPTZ", "CAST({x} AS TIMESTAMPTZ)", ANNO_DOMINI + _INFINITY
        ),
        # PostgreSQL prints `-1 days +02:03:00`.
        Kind.INTERVAL: TypeRule("INTERVAL", "CAST(replace({x}, '+', '') AS INTERVAL)"),
        Kind.JSON: TypeRule("JSON", "CAST({x} AS JSON)"),
        Kind.UUID: TypeRule("UUID", "CAST({x} AS UUID)"),
        Kind.OTHER: TypeRule("VARCHAR"),
    }

    def array(self, element: LogicalType) -> TypeRule:
        """A list where the element has a plain type, else JSON."""
        if element.kind not in _LISTS:
            return self.types[Kind.JSON]
        sql = f"{_LISTS[element.kind]}[]"
        return TypeRule(sql, f"CAST(CAST({{x}} AS JSON) AS {sql})", FLAT_ARRAY)

    def copies(self, count: str) -> str:
        return f", LATERAL (SELECT unnest(range(CAST({count} AS BIGINT)))) AS _copy(n)"

    def instant(self, version: str) -> str:
        return f"make_timestamptz(CAST({version} // 1000 AS BIGINT))"

    def rename_column(self, table: str, old: str, new: str) -> str:
        return f"ALTER TABLE {table} RENAME {self.quote(old)} TO {self.quote(new)}"


_SHARE = "let the executors share the state directory, or set engine = 'driver'."


class _File:
    """One open database of this process, shared by the sinks that use it."""

    def __init__(self) -> None:
        self.connection: duckdb.DuckDBPyConnection | None = None
        self.users = 0
        #: One writer at a time: DuckDB would refuse the second of two that touch one row.
        self.writing = threading.RLock()


_files: dict[str, _File] = {}
_files_lock = threading.Lock()


@dataclass(frozen=True)
class FolderFiles(PartFiles):
    """Files of a directory that node and executors have by the same path."""

    folder: Path

    @contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = (self.folder / name).open("wb")
        except OSError as error:
            raise ChangefeedError(
                Code.SINK_REFUSED_DATA,
                f"an executor of Spark cannot write a file for DuckDB in {self.folder}",
                detail=error.strerror or type(error).__name__,
                hint=_SHARE,
            ) from None
        with file:
            yield file

    def mark(self, name: str) -> str:
        return ProvedFile(name, FileProof.of(self.folder / name)).text

    def proved(self, mark: str) -> Path:
        """The file, whose bytes are those that were written.

        Raises:
            FileNotFoundError: it is not on this machine.
            AlteredBytes: it has others.
        """
        file = ProvedFile.parse(mark)
        path = self.folder / file.name
        file.proof.verify(path)
        return path


class DuckDB(FileWarehouse):
    """One database file."""

    def __init__(self, path: str, schema: str = "") -> None:
        self.dialect = DuckDBDialect()
        self.schema = schema
        self.place = f"DuckDB file {Path(path).name}"
        self._path = path
        self._catalog = ""
        self._cursor: duckdb.DuckDBPyConnection | None = None
        self._file: _File | None = None

    def connect(self, *, make: bool = True) -> None:
        if self._cursor is not None:
            return
        import duckdb

        path = Path(self._path).resolve()
        if not make and not path.exists():
            if not os.access(path.parent, os.W_OK):
                raise ChangefeedError(
                    Code.SINK_REFUSED_DATA,
                    f"{self.place} cannot be made: its directory is not there or not writable",
                    hint="make the directory, or give this user the right to write in it.",
                )
            return
        key = str(path)
        with _files_lock, explained(self._ours):
            file = _files.setdefault(key, _File())
            if file.connection is None:
                file.connection = duckdb.connect(self._path)
            self._cursor = file.connection.cursor()
            file.users += 1
            self._file = file
        if not self._catalog:
            self._catalog = str(self.query("SELECT current_database()")[0][0])
        if make and self.schema and not self._has_schema():
            self.run([SqlStatement(f"CREATE SCHEMA IF NOT EXISTS {self._prefix}")])

    @property
    def _prefix(self) -> str:
        # With the catalog: a schema called like the file would be ambiguous.
        q = self.dialect.quote
        return f"{q(self._catalog)}.{q(self.schema or 'main')}"

    def name(self, table: str) -> str:
        return f"{self._prefix}.{self.dialect.quote(self.dialect.fit(table))}"

    def there(self) -> bool:
        return self._cursor is not None

    def _has_schema(self) -> bool:
        text = self.dialect.literal
        return bool(
            self.query(
                "SELECT 1 FROM information_schema.schemata WHERE schema_name = "
                f"{text(self.schema)} AND catalog_name = {text(self._catalog)}"
            )
        )

    def run(self, statements: Sequence[SqlStatement]) -> None:
        cursor = self._opened()
        topic = ""
        with self._writing():
            try:
                cursor.execute("BEGIN TRANSACTION")
                for statement in statements:
                    topic = statement.topic
                    cursor.execute(statement.sql)
                cursor.execute("COMMIT")
            except Exception as error:
                self._roll_back()
                raise self._ours(error, topic) from None

    def _roll_back(self) -> None:
        import duckdb

        try:
            self._opened().execute("ROLLBACK")
        except duckdb.Error:
            self.rest()  # no transaction, or the connection itself is broken: begin with a new one

    def query(self, sql: str) -> list[tuple[object, ...]]:
        with explained(self._ours):
            return list(self._opened().execute(sql).fetchall())

    def columns(self, table: str) -> dict[str, str]:
        text = self.dialect.literal
        where = (
            f"table_schema = {text(self.schema or 'main')} "
            f"AND lower(table_name) = lower({text(table)})"
        )
        rows = self.query(
            "SELECT column_name, data_type FROM information_schema.columns "
            f"WHERE {where} AND table_catalog = {text(self._catalog)} ORDER BY ordinal_position"
        )
        return {str(name): str(kind) for name, kind in rows}

    def folding(self, table: str) -> Mapping[str, str]:
        return self.probed_folding(table)

    def load(self, table: str, rows: pa.Table, load_id: str) -> None:
        cursor = self._opened()
        names = ", ".join(map(self.dialect.quote, rows.column_names))
        with self._writing(), explained(self._ours):
            cursor.register("_changefeed_rows", rows)
            cursor.execute(
                f"INSERT INTO {self.name(table)} ({names}) SELECT {names} FROM _changefeed_rows"
            )
            cursor.unregister("_changefeed_rows")

    @contextmanager
    def part_files(self, context: SinkContext, name: str) -> Iterator[FolderFiles]:
        assert context.spark is not None
        with context.spark.shared_folder(Path(context.scratch, f"parts-{name}")) as folder:
            yield FolderFiles(Path(folder))

    def load_files(self, table: str, files: PartFiles, names: Sequence[str], load_id: str) -> None:
        assert isinstance(files, FolderFiles)
        try:
            paths = [files.proved(mark) for mark in names]
        except FileNotFoundError:
            raise ChangefeedError(
                Code.SINK_REFUSED_DATA,
                f"{self.place} cannot load what Spark's executors wrote",
                detail=f"files are not in {files.folder} of this machine",
                hint=_SHARE,
            ) from None
        except (OSError, AlteredBytes) as error:
            raise ChangefeedError(
                Code.SINK_UNREACHABLE,
                "a file of a scan is damaged",
                detail=f"in {files.folder}: {error}",
                hint=f"the scan is repeated; check the disk under {files.folder.parent}.",
            ) from error
        listed = ", ".join(self.dialect.literal(str(path)) for path in paths)
        with self._writing(), explained(self._ours):
            self._opened().execute(
                f"INSERT INTO {self.name(table)} BY NAME SELECT * FROM read_parquet([{listed}])"
            )

    def rest(self) -> None:
        """Let go of the file once no other sink of this process uses it."""
        cursor, self._cursor = self._cursor, None
        file, self._file = self._file, None
        if cursor is None or file is None:
            return
        with _files_lock:
            cursor.close()
            file.users -= 1
            if file.users == 0 and file.connection is not None:
                file.connection.close()
                file.connection = None

    def close(self) -> None:
        self.rest()

    def _opened(self) -> duckdb.DuckDBPyConnection:
        if self._cursor is None:
            raise ChangefeedError(Code.SINK_UNREACHABLE, f"{self.place} is not open")
        return self._cursor

    @contextmanager
    def _writing(self) -> Iterator[None]:
        file = self._file
        if file is None:
            raise ChangefeedError(Code.SINK_UNREACHABLE, f"{self.place} is not open")
        with file.writing:
            yield

    def _ours(self, error: Exception, topic: str) -> ChangefeedError:
        import duckdb

        kind = type(error).__name__
        where = f"table {topic} of {self.place}" if topic else self.place
        if isinstance(error, duckdb.TransactionException):
            return ChangefeedError(Code.SINK_BUSY, f"{where} is busy", detail=kind)
        # In use: another connection of this process is closing.
        if isinstance(error, duckdb.IOException | duckdb.ResourceInUseException):
            hint = "is the file open in another program? The feed retries."
            return ChangefeedError(
                Code.SINK_UNREACHABLE, f"{where} cannot be opened", detail=kind, hint=hint
            )
        if isinstance(error, duckdb.DataError | duckdb.NotSupportedError | duckdb.IntegrityError):
            return ChangefeedError(
                Code.SINK_CANNOT_TAKE_TABLE,
                f"{where} refused the data",
                detail=kind,
                target=topic,
                about_row=not isinstance(error, duckdb.NotSupportedError),
            )
        if isinstance(error, duckdb.ProgrammingError):
            # About names and types: the statements hold no values of rows.
            reason = str(error).splitlines()[0]
            return ChangefeedError(
                Code.SINK_REFUSED_DATA, f"{where} refused a statement", detail=reason, target=topic
            )
        if isinstance(error, duckdb.Error):
            return ChangefeedError(Code.SINK_UNREACHABLE, f"{where} failed", detail=kind)
        raise error


@dataclass(frozen=True, kw_only=True)
class DuckDBSettings(Settings):
    """``duckdb:///path/file.duckdb``."""

    schema: str = setting("", "The schema of the tables.", shown="DuckDB's own, main")

    def check(self) -> Iterator[ChangefeedError]:
        if self.uri.host or not self.uri.database:
            yield invalid_uri("a DuckDB sink names a file", "write duckdb:///path/file.duckdb")


class DuckDBSink(PartsSink):
    """Tables of a DuckDB file."""

    capabilities: ClassVar[Capabilities] = replace(
        PartsSink.capabilities, loads_parts=PartPlace.FOLDER
    )

    parameters: ClassVar[tuple[Parameter, ...]] = DuckDBSettings.parameters()

    def __init__(self, uri: str, options: Mapping[str, object] | None = None) -> None:
        settings = DuckDBSettings.read(uri)
        super().__init__(DuckDB(settings.uri.path, settings.schema), options)

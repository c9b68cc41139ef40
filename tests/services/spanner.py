"""Spanner's stand-ins: Google's own emulator where there is one, else a fake that can be built.

The emulator (of the Google Cloud CLI, component ``cloud-spanner-emulator``) is Spanner's front end
in memory: its parser, types and transactions, one at a time; it does not count mutations. No
package registry has it, so it is used where the CLI has brought it. The fake is ``spannertest``, a
package of Google's Go client, behind a program of ours (``spanner_server``) that is built once by a
Go out of a wheel.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
from google.api_core import exceptions as api
from google.cloud.spanner_admin_database_v1.services.database_admin import DatabaseAdminClient
from google.cloud.spanner_admin_database_v1.services.database_admin.transports import (
    DatabaseAdminGrpcTransport,
)
from google.cloud.spanner_admin_database_v1.types import CreateDatabaseRequest, DatabaseDialect
from google.cloud.spanner_admin_instance_v1.services.instance_admin import InstanceAdminClient
from google.cloud.spanner_admin_instance_v1.services.instance_admin.transports import (
    InstanceAdminGrpcTransport,
)
from google.cloud.spanner_admin_instance_v1.types import Instance
from google.cloud.spanner_v1 import types
from google.cloud.spanner_v1.services.spanner import SpannerClient
from google.cloud.spanner_v1.services.spanner.transports import SpannerGrpcTransport

from changefeed.embedded.server import free_port
from tests.services.golang import built
from tests.services.python import PythonServer, Unavailable

PROJECT, INSTANCE = "local", "shop-instance"
_SOURCES = Path(__file__).with_name("spanner_server")


def emulator() -> Path:
    """Google's emulator.

    Raises:
        Unavailable: this machine has none.
    """
    cli = shutil.which("gcloud")
    if cli is not None:
        found = Path(cli).resolve().parent / "cloud_spanner_emulator" / "emulator_main"
        if found.exists():
            return found
    raise Unavailable("needs the component cloud-spanner-emulator of the Google Cloud CLI")


def fake() -> Path:
    """Our program around the fake, built once for each content of its sources.

    Raises:
        Unavailable: its modules cannot be fetched.
    """
    return built("spanner-fake", _SOURCES)


class SpannerServer(PythonServer):
    """A server in memory: what it has is gone with it. ``real`` is Google's emulator."""

    _numbers = itertools.count(1)

    def __init__(self, folder: Path, *, real: bool) -> None:
        super().__init__(folder, free_port())
        self.real = real
        self._program = emulator() if real else fake()

    @property
    def endpoint(self) -> str:
        """``127.0.0.1:port``."""
        return f"127.0.0.1:{self.port}"

    def uri(self, database: str) -> str:
        """A sink URI."""
        return f"spanner://{PROJECT}/{INSTANCE}/{database}?endpoint={self.endpoint}"

    def start(self, timeout: float = 60.0) -> None:
        super().start(timeout)
        if not self.real:
            return  # it asks for no instance
        with self._channel() as channel:
            instances = InstanceAdminClient(transport=InstanceAdminGrpcTransport(channel=channel))
            instances.create_instance(
                parent=f"projects/{PROJECT}",
                instance_id=INSTANCE,
                instance=Instance(
                    display_name=INSTANCE,
                    config=f"projects/{PROJECT}/instanceConfigs/emulator-config",
                    node_count=1,
                ),
            ).result(timeout=30)  # type: ignore[no-untyped-call]

    @contextmanager
    def database(self) -> Iterator[str]:
        """A database of its own; dropped afterwards."""
        name = f"test-{next(self._numbers)}"
        self.make(name)
        try:
            yield name
        finally:
            if self.running:
                with self._channel() as channel:
                    _admin(channel).drop_database(database=_path(name))

    def make(self, database: str, *, postgresql: bool = False) -> None:
        """Make a database; with the PostgreSQL dialect in Google's emulator only."""
        quote = '"' if postgresql else "`"
        dialect = DatabaseDialect.POSTGRESQL if postgresql else DatabaseDialect.GOOGLE_STANDARD_SQL
        request = CreateDatabaseRequest(
            parent=f"projects/{PROJECT}/instances/{INSTANCE}",
            create_statement=f"CREATE DATABASE {quote}{database}{quote}",
            database_dialect=dialect,
        )
        with self._channel() as channel:
            made = _admin(channel).create_database(request=request)
            made.result(timeout=30)  # type: ignore[no-untyped-call]

    def define(self, database: str, *statements: str) -> None:
        """Run definitions."""
        with self._channel() as channel:
            _admin(channel).update_database_ddl(
                database=_path(database), statements=list(statements)
            ).result(timeout=30)  # type: ignore[no-untyped-call]

    def query(self, database: str, sql: str) -> list[dict[str, object]]:
        """All rows of a query, by name of column, with Python's values."""
        with self._channel() as channel:
            client = SpannerClient(transport=SpannerGrpcTransport(channel=channel))
            session = client.create_session(database=_path(database)).name
            try:
                request = types.ExecuteSqlRequest(session=session, sql=sql)
                found = types.ResultSet.pb(client.execute_sql(request))
            finally:
                client.delete_session(name=session)
        fields = found.metadata.row_type.fields
        return [
            {f.name: _value(f.type_, v) for f, v in zip(fields, row.values, strict=True)}
            for row in found.rows
        ]

    def rows(self, database: str, table: str) -> list[dict[str, object]]:
        """All rows of a table; none where there is no such table."""
        try:
            return self.query(database, f"SELECT * FROM `{table}`")
        except (api.InvalidArgument, api.NotFound) as error:
            if "not found" in str(error).lower() or "no table" in str(error):
                return []
            raise

    # ------------------------------------------------------------------ details

    @contextmanager
    def _channel(self) -> Iterator[grpc.Channel]:
        with closing(grpc.insecure_channel(self.endpoint)) as channel:
            yield channel

    def command(self) -> tuple[Sequence[str | Path], Mapping[str, str]]:
        command: list[str | Path] = [self._program, "--host_port", self.endpoint]
        if self.real:
            # It runs one transaction at a time. A new one aborts that, always and not by chance.
            command.append("--abort_current_transaction_probability=100")
        return command, {}

    def ready(self) -> bool:
        with self._channel() as channel:
            try:
                grpc.channel_ready_future(channel).result(timeout=1.0)
            except grpc.FutureTimeoutError:
                return False
            return True


def _admin(channel: grpc.Channel) -> DatabaseAdminClient:
    return DatabaseAdminClient(transport=DatabaseAdminGrpcTransport(channel=channel))


def _path(database: str) -> str:
    return f"projects/{PROJECT}/instances/{INSTANCE}/databases/{database}"


def _value(kind: Any, value: Any) -> object:
    if value.WhichOneof("kind") == "null_value":
        return None
    if kind.code == types.TypeCode.INT64:
        return int(value.string_value)
    return getattr(value, value.WhichOneof("kind"))

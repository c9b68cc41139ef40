"""A BigQuery dataset: Parquet load jobs into staging, and scripts that are one transaction.

* A load job has an id made of what it loads. When its answer was lost it is asked for again,
  and BigQuery says that there is such a job (409): nothing is loaded twice.
* A script is rolled back as a whole when a statement of it fails or it ends early.
"""

from __future__ import annotations

import hashlib
import json
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, cast

import google.auth
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import requests
from google.api_core import exceptions as api
from google.auth.credentials import AnonymousCredentials, Credentials
from google.auth.transport.requests import Request
from google.cloud import bigquery
from google.cloud.bigquery.job.load import ColumnNameCharacterMap
from google.cloud.bigquery.retry import DEFAULT_RETRY
from google.oauth2 import service_account

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.time_limits import PATIENCE, limit_requests
from sinks.base import SinkContext
from sinks.warehouse.bigquery.errors import sorted_out, translated
from sinks.warehouse.bigquery.sql import BigQueryDialect, escape_name, plain_name
from sinks.warehouse.dialect import SqlStatement
from sinks.warehouse.errors import readable
from sinks.warehouse.parts import FileWarehouse, PartFiles

log = logging.getLogger("changefeed.sinks.bigquery")

#: Limits of one script and of one transaction, with some room.
_SCRIPT_BYTES, _TRANSACTION_TABLES = 900_000, 30
_UPLOAD_RETRIES = 2
#: Load jobs of one content that may have failed before.
_ATTEMPTS = 100
_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)

#: Type names of the API that the language spells differently.
_SPELLING = {"INTEGER": "INT64", "FLOAT": "FLOAT64", "BOOLEAN": "BOOL", "STRUCT": "RECORD"}


@dataclass(frozen=True, slots=True)
class Limits:
    """How long calls may take, in seconds; the feed tries again.

    Attributes:
        call: a call that nobody answers is repeated for so long.
        idle: the service may be silent for so long.
        patience: a request may take so many times as long.
    """

    call: float = 20.0
    idle: float = 60.0
    patience: float = PATIENCE


@dataclass(frozen=True)
class BucketFiles(PartFiles):
    """Objects of a bucket whose names begin alike. A task logs in by itself: a token of the node
    would end in an hour."""

    warehouse: BigQueryWarehouse
    prefix: str

    @contextmanager
    def create(self, name: str) -> Iterator[Any]:
        with self.warehouse.files().open_output_stream(self.prefix + name) as file:
            yield file


class BigQueryWarehouse(FileWarehouse):
    """A dataset. Not connected until :meth:`connect`.

    Args:
        project, dataset: where the tables are.
        location: of a dataset that has to be made; else BigQuery's default.
        credentials: a service account's key as JSON text; None is the machine's own login
            (application default credentials).
        endpoint: of an emulator, without a login where it is plain ``http``.
        bucket: ``bucket/prefix`` in Cloud Storage that loads go through; empty is directly.
        limits: how long calls may take.
    """

    dialect: BigQueryDialect

    def __init__(
        self,
        project: str,
        dataset: str,
        *,
        location: str | None = None,
        credentials: str | None = None,
        endpoint: str | None = None,
        bucket: str = "",
        limits: Limits | None = None,
    ) -> None:
        self._limits = limits or Limits()
        self._retry = DEFAULT_RETRY.with_timeout(self._limits.call)
        self.dialect = BigQueryDialect()
        self.schema = dataset
        self.place = f"BigQuery dataset {project}.{dataset}"
        self._project = project
        self._location = location
        self._key = credentials
        self._endpoint = endpoint
        self._bucket = bucket.strip("/")
        self._credentials: Credentials | None = None
        self._client: bigquery.Client | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_credentials": None, "_client": None}

    # ------------------------------------------------------------------ connection

    def connect(self, *, make: bool = True) -> None:
        if self._client is not None:
            return
        with translated(self.place, "connecting"):
            self._credentials = self._login()
            client = bigquery.Client(
                project=self._project,
                credentials=self._credentials,
                client_options={"api_endpoint": self._endpoint} if self._endpoint else None,
            )
            self._limit(client)
            try:
                with readable(self.place, "connecting"):
                    self._location = self._find_dataset(client, make=make)
            except BaseException:
                client.close()  # type: ignore[no-untyped-call]
                raise
        self._client = client

    def _limit(self, client: bigquery.Client) -> None:
        """Give every request of a client an end, those for its tokens too.

        The client makes its sessions itself: should a later version keep them in another
        place, they stay as they are (and the test of this fails).
        """
        session = client._http
        tokens = getattr(session, "_auth_request_session", None)
        for each in (session, tokens):
            if each is not None:
                limit_requests(each, self._limits.idle, self._limits.patience)

    def _login(self) -> Credentials:
        if self._key is not None:
            made: Credentials = service_account.Credentials.from_service_account_info(  # type: ignore[no-untyped-call]
                json.loads(self._key), scopes=_SCOPES
            )
            return made
        if self._endpoint and self._endpoint.startswith("http://"):
            return AnonymousCredentials()  # type: ignore[no-untyped-call]
        found, _ = google.auth.default(scopes=_SCOPES)
        return found

    def _find_dataset(self, client: bigquery.Client, *, make: bool) -> str | None:
        name = f"{self._project}.{self.schema}"
        try:
            found = client.get_dataset(name, retry=self._retry, timeout=self._limits.idle)
        except api.NotFound:
            if not make:
                return self._location
            wanted = bigquery.Dataset(name)
            if self._location:
                wanted.location = self._location
            found = client.create_dataset(
                wanted, exists_ok=True, retry=self._retry, timeout=self._limits.idle
            )
        location: str | None = found.location
        return location

    @property
    def _connected(self) -> bigquery.Client:
        if self._client is None:
            raise ChangefeedError(Code.SINK_UNREACHABLE, f"{self.place} is not connected")
        return self._client

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()  # type: ignore[no-untyped-call]

    # ------------------------------------------------------------------ statements

    def run(self, statements: Sequence[SqlStatement]) -> None:
        """All of it is one transaction, but for rounds of very many tables: then the tables of
        a script are, and the next script goes on with others."""
        for script in _scripts(statements):
            self._script(script)

    def _script(self, statements: Sequence[SqlStatement]) -> None:
        lines = [_one_line(statement.sql) for statement in statements]
        if len(lines) > 1:
            lines = ["BEGIN TRANSACTION", *lines, "COMMIT TRANSACTION"]
        sql = ";\n".join(lines)
        topics = {statement.topic for statement in statements}
        job: bigquery.QueryJob | None = None
        try:
            with readable(self.place, "statements"):
                job = self._start(sql, "merge")
                job.result(retry=self._retry, job_retry=None)
        except ChangefeedError:
            raise
        except api.GoogleAPICallError as error:
            topic = topics.pop() if len(topics) == 1 else self._blamed(job, statements)
            raise sorted_out(error, self.place, _named("statements", job), topic) from None
        except Exception as error:
            with translated(self.place, _named("statements", job)):
                raise error

    def _start(self, sql: str, label: str) -> bigquery.QueryJob:
        config = bigquery.QueryJobConfig(labels={"changefeed": label})
        return self._connected.query(
            sql,
            config,
            location=self._location,
            retry=self._retry,
            timeout=self._limits.idle,
            job_retry=None,
        )

    def _blamed(self, job: bigquery.QueryJob | None, statements: Sequence[SqlStatement]) -> str:
        """The table of the statement that failed; empty when BigQuery does not say."""
        if job is None:
            return ""
        by_text = {_one_line(statement.sql): statement.topic for statement in statements}
        what = _named("looking for the failed statement of", job)
        with translated(self.place, what), readable(self.place, what):
            children = self._connected.list_jobs(parent_job=job.job_id, retry=self._retry)
            for child in children:
                if child.error_result and isinstance(child, bigquery.QueryJob):
                    return by_text.get(child.query.strip().rstrip(";"), "")
        return ""

    def query(self, sql: str) -> list[tuple[object, ...]]:
        job: bigquery.QueryJob | None = None
        with translated(self.place, "a query"), readable(self.place, "a query"):
            job = self._start(sql, "look")
            return [tuple(row.values()) for row in job.result(retry=self._retry, job_retry=None)]

    def columns(self, table: str) -> dict[str, str]:
        return {plain_name(field.name): _type_name(field) for field in self._fields(table)}

    def folding(self, table: str) -> Mapping[str, str]:
        return folding_of(self._fields(table))

    def _fields(self, table: str) -> Sequence[bigquery.SchemaField]:
        """The columns of a table; none if it is not there."""
        reference, what = self._reference(table), "looking at a table"
        with translated(self.place, what, table), readable(self.place, what):
            try:
                found = self._connected.get_table(
                    reference, retry=self._retry, timeout=self._limits.idle
                )
            except api.NotFound:
                return ()
            return list(found.schema)

    def _reference(self, table: str) -> str:
        return f"{self._project}.{self.schema}.{escape_name(table)}"

    # ------------------------------------------------------------------ loads

    def load(self, table: str, rows: pa.Table, load_id: str) -> None:
        renamed = rows.rename_columns([escape_name(name) for name in rows.column_names])
        first = self._job_id(table, load_id)
        with translated(self.place, "a load", table), self._file(renamed, first) as source:
            self._load_from(table, source, first)

    @contextmanager
    def part_files(self, context: SinkContext, name: str) -> Iterator[BucketFiles]:
        ours = f"{self._bucket}/changefeed_parts/{context.state}-{context.job_id}"
        self._clear(ours)
        try:
            yield BucketFiles(self, f"{ours}/{name}-")
        finally:
            try:
                self._clear(ours)
            except ChangefeedError as error:  # the next round removes them
                log.warning("files of a scan stay in the bucket for now: %s", error.message)

    def _clear(self, folder: str) -> None:
        with translated(self.place, "removing files of a scan"):
            self.files().delete_dir_contents(folder, missing_dir_ok=True)

    def load_files(self, table: str, files: PartFiles, names: Sequence[str], load_id: str) -> None:
        assert isinstance(files, BucketFiles)
        with translated(self.place, "a load", table):
            paths = [f"gs://{files.prefix}{name}" for name in names]
            self._load_from(table, paths, self._job_id(table, load_id))

    def file_column(self, name: str) -> str:
        return escape_name(name)

    def _job_id(self, table: str, load_id: str) -> str:
        # Ids are the project's: those of another dataset must not meet ours.
        identity = f"{self._reference(table)} {load_id}"
        return "changefeed_" + hashlib.sha256(identity.encode()).hexdigest()[:40]

    def _load_from(self, table: str, source: IO[bytes] | Sequence[str], first: str) -> None:
        for attempt in range(1, _ATTEMPTS):
            # A job that failed keeps its id: the next attempt has another one.
            with readable(self.place, "a load"):
                job, is_new = self._load_job(table, source, f"{first}_{attempt}")
            try:
                with readable(self.place, "a load"):
                    job.result(retry=self._retry)
                return
            except api.GoogleAPICallError:
                if is_new or job.error_result is None:
                    raise

    def _load_job(
        self, table: str, source: IO[bytes] | Sequence[str], job_id: str
    ) -> tuple[bigquery.LoadJob, bool]:
        """The job of this id, and whether it is new."""
        config = bigquery.LoadJobConfig(
            source_format=bigquery.SourceFormat.PARQUET,
            write_disposition=bigquery.WriteDisposition.WRITE_APPEND,
            create_disposition=bigquery.CreateDisposition.CREATE_NEVER,
            column_name_character_map=ColumnNameCharacterMap.V2,
            labels={"changefeed": "load"},
        )
        client, target = self._connected, self._reference(table)
        try:
            if isinstance(source, Sequence):
                made = client.load_table_from_uri(
                    source,
                    target,
                    job_id=job_id,
                    location=self._location,
                    job_config=config,
                    retry=self._retry,
                    timeout=self._limits.idle,
                )
            else:
                made = client.load_table_from_file(
                    source,
                    target,
                    rewind=True,
                    num_retries=_UPLOAD_RETRIES,
                    job_id=job_id,
                    location=self._location,
                    job_config=config,
                    timeout=self._limits.idle,
                )
            return made, True
        except api.Conflict:
            found = client.get_job(job_id, location=self._location, retry=self._retry)
            return cast(bigquery.LoadJob, found), False

    @contextmanager
    def _file(self, rows: pa.Table, name: str) -> Iterator[IO[bytes] | Sequence[str]]:
        if not self._bucket:
            with tempfile.TemporaryFile() as file:
                pq.write_table(rows, file, compression="zstd")
                file.seek(0)
                yield file
            return
        path = f"{self._bucket}/{name}.parquet"
        files = self.files()
        try:
            pq.write_table(rows, path, compression="zstd", filesystem=files)
            yield [f"gs://{path}"]
        finally:
            try:
                files.delete_file(path)
            except FileNotFoundError:
                pass  # the write itself failed

    def files(self) -> Any:
        """Cloud Storage with the login of the client (its tokens last an hour, a load minutes)."""
        if self._credentials is None:
            self._credentials = self._login()
        login = self._credentials
        if isinstance(login, AnonymousCredentials):
            return pyarrow.fs.GcsFileSystem(anonymous=True)
        with requests.Session() as session:
            limit_requests(session, self._limits.idle, self._limits.patience)
            login.refresh(Request(session))  # type: ignore[no-untyped-call]
        return pyarrow.fs.GcsFileSystem(
            access_token=login.token, credential_token_expiration=login.expiry
        )


def _scripts(statements: Sequence[SqlStatement]) -> Iterator[list[SqlStatement]]:
    """Statements in groups that fit a script; those of one table stay together."""
    group: list[SqlStatement] = []
    size, topics = 0, 0
    for i, statement in enumerate(statements):
        new_topic = i == 0 or statement.topic != statements[i - 1].topic
        if new_topic and group and (size > _SCRIPT_BYTES // 2 or topics >= _TRANSACTION_TABLES):
            yield group
            group, size, topics = [], 0, 0
        group.append(statement)
        size += len(statement.sql.encode())
        topics += new_topic
    if group:
        yield group


def _one_line(sql: str) -> str:
    return sql.strip().rstrip(";")


def _named(what: str, job: Any) -> str:
    return f"{what}, job {job.job_id} in {job.location}" if job is not None else what


def folding_of(fields: Sequence[bigquery.SchemaField]) -> dict[str, str]:
    """Columns with a collation (``und:ci``) -> what to call it. A column gets that of its dataset
    unless it says another."""
    shown = {plain_name(field.name): field.to_api_repr().get("collation") for field in fields}
    return {name: f"the collation {found}" for name, found in shown.items() if found}


def _type_name(field: bigquery.SchemaField) -> str:
    written = str(field.field_type).replace(" ", "")
    name, parenthesis, rest = written.partition("(")
    spelled = _SPELLING.get(name, name) + parenthesis + rest
    if field.precision and not parenthesis:
        scale = f",{field.scale}" if field.scale else ""
        spelled += f"({field.precision}{scale})"
    return f"ARRAY<{spelled}>" if field.mode == "REPEATED" else spelled

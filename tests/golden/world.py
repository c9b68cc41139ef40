"""A small world for statements: a state, a fake source, a fake node, and time that stands still."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from changefeed.api import FeedPlan, Interpreter, Result, Session
from changefeed.catalog import Catalog, DesiredStatus, Lease, Status, TableState
from changefeed.core.clock import ManualClock, Timestamp
from changefeed.core.engines import SparkReport
from changefeed.core.errors import ChangefeedError, Problems
from changefeed.core.events import ClientRow, Position
from changefeed.core.partition import KeyInterval, Partition
from changefeed.core.schema import BeforeImage, Column, TableName, TableSchema
from changefeed.core.spark_jobs import SparkJob, SparkJobs
from changefeed.core.timings import LONGEST_LEASE
from changefeed.core.types import LogicalType
from changefeed.core.work_stages import Flow, StageCost, WorkStage
from changefeed.dataset.model import DatasetColumn
from changefeed.dataset.tables import Registration
from changefeed.options import mask_statement
from changefeed.plan.sink_resolution import ResolvedSink
from changefeed.query.evaluate import QuerySessions
from changefeed.query.model import CompiledQuery
from changefeed.sources.base import (
    Attachment,
    CaptureResult,
    Handover,
    Memo,
    PartitionInfo,
    Snapshot,
    Source,
    Stream,
    StreamRequest,
    TableInfo,
    TableLocations,
    Watch,
)
from changefeed.sources.postgres.logical_messages import messages_schema
from changefeed.statements.context import Measurement
from grammar import nodes
from grammar.nodes import Span as GrammarSpan
from grammar.problems import point
from sinks.base import SparkAccess, Target

#: 2023-11-14 22:13:20 UTC.
NOW = 1_700_000_000_000_000_000

#: Passwords of the scripts; none may ever be in an answer.
SECRETS = ("s3cret", "hunter2")

_KINDS = {
    "bigint": "int64",
    "integer": "int32",
    "boolean": "bool",
    "numeric(12,2)": "decimal(12,2)",
    "jsonb": "json",
    "text": "text",
    "timestamp with time zone": "timestamptz",
}


def shape(
    table: TableName,
    columns: dict[str, str],
    key: Sequence[str] = (),
    before_image: BeforeImage = BeforeImage.KEY,
) -> TableSchema:
    """A table's shape from column names and type names."""
    made = tuple(
        Column(name, kind, LogicalType.parse(_KINDS[kind]), name not in key, number)
        for number, (name, kind) in enumerate(columns.items(), 1)
    )
    places = tuple(i for i, name in enumerate(columns) if name in key) or tuple(range(len(made)))
    return TableSchema(table, made, places, before_image, keyless=not key)


def shop(source: str) -> dict[TableName, TableSchema]:
    """The tables of the fake source."""

    def table(name: str, columns: dict[str, str], key: Sequence[str] = ()) -> TableSchema:
        schema, _, short = name.rpartition(".")
        return shape(TableName(source, schema or "public", short), columns, key)

    made = [
        table(
            "orders",
            {
                "id": "bigint",
                "customer": "integer",
                "total": "numeric(12,2)",
                "note": "text",
                "meta": "jsonb",
                "at": "timestamp with time zone",
            },
            ["id"],
        ),
        table("customers", {"id": "integer", "name": "text"}, ["id"]),
        table(
            "items", {"order_id": "bigint", "line": "integer", "sku": "text"}, ["order_id", "line"]
        ),
        table("visits", {"at": "timestamp with time zone", "page": "text"}),
        table("audit.log", {"id": "bigint", "what": "text"}, ["id"]),
        table("audit.log_old", {"id": "bigint", "what": "text"}, ["id"]),
        table("audit.orders", {"id": "bigint", "what": "text"}, ["id"]),
        table("Odd Name", {"id": "bigint", "Größe": "text"}, ["id"]),
    ]
    return {schema.table: schema for schema in made}


@dataclass
class FakeSource(Source):
    """Tables in a dict; remembers what was asked of it."""

    name: str
    uri: str
    schemas: dict[TableName, TableSchema]
    problems: list[ChangefeedError] = field(default_factory=list)
    down: ChangefeedError | None = None
    position: int = 0x100
    captured: list[tuple[TableName, ...]] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    heirs: tuple[str, ...] = ()
    refused: dict[TableName, ChangefeedError] = field(default_factory=dict)
    #: Numbers of the tables by name; None: the source has none.
    located: dict[str, int] | None = None
    takes_row_images: bool = True

    def locate(self, tables: Sequence[TableName], ids: Sequence[int]) -> TableLocations | None:
        if self.located is None:
            return None
        self.reach()
        return TableLocations({t: self.located[t.name] for t in tables}, {})

    def reach(self) -> None:
        if self.down is not None:
            raise ChangefeedError(self.down.code.number, self.down.message)

    def tables(self) -> list[TableInfo]:
        self.reach()
        return [
            TableInfo(
                name,
                () if schema.keyless else tuple(c.name for c in schema.key_columns),
                "full" if schema.before_image is BeforeImage.FULL else "default",
                1000 * len(schema.columns),
                65_536 * len(schema.columns),
                "table",
                _note(schema),
            )
            for name, schema in self.schemas.items()
        ]

    def warnings(self, watches: Sequence[Watch] = ()) -> list[str]:
        about = [f"{watch.name} has heirs" for watch in watches if watch.name in self.heirs]
        return [*self.words, *about]

    def describe(self, schema: str | None, name: str) -> TableSchema:
        self.reach()
        if name == "a_view":
            raise ChangefeedError("CF1302", f"CHANGEFEED cannot target views: {name}")
        found = self.schemas.get(TableName(self.name, schema or "public", name))
        if found is None:
            shown = f"{schema}.{name}" if schema else name
            raise ChangefeedError("CF1101", f'table "{shown}" does not exist')
        return found

    def partitions(self, table: TableSchema) -> list[str]:
        return ["p_2026"]

    def partition(self, table: TableSchema, name: str) -> PartitionInfo:
        if name != "p_2026":
            raise ChangefeedError("CF1101", f'table {table.table.name} has no partition "{name}"')
        number = table.columns[0].column_id
        return PartitionInfo(Partition(name, (KeyInterval((number,), ("1",), ("9",)),)), 10, 8192)

    def messages(self) -> TableSchema:
        return messages_schema(self.name)

    def matching(self, schema: str | None, patterns: Sequence[str] = ()) -> list[TableName]:
        self.reach()
        if schema is not None and schema not in {name.schema for name in self.schemas}:
            raise ChangefeedError("CF1101", f'schema "{schema}" does not exist')

        def fits(name: TableName) -> bool:
            texts = (f"{name.schema}.{name.name}" if "." in p else name.name for p in patterns)
            return any(fnmatchcase(t, p) for t, p in zip(texts, patterns, strict=True))

        return [
            name
            for name in sorted(self.schemas)
            if schema in (None, name.schema) and (not patterns or fits(name))
        ]

    def identity(self) -> str:
        self.reach()
        return "7001/shop"

    def current_position(self) -> Position:
        self.reach()
        return f"{self.position:016X}"

    def attach(self, owner: str, memo: Memo | None) -> FakeAttachment:
        return FakeAttachment(
            self, str((memo or {}).get("slot", f"changefeed_{owner}_{self.name}"))
        )

    def snapshot(self, tables: Sequence[TableSchema] = ()) -> Snapshot:
        raise AssertionError("statements do not scan")

    def handover(
        self, offset: Mapping[str, Any], tables: Sequence[TableName], *, fresh: bool
    ) -> Handover:
        return Handover(f"{offset['lsn']:016X}", {"slot": "copied"} if fresh else {})


@dataclass
class FakeAttachment(Attachment):
    """What a state holds at a fake source: a slot of a name."""

    source: FakeSource
    slot: str

    @property
    def memo(self) -> Memo:
        return {"slot": self.slot}

    @property
    def holds(self) -> str:
        return f"slot {self.slot}"

    def check(self, watches: Sequence[Watch]) -> list[ChangefeedError]:
        self.source.reach()
        watched = {str(w): w for w in watches}
        for problem in self.source.problems:
            mine = watched.get(problem.detail)
            problem.span = mine.span if mine else None
        return [p for p in self.source.problems if not p.detail or p.detail in watched]

    def capture(self, tables: Sequence[TableName], *, resume: bool) -> CaptureResult:
        self.source.reach()
        self.source.captured.append(tuple(tables))
        refused = self.source.refused
        return CaptureResult(
            problems={table: refused[table] for table in tables if table in refused}
        )

    def start(self) -> tuple[Position, str]:
        raise AssertionError("statements do not read the log")

    def stream(self, request: StreamRequest) -> Stream:
        raise AssertionError("statements do not stream")

    def release(self) -> None:
        self.source.reach()
        self.source.released.append(self.slot)


def _note(schema: TableSchema) -> str:
    name = schema.table
    shown = (
        f"{name.schema}.{name.name}" if name.name.isidentifier() else f'{name.schema}."{name.name}"'
    )
    alter = f"no primary key: ALTER TABLE {shown} REPLICA IDENTITY FULL; first"
    return alter if schema.keyless and schema.before_image is BeforeImage.KEY else ""


class FakeNode:
    """Does what the job table wants, at once, when it is woken; ``up`` is whether it runs."""

    def __init__(self, catalog: Catalog, up: bool) -> None:
        self.catalog = catalog
        self.up = up
        self.asleep = False
        self.refuses: ChangefeedError | None = None
        self.wakes = 0
        self.hastened: list[str] = []
        self._leases: dict[int, Lease] = {}

    def node_running(self) -> bool:
        return self.up

    def compile_query(self, schema: TableSchema, query: nodes.Query) -> CompiledQuery:
        raise ChangefeedError("CF4003", "a CDC query needs Spark in this process")

    def extract_columns(
        self, location: str, form: str | None, delimiter: str
    ) -> tuple[DatasetColumn, ...]:
        raise AssertionError("no statement of these tests reads an extract")

    def check_tables(self, registration: Registration) -> None:
        raise AssertionError("no statement of these tests registers a table")

    @property
    def spark_elsewhere(self) -> bool:
        return False

    def spark_report(self) -> SparkReport:
        return SparkReport(
            "running", "local[2]", 2, "4.1.4", ("rounds of Delta tables", "checks of CDC queries"),
            ("a scan or backlog that is cancelled ends its running job only",),
        )  # fmt: skip

    def spark_jobs(self, feed: int, node: str | None) -> SparkJobs:
        if feed % 2 == 0:
            return SparkJobs(idle="Spark runs no job: not started")
        began = 1_700_000_000_000_000_000
        running = SparkJob(7, "public.orders", "query", "running", 4, 1, 2, began - 90_000_000_000)
        sizes = {"read_rows": 5000, "read_bytes": 1_500_000, "written_rows": 12}
        ended = replace(
            running, id=6, table="", step="scan 1", status="succeeded", ended=began, **sizes
        )
        return SparkJobs((running, ended))

    def query_sessions(self) -> QuerySessions:
        raise AssertionError("no statement of these tests evaluates a query")

    def spark_with(self, packs: Sequence[str]) -> SparkAccess:
        raise AssertionError("no statement of these tests reads a lake table")

    def start_sinkless(self, plan: FeedPlan, gone: Callable[[], bool]) -> Iterator[ClientRow]:
        for table in plan.tables:
            yield ClientRow(table.schema.table.name, b"[1]", '{"after": {"a": "é"}}'.encode(), "c")
        yield ClientRow(None, None, b'{"resolved": "1.0000000000"}', "")

    def measure(self, plan: FeedPlan, seconds: float, gone: Callable[[], bool]) -> Measurement:
        tables = [replace(table.progress, scan_total=90_000) for table in plan.tables]
        costs = {
            WorkStage.SCAN_READ: StageCost(50_000, 4_000_000, 0.5),
            WorkStage.SCAN_ENCODE: StageCost(50_000, 9_000_000, 4.0),
            WorkStage.READ: StageCost(100, 8_000, 0.001),
            WorkStage.ENCODE: StageCost(100, 18_000, 0.002),
        }
        scan = Flow(50_000, 8_000_000, 300, 0.25, seconds)
        return Measurement(seconds, costs, scan, Flow(100, 16_000, 300, 1.0, 2.0), tables)

    def hasten(self, source: str) -> None:
        self.hastened.append(source)

    def deliver_now(self, job_id: int) -> None:
        self.wake()

    def wake(self) -> None:
        self.wakes += 1
        if not self.up or self.asleep:
            return
        for job in self.catalog.jobs():
            if job.wanted is DesiredStatus.DROPPED:
                self.catalog.delete_job(job.id)
            elif job.wanted is DesiredStatus.PAUSED and job.status.active:
                self.catalog.transition(job.id, Status.PAUSED, reason="paused by the user")
            elif job.status is Status.STARTING and self.refuses is not None:
                self.catalog.transition(
                    job.id, Status.FAILED, reason="the source refused", error=self.refuses
                )
            elif job.status is Status.STARTING:
                self.run(job.id)
            elif job.id in self._leases and job.taken < job.generation:
                self.catalog.take_generation(job.id, job.generation, self._leases[job.id])
        for state in self.catalog.source_states():
            self._capture(state.name)
            if not self.catalog.source_jobs(state.name):
                self.catalog.forget_source(state.name)

    def run(self, job_id: int) -> Lease:
        """Take the job and show it running with its tables captured."""
        job = self.catalog.job(job_id)
        lease = self.catalog.acquire_lease(job_id, "node1", LONGEST_LEASE)
        assert lease
        self._leases[job_id] = lease
        slot = f"changefeed_{self.catalog.state_id}_{job.source}"
        self.catalog.save_source_state(
            job.source, memo={"slot": slot}, holds=f"slot {slot}", identity="7001"
        )
        self._capture(job.source)
        self.catalog.take_generation(job_id, job.generation, lease)
        self.catalog.transition(job_id, Status.RUNNING, reason="running", lease=lease)
        return lease

    def _capture(self, source: str) -> None:
        since = Timestamp(NOW - 60 * 10**9)
        self.catalog.set_captured(source, dict.fromkeys(self.catalog.watched(source), since))

    def deliver(self, job: str, upto: int, rows: int = 0) -> None:
        """Everything up to ``upto`` ns is durable in the sink."""
        found = self.catalog.job(job)
        done = {
            # As a runner does, which knows of the pause.
            t.table: t
            if t.state is TableState.PAUSED
            else replace(
                t,
                state=TableState.RUNNING,
                scan_wanted=False,
                scan_at=Timestamp(upto - 1),
                scan_rows=t.scan_total,
                done_upto=Timestamp(upto),
                emitted_rows=t.emitted_rows + rows,
                emitted_bytes=t.emitted_bytes + rows * 100,
            )
            for t in self.catalog.tables(found.id)
        }
        lease = self._leases[found.id]
        self.catalog.save_progress(found.id, done, lease=lease, high_water=Timestamp(upto))

    def fail_table(self, job: str, table: str, error: ChangefeedError) -> None:
        """One table stops with an error."""
        found = self.catalog.job(job)
        broken = next(t for t in self.catalog.tables(found.id) if t.table.name == table)
        lease = self._leases[found.id]
        self.catalog.save_progress(found.id, {broken.table: broken.failed(error)}, lease=lease)
        self.catalog.record_event(
            found.id, "error", error.message, table=str(broken.table), code=error.code.number
        )


class StillClock(ManualClock):
    """Wall time stands still; deadlines are real, so that a wait in vain ends."""

    def monotonic(self) -> float:
        return time.monotonic()


class World:
    """One state with sources ``shop`` and ``crm`` to choose from."""

    def __init__(self, folder: Path, *, node: bool = True) -> None:
        self.clock = StillClock(NOW)
        self.catalog = Catalog.open(folder / "state", clock=self.clock)
        self.catalog._database.state_id = "k3x9qa"  # slot names must not change from run to run
        self.node = FakeNode(self.catalog, node)
        self.sources: dict[str, FakeSource] = {}
        self.session = Session(user="ann")
        self.logs: dict[str, Timestamp] = {}
        self.target_troubles: list[str] = []
        self.target_overlooked: list[str] = []
        self.probed: list[str] = []
        self.interpreter = Interpreter(
            self.catalog,
            self.clock,
            host=self.node,
            open_source=self.open_source,
            log_lookup=lambda source, position: self.logs.get(source),
            probe=self._probe,
        )

    def _probe(
        self,
        sink: ResolvedSink,
        options: Mapping[str, object],
        targets: Sequence[Target],
        job: int = 0,
    ) -> tuple[list[ChangefeedError], list[str]]:
        """What the target answers: ``targets`` are the topics asked about."""
        self.probed = [target.topic for target in targets]
        troubles = [ChangefeedError("CF5001", why, span=sink.span) for why in self.target_troubles]
        return troubles, self.target_overlooked

    def open_source(self, name: str, uri: str) -> FakeSource:
        return self.sources.setdefault(name, FakeSource(name, uri, shop(name)))

    def shop(self) -> FakeSource:
        """Make the connection most tests use."""
        self.run("CREATE EXTERNAL CONNECTION shop AS 'postgresql://app:s3cret@db:5432/shop'")
        return self.open_source("shop", "")

    def fail_table(self, job: str, table: str, problem: str) -> None:
        """``problem`` is a code and a message."""
        code, message = problem.split(" ", 1)
        self.node.fail_table(job, table, ChangefeedError(code, message))

    def fail(self, job: str, error: ChangefeedError) -> None:
        """The feed stops with an error."""
        found = self.catalog.job(job)
        self.catalog.transition(found.id, Status.FAILED, reason=error.message, error=error)

    def run(self, text: str) -> Result:
        """Execute one statement."""
        return self.interpreter.execute(text, self.session)

    def close(self) -> None:
        self.catalog.close()

    def transcript(self, script: str) -> str:
        """What a person sees of each statement of a script; stops at the first error."""
        lines: list[str] = []
        try:
            for result in self.interpreter.execute_script(script, self.session):
                lines += shown(result)
        except Problems as problems:
            for problem in problems.problems:
                lines += error_lines(problem)
        except ChangefeedError as error:
            lines += error_lines(error)
        text = "\n".join(lines)
        assert not [secret for secret in SECRETS if secret in text], text
        return text


def shown(result: Result) -> list[str]:
    """A result as lines of text."""
    lines = [f"NOTICE: {notice}" for notice in result.notices]
    if result.stream is not None:
        return [*lines, *(repr(row) for row in result.stream)]
    if result.vertical:
        for row in result.rows:
            lines += [f"{c}: {_cell(v)}" for c, v in zip(result.columns, row, strict=True)]
        return lines
    if result.columns:
        lines.append(" | ".join(result.columns))
        lines += [" | ".join(map(_cell, row)) for row in result.rows]
    return lines or [result.tag or "OK"]


def _cell(value: object) -> str:
    return "NULL" if value is None else str(value)


def error_lines(error: ChangefeedError) -> list[str]:
    """An error as lines of text."""
    lines = [f"ERROR {error.code.number}: {error.message}"]
    if error.span is not None and error.text is not None:
        span = GrammarSpan(error.span.start, error.span.end)
        lines += point(error.text, span, mask=mask_statement).split("\n")
    if error.detail:
        lines.append(f"DETAIL: {error.detail}")
    if error.hint:
        lines.append(f"HINT: {error.hint}")
    return lines

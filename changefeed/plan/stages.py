"""The stages of a feed as data: EXPLAIN prints them, VALIDATE checks them, RUN stores them.

::

    source -> table* -> scan -> log -> select -> envelope -> encode -> engine -> sink -> resolved

:meth:`Stage.lines` has the facts of a stage, without secrets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from changefeed.catalog.model import JobSpec, TableProgress
from changefeed.core.clock import Timestamp
from changefeed.core.engines import EngineOption
from changefeed.core.events import Position
from changefeed.core.extras import spark_lacking
from changefeed.core.figures import duration_text, names_text, size_text
from changefeed.core.formats import TRAITS
from changefeed.core.partition import Prefixes
from changefeed.core.schema import TableSchema
from changefeed.encoding.plan import MessagePlan
from changefeed.options import (
    CURSOR,
    DELETES,
    DELIVERY,
    DIFF,
    END_TIME,
    ENGINE,
    ENVELOPE,
    FORMAT,
    INITIAL_SCAN,
    MIN_CHECKPOINT_FREQUENCY,
    MVCC_TIMESTAMP,
    ON_ERROR,
    ON_ROW_ERROR,
    RESOLVED,
    RETRY_FOR,
    SCHEMA_CHANGE_POLICY,
    TRANSACTION_METADATA,
    UPDATED,
    DebeziumOffset,
    Guarantee,
    InitialScan,
    OnRowError,
    Options,
)
from changefeed.plan.bulk_work import backlog_hindrance, scan_hindrance, scan_limit
from changefeed.plan.example import example
from changefeed.plan.queries import query_lines
from changefeed.query.model import CompiledQuery
from sinks.base import Capabilities
from sinks.registry import entry

#: EXPLAIN shows this many tables and topics one by one.
SHOWN_TABLES = 20


class Stage(Protocol):
    """One step on the way of a row."""

    @property
    def name(self) -> str:
        """The stage in one word."""
        ...

    def lines(self) -> Iterator[str]:
        """What the stage does, one fact a line."""
        ...


@dataclass(frozen=True, slots=True)
class SourceStage:
    """Where rows come from.

    Attributes:
        holds: what changefeed occupies at the source, for people; empty if nothing.
        fresh: this statement creates it.
        parts_travel, takes_workers: see :class:`changefeed.sources.base.Source`.
    """

    source: str
    shown_uri: str
    holds: str
    fresh: bool
    parts_travel: bool = True
    takes_workers: bool = False
    name: str = "source"

    def lines(self) -> Iterator[str]:
        yield f"{self.source}: {self.shown_uri}"
        made = "will be made" if self.fresh else "shared with the other feeds of this source"
        if self.holds:
            yield f"{self.holds} ({made})"


@dataclass(frozen=True, slots=True)
class TableStage:
    """One table of the feed.

    Attributes:
        schema: its shape now.
        progress: its row of the job table.
        rows_estimate: by the source's statistics; 0 if unknown.
        bytes_estimate: size at the source.
        target: canonical text of the target that it belongs to.
        query: the CDC query over it.
        stored: its row images are kept in addition to the change log.
    """

    schema: TableSchema
    progress: TableProgress
    rows_estimate: int = 0
    bytes_estimate: int = 0
    target: str = ""
    query: CompiledQuery | None = None
    stored: bool = False
    name: str = "table"

    @property
    def shown(self) -> str:
        """The name as ``schema.table``."""
        return f"{self.schema.table.schema}.{self.schema.table.name}"

    def lines(self) -> Iterator[str]:
        schema, progress = self.schema, self.progress
        if progress.partition is not None and progress.partition.of_messages:
            yield f"{self.shown}: logical messages of {schema.table.source}, no initial scan"
            return
        key = names_text(c.name for c in schema.key_columns)
        key = "no key: all columns serve as the key" if schema.keyless else f"key ({key})"
        size = f"about {self.rows_estimate:,} rows, {size_text(self.bytes_estimate)}"
        images = "row images in a store" if self.stored else schema.before_image.words
        yield f"{self.shown}: {key}, {images}, {size}"
        if progress.joined:
            yield f"{self.shown}: by {self.target}"


@dataclass(frozen=True, slots=True)
class ScanStage:
    """The initial scan, or why there is none."""

    mode: InitialScan
    cursor: Timestamp | DebeziumOffset | None
    rows: int
    bytes: int
    tables: int
    name: str = "scan"

    def lines(self) -> Iterator[str]:
        if self.mode is InitialScan.NO:
            start = f"the cursor {self.cursor}" if self.cursor else "this statement"
            if isinstance(self.cursor, DebeziumOffset):
                start = "what the Debezium connector delivered"
            yield f"none: the feed begins after {start}"
            return
        only = "; the feed ends after it" if self.mode is InitialScan.ONLY else ""
        yield (
            f"{self.tables} {'table' if self.tables == 1 else 'tables'}, about {self.rows:,} rows, "
            f"{size_text(self.bytes)}, at one timestamp, in parallel{only}"
        )


@dataclass(frozen=True, slots=True)
class LogStage:
    """The part of the change log the feed reads."""

    source: str
    options: Options
    scan_only: bool
    name: str = "log"

    def lines(self) -> Iterator[str]:
        if self.scan_only:
            yield "not read"
            return
        end = self.options[END_TIME]
        upto = f" up to {end}, then the feed ends" if end else ""
        yield f"change log of {self.source}, one reader for all its feeds{upto}"
        yield f"a schema change: {self.options[SCHEMA_CHANGE_POLICY]}"


@dataclass(frozen=True, slots=True)
class SelectStage:
    """Which columns and rows of the tables become messages."""

    tables: Sequence[TableStage]
    options: Options
    name: str = "select"

    def lines(self) -> Iterator[str]:
        plain = True
        for table in self.tables:
            if table.query is not None:
                plain = False
                yield from query_lines(table.query, self.options)
            for fact in _selection(table.progress):
                plain = False
                yield f"{table.shown}: {fact}"
        if plain:
            yield "all columns, all rows"
        if DELETES.name in self.options.given:
            yield f"deletes: {self.options[DELETES]}"
        if self.options[INITIAL_SCAN] is not InitialScan.ONLY:
            yield "of several writes of a row in one transaction only the last is sent"


def _selection(progress: TableProgress) -> Iterator[str]:
    if progress.columns:
        yield f"columns {names_text(progress.columns)} and the key"
    if progress.values_from or progress.values_to:
        low = names_text(progress.values_from)
        yield f"key from ({low}) to below ({names_text(progress.values_to)})"
    if progress.partition is None:
        return
    for condition in progress.partition.conditions:
        if isinstance(condition, Prefixes):
            yield f"messages whose prefix matches {names_text(condition.patterns)}"
            return
    yield f"partition {progress.partition.name}"


@dataclass(frozen=True, slots=True)
class EncodeStage:
    """Shape and format of messages, with an example for the first table."""

    options: Options
    sample: MessagePlan | None
    name: str = "encode"

    def lines(self) -> Iterator[str]:
        options = self.options
        flags = [row.name for row in (DIFF, UPDATED, MVCC_TIMESTAMP) if options[row]]
        with_flags = f" with {names_text(flags)}" if flags else ""
        yield f"envelope {options[ENVELOPE]}{with_flags}, format {options[FORMAT]}"
        if self.sample is not None:
            table = self.sample.schema.table
            message, *more = example(self.sample).lines()
            yield f"{table.schema}.{table.name}, for example: {message}"
            yield from more
            yield from _types(self.sample)


def _types(plan: MessagePlan) -> Iterator[str]:
    """The files for a reader without a schema registry to compile."""
    if not TRAITS[plan.format].schemas:
        return
    # Most statements do without Arrow, which the encoding needs.
    from changefeed.encoding.formats import FORMATS

    for name, text in FORMATS[plan.format].types(plan):
        yield f"{name}:"
        yield from (line for line in text.splitlines() if line)


@dataclass(frozen=True, slots=True)
class SinkStage:
    """Where messages go.

    ``uri`` is as written, ``real_uri`` with ``external://`` resolved. Changes gather for
    ``gathers`` seconds before they are committed; ``files``: see
    :meth:`sinks.base.Sink.files_a_day`.
    """

    uri: str | None = field(repr=False)
    real_uri: str = field(repr=False)
    shown_uri: str
    scheme: str
    capabilities: Capabilities
    options: Options
    topics: tuple[str, ...]
    gathers: float = 0.0
    files: tuple[int, int] | None = None
    name: str = "sink"

    def lines(self) -> Iterator[str]:
        if self.uri is None:
            yield "none: rows go to this client until it stops; nothing is stored"
            return
        yield self.shown_uri
        for topic in self.topics[:SHOWN_TABLES]:
            yield f"{entry(self.scheme).target} {topic}"
        if len(self.topics) > SHOWN_TABLES:
            yield f"and {len(self.topics) - SHOWN_TABLES} more"
        if self.files is not None and self.options[INITIAL_SCAN] is not InitialScan.ONLY:
            rows, resolved = self.files
            yield (
                f"a change waits up to {duration_text(self.gathers)} for others to share its file "
                f"(flush_interval): {rows:,} files a day at most, more only where they are full "
                "sooner"
            )
            if resolved:
                yield f"up to {resolved:,} RESOLVED files a day"
        retry = duration_text(self.options[RETRY_FOR])
        yield (
            "delivery at least once, in order per row; retried for "
            f"{retry}, then {self.options[ON_ERROR]}"
        )


@dataclass(frozen=True, slots=True)
class EngineStage:
    """Where the feed's bulk work runs, as far as that is known before the amount of work is."""

    options: Options
    capabilities: Capabilities
    query: bool
    source: SourceStage
    name: str = "engine"

    def lines(self) -> Iterator[str]:
        asked = self.options[ENGINE]
        can = self.capabilities
        if self.query:
            yield "driver: the node reads and delivers, its Spark session evaluates the query"
            return
        once = can.keeps_progress and self.options[DELIVERY] is Guarantee.EXACTLY_ONCE
        scan = scan_hindrance(
            can,
            query=False,
            exactly_once=once,
            parts_travel=self.source.parts_travel,
            takes_workers=self.source.takes_workers,
            limit=scan_limit(self.options),
        )
        if can.spark_packs:
            yield f"spark: merges are jobs; {scan or 'a small scan is read by the node'}"
            return
        numbered = bool(self.options[TRANSACTION_METADATA])
        letters = self.options[ON_ROW_ERROR] is OnRowError.DEAD_LETTER
        backlog = backlog_hindrance(
            can, query=False, exactly_once=once, numbered=numbered, dead_letters=letters
        )
        if scan and backlog:
            yield f"driver: {scan}" + f"; {backlog}" * (backlog != scan)
            return
        what = "scans and backlogs"
        if backlog:
            what = f"scans, not for backlogs: {backlog}"
        elif scan:
            what = f"backlogs, not for scans: {scan}"
        missing = spark_lacking("a job of Spark")
        if asked is EngineOption.AUTO and missing is not None:
            yield f"driver: {missing.message}"
        elif asked is EngineOption.AUTO:
            yield f"auto: the node or a Spark job, whichever is estimated to be faster, for {what}"
        elif asked is EngineOption.SPARK:
            yield f"spark, except for a few rows, for {what}"
        else:
            yield "driver: the node does all work"


@dataclass(frozen=True, slots=True)
class ResolvedStage:
    """Progress, and the messages about it for readers."""

    options: Options
    target: str
    gathers: float = 0.0
    name: str = "resolved"

    def lines(self) -> Iterator[str]:
        every = self.options[RESOLVED]
        where = ", to every partition of every topic" if self.target == "topic" else ""
        if every is None:
            yield "not emitted"
        elif every == 0:
            yield f"at every advance{where}"
        else:
            yield f"every {duration_text(every)} at most{where}"
        often = duration_text(max(self.options[MIN_CHECKPOINT_FREQUENCY], self.gathers))
        yield f"progress is durable at least every {often}"


@dataclass(frozen=True, slots=True)
class FeedPlan:
    """A feed that can be created: everything that RUN needs, checked.

    Attributes:
        name: as written; None: the catalog chooses one.
        if_not_exists: an existing feed of that name is accepted.
        source, tables, sink: the stages with data.
        options: typed.
        targets: canonical texts, with patterns as patterns.
        start: the source's position when this was planned.
        statement: canonical SQL without secrets.
        notices: what is valid but may surprise.
        owner: the user whose rights bound it; None: nobody's do.
    """

    name: str | None
    if_not_exists: bool
    source: SourceStage
    tables: tuple[TableStage, ...]
    sink: SinkStage
    options: Options
    targets: tuple[str, ...]
    start: Position | None
    statement: str
    messages: MessagePlan | None = None
    memo: Mapping[str, Any] | None = None
    notices: tuple[str, ...] = ()
    owner: str | None = None

    @property
    def sinkless(self) -> bool:
        """Whether its rows are sent to the client."""
        return self.sink.uri is None

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages in the order in which a row passes them."""
        scan = self.options[INITIAL_SCAN]
        only = scan is InitialScan.ONLY
        scanned = [table for table in self.tables if table.progress.scan_wanted]
        return (
            self.source,
            *self.tables,
            ScanStage(
                scan if scanned else InitialScan.NO,
                self.options[CURSOR],
                sum(t.rows_estimate for t in scanned),
                sum(t.bytes_estimate for t in scanned),
                len(scanned),
            ),
            LogStage(self.source.source, self.options, only),
            SelectStage(self.tables, self.options),
            EncodeStage(self.options, self.messages),
            *self._engine(),
            self.sink,
            ResolvedStage(
                self.options, entry(self.sink.scheme).target, 0.0 if only else self.sink.gathers
            ),
        )

    def _engine(self) -> tuple[EngineStage, ...]:
        if self.sinkless:
            return ()
        query = any(table.query is not None for table in self.tables)
        return (EngineStage(self.options, self.sink.capabilities, query, self.source),)

    def spec(self) -> JobSpec:
        """The row of the job table."""
        cursor = self.options[CURSOR]
        return JobSpec(
            source=self.source.source,
            targets=self.targets,
            tables=tuple(table.progress for table in self.tables),
            name=self.name,
            sink_uri=self.sink.uri,
            options=self.options.to_dict(),
            statement=self.statement,
            cursor=cursor if isinstance(cursor, Timestamp) else None,
            memo=self.memo,
            end_time=self.options["end_time"],
            sinkless=self.sinkless,
            owner=self.owner,
        )


#: Columns of EXPLAIN's answer.
EXPLAIN_COLUMNS = ("stage", "detail")


def explain_rows(plan: FeedPlan) -> list[tuple[str, str]]:
    """One row per fact, in the order in which a table's row passes the stages."""
    rows: list[tuple[str, str]] = []
    tables = 0
    for stage in plan.stages:
        if isinstance(stage, TableStage):
            tables += 1
            if tables > SHOWN_TABLES:
                continue
        rows += [(stage.name, line) for line in stage.lines()]
    if tables > SHOWN_TABLES:
        place = max(i for i, (name, _) in enumerate(rows) if name == "table")
        rows.insert(place + 1, ("table", f"and {tables - SHOWN_TABLES} tables more"))
    return rows

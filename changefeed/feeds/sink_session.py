"""The sinks of a feed: one opened for changes, one for the scan.

A call that is about one table raises the sink's error, and the caller says which table it was
(:func:`changefeed.core.table_errors.about_table`). A commit is about several: an error of it that
concerns one table only becomes a :class:`TableError` here, so that the other tables continue.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from changefeed.catalog import Catalog
from changefeed.core.clock import SYSTEM_CLOCK, Clock, Timestamp
from changefeed.core.errors import ChangefeedError, Code, Scope
from changefeed.core.events import Ddl, Resolved, SchemaChange, Truncate
from changefeed.core.faults import Point, fault_point
from changefeed.core.formats import Format
from changefeed.core.schema import TableName
from changefeed.core.shapes import Envelope
from changefeed.core.spans import Attributes, span
from changefeed.core.state import StateLayout
from changefeed.core.table_errors import TableError
from changefeed.core.telemetry import log
from changefeed.encoding.formats import FORMATS
from changefeed.feeds.feed import Feed
from changefeed.options import DELIVERY, ENVELOPE, FORMAT, SCHEMAS_ENABLE, Guarantee
from changefeed.spark.session import NodeSpark
from sinks.base import (
    Batch,
    Epoch,
    Receipt,
    Sink,
    SinkContext,
    require_durable,
)
from sinks.registry import open_sink


class SinkSession:
    """The sinks of one feed. The scan thread uses :meth:`for_scan` only."""

    def __init__(
        self,
        catalog: Catalog,
        feed: Feed,
        node_id: str,
        spark: NodeSpark,
        given: Sink | None = None,
        clock: Clock = SYSTEM_CLOCK,
        patience: float = math.inf,
        check_lease: Callable[[], None] = lambda: None,
    ) -> None:
        """``given``: the one sink object of a sinkless feed, else sinks are made from the URI.

        A call that takes longer than ``patience`` seconds shows in :meth:`waits`. ``check_lease``:
        raises LeaseLost when another node has the job; asked before calls of the sink.
        """
        self._clock = clock
        self._patience = patience
        self.check_lease = check_lease
        #: The call of the sink that is under way, and when it began; of the feed's own thread.
        self._call: tuple[str, Timestamp, Sink | None] | None = None
        self._catalog = catalog
        self._feed = feed
        self._node_id = node_id
        self._spark = spark
        self._given = given
        self._layout = StateLayout(Path(catalog.directory))
        self._sink: Sink | None = None
        self._scan_sink: Sink | None = None
        self._spark_packs: tuple[str, ...] = ()
        #: The sink object that is being opened, which may wait for its server.
        self._opening: Sink | None = None
        self._interrupted = False

    def interrupt(self) -> None:
        """End calls that wait for an unreachable server, because the feed must stop. From any
        thread.
        """
        self._interrupted = True
        for sink in (self._opening, self._sink, self._scan_sink):
            if sink is not None:
                sink.interrupt()

    def waits(self) -> str:
        """What the feed waits for at its sink, from the first request on that failed, or once a
        call has taken long; empty if nothing. From any thread; returns at once.
        """
        call, scan = self._call, self._scan_sink
        if scan is not None and (why := scan.unanswered()):
            return why
        if call is None:
            return ""
        doing, began, sink = call
        if sink is not None and (why := sink.unanswered()):
            return f"{why} ({doing} since {began.time_of_day()})"
        if self._spark_packs and (step := self._spark.step):
            return step
        long = (self._clock.now().wall - began.wall) / 1e9 > self._patience
        return f"{doing} since {began.time_of_day()}" if long else ""

    @property
    def needs_spark(self) -> bool:
        """Whether the sink delivers by Spark alone, as far as is known."""
        return bool(self._spark_packs)

    @contextmanager
    def _calling(self, doing: str, sink: Sink | None) -> Iterator[None]:
        self.check_lease()
        before, self._call = self._call, (doing, self._clock.now(), sink)
        try:
            yield
        finally:
            self._call = before

    def new_sink(self) -> Sink:
        """Another sink object of the feed, not opened."""
        if self._given is not None:
            return self._given
        if self._feed.job.sink_uri is None:
            raise AssertionError("a feed without a sink URI is given its sink")
        return open_sink(self._catalog.resolve_uri(self._feed.job.sink_uri), self._feed.options)

    def context(self, *, scan: bool = False, here: bool = True) -> SinkContext:
        """What the sink may know now; ``here`` is false for a copy that leaves this process."""
        local = here and self._given is None
        return self._feed.sink_context(
            self._node_id,
            scan=scan,
            spark=self._spark if local else None,
            scratch=str(self._scratch(scan)) if local else "",
        )

    @property
    def folder(self) -> Path:
        """The feed's directory for files that no restart needs; it may have to be made."""
        return self._layout.scratch(self._feed.job.id)

    def _scratch(self, scan: bool) -> Path:
        return self._layout.scratch(self._feed.job.id) / ("scan" if scan else "changes")

    def _prepared(self, *, scan: bool) -> Sink:
        """A sink object with what its first ``open`` may rely on: Spark's packs, empty scratch."""
        sink = self.new_sink()
        if self._given is None:
            packs = self._spark_packs = sink.capabilities.spark_packs
            if packs:
                self._spark.require(*packs)
            _empty(self._scratch(scan))
        return sink

    def open(self, feed: Feed | None = None) -> Sink:
        """Open the sink, or give an opened one the feed's present targets."""
        if feed is not None:
            self._feed = feed
        if self._sink is None:
            with self._calling("opening the sink", None):
                sink = self._opening = self._prepared(scan=False)
            if self._interrupted:
                sink.interrupt()
            with self._calling("opening the sink", sink):
                sink.open(self.context())
                if self.keeps(sink):
                    # What was committed before a crash, even if the feed did not learn of it. A
                    # scan that the sink must end is repeated, because its end may be missing.
                    progress = sink.progress()
                    self._feed.take_progress(progress, scans=not sink.capabilities.ends_scans)
            self._sink, self._opening = sink, None
        elif feed is not None:
            self._sink.open(self.context())
        return self._sink

    def for_scan(self, unfinished: Mapping[TableName, Timestamp]) -> Sink:
        """The scan thread's own opened sink; see :attr:`sinks.base.SinkContext.unfinished`."""
        if self._given is not None:
            return self.open()
        if self._scan_sink is None:
            self._scan_sink = self._prepared(scan=True)
        known = {t.table: t.known_as for t in list(self._feed.tables.values())}
        unfinished = {known.get(table, table): at for table, at in unfinished.items()}
        self._scan_sink.open(replace(self.context(scan=True), unfinished=unfinished))
        return self._scan_sink

    # -- what the sink can do ---------------------------------------------------------------

    def in_workers(self, sink: Sink) -> bool:
        """Whether Spark's executors may write to this sink, and Spark is available.

        Spark only makes such a scan faster, so a node without Spark reads the table itself.
        """
        can = sink.capabilities.executor or sink.capabilities.loads_parts
        return self._given is None and bool(can) and self._spark.installed

    def keeps(self, sink: Sink) -> bool:
        """Whether this sink stores the feed's progress for exactly-once delivery."""
        return keeps_progress(sink, self._feed)

    @property
    def takes_rows(self) -> bool:
        """Whether the sink takes typed rows instead of messages."""
        return self.open().capabilities.takes_rows

    @property
    def pace(self) -> float:
        """Seconds that the sink asks for between two commits."""
        return self.open().pacing().seconds

    @property
    def round_rows(self) -> int:
        """Rows after which a backlog is committed; may change with each write."""
        return self.open().pacing().rows

    @property
    def round_bytes(self) -> int:
        """Size of the changes that end the pause between two commits; 0: no size does."""
        return self.open().pacing().bytes

    @property
    def resolves(self) -> bool:
        """Whether the sink can send resolved timestamps."""
        return self.open().capabilities.resolved

    @property
    def resolves_by_topic(self) -> bool:
        """Whether resolved timestamps do not cover failed tables."""
        return self.open().capabilities.resolved_by_topic

    @property
    def evolves(self) -> bool:
        """Whether the sink has tables that follow schema changes."""
        return self.open().capabilities.evolves

    @property
    def pulled(self) -> bool:
        """Whether the sink's consumer reads the changes from the log itself."""
        return self.open().capabilities.pulled

    def consumed(self) -> Timestamp | None:
        """How far the consumer of a pulled sink has committed."""
        sink = self.open()
        return sink.pull().consumer().needs_above if sink.capabilities.pulled else None

    def holds_target(self, table: TableName) -> bool:
        """Whether the target of a table is still there, as far as its sink owns it."""
        return self.open().holds_target(self._feed.target(table))

    # -- changes ----------------------------------------------------------------------------

    def write(self, batch: Batch) -> Receipt:
        """Hand over rows or messages.

        Raises:
            ChangefeedError: the sink refuses them or failed; the caller knows whose rows they are.
        """
        fault_point(Point.RUNNER_BEFORE_WRITE)
        sink = self.open()
        with (
            self._calling("writing to the sink", sink),
            span("changefeed.write", self._traced([batch.schema.table], batch.rows.num_rows)),
        ):
            return sink.write(batch)

    def examine(self, batch: Batch) -> None:
        """See :meth:`sinks.base.Sink.examine`."""
        self.open().examine(batch)

    def commit(
        self,
        epoch: Epoch,
        receipts: Sequence[Receipt],
        tables: Collection[TableName],
        progress: Mapping[TableName, Timestamp],
    ) -> None:
        """Return once everything is durable in the target; ``tables`` are those that may have rows.

        ``progress`` is the progress of these tables after the commit, for a sink that stores it.

        Raises:
            TableError: the sink refuses the data of one table.
            ChangefeedError: anything else.
        """
        if not receipts:
            return
        sink = self.open()
        try:
            with (
                self._calling("committing in the sink", sink),
                span(
                    "changefeed.merge" if sink.capabilities.takes_rows else "changefeed.commit",
                    self._traced(tables, sum(receipt.rows for receipt in receipts)),
                ),
            ):
                if self.keeps(sink):
                    by_name = {str(self._feed.target(t).table): at for t, at in progress.items()}
                    delivery = sink.commit_with(epoch, receipts, by_name)
                else:
                    delivery = sink.commit(epoch, receipts)
        except ChangefeedError as error:
            table = self._blamed(error, tables)
            if table is not None:
                raise TableError(table, error) from error
            raise
        require_durable(delivery)
        fault_point(Point.RUNNER_AFTER_COMMIT)

    def _traced(self, tables: Collection[TableName], rows: int) -> Attributes:
        names = ", ".join(sorted(map(str, tables)))
        return {"feed": self._feed.job.name, "table": names, "rows": rows}

    def _blamed(self, error: ChangefeedError, tables: Collection[TableName]) -> TableName | None:
        boundaries = self._feed.boundaries
        if error.scope is not Scope.TABLE or (boundaries and error.target == boundaries.topic):
            return None
        if len(tables) == 1:
            return next(iter(tables))
        return next((t for t in tables if self._feed.target(t).topic == error.target), None)

    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        """Discard what was written but not committed, including an incomplete write."""
        if self._sink is not None:
            self._sink.abort(epoch, receipts)

    # -- control messages -------------------------------------------------------------------------

    def truncate(self, event: Truncate) -> None:
        """Send to consumers that a table was emptied."""
        table = event.schema.table
        target = self._feed.target(table)
        own = self._payloads("truncate", event.at, [target.topic], table)
        payload = own.get(target.topic) or self._payload("truncate", event.at, table)
        self.open().truncate(event, target, payload)

    def evolve(self, event: SchemaChange) -> None:
        """Let the target follow a schema change that concerns the columns of the feed."""
        sink = self.open()
        if not sink.capabilities.evolves:
            return
        seen = self._feed.seen(event)
        if seen is not None:
            sink.evolve(seen, self._feed.target(event.new.table))

    def tell_ddl(self, event: Ddl) -> None:
        """Send a statement of DDL to the sink; everything before it was delivered."""
        self.open().tell_ddl(event, self._feed.target(event.table))

    def dropped(self, table: TableName) -> None:
        """Report to the sink that a table was dropped; all its changes were delivered."""
        self.open().dropped(self._feed.target(table))

    def resolved(self, at: Timestamp) -> None:
        """Promise to consumers that nothing at or below ``at`` follows."""
        topics = [target.topic for target in self._feed.targets()]
        event = Resolved(at, self._payloads("resolved", at, topics))
        sink = self.open()
        with self._calling("sending a resolved timestamp", sink):
            sink.resolved(event, self._payload("resolved", at))

    def _payload(self, member: str, at: Timestamp, table: TableName | None = None) -> bytes:
        envelope = Envelope(self._feed.options[ENVELOPE].value)
        schemas = self._feed.options[SCHEMAS_ENABLE]
        written = FORMATS[Format(self._feed.options[FORMAT].value)]
        return written.control(envelope, member, at, table, schemas_enabled=schemas)

    def _payloads(
        self, member: str, at: Timestamp, topics: Sequence[str], table: TableName | None = None
    ) -> dict[str, bytes]:
        """The payloads of topics that have their own: each names a schema of its topic."""
        schemas = self._feed.schemas
        return {} if schemas is None else schemas.controls(topics, member, at, table)

    # -- the end ----------------------------------------------------------------------------

    def renew(self) -> None:
        """Let another sink object deliver the next changes. It began after those of a job that
        failed, so files in which it repeats their rows sort after theirs."""
        self._closing(self._sink, for_good=False)
        self._sink = None

    def _closing(self, sink: Sink | None, *, for_good: bool) -> None:
        if sink is not None and (for_good or sink is not self._given):
            try:
                sink.close()
            except ChangefeedError as error:
                log.warning("closing the sink: %s", error.message)

    def close(self, *, for_good: bool = False) -> None:
        """Close the sinks, also one whose ``open`` failed; a given sink only with ``for_good``,
        which also removes staged files."""
        for sink in (self._sink, self._scan_sink, self._opening):
            self._closing(sink, for_good=for_good)
        self._sink = self._scan_sink = self._opening = None
        if for_good:
            shutil.rmtree(self._layout.scratch(self._feed.job.id), ignore_errors=True)


def keeps_progress(sink: Sink, feed: Feed) -> bool:
    """Whether this sink stores the progress that makes the feed exactly once."""
    return sink.capabilities.keeps_progress and feed.options[DELIVERY] is Guarantee.EXACTLY_ONCE


def _empty(folder: Path) -> None:
    """Make the folder, or remove what is in it."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ChangefeedError(
            Code.SINK_UNREACHABLE,
            f"cannot make the folder for staged files: {error.strerror}",
            detail=str(folder),
            hint="check the disk and the rights of the state directory.",
        ) from error

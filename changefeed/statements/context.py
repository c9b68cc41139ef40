"""What a statement has around it: state, clock, session, node; and what it answers."""

from __future__ import annotations

import getpass
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from changefeed.catalog import Catalog, Connection, Job, ScheduledRun, TableProgress
from changefeed.core.clock import Clock, Timestamp
from changefeed.core.engines import SparkReport
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import ClientRow, Frontier, Position, StreamRow
from changefeed.core.schema import TableSchema
from changefeed.core.spark_jobs import SparkJobs
from changefeed.core.timings import Timings
from changefeed.core.work_stages import Flow, StageCost, WorkStage
from changefeed.dataset.definition import is_definition
from changefeed.options import to_span
from changefeed.plan.context import LogHas, LogOldest, OpenSource, PlanContext
from changefeed.plan.grants import FeedRights
from changefeed.plan.names import source_connections, unknown_name
from changefeed.plan.sink_resolution import Probe
from changefeed.plan.stages import FeedPlan
from changefeed.query.model import CompiledQuery
from changefeed.sources.base import Source
from changefeed.statements.brief import Brief, Section
from changefeed.statements.health import Health, health
from changefeed.statements.inquiry import NodeInquiry
from changefeed.statements.rights import Role
from changefeed.statements.values import Cell, plain_cell
from grammar import nodes

if TYPE_CHECKING:
    from changefeed.dataset.model import DatasetColumn
    from changefeed.dataset.tables import Registration
    from changefeed.log import LogReader
    from changefeed.query.evaluate import QuerySessions
    from sinks.base import SparkAccess


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a feed did that ran into nothing for a while.

    Attributes:
        seconds: how long it ran.
        costs: of each stage.
        scan, changes: its messages.
        tables: how far it came.
    """

    seconds: float
    costs: Mapping[WorkStage, StageCost]
    scan: Flow
    changes: Flow
    tables: Sequence[TableProgress]


class FeedHost(Protocol):
    """What a statement needs of the node in this process (or the lack of one)."""

    def start_sinkless(self, plan: FeedPlan, gone: Callable[[], bool]) -> Iterator[ClientRow]:
        """Run a feed whose rows come out of the iterator; closing it ends the feed, and so does
        ``gone``, soon after it says that the client has left."""
        ...

    def measure(self, plan: FeedPlan, seconds: float, gone: Callable[[], bool]) -> Measurement:
        """Run a feed for so long into nothing, and say what it cost; nothing of it stays."""
        ...

    def compile_query(self, schema: TableSchema, query: nodes.Query) -> CompiledQuery:
        """Check a CDC query against its table, by Spark of this process or of a node.

        Raises:
            ChangefeedError: CF1101, CF1303 the query is wrong; CF4003 there is no Spark.
        """
        ...

    def extract_columns(
        self, location: str, form: str | None, delimiter: str
    ) -> tuple[DatasetColumn, ...]:
        """The columns of a dataset's extract, with the types that Spark reads or guesses.

        Raises:
            ChangefeedError: CF1204, CF1302 of the extract; CF4003 there is no Spark here.
        """
        ...

    def check_tables(self, registration: Registration) -> None:
        """Whether a dataset could have its tables in Spark's catalog.

        Raises:
            ChangefeedError: see :func:`changefeed.dataset.tables.check_tables`; CF4003 there is no
                Spark here.
        """
        ...

    @property
    def spark_elsewhere(self) -> bool:
        """What needs Spark is answered by a node in another process."""
        ...

    def spark_report(self) -> SparkReport:
        """What the Spark of this process or of a node is; starts nothing.

        Raises:
            ChangefeedError: CF4003 no node runs that could answer.
        """
        ...

    def spark_jobs(self, feed: int, node: str | None) -> SparkJobs:
        """The jobs of a feed that the Spark of ``node`` knows; starts nothing. ``node`` is None
        where no node has the feed.

        Raises:
            ChangefeedError: CF4003 that Spark does not let see its jobs, or no node answers.
        """
        ...

    def query_sessions(self) -> QuerySessions:
        """Where this process evaluates CDC queries, unless :attr:`spark_elsewhere`; Spark starts
        with the first one.

        Raises:
            ChangefeedError: CF4003 there is no Spark here.
        """
        ...

    def wake(self) -> None:
        """Look at the job table now."""
        ...

    def hasten(self, source: str) -> None:
        """A client waits until the change log has what is committed at a source now."""
        ...

    def deliver_now(self, job_id: int) -> None:
        """Deliver what a feed has waiting and save its progress, without the pauses of its sink."""
        ...

    def node_running(self) -> bool:
        """Whether some process runs the feeds of this state."""
        ...

    def spark_with(self, packs: Sequence[str]) -> SparkAccess:
        """Spark of this process with jar packs, unless :attr:`spark_elsewhere`, for a statement
        that reads a lake table.

        Raises:
            ChangefeedError: CF4003 there is no Spark here.
        """
        ...


class NoHost(FeedHost):
    """No node in this process; another one may run the state's feeds, and sees by itself what
    changes."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def start_sinkless(self, plan: FeedPlan, gone: Callable[[], bool]) -> Iterator[ClientRow]:
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            "a feed without INTO needs a node in this process",
            hint="run the statement in the changefeed shell, or give the feed a sink.",
        )

    def measure(self, plan: FeedPlan, seconds: float, gone: Callable[[], bool]) -> Measurement:
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            "EXPLAIN ANALYZE needs a node in this process",
            hint="run the statement in the changefeed shell, or over HTTP.",
        )

    def compile_query(self, schema: TableSchema, query: nodes.Query) -> CompiledQuery:
        return NodeInquiry(self._catalog).compile_query(schema, query)

    def extract_columns(
        self, location: str, form: str | None, delimiter: str
    ) -> tuple[DatasetColumn, ...]:
        return NodeInquiry(self._catalog).extract_columns(location, form, delimiter)

    def check_tables(self, registration: Registration) -> None:
        NodeInquiry(self._catalog).check_tables(registration)

    @property
    def spark_elsewhere(self) -> bool:
        return True

    def spark_report(self) -> SparkReport:
        return NodeInquiry(self._catalog).spark_report()

    def spark_jobs(self, feed: int, node: str | None) -> SparkJobs:
        return NodeInquiry(self._catalog).spark_jobs(feed, node)

    def query_sessions(self) -> QuerySessions:
        raise AssertionError("a node evaluates CDC queries")

    def wake(self) -> None:
        pass

    def hasten(self, source: str) -> None:
        pass

    def deliver_now(self, job_id: int) -> None:
        self._catalog.hurry(job_id)

    def node_running(self) -> bool:
        return bool(self._catalog.live_nodes())

    def spark_with(self, packs: Sequence[str]) -> SparkAccess:
        raise AssertionError("a node reads lake tables")


#: Source name and position -> its log timestamp, None while the log has not reached it.
LogLookup = Callable[[str, Position], Timestamp | None]


def os_user() -> str:
    """The user of the operating system that this process runs as."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run a number that has no name
        return f"user {os.getuid()}"


@dataclass(slots=True)
class Session:
    """What lasts from statement to statement of one client.

    Attributes:
        source: the source of unqualified names, where USE chose it or one of them was read.
        client: what kind of client it is.
        gone: whether the client has left, so that a long statement can stop.
        user: its name, as a user of the HTTP API or of the operating system; empty where that is
            not known.
        origin: where it is: ``local``, or an address of the network.
        role: what it may do; None is everything.
        heard: sources that have said what they have to say of themselves.
        run: the run of a schedule that the statement makes.
    """

    source: str | None = None
    client: str = "shell"
    gone: Callable[[], bool] = lambda: False
    user: str = field(default_factory=os_user)
    origin: str = "local"
    role: Role | None = None
    heard: set[str] = field(default_factory=set)
    run: ScheduledRun | None = None

    @property
    def bound(self) -> str | None:
        """The user whose rights bound the feeds that it makes; None: nothing does."""
        return None if self.role in (None, Role.ADMIN) else self.user

    def source_in(self, catalog: Catalog) -> str | None:
        """The source of unqualified names: that of USE, or the only one there is, which the session
        keeps when others are created later. A dataset of FOR DATASET is no other source."""
        if self.source is None:
            every = source_connections(catalog)
            known = [c for c in every if not is_definition(c.uri)] or every
            self.source = known[0].name if len(known) == 1 else None
        return self.source


@dataclass(frozen=True, slots=True)
class Result:
    """What a statement answers.

    Attributes:
        kind: ``rows``, ``done`` (nothing to show but notices) or ``stream``.
        columns: names of the columns.
        rows: cells; :mod:`.values` show themselves by ``str()``.
        notices: sentences for the person, one each.
        stream: rows of a sinkless feed as they come; close it to end the feed.
        vertical: one row of many columns, better shown one column a line.
        job_id, name: of the feed a CREATE made.
        failure: what a VALIDATE found first, or that a VERIFY found differences; the statement
            worked, what it looked at does not.
        tag: the statement in capitals, as psql prints it (``CREATE CHANGEFEED``).
        brief: what a person on a terminal is shown in place of columns and rows.
        sections: the same of a result of one row: its columns in groups.
    """

    kind: str = "rows"
    columns: tuple[str, ...] = ()
    rows: list[tuple[Cell, ...]] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    stream: Iterator[StreamRow] | None = None
    vertical: bool = False
    job_id: int | None = None
    name: str | None = None
    failure: ChangefeedError | None = None
    tag: str = ""
    brief: Brief | None = None
    sections: tuple[Section, ...] = ()

    def objects(self) -> list[dict[str, str | int | float | list[str] | None]]:
        """The rows for programs: plain values by the names of their columns."""
        return [
            {name: plain_cell(cell) for name, cell in zip(self.columns, row, strict=True)}
            for row in self.rows
        ]


@dataclass(frozen=True, slots=True)
class Context:
    """One statement's surroundings. ``text`` is the statement as typed, for errors; with
    ``selecting`` a listing that shows only its newest rows gives all of them, to choose from."""

    catalog: Catalog
    clock: Clock
    session: Session
    host: FeedHost
    open_source: OpenSource
    log_lookup: LogLookup
    probe: Probe
    text: str = ""
    timings: Timings = field(default_factory=Timings)
    selecting: bool = False

    def surroundings(
        self, *, probing: bool = False, making: bool = False, of: Job | None = None
    ) -> PlanContext:
        """For the planner; ``probing`` lets it look at the target in every respect, ``making``
        at whose the targets are. ``of`` is the feed, if it is there: what is planned for it is
        bound by its owner's rights, a new one by those of the session."""
        return PlanContext(
            self.catalog,
            self.clock,
            self.text,
            self.session.source_in(self.catalog),
            self.open_source,
            log_oldest_of(self.catalog),
            log_has_of(self.catalog),
            self.probe if probing else None,
            self.probe if making else None,
            self.host.compile_query,
            rights=self._rights(self.session.bound if of is None else of.owner),
        )

    def _rights(self, owner: str | None) -> FeedRights | None:
        found = self.catalog.owner_rights(owner)
        if found is None or not owner:
            return None  # a feed whose owner was dropped does not run before an admin takes it
        functions = {function.name for function in self.catalog.functions()}
        return FeedRights(found, owner == self.session.bound, functions)

    def source(self, name: str) -> Source:
        """The source behind a connection; does not connect yet."""
        connection: Connection = self.catalog.connection(name)
        return self.open_source(connection.name, connection.uri)

    def frontier(self, source: str) -> Frontier | None:
        """How far the change log of a source reaches; None where there is no log here."""
        from changefeed.shared_logs import is_elsewhere

        if is_elsewhere(self.catalog, source):
            return None
        with _log_of(self.catalog, source) as log:
            return None if log is None else log[1]

    def require_client(self) -> None:
        """Stop the statement if its client has left.

        Raises:
            ChangefeedError: CF1304.
        """
        if self.session.gone():
            raise ChangefeedError(Code.TIMED_OUT, "the client of the statement has ended")

    def health(
        self,
        job: Job,
        tables: Sequence[TableProgress] | None = None,
        node: bool | None = None,
        letters: int | None = None,
    ) -> Health:
        """The state of a feed as people see it; asks for what is not given."""
        return health(
            job,
            self.catalog.tables(job.id) if tables is None else tables,
            node=self.host.node_running() if node is None else node,
            now=self.clock.now().wall,
            letters=self.catalog.dead_letter_counts().get(job.id, 0)
            if letters is None
            else letters,
        )

    def job(self, ref: nodes.FeedRef) -> Job:
        """The feed a statement names.

        Raises:
            ChangefeedError: CF1101 with the nearest name.
        """
        key = ref.name if ref.name is not None else ref.job_id
        if key is None:
            raise AssertionError("a feed is named or numbered")
        found = self.catalog.find_job(key)
        if found is None:
            raise self._unknown(ref, key)
        return found

    def _unknown(self, ref: nodes.FeedRef, key: str | int) -> ChangefeedError:
        if isinstance(key, int):
            message = f"could not load job with job id {key}"
            return ChangefeedError(
                Code.NAME_UNKNOWN, message, hint="SHOW JOBS lists them.", span=to_span(ref.span)
            )
        names = (job.name for job in self.catalog.jobs())
        return unknown_name("changefeed", key, names, "SHOW CHANGEFEEDS lists them.", ref.span)

    def existing(
        self, refs: Sequence[nodes.FeedRef], if_exists: bool
    ) -> tuple[tuple[nodes.FeedRef, ...], list[str]]:
        """The feeds of a statement that are there, and what IF EXISTS says of the others; all of
        them without IF EXISTS."""
        if not if_exists:
            return tuple(refs), []
        known: list[nodes.FeedRef] = []
        notices = []
        for ref in refs:
            key = ref.name if ref.name is not None else ref.job_id or 0
            if self.catalog.find_job(key) is not None:
                known.append(ref)
            else:
                notices.append(f'changefeed "{key}" does not exist, skipping')
        return tuple(known), notices

    def jobs(self, refs: Sequence[nodes.FeedRef]) -> list[Job]:
        """The feeds a statement names, each once; all of them when it names none."""
        if not refs:
            return self.catalog.jobs()
        found = {job.id: job for job in map(self.job, refs)}
        return list(found.values())

    def wait(self, reached: Callable[[], bool], seconds: float) -> bool:
        """See :func:`wait_until`; CF1304 too if the client has left."""
        return wait_until(self.catalog, self.clock, reached, seconds, self.require_client)


S = TypeVar("S", bound=nodes.Statement)
Handler = Callable[[S, Context], Result]

#: Statement -> what carries it out; :func:`handles` fills it.
HANDLERS: dict[type[nodes.Statement], Handler[Any]] = {}


def handles(statement: type[S]) -> Callable[[Handler[S]], Handler[S]]:
    """Make the function under it carry out a kind of statement."""

    def register(handler: Handler[S]) -> Handler[S]:
        HANDLERS[statement] = handler
        return handler

    return register


def wait_until(
    catalog: Catalog,
    clock: Clock,
    reached: Callable[[], bool],
    seconds: float,
    wanted: Callable[[], object],
) -> bool:
    """Wait until ``reached`` or ``seconds`` passed; whether it was reached.

    Looks again at every change of the state and at least every 0.1 s. ``wanted`` raises an error if
    the client has left.
    """
    deadline = clock.monotonic() + seconds
    for turn in itertools.count():
        seen = catalog.version()
        if reached():
            return True
        left = deadline - clock.monotonic()
        if left <= 0:
            return False
        wanted()
        catalog.wait(seen, min(left, 0.02 if turn < 50 else 0.1))
    raise AssertionError("the loop has no other end")


@contextmanager
def _log_of(catalog: Catalog, source: str) -> Iterator[tuple[LogReader, Frontier] | None]:
    """A source's change log, and how far it reaches; None while there is nothing in it."""
    # Loaded on use: only a cursor and SYNC need it.
    from changefeed.log import LogReader
    from changefeed.shared_logs import readable_log

    with readable_log(catalog, source) as path:
        if not path.exists():
            yield None
            return
        with LogReader(path) as reader:
            frontier = reader.refresh()
            yield None if frontier is None else (reader, frontier)


def log_oldest_of(catalog: Catalog) -> LogOldest:
    """Reads where the change logs of a state begin."""

    def oldest(source: str) -> Timestamp | None:
        with _log_of(catalog, source) as log:
            return None if log is None else log[0].oldest

    return oldest


def log_has_of(catalog: Catalog) -> LogHas:
    """Looks into the change logs of a state."""

    def has(source: str, position: Position, since: Timestamp | None) -> bool:
        with _log_of(catalog, source) as log:
            if since is None or log is None:
                return False
            reader, frontier = log
            if frontier.position <= position:
                return since <= frontier.at
            at = reader.timestamp_at(position)
            return at is not None and max(since, reader.oldest) <= at

    return has


def log_lookup_of(catalog: Catalog) -> LogLookup:
    """Reads the change logs in the state's directory."""

    from changefeed.shared_logs import is_elsewhere

    def look_up(source: str, position: Position) -> Timestamp | None:
        # A log that a new one may be about to follow has no place to wait for.
        state = catalog.source_state(source)
        if state.renewal:
            return None
        if is_elsewhere(catalog, source):
            # What its node saves every second may be above the place, and never below.
            return state.frontier if state.position >= position else None
        # Asked again and again while SYNC waits: each look gives its file back.
        with _log_of(catalog, source) as log:
            if log is None or log[1].position < position:
                return None
            return log[0].timestamp_at(position) or log[1].at

    return look_up


#: How often capture is asked to look at the source at once, seconds.
HASTEN_SECONDS = 0.5
#: Until a feed is asked to deliver a second time, seconds; twice as long each time after.
DELIVER_SECONDS = 0.1


@dataclass(slots=True)
class DeliveryWait:
    """Whether a feed has delivered what its source had at a position; asked again and again.

    Attributes:
        source, position: which source, and where it was.
        lookup: finds the position in the change log.
        hasten: makes capture of the source catch up.
        ask: makes the feed deliver up to a timestamp, or save its progress when it has.
        done: whether the feed says that it has.
        upto: the position's timestamp, once the log has it.
    """

    source: str
    position: Position
    lookup: LogLookup
    clock: Clock
    hasten: Callable[[str], object]
    ask: Callable[[Timestamp], object]
    done: Callable[[Timestamp], bool]
    upto: Timestamp | None = None
    _next: float = -inf
    _pause: float = DELIVER_SECONDS

    def reached(self) -> bool:
        """Whether it has; if not, those it waits for are asked to go on."""
        if self.upto is None:
            self.upto = self.lookup(self.source, self.position)
            if self.upto is not None:
                self._next = -inf
        if self.upto is not None and self.done(self.upto):
            return True
        now = self.clock.monotonic()
        if now < self._next:
            return False
        if self.upto is None:
            # An idle source gives its frontier about once a second: too late for a statement.
            self.hasten(self.source)
            self._next = now + HASTEN_SECONDS
        else:
            # Less and less often: behind a backlog each time is a small round of the sink.
            self.ask(self.upto)
            self._next, self._pause = now + self._pause, min(2 * self._pause, 10.0)
        return False

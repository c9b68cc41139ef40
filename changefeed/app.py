"""A state opened by one process: catalog, statements, and the node if this process runs one.

This is the composition root: the only module that knows all parts. Slow imports (Spark, a
source's driver) happen when they are first needed, so that a listing answers at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from changefeed.api import ClientRow, FeedPlan, Interpreter, Result
from changefeed.catalog import Catalog
from changefeed.core.clock import SYSTEM_CLOCK
from changefeed.core.engines import SparkReport
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.extras import require_spark
from changefeed.core.sizes import Sizes
from changefeed.core.spark_jobs import SparkJobs
from changefeed.core.state import StateLayout
from changefeed.core.telemetry import LogFormat, log, log_to
from changefeed.spark.settings import SparkSettings
from changefeed.statements.context import Measurement
from changefeed.statements.inquiry import NodeInquiry

if TYPE_CHECKING:
    from changefeed.alerts.openlineage import LineageWatch
    from changefeed.alerts.otlp import OtlpWatch
    from changefeed.alerts.watch import AlertWatch
    from changefeed.capture.standby import Standby
    from changefeed.core.node_lock import NodeLock
    from changefeed.core.schema import TableSchema
    from changefeed.dataset.model import DatasetColumn
    from changefeed.dataset.tables import Registration
    from changefeed.http.server import HttpServer
    from changefeed.node.node import Node
    from changefeed.pg.server import PgServer
    from changefeed.query.evaluate import QuerySessions
    from changefeed.query.model import CompiledQuery
    from changefeed.spark.session import NodeSpark
    from grammar import nodes
    from sinks.base import SparkAccess


def load_node() -> None:
    """Load the modules that a node needs, without pandas; for a process that only runs a node."""
    from changefeed.core.arrow import keep_pandas_out

    keep_pandas_out()
    import_module("changefeed.node.node")


def try_alert(uri: str) -> str:
    """Send a test alert; returns the place that took it.

    Raises:
        ChangefeedError: as :func:`changefeed.alerts.channels.try_channel`.
    """
    from changefeed.alerts.channels import try_channel

    return try_channel(uri, SYSTEM_CLOCK)


def require_places(alerts: Sequence[str], openlineage: str | None, otlp: str | None) -> None:
    """Read the URIs of ``changefeed start`` to which a node sends something; connects to nothing.

    Raises:
        ChangefeedError: what is wrong with one, with the flag that has it.
    """
    from changefeed.alerts.channels import channel
    from changefeed.alerts.openlineage import lineage_place
    from changefeed.alerts.otlp import collector_url

    given: list[tuple[str, Callable[[str], object], str]] = [
        *(("--alert", channel, uri) for uri in alerts),
        *(("--openlineage", lineage_place, uri) for uri in filter(None, [openlineage])),
        *(("--otlp", collector_url, uri) for uri in filter(None, [otlp])),
    ]
    for flag, read, uri in given:
        try:
            read(uri)
        except ChangefeedError as error:
            message = error.message if flag in error.message else f"{flag}: {error.message}"
            raise ChangefeedError(
                error.code, message, detail=error.detail, hint=error.hint
            ) from error


class Application:
    """One process's view of a state. Use as a context manager."""

    def __init__(
        self,
        state: str,
        *,
        settings: SparkSettings | None = None,
        spark: NodeSpark | None = None,
        max_memory: int | None = None,
        max_disk: int | None = None,
        logs: str | None = None,
        lease: float | None = None,
        max_copies: int | None = None,
        max_feeds: int | None = None,
        ready: Standby | None = None,
        lock: NodeLock | None = None,
        must_exist: bool = False,
        log_format: LogFormat = LogFormat.TEXT,
        sizes: Sizes | None = None,
    ) -> None:
        """Open the state.

        Args:
            state: directory, or ``postgresql://`` URL.
            settings: how Spark starts for feeds that run here.
            spark: Spark to use instead of our own.
            max_memory: limit in bytes for encoded messages that the feeds of this node share.
            max_disk: limit in bytes for the change log of each source.
            logs: the store that keeps the change logs (:mod:`changefeed.shared_logs`); the state
                remembers it, and keeps them on this machine where there is none. ``local`` brings
                them back to this machine.
            lease: seconds that leases of nodes last; the state remembers it.
            max_copies: limit in bytes for the copies of objects of each source's shared log.
            max_feeds: how many feeds this node has room for before other nodes of the state take
                some; see :class:`changefeed.node.node.Node`.
            ready: a capture process on standby, for a node that starts now.
            lock: the state's lock, if it was taken for the node of this process.
            must_exist: do not make a state where there is none.
            log_format: of the lines of node.log.
            sizes: how much feeds do at once.

        Raises:
            ChangefeedError: CF6001, CF6002; for ``logs`` as
                :func:`changefeed.stored_files.bring_logs_home` and
                :func:`changefeed.shared_logs.keep_logs_at`; CF1204 ``lease`` is out of bounds.
        """
        self.state = state
        self.catalog = Catalog.open(state, must_exist=must_exist)
        if logs == "local":
            from changefeed.stored_files import bring_logs_home

            bring_logs_home(self.catalog)
        elif logs is not None:
            from changefeed.shared_logs import keep_logs_at

            keep_logs_at(self.catalog, logs)
        if lease is not None:
            self.catalog.set_lease_seconds(lease)
        self.interpreter = Interpreter(self.catalog, host=self)
        self._layout = StateLayout(Path(self.catalog.directory))
        self._settings = settings or SparkSettings()
        self._spark = spark
        self._max_memory = max_memory
        self._max_disk = max_disk
        self._log_format = log_format
        self._sizes = sizes
        self._max_copies = max_copies
        self._max_feeds = max_feeds
        self._ready = ready
        self._node_lock = lock
        self._node: Node | None = None
        self._lock = threading.RLock()

    def __enter__(self) -> Application:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the node -------------------------------------------------------------------------

    def start_node(self) -> bool:
        """Run the state's feeds in this process, unless another process does.

        Returns:
            Whether this process now runs the node.
        """
        node = self._made()
        if node.is_node:
            return True
        started = node.start()
        if started:
            log.info("node %s started, state %s", node.id, self.catalog.shown)
        return started

    def require_node(self) -> None:
        """Run the state's feeds in this process.

        Raises:
            ChangefeedError: CF6003 another process runs them.
        """
        if not self.start_node():
            raise ChangefeedError(
                Code.STATE_HELD_BY_ANOTHER_NODE,
                f"another node runs the feeds of {self.catalog.shown}",
                hint="only one node can run a state; SHOW CHANGEFEEDS shows its feeds.",
            )

    @property
    def beats(self) -> int:
        """How often the pulse of this process's node has begun."""
        node = self._node
        return 0 if node is None else node.beats

    def check_node(self) -> None:
        """Raise an error unless the node of this process is running.

        Raises:
            ChangefeedError: CF6005, the node has stopped unexpectedly; CF6002, a newer version has
                upgraded the state, and this one cannot use it.
        """
        node = self._node
        if node is not None and node.refused is not None:
            raise node.refused
        if node is not None and node.is_node and not node.alive:
            raise ChangefeedError(
                Code.NODE_ENDED, "the node's thread has ended: no more feeds are started"
            )

    def http(
        self, host: str, port: int, *, tls: tuple[str, str] | None = None, login: bool = False
    ) -> HttpServer:
        """The API, status page, metrics and probes of this process, to be entered.

        Without ``tls`` the API is served on loopback addresses alone: elsewhere a token would be
        read on its way. With it, every request but the probes needs a token.

        Args:
            tls: files of the certificate and its key.
            login: ask for a token without ``tls``, too.

        Raises:
            ChangefeedError: CF6006 the address is taken or not allowed; CF6007 the certificate or
                the key cannot be used; CF1303 ``login`` without ``tls`` on another address.
        """
        from changefeed.core.addresses import names_this_machine
        from changefeed.http.application import Api
        from changefeed.http.server import HttpServer
        from changefeed.monitor import Monitor

        local = names_this_machine(host)
        open_api, logins = local or tls is not None, login or tls is not None
        if login and not open_api:
            raise ChangefeedError(
                Code.NOT_SUPPORTED,
                f"there is no login on {host} without TLS: a token would be read on its way",
                hint="give --http-cert and --http-key, too.",
            )
        self._note_no_user(logins)
        stopping = threading.Event()
        monitor = Monitor(self.interpreter, self.check_node)
        api = Api(
            monitor,
            local=local,
            api=open_api,
            logins=logins,
            stopping=stopping,
            budget=self._max_disk,
        )
        return HttpServer(host, port, api.application, tls=tls, stopping=stopping)

    def pg(
        self, host: str, port: int, *, tls: tuple[str, str] | None = None, login: bool = False
    ) -> PgServer:
        """PostgreSQL's protocol of this process, to be entered.

        Args:
            tls: files of the certificate and its key; clients then log in.
            login: have clients log in without ``tls``, too.

        Raises:
            ChangefeedError: CF6006 the address is taken or not allowed; CF6007 the certificate or
                the key cannot be used; CF1303 another address than a loopback one without ``tls``.
        """
        from changefeed.core.addresses import names_this_machine
        from changefeed.pg.server import PgServer

        if tls is None and not names_this_machine(host):
            raise ChangefeedError(
                Code.NOT_SUPPORTED,
                f"PostgreSQL's protocol is not served on {host} without TLS: statements and rows"
                " would be read on their way",
                hint="give --http-cert and --http-key, too.",
            )
        logins = login or tls is not None
        self._note_no_user(logins)
        return PgServer(host, port, self.interpreter, tls=tls, logins=logins)

    def alerts(self, uris: Sequence[str]) -> AlertWatch:
        """The thread that sends alerts to ``uris``, to be entered. Of the nodes of a state the one
        that has run for longest sends them.

        Raises:
            ChangefeedError: as :func:`changefeed.alerts.channels.channel`.
        """
        from changefeed.alerts.channels import channel
        from changefeed.alerts.watch import AlertWatch
        from changefeed.monitor import StateCollector

        return AlertWatch(
            [channel(uri) for uri in uris],
            StateCollector(self.interpreter).collect,
            lambda: {job.name: shown.reason for job, shown in self.interpreter.health()},
            self._leads,
            self.interpreter.clock,
        )

    def lineage(self, uri: str) -> LineageWatch:
        """The thread that sends the runs of feeds to ``uri`` as OpenLineage's events, to be
        entered. Of the nodes of a state the one that has run for longest sends them.

        Raises:
            ChangefeedError: as :func:`changefeed.alerts.openlineage.lineage_place`.
        """
        from changefeed.alerts.openlineage import LineageWatch, lineage_place

        place, clock = lineage_place(uri), self.interpreter.clock
        return LineageWatch(place, self.catalog, self._leads, clock)

    def otlp(self, uri: str) -> OtlpWatch:
        """The thread that sends metrics and spans to the collector at ``uri``, to be entered. Of
        the nodes of a state the one that has run for longest sends the metrics.

        Raises:
            ChangefeedError: as :func:`changefeed.alerts.otlp.collector_url`.
        """
        from changefeed.alerts.otlp import OtlpWatch, collector_url
        from changefeed.monitor import StateCollector

        url, metrics = collector_url(uri), StateCollector(self.interpreter).collect
        node = "" if self._node is None else self._node.id
        return OtlpWatch(url, metrics, self._leads, node, self.interpreter.clock)

    def _leads(self) -> bool:
        alive = self.catalog.live_nodes()
        return self._node is not None and bool(alive) and alive[0].id == self._node.id

    def _note_no_user(self, logins: bool) -> None:
        if logins and not self.catalog.users():
            log.warning("no user can log in yet: CREATE USER name WITH role = 'admin'")

    def _made(self) -> Node:
        from changefeed.node.node import Node
        from changefeed.spark.session import NodeSpark

        with self._lock:
            if self._node is None:
                self._layout.make_private()
                log_to(self._layout.node_log, form=self._log_format)
                if self._layout.open_to_others:
                    log.warning("other users may list the state directory: chmod 700 it")
                spark = self._spark or NodeSpark.of(self._settings, self._layout.spark_log)
                self._node = Node(
                    self.catalog,
                    self.state,
                    spark=spark,
                    max_memory=self._max_memory,
                    max_disk=self._max_disk,
                    max_copies=self._max_copies,
                    max_feeds=self._max_feeds,
                    ready=self._ready,
                    lock=self._node_lock,
                    sizes=self._sizes,
                )
            return self._node

    @property
    def is_node(self) -> bool:
        """This process runs the feeds."""
        return self._node is not None and self._node.is_node

    def close(self) -> None:
        """Stop the node of this process and close the state; the status of jobs does not change."""
        with self._lock:
            node, self._node = self._node, None
        if node is not None:
            node.stop()
        self.catalog.close()

    def verify_files(self) -> Result:
        """Compare the stored files of the state with their checksums; see
        :func:`changefeed.stored_files.verify_files`."""
        from changefeed.stored_files import verify_files

        return verify_files(self.catalog)

    def examine(self) -> Result:
        """Look for problems; see :func:`changefeed.doctor.examine`."""
        from changefeed.doctor import examine

        return examine(self.interpreter)

    def write_bundle(self, examined: Result, file: Path) -> None:
        """See :func:`changefeed.doctor.write_bundle`."""
        from changefeed.doctor import write_bundle

        write_bundle(self.interpreter, examined, file)

    def drain(self, node: str | None, seconds: float) -> str:
        """Make a node give its sources away; see :func:`changefeed.drain.drain`."""
        from changefeed.drain import drain

        return drain(self.catalog, node, seconds)

    def undo_drain(self, node: str | None) -> str:
        """See :func:`changefeed.drain.undo_drain`."""
        from changefeed.drain import undo_drain

        return undo_drain(self.catalog, node)

    # -- what statements need (changefeed.api.FeedHost) -----------------------------------

    def start_sinkless(self, plan: FeedPlan, gone: Callable[[], bool]) -> Iterator[ClientRow]:
        """Run a feed whose rows the iterator yields; closing the iterator ends the feed, and so
        does ``gone``."""
        if not self.node_running():
            self.start_node()
        return self._made().start_sinkless(plan, gone)

    def measure(self, plan: FeedPlan, seconds: float, gone: Callable[[], bool]) -> Measurement:
        """Run a feed for so long into nothing, and say what it cost."""
        if not self.node_running():
            self.start_node()
        return self._made().measure(plan, seconds, gone)

    def compile_query(self, schema: TableSchema, query: nodes.Query) -> CompiledQuery:
        """Check a CDC query against its table; if no node runs, Spark starts in this process."""
        if self._node_elsewhere:
            return NodeInquiry(self.catalog).compile_query(schema, query)
        require_spark("a CDC query")
        return self._made().compile_query(schema, query)

    def extract_columns(
        self, location: str, form: str | None, delimiter: str
    ) -> tuple[DatasetColumn, ...]:
        """The columns of a dataset's extract; if no node runs, Spark starts in this process."""
        if self._node_elsewhere:
            return NodeInquiry(self.catalog).extract_columns(location, form, delimiter)
        return self._made().extract_columns(location, form, delimiter)

    def check_tables(self, registration: Registration) -> None:
        """Whether a dataset could have its tables in Spark's catalog; if no node runs, Spark starts
        in this process."""
        if self._node_elsewhere:
            NodeInquiry(self.catalog).check_tables(registration)
        else:
            self._made().check_tables(registration)

    @property
    def _node_elsewhere(self) -> bool:
        """Whether a node in another process runs the feeds; then only its Spark is used."""
        return not self.is_node and bool(self.catalog.live_nodes())

    @property
    def spark_elsewhere(self) -> bool:
        """A node in another process answers what needs Spark."""
        return self._node_elsewhere

    def spark_report(self) -> SparkReport:
        """What the Spark of the node is, or of this process; starts nothing."""
        if self._node_elsewhere:
            return NodeInquiry(self.catalog).spark_report()
        return self._made().spark_report()

    def spark_jobs(self, feed: int, node: str | None) -> SparkJobs:
        """The jobs of a feed that the Spark of a node knows, or of this process; starts nothing."""
        if self._node_elsewhere:
            return NodeInquiry(self.catalog).spark_jobs(feed, node)
        return self._made().spark_jobs(feed, node)

    def query_sessions(self) -> QuerySessions:
        """The Spark sessions that evaluate CDC queries here; Spark starts with the first query."""
        return self._made().query_sessions()

    def wake(self) -> None:
        """Make the node read the jobs of the state now."""
        if self._node is not None:
            self._node.wake()

    def hasten(self, source: str) -> None:
        """Make capture catch up now, because a caller waits for what a source has committed."""
        if self._node is not None:
            self._node.hasten(source)

    def deliver_now(self, job_id: int) -> None:
        """Make a feed deliver everything that waits and save its progress, without its sink's
        pauses.
        """
        if self._node is not None:
            self._node.deliver_now(job_id)
        else:
            self.catalog.hurry(job_id)

    def node_running(self) -> bool:
        """Whether some process runs the feeds of this state."""
        return self.is_node or bool(self.catalog.live_nodes())

    def spark_with(self, packs: Sequence[str]) -> SparkAccess:
        """The Spark session of this process with jar packs: the node's, or one started for a
        statement.
        """
        return self._made().spark_with(packs)

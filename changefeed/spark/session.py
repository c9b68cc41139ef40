"""The one Spark session of this process: started in the background, healed when it dies.

Starting takes some ten seconds, so nothing that a person waits for may wait for it:
:meth:`SparkEngine.start` returns at once and :meth:`SparkEngine.session` waits. A JVM that
dies (out of memory, ``kill -9``) is noticed by a watching thread; what ran in it fails with
CF4002, which the engine tries again, and the next :meth:`SparkEngine.session` starts another.

Jar packs (:mod:`changefeed.spark.packs`) that are in the user's cache are on the class path
from the start, which costs nothing measurable (session in 5 to 6 s with and without); one that
has to be downloaded first makes :meth:`SparkEngine.require` restart the JVM. Table formats
also extend the planner, which scans do not need, so their extensions live in a second session
of the same context: ``use(packs=...)``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import logging
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from changefeed.core.engines import EngineOption, SparkState
from changefeed.core.errors import ChangefeedError
from changefeed.core.telemetry import log
from changefeed.spark.failure import translate
from changefeed.spark.java import find_java
from changefeed.spark.jvm import Gateway, Jvm, Launch, launch_jvm, spark_jars
from changefeed.spark.packs import Pack, cached, pack, paths
from changefeed.spark.settings import SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: How often Spark tries a task (one part of a scan) before the job fails.
TASK_ATTEMPTS = 4

_LOCAL = re.compile(r"local(\[.*\])?\Z")
_SIZE = re.compile(r"\d+[kmgKMG]\Z")


class SparkEngine:
    """Spark for this process. At most one may be started at a time.

    Args:
        master: ``local[...]`` runs inside our own JVM; anything else is a cluster's URL and
            goes through Spark's launcher with the settings of ``SPARK_HOME``. Default: all
            cores of this machine.
        heap: ``-Xmx`` of the driver, e.g. ``2g``; default a quarter of the memory, 1 to 4 GiB.
        scratch: directory for temporary files; default a fresh one, removed by ``close``.
        log: file for what the JVM and the Python workers print; default inside ``scratch``.
        settings: Spark settings on top of ours.
        flags: further JVM flags.
        packs: jar packs to have from the first start on, downloaded where they are missing.
        preferred: where bulk work of feeds runs that do not say it themselves.
    """

    def __init__(
        self,
        *,
        master: str | None = None,
        heap: str | None = None,
        scratch: Path | None = None,
        log: Path | None = None,
        settings: Mapping[str, str] | None = None,
        flags: tuple[str, ...] = (),
        packs: Sequence[str] = (),
        preferred: EngineOption = EngineOption.AUTO,
    ) -> None:
        if heap is not None and not _SIZE.match(heap):
            raise ChangefeedError("CF1204", f"invalid size of Spark's heap: {heap!r}")
        self.cores = _cores(master)
        self.master = master or f"local[{self.cores}]"
        self.heap = heap or default_heap()
        self.preferred = preferred
        self._settings = dict(settings or {})
        self._flags = flags
        self._packs = frozenset(pack(name).name for name in packs)
        self._log = log
        self._given_scratch = scratch
        self._lock = threading.Lock()
        self._life: _JvmSession | None = None
        self._starts = 0
        self._closed = False

    @classmethod
    def of(cls, settings: SparkSettings, log: Path | None = None) -> SparkEngine:
        """The engine that a command line asks for."""
        conf = dict(settings.conf)
        return cls(
            master=settings.master,
            heap=settings.heap,
            settings=conf,
            log=log,
            preferred=settings.engine,
        )

    def start(self) -> None:
        """Begin starting in the background, unless it runs or starts already."""
        self._current()

    @property
    def installed(self) -> bool:
        """Spark could start here: pyspark is installed and, for a local master, a Java is found.

        Says nothing about jars of packs, which are downloaded when they are needed.
        """
        try:
            spark_jars()
            if _LOCAL.match(self.master):
                find_java()
        except ChangefeedError:
            return False
        return True

    @property
    def ready(self) -> bool:
        """A session is there: :meth:`session` would not wait."""
        life = self._life
        return life is not None and life.usable

    @property
    def local(self) -> bool:
        """Its workers run on this machine."""
        return _LOCAL.match(self.master) is not None

    def state(self) -> SparkState:
        """What the choice of an engine needs to know; starts nothing.

        Cheap: feeds ask in each round.
        """
        life = self._life
        if life is not None and life.usable:
            return SparkState(ready=True, cores=life.cores)
        return SparkState(ready=False, cores=self.cores)

    def address(self) -> str:
        """The host at which workers reach this process; waits for the session.

        Raises:
            ChangefeedError: what :meth:`session` raises.
        """
        return self.session().conf.get("spark.driver.host") or "127.0.0.1"

    @property
    def alive(self) -> bool:
        """Nothing is known to be wrong: not started yet, starting, or running."""
        life = self._life
        return not self._closed and (life is None or not life.over)

    @property
    def starts(self) -> int:
        """How often a session was started (2 after the first restart)."""
        return self._starts

    @property
    def pid(self) -> int | None:
        """Process id of the JVM, None while there is none."""
        life = self._life
        jvm = life.jvm if life is not None else None
        return jvm.pid if jvm is not None and jvm.alive else None

    def session(self, timeout: float | None = None) -> SparkSession:
        """The session; waits for it, and starts it (again) when there is none.

        Raises:
            ChangefeedError: CF4003 when Spark or Java is missing, CF4002 when the start failed,
                CF1304 after ``timeout`` seconds.
        """
        life = self._current()
        try:
            return life.session.result(timeout)
        except TimeoutError as cause:
            raise ChangefeedError("CF1304", "Spark did not start in time") from cause

    def require(self, *packs: str) -> None:
        """Have the session with these jar packs; waits for it.

        A running session without them ends, and what runs in it fails with CF4002, which is
        tried again: this happens once, when a pack was not in the user's cache at the start.

        Raises:
            ChangefeedError: CF4003 when a pack does not exist or cannot be downloaded; what
                :meth:`session` raises.
        """
        paths(packs)
        with self._lock:
            self._packs |= frozenset(packs)
        self._with_packs().session.result()

    @contextmanager
    def use(self, group: str | None = None, *, packs: Sequence[str] = ()) -> Iterator[SparkSession]:
        """The session for one piece of work; what fails in Spark becomes a ChangefeedError.

        ``group`` names the jobs this thread starts in it, so that :meth:`cancel` finds them.
        ``packs`` are jar packs the work needs; where one of them extends Spark SQL (``delta``,
        ``iceberg``) the session is the one with the extensions, which has settings, temporary
        views and functions of its own.
        Import what imports pyspark *inside* the block: before, another thread may be
        importing it, and pyspark's modules import each other in circles.

        Raises:
            ChangefeedError: CF4002 when the JVM died or a job failed, CF4001 when a value
                could not be encoded, or what a function in an executor raised.
        """
        if packs:
            self.require(*packs)
        life = self._current()
        session = life.session.result()
        try:
            if any(pack(name).extension for name in packs):
                session = life.extended()
            with _job_group(session, group):
                yield session
        except ChangefeedError:
            raise
        except Exception as failure:
            raise translate(failure, jvm_died=life.died(failure)) from failure

    def cancel(self, group: str) -> None:
        """Cancel the jobs of a group, also those it would start later. Never raises.

        A group's name is used up by this.
        """
        life = self._life
        if life is not None and life.usable:
            context = life.session.result().sparkContext
            # A JVM that is gone runs no job.
            with contextlib.suppress(Exception):
                context._jsc.sc().cancelJobGroupAndFutureJobs(group)

    @property
    def scratch(self) -> Path:
        """Directory for temporary files of the running session."""
        life = self._current()
        life.session.result()
        return life.scratch

    def close(self) -> None:
        """Stop Spark and remove its files. No process is left. The engine is not usable after."""
        with self._lock:
            self._closed = True
            life, self._life = self._life, None
        if life is not None:
            life.end()

    def __enter__(self) -> SparkEngine:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _current(self) -> _JvmSession:
        return self._alive(lambda life: not life.over)

    def _with_packs(self) -> _JvmSession:
        return self._alive(lambda life: not life.over and self._packs <= life.packs)

    def _alive(self, good: Callable[[_JvmSession], bool]) -> _JvmSession:
        with self._lock:
            if self._closed:
                raise ChangefeedError("CF4002", "Spark was stopped")
            if self._life is not None and good(self._life):
                return self._life
            old, self._life = self._life, _JvmSession(self)
            self._starts += 1
            life = self._life
        life.begin(after=old)
        return life


class _JvmSession:
    """One JVM and its session, from start to end."""

    def __init__(self, engine: SparkEngine) -> None:
        self.session: Future[SparkSession] = Future()
        self.jvm: Jvm | None = None
        self.packs = engine._packs | cached()
        self._engine = engine
        self._extended: SparkSession | None = None
        self._extending = threading.Lock()
        self._started = threading.Event()
        given = engine._given_scratch
        if given is not None:
            given.mkdir(parents=True, exist_ok=True)
        self.scratch = Path(tempfile.mkdtemp(prefix="changefeed-spark-", dir=given)).resolve()
        self._log = engine._log or self.scratch / "spark.log"

    @functools.cached_property
    def cores(self) -> int:
        """Tasks that its session runs at the same time."""
        if not self._engine.local:
            # A session that dies meanwhile fails the job, which says so.
            with contextlib.suppress(Exception):
                return int(self.session.result().sparkContext.defaultParallelism)
        return self._engine.cores

    @property
    def usable(self) -> bool:
        return self.session.done() and not self.over

    @property
    def over(self) -> bool:
        """It failed to start, or its JVM has ended."""
        if self.session.done() and self.session.exception() is not None:
            return True
        return self.jvm is not None and self.session.done() and not self.jvm.alive

    def begin(self, after: _JvmSession | None) -> None:
        threading.Thread(target=self._run, args=(after,), name="spark-start", daemon=True).start()

    def _run(self, after: _JvmSession | None) -> None:
        try:
            if after is not None:
                after.end()
            session = self._start()
        except ChangefeedError as error:
            self._abandon(error)
        except Exception as failure:
            self._abandon(translate(failure, jvm_died=self.died(failure)))
        else:
            self.session.set_result(session)
        finally:
            self._started.set()

    def _abandon(self, error: ChangefeedError) -> None:
        if self.jvm is not None:
            self.jvm.stop(grace=0)
        _PYSPARK.release(self)
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.session.set_exception(error)

    def _start(self) -> SparkSession:
        spark_jars()  # the errors that name what is missing come first
        engine = self._engine
        java = find_java() if _LOCAL.match(engine.master) else None
        _PYSPARK.take(self)
        from pyspark import SparkConf, SparkContext
        from pyspark.sql import SparkSession

        _quiet_py4j()
        jars = paths(sorted(self.packs))
        if java is not None:
            self.jvm, gateway = launch_jvm(
                Launch(
                    java=java,
                    heap=engine.heap,
                    master=_with_attempts(engine.master),
                    scratch=self.scratch,
                    log=self._log,
                    flags=engine._flags,
                    environment={"SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": worker_path()},
                    jars=jars,
                )
            )
            client = _connect(gateway)
        else:
            self.jvm, client = _launch_for_cluster(engine, self._log, jars)
        settings = _settings(engine, self.scratch)
        if "hadoop-aws" in self.packs:
            settings |= _STORE_SETTINGS
        site: dict[str, str] = {}
        person = dict(engine._settings)
        if java is None:
            site = _given(client)
            # The launcher was given these together with ours.
            person.pop("spark.jars", None)
        settings = choose_properties(settings, site, person)
        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        context = SparkContext(conf=conf, gateway=client)
        # Workers otherwise take the first python3 of PATH, which may lack pyarrow.
        context.pythonExec = os.environ.get(
            "PYSPARK_PYTHON", settings.get("spark.pyspark.python", sys.executable)
        )
        for module in _LATER:
            importlib.import_module(module)
        return SparkSession(context)

    def died(self, failure: BaseException) -> bool:
        """Whether the JVM is gone, asked after ``failure``.

        The socket breaks a moment before the process is known to have ended, so an error of
        the connection is given a second.
        """
        if self.jvm is None:
            return False
        return self.jvm.wait(1.0 if _broken_connection(failure) else 0.0)

    def extended(self) -> SparkSession:
        """The session whose planner knows the table formats; made when first asked for."""
        with self._extending:
            if self._extended is None:
                formats = [pack(name) for name in sorted(self.packs) if pack(name).extension]
                self._extended = _extend(self.session.result(), formats)
            return self._extended

    def end(self) -> None:
        while not self._started.wait(0.05):
            if self.jvm is not None:
                self.jvm.stop(grace=0)  # nobody waits for a start that is not wanted any more
        if self.jvm is not None:
            if self.jvm.alive:
                self._stop_context()
            self.jvm.stop()
        _PYSPARK.release(self)
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _stop_context(self) -> None:
        if self.session.exception() is None:
            # A JVM that breaks while it stops is killed right after.
            with contextlib.suppress(Exception):
                self.session.result().stop()


#: What our modules import of pyspark where they use it: here once, before several threads want
#: it at the same time.
_LATER = ("pyspark.sql.functions", "pyspark.sql.pandas.types")


@contextmanager
def _job_group(session: SparkSession, group: str | None) -> Iterator[None]:
    if group is None:
        yield
        return
    context = session.sparkContext
    context.setJobGroup(group, group, interruptOnCancel=True)
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # where the JVM is gone, so is the group
            context._jsc.clearJobGroup()


def _extend(plain: SparkSession, formats: Sequence[Pack]) -> SparkSession:
    """A session beside ``plain`` that has the formats' extensions.

    They are injected into the object both sessions take them from, after ``plain`` has built
    its planner and before the new one does; so ``plain`` stays as it is, and both share one
    context, cache and listener (``spark.sql.extensions`` would hold for every session).
    """
    from pyspark.sql import SparkSession

    gateway: Any = plain.sparkContext._gateway
    jvm = gateway.jvm

    def none(kind: str) -> Any:
        return gateway.new_array(getattr(jvm.java.lang, kind), 0)

    plain._jsparkSession.sessionState()  # built now, if it was not
    extensions = plain._jsparkSession.extensions()
    # The loader of Spark's jars: py4j's own does not have those that a cluster's driver is given.
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for its in formats:
        kind = loader.loadClass(its.extension)
        kind.getConstructor(none("Class")).newInstance(none("Object")).apply(extensions)
    session = SparkSession(plain.sparkContext, plain._jsparkSession.newSession())
    for its in formats:
        for name, value in its.settings:
            session.conf.set(name, value)
    return session


def default_heap() -> str:
    """A quarter of the machine's memory, at least 1 GiB and at most 4."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return "1g"
    return f"{min(4096, max(1024, total // 4 // 2**20))}m"


def worker_path() -> str:
    """``PYTHONPATH`` of Spark's Python workers: what this process imports from.

    Archives are left out: see :mod:`changefeed.spark.daemon`.
    """
    spec = importlib.util.find_spec("changefeed")
    roots = [str(Path(spec.origin).parent.parent)] if spec and spec.origin else []
    roots += [entry for entry in sys.path if entry and Path(entry).is_dir()]
    return os.pathsep.join(dict.fromkeys(roots))


def _settings(engine: SparkEngine, scratch: Path) -> dict[str, str]:
    local = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(scratch),
    }
    master = _with_attempts(engine.master)
    return {
        "spark.app.name": "changefeed",
        "spark.master": master,
        **(local if _LOCAL.match(engine.master) else {}),
        "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
        **_SETTINGS,
        "spark.sql.shuffle.partitions": str(engine.cores),
        "spark.task.maxFailures": str(TASK_ATTEMPTS),
    }


_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.scheduler.mode": "FAIR",
    # Checksum files next to every local file cost more than the file does.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.python.daemon.module": "changefeed.spark.daemon",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "16384",
    # Wide tables keep whole-stage code generation.
    "spark.sql.codegen.maxFields": "2000",
    # Nobody looks at old jobs: the listener's memory stays small over days.
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "5",
}


#: Properties that the results depend on: neither a site's defaults nor ``--conf`` change them.
_FIXED = frozenset(
    {
        "spark.sql.session.timeZone",
        "spark.python.daemon.module",
        "spark.sql.execution.arrow.pyspark.enabled",
    }
)


def choose_properties(
    ours: Mapping[str, str], site: Mapping[str, str], person: Mapping[str, str]
) -> dict[str, str]:
    """The properties of a session: a person's before the site's before ours, save the fixed."""
    chosen = {**ours, **site, **person}
    for name in _FIXED & (site.keys() | person.keys()):
        if chosen[name] != ours[name]:
            log.warning("Spark property %s stays %s: results depend on it", name, ours[name])
            chosen[name] = ours[name]
    return chosen


#: Beginnings of properties that Spark's launcher sets by itself, or that we gave it.
_SET_BY_LAUNCH = (
    "spark.app.",
    "spark.submit.",
    "spark.master",
    "spark.jars",
    "spark.driver.memory",
    "spark.ui.showConsoleProgress",
)


def _given(gateway: Any) -> dict[str, str]:
    """The properties that Spark's launcher found: spark-defaults.conf of the site."""
    pairs = gateway.jvm.org.apache.spark.SparkConf().getAll()
    found = {pair._1(): pair._2() for pair in pairs}
    return {k: v for k, v in found.items() if not k.startswith(_SET_BY_LAUNCH)}


#: Of a session that writes to an object store: what goes there is gathered in local files, by a
#: class that takes no other filesystem than Hadoop's own for the local one.
_STORE_SETTINGS = {"spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem"}


def _cores(master: str | None) -> int:
    match = re.match(r"local\[(\d+)", master or "")
    return int(match[1]) if match else (os.cpu_count() or 1)


def _with_attempts(master: str) -> str:
    # local[N] never tries a task again; local[N,F] does.
    match = re.match(r"local(?:\[([^,\]]+)\])?\Z", master)
    return f"local[{match[1] or 1},{TASK_ATTEMPTS}]" if match else master


def _quiet_py4j() -> None:
    """Keep a broken connection and a failed query from being printed: they are raised as well.

    py4j reports the one by the functions of the module ``logging`` themselves, which write to
    standard error where nobody has set logging up; pyspark the other by a handler of its own,
    with the values of rows in it.
    """
    from py4j import java_gateway
    from pyspark import accumulators
    from pyspark.logger import PySparkLogger

    quiet = logging.getLogger("py4j")
    quiet.setLevel(logging.CRITICAL)
    java_gateway.logging = quiet
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    for kind in (accumulators.AccumulatorTCPServer, accumulators.AccumulatorUnixServer):
        kind.handle_error = _log_accumulators  # type: ignore[assignment]


def _log_accumulators(server: object, request: object, client_address: object) -> None:
    """Where pyspark's server of accumulators ends with a traceback on standard error: a JVM that
    is killed breaks its connection, which is told elsewhere."""
    if not isinstance(sys.exc_info()[1], EOFError | ConnectionError):
        log.exception("Spark's accumulators")


def _connect(gateway: Gateway) -> Any:
    """pyspark's own client for a JVM that runs already."""
    from pyspark.java_gateway import launch_gateway

    # pyspark takes the address from the environment only; it is gone again right after.
    os.environ["PYSPARK_GATEWAY_PORT"] = str(gateway.port)
    os.environ["PYSPARK_GATEWAY_SECRET"] = gateway.secret
    try:
        return launch_gateway()  # type: ignore[no-untyped-call]
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]


def _launch_for_cluster(engine: SparkEngine, log: Path, jars: Sequence[Path]) -> tuple[Jvm, Any]:
    """Spark's own launcher: it reads the cluster's settings (spark-env.sh, Hadoop's files)."""
    from pyspark import SparkConf
    from pyspark.java_gateway import launch_gateway

    conf = SparkConf(loadDefaults=False).set("spark.driver.memory", engine.heap)
    conf.set("spark.master", engine.master)
    # Some properties only count when the JVM starts, such as the class path.
    conf.setAll(list(engine._settings.items()))
    theirs = engine._settings.get("spark.jars", "")
    names = [*filter(None, theirs.split(",")), *(jar.as_uri() for jar in jars)]
    if names:
        conf.set("spark.jars", ",".join(names))
    with open(log, "ab") as output:
        client = launch_gateway(  # type: ignore[no-untyped-call]
            conf, {"stdout": output, "stderr": output}
        )
    return Jvm(client.proc), client


def _broken_connection(failure: BaseException) -> bool:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    # These are answers, so the JVM was there to give them.
    return not isinstance(failure, Py4JJavaError | PySparkException)


class _Singletons:
    """pyspark's module-wide state, which one life at a time may have.

    pyspark keeps its context, gateway and JVM in class attributes, so a second session in one
    process would use the first one's, and its end would take them away from the first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: _JvmSession | None = None

    def take(self, life: _JvmSession) -> None:
        """Say that this life starts a session now.

        Raises:
            ChangefeedError: CF4002 when another one has not ended.
        """
        with self._lock:
            if self._owner not in (None, life):
                raise ChangefeedError(
                    "CF4002",
                    "Spark runs in this process already",
                    hint="close the other engine first, or give it to both",
                )
            self._owner = life

    def release(self, life: _JvmSession) -> None:
        """Make pyspark ready for another JVM, if it was this life that had it."""
        with self._lock:
            if self._owner is life:
                _forget_singletons()
                self._owner = None


_PYSPARK = _Singletons()


def _forget_singletons() -> None:
    """Make pyspark ready for another JVM after its JVM has gone."""
    if "pyspark" not in sys.modules:
        return
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    with SparkContext._lock:
        context = SparkContext._active_spark_context
        server = getattr(context, "_accumulatorServer", None)
        if server is not None:
            server.shutdown()
        if SparkContext._gateway is not None:
            with contextlib.suppress(Exception):  # it talks to the JVM, which may be gone
                SparkContext._gateway.shutdown()
        SparkContext._active_spark_context = None
        SparkContext._gateway = None
        SparkContext._jvm = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None

"""The one Spark session of this process: started in the background, healed when it dies.

Starting takes some ten seconds, so nothing that a user waits for may wait for it:
:meth:`NodeSpark.start` returns at once and :meth:`NodeSpark.session` waits. A thread notices a JVM
that dies (out of memory, ``kill -9``); what ran in it fails with CF4002, which feeds retry, and the
next :meth:`NodeSpark.session` starts another.

Jar packs (:mod:`changefeed.spark.packs`) that are in the user's cache are on the class path
from the start, which costs nothing measurable (session in 5 to 6 s with and without); one that
has to be downloaded first makes :meth:`NodeSpark.require` restart the JVM. Table formats
also extend the planner, which scans do not need, so their extensions live in a second session
of the same context: ``use(packs=...)``.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from changefeed.core.engines import LEAST_JOB_ROWS, EngineOption, SparkReport, SparkState
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.extras import require_spark
from changefeed.core.spark_jobs import JobGroup, SparkJobs
from changefeed.spark.attached import EXISTING, REMOTE, AttachedSession, Find, finder, shown_url
from changefeed.spark.failure import translate
from changefeed.spark.internals.jobs import jobs_of
from changefeed.spark.internals.sessions import cancel_group, job_group
from changefeed.spark.java import find_java
from changefeed.spark.jvm import spark_jars
from changefeed.spark.jvm_session import JvmSession, SessionSpec
from changefeed.spark.node_session import NodeSession
from changefeed.spark.packs import pack, paths
from changefeed.spark.properties import count_cores, is_local
from changefeed.spark.settings import LOCAL, SparkSettings
from changefeed.spark.staging import StagingArea
from changefeed.spark.staging_place import StagingPlace, staging_place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SIZE = re.compile(r"\d+[kmgKMG]\Z")


class NodeSpark:
    """Spark for this process. At most one may be started at a time.

    Args:
        master: ``local[...]`` runs in a JVM of this process; others are a cluster's URL and
            use Spark's launcher with the settings of ``SPARK_HOME``. Default: all
            cores of this machine.
        heap: ``-Xmx`` of the driver, e.g. ``2g``; default a quarter of the memory, 1 to 4 GiB.
        scratch: directory for temporary files; default a fresh one, removed by ``close``.
        log: file for the output of JVM and Python workers; default inside ``scratch``.
        settings: Spark settings that override changefeed's.
        flags: further JVM flags.
        packs: jar packs to have from the first start on, downloaded where they are missing.
        preferred: where bulk work of feeds runs that have no option ``engine``.
        least_job_rows: bulk work of fewer rows stays in this process.
        attached: finds a session that exists, to be used instead of one of our own; ``master`` then
            names it for people. See :mod:`.attached`.
        staging: where the node puts rows for executors, if they do not see its
            directories; see :func:`.staging_place.staging_place`.
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
        least_job_rows: int = LEAST_JOB_ROWS,
        staging: str | None = None,
        attached: Find | None = None,
    ) -> None:
        if heap is not None and not _SIZE.match(heap):
            raise ChangefeedError(
                Code.INVALID_OPTION_VALUE, f"invalid size of Spark's heap: {heap!r}"
            )
        self._attached = attached
        self.cores = 1 if attached else count_cores(master)
        self.master = master or f"local[{self.cores}]"
        self.heap = heap
        self.preferred = preferred
        self.least_job_rows = least_job_rows
        self._settings = dict(settings or {})
        self._flags = flags
        self._place = staging_place(staging) if staging else None
        self._staging = StagingArea(self._place, self.session) if self._place else None
        wanted = (*packs, *(self._place.packs if self._place else ()))
        self._packs = frozenset(pack(name).name for name in wanted)
        self._log = log
        self._given_scratch = scratch
        self._lock = threading.Lock()
        self._life: NodeSession | None = None
        self._starts = 0
        self._lost: ChangefeedError | None = None
        #: Jar packs that are being fetched before a session can have them.
        self._fetched: tuple[str, ...] = ()
        self._closed = False
        self._occupied = 0

    @classmethod
    def of(cls, settings: SparkSettings, log: Path | None = None) -> NodeSpark:
        """Spark with the settings of a command line.

        Raises:
            ChangefeedError: CF4003, a setting needs PySpark, which is not installed.
        """
        for flag, given in {
            "--engine spark": settings.engine is EngineOption.SPARK,
            "--master": settings.place != LOCAL,
        }.items():
            if given:
                require_spark(flag)
        conf = dict(settings.conf)
        place, found = settings.place, None
        if place == EXISTING or place.startswith(REMOTE):
            place, found = shown_url(place), finder(place)
        return cls(
            attached=found,
            master=None if place == LOCAL else place,
            heap=settings.heap,
            settings=conf,
            log=log,
            preferred=settings.engine,
            least_job_rows=settings.least_job_rows,
            staging=settings.staging,
        )

    def start(self) -> None:
        """Begin starting in the background, unless it runs or starts already."""
        self._current()

    @property
    def installed(self) -> bool:
        """Whether Spark could start: pyspark is installed and, for a local master, a Java is found.

        Jars of packs are not checked; they are downloaded when they are needed.
        """
        try:
            self._check_installed()
        except ChangefeedError:
            return False
        return True

    def _check_installed(self) -> None:
        if self._attached is not None:
            return
        spark_jars()
        if self.local:
            find_java()

    @property
    def ready(self) -> bool:
        """Whether a session is there: :meth:`session` would not wait."""
        life = self._life
        return life is not None and life.usable

    @property
    def lost(self) -> ChangefeedError | None:
        """Why the last session ended unexpectedly; None once there is another one."""
        return None if self.ready else self._lost

    @property
    def step(self) -> str:
        """What Spark does before it can be used; empty if it can be used, or was not started."""
        life, packs = self._life, self._fetched
        if packs:
            return f"Spark fetches the jars of {', '.join(packs)}"
        return "" if life is None or life.session.done() else life.step

    def report(self) -> SparkReport:
        """What it is, for people; starts nothing."""
        life, state = self._life, self.state()
        survey = life.survey if life is not None and state.ready else None
        if life is not None and survey is not None:
            lost = [ability.without for ability in survey.missing]
            for folder, why in life.hindrances.items():
                what = "backlogs" if folder else "scans and backlogs"
                lost.append(f"{what} run in the node: {why}")
            found = survey.version, survey.allowed, lost
            return SparkReport("running", self.master, state.cores, *found)
        status = self.step or "not started: it starts with the first feed that needs it"
        if self._lost is not None:
            status = f"not running: {self._lost.message}"
        elif not self.step:
            try:
                self._check_installed()
            except ChangefeedError as error:
                status = f"not available: {error.message}"
        return SparkReport(status, self.master, state.cores)

    def jobs_of(self, state: str, feed: int) -> SparkJobs:
        """The jobs of a feed of a state; starts nothing.

        Raises:
            ChangefeedError: CF4003, this Spark does not let see its jobs.
        """
        life = self._life
        if life is None or not life.usable:
            return SparkJobs(idle=f"Spark runs no job: {self.report().status}")
        try:
            return SparkJobs(jobs_of(life.session.result(), state, feed))
        except ChangefeedError:
            raise
        except Exception as failure:
            raise translate(failure, jvm_died=life.died(failure)) from failure

    def _lose(self, error: ChangefeedError) -> None:
        self._lost = error

    @property
    def local(self) -> bool:
        """Whether its workers run on this machine."""
        return is_local(self.master)

    @property
    def stages(self) -> bool:
        """Whether executors read the node's rows from a staging place."""
        return self._staging is not None

    @property
    def shared_place(self) -> StagingPlace:
        """How executors reach the folder of :meth:`shared_folder`."""
        return self._place or StagingPlace("/")

    @contextmanager
    def shared(self, paths: Sequence[str]) -> Iterator[list[str]]:
        """For a block, the names under which executors read files of this machine.

        Raises:
            ChangefeedError: CF4002, the staging place cannot be written.
        """
        if self._staging is None:
            yield list(paths)
            return
        with self._staging.shared(paths) as copies:
            yield copies

    @contextmanager
    def shared_folder(self, folder: Path) -> Iterator[str]:
        """For a block, the name of a folder that executors may create, write and read.

        Args:
            folder: the folder, if there is no staging place.
        """
        if self._staging is not None:
            with self._staging.folder() as name:
                yield name
            return
        try:
            yield str(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def state(self) -> SparkState:
        """The state that the choice of an engine depends on; starts nothing.

        Cheap: feeds ask in each round.
        """
        life = self._life
        if life is not None and life.usable:
            known = life.hindrances.get("", "")
            return SparkState(True, life.cores, self.least_job_rows, known)
        return SparkState(False, self.cores, self.least_job_rows)

    def hindrance(self, stopping: Callable[[], bool], folder: Path | None = None) -> str:
        """Why executors cannot run changefeed's functions; empty if they can.

        If the node has not started this Spark, a job asks an executor. The answer takes seconds,
        a minute at most.

        Args:
            stopping: asked while it takes; true: "not known yet" is the reason.
            folder: of this machine that the functions read, unless there is a staging place.

        Raises:
            ChangefeedError: what :meth:`session` raises.
        """
        if self._attached is None:
            return ""
        return self._usable()[0].ask("" if folder is None or self.stages else str(folder), stopping)

    @contextmanager
    def occupied(self) -> Iterator[int]:
        """For a block, the number of cores that tasks without an end may occupy: all that no other
        such block has, but one, which is left to other jobs."""
        cores = self.state().cores
        with self._lock:
            granted = max(0, cores - 1 - self._occupied)
            self._occupied += granted
        try:
            yield granted
        finally:
            with self._lock:
                self._occupied -= granted

    def address(self) -> str:
        """The host at which workers reach this process; waits for the session.

        Raises:
            ChangefeedError: what :meth:`session` raises.
        """
        return self.session().conf.get("spark.driver.host") or "127.0.0.1"

    @property
    def alive(self) -> bool:
        """Whether no error is known: it was not started yet, starts, or runs."""
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
        return self._usable(timeout)[1]

    def _usable(self, timeout: float | None = None) -> tuple[NodeSession, SparkSession]:
        while True:
            life = self._current()
            try:
                return life, life.session.result(timeout)
            except TimeoutError as cause:
                raise ChangefeedError(Code.TIMED_OUT, "Spark did not start in time") from cause
            except ChangefeedError:
                # Ended while it started, because something else requires packs: wait for the next.
                if self._closed or self._life in (life, None):
                    raise

    def require(self, *packs: str) -> None:
        """Restart Spark with these jar packs if the session has them not; waits for it.

        What runs in a session without them fails with CF4002, which is retried: this happens once,
        when a pack was not in the user's cache at the start.

        Raises:
            ChangefeedError: CF4003 when a pack does not exist or cannot be downloaded; what
                :meth:`session` raises.
        """
        if self._attached is not None:
            self._usable()[0].extended(packs)
            return
        self._fetched = packs
        try:
            paths(packs)
        finally:
            self._fetched = ()
        with self._lock:
            self._packs |= frozenset(packs)
        self._with_packs().session.result()

    @contextmanager
    def use(
        self, group: JobGroup | None = None, *, packs: Sequence[str] = ()
    ) -> Iterator[SparkSession]:
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
        life, session = self._usable()
        try:
            if any(pack(name).extension for name in packs):
                session = life.extended(packs)
            with job_group(session, group):
                yield session
        except ChangefeedError:
            raise
        except Exception as failure:
            raise translate(failure, jvm_died=life.died(failure)) from failure

    def cancel(self, group: JobGroup) -> None:
        """Cancel the jobs of a group, also those it would start later. Never raises.

        The group's name cannot be used again.
        """
        life = self._life
        if life is not None and life.usable:
            # A JVM that has ended runs no job.
            with contextlib.suppress(Exception):
                cancel_group(life.session.result(), group)

    @property
    def scratch(self) -> Path:
        """Directory for temporary files of the running session."""
        life = self._current()
        life.session.result()
        return life.scratch

    def close(self) -> None:
        """Stop Spark and remove its files. No process is left. Not usable after."""
        if self._staging is not None and self.ready:
            self._staging.close()
        with self._lock:
            self._closed = True
            life, self._life = self._life, None
        if life is not None:
            life.end()

    def __enter__(self) -> NodeSpark:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _spec(self) -> SessionSpec:
        return SessionSpec(
            master=self.master,
            cores=self.cores,
            heap=self.heap,
            defaults=self._place.properties if self._place else {},
            properties=self._settings,
            flags=self._flags,
            packs=self._packs,
            log=self._log,
            scratch=self._given_scratch,
        )

    def _current(self) -> NodeSession:
        return self._alive(lambda life: not life.over)

    def _with_packs(self) -> NodeSession:
        return self._alive(lambda life: not life.over and self._packs <= life.packs)

    def _alive(self, good: Callable[[NodeSession], bool]) -> NodeSession:
        with self._lock:
            if self._closed:
                raise ChangefeedError(Code.SPARK_FAILED, "Spark was stopped")
            if self._life is not None and good(self._life):
                return self._life
            old, self._life = self._life, self._made()
            self._starts += 1
            life = self._life
        life.begin(after=old)
        return life

    def _made(self) -> NodeSession:
        if self._attached is not None:
            return AttachedSession(self._attached, self._given_scratch)
        return JvmSession(self._spec(), self._lose)

"""The session of a thread, the extensions of a planner, the jobs of a group, and counts."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.spark_jobs import JobGroup, JobName
from changefeed.spark.internals.abilities import (
    CANCEL,
    MissingPart,
    allows,
    class_loader,
    context_of,
    elements,
    jvm_of,
)
from changefeed.spark.properties import SESSION_PROPERTIES

if TYPE_CHECKING:
    from pyspark.sql import Observation, SparkSession

_EXTENSIONS = "spark.sql.extensions"


def extended_session(
    plain: SparkSession, extensions: Sequence[str], settings: Mapping[str, str]
) -> SparkSession:
    """A session of the same context whose planner has these extensions.

    They are injected into the object from which both sessions take their extensions, after
    ``plain`` has built its planner and before the new session does. So ``plain`` does not change,
    and both share one context, cache and listener. Where that object is out of reach, the session
    must have the extensions from its start (``spark.sql.extensions``), which hold for every
    session.

    Raises:
        ChangefeedError: CF4003, it has them not, and they cannot be injected.
    """
    try:
        session = _injected(plain, extensions)
    except MissingPart as failure:
        if not extensions_of(plain).issuperset(extensions):
            raise ChangefeedError(
                Code.SPARK_NOT_AVAILABLE,
                "this Spark takes extensions of its SQL at its start only",
                hint=f"start it with --conf {_EXTENSIONS}={','.join(extensions)}",
            ) from failure
        session = another_session(plain)
    return with_settings(session, settings)


def with_settings(session: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """The session, after these settings were set in it."""
    for name, value in settings.items():
        session.conf.set(name, value)
    return session


def settings_of(session: SparkSession) -> Mapping[str, str]:
    """All settings of the session that have a value."""
    known: Any = session.conf
    if hasattr(type(known), "getAll"):
        found: Mapping[str, str] = known.getAll
        return found
    # PySpark 3.5 has no such property, and SET leaves secrets out.
    converters = jvm_of(session).scala.collection.JavaConverters
    return dict(converters.mapAsJavaMap(java_session(session).conf().getAll()))


def extensions_of(session: SparkSession) -> frozenset[str]:
    """The classes of the extensions that the session's Spark was started with."""
    return frozenset(map(str.strip, (session.conf.get(_EXTENSIONS, "") or "").split(",")))


def _injected(plain: SparkSession, extensions: Sequence[str]) -> SparkSession:
    from pyspark.sql import SparkSession

    jvm, java = jvm_of(plain), java_session(plain)
    gateway: Any = plain.sparkContext._gateway

    def none(kind: str) -> Any:
        return gateway.new_array(getattr(jvm.java.lang, kind), 0)

    java.sessionState()  # built now, if it was not
    loader = class_loader(jvm)
    for name in extensions:
        made = loader.loadClass(name).getConstructor(none("Class")).newInstance(none("Object"))
        made.apply(java.extensions())
    return SparkSession(plain.sparkContext, java.newSession())


def has_context() -> bool:
    """Whether there is a SparkContext in this process, whichever thread has made it."""
    from pyspark import SparkContext

    return getattr(SparkContext, "_active_spark_context", None) is not None


def is_classic(session: SparkSession) -> bool:
    """Whether its SparkContext is in this process; Spark Connect has none."""
    return context_of(session) is not None


def require_classic(session: SparkSession, what: str) -> None:
    """Refuse what needs a SparkContext.

    Raises:
        ChangefeedError: CF4003, this is a session of Spark Connect.
    """
    if not is_classic(session):
        raise ChangefeedError(
            Code.SPARK_NOT_AVAILABLE,
            f"{what} cannot be run over Spark Connect",
            hint="start a node with --master, or without --spark, for it.",
        )


def another_session(session: SparkSession) -> SparkSession:
    """A session of the same Spark with settings, temporary views and functions of its own. Of the
    settings, it has those that results depend on, whatever its Spark has.

    Raises:
        ChangefeedError: CF4003, Spark Connect of PySpark 4.0 has none.
    """
    if is_classic(session):
        return with_settings(session.newSession(), SESSION_PROPERTIES)
    made: Any = session
    if not hasattr(made, "cloneSession"):
        raise ChangefeedError(
            Code.SPARK_NOT_AVAILABLE,
            "Spark Connect needs PySpark 4.1 or newer",
            hint="pip install 'pyspark==4.1.*'",
        )
    _ = session.version  # a server knows a session from its first request on
    found: SparkSession = made.cloneSession()
    _CLONES.add(found)
    return with_settings(found, SESSION_PROPERTIES)


#: Sessions that :func:`another_session` has made over Spark Connect.
_CLONES: weakref.WeakSet[Any] = weakref.WeakSet()


def release_sessions() -> None:
    """End the sessions that :func:`another_session` has made over Spark Connect. Without this the
    client of one that is left may keep the process from ending."""
    for session in list(_CLONES):
        _CLONES.discard(session)
        with contextlib.suppress(Exception):  # the server may be gone
            session.client.release_session()
        with contextlib.suppress(Exception):
            session.client.close()


def core_count(session: SparkSession) -> int:
    """How many tasks this Spark runs at the same time: now, or once it has all executors that
    dynamic allocation lets it have. Over Spark Connect it takes a job."""
    if is_classic(session):
        return max(session.sparkContext.defaultParallelism, _allocatable(session))
    from pyspark.sql import functions as F

    parts = session.range(0, 1 << 16).select(F.spark_partition_id()).distinct()
    return parts.count()


def _allocatable(session: SparkSession) -> int:
    """The cores that dynamic allocation may give; 0 if it is off, or without a limit."""

    def setting(name: str, usual: str) -> str:
        return session.conf.get(name, usual) or usual

    most = setting("spark.dynamicAllocation.maxExecutors", "")
    if setting("spark.dynamicAllocation.enabled", "false") != "true" or not most.isdigit():
        return 0
    cores, task = setting("spark.executor.cores", "1"), setting("spark.task.cpus", "1")
    return int(most) * (int(cores) // int(task))


def has_ended(session: SparkSession, failure: BaseException) -> bool:
    """Whether the session cannot be used again, asked after ``failure``."""
    own: Any = session
    if is_classic(session):
        return own.sparkContext._jsc is None
    return bool(own.is_stopped) or any(word in str(failure) for word in _GONE)


#: In the text of a failure of Spark Connect: there is no server, or it does not know the session.
_GONE = ("UNAVAILABLE", "INVALID_HANDLE", "SESSION_CLOSED", "SESSION_NOT_FOUND")


def named(
    session: SparkSession, work: JobName, pool: str | None = None
) -> AbstractContextManager[None]:
    """For a block, the name of the jobs that this thread starts, and their pool of the scheduler.
    A group that the thread has, by which they can be cancelled, stays; Spark Connect has none of
    these."""
    context = context_of(session)
    within = (context and context.getLocalProperty(_GROUP)) or work.group
    properties = {_GROUP: within, **_described(work)}
    return _local_properties(session, properties | ({"spark.scheduler.pool": pool} if pool else {}))


_GROUP = "spark.jobGroup.id"


def _described(work: JobName) -> dict[str, str]:
    return {"spark.job.description": work.text, "spark.job.tags": work.tag}


@contextmanager
def _local_properties(session: SparkSession, properties: Mapping[str, str]) -> Iterator[None]:
    """For a block, properties of the jobs that this thread starts."""
    if not is_classic(session):
        yield
        return
    context = session.sparkContext
    before = {name: context.getLocalProperty(name) for name in properties}
    for name, value in properties.items():
        context.setLocalProperty(name, value)
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # where the JVM is gone, so are they
            for name, earlier in before.items():
                context.setLocalProperty(name, earlier)  # type: ignore[arg-type]


def java_session(session: SparkSession) -> Any:
    """The JVM's own object of a session.

    Raises:
        MissingPart: it cannot be reached.
    """
    try:
        return session._jsparkSession
    except Exception as failure:
        raise MissingPart("the session's object in the JVM cannot be reached") from failure


@contextmanager
def active(session: SparkSession) -> Iterator[SparkSession]:
    """The session is also what Java code of this thread takes for its own: Delta reads settings
    of the active one. A statement of SQL needs none of this."""
    try:
        own, sql = java_session(session), jvm_of(session).org.apache.spark.sql
    except MissingPart:
        yield session
        return
    sessions = (sql if session.version.startswith("3.") else sql.classic).SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(own)
    try:
        yield session
    finally:
        with contextlib.suppress(Exception):  # where the JVM is gone, so is the thread's session
            if before.isDefined():
                sessions.setActiveSession(before.get())
            else:
                sessions.clearActiveSession()


def job_group(session: SparkSession, group: JobGroup | None) -> AbstractContextManager[None]:
    """For a block, the name of the jobs that this thread starts. Spark Connect has no such names
    for a thread: its jobs have none."""
    if group is None:
        return nullcontext()
    # What ``SparkContext.setJobGroup`` sets.
    of_group = {_GROUP: _group_name(group), "spark.job.interruptOnCancel": "true"}
    shown = {"spark.job.description": group} if isinstance(group, str) else _described(group)
    return _local_properties(session, of_group | shown)


def _group_name(group: JobGroup) -> str:
    return group if isinstance(group, str) else group.group


def cancel_group(session: SparkSession, group: JobGroup) -> None:
    """Cancel the jobs of a group; with :data:`CANCEL` also those that it would start later."""
    context: Any = session.sparkContext
    name = _group_name(group)
    if allows(session, CANCEL):
        context._jsc.sc().cancelJobGroupAndFutureJobs(name)
    else:
        context.cancelJobGroup(name)


def observed(seen: Observation) -> dict[str, int] | None:
    """The counts of an observation whose query has run; None where Spark dropped it from the
    plan. ``Observation.get`` fails where there is no count."""
    java: Any = seen._jo
    return {str(entry._1()): int(entry._2()) for entry in elements(java.get())} or None

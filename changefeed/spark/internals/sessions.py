"""The session of a thread, the extensions of a planner, the jobs of a group, and counts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from changefeed.core.errors import ChangefeedError, Code
from changefeed.spark.internals.abilities import (
    CANCEL,
    MissingPart,
    allows,
    class_loader,
    jvm_of,
)

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
        there = (plain.conf.get(_EXTENSIONS, "") or "").split(",")
        lacking = [name for name in extensions if name not in there]
        if lacking:
            raise ChangefeedError(
                Code.SPARK_NOT_AVAILABLE,
                "this Spark takes extensions of its SQL at its start only",
                hint=f"start it with --conf {_EXTENSIONS}={','.join(extensions)}",
            ) from failure
        session = plain.newSession()
    for name, value in settings.items():
        session.conf.set(name, value)
    return session


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
        sessions = jvm_of(session).org.apache.spark.sql.classic.SparkSession
        own = java_session(session)
    except MissingPart:
        yield session
        return
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


def cancel_group(session: SparkSession, group: str) -> None:
    """Cancel the jobs of a group; with :data:`CANCEL` also those that it would start later."""
    context: Any = session.sparkContext
    if allows(session, CANCEL):
        context._jsc.sc().cancelJobGroupAndFutureJobs(group)
    else:
        context.cancelJobGroup(group)


def observed(seen: Observation) -> dict[str, int] | None:
    """The counts of an observation whose query has run; None where Spark dropped it from the
    plan. ``Observation.get`` fails where there is no count."""
    java: Any = seen._jo
    found, entries = {}, java.get().iterator()
    while entries.hasNext():
        entry = entries.next()
        found[str(entry._1())] = int(entry._2())
    return found or None

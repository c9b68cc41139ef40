"""What changefeed gains from internals of Spark, and whether a session has them."""

from __future__ import annotations

import re
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


class MissingPart(Exception):
    """An internal class or attribute of Spark is not there, or has other methods."""


@dataclass(frozen=True, slots=True)
class Ability:
    """One gain.

    Attributes:
        name: for people.
        without: what happens where it is missing, and what that costs; a clause for people.
        parts: the classes that it needs, each with its methods as ``name/parameters``.
        jar: a class of the jar that all of ``parts`` come from. Without that jar nothing is
            missing: what needs the jar asks for another session.
        function: of ``pyspark.sql.functions``.
    """

    name: str
    without: str
    parts: Mapping[str, tuple[str, ...]] = field(hash=False, default_factory=dict)
    jar: str = ""
    function: str = ""


_CATALYST = "org.apache.spark.sql.catalyst"
_DELTA = "org.apache.spark.sql.delta"
_DELTA_JAR = "io.delta.sql.DeltaSparkSessionExtension"

PROJECTION = Ability(
    "small batches of CDC queries",
    "a CDC query evaluates small batches as Spark jobs, some 60 ms each instead of 5 ms",
    {
        f"{_CATALYST}.expressions.UnsafeProjection$": ("create/2",),
        "org.apache.spark.sql.execution.arrow.ArrowConverters$": (
            "fromIPCStream/1", "toBatchWithSchemaIterator/7", "getBatchesFromStream/1",
            "fromBatchIterator/6",
        ),
        "org.apache.spark.api.python.PythonRDD": ("writeIteratorToStream/2",),
    },
)  # fmt: skip
PLANS = Ability(
    "checks of CDC queries",
    "CDC queries are checked by the text of their plans, which refuses some that could run",
    {
        "org.apache.spark.sql.classic.SparkSession": ("sessionState/0",),
        f"{_CATALYST}.FunctionIdentifier": (),
        f"{_CATALYST}.optimizer.ReplaceExpressions$": ("apply/1",),
    },
)
DELTA_ROUND = Ability(
    "rounds of Delta tables",
    "rounds of changes into Delta tables are MERGE statements, about three times the CPU",
    {
        f"{_DELTA}.DeltaLog": ("startTransaction/2", "createDataFrame/4", "dataPath/0"),
        f"{_DELTA}.commands.DMLWithDeletionVectorsHelper$": (
            "findFilesWithMatchingRows/3", "generateCandidateFileMap/2", "createSetTransaction/3",
            "processUnmodifiedData/4", "hasBeenExecuted/3",
        ),
        f"{_DELTA}.commands.DeletionVectorBitmapGenerator": (
            "buildRowIndexSetsForFilesMatchingCondition/8",
        ),
        f"{_DELTA}.actions.AddFile": ("copy/13", "removeRows/3"),
        f"{_DELTA}.DeltaOperations$Merge": (),
    },
    _DELTA_JAR,
)  # fmt: skip
DELTA_LOG = Ability(
    "what Delta tables record",
    "what a Delta table has recorded is asked by SQL, some 0.3 s a table at the start of a feed",
    {
        "io.delta.tables.DeltaTable": ("isDeltaTable/2",),
        f"{_DELTA}.DeltaLog": ("update/3",),
        f"{_DELTA}.Snapshot": ("transactions/0", "numOfFiles/0", "metadata/0"),
    },
    _DELTA_JAR,
)
FILES = Ability(
    "staging",
    "rows are staged by Arrow's clients of disks and S3, and not on HDFS",
    {
        "org.apache.hadoop.fs.FileUtil": ("copy/7",),
        "org.apache.hadoop.fs.RawLocalFileSystem": ("initialize/2",),
    },
)
CANCEL = Ability(
    "cancelling",
    "a scan or backlog that is cancelled ends its running job only",
    {"org.apache.spark.SparkContext": ("cancelJobGroupAndFutureJobs/1",)},
)
JOBS = Ability(
    "jobs of a feed",
    "SHOW CHANGEFEED f JOBS is refused; Spark's UI shows the jobs",
    {
        "org.apache.spark.SparkContext": ("statusStore/0",),
        "org.apache.spark.status.AppStatusStore": ("jobsList/1", "lastStageAttempt/1"),
        "com.fasterxml.jackson.module.scala.DefaultScalaModule$": (),
    },
)
#: PySpark 4.1 and newer.
ARROW_FUNCTIONS = Ability(
    "Python functions on columns",
    "Python functions of CDC queries are called row by row, and datasets are compared by a join",
    function="arrow_udf",
)
ABILITIES = (PROJECTION, PLANS, DELTA_ROUND, DELTA_LOG, FILES, CANCEL, JOBS, ARROW_FUNCTIONS)


@dataclass(frozen=True, slots=True)
class Survey:
    """What a session lacks.

    Attributes:
        version: of Spark.
        missing: in the order of :data:`ABILITIES`.
    """

    version: str
    missing: tuple[Ability, ...]

    @property
    def allowed(self) -> tuple[str, ...]:
        """Names of the gains that the session has."""
        return tuple(ability.name for ability in ABILITIES if ability not in self.missing)

    @property
    def sentence(self) -> str:
        """What is missing, for people; empty if nothing is."""
        lost = "; ".join(ability.without for ability in self.missing)
        said = f"Spark {self.version} lacks internal classes that changefeed uses: {lost}"
        return said if lost else ""


#: By SparkContext: its sessions have one JVM. By session where it has no context of its own.
_KNOWN: weakref.WeakKeyDictionary[Any, Survey] = weakref.WeakKeyDictionary()


def look(session: SparkSession, wanted: Sequence[Ability] = ABILITIES) -> Survey:
    """Look for the parts of abilities in the session's JVM, without a job, in a few
    milliseconds."""
    found = _Classes(session)
    return Survey(session.version, tuple(each for each in wanted if not found.have(each)))


def survey(session: SparkSession) -> Survey:
    """:func:`look`, once a JVM."""
    owner = context_of(session) or session
    known = _KNOWN.get(owner)
    if known is None:
        known = _KNOWN[owner] = look(session)
    return known


def allows(session: SparkSession, ability: Ability) -> bool:
    """Whether the session has all that the ability needs."""
    return ability not in survey(session).missing


def context_of(session: SparkSession) -> SparkContext | None:
    """The session's SparkContext; None for a session of Spark Connect, which has none."""
    try:
        return session.sparkContext
    except Exception:  # each version of Spark Connect refuses in its own way
        return None


def jvm_of(session: SparkSession) -> Any:
    """py4j's view of the session's JVM.

    Raises:
        MissingPart: this session keeps it to itself, or has none.
    """
    try:
        found = session._jvm
    except Exception as failure:
        raise MissingPart("the JVM of this session cannot be reached") from failure
    if found is None:
        raise MissingPart("the JVM of this session cannot be reached")
    return found


def java_object(package: Any, name: str) -> Any:
    """A Scala object of a package, which has no static methods."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")


def elements(items: Any) -> list[Any]:
    """The elements of a collection of Scala or Java."""
    found, iterator = [], items.iterator()
    while iterator.hasNext():
        found.append(iterator.next())
    return found


class _Classes:
    """Classes of a JVM, by their names."""

    def __init__(self, session: SparkSession) -> None:
        self._jvm: Any = None
        try:
            self._jvm = jvm_of(session)
            self._loader = class_loader(self._jvm)
        except MissingPart:
            pass

    def have(self, ability: Ability) -> bool:
        if ability.function:
            from pyspark.sql import functions

            return hasattr(functions, ability.function)
        if self._jvm is None:
            return False
        if ability.jar and self._methods(ability.jar) is None:
            return True
        return all(self._has(name, methods) for name, methods in ability.parts.items())

    def _has(self, name: str, methods: tuple[str, ...]) -> bool:
        text = self._methods(name) if methods else self._methods(name, count=False)
        if text is None:
            return False
        short = re.escape(name)
        found = {
            f"{method}/{given.count(',') + 1 if given else 0}"
            for method, given in re.findall(rf"{short}\.(\w+)\(([^)]*)\)", text)
        }
        return found.issuperset(methods)

    def _methods(self, name: str, *, count: bool = True) -> str | None:
        """The signatures of a class's own methods; None if there is no such class."""
        from py4j.protocol import Py4JJavaError

        try:
            kind = self._loader.loadClass(name)
        except Py4JJavaError:
            return None
        if not count:
            return ""
        shown: str = self._jvm.scala.runtime.ScalaRunTime.stringOf(kind.getMethods())
        return shown


def class_loader(jvm: Any) -> Any:
    """The loader of Spark's jars: py4j's own does not have those that a cluster's driver is
    given."""
    return jvm.java.lang.Thread.currentThread().getContextClassLoader()

"""Spark's analysis of a query, node by node."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from changefeed.spark.internals.abilities import java_object, jvm_of
from changefeed.spark.internals.sessions import java_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class AnalysedPlan:
    """The plan of a query over one view.

    Raises:
        PySparkException: an expression that is constant fails.
    """

    def __init__(self, session: SparkSession, frame: DataFrame) -> None:
        self._session = session
        query: Any = frame
        execution = query._jdf.queryExecution()
        # Computes what is constant: an error there would come on every row.
        execution.optimizedPlan()
        self._plan = execution.analyzed()

    @property
    def kind(self) -> str:
        """Spark's name of its last step: ``Project``, ``Aggregate``."""
        return str(self._plan.getClass().getSimpleName())

    def columns(self) -> list[JavaExpression]:
        """The expression of each column."""
        aggregate = self.kind == "Aggregate"
        return _wrapped(
            self._plan.aggregateExpressions() if aggregate else self._plan.projectList()
        )

    def groups(self) -> list[JavaExpression]:
        """The expressions that it groups by."""
        return _wrapped(self._plan.groupingExpressions()) if self.kind == "Aggregate" else []

    def replaced(self) -> list[JavaExpression]:
        """All expressions, with functions like ``to_date`` replaced by what they stand for."""
        rules = jvm_of(self._session).org.apache.spark.sql.catalyst.optimizer
        return _wrapped(java_object(rules, "ReplaceExpressions").apply(self._plan).expressions())


class JavaExpression:
    """One of Spark's expressions; see :class:`changefeed.query.expressions.Expression`."""

    def __init__(self, java: Any) -> None:
        self._java = java

    @cached_property
    def kind(self) -> str:
        return str(self._java.getClass().getSimpleName())

    @property
    def name(self) -> str:
        named = ("AttributeReference", "Alias", "PythonUDF")
        return str(self._java.name() if self.kind in named else self._java.prettyName())

    @cached_property
    def children(self) -> tuple[JavaExpression, ...]:
        return tuple(_wrapped(self._java.children()))

    @property
    def type(self) -> str:
        return str(self._java.dataType().simpleString())

    @property
    def json_type(self) -> str:
        return str(self._java.dataType().json())

    @property
    def nullable(self) -> bool:
        return bool(self._java.nullable())

    @property
    def deterministic(self) -> bool:
        return bool(self._java.deterministic())

    @property
    def field(self) -> str:
        return str(self._java.child().dataType().apply(self._java.ordinal()).name())

    @property
    def aggregate(self) -> JavaExpression:
        return JavaExpression(self._java.aggregateFunction())

    @property
    def place(self) -> tuple[int, int] | None:
        start, stop = self._java.origin().startIndex(), self._java.origin().stopIndex()
        return None if start.isEmpty() or stop.isEmpty() else (start.get(), stop.get())

    def constant(self) -> str | None:
        value = self._java.eval(None) if self._java.foldable() else None
        return None if value is None else str(value.toString())

    def same(self, other: JavaExpression) -> bool:
        return bool(self._java.semanticEquals(other._java))


def function_info(session: SparkSession, name: str) -> tuple[str, str] | None:
    """The group of a function of Spark's and the class of its expressions; None if there is none
    of that name."""
    from pyspark.errors import AnalysisException

    identifier = jvm_of(session).org.apache.spark.sql.catalyst.FunctionIdentifier(name)
    try:
        info = java_session(session).sessionState().catalog().lookupFunctionInfo(identifier)
    except AnalysisException:
        return None
    return str(info.getGroup()), str(info.getClassName()).rpartition(".")[2]


def internal_error(failure: Exception) -> str | None:
    """The text of an internal error of Spark's analyzer; None for other failures."""
    from py4j.protocol import Py4JJavaError

    text = str(failure)
    return text if isinstance(failure, Py4JJavaError) and "INTERNAL_ERROR" in text else None


def sequence(items: Any) -> Iterator[Any]:
    """The elements of a Scala sequence."""
    for i in range(items.size()):
        yield items.apply(i)


def _wrapped(items: Any) -> list[JavaExpression]:
    return [JavaExpression(item) for item in sequence(items)]

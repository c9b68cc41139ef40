"""Spark's analysis of a query, read from the text that EXPLAIN has of it.

For a Spark whose own objects are out of reach (Spark Connect). The text shows which columns of the
view an expression reads, and the names of its functions. Strings stand in it without quotes, so
that one which reads like a function or a column is taken for one: more columns than needed are
read, and some queries that could run are refused. Calls of Python functions with wrong arguments
are not found, and fail on the first row; nor is a word for a moment that the query computes
(``concat('to', 'day')``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_ANALYSED = "== Analyzed Logical Plan =="
#: Aggregate functions whose result depends on the order of rows, as the text has them, and Spark's
#: classes.
_AGGREGATES = {
    "first": "First", "last": "Last", "any_value": "AnyValue", "collect_list": "CollectList",
    "collect_set": "CollectSet", "listagg": "ListAgg", "max_by": "MaxBy", "min_by": "MinBy",
    "mode": "Mode", "percentile_approx": "ApproximatePercentile",
    "histogram_numeric": "HistogramNumeric",
}  # fmt: skip
#: With those whose result is another one at another time or place.
_FUNCTIONS = _AGGREGATES | {
    "now": "Now", "current_timestamp": "CurrentTimestamp", "current_date": "CurrentDate",
    "curdate": "CurrentDate", "current_time": "CurrentTime", "localtimestamp": "LocalTimestamp",
    "current_user": "CurrentUser", "user": "CurrentUser", "session_user": "CurrentUser",
    "current_timezone": "CurrentTimeZone", "current_catalog": "CurrentCatalog",
    "current_database": "CurrentDatabase", "current_schema": "CurrentDatabase", "rand": "Rand",
    "randn": "Randn", "uuid": "Uuid", "shuffle": "Shuffle", "uniform": "Uniform",
    "randstr": "RandStr", "monotonically_increasing_id": "MonotonicallyIncreasingID",
    "spark_partition_id": "SparkPartitionID", "input_file_name": "InputFileName",
    "input_file_block_start": "InputFileBlockStart", "version": "SparkVersion",
    "input_file_block_length": "InputFileBlockLength",
}  # fmt: skip
_CALL = re.compile(rf"\b({'|'.join(_FUNCTIONS)})\(")
_ALIAS = re.compile(r"(.*) AS .*#\d+L?\Z", re.DOTALL)
#: A constant text that becomes a date or a timestamp.
_MOMENT = re.compile(
    r"\b(?:(?:try_)?(?:cast|to_date|to_timestamp\w*)\(|(?:extract|date_?part)\(\w+, )"
    r"\s*(now|today|tomorrow|yesterday)\b",
    re.IGNORECASE,
)
#: Groups of functions by Spark's class, where its package does not say them.
_GROUPS = {
    **dict.fromkeys(
        ("ExplodeExpressionBuilder", "ExplodeOuterExpressionBuilder", "Explode", "PosExplode",
         "PosExplodeExpressionBuilder", "PosExplodeOuterExpressionBuilder", "Inline", "Stack",
         "InlineExpressionBuilder", "InlineOuterExpressionBuilder", "JsonTuple", "SQLKeywords",
         "VariantExplode"),
        "generator_funcs",
    ),
    **dict.fromkeys(
        ("RowNumber", "Rank", "DenseRank", "NTile", "CumeDist", "PercentRank", "Lag", "Lead",
         "NthValue"),
        "window_funcs",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class TextExpression:
    """What the text says of an expression; see :class:`.expressions.Expression`."""

    kind: str
    name: str = ""
    children: tuple[TextExpression, ...] = ()
    type: str = ""
    nullable: bool = True
    field: str = ""
    text: str = ""

    deterministic = True
    place = None
    json_type = ""

    @property
    def aggregate(self) -> TextExpression:
        return self.children[0]

    def constant(self) -> str | None:
        return self.text

    def same(self, other: TextExpression) -> bool:
        return self.text == other.text


class TextPlan:
    """The plan of a query over one view; see :class:`.expressions.QueryPlan`.

    Args:
        session: has the view.
        sql: the query.
        view: the names of the view's columns.
        made: the query's columns.

    Raises:
        PySparkException: an expression that is constant fails.
    """

    def __init__(
        self, session: SparkSession, sql: str, view: Sequence[str], made: StructType
    ) -> None:
        text = str(session.sql(f"EXPLAIN EXTENDED {sql}").collect()[0][0])
        if _ANALYSED not in text:
            session.sql(sql).collect()  # raises what EXPLAIN only reports
        analysed = text.partition(_ANALYSED)[2].partition("\n== ")[0].strip()
        self._whole = analysed.partition("\n")[2]
        self.kind, _, self._step = self._whole.partition("\n+- ")[0].partition(" ")
        self._lists = [_parted(each) for each in _lists(self._step)]
        self._made = made
        self._names: dict[str, str] = {}
        place = self._whole.rfind("View (")
        for name in view:
            found = re.compile(rf"{re.escape(name)}#(\d+)").search(self._whole, max(place, 0))
            if found is not None:
                self._names[found[1]], place = name, found.end()

    def columns(self) -> list[TextExpression]:
        parts = self._lists[-1] if self._lists else []
        if len(parts) != len(self._made):
            parts = [self._step] * len(self._made)  # a comma or a bracket in a string
        return [
            self._expression(part, field.nullable)
            for part, field in zip(parts, self._made, strict=True)
        ]

    def groups(self) -> list[TextExpression]:
        parts = self._lists[0] if self.kind == "Aggregate" else []
        return [self._expression(part, True) for part in parts]

    def replaced(self) -> list[TextExpression]:
        return [
            TextExpression("Cast", type="date", children=(
                TextExpression("Literal", type="string", text=found[1]),
            ))
            for found in _MOMENT.finditer(self._whole)
        ]  # fmt: skip

    def _expression(self, text: str, nullable: bool) -> TextExpression:
        aliased = _ALIAS.match(text)
        inner = aliased[1] if aliased else text
        name, _, number = inner.rpartition("#")
        column = self._names.get(number.rstrip("L"), "")
        if name and column.lower() == name.lower():
            return TextExpression("AttributeReference", column, nullable=nullable, text=inner)
        kind = "GetStructField" if re.fullmatch(r"[^()\s]+#\d+\.\w+", inner) else "Text"
        reads = tuple(self._reads(inner))
        if kind == "GetStructField" and reads:
            reads = reads[0].children
        return TextExpression(
            kind, children=reads, nullable=nullable, text=inner, field=inner.rpartition(".")[2]
        )

    def _reads(self, text: str) -> Iterator[TextExpression]:
        for number, name in self._names.items():
            column = TextExpression("AttributeReference", name, text=f"{name}#{number}")
            for found in re.finditer(rf"#{number}L?(?!\d)(?:\.(\w+|`[^`]+`))?", text):
                kind = "GetStructField" if found[1] else "Text"
                yield TextExpression(kind, children=(column,), field=(found[1] or "").strip("`"))
        for found in _CALL.finditer(text):
            called = TextExpression(_FUNCTIONS[found[1]], found[1])
            if found[1] in _AGGREGATES:
                called = TextExpression("AggregateExpression", children=(called,))
            yield called


def function_info_by_text(session: SparkSession, name: str) -> tuple[str, str] | None:
    """As :func:`changefeed.spark.internals.plans.function_info`."""
    from pyspark.errors import AnalysisException

    try:
        rows = session.sql(f"DESCRIBE FUNCTION `{name}`").collect()
    except AnalysisException:
        return None
    kind = next((row[0][7:] for row in rows if row[0].startswith("Class: ")), "")
    package, _, short = kind.rpartition(".")
    if package.endswith(".aggregate"):
        return "agg_funcs", short
    return "table_funcs" if ".plans." in package else _GROUPS.get(short, ""), short


def _lists(text: str) -> Iterator[str]:
    """The insides of the lists in brackets of a step of a plan."""
    depth = start = 0
    for place, char in enumerate(text):
        if char == "[":
            start = place + 1 if depth == 0 else start
            depth += 1
        elif char == "]":
            depth -= 1
            if depth == 0:
                yield text[start:place]


def _parted(text: str) -> list[str]:
    """A list, divided at its commas except those in brackets."""
    parts, depth, begin = [], 0, 0
    for place, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if depth == 0 and text.startswith(", ", place):
            parts.append(text[begin:place])
            begin = place + 2
    return [*parts, text[begin:]] if text else []

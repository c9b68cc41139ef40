"""The two sides of a row of the log, as expressions: what the formats have in common."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F

from changefeed.shapes import Deletes, Envelope
from changefeed.spark.plan import MessagePlan
from changefeed.spark.tokens import Part, joined, json_token, separated, string

#: Column with the time of encoding, nanoseconds since 1970 (enriched: ``ts_ns``).
NOW = "now"


class Rows:
    """Which side of the log's row to read, and how clean it is."""

    def __init__(self, plan: MessagePlan, clean: frozenset[str], scan: bool) -> None:
        self.plan = plan
        self.clean = clean
        #: A row may be a delete: its key is on the before side.
        self.deletes = not scan and plan.deletes is not Deletes.NO
        # What a scan reads has no side before, whatever the log would have.
        self.known = frozenset(() if scan else plan.schema.before_ordinals)

    def token(self, side: str, i: int) -> list[Part]:
        """The JSON token of a column; ``null`` where the log has no such column."""
        if side == "b" and i not in self.known:
            return ["null"]
        name = f"{side}{i}"
        return json_token(
            self.plan.schema.columns[i],
            name,
            clean=name in self.clean,
            null_as_object=self.plan.json_null_as_object,
        )

    def member(self, side: str, i: int) -> list[Part]:
        """``"b": "y"``."""
        return [f"{self.name(i)}: ", *self.token(side, i)]

    def object(self, side: str, columns: Sequence[int]) -> list[Part]:
        """``{"a": 1, "b": "y"}``."""
        return separated([self.member(side, i) for i in columns], "{", "}")

    def name(self, i: int) -> str:
        return string(self.plan.schema.columns[i].name)

    def key(self, side: str) -> list[Part]:
        """``[1, "x"]``, or an object in the enriched envelope."""
        columns = self.plan.message_key
        if self.plan.envelope is Envelope.ENRICHED:
            return self.object(side, columns)
        return separated([self.token(side, i) for i in columns], "[", "]")

    def choose(self, change: Expression, delete: Expression) -> Expression:
        """One expression for changes, another for deletes."""
        if not self.deletes:
            return change
        if self.plan.deletes is Deletes.ONLY:
            return delete
        return F.when(F.col("op") == "d", delete).otherwise(change)

    def had_before(self) -> Expression:
        """There was a row before a change that is no delete.

        Its key tells: a key column of a row is never NULL. Without a key every column is asked.
        """
        known = [F.col(f"b{i}").isNotNull() for i in self.plan.schema.key if i in self.known]
        return reduce(lambda one, other: one | other, known, F.lit(False))


def before_json(rows: Rows, side: str) -> list[Part]:
    """The row before: always there on a delete, absent of a scan and where the change made it."""
    plan = rows.plan
    if not rows.known:
        return ["null"]
    image = rows.object("b", plan.before_columns)
    if side == "b":
        return image
    return [F.when(rows.had_before(), joined(image)).otherwise("null")]


def commit_time() -> Expression:
    """``1536242855577149065.0000000000``; see :class:`changefeed.clock.Timestamp`."""
    logical = F.lpad(F.col("logical").cast("string"), 10, "0")
    return F.concat(F.col("wall").cast("string"), F.lit("."), logical)


def upsert_op() -> Expression:
    """``u`` or ``c``."""
    return F.when(F.col("op") == "u", "u").otherwise("c")

"""Asks a node what a statement needs Spark for, in processes without Spark.

Question and answer go through the state (:class:`changefeed.catalog.questions.Questions`).
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from changefeed.catalog import Catalog
from changefeed.core.clock import Clock, SystemClock
from changefeed.core.engines import SparkReport
from changefeed.core.errors import ChangefeedError, Code, Span
from changefeed.core.schema import TableSchema
from changefeed.core.spark_jobs import SparkJob, SparkJobs
from changefeed.query.model import CompiledQuery
from grammar import nodes
from grammar.printer import to_sql

if TYPE_CHECKING:
    from changefeed.dataset.model import DatasetColumn
    from changefeed.dataset.tables import Registration

#: Seconds to wait for an answer: a node may start Spark for it, on a busy machine or a cluster.
ANSWER_SECONDS = 180.0
#: How often, in seconds, a question whose answer takes long is renewed.
RENEW_SECONDS = 10.0
#: A node gives up a long answer if the question was not renewed for so many seconds.
ABANDONED_SECONDS = 60.0


class QuestionKind(StrEnum):
    """What a question is about."""

    QUERY = "query"
    COLUMNS = "columns"
    TABLES = "tables"
    VERIFY = "verify"
    SPARK = "spark"
    JOBS = "jobs"


class NodeInquiry:
    """Asks whichever node of a state takes the question."""

    def __init__(
        self, catalog: Catalog, clock: Clock | None = None, seconds: float = ANSWER_SECONDS
    ) -> None:
        """
        Args:
            catalog: the state.
            clock: for the wait.
            seconds: how long an answer is waited for.
        """
        self._catalog = catalog
        self._clock: Clock = clock or SystemClock()
        self._seconds = seconds

    def compile_query(self, schema: TableSchema, query: nodes.Query) -> CompiledQuery:
        """Check a CDC query against its table.

        Raises:
            ChangefeedError: the node's error, about the query (CF1101, CF1303, ..) or its Spark
                (CF4002, CF4003); CF4003, no node runs, or it does not answer.
        """
        # Loaded on use: few statements ask.
        from changefeed.query.exchange import compiled_of, query_text

        return compiled_of(self._answer(QuestionKind.QUERY, query_text(schema, query)))

    def extract_columns(
        self, location: str, form: str | None, delimiter: str
    ) -> tuple[DatasetColumn, ...]:
        """The columns of an extract that the node sees.

        Raises:
            ChangefeedError: see :func:`changefeed.dataset.incoming.extract_columns`; CF4003, no
                node runs, or it does not answer.
        """
        from changefeed.dataset.model import DatasetColumn

        body = json.dumps({"location": location, "form": form, "delimiter": delimiter})
        return tuple(
            DatasetColumn(**c) for c in json.loads(self._answer(QuestionKind.COLUMNS, body))
        )

    def check_tables(self, registration: Registration) -> None:
        """Whether a dataset could have its tables in the node's Spark catalog.

        Raises:
            ChangefeedError: see :func:`changefeed.dataset.tables.check_tables`; CF4003, no node
                runs, or it does not answer.
        """
        self._answer(QuestionKind.TABLES, json.dumps(asdict(registration)))

    def spark_report(self) -> SparkReport:
        """What the node's Spark is.

        Raises:
            ChangefeedError: CF4003, no node runs, or it does not answer.
        """
        return SparkReport(**json.loads(self._answer(QuestionKind.SPARK, "")))

    def spark_jobs(self, feed: int, node: str | None) -> SparkJobs:
        """The jobs of a feed that the Spark of ``node`` knows; None: of any node.

        Raises:
            ChangefeedError: CF4003, that Spark does not let see its jobs, no node runs, or it does
                not answer.
        """
        found = json.loads(self._answer(QuestionKind.JOBS, str(feed), of=node))
        return SparkJobs([SparkJob(**job) for job in found["jobs"]], found["idle"])

    def verify(self, statement: nodes.Verify) -> str:
        """What VERIFY CHANGEFEED finds, as :func:`.verify.result_text` writes it, however long the
        node takes.

        Raises:
            ChangefeedError: see :func:`changefeed.statements.verify.verify`; CF4003, no node runs,
                or the one that was asked has ended.
        """
        return self._answer(QuestionKind.VERIFY, to_sql(statement), math.inf)

    def _answer(
        self,
        kind: QuestionKind,
        body: str,
        seconds: float | None = None,
        of: str | None = None,
    ) -> str:
        if not self._catalog.live_nodes():
            raise ChangefeedError(
                Code.SPARK_NOT_AVAILABLE,
                "the statement needs Spark, which this process does not have, and no node runs "
                "that could answer",
                hint="start one: changefeed start; or run the statement in the changefeed shell.",
            )
        question = self._catalog.ask(kind, body, of)
        wait = self._seconds if seconds is None else seconds
        try:
            return answered(self._wait(question, wait, of))
        finally:
            self._catalog.forget_question(question)

    def _wait(self, question: str, seconds: float, of: str | None) -> str:
        now = self._clock.monotonic()
        deadline, renewal = now + seconds, now + RENEW_SECONDS
        while True:
            seen = self._catalog.version()
            node, answer = self._catalog.answer_of(question)
            if answer is not None:
                return answer
            alive = {each.id for each in self._catalog.live_nodes()}
            asked = node or of
            ended = not alive or (asked is not None and asked not in alive)
            now = self._clock.monotonic()
            left = deadline - now
            if now >= renewal:
                self._catalog.renew_question(question)
                renewal = now + RENEW_SECONDS
            if ended or left <= 0:
                did = "has ended" if ended else f"did not answer within {seconds:.0f} s"
                raise ChangefeedError(
                    Code.SPARK_NOT_AVAILABLE,
                    f"the statement needs Spark, and the node that was asked {did}",
                    hint="look at the node's log, and run the statement again.",
                )
            self._catalog.wait(seen, min(left, 0.5))


def answer_text(answer: str) -> str:
    """A node's answer, as the text that is stored in the state."""
    return json.dumps({"answer": answer})


def error_text(error: ChangefeedError) -> str:
    """A node's error, as the text that is stored in the state."""
    return json.dumps({"error": error_members(error)})


def error_members(error: ChangefeedError) -> dict[str, Any]:
    """An error as what JSON can hold."""
    return {
        "code": error.code.number,
        "message": error.message,
        "detail": error.detail,
        "hint": error.hint,
        "span": None if error.span is None else asdict(error.span),
    }


def error_of(members: dict[str, Any]) -> ChangefeedError:
    """The inverse of :func:`error_members`."""
    span = members.pop("span")
    return ChangefeedError(span=None if span is None else Span(**span), **members)


def answered(text: str) -> str:
    """The answer in a stored text: the inverse of :func:`answer_text`.

    Raises:
        ChangefeedError: the text is one of :func:`error_text`: the node's error.
    """
    data: dict[str, Any] = json.loads(text)
    if "error" in data:
        raise error_of(data["error"])
    return str(data["answer"])

"""Answers questions of processes without Spark; each has a thread, because Spark may have to
start.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Protocol

from changefeed.api import Result
from changefeed.catalog import Catalog, Question
from changefeed.core.clock import Clock
from changefeed.core.engines import SparkReport
from changefeed.core.errors import ChangefeedError
from changefeed.core.internal_errors import FailureCounter
from changefeed.core.schema import TableSchema
from changefeed.core.spark_jobs import SparkJobs
from changefeed.dataset.model import DatasetColumn
from changefeed.dataset.tables import Registration
from changefeed.query.exchange import compiled_text, query_of
from changefeed.query.model import CompiledQuery
from changefeed.statements.inquiry import (
    ABANDONED_SECONDS,
    QuestionKind,
    answer_text,
    error_text,
)
from changefeed.statements.verify import result_text
from grammar import nodes


class SparkAnswers(Protocol):
    """What a node answers with its Spark."""

    def compile_query(self, schema: TableSchema, query: nodes.Query) -> CompiledQuery:
        """A CDC query, checked against its table."""
        ...

    def extract_columns(
        self, location: str, form: str | None, delimiter: str
    ) -> tuple[DatasetColumn, ...]:
        """The columns of an extract."""
        ...

    def check_tables(self, registration: Registration) -> None:
        """Whether a dataset could have its tables."""
        ...

    def spark_report(self) -> SparkReport:
        """What its Spark is."""
        ...

    def spark_jobs(self, feed: int, node: str | None = None) -> SparkJobs:
        """The jobs of a feed that its Spark knows."""
        ...

    def verify(self, statement: str, gone: Callable[[], bool]) -> Result:
        """What a VERIFY CHANGEFEED finds; it stops soon after ``gone`` says that nobody waits for
        it."""
        ...


class NodeAnswers:
    """Used by the node's loop only."""

    def __init__(
        self,
        catalog: Catalog,
        spark: SparkAnswers,
        clock: Clock,
    ) -> None:
        self._catalog = catalog
        self._spark = spark
        self._failures = FailureCounter(clock)

    def give(self, node: str) -> None:
        """Answer the questions that no other node has taken; returns at once."""
        for question in self._catalog.take_questions(node):
            name = f"answer-{question.id[:6]}"
            threading.Thread(target=self._give, args=(question,), name=name, daemon=True).start()

    def _give(self, question: Question) -> None:
        try:
            text = answer_text(self._answer(question))
        except ChangefeedError as error:
            text = error_text(error)
        except Exception as failure:
            # Somebody waits for an answer: give the internal error as one.
            text = error_text(self._failures.error(f"question {question.kind}", failure))
        self._catalog.answer(question.id, text)

    def _answer(self, question: Question) -> str:
        if question.kind == QuestionKind.QUERY:
            return compiled_text(self._spark.compile_query(*query_of(question.body)))
        if question.kind == QuestionKind.VERIFY:
            return result_text(self._spark.verify(question.body, lambda: self._gone(question)))
        if question.kind == QuestionKind.TABLES:
            asked = json.loads(question.body)
            self._spark.check_tables(Registration(asked["owner"], tuple(asked["names"])))
            return ""
        if question.kind == QuestionKind.SPARK:
            return json.dumps(asdict(self._spark.spark_report()))
        if question.kind == QuestionKind.JOBS:
            return json.dumps(asdict(self._spark.spark_jobs(int(question.body))))
        columns = self._spark.extract_columns(**json.loads(question.body))
        return json.dumps([asdict(column) for column in columns])

    def _gone(self, question: Question) -> bool:
        """Whether the asking process has ended, or has given up."""
        return not self._catalog.awaited(question.id, ABANDONED_SECONDS)

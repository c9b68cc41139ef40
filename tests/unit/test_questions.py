"""A process without Spark asks the nodes of its state; without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from changefeed.api import Result
from changefeed.catalog import Catalog, Function
from changefeed.catalog.questions import LEFT_OVER
from changefeed.core.clock import ManualClock, SystemClock
from changefeed.core.engines import SparkReport
from changefeed.core.errors import ChangefeedError, Code, Span
from changefeed.core.schema import TableSchema
from changefeed.core.spark_jobs import JobName, SparkJob, SparkJobs, job_of_tag
from changefeed.dataset.model import DatasetColumn
from changefeed.dataset.tables import Registration
from changefeed.node.questions import NodeAnswers
from changefeed.query.exchange import compiled_of, compiled_text, query_of, query_text
from changefeed.query.model import CompiledQuery, LookupField, LookupTable
from changefeed.statements.inquiry import NodeInquiry
from changefeed.statements.verify import result_of
from grammar import nodes
from grammar.parser import parse
from tests.helpers.waiting import until
from tests.unit.test_query_changes import FULL, OPEN

NODE = "n1"
COLUMNS = (DatasetColumn("id", "bigint", key=True), DatasetColumn("total", "decimal(10,2)"))

JOB = SparkJob(1, "public.t", "scan 2", "running", 4, 1, 0, 5, None, 9, 8, 7, 6)
REPORT = SparkReport("running", "local[2]", 2, "4.1.4", ("staging",), ("a job ends late",))


def query(select: str = "SELECT a.id, tax(total) AS t FROM shop.public.orders AS a") -> nodes.Query:
    statement = parse(
        f"CREATE CHANGEFEED f INTO 'null://' AS {select} "
        "LEFT JOIN customers AS c ON a.id = c.k WHERE total > 5"
    )
    assert isinstance(statement, nodes.CreateChangefeed) and statement.query is not None
    return statement.query


class FakeSpark:
    """Says what it is told to, and remembers what it was asked."""

    def __init__(self) -> None:
        self.compiled = OPEN
        self.error: Exception | None = None
        self.queries: list[tuple[TableSchema, nodes.Query]] = []
        self.extracts: list[tuple[str, str | None, str]] = []
        self.registrations: list[Registration] = []
        self.verified = Result()
        self.statements: list[str] = []
        self.gone: Callable[[], bool] = lambda: False

    def compile_query(self, schema: TableSchema, query: nodes.Query) -> CompiledQuery:
        self.queries.append((schema, query))
        if self.error is not None:
            raise self.error
        return self.compiled

    def extract_columns(
        self, location: str, form: str | None, delimiter: str
    ) -> tuple[DatasetColumn, ...]:
        self.extracts.append((location, form, delimiter))
        return COLUMNS

    def check_tables(self, registration: Registration) -> None:
        self.registrations.append(registration)
        if self.error is not None:
            raise self.error

    def spark_report(self) -> SparkReport:
        return REPORT

    def spark_jobs(self, feed: int, node: str | None = None) -> SparkJobs:
        return SparkJobs([replace(JOB, id=feed)], "" if node is None else f"not of {node}")

    def verify(self, statement: str, gone: Callable[[], bool]) -> Result:
        self.statements.append(statement)
        self.gone = gone
        assert not gone(), "somebody waits"
        return self.verified


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    made = Catalog.open(tmp_path / "state")
    yield made
    made.close()


@pytest.fixture
def spark(catalog: Catalog, tmp_path: Path) -> Iterator[FakeSpark]:
    """Of a node that runs: it looks when the state changes."""
    spark, over = FakeSpark(), threading.Event()
    answers = NodeAnswers(catalog, spark, SystemClock())
    catalog.register_node(NODE, 1, "elsewhere")

    def look() -> None:
        seen = 0
        while not over.is_set():
            answers.give(NODE)
            seen = catalog.wait(seen, 0.1)

    thread = threading.Thread(target=look)
    thread.start()
    yield spark
    over.set()
    thread.join()


def test_a_node_checks_a_query_with_the_places_of_its_words(
    catalog: Catalog, spark: FakeSpark
) -> None:
    schema, asked = FULL.with_version(7), query()
    assert NodeInquiry(catalog).compile_query(schema, asked) == OPEN
    [(got, found)] = spark.queries
    assert got == schema and got.version == 7
    assert found == asked and found.spans == asked.spans != ()
    assert found.joins[0].spans == asked.joins[0].spans != ()

    spark.error = ChangefeedError(
        Code.NOT_SUPPORTED, "no rand()", detail="why", hint="what next", span=Span(3, 9)
    )
    with pytest.raises(ChangefeedError) as caught:
        NodeInquiry(catalog).compile_query(schema, asked)
    error = caught.value
    assert (error.code, error.message) == (Code.NOT_SUPPORTED, "no rand()")
    assert (error.detail, error.hint, error.span) == ("why", "what next", Span(3, 9))

    spark.error = KeyError("a secret")
    with pytest.raises(ChangefeedError, match="internal error: KeyError"):
        NodeInquiry(catalog).compile_query(schema, asked)
    assert catalog.take_questions(NODE) == [], "nothing is left in the state"


def test_a_node_reads_the_columns_of_an_extract(catalog: Catalog, spark: FakeSpark) -> None:
    assert NodeInquiry(catalog).extract_columns("/in/*.csv", None, ";") == COLUMNS
    assert spark.extracts == [("/in/*.csv", None, ";")]


def test_a_node_checks_the_tables_of_a_dataset(catalog: Catalog, spark: FakeSpark) -> None:
    asked = Registration("/data/current", ("db.orders", "db.orders_history"))
    NodeInquiry(catalog).check_tables(asked)
    assert spark.registrations == [asked]
    spark.error = ChangefeedError(Code.TARGET_NOT_OURS, "table db.orders exists", hint="drop it.")
    with pytest.raises(ChangefeedError, match=r"table db\.orders exists") as caught:
        NodeInquiry(catalog).check_tables(asked)
    assert (caught.value.code, caught.value.hint) == (Code.TARGET_NOT_OURS, "drop it.")


def test_a_node_says_what_its_spark_is(catalog: Catalog, spark: FakeSpark) -> None:
    found = NodeInquiry(catalog).spark_report()
    assert (found.status, found.master, found.cores, found.version) == (
        "running",
        "local[2]",
        2,
        "4.1.4",
    )
    assert [*found.fast, *found.instead] == ["staging", "a job ends late"]


@pytest.mark.parametrize("node", [NODE, None])
def test_the_node_of_a_feed_says_what_its_spark_does(
    catalog: Catalog, spark: FakeSpark, node: str | None
) -> None:
    found = NodeInquiry(catalog).spark_jobs(17, node)
    assert found == SparkJobs([replace(JOB, id=17)])


def test_a_question_to_one_node_is_not_taken_by_another(catalog: Catalog) -> None:
    for node in (NODE, "n2"):
        catalog.register_node(node, 1, "elsewhere")
    asked = catalog.ask("jobs", "1", of="n2")
    assert catalog.take_questions(NODE) == []
    assert [each.id for each in catalog.take_questions("n2")] == [asked]
    catalog.unregister_node("n2")
    with pytest.raises(ChangefeedError, match="the node that was asked has ended"):
        NodeInquiry(catalog).spark_jobs(1, "n2")


@pytest.mark.parametrize("name", ["orders", "a, b/c", "100 % ü", 'x"y z'])
def test_the_tag_of_a_job_has_its_name_and_no_comma(name: str) -> None:
    made = JobName(name, 17, "scan 3", f"public.{name}", "s")
    assert job_of_tag(made.tag) == made and "," not in made.tag
    assert job_of_tag(f"other/{made.tag}") is None and job_of_tag("changefeed/1") is None


def test_a_node_compares_a_feed_and_knows_when_nobody_waits_any_more(
    catalog: Catalog, spark: FakeSpark
) -> None:
    failure = ChangefeedError(Code.TARGET_DIFFERS, "it differs", hint="REPAIR")
    spark.verified = Result(
        columns=("table", "key"),
        rows=[("public.t", "[1]"), ("public.t", None)],
        notices=["public.t: 2 rows differ"],
        tag="VERIFY CHANGEFEED",
        failure=failure,
    )
    statement = parse("VERIFY CHANGEFEED f TABLE t REPAIR")
    assert isinstance(statement, nodes.Verify)
    found = result_of(NodeInquiry(catalog).verify(statement))
    assert found.failure is not None
    assert (found.failure.code, found.failure.message) == (failure.code, failure.message)
    assert replace(found, failure=None) == replace(spark.verified, failure=None)
    assert spark.statements == ["VERIFY CHANGEFEED f TABLE t REPAIR"]
    assert spark.gone(), "the question is forgotten with its answer"


def test_a_long_answer_is_waited_for_as_long_as_the_question_is_renewed(tmp_path: Path) -> None:
    clock = ManualClock()
    catalog = Catalog.open(tmp_path, clock=clock)
    question = catalog.ask("verify", "a")
    for _ in range(3):
        clock.advance(50)
        assert catalog.awaited(question, 60)
        catalog.renew_question(question)
    clock.advance(61)
    assert not catalog.awaited(question, 60), "whoever asked has died"
    catalog.renew_question(question)
    catalog.forget_question(question)
    assert not catalog.awaited(question, 60)
    catalog.close()


def test_what_spark_found_out_survives_the_state() -> None:
    lookup = LookupTable(
        ("parquet", "/dim"),
        "c",
        ((0, "k"),),
        ("bigint",),
        True,
        (
            LookupField("name", "string", pa.string()),
            LookupField("tags", "array<int>", pa.list_(pa.int32())),
        ),
    )
    function = Function("tax", (("total", "int"),), "int", "m:tax", "/opt", True, 5)
    compiled = replace(OPEN, functions=(function,), lookups=(lookup,), where_lookups=True, window=9)
    assert compiled_of(compiled_text(compiled)) == compiled
    assert query_of(query_text(FULL, query())) == (FULL, query())


def test_without_a_node_the_statement_says_what_to_start(catalog: Catalog) -> None:
    with pytest.raises(ChangefeedError, match="no node runs that could answer") as caught:
        NodeInquiry(catalog).compile_query(FULL, query())
    assert caught.value.code is Code.SPARK_NOT_AVAILABLE
    assert "changefeed start" in caught.value.hint


def test_a_node_that_ends_is_not_waited_for(catalog: Catalog) -> None:
    """Another one runs on, but it was the first that took the question."""
    for node in (NODE, "n2"):
        catalog.register_node(node, 1, "elsewhere")

    def end() -> None:
        until(lambda: catalog.take_questions(NODE), "the question")
        catalog.unregister_node(NODE)

    thread = threading.Thread(target=end)
    thread.start()
    with pytest.raises(ChangefeedError, match="the node that was asked has ended") as caught:
        NodeInquiry(catalog).compile_query(FULL, query())
    thread.join()
    assert caught.value.code is Code.SPARK_NOT_AVAILABLE


def test_a_node_that_does_not_answer_in_time(catalog: Catalog) -> None:
    catalog.register_node(NODE, 1, "elsewhere")
    with pytest.raises(ChangefeedError, match="did not answer within 0 s"):
        NodeInquiry(catalog, seconds=0.0).compile_query(FULL, query())
    assert catalog.take_questions(NODE) == []


def test_a_question_is_taken_once_and_not_kept_for_ever(tmp_path: Path) -> None:
    clock = ManualClock(10 * LEFT_OVER)
    catalog = Catalog.open(tmp_path, clock=clock)
    first = catalog.ask("query", "a")
    [taken] = catalog.take_questions("n1")
    assert (taken.id, taken.kind, taken.body) == (first, "query", "a")
    assert catalog.take_questions("n2") == []
    assert catalog.answer_of(first) == ("n1", None)
    catalog.answer(first, "yes")
    assert catalog.answer_of(first) == ("n1", "yes")
    clock.advance(LEFT_OVER / 1e9 + 1)
    second = catalog.ask("query", "b")
    assert catalog.answer_of(first) == (None, None), "whoever asked has died"
    catalog.forget_question(second)
    catalog.answer(second, "too late")
    assert catalog.answer_of(second) == (None, None)
    catalog.close()

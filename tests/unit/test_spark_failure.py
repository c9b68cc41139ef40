"""Errors from Spark: ours come back whole, Spark's never show a row's value."""

from __future__ import annotations

import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.spark.failure import pack, translate, unpack


def test_an_error_survives_the_way_through_a_trace() -> None:
    error = ChangefeedError("CF2202", 'no "rows" {here}', detail="part\n3", hint="look")
    trace = f"Traceback ...\nRuntimeError: {pack(error)}\n\tat org.apache.spark..."
    found = unpack(trace)
    assert found is not None
    assert (found.code.number, found.message, found.detail, found.hint) == (
        "CF2202", 'no "rows" {here}', "part\n3", "look",
    )  # fmt: skip
    again = translate(RuntimeError(trace), jvm_died=False)
    assert again.message == error.message


def test_no_error_of_ours() -> None:
    assert unpack("java.lang.OutOfMemoryError") is None


class SparkSays(Exception):
    """Like pyspark's exceptions."""

    def getCondition(self) -> str:
        return "CAST_INVALID_INPUT"


class GatewayExited(Exception):
    """What pyspark raises when spark-submit refuses its arguments."""

    def getCondition(self) -> str:
        return "JAVA_GATEWAY_EXITED"


def test_a_jvm_that_did_not_start_says_where_to_look() -> None:
    error = translate(GatewayExited(), jvm_died=False)
    assert error.message == "Spark could not be started: its JVM ended at once"
    assert "--master" in error.hint and "spark.log" in error.hint


def test_a_session_that_did_not_start_names_its_master() -> None:
    error = translate(ValueError("secret"), jvm_died=False, master="spark://far:7077")
    assert error.message == ("Spark could not be started with master spark://far:7077: ValueError")
    assert "reaches it" in error.hint


@pytest.mark.parametrize("failure", [SparkSays("the value 'secret'"), ValueError("'secret'")])
def test_values_stay_out(failure: Exception) -> None:
    error = translate(failure, jvm_died=False)
    assert error.code.number == "CF4002"
    assert "secret" not in error.message + error.detail + error.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 3 cancelled by a person",
            "the Spark job was cancelled",
        ),
        # Words that a row or a table may hold say nothing.
        ("row 'cancelled part of cancelled job group'", "Spark failed: RuntimeError"),
    ],
)
def test_a_cancelled_job_is_known_by_its_condition(text: str, message: str) -> None:
    assert translate(RuntimeError(text), jvm_died=False).message == message


def test_a_dead_jvm_explains_everything_else() -> None:
    error = translate(RuntimeError("whatever"), jvm_died=True)
    assert (error.code.number, error.action) == ("CF4002", "retry")


class JavaSays(Exception):
    """Like py4j's exception for one that Java threw."""

    java_exception = object()


def test_a_java_failure_names_its_class_its_root_cause_and_the_class_it_missed() -> None:
    trace = (
        "An error occurred while calling o1.loadClass.\n"
        ": org.apache.spark.SparkException: row 'secret'\n"
        "\tat org.apache.spark.Y\n"
        "Caused by: java.lang.RuntimeException: value 'secret'\n"
        "\tat org.apache.spark.Z\n"
        "Caused by: java.lang.ClassNotFoundException: io.delta.sql.DeltaSparkSessionExtension\n"
        "\tat java.base/x\n"
    )
    error = translate(JavaSays(trace), jvm_died=False)
    assert error.message == (
        "Spark failed: org.apache.spark.SparkException, "
        "caused by java.lang.ClassNotFoundException, "
        "class io.delta.sql.DeltaSparkSessionExtension is missing"
    )
    assert "secret" not in error.message


def test_a_jdbc_driver_that_is_not_there() -> None:
    trace = (
        "An error occurred while calling o1.load.\n: java.sql.SQLException: No suitable driver\n"
        "\tat java.sql/java.sql.DriverManager.getDriver(DriverManager.java:299)\n"
    )
    error = translate(JavaSays(trace), jvm_died=False)
    assert error.message == (
        "Spark failed: java.sql.SQLException, "
        "no JDBC driver for the URL (its jar: --conf spark.jars=..)"
    )

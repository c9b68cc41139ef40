"""``changefeed.attach(spark, state)``: the node of a state in a program that has a Spark session.

A notebook, a job or a pipeline has a session already, classic or of Spark Connect. The node uses
further sessions of that Spark, sets nothing of the given one, and never stops it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from changefeed.api import Result, Session
from changefeed.app import Application
from changefeed.spark.attached import EXISTING
from changefeed.spark.session import NodeSpark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class AttachedNode:
    """A node that runs until :meth:`close`. Use as a context manager; safe for one thread."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._session = Session(client="program")

    def execute(self, statement: str) -> Result:
        """Run one statement.

        Raises:
            ChangefeedError: the statement is wrong or failed.
        """
        return self._application.interpreter.execute(statement, self._session)

    def close(self) -> None:
        """Stop the node. Feeds keep their position; the Spark session stays as it is."""
        self._application.close()

    def __enter__(self) -> AttachedNode:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def attach(spark: SparkSession, state: str, *, staging: str | None = None) -> AttachedNode:
    """Run the feeds of a state with a Spark session that exists.

    Args:
        spark: the session, classic or of Spark Connect.
        state: the state's directory, or its ``postgresql://`` URL.
        staging: where Spark's executors find the rows that the node prepared, if they cannot read
            the state's directory: a directory, ``s3://`` or ``hdfs://``.

    Raises:
        ChangefeedError: CF6001, CF6002 the state cannot be opened; CF6003 another node runs it.
    """
    engine = NodeSpark(master=EXISTING, attached=lambda: spark, staging=staging)
    application = Application(state, spark=engine)
    try:
        application.require_node()
    except BaseException:
        application.close()
        raise
    return AttachedNode(application)

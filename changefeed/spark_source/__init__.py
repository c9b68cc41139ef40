"""The changes of a table as a source of Spark: ``spark.read`` and ``spark.readStream``.

::

    from changefeed import spark_source

    spark_source.register(spark)
    changes = (
        spark.readStream.format("changefeed")
        .option("state", "/var/lib/changefeed")
        .option("table", "shop.public.orders")
        .option("reader", "orders_spark")
        .load()
    )

Built on PySpark's Python Data Source API: the driver reads only the change log's index, and the
executors read its files, as Arrow. Both need this package (:func:`executor_properties` ships it);
the executors need the state's directory, or a staging place.
"""

from __future__ import annotations

import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from changefeed.core.extras import spark_lacking

if missing := spark_lacking("Spark's changefeed source"):
    raise ModuleNotFoundError(f"{missing.message}; {missing.hint}", name="pyspark")

if find_spec("pyspark.sql.datasource") is None:
    raise ModuleNotFoundError(
        "Spark's changefeed source needs PySpark 4: 3.5 takes no sources written in Python",
        name="pyspark.sql.datasource",
    )

from changefeed.spark.shipping import ship_python
from changefeed.spark_source.source import ChangefeedSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ChangefeedSource", "executor_properties", "register"]


def register(spark: SparkSession) -> None:
    """Add the format ``changefeed`` to a session."""
    spark.dataSource.register(ChangefeedSource)


def executor_properties() -> dict[str, str]:
    """Properties for a session on a cluster, which ship this package and what it needs.

    ::

        builder.config(map=spark_source.executor_properties())

    The executors need a Python of this one's minor version, which Spark calls by its name there and
    in the driver, whose ``PATH`` therefore begins with this one's directory from now on. The
    archives stay where they are made until they are removed; that of the libraries is kept in the
    user's cache.

    Raises:
        ChangefeedError: CF4003, the archives cannot be written.
    """
    own = str(Path(sys.executable).parent)
    os.environ["PATH"] = os.pathsep.join([own, os.environ.get("PATH", os.defpath)])
    return ship_python(Path(tempfile.mkdtemp(prefix="changefeed-python-"))).properties({})

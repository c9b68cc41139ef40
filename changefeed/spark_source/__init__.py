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

Built on PySpark's Python Data Source API: the driver looks at the change log's index alone, and the
executors read its files, as Arrow. Both need this package and the state's directory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from changefeed.spark_source.source import ChangefeedSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ChangefeedSource", "register"]


def register(spark: SparkSession) -> None:
    """Let a session know the format ``changefeed``."""
    spark.dataSource.register(ChangefeedSource)

"""A plugin of pytest: a Spark whose private attributes raise for changefeed's code, as those of
Spark Connect and of shared clusters do.

``pytest -p tests.helpers.public_spark TESTS``. PySpark itself and the tests go on to reach them.
What such a Spark must be started with (the extensions of the table formats) it is.
"""

from __future__ import annotations

import sys
from typing import Any

import pyspark
from pyspark.sql import Observation, SparkSession
from pyspark.sql.classic.column import Column
from pyspark.sql.classic.dataframe import DataFrame

from changefeed.spark import properties
from changefeed.spark.packs import pack

#: Classes of PySpark and their private attributes.
PRIVATE: tuple[tuple[type, str], ...] = (
    (SparkSession, "_jvm"),
    (SparkSession, "_jsparkSession"),
    (DataFrame, "_jdf"),
    (Column, "_jc"),
    (Observation, "_jo"),
    (pyspark.SparkContext, "_jsc"),
)
_OURS = ("changefeed", "sinks", "shell")


class _Guarded:
    """An attribute that raises where one of our modules reads it."""

    def __init__(self, name: str, before: Any) -> None:
        self._name = name
        self._before = before

    def __get__(self, owner: Any, kind: type) -> Any:
        reader = str(sys._getframe(1).f_globals.get("__name__", ""))
        if reader.partition(".")[0] in _OURS:
            raise AttributeError(f"{kind.__name__}.{self._name} is private ({reader})")
        if isinstance(self._before, property):
            return self._before.__get__(owner, kind)
        if owner is None:
            return self._before
        return owner.__dict__.get(self._name, self._before)

    def __set__(self, owner: Any, value: Any) -> None:
        owner.__dict__[self._name] = value


for _kind, _name in PRIVATE:
    setattr(_kind, _name, _Guarded(_name, _kind.__dict__.get(_name)))
properties._PROPERTIES["spark.sql.extensions"] = ",".join(
    pack(name).extension for name in ("delta", "iceberg")
)

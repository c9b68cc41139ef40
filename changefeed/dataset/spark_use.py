"""What the work on a dataset needs of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession


class SparkUse(Protocol):
    """Gives sessions of Spark."""

    def use(self, group: str | None = None) -> AbstractContextManager[SparkSession]:
        """A session for a block; failures come as ChangefeedError."""
        ...

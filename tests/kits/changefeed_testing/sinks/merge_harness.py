"""One target to test a sink of typed rows against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sinks.base import Batch, Sink, SinkContext


class MergeHarness:
    """One target to test a sink against; a fresh one for each case.

    Attributes:
        never: cases the sink cannot pass by its nature, with the reason.
        secret: a password inside the URI; empty when its URIs hold none.
        unfit: logical types, each with a value in log form that their columns cannot hold here: one
            that is known without the target, and one that the target alone refuses.
    """

    never: Mapping[str, str] = {}
    secret = ""
    unfit: Mapping[str, str] = {"decimal(9,2)": '"NaN"', "date": "2024-02-31"}

    def sink(self, options: Mapping[str, object] | None = None) -> Sink:
        """A new, unopened sink on the target, as after a restart of the process."""
        raise NotImplementedError

    def rows(self, topic: str) -> Sequence[Mapping[str, object]]:
        """All rows that a reader sees in a target table; none if the table does not exist."""
        raise NotImplementedError

    def topic(self, table: str) -> str:
        """The target of a source table."""
        return table

    def context(self, context: SinkContext) -> SinkContext:
        """The context for ``open``, with Spark or a scratch directory if the sink needs them."""
        return context

    def write_scan(self, sink: Sink, batch: Batch) -> None:
        """Hand over and commit rows of a scan. Override it for sinks that take scans otherwise."""
        receipt = sink.write(batch)
        sink.commit(batch.epoch, [receipt])

    def make_foreign(self, name: str) -> None:
        """Create a table that belongs to no feed: ``a`` (the key, a 32-bit integer), ``b`` (a
        text), with one row, :data:`changefeed_testing.sinks.owning.THEIRS`."""
        raise NotImplementedError

    def foreign_rows(self, name: str) -> Sequence[Mapping[str, object]]:
        """``a`` and ``b`` of all rows of a table, in the order of ``a``."""
        listed = [{"a": row["a"], "b": row["b"]} for row in self.rows(name)]
        return sorted(listed, key=lambda row: repr(row["a"]))

    def raw(self) -> bytes:
        """All bytes of the target that a reader can see, to search in."""
        return b""

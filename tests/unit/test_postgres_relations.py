"""Shapes out of Relation messages and a catalog that is not of the same moment."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest

from changefeed.catalog import Catalog, JobSpec, TableProgress, TableState
from changefeed.core.clock import ManualClock, Timestamp
from changefeed.core.schema import TableName, TableSchema
from changefeed.sources.postgres.connect import PsycopgConnection
from changefeed.sources.postgres.pgoutput import read_relation
from changefeed.sources.postgres.relations import Relations, build_schema
from changefeed.sources.postgres.types import ColumnInfo, ReplicaIdentity, TableDetails
from changefeed.sources.postgres.visibility import Visibility, read_unseen

OID, INT4 = 7, 23
Columns = tuple[str, ...]


def announced(*names: str) -> bytes:
    """The body of a Relation message: table t, the first column is the key."""
    body = struct.pack("!I", OID) + b"public\0t\0d" + struct.pack("!h", len(names))
    for place, name in enumerate(names):
        body += struct.pack("!b", place == 0) + name.encode() + b"\0" + struct.pack("!Ii", INT4, -1)
    return body


def catalog(
    *answers: Columns,
) -> tuple[Callable[[Sequence[int]], Mapping[int, TableDetails]], list[Columns]]:
    """A catalog that shows these columns, one answer after another; and what it showed."""
    left, shown = list(answers), []

    def describe(oids: Sequence[int]) -> Mapping[int, TableDetails]:
        names = left.pop(0) if len(left) > 1 else left[0]
        shown.append(names)
        columns = tuple(
            ColumnInfo(name, number, INT4, -1, "integer")
            for number, name in enumerate(names, start=1)
        )
        return {OID: TableDetails(OID, "public", "t", columns, ("a",), ReplicaIdentity.DEFAULT)}

    return describe, shown


def numbers(schema: TableSchema) -> dict[str, int]:
    return {column.name: column.column_id for column in schema.columns}


def intern(schema: TableSchema) -> TableSchema:
    return schema.with_version(schema.version or len(schema.columns))


def test_a_catalog_that_is_a_moment_behind_is_asked_again() -> None:
    describe, shown = catalog(("a",), ("a",), ("a",), ("a", "b"))
    stream = Relations("shop", describe, intern)
    stream.put(announced("a"))
    stream.resolve([OID])
    stream.put(announced("a", "b"))
    changes = stream.resolve([OID])
    assert numbers(changes[OID].new) == {"a": 1, "b": 2}
    assert shown == [("a",), ("a",), ("a",), ("a", "b")]


def test_a_column_that_was_renamed_since_is_not_waited_for() -> None:
    """It is known from before; one that nobody knows is given up after a while."""
    describe, shown = catalog(("a", "b"), ("a", "renamed"))
    stream = Relations("shop", describe, intern, catalog_lag=0.0)
    stream.put(announced("a", "b"))
    stream.resolve([OID])
    stream.put(announced("a", "b"))
    assert stream.resolve([OID]) == {}
    assert len(shown) == 2
    stream.put(announced("a", "b", "brief"))
    assert numbers(stream.resolve([OID])[OID].new) == {"a": 1, "b": 2, "brief": 0}


def test_a_change_that_a_scan_saw_first_is_a_change_to_those_who_were_there_before(
    tmp_path: Path,
) -> None:
    """The capture is a new one: it remembers no shape, and the newest that the state knows is
    that of another feed's scan."""
    state = Catalog.open(tmp_path)
    table = TableName("shop", "public", "t")
    before, after = (
        build_schema("shop", read_relation(announced(*names)), catalog(names)[0]([OID])[OID])
        for names in (("a",), ("a", "b"))
    )
    first = state.intern_schema(before)
    job = state.create_job(JobSpec("shop", ("t",), (TableProgress(table, "t"),), name="f"))
    lease = state.acquire_lease(job.id, "n", 60)
    assert lease is not None
    scanned = TableProgress(
        table, "t", schema_version=first.version, state=TableState.RUNNING, done_upto=Timestamp(5)
    )
    state.save_progress(job.id, {table: scanned}, lease=lease)
    second = state.intern_schema(after)  # the scan of another feed, or a VERIFY

    def stream() -> Relations:
        made = Relations(
            "shop", catalog(("a", "b"))[0], state.intern_schema, state.announced_schema
        )
        made.put(announced("a", "b"))
        return made

    for _ in range(2):  # a crash before the log has it: the next capture finds it again
        change = stream().resolve([OID])[OID]
        assert (change.old.version, change.new.version) == (first.version, second.version)
    state.announce_schemas({second.version})
    assert stream().resolve([OID]) == {}
    state.close()


class Snapshot:
    """A connection whose snapshot is ``xmin:xmax:running``."""

    def __init__(self, text: str) -> None:
        self._text = text

    def execute(self, query: object, params: object = None, /) -> Snapshot:
        return self

    def fetchall(self) -> list[tuple[str]]:
        return [(self._text,)]


@pytest.mark.parametrize(
    ("snapshot", "unseen"),
    [
        ("10:10:", {10, 11}),
        ("8:12:8,10", {8, 10}),
        ("100:100:", set()),
        # The numbers of the stream have 32 bits: the third round ended at 10 of the next.
        (
            f"{(3 << 32) - 2}:{(3 << 32) + 10}:{(3 << 32) - 2},{(3 << 32) + 8}",
            {8, 10, 11, 2**32 - 2},
        ),
    ],
)
def test_what_a_snapshot_does_not_show(snapshot: str, unseen: set[int]) -> None:
    wrapped = {2**32 - 2} if unseen & {2**32 - 2} else set()
    connection = cast(PsycopgConnection, Snapshot(snapshot))
    assert read_unseen(connection, {8, 9, 10, 11} | wrapped) == unseen


def test_a_transaction_that_is_not_shown_is_waited_for_once() -> None:
    clock = ManualClock()
    looks: list[float] = []

    def unseen(xids: Collection[int]) -> set[int]:
        looks.append(clock.monotonic())
        return set(xids) if hidden else set()

    visibility, hidden = Visibility(unseen, patience=60.0, clock=clock), True
    assert visibility.wait({7}) == {7}
    assert 60.0 <= looks[-1] - looks[0] < 61.0 and len(looks) > 10
    waited = len(looks)
    assert visibility.wait({7}) == {7} and len(looks) == waited + 1, "given up: no second wait"
    hidden = False
    assert visibility.wait({7}) == set()
    hidden = True
    assert visibility.wait({8}) == {8} and len(looks) > waited + 10, "patient again"


def test_a_column_nobody_knows_is_given_up_in_time() -> None:
    clock = ManualClock()
    describe, shown = catalog(("a",))
    stream = Relations("shop", describe, intern, catalog_lag=5.0, clock=clock)
    began = clock.monotonic()
    stream.put(announced("a", "brief"))
    stream.resolve([OID])
    assert 5.0 <= clock.monotonic() - began < 6.0 and len(shown) > 10

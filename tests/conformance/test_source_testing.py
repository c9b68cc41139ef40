"""The list of what every source must do finds sources that do not: each with one fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from changefeed.core.events import ChangeBatch, Flush, SchemaChange
from changefeed.sources.base import Attachment, Memo, Snapshot, Source, StreamRequest
from changefeed_testing.sources.conformance import CASES, run_case
from tests.conformance.test_source_conformance import PostgresHarness
from tests.services.postgres import Database

pytestmark = pytest.mark.postgres

#: Makes the flushes of a stream wrong.
Fault = Callable[[Iterator[Flush]], Iterator[Flush]]


class Wrapped:
    """Whatever is not overridden is the other object's."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class FaultyStream(Wrapped):
    def __init__(self, inner: Any, fault: Fault) -> None:
        super().__init__(inner)
        self._fault = fault

    def __iter__(self) -> Iterator[Flush]:
        return self._fault(iter(self._inner))


class FaultyAttachment(Wrapped):
    def __init__(self, inner: Attachment, harness: FaultyHarness) -> None:
        super().__init__(inner)
        self._harness = harness

    def capture(self, tables: Sequence[Any], *, resume: bool) -> Any:
        if self._harness.fault == "takes a lost log for a new one":
            resume = False
        if self._harness.fault == "captures no second table":
            tables = tables[:1]
        return self._inner.capture(tables, resume=resume)

    def stream(self, request: StreamRequest) -> Any:
        if self._harness.fault == "takes a lost log for a new one":
            begin = replace(request.start, position=self._inner.start()[0], history="")
            request = replace(request, start=begin)
        stream = self._inner.stream(request)
        fault = FLUSHES.get(self._harness.fault)
        return stream if fault is None else FaultyStream(stream, fault)


class FaultySource(Wrapped):
    def __init__(self, inner: Source, harness: FaultyHarness) -> None:
        super().__init__(inner)
        self._harness = harness

    def identity(self) -> str:
        told: str = self._inner.identity()
        return told.partition("/")[0] if self._harness.fault == "is any database" else told

    def attach(self, owner: str, memo: Memo | None) -> Attachment:
        return cast(Attachment, FaultyAttachment(self._inner.attach(owner, memo), self._harness))

    def snapshot(self, tables: Sequence[Any] = ()) -> Snapshot:
        snapshot = self._inner.snapshot(tables)
        if self._harness.fault == "places its snapshot too late":
            snapshot._position = "F" * 16
        return cast(Snapshot, snapshot)


class FaultyHarness(PostgresHarness):
    fault = ""

    def source(self) -> Source:
        return cast(Source, FaultySource(super().source(), self))

    def other(self) -> Source:
        return cast(Source, FaultySource(super().other(), self))


def _loses_rows(flushes: Iterator[Flush]) -> Iterator[Flush]:
    for flush in flushes:
        yield replace(flush, events=[])


def _repeats_rows(flushes: Iterator[Flush]) -> Iterator[Flush]:
    for flush in flushes:
        yield replace(flush, events=[*flush.events, *flush.events])


def _hides_changes_of_schema(flushes: Iterator[Flush]) -> Iterator[Flush]:
    for flush in flushes:
        yield replace(flush, events=[e for e in flush.events if not isinstance(e, SchemaChange)])


def _is_silent_when_idle(flushes: Iterator[Flush]) -> Iterator[Flush]:
    return (flush for flush in flushes if flush.events)


def _splits_transactions(flushes: Iterator[Flush]) -> Iterator[Flush]:
    """Each row gets a timestamp of its own."""
    for flush in flushes:
        events = []
        for event in flush.events:
            if isinstance(event, ChangeBatch):
                rows = event.rows
                own = pa.array(range(rows.num_rows), pa.int32())
                event = ChangeBatch(event.schema, rows.set_column(2, rows.schema.field(2), own))
            events.append(event)
        yield replace(flush, events=events)


FLUSHES: dict[str, Fault] = {
    "loses rows": _loses_rows,
    "repeats rows": _repeats_rows,
    "hides changes of schema": _hides_changes_of_schema,
    "is silent when idle": _is_silent_when_idle,
    "splits transactions": _splits_transactions,
}


@pytest.mark.parametrize(
    "fault, name",
    [
        ("loses rows", "every_kind_of_change"),
        ("repeats rows", "every_kind_of_change"),
        ("splits transactions", "a_transaction_has_one_timestamp"),
        ("splits transactions", "a_large_transaction_is_whole"),
        ("hides changes of schema", "columns_come_and_go"),
        ("is silent when idle", "an_idle_source_moves_on"),
        ("captures no second table", "a_table_joins_while_others_stream"),
        ("places its snapshot too late", "scan_and_stream_are_the_table"),
        ("takes a lost log for a new one", "a_lost_log_is_an_error"),
        ("is any database", "another_database_is_refused"),
    ],
)
def test_a_fault_is_found(
    fault: str,
    name: str,
    postgres: Database,
    tmp_path: Path,
) -> None:
    (case,) = (case for case in CASES if case.name == name)
    with postgres.server.database() as other:
        harness = FaultyHarness(postgres, other, tmp_path)
        assert run_case(case, harness) == ""
        harness.execute("DROP TABLE IF EXISTS t, late")
        harness.fault = fault
        harness.deadline = 2.0
        with pytest.raises((AssertionError, ValueError)):
            run_case(case, harness)
        harness.close()


def test_an_unknown_case_is_an_error(postgres: Database, tmp_path: Path) -> None:
    harness = PostgresHarness(postgres, postgres, tmp_path)
    harness.never = {"no such case": "a slip"}
    with pytest.raises(AssertionError, match="unknown cases"):
        run_case(CASES[0], harness)
    harness.never = {CASES[0].name: "by its nature"}
    assert run_case(CASES[0], harness) == "by its nature"

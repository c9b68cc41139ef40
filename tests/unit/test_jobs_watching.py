"""A source's own thread: what it was told last holds, and a source that hangs holds up nobody."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

import pytest

from changefeed.capture.reconciler import DesiredState, SourceReconciler
from changefeed.capture.source_runtime import SourceRuntime
from changefeed.capture.table_identity import Known
from changefeed.catalog import Catalog, DesiredStatus, Job, Status
from changefeed.catalog.model import JobSpec, TableProgress, TableState
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableName
from changefeed.core.timings import Timings
from tests.helpers.waiting import until

TABLE = TableName("shop", "public", "t")


class FakeSourceRuntime:
    """Notes what it is asked; ``gate`` closed makes it hang, ``refuses`` makes it fail."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.refuses: ChangefeedError | None = None
        self.watched: list[frozenset[Known]] = []
        self.forgot = 0
        self.clean = True

    def read_secrets_again(self, error: ChangefeedError) -> ChangefeedError:
        return error

    def follow_connection(self) -> None:
        """Connections do not change here."""

    def watch(self, wanted: Iterable[Known]) -> None:
        self.watched.append(frozenset(wanted))
        self.gate.wait(30)
        if self.refuses is not None:
            raise self.refuses

    def forget(self) -> bool:
        self.forgot += 1
        self.gate.wait(30)
        return self.clean


class Bench:
    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.source_runtime = FakeSourceRuntime()
        self.running: set[int] = set()
        self.changes = 0
        self.watch = SourceReconciler(
            catalog,
            "shop",
            lambda: self.source_runtime,  # type: ignore[arg-type,return-value]
            runs=lambda job: job in self.running,
            changed=self._changed,
            timings=Timings(source_look=0.02),
        )

    def _changed(self) -> None:
        self.changes += 1

    def job(self, name: str) -> Job:
        spec = JobSpec("shop", ("TABLE t",), (TableProgress(TABLE, "t", table_id=7),), name=name)
        return self.catalog.create_job(spec)

    def want(self, *jobs: Job) -> bool:
        return self.watch.want(DesiredState.of((job, self.catalog.tables(job.id)) for job in jobs))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    catalog = Catalog.open(tmp_path)
    bench = Bench(catalog)
    yield bench
    bench.watch.stop()
    bench.source_runtime.gate.set()
    bench.watch.join(10)
    catalog.close()


def test_a_feed_is_covered_once_the_source_has_agreed(bench: Bench) -> None:
    first = bench.job("a")
    bench.want(first)
    bench.watch.start()
    until(lambda: bench.watch.covers(first))
    assert bench.source_runtime.watched[0] == {(TABLE, 7)}
    until(lambda: bench.changes == 1)

    asked = len(bench.source_runtime.watched)
    bench.source_runtime.gate.clear()
    second = bench.job("b")
    bench.want(first, second)  # returns though the source hangs
    until(lambda: len(bench.source_runtime.watched) > asked)
    assert not bench.watch.covers(second)
    assert bench.watch.covers(first), "a feed that was ready stays ready"
    bench.source_runtime.gate.set()
    until(lambda: bench.watch.covers(second))


def test_an_altered_feed_is_covered_anew(bench: Bench) -> None:
    job = bench.job("a")
    bench.want(job)
    bench.watch.start()
    until(lambda: bench.watch.covers(job))
    added = TableProgress(TableName("shop", "public", "u"), "u")
    altered = bench.catalog.alter_job(job.id, add=[added])
    assert not bench.watch.covers(altered)
    bench.want(altered)
    until(lambda: bench.watch.covers(altered))
    assert bench.source_runtime.watched[-1] == {(TABLE, 7), (added.table, 0)}


def test_those_that_wait_are_told_why_and_go_on_afterwards(bench: Bench) -> None:
    waiting, running = bench.job("a"), bench.job("b")
    bench.running.add(running.id)
    bench.source_runtime.refuses = ChangefeedError("CF2001", "cannot connect")
    bench.want(waiting, running)
    bench.watch.start()
    until(lambda: bench.catalog.job("a").status is Status.RETRYING)
    assert bench.catalog.job("a").error == "cannot connect"
    assert bench.catalog.job("b").status is Status.STARTING, "its runner shows it"
    until(lambda: bench.catalog.source_state("shop").error == "cannot connect")
    bench.source_runtime.refuses = None
    until(lambda: bench.watch.covers(waiting))
    assert bench.catalog.source_state("shop").error == ""


def test_it_ends_with_the_last_feed_and_nothing_is_left(bench: Bench) -> None:
    job = bench.job("a")
    bench.want(job)
    bench.watch.start()
    until(lambda: bench.watch.covers(job))
    bench.source_runtime.clean = False  # a feed came while it was leaving
    bench.want()
    until(lambda: bench.source_runtime.forgot)
    assert not bench.watch.over
    bench.source_runtime.clean = True
    until(lambda: bench.watch.over)
    assert bench.want(job) is False, "the node begins another thread"


def test_what_was_wanted_while_it_was_leaving_is_not_lost(bench: Bench) -> None:
    job = bench.job("a")
    bench.source_runtime.gate.clear()
    bench.watch.start()
    until(lambda: bench.source_runtime.forgot)
    assert bench.want(job)
    bench.source_runtime.gate.set()
    until(lambda: bench.watch.covers(job))


def test_a_table_that_was_lost_is_wanted_again_after_resume() -> None:
    lost = TableProgress(TABLE, "t", table_id=7, state=TableState.FAILED, error_code="CF2106")
    refused = TableProgress(TABLE, "t", table_id=8, state=TableState.FAILED, error_code="CF5003")
    joined = TableProgress(
        TABLE, "t", table_id=9, state=TableState.FAILED, error_code="CF2106", joined=True
    )
    assert DesiredState.of([(_job(), [lost, refused, joined])]).tables == {(TABLE, 8), (TABLE, 9)}


def _job() -> Job:
    return Job(
        1, "f", "shop", None, (), {}, "", Status.RUNNING, DesiredStatus.RUNNING, "", None, None,
        None, 0, None, 0, None, None, None, None, 1, False,
    )  # fmt: skip


def test_a_feed_of_another_process_hears_of_a_gap_that_the_node_found(
    tmp_path: Path,
) -> None:
    """A prompt beside a node runs its own feeds, and the node is the one that looks."""
    node, prompt = Catalog.open(tmp_path), Catalog.open(tmp_path)
    source_runtime = SourceRuntime(
        prompt, str(tmp_path), "shop", capturing=lambda: False, timings=Timings(gaps=0.0)
    )
    assert source_runtime.tables.gaps == {}
    node.add_gaps({TABLE: "the table was taken out of the publication"})
    assert source_runtime.tables.gaps[TABLE].error.code is Code.TABLE_GAP
    source_runtime.close()
    node.close()
    prompt.close()


class StateThatIsAway:
    """A catalog whose database does not answer while it is ``away``."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.away = False
        self.refused = 0

    def __getattr__(self, name: str) -> object:
        if self.away:
            self.refused += 1
            raise ChangefeedError(Code.STATE_UNREACHABLE, "the state does not answer")
        return getattr(self._catalog, name)


def test_a_state_that_does_not_answer_for_a_while_ends_no_thread(tmp_path: Path) -> None:
    """Not even the error can be told then: the next attempt finds the state again."""
    catalog = Catalog.open(tmp_path)
    state = StateThatIsAway(catalog)
    bench = Bench(cast(Catalog, state))
    first = bench.job("a")
    bench.want(first)
    bench.watch.start()
    until(lambda: bench.watch.covers(first))
    second = bench.job("b")
    both = DesiredState.of((job, catalog.tables(job.id)) for job in (first, second))
    state.away = True
    assert bench.watch.want(both)
    until(lambda: state.refused > 5)
    assert not bench.watch.covers(second)
    state.away = False
    until(lambda: bench.watch.covers(second), "the source is prepared again")
    bench.watch.stop()
    bench.watch.join(10)
    catalog.close()

"""Options and offsets of Spark's changefeed source, without Spark."""

from __future__ import annotations

import pickle
import traceback
from pathlib import Path
from typing import Any

import pytest

from changefeed.core.clock import ManualClock, Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.readers.table_log import OnTruncate, Range, Selection, TableRanges
from changefeed.spark_source.batch import ChangeBatchReader, ChangePartition, check_shapes
from changefeed.spark_source.settings import OnSchemaChange, settings_of
from changefeed.spark_source.source import ChangefeedSource
from changefeed.spark_source.stream import ChangeStreamReader
from sinks.base import ConsumerProgress
from tests.helpers.log_samples import narrow, wide

SCHEMA = narrow("t")
GIVEN = {"state": "/s", "table": "shop.public.t", "reader": "r"}


def at(wall: int) -> Timestamp:
    return Timestamp(wall)


# ------------------------------------------------------------------------------------ options


def test_options_are_of_any_case_and_typed() -> None:
    made = settings_of(
        {**GIVEN, "STARTINGVERSION": "17.0000000005", "endingTimestamp": "1970-01-01T00:00:01Z"}
    )
    assert made.after == Timestamp(17, 4)
    assert made.upto == Timestamp(1_000_000_999, Timestamp.MAX.logical)
    assert not made.initial_scan
    plain = settings_of(GIVEN)
    assert (plain.initial_scan, plain.after, plain.upto) == (True, None, None)
    assert plain.on_schema_change is OnSchemaChange.FAIL
    assert plain.on_truncate is OnTruncate.ERROR


@pytest.mark.parametrize(
    ("given", "code", "text"),
    [
        ({"state": ""}, "CF1205", "neither the option source nor the option state"),
        ({"source": "env:NO_SUCH_VARIABLE"}, "CF1205", "NO_SUCH_VARIABLE"),
        ({"source": "postgresql://u:geheim@h/d"}, "CF1205", "Spark's plans"),
        ({"source": "postgresql://h/d?password=geheim"}, "CF1205", "Spark's plans"),
        ({"source": "kafka://h:9092"}, "CF1201", "does not belong to a source"),
        ({"state": "env:NO_SUCH_VARIABLE"}, "CF1205", "NO_SUCH_VARIABLE"),
        ({"state": "postgresql://u:geheim@h/d"}, "CF1205", "Spark's plans"),
        ({"staging": "s3://rows?AWS_SECRET_ACCESS_KEY=geheim"}, "CF1205", "staging: a URL with"),
        ({"staging": "env:NO_SUCH_VARIABLE"}, "CF1205", "staging: the driver has no"),
        ({"staging": "rows"}, "CF1201", "staging place"),
        ({"table": "", "reader": ""}, "CF1205", "neither"),
        ({"tabel": "x"}, "CF1203", "tabel"),
        ({"startingVersion": "soon"}, "CF1204", "soon"),
        ({"startingTimestamp": "soon"}, "CF1204", "soon"),
        ({"startingVersion": "1", "startingTimestamp": "2020-01-01"}, "CF1205", "contradict"),
        ({"endingVersion": "1", "endingTimestamp": "2020-01-01"}, "CF1205", "contradict"),
        ({"startingVersion": "1", "initialScan": "true"}, "CF1205", "contradict"),
        ({"startingVersion": "2", "endingVersion": "1"}, "CF1205", "end is before startingVersion"),
        (
            {"startingTimestamp": "2020-01-02", "endingTimestamp": "2020-01-01"},
            "CF1205",
            "end is before startingTimestamp",
        ),
        ({"initialScan": "perhaps"}, "CF1204", "perhaps"),
        ({"schemaChange": "perhaps"}, "CF1204", "perhaps"),
        ({"truncate": "perhaps"}, "CF1204", "perhaps"),
        ({"maxRowsPerTrigger": "0"}, "CF1204", "'0'"),
    ],
)
def test_wrong_options_are_said(given: dict[str, str], code: str, text: str) -> None:
    with pytest.raises(ChangefeedError) as error:
        settings_of({**GIVEN, **given})
    assert error.value.code.number == code
    assert text in f"{error.value} {error.value.hint}"
    assert "geheim" not in f"{error.value} {error.value.hint}"


def test_a_near_option_is_suggested() -> None:
    with pytest.raises(ChangefeedError) as error:
        settings_of({**GIVEN, "startVersion": "1"})
    assert error.value.hint == "did you mean startingVersion?"
    shown = "".join(traceback.format_exception(error.value))
    assert shown.endswith("\nCF1203\nHINT: did you mean startingVersion?\n"), "as Spark shows it"


def test_the_state_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDS_STATE", "postgresql://u:geheim@h/d")
    made = settings_of({**GIVEN, "state": "env:FEEDS_STATE"})
    assert made.state == "postgresql://u:geheim@h/d"
    assert "geheim" not in repr(made)


def test_a_stream_needs_a_reader_and_has_no_end() -> None:
    for given in ({"reader": ""}, {"endingVersion": "1"}):
        source = ChangefeedSource({**GIVEN, **given})
        source._shape = SCHEMA
        reader = source.streamReader(None)  # type: ignore[arg-type]
        for ask in (reader.initialOffset, reader.latestOffset):
            with pytest.raises(ChangefeedError) as error:
                ask()
            assert error.value.code.number == "CF1205"


def test_the_columns_are_the_tables() -> None:
    with pytest.raises(ChangefeedError, match="columns") as error:
        ChangefeedSource(GIVEN).reader(None)  # type: ignore[arg-type]
    assert error.value.code.number == "CF1303"


# ------------------------------------------------------------------------------ schema changes


def test_newer_rows_that_do_not_fit_stop_the_query() -> None:
    newer = wide("t", version=2)
    span = TableRanges((), at(9), (SCHEMA, newer))
    with pytest.raises(ChangefeedError, match="doc, t0") as error:
        check_shapes(span, SCHEMA, OnSchemaChange.FAIL)
    assert error.value.code.number == "CF1302"
    check_shapes(span, SCHEMA, OnSchemaChange.IGNORE)
    check_shapes(span, newer, OnSchemaChange.FAIL)  # older rows are read in the newer shape


# ------------------------------------------------------------------------------------ offsets


class FakeLog:
    """A log with rows at some timestamps."""

    def __init__(self, *rows: int) -> None:
        self.rows = list(rows)
        self.upto = 0

    def frontier(self) -> Timestamp:
        return at(self.upto)

    def reach(self, after: Timestamp, upto: Timestamp, rows: int) -> Timestamp:
        there = [at(w) for w in self.rows if after < at(w) <= upto]
        return there[rows - 1] if len(there) > rows else upto

    def span(self, after: Timestamp, upto: Timestamp, schema: Any = None) -> TableRanges:
        there = any(after < at(w) <= upto for w in self.rows)
        part = Range(Path("/log"), Selection(SCHEMA.table), schema, after, upto)
        return TableRanges((part,) if there else (), upto)


class FakeReader:
    """A reader whose changefeed scanned at 10."""

    name = "r"

    def __init__(self, log: FakeLog) -> None:
        self._log = log
        self.consumed = ConsumerProgress()
        self.paused = False
        self.failure: ChangefeedError | None = None
        self.scanned = True

    def log(self) -> FakeLog:
        return self._log

    def consumer_progress(self) -> ConsumerProgress:
        return self.consumed

    def begun(self) -> Timestamp | None:
        return at(10) if self.scanned else None

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def resting(self, after: Timestamp) -> Timestamp:
        return max(after, self.consumed.idle or after)

    def plan(self, upto: Timestamp) -> None:
        self.consumed = ConsumerProgress(self.consumed.committed, self.consumed.idle, upto)

    def commit(self, upto: Timestamp) -> None:
        self.consumed = ConsumerProgress(upto, self.consumed.idle, self.consumed.planned)

    def idle(self, upto: Timestamp) -> None:
        self.consumed = ConsumerProgress(self.consumed.committed, upto, self.consumed.planned)

    def work(self, after: Timestamp | None, upto: Timestamp, schema: Any) -> TableRanges:
        return self._log.span(after or at(0), upto, schema)


def stream(
    reader: FakeReader, *, clock: ManualClock | None = None, **options: str
) -> ChangeStreamReader:
    settings = settings_of({**GIVEN, **options})
    made = ChangeStreamReader(settings, SCHEMA, clock or ManualClock())
    made._opened = reader  # type: ignore[assignment]
    return made


def offset(wall: int) -> dict[str, str]:
    return {"at": str(at(wall))}


def test_a_first_batch_waits_for_a_log_that_is_empty_yet() -> None:
    """A query that ends when it has read everything would end without the rows of the scan."""

    class EmptyAtFirst(FakeLog):
        asked = 0

        def frontier(self) -> Timestamp | None:  # type: ignore[override]
            self.asked += 1
            return super().frontier() if self.asked > 2 else None

    log = EmptyAtFirst(5)
    log.upto = 15
    query = stream(FakeReader(log))
    query.initialOffset()
    assert query.latestOffset() == offset(10)


def test_a_stream_begins_with_the_scan_and_goes_on_with_changes() -> None:
    log = FakeLog(5, 20, 30)
    reader = FakeReader(log)
    reader.scanned = False
    query = stream(reader)
    begin = query.initialOffset()
    log.upto = 15
    assert query.latestOffset() == begin, "before the scan is whole there is nothing"
    reader.scanned = True
    assert query.latestOffset() == offset(10)
    assert len(query.partitions(begin, offset(10))) == 1
    assert reader.consumed.committed is None
    log.upto = 25
    assert query.latestOffset() == offset(25)
    assert reader.consumed.committed == at(10), "asked for more, Spark has done the batch before"
    assert query.partitions(offset(25), offset(25)) == []


def test_a_quiet_table_makes_no_batches_and_does_not_hold_the_log() -> None:
    log = FakeLog(5)
    reader = FakeReader(log)
    query = stream(reader)
    log.upto = 10
    query.latestOffset()
    query.partitions({"at": ""}, offset(10))
    log.upto = 5000
    assert query.latestOffset() == offset(10)
    assert reader.consumed.idle == at(5000)


def test_a_query_that_starts_again_is_never_given_less() -> None:
    log = FakeLog(*range(11, 100))
    log.upto = 99
    reader = FakeReader(log)
    first = stream(reader, maxRowsPerTrigger="10")
    assert first.latestOffset() == offset(20)
    assert reader.consumed.planned == at(20)
    # Killed before the batch was committed: Spark runs it again, then asks for more.
    again = stream(reader, maxRowsPerTrigger="10")
    assert again.latestOffset() == offset(30)


def test_without_its_checkpoint_a_query_does_not_begin_in_the_middle() -> None:
    reader = FakeReader(FakeLog())
    reader.commit(at(40))
    with pytest.raises(ChangefeedError, match="no checkpoint") as error:
        stream(reader).initialOffset()
    assert error.value.code.number == "CF1301"


def test_a_paused_reader_waits_and_a_failed_one_stops_the_query() -> None:
    log = FakeLog(20)
    log.upto = 10
    reader, clock = FakeReader(log), ManualClock()
    query = stream(reader, clock=clock)
    assert query.latestOffset() == offset(10)
    reader.paused, log.upto = True, 20
    clock.advance(1)
    assert query.latestOffset() == offset(10)
    reader.paused = False
    clock.advance(1)
    assert query.latestOffset() == offset(20)
    reader.failure = ChangefeedError("CF3002", "gone")
    clock.advance(1)
    with pytest.raises(ChangefeedError, match="gone"):
        query.latestOffset()


def test_executors_get_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDS_STATE", "postgresql://u:geheim@h/d")
    settings = settings_of({**GIVEN, "state": "env:FEEDS_STATE"})
    for reader in (ChangeStreamReader(settings, SCHEMA), ChangeBatchReader(settings, SCHEMA)):
        assert b"geheim" not in pickle.dumps(reader)


def test_partitions_pickle() -> None:
    part = Range(Path("/log"), Selection(SCHEMA.table), SCHEMA, at(1), at(2))
    assert pickle.loads(pickle.dumps(ChangePartition(part))).part == part


def test_a_batch_without_ranges_has_no_rows() -> None:
    """Spark asks for the rows of None then."""
    reader = ChangeBatchReader(settings_of(GIVEN), SCHEMA)
    assert list(reader.read(None)) == []

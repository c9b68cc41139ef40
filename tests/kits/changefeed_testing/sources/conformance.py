"""What every source must do, as a list of cases over a harness.

The author of a source writes a :class:`~changefeed_testing.sources.harness.SourceHarness` and one
parametrised test:

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_my_source(case: Case, my_harness: SourceHarness) -> None:
        run_case(case, my_harness)

A case that a source cannot pass *by its nature* is named in ``never`` with the reason, and is not
run; naming a case that does not exist is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from changefeed_testing.sources import lifecycle, scans, streams
from changefeed_testing.sources.harness import SourceHarness


@dataclass(frozen=True, slots=True)
class Case:
    """One thing a source must do; ``run`` fails by an assertion."""

    name: str
    run: Callable[[SourceHarness], None]

    def __str__(self) -> str:
        return self.name


CASES: tuple[Case, ...] = tuple(
    Case(run.__name__, run)
    for run in (
        scans.describes_tables,
        scans.ids_are_of_all_columns_or_of_none,
        scans.a_scan_in_parts_is_the_table,
        scans.a_snapshot_stands_still,
        scans.a_scan_takes_a_range_of_keys,
        scans.a_scan_takes_chosen_keys,
        scans.a_scan_takes_chosen_columns,
        scans.every_type_there_and_back,
        scans.hostile_names_are_only_names,
        scans.scan_and_stream_are_the_table,
        scans.a_scan_goes_on_under_a_later_snapshot,
        streams.every_kind_of_change,
        streams.a_transaction_has_one_timestamp,
        streams.a_change_of_the_key,
        streams.a_row_that_changes_twice_at_once,
        streams.a_table_without_a_key,
        streams.old_rows_are_whole_where_they_are_logged,
        streams.truncate,
        streams.columns_come_and_go,
        streams.a_column_gets_another_name,
        streams.a_table_gets_another_name,
        streams.a_large_transaction_is_whole,
        streams.what_is_undone_never_was,
        streams.an_abandoned_large_transaction,
        streams.commits_come_in_their_order,
        streams.other_tables_stay_away,
        lifecycle.attaching_changes_nothing,
        lifecycle.capturing_twice_is_capturing,
        lifecycle.a_bad_table_keeps_no_other_out,
        lifecycle.a_table_joins_while_others_stream,
        lifecycle.an_idle_source_moves_on,
        lifecycle.positions_lie_above_what_committed,
        lifecycle.a_restart_anywhere_loses_nothing,
        lifecycle.a_restart_in_a_large_transaction,
        lifecycle.closing_ends_the_stream,
        lifecycle.a_lost_log_is_an_error,
        lifecycle.a_new_log_after_a_lost_one,
        lifecycle.another_database_is_refused,
    )
)


def run_case(case: Case, harness: SourceHarness) -> str:
    """Run a case; returns why it was not run, or nothing.

    Raises:
        AssertionError: the source broke the case, or ``never`` names a case that does not exist.
    """
    unknown = set(harness.never) - {known.name for known in CASES}
    assert not unknown, f"never names unknown cases: {unknown}"
    if case.name in harness.never:
        return harness.never[case.name]
    case.run(harness)
    return ""

"""Taking over a connector's slot: everything it has not confirmed is read, and nothing is missed
where its publication ends and ours begins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from changefeed.core.errors import ChangefeedError, Code, Problems
from changefeed.core.schema import TableName
from changefeed.sources.postgres import PostgresSource
from changefeed.sources.postgres.lsn import parse_lsn
from changefeed_testing.sources.reader import State, reading
from tests.conformance.conftest import ALL
from tests.services.postgres import Database

pytestmark = pytest.mark.postgres

T = TableName("shop", "public", "t")


def connector(postgres: Database, publication: str = "FOR TABLE t") -> dict[str, int]:
    """What a connector leaves: a table, its publication and slot; its offset."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    if publication:
        postgres.execute(f"CREATE PUBLICATION dbz_publication {publication}")
    return {"lsn_commit": slot(postgres)}


def slot(postgres: Database) -> int:
    [(lsn,)] = postgres.execute(
        "SELECT lsn::text FROM pg_create_logical_replication_slot('debezium', 'pgoutput')"
    )
    return parse_lsn(lsn)


def refusals(source: PostgresSource, offset: Mapping[str, Any]) -> list[str]:
    with pytest.raises(ChangefeedError) as caught:
        source.handover(offset, [T], fresh=True)
    error = caught.value
    found = error.problems if isinstance(error, Problems) else [error]
    assert all(problem.code.number == "CF1303" and problem.hint for problem in found)
    return [f"{problem.message}: {problem.detail}" for problem in found]


@ALL
def test_no_change_is_missed_between_the_publications(
    postgres: Database, source: PostgresSource, tmp_path: Path
) -> None:
    offset = connector(postgres)
    postgres.execute("CREATE TABLE u (id int PRIMARY KEY)")
    postgres.execute("INSERT INTO t VALUES (1, 1)")
    postgres.execute("UPDATE t SET n = 2")
    taken = source.handover(offset, [T], fresh=True)
    assert "pg_drop_replication_slot('debezium')" in taken.notices[0]
    state = State(tmp_path, memo=taken.memo)
    with postgres.connect() as elder:
        elder.execute("BEGIN; INSERT INTO t VALUES (2, 1)")
        # It began before our publication: the decoder would look for that in vain.
        with pytest.raises(ChangefeedError) as waits:
            state.capture(source, "t", "u")
        assert waits.value.code is Code.SOURCE_BUSY
        elder.execute("COMMIT")
    assert state.capture(source, "t", "u").problems == {}
    postgres.execute("INSERT INTO u VALUES (1)")
    postgres.execute("INSERT INTO t VALUES (3, 1)")
    postgres.execute("UPDATE t SET n = 3 WHERE id = 1")
    postgres.execute("INSERT INTO u VALUES (2)")
    try:
        with reading(state, source) as reader:
            reader.catch_up()
            postgres.execute("SELECT pg_drop_replication_slot('debezium')")
            postgres.execute("DROP PUBLICATION dbz_publication")
            postgres.execute("INSERT INTO u VALUES (3); DELETE FROM t WHERE id = 3")
            reader.catch_up()
        with reading(state, source) as reader:  # from a frontier behind the handover
            postgres.execute("INSERT INTO u VALUES (4)")
            reader.catch_up()
    finally:
        state.attach(source).release()
    told = [(c.op, (c.after or c.before or {}).get("id")) for c in state.changes("t")]
    assert told == [("c", 1), ("u", 1), ("c", 2), ("c", 3), ("u", 1), ("d", 3)]
    assert [(c.after or {})["id"] for c in state.changes("u")] == [1, 2, 3, 4]


def test_a_publication_that_went_too_early_is_told(
    postgres: Database, source: PostgresSource, tmp_path: Path
) -> None:
    offset = connector(postgres)
    state = State(tmp_path, memo=source.handover(offset, [T], fresh=True).memo)
    state.capture(source, "t")
    postgres.execute("DROP PUBLICATION dbz_publication")
    postgres.execute("INSERT INTO t VALUES (1, 1)")
    try:
        with reading(state, source) as reader:
            error = reader.failed()
    finally:
        state.attach(source).release()
    assert error.code is Code.SOURCE_LOG_GONE, error
    assert "dbz_publication" in error.message


def test_a_capture_that_was_cut_off_copies_the_slot_once(
    postgres: Database, source: PostgresSource, tmp_path: Path
) -> None:
    offset = connector(postgres)
    state = State(tmp_path, memo=source.handover(offset, [T], fresh=True).memo)
    memo = state.memo
    state.capture(source, "t")
    state.memo = memo  # it was not saved
    postgres.execute("INSERT INTO t VALUES (1, 1)")
    state.capture(source, "t")
    try:
        with reading(state, source) as reader:
            reader.catch_up()
    finally:
        state.attach(source).release()
    assert [c.after for c in state.changes("t")] == [{"id": 1, "n": 1}]


@pytest.mark.parametrize(
    ("publication", "why"),
    [
        ("", "there is no publication 'dbz_publication'"),
        ("FOR TABLE other", "it does not have the table"),
        ("FOR TABLE t WITH (publish = 'insert, update, delete')", "truncate"),
        ("FOR TABLE t WHERE (id > 5)", "leaves out rows or columns"),
        ("FOR TABLE t (id)", "leaves out rows or columns"),
    ],
)
def test_a_publication_that_lacks_something_is_refused(
    postgres: Database, source: PostgresSource, publication: str, why: str
) -> None:
    postgres.execute("CREATE TABLE other (id int PRIMARY KEY)")
    [refusal] = refusals(source, connector(postgres, publication))
    assert why in refusal


def test_a_slot_that_is_not_there_or_too_far_is_refused(
    postgres: Database, source: PostgresSource
) -> None:
    offset = connector(postgres)
    [refusal] = refusals(source, {**offset, "slot.name": "dbz"})
    assert "no replication slot 'dbz'" in refusal and "debezium" in refusal
    [refusal] = refusals(source, {"lsn": offset["lsn_commit"] - 8})
    assert "no longer has the log" in refusal
    postgres.execute(
        "SELECT pg_create_physical_replication_slot('standby_of_' || current_database())"
    )
    try:
        [refusal] = refusals(source, {**offset, "slot.name": f"standby_of_{postgres.name}"})
        assert "physical" in refusal
    finally:
        postgres.execute("SELECT pg_drop_replication_slot('standby_of_' || current_database())")


@pytest.mark.parametrize(
    ("offset", "why"),
    [
        ({"file": "binlog.000001", "pos": 4}, "no LSN"),
        ({"lsn": True}, "no LSN"),
        ({"lsn": -1, "lsn_commit": "5"}, "no LSN"),
        ({"lsn": 5, "snapshot": True}, "within its snapshot"),
        ({"lsn": 5, "snapshot": "INITIAL", "snapshot_completed": False}, "within its snapshot"),
    ],
)
def test_an_offset_that_says_nothing_is_refused(
    source: PostgresSource, offset: dict[str, Any], why: str
) -> None:
    [refusal] = refusals(source, offset)
    assert why in refusal

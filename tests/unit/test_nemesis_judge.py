"""The judge finds what is wrong with the messages of a feed, and only that."""

from __future__ import annotations

import json

import pytest

from changefeed.core.clock import Timestamp
from changefeed_testing.sinks.messages import Message, parse_message
from tests.nemesis.judge import judge_feed
from tests.nemesis.ledger import Cause, Ledger, Table, by_key

KEYED = Table("keyed")


def changed(v: int, at: int) -> Message:
    value = {"after": {"id": 1, "v": v}, "updated": str(Timestamp(at))}
    return parse_message("keyed", 0, b"[1]", json.dumps(value).encode())


def judged(ledger: Ledger, *messages: Message) -> list[str]:
    mark = parse_message("keyed", 0, None, json.dumps({"resolved": str(Timestamp(900))}).encode())
    return judge_feed(ledger, [*messages, mark], ["keyed"], diff=False)


@pytest.fixture
def ledger() -> Ledger:
    """A row that a scan found, and was changed at 200 (known to be done at 230)."""
    made = Ledger([KEYED])
    made.note({"keyed": by_key(KEYED, [{"id": 1, "v": 1}])}, span=(100, 100))
    made.scanned()
    made.note({"keyed": by_key(KEYED, [{"id": 1, "v": 2}])}, span=(200, 230))
    return made


@pytest.mark.parametrize("at", [200, 215, 230])
def test_a_change_has_the_time_of_its_commit(ledger: Ledger, at: int) -> None:
    assert judged(ledger, changed(1, 150), changed(2, at)) == []


@pytest.mark.parametrize("at", [199, 231])
def test_a_change_at_another_time_is_found(ledger: Ledger, at: int) -> None:
    [failure] = judged(ledger, changed(1, 150), changed(2, at))
    assert "is of commit 2, which was not then" in failure


def test_a_commit_of_which_nobody_knows_when_it_was_may_be_of_any_time() -> None:
    made = Ledger([KEYED])
    made.note({"keyed": by_key(KEYED, [{"id": 1, "v": 1}])})
    assert judged(made, changed(1, 5)) == []


def test_what_ddl_changed_comes_with_its_own_time(ledger: Ledger) -> None:
    ledger.note({"keyed": by_key(KEYED, [{"id": 1, "v": 3}])}, Cause.DDL, span=(300, 300))
    assert judged(ledger, changed(1, 150), changed(2, 200), changed(3, 400)) == []

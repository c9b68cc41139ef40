"""Each validator lets a right feed pass and catches the violation it is there for."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from changefeed.core.clock import Timestamp
from changefeed_testing.sinks.feed import at
from changefeed_testing.sinks.history import RowHistory
from changefeed_testing.sinks.messages import Message, Row, parse_message
from changefeed_testing.sinks.validators import (
    BeforeAfterValidator,
    FingerprintValidator,
    OrderValidator,
    ResolvedValidator,
    Validator,
    validate,
)


def row(key: int, text: str | None, step: int, partition: int = 0, **more: object) -> Message:
    after = None if text is None else {"a": key, "b": text}
    return Message("t", partition, f"[{key}]", at(step), after, **more)  # type: ignore[arg-type]


def mark(step: int, partition: int = 0, topic: str = "t") -> Message:
    return Message(topic, partition, resolved=at(step))


def history(*versions: tuple[int, str | None, int], since: int = 0) -> RowHistory:
    found = RowHistory(at(since))
    for key, text, step in versions:
        found.put("t", f"[{key}]", at(step), None if text is None else {"a": key, "b": text})
    return found


def fails(messages: Sequence[Message], validator: Validator, text: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(text)):
        validate(messages, validator)


# ---------------------------------------------------------------------------------- order


def test_order_lets_repeats_pass() -> None:
    once = [row(1, "x", 1), row(2, "x", 1), row(1, "y", 2)]
    validate([*once, *once, row(1, "z", 3)], OrderValidator())


def test_order_catches_an_older_version_after_a_newer_one() -> None:
    fails([row(1, "y", 2), row(1, "x", 1)], OrderValidator(), "came first after")


def test_order_catches_a_gap_filled_by_a_repeat() -> None:
    """What a producer does that loses one message, goes on, and sends all again."""
    sent = [row(1, "x", 1), row(1, "z", 3)]
    fails([*sent, row(1, "x", 1), row(1, "y", 2)], OrderValidator(), "came first after")


def test_order_catches_a_key_that_moves() -> None:
    fails([row(1, "x", 1), row(1, "y", 2, 1)], OrderValidator(), "moved from partition 0 to 1")


# ------------------------------------------------------------------------------- resolved


def test_resolved_lets_repeats_and_later_rows_pass() -> None:
    feed = [row(1, "x", 1), mark(1), row(1, "x", 1), mark(1), row(1, "y", 2), mark(2)]
    validate(feed, ResolvedValidator({"t": 1}))


@pytest.mark.parametrize("step", [1, 2])
def test_resolved_catches_an_unseen_row_at_or_below_the_mark(step: int) -> None:
    fails([mark(2), row(1, "x", step)], ResolvedValidator(), "came first after resolved")


def test_resolved_counts_each_partition_by_itself() -> None:
    validate([mark(2, 0), row(1, "x", 1, 1), mark(2, 1)], ResolvedValidator({"t": 2}))


def test_resolved_catches_a_mark_that_goes_back() -> None:
    fails([mark(2), mark(1)], ResolvedValidator(), f"resolved {at(1)} after {at(2)}")


def test_resolved_catches_a_partition_without_marks() -> None:
    fails([mark(2, 0)], ResolvedValidator({"t": 2}), "t[1]: last resolved is none")


def test_resolved_catches_a_topic_left_behind() -> None:
    feed = [mark(1), mark(1, topic="u"), mark(2)]
    fails(feed, ResolvedValidator({"t": 1, "u": 1}), "u[0]: last resolved is")


# --------------------------------------------------------------------------- before, after


def test_before_after_lets_the_truth_pass() -> None:
    truth = history((1, "x", 1), (1, "y", 2), (1, None, 3))
    feed = [
        row(1, "x", 1, before=None, has_before=True),
        row(1, "y", 2, before={"a": 1, "b": "x"}, has_before=True),
        row(1, None, 3, before={"a": 1, "b": "y"}, has_before=True),
    ]
    validate(feed, BeforeAfterValidator(truth, diff=True))


def test_before_after_catches_a_wrong_image() -> None:
    fails([row(1, "z", 1)], BeforeAfterValidator(history((1, "x", 1))), "the row was")


def test_before_after_catches_a_wrong_before() -> None:
    truth = history((1, "x", 1), (1, "y", 2))
    feed = [row(1, "y", 2, before={"a": 1, "b": "w"}, has_before=True)]
    fails(feed, BeforeAfterValidator(truth, diff=True), "before is")


def test_before_after_catches_a_missing_before() -> None:
    truth = history((1, "x", 1), (1, "y", 2))
    fails([row(1, "y", 2)], BeforeAfterValidator(truth, diff=True), "before is None")


def test_before_after_catches_a_before_nobody_asked_for() -> None:
    feed = [row(1, "x", 1, has_before=True)]
    fails(feed, BeforeAfterValidator(history((1, "x", 1))), "nobody asked for")


def test_before_after_lets_scanned_rows_have_no_before() -> None:
    validate([row(1, "x", 5)], BeforeAfterValidator(history((1, "x", 1), since=5), diff=True))


# ---------------------------------------------------------------------------- fingerprint


def check(truth: RowHistory, partitions: int = 1) -> FingerprintValidator:
    return FingerprintValidator(truth.table, {"t": partitions}, truth)


def test_fingerprint_rebuilds_the_table() -> None:
    truth = history((1, "x", 1), (2, "x", 1), (1, "y", 2), (2, None, 3))
    feed = [row(1, "x", 1), row(2, "x", 1), mark(1), row(1, "y", 2), row(2, None, 3), mark(3)]
    validator = check(truth)
    validate(feed, validator)
    assert validator.checked == 2
    assert validator.tables["t"] == {"[1]": {"a": 1, "b": "y"}}


def test_fingerprint_waits_for_every_partition() -> None:
    truth = history((1, "x", 1), (2, "x", 1))
    feed = [row(1, "x", 1, 0), mark(1, 0), row(2, "x", 1, 1), mark(1, 1)]
    validate(feed, check(truth, 2))


def test_fingerprint_applies_rows_by_time_not_by_arrival() -> None:
    truth = history((1, "x", 1), (1, "y", 2))
    validate([row(1, "y", 2), row(1, "x", 1), mark(2)], check(truth))


def test_fingerprint_ignores_repeats_of_old_versions() -> None:
    truth = history((1, "x", 1), (1, "y", 2))
    feed = [row(1, "x", 1), row(1, "y", 2), mark(2), row(1, "x", 1), row(1, "y", 2), mark(3)]
    validate(feed, check(truth))


def test_fingerprint_catches_a_lost_row() -> None:
    truth = history((1, "x", 1), (2, "x", 1))
    fails([row(1, "x", 1), mark(1)], check(truth), "[2]: version")


def test_fingerprint_catches_a_lost_delete() -> None:
    truth = history((1, "x", 1), (1, None, 2))
    validator = FingerprintValidator(truth.table)
    fails([row(1, "x", 1), mark(2)], validator, "the source None")


def test_fingerprint_catches_a_lost_middle_version() -> None:
    truth = history((1, "x", 1), (1, "y", 2), (1, "z", 3))
    fails([row(1, "x", 1), row(1, "z", 3), mark(3)], check(truth), f"version {at(2)} was never")


def test_fingerprint_catches_a_wrong_value() -> None:
    fails([row(1, "z", 1), mark(1)], check(history((1, "x", 1))), "the feed says")


def test_fingerprint_catches_a_feed_without_marks() -> None:
    fails([row(1, "x", 1)], check(history((1, "x", 1))), "no resolved timestamp")


def test_fingerprint_applies_truncations() -> None:
    truth = history((1, "x", 1))
    truth.truncate("t", at(2))
    truth.put("t", "[2]", at(3), {"a": 2, "b": "y"})
    empty = Message("t", 0, truncated=at(2))
    validate([row(1, "x", 1), empty, row(2, "y", 3), mark(3)], check(truth))
    fails([row(1, "x", 1), row(2, "y", 3), mark(3)], check(truth), "[1] at resolved")


def test_all_failures_are_shown_at_once() -> None:
    with pytest.raises(AssertionError) as caught:
        validate([mark(2), row(1, "x", 2), row(1, "w", 1)], OrderValidator(), ResolvedValidator())
    assert str(caught.value).count("\n") == 3


# ------------------------------------------------------------------------------- messages


STAMP = "1585800001000000000.0000000002"
MOMENT = Timestamp(1585800001000000000, 2)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        (
            b"[1]",
            b'{"after": {"a": 1, "n": 1.50}, "updated": "%s"}' % STAMP.encode(),
            ("[1]", MOMENT, {"a": 1}, False),
        ),
        (b"[1]", b'{"after": null, "before": {"a": 1}}', ("[1]", None, None, True)),
        (None, b'{"after": {"a": 1}, "key": [1]}', ("[1]", None, {"a": 1}, False)),
        (
            b"[1]",
            b'{"__crdb__": {"updated": "%s"}, "a": 1}' % STAMP.encode(),
            ("[1]", MOMENT, {"a": 1}, False),
        ),
        (None, b'{"__crdb__": {"key": [1, "x"]}, "a": 1}', ('[1, "x"]', None, {"a": 1}, False)),
        (b"[1]", None, ("[1]", None, None, False)),
    ],
    ids=["wrapped", "delete-diff", "key-in-value", "row", "bare-key", "tombstone"],
)
def test_messages_of_every_envelope(
    key: bytes | None,
    value: bytes | None,
    expected: tuple[str, Timestamp | None, Row | None, bool],
) -> None:
    message = parse_message("t", 3, key, value)
    image = message.after and {k: v for k, v in message.after.items() if k == "a"}
    assert (message.key, message.at, image, message.has_before) == expected
    assert message.is_row


def test_numbers_keep_their_digits() -> None:
    message = parse_message("t", 0, b"[1]", b'{"after": {"n": 1.50}}')
    assert message.after is not None
    assert str(message.after["n"]) == "1.50"


@pytest.mark.parametrize("place", ['{"%s": "%s"}', '{"__crdb__": {"%s": "%s"}}'])
def test_marks_of_both_envelopes(place: str) -> None:
    resolved = parse_message("t", 0, None, (place % ("resolved", STAMP)).encode())
    truncated = parse_message("t", 0, None, (place % ("truncate", STAMP)).encode())
    assert resolved.resolved == MOMENT
    assert truncated.truncated == MOMENT
    assert not resolved.is_row
    assert not truncated.is_row


def test_a_column_called_resolved_is_a_row() -> None:
    message = parse_message("t", 0, b"[1]", b'{"resolved": "yes", "a": 1}')
    assert message.is_row

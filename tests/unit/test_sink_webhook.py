"""Webhooks without a server: the URI, and how messages are cut into requests."""

from __future__ import annotations

import base64
import json

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from changefeed.core.arrow import MESSAGE_SCHEMA
from changefeed.core.errors import ChangefeedError, Problems
from changefeed.core.schema import TableName
from changefeed.options.sink_config import webhook_sink_config
from sinks.base import Target
from sinks.registry import capabilities, check, open_sink
from sinks.webhook.body import FRAME, BodyPiece, Queue, body, by_queue, count, halves, queues_of
from sinks.webhook.client import _retry_after
from sinks.webhook.options import WebhookSettings

TARGET = Target(TableName("shop", "public", "t"), "t")
PEM = base64.b64encode(b"pem").decode()


def test_the_address_is_the_endpoints_own() -> None:
    settings = WebhookSettings.read(
        "webhook-https://al:p%40w@example.com:8443/a%2Fb?code=x%26y&parallel=2&flag", {}
    )
    assert settings.url == "https://example.com:8443/a%2Fb?code=x%26y&flag="
    assert settings.login == ("al", "p@w")
    assert (settings.parallel, settings.place) == (2, "example.com:8443")
    assert "p@w" not in repr(settings) and "x%26y" not in repr(settings)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("webhook-https:///path", "a webhook needs one host"),
        ("webhook-https://a,b/", "a webhook needs one host"),
        ("webhook-https://h/?ca_cert=%%%", "param ca_cert must be base 64 encoded"),
        ("webhook-https://h/?insecure_tls_skip_verify=2", "must be a bool"),
        (f"webhook-https://h/?client_cert={PEM}", "client_cert requires client_key to be set"),
        (f"webhook-http://h/?ca_cert={PEM}", "ca_cert requires webhook-https"),
        ("webhook-https://h/?parallel=0", "param parallel must be between 1 and 64"),
        ("webhook-https://h/?insecure_tls_skip_verfy=true", "insecure_tls_skip_verfy"),
    ],
)
def test_what_a_uri_may_not_be(uri: str, message: str) -> None:
    with pytest.raises(ChangefeedError, match=message):
        WebhookSettings.read(uri)


def test_every_problem_at_once() -> None:
    problems = check(
        "webhook-https://u@h/?parallel=x&ca_cert=!", {"webhook_auth_header": "Bearer hunter2"}
    )
    assert [p.code.number for p in problems] == ["CF1207", "CF1207", "CF1205"]
    assert "hunter2" not in "".join(f"{p.message}{p.hint}{p.detail}" for p in problems)
    with pytest.raises(Problems):
        open_sink("webhook-https://h/?parallel=x&ca_cert=!")


def test_no_usable_certificate() -> None:
    from changefeed_testing.sinks.feed import FeedDouble

    sink = open_sink(f"webhook-https://h/?ca_cert={PEM}")
    with pytest.raises(ChangefeedError, match="no usable PEM"):
        FeedDouble({"t": "t"}).open(sink)


def test_sink_config() -> None:
    config = webhook_sink_config(
        {"Flush": {"Messages": 10, "Frequency": "5s"}, "Retry": {"Max": "inf", "Backoff": "1s"}}
    )
    settings = WebhookSettings.read("webhook-https://h/", {"webhook_sink_config": config})
    assert (settings.messages, settings.bytes, settings.frequency) == (10, 1_000_000, 5.0)
    assert (settings.retry.max, settings.retry.backoff) == (None, 1.0)
    for wrong in ({"Flush": {"Messages": 1}}, {"Flush": {"MaxMessages": 5}}, {"ClientID": "x"}):
        with pytest.raises(ValueError):
            webhook_sink_config(wrong)


def test_values_hold_key_and_topic() -> None:
    able = capabilities("webhook-https")
    assert able.key_in_value and able.topic_in_value and "row" not in able.envelopes


# ------------------------------------------------------------------------------- requests


def piece(values: list[bytes]) -> BodyPiece:
    numbers = np.arange(len(values), dtype=np.int64)
    return BodyPiece(TARGET, pa.array(values, pa.binary()), numbers, numbers.astype(np.int32))


MESSAGES = st.lists(st.integers(0, 60).map(lambda n: b'"' + b"m" * n + b'"'), max_size=30)


@given(st.lists(MESSAGES, max_size=5), st.integers(1, 12), st.integers(FRAME, FRAME + 200))
def test_requests_hold_all_messages_in_order(
    pieces: list[list[bytes]], most: int, size: int
) -> None:
    queue = Queue(most, size)
    for values in pieces:
        queue.put(piece(values))
    sent: list[str] = []
    while queue.messages:
        parcel = queue.take()
        content = body(parcel)
        value = json.loads(content)
        assert 1 <= value["length"] == len(value["payload"]) == count(parcel) <= most
        assert len(content) <= size or count(parcel) == 1
        sent += value["payload"]
        if count(parcel) > 1:
            first, second = halves(parcel)
            both = json.loads(body(first))["payload"] + json.loads(body(second))["payload"]
            assert both == value["payload"]
    assert sent == [json.loads(v) for values in pieces for v in values]
    assert (queue.messages, queue.bytes, queue.take()) == (0, 0, [])


class LargePiece(BodyPiece):
    """A piece that must not be measured as a whole."""

    def sizes(self) -> npt.NDArray[np.int64]:
        raise AssertionError("all messages were measured for one request")

    @property
    def bytes(self) -> int:
        return BodyPiece(self.target, self.values, self.walls, self.logicals).bytes


def test_a_request_costs_the_same_whatever_waits_behind_it() -> None:
    queue = Queue(10, 1_000_000)
    whole = piece([b"m"] * 30)
    queue.put(LargePiece(whole.target, whole.values, whole.walls, whole.logicals))
    assert count(queue.take()) == 10
    assert (queue.messages, queue.bytes) == (20, 60)


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=40), st.integers(1, 8))
def test_a_key_has_one_queue(keys: list[bytes], queues: int) -> None:
    found = queues_of(pa.array(keys, pa.binary()), queues)
    assert all(0 <= queue < queues for queue in found)
    alone = [int(queues_of(pa.array([b"?", key]).slice(1), queues)[0]) for key in keys]
    assert found.tolist() == alone


def test_keys_spread() -> None:
    keys = pa.array([f"[{n}]".encode() for n in range(4000)])
    shares = np.bincount(queues_of(keys, 4), minlength=4)
    assert shares.min() > 800


def test_rows_without_a_value_or_a_key() -> None:
    rows = pa.Table.from_pylist(
        [
            {"key": key, "value": value, "wall": n, "logical": 0}
            for n, (key, value) in enumerate([(b"[1]", b"1"), (b"[1]", None), (None, b"3")])
        ],
        schema=MESSAGE_SCHEMA,
    )
    queues = list(by_queue(TARGET, rows, 4))
    assert sorted(v for _, p in queues for v in p.values.to_pylist()) == [b"1", b"3"]
    assert sorted(w for _, p in queues for w in p.walls.tolist()) == [0, 2]


@pytest.mark.parametrize("text", ["\u00b2", "\u0661", "1e400", "-1", "nan", "9" * 400, "soon"])
def test_a_retry_after_that_is_no_number_means_nothing(text: str) -> None:
    assert _retry_after(text, 0.0) == 0.0


def test_a_retry_after_in_seconds() -> None:
    assert _retry_after(" 7 ", 0.0) == 7.0
    assert _retry_after("Thu, 01 Jan 1970 00:01:40 GMT", 90.0) == 10.0
    assert _retry_after("Thu, 01 Jan 1970 00:01:40 GMT", 900.0) == 0.0

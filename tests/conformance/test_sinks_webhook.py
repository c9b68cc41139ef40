"""Webhooks against a real server: the list every sink passes, and what only HTTP can get wrong."""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from urllib.parse import quote

import pytest

from changefeed.core.errors import Action, ChangefeedError
from changefeed.options.sink_config import webhook_sink_config
from changefeed_testing.sinks.conformance import CASES, Case, run_case
from changefeed_testing.sinks.feed import FeedDouble, at, put
from changefeed_testing.sinks.messages import Message
from sinks.base import Sink
from sinks.registry import open_sink
from tests.services.certificates import write_certificates
from tests.services.webhook import WebhookServer

SECRET = "hunter2hunter2"
FAST = {"Retry": {"Max": 3, "Backoff": "10ms"}}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def server() -> Iterator[WebhookServer]:
    running = WebhookServer()
    yield running
    running.stop()


def encoded(path: Path) -> str:
    return quote(base64.b64encode(path.read_bytes()).decode(), safe="")


class WebhookHarness:
    never: Mapping[str, str] = {
        "refuses_oversize": "a server does not say its limit; tested below without the number",
    }
    secret = SECRET
    max_message_bytes = 0
    refused_text = "REFUSED BY ITS CONTENT"

    def __init__(self, server: WebhookServer, uri: str, options: Mapping[str, object]) -> None:
        self._server, self._uri = server, uri
        self._options = {
            "webhook_sink_config": webhook_sink_config(FAST),
            "webhook_signing_secret": SECRET,
            **options,
        }
        self._used: dict[str, None] = {}

    def sink(self) -> Sink:
        return open_sink(self._uri, self._options)

    def topic(self, table: str) -> str:
        self._used[table] = None
        return table

    def partitions(self) -> Mapping[str, int]:
        return dict.fromkeys(self._used, 1)

    def read(self) -> Sequence[Message]:
        return self._server.messages(list(self._used))

    def raw(self) -> bytes:
        return b"".join(request.body for request in self._server.requests)

    def down(self) -> AbstractContextManager[None]:
        return self._server.down()


@pytest.mark.parametrize("kind", ["plain", "one-lane", "tls-gzip"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_conformance(case: Case, kind: str, certificates: Path) -> None:
    tls = kind == "tls-gzip"
    refused = WebhookHarness.refused_text.encode()
    server = WebhookServer(
        certificates if tls else None,
        authorization=f"Bearer {SECRET}",
        judge=lambda body: 422 if refused in body else 200,
    )
    uri, options = server.uri, dict[str, object](webhook_auth_header=f"Bearer {SECRET}")
    if tls:
        uri += f"?ca_cert={encoded(certificates / 'ca.pem')}"
        options["compression"] = "gzip"
    if kind == "one-lane":
        uri += "?parallel=1"
        config = {"Flush": {"Messages": 7, "Frequency": "1ms"}, **FAST}
        options["webhook_sink_config"] = webhook_sink_config(config)
    harness = WebhookHarness(server, uri, options)
    # The kit's messages have no topic: the feed's encoder puts it in.
    try:
        reason = run_case(case, harness)
    finally:
        server.stop()
    if reason:
        pytest.skip(f"never: {reason}")


# ------------------------------------------------------------------------------- requests


def opened(uri: str, **options: object) -> tuple[Sink, FeedDouble]:
    given = {"webhook_sink_config": webhook_sink_config(FAST), **options}
    sink = open_sink(uri, given)
    feed = FeedDouble({"t": "t", "u": "u"}, key_in_value=True, topic_in_value=True)
    feed.open(sink)
    return sink, feed


def failure(act: Callable[[], object]) -> ChangefeedError:
    with pytest.raises(ChangefeedError) as caught:
        act()
    return caught.value


def keys(server: WebhookServer) -> list[str | None]:
    return [m.key for m in server.messages([]) if m.is_row]


def test_shape_of_a_batch_and_of_a_mark(server: WebhookServer) -> None:
    sink, feed = opened(f"{server.uri}?parallel=1&code=a%2Bb")
    feed.deliver(sink, [put(1, "x", 1), put(2, "y", 2), put(1, "u", 2, "u")])
    mark = feed.resolve(sink)
    feed.truncate(sink, "u", mark)
    sink.close()
    batch, resolved, truncated = server.taken
    assert batch.path == "/hook?code=a%2Bb"
    assert batch.headers["content-type"] == "application/json"
    assert batch.body.startswith(b'{"payload": [{"after": {"a": 1, "b": "x"}, "key": [1], ')
    assert batch.body.endswith(b'], "length": 3}')
    assert [m["topic"] for m in batch.value["payload"]] == ["t", "t", "u"]
    assert resolved.value == {"resolved": str(mark)}
    assert truncated.value == {"topic": "u", "truncate": str(mark)}


def test_requests_are_cut_by_count_and_by_size(server: WebhookServer) -> None:
    config = {"Flush": {"Messages": 3, "Bytes": 1000, "Frequency": "1ms"}, **FAST}
    uri = f"{server.uri}?parallel=1"
    sink, feed = opened(uri, webhook_sink_config=webhook_sink_config(config))
    assert sink.pacing().seconds == 0.001
    long = "x" * 400
    feed.deliver(sink, [put(n, "short", n) for n in range(1, 6)])
    feed.deliver(sink, [put(n, long, n) for n in range(6, 10)] + [put(10, long * 5, 10)])
    sink.close()
    assert [request.value["length"] for request in server.taken] == [3, 2, 1, 1, 1, 1, 1]
    # All but the one that does not fit alone are below the limit.
    assert sorted(len(request.body) > 1000 for request in server.taken)[-2:] == [False, True]
    assert keys(server) == [f"[{n}]" for n in range(1, 11)]


def test_signature(server: WebhookServer) -> None:
    sink, feed = opened(server.uri, webhook_signing_secret=SECRET, compression="zstd")
    feed.deliver(sink, [put(1, "x", 1)])
    sink.close()
    (request,) = server.taken
    assert request.headers["content-encoding"] == "zstd"
    parts = dict(p.split("=", 1) for p in request.headers["x-changefeed-signature"].split(","))
    signed = f"{parts['t']}.".encode() + request.body
    assert parts["v1"] == hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert abs(int(parts["t"]) - time.time()) < 60


def test_login_and_headers(server: WebhookServer) -> None:
    token = base64.b64encode(b"al:p w").decode()
    server.authorization = f"Basic {token}"
    sink, feed = opened(
        server.uri.replace("://", "://al:p%20w@"), extra_headers=(("X-Origin", "shop"),)
    )
    feed.deliver(sink, [put(1, "x", 1)])
    sink.close()
    assert server.taken[0].headers["x-origin"] == "shop"
    assert server.taken[0].headers["user-agent"] == "changefeed/conformance"


# ------------------------------------------------------------------------------- attempts


def test_a_failed_request_is_tried_again_with_the_same_key(server: WebhookServer) -> None:
    server.answers += [(500, {}), (503, {"Retry-After": "0"})]
    sink, feed = opened(server.uri)
    feed.deliver(sink, [put(1, "x", 1)])
    assert [request.status for request in server.requests] == [500, 503, 200]
    assert len({request.headers["idempotency-key"] for request in server.requests}) == 1
    # The same text of the row at another time is another change.
    feed.deliver(sink, [put(1, "x", 2)])
    sink.close()
    again, other = opened(server.uri)
    other.deliver(again, [put(1, "x", 1)])
    again.close()
    first, second, replayed = [request.headers["idempotency-key"] for request in server.taken]
    assert first == replayed != second


def test_a_cut_connection_is_tried_again(server: WebhookServer) -> None:
    def cut() -> None:
        raise ConnectionAbortedError

    server.answers.append(cut)
    sink, feed = opened(server.uri)
    feed.deliver(sink, [put(1, "x", 1)])
    sink.close()
    assert keys(server) == ["[1]"]


@pytest.mark.parametrize("date", [False, True], ids=["seconds", "date"])
def test_retry_after_is_obeyed(server: WebhookServer, date: bool) -> None:
    # A date has whole seconds: two from now is at least one.
    wait = email.utils.formatdate(time.time() + 2, usegmt=True) if date else "1"
    server.answers.append((429, {"Retry-After": wait}))
    sink, feed = opened(server.uri)
    began = time.monotonic()
    feed.deliver(sink, [put(1, "x", 1)])
    assert time.monotonic() - began >= 0.9
    sink.close()


def test_a_server_that_wants_a_long_pause_gets_it_from_the_feed(server: WebhookServer) -> None:
    server.answers.append((429, {"Retry-After": "3600"}))
    sink, feed = opened(server.uri)
    error = failure(lambda: feed.deliver(sink, [put(1, "x", 1)]))
    assert (error.code.number, error.action) == ("CF5004", Action.RETRY)
    assert len(server.requests) == 1
    sink.close()


@pytest.mark.parametrize(
    ("status", "code", "requests"),
    [(500, "CF5001", 3), (429, "CF5004", 3), (401, "CF5002", 1), (404, "CF5002", 1)],
)
def test_answers(server: WebhookServer, status: int, code: str, requests: int) -> None:
    server.judge = lambda body: status
    sink, feed = opened(server.uri)
    error = failure(lambda: feed.deliver(sink, [put(1, "secret-value", 1)]))
    assert error.code.number == code
    assert str(status) in error.message
    assert "secret-value" not in f"{error.message} {error.detail} {error.hint}"
    assert "/hook" not in error.message, "a path may be a token"
    assert len(server.requests) == requests
    sink.abort(feed.epoch(at(1)), ())
    server.judge = lambda body: 200
    feed.deliver(sink, [put(1, "x", 1)])
    sink.close()


def test_redirects_are_not_followed(server: WebhookServer) -> None:
    server.answers.append((307, {"Location": server.uri.replace("webhook-", "")}))
    sink, feed = opened(server.uri)
    assert failure(lambda: feed.deliver(sink, [put(1, "x", 1)])).code.number == "CF5002"
    sink.close()


def test_a_slow_server_is_a_reason_to_try_again(server: WebhookServer) -> None:
    release = threading.Event()

    def sleep(body: bytes) -> int:
        release.wait(30)
        return 200

    server.judge = sleep
    config = webhook_sink_config({"Retry": {"Max": 1}})
    sink, feed = opened(server.uri, webhook_client_timeout=0.3, webhook_sink_config=config)
    error = failure(lambda: feed.deliver(sink, [put(1, "x", 1)]))
    release.set()
    assert error.code.number == "CF5001"
    assert "in time" in error.message and "webhook_client_timeout" in error.hint
    sink.close()


# ------------------------------------------------------------------------------- poison


def test_a_refused_message_is_found_and_its_table_named(server: WebhookServer) -> None:
    server.judge = lambda body: 422 if b"poison" in body else 200
    sink, feed = opened(f"{server.uri}?parallel=1")
    writes = [put(n, "good", n) for n in range(1, 8)] + [put(8, "poison", 8, "u")]
    writes += [put(n, "later", n) for n in range(9, 12)]
    error = failure(lambda: feed.deliver(sink, writes))
    assert error.code.number == "CF5003"
    assert "shop.public.u" in error.message and "poison" not in str(error)
    # Tables come one after another: all of t was before the message of u.
    assert keys(server) == [f"[{n}]" for n in (*range(1, 8), *range(9, 12))]
    sink.close()


def test_a_message_that_is_too_large_alone(server: WebhookServer) -> None:
    server.max_body = 2_000
    sink, feed = opened(f"{server.uri}?parallel=1")
    writes = [put(n, "x" * 300, n) for n in range(1, 12)]
    feed.deliver(sink, writes)  # halved until it fits
    assert keys(server) == [f"[{n}]" for n in range(1, 12)]
    error = failure(lambda: feed.deliver(sink, [put(20, "y" * 3_000, 20), put(20, "z", 21)]))
    assert error.code.number == "CF5006"
    assert "shop.public.t" in error.message and "yyy" not in error.message
    assert "[20]" not in keys(server), "the later version of the row must not overtake"
    sink.close()


# ------------------------------------------------------------------------------- lanes


def test_keys_are_sent_at_once_but_one_key_never(server: WebhookServer) -> None:
    """Every request waits for another one: with one in flight at a time it would never end."""
    config = {"Flush": {"Messages": 1, "Frequency": "1ms"}, **FAST}
    sink, feed = opened(
        f"{server.uri}?parallel=2",
        webhook_sink_config=webhook_sink_config(config),
        webhook_client_timeout=30.0,
    )
    inside: list[str] = []
    twice: list[str] = []
    met = threading.Event()

    def meet(body: bytes) -> int:
        key = str(json.loads(body)["payload"][0]["key"])
        twice.extend(other for other in inside if other == key)
        inside.append(key)
        if len(inside) > 1:
            met.set()
        met.wait(20)
        inside.remove(key)
        return 200

    server.judge = meet
    writes = [put(key, f"{step}", step * 8 + key) for step in range(3) for key in range(8)]
    feed.deliver(sink, writes)
    sink.close()
    assert met.is_set(), "never were two requests in flight"
    assert not twice
    assert len(server.taken) == 24


def test_after_a_failure_nothing_more_of_the_lane_is_sent(server: WebhookServer) -> None:
    config = {"Flush": {"Messages": 1, "Frequency": "1ms"}, "Retry": {"Max": 1}}
    sink, feed = opened(f"{server.uri}?parallel=1", webhook_sink_config=webhook_sink_config(config))
    server.judge = lambda body: 500 if b"[3]" in body else 200
    writes = [put(n, "x", n) for n in range(1, 6)]
    epoch = feed.epoch(at(5))
    receipts = feed.write(sink, epoch, writes)
    assert failure(lambda: sink.commit(epoch, receipts)).code.number == "CF5001"
    assert keys(server) == ["[1]", "[2]"]
    sink.abort(epoch, receipts)
    server.judge = lambda body: 200
    feed.deliver(sink, writes)
    assert keys(server) == ["[1]", "[2]", "[1]", "[2]", "[3]", "[4]", "[5]"]
    sink.close()


# ------------------------------------------------------------------------------- TLS


def secure(
    certificates: Path, parameters: str, wants_client: bool = False
) -> ChangefeedError | None:
    """One row to a TLS server; the error, if any."""
    server = WebhookServer(certificates, wants_client=wants_client)
    config = webhook_sink_config({"Retry": {"Max": 1}})
    try:
        sink, feed = opened(f"{server.uri}?{parameters}", webhook_sink_config=config)
        try:
            feed.deliver(sink, [put(1, "x", 1)])
        except ChangefeedError as error:
            return error
        finally:
            sink.close()
        assert keys(server) == ["[1]"]
        return None
    finally:
        server.stop()


def test_an_unknown_authority_is_refused_and_can_be_named(certificates: Path) -> None:
    error = secure(certificates, "")
    assert error is not None and error.code.number == "CF5001"
    assert "ca_cert" in error.hint
    assert secure(certificates, f"ca_cert={encoded(certificates / 'ca.pem')}") is None
    assert secure(certificates, "insecure_tls_skip_verify=true") is None


def test_a_client_certificate(certificates: Path) -> None:
    authority = f"ca_cert={encoded(certificates / 'ca.pem')}"
    pair = "&".join(f"client_{n}={encoded(certificates / f'client.{e}')}" for n, e in _PAIR)
    assert secure(certificates, authority, wants_client=True) is not None
    assert secure(certificates, f"{authority}&{pair}", wants_client=True) is None


_PAIR = (("cert", "pem"), ("key", "key"))

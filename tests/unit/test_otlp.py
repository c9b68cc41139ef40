"""Metrics and spans at a listener that reads OTLP's protobuf."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from changefeed.alerts.otlp import OtlpWatch, collector_url
from changefeed.app import require_places
from changefeed.core.errors import ChangefeedError
from changefeed.core.spans import current, span
from changefeed.monitor import Monitor, StateCollector
from tests.golden.world import NOW, World
from tests.helpers.served import Bench
from tests.services.webhook import WebhookServer

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def server() -> Iterator[WebhookServer]:
    server = WebhookServer()
    yield server
    server.stop()


def watch(world: World, server: WebhookServer, *, leads: bool = True) -> OtlpWatch:
    url = collector_url(f"http://127.0.0.1:{server.port}/")
    collect = StateCollector(world.interpreter).collect
    return OtlpWatch(url, collect, lambda: leads, "node1", world.clock)


def labels(attributes: Any) -> frozenset[tuple[str, str]]:
    return frozenset((each.key, each.value.string_value) for each in attributes)


def received(server: WebhookServer) -> Values:
    """The values of all metrics as Prometheus names them."""
    found: Values = {}
    for request in server.requests:
        assert (request.path, request.headers["content-type"]) == (
            "/v1/metrics",
            "application/x-protobuf",
        )
        sent = ExportMetricsServiceRequest.FromString(request.body)
        (resource,) = sent.resource_metrics
        said = dict(labels(resource.resource.attributes))
        assert (said["service.name"], said["service.instance.id"]) == ("changefeed", "node1")
        for metric in resource.scope_metrics[0].metrics:
            for point in (*metric.gauge.data_points, *metric.sum.data_points):
                found[metric.name, labels(point.attributes)] = point.as_double
            assert metric.sum.is_monotonic == bool(metric.sum.data_points)
            for histogram in metric.histogram.data_points:
                of_point = labels(histogram.attributes)
                bounds, sofar = [*map(str, histogram.explicit_bounds), "+Inf"], 0
                for bound, count in zip(bounds, histogram.bucket_counts, strict=True):
                    sofar += count
                    found[f"{metric.name}_bucket", of_point | {("le", bound)}] = sofar
                found[f"{metric.name}_sum", of_point] = histogram.sum
                found[f"{metric.name}_count", of_point] = histogram.count
                assert not histogram.HasField("min") and not histogram.HasField("max")
    return found


def of_prometheus(text: str) -> Values:
    families = text_string_to_metric_families(text)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def test_metrics_are_those_that_prometheus_reads(bench: Bench, server: WebhookServer) -> None:
    world = bench.world
    world.run(
        "CREATE CHANGEFEED f FOR orders, items INTO 'kafka://k:9092' WITH slo = '99% within 5m'"
    )
    world.run("CREATE CHANGEFEED g FOR orders INTO 'null://'")
    world.node.deliver("f", NOW - 90 * 10**9, rows=50)
    world.fail_table("f", "items", "CF5003 refused")
    watch(world, server).turn()
    shown = Monitor(world.interpreter, lambda: None).metrics()[1].decode()
    expected = of_prometheus(shown)
    assert (
        "changefeed_emitted_rows_total",
        frozenset({("job_id", "1"), ("feed", "f"), ("source", "shop")}),
    ) in expected
    assert received(server) == expected
    assert b"s3cret" not in server.requests[0].body


def test_a_histogram_counts_between_its_bounds(bench: Bench, server: WebhookServer) -> None:
    family = HistogramMetricFamily("late_seconds", "how late", labels=["feed"])
    family.add_metric(["f"], [("0.5", 3.0), ("5.0", 3.0), ("+Inf", 10.0)], 99.5)
    url = collector_url(f"http://127.0.0.1:{server.port}")
    OtlpWatch(url, lambda: [family], lambda: True, "node1", bench.world.clock).turn()
    point = ExportMetricsServiceRequest.FromString(server.requests[0].body)
    (metric,) = point.resource_metrics[0].scope_metrics[0].metrics
    assert list(metric.histogram.data_points[0].bucket_counts) == [3, 0, 7]
    of_f = frozenset({("feed", "f")})
    assert received(server) == {
        ("late_seconds_bucket", of_f | {("le", "0.5")}): 3,
        ("late_seconds_bucket", of_f | {("le", "5.0")}): 3,
        ("late_seconds_bucket", of_f | {("le", "+Inf")}): 10,
        ("late_seconds_sum", of_f): 99.5,
        ("late_seconds_count", of_f): 10,
    }


def test_one_node_of_a_state_sends_its_metrics(bench: Bench, server: WebhookServer) -> None:
    watch(bench.world, server, leads=False).turn()
    assert server.requests == []


def spans_of(server: WebhookServer) -> dict[str, Any]:
    sent = [
        ExportTraceServiceRequest.FromString(request.body)
        for request in server.requests
        if request.path == "/v1/traces"
    ]
    return {s.name: s for each in sent for s in each.resource_spans[0].scope_spans[0].spans}


def attributes(found: Any) -> dict[str, str | int]:
    return {each.key: each.value.string_value or each.value.int_value for each in found.attributes}


def test_spans_have_their_parents_counts_and_errors(bench: Bench, server: WebhookServer) -> None:
    with span("before", {}):
        assert current() is None
    with watch(bench.world, server):
        with span("idle", {"feed": "f"}, lazily=True):
            bench.world.clock.advance(1)
        begins = bench.world.clock.wall
        with span("delivery", {"feed": "f"}, lazily=True) as delivery:
            bench.world.clock.advance(1)
            with span("write", {"feed": "f", "table": "shop.public.orders", "rows": 3}):
                bench.world.clock.advance(2)
            outer = current()

            def read() -> None:
                with span("part", {"part": 7}, inside=outer):
                    assert current() is not outer

            reader = threading.Thread(target=read)
            reader.start()
            reader.join()
            refused = ChangefeedError("CF5003", "the row of hunter2 is refused")
            with pytest.raises(ChangefeedError), span("commit", {}):
                raise refused
            delivery.note(rows=3)
        assert current() is None
    found = spans_of(server)
    assert set(found) == {"delivery", "write", "part", "commit"}
    whole = found["delivery"]
    assert {each.parent_span_id for each in found.values()} == {b"", whole.span_id}
    assert {each.trace_id for each in found.values()} == {whole.trace_id}
    assert attributes(whole) == {"feed": "f", "rows": 3}
    assert (whole.start_time_unix_nano, whole.end_time_unix_nano) == (begins, begins + 3 * 10**9)
    assert attributes(found["write"]) == {"feed": "f", "table": "shop.public.orders", "rows": 3}
    assert attributes(found["part"]) == {"part": 7}
    assert (found["commit"].status.code, found["commit"].status.message) == (2, "CF5003")
    assert not any(b"hunter2" in request.body for request in server.requests)
    with span("after", {}):
        assert current() is None


def test_what_is_not_taken_is_said_once(
    bench: Bench, server: WebhookServer, caplog: pytest.LogCaptureFixture
) -> None:
    one = watch(bench.world, server)
    server.judge = lambda body: 400
    for _ in range(2):
        one.turn()
    server.judge = lambda body: 200
    one.turn()
    server.judge = lambda body: 400
    one.turn()
    logged = [record.getMessage() for record in caplog.records]
    said = [message for message in logged if "otlp" in message]
    assert said == [f"otlp: 127.0.0.1:{server.port} does not take metrics"] * 2


@pytest.mark.parametrize(
    "uri", ["collector:4318", "grpc://k:4317", "http://u:p@k:4318", "http://k?x=1", "http://a,b"]
)
def test_a_url_that_is_none_is_refused(uri: str) -> None:
    with pytest.raises(ChangefeedError) as caught:
        collector_url(uri)
    assert caught.value.code.number == "CF1201"


@pytest.mark.parametrize(
    ("flag", "given"),
    [
        ("--otlp", ([], None, "collector:4318")),
        ("--otlp", ([], None, "plain")),
        ("--openlineage", ([], "marquez", None)),
        ("--openlineage", ([], "ftp://k", None)),
        ("--alert", (["webhook-https://k/x", "k"], None, None)),
    ],
)
def test_an_address_that_is_wrong_names_its_flag(
    flag: str, given: tuple[list[str], str | None, str | None]
) -> None:
    with pytest.raises(ChangefeedError) as caught:
        require_places(*given)
    assert flag in caught.value.message and "sink URL" not in caught.value.message
    assert "file:///" not in caught.value.hint


def test_the_error_without_the_packages_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ChangefeedError, match=r"--otlp needs changefeed\[otlp\]") as caught:
        collector_url("http://collector:4318")
    assert caught.value.hint == "pip install 'changefeed[otlp]'"

"""Metrics and traces for a collector of OpenTelemetry, by OTLP over HTTP.

The metrics are those of ``/metrics``, with the same names and values: they are read when they are
sent, and counted nowhere else. The SDK has no histogram that is observed, so its data points are
made here from Prometheus's families. The spans are those of :mod:`changefeed.core.spans`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Self

from prometheus_client.core import Metric
from prometheus_client.samples import Sample

from changefeed.alerts.watch import EVERY, SendingWatch
from changefeed.core.clock import Clock
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.extras import lacking
from changefeed.core.references import resolved_uri
from changefeed.core.spans import Attributes, RecordedSpan, recording
from changefeed.core.telemetry import log
from changefeed.core.uri import split_uri
from changefeed.core.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.trace import Span, Tracer

_HINT: Final = (
    "write http://host:4318. OTEL_EXPORTER_OTLP_HEADERS has headers for a login, and "
    "OTEL_EXPORTER_OTLP_CERTIFICATE a CA."
)
_PACKAGES: Final = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
_SCOPE: Final = "changefeed"
#: How long the end of the node waits for the last spans, ms.
_LAST_MS: Final = 5000


def collector_url(uri: str) -> str:
    """The URL of a collector without a slash at its end; connects to nothing.

    Raises:
        ChangefeedError: CF1201 the URI; CF1208 a secret that it refers to; CF5005 the packages of
            OpenTelemetry are not installed.
    """
    parts = split_uri(resolved_uri(uri), "the address of --otlp", _HINT)
    sound = parts.scheme in ("http", "https") and len(parts.hosts) == 1 and parts.host
    if not sound or parts.user is not None or "?" in parts.text:
        raise ChangefeedError(
            Code.INVALID_URI,
            "--otlp takes http://host:port or https://host:port, without a login",
            hint=_HINT,
        )
    missing = lacking("--otlp", _PACKAGES, "otlp")
    if missing is not None:
        raise missing
    return parts.text.rstrip("/")


class OtlpWatch(SendingWatch):
    """Sends metrics every few seconds, and spans as they end."""

    def __init__(
        self,
        url: str,
        metrics: Callable[[], Iterable[Metric]],
        leads: Callable[[], bool],
        node: str,
        clock: Clock,
        every: float = EVERY,
    ) -> None:
        """
        Args:
            url: of :func:`collector_url`.
            metrics: those of the state now.
            leads: whether this node is the one that sends metrics, of all nodes of the state; each
                sends its own spans.
            node: its id.
        """
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics.export import MetricExportResult
        from opentelemetry.sdk.resources import Resource

        super().__init__("otlp", clock, every)
        self._metrics, self._leads, self._place = metrics, leads, str(split_uri(url).hosts[0])
        self._resource = Resource.create(
            {
                "service.name": _SCOPE,
                "service.version": __version__,
                "service.instance.id": node,
            }
        )
        # What the exporters log repeats with each try, and has the answer of the server.
        logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
        logging.getLogger("opentelemetry").propagate = False
        self._exporter = OTLPMetricExporter(f"{url}/v1/metrics")
        self._taken = MetricExportResult.SUCCESS
        self._spans = SpanExport(f"{url}/v1/traces", self._resource, clock, self._note)
        self._troubles: set[str] = set()
        self._entered = ExitStack()

    def __enter__(self) -> Self:
        self._entered.enter_context(recording(self._spans))
        return super().__enter__()

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        self._entered.close()
        self._spans.close()
        self._exporter.shutdown()

    def turn(self) -> None:
        if not self._leads():
            return
        data = metrics_data(self._metrics(), self._resource, self._clock.now().wall)
        self._note("metrics", taken=self._exporter.export(data) is self._taken)

    def _note(self, what: str, *, taken: bool) -> None:
        """Warn once until it is taken again."""
        if taken:
            self._troubles.discard(what)
        elif what not in self._troubles:
            self._troubles.add(what)
            log.warning("otlp: %s does not take %s", self._place, what)


# ------------------------------------------------------------------------------- metrics


def metrics_data(families: Iterable[Metric], resource: Resource, now: int) -> MetricsData:
    """Prometheus's families as the SDK's data, with the names that ``/metrics`` has."""
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    found = [_metric(family, now) for family in families if family.samples]
    scope = ScopeMetrics(InstrumentationScope(_SCOPE, __version__), found, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _metric(family: Metric, now: int) -> Any:
    from opentelemetry.sdk.metrics import export

    total = export.AggregationTemporality.CUMULATIVE
    data: export.Gauge | export.Sum | export.Histogram
    name = family.name
    if family.type == "histogram":
        series: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
        for sample in family.samples:
            labels = tuple((k, v) for k, v in sample.labels.items() if k != "le")
            series.setdefault(labels, []).append(sample)
        points = [_histogram(dict(labels), samples, now) for labels, samples in series.items()]
        data = export.Histogram(points, total)
    else:
        numbers = [
            export.NumberDataPoint(dict(sample.labels), 0, now, sample.value)
            for sample in family.samples
        ]
        counts = family.type == "counter"
        data = export.Sum(numbers, total, True) if counts else export.Gauge(numbers)
        name = family.samples[0].name
    return export.Metric(name, family.documentation, "", data)


def _histogram(labels: dict[str, str], samples: Sequence[Sample], now: int) -> Any:
    """Prometheus counts what is below each bound, OTLP what is between two."""
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    below = [(float(s.labels["le"]), int(s.value)) for s in samples if "le" in s.labels]
    counts = [below[0][1], *(after - before for (_, before), (_, after) in pairwise(below))]
    seconds = next(sample.value for sample in samples if sample.name.endswith("_sum"))
    bounds = [bound for bound, _ in below[:-1]]
    unknown: Any = None  # the least and the greatest
    return HistogramDataPoint(
        labels, 0, now, below[-1][1], seconds, counts, bounds, unknown, unknown
    )


# ------------------------------------------------------------------------------- spans


class SpanExport:
    """Sends spans in batches, from a thread of the SDK; more than it can send are dropped."""

    def __init__(
        self, url: str, resource: Resource, clock: Clock, note: Callable[..., None]
    ) -> None:
        """``note`` takes whether the collector took ``spans``."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult

        exporter = OTLPSpanExporter(url)
        export = exporter.export

        def noted(spans: Sequence[ReadableSpan]) -> SpanExportResult:
            result = export(spans)
            note("spans", taken=result is SpanExportResult.SUCCESS)
            return result

        exporter.export = noted
        self._clock = clock
        self._provider: TracerProvider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer: Tracer = self._provider.get_tracer(_SCOPE, __version__)

    def now(self) -> int:
        return self._clock.now().wall

    def begin(
        self, name: str, parent: RecordedSpan | None, began: int, attributes: Attributes
    ) -> RecordedSpan:
        from opentelemetry.context import Context
        from opentelemetry.trace import set_span_in_context

        around = Context()
        if isinstance(parent, _ExportedSpan):
            around = set_span_in_context(parent.span, around)
        begun = self._tracer.start_span(name, around, attributes=dict(attributes), start_time=began)
        return _ExportedSpan(begun, self._clock)

    def close(self) -> None:
        """Send what has ended, for a few seconds at most."""
        self._provider.force_flush(_LAST_MS)
        self._provider.shutdown()


class _ExportedSpan:
    def __init__(self, span: Span, clock: Clock) -> None:
        self.span = span
        self._clock = clock

    def end(self, attributes: Attributes, error: str) -> None:
        from opentelemetry.trace import Status, StatusCode

        self.span.set_attributes(dict(attributes))
        if error:
            self.span.set_status(Status(StatusCode.ERROR, error))
        self.span.end(self._clock.now().wall)

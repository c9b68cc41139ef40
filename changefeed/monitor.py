"""What a node shows of itself: a page for people, figures for Prometheus, its health.

Everything is read from the state when it is asked for, as SHOW does: nothing is counted twice,
and nothing that SHOW would redact is there. :mod:`changefeed.http` serves it.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from changefeed import __version__
from changefeed.api import Interpreter, Session
from changefeed.catalog import Job, Status, TableState
from changefeed.core.delays import BOUNDS
from changefeed.options import GC_TTL, SLO, VERIFY, Options
from changefeed.statements.health import TROUBLE, Health
from changefeed.statements.times import date
from changefeed.statements.values import ShownText

_SCANS = (Status.STARTING, Status.SCANNING, Status.RUNNING)
_LABELS = ("job_id", "feed", "source")


class StateCollector(Collector):
    """The feeds and sources of a state, as Prometheus wants them."""

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter

    def collect(self) -> Iterator[Metric]:
        """Everything now."""
        feeds = self._interpreter.health()
        jobs = [job for job, _ in feeds]
        yield from self._of_feeds(feeds)
        yield from self._of_delays(jobs)
        yield from self._of_scans(jobs)
        yield from self._of_proofs()
        build = GaugeMetricFamily("changefeed_build_info", "1; the version", labels=["version"])
        build.add_metric([__version__], 1.0)
        yield build
        up = GaugeMetricFamily(
            "changefeed_source_up", "1 when the source answers", labels=["source"]
        )
        for state in self._interpreter.catalog.source_states():
            up.add_metric([state.name], float(not state.error))
        yield up
        failed = GaugeMetricFamily(
            "changefeed_schedule_failed",
            "1 when the last run of the schedule failed or could not begin",
            labels=["schedule"],
        )
        for schedule in self._interpreter.catalog.schedules():
            failed.add_metric([schedule.name], float(schedule.error is not None))
        yield failed

    def _of_feeds(self, feeds: Sequence[tuple[Job, Health]]) -> Iterator[Metric]:
        def gauge(name: str, text: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"changefeed_{name}", text, labels=_LABELS)

        status = GaugeMetricFamily(
            "changefeed_status", "1 for the current status of the feed", labels=(*_LABELS, "status")
        )
        behind = gauge(
            "lag_seconds",
            "seconds since the instant up to which every change is delivered, without tables that "
            "are paused by themselves and the time for which changes gather on purpose",
        )
        used = gauge("retention_used_ratio", "max_behind divided by gc_ttl; at 1 the feed fails")
        age = gauge("max_behind_seconds", "the same with these tables and this time")
        rate = gauge("rows_per_second", "rows delivered, over the last seconds")
        failed = gauge("failed_tables", "tables of the feed that have failed")
        paused = gauge("paused_tables", "tables of the feed that PAUSE CHANGEFEED f TABLE paused")
        rows = CounterMetricFamily("changefeed_emitted_rows", "rows delivered", labels=_LABELS)
        size = CounterMetricFamily("changefeed_emitted_bytes", "bytes delivered", labels=_LABELS)
        refused = gauge("dead_letters", "rows that were refused and are kept as dead letters")
        in_trouble = gauge("troubled", "1 when the feed needs attention, whatever the reason")
        troubled = self._interpreter.catalog.troubled_tables()
        for job, shown in feeds:
            labels = [str(job.id), job.name, job.source]
            status.add_metric([*labels, shown.status], 1.0)
            in_trouble.add_metric(labels, float(shown.troubled))
            rows.add_metric(labels, float(job.emitted_rows))
            size.add_metric(labels, float(job.emitted_bytes))
            if shown.moves:
                rate.add_metric(labels, job.rows_per_second)
            tables = troubled.get(job.id, ())
            refused.add_metric(labels, float(shown.letters))
            for family, state in ((failed, TableState.FAILED), (paused, TableState.PAUSED)):
                family.add_metric(labels, float(sum(t.state is state for t in tables)))
            if shown.lag is not None and shown.age is not None:
                behind.add_metric(labels, float(shown.lag))
                age.add_metric(labels, float(shown.age))
                used.add_metric(labels, shown.age / Options.from_dict(job.options)[GC_TTL])
        yield from (
            status,
            in_trouble,
            behind,
            age,
            used,
            rate,
            failed,
            paused,
            refused,
            rows,
            size,
        )

    def _of_delays(self, jobs: Sequence[Job]) -> Iterator[Metric]:
        """How late rows were, and what remains of option slo."""
        latency = HistogramMetricFamily(
            "changefeed_commit_latency_seconds",
            "from the commit of a row until it was durable in the sink",
            labels=_LABELS,
        )

        def gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"changefeed_slo_{name}", text, labels=(*_LABELS, *labels))

        objective = gauge("objective_ratio", "the share of rows that option slo asks for")
        within = gauge("within_seconds", "how late a row may be by option slo")
        kept = gauge("kept_ratio", "the share of rows that were in time", "window")
        burnt = gauge("budget_burnt_ratio", "late rows, as a part of those allowed", "window")
        now = self._interpreter.clock.now().wall
        for job in jobs:
            labels, delays = [str(job.id), job.name, job.source], job.delays
            if delays.counts:
                ends = [*(str(bound) for bound in BOUNDS), "+Inf"]
                sums = zip(ends, accumulate(delays.counts), strict=True)
                latency.add_metric(labels, [(end, float(n)) for end, n in sums], delays.seconds)
            if SLO.name not in job.options:
                continue
            if (slo := Options.from_dict(job.options)[SLO]) is None:
                raise AssertionError("an option that is set has a value")
            objective.add_metric(labels, slo.share)
            within.add_metric(labels, slo.within)
            for window, share, part in delays.against(slo, now):
                if share is not None and part is not None:
                    kept.add_metric([*labels, window], share)
                    burnt.add_metric([*labels, window], part)
        yield from (latency, objective, within, kept, burnt)

    def _of_scans(self, jobs: Sequence[Job]) -> Iterator[Metric]:
        """Scans that are owed: their totals are there before they begin."""
        done = GaugeMetricFamily(
            "changefeed_scan_rows", "rows that the scans under way have read", labels=_LABELS
        )
        total = GaugeMetricFamily(
            "changefeed_scan_total_rows", "about how many rows these scans read", labels=_LABELS
        )
        scans = {job.id: job for job in jobs if job.status in _SCANS}
        for job_id, tables in self._interpreter.catalog.tables_of_jobs(list(scans)).items():
            owed = [t for t in tables if t.scan_wanted and not t.state.stands]
            labels = [str(job_id), scans[job_id].name, scans[job_id].source]
            if owed:
                done.add_metric(labels, float(sum(t.scan_rows for t in owed)))
                total.add_metric(labels, float(sum(max(t.scan_total, t.scan_rows) for t in owed)))
        yield from (done, total)

    def _of_proofs(self) -> Iterator[Metric]:
        """Tables that option verify compares with their targets."""

        def gauge(name: str, text: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"changefeed_{name}", text, labels=(*_LABELS, "table"))

        part = gauge("proved_ratio", "rows of the table that this round of verify has compared")
        whole = gauge("proved_time_seconds", "each row was compared after this instant (Unix time)")
        wrong = gauge("differing_rows", "rows that verify found to differ from the target")
        catalog = self._interpreter.catalog
        jobs = {job.id: job for job in catalog.jobs() if VERIFY.name in job.options}
        for job_id, tables in catalog.tables_of_jobs(list(jobs)).items():
            for table in tables:
                job, proof = jobs[job_id], table.proof
                labels = [str(job_id), job.name, job.source, str(table.table)]
                done = proof.rows / max(proof.total, proof.rows, 1) if proof.open else proof.whole
                part.add_metric(labels, float(min(done, 1)))
                wrong.add_metric(labels, float(table.differing))
                if proof.whole:
                    whole.add_metric(labels, proof.whole / 1e9)
        yield from (part, whole, wrong)


class Monitor:
    """What a node shows without a statement; knows no protocol."""

    def __init__(self, interpreter: Interpreter, node_check: Callable[[], None]) -> None:
        """``node_check`` raises when the node of this process is not at work."""
        self.interpreter = interpreter
        self._node_check = node_check
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(StateCollector(interpreter))

    def metrics(self) -> tuple[str, bytes]:
        """Content type and text for Prometheus.

        Raises:
            ChangefeedError: the state cannot be read.
        """
        return CONTENT_TYPE_LATEST, generate_latest(self._registry)

    def check(self) -> None:
        """Do nothing while the node is at work and its state can be read.

        Raises:
            ChangefeedError: why it is not.
        """
        self._node_check()
        self.interpreter.catalog.version()

    def page(self) -> str:
        """The feeds as HTML, for an address that serves no API, and so no console.

        Raises:
            ChangefeedError: the state cannot be read.
        """
        shown = self.interpreter.execute("SHOW CHANGEFEEDS", Session(client="http"))
        people = shown.brief or shown
        head = "".join(f"<th>{html.escape(column)}</th>" for column in people.columns)
        place = shown.columns.index("status")
        lines = [
            f'<tr class="{"trouble" if exact[place] in TROUBLE else ""}">'
            + "".join(f"<td>{_cell(cell)}</td>" for cell in row)
            + "</tr>"
            for exact, row in zip(shown.rows, people.rows, strict=True)
        ]
        body = "\n".join(lines) or f'<tr><td colspan="{len(people.columns)}">no feeds</td></tr>'
        state = html.escape(self.interpreter.catalog.shown)
        at = date(self.interpreter.clock.now().wall).words
        return _PAGE.format(state=state, at=at, head=head, body=body)


def _cell(cell: object) -> str:
    if cell is None:
        return ""
    return html.escape(cell.words if isinstance(cell, ShownText) else str(cell))


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>changefeeds</title>
<noscript><meta http-equiv="refresh" content="5"></noscript>
<link rel="icon" href="/console/icon.svg">
<link rel="stylesheet" href="/console/console.css">
<script type="module" src="/console/plain.js"></script>
</head><body><main><h1>Changefeeds</h1><p>{state} &middot; <a href="/metrics">metrics</a></p>
<div id="feeds" class="scroll"><p>as of {at}</p><table class="plain">
<thead><tr>{head}</tr></thead><tbody>
{body}
</tbody></table></div></main></body></html>
"""

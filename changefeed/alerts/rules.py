"""What is worth an alert: the rules of ``deploy/prometheus/changefeed.yaml``, without Prometheus.

Each rule compares one metric of the node with a number, as its expression there does; a test holds
the two lists against each other.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import Metric

from changefeed.core.figures import duration_text

_EXPRESSION = re.compile(r'(\w+)(?:\{(\w+)="([^"]*)"\})? (==|>) ([0-9.]+)')
_COMPARED: Mapping[str, Callable[[float, float], bool]] = {"==": operator.eq, ">": operator.gt}


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        name: of the alert.
        expression: ``metric{label="value"} > number``, or with ``==``; the label may be missing.
        hold: seconds for which it is true before it is an alert.
        severity: ``critical`` or ``warning``.
        section: of ``docs/operating.md``, with what to do.
        summary: with the labels of the metric in braces, and ``duration``, ``percent`` and
            ``count``, which are its value.
    """

    name: str
    expression: str
    hold: float
    severity: str
    section: str
    summary: str

    def find(self, metrics: Iterable[Metric]) -> Iterator[Breach]:
        """What the rule finds in the metrics of a node."""
        parsed = _EXPRESSION.fullmatch(self.expression)
        if parsed is None:
            raise AssertionError(f"the expression of {self.name} is not of the form it must have")
        metric, label, wanted, comparison, number = parsed.groups()
        for family in metrics:
            for sample in family.samples:
                if sample.name != metric or (label and sample.labels[label] != wanted):
                    continue
                if _COMPARED[comparison](sample.value, float(number)):
                    yield Breach(self, tuple(sorted(sample.labels.items())), sample.value)


@dataclass(frozen=True, slots=True)
class Breach:
    """A metric that a rule names, with the value that it has now."""

    rule: Rule
    labels: tuple[tuple[str, str], ...]
    value: float

    @property
    def key(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """What it is about, whatever the value."""
        return self.rule.name, self.labels

    @property
    def summary(self) -> str:
        """One sentence."""
        return self.rule.summary.format_map(
            {
                **dict(self.labels),
                "duration": duration_text(self.value),
                "percent": f"{self.value:.0%}",
                "count": f"{self.value:,.0f}",
            }
        )


RULES: Final = (
    Rule(
        "ChangefeedTroubled",
        "changefeed_troubled == 1",
        300.0,
        "warning",
        "alert-troubled",
        "Feed {feed} needs attention.",
    ),
    Rule(
        "ChangefeedBehind",
        "changefeed_lag_seconds > 300",
        300.0,
        "warning",
        "alert-behind",
        "Feed {feed} is {duration} late.",
    ),
    Rule(
        "ChangefeedRetentionUsed",
        "changefeed_retention_used_ratio > 0.5",
        0.0,
        "critical",
        "alert-retention",
        "Feed {feed} has used {percent} of gc_ttl.",
    ),
    Rule(
        "ChangefeedSourceDown",
        "changefeed_source_up == 0",
        120.0,
        "critical",
        "alert-source-down",
        "Source {source} does not answer.",
    ),
    Rule(
        "ChangefeedSloBurnt",
        'changefeed_slo_budget_burnt_ratio{window="24h"} > 1',
        0.0,
        "warning",
        "alert-slo",
        "Feed {feed} has burnt {percent} of its budget of late rows.",
    ),
    Rule(
        "ChangefeedRowsDiffer",
        "changefeed_differing_rows > 0",
        0.0,
        "warning",
        "alert-rows-differ",
        "{count} rows of {table} differ from the target of {feed}.",
    ),
    Rule(
        "ChangefeedScheduleFailed",
        "changefeed_schedule_failed == 1",
        0.0,
        "warning",
        "alert-schedule-failed",
        "The last run of schedule {schedule} failed.",
    ),
)


def breaches(metrics: Iterable[Metric], rules: Iterable[Rule] = RULES) -> list[Breach]:
    """What the rules find in the metrics of a node."""
    families = list(metrics)
    return [breach for rule in rules for breach in rule.find(families)]

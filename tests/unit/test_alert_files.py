"""Rules, dashboard and runbooks of ``deploy/`` against what a node serves."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from changefeed.catalog import Schedule, ScheduledRun
from changefeed.catalog.model import TableProof
from changefeed.core.delays import Delays
from changefeed.feeds.counted import with_rows
from tests.golden.world import NOW
from tests.helpers.served import Bench
from tests.services.golang import built
from tests.services.python import Unavailable

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/prometheus/changefeed.yaml"

#: A metric of an expression, with the matchers behind it.
_METRIC = re.compile(r"\b(changefeed_\w+)(?:{([^}]*)})?")


def rules() -> list[dict[str, Any]]:
    found = yaml.safe_load(RULES.read_text())
    return [rule for group in found["groups"] for rule in group["rules"]]


def expressions() -> Iterator[str]:
    """Every expression of the rules and the dashboard."""
    yield from (rule["expr"] for rule in rules())
    board = json.loads((ROOT / "deploy/grafana/changefeed.json").read_text())
    yield from (t["expr"] for panel in board["panels"] for t in panel["targets"])
    variables = board["templating"]["list"]
    yield from (each["query"] for each in variables if each["type"] == "query")


def scraped(bench: Bench) -> list[Sample]:
    """What a node serves while everything that has an alert is wrong, but that it answers."""
    world = bench.world
    options = "slo = '99% within 5m', verify = '24h'"
    world.run(f"CREATE CHANGEFEED f FOR orders INTO 'kafka://k:9092' WITH {options}")
    world.node.deliver("f", NOW - 15 * 3600 * 10**9, rows=50)
    job = world.catalog.job("f").id
    (table,) = world.catalog.tables(job)
    delays = with_rows(Delays().judged(300), [np.array([NOW - 301 * 10**9, NOW])], NOW)
    lease = world.node._leases[job]
    world.catalog.save_progress(job, {}, lease=lease, delays=delays)
    proof = TableProof(open=True, rows=1, total=2, whole=NOW, differing=1, found=NOW)
    world.catalog.save_proof(job, table.table, proof)
    owed = replace(table, scan_wanted=True, scan_total=5)
    world.catalog.save_progress(job, {table.table: owed}, lease=lease)
    world.catalog.save_source_state("shop", error="cannot connect")
    broken = Schedule("shop", "null://", (), {}, "@daily", "reschedule", "wait", due=NOW, name="s")
    run = ScheduledRun(world.catalog.create_schedule(broken).id, NOW, NOW + 1)
    assert world.catalog.fail_run(run, "a run could not begin")
    return samples(bench)


def samples(bench: Bench) -> list[Sample]:
    families = text_string_to_metric_families(bench.get("/metrics")[1])
    return [sample for family in families for sample in family.samples]


def served(bench: Bench) -> dict[str, set[str]]:
    """The labels of each metric."""
    found: dict[str, set[str]] = {}
    for sample in scraped(bench):
        found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_rules_and_dashboard_name_what_a_node_serves(bench: Bench) -> None:
    have = served(bench)
    used = set()
    for expression in expressions():
        named = _METRIC.findall(expression)
        assert named or expression.startswith("up{"), f"no metric of ours in {expression}"
        labels: set[str] = set()
        for metric, matchers in named:
            used.add(metric)
            assert metric in have, f"{expression}: no node serves {metric}"
            labels |= have[metric]
            assert set(re.findall(r"(\w+)\s*[=!]", matchers)) <= have[metric], expression
        for by in re.findall(r"by \(([^)]*)\)", expression):
            assert {word.strip() for word in by.split(",")} <= labels, expression
    assert len(used) > 10


def test_each_alert_has_its_runbook() -> None:
    page = (ROOT / "docs/operating.md").read_text()
    titles = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 -]", "", t.lower()).replace(" ", "-") for t in titles}
    for rule in rules():
        place, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert place == "docs/operating.md" and anchor in anchors, rule["alert"]
        assert f"`{rule['alert']}`" in page and rule["annotations"]["summary"]


# ------------------------------------------------------------------------- by Prometheus


@pytest.fixture(scope="module")
def promtool() -> Path:
    """Prometheus's own check of rules, with its evaluation of them."""
    sources = ROOT / "tests/services/promtool"
    package = "github.com/prometheus/prometheus/cmd/promtool"
    try:
        return built("promtool", sources, package, tags="remove_all_sd")
    except Unavailable as missing:
        pytest.skip(str(missing))


def said(promtool: Path, *arguments: str | Path) -> str:
    run = subprocess.run([promtool, *arguments], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def case(found: list[Sample], *, up: int, fire: set[str]) -> dict[str, Any]:
    """These samples for half an hour, and which alerts fire then."""
    given = {'up{job="changefeed",instance="a:8080"}': float(up)}
    for sample in found:
        labels = ",".join(f"{name}={json.dumps(text)}" for name, text in sample.labels.items())
        given[f"{sample.name}{{{labels}}}"] = sample.value
    firing = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(fire)]
    query = 'count by (alertname) (ALERTS{alertstate="firing"})'
    return {
        "interval": "1m",
        "input_series": [
            {"series": name, "values": f"{value!r}x30"} for name, value in given.items()
        ],
        "promql_expr_test": [{"expr": query, "eval_time": "20m", "exp_samples": firing}],
    }


@pytest.mark.extended
def test_prometheus_takes_the_rules_and_each_alert_fires_when_it_should(
    promtool: Path, bench: Bench, tmp_path: Path
) -> None:
    alerts = {rule["alert"] for rule in rules()}
    assert f"{len(alerts)} rules found" in said(promtool, "check", "rules", RULES)
    bench.world.run("CREATE CHANGEFEED calm FOR orders INTO 'kafka://k:9092'")
    bench.world.node.deliver("calm", NOW, rows=50)
    cases = [case(samples(bench), up=1, fire=set())]
    bench.world.run("DROP CHANGEFEED calm")
    cases.append(case(scraped(bench), up=0, fire=alerts))
    file = tmp_path / "tests.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": cases}))
    said(promtool, "test", "rules", file)


@pytest.mark.extended
def test_prometheus_reads_each_expression_of_the_dashboard(promtool: Path, tmp_path: Path) -> None:
    found = [text.replace("$feed", ".*") for text in expressions() if "label_values" not in text]
    recorded = [{"record": f"x:{number}", "expr": text} for number, text in enumerate(found)]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": recorded}]}))
    assert f"{len(found)} rules found" in said(promtool, "check", "rules", file)

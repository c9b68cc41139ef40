"""The page, the metrics and the health of a node, over a real socket."""

from __future__ import annotations

import re
import socket
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import replace

import numpy as np
import pytest

from changefeed.catalog.model import TableProof
from changefeed.core.clock import Timestamp
from changefeed.core.delays import Delays
from changefeed.core.errors import ChangefeedError
from changefeed.feeds.counted import with_rows
from changefeed.http.application import Api
from changefeed.http.server import HttpServer
from tests.golden.world import NOW, SECRETS
from tests.helpers.served import Bench


def test_what_a_feed_proved_is_a_figure_and_a_word(bench: Bench) -> None:
    world = bench.world
    world.run("CREATE CHANGEFEED f FOR orders INTO 'kafka://k:9092' WITH verify = '24h'")
    world.node.deliver("f", NOW - 90 * 10**9, rows=50)
    (table,) = world.catalog.tables(1)
    assert "public.orders: 0 % proved" in world.transcript("SHOW CHANGEFEED f")
    hour = 3600 * 10**9
    proof = TableProof(open=True, rows=62, total=100, whole=NOW - hour, differing=2, found=NOW)
    world.catalog.save_proof(1, table.table, proof)
    found = bench.figures()
    assert found["changefeed_proved_ratio", "f"] == 0.62
    assert found["changefeed_proved_time_seconds", "f"] == (NOW - hour) / 1e9
    assert found["changefeed_differing_rows", "f"] == 2
    assert (found["changefeed_failed_tables", "f"], found["changefeed_troubled", "f"]) == (0, 1)
    assert bench.statuses() == {"f": "degraded"}
    said = world.transcript("SHOW CHANGEFEED f")
    assert "62 % proved, all by 21:13:20 UTC (1h ago), 2 rows differ" in said
    assert "public.orders: 2 rows differ from the source: VERIFY CHANGEFEED f REPAIR" in said
    world.catalog.alter_job(1, rescan={table.table: 0})
    assert bench.figures()["changefeed_differing_rows", "f"] == 0, "it is being mended"


def test_a_paused_table_counts_for_retention_and_not_as_lag(bench: Bench) -> None:
    world = bench.world
    world.run("CREATE CHANGEFEED f FOR orders, items INTO 'kafka://u:hunter2@k:9092'")
    world.node.deliver("f", NOW - 90 * 10**9, rows=50)
    world.run("PAUSE CHANGEFEED f TABLE items")
    world.node.deliver("f", NOW - 10**9)
    found = bench.figures()
    assert found["changefeed_paused_tables", "f"] == 1
    assert (found["changefeed_failed_tables", "f"], found["changefeed_troubled", "f"]) == (0, 0)
    assert found["changefeed_lag_seconds", "f"] == 1
    assert found["changefeed_max_behind_seconds", "f"] == 90
    assert found["changefeed_retention_used_ratio", "f"] == 90 / (25 * 3600)
    world.run("RESUME CHANGEFEED f TABLE items")
    assert bench.figures()["changefeed_paused_tables", "f"] == 0


def test_the_figures_of_a_feed(bench: Bench) -> None:
    world = bench.world
    world.run("CREATE CHANGEFEED f FOR orders, items INTO 'kafka://u:hunter2@k:9092'")
    world.node.deliver("f", NOW - 90 * 10**9, rows=50)
    world.fail_table("f", "items", "CF5003 refused")
    found = bench.figures()
    assert found["changefeed_lag_seconds", "f"] == 90
    assert found["changefeed_retention_used_ratio", "f"] == 90 / (25 * 3600)
    assert found["changefeed_emitted_rows_total", "f"] == 100
    assert found["changefeed_emitted_bytes_total", "f"] == 10_000
    assert found["changefeed_failed_tables", "f"] == 1
    assert found["changefeed_source_up", "shop"] == 1
    assert not [name for name, _ in found if "proved" in name or "differing" in name]
    assert found["changefeed_rows_per_second", "f"] > 0
    world.node.up = False
    stopped = bench.figures()
    assert ("changefeed_rows_per_second", "f") not in stopped, "a feed that stands has no rate"
    world.node.up = True
    failed = next(table for table in world.catalog.tables(1) if table.error)
    behind = replace(failed, done_upto=Timestamp(NOW - 900 * 10**9))
    world.catalog.save_progress(1, {behind.table: behind}, lease=world.node._leases[1])
    found = bench.figures()
    assert found["changefeed_lag_seconds", "f"] == 900, "that of the failed table"
    assert found["changefeed_retention_used_ratio", "f"] == 900 / (25 * 3600)
    world.catalog.save_source_state("shop", error="cannot connect")
    assert bench.figures()["changefeed_source_up", "shop"] == 0


def test_trouble_shows_in_the_figures_and_on_the_page(bench: Bench) -> None:
    world = bench.world
    world.run("CREATE CHANGEFEED f FOR orders, items INTO 'null://'")
    world.node.deliver("f", NOW - 5 * 10**9)
    assert bench.statuses() == {"f": "running"} and bench.figures()["changefeed_troubled", "f"] == 0
    world.fail_table("f", "items", "CF2106 dropped at the source")
    assert bench.statuses() == {"f": "degraded"}
    assert bench.figures()["changefeed_troubled", "f"] == 1
    assert '<tr class="trouble">' in bench.monitor.page()
    world.node.up = False
    assert bench.statuses() == {"f": "stopped"}
    assert bench.figures()["changefeed_troubled", "f"] == 1


def test_without_the_api_there_is_a_page_of_the_feeds_and_no_secret(bench: Bench) -> None:
    assert "no feeds" in bench.monitor.page()
    bench.world.run("CREATE CHANGEFEED \"<b>\" FOR orders INTO 'kafka://u:hunter2@k:9092'")
    with bench.serve(api=False) as bench.server:
        status, page = bench.get("/?x=1")
        assert status == 200 and "&lt;b&gt;" in page and "<b>" not in page
        assert "kafka" in page and bench.get("/v1/feeds")[0] == 404
        for path in re.findall(r'(?:src|href)="(/console/[^"]*)"', page):
            assert bench.get(path)[0] == 200
        for path in ("/", "/metrics"):
            assert not [secret for secret in SECRETS if secret in bench.get(path)[1]]


def test_the_page_is_for_people(bench: Bench) -> None:
    bench.world.run("CREATE CHANGEFEED f FOR orders, items INTO 'kafka://k:9092'")
    bench.world.fail_table("f", "items", "CF2106 it was dropped at the source")
    page = bench.monitor.page()
    assert 'name="viewport"' in page and "as of 2023-11-14 22:13:20 UTC" in page
    assert "<td>degraded: 1 of 2 tables</td>" in page and "<td>items!, orders</td>" in page
    assert "<td>1 table failed: public.items: it was dropped at the source</td>" in page
    # It is renewed in its place: a page that is loaded again loses where one had scrolled to.
    assert '<div id="feeds" class="scroll">' in page
    assert page.count('http-equiv="refresh"') == page.count("<noscript>") == 1


@pytest.mark.parametrize("path", ["/", "/metrics", "/healthz", "/nothing"])
def test_head_answers_as_get_without_a_body(bench: Bench, path: str) -> None:
    asked = urllib.request.Request(bench.server.address + path, method="HEAD")
    try:
        with urllib.request.urlopen(asked, timeout=10) as answer:
            status, length, body = answer.status, answer.headers["Content-Length"], answer.read()
    except urllib.error.HTTPError as error:
        with error:
            status, length, body = error.code, error.headers["Content-Length"], error.read()
    assert (status, body) == (404 if path == "/nothing" else 200, b"")
    assert int(length) > 0


def test_health(bench: Bench) -> None:
    assert bench.get("/healthz") == (200, "ok\n")
    bench.ill = "the node's thread has ended"
    assert bench.get("/healthz") == (503, "the node's thread has ended\n")
    assert bench.get("/nothing")[0] == 404


def test_an_address_that_is_taken(bench: Bench) -> None:
    port = int(bench.server.address.rpartition(":")[2])
    with pytest.raises(ChangefeedError) as caught:
        HttpServer("127.0.0.1", port, Api(bench.monitor, local=True).application)
    assert caught.value.code.number == "CF6006"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "", "10.0.0.1", "localhost.evil"]
)
def test_a_name_of_another_domain_is_not_answered(bench: Bench, host: str) -> None:
    request = urllib.request.Request(f"{bench.server.address}/", headers={"Host": host})
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=20)
    assert caught.value.code == 421


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1234", "127.0.0.1:80", "[::1]:80"])
def test_names_of_this_machine_are_answered_with_protection(bench: Bench, host: str) -> None:
    request = urllib.request.Request(f"{bench.server.address}/", headers={"Host": host})
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.status == 200
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]


def test_a_silent_connection_is_closed(bench: Bench) -> None:
    with bench.serve(read_timeout=0.2) as server:
        address = urllib.parse.urlsplit(server.address)
        place = (str(address.hostname), address.port or 0)
        with socket.create_connection(place, timeout=60) as idle:
            assert idle.recv(1) == b""


def test_how_late_rows_were_and_what_is_left_of_the_promise(bench: Bench) -> None:
    world = bench.world
    world.run("CREATE CHANGEFEED f FOR orders INTO 'kafka://k:9092' WITH slo = '99% within 5m'")
    assert "no rows in 24h; no rows in 7d" in world.transcript("SHOW CHANGEFEED f")
    late = [NOW - 400 * 10**9] * 2 + [NOW - 10**9] * 98
    delays = with_rows(Delays().judged(300), [np.array(late)], NOW)
    world.catalog.save_progress(1, {}, lease=world.node._leases[1], delays=delays)
    world.node.deliver("f", NOW - 90 * 10**9, rows=50)  # leaves them as they are
    found = bench.figures()
    assert found["changefeed_commit_latency_seconds_count", "f"] == 100
    assert found["changefeed_commit_latency_seconds_sum", "f"] == pytest.approx(898)
    assert found["changefeed_slo_objective_ratio", "f"] == 0.99
    assert found["changefeed_slo_within_seconds", "f"] == 300
    assert found["changefeed_slo_kept_ratio", "f"] == 0.98
    assert found["changefeed_slo_budget_burnt_ratio", "f"] == pytest.approx(2)
    said = world.transcript("SHOW CHANGEFEED f")
    assert "kept 98 % in 24h, 200 % of budget burnt; kept 98 % in 7d" in said
    world.run("ALTER CHANGEFEED f SET slo = '99% within 10m'")
    assert "no rows in 24h" in world.transcript("SHOW CHANGEFEED f"), "counted by another bound"


def test_a_wait_on_purpose_is_no_lag_but_uses_the_retention(bench: Bench) -> None:
    world = bench.world
    world.run("CREATE CHANGEFEED f FOR orders INTO 'kafka://k:9092'")
    world.node.deliver("f", NOW - 90 * 10**9, rows=50)
    waits = Delays(waits=(NOW - 90 * 10**9, NOW + 3600 * 10**9))
    world.catalog.save_progress(1, {}, lease=world.node._leases[1], delays=waits)
    found = bench.figures()
    assert found["changefeed_lag_seconds", "f"] == 0
    assert found["changefeed_max_behind_seconds", "f"] == 90
    assert found["changefeed_retention_used_ratio", "f"] == 90 / (25 * 3600)
    assert "gathers changes until" in bench.monitor.page()


def test_a_scan_has_its_total_before_it_begins(bench: Bench) -> None:
    world = bench.world
    world.run("CREATE CHANGEFEED f FOR orders, items INTO 'kafka://k:9092'")
    tables = world.catalog.tables(1)
    owed = {t.table: replace(t, scan_rows=3, scan_total=50) for t in tables}
    world.catalog.save_progress(1, owed, lease=world.node._leases[1])
    found = bench.figures()
    assert found["changefeed_scan_total_rows", "f"] == 100
    assert found["changefeed_scan_rows", "f"] == 6
    world.node.deliver("f", NOW, rows=50)
    assert ("changefeed_scan_total_rows", "f") not in bench.figures()

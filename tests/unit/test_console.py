"""The console without a browser: its files, what they may load, what they ask for, its colours."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from changefeed.http.files import console_files
from changefeed.http.resources import FACTS, RESOURCES
from changefeed.http.series import Series
from tests.golden.world import NOW, World
from tests.helpers.served import Bench
from tests.helpers.waiting import until

FILES = {name: body.decode() for name, body in console_files().items()}
OWN = {name: text for name, text in FILES.items() if not name.startswith("uPlot")}
SCRIPTS = {name: text for name, text in OWN.items() if name.endswith(".js")}


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Bench]:
    """A served world that asks for tokens."""
    world = World(tmp_path)
    world.shop()
    bench = Bench(world)
    with bench.serve(logins=True) as bench.server:
        yield bench
    world.close()


def test_the_files_need_no_login_and_run_nothing_else(closed: Bench) -> None:
    for path in ("/", *(f"/console/{name}" for name in FILES)):
        status, headers, _ = closed.ask(path)
        policy = headers["Content-Security-Policy"]
        assert status == 200, path
        assert policy.startswith("default-src 'none';") and "unsafe" not in policy
    assert closed.ask("/")[1]["Content-Type"] == "text/html; charset=utf-8"
    assert closed.ask("/console/app.js")[1]["Content-Type"] == "text/javascript; charset=utf-8"
    for path in ("/console/", "/console/../files.py", "/console/%2e%2e/files.py"):
        assert closed.ask(path)[0] == 404


def test_they_are_small_and_load_only_each_other() -> None:
    assert sum(map(len, console_files().values())) <= 300_000
    for name, text in OWN.items():
        assert not re.search(
            r"\b(?:https?:)?//[\w-]+\.\w", text.replace("http://www.w3.org", "")
        ), name
        loaded = re.findall(r'(?:src|href)="console/([^"]*)"', text)
        loaded += re.findall(r'from "\./([^"]*)"', text) if name.endswith(".js") else []
        assert not set(loaded) - FILES.keys(), name
    page = FILES["index.html"]
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", page)


#: uPlot 1.6.32 as its package has it: dist/uPlot.iife.min.js, dist/uPlot.min.css and LICENSE.
VENDORED = {
    "uPlot.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uPlot.LICENSE.txt": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}


def test_what_others_wrote_is_as_they_published_it() -> None:
    found = {name: body for name, body in console_files().items() if name not in OWN}
    assert {name: hashlib.sha256(body).hexdigest() for name, body in found.items()} == VENDORED
    assert "MIT License" in FILES["uPlot.LICENSE.txt"]


def test_no_text_becomes_markup_or_code() -> None:
    way = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|javascript:"
    )
    assert SCRIPTS and not [name for name, text in SCRIPTS.items() if re.search(way, text)]
    # Renews a page that this node has written.
    assert [name for name, text in SCRIPTS.items() if "DOMParser" in text] == ["plain.js"]


def test_every_path_that_they_ask_for_is_one_of_the_api() -> None:
    rows = [*((row.method, row.path) for row in RESOURCES), *(("GET", row.path) for row in FACTS)]
    text = "\n".join(SCRIPTS.values())
    named = re.findall(r'"(GET|POST) (/v1/[^"$]*)"', text)
    assert named and not set(named) - set(rows)
    paths = {path for _, path in rows} | {"/v1/statements", "/v1/completions"}
    asked = {f"/{path}" for path in re.findall(r'"(v1/[\w/]*)"', text)}
    asked |= {
        f"/v1/feeds/{{name}}{rest}" for rest in re.findall(r'feedPath\(name, "(.*?)"\)', text)
    }
    assert "/v1/feeds" in asked and not asked - paths


def test_the_session_says_what_a_role_may(closed: Bench) -> None:
    said = {}
    for role in ("viewer", "operator", "admin"):
        (row,) = closed.world.run(f"CREATE USER {role} WITH role = '{role}'").rows
        closed.token = str(row[-1])
        status, answer = closed.json("/v1/session")
        assert (status, answer["user"], answer["role"]) == (200, role, role)
        said[role] = set(answer["may"])
    assert "GET /v1/feeds" in said["viewer"] and "GET /v1/audit" not in said["operator"]
    steers = "POST /v1/feeds/{name}/pause"
    assert steers in said["operator"] - said["viewer"]
    assert said["viewer"] < said["operator"] < said["admin"]
    assert said["admin"] == {f"{row.method} {row.path}" for row in RESOURCES}


def test_an_owner_may_do_more_with_the_own_feed(closed: Bench) -> None:
    for statement in (
        "CREATE CHANGEFEED theirs FOR orders INTO 'null://'",
        "CREATE CHANGEFEED own FOR orders INTO 'null://'",
        "CREATE USER bob",
        "GRANT CHANGEFEED ON TABLE orders TO bob",
        "GRANT USAGE ON EXTERNAL CONNECTION shop TO bob",
        "ALTER CHANGEFEED own OWNER TO bob",
        "ALTER USER bob WITH token = 'new'",
    ):
        made = closed.world.run(statement)
    closed.token = str(made.rows[0][-1])
    said = {name: closed.json(f"/v1/feeds/{name}/rights")[1]["may"] for name in ("own", "theirs")}
    steers = [f"POST /v1/feeds/{{name}}/{verb}" for verb in ("pause", "skip-transaction", "rescan")]
    assert set(steers) <= set(said["own"]) and not set(steers) & set(said["theirs"])
    assert "GET /v1/feeds/{name}/tables" in said["theirs"]
    closed.world.run("REVOKE CHANGEFEED ON TABLE orders FROM bob")
    now = closed.json("/v1/feeds/own/rights")[1]["may"]
    assert set(said["own"]) - set(now) == {
        "POST /v1/feeds/{name}/dead-letters/retry",
        "POST /v1/feeds/{name}/skip-transaction",
    }
    assert closed.json("/v1/feeds/nobody/rights")[0] == 404


# ------------------------------------------------------------------------------- series


def test_the_series_of_a_feed_has_rates_and_lags(bench: Bench) -> None:
    world, series = bench.world, Series(kept=3)
    world.run("CREATE CHANGEFEED f FOR orders INTO 'null://'")
    series.look(100.0, world.interpreter.health())
    assert series.of(1)["rows_per_second"] == [None], "the first look has no rate"
    world.node.deliver("f", NOW - 90 * 10**9, rows=50)
    series.look(110.0, world.interpreter.health())
    found = series.of(1)
    assert found["at"] == [100.0, 110.0] and found["rows_per_second"] == [None, 5.0]
    assert found["lag_seconds"] == [None, 90.0]
    world.run("CREATE CHANGEFEED g FOR orders INTO 'null://'")
    for at in (120.0, 130.0):
        series.look(at, world.interpreter.health())
    assert series.of(1)["at"] == [110.0, 120.0, 130.0], "no more are kept"
    assert series.of(2)["at"] == [120.0, 130.0] and series.of(2)["lag_seconds"] == [None, None]
    series.look(140.0, [])
    assert series.of(1)["at"] == [], "a feed that is gone is forgotten"


def test_a_node_looks_at_its_feeds(bench: Bench) -> None:
    bench.world.run("CREATE CHANGEFEED f FOR orders INTO 'null://'")
    with bench.serve() as bench.server:
        until(lambda: len(bench.json("/v1/feeds/f/series")[1]["at"]) == 1)
        assert bench.json("/v1/feeds/nobody/series")[0] == 404


# ------------------------------------------------------------------------------ colours


def colours(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


#: What stands on what.
PAIRS = [
    *((text, back) for text in ("text", "quiet", "link") for back in ("back", "raised")),
    ("text", "bad-back"),
    ("text", "still-back"),
    ("good", "good-back"),
    ("bad", "bad-back"),
    ("bad", "back"),
    ("primary-text", "primary"),
    ("mark-text", "mark"),
]


def test_every_text_has_contrast_on_light_and_dark() -> None:
    light, dark = re.findall(r":root {(.*?)}", FILES["console.css"], re.DOTALL)
    both = [colours(light), {**colours(light), **colours(dark)}]
    assert colours(light).keys() == colours(dark).keys()
    for known in both:
        for text, back in PAIRS:
            one, other = sorted((luminance(known[text]), luminance(known[back])))
            assert (other + 0.05) / (one + 0.05) >= 4.5, (text, back)
    used = set(re.findall(r"[^-]color: var\(--([\w-]+)\)", FILES["console.css"]))
    assert used <= {text for text, _ in PAIRS}, "a colour of text that is not measured"

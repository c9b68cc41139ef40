"""The console in a real browser, of a real node with feeds of a real source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from changefeed.http.application import Api
from changefeed.http.server import HttpServer
from changefeed.monitor import Monitor
from tests.e2e.feeds import Feeds, running
from tests.helpers.browser import Page, browser, browser_path
from tests.helpers.waiting import until
from tests.services.postgres import Database

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.postgres,
    pytest.mark.extended,
    pytest.mark.skipif(browser_path() is None, reason="needs Chromium: apt-get install chromium"),
]

#: Names that would be markup, or end a statement.
HOSTILE = "<img src=x onerror=alert(1)>"
FEED = '<b id="bold">x</b>'


@pytest.fixture
def feeds(tmp_path: Path, postgres: Database) -> Iterator[Feeds]:
    postgres.execute(
        f"create table orders (id int primary key, note text); insert into orders values (1, 'a');"
        "create table orders2 (id int primary key);"
        f'create table "{HOSTILE}" (id int primary key)'
    )
    with running(tmp_path / "state") as feeds:
        feeds.connect(shop=postgres.uri)
        feeds.execute("CREATE CHANGEFEED plain FOR orders INTO 'null://'")
        name = FEED.replace('"', '""')
        feeds.execute(f'CREATE CHANGEFEED "{name}" FOR "{HOSTILE}" INTO \'null://\'')
        feeds.execute("CREATE CHANGEFEED hooks FOR orders INTO 'webhook-https://127.0.0.1:1/x'")
        feeds.sync("plain")
        yield feeds


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    folder = tmp_path / "browser"
    folder.mkdir()
    with browser(folder) as page:
        page.screen(1280)
        yield page


def served(feeds: Feeds, *, logins: bool = False) -> HttpServer:
    monitor = Monitor(feeds.interpreter, lambda: None)
    return HttpServer("127.0.0.1", 0, Api(monitor, local=True, logins=logins).application)


def clicked(page: Page, words: str, within: str = "main") -> None:
    """Press the button or link with these words."""
    every = f"[...document.querySelectorAll('{within} a, {within} button')]"
    found = f"{every}.find(each => each.textContent === {json.dumps(words)})"
    page.until(f"(each => each && (each.click(), true))({found})")


def shows(page: Page, words: str) -> None:
    page.until(f"document.body.innerText.includes({json.dumps(words)})")


def test_from_the_list_to_a_feed_that_is_paused(feeds: Feeds, page: Page) -> None:
    with served(feeds) as server:
        page.open(server.address)
        for words in (FEED, HOSTILE, "retrying", "Connection refused", "1 in trouble"):
            shows(page, words)
        assert page.js("document.querySelector('#bold, img') === null"), "a name is a text"
        clicked(page, "plain")
        shows(page, "complete up to")
        clicked(page, "Pause")
        shows(page, 'PAUSE CHANGEFEED "plain"')
        assert feeds.catalog.job("plain").status == "running", "nothing is sent yet"
        clicked(page, "Pause", "dialog")
        shows(page, "Done.")
        clicked(page, "Close", "dialog")
        shows(page, "paused by the user")  # comes by itself
        until(lambda: feeds.catalog.job("plain").status == "paused")
        shows(page, "running -> paused")  # in the events
        host = urlsplit(server.address).netloc
        assert {urlsplit(address).netloc for address in page.requests} == {host}
    assert not page.problems


def test_a_login_and_what_a_role_is_offered(feeds: Feeds, page: Page) -> None:
    tokens = {role: feeds.catalog.create_user(role, role, None) for role in ("viewer", "operator")}
    with served(feeds, logins=True) as server:
        page.open(f"{server.address}/#/feeds/plain")
        shows(page, "Log in")
        page.type("no token of anybody")
        page.press("Enter")
        shows(page, "No user has this token")
        for role, offered in (("viewer", False), ("operator", True)):
            page.until("document.activeElement.id === 'token'")
            page.type(tokens[role])
            page.press("Enter")
            shows(page, f"{role} ({role})")
            page.until("document.querySelectorAll('tbody td').length > 3")
            buttons = page.js("[...document.querySelectorAll('main .action')].length")
            assert bool(buttons) is offered
            assert tokens[role] not in page.js("location.href + document.cookie")
            clicked(page, "Log out", "#top")
        shows(page, "Token of a user")
        assert page.js("sessionStorage.length") == 0


def test_an_owner_has_the_buttons_of_the_own_feed(feeds: Feeds, page: Page) -> None:
    """Among them those for one table."""
    feeds.execute("CREATE USER bob")
    for right in ("CHANGEFEED ON TABLE orders", "USAGE ON EXTERNAL CONNECTION shop"):
        feeds.execute(f"GRANT {right} TO bob")
    feeds.execute("CREATE CHANGEFEED own FOR orders, orders2 INTO 'null://'")
    feeds.execute("GRANT CHANGEFEED ON TABLE orders2 TO bob")
    feeds.execute("ALTER CHANGEFEED own OWNER TO bob")
    feeds.sync("own")
    token = str(feeds.execute("ALTER USER bob WITH token = 'new'").rows[0][-1])
    with served(feeds, logins=True) as server:
        page.open(f"{server.address}/#/feeds/plain")
        page.until("document.activeElement.id === 'token'")
        page.type(token)
        page.press("Enter")
        shows(page, "bob (viewer)")
        shows(page, "CREATE CHANGEFEED plain")
        assert page.js("document.querySelectorAll('main .action').length") == 0
        page.js("location.hash = '#/feeds/own'")
        of_table = 'tr[data-key="public.orders2"]'
        clicked(page, "Pause", of_table)
        shows(page, 'PAUSE CHANGEFEED "own" TABLE public.orders2')
        clicked(page, "Pause", "dialog")
        shows(page, "Done.")
        clicked(page, "Close", "dialog")
        shows(page, "paused by bob")
        clicked(page, "Resume", of_table)
        shows(page, 'RESUME CHANGEFEED "own" TABLE public.orders2')
        clicked(page, "Resume", "dialog")
        shows(page, "Done.")
        until(lambda: {t.paused for t in feeds.catalog.tables(feeds.catalog.job("own").id)} == {0})


def test_a_transaction_is_skipped_by_a_button(feeds: Feeds, page: Page, postgres: Database) -> None:
    postgres.execute(
        "create schema copy; create table copy.orders (id int primary key, note text, "
        "constraint short check (note <> 'refused'))"
    )
    feeds.execute(f"CREATE CHANGEFEED picky FOR orders INTO '{postgres.uri}?schema=copy'")
    feeds.sync("picky")
    postgres.execute("insert into orders values (7, 'refused')")
    with served(feeds) as server:
        page.open(f"{server.address}/#/feeds/picky")
        clicked(page, "Skip transaction")
        shows(page, 'ALTER CHANGEFEED "picky" SKIP TRANSACTION')
        clicked(page, "Skip transaction", "dialog")
        shows(page, "Done.")
        postgres.execute("insert into orders values (8, 'taken')")
        feeds.sync("picky")
    rows = postgres.execute("select id from copy.orders order by id")
    assert [row[0] for row in rows] == [1, 8]
    assert not page.problems


def test_dead_letters_show_values_to_operators_alone(
    feeds: Feeds, page: Page, postgres: Database
) -> None:
    postgres.execute(
        "create schema copy; create table copy.orders (id int primary key, note text, "
        "constraint short check (note <> 'secret value'))"
    )
    feeds.execute(
        f"CREATE CHANGEFEED picky FOR orders INTO '{postgres.uri}?schema=copy' "
        "WITH on_row_error = 'dead_letter'"
    )
    postgres.execute("insert into orders values (7, 'secret value')")
    until(lambda: feeds.catalog.dead_letter_counts())
    with served(feeds, logins=True) as server:
        page.open(f"{server.address}/#/feeds/picky")
        for role in ("viewer", "operator"):
            page.until("document.activeElement.id === 'token'")
            page.type(feeds.catalog.create_user(role, role, None))
            page.press("Enter")
            shows(page, f"{role} ({role})")
            shows(page, "CREATE CHANGEFEED picky FOR public.orders FROM shop INTO")
            shows(page, "← public.orders.note")
            page.until(
                "document.querySelector('[aria-label=\"Dead letters\"] td[data-label=letter]')"
            )
            assert ("secret value" in page.js("document.body.innerText")) is (role == "operator")
            clicked(page, "Log out", "#top")
    # The browser notes that nobody was logged in, and nothing else.
    assert all("401" in problem for problem in page.problems)


def test_statements_by_keyboard(feeds: Feeds, page: Page) -> None:
    with served(feeds) as server:
        page.open(f"{server.address}/#/statements")
        page.until("document.activeElement.tagName === 'TEXTAREA'")
        page.type("PAUSE CHANGEFEED pl")
        page.until("document.querySelector('#fits li')?.textContent.startsWith('plain')")
        page.press("ArrowDown")
        page.press("Enter")
        assert page.js("document.querySelector('textarea').value") == "PAUSE CHANGEFEED plain "
        page.press("Enter", control=True)
        page.until("document.querySelector('section[aria-label=\"PAUSE CHANGEFEED\"]')")
        assert feeds.catalog.job("plain").status == "paused"
        page.js("document.querySelector('textarea').select()")
        page.type("SHOW CHANGEFEEDS; SHOW CHANGEFEED plian")
        page.press("Enter", control=True)
        shows(page, 'did you mean "plain"?')
        assert page.js("document.querySelector('mark').textContent") == "plian"
        assert page.js("getSelection().toString()") == "plian"
        # From the top: over the links of the frame to the list, and into a feed.
        page.js("document.querySelector('.brand').focus()")
        page.press("Tab")
        assert page.js("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        page.press("Enter")
        page.until("document.querySelectorAll('main tbody a').length === 3")
        for _ in range(30):
            page.press("Tab")
            if page.js("document.activeElement.textContent") == FEED:
                break
        page.press("Enter")
        page.until(f"document.querySelector('h1').textContent === {json.dumps(FEED)}")
    assert not page.problems


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_shows_every_page_without_a_scroll_to_the_side(
    feeds: Feeds, page: Page, dark: bool
) -> None:
    page.screen(390, 800, dark=dark)
    with served(feeds) as server:
        page.open(server.address)
        for place in ("feeds", "feeds/hooks", "sources", "nodes", "slo", "audit", "statements"):
            page.js(f"location.hash = '#/{place}'")
            page.until("document.querySelector('main tbody td, main textarea')")
            assert page.js("document.documentElement.scrollWidth") <= 390, place
        back = page.js("getComputedStyle(document.body).backgroundColor")
        assert back == ("rgb(20, 23, 28)" if dark else "rgb(255, 255, 255)")
    assert not page.problems

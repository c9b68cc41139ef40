"""Rights of a user with a real node and source: what REVOKE and a rename do to a feed that runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from changefeed.api import Role, Session
from changefeed.catalog import Status
from changefeed.catalog.model import TableState
from changefeed.core.errors import ChangefeedError, Code
from tests.e2e.feeds import BRISK, Feeds, consumed, rebuilt, running
from tests.helpers.waiting import until
from tests.services.postgres import Database

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.postgres,
    pytest.mark.extended,
]

BOB = Session(client="pg", user="bob", role=Role.VIEWER)


@pytest.fixture
def feeds(tmp_path: Path, postgres: Database) -> Iterator[Feeds]:
    """A node, and bob, who may feed one table into one folder."""
    postgres.execute("create table orders (id int primary key); insert into orders values (1)")
    with running(tmp_path / "state", timings=BRISK) as feeds:
        feeds.connect(shop=postgres.uri, out=f"file://{tmp_path}/out")
        for statement in (
            "CREATE USER bob",
            "GRANT CHANGEFEED ON TABLE orders TO bob",
            "GRANT USAGE ON EXTERNAL CONNECTION shop, out TO bob",
        ):
            feeds.execute(statement)
        yield feeds


def by_bob(feeds: Feeds, statement: str) -> object:
    return feeds.interpreter.execute(statement, BOB)


def test_revoke_ends_a_feed_that_runs_and_grant_lets_it_go_on(
    feeds: Feeds, postgres: Database, tmp_path: Path
) -> None:
    by_bob(feeds, "CREATE CHANGEFEED f FOR orders INTO 'external://out'")
    feeds.sync("f")
    (notice,) = feeds.execute("REVOKE CHANGEFEED ON TABLE orders FROM bob").notices
    assert "is paused: user bob does not have the right CHANGEFEED ON TABLE shop.public" in notice
    job = feeds.catalog.job("f")
    assert (job.status, job.error_code) == (Status.PAUSED, "CF1403") and job.reason in notice
    assert feeds.catalog.lease_holder(job.id) is None
    with pytest.raises(ChangefeedError, match="does not have the right"):
        by_bob(feeds, "RESUME CHANGEFEED f")
    postgres.execute("insert into orders values (2)")
    assert len(rebuilt(consumed(tmp_path / "out", "orders"))) == 1
    feeds.execute("GRANT CHANGEFEED ON TABLE orders TO bob")
    by_bob(feeds, "RESUME CHANGEFEED f")
    feeds.sync("f")
    assert len(rebuilt(consumed(tmp_path / "out", "orders"))) == 2
    assert "paused" in feeds.execute("DROP USER bob").notices[0]
    assert feeds.catalog.job("f").status is Status.PAUSED


def test_revoke_ends_a_stream_of_rows(feeds: Feeds) -> None:
    session = Session(client="pg", user="bob", role=Role.VIEWER)
    stream = feeds.interpreter.execute("CREATE CHANGEFEED FOR orders", session).stream
    assert stream is not None
    assert next(iter(stream))[1] == "[1]"
    feeds.execute("REVOKE CHANGEFEED ON TABLE orders FROM bob")
    with pytest.raises(ChangefeedError) as caught:
        list(stream)
    assert caught.value.code is Code.RIGHT_MISSING
    assert feeds.catalog.jobs() == []


def test_a_feed_follows_a_rename_only_to_a_name_that_was_granted(
    feeds: Feeds, postgres: Database, tmp_path: Path
) -> None:
    by_bob(feeds, "CREATE CHANGEFEED f FOR orders INTO 'external://out'")
    feeds.sync("f")
    job = feeds.catalog.job("f")
    postgres.execute("alter table orders rename to salaries; insert into salaries values (2)")

    def failed() -> str | None:
        (table,) = feeds.catalog.tables(job.id)
        return table.error if table.state is TableState.FAILED else None

    until(failed, "the table fails")
    assert "does not have the right CHANGEFEED ON TABLE shop.public.salaries" in (failed() or "")
    assert len(rebuilt(consumed(tmp_path / "out", "orders"))) == 1
    with pytest.raises(ChangefeedError, match="salaries"):
        by_bob(feeds, "ALTER CHANGEFEED f RESCAN")
    feeds.execute("GRANT CHANGEFEED ON TABLE salaries TO bob")
    by_bob(feeds, "ALTER CHANGEFEED f RESCAN")
    until(lambda: feeds.catalog.job("f").status is Status.RUNNING, "the feed runs")
    feeds.sync("f")
    assert len(rebuilt(consumed(tmp_path / "out", "orders"))) == 2

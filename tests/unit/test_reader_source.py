"""Where the state of a source is, whose connection is used, and when a reader gives up."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest

from changefeed.catalog import Catalog, DesiredStatus, JobSpec, Status
from changefeed.core.clock import ManualClock
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.node_lock import NodeLock
from changefeed.readers.own_node import RETRY_SECONDS, OwnNode, until_logged
from changefeed.readers.own_state import ReaderSource, own_directory
from changefeed.readers.reader import Reader


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's data folder."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path / "changefeed" / "sources"


def test_a_database_has_one_directory_whatever_the_login_is(data: Path) -> None:
    expected = data / "postgresql" / "db:5432" / "shop"
    for uri in (
        "postgresql://db/shop",
        "postgres://a@db:5432/shop",
        "postgresql://b:geheim@db/shop?sslmode=require",
    ):
        assert own_directory(uri) == expected
    assert own_directory("mariadb://a:geheim@db/shop") == data / "mysql" / "db:3306" / "shop"


def test_other_databases_have_other_directories_below_the_same_folder(data: Path) -> None:
    uris = [
        f"postgresql://{rest}"
        for rest in ("db/shop", "db:5433/shop", "db2/shop", "db", "/shop", "/shop?host=/run/pg")
    ] + ["postgresql://db/..", "postgresql://db/a%2Fb", "mysql://db/shop"]
    found = [own_directory(uri) for uri in uris]
    assert len(set(found)) == len(uris)
    assert all(len(folder.relative_to(data).parts) == 3 for folder in found)
    assert all(".." not in folder.parts for folder in found)


def test_a_table_may_lack_the_connection() -> None:
    source = ReaderSource.of("postgresql://db/shop")
    assert source.table("public.orders", "shop") == "shop.public.orders"
    assert source.table('public."a.b"', "shop") == 'shop.public."a.b"'
    assert source.table("main.public.orders", "shop") == "main.public.orders"
    assert source.table("", "shop") == ""
    with pytest.raises(ChangefeedError, match="does not name a table"):
        source.table("orders", "shop")


def test_a_connection_to_the_database_in_a_state_that_was_named_is_used_as_it_is(
    tmp_path: Path,
) -> None:
    state = tmp_path / "state"
    with closing(Catalog.open(state)) as catalog:
        catalog.create_connection("shop", "kafka://h:9092")
        catalog.create_connection("main", "postgresql://a:geheim@db:5432/shop")
        same = ReaderSource.of("postgresql://b@db/shop", str(state))
        assert same.connect() == "main"
        assert catalog.connection("main").uri == "postgresql://a:geheim@db:5432/shop"
        # The name of the database is taken.
        assert ReaderSource.of("postgresql://b@db2/shop", str(state)).connect() == "shop_2"
        assert "geheim" not in repr(ReaderSource.of("postgresql://b:geheim@db/shop", str(state)))


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        (Code.SOURCE_REFUSED_LOGIN, DesiredStatus.RUNNING),
        (Code.POSITION_TOO_OLD, None),
    ],
)
def test_a_restart_tries_again_what_failed_at_the_source_only(
    code: Code, wanted: DesiredStatus | None
) -> None:
    source = ReaderSource.of("postgresql://db/shop")
    source.connect()
    with closing(Catalog.open(source.state)) as catalog:
        job = catalog.create_job(JobSpec("shop", (), (), name="r"))
        catalog.transition(
            job.id, Status.FAILED, reason="no", error=ChangefeedError(code, "refused")
        )
        source.retry("r")
        now = catalog.job(job.id)
        assert (now.status is Status.FAILED) == (wanted is None)
        assert wanted is None or now.wanted is wanted


class Troubled:
    """A reader whose feed says an error."""

    def __init__(self, error: ChangefeedError | None) -> None:
        self.error = error

    def trouble(self) -> ChangefeedError | None:
        return self.error


def test_a_reader_that_has_not_begun_gives_up_with_the_cause(tmp_path: Path) -> None:
    clock = ManualClock()
    node = OwnNode("state", tmp_path, clock)
    lasting = cast("Reader", Troubled(ChangefeedError(Code.SOURCE_REFUSED_LOGIN, "refused")))
    passing = cast("Reader", Troubled(ChangefeedError(Code.SOURCE_UNREACHABLE, "away")))
    node.check_begin(passing)
    with pytest.raises(ChangefeedError, match="refused"):
        node.check_begin(lasting)
    clock.wall += int((RETRY_SECONDS - 1) * 1e9)
    node.check_begin(passing)
    node.check_begin(cast("Reader", Troubled(None)))
    clock.wall += int((RETRY_SECONDS - 1) * 1e9)
    node.check_begin(passing)
    clock.wall += int(RETRY_SECONDS * 1e9)
    with pytest.raises(ChangefeedError, match="away") as error:
        node.check_begin(passing)
    assert error.value.code is Code.SOURCE_UNREACHABLE


def test_a_source_that_is_away_is_waited_for_a_while(tmp_path: Path) -> None:
    clock = ManualClock()
    node = OwnNode("state", tmp_path, clock)
    asked: list[int] = []

    def wanted() -> bool:
        asked.append(1)
        return len(asked) < 3

    with closing(Catalog.open(tmp_path / "state")) as catalog:
        catalog.create_connection("shop", "postgresql://127.0.0.1:1/shop")
        assert not until_logged(catalog, "shop", node, clock, wanted)
        assert len(asked) == 3
        begun = clock.monotonic()
        with pytest.raises(ChangefeedError) as error:
            until_logged(catalog, "shop", node, clock)
    assert error.value.code is Code.SOURCE_UNREACHABLE
    assert RETRY_SECONDS - 1 <= clock.monotonic() - begun <= RETRY_SECONDS + 1


def test_a_lock_that_was_passed_on_is_held_until_the_other_one_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "node.lock"
    mine = NodeLock(path)
    assert mine.acquire()
    assert mine.acquire(), "it is held already"
    passed = NodeLock.passed_on(path, os.dup(mine.descriptor))
    mine.release()
    assert path.read_text() == f"{os.getpid()}\n"
    assert not NodeLock(path).acquire()
    passed.release()
    assert mine.acquire()
    mine.release()

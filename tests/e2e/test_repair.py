"""Rows of a table are repaired by key while the feed goes on: order, breaks, schema changes."""

from __future__ import annotations

import pytest

from changefeed.catalog.model import RowRepair
from changefeed.core.faults import armed
from changefeed.core.schema import TableName
from tests.e2e.feeds import Feeds
from tests.e2e.shop import Shop, feeds, shop, table_of
from tests.helpers.waiting import until

__all__ = ["feeds", "shop"]
pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres]

T = TableName("shop", "public", "t")


def repair(feeds: Feeds, wrong: tuple[int, ...] = (), extra: tuple[int, ...] = ()) -> None:
    """What VERIFY .. REPAIR asks for."""
    rows = RowRepair(tuple((key,) for key in wrong), tuple((key,) for key in extra))
    feeds.catalog.alter_job(feeds.catalog.job("f").id, repair={T: rows})
    feeds.node.wake()


def scans(feeds: Feeds) -> list[str]:
    """What the scans of ``t`` were, without their instants."""
    events = feeds.catalog.events(feeds.catalog.job("f").id, kinds=["scan"])
    return [e.text.partition(" as of")[0] for e in reversed(events) if e.table == str(T)]


def test_only_the_rows_asked_for_come_again(feeds: Feeds, shop: Shop) -> None:
    shop.create(feeds)
    feeds.sync("f")
    shop.db.execute("delete from t where id in (4, 5)")
    feeds.sync("f")
    # Row 6 was found to be extra, and is at the source by now.
    repair(feeds, wrong=(2, 3, 4), extra=(5, 6))
    feeds.sync("f")
    progress = table_of(feeds)
    assert (progress.repair, progress.scan_wanted) == (None, False)
    again = [m for m in shop.messages() if m.is_row and m.at == progress.scan_at]
    assert {m.key: m.after and m.after["id"] for m in again} == {
        "[2]": 2,
        "[3]": 3,
        "[5]": None,
        "[6]": 6,
    }, "row 4 was deleted by a change"
    assert scans(feeds) == ["scanned: 10 rows", "repaired by key: 4 rows"]


def test_the_order_holds_while_rows_are_repaired(feeds: Feeds, shop: Shop) -> None:
    """Writes go on; the feed is paused, resumed and breaks at each step of the repair."""
    shop.create(feeds)
    feeds.sync("f")
    shop.ledger.scanned()
    with shop.writing():
        # Rows that are written, that come and go, and that never were there.
        keys: dict[str, tuple[int, ...]] = {"wrong": (1, 2, 9), "extra": (3, 110, 120)}
        repair(feeds, **keys)
        feeds.execute("PAUSE CHANGEFEED f")
        feeds.execute("RESUME CHANGEFEED f")
        feeds.sync("f")
        for place in ("scan.after_snapshot", "scan.before_end", "scan.table_saved"):
            with armed(f"{place}@1:error") as broke:
                repair(feeds, **keys)
                until(broke)
            feeds.sync("f")
        repair(feeds, **keys)
        feeds.close()
        feeds.open()
        feeds.sync("f")
    shop.write()
    feeds.sync("f")
    assert table_of(feeds).rescanned == table_of(feeds).rescan > 0
    assert set(scans(feeds)[1:]) == {"repaired by key: 6 rows"}
    shop.check()


@pytest.mark.parametrize("cause", ["rescan", "schema change"])
def test_a_scan_of_all_rows_takes_the_place_of_a_repair(
    feeds: Feeds, shop: Shop, cause: str
) -> None:
    """Or the rows outside the repair would miss the RESCAN, or the backfill."""
    shop.create(feeds)
    feeds.sync("f")
    feeds.execute("PAUSE CHANGEFEED f")
    repair(feeds, wrong=(2,))
    if cause == "rescan":
        feeds.execute("ALTER CHANGEFEED f RESCAN t")
    else:
        shop.db.execute("alter table t add column c int default 7")
    repair(feeds, wrong=(3,))
    feeds.execute("RESUME CHANGEFEED f")
    feeds.sync("f")
    assert scans(feeds)[-1] == "scanned: 10 rows"
    assert table_of(feeds).repair is None
    if cause == "schema change":
        assert len({m.key for m in shop.with_column("c")}) == 10


def test_a_dropped_table_takes_its_repair_with_it(feeds: Feeds, shop: Shop) -> None:
    shop.create(feeds)
    feeds.sync("f")
    feeds.execute("PAUSE CHANGEFEED f")
    repair(feeds, wrong=(2,))
    feeds.execute("ALTER CHANGEFEED f DROP t")
    feeds.execute("RESUME CHANGEFEED f")
    shop.db.execute("update u set v = 5")
    feeds.sync("f")
    assert 5 in shop.values("u", "v")
    assert scans(feeds) == ["scanned: 10 rows"]

"""``ALTER CHANGEFEED .. SET cursor``: a paused feed is set back or forward within the log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from changefeed.core.errors import ChangefeedError
from tests.e2e.feeds import running
from tests.services.kafka import KafkaBroker
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e, pytest.mark.postgres, pytest.mark.kafka]


def test_a_feed_is_set_back_and_forward(
    tmp_path: Path, postgres: Database, kafka: KafkaBroker
) -> None:
    postgres.execute("create table t (a int primary key, b text)")
    postgres.execute("insert into t values (1, 'scanned')")
    with running(tmp_path / "state") as feeds:
        feeds.connect(shop=postgres.uri, bus=f"{kafka.uri}?topic_prefix=cursor_")
        feeds.execute(
            "CREATE CHANGEFEED f FOR t INTO 'external://bus' WITH updated, resolved = '100ms'"
        )

        def sent() -> list[int]:
            rows = [json.loads(r.value or b"") for r in kafka.messages("cursor_t") if r.key]
            return [row["after"]["a"] for row in rows]

        def moved(cursor: str) -> None:
            feeds.execute("PAUSE CHANGEFEED f")
            feeds.execute(f"ALTER CHANGEFEED f SET cursor = '{cursor}', resolved = '200ms'")
            feeds.execute("RESUME CHANGEFEED f")
            feeds.sync("f")

        feeds.sync("f")
        postgres.execute("insert into t values (2, 'before')")
        feeds.sync("f")
        middle = feeds.catalog.job("f").high_water
        postgres.execute("insert into t values (3, 'after')")
        feeds.sync("f")
        assert sent() == [1, 2, 3]

        with pytest.raises(ChangefeedError, match="its cursor is set while paused"):
            feeds.execute("ALTER CHANGEFEED f SET cursor = '-1s'")
        moved(str(middle))
        assert sent() == [1, 2, 3, 3]

        # What is committed while it is paused, and before the new cursor, is left out.
        feeds.execute("PAUSE CHANGEFEED f")
        postgres.execute("insert into t values (4, 'left out')")
        [(now,)] = postgres.execute("select clock_timestamp()::text")
        feeds.close()
        feeds.open()
        moved(str(now))
        postgres.execute("insert into t values (5, 'goes on')")
        feeds.sync("f")
        assert sent() == [1, 2, 3, 3, 5]
        said = [str(event) for event in feeds.execute("SHOW CHANGEFEED f EVENTS").rows]
        assert sum("set from" in event for event in said) == 2
        feeds.execute("PAUSE CHANGEFEED f")
        with pytest.raises(ChangefeedError, match="before the change log of") as early:
            feeds.execute("ALTER CHANGEFEED f SET cursor = '-1h'")
        assert early.value.code.number == "CF3002"
        shown = str(feeds.execute("SHOW CREATE CHANGEFEED f").rows)
        assert "cursor" not in shown and "resolved = '200ms'" in shown

"""The forms of statements that CockroachDB's parser knows: each works, or has its own sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from grammar.parser import parse
from grammar.problems import SyntaxProblem
from tests.golden.world import World

BACKUPS = "schedules are for changefeeds"
NAMES = "write the names"
RUNS = "SHOW SCHEDULES has the job of the last run"
IDS = "write the ids"
CONDITION = "write the condition"
NO_PLAN = "this statement has no plan"

#: A form -> what the hint of its error has; None where it works. ``{one}`` is the number of a feed.
FORMS: dict[str, str | None] = {
    # -- making feeds
    "EXPERIMENTAL CHANGEFEED FOR TABLE orders": None,
    "EXPERIMENTAL CHANGEFEED FOR TABLE orders FAMILY f": "there are no column families here",
    "EXPLAIN CREATE CHANGEFEED FOR TABLE orders INTO 'null://'": None,
    "CREATE CHANGEFEED FOR orders INTO 'null://'": None,
    "CREATE CHANGEFEED FOR TABLE orders INTO 'null://'": None,
    "CREATE CHANGEFEED FOR TABLE orders INTO sink": "a sink is a URI in single quotes",
    "CREATE CHANGEFEED FOR TABLE orders, public.items, shop.public.customers INTO 'null://'": None,
    "CREATE CHANGEFEED FOR TABLE items, orders FAMILY f INTO 'null://'": (
        "there are no column families here"
    ),
    "CREATE CHANGEFEED FOR TABLE orders INTO 'null://' WITH resolved = '10s'": None,
    "CREATE CHANGEFEED FOR TABLE orders INTO 'null://' WITH OPTIONS (resolved = '10s')": None,
    "CREATE CHANGEFEED FOR DATABASE shop INTO 'null://'": None,
    "CREATE CHANGEFEED FOR DATABASE shop INCLUDE TABLES orders, items INTO 'null://'": None,
    "CREATE CHANGEFEED FOR DATABASE shop EXCLUDE TABLES orders INTO 'null://'": None,
    # -- changing feeds
    "ALTER CHANGEFEED {one} ADD items": None,
    "ALTER CHANGEFEED {one} DROP customers": None,
    "ALTER CHANGEFEED {one} ADD items DROP customers": None,
    "ALTER CHANGEFEED {one} DROP customers ADD items": None,
    "ALTER CHANGEFEED {one} ADD TABLE items, TABLE audit.log": None,
    "ALTER CHANGEFEED {one} ADD items DROP customers ADD audit.log DROP orders": None,
    "ALTER CHANGEFEED {one} SET resolved = '5s'": None,
    "ALTER CHANGEFEED {one} ADD items SET resolved = '5s', updated": None,
    "ALTER CHANGEFEED {one} SET resolved = '5s' ADD items DROP customers": None,
    "ALTER CHANGEFEED {one} SET sink = 'null://'": None,
    "ALTER CHANGEFEED {one} UNSET updated": None,
    "ALTER CHANGEFEED {one} ADD items UNSET updated, diff": None,
    "ALTER CHANGEFEED {one} ADD items DROP customers SET resolved = '5s' UNSET updated": None,
    "ALTER CHANGEFEED {one} ADD items WITH no_initial_scan": None,
    "ALTER CHANGEFEED {one} ADD items WITH no_initial_scan ADD audit.log WITH initial_scan": None,
    "ALTER CHANGEFEED {four} SET INCLUDE TABLES orders, items": None,
    "ALTER CHANGEFEED {four} SET EXCLUDE TABLES orders SET resolved = '5s'": None,
    "ALTER CHANGEFEED {four} UNSET EXCLUDE TABLES": None,
    "EXPLAIN ALTER CHANGEFEED {one} SET updated": None,
    # -- jobs
    "PAUSE JOB {one}": None,
    "RESUME JOB {two}": None,
    "CANCEL JOB {one}": None,
    "PAUSE JOBS {one}": None,
    "CANCEL JOBS {one}, {two}": None,
    "PAUSE ALL CHANGEFEED JOBS": None,
    "RESUME ALL CHANGEFEED JOBS": None,
    "CANCEL ALL CHANGEFEED JOBS": None,
    "PAUSE ALL BACKUP JOBS": "the only jobs are changefeeds",
    "PAUSE JOB {one} WITH REASON = 'repairs'": "a reason is not supported",
    "PAUSE JOBS SELECT id": IDS,
    "PAUSE JOBS (SELECT id FROM ids)": IDS,
    "PAUSE JOBS VALUES (1), (2)": IDS,
    "PAUSE JOBS SELECT id WITH REASON = 'repairs'": IDS,
    "RESUME JOBS SELECT id": IDS,
    "CANCEL JOBS SELECT id": IDS,
    "EXPLAIN PAUSE JOB {one}": NO_PLAN,
    "EXPLAIN RESUME JOBS SELECT id": NO_PLAN,
    "EXPLAIN CANCEL JOBS SELECT id": NO_PLAN,
    "EXPLAIN SHOW JOB {one}": NO_PLAN,
    "EXPLAIN SHOW JOB WHEN COMPLETE {one}": NO_PLAN,
    "SHOW JOBS": None,
    "SHOW JOB {one}": None,
    "SHOW JOB WHEN COMPLETE {three}": None,
    "SHOW JOBS SELECT id": CONDITION,
    "SHOW JOBS WHEN COMPLETE SELECT id": CONDITION,
    "SHOW AUTOMATIC JOBS": "there are none here",
    "SHOW CHANGEFEED JOB {one}": None,
    "SHOW CHANGEFEED JOBS": None,
    "SHOW CHANGEFEED JOBS (SELECT id FROM ids)": CONDITION,
    "SHOW CHANGEFEED JOBS WITH WATCHED_TABLES": "full_table_names is always listed",
    "SELECT * FROM [SHOW CHANGEFEED JOBS] WHERE status = 'running'": CONDITION,
    # -- schedules
    "CREATE SCHEDULE FOR CHANGEFEED orders INTO 'null://' RECURRING '@hourly'": None,
    "CREATE SCHEDULE IF NOT EXISTS s FOR CHANGEFEED orders INTO 'null://' RECURRING '@daily'": None,
    "ALTER BACKUP SCHEDULE 1 SET RECURRING '@daily'": BACKUPS,
    "PAUSE SCHEDULE 1": None,
    "PAUSE SCHEDULES SELECT id": NAMES,
    "RESUME SCHEDULE 1": None,
    "RESUME SCHEDULES SELECT id": NAMES,
    "DROP SCHEDULE 1": None,
    "DROP SCHEDULES SELECT id": NAMES,
    "SHOW SCHEDULE 1": None,
    "SHOW SCHEDULES": None,
    "SHOW SCHEDULES FOR CHANGEFEED": None,
    "SHOW CREATE SCHEDULE 1": None,
    "CREATE SCHEDULE 'my schedule' FOR BACKUP TABLE foo INTO 'bar' RECURRING '@daily'": BACKUPS,
    "SHOW SCHEDULES FOR BACKUP": BACKUPS,
    "SHOW PAUSED SCHEDULES": None,
    "SHOW RUNNING SCHEDULES": None,
    "EXPLAIN SHOW SCHEDULES": NO_PLAN,
    "EXPLAIN DROP SCHEDULE 1": NO_PLAN,
    "PAUSE JOBS FOR SCHEDULE 1": RUNS,
    "PAUSE JOBS FOR SCHEDULES SELECT 1": RUNS,
    "RESUME JOBS FOR SCHEDULE 1": RUNS,
    "CANCEL JOBS FOR SCHEDULES (SELECT id FROM ids)": RUNS,
    "SHOW JOBS FOR SCHEDULE 1": RUNS,
    # -- external connections
    "CREATE EXTERNAL CONNECTION 'lake' AS 'null://'": None,
    "CREATE EXTERNAL CONNECTION IF NOT EXISTS 'lake' AS 'null://'": None,
    "ALTER EXTERNAL CONNECTION 'spare' AS 'null://'": None,
    "ALTER EXTERNAL CONNECTION IF EXISTS 'lake' AS 'null://'": None,
    "ALTER EXTERNAL CONNECTION IF NOT EXISTS 'lake' AS 'null://'": (
        "write ALTER EXTERNAL CONNECTION IF EXISTS"
    ),
    "DROP EXTERNAL CONNECTION 'spare'": None,
    "SHOW EXTERNAL CONNECTIONS": None,
    "SHOW EXTERNAL CONNECTION 'spare'": None,
    "SHOW CREATE EXTERNAL CONNECTION 'spare'": None,
    "SHOW CREATE ALL EXTERNAL CONNECTIONS": None,
    "CHECK EXTERNAL CONNECTION 'spare'": None,
    "CHECK EXTERNAL CONNECTION 'external://spare'": None,
    "CHECK EXTERNAL CONNECTION 'spare' WITH CONCURRENTLY = 3, TRANSFER = '2 MiB'": (
        "nothing is transferred"
    ),
    # -- settings
    "SET CLUSTER SETTING kv.rangefeed.enabled = true": "it is not needed here",
    "SHOW CLUSTER SETTING kv.rangefeed.enabled": "it is not needed here",
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """The feeds and connections that the forms mean."""
    world = World(tmp_path)
    world.shop()
    world.run("CREATE EXTERNAL CONNECTION spare AS 'null://'")
    world.run("CREATE CHANGEFEED one FOR orders, customers INTO 'null://' WITH updated")
    world.run("CREATE CHANGEFEED two FOR orders INTO 'null://'")
    world.run("CREATE CHANGEFEED three FOR orders INTO 'null://'")
    world.run("CREATE CHANGEFEED four FOR DATABASE shop EXCLUDE TABLES audit.* INTO 'null://'")
    world.run("CREATE SCHEDULE five FOR CHANGEFEED orders INTO 'null://' RECURRING '@hourly'")
    world.run("PAUSE CHANGEFEED two")
    world.run("DROP CHANGEFEED three")
    yield world
    world.close()


@pytest.mark.parametrize("form", [form for form, hint in FORMS.items() if hint is None])
def test_a_form_works(world: World, form: str) -> None:
    result = world.run(form.format(one=1, two=2, three=3, four=4))
    assert result.columns or result.kind == "done"
    if result.stream is not None:
        result.stream.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("form", [form for form, hint in FORMS.items() if hint is not None])
def test_a_form_has_its_own_sentence(form: str) -> None:
    with pytest.raises(SyntaxProblem) as caught:
        parse(form.format(one=1, two=2, three=3, four=4))
    assert (FORMS[form] or "?") in caught.value.hint

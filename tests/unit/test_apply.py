"""``changefeed apply`` and ``export``: what differs, what is done, what the process ends with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from changefeed.apply import ApplyStep, Declaration, referenced
from changefeed.core.errors import ChangefeedError
from grammar.split import split
from shell.cli import cli
from tests.golden.world import World

SHOP = "CREATE EXTERNAL CONNECTION shop AS 'postgresql://app:${SHOP_SECRET}@db:5432/shop';"
SECRETS = {"SHOP_SECRET": "s3cret"}
FILE = f"""
-- the shop
{SHOP}
CREATE EXTERNAL CONNECTION out AS 'kafka://k:9092';
CREATE CHANGEFEED orders FOR orders, items FROM shop INTO 'external://out' WITH resolved = '10s';
CREATE CHANGEFEED copy FOR customers FROM shop INTO 'null://';
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


def declared(world: World, text: str, secrets: Mapping[str, str] = SECRETS) -> Declaration:
    return Declaration([piece.text for piece in split(text)], world.interpreter, secrets)


def applied(world: World, text: str, *, prune: bool = False) -> list[str]:
    done = declared(world, text).apply(prune=prune)
    return [f"{change.sign} {change.what}" for change, _ in done]


def planned(world: World, text: str, *, prune: bool = False) -> list[ApplyStep]:
    return declared(world, text).plan(prune=prune)


def test_users_have_the_roles_of_the_file(world: World) -> None:
    users = "CREATE USER ann WITH role = 'operator'; CREATE USER bob;"
    assert applied(world, users) == ["+ user ann", "+ user bob"]
    assert planned(world, users) == []
    [changed] = planned(world, "CREATE USER ann WITH role = 'admin'; CREATE USER bob")
    assert (changed.what, changed.details) == ("user ann", ("role operator to admin",))
    assert applied(world, "CREATE USER ann WITH role = 'admin'", prune=True) == [
        "~ user ann",
        "- user bob",
    ]
    assert [(user.name, user.role) for user in world.catalog.users()] == [("ann", "admin")]
    # A file without users says nothing about them.
    assert planned(world, SHOP, prune=True)[0].what == "connection shop"
    assert [row[0] for row in world.run("SHOW CREATE ALL").rows] == ["user"]


def test_feeds_have_the_owners_of_the_file(world: World) -> None:
    made = (
        SHOP
        + """CREATE EXTERNAL CONNECTION out AS 'kafka://k:9092';
    CREATE USER bob;
    GRANT CHANGEFEED ON TABLE shop.public.orders TO bob;
    GRANT USAGE ON EXTERNAL CONNECTION shop, out TO bob;
    CREATE CHANGEFEED f FOR orders FROM shop INTO 'external://out';"""
    )
    text = made + "ALTER CHANGEFEED f OWNER TO bob;"
    assert planned(world, text)[-1].what == "owner of changefeed f"
    assert applied(world, text)[-1] == "~ owner of changefeed f"
    assert world.catalog.job("f").owner == "bob"
    assert planned(world, text, prune=True) == []
    exported = [(row[0], row[2]) for row in world.run("SHOW CREATE ALL").rows]
    assert exported[-1] == ("owner", "ALTER CHANGEFEED f OWNER TO bob")
    assert planned(world, ";".join(str(sql) for _, sql in exported)) == []
    # A file without owners says nothing about them.
    assert planned(world, made, prune=True) == []
    for wrong, words in (
        ("CREATE USER eve; ALTER CHANGEFEED g OWNER TO eve", 'changefeed "g" does not exist'),
        ("ALTER CHANGEFEED f OWNER TO eve", 'user "eve" does not exist'),
        ("ALTER CHANGEFEED f OWNER TO bob; ALTER CHANGEFEED f OWNER TO eve", "two statements give"),
    ):
        with pytest.raises(ChangefeedError, match=words):
            planned(world, wrong)


def test_users_have_the_rights_of_the_file(world: World) -> None:
    text = (
        SHOP
        + """CREATE USER bob; CREATE USER ann;
    GRANT CHANGEFEED ON TABLE shop.public.orders, shop.public.items TO bob;
    GRANT USAGE ON EXTERNAL CONNECTION shop TO bob, ann;"""
    )
    assert applied(world, text)[3:] == [
        "+ right of bob on shop.public.orders",
        "+ right of bob on shop.public.items",
        "+ right of bob on shop",
        "+ right of ann on shop",
    ]
    assert planned(world, text, prune=True) == []
    exported = [row[2] for row in world.run("SHOW CREATE ALL").rows if row[0] == "grant"]
    assert "GRANT CHANGEFEED ON TABLE shop.public.orders TO bob" in exported
    assert planned(world, SHOP + ";".join(map(str, exported))) == []
    fewer = text.replace(", shop.public.items", "").replace("CREATE USER ann;", "")
    assert applied(world, fewer.replace(", ann", ""), prune=True) == [
        "- user ann",
        "- right of bob on shop.public.items",
    ]
    assert [grant.name for grant in world.catalog.grants()] == ["", "orders"]
    with pytest.raises(ChangefeedError, match="the whole name of a table"):
        planned(world, "GRANT CHANGEFEED ON TABLE orders TO bob")


def test_a_state_becomes_equal_to_the_file_and_stays_so(world: World) -> None:
    assert [change.sign for change in planned(world, FILE)] == ["+"] * 4
    assert world.catalog.connections() == [] and world.catalog.jobs() == []
    assert applied(world, FILE) == [
        "+ connection shop",
        "+ connection out",
        "+ changefeed orders",
        "+ changefeed copy",
    ]
    assert world.catalog.connection("shop").uri == "postgresql://app:s3cret@db:5432/shop"
    assert planned(world, FILE) == []
    assert applied(world, FILE, prune=True) == []


def test_what_differs_is_changed_and_what_is_surplus_dropped(world: World) -> None:
    applied(world, FILE)
    world.run("CREATE EXTERNAL CONNECTION spare AS 'null://'")
    text = FILE.replace("'10s'", "'5s'").replace("orders, items", "orders")
    text = text.replace("k:9092", "k2:9092").partition("CREATE CHANGEFEED copy")[0]
    plan = planned(world, text, prune=True)
    assert [(change.sign, change.what) for change in plan] == [
        ("~", "connection out"),
        ("~", "changefeed orders"),
        ("-", "changefeed copy"),
        ("-", "connection spare"),
    ]
    assert plan[0].details == ("change kafka://k:9092 to kafka://k2:9092",)
    assert plan[1].details == (
        "drop public.items",
        "change resolved from '10s' to '5s'",
        "leave shop.public.items",
    )
    assert [change.what for change in planned(world, text)] == [
        "connection out",
        "changefeed orders",
    ]
    applied(world, text, prune=True)
    assert [job.name for job in world.catalog.jobs()] == ["orders"]
    assert world.catalog.job("orders").options == {"resolved": "5s"}
    assert {c.name for c in world.catalog.connections()} == {"shop", "out"}


def test_a_secret_that_is_not_set_is_the_one_that_is_there(world: World) -> None:
    plan = declared(world, FILE, {}).plan(prune=False)
    assert plan[0].missing == ("SHOP_SECRET",)
    with pytest.raises(ChangefeedError, match="connection shop needs the environment variable"):
        list(declared(world, FILE, {}).apply(prune=False))
    assert world.catalog.connections() == []
    applied(world, FILE)
    assert declared(world, FILE, {}).plan(prune=False) == []
    changed = declared(world, FILE, {"SHOP_SECRET": "new"}).plan(prune=False)
    assert [change.details for change in changed] == [("change what is secret of it",)]
    assert "new" not in repr(changed)


def test_what_is_exported_applies_without_a_difference(world: World) -> None:
    applied(world, FILE)
    shown = world.run("SHOW CREATE ALL")
    text = "".join(f"{row[2]};\n" for row in shown.rows)
    assert "app:${SHOP_SECRET}@db" in text and "s3cret" not in text
    assert "${NAME}" in shown.notices[0]
    assert planned(world, text, prune=True) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("DROP ALL CHANGEFEEDS", "takes statements that create something with a name"),
        ("CREATE CHANGEFEED FOR orders INTO 'null://'", "something with a name"),
        ("CREATE CHANGEFED f", "syntax error"),
        (SHOP * 2, "two statements create the connection shop"),
    ],
)
def test_what_cannot_be_declared(world: World, text: str, message: str) -> None:
    with pytest.raises(ChangefeedError, match=message):
        declared(world, text)


def test_nothing_is_done_where_one_feed_is_wrong(world: World) -> None:
    applied(world, FILE)
    text = FILE.replace("'10s'", "'5s'").replace("customers", "custommers")
    with pytest.raises(ChangefeedError, match="custommers"):
        applied(world, text)
    assert world.catalog.job("orders").options == {"resolved": "10s"}


def test_references_stand_in_strings_only() -> None:
    text = "CREATE CHANGEFEED f FOR t INTO 'kafka://u:${P}@h' WITH a = '${Q}' -- ${R}"
    given, missing = referenced(text, {"P": "it's"})
    assert given == "CREATE CHANGEFEED f FOR t INTO 'kafka://u:it''s@h' WITH a = 'redacted' -- ${R}"
    assert missing == ("Q",)


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, file = str(tmp_path / "state"), tmp_path / "feeds.sql"
    file.write_text(
        "CREATE EXTERNAL CONNECTION k AS 'kafka://u:${KAFKA_PASSWORD}@h:9092' WITH check = 'no';\n"
    )

    def run(*flags: str) -> tuple[int, str, str]:
        done = CliRunner().invoke(cli, ["--state", state, *flags], catch_exceptions=False)
        return done.exit_code, done.stdout, done.stderr

    assert run("apply", str(file), "--plan") == (
        2,
        "+ connection k\n    needs KAFKA_PASSWORD in the environment\n1 to make\n",
        "",
    )
    status, _, said = run("apply", str(file))
    assert status == 1 and "KAFKA_PASSWORD" in said
    monkeypatch.setenv("KAFKA_PASSWORD", "hunter2")
    assert run("apply", str(file))[:2] == (0, "+ connection k\n1 made\n")
    assert run("apply", str(file), "--plan")[:2] == (0, "nothing differs\n")
    status, printed, said = run("export")
    assert (status, printed) == (
        0,
        "CREATE EXTERNAL CONNECTION k AS 'kafka://u:${K_SECRET}@h:9092';\n",
    )
    assert "hunter2" not in printed + said
    file.write_text("SHOW JOBS")
    status, _, said = run("apply", str(file))
    assert status == 1 and f"{file}:1: ERROR CF1303" in said

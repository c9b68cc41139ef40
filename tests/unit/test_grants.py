"""Who owns a feed, what a right on a table or connection lets a user do, and what REVOKE ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from changefeed.api import Result, Role, Session
from changefeed.catalog import (
    DesiredStatus,
    Function,
    JobSpec,
    Status,
)
from changefeed.catalog.rows import DeadLetter
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableName
from changefeed.pg.server import PgServer
from grammar.parser import parse
from grammar.printer import to_sql
from tests.golden.world import World
from tests.helpers.served import Bench

ORDERS = TableName("shop", "public", "orders")
GIVEN = (
    "GRANT CHANGEFEED ON TABLE orders TO bob",
    "GRANT USAGE ON EXTERNAL CONNECTION shop, out TO bob",
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A source, two connections of sinks, a feed of the admins, and bob, who may feed orders."""
    world = World(tmp_path)
    world.shop()
    world.run("CREATE EXTERNAL CONNECTION out AS 'kafka://k:9092' WITH check = 'no'")
    world.run("CREATE EXTERNAL CONNECTION vault AS 'kafka://v:9092' WITH check = 'no'")
    world.run("CREATE CHANGEFEED theirs FOR items INTO 'external://vault'")
    world.run("CREATE USER bob")
    for statement in GIVEN:
        world.run(statement)
    yield world
    world.close()


def by(world: World, statement: str, user: str = "bob") -> Result:
    """What a viewer's statement answers."""
    session = Session(client="http", user=user, role=Role.VIEWER)
    return world.interpreter.execute(statement, session)


def refused(world: World, statement: str, words: str = "", user: str = "bob") -> ChangefeedError:
    with pytest.raises(ChangefeedError) as caught:
        by(world, statement, user)
    codes = {each.code for each in getattr(caught.value, "problems", [caught.value])}
    assert codes == {Code.RIGHT_MISSING}, caught.value
    assert words in f"{caught.value.message} {caught.value.hint}"
    return caught.value


@pytest.mark.parametrize(
    "statement",
    [
        "GRANT operator TO ann",
        'REVOKE admin FROM ann, "Bob X"',
        'GRANT CHANGEFEED ON TABLE orders, shop.public."Odd Name" TO bob',
        "REVOKE CHANGEFEED ON SCHEMA shop.public, audit FROM bob",
        "GRANT USAGE ON EXTERNAL CONNECTION shop, out TO bob, ann",
        "SHOW GRANTS",
        "SHOW GRANTS FOR bob WHERE right = 'USAGE' LIMIT 3",
    ],
)
def test_statements_about_rights_are_printed_as_they_parse(statement: str) -> None:
    parsed = parse(statement)
    assert to_sql(parsed) == statement and parse(to_sql(parsed)) == parsed


def test_a_user_makes_feeds_of_granted_tables_and_owns_them(world: World) -> None:
    by(world, "CREATE CHANGEFEED f FOR orders INTO 'external://out'")
    (shown,) = world.run("SHOW CHANGEFEEDS WHERE name = 'f'").objects()
    assert shown["owner"] == "bob" and world.catalog.job("theirs").owner is None
    for statement in (
        "ALTER CHANGEFEED f SET resolved = '5s'",
        "PAUSE CHANGEFEED f",
        "RESUME CHANGEFEED f",
        "ALTER CHANGEFEED f RESCAN",
        "CREATE OR REPLACE CHANGEFEED f FOR orders INTO 'external://out'",
        "VALIDATE CHANGEFEED f",
        "EXPLAIN CREATE CHANGEFEED FOR orders INTO 'external://out'",
        "EXPLAIN ALTER CHANGEFEED f SET resolved = '7s'",
        "EXPLAIN ANALYZE CREATE CHANGEFEED FOR orders INTO 'external://out'",
        "ALTER CHANGEFEED f RENAME TO g",
        "CHECK EXTERNAL CONNECTION out",
        "DROP CHANGEFEED g",
    ):
        by(world, statement)
    assert world.interpreter.feeds() == ["theirs"]


#: What a viewer with one table may not do, and words of the refusal.
ATTACKS = [
    # Another table.
    (
        "CREATE CHANGEFEED g FOR items INTO 'external://out'",
        "GRANT CHANGEFEED ON TABLE shop.public.items TO bob",
    ),
    ("CREATE CHANGEFEED g FOR orders, items INTO 'external://out'", "public.items"),
    ("CREATE CHANGEFEED g FOR audit.orders INTO 'external://out'", "shop.audit.orders"),
    ("CREATE CHANGEFEED g FOR SCHEMA public INTO 'external://out'", "ON SCHEMA shop.public"),
    ("CREATE CHANGEFEED g FOR DATABASE shop INTO 'external://out'", "a DATABASE target"),
    (
        "CREATE CHANGEFEED g FOR MESSAGES PREFIX 'a%' INTO 'external://out'",
        "a MESSAGES target",
    ),
    ("CREATE CHANGEFEED FOR items", "shop.public.items"),
    ("EXPERIMENTAL CHANGEFEED FOR items", "shop.public.items"),
    ("ALTER CHANGEFEED f ADD items", "shop.public.items"),
    ("ALTER CHANGEFEED f ADD SCHEMA audit", "ON SCHEMA shop.audit"),
    ("CREATE OR REPLACE CHANGEFEED f FOR orders, items INTO 'external://out'", "public.items"),
    ("EXPLAIN CREATE CHANGEFEED FOR items INTO 'external://out'", "shop.public.items"),
    ("EXPLAIN ANALYZE CREATE CHANGEFEED FOR items INTO 'external://out'", "shop.public.items"),
    # Another place.
    ("CREATE CHANGEFEED g FOR orders INTO 'file:///etc'", "INTO 'external://name'"),
    ("CREATE CHANGEFEED g FOR orders INTO 'kafka://169.254.169.254:80'", "a sink's URI"),
    ("CREATE CHANGEFEED g FOR orders INTO 'external://vault'", "ON EXTERNAL CONNECTION vault"),
    ("CREATE CHANGEFEED g FOR orders INTO 'EXTERNAL://%76ault'", "vault TO bob"),
    (
        "CREATE CHANGEFEED g FOR orders INTO 'external://out?ca_cert=/etc/shadow'",
        "a parameter of a connection",
    ),
    ("CREATE CHANGEFEED g FOR orders INTO 'external://out/../vault'", "USAGE"),
    ("EXPLAIN CREATE CHANGEFEED FOR orders INTO 'file:///etc'", "a sink's URI"),
    ("ALTER CHANGEFEED f INTO 'external://vault'", "ON EXTERNAL CONNECTION vault"),
    ("ALTER CHANGEFEED f SET sink = 'kafka://evil:9092'", "a sink's URI"),
    ("EXPLAIN CREATE OR REPLACE CHANGEFEED f FOR orders INTO 'null://'", "a sink's URI"),
    ("VALIDATE ALTER CHANGEFEED theirs INTO 'null://'", "role admin"),
    ("EXPLAIN ALTER CHANGEFEED theirs SET diff", "role admin"),
    ("EXPLAIN ALTER CHANGEFEED f ADD items", "shop.public.items"),
    ("CHECK EXTERNAL CONNECTION 'kafka://169.254.169.254:80'", "role admin"),
    ("CHECK EXTERNAL CONNECTION 'external://out?ca_cert=/etc/shadow'", "role operator"),
    ("CHECK EXTERNAL CONNECTION vault", "GRANT USAGE ON EXTERNAL CONNECTION vault TO bob"),
    # By an option.
    (
        "CREATE CHANGEFEED g FOR orders INTO 'external://out' WITH format = 'avro', "
        "confluent_schema_registry = 'http://169.254.169.254'",
        "the option confluent_schema_registry",
    ),
    (
        "ALTER CHANGEFEED f SET confluent_schema_registry = 'http://169.254.169.254'",
        "the option confluent_schema_registry",
    ),
    (
        "CREATE CHANGEFEED g FOR orders INTO 'external://out' "
        'WITH extra_headers = \'{"a": "${exec:id}"}\'',
        "a reference to a secret",
    ),
    (
        "CREATE CHANGEFEED g FOR orders INTO 'external://out' "
        "WITH on_max_disk = 'wait', max_disk = '1GiB'",
        "the option on_max_disk",
    ),
    # By a query.
    (
        "CREATE CHANGEFEED g INTO 'external://out' AS SELECT o.id, p.x FROM orders o "
        "JOIN parquet.`/etc` p ON o.id = p.id",
        "a look-up table",
    ),
    (
        "CREATE CHANGEFEED g INTO 'external://out' AS SELECT id, mask(note) AS m FROM orders",
        "the function mask",
    ),
    (
        "CREATE CHANGEFEED g INTO 'external://out' AS SELECT id, `MASK` (note) AS m FROM orders",
        "the function mask",
    ),
    (
        "CREATE CHANGEFEED g INTO 'external://out' AS SELECT id, "
        "from_xml(note, 'a int', map('rowValidationXSDPath', '/etc/shadow')) AS m FROM orders",
        "the function from_xml",
    ),
    ("CREATE CHANGEFEED g INTO 'external://out' AS SELECT sku FROM items", "public.items"),
    # The feeds of others, and all.
    *(
        (f"{verb} CHANGEFEED theirs{rest}", "bob has the role viewer")
        for verb, rest in (
            ("PAUSE", ""),
            ("DROP", ""),
            ("RESUME", ""),
            ("VERIFY", ""),
            ("SYNC", ""),
            ("ALTER", " RESCAN"),
            ("ALTER", " RENAME TO mine"),
            ("ALTER", " SET diff"),
            ("ALTER", " SKIP TRANSACTION '1.0'"),
            ("RETRY", " DEAD LETTERS"),
            ("DISCARD", " DEAD LETTERS"),
        )
    ),
    ("PAUSE CHANGEFEED f, theirs", "bob has the role viewer"),
    ("PAUSE CHANGEFEED theirs TABLE items", "bob has the role viewer"),
    ("RESUME CHANGEFEED theirs TABLE items", "bob has the role viewer"),
    ("DROP ALL CHANGEFEEDS", "bob has the role viewer"),
    ("CANCEL JOB 1", "bob has the role viewer"),
    (
        "CREATE OR REPLACE CHANGEFEED theirs FOR orders INTO 'external://out'",
        "bob has the role viewer",
    ),
    # What only an admin has.
    ("ALTER EXTERNAL CONNECTION out AS 'file:///etc'", "role admin"),
    ("CREATE EXTERNAL CONNECTION c AS 'file:///etc'", "role admin"),
    ("CREATE CHANGEFEED FOR DATASET '/etc/*.csv' KEY (a) INTO 'external://out'", "role admin"),
    (
        "CREATE CDC FOR orders INTO KAFKA WITH cluster_address = '169.254.169.254:80'",
        "role admin",
    ),
    ("GRANT admin TO bob", "role admin"),
    ("GRANT CHANGEFEED ON TABLE items TO bob", "role admin"),
    ("REVOKE CHANGEFEED ON TABLE orders FROM bob", "role admin"),
    ("SHOW GRANTS FOR ann", "sees the own rights only"),
]


def test_a_right_reaches_no_further(world: World) -> None:
    by(world, "CREATE CHANGEFEED f FOR orders INTO 'external://out'")
    world.catalog.create_function(Function("mask", (("note", "string"),), "string", "m:mask"))
    before = world.catalog.jobs()
    for statement, words in ATTACKS:
        refused(world, statement, words)
    assert world.catalog.jobs() == before


def test_nothing_is_asked_of_a_place_that_was_not_granted(world: World) -> None:
    """Not even by VALIDATE, which shows problems as rows."""
    for sink in ("kafka://169.254.169.254:80", "external://vault", "external://out?x=y"):
        result = by(world, f"VALIDATE CREATE CHANGEFEED FOR orders INTO '{sink}'")
        assert result.failure is not None and result.failure.code is Code.RIGHT_MISSING
    assert world.probed == []
    assert by(world, "VALIDATE CREATE CHANGEFEED FOR orders INTO 'external://out'").failure is None
    assert world.probed == ["orders"]


def test_a_topic_does_not_leave_the_folder_of_a_connection(world: World, tmp_path: Path) -> None:
    world.run(f"CREATE EXTERNAL CONNECTION files AS 'file://{tmp_path}/out'")
    world.run("GRANT USAGE ON EXTERNAL CONNECTION files TO bob")
    by(world, "CREATE CHANGEFEED f FOR orders AS '../../etc/cron.d/x' INTO 'external://files'")
    (table,) = world.catalog.tables(world.catalog.job("f").id)
    assert "/" not in table.topic


def test_a_schema_is_granted_with_its_tables_to_come(world: World) -> None:
    world.run("GRANT CHANGEFEED ON SCHEMA audit TO bob")
    by(world, "CREATE CHANGEFEED f FOR SCHEMA audit INTO 'external://out'")
    refused(world, "ALTER CHANGEFEED f ADD SCHEMA public", "ON SCHEMA shop.public")
    world.run("GRANT CHANGEFEED ON TABLE audit.log, audit.log_old, audit.orders TO bob")
    world.run("REVOKE CHANGEFEED ON SCHEMA audit FROM bob")
    refused(world, "RESUME CHANGEFEED f", "ON SCHEMA shop.audit")


def test_revoke_ends_the_feeds_that_need_the_right(world: World) -> None:
    world.run("GRANT CHANGEFEED ON TABLE items TO bob")
    by(world, "CREATE CHANGEFEED f FOR orders, items INTO 'external://out'")
    by(world, "CREATE CHANGEFEED g FOR items INTO 'external://out' WITH full_table_name")
    result = world.run("REVOKE CHANGEFEED ON TABLE orders FROM bob")
    assert result.notices == [
        'changefeed "f" is paused: user bob does not have the right CHANGEFEED ON TABLE '
        "shop.public.orders"
    ]
    assert world.catalog.job("f").status is Status.PAUSED
    assert world.catalog.job("g").status is not Status.PAUSED
    events = world.catalog.events(world.catalog.job("f").id)
    assert [event.text for event in events if event.code == "CF1403"] == [
        result.notices[0].partition("paused: ")[2]
    ]
    refused(world, "RESUME CHANGEFEED f", "GRANT CHANGEFEED ON TABLE shop.public.orders TO bob")
    with pytest.raises(ChangefeedError, match=r"shop\.public\.orders"):
        world.run("RESUME CHANGEFEED f")
    # No row of the table is shown or delivered meanwhile, not even to compare it.
    for statement in ("VERIFY CHANGEFEED f", "RETRY CHANGEFEED f DEAD LETTERS"):
        refused(world, statement, "shop.public.orders")
    # Without the table the rest may go on; so may all of it once the right is back.
    by(world, "ALTER CHANGEFEED f DROP orders")
    by(world, "RESUME CHANGEFEED f")
    world.run("REVOKE USAGE ON EXTERNAL CONNECTION out FROM bob")
    assert {job.name for job in world.catalog.jobs() if job.status is Status.PAUSED} == {"f", "g"}
    world.run("GRANT USAGE ON EXTERNAL CONNECTION out TO bob")
    by(world, "RESUME CHANGEFEED f, g")


def test_a_dropped_user_leaves_nothing_to_one_of_the_same_name(world: World) -> None:
    by(world, "CREATE CHANGEFEED f FOR orders INTO 'external://out'")
    assert "paused" in world.run("DROP USER bob").notices[0]
    world.run("CREATE USER bob")
    assert world.run("SHOW GRANTS").rows == []
    for statement in ("DROP CHANGEFEED f", "RESUME CHANGEFEED f", "ALTER CHANGEFEED f SET diff"):
        refused(world, statement)
    refused(world, "CREATE CHANGEFEED g FOR orders INTO 'external://out'", "role admin")
    operator = Session(client="http", user="oscar", role=Role.OPERATOR)
    with pytest.raises(ChangefeedError, match="was dropped"):
        world.interpreter.execute("RESUME CHANGEFEED f", operator)
    world.run("RESUME CHANGEFEED f")
    job = world.catalog.job("f")
    assert job.owner is None and job.wanted is DesiredStatus.RUNNING


def test_a_dropped_connection_leaves_no_right_to_one_of_the_same_name(world: World) -> None:
    world.run("DROP EXTERNAL CONNECTION out")
    world.run("CREATE EXTERNAL CONNECTION out AS 'kafka://inner:9092' WITH check = 'no'")
    refused(world, "CREATE CHANGEFEED f FOR orders INTO 'external://out'", "CONNECTION out TO bob")


def test_an_admin_does_not_widen_a_feed_of_a_user_by_mistake(world: World) -> None:
    by(world, "CREATE CHANGEFEED f FOR orders INTO 'external://out'")
    with pytest.raises(ChangefeedError, match="user bob does not have the right"):
        world.run("ALTER CHANGEFEED f ADD items")
    world.run("ALTER CHANGEFEED f SET resolved = '1s'")
    world.run("GRANT CHANGEFEED ON TABLE items TO bob")
    world.run("ALTER CHANGEFEED f ADD items")


def test_roles_are_granted_and_revoked(world: World) -> None:
    world.run("GRANT operator TO bob")
    assert [user.role for user in world.catalog.users()] == ["operator"]
    with pytest.raises(ChangefeedError, match="has the role operator, not admin"):
        world.run("REVOKE admin FROM bob")
    world.run("REVOKE operator FROM bob")
    with pytest.raises(ChangefeedError, match="a viewer at least"):
        world.run("REVOKE viewer FROM bob")
    with pytest.raises(ChangefeedError, match='there is no role "operater"') as caught:
        world.run("GRANT operater TO bob")
    assert caught.value.hint == 'did you mean "operator"?'


def test_a_feed_of_an_admin_ends_when_the_role_goes_and_a_right_is_missing(world: World) -> None:
    """A feed that bob made, and widened while an admin."""
    by(world, "CREATE CHANGEFEED f FOR orders INTO 'external://out'")
    world.run("GRANT admin TO bob")
    world.interpreter.execute(
        "ALTER CHANGEFEED f ADD items", Session(client="http", user="bob", role=Role.ADMIN)
    )
    assert world.run("REVOKE admin FROM bob").notices[0].startswith('changefeed "f" is paused')
    refused(world, "RESUME CHANGEFEED f", "shop.public.items")


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("GRANT CHANGEFEED ON TABLE nothing TO bob", 'table "nothing" does not exist'),
        ("GRANT CHANGEFEED ON SCHEMA nothing TO bob", 'schema "nothing" does not exist'),
        ("GRANT USAGE ON EXTERNAL CONNECTION ot TO bob", 'connection "ot" does not exist'),
        ("GRANT CHANGEFEED ON TABLE orders TO rob", 'user "rob" does not exist'),
        ("REVOKE CHANGEFEED ON TABLE items FROM bob", "no such right on table items"),
        ("SHOW GRANTS FOR rob", 'user "rob" does not exist'),
    ],
)
def test_what_is_wrong_with_a_grant(world: World, statement: str, words: str) -> None:
    with pytest.raises(ChangefeedError, match=words):
        world.run(statement)


def test_a_name_that_stands_for_two_rights_is_written_whole(world: World) -> None:
    world.run("GRANT CHANGEFEED ON TABLE audit.orders TO bob")
    with pytest.raises(ChangefeedError, match="is one of several"):
        world.run("REVOKE CHANGEFEED ON TABLE orders FROM bob")
    world.run("REVOKE CHANGEFEED ON TABLE shop.audit.orders FROM bob")
    assert [row["name"] for row in world.run("SHOW GRANTS WHERE kind = 'table'").objects()] == [
        "orders"
    ]


def test_the_doors_know_the_owner(world: World, tmp_path: Path) -> None:
    """Over HTTP, where the token says who it is."""
    bench = Bench(world)
    with bench.serve(logins=True) as bench.server:
        (row,) = world.run("ALTER USER bob WITH token = 'new'").rows
        bench.token = str(row[-1])
        made = "CREATE CHANGEFEED f FOR orders INTO 'external://out'"
        assert bench.run(made)[0] == 200
        assert bench.json("/v1/feeds/f/pause", {})[1]["status"] == "paused"
        assert bench.json("/v1/feeds/theirs/pause", {})[0] == 403
        status, body = bench.run("CREATE CHANGEFEED g FOR items INTO 'external://out'")
        assert (status, body["code"]) == (403, "CF1403")
        assert "GRANT CHANGEFEED ON TABLE shop.public.items TO bob" in body["hint"]
        shown = world.run("SHOW AUDIT WHERE user = 'bob' LIMIT 2").objects()
        assert [entry["code"] for entry in shown] == ["CF1403", "CF1403"]


def test_a_session_over_postgresql_is_bound_alike_and_ends_with_its_user(world: World) -> None:
    (row,) = world.run("ALTER USER bob WITH token = 'new'").rows
    with PgServer("127.0.0.1", 0, world.interpreter, logins=True, patience=2) as server:
        host, _, port = server.address.rpartition(":")
        given = make_conninfo("", host=host, port=port, user="bob", password=str(row[-1]))
        with psycopg.connect(given, autocommit=True) as client:
            client.execute("CREATE CHANGEFEED f FOR orders INTO 'external://out'")
            for statement in (
                "CREATE CHANGEFEED g FOR items INTO 'external://out'",
                "ALTER CHANGEFEED f INTO 'file:///etc'",
                "DROP CHANGEFEED theirs",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    client.execute(statement.encode())
            rows = client.execute("SELECT kind, source, name FROM grants ORDER BY 1, 2").fetchall()
            assert rows[-1] == ("table", "shop", "orders") and len(rows) == 3
            world.run("DROP USER bob")
            world.run("CREATE USER bob WITH role = 'admin'")
            with pytest.raises(psycopg.OperationalError, match="the login has ended"):
                client.execute("RESUME CHANGEFEED f")


def test_the_owner_sees_the_values_of_dead_letters_while_the_right_lasts(world: World) -> None:
    by(world, "CREATE CHANGEFEED f FOR orders INTO 'external://out'")
    job = world.catalog.job("f")
    row = '{"id": 7}'
    letter = DeadLetter(ORDERS, "i", Timestamp(1), "c", "CF4101", "no", "digest", "[7]", row)
    assert world.catalog.keep_dead_letter(job.id, letter, world.node._leases[job.id])

    def seen(user: str = "bob") -> tuple[object, object]:
        (shown,) = by(world, "SHOW CHANGEFEED f DEAD LETTERS", user).objects()
        return shown["key"], shown["row"]

    assert seen() == ("[7]", row) and seen("eve") == ("digest", None)
    world.run("REVOKE CHANGEFEED ON TABLE orders FROM bob")
    assert seen() == ("digest", None)


def test_a_feed_changes_its_owner(world: World) -> None:
    """An admin gives it to a user with the rights, an owner to another one, who may then alter
    it."""
    world.run("CREATE CHANGEFEED f FOR orders INTO 'external://out'")
    world.run("CREATE USER ann")
    with pytest.raises(ChangefeedError, match="user ann does not have the right USAGE") as lacking:
        world.run("ALTER CHANGEFEED f OWNER TO ann")
    assert lacking.value.code is Code.RIGHT_MISSING and "GRANT" in lacking.value.hint
    assert world.catalog.job("f").owner is None
    before = world.catalog.job("f").generation
    world.run("ALTER CHANGEFEED f OWNER TO bob")
    # A running feed reads its owner anew.
    assert world.catalog.job("f").generation > before
    by(world, "ALTER CHANGEFEED f SET resolved = '5s'")
    refused(world, "ALTER CHANGEFEED theirs OWNER TO bob", "role admin")
    refused(world, "ALTER CHANGEFEED f OWNER TO ann", "role admin", user="ann")
    for right in GIVEN:
        world.run(right.replace("bob", "ann"))
    by(world, "ALTER CHANGEFEED f OWNER TO ann")
    assert world.catalog.job("f").owner == "ann"
    refused(world, "ALTER CHANGEFEED f OWNER TO bob", "role admin")
    said = [str(row[3]) for row in world.run("SHOW CHANGEFEED f EVENTS").rows]
    assert 'owner changed from "bob" to "ann" (by bob)' in said
    assert 'owner changed from the admins to "bob" (by ann)' in said


def test_only_an_admin_makes_a_feed_one_of_the_admins(world: World) -> None:
    by(world, "CREATE CHANGEFEED f FOR orders INTO 'external://out'")
    world.run("CREATE USER root WITH role = 'admin'")
    refused(world, "ALTER CHANGEFEED f OWNER TO root", "only an admin")
    world.run("ALTER CHANGEFEED f OWNER TO root")
    assert world.catalog.job("f").owner is None
    with pytest.raises(ChangefeedError, match='user "bo" does not exist') as unknown:
        world.run("ALTER CHANGEFEED f OWNER TO bo")
    assert 'did you mean "bob"' in unknown.value.hint
    assert unknown.value.span is not None


def test_a_feed_of_a_dropped_user_gets_an_owner(world: World) -> None:
    by(world, "CREATE CHANGEFEED f FOR orders INTO 'external://out'")
    world.run("CREATE USER ann")
    for right in GIVEN:
        world.run(right.replace("bob", "ann"))
    world.run("DROP USER bob")
    result = world.run("ALTER CHANGEFEED f OWNER TO ann")
    assert result.notices == ['changefeed "f" is paused: RESUME CHANGEFEED f continues it']
    by(world, "RESUME CHANGEFEED f", user="ann")
    assert world.catalog.job("f").wanted is DesiredStatus.RUNNING


def test_two_missing_rights_are_two_errors(world: World) -> None:
    """A feed that a missing right pauses does not try again: each cause is an error of its own."""
    by(world, "CREATE CHANGEFEED f FOR orders INTO 'external://out'")
    job = world.catalog.job("f")
    world.run("REVOKE USAGE ON EXTERNAL CONNECTION out FROM bob")
    world.catalog.stands_still(job.id)
    world.run("GRANT USAGE ON EXTERNAL CONNECTION out TO bob")
    world.run("RESUME CHANGEFEED f")
    world.run("REVOKE CHANGEFEED ON TABLE orders FROM bob")
    world.catalog.stands_still(job.id)
    shown = world.run("SHOW CHANGEFEED f ERRORS").objects()
    assert [(row["kind"], row["code"], row["times"]) for row in shown] == [
        ("error", "CF1403", 1),
        ("error", "CF1403", 1),
    ]
    assert "CHANGEFEED ON TABLE" in str(shown[0]["problem"])


def test_a_stream_ends_and_is_not_paused(world: World) -> None:
    """Neither notice nor error speak of a feed that could be resumed."""
    spec = JobSpec("shop", ("orders",), (), "feed_9", sinkless=True, owner="bob")
    job = world.catalog.create_job(spec)
    (notice, *_) = world.run("REVOKE USAGE ON EXTERNAL CONNECTION shop FROM bob").notices
    assert notice.startswith('the stream "feed_9" ends: user bob does not have the right USAGE')
    world.run("DROP USER bob")
    lacking = world.catalog.hindrance(job.id)
    assert lacking is not None and "RESUME" not in lacking.hint


def test_hints_name_what_helps(world: World) -> None:
    schedule = "CREATE SCHEDULE s FOR CHANGEFEED orders INTO 'external://out' RECURRING '@daily'"
    for statement in (schedule, f"EXPLAIN {schedule}"):
        error = refused(world, statement, "role admin")
        assert error.hint == ("an admin can give another role: ALTER USER bob WITH role = 'admin'.")
    world.run(
        "CREATE EXTERNAL CONNECTION crm AS 'postgresql://app:pw@db:5432/crm' WITH check = 'no'"
    )
    # No USE, and no source that was the only one once.
    fresh = Session(user="ann")
    for target, whole in (("SCHEMA nosuch", "crm.nosuch"), ("TABLE orders", "crm.orders")):
        with pytest.raises(ChangefeedError) as several:
            world.interpreter.execute(f"GRANT CHANGEFEED ON {target} TO bob", fresh)
        assert several.value.hint.startswith(
            f"write ON {target.split()[0]} {whole}, or run USE crm"
        )

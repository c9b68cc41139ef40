"""``changefeed.connect`` against PEP 249: in this process and over HTTP, with the same answers."""

from __future__ import annotations

import asyncio
import datetime as dt
import traceback
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

import changefeed
from changefeed import dbapi
from changefeed.api import Result
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.dbapi import Connection
from changefeed.dbapi.errors import error_of
from changefeed.dbapi.feed import Moment, upto_of
from tests.golden.world import NOW
from tests.helpers.connections import KINDS, Steps, connected
from tests.helpers.served import Bench

MADE = "CREATE CHANGEFEED f FOR orders, items INTO 'kafka://u:hunter2@k:9092'"


@pytest.fixture(params=KINDS)
def connection(bench: Bench, request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A connection to a state with a feed."""
    bench.world.run(MADE)
    with connected(bench, request.param) as made:
        yield made


# ------------------------------------------------------------------------------ the module


def test_the_module_says_what_it_is() -> None:
    assert (dbapi.apilevel, dbapi.threadsafety, dbapi.paramstyle) == ("2.0", 1, "numeric")
    assert issubclass(dbapi.Warning, Exception) and issubclass(dbapi.Error, Exception)
    assert not issubclass(dbapi.Warning, dbapi.Error)
    assert dbapi.InterfaceError.__bases__ == dbapi.DatabaseError.__bases__ == (dbapi.Error,)
    for name in ("Data", "Operational", "Integrity", "Internal", "Programming", "NotSupported"):
        kind = getattr(dbapi, f"{name}Error")
        assert kind.__bases__ == (dbapi.DatabaseError,)
        assert getattr(Connection, kind.__name__) is kind
    assert dbapi.Timestamp(2026, 1, 2, 3, 4, 5) == dt.datetime(2026, 1, 2, 3, 4, 5)
    assert dbapi.Date(2026, 1, 2) == dt.date(2026, 1, 2) and dbapi.Binary(b"x") == b"x"
    assert dbapi.TimestampFromTicks(0) == dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    noon = dt.datetime(2026, 1, 2, 12, 30).timestamp()
    assert dbapi.DateFromTicks(noon) == dt.date(2026, 1, 2)
    assert dbapi.TimeFromTicks(noon) == dbapi.Time(12, 30)
    assert changefeed.connect is dbapi.connect and changefeed.aconnect is dbapi.aconnect


def test_every_error_has_a_class() -> None:
    for code in Code:
        check_class(code)


def check_class(code: Code) -> None:
    error = ChangefeedError(code, "it is wrong", detail="a fact", hint="do this").located("a\nbc")
    made = error_of(error)
    assert type(made) is not dbapi.DatabaseError
    assert (made.code, str(made), made.detail, made.hint) == (
        code.number,
        "it is wrong",
        "a fact",
        "do this",
    )
    shown = "".join(traceback.format_exception(made))
    assert all(part in shown for part in (code.number, "DETAIL: a fact", "HINT: do this"))
    if code.number[:3] in ("CF2", "CF5", "CF6"):
        assert isinstance(made, dbapi.OperationalError)
    if code.number[:3] == "CF9":
        assert isinstance(made, dbapi.InternalError)


# -------------------------------------------------------------------------- rows and types


def test_rows_are_python_values(bench: Bench, connection: Connection) -> None:
    bench.world.node.deliver("f", NOW - 90 * 10**9, rows=50)
    cursor = connection.cursor()
    assert cursor.description is None and cursor.rowcount == -1
    assert cursor.execute("SHOW CHANGEFEEDS;") is cursor and cursor.connection is connection
    assert cursor.rowcount == 1 and cursor.description is not None
    assert {len(column) for column in cursor.description} == {7}
    names = [column[0] for column in cursor.description]
    types = {column[0]: column[1] for column in cursor.description}
    row = cursor.fetchone()
    assert row is not None and cursor.fetchone() is None and cursor.fetchall() == []
    feed = dict(zip(names, row, strict=True))
    assert (feed["job_id"], feed["name"], feed["lag"]) == (1, "f", 90.0)
    assert type(feed["lag"]) is float and type(feed["name"]) is str
    assert feed["created"] == dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC)
    assert feed["full_table_names"] == ["shop.public.items", "shop.public.orders"]
    assert feed["error"] is None and "hunter2" not in repr(row)
    assert Timestamp.parse(feed["high_water_timestamp"]) == Timestamp(NOW - 90 * 10**9)
    assert types["job_id"] == dbapi.NUMBER != types["name"] == dbapi.STRING
    assert types["created"] == dbapi.DATETIME and types["topics"] == dbapi.LIST
    assert types["lag"] == dbapi.NUMBER and dbapi.ROWID not in types.values()


def test_fetching(connection: Connection) -> None:
    cursor = connection.execute("SHOW TABLES ORDER BY table")
    first = cursor.fetchone()
    assert first is not None and len(cursor.fetchmany()) == cursor.arraysize == 1
    assert len(cursor.fetchmany(3)) == 3
    cursor.arraysize = 2
    assert len(cursor.fetchmany()) == 2
    rest = list(cursor)
    assert cursor.rowcount == 7 + len(rest) and cursor.fetchmany(5) == []
    assert [first, *rest] == sorted([first, *rest]), "in the order that was asked for"
    with connection.cursor() as other:
        assert other.execute("SHOW TABLES LIMIT 0").fetchall() == [] and other.description
    with pytest.raises(dbapi.InterfaceError, match="cursor is closed"):
        other.execute("SHOW TABLES")
    other.close()
    cursor.setinputsizes([10])
    cursor.setoutputsize(10)


def test_a_statement_without_rows(connection: Connection) -> None:
    cursor = connection.execute("USE shop")
    assert (cursor.description, cursor.rowcount) == (None, -1)
    for fetch in (cursor.fetchone, cursor.fetchmany, cursor.fetchall):
        with pytest.raises(dbapi.ProgrammingError, match="no statement with rows"):
            fetch()
    connection.execute("CREATE EXTERNAL CONNECTION o AS 'postgresql://o/o' WITH check = 'no'")
    connection.execute("USE o")
    with pytest.raises(dbapi.ProgrammingError) as caught:
        connection.execute("USE nothing")
    assert caught.value.code == "CF1101"
    assert connection.execute("SHOW TABLES").fetchone(), "the session is the connection's"


def test_rows_of_a_feed_without_a_sink(bench: Bench, connection: Connection) -> None:
    ended: list[int] = []

    def rows() -> Iterator[tuple[str | None, str | None, str | None, str]]:
        try:
            for number in range(10_000):
                yield "orders", f"[{number}]", "é", "c"
        finally:
            ended.append(1)

    run = bench.world.interpreter.execute

    def stream(statement: object, session: object, *given: object) -> Result:
        endless = isinstance(statement, str) and statement.startswith("CREATE CHANGEFEED FOR")
        return Result("stream", stream=rows()) if endless else run(statement, session, *given)  # type: ignore[arg-type]

    bench.world.interpreter.execute = stream  # type: ignore[method-assign, assignment]
    cursor = connection.execute("CREATE CHANGEFEED FOR orders")
    assert [column[0] for column in cursor.description or ()] == ["table", "key", "value"]
    assert cursor.rowcount == -1 and cursor.fetchone() == ("orders", "[0]", "é")
    assert cursor.fetchmany(2) == [("orders", "[1]", "é"), ("orders", "[2]", "é")]
    cursor.execute("SHOW JOBS")
    other = connection.execute("CREATE CHANGEFEED FOR orders")
    assert next(other)[1] == "[0]"
    connection.close()
    with pytest.raises(dbapi.InterfaceError):
        other.fetchone()


# ---------------------------------------------------------------------------- parameters


def test_parameters(connection: Connection) -> None:
    shown = connection.execute("SHOW CHANGEFEEDS WHERE name = :1 AND job_id >= :2", ("f", 1))
    assert shown.rowcount == 1
    assert connection.execute("SHOW CHANGEFEEDS WHERE name = $1", ["' OR name = 'f"]).rowcount == 0
    since = dt.datetime(2023, 11, 14, 23, 13, tzinfo=dt.timezone(dt.timedelta(hours=1)))
    earlier = "SHOW CHANGEFEEDS WHERE created >= :1 AND created < :2"
    assert connection.execute(earlier, (since, since + dt.timedelta(seconds=30))).rowcount == 1
    assert connection.execute(earlier, (dt.date(2023, 11, 15), "2024")).rowcount == 0
    assert connection.execute("SHOW JOBS WHERE job_id < :1", [Decimal("1.5")]).rowcount == 1
    name = "a \"b\"; 'c' :1 $1"
    made = connection.cursor().executemany(
        "CREATE CHANGEFEED :1 FOR :2 INTO 'null://' WITH resolved = :3, initial_scan = :4",
        [(name, "orders", dt.timedelta(seconds=5), "no"), ("g", "Odd Name", "1m", "yes")],
    )
    assert made.fetchall() == [(3, "g")]
    assert connection.execute("SHOW CREATE CHANGEFEED :1", [name]).rowcount == 1
    assert connection.feed(name).status().status == "running"
    connection.execute("DROP CHANGEFEED :1, :2", (name, "g"))
    assert [row[1] for row in connection.execute("SHOW CHANGEFEEDS")] == ["f"]


def test_parameters_that_are_none(connection: Connection) -> None:
    wrong: list[object] = ["f", {"1": "f"}, [None], [b"f"], [["f"]], [], ["f", "g"]]
    for given in wrong:
        with pytest.raises(dbapi.ProgrammingError):
            connection.execute("SHOW CHANGEFEED :1", given)  # type: ignore[arg-type]


# -------------------------------------------------------------------------- errors, notices


def test_errors_have_their_code_hint_and_place(connection: Connection) -> None:
    text = "SHOW CHANGEFEEDS\nWHERE name = :1 AND nothing = :2"
    with pytest.raises(dbapi.ProgrammingError) as caught:
        connection.execute(text, ("a name that is long", 1))
    error = caught.value
    assert (error.code, error.line) == ("CF1101", 2) and "columns are: " in error.hint
    assert text[error.start : error.end] == "nothing"
    with pytest.raises(dbapi.ProgrammingError) as caught:
        connection.execute("CREATE CHANGEFEED FOR orders INTO 'kafka://k' WITH formt = 'x', envlop")
    assert [each.code for each in caught.value.problems] == ["CF1203", "CF1203"]
    for statement in ("", "SHOW JOBS; SHOW JOBS", "SELECT 1", "SHOW JOBS WHERE a = 'x"):
        with pytest.raises(dbapi.ProgrammingError) as caught:
            connection.execute(statement)
        assert caught.value.code == "CF1001"
    with pytest.raises(dbapi.OperationalError) as paused:
        connection.execute("RESUME CHANGEFEED f")
    assert paused.value.code == "CF1301"
    secret = "kafka://u:hunter2@k:9092?nothing=s3cret"
    with pytest.raises(dbapi.ProgrammingError) as caught:
        connection.execute("CREATE CHANGEFEED FOR orders INTO :1", [secret])
    shown = "".join(traceback.format_exception(caught.value)) + repr(vars(caught.value))
    assert caught.value.code == "CF1202" and "hunter2" not in shown and "s3cret" not in shown
    assert "s3cret" not in repr(connection)


def test_notices_and_what_was_found(bench: Bench, connection: Connection) -> None:
    cursor = connection.execute("PAUSE CHANGEFEED f")
    assert cursor.notices == []
    cursor.execute("PAUSE CHANGEFEED f")
    assert cursor.notices == ['changefeed "f" is paused already'] == list(connection.notices)
    bench.world.target_troubles = ["the broker is away"]
    cursor.execute("VALIDATE CREATE CHANGEFEED g FOR orders INTO 'kafka://k:9092'")
    assert cursor.failure is not None and cursor.failure.code == "CF5001" and cursor.rowcount > 0
    assert cursor.execute("SHOW JOBS").failure is None and cursor.notices == []


def test_a_closed_connection(connection: Connection) -> None:
    cursor = connection.execute("SHOW JOBS")
    connection.commit()
    with pytest.raises(dbapi.NotSupportedError, match="at once"):
        connection.rollback()
    with pytest.raises(KeyError), connection:
        raise KeyError
    assert connection.closed and "closed" in repr(connection)
    connection.close()
    for use in (connection.cursor, connection.commit, connection.__enter__, cursor.fetchone):
        with pytest.raises(dbapi.InterfaceError, match="closed"):
            use()


def test_where_one_cannot_connect(bench: Bench, tmp_path: Path) -> None:
    with bench.serve() as gone:
        address = gone.address
    with pytest.raises(dbapi.OperationalError) as caught:
        changefeed.connect(address)
    assert caught.value.code == "CF6001"
    for place in ("https://u:s3cret@node:8443", "https://", "http://k?token=s3cret"):
        with pytest.raises(dbapi.ProgrammingError) as wrong:
            changefeed.connect(place)
        assert wrong.value.code == "CF1201" and "s3cret" not in str(wrong.value)
    with pytest.raises(dbapi.ProgrammingError, match="in the clear"):
        changefeed.connect("http://node.example:8080", token="s3cret")
    with pytest.raises(dbapi.InterfaceError, match="takes no token"):
        changefeed.connect(str(tmp_path), token="s3cret")
    with pytest.raises(dbapi.ProgrammingError) as unknown:
        changefeed.connect(str(tmp_path / "new"), source="nothing")
    assert unknown.value.code == "CF1101"


def test_the_token_is_of_the_argument_or_the_environment(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = bench.world.run("CREATE USER eve WITH role = 'viewer'").rows[0][-1]
    bench.world.run(MADE)
    with bench.serve(logins=True) as server:
        monkeypatch.delenv("CHANGEFEED_TOKEN", raising=False)
        with pytest.raises(dbapi.OperationalError) as caught:
            changefeed.connect(server.address)
        assert caught.value.code == "CF1402"
        monkeypatch.setenv("CHANGEFEED_TOKEN", str(token))
        for connection in (
            changefeed.connect(server.address),
            changefeed.connect(server.address, token=str(token)),
        ):
            with connection:
                assert str(token) not in repr(vars(connection)) + repr(connection)
                with pytest.raises(dbapi.ProgrammingError) as refused:
                    connection.execute("PAUSE CHANGEFEED f")
                assert refused.value.code == "CF1403"
                bench.world.node.deliver("f", NOW)
                assert connection.feed("f").wait_until(NOW) == Timestamp(NOW), "a viewer may wait"


# ------------------------------------------------------------------------------- waiting


def test_moments() -> None:
    moments: list[Moment] = [
        NOW,
        str(Timestamp(NOW)),
        Timestamp(NOW),
        dt.datetime(2023, 11, 14, 22, 13, 20),
        dt.datetime(2023, 11, 14, 23, 13, 20, tzinfo=dt.timezone(dt.timedelta(hours=1))),
        "2023-11-14 23:13:20+01:00",
        "-0s",
    ]
    assert {upto_of(moment, Steps([])) for moment in moments} == {Timestamp(NOW)}
    for wrong in ("soon", "1800-01-01", -1):
        with pytest.raises(dbapi.ProgrammingError):
            upto_of(wrong, Steps([]))


@pytest.mark.parametrize("kind", KINDS)
def test_waiting_for_a_resolved_timestamp(bench: Bench, kind: str) -> None:
    bench.world.run(MADE)
    node = bench.world.node
    clock = Steps(
        [
            lambda: None,
            lambda: node.deliver("f", NOW - 1),
            lambda: node.deliver("f", NOW),
        ]
    )
    with connected(bench, kind, clock) as connection:
        feed = connection.feed("f")
        assert feed.status().resolved is None
        assert feed.wait_until(NOW, timeout=60) == Timestamp(NOW)
        assert len(clock.pauses) == 3 and max(clock.pauses) <= 1
        assert feed.wait_until(Timestamp(NOW), timeout=0) == Timestamp(NOW)


@pytest.mark.parametrize("kind", KINDS)
def test_a_wait_ends_when_the_feed_stands_still(bench: Bench, kind: str) -> None:
    world = bench.world
    trouble = ChangefeedError("CF5002", "the broker wants another password")
    steps = {
        "paused": lambda: world.run("PAUSE CHANGEFEED paused"),
        "failed": lambda: world.fail("failed", trouble),
        "degraded": lambda: world.node.fail_table("degraded", "items", trouble),
        "stopped": lambda: setattr(world.node, "up", False),
    }
    for name, step in steps.items():
        world.run(MADE.replace(" f ", f" {name} "))
        with connected(bench, kind, Steps([step])) as connection:
            with pytest.raises(dbapi.OperationalError) as caught:
                connection.feed(name).wait_until(NOW, timeout=60)
            assert caught.value.code == "CF1301" and f'"{name}" is {name}' in str(caught.value)
            assert "RESUME" in caught.value.hint or f"SHOW CHANGEFEED {name}" in caught.value.hint
            if name in ("failed", "degraded"):
                assert "another password" in caught.value.detail


@pytest.mark.parametrize("kind", KINDS)
def test_a_wait_that_runs_out(bench: Bench, kind: str) -> None:
    bench.world.run(MADE)
    with connected(bench, kind) as connection:
        with pytest.raises(dbapi.OperationalError, match="did not reach") as caught:
            connection.feed("f").wait_until(NOW, timeout=0)
        assert caught.value.code == "CF1304" and "it is running, at no timestamp" in str(
            caught.value
        )
        with pytest.raises(dbapi.ProgrammingError, match='"nobody" does not exist') as unknown:
            connection.feed("nobody").wait_until(NOW)
        assert unknown.value.code == "CF1101"


@pytest.mark.parametrize("kind", KINDS)
def test_waiting_for_now_asks_the_source(bench: Bench, kind: str) -> None:
    """What the source has committed is decided there, not by a clock of this machine."""
    world = bench.world
    world.run(MADE)
    upto = Timestamp(NOW + 5 * 10**9)
    world.logs["shop"] = upto
    with connected(bench, kind) as connection:
        with pytest.raises(dbapi.OperationalError, match="did not catch up") as caught:
            connection.feed("f").wait_until(timeout=0.01)
        assert caught.value.code == "CF1304"
        world.node.deliver("f", upto.wall)
        assert connection.feed("f").wait_until("now", timeout=60) == upto
        world.run("PAUSE CHANGEFEED f")
        with pytest.raises(dbapi.OperationalError, match='"f" is paused'):
            connection.feed("f").wait_until()


def test_a_state_without_a_node_gets_one_for_a_wait(bench: Bench) -> None:
    bench.world.run(MADE)
    bench.world.node.up = False
    with connected(bench, "state") as connection:
        with pytest.raises(dbapi.OperationalError, match='"f" is stopped'):
            connection.feed("f").wait_until(NOW)
        assert connection._backend.application.starts == 1  # type: ignore[union-attr]


# ------------------------------------------------------------------------------- asyncio


def test_the_same_for_asyncio(bench: Bench) -> None:
    bench.world.run(MADE)

    async def program() -> None:
        async with await changefeed.aconnect(bench.server.address) as connection:
            assert bench.server.address in repr(connection)
            cursor = await connection.execute("SHOW TABLES WHERE table <> :1", ["none"])
            assert cursor.description and cursor.rowcount == 8
            assert await cursor.fetchone() and len(await cursor.fetchmany(2)) == 2
            assert len([row async for row in cursor]) == 5 and await cursor.fetchall() == []
            with pytest.raises(dbapi.ProgrammingError):
                await connection.execute("SHOW CHANGEFEED nobody")
            feed = connection.feed("f")
            waiting = asyncio.create_task(feed.wait_until(NOW, timeout=60))
            while (await feed.status()).status != "running":
                await asyncio.sleep(0)
            bench.world.node.deliver("f", NOW)
            assert await waiting == Timestamp(NOW)
            bench.world.logs["shop"] = Timestamp(NOW)
            assert await feed.wait_until(timeout=60) == Timestamp(NOW)
            await (
                await connection.cursor().executemany("PAUSE CHANGEFEED :1", [["f"]] * 2)
            ).close()
            assert list(connection.notices) == ['changefeed "f" is paused already']
            with pytest.raises(dbapi.OperationalError, match="paused"):
                await feed.wait_until(NOW + 1)
        assert connection.closed
        await connection.close()
        with pytest.raises(dbapi.InterfaceError):
            await connection.execute("SHOW JOBS")
        with pytest.raises(dbapi.ProgrammingError):
            await changefeed.aconnect("https://u:s3cret@node")

    asyncio.run(program())

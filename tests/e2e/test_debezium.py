"""``envelope = 'debezium'`` against Debezium itself: the same rows, read by both, give the same
members, and Debezium's consumers take our messages for its own."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.feeds import Feeds
from tests.services.debezium import (
    Event,
    consumed,
    engine,
    event,
    mysql_settings,
    postgres_settings,
)
from tests.services.mysql import BinlogServer
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e, pytest.mark.extended]

#: Columns of PostgreSQL with a value each.
POSTGRES = {
    "a smallint": "-1",
    "b int": "2",
    "c bigint": "9223372036854775807",
    "d boolean": "true",
    "e real": "1.5",
    "f double precision": "1e10",
    "g numeric(12,2)": "-12.50",
    "g0 numeric(5,0)": "-129",
    "g1 numeric(60,20)": "12345678901234567890123456789.00000000000000000001",
    "h numeric": "123456789.000001",
    "i text": "'tä\"x\n'",
    "j varchar(10) not null": "'v'",
    "k char(5)": "'ab'",
    "l bytea": r"'\x00ff10'",
    "m date": "'2024-03-31'",
    "n time": "'01:02:03.5'",
    "o time(2)": "'01:02:03.25'",
    "p timetz": "'01:02:03+02'",
    "p0 timetz": "'23:30:00.25-03:30'",
    "q timestamp": "'2024-03-31 01:02:03.5'",
    "r timestamp(2)": "'1969-12-31 23:59:59.99'",
    "s timestamptz": "'2024-03-31 01:02:03.5+02'",
    "t timestamptz(3)": "'2024-03-31 01:02:03+02'",
    "u interval": "'1 year 2 mons 3 days -04:05:06.5'",
    "v uuid": "'6a2f4c1e-0d5b-4f0e-9a57-0c1f5f1f0c11'",
    "w json": """'{"a": "\\u00e4"}'""",
    "x jsonb": """'{"a":[1, 2], "b": null}'""",
    "y int[]": "'{1,null,3}'",
    "z text[]": """'{a,null,"b,c"}'""",
    "aa numeric(8,2)[]": "'{1.50,null}'",
    "bb timestamp[]": "'{2024-03-31 01:02:03.5}'",
    "cc date[]": "'{2024-03-31}'",
    "dd bytea[]": r"""'{"\\x00ff"}'""",
    "ff xml": "'<a/>'",
    "gg inet": "'10.0.0.1/8'",
    "hh bit(12)": "'010100000010'",
    "ii oid": "77",
    "rr bit(1)": "'1'",
    "kk int not null": "5",
    "ll bytea not null": r"'\x01'",
    "mm numeric(4,1) not null": "-1.5",
    "nn timestamptz not null": "'2024-03-31 01:02:03.123456+00'",
    "oo uuid not null": "'6a2f4c1e-0d5b-4f0e-9a57-0c1f5f1f0c11'",
    "pp int4range": "'[1,5)'",
    "qq text[] not null": "'{}'",
    "ss jsonb not null": "'1'",
}
#: Columns of MySQL with a value each.
MYSQL = {
    "a tinyint": "-1",
    "a0 tinyint unsigned": "255",
    "b smallint unsigned": "65535",
    "c mediumint": "-8388608",
    "d int unsigned": "4294967295",
    "e bigint": "-9223372036854775808",
    "f bigint unsigned": "18446744073709551615",
    "g decimal(12,2)": "-12.50",
    "h decimal(60,20)": "12345678901234567890123456789.00000000000000000001",
    "i float": "1.5",
    "j double": "1e10",
    "k char(5)": "'ab'",
    "l varchar(10) not null": "'tä\"x'",
    "m text": "'long'",
    "n varbinary(10)": "x'00ff10'",
    "o blob": "x'00ff'",
    "p date": "'2024-03-31'",
    "q time": "'-838:59:59'",
    "r time(6)": "'01:02:03.25'",
    "s datetime": "'2024-03-31 01:02:03'",
    "t datetime(6)": "'2024-03-31 01:02:03.123456'",
    "u timestamp(3) null": "'2024-03-31 01:02:03.125'",
    "v year": "2024",
    "w bit(12)": "b'010100000010'",
    "x bit(1)": "b'1'",
    "y enum('a','it''s')": "'it''s'",
    "z set('a','b')": "'a,b'",
    # Debezium writes json with spaces when it streams, and without in a snapshot.
    "ff json": "'[1]'",
    "kk int not null": "5",
    "mm decimal(4,1) not null": "-1.5",
}
#: What happens to the rows of both tables after the scan.
CHANGES = (
    "UPDATE types SET b = 3 WHERE id = 1",
    "INSERT INTO rows VALUES (1, 'x', 1.5), (2, 'y', NULL)",
    "UPDATE rows SET a = 'z' WHERE id = 1",
    "UPDATE rows SET id = 5 WHERE id = 1",
    "DELETE FROM rows WHERE id = 2",
    "UPDATE types SET id = 3 WHERE id = 1",
    "DELETE FROM types",
)


def create(feeds: Feeds, folder: Path, targets: str, more: str = "") -> None:
    """Start a feed of tables and wait for the end of its scan."""
    feeds.execute(
        f"CREATE CHANGEFEED f FOR {targets} INTO 'experimental-sql:///sqlite:///{folder}/out.db'"
        f" WITH envelope = 'debezium', schemas_enable{more}"
    )
    feeds.sync("f")


def messages(feeds: Feeds, folder: Path) -> list[tuple[str, bytes, bytes | None]]:
    """Topic, key and value of every row, in the order of the log."""
    feeds.sync("f")
    with sqlite3.connect(folder / "out.db") as found:
        rows = found.execute(
            'SELECT "table", key, value FROM changefeed_messages ORDER BY rowid'
        ).fetchall()
    return [(t, k.encode(), None if v is None else v.encode()) for t, k, v in rows if k]


def of_rows(found: list[Event]) -> list[tuple[str, object, object]]:
    """What both must say alike: table, key, and op and rows of the value."""
    return [
        (
            event.topic.rpartition(".")[2],
            event.key,
            event.value and {name: event.value[name] for name in ("op", "before", "after")},
        )
        for event in found
    ]


def by_table(found: list[tuple[str, object, object]]) -> dict[str, list[tuple[object, object]]]:
    return {
        table: [(key, value) for name, key, value in found if name == table]
        for table in {name for name, _, _ in found}
    }


def differences(ours: Any, theirs: Any, at: str = "") -> list[str]:
    """Where two trees differ, a line each."""
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        return [d for name in ours for d in differences(ours[name], theirs[name], f"{at}.{name}")]
    lists = isinstance(ours, (list, tuple)) and isinstance(theirs, (list, tuple))
    if lists and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [d for n, (a, b) in pairs for d in differences(a, b, f"{at}[{n}]")]
    return [] if ours == theirs else [f"{at}: {ours!r} is not {theirs!r}"]


@pytest.mark.parametrize("postgres", [16], indirect=True)
def test_postgresql_as_debezium_reads_it(postgres: Database, feeds: Feeds, tmp_path: Path) -> None:
    columns, values = ", ".join(POSTGRES), ", ".join(POSTGRES.values())
    required = {name.split()[0]: v for name, v in POSTGRES.items() if name.endswith("not null")}
    postgres.execute(f"CREATE TABLE types (id int PRIMARY KEY, {columns})")
    postgres.execute("CREATE TABLE rows (id int PRIMARY KEY, a text NOT NULL, b numeric(12,2))")
    postgres.execute("ALTER TABLE rows REPLICA IDENTITY FULL")
    postgres.execute(f"INSERT INTO types VALUES (1, {values})")
    postgres.execute(
        f"INSERT INTO types (id, {', '.join(required)}) VALUES (2, {', '.join(required.values())})"
    )
    settings = postgres_settings(postgres)
    feeds.connect(shop=postgres.uri)
    feeds.execute("USE shop")
    create(feeds, tmp_path, "types, rows")
    with engine(tmp_path / "peer", settings) as peer:
        peer.wait_for(2)
        for statement in CHANGES:
            postgres.execute(statement)
        theirs = peer.wait_for(2 + 16)

    compare(messages(feeds, tmp_path), theirs, ("db", "schema", "txId", "ts_us"))


@pytest.mark.parametrize("binlog_server", ["mysql8"], indirect=True)
def test_mysql_as_debezium_reads_it(
    binlog_server: BinlogServer, feeds: Feeds, tmp_path: Path
) -> None:
    columns, values = ", ".join(MYSQL), ", ".join(MYSQL.values())
    with binlog_server.database() as database:

        def run(*statements: str) -> None:
            binlog_server.run(*statements, database=database)

        run(
            f"CREATE TABLE types (id int PRIMARY KEY, {columns})",
            "CREATE TABLE `rows` (id int PRIMARY KEY, a varchar(9) NOT NULL, b decimal(12,2))",
            f"INSERT INTO types VALUES (1, {values})",
            "INSERT INTO types (id, l, kk, mm) VALUES (2, 'v', 1, 2)",
        )
        settings = mysql_settings(binlog_server, database)
        feeds.connect(shop=binlog_server.uri(database))
        feeds.execute("USE shop")
        create(feeds, tmp_path, 'types, "rows"')
        with engine(tmp_path / "peer", settings) as peer:
            peer.wait_for(2)
            for statement in CHANGES:
                run(statement.replace(" rows", " `rows`"))
            theirs = peer.wait_for(2 + 16)

        compare(messages(feeds, tmp_path), theirs, ("db",))


@pytest.mark.parametrize("postgres", [16], indirect=True)
def test_transactions_as_debezium_tells_them(
    postgres: Database, feeds: Feeds, tmp_path: Path
) -> None:
    """The same numbers and the same counts, and messages of the same schema; the ids are ours."""
    for table in ("types", "rows"):
        postgres.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, a text)")
    postgres.execute("INSERT INTO types VALUES (1, 'x')")
    settings = postgres_settings(postgres) | {"provide.transaction.metadata": "true"}
    feeds.connect(shop=postgres.uri)
    feeds.execute("USE shop")
    create(feeds, tmp_path, "types, rows", ", transaction_metadata")
    with engine(tmp_path / "peer", settings) as peer:
        peer.wait_for(1)
        postgres.execute(
            "INSERT INTO rows VALUES (1, 'x'); UPDATE types SET id = 9 WHERE id = 1;"
            "INSERT INTO rows VALUES (2, 'y')"
        )
        postgres.execute("INSERT INTO rows VALUES (7, 'x')")
        postgres.execute("DELETE FROM types")
        # A row of the scan, six changes, two tombstones, three transactions.
        theirs = peer.wait_for(1 + 6 + 2 + 6)

    found = messages(feeds, tmp_path)
    ours = [event(f"{t}\t{k.decode()}\t{v.decode() if v else ''}") for t, k, v in found]
    assert told(ours) == told(theirs)
    for mine, yours in zip(boundaries(ours), boundaries(theirs), strict=True):
        for name in ("key_schema", "value_schema"):
            shapes = [shape(getattr(e, name), e.topic) for e in (mine, yours)]
            assert not (wrong := differences(*shapes)), "\n".join(wrong)


def boundaries(found: list[Event]) -> list[Event]:
    return [event for event in found if event.topic.endswith("transaction")]


def told(found: list[Event]) -> tuple[list[Any], list[Any]]:
    """What is said of transactions, each with a number in the place of its id."""
    numbers: dict[str, int] = {}
    ends = []
    for one in boundaries(found):
        value = dict(one.value or {})
        number = numbers.setdefault(value.pop("id").split(":")[0], len(numbers))
        assert value.pop("ts_ms") > 0
        counts = value.pop("data_collections")
        ends.append((number, value, counts and sorted(map(str, counts))))
    rows = []
    for one in found:
        if one.value is not None and "op" in one.value:
            block = dict(one.value["transaction"] or {})
            if block:
                block["id"] = numbers[block["id"].split(":")[0]]
            rows.append((one.topic.rpartition(".")[2], one.value["op"], str(one.key), block))
    return sorted(rows, key=str), ends


def compare(
    found: list[tuple[str, bytes, bytes | None]], theirs: list[Event], same: tuple[str, ...]
) -> None:
    """Our messages say what Debezium's do, and its consumers take them."""
    ours = [event(f"{t}\t{k.decode()}\t{v.decode() if v else ''}") for t, k, v in found]
    wrong = differences(by_table(of_rows(ours)), by_table(of_rows(theirs)))
    assert not wrong, "\n".join(wrong)

    for table in ("types", "rows"):  # the order of tables in a transaction's slice is anyone's
        mine, yours = (
            next(e for e in es if e.topic.endswith(table) and e.value and e.value["op"] == "u")
            for es in (ours, theirs)
        )
        assert mine.value and yours.value
        assert list(mine.value) == list(yours.value)
        for name in ("connector", "table", "snapshot", *same):
            assert mine.value["source"][name] == yours.value["source"][name], name
        for name in ("key_schema", "value_schema"):
            shapes = [shape(getattr(e, name), e.topic) for e in (mine, yours)]
            wrong = differences(*shapes)
            assert not wrong, "\n".join(wrong)

    taken = consumed((k, v) for _, k, v in found)
    assert [kind for _, kind, _ in taken] == [
        "tombstone" if e.value is None else f"debezium {KINDS.get(e.value['op'], 'upsert')}"
        for e in ours
    ]
    for event_, (row, _, key) in zip(ours, taken, strict=True):
        assert event_.key and key == f"Struct{{id={event_.key['id']}}}"
        if event_.value is not None and event_.value["op"] != "d":
            assert {
                "__op": event_.value["op"],
                "__table": event_.value["source"]["table"],
            }.items() <= row.items()
            plain = {n: v for n, v in event_.value["after"].items()}
            assert not differences({n: row[n] for n in plain}, plain)
        if event_.value is not None and event_.value["op"] == "d":
            assert row["__deleted"] == "true"


#: What Debezium's sinks call an operation.
KINDS = {"d": "delete"}


def shape(schema: Any, topic: str) -> Any:
    """A schema without what another connector or another name makes different: documentation,
    defaults, the names made of the topic, and the members of the source."""
    if isinstance(schema, list):
        return [shape(part, topic) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("field") == "source":
        return {}
    left = {n: shape(v, topic) for n, v in schema.items() if n not in ("doc", "default")}
    if "name" in left:
        left["name"] = left["name"].removeprefix(f"{topic}.")
    return left

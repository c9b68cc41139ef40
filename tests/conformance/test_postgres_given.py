"""An administrator's publication and slot: read with the least rights, and never changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.core.schema import TableName
from changefeed.sources.base import Watch
from changefeed.sources.postgres import PostgresSource, providers
from changefeed.sources.postgres.attachment import PostgresAttachment
from changefeed.sources.postgres.connect import connect
from tests.conformance.conftest import ALL
from tests.helpers.postgres_slots import drop_slot
from tests.helpers.postgres_tail import prepare, tailing
from tests.helpers.waiting import until
from tests.services.postgres import Database

pytestmark = pytest.mark.postgres

A, B = TableName("shop", "public", "a"), TableName("shop", "public", "b")
TABLES = """
    create schema app; create table a (id int primary key, v text);
    create table b (id int primary key, v text, secret text);
    create table p (id int primary key, v text) partition by list (id);
    create table p_1 partition of p default; create table app.p_2 partition of p for values in (7);
    create table app.c (id int primary key)
"""


class Shop:
    """A database, a role that may log in, replicate and read, and its source."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.name = f"given_{database.name}"
        database.execute(TABLES)
        database.execute(f"create role {self.name} login replication")
        database.execute(f"grant usage on schema app to {self.name}")
        database.execute(f"grant select on a, b, p, p_1, app.p_2, app.c to {self.name}")
        self.sources: list[PostgresSource] = []

    def uri(self, parameters: str) -> str:
        return self.database.uri.replace("postgres@", f"{self.name}@") + f"?{parameters}"

    def source(self, parameters: str = "publication=cdc") -> PostgresSource:
        self.sources.append(PostgresSource("shop", self.uri(parameters)))
        return self.sources[-1]

    def problems(self, *tables: str, parameters: str = "publication=cdc") -> list[ChangefeedError]:
        """Of ``schema.table`` or ``table``."""
        watches = [Watch(t.rpartition(".")[2], t.rpartition(".")[0] or None) for t in tables]
        return self.source(parameters).attach("tests", None).check(watches)

    def objects(self) -> Sequence[object]:
        """What an administrator made here, as the catalog has it."""
        execute = self.database.execute
        return (
            execute("select oid, xmin::text, * from pg_publication order by oid"),
            execute("select oid, xmin::text, * from pg_publication_rel order by oid"),
            execute("select obj_description(oid) from pg_publication"),
            execute(
                "select slot_name, plugin, temporary from pg_replication_slots"
                " where database = current_database()"
            ),
            execute("select oid, relreplident from pg_class order by oid"),
        )

    def close(self) -> None:
        for source in self.sources:
            source.close()
        for slot in self.database.slots():
            drop_slot(self.database, slot)
        self.database.execute(f"drop owned by {self.name}; drop role {self.name}")


@pytest.fixture
def shop(postgres: Database) -> Iterator[Shop]:
    made = Shop(postgres)
    yield made
    made.close()


@ALL
def test_nothing_is_made_altered_or_dropped(shop: Shop) -> None:
    shop.database.execute("create publication cdc for table a, b")
    slot = shop.name
    shop.database.execute(f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    before = shop.objects()
    parameters = f"publication=cdc&slot={slot}"
    assert shop.problems("a", "b", parameters=parameters) == []
    source = shop.source(parameters)
    held = source.attach("tests", None)
    for tables in ([A], [A, B], [B]):
        assert held.capture(tables, resume=False).problems == {}
    with source.snapshot() as snapshot:
        assert snapshot.position >= held.start()[0]
    again = source.attach("tests", held.memo)
    assert again.start() == held.start() and again.holds == ""
    assert again.check([Watch("a")]) == []
    again.release()
    assert shop.objects() == before


def test_a_slot_of_our_own_for_a_publication_that_is_not(shop: Shop) -> None:
    shop.database.execute("create publication cdc for table a")
    before = shop.objects()
    held = shop.source().attach(shop.database.name, None)
    assert held.capture([A], resume=False).problems == {}
    assert shop.database.slots() == [held.slot] and held.holds == f"slot {held.slot}"
    held.release()
    assert shop.objects() == before


# ------------------------------------------------------------------------- refused


def test_a_publication_that_is_not_there_is_made_by_the_hint(shop: Shop) -> None:
    [problem] = shop.problems("a", "p")
    assert (problem.code.number, problem.message) == ("CF2003", "publication cdc does not exist")
    assert problem.hint == (
        "CREATE PUBLICATION cdc FOR TABLE public.a, public.p "
        "WITH (publish_via_partition_root = true);"
    )
    with pytest.raises(ChangefeedError, match="publication cdc does not exist"):
        shop.source().attach("tests", None).capture([A], resume=False)
    shop.database.execute(problem.hint)
    assert shop.problems("a", "p") == []


@pytest.mark.parametrize(
    ("made", "table", "message"),
    [
        ("table b", "a", "table public.a is not in publication cdc"),
        ("table p", "p", "publication cdc publishes its partitions under their own names"),
        ("tables in schema app", "a", "table public.a is not in publication cdc"),
        ("table a (v)", "a", "column list of table public.a in publication cdc lacks id of its"),
        ("table a where (id > 5), tables in schema public", "a", "in publication cdc twice"),
        (
            "table a with (publish = 'insert, update')",
            "a",
            "publication cdc does not publish delete and truncate",
        ),
    ],
)
def test_a_publication_that_cannot_be_the_truth(
    shop: Shop, made: str, table: str, message: str
) -> None:
    shop.database.execute(f"create publication cdc for {made}")
    [problem] = shop.problems(table)
    assert problem.code.number == "CF2003" and message in problem.message
    held = shop.source().attach("tests", None)
    name = TableName("shop", "public", table)
    try:
        found = held.capture([name], resume=False).problems[name]
    except ChangefeedError as error:
        found = error
    assert found.message == problem.message
    shop.database.execute(problem.hint)
    assert shop.problems(table) == []
    held.release()


def test_a_column_list_does_not_go_with_whole_old_rows(shop: Shop) -> None:
    shop.database.execute("create publication cdc for table a (id, v)")
    shop.database.execute("alter table a replica identity full; insert into a values (1)")
    with pytest.raises(Exception, match="replica identity"):
        shop.database.execute("update a set v = 'x'")
    [problem] = shop.problems("a")
    assert "does not go with REPLICA IDENTITY FULL" in problem.message
    shop.database.execute(problem.hint)
    assert shop.problems("a") == []
    shop.database.execute("update a set v = 'x'")


@pytest.mark.parametrize("postgres", [18], indirect=True)
def test_generated_columns_are_not_in_a_feed(shop: Shop) -> None:
    shop.database.execute(
        "create table g (id int primary key, d int generated always as (id) stored)"
    )
    shop.database.execute(f"grant select on g to {shop.name}")
    shop.database.execute(
        "create publication cdc for table g with (publish_generated_columns = stored)"
    )
    [problem] = shop.problems("g")
    assert "publishes generated columns" in problem.message
    shop.database.execute(problem.hint)
    assert shop.problems("g") == []
    shop.database.execute("alter publication cdc set table g (id, d)")
    [problem] = shop.problems("g")
    assert "has the generated column d" in problem.message
    shop.database.execute(problem.hint)
    assert shop.problems("g") == []


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ("", "does not exist"),
        ("select pg_create_physical_replication_slot('{s}')", "must have the plugin pgoutput"),
        (
            "select pg_create_logical_replication_slot('{s}', 'pgoutput', false, true)",
            "decodes prepared transactions",
        ),
    ],
)
def test_a_slot_that_cannot_be_read_is_made_anew_by_the_hint(
    shop: Shop, made: str, message: str
) -> None:
    shop.database.execute("create publication cdc for table a")
    if made:
        shop.database.execute(made.format(s=shop.name))
    parameters = f"publication=cdc&slot={shop.name}"
    [problem] = shop.problems("a", parameters=parameters)
    assert problem.code.number == "CF2003" and message in problem.message
    with pytest.raises(ChangefeedError, match=message):
        shop.source(parameters).attach("tests", None).capture([A], resume=False)
    for each in problem.hint.split("; "):
        shop.database.execute(each)
    assert shop.problems("a", parameters=parameters) == []


def test_a_slot_that_somebody_reads(shop: Shop, tmp_path: Path) -> None:
    prepare(shop.database, "a")
    shop.database.execute("create publication cdc for table a")
    with tailing(shop.database, tmp_path):
        reads = "select 1 from pg_replication_slots where active and database = current_database()"
        until(lambda: bool(shop.database.execute(reads)), "the slot is read")
        [problem] = shop.problems("a", parameters="publication=cdc&slot=tail")
        assert problem.code.number == "CF2005" and "read by somebody else" in problem.message


# ------------------------------------------------------------------------- what is the truth


def rows(source: PostgresSource, table: str) -> list[dict[str, object]]:
    """What an initial scan reads."""
    schema = source.describe(None, table)
    with source.snapshot() as snapshot:
        batches = [b for part in snapshot.parts(schema) for b in part.read()]
    return [row for batch in batches for row in batch.to_pylist()]


def test_a_column_list_and_a_row_filter_are_the_truth(shop: Shop) -> None:
    shop.database.execute(
        "create publication cdc for table b (id, v), a where (id > 5 or v is null)"
    )
    shop.database.execute("revoke select on b from public")
    shop.database.execute("insert into b values (1, 'x', 'secret')")
    shop.database.execute("insert into a select n, 'row' from generate_series(1, 9) n")
    shop.database.execute("insert into a values (0)")
    assert shop.problems("a", "b") == []
    source = shop.source()
    assert [c.name for c in source.describe(None, "b").columns] == ["id", "v"]
    assert len(rows(source, "b")) == 1 and "secret" not in str(rows(source, "b"))
    assert len(rows(source, "a")) == 5


def test_columns_that_are_not_published_need_not_be_readable(shop: Shop) -> None:
    shop.database.execute("create publication cdc for table b (id, v)")
    shop.database.execute(f"revoke select on b from {shop.name}")
    [problem] = shop.problems("b")
    assert problem.detail == "columns id, v"
    shop.database.execute(f"grant select (id, v) on b to {shop.name}")
    shop.database.execute("insert into b values (1, 'x', 'secret')")
    assert shop.problems("b") == []
    assert len(rows(shop.source(), "b")) == 1


def test_each_partition_is_read_by_itself(shop: Shop) -> None:
    """A right to read the table is none to read its partitions."""
    shop.database.execute(
        "create publication cdc for table p with (publish_via_partition_root = true)"
    )
    shop.database.execute(f"revoke select on p_1, app.p_2 from {shop.name}")
    [problem] = shop.problems("p")
    assert problem.code.number == "CF2004"
    assert "no right to read 2 partitions of table public.p" in problem.message
    shop.database.execute(problem.hint)
    assert shop.problems("p") == []
    assert rows(shop.source(), "p") == []


def test_a_schema_means_the_tables_that_are_published(shop: Shop) -> None:
    shop.database.execute("create publication cdc for tables in schema app")
    assert [t.name for t in shop.source().matching(None)] == ["c"]
    assert shop.source().matching("public") == []
    shop.database.execute("create table app.d (id int primary key)")
    assert [t.name for t in shop.source().matching("app")] == ["c", "d"]


# ------------------------------------------------------------------------- changed later


class Altered:
    """Tables ``a`` and ``b`` of a publication, as a feed knows them."""

    def __init__(self, shop: Shop, made: str) -> None:
        self.shop = shop
        shop.database.execute(f"create publication cdc for {made}")
        self.held = shop.source().attach(shop.database.name, None)
        self.capture()

    def capture(self) -> dict[str, str]:
        captured = self.held.capture([A, B], resume=False)
        return {table.name: why for table, why in captured.altered.items()}

    def found(self) -> dict[str, str]:
        """What a look finds, by table."""
        listed = self.shop.database.execute(
            "select oid::int8, relname from pg_class where relname in ('a', 'b')"
        )
        names = dict(listed)
        return {names[oid]: why for oid, why in self.held.altered(names).items()}


@pytest.mark.parametrize(
    ("made", "change", "tables", "why"),
    [
        ("table a, b", "alter publication cdc drop table a", ["a"], "taken out of"),
        (
            "table a, b",
            "alter publication cdc drop table a; alter publication cdc add table a",
            ["a"],
            "and put back",
        ),
        ("table a, b", "alter publication cdc set table a where (id > 5), b", ["a"], "row filter"),
        ("table a (id), b", "alter publication cdc set table a, b", ["a"], "column list"),
        ("table a, b", "alter publication cdc set (publish = 'insert')", ["a", "b"], "altered"),
        (
            "table a, b",
            "drop publication cdc; create publication cdc for table a, b",
            ["a", "b"],
            "dropped and created again",
        ),
        ("tables in schema public", "alter table a set schema app", ["a"], "taken out of"),
        (
            "tables in schema public",
            "alter publication cdc drop tables in schema public;"
            "alter publication cdc add tables in schema public",
            ["a", "b"],
            "and put back",
        ),
        ("all tables", "drop publication cdc; create publication cdc for table b", ["a", "b"], ""),
        ("table a, b", "alter publication cdc add table p", [], ""),
        ("table a, b", "drop table b", [], ""),
        ("all tables", "create table z (id int primary key)", [], ""),
        ("table a, b", "vacuum full pg_publication", [], ""),
    ],
)
def test_what_the_administrator_does_later(
    shop: Shop, made: str, change: str, tables: list[str], why: str
) -> None:
    altered = Altered(shop, made)
    assert altered.found() == {}
    shop.database.execute(change)
    found = altered.found()
    assert sorted(found) == tables and all(why in reason for reason in found.values()), found
    if "set schema" in change:
        return  # the table has another name now, by which it is captured next
    try:
        assert sorted(altered.capture()) == tables
    except ChangefeedError as error:
        assert "does not publish" in error.message
        return
    # What is still captured is as the publication is now.
    assert all(why.startswith("the table was taken out") for why in altered.found().values())
    altered.held.release()


def test_a_publication_that_is_gone(shop: Shop) -> None:
    altered = Altered(shop, "table a, b")
    shop.database.execute("drop publication cdc")
    with pytest.raises(ChangefeedError, match="was dropped") as caught:
        altered.found()
    assert caught.value.code.number == "CF2102"
    with pytest.raises(ChangefeedError, match="was dropped"):
        altered.held.capture([A], resume=True)


def test_a_transaction_from_before_the_table_was_published_is_waited_for(shop: Shop) -> None:
    """Decoded, its rows would be missing: the publication is looked up as of each change."""
    shop.database.execute(f"select pg_create_logical_replication_slot('{shop.name}', 'pgoutput')")
    with shop.database.connect(autocommit=False) as open_one:
        open_one.execute("insert into a values (1)")
        shop.database.execute("create publication cdc for table a")
        held = shop.source(f"publication=cdc&slot={shop.name}").attach("tests", None)
        with pytest.raises(ChangefeedError) as caught:
            held.capture([A], resume=False)
        assert caught.value.code.number == "CF2005"
        assert str(open_one.info.backend_pid) in caught.value.message
        open_one.commit()
    assert held.capture([A], resume=False).problems == {}
    held.release()


@pytest.mark.parametrize("parameters", ["publication=other", "publication=cdc&slot={s}", "x"])
def test_the_connection_names_another_one(shop: Shop, parameters: str) -> None:
    """Before a log was begun it is taken; after that no change is common to the two."""
    shop.database.execute(
        "create publication cdc for table a; create publication other for table a"
    )
    slot = f"{shop.name}_s"
    shop.database.execute(f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    held = shop.source().attach(shop.database.name, None)
    held.capture([A], resume=False)
    own = held.slot
    source = (
        shop.source(parameters.format(s=slot))
        if parameters != "x"
        else PostgresSource("shop", shop.database.uri)
    )
    shop.sources.append(source)
    with pytest.raises(ChangefeedError, match="names another publication or slot") as caught:
        source.attach(shop.database.name, held.memo).capture([A], resume=True)
    assert caught.value.code.number == "CF2102"
    now: PostgresAttachment = source.attach(shop.database.name, held.memo)
    assert now.capture([A], resume=False).problems == {}
    kept = {slot} if "slot" in parameters else {slot, own}
    assert set(shop.database.slots()) == kept
    now.release()
    assert shop.database.slots() == [slot]
    names = shop.database.execute("select pubname from pg_publication order by 1")
    assert names == [("cdc",), ("other",)]


# ------------------------------------------------------------------------- services


@pytest.mark.parametrize(
    ("marker", "name", "grant"),
    [
        ("select", "PostgreSQL", "ALTER ROLE feeds REPLICATION;"),
        ("create role rds_replication", "Amazon RDS", "GRANT rds_replication TO feeds;"),
        (
            "create role rds_replication;"
            "create function aurora_version() returns text language sql as 'select null::text'",
            "Amazon Aurora",
            "GRANT rds_replication TO feeds;",
        ),
        ("create role cloudsqlsuperuser", "Google Cloud SQL", "ALTER USER feeds WITH REPLICATION;"),
        ("create role azure_pg_admin", "Azure Database", "ALTER ROLE feeds REPLICATION;"),
        ("create role supabase_admin", "Supabase", "ALTER ROLE feeds REPLICATION;"),
        ("create role neon_superuser", "Neon", "ALTER ROLE feeds REPLICATION;"),
        ("create schema heroku_ext", "Heroku Postgres", "Ask Heroku's support"),
    ],
)
def test_services_are_recognised(shop: Shop, marker: str, name: str, grant: str) -> None:
    """By what every role sees. The statements are those of the services' documentation."""
    shop.database.execute(marker)
    try:
        with connect(shop.uri("")) as connection:
            found = providers.of(connection)
    finally:
        for each in marker.split(";"):
            if "role" in each:
                shop.database.execute(each.replace("create", "drop"))
    assert found.name.startswith(name) and found.replication("feeds").startswith(grant)
    assert ("ALTER SYSTEM" in found.setting("max_wal_senders", "20")) is (name == "PostgreSQL")


def test_event_triggers_of_a_given_publication_are_not_made(shop: Shop) -> None:
    """Even by a superuser: an administrator runs the statements, or there is no such event."""
    shop.database.execute("create publication cdc for table a")
    parameters = "publication=cdc&ddl_events=true"
    source = PostgresSource("shop", f"{shop.database.uri}?{parameters}")
    shop.sources.append(source)
    held = source.attach("tests", None)
    [problem] = held.check([Watch("a")])
    assert "with publication=cdc changefeed creates nothing" in problem.message
    triggers = "select count(*) from pg_event_trigger"
    held.capture([A], resume=False)
    assert shop.database.execute(triggers) == [(0,)] and "ddl" not in held.memo
    make, _, undo = problem.hint.partition("-- and to undo it")
    shop.database.execute(make.partition("\n")[2])
    assert held.check([Watch("a")]) == []
    held.capture([A], resume=False)
    assert held.memo["ddl"] is True
    held.release()
    assert shop.database.execute(triggers) == [(2,)]
    shop.database.execute(undo.partition("\n")[2])
    assert shop.database.execute(triggers) == [(0,)]


@pytest.mark.parametrize("postgres", [14, 18], indirect=True)
def test_a_failover_slot_on_request(shop: Shop) -> None:
    """Where the server has them; an administrator's slot must be one."""
    execute, slot = shop.database.execute, shop.name
    execute("create publication cdc for table a")
    execute(f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    parameters = f"publication=cdc&failover=true&slot={slot}"
    [problem] = shop.problems("a", parameters=parameters)
    if execute("show server_version_num")[0][0] < "170000":
        assert "failover=true needs PostgreSQL 17" in problem.message
        return
    assert f"replication slot {slot} is no failover slot" in problem.message
    for statement in problem.hint.split("; ")[:2]:
        execute(statement)
    assert shop.problems("a", parameters=parameters) == []
    held = shop.source("publication=cdc&failover=false").attach("tests", None)
    held.capture([A], resume=False)
    [(kept,)] = execute(f"select failover from pg_replication_slots where slot_name <> '{slot}'")
    assert kept is False

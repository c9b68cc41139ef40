"""Every problem at once, each with the statement that mends it: the statement is then run."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from changefeed.core.errors import ChangefeedError, Span
from changefeed.core.schema import KeyRange
from changefeed.sources.base import Watch
from changefeed.sources.postgres import PostgresSource, checks
from changefeed.sources.postgres.connect import connect
from tests.conformance.conftest import ALL
from tests.services.postgres import Database, PostgresCluster

pytestmark = pytest.mark.postgres

SHOP = """
    create schema app;
    create table good (id int primary key, v text);
    create table "No Key" (a int, b text);
    create table nothing (id int primary key); alter table nothing replica identity nothing;
    create table late (id int primary key deferrable);
    create table full_one (a int); alter table full_one replica identity full;
    create table indexed (a int not null, b int); create unique index ia on indexed (a);
    alter table indexed replica identity using index ia;
    create table app.other (id int primary key);
"""


def problems(uri: str, *watches: Watch | str, **made: str) -> list[ChangefeedError]:
    source = PostgresSource("shop", uri)
    try:
        asked = [w if isinstance(w, Watch) else Watch(w) for w in watches]
        return source.attach("tests", made).check(asked)
    finally:
        source.close()


def messages(uri: str, *watches: Watch | str, **made: str) -> list[str]:
    return [problem.message for problem in problems(uri, *watches, **made)]


@contextmanager
def role(postgres: Database, attributes: str = "") -> Iterator[tuple[str, str]]:
    """A role of its own: its name and the URI to come with."""
    name = f"role_{postgres.name}"
    postgres.execute(f"create role {name} login {attributes}")
    try:
        yield name, postgres.uri.replace("postgres@", f"{name}@")
    finally:
        postgres.execute(f"drop owned by {name}; drop role {name}")


@ALL
def test_a_ready_database_has_no_problem(postgres: Database) -> None:
    postgres.execute(SHOP)
    names: list[Watch | str] = ["good", "full_one", "indexed"]
    names += [Watch("other", "app"), Watch("full_one", diff=True)]
    assert messages(postgres.uri, *names) == []
    assert postgres.execute("select * from pg_publication") == []
    assert postgres.slots() == []


@ALL
def test_tables_without_identity_are_refused_and_the_hint_mends_them(postgres: Database) -> None:
    """Published without it, the application's own UPDATE would fail: shown here too."""
    postgres.execute(SHOP)
    postgres.execute("drop index ia")
    found = problems(postgres.uri, "good", "No Key", "nothing", "late", "indexed")
    assert [p.message for p in found] == [
        'table public."No Key" has no replica identity: it has no primary key '
        "(a deferrable one does not count)",
        "table public.nothing has no replica identity: its replica identity is NOTHING",
        "table public.late has no replica identity: it has no primary key "
        "(a deferrable one does not count)",
        "table public.indexed has no replica identity: the index of its replica identity is gone",
    ]
    assert {p.code.number for p in found} == {"CF2003"}
    postgres.execute('insert into "No Key" values (1)')
    postgres.execute('create publication p for table "No Key"')
    with pytest.raises(Exception, match="does not have a replica identity"):
        postgres.execute('update "No Key" set a = 2')
    for problem in found:
        postgres.execute(problem.hint)
    assert messages(postgres.uri, "No Key", "nothing", "late", "indexed") == []
    postgres.execute('update "No Key" set a = 2')


def test_the_identity_of_yugabytedb_is_refused_and_the_hint_mends_it(postgres: Database) -> None:
    """PostgreSQL has no CHANGE: the catalog is made to show what YugabyteDB's does."""
    postgres.execute(SHOP)
    postgres.execute("update pg_class set relreplident = 'c' where oid = 'good'::regclass")
    [problem] = problems(postgres.uri, "good")
    assert problem.code.number == "CF2003" and "replica identity is CHANGE" in problem.message
    source = PostgresSource("shop", postgres.uri)
    [good] = [table for table in source.tables() if table.name.name == "good"]
    assert (
        good.identity == "change" and good.note == f"replica identity change: {problem.hint} first"
    )
    found = source.locate([good.name], [])
    assert found.unsafe == frozenset(found.ids.values())
    postgres.execute(problem.hint)
    assert messages(postgres.uri, "good") == []
    source.close()


_FOREIGN = """
    create foreign data wrapper far; create server elsewhere foreign data wrapper far;
    create table parts (id int, v int) partition by range (id);
    alter table parts replica identity full;
    create table parts_a partition of parts for values from (0) to (10);
    alter table parts_a replica identity full;
    create foreign table parts_b partition of parts for values from (10) to (20) server elsewhere
"""


def test_a_partition_of_another_server_is_refused_and_the_hint_mends_it(postgres: Database) -> None:
    postgres.execute(_FOREIGN)
    [problem] = problems(postgres.uri, "parts")
    assert problem.code.number == "CF1302"
    assert "its partition public.parts_b is a foreign table" in problem.message
    postgres.execute(problem.hint.partition(";")[0])
    assert messages(postgres.uri, "parts") == []


_TIMESCALE = """
    create schema _timescaledb_catalog;
    create table _timescaledb_catalog.hypertable (schema_name name, table_name name);
    insert into _timescaledb_catalog.hypertable values ('public', 'good')
"""
_CITUS = """
    set allow_system_table_mods = on;
    create table pg_catalog.pg_dist_partition (logicalrelid regclass, partmethod "char");
    insert into pg_catalog.pg_dist_partition values ('good', 'h')
"""


@pytest.mark.parametrize(("made", "word"), [(_TIMESCALE, "chunks"), (_CITUS, "shards")])
def test_a_table_whose_rows_lie_elsewhere_is_refused(
    postgres: Database, made: str, word: str
) -> None:
    """A feed of it would be silent. The catalogs are made as the extensions document them."""
    postgres.execute(SHOP)
    postgres.execute(made)
    [problem] = problems(postgres.uri, "good", "full_one")
    assert problem.code.number == "CF1302" and word in problem.message
    source = PostgresSource("shop", postgres.uri)
    tables = [source.describe(None, name).table for name in ("good", "full_one")]
    held = source.attach("tests", None)
    assert [table.name for table in held.capture(tables, resume=False).problems] == ["good"]
    published = "select tablename from pg_publication_tables"
    assert postgres.execute(published) == [("full_one",)]
    held.release()
    source.close()


@ALL
def test_diff_needs_full(postgres: Database) -> None:
    postgres.execute(SHOP)
    span = Span(3, 7)
    (problem,) = problems(
        postgres.uri, Watch("good", diff=True, span=span), Watch("full_one", diff=True)
    )
    assert problem.message == (
        "the old values of all columns are needed (diff, changed), "
        "and table public.good logs only its key"
    )
    assert problem.hint == "ALTER TABLE public.good REPLICA IDENTITY FULL;"
    assert problem.span == span
    postgres.execute(problem.hint)
    assert messages(postgres.uri, Watch("good", diff=True)) == []


@ALL
def test_partitions_need_the_identity_of_their_table(postgres: Database) -> None:
    postgres.execute(
        """
        create table p (id int, v text) partition by range (id);
        create table p_1 partition of p for values from (0) to (10);
        create table p_2 partition of p default;
        alter table p_1 replica identity full;
        """
    )
    (problem,) = problems(postgres.uri, "p")
    assert problem.hint == "ALTER TABLE public.p_2 REPLICA IDENTITY FULL;"
    postgres.execute(problem.hint)
    assert messages(postgres.uri, "p") == []
    postgres.execute("alter table p replica identity full; alter table p_2 add primary key (id)")
    postgres.execute("alter table p_2 replica identity default")
    (problem,) = problems(postgres.uri, "p")
    assert "partitions of table public.p have another replica identity" in problem.message
    postgres.execute(problem.hint)
    assert messages(postgres.uri, Watch("p", diff=True)) == []


@ALL
def test_a_key_with_a_generated_column_is_refused(postgres: Database) -> None:
    postgres.execute(
        "create table g (a int, b int generated always as (a * 2) stored, primary key (b))"
    )
    (problem,) = problems(postgres.uri, "g")
    assert problem.code.number == "CF1302"
    assert "generated column b" in problem.message


@ALL
def test_a_bare_role_learns_all_it_lacks_at_once(postgres: Database) -> None:
    """Each hint is run as it is: after that nothing is left."""
    postgres.execute(SHOP)
    with role(postgres) as (name, uri):
        watches: list[Watch | str] = [Watch("other", "app"), "good"]
        found = problems(uri, *watches)
        assert [p.message for p in found] == [
            f"role {name} may not open replication connections",
            "only their owner may add tables app.other, public.good to a publication",
            "no right to use schema app",
            "no right to read table app.other",
            "no right to read table public.good",
        ]
        assert {p.code.number for p in found} == {"CF2004"}
        assert found[1].hint == (
            "CREATE PUBLICATION changefeed FOR TABLE app.other, public.good; -- as the owner; then "
            "ALTER EXTERNAL CONNECTION .. with the parameter publication=changefeed in its URI"
        )
        for problem in found:
            postgres.execute(problem.hint)
        assert not member_of_others(postgres, name)
        uri += "?publication=changefeed"
        assert messages(uri, *watches) == []
        source = PostgresSource("shop", uri)
        tables = [t.table for t in source.describe_all([Watch("other", "app"), Watch("good")])]
        held = source.attach(postgres.name, None)
        assert held.capture(tables, resume=False).problems == {}
        held.release()
        source.close()


def member_of_others(postgres: Database, name: str) -> list[tuple[str]]:
    """The roles that this role is a member of."""
    return postgres.execute(
        "select r.roleid::regrole::text from pg_auth_members r where r.member = %s::regrole", [name]
    )


@ALL
def test_an_owner_without_create_learns_how_to_get_it(postgres: Database) -> None:
    postgres.execute("create table good (id int primary key)")
    with role(postgres, "replication") as (name, uri):
        postgres.execute(f"alter table good owner to {name}")
        (problem,) = problems(uri, "good")
        assert problem.message == (
            f"role {name} may not create a publication in database {postgres.name}"
        )
        postgres.execute(problem.hint)
        assert messages(uri, "good") == []


@ALL
def test_single_columns_that_cannot_be_read_are_named(postgres: Database) -> None:
    postgres.execute("create table good (id int primary key, secret text)")
    with role(postgres, "replication") as (name, uri):
        postgres.execute(f"grant create on database {postgres.name} to {name}")
        postgres.execute(f"grant select (id) on good to {name}")
        found = problems(uri, "good")
    assert [p.detail for p in found if "read" in p.message] == ["columns secret"]


@ALL
def test_row_level_security_would_hide_rows(postgres: Database) -> None:
    postgres.execute("create table good (id int primary key)")
    postgres.execute("alter table good enable row level security")
    with role(postgres, "replication") as (name, uri):
        postgres.execute(f"grant create on database {postgres.name} to {name}")
        postgres.execute(f"grant select on good to {name}")
        found = messages(uri, "good")
    assert "row-level security of table public.good hides rows from an initial scan" in found


def test_a_publication_of_another_owner_is_found(postgres: Database) -> None:
    postgres.execute("create table good (id int primary key); create publication ours")
    with role(postgres, "replication") as (name, uri):
        postgres.execute(f"grant select on good to {name}; alter table good owner to {name}")
        (problem,) = problems(uri, "good", publication="ours")
    assert problem.message == f"role {name} does not own publication ours"


@pytest.mark.parametrize("major", [14, 18])
def test_server_settings_are_checked(
    own_postgres_factory: Callable[..., PostgresCluster], major: int
) -> None:
    server = own_postgres_factory(
        major, wal_level="replica", max_replication_slots="1", max_wal_senders="1"
    )
    with server.database() as db:
        db.execute("create table good (id int primary key)")
        found = problems(db.uri, "good", "zzz")
    assert [p.message for p in found] == [
        "wal_level is 'replica', it must be 'logical'",
        "max_replication_slots is 1 and 1 are free: a changefeed needs 2",
        "max_wal_senders is 1 and 1 are free: a changefeed needs 2",
        'table "zzz" does not exist',
    ]
    assert found[0].hint.startswith("ALTER SYSTEM SET wal_level = 'logical';")


def test_a_slot_that_is_there_needs_only_one_more(
    own_postgres_factory: Callable[..., PostgresCluster],
) -> None:
    server = own_postgres_factory(16, max_replication_slots="2")
    with server.database() as db:
        db.execute("create table good (id int primary key)")
        source = PostgresSource("shop", db.uri)
        held = source.attach("tests", {"slot": "ours", "publication": "ours"})
        held.capture([source.describe(None, "good").table], resume=False)
        assert messages(db.uri, "good", slot="ours", publication="ours") == []
        (problem,) = problems(db.uri, "good", slot="another")
        assert "max_replication_slots is 2 and 1 are free" in problem.message
        held.release()
        source.close()


def test_a_server_that_is_not_there_is_one_problem() -> None:
    (problem,) = problems("postgresql://u@127.0.0.1:1/db?connect_timeout=2", "good")
    assert problem.code.number == "CF2001"


def test_notices(postgres: Database) -> None:
    postgres.execute("create table good (id int primary key); create table c () inherits (good)")
    source = PostgresSource("shop", postgres.uri)
    unlimited, children = source.warnings([Watch("good")])
    assert unlimited.startswith("max_slot_wal_keep_size is unlimited")
    assert children.startswith("table good has tables that inherit from it")
    source.close()


# ------------------------------------------------------------------------- a pooler


def test_a_pooler_is_recognised(postgres: Database) -> None:
    postgres.execute("create table good (id int primary key)")
    with pooler(postgres.uri) as uri:
        (problem,) = problems(uri, "good")
    assert problem.code.number == "CF2003"
    assert problem.message == (
        "a connection pooler is in front of the server and refuses replication"
    )
    assert "PgBouncer" in problem.hint


@contextmanager
def pooler(uri: str) -> Iterator[str]:
    """What matters of PgBouncer: its own cancel keys, and no replication."""
    address, _, database = uri.rpartition("@")[2].partition("/")
    host, _, port = address.partition(":")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stop = threading.Event()

        def serve() -> None:
            while not stop.is_set():
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(
                    target=_session, args=(client, (host, int(port))), daemon=True
                ).start()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"postgresql://postgres@127.0.0.1:{listener.getsockname()[1]}/{database}"
        finally:
            stop.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _session(client: socket.socket, server: tuple[str, int]) -> None:
    with client, socket.create_connection(server) as upstream:
        start = _startup(client)
        if b"replication\0" in start:
            fields = b"SFATAL\0VFATAL\0C08P01\0Munsupported startup parameter: replication\0\0"
            client.sendall(b"E" + (len(fields) + 4).to_bytes(4) + fields)
            return
        upstream.sendall(start)
        while True:  # the server's greeting, up to ReadyForQuery
            kind = _exactly(upstream, 1)
            size = _exactly(upstream, 4)
            body = _exactly(upstream, int.from_bytes(size) - 4)
            client.sendall(kind + size + (bytes(4) + body[4:] if kind == b"K" else body))
            if kind == b"Z":
                break
        back = threading.Thread(target=_pump, args=(upstream, client), daemon=True)
        back.start()
        _pump(client, upstream)
        upstream.shutdown(socket.SHUT_WR)
        back.join()


def _startup(client: socket.socket) -> bytes:
    """The startup packet; requests for encryption before it are answered with no."""
    while True:
        size = _exactly(client, 4)
        packet = size + _exactly(client, int.from_bytes(size) - 4)
        if len(packet) > 8:
            return packet
        client.sendall(b"N")


def _exactly(peer: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = peer.recv(count - len(data))
        if not piece:
            raise ConnectionError("the peer went away")
        data += piece
    return data


def _pump(source: socket.socket, target: socket.socket) -> None:
    while piece := source.recv(65536):
        target.sendall(piece)


# -- ranges of keys -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "low", "high", "why"),
    [
        ("n", ("x",), ("9",), "VALUES FROM (x) cannot be: x is no value of column a"),
        ("n", ("1.5",), ("3",), "1.5 is no value of column a, which is integer"),
        ("n", ("1",), ("99999999999",), "VALUES TO (99999999999) cannot be"),
        ("n", ("9",), ("3",), "VALUES FROM (9) TO (3) holds no key"),
        ("n", ("3",), ("3",), "holds no key"),
        ("n", ("3", "b"), ("3",), "holds no key"),
        ("n", ("3", "b"), ("3", "B"), "holds no key"),
        ("d", ("2026-02-30",), None, "which is date"),
        ("n", ("3",), ("3", "a"), ""),
        ("n", ("3",), ("12",), ""),
        ("n", ("3", "B"), ("3", "a"), ""),
        ("n", None, ("-5",), ""),
        ("d", ("2026-02-28",), ("2026-03-01",), ""),
    ],
)
def test_a_range_that_no_key_can_be_in(
    postgres: Database,
    table: str,
    low: tuple[str, ...] | None,
    high: tuple[str, ...] | None,
    why: str,
) -> None:
    postgres.execute("create table n (a int, b text, primary key (a, b))")
    postgres.execute("create table d (day date primary key)")
    source = PostgresSource("shop", postgres.uri)
    try:
        problem = source.range_problem(source.describe(None, table), KeyRange(low, high))
        assert source.database == postgres.name
    finally:
        source.close()
    if why:
        assert problem is not None and problem.code.number == "CF1302"
        assert why in problem.message
    else:
        assert problem is None


def test_idle_slots_that_keep_much_log_are_a_warning(postgres: Database) -> None:
    name = f"idle_{postgres.name}"
    postgres.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
    postgres.execute("create table noise as select repeat('x', 900) from generate_series(1, 2000)")

    def held(much: int) -> list[str]:
        with connect(postgres.uri) as connection:
            return [t for t in checks.warnings(connection, [], much_log=much) if name in t]

    assert held(checks.MUCH_LOG) == []
    [text] = held(1 << 20)
    drop = f"SELECT pg_drop_replication_slot('{name}');"
    assert "MB of WAL" in text and drop in text
    postgres.execute(drop)
    assert held(1 << 20) == []

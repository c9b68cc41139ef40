"""SQL warehouses against the list of what a merging sink must do."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import duckdb
import pytest

from changefeed.catalog import Catalog
from changefeed.core.errors import Action, ChangefeedError, Code
from changefeed.core.schema import TableSchema
from changefeed.options import Options
from changefeed.plan.sink_resolution import find_sink, probe_of
from changefeed.sources.postgres.server import system_id
from changefeed_testing.sinks.merge_harness import MergeHarness
from changefeed_testing.sinks.merge_steps import visible
from changefeed_testing.sinks.merging import MERGE_CASES, MergeCase, run_merge_case
from changefeed_testing.sinks.rounds import run_random_rounds
from changefeed_testing.sinks.rows import RowFeed, SourceDouble, delete, insert, table_of
from sinks.base import Sink, SinkContext, Target
from sinks.registry import open_sink
from sinks.warehouse.duckdb import DuckDB
from sinks.warehouse.redshift import RedshiftDialect, RedshiftSink
from tests.services.mariadb import PASSWORD, USER, MariaDB
from tests.services.postgres import Database, PostgresCluster


def _run(case: MergeCase, harness: MergeHarness) -> None:
    reason = run_merge_case(case, harness)
    if reason:
        pytest.skip(f"never: {reason}")


class DuckDBHarness(MergeHarness):
    never: Mapping[str, str] = {"hides_secrets": "the path of a file holds no secret"}

    def __init__(self, path: Path) -> None:
        self._path = path

    def sink(self, options: Mapping[str, object] | None = None) -> Sink:
        return open_sink(f"duckdb://{self._path}?schema=shop", options)

    def rows(self, topic: str) -> Sequence[Mapping[str, object]]:
        with duckdb.connect(str(self._path)) as connection:
            try:
                found = connection.execute(f'SELECT * FROM shop.shop."{topic}"')
            except duckdb.CatalogException:
                return []
            names = [column[0] for column in found.description or ()]
            return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def make_foreign(self, name: str) -> None:
        with duckdb.connect(str(self._path)) as connection:
            connection.execute("CREATE SCHEMA IF NOT EXISTS shop.shop")
            connection.execute(f'CREATE TABLE shop.shop."{name}" (a INTEGER PRIMARY KEY, b TEXT)')
            connection.execute(f"INSERT INTO shop.shop.\"{name}\" VALUES (9, 'theirs')")


@pytest.mark.parametrize("case", MERGE_CASES, ids=str)
def test_duckdb(case: MergeCase, tmp_path: Path) -> None:
    _run(case, DuckDBHarness(tmp_path / "shop.duckdb"))


class PostgreSQLHarness(MergeHarness):
    secret = "pa55word-of-the-sink"
    #: NaN is a number here.
    unfit: Mapping[str, str] = {"date": "2024-02-31"}

    def __init__(self, database: Database) -> None:
        self._database = database

    def sink(self, options: Mapping[str, object] | None = None) -> Sink:
        uri = self._database.uri.replace("postgres@", f"postgres:{self.secret}@")
        return open_sink(f"{uri}?schema=copy&sslmode=disable", options)

    def rows(self, topic: str) -> Sequence[Mapping[str, object]]:
        with self._database.connect() as connection:
            there = connection.execute("SELECT to_regclass(%s)", [f'copy."{topic}"']).fetchone()
            if there is None or there[0] is None:
                return []
            found = connection.execute(f'SELECT * FROM copy."{topic}"'.encode())
            names = [column.name for column in found.description or ()]
            return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def raw(self) -> bytes:
        tables = ("t", "_changefeed_applied")
        return repr([self.rows(table) for table in tables]).encode()

    def make_foreign(self, name: str) -> None:
        with self._database.connect() as connection:
            connection.execute("CREATE SCHEMA IF NOT EXISTS copy")
            made = f'CREATE TABLE copy."{name}" (a integer PRIMARY KEY, b text)'
            connection.execute(made.encode())
            connection.execute(f"INSERT INTO copy.\"{name}\" VALUES (9, 'theirs')".encode())


@pytest.mark.postgres
@pytest.mark.parametrize("postgres", [14, 16], indirect=True)
@pytest.mark.parametrize("case", MERGE_CASES, ids=str)
def test_postgresql(case: MergeCase, postgres: Database) -> None:
    """14 has no MERGE: rows are deleted and inserted there."""
    _run(case, PostgreSQLHarness(postgres))


@pytest.mark.postgres
def test_the_source_table_is_no_target(postgres: Database, tmp_path: Path) -> None:
    """An empty one too: VALIDATE says so before its first feed, and the feed does not touch it."""
    with postgres.connect() as connection:
        connection.execute("CREATE TABLE t (a integer PRIMARY KEY, b text)")
    source = SourceDouble(table_of("t", key=("a",), a="int32", b="text"))
    source.commit(insert("t", a=1, b="x"))
    catalog = Catalog.open(tmp_path / "state")
    try:
        catalog.create_connection("shop", postgres.uri)
        plain = find_sink(catalog, f"{postgres.uri}?schema=public", None)
        table = source.schemas["t"]
        targets = (Target(table.table, "t", table),)
        (problem,), _ = probe_of(catalog)(plain, Options.from_dict({}), targets)
    finally:
        catalog.close()
    assert problem.code is Code.TARGET_NOT_OURS and "is the source table itself" in problem.message
    with postgres.connect() as connection:
        identity = system_id(connection)
    feed = RowFeed(source, context=lambda made: replace(made, source=identity))
    sink = feed.open(open_sink(f"{postgres.uri}?schema=public"))
    with pytest.raises(ChangefeedError, match="is the source table itself"):
        feed.deliver(sink)
    sink.close()
    with postgres.connect() as connection:
        found = connection.execute("SELECT * FROM t")
        assert [column.name for column in found.description or ()] == ["a", "b"]


class RedshiftHarness(PostgreSQLHarness):
    """PostgreSQL in its place: the statements of Redshift are standard SQL but for types."""

    never: Mapping[str, str] = dict.fromkeys(
        (
            "merges_several_tables",
            "replays_a_round",
            "replays_old_rounds",
            "survives_crash_before_commit",
            "aborts",
            "truncates",
            "scans",
            "scans_anew",
            "scans_over_leftovers",
            "compares_equal_rows",
            "counts_duplicates",
            "keeps_sequence_beside",
        ),
        "has a table without a key",
    ) | {
        "evolves": "Redshift widens no integer",
        "merges_awkward_text": "it has a text longer than VARCHAR can be",
    }

    def sink(self, options: Mapping[str, object] | None = None) -> Sink:
        uri = self._database.uri.replace("postgres@", f"postgres:{self.secret}@")
        uri = uri.replace("postgresql:", "redshift:")
        made = RedshiftSink(f"{uri}?schema=copy&sslmode=disable", options)
        made._tables.warehouse.dialect = _PlainStaging()
        return made


class _PlainStaging(RedshiftDialect):
    """Without the clauses of CREATE TABLE that PostgreSQL does not know."""

    def create_staging(self, table: str, columns: Mapping[str, str]) -> str:
        return self.create_table(table, columns)


@pytest.mark.postgres
@pytest.mark.parametrize("case", MERGE_CASES, ids=str)
def test_redshift_on_postgresql(case: MergeCase, postgres: Database) -> None:
    _run(case, RedshiftHarness(postgres))


class MariaDBHarness(MergeHarness):
    secret = PASSWORD

    def __init__(self, server: MariaDB, database: str) -> None:
        self._server = server
        self._database = database

    def sink(self, options: Mapping[str, object] | None = None) -> Sink:
        address = f"{USER}:{PASSWORD}@127.0.0.1:{self._server.port}/{self._database}"
        return open_sink(f"mysql://{address}", options)

    def rows(self, topic: str) -> Sequence[Mapping[str, object]]:
        with (
            self._server.connect(database=self._database) as connection,
            connection.cursor() as cursor,
        ):
            if not cursor.execute("SHOW TABLES LIKE %s", [topic.replace("_", "\\_")]):
                return []
            cursor.execute(f"SELECT * FROM `{topic}`")
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def raw(self) -> bytes:
        return repr([self.rows(table) for table in ("t", "_changefeed_applied")]).encode()

    def make_foreign(self, name: str) -> None:
        with (
            self._server.connect(database=self._database) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(f"CREATE TABLE `{name}` (a INT PRIMARY KEY, b TEXT)")
            cursor.execute(f"INSERT INTO `{name}` VALUES (9, 'theirs')")
            connection.commit()


@pytest.mark.slow
@pytest.mark.parametrize("case", MERGE_CASES, ids=str)
def test_mariadb(case: MergeCase, mariadb: MariaDB) -> None:
    with mariadb.database() as database:
        _run(case, MariaDBHarness(mariadb, database))


# ---------------------------------------------------------------------- two runs at one time


def late_run(harness: MergeHarness) -> None:
    """A run that lost its lease commits what another run has delivered meanwhile, and more."""
    source = SourceDouble(table_of("t", key=("a",), a="int32", b="text"), table_of("v", a="int32"))
    source.commit(insert("t", a=1, b="x"), insert("v", a=1))
    feed = RowFeed(source, harness.topic)
    late = feed.open(harness.sink())
    epoch, receipts = feed.write(late, 0, len(source.log))
    other = feed.open(harness.sink())
    source.commit(insert("v", a=1), delete("t", a=1), insert("t", a=2, b="y"))
    feed.deliver(other, 0)
    feed.commit(late, epoch, receipts)
    for table in ("t", "v"):
        assert visible(harness.rows(table)) == source.rows(table)
    late.close()
    other.close()


def test_late_run_duckdb(tmp_path: Path) -> None:
    late_run(DuckDBHarness(tmp_path / "shop.duckdb"))


@pytest.mark.postgres
def test_late_run_postgresql(postgres: Database) -> None:
    late_run(PostgreSQLHarness(postgres))


@pytest.mark.slow
def test_late_run_mariadb(mariadb: MariaDB) -> None:
    with mariadb.database() as database:
        late_run(MariaDBHarness(mariadb, database))


# ---------------------------------------------------------------------- random rounds

_OPTIONS: Sequence[Mapping[str, object]] = (
    {},
    {"deletes": "soft"},
    {"history": "scd2"},
    {"sequence_column": "none"},
)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.extended)])
@pytest.mark.parametrize(
    "options",
    [o if not o else pytest.param(o, marks=pytest.mark.extended) for o in _OPTIONS],
    ids=str,
)
def test_random_rounds_duckdb(tmp_path: Path, options: Mapping[str, object], seed: int) -> None:
    run_random_rounds(DuckDBHarness(tmp_path / "shop.duckdb"), seed, options)


@pytest.mark.postgres
@pytest.mark.parametrize("postgres", [14, 16], indirect=True)
@pytest.mark.parametrize("options", _OPTIONS, ids=str)
def test_random_rounds_postgresql(postgres: Database, options: Mapping[str, object]) -> None:
    run_random_rounds(PostgreSQLHarness(postgres), 3, options)


@pytest.mark.slow
@pytest.mark.parametrize("options", _OPTIONS, ids=str)
def test_random_rounds_mariadb(mariadb: MariaDB, options: Mapping[str, object]) -> None:
    with mariadb.database() as database:
        run_random_rounds(MariaDBHarness(mariadb, database), 4, options)


# ---------------------------------------------------------------------- errors of real servers


def _code(sink: Sink, source: SourceDouble) -> str:
    with pytest.raises(ChangefeedError) as caught:
        RowFeed(source).open(sink)
        RowFeed(source).deliver(sink, 0)
    sink.close()
    return caught.value.code.number


@pytest.mark.postgres
def test_errors_of_postgresql(postgres: Database) -> None:
    source = SourceDouble(table_of("t", key=("a",), a="int32", b="text"))
    source.commit(insert("t", a=1, b="secret-value"), insert("t", a=2, b="secret-value"))
    uri = postgres.uri
    assert _code(open_sink(f"{uri}_not_there"), source) == "CF5002"
    postgres.execute("create role weak login; revoke create on schema public from public")
    try:
        weak = uri.replace("postgres@", "weak@")
        assert _code(open_sink(weak), source) == "CF5002"
    finally:
        postgres.execute("drop role weak")
    postgres.execute("create table t (a int primary key, b text unique)")
    sink = open_sink(uri)
    feed = RowFeed(source)
    feed.open(sink)
    with pytest.raises(ChangefeedError) as caught:
        feed.deliver(sink)
    assert caught.value.code.number == "CF5006"
    assert "secret-value" not in f"{caught.value.message} {caught.value.detail}"
    assert caught.value.target == "t"
    assert caught.value.detail == "SQLSTATE 23505, constraint t_b_key"
    assert caught.value.__cause__ is None and caught.value.__suppress_context__
    postgres.execute("alter table t drop b, add b int")
    with pytest.raises(ChangefeedError) as caught:
        feed.deliver(sink)
    assert (caught.value.code.number, caught.value.detail) == (
        "CF5003",
        'column "b" is of type integer but expression is of type text (SQLSTATE 42804)',
    )
    assert "secret-value" not in f"{caught.value.message} {caught.value.hint}"
    sink.close()


@pytest.mark.postgres
def test_a_look_at_postgresql_finds_rights_that_are_missing(postgres: Database) -> None:
    """And the statement of the hint is what was missing."""
    with postgres.connect() as connection:
        connection.execute("create role weak_target login")
        connection.execute('create schema "Their own"')
    weak = postgres.uri.replace("postgres@", "weak_target@")
    database = postgres.uri.rpartition("/")[2]
    try:
        for schema, what, grant in (
            (
                "new",
                'schema "new"',
                f'GRANT CREATE ON DATABASE "{database}" TO "weak_target";',
            ),
            (
                "Their own",
                'tables in schema "Their own"',
                'GRANT USAGE, CREATE ON SCHEMA "Their own" TO "weak_target";',
            ),
        ):
            sink = open_sink(f"{weak}?schema={quote(schema)}")
            (problem,) = sink.check(SinkContext("validate", 0, ()))
            assert problem.code == "CF5002"
            assert f'role "weak_target" may not make {what}' in problem.message
            assert problem.hint == grant
            postgres.execute(grant)
            assert sink.check(SinkContext("validate", 0, ())) == []
            sink.close()
    finally:
        postgres.execute("drop owned by weak_target")
        postgres.execute("drop role weak_target")


@pytest.mark.postgres
def test_postgresql_that_goes_away(own_postgres: PostgresCluster) -> None:
    source = SourceDouble(table_of("t", key=("a",), a="int32", b="text"))
    feed = RowFeed(source)
    with own_postgres.database() as database:
        sink = open_sink(database.uri)
        feed.open(sink)
        source.commit(insert("t", a=1, b="x"))
        feed.deliver(sink)
        source.commit(insert("t", a=2, b="y"))
        epoch, receipts = feed.write(sink, 1, 2)
        own_postgres.kill()
        with pytest.raises(ChangefeedError) as caught:
            sink.commit(epoch, receipts)
        assert caught.value.action is Action.RETRY
        sink.abort(epoch, receipts)
        with pytest.raises(ChangefeedError) as caught:
            feed.deliver(sink, 1)
        assert caught.value.action is Action.RETRY
        sink.abort(epoch, receipts)
        own_postgres.start()
        feed.deliver(sink, 0)
        assert database.execute("select a, b from t order by a") == [(1, "x"), (2, "y")]
        sink.close()


def _problems(sink: Sink, schema: TableSchema) -> list[ChangefeedError]:
    try:
        return sink.check(
            SinkContext("validate", 0, (Target(schema.table, schema.table.name, schema),))
        )
    finally:
        sink.close()


@pytest.mark.slow
def test_keys_that_mariadb_does_not_hold(mariadb: MariaDB) -> None:
    """They are refused before there is a feed; the longest one that is taken can be made."""
    texts = {f"k{i}": "text" for i in range(3)} | {"n": "int64"}
    longest, folded = table_of("t", key=tuple(texts), **texts), table_of("u", key=("a",), a="text")
    with mariadb.database() as database:

        def sink() -> Sink:
            return open_sink(f"mysql://{USER}:{PASSWORD}@127.0.0.1:{mariadb.port}/{database}")

        [problem] = _problems(sink(), table_of("t", key=(*texts, "o"), **texts, o="int64"))
        assert "needs 3,076 bytes in an index" in problem.message
        assert _problems(sink(), longest) == []
        source = SourceDouble(longest)
        source.commit(insert("t", k0="é" * 255, k1="☃" * 255, k2="", n=1))
        opened = RowFeed(source).open(sink())
        RowFeed(source).deliver(opened)
        opened.close()
        with mariadb.connect(database=database) as connection, connection.cursor() as cursor:
            for kind, why in (
                ("VARCHAR(9) COLLATE utf8mb4_general_ci", "the collation utf8mb4_general_ci"),
                ("VARCHAR(9) COLLATE utf8mb4_bin", "the collation utf8mb4_bin"),  # PAD SPACE
                ("CHAR(9) COLLATE utf8mb4_nopad_bin", "the type CHAR"),
                ("VARCHAR(9) COLLATE utf8mb4_nopad_bin", ""),
            ):
                cursor.execute(f"CREATE OR REPLACE TABLE u (a {kind} PRIMARY KEY, b TEXT)")
                found = [f"{p.code.number} {p.message}" for p in _problems(sink(), folded)]
                said = f"column a of the target has {why}, by which different texts may be equal"
                assert len(found) == bool(why) and all(said in f for f in found), found


@pytest.mark.postgres
def test_keys_that_postgresql_does_not_hold(postgres: Database) -> None:
    folded = table_of("t", key=("a",), a="text")
    postgres.execute(
        "create extension citext; create collation ci"
        " (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
    )
    kinds = {"text collate ci": "collation ci", "citext": "type citext", "char(3)": "type bpchar"}
    for kind, why in {**kinds, "text": ""}.items():
        postgres.execute(f"drop table if exists t; create table t (a {kind} primary key)")
        found = _problems(open_sink(postgres.uri), folded)
        assert [why in p.message for p in found] == [True] * bool(why), found
    source = SourceDouble(folded)
    digests = "".join(hashlib.sha256(bytes([i])).hexdigest() for i in range(90))
    source.commit(insert("t", a=digests))
    sink = RowFeed(source).open(open_sink(postgres.uri))
    with pytest.raises(ChangefeedError, match="has no index for a key that is so long") as caught:
        RowFeed(source).deliver(sink)
    assert (caught.value.code, caught.value.target) == (Code.SINK_CANNOT_TAKE_TABLE, "t")
    assert "t_pkey" in caught.value.detail and digests[:20] not in str(caught.value)
    sink.close()


def test_keys_that_duckdb_does_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column with a collation is refused before there is a feed; where a database gives one to
    new tables, the first round is refused."""
    folded, uri = table_of("t", key=("a",), a="text", b="text"), f"duckdb://{tmp_path}/t.duckdb"
    kinds = {"nocase": True, "noaccent": True, "noaccent.nocase": True, "C": False}
    for kind, folds in kinds.items():
        with duckdb.connect(f"{tmp_path}/t.duckdb") as connection:
            connection.execute(
                f"create or replace table t (a varchar collate {kind} primary key, b varchar,"
                " tags varchar[])"
            )
        found = [f"{p.code.number} {p.message}" for p in _problems(open_sink(uri), folded)]
        said = "CF5006 shop.public.t: column a of the target has a collation that ignores case or"
        assert [text[: len(said)] for text in found] == [said] * folds, found
    source = SourceDouble(folded)
    source.commit(insert("t", a="x", b="y"))
    with monkeypatch.context() as patched:
        patched.setattr(DuckDB, "folding", lambda *_: {"a": "the collation und:ci"})
        sink = open_sink(f"duckdb://{tmp_path}/new.duckdb")
        RowFeed(source).open(sink)
        with pytest.raises(ChangefeedError, match="a of the target has the collation und:ci"):
            RowFeed(source).deliver(sink)
        sink.close()


@pytest.mark.slow
def test_errors_of_mariadb(mariadb: MariaDB) -> None:
    source = SourceDouble(table_of("t", key=("a",), a="int32", b="text"))
    source.commit(insert("t", a=1, b="secret-value"), insert("t", a=2, b="secret-value"))
    address = f"127.0.0.1:{mariadb.port}"
    assert _code(open_sink(f"mysql://{USER}:wrong@{address}/x"), source) == "CF5002"
    with mariadb.database() as database:
        with mariadb.connect(database=database) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE t (a INT PRIMARY KEY, b VARCHAR(99) UNIQUE)")
        sink = open_sink(f"mysql://{USER}:{PASSWORD}@{address}/{database}")
        feed = RowFeed(source)
        feed.open(sink)
        with pytest.raises(ChangefeedError) as caught:
            feed.deliver(sink)
        assert caught.value.code.number == "CF5006"
        assert "secret-value" not in f"{caught.value.message} {caught.value.detail}"
        assert caught.value.target == "t"
        sink.close()

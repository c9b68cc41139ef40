"""150 random conditions: the rows a CDC query keeps are those PostgreSQL's own SELECT gives.

Conditions come from the part of SQL that both systems read alike: comparisons, NULLs, arithmetic,
text, dates, lists and CASE over columns of many types with NULLs in them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pyarrow as pa
import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.log_rows import scan_rows
from changefeed.core.schema import TableSchema
from changefeed.query.changes import changes_of_result
from changefeed.query.evaluate import Evaluator, QuerySessions
from changefeed.query.lineage import QueryLineage
from changefeed.sources.postgres.source import PostgresSource
from changefeed.spark.session import NodeSpark
from grammar import nodes
from grammar.parser import parse
from tests.services.postgres import Database

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.slow]

CONDITIONS = 150
BATCH = 30

NUMBERS = ("a", "b", "big", "price", "ratio")
TEXTS = ("name", "note")
TABLE = """
create table t (
  id int primary key, a smallint, b int, big bigint, price numeric(10,2), ratio double precision,
  flag boolean, name text, note varchar(20), day date, at timestamptz, plain timestamp,
  tags text[], code uuid);
insert into t select i,
  case when i % 7 = 0 then null else (i % 11) - 5 end,
  case when i % 5 = 0 then null else i * 37 % 101 - 50 end,
  i::bigint * 1000003 % 9999991,
  case when i % 9 = 0 then null else (i * 13 % 1000)::numeric / 100 - 3 end,
  case when i % 8 = 0 then null else (i % 16) / 4.0 - 1 end,
  case i % 3 when 0 then null else i % 3 = 1 end,
  case when i % 6 = 0 then null else chr(97 + i % 26) || 'X' || (i % 10) end,
  repeat('z', i % 5),
  date '2024-02-27' + i % 9,
  case when i % 10 = 0 then null
    else timestamptz '2024-03-31 00:59:59.5Z' + i * interval '7 min' end,
  timestamp '2023-12-31 23:59:59.999999' + (i % 4) * interval '1 us',
  case when i % 4 = 0 then null else array['x' || i % 3, 'y'] end,
  ('00000000-0000-0000-0000-' || lpad((i % 10)::text, 12, '0'))::uuid
from generate_series(1, 400) i
"""


class Conditions:
    """Random conditions over the table, of limited depth."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def condition(self, depth: int = 3) -> str:
        """A condition."""
        if depth and self._random.random() < 0.6:
            kind = self._random.choice(["and", "or", "not", "case"])
            if kind == "not":
                return f"NOT ({self.condition(depth - 1)})"
            if kind == "case":
                parts = [self.condition(depth - 1) for _ in range(3)]
                return f"(CASE WHEN {parts[0]} THEN {parts[1]} ELSE {parts[2]} END)"
            left, right = self.condition(depth - 1), self.condition(depth - 1)
            return f"({left}) {kind.upper()} ({right})"
        return self._random.choice(
            [self._compared, self._null, self._between, self._listed, self._like, self._moment]
        )()

    def _number(self, depth: int = 2) -> str:
        roll = self._random.random()
        if not depth or roll < 0.5:
            return self._random.choice(NUMBERS)
        if roll < 0.7:
            return str(self._random.randint(-60, 60))
        if roll < 0.8:
            return f"length({self._random.choice(TEXTS)})"
        if roll < 0.9:
            return f"coalesce({self._number(depth - 1)}, 0)"
        sign = self._random.choice(["+", "-", "*"])
        return f"({self._number(depth - 1)} {sign} {self._number(depth - 1)})"

    def _compared(self) -> str:
        sign = self._random.choice(["=", "<>", "<", "<=", ">", ">="])
        return f"{self._number()} {sign} {self._number()}"

    def _null(self) -> str:
        column = self._random.choice([*NUMBERS, *TEXTS, "flag", "at", "tags", "code"])
        distinct = f"{self._random.choice(NUMBERS)} IS DISTINCT FROM {self._random.choice(NUMBERS)}"
        return self._random.choice([f"{column} IS NULL", f"{column} IS NOT NULL", "flag", distinct])

    def _between(self) -> str:
        low, high = sorted([self._random.randint(-60, 60), self._random.randint(-60, 60)])
        return f"{self._random.choice(NUMBERS)} BETWEEN {low} AND {high}"

    def _listed(self) -> str:
        if self._random.random() < 0.5:
            listed = ", ".join(str(self._random.randint(-9, 9)) for _ in range(4))
            return f"{self._random.choice(NUMBERS)} IN ({listed})"
        words = ", ".join(f"'{self._word()}'" for _ in range(4))
        return f"upper(name) IN ({words.upper()})"

    def _word(self) -> str:
        return f"{self._random.choice('abcdez')}X{self._random.randint(0, 9)}"

    def _like(self) -> str:
        pattern = self._random.choice(["%X1", "a%", "%z", "_X_", "zz%", "%"])
        column = self._random.choice(TEXTS)
        return self._random.choice(
            [
                f"{column} LIKE '{pattern}'",
                f"substring({column}, 1, 2) >= '{self._word()[:2]}'",
                f"{column} || 'k' = 'zk'",
                "code = '00000000-0000-0000-0000-000000000003'",
            ]
        )

    def _moment(self) -> str:
        minute, hour = self._random.randint(0, 59), self._random.randint(10, 23)
        fraction = self._random.choice(["9", "999999"])
        return self._random.choice(
            [
                f"day >= DATE '2024-02-{self._random.randint(26, 29)}'",
                f"at < TIMESTAMP '2024-03-31 {hour}:{minute:02}:00'",
                f"plain > TIMESTAMP_NTZ '2023-12-31 23:59:59.{fraction}'",
                f"extract(DAY FROM day) = {self._random.randint(1, 29)}",
                f"extract(MINUTE FROM at) < {minute}",
                f"date_trunc('HOUR', at) = TIMESTAMP '2024-03-31 {hour}:00:00'",
            ]
        )


@contextmanager
def scanned(database: Database) -> Iterator[tuple[TableSchema, pa.Table]]:
    """The table as a scan of a feed reads it."""
    source = PostgresSource("shop", database.uri)
    schema = source.describe("public", "t")
    with source.snapshot([schema]) as snapshot:
        batches = [batch for part in snapshot.parts(schema) for batch in part.read()]
    yield schema, scan_rows(schema, pa.Table.from_batches(batches), Timestamp(1, 0))


def in_postgres(condition: str) -> str:
    """The few words of Spark that PostgreSQL spells in another way."""
    return condition.replace("TIMESTAMP '", "timestamptz '").replace(
        "TIMESTAMP_NTZ '", "timestamp '"
    )


@pytest.mark.parametrize(
    "start",
    [0, *(pytest.param(n, marks=pytest.mark.extended) for n in range(BATCH, CONDITIONS, BATCH))],
)
def test_random_conditions_keep_the_rows_that_postgres_keeps(
    start: int, postgres: Database, spark_engine: NodeSpark
) -> None:
    postgres.execute(TABLE)
    sessions = QuerySessions(spark_engine)
    direct, by_job = Evaluator(sessions), Evaluator(sessions, direct_bytes=0)
    kept = 0
    with (
        scanned(postgres) as (schema, rows),
        postgres.connect(options="-c timezone=UTC") as connection,
    ):
        for seed in range(start, start + BATCH):
            condition = Conditions(seed).condition()
            statement = parse(f"CREATE CHANGEFEED f AS SELECT id FROM t WHERE {condition}")
            assert isinstance(statement, nodes.CreateChangefeed) and statement.query is not None
            compiled = sessions.compile(schema, statement.query)
            evaluator = by_job if seed % 3 == 0 else direct
            found = changes_of_result(compiled, rows, evaluator.run)["a0"].to_pylist()
            asked = f"select id from t where {in_postgres(condition)}"
            wanted = [row[0] for row in connection.execute(asked).fetchall()]
            assert sorted(found) == sorted(wanted), (seed, condition)
            kept += 0 < len(wanted) < 400
    assert (direct.direct, direct.jobs, by_job.direct) == (BATCH - BATCH // 3, 0, 0)
    assert by_job.jobs == BATCH // 3
    assert kept > BATCH // 3, "too few conditions select some rows and not others"


@pytest.mark.extended
def test_lineage_names_the_columns_that_spark_reads(
    postgres: Database, spark_engine: NodeSpark
) -> None:
    """sqlglot reads the SELECT, and Spark is what evaluates it."""
    postgres.execute(TABLE)
    source = PostgresSource("shop", postgres.uri)
    schema = source.describe(None, "t")
    source.close()
    sessions = QuerySessions(spark_engine)
    window = "window(event_timestamp(), '1 minute')"
    selects = [
        f"SELECT id, {condition} AS fits FROM t WHERE {condition}"
        for condition in (Conditions(seed).condition() for seed in range(40))
    ]
    selects += [
        "SELECT * FROM t",
        'SELECT x.*, upper(Name) AS n, tags[0] AS tag, price AS "P r" FROM t AS x WHERE x.flag',
        "SELECT id, transform(tags, e -> e || note) AS t2, named_struct('q', a).q AS q FROM t",
        "SELECT id AS k, k + b AS s, cast(at AS date) AS d, plain FROM t",
        f"SELECT {window}.end AS e, Name, sum(price) FILTER (WHERE flag) AS s, 7 AS seven FROM t "
        f"WHERE a > 1 GROUP BY {window}, name",
    ]
    for select in selects:
        statement = parse(f"CREATE CHANGEFEED f AS {select}")
        assert isinstance(statement, nodes.CreateChangefeed) and statement.query is not None
        compiled = sessions.compile(schema, statement.query)
        made = QueryLineage(statement.query, schema)
        shown = compiled.schema.columns[: compiled.shown]
        assert [c.name for c in made.columns] == [c.name for c in shown], select
        if compiled.window is not None:
            assert made.key == compiled.schema.key
        # Spark's plan leaves out what it need not read, as in ``flag OR true``.
        read = {r.column for d in (*made.columns, *made.conditions) for r in d.reads}
        assert read >= {schema.columns[i].name for i in compiled.inputs}, select
        for column, output in zip(made.columns, compiled.outputs, strict=False):
            if output.ordinal is not None:
                assert column.how == "copy"
                assert column.reads[0].column == schema.columns[output.ordinal].name


def test_a_large_batch_comes_back_as_its_parts_do(
    postgres: Database, spark_engine: NodeSpark
) -> None:
    """Its result comes through a file, that of a part as text."""
    postgres.execute(TABLE)
    sessions = QuerySessions(spark_engine)
    statement = parse(
        "CREATE CHANGEFEED f AS SELECT id, event_op() AS op, concat(id, event_timestamp()) AS w "
        "FROM t WHERE id % 3 > 0"
    )
    assert isinstance(statement, nodes.CreateChangefeed) and statement.query is not None
    with scanned(postgres) as (schema, rows):
        compiled = sessions.compile(schema, statement.query)
        evaluator = Evaluator(sessions)
        part = changes_of_result(compiled, rows, evaluator.run)
        large = changes_of_result(compiled, pa.concat_tables([rows] * 100), evaluator.run)
    assert evaluator.direct == 2 and part.num_rows > 100
    assert large.select(["a0", "a1", "a2"]).equals(
        pa.concat_tables([part] * 100).select(["a0", "a1", "a2"])
    )


def test_queries_that_are_compiled_at_once_do_not_see_each_others_tables(
    postgres: Database, spark_engine: NodeSpark
) -> None:
    """A node's feeds compile theirs side by side when it starts, in one session."""
    postgres.execute("create table ta (id int primary key, v text)")
    postgres.execute("create table tb (id int primary key, v numeric(10, 2))")
    source = PostgresSource("shop", postgres.uri)
    sessions = QuerySessions(spark_engine)

    def types(table: str) -> set[str]:
        statement = parse(f"CREATE CHANGEFEED f AS SELECT id, coalesce(v, v) AS w FROM {table}")
        assert isinstance(statement, nodes.CreateChangefeed) and statement.query is not None
        schema = source.describe(None, table)
        compiled = [sessions.compile(schema, statement.query) for _ in range(6)]
        return {found.schema.columns[1].type_name for found in compiled}

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(types, ["ta", "tb", "ta", "tb"]))
    source.close()
    assert found == [{"string"}, {"decimal(10,2)"}] * 2


def test_threads_that_evaluate_one_query_do_not_mix_their_rows(
    postgres: Database, spark_engine: NodeSpark
) -> None:
    """A feed's backlog evaluates several chunks at once; the generated code has buffers."""
    postgres.execute(TABLE)
    sessions = QuerySessions(spark_engine)
    statement = parse(
        "CREATE CHANGEFEED f AS SELECT id, upper(name) || repeat(note, 30) AS w, price * b AS p "
        "FROM t WHERE id % 5 > 0"
    )
    assert isinstance(statement, nodes.CreateChangefeed) and statement.query is not None
    with scanned(postgres) as (schema, rows):
        compiled = sessions.compile(schema, statement.query)
        assert sessions.compile(schema, statement.query) is compiled, "a resumed feed asks again"
        evaluator = Evaluator(sessions)
        parts = [rows.slice(i * 50, 50) for i in range(8)]
        wanted = [changes_of_result(compiled, part, evaluator.run) for part in parts]
        batches = [pa.concat_tables([part] * 200) for part in parts]

        def evaluated(batch: pa.Table) -> pa.Table:
            return changes_of_result(compiled, batch, evaluator.run)

        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(evaluated, batches))
    assert evaluator.jobs == 0
    for part, whole in zip(wanted, found, strict=True):
        assert part.num_rows == 40
        assert whole.equals(pa.concat_tables([part] * 200).combine_chunks())

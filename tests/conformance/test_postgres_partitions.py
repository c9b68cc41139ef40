"""A partition by its bounds: rows judged by PostgreSQL itself, which knows where each one lies."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.log_rows import scan_rows
from changefeed.core.partition import Partition
from changefeed.core.schema import TableSchema
from changefeed.encoding.plan import MessagePlan
from changefeed.encoding.select import wanted_rows
from changefeed.sources.postgres.source import PostgresSource
from tests.conformance.conftest import ALL
from tests.services.postgres import Database

pytestmark = pytest.mark.postgres

#: Partition key, its partitions, rows. Every row lies in one of the partitions, or in ``rest``.
LAYOUTS = {
    "days": (
        "range (at)",
        [
            "from (minvalue) to ('2026-01-01')",
            "from ('2026-01-01') to ('2026-01-02 03:04:05.5')",
            "from ('2026-01-02 03:04:05.5') to ('10000-01-01')",
            "from ('10000-01-01') to (maxvalue)",
        ],
        "at timestamptz",
        [
            "'-infinity'",
            "'2025-12-31 23:59:59.999999Z'",
            "'2026-01-01Z'",
            "'2026-01-02 03:04:05Z'",
            "'2026-01-02 03:04:05.5Z'",
            "'9999-12-31Z'",
            "'10000-01-01Z'",
            "'infinity'",
        ],
    ),
    "dates": (
        "range (d)",
        ["from ('2026-01-01') to ('12000-01-01')", "from ('12000-01-01') to ('100000-01-01')"],
        "d date",
        [
            "'2025-12-31'",
            "'2026-01-01'",
            "'11999-12-31'",
            "'12000-01-01'",
            "'99999-01-01'",
            "'100000-01-01'",
            "'infinity'",
            "'-infinity'",
        ],
    ),
    "pairs": (
        "range (n, s)",
        [
            "from (1, minvalue) to (1, 'm')",
            "from (1, 'm') to (1, maxvalue)",
            "from (1, maxvalue) to (3, minvalue)",
            "from (3, minvalue) to (3, 'B')",
            "from (3, 'B') to (maxvalue, maxvalue)",
        ],
        'n int8, s text collate "C"',
        [
            "0, 'a'",
            "1, ''",
            "1, 'it''s'",
            "1, 'm'",
            "1, 'z'",
            "2, 'x'",
            "3, 'A'",
            "3, 'B'",
            "3, 'b'",
            "9, ''",
        ],
    ),
    "numbers": (
        "range (x)",
        ["from (-1) to (1.50)", "from (1.5) to (10)", "from (10) to (maxvalue)"],
        "x numeric",
        ["-2", "-1.000", "0", "1.49999", "1.5", "1.500", "9.99", "10.0", "100", "'NaN'"],
    ),
    "words": (
        "list (w)",
        ["in ('a', 'it''s', 'x, y)')", "in (null, 'é')", "in ('')"],
        "w varchar(10)",
        ["'a'", "'it''s'", "'x, y)'", "null", "'é'", "''", "'A'"],
    ),
    "listed": (
        "list (x)",
        ["in (1, 2.50)", "in (3, 'NaN')", "in (null)"],
        "x numeric",
        ["1", "1.0", "2.5", "3.000", "'NaN'", "null", "4"],
    ),
    "flags": ("list (f)", ["in (true)", "in (false)"], "f bool", ["true", "false", "null"]),
    "moods": ("list (m)", ["in ('so', 'sad')", "in ('ok')"], "m mood", ["'so'", "'ok'", "'sad'"]),
}


def make(db: Database, name: str) -> None:
    """The table ``name`` of :data:`LAYOUTS` with its rows."""
    by, bounds, columns, rows = LAYOUTS[name]
    if name == "moods":
        db.execute("create type mood as enum ('sad', 'ok', 'so')")
    db.execute(f"create table {name} (id int, {columns}) partition by {by}")
    for number, bound in enumerate(bounds):
        db.execute(f"create table {name}_{number} partition of {name} for values {bound}")
    db.execute(f"create table {name}_rest partition of {name} default")
    for number, row in enumerate(rows):
        db.execute(f"insert into {name} values ({number}, {row})")


def ids(db: Database, leaf: str) -> list[int]:
    return [row[0] for row in db.execute(f"select id from {leaf} order by id")]


def kept(schema: TableSchema, batches: list[pa.RecordBatch], partition: Partition) -> list[int]:
    """Of the whole table's rows those that the feed of a partition would tell."""
    plan = MessagePlan(schema, "t", within=partition.conditions)
    rows = scan_rows(schema, pa.Table.from_batches(batches), Timestamp(1))
    return sorted(wanted_rows(rows, plan, scan=True)["a0"].to_pylist())


@pytest.mark.parametrize("name", LAYOUTS)
def test_rows_are_told_by_their_bounds(
    name: str, postgres: Database, source: PostgresSource
) -> None:
    make(postgres, name)
    schema = source.describe(None, name)
    with source.snapshot([schema]) as snapshot:
        everything = [b for part in snapshot.parts(schema) for b in part.read()]
        for number in range(len(LAYOUTS[name][1])):
            leaf = f"{name}_{number}"
            partition = source.partition(schema, leaf).partition
            assert Partition.from_json(partition.to_json()) == partition
            expected = ids(postgres, leaf)
            assert kept(schema, everything, partition) == expected, leaf
            own = [b for p in snapshot.parts(schema, partition=partition) for b in p.read()]
            assert sorted(i for b in own for i in b.column(0).to_pylist()) == expected, leaf


@ALL
def test_partitions_of_partitions(postgres: Database, source: PostgresSource) -> None:
    """Columns of a partition stand in another order; one level is a condition of its own."""
    postgres.execute(
        """
        create table p (id int, region text, v text, primary key (id, region))
            partition by list (region);
        create table p_eu (gone int, v text, region text not null, id int not null)
            partition by range (id);
        alter table p_eu drop column gone;
        alter table p attach partition p_eu for values in ('eu', 'ch');
        create table p_eu_1 partition of p_eu for values from (0) to (100);
        create table p_us partition of p for values in ('us');
        insert into p select i, (array['eu', 'ch', 'us'])[1 + i % 3], 'v' || i
            from generate_series(1, 99) i;
        analyze p;
        """
    )
    schema = source.describe(None, "p")
    for name, count in (("p_eu", 66), ("p_eu_1", 66), ("p_us", 33)):
        found = source.partition(schema, name)
        assert found.rows_estimate == count
        with source.snapshot([schema]) as snapshot:
            everything = [b for part in snapshot.parts(schema) for b in part.read()]
        assert kept(schema, everything, found.partition) == ids(postgres, name)
    assert len(source.partition(schema, "p_eu_1").partition.conditions) == 2


def refused(source: PostgresSource, table: str, name: str) -> ChangefeedError:
    with pytest.raises(ChangefeedError) as caught:
        source.partition(source.describe(None, table), name)
    return caught.value


def test_what_is_refused(postgres: Database, source: PostgresSource) -> None:
    postgres.execute(
        """
        create table plain (id int primary key);
        create table h (id int primary key) partition by hash (id);
        create table h_0 partition of h for values with (modulus 2, remainder 0);
        create table e (id int, v text) partition by list (lower(v));
        create table e_a partition of e for values in ('a');
        create table s (v text collate "en-x-icu") partition by range (v);
        create table s_a partition of s for values from ('a') to ('b');
        create table s_rest partition of s default;
        """
    )
    said: dict[tuple[str, str], Any] = {}
    for table, name in (
        ("plain", "x"),
        ("h", "h_1"),
        ("h", "h_0"),
        ("e", "e_a"),
        ("s", "s_a"),
        ("s", "s_rest"),
    ):
        error = refused(source, table, name)
        said[table, name] = (error.code.number, error.message)
    assert said == {
        ("plain", "x"): ("CF1101", "table public.plain has no partitions"),
        ("h", "h_1"): ("CF1101", 'table public.h has no partition "h_1"'),
        ("h", "h_0"): (
            "CF1303",
            "partition h_0 cannot be watched by itself: a row does not show its HASH partition",
        ),
        ("e", "e_a"): (
            "CF1303",
            "partition e_a cannot be watched by itself: its table is partitioned by an expression",
        ),
        ("s", "s_a"): (
            "CF1303",
            "partition s_a cannot be watched by itself: texts of v have another collation than C",
        ),
        ("s", "s_rest"): (
            "CF1303",
            "partition s_rest cannot be watched by itself: what a DEFAULT partition holds changes"
            " with the others",
        ),
    }


def test_other_bounds_are_seen(postgres: Database, source: PostgresSource) -> None:
    postgres.execute(
        "create table r (id int primary key) partition by range (id);"
        "create table r_1 partition of r for values from (0) to (10)"
    )
    schema = source.describe(None, "r")
    partition = source.partition(schema, "r_1").partition
    postgres.execute("alter table r detach partition r_1")
    postgres.execute("alter table r attach partition r_1 for values from (0) to (20)")
    with source.snapshot([schema]) as snapshot, pytest.raises(ChangefeedError) as caught:
        snapshot.parts(schema, partition=partition)
    assert (caught.value.code.number, "other bounds" in caught.value.message) == ("CF1303", True)

"""The SQL that each warehouse gets: ``tests/golden/warehouse/<dialect>.txt``.

An input is a case of :data:`CASES`; the output is its statements, one a line. Redshift is proved by
nothing but these texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.events import SchemaChange
from changefeed.core.schema import TableSchema
from changefeed.options import History
from changefeed_testing.sinks.rows import column_of, table_of
from sinks.merged.applied import AppliedVersion
from sinks.merged.policy import TablePolicy
from sinks.warehouse.bigquery.sql import BigQueryDialect
from sinks.warehouse.clickhouse.keeping import ClickHouseStrategy
from sinks.warehouse.clickhouse.sql import ClickHouseDialect
from sinks.warehouse.dialect import Dialect, SqlStatement, Warehouse
from sinks.warehouse.duckdb import DuckDBDialect
from sinks.warehouse.mysql import MySQLDialect
from sinks.warehouse.postgresql import PostgreSQLDialect
from sinks.warehouse.redshift import RedshiftDialect
from sinks.warehouse.snowflake.sql import SnowflakeDialect
from sinks.warehouse.staging import TargetShape
from sinks.warehouse.strategy import Strategy
from sinks.warehouse.tables import StagedRows, TargetTable
from tests.golden import runner


def _before_merge() -> Dialect:
    dialect = PostgreSQLDialect()
    dialect.merges = False
    return dialect


DIALECTS: Mapping[str, Callable[[], Dialect]] = {
    "duckdb": DuckDBDialect,
    "postgresql": PostgreSQLDialect,
    "postgresql14": _before_merge,
    "mysql": MySQLDialect,
    "redshift": RedshiftDialect,
    "bigquery": BigQueryDialect,
    "snowflake": SnowflakeDialect,
    "clickhouse": ClickHouseDialect,
}

KEYED = table_of("t", key=("id",), id="int32", name="text", total="decimal(12,2)", at="timestamptz")
KEYLESS = table_of("t", id="int32", name="text")


class _Texts(Warehouse):
    """Names of a warehouse that is not there."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.schema = ""

    def name(self, table: str) -> str:
        return f"shop.{table}"

    def connect(self, *, make: bool = True) -> None:
        raise AssertionError("there is no server")

    def run(self, statements: Sequence[SqlStatement]) -> None:
        raise AssertionError("there is no server")

    def query(self, sql: str) -> list[tuple[object, ...]]:
        raise AssertionError("there is no server")

    def columns(self, table: str) -> dict[str, str]:
        raise AssertionError("there is no server")

    def load(self, table: str, rows: pa.Table, load_id: str) -> None:
        raise AssertionError("there is no server")

    def close(self) -> None:
        raise AssertionError("there is no server")


def _strategy(d: Dialect) -> Strategy:
    return ClickHouseStrategy() if isinstance(d, ClickHouseDialect) else Strategy()


def _table(d: Dialect, policy: TablePolicy) -> TargetTable:
    strategy, warehouse = _strategy(d), _Texts(d)
    applied = strategy.applied(warehouse, "state/17", "shop.public.t")
    return strategy.table(warehouse, "t", policy, applied)


def _staged(
    schema: TableSchema, *, scan: bool = False, missing: frozenset[int] = frozenset()
) -> StagedRows:
    last, shape = AppliedVersion(900, 7), TargetShape(schema, "t")
    return StagedRows(shape, 5, "shop._staging_t", 3, scan, missing, last)


def _apply(d: Dialect, staged: StagedRows, **policy: Any) -> list[str]:
    return _strategy(d).apply(_table(d, TablePolicy(**policy)), staged)


def _create(d: Dialect) -> list[str]:
    table, shape, strategy = _table(d, TablePolicy()), TargetShape(KEYED, "t"), _strategy(d)
    return [
        *strategy.create(table, KEYED),
        *strategy.settle(table, KEYED),
        d.create_staging(table.staging, shape.staging_columns(d)),
        table.applied.insert("f", "t"),
    ]


def _round(d: Dialect) -> list[str]:
    table, staged = _table(d, TablePolicy()), _staged(KEYED)
    begun = _strategy(d).begin(table, "n1")
    return [*begun, *_apply(d, staged), table.applied.advance(900, 7)]


def _evolve(d: Dialect) -> list[str]:
    old = table_of("t", key=("id",), id="int32", name="text")
    columns = (old.columns[0], column_of("label", "text", 2), column_of("added", "date", 3))
    new = TableSchema(old.table, columns, old.key, old.before_image, table_id=old.table_id)
    event = SchemaChange(old, new, Timestamp(1), 1)
    present = {"id": "", "name": "", "_sequence_num": ""}
    return _strategy(d).evolve(_table(d, TablePolicy()), event, present)


def _end_scan(d: Dialect) -> list[str]:
    return _strategy(d).end_scan(_table(d, TablePolicy()), TargetShape(KEYED, "t"), Timestamp(900))


#: Input of a golden file -> statements.
CASES: Mapping[str, Callable[[Dialect], list[str]]] = {
    "create": _create,
    "a round of changes": _round,
    "rows of a scan": lambda d: _apply(d, _staged(KEYED, scan=True)),
    "unsent values": lambda d: _apply(d, _staged(KEYED, missing=frozenset({1}))),
    "soft deletes": lambda d: _apply(d, _staged(KEYED), soft=True),
    "sequence beside": lambda d: _apply(d, _staged(KEYED), sequence=""),
    "end of a scan": _end_scan,
    "no key": lambda d: _apply(d, _staged(KEYLESS)),
    "every change": lambda d: _apply(d, _staged(KEYED), history=History.APPEND),
    "versions": lambda d: _apply(d, _staged(KEYED), history=History.SCD2),
    "versions, soft": lambda d: _apply(d, _staged(KEYED), history=History.SCD2, soft=True),
    "another shape": _evolve,
}


@pytest.mark.parametrize("file", runner.files("warehouse"))
def test_sql(file: Path, rewrite: bool) -> None:
    dialect = DIALECTS[file.stem]()
    runner.run(file, lambda case: "\n".join(CASES[case](dialect)), rewrite=rewrite)


def test_every_dialect_has_every_case() -> None:
    for name in DIALECTS:
        file = runner.FOLDER / "warehouse" / f"{name}.txt"
        wanted = [case for case in CASES if (name, case) != ("redshift", "no key")]
        assert [case.input for case in runner.cases(file)] == wanted

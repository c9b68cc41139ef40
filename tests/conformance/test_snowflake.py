"""Snowflake's stand-in against the list of what a merging sink must do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from snowflake.connector.errors import ProgrammingError

from changefeed_testing.sinks.merge_harness import MergeHarness
from changefeed_testing.sinks.merging import MERGE_CASES, MergeCase, run_merge_case
from sinks.base import Sink
from sinks.registry import open_sink
from tests.services.snowflake import PASSWORD, SnowflakeEmulator


class SnowflakeHarness(MergeHarness):
    secret = PASSWORD

    def __init__(self, emulator: SnowflakeEmulator) -> None:
        self.database = emulator.database()
        self._emulator = emulator

    def sink(self, options: Mapping[str, object] | None = None) -> Sink:
        return open_sink(self._emulator.uri(self.database, "shop", "load_interval=0"), options)

    def rows(self, topic: str) -> Sequence[Mapping[str, object]]:
        with self._emulator.connect(self.database) as connection, connection.cursor() as cursor:
            try:
                cursor.execute(f"SELECT * FROM shop.{topic}")
            except ProgrammingError as error:
                if error.errno == 2003:
                    return []
                raise
            names = [column.name.lower() for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def make_foreign(self, name: str) -> None:
        with self._emulator.connect(self.database) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE SCHEMA IF NOT EXISTS shop")
            cursor.execute(f"CREATE TABLE shop.{name} (a INTEGER, b VARCHAR)")
            cursor.execute(f"INSERT INTO shop.{name} (a, b) VALUES (9, 'theirs')")

    def raw(self) -> bytes:
        return repr([self.rows(table) for table in ("t", "_changefeed_applied")]).encode()


@pytest.mark.snowflake
@pytest.mark.parametrize("case", MERGE_CASES, ids=str)
def test_merges(case: MergeCase, snowflake: SnowflakeEmulator) -> None:
    reason = run_merge_case(case, SnowflakeHarness(snowflake))
    if reason:
        pytest.skip(f"never: {reason}")

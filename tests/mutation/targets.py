"""The modules whose faults tests have to notice, and the tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Target:
    """A module, and the tests that are to notice its faults."""

    module: str
    tests: tuple[str, ...]

    @property
    def path(self) -> Path:
        """Its source."""
        return ROOT / (self.module.replace(".", "/") + ".py")


_CHUNK_TESTS = ("tests/unit/test_chunks.py", "tests/unit/test_jobs_delivery.py")
_DELIVERY_TESTS = (*_CHUNK_TESTS[::-1], "tests/unit/test_jobs_parts.py")
_SCANNING_TESTS = ("tests/unit/test_jobs_scanning.py",)
_RETRY_TESTS = ("tests/unit/test_jobs_parts.py", "tests/unit/test_runner.py")
_LOG_TESTS = (
    "tests/unit/test_log_reader.py",
    "tests/unit/test_log_writer.py",
    "tests/properties/test_log_model.py",
)
_POSTGRES_TESTS = (
    "tests/unit/test_postgres_relations.py",
    "tests/unit/test_postgres_large_transactions.py",
    "tests/unit/test_postgres_values.py",
    "tests/properties/test_postgres_decode.py",
)
_ROW_TESTS = (*_POSTGRES_TESTS, "tests/unit/test_postgres_garbage.py")
_ASSEMBLER_TESTS = (
    *_POSTGRES_TESTS,
    "tests/unit/test_postgres_assemble.py",
    "tests/unit/test_postgres_continuity.py",
    "tests/unit/test_postgres_logical_messages.py",
)
_INBOX_TESTS = (
    "tests/unit/test_postgres_inbox.py",
    "tests/unit/test_postgres_logical_messages.py",
    "tests/unit/test_postgres_relations.py",
)
_MYSQL_ROW_TESTS = ("tests/properties/test_mysql_rows.py", "tests/unit/test_mysql_values.py")
_MYSQL_TESTS = (*_MYSQL_ROW_TESTS, "tests/unit/test_mysql_binlog.py")
_REPEATS_TESTS = (
    "tests/properties/test_repeats.py",
    "tests/unit/test_postgres_large_transactions.py",
)
_LANE_TESTS = ("tests/unit/test_lanes.py", "tests/unit/test_engines.py")
_SELECT_TESTS = (
    "tests/properties/test_select.py",
    "tests/properties/test_messages.py",
    "tests/unit/test_postgres_logical_messages.py",
    "tests/unit/test_reused_keys.py",
)
_OPTION_TESTS = (
    "tests/unit/test_options.py",
    "tests/unit/test_message_plan.py",
    "tests/golden/test_language.py",
)
TARGETS = {
    "feeds/checkpoint": Target("changefeed.feeds.checkpoint", ("tests/unit/test_checkpoint.py",)),
    "feeds/scan_coordinator": Target("changefeed.feeds.scan_coordinator", _SCANNING_TESTS),
    "feeds/delivery": Target("changefeed.feeds.delivery", _DELIVERY_TESTS),
    "feeds/rounds": Target("changefeed.feeds.rounds", ("tests/unit/test_rounds.py",)),
    "feeds/chunks": Target("changefeed.feeds.chunks", _CHUNK_TESTS),
    "feeds/runner": Target("changefeed.feeds.runner", ("tests/unit/test_runner.py",)),
    "feeds/retry": Target("changefeed.feeds.retry", _RETRY_TESTS),
    "feeds/lanes": Target("changefeed.feeds.lanes", _LANE_TESTS),
    "core/engines": Target("changefeed.core.engines", ("tests/unit/test_engines.py",)),
    "core/clock": Target("changefeed.core.clock", ("tests/unit/test_clock.py",)),
    "encoding/reused_keys": Target(
        "changefeed.encoding.reused_keys", ("tests/unit/test_reused_keys.py",)
    ),
    "encoding/select": Target("changefeed.encoding.select", _SELECT_TESTS),
    "log/writer": Target("changefeed.log.writer", (*_LOG_TESTS, "tests/unit/test_log_upkeep.py")),
    "log/cut": Target("changefeed.log.cut", ("tests/properties/test_log_cut.py", *_LOG_TESTS)),
    "decoded/flushes": Target(
        "changefeed.sources.decoded.flushes", ("tests/unit/test_flushes.py", *_ASSEMBLER_TESTS)
    ),
    "decoded/repeats": Target("changefeed.sources.decoded.repeats", _REPEATS_TESTS),
    "postgres/pgoutput": Target("changefeed.sources.postgres.pgoutput", _INBOX_TESTS),
    "postgres/assemble": Target("changefeed.sources.postgres.assemble", _ASSEMBLER_TESTS),
    "postgres/inbox_pass": Target(
        "changefeed.sources.postgres.inbox_pass",
        ("tests/unit/test_postgres_inbox_pass.py", *_ASSEMBLER_TESTS),
    ),
    "postgres/rows": Target("changefeed.sources.postgres.rows", _ROW_TESTS),
    "mysql/decode": Target("changefeed.sources.mysql.decode", _MYSQL_ROW_TESTS),
    "mysql/rows": Target("changefeed.sources.mysql.rows", _MYSQL_TESTS),
    "options/relations": Target("changefeed.options.relations", _OPTION_TESTS),
    "options/types": Target("changefeed.options.types", _OPTION_TESTS),
    "lake/merge": Target(
        "sinks.lake.merge", ("tests/unit/test_lake.py", "tests/golden/test_lake.py")
    ),
    "warehouse/merge": Target(
        "sinks.warehouse.merge", ("tests/unit/test_warehouse.py", "tests/golden/test_warehouse.py")
    ),
}

"""Every sink against the one list of what a sink must do."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from changefeed_testing.sinks.conformance import CASES, Case, Harness, run_case
from changefeed_testing.sinks.feed import FeedDouble
from changefeed_testing.sinks.messages import Message, parse_message
from changefeed_testing.sinks.readers import file_bytes, read_files, read_table, visible_files
from sinks.base import Sink
from sinks.kafka.sink import KafkaSink
from sinks.registry import open_sink
from sinks.terminal import TerminalSink
from tests.helpers.waiting import until
from tests.services.kafka import KafkaBroker
from tests.services.postgres import Database

TABLES = ("t", "u")


def _run(case: Case, harness: Harness) -> None:
    reason = run_case(case, harness)
    if reason:
        pytest.skip(f"never: {reason}")


class _Base:
    """What most harnesses have in common: one partition per topic, no limit, no secret."""

    never: Mapping[str, str] = {}
    secret = ""
    max_message_bytes = 0

    def __init__(self) -> None:
        self._used: dict[str, None] = {}

    def topic(self, table: str) -> str:
        self._used[table] = None
        return table

    def partitions(self) -> Mapping[str, int]:
        return {self.topic(table): 1 for table in list(self._used)}

    @contextmanager
    def down(self) -> Iterator[None]:
        raise NotImplementedError
        yield


# ------------------------------------------------------------------------------------- files


class FilesHarness(_Base):
    never: Mapping[str, str] = {
        "refuses_oversize": "a file takes a line of any length",
        "hides_secrets": "the URI of a directory holds no secret",
    }

    def __init__(self, directory: Path, parameters: str, options: Mapping[str, object]) -> None:
        super().__init__()
        self.directory = directory
        self._uri = f"file://{directory}?{parameters}"
        self._options = options

    def sink(self) -> Sink:
        return open_sink(self._uri, self._options)

    def read(self) -> Sequence[Message]:
        return read_files(self.directory, self._used)

    def raw(self) -> bytes:
        return b"".join(file_bytes(path) for path in visible_files(self.directory))

    @contextmanager
    def down(self) -> Iterator[None]:
        away = self.directory.with_name("away")
        os.rename(self.directory, away)
        yield
        os.rename(away, self.directory)


@pytest.mark.parametrize(
    ("parameters", "options"),
    [
        ("", {}),
        ("partition_format=hourly&file_size=100", {"compression": "gzip"}),
        ("partition_format=flat", {"compression": "zstd"}),
    ],
    ids=["daily", "hourly-gzip-small", "flat-zstd"],
)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_files(case: Case, parameters: str, options: dict[str, object], tmp_path: Path) -> None:
    _run(case, FilesHarness(tmp_path / "out", parameters, options))


# ------------------------------------------------------------------------------------- table


class TableHarness(_Base):
    never: Mapping[str, str] = {
        "outlives_outage": "SQLite has no server to stop",
        "refuses_oversize": "a text column takes a value of any length",
        "writes_in_executors": "the rows of an epoch are one transaction of one connection",
        "hides_secrets": "the path of a SQLite file holds no secret",
    }

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._url = f"sqlite:///{path}"
        self._engine = sa.create_engine(self._url)

    def sink(self) -> Sink:
        return open_sink(f"experimental-sql:///{self._url}")

    def read(self) -> Sequence[Message]:
        return read_table(self._engine)

    def raw(self) -> bytes:
        return repr(self.read()).encode()

    def close(self) -> None:
        self._engine.dispose()


@pytest.mark.postgres
def test_a_check_of_a_table_leaves_no_connection_open(postgres: Database) -> None:
    sink = open_sink(f"experimental-sql:///{postgres.uri}")
    assert sink.check(FeedDouble({"t": "t"}).context()) == []
    sink.close()
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
    until(lambda: postgres.execute(others, [postgres.name]) == [(0,)], "sessions end")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_table(case: Case, tmp_path: Path) -> None:
    harness = TableHarness(tmp_path / "messages.db")
    try:
        _run(case, harness)
    finally:
        harness.close()


# ---------------------------------------------------------------------------------- terminal


class TerminalHarness(_Base):
    never: Mapping[str, str] = {
        "outlives_outage": "the client is in the same process",
        "refuses_oversize": "a client takes a row of any length",
        "writes_in_executors": "the client is in the process of the driver",
        "hides_secrets": "there is no URI",
        "survives_crash_before_commit": "a crash ends the client with the feed",
    }

    def __init__(self) -> None:
        super().__init__()
        self._messages: list[Message] = []
        self._readers: list[threading.Thread] = []

    def sink(self) -> Sink:
        sink = TerminalSink(capacity=3)
        reader = threading.Thread(target=self._read_all, args=(sink,), daemon=True)
        reader.start()
        self._readers.append(reader)
        return sink

    def _read_all(self, sink: TerminalSink) -> None:
        for row in sink.rows():
            topics = [row.table] if row.table else list(self._used)
            self._messages += [parse_message(t, 0, row.key, row.value) for t in topics]

    def read(self) -> Sequence[Message]:
        return list(self._messages)

    def raw(self) -> bytes:
        return b""


@pytest.mark.parametrize("case", CASES, ids=str)
def test_terminal(case: Case) -> None:
    _run(case, TerminalHarness())


# ------------------------------------------------------------------------------------- Kafka


class KafkaHarness(_Base):
    never: Mapping[str, str] = {
        "outlives_outage": "the broker is shared; test_sinks_kafka.py stops one of its own",
        "hides_secrets": "the plain listener needs no login; test_sinks_kafka.py has one",
    }
    max_message_bytes = 1_048_588

    def __init__(self, broker: KafkaBroker, prefix: str, partitions: int) -> None:
        super().__init__()
        self._broker = broker
        self._prefix = prefix
        self._count = partitions
        for table in TABLES:
            if partitions > 1:
                broker.create_topic(f"{prefix}{table}", partitions)

    def sink(self) -> Sink:
        return open_sink(f"{self._broker.uri}?topic_prefix={self._prefix}")

    def topic(self, table: str) -> str:
        self._used[table] = None
        return KafkaSink(f"{self._broker.uri}?topic_prefix={self._prefix}").topic(table)

    def partitions(self) -> Mapping[str, int]:
        return {self.topic(table): self._count for table in list(self._used)}

    def read(self) -> Sequence[Message]:
        return [
            parse_message(r.topic, r.partition, r.key, r.value)
            for topic in self.partitions()
            for r in self._broker.messages(topic)
        ]

    def raw(self) -> bytes:
        return b""


@pytest.mark.kafka
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_kafka(case: Case, partitions: int, kafka: KafkaBroker, topic: str) -> None:
    _run(case, KafkaHarness(kafka, f"{topic}_", partitions))

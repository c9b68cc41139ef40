"""Debezium itself, from its jars: its engine, and what its consumers make of messages."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.helpers.waiting import until
from tests.services.ivy import Artifact, resolve
from tests.services.java import from_source
from tests.services.mariadb import PASSWORD, USER
from tests.services.mysql import BinlogServer
from tests.services.postgres import Database

VERSION = "3.6.1.Final"
_PROGRAMS = Path(__file__).with_name("debezium_java")


@dataclass(frozen=True, slots=True)
class Event:
    """A message with its schemas. ``value`` is None of a tombstone, ``key`` where there is none."""

    topic: str
    key: dict[str, Any] | None
    value: dict[str, Any] | None
    key_schema: dict[str, Any] | None = None
    value_schema: dict[str, Any] | None = None


class DebeziumEngine:
    """A running engine of one connector; its events are lines of a file."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self._process = process
        self._offsets = folder / "offsets"
        self._output = folder / "events"
        self._log = folder / "log"

    def events(self) -> list[Event]:
        """Every event so far."""
        lines = self._output.read_text("utf-8").split("\n")[:-1]
        return [event(line) for line in lines]

    def kill(self) -> None:
        """End the engine without a word, at a moment when its file of offsets is whole: the file
        is emptied and filled each time, which a topic of Kafka's never is."""

        def stopped_whole() -> bool:
            self._process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)
            if self._stored() is None:
                self._process.send_signal(signal.SIGCONT)
                return False
            return True

        until(stopped_whole, "a whole file of offsets")
        self._process.kill()
        self._process.wait(10)

    def offset(self) -> str:
        """The offset that is stored, as JSON. The engine stores it a moment after the events."""
        found: list[str] = []

        def there() -> bool:
            found[:] = filter(None, [self._stored()])
            return bool(found)

        until(there, "an offset")
        return found[0]

    def _stored(self) -> str | None:
        """The offset, where the file is whole. Kafka's class stores a map that Java serialized, and
        keys and values are bytes of JSON in it."""
        if not self._offsets.exists():
            return None
        texts = re.findall(rb'\{"[^\x00-\x1f]*\}', self._offsets.read_bytes())
        offsets = [t.decode() for t in texts if json.loads(t).keys() != {"server"}]
        return offsets[0] if len(offsets) == 1 else None

    def wait_for(self, count: int) -> list[Event]:
        """The events, as soon as there are ``count``."""

        def there() -> bool:
            ended = self._process.poll() is not None
            assert not ended, self._log.read_text("utf-8")[-3000:]
            return len(self.events()) >= count

        until(there)
        return self.events()


def postgres_settings(database: Database) -> dict[str, str]:
    """A connector of a PostgreSQL database."""
    address = urlsplit(database.uri)
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "database.hostname": address.hostname or "",
        "database.port": str(address.port),
        "database.user": address.username or "",
        "database.password": address.password or "",
        "database.dbname": database.name,
    }


def mysql_settings(server: BinlogServer, database: str) -> dict[str, str]:
    """A connector of a database of a MySQL server."""
    return {
        "connector.class": "io.debezium.connector.mysql.MySqlConnector",
        "database.hostname": "127.0.0.1",
        "database.port": str(server.port),
        "database.user": USER,
        "database.password": PASSWORD,
        "database.server.id": "4711",
        "database.include.list": database,
        "include.schema.changes": "false",
        "schema.history.internal": "io.debezium.relational.history.MemorySchemaHistory",
    }


def event(line: str) -> Event:
    """A topic, a key and a value with schemas, with tabs between them; nothing for None."""
    topic, *parts = line.split("\t")
    key, value = (json.loads(part) if part else {} for part in parts)
    schemas = (part.get("schema") for part in (key, value))
    return Event(topic, key.get("payload"), value.get("payload"), *schemas)


@contextmanager
def engine(folder: Path, settings: Mapping[str, str]) -> Iterator[DebeziumEngine]:
    """The engine with these settings beside those that every one needs."""
    folder.mkdir()
    everyone = {
        "name": "peer",
        "topic.prefix": "dbz",
        "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        "offset.storage.file.filename": str(folder / "offsets"),
        "offset.flush.interval.ms": "100",
        **{f"{part}converter.schemas.enable": "true" for part in ("", "key.", "value.")},
    }
    file = folder / "engine.properties"
    file.write_text(
        "".join(f"{name}={value}\n" for name, value in {**everyone, **settings}.items())
    )
    with (folder / "events").open("wb") as output, (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            _command("DebeziumToLines", file), stdin=subprocess.PIPE, stdout=output, stderr=log
        )
        try:
            yield DebeziumEngine(process, folder)
        finally:
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.close()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


def consumed(messages: Iterable[tuple[bytes, bytes | None]]) -> list[tuple[Any, str, str]]:
    """What Debezium's consumers make of keys and values that carry schemas: the row of
    ``ExtractNewRecordState``, what the record of the sinks is, and the key's fields."""
    given = b"".join(key + b"\t" + (value or b"") + b"\n" for key, value in messages)
    run = subprocess.run(
        _command("DebeziumConsumer"), input=given, capture_output=True, timeout=120
    )
    assert run.returncode == 0, run.stderr.decode()[-3000:]
    rows = [line.split("\t") for line in run.stdout.decode().splitlines()]
    return [(json.loads(row) if row else None, kind, key) for row, kind, key in rows]


def _command(program: str, *arguments: Path) -> list[str | Path]:
    """A program compiled by the compiler that Spark brings, with Debezium's jars."""
    names = ("embedded", "connector-postgres", "connector-mysql", "sink")
    jars = resolve(
        f"debezium-{VERSION}-consumers",
        [
            *(Artifact("io.debezium", f"debezium-{name}", VERSION) for name in names),
            Artifact("org.slf4j", "slf4j-simple", "1.7.36"),
        ],
    )
    return from_source(_PROGRAMS / f"{program}.java", f"{jars}/*", *arguments)

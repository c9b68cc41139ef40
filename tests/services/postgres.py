"""PostgreSQL 14 to 18, each the newest minor, and databases in them.

A :class:`PostgresCluster` is one server; ``with cluster.database() as db`` is one test's
database in it, with ``db.uri``, ``db.connect()`` and ``db.execute(sql)``.
"""

from __future__ import annotations

import itertools
import platform
import shutil
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from changefeed.embedded import EmbeddedPostgres
from tests.services.cache import made_once, readable_root
from tests.services.ivy import Artifact, fetch

#: Newest minor of each major that there is as embedded binaries.
VERSIONS = {14: "14.24.0", 15: "15.19.0", 16: "16.15.0", 17: "17.11.0", 18: "18.6.0"}
MAJORS = tuple(VERSIONS)
DEFAULT_MAJOR = 16

#: A crash of the machine is not in the tests: waiting for the disk would only cost time.
SETTINGS: Mapping[str, str] = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "max_wal_senders": "40",
    "max_replication_slots": "40",
    "max_prepared_transactions": "10",
    "shared_buffers": "64MB",
    "max_wal_size": "192MB",  # of each of up to fifteen servers; by default a gigabyte is kept
    "timezone": "UTC",
}


def installation(major: int) -> Path:
    """Folder with ``bin/postgres`` of that major version, fetched and unpacked once."""
    version = VERSIONS[major]
    machine = {"x86_64": "amd64", "aarch64": "arm64v8"}[platform.machine()]
    artifact = Artifact(
        "io.zonky.test.postgres", f"embedded-postgres-binaries-linux-{machine}", version
    )

    def unpack(folder: Path) -> None:
        with zipfile.ZipFile(fetch(artifact)) as jar:
            inner = next(name for name in jar.namelist() if name.endswith(".txz"))
            with jar.open(inner) as packed, tarfile.open(fileobj=packed, mode="r|xz") as tar:
                # Python before 3.11.4 has no filters and no argument for one.
                tar.extraction_filter = getattr(tarfile, "tar_filter", None)
                tar.extractall(folder)

    return made_once(readable_root() / f"postgresql-{version}", unpack)


class Database:
    """One database of a server, for one test."""

    def __init__(self, server: PostgresCluster, name: str) -> None:
        self.server = server
        self.name = name
        self.uri = server.uri(name)

    def connect(self, *, autocommit: bool = True, **options: Any) -> psycopg.Connection:
        """A new psycopg connection."""
        return psycopg.connect(self.uri, autocommit=autocommit, **options)

    def execute(self, sql: str, parameters: Sequence[object] | None = None) -> list[Any]:
        """Run ``sql`` (several statements when there are no parameters); rows of the last."""
        with self.connect() as connection:
            cursor = connection.execute(sql, parameters)
            while cursor.nextset():
                pass
            return cursor.fetchall() if cursor.description else []

    def slots(self) -> list[str]:
        """Names of the logical slots on this database."""
        rows = self.execute(
            "select slot_name from pg_replication_slots where database = %s", [self.name]
        )
        return [name for (name,) in rows]


class PostgresCluster(EmbeddedPostgres):
    """A server of one major version with the settings of the tests."""

    major: int = DEFAULT_MAJOR
    _numbers = itertools.count(1)

    @classmethod
    def make(
        cls, major: int, folder: Path, settings: Mapping[str, str] | None = None
    ) -> PostgresCluster:
        """A server (not started) with its data in ``folder``/data."""
        cluster = cls(
            folder / "data",
            installation=installation(major),
            settings={**SETTINGS, **(settings or {})},
        )
        cluster.major = major
        return cluster

    def execute(self, sql: str, parameters: Sequence[object] | None = None) -> list[Any]:
        """Run ``sql`` in the maintenance database."""
        return Database(self, "postgres").execute(sql, parameters)

    # ------------------------------------------------------------------ copies

    def copy_data(self, folder: Path) -> Path:
        """Copy the data folder of this server, which is stopped, like a snapshot of its disk."""
        if self.running:
            raise RuntimeError("stop the server first: a copy of a running one is torn")
        subprocess.run(["cp", "-a", str(self.data), str(folder)], check=True)
        return folder

    def restore_data(self, folder: Path) -> None:
        """Put a copy back in place of the data of this server, which is stopped."""
        if self.running:
            raise RuntimeError("stop the server first")
        shutil.rmtree(self.data)
        subprocess.run(["cp", "-a", str(folder), str(self.data)], check=True)

    def standby(self, name: str, *, slots: bool = False, **settings: str) -> PostgresCluster:
        """A standby (not started) with a copy of the data of this server, which is stopped.

        ``slots``: with its slots, as a copied disk has them and a base backup has not.
        """
        data = self.copy_data(self.data.with_name(name))
        for slot in () if slots else (data / "pg_replslot").iterdir():
            shutil.rmtree(slot)
        (data / "standby.signal").touch()
        standby = type(self)(
            data,
            installation=self.installation,
            settings={
                **self.settings,
                "primary_conninfo": f"host=127.0.0.1 port={self.port} user={self.user}"
                " dbname=postgres",
                **settings,
            },
        )
        standby.major = self.major
        return standby

    def promote(self) -> None:
        """Make a standby a primary of its own, on a new timeline."""
        self.execute("select pg_promote()")

    @contextmanager
    def database(self, name: str | None = None) -> Iterator[Database]:
        """A fresh database, dropped afterwards with its slots and everybody in it."""
        name = name or f"test_{next(self._numbers)}"
        self.execute(f'create database "{name}"')
        try:
            yield Database(self, name)
        finally:
            if self.running:
                self._drop(name)

    def _drop(self, name: str) -> None:
        """Slots go first (their readers are ended), then the database by force."""
        deadline = time.monotonic() + 60
        while True:
            self.execute(
                "select pg_terminate_backend(active_pid) from pg_replication_slots"
                " where database = %s and active",
                [name],
            )
            try:
                self.execute(
                    "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
                    " where database = %s",
                    [name],
                )
                self.execute(f'drop database if exists "{name}" with (force)')
                return
            except (psycopg.errors.ObjectInUse, psycopg.errors.UndefinedObject):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    # ------------------------------------------------------------------ logins and TLS

    def set_hba(self, *lines: str) -> None:
        """Replace ``pg_hba.conf`` (the last line keeps ``postgres`` trusted) and reload it.

        Lines are tried in order, e.g. ``host all alice 127.0.0.1/32 scram-sha-256``. With no
        lines everybody is trusted again.
        """
        rest = ["host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"]
        (self.data / "pg_hba.conf").write_text("\n".join([*lines, *rest]) + "\n")
        before = self.execute("select pg_conf_load_time()")
        self.reload()
        deadline = time.monotonic() + 60
        while self.execute("select pg_conf_load_time()") == before:
            if time.monotonic() > deadline:
                raise TimeoutError("the server did not reload its configuration")
            time.sleep(0.01)

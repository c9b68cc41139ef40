"""Where the demo takes place: a folder with a server, the shop in it, and a state."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from changefeed.api import Interpreter, Session
from changefeed.catalog import Catalog
from changefeed.core.errors import ChangefeedError, Code
from changefeed.demo import shop
from changefeed.demo.databases import DATABASES, ShopDatabase
from changefeed.demo.display import Display
from changefeed.embedded.account import server_account

#: What to type at the prompt, each line a step further.
TRY = (
    ("SHOW TABLES;", "what can be watched"),
    ("CREATE CHANGEFEED FOR orders WITH diff, updated;", "rows here; Ctrl-C ends it"),
    ("CREATE CHANGEFEED lake FOR orders, order_items INTO 'external://lake';", "files"),
    ("SHOW CHANGEFEEDS;", "how the feeds are"),
    ("EXPLAIN CREATE CHANGEFEED FOR customers INTO 'kafka://localhost:9092';", "what it would do"),
)


@dataclass(frozen=True, slots=True)
class ServerFolder:
    """A folder with a running server, and the address of the shop there."""

    folder: Path
    database: ShopDatabase
    uri: str

    @property
    def state(self) -> Path:
        """The state's directory."""
        return self.folder / "state"


@contextmanager
def place(
    display: Display,
    *,
    source: str | None,
    port: int | None,
    keep: bool,
    folder: Path | None = None,
) -> Iterator[ServerFolder]:
    """The server with the shop in it; all gone afterwards, unless it is to be kept.

    ``source`` is a word of ``DATABASES``, or None for that of the folder, else PostgreSQL.
    ``folder`` is one that was kept before, or where to make one that is kept.

    Raises:
        ChangefeedError: CF1303, the folder has another database; others as the server's.
    """
    database = DATABASES[_source(source, folder)]()
    with ExitStack() as stack:
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="changefeed-demo-", dir=_base()))
        else:
            keep, folder = True, folder.absolute()
            folder.mkdir(parents=True, exist_ok=True)
        if keep:
            stack.callback(_say_kept, display, folder)
        else:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        # The server's account must get to its data, which is its own alone.
        folder.chmod(0o755)
        again = (folder / database.data).exists()
        display.heading(f"a shop in an embedded {database.label}")
        server = database.server(folder, port, display)
        with display.waiting(f"starting {database.label}"):
            stack.enter_context(server)
        uri = server.uri(database.name)
        if not again:
            database.create(uri)
        display.say(f"{uri}  tables: {', '.join(shop.TABLES)}")
        (folder / "state").mkdir(exist_ok=True)
        yield ServerFolder(folder, database, uri)


def _source(asked: str | None, folder: Path | None) -> str:
    kept = [word for word, kind in DATABASES.items() if folder and (folder / kind.data).exists()]
    if asked and kept and asked not in kept:
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            f"{folder} has a shop in another database: {kept[0]}",
            hint="leave out --source, or name another folder.",
        )
    return asked or next(iter(kept), "postgresql")


def connect(interpreter: Interpreter, found: ServerFolder) -> Session:
    """Make the connections; of a kept place, where they are now."""
    session = Session(client="demo")
    known = interpreter.connections()
    places = {"shop": found.uri, "lake": (found.folder / "lake").as_uri()}
    places["tables"] = f"delta://{found.folder / 'tables'}"
    for name, uri in places.items():
        verb = "ALTER" if name in known else "CREATE"
        # What needs Spark is shown last, and the rest plays where there is none.
        made = f"{verb} EXTERNAL CONNECTION {name} AS '{uri}' WITH check = 'no'"
        interpreter.execute(made, session)
    return session


@contextmanager
def trial(
    display: Display, *, source: str | None, port: int | None, keep: bool, folder: Path | None
) -> Iterator[ServerFolder]:
    """The shop at work, for a prompt: somebody buys until the block ends."""
    with place(display, source=source, port=port, keep=keep, folder=folder) as found:
        catalog = Catalog.open(str(found.state))
        try:
            connect(Interpreter(catalog), found)
        finally:
            catalog.close()
        writer = shop.ShopWriter(found.database, found.uri, lambda line: None)
        writer.start()
        try:
            display.heading("somebody is buying; try")
            display.suggestions(TRY)
            display.say("")
            yield found
        finally:
            writer.stop()
        if writer.failure is not None:
            raise ChangefeedError(
                Code.SOURCE_UNREACHABLE, "the shop's writer failed"
            ) from writer.failure


def _say_kept(display: Display, folder: Path) -> None:
    display.say(f"kept: {folder}")
    display.say(f"start it again: changefeed demo --shell --folder {folder}")


def _base() -> str:
    """The folder for temporary files, unless the server's account cannot get there."""
    usual = tempfile.gettempdir()
    return usual if server_account().reaches(Path(usual)) else "/var/tmp"

"""The course of the demo, from the server's start to SHOW CHANGEFEEDS."""

from __future__ import annotations

import datetime as dt
import queue
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from rich.console import Console

from changefeed.api import Interpreter, Session
from changefeed.catalog import Catalog
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import StreamRow
from changefeed.core.extras import spark_lacking
from changefeed.core.state import StateLayout
from changefeed.core.telemetry import log, log_to
from changefeed.demo import shop
from changefeed.demo.display import Display, default_console
from changefeed.demo.stage import ServerFolder, connect, place
from changefeed.node.node import Node
from changefeed.spark.java import INSTALL_HINT
from grammar.split import split

#: The statements, and those that need Spark.
FEEDS, SPARK = "feeds.sql", "spark.sql"
#: What the sinkless feed of ``feeds.sql`` watches: the scan is over when all their rows came.
STREAMED = ("customers", "orders", "order_items")

#: The source is prepared first, which takes a second, and much longer on a busy machine.
FIRST_ROW_SECONDS = 180.0
#: A scan of which the number of rows is not known is over when none came for so long.
QUIET_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class _Stage:
    """Where the demo takes place."""

    place: ServerFolder
    node: Node
    interpreter: Interpreter
    session: Session
    display: Display
    dice: random.Random


def play(
    *,
    seconds: float,
    source: str | None,
    port: int | None,
    keep: bool,
    feeds: Path | None,
    console: Console | None,
) -> int:
    """What :func:`changefeed.demo.run` does."""
    display = Display(console or default_console())
    try:
        with _stage(display, source, port, keep) as stage:
            if feeds:
                _play(stage, feeds.name, feeds.read_text(), seconds)
            else:
                _play_all(stage, seconds)
    except KeyboardInterrupt:
        display.say("stopped")
        return 130
    return 0


@contextmanager
def _stage(display: Display, source: str | None, port: int | None, keep: bool) -> Iterator[_Stage]:
    """Folder, server, shop, application, connections; all gone afterwards (but a kept folder)."""
    with (
        place(display, source=source, port=port, keep=keep) as found,
        _node(found.state) as node,
    ):
        interpreter = Interpreter(node.catalog, host=node)
        session = connect(interpreter, found)
        yield _Stage(found, node, interpreter, session, display, random.Random(7))


@contextmanager
def _node(state: Path) -> Iterator[Node]:
    """A node in this process, on a state of its own."""
    catalog = Catalog.open(str(state))
    handler = log_to(StateLayout(state).node_log)
    node = Node(catalog, str(state))
    try:
        node.start()
        yield node
    finally:
        node.stop()
        catalog.close()
        log.removeHandler(handler)
        handler.close()


def _play_all(stage: _Stage, seconds: float) -> None:
    """What the demo runs when nothing else is asked for: most of the time without Spark, which
    starts meanwhile."""
    spark = stage.node.spark.installed
    if spark:
        threading.Thread(target=_warm, args=(stage.node,), name="demo-spark", daemon=True).start()
    texts = {name: (files("changefeed.demo") / name).read_text() for name in (FEEDS, SPARK)}
    _play(stage, FEEDS, texts[FEEDS], seconds)
    if spark:
        _play(stage, SPARK, texts[SPARK], seconds / 3)
    else:
        missing = spark_lacking(SPARK)
        reason = f"Spark finds no Java here: {INSTALL_HINT}" if missing is None else missing.hint
        stage.display.say(f"{SPARK} is left out: {reason}")
        _play(stage, "", "SHOW CHANGEFEEDS", seconds)


def _warm(node: Node) -> None:
    """Fetch the jars of Delta and start Spark. The feed meets a failure again, and tells it."""
    try:
        node.spark_with(("delta",))
        node.spark.start()
    except ChangefeedError as error:
        log.info("Spark could not be started beside the demo: %s", error.message)


def _play(stage: _Stage, name: str, text: str, seconds: float) -> None:
    """Run the statements of a file one after the other."""
    if name:
        stage.display.heading(name)
    for piece in split(text):
        sql = piece.text.strip()
        if not sql:
            continue
        stage.display.statement(sql)
        slow = name == SPARK and not sql.startswith("SHOW")
        with stage.display.waiting("Spark is at work") if slow else nullcontext():
            result = stage.interpreter.execute(sql, stage.session)
        for notice in result.notices:
            stage.display.notice(notice)
        if result.stream is not None:
            scanned = STREAMED if name == FEEDS else ()
            _watch(stage, result.stream, scanned, seconds)
            if name != SPARK:
                stage.display.heading("after it")
                stage.display.say(_lake(stage.place.folder / "lake"))
        if result.failure is not None:
            raise result.failure
        if result.stream is None and result.rows:
            stage.display.result(result)


def _watch(
    stage: _Stage, stream: Iterator[StreamRow], scanned: tuple[str, ...], seconds: float
) -> None:
    """Show the scan's rows, then ``seconds`` of live changes.

    ``scanned`` are the tables whose every row the scan gives; empty: the number is not known.
    """
    display = stage.display
    pump = _Pump(stream)
    database, uri = stage.place.database, stage.place.uri
    writer = shop.ShopWriter(database, uri, display.committed, dice=stage.dice)
    try:
        expected = shop.row_count(database, uri, scanned) if scanned else None
        display.heading(f"initial scan: {expected} rows" if scanned else "initial scan")
        with display.waiting("waiting for the first row"):
            row = pump.next(FIRST_ROW_SECONDS)
        shown = 0
        while row is not None:
            display.row(*row)
            shown += row[0] is not None
            if expected is None:
                row = pump.next(QUIET_SECONDS, required=False)
                continue
            if shown >= expected:
                break
            row = pump.next(FIRST_ROW_SECONDS)
        display.heading("live: what is committed (») and what arrives")
        writer.start()
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            row = pump.next(left, required=False)
            if row is not None:
                display.row(*row, live=True)
        if writer.failure is not None:
            raise ChangefeedError(
                Code.SOURCE_UNREACHABLE, "the shop's writer failed"
            ) from writer.failure
    finally:
        writer.stop()
        pump.stop()


def _lake(folder: Path) -> str:
    """What the other feed has written meanwhile."""
    data = sorted(folder.rglob("*.ndjson"))
    rows = sum(len(file.read_bytes().splitlines()) for file in data)
    marks = sorted(folder.rglob("*.RESOLVED"))
    said = f"meanwhile in the folder lake: {rows} rows in {len(data)} files"
    if not marks:
        return said
    # Its name begins with the second in UTC (docs/sink-files.md).
    at = dt.datetime.strptime(marks[-1].stem[:14], "%Y%m%d%H%M%S")
    return f"{said}, complete up to {at:%H:%M:%S} UTC"


class _Pump:
    """Takes rows off a stream in a thread, so that waiting for one can end."""

    def __init__(self, stream: Iterator[StreamRow]) -> None:
        self._stream = stream
        self._rows: queue.Queue[StreamRow] = queue.Queue(1000)
        self._error: BaseException | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-stream", daemon=True)
        self._thread.start()

    def next(self, timeout: float, *, required: bool = True) -> StreamRow | None:
        """The next row; None when ``timeout`` seconds passed without one.

        Raises:
            ChangefeedError: CF1304 when a row is ``required`` and none came; or the error that
                the feed ended with.
        """
        deadline = time.monotonic() + timeout
        while True:
            try:
                return self._rows.get(timeout=max(0.0, min(0.2, deadline - time.monotonic())))
            except queue.Empty:
                if self._error is not None:
                    raise self._error from None
                if time.monotonic() >= deadline and required:
                    raise ChangefeedError(Code.TIMED_OUT, "no row arrived from the feed") from None
                if time.monotonic() >= deadline:
                    return None

    def stop(self) -> None:
        """End the feed: the thread closes its stream after the row at hand."""
        self._stopped.set()
        self._thread.join(10)

    def _run(self) -> None:
        try:
            for row in self._stream:
                while not self._stopped.is_set():
                    try:
                        self._rows.put(row, timeout=0.2)
                        break
                    except queue.Full:
                        continue  # the display is behind; look whether it has left
                if self._stopped.is_set():
                    break
        except Exception as error:
            self._error = error
        finally:
            close = getattr(self._stream, "close", None)
            if close is not None:
                close()

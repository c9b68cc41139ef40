"""The course of the demo, from the server's start to SHOW CHANGEFEEDS."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from rich.console import Console

from changefeed.api import Engine, Session
from changefeed.catalog import Catalog
from changefeed.core.errors import ChangefeedError
from changefeed.core.state import StateLayout
from changefeed.core.telemetry import log, log_to
from changefeed.demo import shop
from changefeed.demo.display import Display, default_console
from changefeed.demo.stage import connect, place
from changefeed.embedded import EmbeddedPostgres
from changefeed.node.node import Node
from grammar.split import split

#: What the sinkless feed of ``feeds.sql`` watches: the scan is over when all their rows came.
STREAMED = ("customers", "orders", "order_items")

#: The source is prepared first, which takes a second, and much longer on a busy machine.
FIRST_ROW_SECONDS = 180.0

StreamRow = tuple[str | None, str | None, str | None]


@dataclass(frozen=True, slots=True)
class _Stage:
    """Where the demo takes place."""

    folder: Path
    server: EmbeddedPostgres
    engine: Engine
    session: Session
    display: Display


def play(
    *, seconds: float, port: int | None, keep: bool, feeds: Path | None, console: Console | None
) -> int:
    """What :func:`changefeed.demo.run` does."""
    display = Display(console or default_console())
    text = feeds.read_text() if feeds else (files("changefeed.demo") / "feeds.sql").read_text()
    try:
        with _stage(display, port, keep) as stage:
            _play(stage, text, seconds)
    except KeyboardInterrupt:
        display.say("stopped")
        return 130
    return 0


@contextmanager
def _stage(display: Display, port: int | None, keep: bool) -> Iterator[_Stage]:
    """Folder, server, shop, engine, connections; all gone afterwards (but a kept folder)."""
    with place(display, port=port, keep=keep) as found, _engine(found.state) as engine:
        yield _Stage(found.folder, found.server, engine, connect(engine, found), display)


@contextmanager
def _engine(state: Path) -> Iterator[Engine]:
    """A state of its own with a node in this process."""
    catalog = Catalog.open(str(state))
    handler = log_to(StateLayout(state).node_log)
    node = Node(catalog, str(state))
    try:
        node.start()
        yield Engine(catalog, host=node)
    finally:
        node.stop()
        catalog.close()
        log.removeHandler(handler)
        handler.close()


def _play(stage: _Stage, text: str, seconds: float) -> None:
    """Run the statements one after the other."""
    stage.display.heading("feeds.sql")
    for piece in split(text):
        sql = piece.text.strip()
        if not sql:
            continue
        stage.display.statement(sql)
        result = stage.engine.execute(sql, stage.session)
        for notice in result.notices:
            stage.display.notice(notice)
        if result.stream is not None:
            _watch(stage, result.stream, seconds)
        elif result.columns:
            shown = result.brief or result
            stage.display.table(shown.columns, shown.rows)


def _watch(stage: _Stage, stream: Iterator[StreamRow], seconds: float) -> None:
    """Show the scan's rows, then ``seconds`` of live changes."""
    display = stage.display
    pump = _Pump(stream)
    writer = shop.Writer(stage.server.uri(), display.committed)
    try:
        expected = shop.row_count(stage.server.uri(), STREAMED)
        display.heading(f"initial scan: {expected} rows")
        with display.waiting("waiting for the first row"):
            row = pump.next(FIRST_ROW_SECONDS)
        shown = 0
        while row is not None:
            display.row(*row)
            shown += row[0] is not None
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
            raise ChangefeedError("CF2001", "the shop's writer failed") from writer.failure
    finally:
        writer.stop()
        pump.stop()
    display.heading("after it")
    display.say(_lake(stage.folder / "lake"))


def _lake(folder: Path) -> str:
    """What the other feed has written meanwhile."""
    data = sorted(folder.rglob("*.ndjson"))
    rows = sum(len(file.read_bytes().splitlines()) for file in data)
    marks = sorted(folder.rglob("*.RESOLVED"))
    said = f"meanwhile in the folder lake: {rows} rows in {len(data)} files"
    return f"{said}, complete up to {marks[-1].stem}" if marks else said


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
                    raise ChangefeedError("CF1304", "no row arrived from the feed") from None
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

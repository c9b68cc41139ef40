"""``changefeed demo``: feeds at work on a real PostgreSQL or MariaDB, with nothing else installed.

Starts the embedded server, makes the shop, runs ``feeds.sql`` through the same door as the
shell, shows the rows of the initial scan, lets somebody buy things and shows each change as
it arrives, ends with SHOW CHANGEFEEDS. Owns a folder for the time it runs and leaves neither
a process nor a file behind, unless it is asked to keep the folder.

Importing this loads nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def run(
    *,
    seconds: float = 15.0,
    source: str | None = None,
    port: int | None = None,
    keep: bool = False,
    feeds: Path | None = None,
    console: Console | None = None,
) -> int:
    """Play the demo; the exit code (0, or 130 after Ctrl-C).

    Args:
        seconds: how long live changes are shown.
        source: ``postgresql``, the default, or ``mysql``.
        port: TCP port of the server on 127.0.0.1; a free one by default.
        keep: leave the folder with database, job table and files, and say where it is.
        feeds: another file of statements; it may use the connections ``shop`` and ``lake``.
        console: where to print.

    Raises:
        ChangefeedError: the server cannot be had (the ``demo`` extra is missing, or there is none
            for this machine) or does not start, or a statement fails.
    """
    from changefeed.demo.play import play

    # Spark's JVM lives for a minute here, half of which HotSpot's second compiler would take.
    os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
    return play(seconds=seconds, source=source, port=port, keep=keep, feeds=feeds, console=console)


@contextmanager
def trial(
    *,
    source: str | None = None,
    port: int | None = None,
    keep: bool = False,
    folder: Path | None = None,
    console: Console | None = None,
) -> Iterator[str]:
    """The shop with somebody who buys there, for a prompt; yields the state's directory.

    Args:
        source: ``postgresql`` or ``mysql``; that of the folder by default, else PostgreSQL.
        port: TCP port of the server on 127.0.0.1; a free one by default.
        keep: leave the folder, and print the command that starts it again.
        folder: one that was kept; it stays.
        console: where to print.

    Raises:
        ChangefeedError: the server cannot be had (the ``demo`` extra is missing, or there is none
            for this machine), or does not start.
    """
    from changefeed.demo import stage
    from changefeed.demo.display import Display, default_console

    display = Display(console or default_console())
    with stage.trial(display, source=source, port=port, keep=keep, folder=folder) as found:
        yield str(found.state)

"""Rows of a sinkless feed, written as they come.

On a terminal ``table`` is one line per row for a person. Everywhere else they are as CockroachDB
writes them: CSV lines ``table,key,value``, ``NULL`` for what is not there. The JSON formats write
one object a line, whatever its number: a stream has no end to close an array at.
"""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TextIO

from changefeed.core.printable import visible
from shell.render.formats import OutputFormat

if TYPE_CHECKING:
    from changefeed.api import StreamRow

RowWriter = Callable[["StreamRow"], None]

COLUMNS = ("table", "key", "value")


def write_stream(rows: Iterable[StreamRow], form: OutputFormat, out: TextIO) -> Iterator[int]:
    """Write rows until the stream ends. Flushes after each, because the reader waits for it.

    Yields:
        How many rows there are with the next one, resolved timestamps left out: before each is
        written, because a reader who sees it may interrupt the stream at once.
    """
    write = _people(out) if form is OutputFormat.TABLE and out.isatty() else _WRITERS[form](out)
    count = 0
    for row in rows:
        count += row[0] is not None
        yield count
        write(row)
        out.flush()


def _people(out: TextIO) -> RowWriter:
    """One line per row, coloured, cut to the terminal; live rows say how late they are."""
    # Loaded on use: rich takes a tenth of a second.
    from rich.console import Console

    from changefeed.feed_rows import RowLines, committed_at

    lines = RowLines(Console(file=out, highlight=False))
    begun = time.time()

    def write(row: StreamRow) -> None:
        at = committed_at(row[2])
        table, key, value = (None if cell is None else visible(cell) for cell in row[:3])
        lines.row(table, key, value, row[3], live=at is not None and at >= begun)

    return write


def _csv(out: TextIO) -> RowWriter:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    out.flush()
    return lambda row: writer.writerow(["NULL" if cell is None else cell for cell in row[:3]])


def _json(out: TextIO) -> RowWriter:
    def write(row: StreamRow) -> None:
        table, key, value, _ = row
        out.write(f'{{"table": {_text(table)}, "key": {_raw(key)}, "value": {_raw(value)}}}\n')

    return write


def _text(cell: str | None) -> str:
    return json.dumps(cell, ensure_ascii=False)


def _raw(cell: str | None) -> str:
    """JSON objects and arrays as they are, digit for digit; anything else as a string."""
    if cell and cell[0] in "{[" and "\n" not in cell:
        try:
            json.loads(cell)
        except ValueError:
            return _text(cell)
        return cell
    return _text(cell)


def _vertical(out: TextIO) -> RowWriter:
    def write(row: StreamRow) -> None:
        out.write("-----\n")
        for name, cell in zip(COLUMNS, row[:3], strict=True):
            out.write(f"{name:<5} | {visible(cell or '')}".rstrip() + "\n")

    return write


def _markdown(out: TextIO) -> RowWriter:
    out.write("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|\n")
    out.flush()

    def write(row: StreamRow) -> None:
        cells = (visible(cell or "").replace("|", "\\|") for cell in row[:3])
        out.write("| " + " | ".join(cells) + " |\n")

    return write


_WRITERS: dict[OutputFormat, Callable[[TextIO], RowWriter]] = {
    OutputFormat.TABLE: _csv,
    OutputFormat.CSV: _csv,
    OutputFormat.JSON: _json,
    OutputFormat.JSONL: _json,
    OutputFormat.VERTICAL: _vertical,
    OutputFormat.MARKDOWN: _markdown,
}

"""What Spark does not tell of CSV files: whether their headers differ, and where records end."""

from __future__ import annotations

import csv
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from changefeed.core.errors import ChangefeedError, Code

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader

#: Endings of files that cannot be looked into here.
_COMPRESSED = frozenset({".gz", ".bz2", ".zst", ".lz4", ".snappy", ".deflate"})
_QUOTE, _NEWLINE = ord('"'), ord("\n")
#: Bytes that are looked at together.
_CHUNK = 16 << 20


def csv_options(
    reader: DataFrameReader, files: Sequence[Path] | None, delimiter: str, header: bool
) -> DataFrameReader:
    """The reader with options for CSV as RFC 4180 has it.

    A quote in a quoted value is doubled, and such a value may have line breaks. With
    ``multiLine`` Spark reads each file in one task, so it is set only where a file has such a value
    or cannot be looked into.

    Args:
        reader: of the format csv.
        files: the files of the extract; None where they are not on this machine.
        delimiter: between values.
        header: the first line of each file names its columns.

    Raises:
        ChangefeedError: CF1302 the files have different headers.
    """
    if header and files:
        _check_headers(files, delimiter)
    broken = files is None or any(_breaks_lines(file) for file in files)
    return (
        reader.option("sep", delimiter)
        .option("header", header)
        .option("quote", '"')
        .option("escape", '"')
        .option("multiLine", broken)
        # Where columns are left out, Spark would not see that a line has too few values.
        .option("columnPruning", False)
    )


def _check_headers(files: Sequence[Path], delimiter: str) -> None:
    """Spark takes the columns of all files from the header of one."""
    headers: dict[Path, list[str]] = {}
    for file in files:
        if file.suffix not in _COMPRESSED and file.stat().st_size:
            headers[file] = _header(file, delimiter)
    first = next(iter(headers), None)
    for file, names in headers.items():
        if first is not None and names != headers[first]:
            raise ChangefeedError(
                Code.TARGET_NOT_WATCHABLE,
                f"the files of the extract have different headers: {first.name} and {file.name}",
                detail=f"{', '.join(headers[first])}; {', '.join(names)}",
                hint="give all files of an extract the same columns in the same order.",
            )


def _header(file: Path, delimiter: str) -> list[str]:
    with file.open(newline="", encoding="utf-8-sig", errors="replace") as text:
        # csv takes one character; Spark takes longer ones, too.
        if len(delimiter) > 1:
            return text.readline().rstrip("\r\n").lower().split(delimiter.lower())
        return [name.lower() for name in next(csv.reader(text, delimiter=delimiter), [])]


def _breaks_lines(file: Path) -> bool:
    """Whether a quoted value of a file may have a line break.

    A line break is in a value if the number of quotes before it is odd. A quote in the middle of
    a value that is not quoted counts, too: then the answer may be yes without need.
    """
    if file.suffix in _COMPRESSED:
        return True
    if not file.stat().st_size:
        return False
    with (
        file.open("rb") as opened,
        mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        first = content.find(b'"')
        if first < 0:
            return False
        odd = False
        for begin in range(first, len(content), _CHUNK):
            chunk = np.frombuffer(content[begin : begin + _CHUNK], np.uint8)
            within = np.logical_xor.accumulate(chunk == _QUOTE) ^ odd
            if (within & (chunk == _NEWLINE)).any():
                return True
            odd = bool(within[-1])
    return False

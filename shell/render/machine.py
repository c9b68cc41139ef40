"""Results for programs: typed values, no decoration."""

from __future__ import annotations

import csv
import json
from typing import TextIO

from changefeed.api import Result


def _plain(cell: object) -> object:
    """A cell as JSON has it: numbers stay numbers (whole ones without ``.0``), lists lists."""
    if isinstance(cell, tuple):
        return list(cell)
    if isinstance(cell, float):
        return int(cell) if cell.is_integer() else float(cell)
    return cell


def _objects(result: Result) -> list[dict[str, object]]:
    return [
        {name: _plain(cell) for name, cell in zip(result.columns, row, strict=True)}
        for row in result.rows
    ]


def write_csv(result: Result, out: TextIO, width: int | None) -> None:
    """RFC 4180 with a header line; an absent value is empty."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(result.columns)
    for row in result.rows:
        writer.writerow(["" if cell is None else _csv_cell(cell) for cell in row])


def _csv_cell(cell: object) -> object:
    return str(cell) if isinstance(cell, tuple) else _plain(cell)


def write_json(result: Result, out: TextIO, width: int | None) -> None:
    """One array of objects."""
    out.write(json.dumps(_objects(result), ensure_ascii=False, indent=2) + "\n")


def write_jsonl(result: Result, out: TextIO, width: int | None) -> None:
    """One object a line."""
    for row in _objects(result):
        out.write(json.dumps(row, ensure_ascii=False) + "\n")

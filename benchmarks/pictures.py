"""The pictures of the README: the prompt, drawn by the product's renderers, and three figures.

``python -m benchmarks pictures`` writes ``docs/images``. The prompt is a scene: statements that are
parsed, an error and rows made by the code that makes them for a user, and the listing of feeds.
The chart shows ``benchmarks/figures.json``, whose numbers stand in ``docs/benchmarks.md``.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from changefeed.api import Result
from changefeed.catalog import Job, Status, TableProgress, TableState
from changefeed.catalog.model import DesiredStatus
from changefeed.core.clock import ManualClock, Timestamp
from changefeed.core.errors import ChangefeedError, Problems
from changefeed.core.schema import BeforeImage, Column, TableName, TableSchema
from changefeed.core.types import LogicalType
from changefeed.encoding.compile import table_messages
from changefeed.encoding.encode import encode_messages
from changefeed.feed_rows import RowLines
from changefeed.options import Options, parse_options
from changefeed.statements import brief
from changefeed.statements.health import health
from grammar.nodes import CreateChangefeed
from grammar.parser import parse
from shell.diagnostics import error_lines
from shell.render.formats import OutputFormat
from shell.render.results import render
from shell.repl.highlight import fragments

IMAGES = Path(__file__).parents[1] / "docs" / "images"
FIGURES = Path(__file__).with_name("figures.json")

#: 2026-12-24 09:12 UTC.
_NOW = 1_798_103_520_000_000_000
_SECOND = 1_000_000_000
_WIDTH = 112

#: The colours of ``shell.repl.prompt.STYLE`` in rich's words.
_STYLES = {
    "class:keyword": "bold blue",
    "class:string": "green",
    "class:name": "cyan",
    "class:comment": "bright_black",
}

_WRONG = "CREATE CHANGEFEED FOR orders INTO 'kafka://broker:9092' WITH diff, resolve = '10s';"
_SINKLESS = "CREATE CHANGEFEED FOR orders WITH diff;"
_KEPT = (
    "CREATE CHANGEFEED orders FOR orders INTO 'kafka://broker:9092' WITH diff, resolved = '10s';"
)
_LISTING = "SHOW CHANGEFEEDS;"

_ORDERS = TableSchema(
    TableName("shop", "public", "orders"),
    (
        Column("id", "bigint", LogicalType.parse("int64"), nullable=False),
        Column("status", "text", LogicalType.parse("text"), nullable=True),
        Column("total", "numeric(12,2)", LogicalType.parse("decimal(12,2)"), nullable=True),
    ),
    (0,),
    BeforeImage.FULL,
)

_CHANGES: tuple[tuple[str, Sequence[object], Sequence[object]], ...] = (
    ("r", (1, "shipped", "62.50"), ()),
    ("r", (2, "paid", "14.40"), ()),
    ("c", (3, "new", "39.90"), ()),
    ("u", (3, "paid", "39.90"), (3, "new", "39.90")),
    ("d", (), (2, "paid", "14.40")),
)


def prompt() -> str:
    """The picture of the prompt, as SVG."""
    console = Console(
        record=True, width=_WIDTH, file=io.StringIO(), force_terminal=True, highlight=False
    )
    _type(console, _WRONG)
    _show_error(console, _WRONG)
    _type(console, _SINKLESS)
    _show_rows(console)
    console.print(Text("^C", style="dim"))
    _type(console, _KEPT)
    _options(_KEPT)
    _type(console, _LISTING)
    _show_feeds(console)
    # Without the web font: a picture fetches nothing.
    form = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    made = console.export_svg(title="changefeed", unique_id="prompt", code_format=form)
    return "\n".join(line.rstrip() for line in made.splitlines()) + "\n"


def _type(console: Console, statement: str) -> None:
    line = Text("changefeed> ", style="bold")
    for style, text, *_ in fragments(statement):
        line.append(text, style=_STYLES.get(style, "not bold"))
    console.print(line)


def _options(statement: str) -> Options:
    """The statement's options, checked as CREATE checks them."""
    node = parse(statement)
    assert isinstance(node, CreateChangefeed)
    scheme = "kafka" if "kafka:" in statement else ""
    return parse_options(
        node.options, scheme=scheme, text=statement.rstrip(";"), clock=ManualClock(_NOW)
    )


def _show_error(console: Console, statement: str) -> None:
    try:
        _options(statement)
    except ChangefeedError as error:
        for one in error.problems if isinstance(error, Problems) else [error]:
            console.print(Text(f"ERROR {one.code.number}: {one.message}", style="bold red"))
            for line in error_lines(one):
                console.print(Text(line), soft_wrap=True)
        return
    raise AssertionError(f"the statement of the picture has no error: {statement}")


def _show_rows(console: Console) -> None:
    import pyarrow as pa

    lines = RowLines(console)
    plan = table_messages(_options(_SINKLESS), TableProgress(_ORDERS.table, "orders"), _ORDERS, ())
    for number, (op, after, before) in enumerate(_CHANGES):
        row: dict[str, object] = {
            "op": op, "wall": _NOW + number, "logical": 0, "seq": number, "ord": 0,
            "xid": 1, "commit_us": _NOW // 1000, "last": True, "missing": None,
        }  # fmt: skip
        row |= {f"a{i}": value for i, value in enumerate(after)}
        row |= {f"b{i}": value for i, value in enumerate(before)}
        log = pa.Table.from_pylist([row], schema=_ORDERS.log_schema())
        (message,) = encode_messages(log, plan, now_ns=_NOW).to_pylist()
        lines.row("orders", message["key"].decode(), message["value"].decode(), op)


def _show_feeds(console: Console) -> None:
    looks = [
        _look("orders", "kafka://broker:9092", Status.RUNNING, ("orders",), lag=0.4, rate=2140),
        _look("search", "elasticsearch://es:9200", Status.RUNNING, ("products",), lag=0.9, rate=12),
        _look("lake", "delta:///srv/lake", Status.RUNNING, ("orders", "items"), lag=3.1, rate=2163),
        _look(
            "copy",
            "postgresql://dw/shop",
            Status.RETRYING,
            ("customers",),
            lag=95,
            reason="cannot reach PostgreSQL dw:5432: Connection refused",
        ),
    ]
    listing = brief.feeds(looks, _NOW)
    out = io.StringIO()
    render(
        Result("rows", listing.columns, listing.rows, brief=listing),
        OutputFormat.TABLE,
        out,
        _WIDTH,
    )
    console.print(Text(out.getvalue().rstrip()), soft_wrap=True)


def _look(
    name: str,
    sink: str,
    status: Status,
    tables: Sequence[str],
    *,
    lag: float,
    rate: float = 0.0,
    reason: str = "",
) -> brief.FeedSnapshot:
    high_water = Timestamp(_NOW - int(lag * _SECOND), 0)
    progress = [
        TableProgress(TableName("shop", "public", table), table, state=TableState.RUNNING)
        for table in tables
    ]
    job = Job(
        id=1, name=name, source="shop", sink_uri=sink,
        targets=tuple(tables), options={}, statement="", status=status,
        wanted=DesiredStatus.RUNNING,
        reason=reason, error=None, error_code=None, hint=None, created=_NOW, started=_NOW,
        modified=_NOW, finished=None, high_water=high_water, cursor=None, end_time=None,
        generation=1, sinkless=False, rows_per_second=rate,
    )  # fmt: skip
    return brief.FeedSnapshot(job, progress, health(job, progress, node=True, now=_NOW), None)


# -- the chart ---------------------------------------------------------------------------------

_ROW, _BAR, _LEFT, _LONGEST, _CHART = 24, 16, 100, 520, 720
_COLOURS = ("#2563eb", "#9ca3af")


def chart(figures: Sequence[dict[str, object]]) -> str:
    """Bars, one group a figure, each group on a scale of its own; as SVG."""
    body: list[str] = []
    y = 10
    for figure in figures:
        bars = figure["bars"]
        assert isinstance(bars, list)
        title = f"{figure['title']} ({figure['better']} is better)"
        body.append(f'<text x="0" y="{y + 12}" class="t">{escape(title)}</text>')
        y += 22
        longest = max(value for _, value in bars)
        for (name, value), colour in zip(bars, _COLOURS, strict=True):
            width = round(_LONGEST * value / longest, 1)
            body += [
                f'<text x="{_LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(name)}</text>',
                f'<rect x="{_LEFT}" y="{y}" width="{width}" height="{_BAR}" fill="{colour}"/>',
                f'<text x="{_LEFT + width + 6}" y="{y + 12}">'
                f"{value:,}{escape(str(figure['unit']))}</text>",
            ]
            y += _ROW
        y += 14
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_CHART} {y}" width="{_CHART}">\n'
        "<style>text { font: 12px sans-serif; fill: #374151 } .t { font-weight: bold }</style>\n"
        f'<rect width="{_CHART}" height="{y}" fill="#ffffff"/>\n'
    )
    return head + "\n".join(body) + "\n</svg>\n"


def pictures() -> dict[Path, str]:
    """Every picture: its file and what is in it."""
    return {
        IMAGES / "prompt.svg": prompt(),
        IMAGES / "benchmarks.svg": chart(json.loads(FIGURES.read_text("utf-8"))),
    }


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    for file, text in pictures().items():
        file.write_text(text, "utf-8")
        print(file)

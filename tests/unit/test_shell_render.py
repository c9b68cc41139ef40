"""Results as text: tables that fit, values for programs, streams, errors."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import struct
import termios

import pytest

from changefeed.api import Brief, Names, Result, Seconds, ShownText, Size
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Problems, Span
from changefeed.core.events import StreamRow
from changefeed.core.printable import visible
from changefeed.result_tables import fitting
from shell.diagnostics import Diagnostics
from shell.render.formats import OutputFormat
from shell.render.results import render
from shell.render.widths import clip, pad, width
from shell.streaming import write_stream

RESULT = Result(
    columns=("job_id", "name", "error", "tables", "lag", "size"),
    rows=[
        (
            1,
            "orders",
            None,
            Names(("shop.public.orders", "shop.public.items")),
            Seconds(125),
            Size(10),
        ),
        (12, "名前", None, Names(()), None, Size(1500)),
    ],
)


def written(form: OutputFormat, room: int | None = None, result: Result = RESULT) -> str:
    out = io.StringIO()
    render(result, form, out, room)
    return out.getvalue()


def test_a_table_as_wide_as_it_takes() -> None:
    assert written(OutputFormat.TABLE) == (
        "job_id |  name  | error |                tables                 |  lag  |  size\n"
        "-------+--------+-------+---------------------------------------+-------+-------\n"
        "     1 | orders |       | shop.public.orders, shop.public.items | 2m 5s |   10 B\n"
        "    12 | 名前   |       |                                       |       | 1.5 kB\n"
        "(2 rows)\n"
    )


def test_a_narrow_terminal_loses_empty_columns_then_length_then_the_last_columns() -> None:
    assert written(OutputFormat.TABLE, 60).splitlines()[0] == (
        "job_id |  name  |          tables           |  lag  |  size"
    )
    narrow = written(OutputFormat.TABLE, 36)
    assert all(width(line) <= 36 for line in narrow.splitlines()[:-1])
    assert "shop.public.orders" in narrow and "shop.public.items" in narrow
    assert "3 columns more; \\x shows all" in narrow.splitlines()[-1]


def test_a_text_in_the_last_column_goes_on_below() -> None:
    plan = Result(columns=("stage", "detail"), rows=[("scan", "3 tables at one timestamp")])
    assert written(OutputFormat.TABLE, 24, plan).splitlines()[2:] == [
        "scan  | 3 tables at one",
        "      | timestamp",
        "(1 row)",
    ]


def test_a_long_text_is_wrapped_and_not_cut_whatever_its_column() -> None:
    checks = Result(
        columns=("severity", "code", "place", "where", "problem", "hint"),
        rows=[
            (
                "error",
                "CF2003",
                "table",
                "products",
                "the old values of all columns are not in the server's log",
                "ALTER TABLE public.products REPLICA IDENTITY FULL;",
            )
        ],
    )
    for room in (80, 120):
        shown = written(OutputFormat.TABLE, room, checks)
        lines = shown.splitlines()
        assert all(width(line) <= room for line in lines)
        cells = [line.split(" | ") for line in lines[2:-1]]
        joined = [
            " ".join(" ".join(row[i].strip(" |") for row in cells if i < len(row)).split())
            for i in (3, 4)
        ]
        assert joined == [checks.rows[0][3], checks.rows[0][4]]
        assert lines[-1] == "(1 row)", "nothing is missing"


def test_a_cell_has_an_end() -> None:
    shown = written(OutputFormat.TABLE, 20, Result(columns=("a",), rows=[("word " * 200,)]))
    assert len(shown.splitlines()) == 2 + 12 + 1
    assert "…" in shown.splitlines()[-2] and shown.endswith("(1 row; \\x shows all)\n")


COLUMNS = ("name", "status", "lag", "rows/s", "tables", "sink", "why")
LONG = "cannot reach the Kafka brokers: 127.0.0.1:9: Connection refused; attempt 2, again in 9s"
FEEDS = Result(
    columns=("job_id", "error"),
    rows=[(1, None)],
    brief=Brief(
        COLUMNS,
        lambda: [
            ("lake", "running", Seconds(1.9), 1200, "customers, orders", "file:///srv/lake", None),
            ("k1", "retrying", None, None, "orders", "kafka://127.0.0.1:9", LONG),
        ],
    ),
)


def test_feeds_for_a_person_at_120_columns() -> None:
    shown = written(OutputFormat.TABLE, 120, FEEDS).splitlines()
    assert shown[0].split(" | ")[-1].strip() == "why"
    assert shown[2].startswith("lake | running  | 1.9s |")
    assert all(width(line) <= 120 for line in shown)
    whys = [line.split(" | ")[6].strip(" |") for line in shown[3:-1]]
    assert " ".join(whys) == LONG
    assert shown[-1] == "(2 rows; \\x shows every column)"


def test_feeds_for_a_person_at_80_columns() -> None:
    shown = written(OutputFormat.TABLE, 80, FEEDS).splitlines()
    assert [cell.strip() for cell in shown[0].split(" | ")] == list(COLUMNS[:-1])
    assert all(width(line) <= 80 for line in shown)
    start = next(i for i, line in enumerate(shown) if line.startswith("k1"))
    below = [line.strip() for line in shown[start + 1 : -1] if line.startswith("    ")]
    assert " ".join(below) == LONG


def test_programs_get_the_columns_that_people_do_not() -> None:
    assert json.loads(written(OutputFormat.JSONL, 80, FEEDS)) == {"job_id": 1, "error": None}
    assert written(OutputFormat.CSV, 80, FEEDS) == "job_id,error\n1,\n"
    assert "job_id | 1" in written(OutputFormat.VERTICAL, 80, FEEDS)


def test_times_are_words_for_people_and_exact_for_programs() -> None:
    times = Result(columns=("at",), rows=[(ShownText("1700.0000000001", "22:13:20 UTC (2s ago)"),)])
    assert "22:13:20 UTC (2s ago)" in written(OutputFormat.TABLE, 80, times)
    assert written(OutputFormat.VERTICAL, 80, times) == "at | 22:13:20 UTC (2s ago)\n"
    assert json.loads(written(OutputFormat.JSONL, 80, times)) == {"at": "1700.0000000001"}
    assert written(OutputFormat.CSV, 80, times) == "at\n1700.0000000001\n"


@pytest.mark.parametrize("room", range(1, 120, 7))
def test_a_table_never_exceeds_the_terminal(room: int) -> None:
    kept = fitting([6, 40, 5, 90, 3], {2}, room)
    assert kept
    assert list(kept) == sorted(kept)
    if len(kept) > 1:
        assert sum(kept.values()) + 3 * (len(kept) - 1) <= room


def test_nothing_in_a_cell_steers_the_terminal() -> None:
    evil = Result(columns=("a",), rows=[("x\x1b[2Jy\nz",)])
    assert "x\\x1b[2Jy z" in written(OutputFormat.TABLE, result=evil)
    assert "\x1b" not in written(OutputFormat.VERTICAL, result=evil)
    assert "\x1b" not in written(OutputFormat.MARKDOWN, result=evil)


def test_wide_and_combining_characters() -> None:
    assert (width("名"), width("e\u0301"), width("ab")) == (2, 1, 2)
    assert clip("名前表", 5) == "名前…"
    assert pad("名", 4) == "名  "
    assert visible("a\tb") == "a b"


def test_programs_get_typed_values() -> None:
    first, second = map(json.loads, written(OutputFormat.JSONL).splitlines())
    assert first["tables"] == ["shop.public.orders", "shop.public.items"]
    assert first["lag"] == 125 and first["size"] == 10 and second["lag"] is None
    assert json.loads(written(OutputFormat.JSON)) == [first, second]
    assert written(OutputFormat.CSV).splitlines()[1] == (
        '1,orders,,"shop.public.orders, shop.public.items",125,10'
    )
    assert written(OutputFormat.CSV).splitlines()[2] == "12,名前,,,,1500"


def test_vertical_and_markdown() -> None:
    assert written(OutputFormat.VERTICAL).splitlines()[:3] == [
        "-[ RECORD 1 ]-----",
        "job_id | 1",
        "name   | orders",
    ]
    piped = Result(columns=("a", "b"), rows=[("x|y", 1)])
    assert written(OutputFormat.MARKDOWN, result=piped) == "| a | b |\n|---|---|\n| x\\|y | 1 |\n"


STREAM = [
    ("t", "[1]", '{"after": {"a": 1.50}}', "r"),
    ("t", "[2]", None, "d"),
    (None, None, '{"resolved": "1.0000000000"}', ""),
    ("t", "{broken", "1,x", "c"),
]


def streamed(form: OutputFormat) -> str:
    out = io.StringIO()
    assert list(write_stream(STREAM, form, out)) == [1, 2, 2, 3]
    return out.getvalue()


def test_a_row_is_counted_when_it_can_be_seen() -> None:
    """A reader who sees it may press Ctrl-C at once; the shell then says how many rows came."""
    out = io.StringIO()
    for count in write_stream(STREAM[:2], OutputFormat.CSV, out):
        assert len(out.getvalue().splitlines()) == count  # the header is one line, too


def test_a_stream_is_the_csv_of_cockroachdb() -> None:
    assert streamed(OutputFormat.CSV) == streamed(OutputFormat.TABLE)
    assert streamed(OutputFormat.CSV).splitlines() == [
        "table,key,value",
        't,[1],"{""after"": {""a"": 1.50}}"',
        "t,[2],NULL",
        'NULL,NULL,"{""resolved"": ""1.0000000000""}"',
        't,{broken,"1,x"',
    ]


class Terminal(io.StringIO):
    """Says that somebody sits there."""

    def isatty(self) -> bool:
        return True


def test_a_stream_on_a_terminal_is_a_line_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    long = f'"{"y" * 200}"'
    rows: list[StreamRow] = [
        ("orders", "[1]", '{"after": {"a": 1.50}, "before": null}', "c"),
        ("orders", "[1]", '{"after": {"a": 1.60, "b": 2}, "before": {"a": 1.50, "b": 2}}', "u"),
        ("orders", "[1]", '{"after": null, "before": {"a": 1.60}}', "d"),
        ("orders", "[1]", '{"after": {"a": "x\x1b[2J"}}', "r"),
        ("orders", "[1]", '{"after": {"a": "x"}, "before": {"key": 1}}', "u"),
        ("orders", "[1]", None, "d"),
        (None, None, '{"resolved": "1.0000000000"}', ""),
        ("orders", "[1]", f'{{"after": {{"a": {long}}}, "before": {{"a": ""}}}}', "u"),
    ]
    assert list(write_stream(rows, OutputFormat.TABLE, out)) == [1, 2, 3, 4, 5, 6, 6, 7]
    # The style of the marked columns is there without colours too.
    lines = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).splitlines()
    assert [line[:23].strip() for line in lines[:6]] == [
        f"{mark} orders       [1]" for mark in "+~-+~-"
    ]
    assert '{"after": {"a": 1.50}, "before": ' in lines[0]
    assert lines[1].partition("[1]")[2].strip() == "a 1.50 → 1.60", "with its digits"
    assert '{"after": {"a": "x"}' in lines[4], "the row before is not whole"
    assert all(width(line) <= 60 for line in lines) and lines[7].rstrip().endswith("…")
    assert "\\x1b[2J" in lines[3], "nothing in a row steers the terminal"
    assert '{"resolved": "1.0000000000"}' in lines[6]


def test_a_stream_as_json_keeps_every_digit() -> None:
    assert streamed(OutputFormat.JSONL).splitlines() == [
        '{"table": "t", "key": [1], "value": {"after": {"a": 1.50}}}',
        '{"table": "t", "key": [2], "value": null}',
        '{"table": null, "key": null, "value": {"resolved": "1.0000000000"}}',
        '{"table": "t", "key": "{broken", "value": "1,x"}',
    ]


ERROR = ChangefeedError(
    "CF1204", "bad", detail="facts", hint="next", span=Span(7, 9), text="line 1\n  ab cd"
)


def test_an_error_for_a_person() -> None:
    out = io.StringIO()
    Diagnostics(out).error(ERROR, "feeds.sql:3")
    assert out.getvalue() == (
        "feeds.sql:3: ERROR CF1204: bad\nLINE 2:   ab cd\n        ^^\nDETAIL: facts\nHINT: next\n"
    )


def test_timestamps_of_the_log_are_times_of_day_for_people_only() -> None:
    at = Timestamp(1_700_000_000_000_000_000)
    error = ChangefeedError("CF3002", f"cursor {at} is before the change log")
    for as_json, said in ((False, "cursor 2023-11-14 22:13:20 UTC ("), (True, f"cursor {at} is")):
        out = io.StringIO()
        Diagnostics(out, as_json=as_json).error(error)
        assert said in out.getvalue()


def test_sentences_for_a_terminal_are_cut_between_words() -> None:
    said = ChangefeedError(
        "CF1204",
        "the table has no primary key, and a feed with a compacted topic needs one",
        hint="ALTER TABLE shop.public.orders ADD PRIMARY KEY (id); then RESUME CHANGEFEED orders;",
        span=Span(0, 3),
        text="one statement that is much longer than the terminal is wide, and stays in one line",
    )
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    with os.fdopen(slave, "w") as terminal:
        Diagnostics(terminal).error(said)
        Diagnostics(terminal).notice("a consumer of this feed has to know " + "more " * 8)
        shown = os.read(master, 4000).decode().replace("\r\n", "\n")
    os.close(master)
    lines = re.sub("\x1b\\[[0-9;]*m", "", shown).splitlines()
    point = next(i for i, line in enumerate(lines) if line.lstrip().startswith("^"))
    assert lines[point - 1].endswith("stays in one line"), "the mark stands below its words"
    told = lines[: point - 1] + lines[point + 1 :]
    assert all(len(line) <= 60 for line in told)
    assert " ".join(line.strip() for line in told).count("RESUME CHANGEFEED orders;") == 1
    out = io.StringIO()
    Diagnostics(out).error(said)
    assert f"HINT: {said.hint}\n" in out.getvalue(), "a file keeps its lines"


def test_an_error_for_a_program_is_one_line_each() -> None:
    out = io.StringIO()
    Diagnostics(out, as_json=True).error(Problems([ERROR, ChangefeedError("CF1001", "no")]), "f:3")
    first, second = map(json.loads, out.getvalue().splitlines())
    assert first == {
        "error": "bad",
        "code": "CF1204",
        "detail": "facts",
        "hint": "next",
        "line": 2,
        "start": 7,
        "end": 9,
        "where": "f:3",
    }
    assert second["code"] == "CF1001"

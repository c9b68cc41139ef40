"""The prompt under a pipe: what Enter, Ctrl-C and Ctrl-D do, questions, cancelling."""

from __future__ import annotations

import io
import os
import pty
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, DummyCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from changefeed.api import KnownNames, Result, Session, Summary
from changefeed.core.errors import ChangefeedError
from grammar import nodes
from shell.client import Client
from shell.commands import run_local
from shell.diagnostics import Diagnostics
from shell.exits import Exit
from shell.places import rc_file
from shell.repl.complete import ShellCompleter
from shell.repl.loop import Loop, greet, run_rc
from shell.repl.names import NameCache
from shell.repl.progress import RateMeter, ScanProgress, bar, ending, going_on
from shell.repl.prompt import complete_again, make_prompt
from shell.repl.toolbar import ToolbarFigures, line, runs, signature, toolbar
from shell.settings import Keys, ShellSettings
from shell.waiting import WaitIndicator, quiet_keys
from tests.helpers.waiting import until


@dataclass
class FakeInterpreter:
    """Remembers statements; does what a test says."""

    ran: list[str] = field(default_factory=list)
    raises: dict[str, BaseException] = field(default_factory=dict)

    def execute(self, text: str, session: Any) -> Result:
        self.ran.append(text)
        if text in self.raises:
            raise self.raises[text]
        return Result(kind="done", tag="DONE")

    def names(self) -> KnownNames:
        return KnownNames(source="shop")


class FakeBackend:
    """An opened state without a node."""

    opened = True
    here = False
    where = "state /srv/state"

    def __init__(self) -> None:
        self.interpreter = self.facts = FakeInterpreter()
        self.session = Session()

    def execute(self, parsed: nodes.Statement, text: str) -> Result:
        return self.interpreter.execute(text, self.session)


@dataclass
class Typist:
    """Types into a prompt and reads what came of it."""

    keys: PipeInput
    loop: Loop
    client: Client
    interpreter: FakeInterpreter
    errors: io.StringIO

    def type(self, text: str) -> list[str]:
        """Type, leave with Ctrl-D, and answer with the statements that ran."""
        self.keys.send_text(text + "\x04")
        self.loop.run()
        return self.interpreter.ran


@contextmanager
def typist() -> Iterator[Typist]:
    backend, errors = FakeBackend(), io.StringIO()
    client = Client(
        backend,  # type: ignore[arg-type]
        ShellSettings(),
        Diagnostics(errors),
        local=run_local,
        out=io.StringIO(),
        interactive=True,
    )
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        prompt = make_prompt(
            DummyCompleter(),
            InMemoryHistory(),
            lambda text, room, selected: [("", text)],
            source=keys,
            output=DummyOutput(),
        )
        names = NameCache(backend)  # type: ignore[arg-type]
        yield Typist(keys, Loop(client, prompt, names), client, backend.interpreter, errors)


@pytest.fixture
def shell() -> Iterator[Typist]:
    with typist() as found:
        yield found


def test_the_greeting_fits_a_narrow_terminal(shell: Typist) -> None:
    greet(shell.client)
    first, second = shell.errors.getvalue().splitlines()
    assert first.startswith("changefeed ") and second.startswith("Statements end with ;")
    assert len(second) < 80


def test_enter_runs_at_the_semicolon_only(shell: Typist) -> None:
    assert shell.type("SHOW\nJOBS\n;\n") == ["SHOW\nJOBS"]


def test_a_semicolon_in_a_string_or_comment_does_not_end_it(shell: Typist) -> None:
    assert shell.type("SHOW CHANGEFEEDS WHERE name = ';\n' -- ;\n;\n") == [
        "SHOW CHANGEFEEDS WHERE name = ';\n' -- ;"
    ]


def test_several_statements_on_one_line(shell: Typist) -> None:
    assert shell.type("SHOW JOBS; SHOW TABLES;\n") == ["SHOW JOBS", "SHOW TABLES"]


def test_ctrl_c_clears_the_line_and_the_shell_goes_on(shell: Typist) -> None:
    assert shell.type("SHOW TAB\x03SHOW JOBS;\n") == ["SHOW JOBS"]


def test_ctrl_r_finds_what_ran_before(shell: Typist) -> None:
    buffer = shell.loop._prompt.default_buffer

    def search() -> None:
        # The history is read behind the prompt: a person is slower than that.
        until(lambda: len(buffer._working_lines) > 1)
        # Enter takes what the search found, the next one runs it.
        shell.keys.send_text("\x12JO\n\n\x04")

    shell.keys.send_text("SHOW JOBS;\n")
    searching = threading.Thread(target=search)
    searching.start()
    shell.loop.run()
    searching.join()
    assert shell.interpreter.ran == ["SHOW JOBS", "SHOW JOBS"]


@pytest.mark.parametrize("leave", ["\x03", "\x07"])
def test_a_search_without_a_match_can_be_left(shell: Typist, leave: str) -> None:
    assert shell.type(f"SHOW JOBS;\n\x12nomatch{leave}SHOW TABLES;\n") == [
        "SHOW JOBS",
        "SHOW TABLES",
    ]


def test_a_local_command_runs_at_once(shell: Typist) -> None:
    assert shell.type("\\timing\n") == []
    assert shell.client.settings.timing


def test_quit_leaves(shell: Typist) -> None:
    shell.keys.send_text("\\q\nSHOW JOBS;\n")
    shell.loop.run()
    assert shell.interpreter.ran == []


@pytest.mark.parametrize("word", ["exit", "quit;", "  EXIT "])
def test_words_of_other_prompts_leave_too(shell: Typist, word: str) -> None:
    shell.keys.send_text(f"{word}\nSHOW JOBS;\n")
    shell.loop.run()
    assert shell.interpreter.ran == []


def test_help_is_help(shell: Typist) -> None:
    assert shell.type("help\n") == []
    assert "CREATE CHANGEFEED" in shell.client.out.getvalue()  # type: ignore[attr-defined]


def test_a_mistake_in_an_included_file_does_not_end_the_shell(
    shell: Typist, tmp_path: Path
) -> None:
    (tmp_path / "a.sql").write_text("SHOW CHANGFEEDS;\nSHOW TABLES;\n")
    assert shell.type(f"\\i {tmp_path}/a.sql\nSHOW JOBS;\n") == ["SHOW JOBS"]
    assert f"{tmp_path}/a.sql:1: ERROR CF1001" in shell.errors.getvalue()


def test_an_error_is_shown_and_ends_what_was_typed_with_it(shell: Typist) -> None:
    shell.interpreter.raises["SHOW JOBS"] = ChangefeedError("CF6001", "the state is gone")
    assert shell.type("SHOW JOBS; SHOW TABLES;\nSHOW TABLES;\n") == ["SHOW JOBS", "SHOW TABLES"]
    assert "ERROR CF6001: the state is gone" in shell.errors.getvalue()


def test_ctrl_c_cancels_what_runs(shell: Typist) -> None:
    shell.interpreter.raises["SYNC CHANGEFEED f"] = KeyboardInterrupt()
    assert shell.type("SYNC CHANGEFEED f;\nSHOW JOBS;\n") == ["SYNC CHANGEFEED f", "SHOW JOBS"]
    assert "note: cancelled; feeds keep running" in shell.errors.getvalue()


@pytest.mark.parametrize(("answer", "ran"), [("n", 0), ("", 0), ("\x03", 0), ("y", 1), ("YES", 1)])
def test_drop_asks(shell: Typist, answer: str, ran: int) -> None:
    end = "" if answer == "\x03" else "\n"
    assert len(shell.type(f"DROP CHANGEFEED f;\n{answer}{end}")) == ran


def test_drop_does_not_ask_when_told_so(shell: Typist) -> None:
    shell.client.settings.confirm = False
    assert shell.type("DROP EXTERNAL CONNECTION a;\n") == ["DROP EXTERNAL CONNECTION a"]


def test_an_edited_statement_is_there_to_go_on_with(
    shell: Typist, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("click.edit", lambda text, extension: text.replace("JOBS", "TABLES"))
    assert shell.type("SHOW JOBS;\n\\e\n\n") == ["SHOW JOBS", "SHOW TABLES"]


def test_secrets_of_a_wrong_statement_are_not_echoed(shell: Typist) -> None:
    shell.type("CREATE CHANGEFEED FOR t INTO 'kafka://h?sasl_password=hunter2' WIHT diff;\n")
    said = shell.errors.getvalue()
    assert "CF1001" in said and "sasl_password=" in said
    assert "hunter2" not in said


class LateNames(Completer):
    """Knows its names only once a test says so, and answers when it may."""

    def __init__(self) -> None:
        self.asked = 0
        self.known: list[str] = []
        self.may = threading.Event()

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterator[Completion]:
        self.asked += 1
        known = self.known
        self.may.wait(30)
        yield from (Completion(name) for name in known)


@pytest.mark.parametrize("before", [[], ["lake"]])
def test_names_that_come_late_open_the_menu(before: list[str]) -> None:
    """Also where a completion is at work that has not heard of them, and where a menu stands."""
    names, shown = LateNames(), list[str]()
    names.known = before
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        prompt = make_prompt(
            names, InMemoryHistory(), lambda *_: [], source=keys, output=DummyOutput()
        )

        def menu() -> list[str]:
            state = prompt.default_buffer.complete_state
            return [] if state is None else [c.text for c in state.completions]

        def type_and_look() -> None:
            try:
                keys.send_text("PAUSE CHANGEFEED ")
                until(lambda: names.asked)
                assert menu() == []
                names.known = [*before, "orders"]
                complete_again(prompt)
                names.may.set()
                until(lambda: menu() == names.known, f"{names.known}")
                names.known = [*names.known, "sales"]
                complete_again(prompt)
                until(lambda: menu() == names.known, f"{names.known}")
                shown.extend(menu())
            finally:
                names.may.set()
                keys.send_text("\x03")

        typing = threading.Thread(target=type_and_look)
        typing.start()
        with pytest.raises(KeyboardInterrupt):
            prompt.prompt()
        typing.join()
    assert shown == [*before, "orders", "sales"]
    complete_again(prompt)  # no line is being typed: nothing happens


@pytest.mark.parametrize(
    ("text", "menu", "later", "offers"),
    [
        ("SHOW JOBS;", None, "", False),
        ("SHOW JOBS;", ["ALTER"], "", True),
        ("SHOW JOBS;", [], "", False),  # a completion is at work
        ("SHOW J", ["JOBS"], "OBS;", False),  # prompt_toolkit asks again with the same event
    ],
)
def test_names_that_come_late_open_no_menu_that_typing_would_not(
    text: str, menu: list[str] | None, later: str, offers: bool
) -> None:
    """Behind a statement that has ended nothing is offered but to who asks, as with Tab."""
    events: list[CompleteEvent] = []
    state = SimpleNamespace(complete_index=None, completions=menu)
    buffer = SimpleNamespace(
        text=text,
        document=Document(text),
        complete_state=None if menu is None else state,
        start_completion=lambda select_first, complete_event: events.append(complete_event),
    )
    loop = SimpleNamespace(
        call_soon_threadsafe=lambda start, *given: start(*given),
        call_later=lambda seconds, look, *given: None,
    )
    app = SimpleNamespace(loop=loop, is_running=True, current_buffer=buffer)
    complete_again(cast(Any, SimpleNamespace(app=app, default_buffer=buffer)))
    [event] = events
    completer = ShellCompleter(NameCache(cast(Any, FakeBackend()), changed=lambda: None))
    found = list(completer.get_completions(Document(text + later), event))
    assert bool(found) is offers


# ------------------------------------------------------------------------------- toolbar


def figures(**changes: Any) -> ToolbarFigures:
    facts: dict[str, Any] = {
        "feeds": 2,
        "active": 2,
        "running": 1,
        "stopped": 0,
        "troubled": 0,
        "worst_lag": None,
        "scanning": {},
        "node": True,
    }
    return ToolbarFigures(Summary(**{**facts, **changes}), here=True)


def text_of(given: ToolbarFigures, typed: str = "", room: int = 100) -> str:
    return "".join(fragment[1] for fragment in line(given, typed, room))


def test_the_toolbar_says_how_the_feeds_are() -> None:
    assert "2 feeds · 1 running · node in this shell" in text_of(figures())
    assert "1 in trouble" in text_of(figures(troubled=1))
    assert line(figures(troubled=1), "", 100)[0][0] == "class:trouble"
    assert "big scans 25 %" in text_of(figures(scanning={"big": (25, 100)}))
    assert "no way" in text_of(ToolbarFigures(problem="no way"))


def test_the_toolbar_says_what_enter_does() -> None:
    assert text_of(figures(), "SHOW").rstrip().endswith("; ends the statement")
    assert text_of(figures(), "SHOW JOBS;").rstrip().endswith("Enter runs it")
    assert runs("\\x") and not runs("SHOW ';'")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("CREATE CHANGEFEED FOR a INTO 'null://;", "the string is open, ' ends it"),
        ('PAUSE CHANGEFEED "a;', 'the name is open, " ends it'),
        ("SHOW /* JOBS;", "the comment is open, */ ends it"),
        ("SHOW -- JOBS;", "; ends the statement"),
    ],
)
def test_the_toolbar_says_what_is_open(typed: str, said: str) -> None:
    assert text_of(figures(), typed).rstrip().endswith(said)


def form_of(typed: str, room: int = 200) -> tuple[str, str]:
    """The form of the statement, and its part that is marked."""
    fragments = signature(typed, room)
    marked = "".join(text for style, text, *_ in fragments if style.endswith(".current"))
    return "".join(fragment[1] for fragment in fragments), marked


def test_the_form_of_a_statement_with_the_part_at_the_cursor() -> None:
    form, marked = form_of("PAUSE CHANGEFEED ")
    assert form.startswith("PAUSE CHANGEFEED") and marked.startswith("CHANGEFEED")
    assert form_of("sync changefeed f timeout ")[1].startswith("TIMEOUT 'duration'")
    assert form_of("CREATE CHANGEFEED f FOR with_, b INTO 'WITH' ")[1].startswith("INTO")
    assert form_of("CREATE ") == form_of("GARBAGE x ") == ("", "")


@pytest.mark.parametrize("room", [20, 40, 80])
@pytest.mark.parametrize("typed", ["CREATE CHANGEFEED ", "CREATE CHANGEFEED FOR a INTO 'x' WITH "])
def test_the_form_fits(typed: str, room: int) -> None:
    form, marked = form_of(typed, room)
    assert 0 < len(form) <= room and marked


def test_the_toolbar_describes_what_is_selected() -> None:
    said = "Emits resolved timestamps. " * 10
    shown = "".join(part[1] for part in toolbar(figures(), "x", 60, said))
    assert shown.count("\n") == 3 and shown.startswith(" Emits resolved timestamps.")
    assert all(len(row) <= 60 for row in shown.split("\n"))
    plain = "".join(part[1] for part in toolbar(figures(), "SHOW CHANGEFEEDS ", 80))
    assert plain.startswith(" SHOW CHANGEFEEDS [WHERE condition]")


@pytest.mark.parametrize("room", [40, 60, 81, 200])
def test_the_toolbar_fits(room: int) -> None:
    assert len(text_of(figures(worst_lag=12, scanning={"f": (1, 2)}), "x", room)) <= max(room, 55)


# ---------------------------------------------------------------------- progress of a scan


def test_a_scan_as_a_bar_with_the_time_left() -> None:
    rate = RateMeter()
    for second in range(5):
        rate.add(float(second), 0)
    rate.add(5.0, 100)
    rate.add(10.0, 600)
    drawn = bar(ScanProgress("f", "scanning", "", True, 600, 1200), rate)
    assert drawn.startswith("f ████████████░░░░░░░░░░░░  50%  600 of about 1,200 rows  ETA ")
    assert drawn.endswith("ETA 6s")
    # While it goes on it is not done, whatever was estimated.
    ends = bar(ScanProgress("f", "scanning", "", True, 1195, 1200), rate)
    assert "  99%  1,195 of" in ends and "ETA" not in ends
    assert "  99%  1,300 of" in bar(ScanProgress("f", "scanning", "", True, 1300, 1300), rate)


def test_a_scan_that_has_not_begun() -> None:
    waiting = ScanProgress("f", "starting", "waits for Spark", True)
    assert going_on(waiting)
    assert bar(waiting, RateMeter()) == "f: waits for Spark"
    assert not going_on(ScanProgress("f", "running", "", False))
    assert not going_on(ScanProgress("f", "starting", "", False))


def test_how_a_scan_ended() -> None:
    assert ending(ScanProgress("f", "running", "", False), 61) == (
        "f: initial scan done in 1m 01s, it is running"
    )
    assert (
        ending(ScanProgress("f", "failed", "", False, error="no disk"), 1) == "f is failed: no disk"
    )
    assert ending(None, 1) == "the feed is gone"
    assert ending(ScanProgress("f", "stopped", "", True, 200, 20200), 9, 20200) == (
        "f is stopped before its initial scan is done: 200 of about 20,200 rows"
    )
    assert ending(ScanProgress("f", "running", "", False), 4, 1_000_000) == (
        "f: initial scan of about 1,000,000 rows (250,000 rows/s) done in 4s, it is running"
    )


def test_the_first_failure_is_the_exit_status(shell: Typist) -> None:
    shell.client.report(ChangefeedError("CF1304", "late"))
    shell.client.report(ChangefeedError("CF1001", "wrong"))
    assert shell.client.status is Exit.TIMEOUT


# ------------------------------------------------------------------- files, pager, rc, keys


def test_results_go_to_a_file(shell: Typist, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    assert shell.type(f"\\o {out}\nSHOW JOBS;\n\\o\nSHOW TABLES;\n") == ["SHOW JOBS", "SHOW TABLES"]
    assert out.read_text() == "DONE\n"
    assert shell.client.out.getvalue() == "DONE\n"  # type: ignore[attr-defined]


def test_a_file_that_cannot_be_written_is_an_error(shell: Typist, tmp_path: Path) -> None:
    shell.type(f"\\o {tmp_path}\nSHOW JOBS;\n")
    assert f"cannot write {tmp_path}: Is a directory" in shell.errors.getvalue()
    assert shell.client.out.getvalue() == "DONE\n"  # type: ignore[attr-defined]


def test_the_last_statement_runs_again(shell: Typist, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    assert shell.type(f"\\g\nSHOW JOBS;\n\\g\n\\g {out}\n") == ["SHOW JOBS"] * 3
    assert "\\g needs a statement" in shell.errors.getvalue()
    assert out.read_text() == "DONE\n"


def test_the_user_s_own_beginning(shell: Typist, tmp_path: Path) -> None:
    rc = tmp_path / "rc.sql"
    rc.write_text("\\set timing on\nUSE shop;\nSHOW CHANGFEEDS;\nUSE other;\n")
    run_rc(shell.client, rc)
    run_rc(shell.client, tmp_path / "missing")
    run_rc(shell.client, None)
    assert shell.client.settings.timing and shell.interpreter.ran == ["USE shop"]
    assert f"{rc}:3: ERROR CF1001" in shell.errors.getvalue()


def test_where_the_user_s_own_beginning_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CHANGEFEED_RC", str(tmp_path / "mine"))
    assert rc_file() == tmp_path / "mine"
    monkeypatch.setenv("CHANGEFEED_RC", "")
    assert rc_file() is None
    monkeypatch.delenv("CHANGEFEED_RC")
    assert rc_file() is not None


def test_vi_keys(shell: Typist) -> None:
    # Escape, first column, delete a word: what is left runs.
    assert shell.type("\\set keys vi\nx SHOW JOBS;\x1b0dwi\n") == ["SHOW JOBS"]
    assert shell.client.settings.keys is Keys.VI


@pytest.mark.parametrize(("pager", "lines", "paged"), [(True, 60, 1), (True, 3, 0), (False, 60, 0)])
def test_a_long_result_goes_through_the_pager(
    pager: bool, lines: int, paged: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr("click.echo_via_pager", lambda text, color: seen.append(text))
    monkeypatch.setenv("LINES", "24")
    out = Terminal()
    client = Client(
        FakeBackend(),  # type: ignore[arg-type]
        ShellSettings(pager=pager),
        Diagnostics(io.StringIO()),
        local=run_local,
        out=out,
        interactive=True,
    )
    client.show(Result(columns=("a",), rows=[(str(number),) for number in range(lines)]))
    assert len(seen) == paged and bool(out.getvalue()) is not bool(paged)
    assert f"({lines} rows)" in (seen[0] if seen else out.getvalue())


# ---------------------------------------------------------------------------- waiting


class Terminal(io.StringIO):
    """Says that somebody sits there."""

    def isatty(self) -> bool:
        return True


def test_what_takes_its_time_is_seen_and_leaves_nothing() -> None:
    out = Terminal()
    with WaitIndicator(out, "VALIDATE CREATE ..."):
        until(lambda: "VALIDATE CREATE ...  " in out.getvalue())
    assert out.getvalue().endswith("\r\x1b[2K")


def test_nothing_turns_where_nobody_sits_or_wants_it() -> None:
    for out, shown in ((io.StringIO(), True), (Terminal(), False)):
        with WaitIndicator(out, "x", shown=shown) as waiting:
            assert waiting._thread is None
        assert out.getvalue() == ""


def test_a_short_wait_draws_nothing() -> None:
    out = Terminal()
    waiting = WaitIndicator(out, "x")
    waiting._done.set()
    with waiting:
        pass
    assert out.getvalue() == ""


def test_what_is_typed_ahead_is_kept_and_not_echoed(monkeypatch: pytest.MonkeyPatch) -> None:
    person, terminal = pty.openpty()
    with open(terminal, "r+b", buffering=0, closefd=True) as opened:
        monkeypatch.setattr("sys.stdin", opened)

        def echoes() -> bool:
            return bool(termios.tcgetattr(terminal)[3] & termios.ECHO)

        assert echoes()
        with WaitIndicator(Terminal(), "SYNC CHANGEFEED ..."):
            assert not echoes()
            os.write(person, b"SHOW JOBS;\n")
        assert echoes()
        with pytest.raises(KeyboardInterrupt), quiet_keys():
            raise KeyboardInterrupt
        assert echoes()
        assert opened.readline() == b"SHOW JOBS;\n"
    os.close(person)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with quiet_keys():
        pass  # no terminal: nothing to switch

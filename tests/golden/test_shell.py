"""Golden sessions of the command: each file is one state from its beginning.

An input is ``$`` and the arguments; lines below it are standard input. The output is standard
output, then standard error with ``! `` before each line, then the exit status unless it is 0.
Blank lines are left out.

The fast run calls the entry point in this process, the slow one starts a process each time.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from shell.cli import main
from tests.golden import runner

ROOT = Path(__file__).parents[2]
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{6}| UTC)")

#: Arguments and standard input -> exit status, standard output, standard error.
Run = Callable[[list[str], str], tuple[int, str, str]]


def in_a_process(arguments: list[str], typed: str) -> tuple[int, str, str]:
    """The command as a user starts it."""
    ran = subprocess.run(
        [sys.executable, "-m", "shell", *arguments],
        input=typed,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=120,
    )
    return ran.returncode, ran.stdout, ran.stderr


def in_this_process(arguments: list[str], typed: str) -> tuple[int, str, str]:
    """The entry point, with streams of its own."""
    out, errors = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, _signals_kept():
        patch.setattr(sys, "argv", ["changefeed", *arguments])
        patch.setattr(sys, "stdin", io.StringIO(typed))
        with redirect_stdout(out), redirect_stderr(errors):
            status = main()
    return status, out.getvalue(), errors.getvalue()


@contextmanager
def _signals_kept() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def evaluator(run: Run, folder: Path) -> Callable[[str], str]:
    """What a golden file's inputs become, on a state in ``folder``."""
    (folder / "feeds.sql").write_text("\n-- nothing of use\nUSE nowhere;\nSHOW JOBS;\n")

    def evaluate(text: str) -> str:
        command, _, typed = text.partition("\n")
        assert command.startswith("$ changefeed"), command
        status, out, errors = run(shlex.split(command)[2:], typed)
        lines = [line for line in out.splitlines() if line]
        lines += [f"! {line}" for line in errors.splitlines() if line]
        lines += [f"exit {int(status)}"] if status else []
        return _MOMENT.sub("<moment>", "\n".join(lines).replace(str(folder), "<folder>"))

    return evaluate


@pytest.mark.parametrize(
    "run",
    [in_this_process, pytest.param(in_a_process, marks=[pytest.mark.slow, pytest.mark.extended])],
)
@pytest.mark.parametrize("file", runner.files("shell"))
def test_shell(
    file: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rewrite: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHANGEFEED_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "90")
    runner.run(file, evaluator(run, tmp_path), rewrite=rewrite)

"""One user's dealings with changefeed: statements and local commands in, text out.

Scripts and the prompt run everything through :meth:`Client.run`.
"""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from changefeed.backend import Backend
from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.loading import loading
from grammar import nodes
from shell.diagnostics import Diagnostics
from shell.exits import Exit, StatementFailure, exit_status
from shell.render.formats import OutputFormat
from shell.script import ScriptItem, items
from shell.settings import ScriptOnError, ShellSettings, Vertical
from shell.signals import one_interrupt, while_read
from shell.waiting import WaitIndicator

if TYPE_CHECKING:
    from changefeed.api import Result

#: Statements that take something away for good.
DESTRUCTIVE = (nodes.DropChangefeed, nodes.DropConnection, nodes.DropCdc)


#: Runs a local command of a client: :func:`shell.commands.run_local`, which knows the client.
LocalCommands = Callable[["Client", str], None]


def _never_asked(question: str) -> bool:
    return True


class Client:
    """Runs what one user types or a script holds.

    Attributes:
        status: the exit status so far: that of the first failure.
        interactive: a person sits at a prompt: tags are shown, scans are followed.
        confirm: asks the person a yes-or-no question; says yes where there is none.
        clock: for what is repeated, and how long statements take.
        created: hears the name of a feed that was made.
        prefill: puts a text before the person to go on with; None where there is nobody.
        depth: of files that include files.
        last: the statement that ran last, for ``\\watch`` and ``\\e``.
    """

    clock: Clock = SYSTEM_CLOCK

    def __init__(
        self,
        backend: Backend,
        settings: ShellSettings,
        diagnostics: Diagnostics,
        *,
        local: LocalCommands,
        out: TextIO | None = None,
        interactive: bool = False,
    ) -> None:
        """``local`` runs the lines that begin with a backslash."""
        self.backend = backend
        self.settings = settings
        self.diagnostics = diagnostics
        self.interactive = interactive
        self._local = local
        self.confirm: Callable[[str], bool] = _never_asked
        self.created: Callable[[str], None] | None = None
        self.prefill: Callable[[str], None] | None = None
        self.depth = 0
        self.status = Exit.OK
        self.last = ""
        self._out = out
        self._file: TextIO | None = None
        self._results = 0
        self._found_wrong = False

    @property
    def out(self) -> TextIO:
        """The file of ``\\o``, else standard output."""
        if self._file is not None:
            return self._file
        return self._out if self._out is not None else sys.stdout

    @property
    def width(self) -> int | None:
        """Columns of the terminal; None where output is none."""
        return shutil.get_terminal_size().columns if self.out.isatty() else None

    def redirect(self, name: str) -> None:
        """Write results to a file from now on; to standard output again without a name.

        Raises:
            ChangefeedError: CF1303 the file cannot be written.
        """
        file: TextIO | None = None
        if name:
            try:
                file = Path(name).expanduser().open("w", encoding="utf-8")
            except OSError as error:
                reason = error.strerror or type(error).__name__
                raise ChangefeedError(
                    Code.NOT_SUPPORTED, f"cannot write {name}: {reason}"
                ) from error
        before, self._file = self._file, file
        if before is not None:
            before.close()

    def page(self, text: str) -> None:
        """Write a text; one that is longer than the screen goes through the pager at a prompt."""
        long = text.count("\n") >= shutil.get_terminal_size().lines
        if long and self.interactive and self.settings.pager and self.out.isatty():
            import click

            click.echo_via_pager(text, color=True)
            return
        self.out.write(text)
        self.out.flush()

    # -- scripts --------------------------------------------------------------------------

    def run_script(self, lines: Iterable[str], where: str = "") -> None:
        """Run a script; ``where`` names it in errors.

        Raises:
            Failed: a statement failed, or a VALIDATE found an error, and ``on_error`` is
                ``stop``; it was reported.
            Leave: ``\\q``.
        """
        for item in items(lines):
            try:
                self.run(item)
            except ChangefeedError as error:
                self.report(error, f"{where}:{item.line}" if where else "")
                if self.settings.on_error is ScriptOnError.STOP:
                    raise StatementFailure from error
            if self._found_wrong and self.settings.on_error is ScriptOnError.STOP:
                raise StatementFailure

    def report(self, error: ChangefeedError, where: str = "") -> None:
        """Say what went wrong, and remember it for the exit status."""
        if self.status is Exit.OK:
            self.status = exit_status(error)
        self.diagnostics.error(error, where)

    def run(self, item: ScriptItem) -> None:
        """One statement or local command.

        Raises:
            ChangefeedError: it failed.
            Leave: ``\\q``.
            KeyboardInterrupt: Ctrl-C; a sinkless feed is gone, a SYNC waits no more.
        """
        if item.local:
            self._local(self, item.text)
        else:
            self.statement(item.text)

    # -- statements -----------------------------------------------------------------------

    def statement(self, text: str) -> None:
        """Execute a statement and write its result; raises as :meth:`run`."""
        with loading():
            from changefeed.api import parsed_statement

        self.last = text
        self._found_wrong = False
        begun = self.clock.monotonic()
        parsed = parsed_statement(text)
        if isinstance(parsed, DESTRUCTIVE) and not self._sure(parsed):
            self.diagnostics.note("nothing was dropped")
            return
        with self._waiting(text):
            result = self.backend.execute(parsed, text)
        self.show(result)
        if result.failure is not None:
            # The rows say it all: only the exit status is left to set.
            self._found_wrong = True
            if self.status is Exit.OK:
                self.status = exit_status(result.failure)
        if self.settings.timing:
            self.diagnostics.remark(f"Time: {_elapsed(self.clock.monotonic() - begun)}")
        if self.created is not None and result.name and _makes_feed(parsed):
            self.created(result.name)

    def _waiting(self, text: str) -> AbstractContextManager[object]:
        if not self.interactive:
            return nullcontext()
        first = " ".join(text.split()[:2]).upper()
        return WaitIndicator(self.diagnostics.stream, f"{first} ...", shown=self.settings.progress)

    def _sure(self, statement: nodes.Statement) -> bool:
        from grammar.printer import to_sql

        return not self.settings.confirm or self.confirm(f"{to_sql(statement)}: are you sure?")

    def show(self, result: Result) -> None:
        """Write notices and rows; of a sinkless feed, until it ends."""
        for notice in result.notices:
            self.diagnostics.notice(notice)
        if result.stream is not None:
            self._stream(result)
        elif result.columns:
            self._rows(result)
        elif self.interactive and result.tag:
            self.out.write(result.tag + "\n")
            self.out.flush()

    def _rows(self, result: Result) -> None:
        from shell.render.results import render

        form = self.settings.format
        self._results += 1
        if (
            self._results == 2
            and not self.interactive
            and form in (OutputFormat.CSV, OutputFormat.JSON)
        ):
            self.diagnostics.note(
                f"standard output holds more than one {form} result: run each on its own, or use "
                "--format jsonl"
            )
        if form is OutputFormat.TABLE:
            wanted = self.settings.vertical
            if wanted is Vertical.ON:
                form = OutputFormat.VERTICAL
            elif wanted is Vertical.OFF:
                result = replace(result, sections=())
            elif result.vertical and not result.sections:
                form = OutputFormat.VERTICAL
        text = io.StringIO()
        render(result, form, text, self.width, colour=self.out.isatty())
        self.page(text.getvalue())

    def _stream(self, result: Result) -> None:
        from shell.streaming import write_stream

        stream = result.stream
        if self.interactive:
            self.diagnostics.remark("rows appear as they are committed; Ctrl-C ends the stream")
        count, left = 0, False
        with one_interrupt():
            try:
                # Only while rows come: nothing may break off the end of the feed.
                with while_read(self.out):
                    for written in write_stream(stream or (), self.settings.format, self.out):
                        count = written
            except KeyboardInterrupt:
                if not self.interactive:
                    raise
                left = True
            finally:
                # Closing takes the feed down: its job is gone when this returns.
                close = getattr(stream, "close", None)
                if close is not None:
                    close()
        if self.interactive:
            self.diagnostics.after_interrupt(left)
            rows = "1 row" if count == 1 else f"{count:,} rows"
            self.diagnostics.note(f"the stream ended after {rows}; other feeds continue")


def _makes_feed(statement: nodes.Statement) -> bool:
    return isinstance(statement, nodes.CreateChangefeed | nodes.CreateDataset | nodes.CreateCdc)


def _elapsed(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"

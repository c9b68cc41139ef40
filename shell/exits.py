"""Every exit status of ``changefeed``, and which error ends with which."""

from __future__ import annotations

from enum import IntEnum

from changefeed.core.errors import ChangefeedError, Code


class Exit(IntEnum):
    """The exit statuses of ``changefeed``; documented in docs/shell.md."""

    OK = 0
    STATEMENT = 1
    """A statement failed."""
    USAGE = 2
    """A flag or argument is wrong."""
    DIFFERS = 2
    """``apply --plan`` found something to do: the status of a plan in other tools."""
    CONNECTION = 3
    """The state, a source or a sink cannot be reached."""
    TIMEOUT = 4
    """A wait ran out of time (SYNC)."""
    DIFFERENCE = 5
    """Source and target differ (VERIFY), or a file and its checksums (``log verify``)."""
    INTERRUPTED = 130
    """Ctrl-C."""
    PIPE = 141
    """The reader of standard output closed the pipe (``| head``)."""
    TERMINATED = 143
    """SIGTERM or SIGHUP."""


_BY_CODE = {
    Code.TIMED_OUT: Exit.TIMEOUT,
    Code.TARGET_DIFFERS: Exit.DIFFERENCE,
    Code.SOURCE_UNREACHABLE: Exit.CONNECTION,
    Code.SOURCE_REFUSED_LOGIN: Exit.CONNECTION,
    Code.SINK_UNREACHABLE: Exit.CONNECTION,
    Code.SINK_REFUSED_LOGIN: Exit.CONNECTION,
    Code.STATE_UNREACHABLE: Exit.CONNECTION,
    Code.STATE_OF_ANOTHER_VERSION: Exit.CONNECTION,
    Code.STATE_HELD_BY_ANOTHER_NODE: Exit.CONNECTION,
}


def exit_status(error: ChangefeedError) -> Exit:
    """The exit status that an error ends the process with."""
    return _BY_CODE.get(error.code, Exit.STATEMENT)


class ShellExit(Exception):
    """The user wants to go (``\\q``); what was asked before stands."""


class StatementFailure(Exception):
    """A statement failed and was reported; nothing after it is to run."""

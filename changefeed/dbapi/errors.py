"""The exceptions of PEP 249, with what an error of changefeed says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from changefeed.core.errors import ChangefeedError, Code, Problems


class Warning(Exception):  # noqa: A001 - the name that PEP 249 gives it
    """Never raised: what a statement has to say besides its rows is in ``notices``."""


class Error(Exception):
    """What went wrong. A traceback also shows the code, the detail and the hint.

    Attributes:
        code: the number of the error, as ``CF1101`` (docs/errors.md); empty where a cursor or a
            connection was misused.
        detail: facts, without row values and secrets.
        hint: what to do next.
        line: in the statement, from 1; None where the error has no place in it.
        start, end: the place as offsets in characters.
        problems: each problem, where the statement has several; the first is this one.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.code = ""
        self.detail = ""
        self.hint = hint
        self.line: int | None = None
        self.start: int | None = None
        self.end: int | None = None
        self.problems: tuple[Error, ...] = ()
        if hint:
            self.add_note(f"HINT: {hint}")


class InterfaceError(Error):
    """A connection or a cursor was misused."""


class DatabaseError(Error):
    """A statement failed."""


class DataError(DatabaseError):
    """A value or a row cannot be what it has to be (CF4)."""


class OperationalError(DatabaseError):
    """The node, the state, a source or a sink; a wait that ran out, or whose feed stands still."""


class IntegrityError(DatabaseError):
    """Source and target differ (CF1305)."""


class InternalError(DatabaseError):
    """A fault of changefeed (CF9)."""


class ProgrammingError(DatabaseError):
    """The statement is wrong, names what is not there, or is not allowed."""


class NotSupportedError(DatabaseError):
    """changefeed cannot do this."""


#: By the beginning of the code's number; the longest counts.
_CLASSES: dict[str, type[DatabaseError]] = {
    "CF1": ProgrammingError,
    Code.SECRET_UNREADABLE: OperationalError,
    Code.WRONG_JOB_STATE: OperationalError,
    Code.NOT_SUPPORTED: NotSupportedError,
    Code.TIMED_OUT: OperationalError,
    Code.TARGET_DIFFERS: IntegrityError,
    Code.REQUEST_REFUSED: OperationalError,
    Code.LOGIN_NEEDED: OperationalError,
    "CF4": DataError,
    "CF9": InternalError,
}


def error_of(error: ChangefeedError) -> DatabaseError:
    """The exception of an error."""
    number = error.code.number
    kind = _CLASSES.get(number) or _CLASSES.get(number[:3], OperationalError)
    made = kind(error.message)
    made.code, made.detail, made.hint = number, error.detail, error.hint
    for note in error.__notes__:
        made.add_note(note)
    fields = error.fields()
    if "start" in fields and error.span is not None:
        made.line = int(str(fields["line"]))
        made.start, made.end = error.span.start, error.span.end
    if isinstance(error, Problems):
        made.problems = tuple(error_of(each) for each in error.problems)
    return made


@contextmanager
def raised() -> Iterator[None]:
    """Raise errors of changefeed as exceptions of PEP 249."""
    try:
        yield
    except ChangefeedError as error:
        # Its traceback says nothing of the program that made the statement.
        raise error_of(error) from None

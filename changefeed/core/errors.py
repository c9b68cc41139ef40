"""One error type and one table of codes.

The table decides what happens: a ``USER`` error is reported, a ``RETRY`` error is tried
again with back-off, a ``STOP`` error pauses or fails the job (or the one table) and waits
for a person. The hint of a row is what SHOW, the log and the docs say to do next.
An error never carries row values or secrets.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Action(StrEnum):
    """What the engine does with an error."""

    USER = "user"
    RETRY = "retry"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Code:
    """One row of the table: ``CF`` and four digits, what to do, a hint for the person."""

    number: str
    action: Action
    summary: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """Where in the statement's text: offsets in characters, end exclusive."""

    start: int
    end: int


#: A line that explains an error is cut at so many characters: some servers send pages.
LONGEST_LINE = 500


class ChangefeedError(Exception):
    """Every error a user can meet.

    Attributes:
        code: row of :data:`CODES`.
        message: what is wrong, one sentence, lower case, no full stop.
        detail: our facts (feed, table, position, counts); never row values.
        hint: what to do next; the table's hint when not given.
        span: where in the statement's text, with ``text`` the statement itself.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        detail: str = "",
        hint: str = "",
        span: Span | None = None,
        text: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = CODES[code]
        self.message = message
        self.detail = detail
        self.hint = hint or self.code.hint
        self.span = span
        self.text = text

    @property
    def explained(self) -> str:
        """The message and the facts behind it in one line: for where a DETAIL has no place."""
        detail = " ".join(self.detail.split())
        if not detail or detail in self.message:
            return self.message
        text = f"{self.message}: {detail}"
        return text if len(text) <= LONGEST_LINE else f"{text[: LONGEST_LINE - 1]}…"

    @property
    def action(self) -> Action:
        """What the engine does with it."""
        return self.code.action

    def located(self, text: str, span: Span | None = None) -> ChangefeedError:
        """The same error, tied to the statement ``text`` (and ``span`` unless it has one)."""
        if self.text is None:
            self.text = text
            self.span = self.span or span
        return self

    def __str__(self) -> str:
        return self.message


class Problems(ChangefeedError):
    """Several problems of one statement, reported at once."""

    def __init__(self, problems: list[ChangefeedError]) -> None:
        if not problems:
            raise ValueError("Problems needs at least one problem")
        first = problems[0]
        super().__init__(
            first.code.number,
            first.message,
            detail=first.detail,
            hint=first.hint,
            span=first.span,
            text=first.text,
        )
        self.problems = problems


def raise_all(problems: list[ChangefeedError]) -> None:
    """Raise the problems found, if any: one as itself, several together."""
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise Problems(problems)


def _table(*rows: Code) -> dict[str, Code]:
    table = {row.number: row for row in rows}
    if len(table) != len(rows):
        raise ValueError("two error codes have the same number")
    return table


_U, _R, _S = Action.USER, Action.RETRY, Action.STOP

#: 10xx syntax, 11xx names, 12xx options and URIs, 13xx jobs and statements, 20xx source,
#: 21xx replication stream, 22xx initial scan, 30xx change log, 40xx Spark and encoding,
#: 50xx sinks, 60xx state and node, 90xx faults of our own.
CODES: dict[str, Code] = _table(
    Code("CF1001", _U, "syntax error", "\\h lists the statements."),
    Code("CF1002", _U, "statement is not finished", "end the statement with ;"),
    Code("CF1101", _U, "name does not exist"),
    Code("CF1102", _U, "name already exists", "add IF NOT EXISTS to keep what is there."),
    Code("CF1103", _U, "name is not allowed here"),
    Code("CF1201", _U, "invalid sink or source URI"),
    Code("CF1202", _U, "unknown parameter of the URI"),
    Code("CF1203", _U, "unknown option", "\\h CREATE CHANGEFEED lists the options."),
    Code("CF1204", _U, "invalid option value"),
    Code("CF1205", _U, "options contradict each other"),
    Code("CF1206", _U, "option does not fit this sink"),
    Code("CF1207", _U, "invalid parameter of the URI"),
    Code("CF1301", _U, "job is not in a state that allows this"),
    Code("CF1302", _U, "target cannot be watched"),
    Code("CF1303", _U, "not supported"),
    Code("CF1304", _U, "timed out"),
    Code("CF2001", _R, "cannot reach the source", "check host, port and that the server runs."),
    Code("CF2002", _S, "source refused the login", "check user and password of the connection."),
    Code("CF2003", _U, "source is not set up for changefeeds"),
    Code("CF2004", _U, "permission missing at the source"),
    Code("CF2005", _R, "source is busy"),
    Code("CF2101", _R, "replication stream broke"),
    Code(
        "CF2102",
        _S,
        "replication slot is gone",
        "changes were missed: ALTER CHANGEFEED .. RESCAN, for each feed of this source, makes a "
        "new slot and reads the tables again.",
    ),
    Code(
        "CF2103",
        _S,
        "replication slot was recreated",
        "changes were missed: ALTER CHANGEFEED .. RESCAN, for each feed of this source, makes a "
        "new slot and reads the tables again.",
    ),
    Code(
        "CF2104",
        _S,
        "source is another database than before",
        "point the connection back and RESUME; or, to go on with this one, ALTER CHANGEFEED .. "
        "RESCAN, for each feed of this source.",
    ),
    Code("CF2105", _S, "unexpected message in the replication stream"),
    Code(
        "CF2106",
        _S,
        "table is not the one the feed began with",
        "ALTER CHANGEFEED .. RESCAN takes the table that has the name now; .. DROP leaves it out.",
    ),
    Code("CF2201", _R, "initial scan was interrupted"),
    Code("CF2202", _S, "table cannot be scanned"),
    Code(
        "CF3001",
        _S,
        "change log is damaged",
        "put the folder of the log back as it was and RESUME; or ALTER CHANGEFEED .. RESCAN, for "
        "each feed of this source, begins a new log and reads the tables again.",
    ),
    Code(
        "CF3002",
        _S,
        "position is older than the change log keeps",
        "RESUME cannot go on without a gap: ALTER CHANGEFEED .. RESCAN reads the tables again; a "
        "higher gc_ttl keeps more.",
    ),
    Code("CF3003", _R, "change log has no room", "free disk space or raise the budget."),
    Code("CF3004", _R, "change log cannot be written", "check the disk under the change log."),
    Code("CF4001", _S, "value cannot be encoded"),
    Code("CF4002", _R, "Spark failed"),
    Code("CF4003", _U, "Spark is not available"),
    Code("CF4101", _S, "schema changed and the policy says stop"),
    Code("CF5001", _R, "cannot reach the sink", "check the address and that the server runs."),
    Code("CF5002", _S, "sink refused the login"),
    Code("CF5003", _S, "sink refused the data"),
    Code("CF5004", _R, "sink is busy"),
    Code("CF5005", _U, "sink needs an extra"),
    Code("CF5006", _S, "the sink cannot take a message or a change of this table"),
    Code("CF5007", _S, "client went away"),
    Code(
        "CF5008",
        _S,
        "the target of a table is not this feed's",
        "existing_target says what becomes of it; FOR table AS name takes another target.",
    ),
    Code("CF6001", _R, "state database is not reachable"),
    Code("CF6002", _S, "state database is from another version"),
    Code("CF6003", _U, "another node holds this state"),
    Code("CF6004", _R, "lease on a job was lost"),
    Code("CF6005", _S, "the node ended by itself", "start it again; node.log says why it ended."),
    Code("CF6006", _U, "address cannot be listened on", "give --http another host:port."),
    Code(
        "CF9001",
        _R,
        "internal error",
        "it is tried again a few times; node.log in the state directory has the place.",
    ),
    Code(
        "CF9002",
        _S,
        "internal error that repeats",
        "this is a fault of changefeed: report it with the lines of node.log in the state "
        "directory. RESUME tries again.",
    ),
)

#: The change log cannot be continued from the source: only a new one can follow it.
LOG_LOST = frozenset({"CF2102", "CF2103", "CF2104", "CF3001"})

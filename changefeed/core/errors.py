"""One error type and one table of codes.

The table decides what happens. The *action*: a ``USER`` error is reported, a ``RETRY`` error is
retried with back-off, a ``STOP`` error waits for a person. The *scope*: what the error affects
while feeds run; with the scope ``TABLE`` only one table of a feed fails. The hint of a row is
what SHOW, the log and the docs say to do next (``docs/errors.md`` and ``\\h CF2003`` come from
this table). An error never carries row values or secrets.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, unique
from typing import Self


class Action(StrEnum):
    """What a feed does about an error."""

    USER = "user"
    RETRY = "retry"
    STOP = "stop"


class Scope(StrEnum):
    """What an error stops or delays."""

    STATEMENT = "statement"
    TABLE = "table"
    FEED = "feed"
    SOURCE = "source"
    NODE = "node"


_USER, _RETRY, _STOP = Action.USER, Action.RETRY, Action.STOP


@unique
class Code(StrEnum):
    """The table of errors. A member is its number as text: ``CF`` and four digits.

    Attributes:
        action: what a feed does about it.
        scope: what is affected while feeds run.
        summary: what is wrong, in general.
        hint: what a person does next, or an empty string.
    """

    action: Action
    scope: Scope
    summary: str
    hint: str

    def __new__(
        cls, number: str, action: Action, scope: Scope, summary: str, hint: str = ""
    ) -> Self:
        code = str.__new__(cls, number)
        code._value_ = number
        code.action, code.scope, code.summary, code.hint = action, scope, summary, hint
        return code

    # 10xx: syntax
    SYNTAX_ERROR = "CF1001", _USER, Scope.STATEMENT, "syntax error", "\\h lists the statements."

    # 11xx: names
    NAME_UNKNOWN = "CF1101", _USER, Scope.TABLE, "name does not exist"
    NAME_TAKEN = (
        "CF1102",
        _USER,
        Scope.STATEMENT,
        "name already exists",
        "add IF NOT EXISTS to keep the existing one.",
    )
    NAME_NOT_ALLOWED = "CF1103", _USER, Scope.STATEMENT, "name is not allowed here"

    # 12xx: options and URIs
    INVALID_URI = "CF1201", _USER, Scope.STATEMENT, "invalid sink or source URI"
    UNKNOWN_PARAMETER = "CF1202", _USER, Scope.STATEMENT, "unknown parameter of the URI"
    UNKNOWN_OPTION = (
        "CF1203",
        _USER,
        Scope.STATEMENT,
        "unknown option",
        "\\h CREATE CHANGEFEED lists the options.",
    )
    INVALID_OPTION_VALUE = "CF1204", _USER, Scope.STATEMENT, "invalid option value"
    OPTIONS_CONTRADICT = "CF1205", _USER, Scope.STATEMENT, "options contradict each other"
    OPTION_DOES_NOT_FIT_SINK = "CF1206", _USER, Scope.STATEMENT, "option does not fit this sink"
    INVALID_PARAMETER = "CF1207", _USER, Scope.STATEMENT, "invalid parameter of the URI"
    SECRET_UNREADABLE = (
        "CF1208",
        _RETRY,
        Scope.FEED,
        "a secret that is given by reference cannot be read",
        "make the variable, file or command answer for the user of the node, in its environment.",
    )

    # 13xx: jobs and statements
    WRONG_JOB_STATE = "CF1301", _USER, Scope.STATEMENT, "job is not in a state that allows this"
    TARGET_NOT_WATCHABLE = "CF1302", _USER, Scope.TABLE, "target cannot be watched"
    NOT_SUPPORTED = "CF1303", _USER, Scope.TABLE, "not supported"
    TIMED_OUT = "CF1304", _USER, Scope.STATEMENT, "timed out"
    TARGET_DIFFERS = "CF1305", _USER, Scope.STATEMENT, "source and target differ"

    # 14xx: requests over HTTP
    REQUEST_REFUSED = "CF1401", _USER, Scope.STATEMENT, "HTTP request is refused"
    LOGIN_NEEDED = (
        "CF1402",
        _USER,
        Scope.STATEMENT,
        "the HTTP API needs a login",
        "send the token of CREATE USER in the header Authorization: Bearer, or as a password.",
    )
    RIGHT_MISSING = (
        "CF1403",
        _USER,
        Scope.STATEMENT,
        "neither the role nor a right of the user allows this",
        "an admin can give another role or a right: \\h GRANT.",
    )

    # 20xx: the source
    SOURCE_UNREACHABLE = (
        "CF2001",
        _RETRY,
        Scope.SOURCE,
        "cannot reach the source",
        "check host, port and that the server runs.",
    )
    SOURCE_REFUSED_LOGIN = (
        "CF2002",
        _STOP,
        Scope.SOURCE,
        "source refused the login",
        "check user and password of the connection.",
    )
    SOURCE_NOT_SET_UP = "CF2003", _USER, Scope.SOURCE, "source is not set up for changefeeds"
    SOURCE_PERMISSION_MISSING = ("CF2004", _USER, Scope.SOURCE, "permission missing at the source")
    SOURCE_BUSY = "CF2005", _RETRY, Scope.SOURCE, "source is busy"

    # 21xx: the replication stream
    STREAM_BROKE = "CF2101", _RETRY, Scope.SOURCE, "replication stream broke"
    SOURCE_LOG_GONE = (
        "CF2102",
        _STOP,
        Scope.SOURCE,
        "source no longer has the log that is needed",
        "changes were missed. ALTER CHANGEFEED .. RESCAN, run for each feed of this source, "
        "starts a new change log and reads the tables again.",
    )
    SOURCE_LOG_REPLACED = (
        "CF2103",
        _STOP,
        Scope.SOURCE,
        "source's log is not the one that was read before",
        "changes were missed. ALTER CHANGEFEED .. RESCAN, run for each feed of this source, "
        "starts a new change log and reads the tables again.",
    )
    SOURCE_IS_ANOTHER = (
        "CF2104",
        _STOP,
        Scope.SOURCE,
        "source is another database than before",
        "point the connection back and RESUME; or, to continue with this database, run ALTER "
        "CHANGEFEED .. RESCAN for each feed of this source.",
    )
    UNEXPECTED_MESSAGE = (
        "CF2105",
        _STOP,
        Scope.SOURCE,
        "unexpected message in the replication stream",
    )
    TABLE_REPLACED = (
        "CF2106",
        _STOP,
        Scope.TABLE,
        "table is not the one that the feed started with",
        "ALTER CHANGEFEED .. RESCAN the table continues with the table that has the name now; "
        "ALTER CHANGEFEED .. DROP the table removes it from the feed.",
    )
    TABLE_GAP = (
        "CF2107",
        _STOP,
        Scope.TABLE,
        "changes of a table were not captured",
        "ALTER CHANGEFEED .. RESCAN the table reads it again, and so does RESUME.",
    )
    TABLE_NOT_READABLE = (
        "CF2108",
        _STOP,
        Scope.TABLE,
        "changes of a table cannot be read from the source's log",
        "remove the cause that the message names; then ALTER CHANGEFEED .. RESCAN the table.",
    )
    SOURCE_READ_BY_RIVAL = (
        "CF2109",
        _STOP,
        Scope.SOURCE,
        "another node reads the source under the same state",
        "two nodes run copies of one state: it was copied, or restored from a backup, while its "
        "first node still runs. Stop this one. To go on with this one instead, stop the other and "
        "ALTER CHANGEFEED .. RESCAN each feed here. To run both, create the feeds in a new state.",
    )

    # 22xx: the initial scan
    SCAN_INTERRUPTED = "CF2201", _RETRY, Scope.FEED, "initial scan was interrupted"
    TABLE_NOT_SCANNABLE = "CF2202", _STOP, Scope.TABLE, "table cannot be scanned"

    # 30xx: the change log
    LOG_DAMAGED = (
        "CF3001",
        _STOP,
        Scope.SOURCE,
        "change log is damaged",
        "restore the folder of the log and RESUME; or run ALTER CHANGEFEED .. RESCAN for each "
        "feed of this source, which starts a new log and reads the tables again.",
    )
    POSITION_TOO_OLD = (
        "CF3002",
        _STOP,
        Scope.TABLE,
        "position is older than the change log keeps",
        "RESUME cannot continue without a gap: ALTER CHANGEFEED .. RESCAN reads the tables "
        "again; a higher gc_ttl keeps changes longer.",
    )
    LOG_FULL = (
        "CF3003",
        _RETRY,
        Scope.SOURCE,
        "change log has no room",
        "free disk space or raise the budget.",
    )
    LOG_NOT_WRITABLE = (
        "CF3004",
        _RETRY,
        Scope.SOURCE,
        "change log cannot be written",
        "check the disk under the change log.",
    )

    ROW_IMAGES_LOST = (
        "CF3005",
        _STOP,
        Scope.TABLE,
        "row images are lost",
        "they are made again by themselves; ALTER CHANGEFEED .. RESCAN, for each feed that needs "
        "the row before a change, then reads the table again.",
    )

    CLAIM_ENDED = (
        "CF3006",
        _STOP,
        Scope.FEED,
        "feed has more to deliver than the change log may keep for it",
        "raise the limit that the message names. RESUME then continues if the change log still "
        "has the changes, which it no longer protects; otherwise ALTER CHANGEFEED .. RESCAN reads "
        "the tables again.",
    )
    LOG_STORE_UNREACHABLE = (
        "CF3007",
        _RETRY,
        Scope.SOURCE,
        "the object store of the change log cannot be used",
        "check the store, its address and the rights of the node there; reading goes on by itself.",
    )

    # 40xx: Spark and encoding
    VALUE_NOT_ENCODABLE = "CF4001", _STOP, Scope.TABLE, "value cannot be encoded"
    SPARK_FAILED = "CF4002", _RETRY, Scope.FEED, "Spark failed"
    SPARK_NOT_AVAILABLE = "CF4003", _USER, Scope.FEED, "Spark is not available"
    LOOKUP_NOT_USABLE = (
        "CF4004",
        _RETRY,
        Scope.FEED,
        "look-up table cannot be used",
        "fix the look-up table; a feed that runs retries by itself and loses no change.",
    )

    # 41xx: schema changes
    SCHEMA_CHANGE_STOPS = (
        "CF4101",
        _STOP,
        Scope.FEED,
        "schema changed and the policy says stop",
        "ALTER CHANGEFEED .. RESCAN reads the table again with its new schema; to continue "
        "without that, SET schema_change_policy = 'nobackfill' and RESUME.",
    )

    # 50xx: sinks
    SINK_UNREACHABLE = (
        "CF5001",
        _RETRY,
        Scope.FEED,
        "cannot reach the sink",
        "check the address and that the server runs.",
    )
    SINK_REFUSED_LOGIN = "CF5002", _STOP, Scope.FEED, "sink refused the login"
    SINK_REFUSED_DATA = (
        "CF5003",
        _STOP,
        Scope.TABLE,
        "sink refused the data",
        "change what the message names, at the source or at the sink; then RESUME.",
    )
    SINK_BUSY = "CF5004", _RETRY, Scope.FEED, "sink is busy"
    SINK_NEEDS_EXTRA = "CF5005", _USER, Scope.FEED, "sink needs an extra"
    SINK_CANNOT_TAKE_TABLE = (
        "CF5006",
        _STOP,
        Scope.TABLE,
        "the sink cannot take a message or a change of this table",
        "change the target table as the message says, or ALTER CHANGEFEED .. DROP the table; "
        "then RESUME.",
    )
    CLIENT_GONE = "CF5007", _STOP, Scope.FEED, "client went away"
    TARGET_NOT_OURS = (
        "CF5008",
        _STOP,
        Scope.TABLE,
        "the target of a table does not belong to this feed",
        "the option existing_target allows the feed to merge or replace it; FOR table AS name "
        "chooses another target.",
    )

    TOO_MANY_DEAD_LETTERS = (
        "CF5009",
        _STOP,
        Scope.FEED,
        "too many rows were refused",
        "SHOW CHANGEFEED .. DEAD LETTERS lists them. Remove the cause and RETRY them, DISCARD "
        "them, or raise the limit that the message names; then RESUME.",
    )

    # 60xx: state and node
    STATE_UNREACHABLE = "CF6001", _RETRY, Scope.NODE, "state database is not reachable"
    STATE_OF_ANOTHER_VERSION = (
        "CF6002",
        _STOP,
        Scope.NODE,
        "state database is from another version",
    )
    STATE_HELD_BY_ANOTHER_NODE = "CF6003", _USER, Scope.NODE, "another node holds this state"
    LEASE_LOST = "CF6004", _RETRY, Scope.FEED, "lease on a job was lost"
    NODE_ENDED = (
        "CF6005",
        _STOP,
        Scope.NODE,
        "the node stopped unexpectedly",
        "start it again; node.log says why it stopped.",
    )
    ADDRESS_IN_USE = (
        "CF6006",
        _USER,
        Scope.NODE,
        "cannot listen on the address",
        "give --http another host:port.",
    )
    CERTIFICATE_NOT_USABLE = (
        "CF6007",
        _USER,
        Scope.NODE,
        "certificate or key cannot be used",
        "give files in PEM form that belong together to --http-cert and --http-key.",
    )
    STATE_KEY_NOT_USABLE = (
        "CF6008",
        _RETRY,
        Scope.NODE,
        "the key of the state is missing or cannot be used",
        "give the key that the state is encrypted by: --state-key '${file:/path}'.",
    )

    # 90xx: faults of our own
    INTERNAL_ERROR = (
        "CF9001",
        _RETRY,
        Scope.FEED,
        "internal error",
        "changefeed retries a few times; node.log in the state directory shows where it happened.",
    )
    INTERNAL_ERROR_REPEATS = (
        "CF9002",
        _STOP,
        Scope.FEED,
        "internal error that repeats",
        "this is a bug in changefeed: report it with the lines of node.log in the state "
        "directory. RESUME tries again.",
    )

    @property
    def number(self) -> str:
        """The number as text: ``CF2001``."""
        return str(self.value)

    @property
    def is_of_source(self) -> bool:
        """Whether the error comes from the source: its number begins with 2."""
        return self.number.startswith("CF2")

    @property
    def is_of_sink(self) -> bool:
        """Whether the error comes from the sink: its number begins with 5."""
        return self.number.startswith("CF5")

    @classmethod
    def stored(cls, number: str | None) -> Code | None:
        """The code of a number that was stored, maybe by another version."""
        return _BY_NUMBER.get(number or "")


_BY_NUMBER: dict[str, Code] = {code.number: code for code in Code}

#: The change log cannot be continued from the source: only a new one can follow it.
LOG_LOST = frozenset(
    {Code.SOURCE_LOG_GONE, Code.SOURCE_LOG_REPLACED, Code.SOURCE_IS_ANOTHER, Code.LOG_DAMAGED}
)


@dataclass(frozen=True, slots=True)
class Span:
    """Where in the statement's text: offsets in characters, end exclusive."""

    start: int
    end: int


#: A line that explains an error is cut after this many characters: some servers send pages.
LONGEST_LINE = 500


class ChangefeedError(Exception):
    """Every error that a user can get.

    Attributes:
        code: row of the table.
        message: what is wrong, one sentence, lower case, no full stop.
        detail: facts (feed, table, position, counts); never row values.
        hint: what to do next; the table's hint when not given.
        span: where in the statement's text, with ``text`` the statement itself.
        target: the topic, index or table at the sink that the error is about, if the sink knows
        it: then only that one of several tables in a commit fails.
        about_row: a row is refused for itself: others of its batch may be taken without it.
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
        target: str = "",
        about_row: bool | None = None,
    ) -> None:
        """``about_row``: by default, a value that cannot be encoded is a row's."""
        super().__init__(message)
        self.code = _BY_NUMBER[code]
        self.message = message
        self.detail = detail
        self.hint = hint or self.code.hint
        self.span = span
        self.text = text
        self.target = target
        self.about_row = self.code is Code.VALUE_NOT_ENCODABLE if about_row is None else about_row

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        """What a traceback of Python shows below the message; Spark shows errors of the format
        ``changefeed`` as tracebacks."""
        more = (("DETAIL", self.detail), ("HINT", self.hint))
        return [self.code.number, *(f"{name}: {text}" for name, text in more if text)]

    @property
    def explained(self) -> str:
        """The message and the detail in one line, for outputs without a DETAIL line."""
        detail = " ".join(self.detail.split())
        if not detail or detail in self.message:
            return self.message
        text = f"{self.message}: {detail}"
        return text if len(text) <= LONGEST_LINE else f"{text[: LONGEST_LINE - 1]}…"

    @property
    def action(self) -> Action:
        """What a feed does about the error."""
        return self.code.action

    @property
    def scope(self) -> Scope:
        """What the error affects while feeds run."""
        return self.code.scope

    def fields(self) -> dict[str, object]:
        """The error as ``--format json`` and the HTTP API have it: ``error``, ``code``, and where
        there are such, ``detail``, ``hint``, and ``line``, ``start`` and ``end`` in the statement.
        """
        found: dict[str, object] = {"error": self.message, "code": self.code.number}
        if self.detail:
            found["detail"] = self.detail
        if self.hint:
            found["hint"] = self.hint
        if self.text is not None and self.span is not None:
            found["line"] = self.text.count("\n", 0, self.span.start) + 1
            found["start"] = self.span.start
            found["end"] = self.span.end
        return found

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
            first.code,
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

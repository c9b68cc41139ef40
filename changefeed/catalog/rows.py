"""The small rows of the catalog: connections, sources, leases, nodes, events, rates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Position
from changefeed.core.schema import TableName
from grammar.printer import name as name_sql


@dataclass(frozen=True, slots=True)
class Connection:
    """An external connection. ``uri`` holds secrets and stays out of ``repr``; show
    ``redacted``. ``created`` is ns."""

    name: str
    uri: str = field(repr=False)
    created: int
    redacted: str


@dataclass(frozen=True, slots=True)
class Function:
    """A Python function that CDC queries may call.

    Attributes:
        name: in queries; in lower case.
        arguments: name and type of each, in Spark SQL.
        reference: ``module:function``.
        path: a folder that the module is looked for in, after all others; empty for none.
        vectorized: it takes Arrow columns instead of the values of a row.
        created: ns.
    """

    name: str
    arguments: tuple[tuple[str, str], ...]
    returns: str
    reference: str
    path: str = ""
    vectorized: bool = False
    created: int = 0

    @property
    def signature(self) -> str:
        """``mask(card string) string``."""
        arguments = ", ".join(f"{name} {kind}" for name, kind in self.arguments)
        return f"{self.name}({arguments}) {self.returns}"


@dataclass(frozen=True, slots=True)
class SourceState:
    """What is known of a source that has feeds; empty texts until something is known.

    Attributes:
        name: of the connection.
        memo: what the source's attachment needs to find again what we hold there; empty before
            anything is held. JSON that only the source understands.
        holds: the same for people; empty before anything is held.
        identity: the source's own; another one later means another database. Empty until every
            change reaches the log: until then nothing was promised to a feed.
        status: the capture's state in one word.
        error, error_code: why it does not move, if it does not.
        position, frontier: how far the change log is, as of ``updated`` (ns).
        renewal: a RESCAN asks for a new change log where the present one cannot go on.
    """

    name: str
    memo: Mapping[str, Any] = field(default_factory=dict)
    holds: str = ""
    identity: str = ""
    status: str = ""
    error: str = ""
    error_code: str = ""
    position: Position = ""
    frontier: Timestamp | None = None
    updated: int = 0
    renewal: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    """A question of a process without Spark; the format of ``body`` depends on ``kind``."""

    id: str
    kind: str
    body: str


@dataclass(frozen=True, slots=True)
class Gap:
    """Changes of a table may be missing in the change log. ``at`` (ns) is when that was found."""

    table: TableName
    at: int
    reason: str

    @property
    def error(self) -> ChangefeedError:
        """The error of a feed of the table."""
        return ChangefeedError(Code.TABLE_GAP, self.reason)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to run a job. ``token`` fences an old holder off."""

    job_id: int
    node: str
    token: int


@dataclass(frozen=True, slots=True)
class SourceLease:
    """The right of a node to capture a source and to run its feeds; see :class:`Lease`."""

    source: str
    node: str
    token: int


@dataclass(frozen=True, slots=True)
class CaptureNews:
    """What the node that captures a source says to those that run feeds of it.

    Attributes:
        ready: the generation of each feed for which the source is ready.
        bound: the feeds that only this node can run, each with the reason.
        held_up: why the log does not grow for now, although nothing failed.
        error: why it does not grow: code, message, detail and hint.
    """

    ready: Mapping[int, int] = field(default_factory=dict)
    bound: Mapping[int, str] = field(default_factory=dict)
    held_up: str = ""
    error: tuple[str, str, str, str] | None = None

    def to_json(self) -> str:
        """Text for the state."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, written: str) -> CaptureNews:
        """The inverse of :meth:`to_json`."""
        found = json.loads(written)
        error = found["error"]
        return cls(
            {int(job): generation for job, generation in found["ready"].items()},
            {int(job): why for job, why in found["bound"].items()},
            found["held_up"],
            None if error is None else (error[0], error[1], error[2], error[3]),
        )


class LeaseLost(ChangefeedError):
    """The lease is another node's by now: stop this runner, write nothing more."""

    def __init__(self, job_id: int) -> None:
        super().__init__(Code.LEASE_LOST, f"lease on job {job_id} was lost to another node")


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A process that runs jobs. ``started`` and ``seen`` are ns; ``host`` is where ``pid`` means a
    process (:func:`changefeed.core.processes.process_space`); ``version`` is that of changefeed.
    ``draining``: it is to give its sources to other nodes, and takes none. ``max_feeds``: how many
    feeds it has room for; None: any number. ``load``: of its machine, for each core."""

    id: str
    pid: int
    host: str
    version: str
    started: int
    seen: int
    draining: bool = False
    max_feeds: int | None = None
    load: float = 0.0

    @property
    def hostname(self) -> str:
        """The name of its machine, for people."""
        return self.host.partition(" ")[0]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Feeds that are made again and again, each with ``initial_scan = 'only'``.

    Attributes:
        source, sink_uri, targets, options: of these feeds, as of
            :class:`changefeed.catalog.model.JobSpec`. They hold secrets.
        recurring: the times, as :mod:`changefeed.core.recurring` reads them.
        on_failure: ``reschedule``, ``retry`` or ``pause``.
        on_running: ``wait``, ``skip`` or ``start``, where the run before is under way.
        due: the time that the next run is for, ns.
        id, name: made up by the catalog where they are empty.
        error: of the last run that failed, until another one has succeeded.
        last_due, job_id, job_name, job_status: the last run: its time and its feed.
        under_way: the names of the feeds of runs that are not over.
    """

    source: str
    sink_uri: str = field(repr=False)
    targets: tuple[str, ...]
    options: Mapping[str, str] = field(repr=False)
    recurring: str
    on_failure: str
    on_running: str
    due: int
    id: int = 0
    name: str = ""
    created: int = 0
    paused: bool = False
    error: str | None = None
    last_due: int | None = None
    job_id: int | None = None
    job_name: str | None = None
    job_status: str | None = None
    under_way: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ScheduledRun:
    """A run that a node is about to make. ``due`` is the time that it is for, and ``following`` the
    next one from now on, ns."""

    schedule_id: int
    due: int
    following: int


class RunConflict(ChangefeedError):
    """Another node has made the run, or the schedule was paused, altered or dropped."""

    def __init__(self) -> None:
        super().__init__(Code.WRONG_JOB_STATE, "the run of the schedule is no longer due")


#: What an event is about: the feed as a whole, a statement, a table that came or went, a scan, what
#: the source did to a table, where bulk work ran, rows that differ from the target or were refused,
#: and what a person should know.
EVENT_KINDS: Final = (
    "status",
    "altered",
    "table",
    "scan",
    "schema",
    "rename",
    "truncate",
    "ddl",
    "engine",
    "verify",
    "dead_letter",
    "notice",
    "retry",
    "error",
)


@dataclass(frozen=True, slots=True)
class User:
    """A user of the HTTP API. ``created``, ``expires`` (None: never) and ``seen`` are ns; ``role``
    is one of :class:`changefeed.statements.rights.Role`."""

    name: str
    role: str
    created: int
    expires: int | None = None
    seen: int | None = None


@dataclass(frozen=True, slots=True)
class UserRight:
    """A right of a user: to make feeds of a table, of a ``schema`` with all its tables (``name`` is
    empty), or to use a connection, which is ``source`` (``schema`` is empty, too). ``granted`` is
    ns."""

    user: str
    source: str
    schema: str = ""
    name: str = ""
    granted: int = 0

    @property
    def right(self) -> str:
        """``CHANGEFEED`` or ``USAGE``."""
        return "CHANGEFEED" if self.schema else "USAGE"

    @property
    def kind(self) -> str:
        """``table``, ``schema`` or ``connection``."""
        return "table" if self.name else "schema" if self.schema else "connection"

    @property
    def parts(self) -> tuple[str, ...]:
        """The whole name of what it is a right on."""
        return tuple(filter(None, (self.source, self.schema, self.name)))

    @property
    def place(self) -> str:
        """What it is a right on, as GRANT has it."""
        kind = "EXTERNAL CONNECTION" if self.kind == "connection" else self.kind.upper()
        return f"{kind} {'.'.join(map(name_sql, self.parts))}"

    @property
    def sql(self) -> str:
        """The statement that gives it."""
        return f"GRANT {self.right} ON {self.place} TO {name_sql(self.user)}"


@dataclass(frozen=True, slots=True)
class OwnerRights:
    """What the feeds of one user may read and where they may write; ``granted`` has source, schema
    and name as of :class:`UserRight`. The errors are None for what is granted."""

    user: str
    granted: frozenset[tuple[str, str, str]]

    @property
    def shown(self) -> str:
        """The user's name, as a statement has it."""
        return name_sql(self.user)

    def connection_error(self, name: str) -> ChangefeedError | None:
        """CF1403 if a connection was not granted."""
        return self._error(UserRight(self.user, name))

    def schema_error(self, source: str, schema: str) -> ChangefeedError | None:
        """CF1403 if a schema was not granted with all its tables."""
        return self._error(UserRight(self.user, source, schema))

    def table_error(self, table: TableName) -> ChangefeedError | None:
        """CF1403 if neither a table nor its schema was granted."""
        if self.schema_error(table.source, table.schema) is None:
            return None
        return self._error(UserRight(self.user, table.source, table.schema, table.name))

    def role_error(self, what: str) -> ChangefeedError:
        """CF1403 of what no right gives."""
        return ChangefeedError(
            Code.RIGHT_MISSING,
            f"{what} needs the role admin, which user {self.shown} does not have",
            hint=f"an admin can give it: GRANT admin TO {self.shown}.",
        )

    def _error(self, needed: UserRight) -> ChangefeedError | None:
        if (needed.source, needed.schema, needed.name) in self.granted:
            return None
        return ChangefeedError(
            Code.RIGHT_MISSING,
            f"user {self.shown} does not have the right {needed.right} ON {needed.place}",
            hint=f"an admin can give it: {needed.sql}.",
        )


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Who ran which statement, and from where; ``code`` is that of the error, ``at`` ns."""

    at: int
    user: str
    origin: str
    statement: str
    code: str | None


@dataclass(frozen=True, slots=True)
class JobEvent:
    """Something that happened to a job.

    Attributes:
        at: when it happened first (for what comes out of the change log: when the source
            committed it), ns.
        kind: one of :data:`EVENT_KINDS`.
        times: how often it happened, one cause at a time.
        last: when it happened last, ns.
    """

    id: int
    job_id: int
    at: int
    kind: str
    text: str
    table: str | None = None
    code: str | None = None
    times: int = 1
    last: int = 0


#: Length of a window, ns.
WINDOW = 5_000_000_000


@dataclass(frozen=True, slots=True)
class RateWindow:
    """Rows and bytes of a feed in two windows of time, kept in its row, which give its rates.

    With the window before, the figure moves smoothly, and falls to zero by itself when nothing is
    saved, because the reader's clock moves on. ``number`` is the wall time // :data:`WINDOW`.
    """

    number: int = 0
    rows: int = 0
    bytes: int = 0
    rows_before: int = 0
    bytes_before: int = 0

    def add(self, now: int, rows: int, size: int) -> RateWindow:
        """The counts with ``rows`` and ``size`` bytes more at ``now`` ns."""
        at = self._moved(now)
        return RateWindow(
            at.number, at.rows + rows, at.bytes + size, at.rows_before, at.bytes_before
        )

    def per_second(self, now: int) -> tuple[float, float]:
        """Rows and bytes per second over the last window's length before ``now``."""
        at = self._moved(now)
        passed = (now % WINDOW) / WINDOW
        seconds = WINDOW / 1e9
        return (
            (at.rows + at.rows_before * (1 - passed)) / seconds,
            (at.bytes + at.bytes_before * (1 - passed)) / seconds,
        )

    def _moved(self, now: int) -> RateWindow:
        number = now // WINDOW
        if number <= self.number:
            return self
        if number == self.number + 1:
            return RateWindow(number, 0, 0, self.rows, self.bytes)
        return RateWindow(number)

    def to_text(self) -> str:
        """The column value; :meth:`from_text` reads it."""
        return json.dumps([self.number, self.rows, self.bytes, self.rows_before, self.bytes_before])

    @classmethod
    def from_text(cls, text: str) -> RateWindow:
        return cls(*json.loads(text))


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A row that was refused for itself.

    Attributes:
        identity: the same whenever the row comes again.
        position: the timestamp of its change, or of the scan that read it.
        op: as of the change log; ``r`` for a row of a scan.
        code, message: the error, without values.
        digest: of the key, for those who may not see values; of the row in a table without a key.
        key: the values of the key as the change log has them, as a JSON array.
        row: the row as a JSON object; of a delete, what is known of the row before it.
        id: 0 until it is stored.
        refused: when it was refused last, ns.
        retry: not 0: the row is to be read again.
    """

    table: TableName
    identity: str = field(repr=False)
    position: Timestamp
    op: str
    code: str
    message: str
    digest: str
    key: str = field(repr=False)
    row: str = field(repr=False)
    id: int = 0
    refused: int = 0
    retry: int = 0

    @property
    def keyless(self) -> bool:
        """Its table has no key, by which the row could be read again."""
        return self.key == "[]"

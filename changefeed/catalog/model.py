"""What a job is: its states and allowed moves, its row, and the progress of its tables.

::

    starting -> scanning -> running <-> paused
                 |            |
                 +-> retrying / stalled <-+      (back to scanning or running)
                 +-> failed --RESUME--> starting
                 +-> succeeded
    any -> dropped

A feed is ``starting`` until its first round is delivered, after each start of a node.
``status`` is where a job is, and only the node that holds its lease moves it (except for a
job no node runs). ``wanted`` is where a person wants it, and only statements set it.
This module owns no storage; :mod:`changefeed.catalog` keeps the rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from changefeed.core.clock import Timestamp
from changefeed.core.delays import Delays
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Position
from changefeed.core.partition import Partition
from changefeed.core.schema import RowKey, TableName
from changefeed.core.unread import UnreadParts
from changefeed.core.uri import sink_location

#: Canonical text of a target that means more tables than it names.
_PATTERN = re.compile(r"(SCHEMA|DATABASE) ")
#: Canonical text of the table of a CDC query.
_QUERY = "SELECT "


class Status(StrEnum):
    """Where a job is."""

    STARTING = "starting"
    SCANNING = "scanning"
    RUNNING = "running"
    RETRYING = "retrying"
    STALLED = "stalled"
    PAUSED = "paused"
    FAILED = "failed"
    SUCCEEDED = "succeeded"
    DROPPED = "dropped"

    @property
    def active(self) -> bool:
        """A node should hold the job's lease and work on it."""
        return self in _ACTIVE

    @property
    def finished(self) -> bool:
        """Nothing more will happen, whatever is wanted; a failed job can be resumed."""
        return self in (Status.SUCCEEDED, Status.DROPPED)


_ACTIVE = frozenset(
    {Status.STARTING, Status.SCANNING, Status.RUNNING, Status.RETRYING, Status.STALLED}
)


class DesiredStatus(StrEnum):
    """Where a person wants a job to be."""

    RUNNING = "running"
    PAUSED = "paused"
    DROPPED = "dropped"


_WORK = _ACTIVE | {Status.PAUSED, Status.FAILED, Status.SUCCEEDED, Status.DROPPED}

#: Status -> the statuses it may become. Staying is always allowed (a new reason).
#: A paused feed may fail: the log's retention can pass it.
MOVES: Mapping[Status, frozenset[Status]] = {
    Status.STARTING: _WORK,
    Status.SCANNING: _WORK,
    Status.RUNNING: _WORK,
    Status.RETRYING: _WORK,
    Status.STALLED: _WORK,
    Status.PAUSED: _ACTIVE | {Status.FAILED, Status.DROPPED},
    Status.FAILED: frozenset({Status.STARTING, Status.DROPPED}),
    Status.SUCCEEDED: frozenset({Status.DROPPED}),
    Status.DROPPED: frozenset(),
}


def check_move(job_id: int, old: Status, new: Status) -> None:
    """Refuse a move that :data:`MOVES` does not have.

    Raises:
        ChangefeedError: CF1301.
    """
    if old is not new and new not in MOVES[old]:
        raise ChangefeedError(
            Code.WRONG_JOB_STATE, f"job {job_id} is {old} and cannot become {new}"
        )


class TableState(StrEnum):
    """Where one table of a feed is."""

    PENDING = "pending"
    SCANNING = "scanning"
    RUNNING = "running"
    PAUSED = "paused"
    FAILED = "failed"
    DONE = "done"

    @property
    def stands(self) -> bool:
        """Nothing of the table is delivered until a statement asks for it, and the feed delivers
        its other tables."""
        return self in (TableState.PAUSED, TableState.FAILED)


@dataclass(frozen=True, slots=True)
class RowRepair:
    """Rows of a table that differ in the target, by key. A scan that is owed is about them alone.

    A key has a value for each key column of the table, as the change log has it.

    Attributes:
        wrong: keys of rows that the target lacks or has with other values.
        extra: keys of rows that the target has and the source did not have.
    """

    wrong: tuple[RowKey, ...] = ()
    extra: tuple[RowKey, ...] = ()

    @property
    def keys(self) -> tuple[RowKey, ...]:
        """All of these keys, the wrong ones first."""
        return self.wrong + self.extra

    def joined(self, other: RowRepair | None) -> RowRepair:
        """The rows of both; a row that is wrong in one and extra in the other is extra."""
        if other is None:
            return self
        extra = dict.fromkeys(self.extra + other.extra)
        wrong = dict.fromkeys(key for key in self.wrong + other.wrong if key not in extra)
        return RowRepair(tuple(wrong), tuple(extra))

    def to_json(self) -> str:
        """The column value; :meth:`from_json` reads it."""
        return json.dumps({"wrong": self.wrong, "extra": self.extra})

    @classmethod
    def from_json(cls, text: str) -> RowRepair:
        found = json.loads(text)
        return cls(*(tuple(map(tuple, found[name])) for name in ("wrong", "extra")))


@dataclass(frozen=True, slots=True)
class TableProof:
    """How much of a table was compared with its target under option ``verify``, in rounds of parts.

    Attributes:
        open: a round is under way.
        begun: when the last round began, ns; 0: there was none.
        next_key: where the round goes on: a bound of a range of keys; None: at the begin.
        rows: rows of the round that were compared.
        total: about how many the round has.
        whole: when the last round began that compared every row, ns; 0: none yet. Each row was
            equal at an instant after it, or is among those that differ.
        changing: rows of the round that changed in each comparison.
        differing: rows that differ in the round, without those that were repaired.
        earlier: those of the round before, while the round is under way.
        found: when the last of them was found, ns.
        problem: why the table could not be compared; empty: it could.
        unrepaired: digests of the rows of parts that a repair of the round, or of an earlier one,
            left as they were: they are not repaired again until something of them changes.
        unrepaired_before: those of the round before, while the round is under way.
    """

    open: bool = False
    begun: int = 0
    next_key: tuple[str, ...] | None = None
    rows: int = 0
    total: int = 0
    whole: int = 0
    changing: int = 0
    differing: int = 0
    earlier: int = 0
    found: int = 0
    problem: str = ""
    unrepaired: tuple[str, ...] = ()
    unrepaired_before: tuple[str, ...] = ()

    def to_json(self) -> str:
        """The column value; :meth:`from_json` reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TableProof:
        known: dict[str, Any] = json.loads(text)
        lists = {name: tuple(value) for name, value in known.items() if isinstance(value, list)}
        return cls(**(known | lists))


@dataclass(frozen=True, slots=True)
class TableProgress:
    """One table of one feed: what was asked, and how far it is.

    Attributes:
        topic: finished, escaped topic name.
        schema_version: version of the table's shape at the last save, 0 when not known yet.
        scan_wanted: an initial scan is still owed.
        scan_at: log timestamp the scan is consistent at, once it has begun; of one that broke
            and is owed again, that of its first try; of a backfill that is owed, the instant of
            the schema change.
        done_upto: everything at or below is durable in the sink. None: nothing yet, and the
            feed begins with the scan, or without one after ``start``.
        start: source position taken by the statement that added the table; with no scan and
            no cursor the feed begins with the first change after it.
        scan_rows, scan_total: rows read so far; the estimate of all.
        emitted_rows, emitted_bytes: delivered since the table was added (repeats count).
        error, error_code, hint: why the table failed, and what to do; the hint may be empty.
        refused: the transaction of the row that it failed at; None: it failed at none, or it is not
            known.
        skipped: the last transaction that SKIP TRANSACTION left out. Others before it are done.
        columns: the whitelist of columns, empty for all.
        values_from, values_to: primary-key range, ``[from, to)``, texts of the literals.
        partition: the one partition that is wanted, None for the whole table.
        joined: the table came by a SCHEMA or DATABASE target, not by its own name.
        added_at: ns.
        table_id: see :attr:`changefeed.core.schema.TableSchema.table_id`: a table of another id
            under this name is another table. 0: not known.
        rescan: the last ``RESCAN`` of the table, as ns when it was asked for; 0: none. It names
            the request: progress that was made before it is no longer saved.
        rescanned: the last ``RESCAN`` that was carried out.
        gap: when (ns) the last gap was found that the feed knows of; 0: none.
        original: the name that the table had when it came to the feed, once it was renamed.
        repair: the scan that is owed is about these rows only; None: about all.
        proof: how much of it was compared with the target.
        paused: when ``PAUSE CHANGEFEED f TABLE`` paused it, as ns; 0: it is not paused.
        paused_by: the user who paused it.
        unread: what the scan that is owed has not delivered yet, if it can go on after a restart
            and every change of the table since ``unread.since`` was delivered, up to ``done_upto``;
            None: it begins again.
    """

    table: TableName
    topic: str
    schema_version: int = 0
    state: TableState = TableState.PENDING
    scan_wanted: bool = True
    scan_at: Timestamp | None = None
    done_upto: Timestamp | None = None
    start: Position | None = None
    scan_rows: int = 0
    scan_total: int = 0
    emitted_rows: int = 0
    emitted_bytes: int = 0
    error: str | None = None
    error_code: str | None = None
    hint: str = ""
    refused: Timestamp | None = None
    skipped: Timestamp | None = None
    columns: tuple[str, ...] = ()
    values_from: tuple[str, ...] = ()
    values_to: tuple[str, ...] = ()
    partition: Partition | None = None
    joined: bool = False
    added_at: int = 0
    table_id: int = 0
    rescan: int = 0
    rescanned: int = 0
    gap: int = 0
    repair: RowRepair | None = None
    proof: TableProof = TableProof()
    paused: int = 0
    paused_by: str = ""
    unread: UnreadParts | None = None
    original: TableName | None = None

    @property
    def differing(self) -> int:
        """Rows that were found to differ from the target, unless a scan or a repair was asked for
        since."""
        found = max(self.proof.differing, self.proof.earlier)
        return found if self.proof.found > self.rescan else 0

    @property
    def known_as(self) -> TableName:
        """The name by which the sink knows the table, whatever its present name at the source."""
        return self.original or self.table

    def renamed(self, now: TableName) -> TableProgress:
        """The same table under another name; the sink knows it by the name that it had."""
        return replace(self, table=now, original=None if self.known_as == now else self.known_as)

    @property
    def rescan_owed(self) -> bool:
        """A ``RESCAN`` was asked for and is not carried out yet."""
        return self.scan_wanted and self.rescan != self.rescanned

    @property
    def whole_scan_owed(self) -> bool:
        """A scan of all rows is owed."""
        return self.scan_wanted and self.repair is None

    @property
    def never_began(self) -> bool:
        """It came by a pattern, and nothing of it was ever promised to anybody."""
        return self.joined and self.done_upto is None and self.scan_at is None

    @property
    def skips(self) -> bool:
        """A transaction is to be left out that the feed has not passed."""
        return self.skipped is not None and (self.done_upto or Timestamp.ZERO) < self.skipped

    def failed(self, error: ChangefeedError, refused: Timestamp | None = None) -> TableProgress:
        """The same table, stopped by ``error``, at a row of the transaction ``refused``."""
        return replace(
            self,
            state=TableState.FAILED,
            error=error.message,
            error_code=error.code.number,
            hint=error.hint,
            refused=refused,
        )


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a statement asks for; the catalog makes a :class:`Job` of it.

    Attributes:
        name: None lets the catalog make one up (``feed_17``).
        source: name of the external connection the rows come from.
        sink_uri: as typed, with secrets; None for a sinkless feed.
        targets: canonical SQL text of each target; SCHEMA and DATABASE targets keep their
            patterns, so that tables made later join.
        tables: the tables the targets mean now.
        options: ``Options.to_dict()``: texts by name, the empty text for a flag. Holds secrets.
        statement: canonical SQL, redacted.
        sinkless: owned by a session; dies with it.
        memo: what is to be held at a source at which nothing is held yet, so that its log begins
            where another reader stopped; None: nothing in particular.
        owner: the user whose rights bound it; None: nobody's do.
    """

    source: str
    targets: tuple[str, ...]
    tables: tuple[TableProgress, ...]
    name: str | None = None
    sink_uri: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    statement: str = ""
    cursor: Timestamp | None = None
    end_time: Timestamp | None = None
    sinkless: bool = False
    memo: Mapping[str, Any] | None = None
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One row of the job table. Times are ns since 1970 UTC, 0 or None when not reached.

    Attributes:
        reason: why it is in its status, and the next step (CockroachDB's running_status).
        error, error_code, hint: the last failure; cleared when the job runs again.
        high_water: everything at or below is durable in the sink, for every running table.
        generation: rises with each ALTER; a runner plans again when it changes.
        taken: the generation that the last runner goes by, or went by; 0: none yet.
        rows_per_second, bytes_per_second: over the last seconds, as of when it was read.
        delays: how late its rows were.
        owner: the user whose rights bound it, empty after that user was dropped; None: it belongs
            to the admins.
        hurried: how often a statement asked that changes which gather are delivered at once; see
            :meth:`Jobs.hurry`.
    """

    id: int
    name: str
    source: str
    sink_uri: str | None
    targets: tuple[str, ...]
    options: Mapping[str, str]
    statement: str
    status: Status
    wanted: DesiredStatus
    reason: str
    error: str | None
    error_code: str | None
    hint: str | None
    created: int
    started: int | None
    modified: int
    finished: int | None
    high_water: Timestamp | None
    cursor: Timestamp | None
    end_time: Timestamp | None
    generation: int
    sinkless: bool
    emitted_rows: int = 0
    emitted_bytes: int = 0
    taken: int = 0
    delays: Delays = field(default_factory=Delays)
    owner: str | None = None
    hurried: int = 0
    rows_per_second: float = 0.0
    bytes_per_second: float = 0.0

    @property
    def redacted_sink_uri(self) -> str:
        """The sink without secrets; empty for a sinkless feed."""
        return "" if self.sink_uri is None else sink_location(self.sink_uri)

    @property
    def has_patterns(self) -> bool:
        """A SCHEMA or DATABASE target: tables made later join."""
        return any(_PATTERN.match(target) for target in self.targets)

    @property
    def is_query(self) -> bool:
        """It was made by ``CREATE CHANGEFEED .. AS SELECT``."""
        return any(target.startswith(_QUERY) for target in self.targets)

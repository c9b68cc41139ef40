"""The state: connections, jobs, progress, leases, schema versions, what happened.

::

    statements --write--> +--------------------------------+ <--version(), wait()-- nodes
    shells     --read---> | one Catalog: SQLite in a       | --progress, status---> SHOW
                          | directory, or PostgreSQL (URL) |
                          +--------------------------------+
    tables.py     the layout; model.py and rows.py: its rows as objects
    database.py   transactions, the change counter, who writes when
    sealing.py    what is encrypted, and by which key
    upgrades.py   the steps that bring a state of an earlier release to the layout
    connections, schemas, sources, jobs, grants, schedules, progress, claims, leases, questions,
    history, users, dead_letters    one part of the Catalog each, with the rules about its rows

One :class:`Catalog` is thread-safe, and several processes may use one state at once. A statement is
a change here; a node watches :meth:`Catalog.version` and does what the rows say. The rows hold
secrets (the file is readable by its owner only), what is shown comes redacted.
"""

from __future__ import annotations

from pathlib import Path

from changefeed.catalog.claims import LogClaim, LogClaims
from changefeed.catalog.connections import EXTERNAL, Connections, Functions, external_name
from changefeed.catalog.database import Database
from changefeed.catalog.dead_letters import DeadLetterBox
from changefeed.catalog.history import Events
from changefeed.catalog.jobs import KEEP, Jobs
from changefeed.catalog.leases import AnyLease, Leases
from changefeed.catalog.model import DesiredStatus, Job, JobSpec, Status, TableProgress, TableState
from changefeed.catalog.progress import Progress
from changefeed.catalog.questions import Questions
from changefeed.catalog.rows import (
    CaptureNews,
    Connection,
    Function,
    Gap,
    JobEvent,
    Lease,
    LeaseLost,
    NodeRow,
    OwnerRights,
    Question,
    RunConflict,
    Schedule,
    ScheduledRun,
    SourceLease,
    SourceState,
    User,
    UserRight,
)
from changefeed.catalog.schedules import Schedules
from changefeed.catalog.schemas import Schemas
from changefeed.catalog.shared_logs import SharedLogs
from changefeed.catalog.sources import Sources
from changefeed.catalog.users import Users
from changefeed.core.clock import Clock

__all__ = [
    "AnyLease",
    "Catalog",
    "LogClaim",
    "Connection",
    "EXTERNAL",
    "Function",
    "Gap",
    "UserRight",
    "Job",
    "JobEvent",
    "JobSpec",
    "KEEP",
    "Lease",
    "LeaseLost",
    "NodeRow",
    "OwnerRights",
    "Question",
    "CaptureNews",
    "RunConflict",
    "Schedule",
    "ScheduledRun",
    "SourceLease",
    "SourceState",
    "Status",
    "TableProgress",
    "TableState",
    "User",
    "DesiredStatus",
    "external_name",
]


class Catalog(
    Connections,
    Functions,
    Schemas,
    Sources,
    Jobs,
    Schedules,
    Progress,
    LogClaims,
    Leases,
    SharedLogs,
    Questions,
    Events,
    DeadLetterBox,
    Users,
):
    """The state database; :meth:`open` it, :meth:`close` it."""

    @classmethod
    def open(
        cls,
        state: str | Path,
        *,
        clock: Clock | None = None,
        directory: Path | None = None,
        must_exist: bool = False,
        key: str | None = None,
    ) -> Catalog:
        """Open or make the state at a directory or ``postgresql://`` URL.

        Args:
            state: what ``--state`` names.
            clock: stamps rows and ends leases. When not given, the machine's stamps, and leases
                end by the clock that all nodes share: on PostgreSQL the server's.
            directory: where log and spool go. A local state is its own; for one on
                PostgreSQL the user's data folder when not given.
            must_exist: do not make a state where there is none.
            key: a reference to the keys of the state; when not given, CHANGEFEED_STATE_KEY.

        Raises:
            ChangefeedError: CF6001 not reachable or not there, CF6002 of another version, CF6008
                its key is missing, CF1201 no place a state can be.
        """
        return cls(Database.open(state, directory, must_exist=must_exist, key=key), clock)

    @property
    def key(self) -> str | None:
        """The fingerprint of the key that its secrets are encrypted by; None: they are not."""
        return self._database.sealer.current

    def rotate_key(self) -> tuple[str, int]:
        """See :meth:`changefeed.catalog.database.Database.rotate_key`."""
        return self._database.rotate_key()

    @property
    def state_id(self) -> str:
        """Six letters and digits made once with the state: part of names at sources."""
        return self._database.state_id

    @property
    def directory(self) -> Path:
        """Where the log, spool and work files of this state go on this machine."""
        return self._database.directory

    @property
    def url(self) -> str:
        """The state database for other users of it (``experimental-sql:///``); never show it."""
        return self._database.url

    @property
    def on_server(self) -> bool:
        """Whether nodes on other machines can reach the state."""
        return self._database.on_server

    @property
    def shown(self) -> str:
        """The state's place without secrets."""
        return self._database.shown

    def version(self) -> int:
        """A counter that rises with every change a node or shell must notice.

        Progress, heartbeats and lease renewals do not count. Cheap enough to ask ten times
        a second.
        """
        return self._database.version()

    def wait(self, seen: int, timeout: float) -> int:
        """Return the counter once it differs from ``seen``, else after ``timeout`` seconds.

        Changes made by this process wake at once, by others within 0.1 s.
        """
        return self._database.wait(seen, timeout)

    def verify(self) -> int | None:
        """See :meth:`.database.Database.verify`."""
        return self._database.verify()

    def close(self) -> None:
        self._database.close()

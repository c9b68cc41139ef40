"""How a state that an earlier version made comes to the present format.

Releases from 0.2.0 (format 18) on are upgraded, in one transaction, by the process that opens the
state first. A step is written with Alembic's operations. It may add tables, columns and indexes,
rename tables and change values; SQLite cannot alter a column in place, and copying a table
(Alembic's batch mode) would delete the rows that refer to it.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Float,
    ForeignKey,
    Integer,
    Text,
    bindparam,
    delete,
    insert,
    select,
    text,
    update,
)

from changefeed.catalog import tables
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.processes import has_ended
from changefeed.core.timings import NODE_TTL

if TYPE_CHECKING:
    from alembic.operations import Operations

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Step:
    """From the format before to ``format``."""

    format: int
    run: Callable[[Operations], None]
    #: Programs of the format before go on working on the state: whatever the step adds has a
    #: default, and nothing that they write or read means anything else.
    compatible: bool = False


def _to_19(operations: Operations) -> None:
    """How late the rows of a feed were, what nodes say of their room, and of the sources that they
    capture, what proves a token to PostgreSQL's protocol, rights of users and owners of feeds, rows
    that were refused, transactions that were skipped, schedules and tables that were paused.
    ``meta`` keeps the oldest format whose programs may use the state.

    Programs of 0.2.0 look at the format only when they open the state. A node that stood still
    during the upgrade finds no leases under the names that it knows, so it does nothing."""
    operations.rename_table("lease", "job_lease")
    operations.rename_table("source_lease", "capture_lease")
    operations.add_column("job", Column("delays", Text, nullable=False, server_default=""))
    operations.add_column("node", Column("max_feeds", Integer))
    operations.add_column("node", Column("load", Float, nullable=False, server_default="0"))
    operations.create_table(
        "capture_news",
        Column("source", Text, primary_key=True),
        Column("news", Text, nullable=False),
    )
    operations.add_column("question", Column("of_node", Text))
    operations.add_column("job_table", Column("refused", Text))
    operations.add_column("job_table", Column("skipped", Text))
    paused = Column("paused", BigInteger, nullable=False, server_default="0")
    operations.add_column("job_table", paused)
    by = Column("paused_by", Text, nullable=False, server_default="")
    operations.add_column("job_table", by)
    operations.add_column("api_user", Column("scram", Text))
    operations.add_column("job", Column("owner", Text))
    hurried = Column("hurried", BigInteger, nullable=False, server_default="0")
    operations.add_column("job", hurried)
    names = ("user", "source", "schema", "name")
    operations.create_table(
        "api_grant",
        *(Column(name, Text, primary_key=True) for name in names),
        Column("granted", BigInteger, nullable=False),
    )
    number = BigInteger().with_variant(Integer, "sqlite")
    texts = ("source", "schema", "name", "identity", "position", "op", "code", "message", "digest")
    operations.create_table(
        "dead_letter",
        Column("id", number, primary_key=True),
        Column("job_id", number, ForeignKey("job.id", ondelete="CASCADE"), nullable=False),
        *(Column(name, Text, nullable=False) for name in (*texts, "key", "row")),
        Column("refused", BigInteger, nullable=False),
        Column("retry", BigInteger, nullable=False, server_default="0"),
        sqlite_autoincrement=True,
    )
    place = ["job_id", "source", "schema", "name", "identity"]
    operations.create_index("dead_letter_identity", "dead_letter", place, unique=True)
    said = ("source", "sink_uri", "targets", "options", "recurring", "on_failure", "on_running")
    operations.create_table(
        "schedule",
        Column("id", number, primary_key=True),
        Column("name", Text, nullable=False, unique=True),
        *(Column(name, Text, nullable=False) for name in said),
        Column("created", BigInteger, nullable=False),
        Column("paused", Boolean, nullable=False),
        Column("due", BigInteger, nullable=False),
        Column("error", Text),
        sqlite_autoincrement=True,
    )
    schedule = ForeignKey("schedule.id", ondelete="SET NULL")
    job = ForeignKey("job.id", ondelete="CASCADE")
    operations.create_table(
        "schedule_run",
        Column("job_id", number, job, primary_key=True, autoincrement=False),
        Column("schedule_id", number, schedule),
        Column("due", BigInteger, nullable=False),
        Column("ended", Boolean, nullable=False),
    )


STEPS: Final[tuple[Step, ...]] = (Step(19, _to_19),)


def oldest_readers(steps: Sequence[Step] = STEPS) -> int:
    """The oldest format whose programs may use a state of the present one."""
    return max(step.format for step in steps if not step.compatible)


def readable(found: dict[str, str]) -> bool:
    """Whether a program of this version may use a state with these values in ``meta``."""
    present = _number(found.get("format"))
    return present == tables.FORMAT or (
        present > tables.FORMAT and _number(found.get("readers")) in range(1, tables.FORMAT + 1)
    )


def upgrade(
    connection: Connection,
    found: dict[str, str],
    *,
    shown: str,
    now: int,
    file: Path | None,
    steps: Sequence[Step] = STEPS,
) -> None:
    """Bring the state to the present format within the transaction of ``connection``.

    Args:
        found: the values in ``meta``.
        now: the time of the clock that the nodes share, ns.
        file: ``state.db``. Its copy ``state.db.format-N`` is made first.

    Raises:
        ChangefeedError: CF6002 for a format that no step begins at, and while nodes of the version
            before use the state, where they could not go on.
    """
    has = _number(found.get("format"))
    due = [step for step in steps if step.format > has]
    if not due or due[0].format != has + 1:
        raise _refused(shown, found.get("format", ""))
    stops = not all(step.compatible for step in due)
    if stops:
        _refuse_nodes(connection, shown, has, now)
    kept = None if file is None else _copy(file, has)
    # Loaded on use: a state has to be upgraded once.
    from alembic.migration import MigrationContext
    from alembic.operations import Operations

    operations = Operations(MigrationContext.configure(connection))
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SET LOCAL search_path TO {tables.POSTGRES_SCHEMA}"))
    for step in due:
        step.run(operations)
    if stops:
        _fence_off(connection)
    for key, value in (("format", due[-1].format), ("readers", oldest_readers(steps))):
        row = tables.meta.c.key == key
        if connection.execute(select(tables.meta).where(row)).first() is None:
            connection.execute(insert(tables.meta).values(key=key, value=str(value)))
        else:
            connection.execute(update(tables.meta).where(row).values(value=str(value)))
    _logger.info(
        "state %s was upgraded from format %d to %d%s",
        shown,
        has,
        due[-1].format,
        f"; {kept.name} is a copy of it as it was" if kept else "",
    )


def check(found: dict[str, str], shown: str) -> None:
    """Raise while a program that has had the state open may no longer write to it.

    Raises:
        ChangefeedError: CF6002 a newer version has upgraded it since.
    """
    if not readable(found):
        raise _refused(shown, found.get("format", ""))


def _fence_off(connection: Connection) -> None:
    """Nodes that were not heard of may be frozen or cut off: they have no leases any more."""
    connection.execute(delete(tables.node))
    for table in (tables.lease, tables.source_lease):
        ended = {"node": None, "expires": 0, "token": table.c.token + 1}
        connection.execute(update(table).values(ended))


def _number(value: str | None) -> int:
    return int(value) if value and value.isdecimal() else 0


def _refused(shown: str, has: str) -> ChangefeedError:
    newer = _number(has) > tables.FORMAT
    return ChangefeedError(
        Code.STATE_OF_ANOTHER_VERSION,
        f"state {shown} has format {has or 'unknown'}, "
        f"this version of changefeed reads format {tables.FORMAT} and upgrades "
        f"formats from {STEPS[0].format - 1} on",
        hint="a newer version wrote it: install that version."
        if newer
        else "a build before release 0.2.0 wrote it: drop its feeds with that build, which removes "
        "what they hold at their sources, and create them again in another --state.",
    )


def living_nodes(connection: Connection, now: int) -> str:
    """The nodes that use the state, as they are shown; empty if there are none."""
    node, ttl = tables.node.c, int(NODE_TTL * 1e9)
    # These columns alone: an earlier format may not have the others.
    rows = connection.execute(
        select(node.id, node.pid, node.host, node.version).where(
            node.seen.between(bindparam("first", now - ttl), bindparam("last", now + ttl))
        )
    )
    living = [row for row in rows if not has_ended(row.pid, row.host)]
    hosts = [row.host.partition(" ")[0] for row in living]
    return ", ".join(
        f"{row.id} (version {row.version}, {host})" for row, host in zip(living, hosts, strict=True)
    )


def _refuse_nodes(connection: Connection, shown: str, has: int, now: int) -> None:
    """Raise while a node lives that could not go on after the upgrade."""
    if names := living_nodes(connection, now):
        raise ChangefeedError(
            Code.STATE_OF_ANOTHER_VERSION,
            f"state {shown} has format {has} and is to be upgraded to {tables.FORMAT}, "
            f"but nodes of its version use it: {names}",
            hint="stop these nodes, then try again: their feeds go on from where they are.",
        )


def _copy(file: Path, has: int) -> Path:
    """Copy ``state.db`` as it is before the transaction, readable by its owner only."""
    kept = file.with_name(f"{file.name}.format-{has}")
    half = kept.with_name(f"{kept.name}.new")
    half.unlink(missing_ok=True)
    os.close(os.open(half, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    with (
        closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as present,
        closing(sqlite3.connect(half)) as copy,
    ):
        present.backup(copy)
    half.replace(kept)
    return kept

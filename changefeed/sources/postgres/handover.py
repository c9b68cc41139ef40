"""Going on where a Debezium connector stopped: its offset, its slot, its publication.

The connector's slot is copied, so that the log it has not confirmed is ours too. Our publication
is younger than that log, and the decoder looks for a publication as of each change: so the log is
read with the connector's publication up to a place behind the making of ours (``until``), and
with ours from there on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from psycopg import sql

from changefeed.core.errors import ChangefeedError, Code, Problems
from changefeed.core.events import Position
from changefeed.core.schema import TableName
from changefeed.core.sql import quoted
from changefeed.sources.base import Handover, Memo
from changefeed.sources.connector_offset import demand_streaming
from changefeed.sources.postgres import publications, server, slots
from changefeed.sources.postgres.connect import PsycopgConnection
from changefeed.sources.postgres.lsn import format_lsn, lsn_of, position_of

#: What Debezium calls them by default.
_SLOT, _PUBLICATION = "debezium", "dbz_publication"
#: What may stand next to the offset, as in the connector's configuration.
_SLOT_NAME, _PUBLICATION_NAME = "slot.name", "publication.name"


@dataclass(frozen=True, slots=True)
class Predecessor:
    """A reader whose place we take.

    Attributes:
        slot: its slot, which ours is a copy of.
        publication: what its log is read with.
        until: up to here; empty until our publication is there.
    """

    slot: str
    publication: str
    until: Position = ""

    @classmethod
    def of(cls, memo: Memo) -> Predecessor | None:
        """The one a memo names."""
        known = memo.get("predecessor")
        return cls(**known) if known else None

    def memo(self) -> Memo:
        """As an attachment keeps it."""
        return {"slot": self.slot, "publication": self.publication, "until": self.until}

    def precedes(self, position: Position) -> bool:
        """The log behind ``position`` is to be read with its publication."""
        return position < self.until


def handover(
    connection: PsycopgConnection,
    offset: Mapping[str, Any],
    tables: Sequence[TableName],
    *,
    fresh: bool,
) -> Handover:
    """See :meth:`changefeed.sources.base.Source.handover`."""
    position = position_of(_delivered(offset))
    if not fresh:
        return Handover(position, {})
    before = Predecessor(
        str(offset.get(_SLOT_NAME, _SLOT)), str(offset.get(_PUBLICATION_NAME, _PUBLICATION))
    )
    problems = [*_slot_problems(connection, before, position)]
    problems += _publication_problems(connection, before, tables)
    if problems:
        raise Problems(problems)
    notices = (
        f"slot {before.slot!r} and publication {before.publication!r} stay at the server until "
        "you remove them, after the feed's first SYNC: "
        f"SELECT pg_drop_replication_slot({_literal(connection, before.slot)}); "
        f"DROP PUBLICATION {quoted(before.publication)};",
    )
    return Handover(position, {"predecessor": before.memo()}, notices)


def _delivered(offset: Mapping[str, Any]) -> int:
    """Every transaction whose commit record ends at or below this LSN was delivered.

    Debezium delivers in the order of commits. ``lsn_commit`` is the last transaction that it
    delivered whole; ``lsn`` is the change it delivered last, and what had committed when that was
    written came before it.

    Source of the names: PostgresOffsetContext of Debezium 3.6.
    """
    demand_streaming(offset, "last_snapshot_record", "snapshot_completed")
    numbers = [offset.get(name) for name in ("lsn_commit", "lsn")]
    known = [n for n in numbers if isinstance(n, int) and not isinstance(n, bool) and 0 < n < 2**64]
    if not known:
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            "the offset has no LSN: it is not one of a PostgreSQL connector",
            hint="its JSON has lsn_commit and lsn; see the topic of offset.storage.topic.",
        )
    return max(known)


def _slot_problems(
    connection: PsycopgConnection, before: Predecessor, position: Position
) -> list[ChangefeedError]:
    state = slots.slot_state(connection, before.slot)
    if not state.exists:
        rows = connection.execute(
            "SELECT slot_name::text FROM pg_catalog.pg_replication_slots"
            " WHERE plugin = 'pgoutput' AND database = pg_catalog.current_database() ORDER BY 1"
        ).fetchall()
        found = ", ".join(name for (name,) in rows) or "none"
        return [
            ChangefeedError(
                Code.NOT_SUPPORTED,
                f"there is no replication slot {before.slot!r} to take over",
                detail=f"slots of this database with pgoutput: {found}",
                hint=f'name it in the offset: "{_SLOT_NAME}": "..".',
            )
        ]
    if state.plugin != "pgoutput" or state.database != connection.info.dbname:
        return [
            ChangefeedError(
                Code.NOT_SUPPORTED,
                f"replication slot {before.slot!r} cannot be taken over",
                detail=f"it has the plugin {state.plugin or '(physical)'} and belongs to database "
                f"{state.database or '-'}; wanted: pgoutput, {connection.info.dbname}",
                hint="leave cursor out for an initial scan.",
            )
        ]
    if state.lost or state.confirmed > position:
        why = state.reason or "the server removed its log"
        if not state.lost:
            there, asked = format_lsn(lsn_of(state.confirmed)), format_lsn(lsn_of(position))
            why = f"it has confirmed {there}, the offset is {asked}"
        return [
            ChangefeedError(
                Code.NOT_SUPPORTED,
                f"replication slot {before.slot!r} no longer has the log after the offset",
                detail=why,
                hint="take the connector's last offset, or leave cursor out for an initial scan.",
            )
        ]
    return []


def _publication_problems(
    connection: PsycopgConnection, before: Predecessor, tables: Sequence[TableName]
) -> list[ChangefeedError]:
    name = before.publication
    row = connection.execute(
        "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot"
        " FROM pg_catalog.pg_publication WHERE pubname = %s",
        [name],
    ).fetchone()
    if row is None:
        return [
            ChangefeedError(
                Code.NOT_SUPPORTED,
                f"there is no publication {name!r} to read the connector's log with",
                hint=f'name it in the offset: "{_PUBLICATION_NAME}": "..".',
            )
        ]
    whole, via_root = row
    if not whole:
        return [_not_whole(name, "it does not publish insert, update, delete and truncate")]
    published = _tables_of(connection, name)
    problems = []
    for table in tables:
        place = (table.schema, table.name)
        if place not in published:
            why = "it does not have the table"
            if not via_root:
                why += ", or only its partitions"
        elif published[place]:
            why = "it leaves out rows or columns"
        else:
            continue
        problems.append(_not_whole(name, why, f"table {table.schema}.{table.name}"))
    return problems


def _tables_of(connection: PsycopgConnection, publication: str) -> dict[tuple[str, str], bool]:
    """The tables of a publication, and whether it has some of their rows or columns only."""
    newer = connection.info.server_version >= 150_000
    narrowed = "r.prqual IS NOT NULL OR r.prattrs IS NOT NULL" if newer else "false"
    rows = connection.execute(
        sql.SQL(
            """
            SELECT t.schemaname::text, t.tablename::text, {}
            FROM pg_catalog.pg_publication_tables t
            JOIN pg_catalog.pg_publication p ON p.pubname = t.pubname
            JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
            JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
            LEFT JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
            WHERE t.pubname = %s
            """
        ).format(sql.SQL(narrowed)),
        [publication],
    )
    return {(schema, table): limited for schema, table, limited in rows}


def _not_whole(publication: str, why: str, table: str = "the feed") -> ChangefeedError:
    return ChangefeedError(
        Code.NOT_SUPPORTED,
        f"publication {publication!r} does not carry every change of {table}",
        detail=why,
        hint="leave cursor out for an initial scan.",
    )


def take_over(
    connection: PsycopgConnection, before: Predecessor, slot: str, publication: str
) -> Predecessor:
    """Copy the predecessor's slot, unless that is done; our publication must be there.

    What comes back has ``until``: a place from which on no transaction began before our
    publication was there, which the decoder would look for in vain.

    Raises:
        ChangefeedError: CF2005 a transaction has not ended, CF2102 the slot is gone.
    """
    if not slots.slot_state(connection, slot).exists:
        if not slots.slot_state(connection, before.slot).exists:
            raise ChangefeedError(
                Code.SOURCE_LOG_GONE,
                f"replication slot {before.slot!r} was dropped before it was taken over",
            )
        connection.execute(
            "SELECT pg_catalog.pg_copy_logical_replication_slot(%s, %s)", [before.slot, slot]
        )
    publications.await_elders(connection, publication)
    return replace(before, until=server.current_position(connection))


def _literal(connection: PsycopgConnection, text: str) -> str:
    return sql.Literal(text).as_string(connection)

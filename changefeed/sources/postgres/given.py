"""A publication, and perhaps a slot, that an administrator made: read, and never changed.

    postgresql://feeds@host/shop?publication=cdc&slot=cdc_slot

The publication decides what a feed can see. A column list cuts the table's shape
(:func:`.details.read_details`), a row filter is part of every scan (:func:`row_filter`). What would
make a copy differ from that (a publication without deletes, partitions under their own names) is a
problem with the administrator's statement.

Whether others change it later is seen by the numbers of the transactions that wrote its rows in
the catalog: the memo keeps a number below which every transaction had ended when the tables joined
(:attr:`GivenPublication.seen`), and each younger row is a change since then, even one that was
taken back. Other tables of the publication come in the stream, too; they are dropped there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from psycopg import sql

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Position
from changefeed.core.sql import readable
from changefeed.sources.base import Memo
from changefeed.sources.postgres.connect import PsycopgConnection
from changefeed.sources.postgres.publications import publication_gone, younger
from changefeed.sources.postgres.server import POLL_SECONDS, slot_waits
from changefeed.sources.postgres.slots import SlotState, slot_state

#: The name that hints give to a publication that is still to be made.
SUGGESTED = "changefeed"
#: First server with row filters, column lists and publications of schemas.
NARROWING = 150_000


@dataclass(frozen=True, slots=True)
class GivenPublication:
    """What the memo has of a publication that is not ours.

    Attributes:
        slot: the slot is the administrator's, too.
        seen: transactions up to this number (of 64 bits) had ended when the publication was looked
            at; 0: it was not.
        tables: oids of the tables that are wanted of it.
        start: where a change log of the administrator's slot begins.
    """

    slot: bool
    seen: int = 0
    tables: tuple[int, ...] = ()
    start: Position = ""

    @classmethod
    def of(cls, memo: Memo) -> Self | None:
        """As a memo has it."""
        known = memo.get("given")
        return cls(**{**known, "tables": tuple(known["tables"])}) if known else None

    def memo(self) -> Memo:
        """As an attachment keeps it."""
        return {
            "slot": self.slot,
            "seen": self.seen,
            "tables": list(self.tables),
            "start": self.start,
        }


@dataclass(frozen=True, slots=True)
class Membership:
    """How a publication has a table.

    Attributes:
        name: quoted where SQL needs it.
        covered: the table is in it, by its name, its schema, or because all tables are.
        xmin: number of the youngest transaction, of 32 bits, that wrote a row which says so.
        unlisted: columns of the replica identity that its column list lacks.
        columns: those of its column list; None: all.
        generated: a generated column of its column list.
        full: old rows are whole (``REPLICA IDENTITY FULL``).
        twice: it is there by its name with a row filter, and by its schema without.
    """

    oid: int
    name: str
    partitioned: bool
    covered: bool
    xmin: tuple[int, ...]
    columns: tuple[str, ...] | None
    unlisted: tuple[str, ...]
    generated: str
    full: bool
    twice: bool


@dataclass(frozen=True, slots=True)
class Publication:
    """A row of ``pg_publication``, and how it has some tables, as of one instant.

    Attributes:
        xmin: number of the transaction that wrote the row, of 32 bits.
        unpublished: kinds of changes that it leaves out.
        by_root: partitions are published as the partitioned table.
        generated: it publishes generated columns.
        ended: every transaction below this number (of 64 bits) had ended.
        tables: by oid; a table that is gone is left out.
    """

    name: str
    xmin: int
    unpublished: tuple[str, ...]
    by_root: bool
    generated: bool
    ended: int
    tables: Mapping[int, Membership]

    def youngest(self, seen: int) -> bool:
        """Something of it was written by a transaction above ``seen``."""
        rows = [self.xmin, *(xmin for table in self.tables.values() for xmin in table.xmin)]
        return any(younger(row, seen) for row in rows)


_LOOK = """
    SELECT p.xmin::text::int8, p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate,
           {by_root}, {generated},
           pg_catalog.txid_snapshot_xmin(pg_catalog.txid_current_snapshot()),
           (SELECT coalesce(pg_catalog.json_agg(pg_catalog.json_build_array(
                c.oid::int8, pg_catalog.format('%%I.%%I', s.nspname, c.relname), c.relkind = 'p',
                p.puballtables OR r.oid IS NOT NULL OR {by_schema},
                pg_catalog.json_build_array(r.xmin::text::int8, {schema_xmin}),
                CASE WHEN {columns} IS NOT NULL THEN ARRAY(
                    SELECT a.attname::text FROM pg_catalog.pg_attribute a
                    WHERE a.attrelid = c.oid AND a.attnum = ANY ({columns})) END,
                ARRAY(SELECT a.attname::text FROM pg_catalog.pg_index i
                      CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(number, n)
                      JOIN pg_catalog.pg_attribute a
                        ON a.attrelid = c.oid AND a.attnum = k.number
                      WHERE i.indrelid = c.oid AND k.n <= i.indnkeyatts
                        AND (i.indisprimary OR i.indisreplident)
                        AND k.number <> ALL ({columns})),
                coalesce((SELECT min(a.attname::text) FROM pg_catalog.pg_attribute a
                          WHERE a.attrelid = c.oid AND a.attgenerated <> ''
                            AND a.attnum = ANY ({columns})), ''),
                c.relreplident = 'f', {twice})), '[]')
            FROM pg_catalog.pg_class c
            JOIN pg_catalog.pg_namespace s ON s.oid = c.relnamespace
            LEFT JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
            {schemas}
            WHERE c.oid = ANY (%s::oid[]))
    FROM pg_catalog.pg_publication p WHERE p.pubname = %s
"""

_SCHEMAS = """LEFT JOIN pg_catalog.pg_publication_namespace n
                ON n.pnpubid = p.oid AND n.pnnspid = c.relnamespace"""


def look(
    connection: PsycopgConnection, publication: str, oids: Collection[int]
) -> Publication | None:
    """The publication and how it has these tables; None when there is none. Takes no lock."""
    version = connection.info.server_version
    narrows = version >= NARROWING
    query = _LOOK.format(
        by_root="p.pubviaroot" if version >= 130_000 else "false",
        generated="p.pubgencols <> 'n'" if version >= 180_000 else "false",
        by_schema="n.oid IS NOT NULL" if narrows else "false",
        schema_xmin="n.xmin::text::int8" if narrows else "NULL::int8",
        # All tables, or those of a schema, come with every column.
        columns="CASE WHEN NOT p.puballtables AND n.oid IS NULL THEN r.prattrs::int2[] END"
        if narrows
        else "NULL::int2[]",
        twice="r.prqual IS NOT NULL AND n.oid IS NOT NULL" if narrows else "false",
        schemas=_SCHEMAS if narrows else "",
    )
    row = connection.execute(query, [sorted(oids), publication]).fetchone()
    if row is None:
        return None
    xmin, inserts, updates, deletes, truncates, by_root, generated, ended, rows = row
    kinds = {"insert": inserts, "update": updates, "delete": deletes, "truncate": truncates}
    return Publication(
        publication,
        xmin,
        tuple(kind for kind, sent in kinds.items() if not sent),
        by_root,
        generated,
        ended,
        {values[0]: _listed(*values) for values in rows},
    )


def _listed(
    oid: int,
    name: str,
    partitioned: bool,
    covered: bool,
    xmin: Sequence[int | None],
    columns: Sequence[str] | None,
    unlisted: Sequence[str],
    generated: str,
    full: bool,
    twice: bool,
) -> Membership:
    known = tuple(number for number in xmin if number is not None)
    chosen = None if columns is None else tuple(columns)
    return Membership(
        oid, name, partitioned, covered, known, chosen, tuple(unlisted), generated, full, twice
    )


def row_filter(connection: PsycopgConnection, publication: str, oid: int) -> str:
    """The condition, as SQL, that rows of the table must satisfy; empty: all are published."""
    if connection.info.server_version < NARROWING:
        return ""
    row = connection.execute(
        """
        SELECT pg_catalog.pg_get_expr(r.prqual, r.prrelid)
        FROM pg_catalog.pg_publication p
        JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid
        JOIN pg_catalog.pg_class c ON c.oid = r.prrelid
        WHERE p.pubname = %s AND c.oid = %s AND NOT p.puballtables AND NOT EXISTS (
            SELECT FROM pg_catalog.pg_publication_namespace n
            WHERE n.pnpubid = p.oid AND n.pnnspid = c.relnamespace)
        """,
        [publication, oid],
    ).fetchone()
    return row[0] or "" if row else ""


# ------------------------------------------------------------------------- problems


def statement(
    connection: PsycopgConnection, publication: str, tables: Sequence[str], *, partitioned: bool
) -> str:
    """What an administrator runs so that the publication has these tables."""
    name = readable(publication)
    listed = ", ".join(tables)
    there = connection.execute(
        "SELECT FROM pg_catalog.pg_publication WHERE pubname = %s", [publication]
    ).fetchone()
    if there is not None:
        return f"ALTER PUBLICATION {name} ADD TABLE {listed};"
    root = " WITH (publish_via_partition_root = true)" if partitioned else ""
    return f"CREATE PUBLICATION {name} FOR TABLE {listed}{root};"


def publication_problems(found: Publication) -> Iterator[ChangefeedError]:
    """Why no table of the publication can be kept equal."""
    if found.unpublished:
        missing = " and ".join(found.unpublished)
        yield _wrong(
            f"publication {found.name} does not publish {missing}: a copy would keep what the "
            "source changed",
            f"ALTER PUBLICATION {readable(found.name)} SET "
            "(publish = 'insert, update, delete, truncate');",
        )
    if found.generated:
        yield _wrong(
            f"publication {found.name} publishes generated columns, which a feed does not have",
            f"ALTER PUBLICATION {readable(found.name)} SET (publish_generated_columns = none);",
        )


def table_problem(found: Publication, oid: int) -> ChangefeedError | None:
    """Why the feed cannot have this table from the publication."""
    table = found.tables.get(oid)
    name = readable(found.name)
    if table is None or not table.covered:
        shown = table.name if table else f"with oid {oid}"
        return _wrong(
            f"table {shown} is not in publication {found.name}",
            f"ALTER PUBLICATION {name} ADD TABLE {shown};",
        )
    if table.partitioned and not found.by_root:
        return _wrong(
            f"table {table.name} is partitioned, and publication {found.name} publishes its "
            "partitions under their own names",
            f"ALTER PUBLICATION {name} SET (publish_via_partition_root = true);",
        )
    if table.twice:
        return _wrong(
            f"table {table.name} is in publication {found.name} twice: with a row filter, and by "
            "its schema, which overrides the filter",
            f"ALTER PUBLICATION {name} DROP TABLE {table.name};",
        )
    wrong = ""
    if table.columns is not None and table.full:
        wrong = "does not go with REPLICA IDENTITY FULL: PostgreSQL refuses every UPDATE and DELETE"
    elif table.unlisted:
        wrong = f"lacks {', '.join(table.unlisted)} of its key"
    elif table.generated:
        wrong = f"has the generated column {table.generated}, which a feed does not have"
    if not wrong:
        return None
    return _wrong(
        f"the column list of table {table.name} in publication {found.name} {wrong}",
        f"ALTER PUBLICATION {name} DROP TABLE {table.name}; "
        f"ALTER PUBLICATION {name} ADD TABLE {table.name};",
    )


def slot_problem(
    connection: PsycopgConnection, slot: str, *, begun: bool
) -> ChangefeedError | None:
    """Why the administrator's slot cannot be read. ``begun``: a change log was, with it."""
    state = slot_state(connection, slot)
    make = f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput');"
    again = f"SELECT pg_drop_replication_slot('{slot}'); {make}"
    if not state.exists:
        return _wrong(f"replication slot {slot} does not exist", make)
    if state.unfinished:
        return ChangefeedError(
            Code.SOURCE_BUSY,
            f"replication slot {slot} is being made by the server process {state.active_pid}",
            hint=f"SELECT * FROM pg_stat_activity WHERE pid = {state.active_pid}; "
            "-- it waits for transactions that are open",
        )
    database = connection.info.dbname
    if state.plugin != "pgoutput" or state.database != database:
        kind = f"plugin {state.plugin}" if state.plugin else "physical"
        return _wrong(
            f"replication slot {slot} cannot be read: it must have the plugin pgoutput and belong "
            f"to database {database}",
            again,
            detail=f"{kind}, database {state.database or '-'}",
        )
    if state.lost:
        why = state.reason or "the server removed log that it needed"
        return _wrong(f"replication slot {slot} was invalidated: {why}", again)
    temporary, two_phase = _kind(connection, slot)
    if temporary:
        return _wrong(f"replication slot {slot} is temporary: it ends with its session", make)
    if two_phase:
        return _wrong(
            f"replication slot {slot} decodes prepared transactions before they commit", again
        )
    if state.active_pid is not None and not begun:
        return ChangefeedError(
            Code.SOURCE_BUSY,
            f"replication slot {slot} is read by somebody else: server process {state.active_pid}",
            hint=f"SELECT * FROM pg_stat_replication WHERE pid = {state.active_pid}; "
            "-- two readers need two slots",
        )
    return None


def _kind(connection: PsycopgConnection, slot: str) -> tuple[bool, bool]:
    two_phase = "two_phase" if connection.info.server_version >= 140_000 else "false"
    query = sql.SQL(
        "SELECT temporary, {} FROM pg_catalog.pg_replication_slots WHERE slot_name = %s"
    ).format(sql.SQL(two_phase))
    row = connection.execute(query, [slot]).fetchone()
    return (bool(row[0]), bool(row[1])) if row else (False, False)


def lost_slot_hint(state: SlotState, slot: str) -> str:
    """How an administrator replaces a slot that is gone or was invalidated."""
    drop = f"SELECT pg_drop_replication_slot('{slot}'); " if state.exists else ""
    return (
        f"{drop}SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput'); "
        "-- then ALTER CHANGEFEED .. RESCAN"
    )


def _wrong(message: str, hint: str, *, detail: str = "") -> ChangefeedError:
    return ChangefeedError(Code.SOURCE_NOT_SET_UP, message, detail=detail, hint=hint)


# ------------------------------------------------------------------------- changes


def altered(
    connection: PsycopgConnection, publication: str, held: GivenPublication, tables: Collection[int]
) -> dict[int, str]:
    """Which of ``tables`` (read from the publication so far) may have missed changes, and what was
    done to the publication.

    Raises:
        ChangefeedError: CF2102 it is gone.
    """
    found = look(connection, publication, tables)
    if found is None:
        raise publication_gone(publication)
    return changes(found, held.seen, tables)


def changes(found: Publication, seen: int, tables: Iterable[int]) -> dict[int, str]:
    """The same for a publication that was looked at. A table that was dropped left it with that:
    nothing of it is missing."""
    name = f'publication "{found.name}"'
    reasons: dict[int, str] = {}
    for oid in tables:
        table = found.tables.get(oid)
        if table is None:
            continue
        if younger(found.xmin, seen):
            reasons[oid] = f"{name} was altered, or dropped and created again"
        elif not table.covered:
            reasons[oid] = f"the table was taken out of {name}"
        elif any(younger(xmin, seen) for xmin in table.xmin):
            reasons[oid] = (
                f"the table was taken out of {name} and put back, or has another row filter or "
                "column list there"
            )
    return reasons


def settled(
    connection: PsycopgConnection,
    found: Publication,
    seconds: float,
    clock: Clock = SYSTEM_CLOCK,
) -> Publication:
    """The publication once every transaction is over that began before it was as it is: such a
    one is decoded as if a table of it were not there.

    Raises:
        ChangefeedError: CF2005 one outlasts ``seconds``, CF2102 the publication is gone.
    """
    deadline = clock.monotonic() + seconds
    while found.youngest(found.ended - 1):
        if clock.monotonic() > deadline:
            raise slot_waits(connection)
        clock.sleep(POLL_SECONDS)
        again = look(connection, found.name, found.tables)
        if again is None:
            raise publication_gone(found.name)
        found = again
    return found


class WantedTables:
    """The tables that a memo wants of an administrator's publication. Cheap to ask."""

    def __init__(self, memo: Any) -> None:
        """``memo`` returns it as it is saved now."""
        self._memo = memo
        self._last: Memo | None = None
        self._tables: frozenset[int] | None = None

    def __call__(self) -> frozenset[int] | None:
        """Their oids; None: all that the publication has."""
        memo = self._memo()
        if memo is not self._last:
            held = GivenPublication.of(memo)
            self._last = memo
            self._tables = None if held is None else frozenset(held.tables)
        return self._tables

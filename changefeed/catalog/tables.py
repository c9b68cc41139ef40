"""The tables of the state database, the same on SQLite and PostgreSQL.

Timestamps (HLC) are kept as their written form, times as ns, lists as JSON text; the types of the
columns write and read them. SQLAlchemy's object mapping is not used: to import it and to map these
tables takes 95 ms of CPU, a quarter of what ``SHOW JOBS`` takes from the command line.
Any change here raises :data:`FORMAT` and has a step in changefeed/catalog/upgrades.py, which brings
states of earlier formats to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    text,
)

from changefeed.catalog.model import (
    DesiredStatus,
    RowRepair,
    Status,
    TableProof,
    TableState,
)
from changefeed.catalog.rows import CaptureNews, RateWindow
from changefeed.catalog.sealing import SEALERS
from changefeed.core.clock import Timestamp
from changefeed.core.delays import Delays
from changefeed.core.partition import Partition
from changefeed.core.unread import UnreadParts

#: Version of the layout below. Earlier ones from 0.2.0 on are upgraded (upgrades.py).
FORMAT = 19

#: Schema of the tables on PostgreSQL; SQLite has none.
POSTGRES_SCHEMA = "changefeed"

metadata = MetaData()

#: Values of one kind that are kept once they were read.
_KEPT: Final = 4096

# BIGINT on PostgreSQL; SQLite numbers rows by itself only in a column typed INTEGER.
_Id = BigInteger().with_variant(Integer, "sqlite")


class _TextForm(TypeDecorator[Any]):
    """A value that is kept as text. ``nothing`` is the text of what is empty, and the other way
    round where ``empty`` is not None. ``kept``: how many values stay in memory that were read, by
    their texts: most of a listing of hundreds of feeds are as they were. They cannot change."""

    impl = Text
    cache_ok = True

    def __init__(
        self,
        write: Callable[[Any], str] = str,
        read: Callable[[str], Any] = str,
        *,
        nothing: str | None = None,
        empty: Any = None,
        kept: int = 0,
    ) -> None:
        super().__init__()
        self.write, self.read = write, read
        self.nothing, self.empty = nothing, empty
        self.kept = kept

    # The processors themselves: a call less for each value of a listing of hundreds of feeds.
    def bind_processor(self, dialect: Dialect) -> Callable[[Any], str | None]:
        write, nothing, empty = self.write, self.nothing, self.empty
        return lambda value: nothing if value is None or value == empty else write(value)

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[str | None], Any]:
        read, nothing, empty = self.read, self.nothing, self.empty

        def value_of(written: str | None) -> Any:
            return empty if written is None or written == nothing else read(written)

        return lru_cache(self.kept)(value_of) if self.kept else value_of


class _SealedForm(_TextForm):
    """One that is encrypted where the state has a key (sealing.py)."""

    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], str | None]:
        write, sealer = super().bind_processor(dialect), SEALERS[dialect]

        def seal(value: Any) -> str | None:
            written = write(value)
            return None if written is None else sealer.seal(written)

        return seal

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[str | None], Any]:
        read, sealer = super().result_processor(dialect, coltype), SEALERS[dialect]
        return lambda value: read(None if value is None else sealer.open(value))


def _listed(values: Sequence[str]) -> str:
    return json.dumps(list(values))


def _list_of(written: str) -> tuple[str, ...]:
    return tuple(json.loads(written))


def _members(values: Mapping[str, Any]) -> str:
    return json.dumps(dict(values), sort_keys=True)


def _as_written(values: Mapping[str, str]) -> str:
    return json.dumps(dict(values))


@lru_cache(_KEPT)
def _members_of(written: str) -> dict[str, str]:
    return json.loads(written)  # type: ignore[no-any-return]


def _options_of(written: str) -> dict[str, str]:
    return _members_of(written).copy()


_SEALED = _SealedForm()
_OPTIONS = _SealedForm(_as_written, _options_of)
_STAMP = _TextForm(str, Timestamp.parse, kept=_KEPT)
_LIST = _TextForm(_listed, _list_of, kept=_KEPT)
_REPAIR = _TextForm(RowRepair.to_json, RowRepair.from_json, nothing="")
_UNREAD = _TextForm(UnreadParts.to_json, UnreadParts.from_json, nothing="")
_DELAYS = _TextForm(Delays.to_text, Delays.from_text, nothing="", empty=Delays(), kept=1024)
_RATE = _TextForm(RateWindow.to_text, RateWindow.from_text, kept=1024)
_NEWS = _TextForm(CaptureNews.to_json, CaptureNews.from_json)
_PROOF = _TextForm(
    TableProof.to_json, TableProof.from_json, nothing="", empty=TableProof(), kept=1024
)


def _text(name: str, *, null: bool = False) -> Column[str]:
    return Column(name, Text, nullable=null)


def _typed(name: str, kind: _TextForm, *, null: bool = False) -> Column[Any]:
    return Column(name, kind, nullable=null)


def _ns(name: str, *, null: bool = False) -> Column[int]:
    return Column(name, BigInteger, nullable=null)


def _count(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False, server_default="0")


def _flag(name: str) -> Column[bool]:
    return Column(name, Boolean, nullable=False)


def _job_id(*, primary_key: bool = False) -> Column[int]:
    return Column(
        "job_id",
        _Id,
        ForeignKey("job.id", ondelete="CASCADE"),
        primary_key=primary_key,
        nullable=False,
        autoincrement=False,
    )


meta = Table("meta", metadata, Column("key", Text, primary_key=True), _text("value"))

#: Key of ``meta`` whose value is the address of the shared logs; may hold secrets, and is sealed.
LOG_PLACE = "log"

#: One row. ``number`` rises with every change a node or another shell must notice.
change = Table("change", metadata, Column("id", Integer, primary_key=True), _count("number"))

connection = Table(
    "connection",
    metadata,
    Column("name", Text, primary_key=True),
    _typed("uri", _SEALED),
    _ns("created"),
)

table_schema = Table(
    "table_schema",
    metadata,
    Column("version", _Id, primary_key=True),
    _text("source"),
    _text("schema"),
    _text("name"),
    _text("fingerprint"),
    _text("body"),
    _ns("created"),
    # Rows of this version are in the change log, so its readers were shown the change to it.
    Column("announced", Boolean, nullable=False, server_default=text("true")),
    sqlite_autoincrement=True,
)
Index(
    "table_schema_latest",
    table_schema.c.source,
    table_schema.c.schema,
    table_schema.c.name,
    table_schema.c.version,
)

#: Python functions of CDC queries; ``arguments`` are names with types.
function = Table(
    "function",
    metadata,
    Column("name", Text, primary_key=True),
    _typed("arguments", _LIST),
    _text("returns"),
    _text("reference"),
    _text("path"),
    _flag("vectorized"),
    _ns("created"),
)

source_state = Table(
    "source_state",
    metadata,
    Column("name", Text, primary_key=True),
    _typed("memo", _TextForm(_members, json.loads, nothing="", empty={})),
    _text("holds"),
    _text("identity"),
    _text("status"),
    _text("error"),
    _text("error_code"),
    _text("position"),
    _typed("frontier", _STAMP, null=True),
    _ns("updated"),
    Column("renewal", Boolean, nullable=False, server_default=text("false")),
)

#: Tables the source agreed to send, the log timestamp since when, and which table the name
#: stood for (0: the source has no such numbers).
captured = Table(
    "captured",
    metadata,
    Column("source", Text, primary_key=True),
    Column("schema", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    _typed("since", _STAMP),
    _count("table_id"),
)

#: The names under which a table that was renamed has been seen.
table_name = Table(
    "table_name",
    metadata,
    Column("source", Text, primary_key=True),
    Column("table_id", BigInteger, primary_key=True, autoincrement=False),
    Column("schema", Text, primary_key=True),
    Column("name", Text, primary_key=True),
)

#: Tables of which changes may be missing in the change log: when (ns) that was found, and why.
gap = Table(
    "gap",
    metadata,
    Column("source", Text, primary_key=True),
    Column("schema", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    _ns("at"),
    _text("reason"),
)

job = Table(
    "job",
    metadata,
    Column("id", _Id, primary_key=True),
    _text("name"),
    _text("source"),
    _typed("sink_uri", _SEALED, null=True),
    _typed("targets", _LIST),
    _typed("options", _OPTIONS),
    _text("statement"),
    _typed("status", _TextForm(str, Status, kept=len(Status))),
    _typed("wanted", _TextForm(str, DesiredStatus, kept=len(DesiredStatus))),
    _text("reason"),
    _text("error", null=True),
    _text("error_code", null=True),
    _text("hint", null=True),
    _ns("created"),
    _ns("started", null=True),
    _ns("modified"),
    _ns("finished", null=True),
    _typed("high_water", _STAMP, null=True),
    _typed("cursor", _STAMP, null=True),
    _typed("end_time", _STAMP, null=True),
    Column("generation", Integer, nullable=False),
    _flag("sinkless"),
    _count("emitted_rows"),
    _count("emitted_bytes"),
    _typed("rate", _RATE),
    Column("delays", _DELAYS, nullable=False, server_default=""),
    _count("taken"),
    # How often a statement asked that changes which gather are delivered at once.
    _count("hurried"),
    # The user whose rights bound it; empty: one who was dropped; NULL: it is the admins'.
    _text("owner", null=True),
    sqlite_autoincrement=True,
)
# The name of a dropped feed is free again.
_NAME_TAKEN = text("status <> 'dropped'")
_job_name = Index("job_name", job.c.name, unique=True, sqlite_where=_NAME_TAKEN)


def prepare_for_postgres() -> None:
    """Complete what the tables say for PostgreSQL, before its dialect creates them.

    Naming a dialect's option loads that dialect, which a state in a directory does not need.
    """
    _job_name.dialect_kwargs["postgresql_where"] = _NAME_TAKEN


job_table = Table(
    "job_table",
    metadata,
    _job_id(primary_key=True),
    Column("source", Text, primary_key=True),
    Column("schema", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    _text("topic"),
    _ns("schema_version"),
    _typed("state", _TextForm(str, TableState, kept=len(TableState))),
    _flag("scan_wanted"),
    _typed("scan_at", _STAMP, null=True),
    _typed("done_upto", _STAMP, null=True),
    _text("start", null=True),
    _count("scan_rows"),
    _count("scan_total"),
    _count("emitted_rows"),
    _count("emitted_bytes"),
    _text("error", null=True),
    _text("error_code", null=True),
    Column("hint", Text, nullable=False, server_default=""),
    _typed("columns", _LIST),
    _typed("values_from", _LIST),
    _typed("values_to", _LIST),
    _typed("partition", _TextForm(Partition.to_json, Partition.from_json), null=True),
    _flag("joined"),
    _ns("added_at"),
    _count("table_id"),
    _count("rescan"),
    _count("rescanned"),
    _count("gap"),
    # Schema and name that the table had when it came to the feed, once it has another name.
    Column("original", _LIST, nullable=False, server_default="[]"),
    # Keys of the rows that the scan that is owed is about; empty: all rows.
    Column("repair", _REPAIR, nullable=False, server_default=""),
    # What option verify has compared of it; empty: nothing.
    Column("proof", _PROOF, nullable=False, server_default=""),
    # The transaction that it failed at, and the last one that it skipped.
    _typed("refused", _STAMP, null=True),
    _typed("skipped", _STAMP, null=True),
    # When it was paused by itself, and by whom; 0: it is not.
    _count("paused"),
    Column("paused_by", Text, nullable=False, server_default=""),
    # What an unfinished scan has not delivered; empty: it is not known, and the scan begins again.
    Column("unread", _UNREAD, nullable=False, server_default=""),
)

#: ``token`` rises with each holder and is never reused: writes of an old one are fenced off by it.
lease = Table(
    "job_lease",
    metadata,
    _job_id(primary_key=True),
    _text("node", null=True),
    Column("token", BigInteger, nullable=False),
    _ns("expires"),
)

#: Which node captures a source and runs its feeds; ``token`` as of ``lease``. Registrations in a
#: shared log are fenced by it.
source_lease = Table(
    "capture_lease",
    metadata,
    Column("source", Text, primary_key=True),
    _text("node", null=True),
    Column("token", BigInteger, nullable=False),
    _ns("expires"),
)

#: What the node that captures a source says to those that run feeds of it (``CaptureNews``).
capture_news = Table(
    "capture_news", metadata, Column("source", Text, primary_key=True), _typed("news", _NEWS)
)

#: A shared log: what is registered in these four tables exists, and nothing else does
#: (changefeed/log/shared.py). ``ledger`` is the text of the file of that name.
log_ledger = Table(
    "log_ledger", metadata, Column("source", Text, primary_key=True), _text("ledger")
)

#: Bytes of journals that have no object of their own yet, in the row or in an object.
log_tail = Table(
    "log_tail",
    metadata,
    Column("source", Text, primary_key=True),
    Column("journal", BigInteger, primary_key=True, autoincrement=False),
    Column("start", BigInteger, primary_key=True, autoincrement=False),
    Column("size", BigInteger, nullable=False),
    Column("crc", BigInteger, nullable=False),
    _text("object", null=True),
    Column("body", LargeBinary, nullable=True),
)

#: Files of a log that are objects.
log_object = Table(
    "log_object",
    metadata,
    Column("source", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("size", BigInteger, nullable=False),
    _text("object"),
)

#: What a source keeps in addition to its log (``StateLayout.beside_log``), small files.
log_note = Table(
    "log_note",
    metadata,
    Column("source", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)

node = Table(
    "node",
    metadata,
    Column("id", Text, primary_key=True),
    Column("pid", Integer, nullable=False),
    _text("host"),
    _text("version"),
    _ns("started"),
    _ns("seen"),
    # Whether it is to give its sources away and take none.
    Column("draining", Boolean, nullable=False, server_default=text("false")),
    # How many feeds it has room for; NULL: any number.
    Column("max_feeds", Integer, nullable=True),
    Column("load", Float, nullable=False, server_default="0"),
)

#: Users of the HTTP API and of PostgreSQL's protocol; ``digest`` is the SHA-256 of the token,
#: ``scram`` what proves to that protocol that a client knows it: NULL for a token of format 18.
user = Table(
    "api_user",
    metadata,
    Column("name", Text, primary_key=True),
    _text("role"),
    Column("digest", Text, nullable=False, unique=True),
    Column("scram", Text),
    _ns("created"),
    _ns("expires", null=True),
    _ns("seen", null=True),
)

#: Rights of users: to make feeds of a table, of a schema (no name), to use a connection (neither).
grant = Table(
    "api_grant",
    metadata,
    *(Column(name, Text, primary_key=True) for name in ("user", "source", "schema", "name")),
    _ns("granted"),
)

#: Statements that changed something or were refused, without their secrets.
audit = Table(
    "audit",
    metadata,
    Column("id", _Id, primary_key=True),
    _ns("at"),
    _text("user"),
    _text("origin"),
    _text("statement"),
    _text("code", null=True),
    sqlite_autoincrement=True,
)

#: Questions of processes without Spark to the nodes; ``of_node`` is the only one that may take the
#: question, ``node`` the one that took it.
question = Table(
    "question",
    metadata,
    Column("id", Text, primary_key=True),
    _text("kind"),
    _typed("body", _SEALED),
    _ns("asked"),
    _text("of_node", null=True),
    _text("node", null=True),
    _text("answer", null=True),
)

event = Table(
    "event",
    metadata,
    Column("id", _Id, primary_key=True),
    _job_id(),
    _ns("at"),
    _text("kind"),
    _text("code", null=True),
    _text("table_name", null=True),
    _text("text"),
    # How often it happened, and when last.
    Column("times", BigInteger, nullable=False),
    _ns("last"),
    sqlite_autoincrement=True,
)
Index("event_job", event.c.job_id, event.c.id)

#: What CREATE SCHEDULE says. ``due``, ns, is the time that the next run is for.
schedule = Table(
    "schedule",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    _text("source"),
    _typed("sink_uri", _SEALED),
    _typed("targets", _LIST),
    _typed("options", _OPTIONS),
    _text("recurring"),
    _text("on_failure"),
    _text("on_running"),
    _ns("created"),
    _flag("paused"),
    _ns("due"),
    _text("error", null=True),
    sqlite_autoincrement=True,
)

#: The feeds that schedules made, of schedules that were dropped, too; ``ended``: the schedule knows
#: how it ended.
schedule_run = Table(
    "schedule_run",
    metadata,
    _job_id(primary_key=True),
    Column("schedule_id", _Id, ForeignKey("schedule.id", ondelete="SET NULL"), nullable=True),
    _ns("due"),
    _flag("ended"),
)

#: Rows that were refused for themselves. ``identity`` is the same whenever the row comes again.
#: ``retry``: the RESCAN of the table, in the sense of ``job_table.rescan``, that reads it again.
dead_letter = Table(
    "dead_letter",
    metadata,
    Column("id", _Id, primary_key=True),
    _job_id(),
    _text("source"),
    _text("schema"),
    _text("name"),
    _text("identity"),
    _ns("refused"),
    _typed("position", _STAMP),
    _text("op"),
    _text("code"),
    _text("message"),
    _text("digest"),
    _typed("key", _SEALED),
    _typed("row", _SEALED),
    _count("retry"),
    sqlite_autoincrement=True,
)
Index(
    "dead_letter_identity",
    *(dead_letter.c[name] for name in ("job_id", "source", "schema", "name", "identity")),
    unique=True,
)

#: The columns whose values are encrypted where the state has a key.
SEALED = tuple(
    column
    for table in metadata.sorted_tables
    for column in table.columns
    if isinstance(column.type, _SealedForm)
)

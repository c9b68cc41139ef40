"""A named reader: the changefeed that scans for it and keeps the log, and how far it is.

The changefeed is an ordinary one, so ``SHOW CHANGEFEEDS`` lists it with its lag, ``PAUSE`` makes it
wait, ``DROP`` ends it, and the log's retention counts it. It is made at first use where the table
is named, or by a statement::

    CREATE CHANGEFEED audit FOR TABLE shop.public.orders INTO 'reader:///var/lib/feeds/audit'
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

from changefeed.api import Interpreter, Session
from changefeed.catalog import Catalog, DesiredStatus, Job, Status, TableProgress, TableState
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableName, TableSchema
from changefeed.core.state import StateLayout
from changefeed.log.follower import LogFollower
from changefeed.readers.table_log import OnTruncate, Range, Selection, TableLog, TableRanges
from changefeed.shared_logs import followed_logs, is_elsewhere
from grammar.printer import name as name_sql
from sinks.base import ConsumerProgress, LogConsumer, ScanFiles
from sinks.registry import open_sink

#: The folder of a state that has those of the readers.
READERS = "readers"

#: Files of a scan that make one range.
SCAN_FILES = 4

#: How long a process that ends is waited for, seconds.
OCCUPY_SECONDS = 15.0

_PART = re.compile(r'"(?:[^"]|"")+"|[^".]+')


@dataclass(frozen=True, slots=True)
class Start:
    """Where a reader that does not exist yet begins.

    Attributes:
        scan: with the rows that are there, then their changes.
        after: without a scan, above this; None: with the first change from now on.
    """

    scan: bool = True
    after: Timestamp | None = None


@dataclass
class Reader:
    """One reader. Used by one thread at a time; :meth:`close` it.

    Attributes:
        brief: it reads the log as it is now; one that goes on follows a shared log even where a
            node of this host captures, because another may capture later.
    """

    catalog: Catalog
    name: str
    on_truncate: OnTruncate = OnTruncate.ERROR
    brief: bool = False
    _sink: LogConsumer | None = field(default=None, init=False, repr=False)
    _log: TableLog | None = field(default=None, init=False, repr=False)
    _copy: LogFollower | None = field(default=None, init=False, repr=False)
    _opened: bool = field(default=False, init=False, repr=False)

    # -- opening ----------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        state: str,
        name: str,
        table: str = "",
        start: Start | None = None,
        on_truncate: OnTruncate = OnTruncate.ERROR,
    ) -> Reader:
        """The reader of that name, made where it does not exist and ``table`` is given.

        Args:
            state: directory or URL of the state.
            table: ``source.schema.table``; must be the reader's table.
            start: where a reader that is made begins; with a scan when not given.

        Raises:
            ChangefeedError: CF1101 there is no such reader; CF1302 it is another table's; CF1303 a
                changefeed of that name is no reader; else what CREATE CHANGEFEED says.
        """
        catalog = Catalog.open(state, must_exist=True)
        try:
            reader = cls(catalog, name, on_truncate)
            if catalog.find_job(name) is None:
                reader._create(table, start or Start())
            reader._check(table)
        except BaseException:
            catalog.close()
            raise
        return reader

    def _create(self, table: str, start: Start) -> None:
        if not table:
            raise ChangefeedError(
                Code.NAME_UNKNOWN,
                f'there is no reader "{self.name}"',
                hint="name its table, and it is made.",
            )
        named = table_name(table)
        directory = Path(self.catalog.directory).absolute() / READERS / folder_name(self.name)
        options = [f"initial_scan = '{'yes' if start.scan else 'no'}'"]
        if start.after is not None:
            options.append(f"cursor = '{start.after}'")
        target = ".".join(name_sql(part) for part in (named.source, named.schema, named.name))
        interpreter = Interpreter(self.catalog)
        interpreter.execute(
            f"CREATE CHANGEFEED IF NOT EXISTS {name_sql(self.name)} FOR TABLE {target} "
            f"INTO 'reader://{quote(str(directory))}' WITH {', '.join(options)}",
            Session(client="reader"),
        )

    def _check(self, table: str) -> None:
        found = self.progress().table
        if table and table_name(table) != found:
            raise ChangefeedError(
                Code.TARGET_NOT_WATCHABLE,
                f'reader "{self.name}" reads {found}, not {table}',
                hint="give each table a reader of its own.",
            )
        # Whether it is a reader at all.
        self.sink()

    # -- the changefeed ---------------------------------------------------------------------

    def job(self) -> Job:
        """The reader's changefeed, which was not dropped.

        Raises:
            ChangefeedError: CF1101 it was dropped; its own error where it has failed.
        """
        job = self.catalog.find_job(self.name)
        if job is None or job.wanted is DesiredStatus.DROPPED or job.status is Status.DROPPED:
            raise ChangefeedError(Code.NAME_UNKNOWN, f'reader "{self.name}" was dropped')
        if job.status is Status.FAILED:
            raise ChangefeedError(
                job.error_code or Code.INTERNAL_ERROR,
                f'reader "{self.name}" has failed: {job.error or job.reason}',
                hint=job.hint or "",
            )
        return job

    def progress(self) -> TableProgress:
        """The reader's table.

        Raises:
            ChangefeedError: as :meth:`job`; the table's own error where it has failed.
        """
        tables = self.catalog.tables(self.job().id)
        if len(tables) != 1:
            raise ChangefeedError(
                Code.NOT_SUPPORTED, f'changefeed "{self.name}" has {len(tables)} tables'
            )
        if tables[0].state is TableState.FAILED:
            raise ChangefeedError(
                tables[0].error_code or Code.INTERNAL_ERROR,
                f'reader "{self.name}" has failed: {tables[0].error}',
            )
        return tables[0]

    def sink(self) -> LogConsumer:
        """The place that feed and reader share.

        Raises:
            ChangefeedError: CF1303 the changefeed is no reader.
        """
        if self._sink is None:
            uri = self.job().sink_uri
            sink = open_sink(self.catalog.resolve_uri(uri)) if uri else None
            if sink is None or not sink.capabilities.pulled:
                raise ChangefeedError(
                    Code.NOT_SUPPORTED,
                    f'changefeed "{self.name}" is no reader: it delivers to a sink',
                    hint="choose another name for the reader.",
                )
            self._sink = sink.pull()
        return self._sink

    def log(self) -> TableLog:
        """The reader's table in the change log; a shared log is followed until :meth:`close`.

        Raises:
            ChangefeedError: as :meth:`changefeed.shared_logs.FollowedLogs.open`.
        """
        if self._log is None:
            source = self.job().source
            if self.catalog.log_place is not None and (
                not self.brief or is_elsewhere(self.catalog, source)
            ):
                self._copy = followed_logs().open(self.catalog, source)
            local = StateLayout(Path(self.catalog.directory)).log(source)
            self._log = TableLog(
                self._copy.root if self._copy is not None else local.absolute(),
                selection_of(self.progress()),
                self.on_truncate,
            )
        return self._log

    @property
    def follows(self) -> bool:
        """Whether the log is a copy that goes with :meth:`close`."""
        return self._copy is not None

    def schema(self) -> TableSchema:
        """The newest shape of the table that the log has announced, as the reader selects it.

        Raises:
            ChangefeedError: the source cannot be asked for the shape of a table nobody has read.
        """
        return announced_shape(self.catalog, selection_of(self.progress()))

    def trouble(self) -> ChangefeedError | None:
        """Why the feed makes no progress now, if it has said so.

        Raises:
            ChangefeedError: as :meth:`progress`.
        """
        self.progress()
        job = self.job()
        source = self.catalog.source_state(job.source)
        if job.error:
            message, code, hint = job.error, Code.stored(job.error_code), job.hint
        else:
            message, code, hint = source.error, Code.stored(source.error_code), ""
        if not message:
            return None
        return ChangefeedError(
            code or Code.INTERNAL_ERROR,
            f'reader "{self.name}" has not begun: {message}',
            hint=hint or (code.hint if code else ""),
        )

    def check(self) -> None:
        """Whether the reader may read on.

        Raises:
            ChangefeedError: as :meth:`progress`; CF1303 the table was scanned again since the
                reader began.
        """
        self.progress()
        if not self._ours():
            return
        scan, committed = self.sink().scanned(), self.consumer_progress().committed
        if scan is not None and committed is not None and committed < scan.at:
            raise ChangefeedError(
                Code.NOT_SUPPORTED,
                f'the table of reader "{self.name}" was scanned again at {scan.at}',
                hint="make another reader: changes before that may be missing in this one.",
            )

    # -- how far it is ----------------------------------------------------------------------

    @property
    def paused(self) -> bool:
        """Whether a statement stopped the reader for now."""
        job = self.job()
        return job.wanted is DesiredStatus.PAUSED or job.status is Status.PAUSED

    def begun(self) -> Timestamp | None:
        """Where changes begin: the instant of the scan, or the place the feed was given; None
        while the node has not got there."""
        progress = self.progress()
        if not self._ours():
            return None
        if progress.scan_wanted or progress.state is not TableState.RUNNING:
            return None
        scan = self.sink().scanned()
        return scan.at if scan is not None else progress.done_upto

    def consumer_progress(self) -> ConsumerProgress:
        """How far the reader is, as it is shared with the feed."""
        return self.sink().consumer() if self._ours() else ConsumerProgress()

    def _ours(self) -> bool:
        """Whether the feed has opened the place; before, it has what a dropped reader left."""
        if not self._opened:
            self._opened = self.sink().belongs(self.catalog.state_id, self.job().id)
        return self._opened

    def occupy(self) -> None:
        """Keep other processes from reading as this reader.

        Raises:
            ChangefeedError: CF1301, one does.
        """
        self.sink().occupy(OCCUPY_SECONDS)

    def commit(self, upto: Timestamp) -> None:
        """Everything at or below ``upto`` is done with: the log need not keep it."""
        progress = self.consumer_progress()
        if progress.committed is None or progress.committed < upto:
            self.sink().move(
                replace(progress, committed=upto, planned=_later(progress.planned, upto))
            )

    def plan(self, upto: Timestamp) -> None:
        """Work up to ``upto`` may begin; said before it does."""
        progress = self.consumer_progress()
        if progress.planned is None or progress.planned < upto:
            self.sink().move(replace(progress, planned=upto))

    def idle(self, upto: Timestamp) -> None:
        """The log has nothing for the reader between what was committed and ``upto``."""
        progress = self.consumer_progress()
        if progress.committed is not None and (progress.idle is None or progress.idle < upto):
            self.sink().move(replace(progress, idle=upto))

    def resting(self, after: Timestamp) -> Timestamp:
        """Where reading on from ``after`` begins: further on, where the log is known to have
        nothing for the reader in between (the log may no longer go back to ``after``)."""
        progress = self.consumer_progress()
        if progress.committed is None or progress.idle is None or after < progress.committed:
            return after
        return max(after, progress.idle)

    def work(
        self, after: Timestamp | None, upto: Timestamp, schema: TableSchema | None = None
    ) -> TableRanges:
        """What is to be read above ``after``, up to ``upto``; ``None`` is the begin, scan and all.

        Raises:
            ChangefeedError: CF3002 the log does not go back so far.
        """
        if after is not None:
            return self.log().span(self.resting(after), upto, schema)
        begun = self.begun()
        if begun is None:
            raise ChangefeedError(Code.WRONG_JOB_STATE, f'reader "{self.name}" has not begun yet')
        scan = self.sink().scanned()
        span = self.log().span(begun, upto, schema)
        if scan is None:
            return span
        ranges = (*self._scan_ranges(scan, schema), *span.ranges)
        return TableRanges(ranges, span.upto, (scan.schema, *span.versions), span.changes)

    def _scan_ranges(self, scan: ScanFiles, schema: TableSchema | None) -> list[Range]:
        log = self.log()
        return [
            Range(
                log.root,
                log.selection,
                schema,
                scan.at,
                scan.at,
                files=scan.files[i : i + SCAN_FILES],
                proofs=scan.proofs[i : i + SCAN_FILES],
                version=scan.schema,
                rows=scan.rows,
            )
            for i in range(0, len(scan.files), SCAN_FILES)
        ]

    def close(self) -> None:
        """Close state and log, and let another process read."""
        if self._sink is not None:
            self._sink.leave()
        if self._log is not None:
            self._log.close()
        if self._copy is not None:
            followed_logs().close(self._copy)
            self._copy = None
        self.catalog.close()


def selection_of(progress: TableProgress) -> Selection:
    """Which rows and columns a feed has of a table."""
    return Selection(
        progress.table,
        progress.columns,
        progress.values_from,
        progress.values_to,
        progress.partition,
    )


def announced_shape(catalog: Catalog, selection: Selection) -> TableSchema:
    """The newest shape of a table that the log has announced, else the one at the source.

    Raises:
        ChangefeedError: CF1101 there is no such source or table.
    """
    name = selection.table
    whole = catalog.announced_schema(name)
    if whole is None:
        uri = catalog.connection(name.source).uri
        whole = Interpreter(catalog).open_source(name.source, uri).describe(name.schema, name.name)
    return selection.of(whole).schema


def table_name(text: str) -> TableName:
    """``source.schema.table``, each part in double quotes where it needs them.

    Raises:
        ChangefeedError: CF1101, it has not three parts.
    """
    names = table_parts(text)
    if len(names) != 3:
        raise ChangefeedError(
            Code.NAME_UNKNOWN,
            f"{text!r} does not name a table of a source",
            hint="write connection.schema.table, for example shop.public.orders.",
        )
    return TableName(*names)


def folder_name(name: str, safe: str = "") -> str:
    """The name of a folder for whatever is called ``name``; ``safe`` stays as it is."""
    folder = quote(name, safe=safe)
    # . and .. are other folders.
    return folder if folder.strip(".") else folder.replace(".", "%2E")


def table_parts(text: str) -> list[str]:
    """The parts of a name with dots, without their quotes; none if it is malformed."""
    parts = [part.group() for part in _PART.finditer(text)]
    names = [p[1:-1].replace('""', '"') if p.startswith('"') else p.strip() for p in parts]
    return names if ".".join(parts) == text and all(names) else []


def moment(text: str, option: str) -> Timestamp:
    """A time as an option has it: ISO 8601, in UTC where it names no zone.

    Raises:
        ChangefeedError: CF1204.
    """
    try:
        return Timestamp.from_datetime(dt.datetime.fromisoformat(text))
    except ValueError as cause:
        raise ChangefeedError(
            Code.INVALID_OPTION_VALUE,
            f"option {option}: {text!r} is no time",
            hint="write it as 2026-11-22T21:00:00Z.",
        ) from cause


def version(text: str, option: str) -> Timestamp:
    """A commit version as ``_commit_version`` shows it.

    Raises:
        ChangefeedError: CF1204.
    """
    try:
        return Timestamp.parse(text)
    except ValueError as cause:
        raise ChangefeedError(
            Code.INVALID_OPTION_VALUE,
            f"option {option}: {text!r} is no commit version",
            hint="take one from _commit_version, for example 1536242855577149065.0000000000.",
        ) from cause


def _later(one: Timestamp | None, other: Timestamp) -> Timestamp:
    return other if one is None else max(one, other)

"""What we hold at each source, which database it is, how far its log is, and what the log lacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from sqlalchemy import Connection as Transaction
from sqlalchemy import Row, delete, insert, select, update

from changefeed.catalog import tables
from changefeed.catalog.database import CatalogPart, named
from changefeed.catalog.leases import check_source
from changefeed.catalog.model import TableProgress
from changefeed.catalog.rows import CaptureNews, Gap, SourceLease, SourceState
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Frontier, Position
from changefeed.core.schema import TableName

_table = tables.source_state
_captured = tables.captured
_names = tables.table_name
_progress = tables.job_table
_gaps = tables.gap
_news = tables.capture_news


def begin_source(transaction: Transaction, name: str, memo: Mapping[str, Any], now: int) -> None:
    """Write down what is to be held at a source, at which nothing is held yet.

    Raises:
        ChangefeedError: CF1303 another feed of the source came first.
    """
    row = transaction.execute(select(_table).where(_table.c.name == name)).one_or_none()
    state = _state(row) if row else SourceState(name)
    if state.memo or state.identity:
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            f"another feed of source {name!r} began just now",
            hint="run the statement again.",
        )
    save(transaction, name, now, memo=memo)


def save(transaction: Transaction, name: str, now: int, **given: Any) -> None:
    """Change the given fields of a source's row, in a transaction that is open; make the row where
    there is none."""
    state = SourceState(name, **given, updated=now)
    columns = {field.name: getattr(state, field.name) for field in fields(state)}
    changed = {key: columns[key] for key in (*given, "updated")}
    done = transaction.execute(update(_table).where(_table.c.name == name).values(changed))
    if not done.rowcount:
        transaction.execute(insert(_table).values(columns))


class Sources(CatalogPart):
    """Part of :class:`changefeed.catalog.Catalog`."""

    def source_state(self, name: str) -> SourceState:
        """The row of a source; an empty one when it never had feeds."""
        with self._database.read() as transaction:
            row = transaction.execute(select(_table).where(_table.c.name == name)).one_or_none()
        return _state(row) if row else SourceState(name)

    def source_states(self) -> list[SourceState]:
        """All sources we hold something at, by name."""
        with self._database.read() as transaction:
            rows = transaction.execute(select(_table).order_by(_table.c.name))
            return [_state(row) for row in rows]

    def save_source_state(
        self,
        name: str,
        *,
        memo: Mapping[str, Any] | None = None,
        holds: str | None = None,
        identity: str | None = None,
        status: str | None = None,
        error: str | None = None,
        error_code: str | None = None,
        position: Position | None = None,
        frontier: Timestamp | None = None,
        renewal: bool | None = None,
    ) -> SourceState:
        """Change the fields that are given (None leaves one as it is, an empty value empties it).

        Nothing is written when nothing differs; the change counter rises when anything but
        position and frontier does.
        """
        given: dict[str, Any] = {
            "memo": memo,
            "holds": holds,
            "identity": identity,
            "status": status,
            "error": error,
            "error_code": error_code,
            "position": position,
            "frontier": frontier,
            "renewal": renewal,
        }
        given = {key: value for key, value in given.items() if value is not None}
        old = self.source_state(name)
        new = replace(old, **given)
        if new == old and old.updated:
            return old
        quiet = old.updated != 0 and new == replace(
            old, position=new.position, frontier=new.frontier
        )
        with self._database.write(notify=not quiet) as transaction:
            # These columns alone: other threads and processes save others at the same time.
            save(transaction, name, self._now(), **given)
            return _state(transaction.execute(select(_table).where(_table.c.name == name)).one())

    def save_frontier(self, name: str, frontier: Frontier) -> None:
        """Save how far the log of a source reaches, unless the source was forgotten meanwhile."""
        reached = {"position": frontier.position, "frontier": frontier.at, "updated": self._now()}
        with self._database.write(notify=False) as transaction:
            transaction.execute(update(_table).where(_table.c.name == name).values(reached))

    def forget_source(self, name: str) -> None:
        """Forget what we held at a source, once nothing is left there."""
        with self._database.write() as transaction:
            transaction.execute(delete(_table).where(_table.c.name == name))
            transaction.execute(delete(_captured).where(_captured.c.source == name))
            transaction.execute(delete(_gaps).where(_gaps.c.source == name))
            transaction.execute(delete(_names).where(_names.c.source == name))
            transaction.execute(delete(_news).where(_news.c.source == name))

    def forget_log(self, name: str) -> None:
        """The change log of a source is to begin again, maybe on another server.

        A table whose progress is to be found by a position in the old log begins where that log
        ended: it meets the gap when it goes on, as the others do.
        """
        end = self.source_state(name).frontier or Timestamp.ZERO
        waiting = (
            (_progress.c.source == name)
            & _progress.c.scan_wanted.is_(False)
            & _progress.c.start.is_not(None)
            & _progress.c.done_upto.is_(None)
        )
        with self._database.write() as transaction:
            transaction.execute(delete(_captured).where(_captured.c.source == name))
            transaction.execute(delete(_names).where(_names.c.source == name))
            transaction.execute(update(_progress).where(waiting).values(done_upto=end))
            transaction.execute(
                update(_table).where(_table.c.name == name).values(identity="", position="")
            )

    def captured(self, source: str) -> dict[TableName, Timestamp]:
        """Tables the source agreed to send: every later commit to one reaches the log.

        The value is the log timestamp since when; :attr:`Timestamp.ZERO` is the log's begin.
        """
        with self._database.read() as transaction:
            rows = transaction.execute(select(_captured).where(_captured.c.source == source))
            return {TableName(row.source, row.schema, row.name): row.since for row in rows}

    def captured_table_ids(self, source: str) -> dict[TableName, int]:
        """Like :meth:`captured`: which table each name stood for, 0 where that is not known."""
        with self._database.read() as transaction:
            rows = transaction.execute(select(_captured).where(_captured.c.source == source))
            return {TableName(row.source, row.schema, row.name): row.table_id for row in rows}

    def set_captured(
        self,
        source: str,
        tables: Mapping[TableName, Timestamp],
        ids: Mapping[TableName, int] | None = None,
    ) -> None:
        """Make the captured tables exactly these; one that was captured keeps its time.

        Another table under the same name (by ``ids``) is captured from the new time on, the same
        one under another name from the time that it had.
        """
        wanted = {table: (ids or {}).get(table, 0) for table in tables}
        known, before = self.captured(source), self.captured_table_ids(source)
        if before == wanted:
            return
        earlier = {table_id: known[table] for table, table_id in before.items() if table_id}
        kept = {
            table: known[table]
            for table, table_id in wanted.items()
            if before.get(table) in (0, table_id)
        }
        kept = {t: earlier[i] for t, i in wanted.items() if i in earlier} | kept
        with self._database.write() as transaction:
            transaction.execute(delete(_captured).where(_captured.c.source == source))
            for table, since in tables.items():
                transaction.execute(
                    insert(_captured).values(
                        source=source,
                        schema=table.schema,
                        name=table.name,
                        since=kept.get(table, since),
                        table_id=wanted[table],
                    )
                )

    def capture_news(self) -> dict[str, CaptureNews]:
        """What the node that captures each source said last."""
        with self._database.read() as transaction:
            return {row.source: row.news for row in transaction.execute(select(_news))}

    def save_capture_news(self, lease: SourceLease, news: CaptureNews) -> None:
        """Say what nodes that run feeds of a source must know of its capture.

        Raises:
            ChangefeedError: CF6003, another node captures it.
        """
        with self._database.write() as transaction:
            check_source(transaction, lease)
            transaction.execute(delete(_news).where(_news.c.source == lease.source))
            transaction.execute(insert(_news).values(source=lease.source, news=news))

    def gaps(self, source: str) -> dict[TableName, Gap]:
        """The last gap of each table of a source that had one."""
        with self._database.read() as transaction:
            rows = transaction.execute(select(_gaps).where(_gaps.c.source == source))
            return {gap.table: gap for gap in map(_gap, rows)}

    def add_gaps(self, reasons: Mapping[TableName, str]) -> dict[TableName, Gap]:
        """Write down that changes of tables may be missing; the gaps."""
        if not reasons:
            return {}
        now = self._now()
        found = {table: Gap(table, now, reason) for table, reason in reasons.items()}
        with self._database.write() as transaction:
            for table, gap in found.items():
                transaction.execute(delete(_gaps).where(named(_gaps, table)))
                transaction.execute(
                    insert(_gaps).values(
                        source=table.source,
                        schema=table.schema,
                        name=table.name,
                        at=gap.at,
                        reason=gap.reason,
                    )
                )
        return found


def _state(row: Row[Any]) -> SourceState:
    return SourceState(**row._mapping)


def concerns(gap: Gap, table: TableProgress) -> bool:
    """The feed has not heard of the gap, and had begun with the table before it was found."""
    return gap.at > max(table.gap, table.added_at, table.rescan)


def _gap(row: Row[tuple[str, str, str, int, str]]) -> Gap:
    return Gap(TableName(row.source, row.schema, row.name), row.at, row.reason)

"""What we hold at each source: slot, publication, identity, and how far its log is."""

from __future__ import annotations

import re
from dataclasses import replace
from hashlib import sha256
from typing import Any

from sqlalchemy import Row, delete, insert, select, update

from changefeed.catalog import tables
from changefeed.catalog.rows import SourceState
from changefeed.catalog.store import Store, stamp_of, stamp_text
from changefeed.jobs.model import Status

#: PostgreSQL cuts names longer than this.
_NAME_MAX = 63

_table = tables.source_state


class Sources(Store):
    """Part of :class:`changefeed.catalog.Catalog`."""

    def slot_name(self, source: str) -> str:
        """The name of slot and publication of a source: ``changefeed_<state id>_<source>``.

        Lower-case letters, digits and ``_``, at most 63; two sources never share one.
        """
        clean = re.sub(r"[^a-z0-9_]", "_", source.lower())
        name = f"changefeed_{self._database.state_id}_{clean}"
        if clean == source and len(name) <= _NAME_MAX:
            return name
        digest = sha256(source.encode()).hexdigest()[:8]
        return f"{name[: _NAME_MAX - 9]}_{digest}"

    def source_state(self, name: str) -> SourceState | None:
        """The row of a source, None when it never had feeds."""
        with self._database.read() as transaction:
            row = transaction.execute(select(_table).where(_table.c.name == name)).one_or_none()
        return _state(row) if row else None

    def source_states(self) -> list[SourceState]:
        """All sources we hold something at, by name."""
        with self._database.read() as transaction:
            return [_state(row) for row in transaction.execute(select(_table).order_by("name"))]

    def save_source_state(self, state: SourceState, *, notify: bool | None = None) -> SourceState:
        """Insert or replace the row; gives it with ``updated`` set.

        The change counter rises when anything but position and frontier changed, unless
        ``notify`` says otherwise.
        """
        state = replace(state, updated=self._now())
        values = {
            "slot": state.slot,
            "publication": state.publication,
            "system_id": state.system_id,
            "status": state.status,
            "error": state.error,
            "error_code": state.error_code,
            "position": state.position,
            "frontier": stamp_text(state.frontier),
            "updated": state.updated,
        }
        if notify is None:
            old = self.source_state(state.name)
            notify = old is None or state != replace(
                old, position=state.position, frontier=state.frontier, updated=state.updated
            )
        with self._database.write(notify=notify) as transaction:
            changed = transaction.execute(
                update(_table).where(_table.c.name == state.name).values(**values)
            )
            if not changed.rowcount:
                transaction.execute(insert(_table).values(name=state.name, **values))
        return state

    def delete_source_state(self, name: str) -> None:
        """Forget the row, once slot and publication are gone."""
        with self._database.write() as transaction:
            transaction.execute(delete(_table).where(_table.c.name == name))

    def orphan_sources(self) -> list[SourceState]:
        """Sources that hold a slot no feed needs: left by a crash between two steps."""
        job = tables.job
        needed = select(job.c.source).where(
            job.c.status.not_in([Status.DROPPED.value, Status.SUCCEEDED.value])
        )
        with self._database.read() as transaction:
            rows = transaction.execute(
                select(_table).where(_table.c.name.not_in(needed)).order_by(_table.c.name)
            )
            return [_state(row) for row in rows]


def _state(row: Row[Any]) -> SourceState:
    return SourceState(
        name=row.name,
        slot=row.slot,
        publication=row.publication,
        system_id=row.system_id,
        status=row.status,
        error=row.error,
        error_code=row.error_code,
        position=row.position,
        frontier=stamp_of(row.frontier),
        updated=row.updated,
    )

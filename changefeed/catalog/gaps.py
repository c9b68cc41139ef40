"""Tables of which changes may be missing in the change log, until every feed of them knows."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Row, delete, insert, select

from changefeed.catalog import tables
from changefeed.catalog.model import TableProgress
from changefeed.catalog.rows import Gap
from changefeed.catalog.store import CatalogPart
from changefeed.core.schema import TableName

_table = tables.gap


class Gaps(CatalogPart):
    """Part of :class:`changefeed.catalog.Catalog`."""

    def gaps(self, source: str) -> dict[TableName, Gap]:
        """The last gap of each table of a source that had one."""
        with self._database.read() as transaction:
            rows = transaction.execute(select(_table).where(_table.c.source == source))
            return {gap.table: gap for gap in map(_gap, rows)}

    def add_gaps(self, reasons: Mapping[TableName, str]) -> dict[TableName, Gap]:
        """Write down that changes of tables may be missing; the gaps."""
        if not reasons:
            return {}
        now = self._now()
        found = {table: Gap(table, now, reason) for table, reason in reasons.items()}
        with self._database.write() as transaction:
            for table, gap in found.items():
                here = (
                    (_table.c.source == table.source)
                    & (_table.c.schema == table.schema)
                    & (_table.c.name == table.name)
                )
                transaction.execute(delete(_table).where(here))
                transaction.execute(
                    insert(_table).values(
                        source=table.source,
                        schema=table.schema,
                        name=table.name,
                        at=gap.at,
                        reason=gap.reason,
                    )
                )
        return found


def concerns(gap: Gap, table: TableProgress) -> bool:
    """The feed has not heard of the gap, and had begun with the table before it was found."""
    return gap.at > max(table.gap, table.added_at, table.rescan)


def _gap(row: Row[tuple[str, str, str, int, str]]) -> Gap:
    return Gap(TableName(row.source, row.schema, row.name), row.at, row.reason)

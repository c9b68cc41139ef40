"""The tables of a source whose row images its feeds want: ``row_images = 'store'``."""

from __future__ import annotations

from changefeed.catalog import Catalog
from changefeed.catalog.model import DesiredStatus
from changefeed.core.schema import TableName
from changefeed.options import ROW_IMAGES_MAX_DISK, Options


class ImageDemand:
    """The wanted tables (:data:`.states.Wanted`), read again after each change of the state."""

    def __init__(self, catalog: Catalog, source: str) -> None:
        self._catalog = catalog
        self._source = source
        self._version: object = None
        self._known: dict[TableName, int | None] = {}

    def __call__(self) -> dict[TableName, int | None]:
        """The tables. The highest of several limits applies; no limit is the highest."""
        version = self._catalog.version()
        if version != self._version:
            self._known = self._read()
            self._version = version
        return self._known

    def _read(self) -> dict[TableName, int | None]:
        wanted: dict[TableName, int | None] = {}
        for job in self._catalog.source_jobs(self._source):
            options = Options.from_dict(job.options)
            if job.wanted is DesiredStatus.DROPPED or not options.stores_images:
                continue
            limit = options[ROW_IMAGES_MAX_DISK]
            for progress in self._catalog.tables(job.id):
                if progress.partition is not None and progress.partition.of_messages:
                    continue
                table = progress.table
                wanted[table] = _higher(wanted.get(table, limit), limit)
        return wanted


def _higher(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else max(one, other)

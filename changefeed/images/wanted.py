"""The tables of a source whose row images its feeds want: ``row_images = 'store'``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from changefeed.catalog import Catalog
from changefeed.catalog.database import CachedRead
from changefeed.catalog.model import DesiredStatus
from changefeed.core.schema import TableName
from changefeed.images.states import Wanted
from changefeed.options import ROW_IMAGES, ROW_IMAGES_MAX_DISK, Options


def wanted_images(catalog: Catalog, source: str) -> Callable[[], Wanted]:
    """A function that returns the wanted tables as of its call.

    The highest of several limits applies; no limit is the highest.
    """
    return CachedRead(catalog.version, partial(_read, catalog, source))


def _read(catalog: Catalog, source: str) -> Wanted:
    wanted: dict[TableName, int | None] = {}
    for job in catalog.source_jobs(source):
        # Few feeds have them, and this is read after each change of the state.
        if job.wanted is DesiredStatus.DROPPED or ROW_IMAGES.name not in job.options:
            continue
        options = Options.from_dict(job.options)
        if not options.stores_images:
            continue
        limit = options[ROW_IMAGES_MAX_DISK]
        for progress in catalog.tables(job.id):
            if progress.partition is not None and progress.partition.of_messages:
                continue
            table = progress.table
            wanted[table] = _higher(wanted.get(table, limit), limit)
    return wanted


def _higher(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else max(one, other)

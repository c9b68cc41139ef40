"""What a state holds at its sources: found again, made and released here, and nowhere else.

A source may keep log for us as long as we hold something there, so two rules are kept:

* The state knows of it before it is made. A crash in between leaves nothing that nobody removes.
* The change log goes before what is held. A log without it would count as one that was lost.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from changefeed.catalog import Catalog, SourceLease
from changefeed.core.schema import TableName
from changefeed.core.state import StateLayout
from changefeed.shared_logs import remove_shared_log
from changefeed.sources.base import Attachment, CaptureResult, Source


def attachment(catalog: Catalog, source: Source) -> Attachment:
    """What the state holds at ``source``, or will hold there. Does not connect."""
    return source.attach(catalog.state_id, catalog.source_state(source.name).memo or None)


def capture_tables(catalog: Catalog, source: Source, tables: Sequence[TableName]) -> CaptureResult:
    """Make the source keep its log for us, for exactly ``tables``, and save what is held.

    Every change of them that commits after this returned reaches the change log.

    Raises:
        ChangefeedError: the source refused, cannot be reached, or (CF2102) no longer keeps log
            that a feed needs.
    """
    state = catalog.source_state(source.name)
    held = source.attach(catalog.state_id, state.memo or None)
    if not state.memo:
        catalog.save_source_state(source.name, memo=held.memo, holds=held.holds)
    captured = held.capture(tables, resume=bool(state.identity))
    catalog.save_source_state(
        source.name,
        memo=held.memo,
        holds=held.holds,
        identity=state.identity or source.identity(),
    )
    return captured


def release(catalog: Catalog, source: Source, lease: SourceLease | None = None) -> None:
    """Remove the change log of a source and what is held there, and forget both. Idempotent.

    Args:
        lease: of the source, of a node that has it.

    Raises:
        ChangefeedError: the source cannot be asked; the state still knows what is held.
        OSError: the log cannot be removed.
    """
    remove_log(catalog, source.name, lease)
    if catalog.source_state(source.name).memo:
        attachment(catalog, source).release()
    catalog.forget_source(source.name)


def begin_again(catalog: Catalog, source: Source, lease: SourceLease | None = None) -> None:
    """Remove the change log of a source and what is held there, for a new log to follow.
    ``lease`` as of :func:`release`.

    Raises:
        ChangefeedError: the source cannot be asked; the state still knows what is held.
        OSError: the log cannot be removed.
    """
    catalog.forget_log(source.name)
    remove_log(catalog, source.name, lease)
    if catalog.source_state(source.name).memo:
        attachment(catalog, source).release()
        catalog.save_source_state(source.name, memo={}, holds="")


def remove_log(catalog: Catalog, name: str, lease: SourceLease | None = None) -> None:
    """Remove the change log of a source, and what is kept beside it. ``lease`` as of
    :func:`release`.

    Raises:
        ChangefeedError: CF6003, a node has the source of a shared log, and ``lease`` is not its.
        OSError: it cannot be removed.
    """
    remove_shared_log(catalog, name, lease)
    layout = StateLayout(Path(catalog.directory))
    beside = layout.spool(name), layout.beside_log(name), layout.images(name)
    for folder in (layout.log(name), *beside):
        if folder.exists():
            shutil.rmtree(folder)

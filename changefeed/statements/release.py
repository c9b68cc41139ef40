"""What we hold at a source goes with its last feed."""

from __future__ import annotations

from changefeed.attachments import release
from changefeed.catalog import SourceState
from changefeed.core.errors import ChangefeedError
from changefeed.statements import datasets
from changefeed.statements.context import Context


def leave_source(name: str, context: Context) -> list[str]:
    """:func:`forget_source`; with it goes the connection that FOR DATASET made."""
    notices = forget_source(name, context)
    if not notices:
        datasets.forget_connection(name, context)
    return notices


def forget_source(name: str, context: Context) -> list[str]:
    """Remove what changefeed holds at a source that no feed needs; a node does it by itself.

    Returns:
        Notices about what could not be removed yet.
    """
    catalog = context.catalog

    def gone() -> bool:
        state = catalog.source_state(name)
        return not state.updated or bool(catalog.source_jobs(name))

    if context.host.node_running():
        if context.wait(gone, context.timings.answer):
            return []
        return [_left_behind(catalog.source_state(name))]
    if gone():
        return []
    state = catalog.source_state(name)
    try:
        release(catalog, context.source(name))
    except ChangefeedError as error:
        catalog.save_source_state(name, error=error.message, error_code=error.code.number)
        return [f"{_left_behind(state)}: {error.message}"]
    except OSError as error:
        return [f"cannot remove the change log of {name}: {error.strerror}"]
    return []


def _left_behind(state: SourceState) -> str:
    return (
        f"source {state.name} still keeps its log for {state.holds}; "
        "the next node removes it as soon as it can reach the source"
    )

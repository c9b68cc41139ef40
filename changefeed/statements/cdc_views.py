"""SHOW CDC STREAMS, SHOW CDC SUBSCRIBERS: the tables of YugabyteDB's design as views of our state.

A stream is a feed that CREATE CDC made. Its subscribers are its tables: where YugabyteDB reads
tablet by tablet, we read a source's log once.
"""

from __future__ import annotations

import json

from changefeed.catalog import Job
from changefeed.plan.cdc import is_cdc
from changefeed.statements.context import Context, Result, handles
from changefeed.statements.values import Cell
from grammar import nodes

STREAM_COLUMNS = ("stream_id", "params")
SUBSCRIBER_COLUMNS = ("stream_id", "subscriber_id", "tablet_id", "data")


@handles(nodes.ShowCdc)
def show_cdc(statement: nodes.ShowCdc, context: Context) -> Result:
    """The rows of ``cdc_streams`` or of ``cdc_subscribers``."""
    jobs = sorted((job for job in context.catalog.jobs() if is_cdc(job.name)), key=lambda j: j.id)
    if statement.aspect == "streams":
        streams: list[tuple[Cell, ...]] = [(str(job.id), _params(job)) for job in jobs]
        return Result(columns=STREAM_COLUMNS, rows=streams)
    subscribers = [row for job in jobs for row in _subscribers(job, context)]
    return Result(columns=SUBSCRIBER_COLUMNS, rows=subscribers)


def _params(job: Job) -> str:
    """What the stream was made with; no secrets."""
    given = {
        "feed": job.name,
        "source": job.source,
        "status": str(job.status),
        "table": ", ".join(job.targets),
        "target": job.redacted_sink_uri,
    }
    options = {name: text for name, text in job.options.items() if name in _SHOWN}
    return json.dumps({**given, **options}, sort_keys=True)


#: Options that CREATE CDC makes of ``record``.
_SHOWN = ("diff", "envelope")


def _subscribers(job: Job, context: Context) -> list[tuple[Cell, ...]]:
    holder = context.catalog.lease_holder(job.id) or ""
    rows: list[tuple[Cell, ...]] = []
    for progress in context.catalog.tables(job.id):
        data = {
            "checkpoint": "" if progress.done_upto is None else str(progress.done_upto),
            "emitted_rows": str(progress.emitted_rows),
            "state": str(progress.state),
            "topic": progress.topic,
        }
        rows.append((str(job.id), holder, str(progress.table), json.dumps(data, sort_keys=True)))
    return rows

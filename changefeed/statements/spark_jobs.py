"""SHOW CHANGEFEED f JOBS: what Spark does for a feed, and did last."""

from __future__ import annotations

from changefeed.catalog import Job
from changefeed.statements.context import Context, Result
from changefeed.statements.times import moment
from changefeed.statements.values import Cell, Rate, Seconds, Size

COLUMNS = (
    "spark_job",
    "table",
    "step",
    "status",
    "tasks",
    "tasks_done",
    "tasks_failed",
    "started",
    "duration",
    "read_rows",
    "read_bytes",
    "written_rows",
    "written_bytes",
)


def listing(job: Job, context: Context) -> Result:
    """Of the Spark of the node that has the feed; starts no Spark."""
    now = context.clock.now().wall
    found = context.host.spark_jobs(job.id, context.catalog.lease_holder(job.id))
    rows: list[tuple[Cell, ...]] = [
        (
            each.id,
            each.table or None,
            each.step,
            each.status,
            each.tasks,
            each.done,
            each.failed,
            moment(each.started, now),
            Seconds(max(0, (each.ended or now) - each.started) / 1e9),
            Rate(each.read_rows),
            Size(each.read_bytes),
            Rate(each.written_rows),
            Size(each.written_bytes),
        )
        for each in found.jobs
    ]
    return Result(columns=COLUMNS, rows=rows, notices=[found.idle] if found.idle else [])

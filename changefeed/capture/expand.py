"""Tables made after a SCHEMA or DATABASE feed join it."""

from __future__ import annotations

from changefeed.catalog import Catalog, Job
from changefeed.catalog.model import Status
from changefeed.core.errors import ChangefeedError
from changefeed.core.schema import TableName
from changefeed.options import INITIAL_SCAN, InitialScan
from changefeed.plan.build import table_stages
from changefeed.plan.sink_resolution import job_options
from changefeed.plan.targets import Found, matching, parse_targets
from changefeed.sources.base import Source
from grammar import nodes


def expand_job(catalog: Catalog, job: Job, source: Source) -> list[str]:
    """Let tables made since join a feed of a SCHEMA or DATABASE; gives their names.

    They are scanned: all their rows came after the feed began. A feed that only scans, or
    has ended, takes no more. A table that cannot be described now waits for the next call.
    """
    if not job.has_patterns or job.status in (Status.SUCCEEDED, Status.FAILED, Status.DROPPED):
        return []
    sink, options = job_options(catalog, job)
    if options[INITIAL_SCAN] is InitialScan.ONLY:
        return []
    watched = {table.table for table in catalog.tables(job.id)}
    found: dict[TableName, Found] = {}
    for target in parse_targets(job.targets):
        if isinstance(target, nodes.TableTarget):
            continue
        for name in matching(target, source):
            if name in watched or name in found:
                continue
            try:
                schema = source.describe(name.schema, name.name)
            except ChangefeedError as error:
                # Dropped again meanwhile, or not for us: it is not part of the feed yet.
                catalog.record_event(
                    job.id, "notice", error.message, table=str(name), code=error.code.number
                )
                continue
            found[name] = Found(target, schema, joined=True)
    if not found:
        return []
    stages = table_stages(
        list(found.values()), source, sink, options, scan=InitialScan.YES, start=None
    )
    catalog.add_tables(job.id, [stage.progress for stage in stages])
    return [str(name) for name in found]

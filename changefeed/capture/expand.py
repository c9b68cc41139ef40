"""Adds new tables to feeds of a SCHEMA or DATABASE, once they pass the checks of CREATE."""

from __future__ import annotations

from collections.abc import Sequence

from changefeed.attachments import attachment
from changefeed.catalog import Catalog, Job
from changefeed.catalog.model import Status, TableProgress, TableState
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableName
from changefeed.options import INITIAL_SCAN, InitialScan, Options
from changefeed.plan.sink_resolution import ResolvedSink, job_options
from changefeed.plan.tables import check_table, table_stages
from changefeed.plan.target_names import clashes, topics_of
from changefeed.plan.targets import ResolvedTarget, matching, parse_targets
from changefeed.sources.base import Attachment, Source, Watch
from grammar import nodes


def expand_job(catalog: Catalog, job: Job, source: Source) -> list[str]:
    """Add new tables to a feed of a SCHEMA or DATABASE; returns their names.

    The feed scans them, because all their rows are newer than the feed. A feed that only scans, or
    has ended, gets no new tables. A table that cannot be described now waits for the next call. A
    table that CREATE would refuse becomes a failed table of the feed with the reason; the first
    call that finds its problem solved adds it.
    """
    if not job.has_patterns or job.status in (Status.SUCCEEDED, Status.FAILED, Status.DROPPED):
        return []
    sink, options = job_options(catalog, job)
    if options[INITIAL_SCAN] is InitialScan.ONLY:
        return []
    tables = catalog.tables(job.id)
    refused = {t.table for t in tables if _refused_before(t)}
    # A table that the feed names may have been renamed: the feed will follow it, so it is not new.
    named = {t.table_id for t in tables if t.table_id and not t.joined}
    taken = {t.table for t in tables} | {t.known_as for t in tables}
    found = {
        name: planned
        for name, planned in _fitting(catalog, job, source, taken - refused).items()
        if planned.schema.table_id not in named
    }
    if not found:
        return []
    problems = _problems(list(found.values()), attachment(catalog, source), options)
    held = {t.table: t.topic for t in tables if t.table not in found}
    wanted = {name: None for name in found if name not in problems}
    topics = topics_of(wanted, sink, options, source.database)
    problems |= clashes(topics, sink, options, held=held, catalog=catalog, job=job.id)
    fresh = [planned for name, planned in found.items() if name not in refused]
    _add(catalog, job, source, sink, options, fresh, problems)
    mended = [name for name in found if name in refused and name not in problems]
    if mended:
        catalog.retry_tables(job.id, mended)
    joined = [planned.schema.table for planned in fresh if planned.schema.table not in problems]
    return [str(name) for name in (*joined, *mended)]


def _refused_before(table: TableProgress) -> bool:
    failed = table.state is TableState.FAILED and table.error_code in _REFUSALS
    return failed and table.never_began


#: What the checks of CREATE say of one table.
_REFUSALS = frozenset(
    {
        Code.NAME_UNKNOWN,
        Code.TARGET_NOT_WATCHABLE,
        Code.SOURCE_NOT_SET_UP,
        Code.SOURCE_PERMISSION_MISSING,
    }
)


def _fitting(
    catalog: Catalog, job: Job, source: Source, watched: set[TableName]
) -> dict[TableName, ResolvedTarget]:
    found: dict[TableName, ResolvedTarget] = {}
    for target in parse_targets(job.targets):
        if isinstance(target, nodes.TableTarget | nodes.MessagesTarget):
            continue
        for name in matching(target, source):
            if name in watched or name in found:
                continue
            try:
                schema = source.describe(name.schema, name.name)
            except ChangefeedError as error:
                # Dropped again meanwhile, or not readable: it is not part of the feed yet.
                catalog.record_event(
                    job.id, "notice", error.message, table=str(name), code=error.code.number
                )
                continue
            found[name] = ResolvedTarget(target, schema, joined=True)
    return found


def _problems(
    found: Sequence[ResolvedTarget], held: Attachment, options: Options
) -> dict[TableName, ChangefeedError]:
    names = [planned.schema.table for planned in found]
    diff = options.needs_logged_before
    checked = held.check_tables([Watch(n.name, n.schema, diff) for n in names])
    problems: dict[TableName, ChangefeedError] = {}
    for planned, errors in zip(found, checked, strict=True):
        errors = errors or check_table(planned.schema, planned.target, options)
        if errors:
            problems[planned.schema.table] = errors[0]
    return problems


def _add(
    catalog: Catalog,
    job: Job,
    source: Source,
    sink: ResolvedSink,
    options: Options,
    fresh: Sequence[ResolvedTarget],
    problems: dict[TableName, ChangefeedError],
) -> None:
    if not fresh:
        return
    stages = table_stages(fresh, source, sink, options, scan=InitialScan.YES, start=None)
    added = []
    for stage in stages:
        problem = problems.get(stage.schema.table)
        if problem is None:
            added.append(stage.progress)
            continue
        added.append(stage.progress.failed(problem))
        catalog.record_event(
            job.id,
            "error",
            problem.message,
            table=str(stage.schema.table),
            code=problem.code.number,
        )
    catalog.add_tables(job.id, added)

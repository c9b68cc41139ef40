"""ALTER CHANGEFEED -> :class:`AlterPlan`: the altered job, completely checked before.

A feed may be altered while it runs: its generation rises and the runner plans again. Options of a
feed's start (initial_scan, end_time) and the kind of its sink cannot be altered; a feed is set back
or forward (cursor) while it is paused.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from changefeed.attachments import attachment
from changefeed.catalog import Job
from changefeed.catalog.model import Status, TableProgress, TableState
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code, raise_all
from changefeed.core.events import Position
from changefeed.core.schema import TableName
from changefeed.core.table_errors import renamed
from changefeed.options import (
    CURSOR,
    DELIVERY,
    DIFF,
    HEADERS_JSON_COLUMN_NAME,
    INITIAL_SCAN,
    KEY_COLUMN,
    Guarantee,
    InitialScan,
    Options,
    alter_options,
    parse_add_options,
    parse_new_cursor,
    to_span,
)
from changefeed.plan.build import distinct, feed_sql, look_at_targets, missing_extras
from changefeed.plan.context import PlanContext
from changefeed.plan.queries import group_problems, lookup_problems
from changefeed.plan.sink_resolution import ResolvedSink, check_sink, find_sink, job_options
from changefeed.plan.stages import TableStage
from changefeed.plan.tables import (
    check_messages,
    check_range,
    check_row_images,
    check_table,
    cursor_problems,
    definite,
    find_tables,
    sharing_notices,
    shown,
    table_notices,
    table_stages,
    watches_of,
)
from changefeed.plan.target_names import clashes, topics_of
from changefeed.plan.targets import (
    ResolvedTarget,
    matching,
    parse_targets,
    rename_hindrance,
    renamed_targets,
    second_messages,
    target_text,
)
from changefeed.sources.base import Source, TableLocations
from grammar import nodes
from sinks import registry
from sinks.base import Target
from sinks.registry import takers


@dataclass(frozen=True, slots=True)
class AlterPlan:
    """The arguments of :meth:`changefeed.catalog.Catalog.alter_job`.

    ``renamed`` has the present names of renamed tables; the other fields use these names.

    ``rescan`` has the tables to be scanned again; the value is the number of another table that has
    the name now, 0 if it is the same table. ``begin`` is the instant that the feed goes on from.
    """

    job: Job
    sink_uri: str | None = field(repr=False)
    targets: tuple[str, ...]
    options: Options
    statement: str
    add: tuple[TableStage, ...] = ()
    drop: tuple[TableName, ...] = ()
    topics: dict[TableName, str] = field(default_factory=dict)
    renamed: dict[TableName, TableName] = field(default_factory=dict)
    rescan: dict[TableName, int] = field(default_factory=dict)
    begin: Timestamp | None = None
    notices: tuple[str, ...] = ()


def plan_alter(statement: nodes.AlterChangefeed, job: Job, around: PlanContext) -> AlterPlan:
    """The plan of a statement; changes nothing.

    Raises:
        ChangefeedError: every problem found, at once.
    """
    planner = _Alteration(statement, job, around)
    try:
        plan = planner.plan()
    except ChangefeedError as error:
        planner.problems.append(error)
        plan = None
    raise_all([problem.located(around.text) for problem in distinct(planner.problems)])
    if plan is None:
        raise AssertionError("no plan and no problem")
    return plan


class _Alteration:
    def __init__(self, statement: nodes.AlterChangefeed, job: Job, around: PlanContext) -> None:
        self.statement = statement
        self.job = job
        self.around = around
        self.problems: list[ChangefeedError] = []
        self.tables: dict[TableName, TableProgress] = {
            table.table: table for table in around.catalog.tables(job.id)
        }
        self.targets: list[nodes.FeedTarget] = list(parse_targets(job.targets))
        self.added: list[TableStage] = []
        self.fresh: list[ResolvedTarget] = []
        self.dropped: list[TableName] = []
        self.renamed: dict[TableName, TableName] = {}
        #: Failed tables that a RESCAN of all leaves out, because the source no longer has them.
        self.missing: list[TableName] = []
        self.rescans: dict[TableName, int] = {}
        self._source: Source | None = None

    @property
    def source(self) -> Source:
        """Opened when an action needs it: SET and INTO do not."""
        if self._source is None:
            connection = self.around.catalog.connection(self.job.source)
            self._source = self.around.open_source(connection.name, connection.uri)
        return self._source

    def plan(self) -> AlterPlan | None:
        self._check_status()
        old_sink, old_options = job_options(self.around.catalog, self.job)
        sink = self._sink(old_sink)
        options = self._options(old_options, sink)
        if options is None:
            return None
        self.problems += check_sink(sink, options)
        if self.problems:
            return None
        self._check_query(options, old_options)
        if options.stores_images:
            self.problems += check_row_images(self.source, options)
        self._change_tables(sink, options)
        if not self.tables and not self.added:
            self._problem(
                Code.TARGET_NOT_WATCHABLE,
                "cannot drop all targets",
                "DROP CHANGEFEED ends the feed; DROP and ADD in one statement exchange a table.",
            )
        self._check_columns(old_options, options)
        self._rescan_tables(old_sink, old_options, options)
        kept = self._kept_topics(sink, options)
        self._check_targets(kept, sink, options)
        self._look(kept, sink, options)
        begin = self._cursor(sink, options)
        if self.problems:
            return None
        texts = tuple(dict.fromkeys(map(target_text, self.targets)))
        return AlterPlan(
            job=self.job,
            sink_uri=sink.written,
            targets=texts,
            options=options,
            statement=feed_sql(self.job.name, texts, self.job.source, sink.written, options),
            add=tuple(self.added),
            drop=tuple(self.dropped),
            topics={t: at for t, at in kept.items() if at != self.tables[t].topic},
            renamed=self.renamed,
            rescan=self.rescans,
            begin=begin,
            notices=(
                *options.notes,
                *table_notices(self.added, sink),
                *sharing_notices(self.added, sink, self.around.catalog, self.job.id),
                *self._rescan_notices(sink),
            ),
        )

    def _check_query(self, new: Options, old: Options) -> None:
        query = next((t.query for t in self.targets if isinstance(t, nodes.TableTarget)), None)
        self.problems += lookup_problems(query, new)
        if not self.job.is_query:
            return
        if query is not None and query.group:
            self.problems += group_problems(new, to_span(self.statement.feed.span))
        if any(isinstance(a, nodes.AlterAdd | nodes.AlterDrop) for a in self.statement.actions):
            self._problem(
                Code.NOT_SUPPORTED,
                "the tables of a CDC query cannot be altered",
                "CREATE another changefeed for another query.",
            )
        if any(new[row] != old[row] for row in (KEY_COLUMN, HEADERS_JSON_COLUMN_NAME, DIFF)):
            self._problem(
                Code.NOT_SUPPORTED,
                "diff, key_column and headers_json_column_name of a CDC query cannot be altered",
                "CREATE another changefeed with the options.",
            )

    def _problem(
        self, code: str, message: str, hint: str = "", span: nodes.Span | None = None
    ) -> None:
        where = to_span(span or self.statement.feed.span)
        self.problems.append(ChangefeedError(code, message, hint=hint, span=where))

    def _check_status(self) -> None:
        if self.job.status is Status.SUCCEEDED:
            self._problem(
                Code.WRONG_JOB_STATE,
                f"job {self.job.id} has succeeded: there is nothing left to alter",
            )

    # -- sink and options -----------------------------------------------------------------

    def _sink(self, old: ResolvedSink) -> ResolvedSink:
        sink = old
        for action in self.statement.actions:
            if isinstance(action, nodes.AlterInto):
                span = to_span(action.sink.span)
                if self.around.rights is not None:
                    self.around.rights.require_sink(action.sink)
                sink = find_sink(self.around.catalog, action.sink.text, span)
                if not _same_kind(old.scheme, sink.scheme):
                    self._problem(
                        Code.NOT_SUPPORTED,
                        f'New sink type "{sink.scheme}" does not match original sink type '
                        f'"{old.scheme}"',
                        "the type of a feed's sink cannot change: CREATE another feed for the "
                        "new sink.",
                        action.sink.span,
                    )
        return sink

    def _options(self, current: Options, sink: ResolvedSink) -> Options | None:
        sets = [option for option in self._settings() if option.name != CURSOR.name]
        if self.around.rights is not None:
            self.problems += self.around.rights.option_errors(sets, sink)
            if self.problems:
                return None
        unsets = [
            n for a in self.statement.actions if isinstance(a, nodes.AlterUnset) for n in a.names
        ]
        try:
            altered = alter_options(
                current,
                sets,
                unsets,
                scheme=sink.scheme,
                capabilities=sink.capabilities,
                takers=takers,
                text=self.around.text,
                clock=self.around.clock,
            )
        except ChangefeedError as error:
            self.problems.append(error)
            return None
        self.problems += missing_extras(altered, sets)
        return altered

    def _settings(self) -> list[nodes.Option]:
        every = self.statement.actions
        return [option for a in every if isinstance(a, nodes.AlterSet) for option in a.options]

    def _cursor(self, sink: ResolvedSink, options: Options) -> Timestamp | None:
        """The instant that the feed is set back or forward to."""
        asked = [option for option in self._settings() if option.name == CURSOR.name]
        if not asked or self.problems:
            return None
        place = asked[-1]
        if len(asked) > 1:
            self._problem(Code.OPTIONS_CONTRADICT, "cursor is set twice", span=place.span)
        for hindered, why, hint in self._fixed(sink, options):
            if hindered:
                self._problem(Code.NOT_SUPPORTED, f"cursor cannot be set: {why}", hint, place.span)
                return None
        if self.job.status is not Status.PAUSED:
            message = (
                f'changefeed "{self.job.name}" is {self.job.status}: its cursor is set while paused'
            )
            hint = f"PAUSE CHANGEFEED {self.job.name} first, and RESUME it afterwards."
            self._problem(Code.WRONG_JOB_STATE, message, hint, place.span)
            return None
        cursor = parse_new_cursor(place, text=self.around.text, clock=self.around.clock)
        self.problems += cursor_problems(
            cursor,
            self.tables,
            self.job.source,
            self.around,
            "take a later one.",
            to_span(place.span),
        )
        return cursor

    def _fixed(self, sink: ResolvedSink, options: Options) -> Iterator[tuple[bool, str, str]]:
        """What keeps a feed where it is: whether it does, the reason, and what to do instead."""
        again = f"ALTER CHANGEFEED {self.job.name} RESCAN makes its targets equal to the source."
        another = "CREATE another changefeed with this cursor."
        kind = f"a {sink.scheme} sink goes on from what it has"
        yield (
            not sink.capabilities.rewinds,
            kind,
            again if sink.capabilities.owns_targets else another,
        )
        exactly = options[DELIVERY] is Guarantee.EXACTLY_ONCE
        yield exactly, "with delivery = 'exactly_once' no change is sent twice or left out", another
        yield self.job.is_query, "the feed has a query", another
        yield options.stores_images, "row images are as of what was delivered", another
        scans = any(t.scan_wanted or t.done_upto is None for t in self.tables.values())
        yield scans, "a scan is not done", "RESUME the feed and SYNC it first."
        changes = any(
            not isinstance(a, nodes.AlterSet | nodes.AlterUnset) for a in self.statement.actions
        )
        yield (
            changes,
            "the statement also changes tables or the sink",
            "use a statement of its own.",
        )

    def _kept_topics(self, sink: ResolvedSink, options: Options) -> dict[TableName, str]:
        """Topics of the tables that stay; where the sink moves, as its new URI has them."""
        if sink.written == self.job.sink_uri:
            return {t: progress.topic for t, progress in self.tables.items()}
        named = {
            target.name.parts[-2:]: target.topic
            for target in self.targets
            if isinstance(target, nodes.TableTarget)
        }
        wanted = {t: named.get((t.schema, t.name)) for t in self.tables}
        asked = next((t for t in self.targets if isinstance(t, nodes.MessagesTarget)), None)
        if asked is not None and (messages := self._messages()) is not None:
            wanted[messages] = asked.topic
        return topics_of(wanted, sink, options, self.source.database)

    def _check_targets(
        self, kept: Mapping[TableName, str], sink: ResolvedSink, options: Options
    ) -> None:
        """Each table that is added needs a target of its own, and where the sink moves each table
        that stays."""
        moved = sink.written != self.job.sink_uri
        added = {stage.schema.table: stage.progress.topic for stage in self.added}
        asked, held = ({**kept, **added}, {}) if moved else (added, kept)
        found = clashes(
            asked, sink, options, held=held, catalog=self.around.catalog, job=self.job.id
        )
        spans = {place.schema.table: to_span(place.target.span) for place in self.fresh}
        for table, problem in found.items():
            problem.span = spans.get(table)
            self.problems.append(problem)

    def _look(self, kept: Mapping[TableName, str], sink: ResolvedSink, options: Options) -> None:
        """Look at the new targets themselves: a feed that works must not move to a place that
        cannot take its rows. Who owns the tables there is decided by the sink, which knows the
        feed."""
        if self.problems:
            return
        added = {stage.schema.table: stage.progress.topic for stage in self.added}
        self.problems += look_at_targets(self.around, sink, options, self.fresh, added)[0]
        look = self.around.probe or self.around.guard
        if look is None or sink.written == self.job.sink_uri:
            return
        targets = [Target(table, topic) for table, topic in kept.items()]
        problems, _ = look(sink, options, targets, self.job.id)
        self.problems += [p for p in problems if p.code is not Code.TARGET_NOT_OURS]

    def _check_columns(self, old: Options, new: Options) -> None:
        if all(old[row] == new[row] for row in (KEY_COLUMN, HEADERS_JSON_COLUMN_NAME)):
            return
        where = nodes.TableTarget(nodes.QualifiedName(()), span=self.statement.feed.span)
        for table, progress in self.tables.items():
            if _of_messages(progress):
                continue
            schema = self.source.describe(table.schema, table.name)
            self.problems += check_table(schema, where, new)

    # -- tables ---------------------------------------------------------------------------

    def _change_tables(self, sink: ResolvedSink, options: Options) -> None:
        for action in self.statement.actions:
            if isinstance(action, nodes.AlterAdd):
                self._add(action, sink, options)
            elif isinstance(action, nodes.AlterDrop):
                for target in action.targets:
                    self._drop(target)
            elif isinstance(action, nodes.AlterFilter):
                self._filter(action, sink, options)

    def _filter(self, action: nodes.AlterFilter, sink: ResolvedSink, options: Options) -> None:
        """Give the one target that has patterns others. Tables that both select go on."""
        wide = [t for t in self.targets if isinstance(t, nodes.SchemaTarget | nodes.DatabaseTarget)]
        if len(wide) != 1:
            has = "several SCHEMA and DATABASE targets" if wide else "no SCHEMA or DATABASE target"
            hint = "ADD one and DROP another: ADD SCHEMA s INCLUDE TABLES a* DROP SCHEMA s."
            hint = hint if wide else "ADD and DROP tables of it."
            self._problem(Code.TARGET_NOT_WATCHABLE, f"the changefeed has {has}", hint, action.span)
            return
        (old,) = wide
        if not action.patterns and old.filter is not action.filter:
            self._problem(
                Code.TARGET_NOT_WATCHABLE,
                f"{target_text(old)} has no {action.filter.upper()} TABLES",
                span=action.span,
            )
            return
        how = action.filter if action.patterns else None
        new = type(old)(old.name, how, action.patterns, span=action.span)
        if new == old:
            return
        self._add(nodes.AlterAdd((new,)), sink, options)
        if new in self.targets:
            self._drop_pattern(old)

    def _add(self, action: nodes.AlterAdd, sink: ResolvedSink, options: Options) -> None:
        scan = parse_add_options(action.options, text=self.around.text)
        if scan is InitialScan.ONLY and options[INITIAL_SCAN] is not InitialScan.ONLY:
            self._problem(
                Code.OPTIONS_CONTRADICT,
                "cannot specify initial_scan='only' when adding to a feed that follows changes",
                "CREATE a feed of its own for a table that is only scanned.",
                action.options[0].span,
            )
            return
        found, problems = find_tables(action.targets, self.source, diff=options.needs_logged_before)
        self.problems += problems
        if self.around.rights is not None:
            found, missing = self.around.rights.permitted(action.targets, found, self.job.source)
            self.problems += missing
        self.problems += check_messages(found, options[INITIAL_SCAN])
        fresh: list[ResolvedTarget] = []
        for place in found:
            if isinstance(place.target, nodes.MessagesTarget) and self._messages() is not None:
                self.problems.append(second_messages(place.target))
            elif place.schema.table in self.tables:
                if not place.joined:
                    self._problem(
                        Code.TARGET_NOT_WATCHABLE,
                        "target already watched by changefeed",
                        f"it watches {shown(place.schema.table)} now.",
                        place.target.span,
                    )
            elif (holder := self._known_as(place.schema.table)) is not None:
                name, present = shown(place.schema.table), shown(holder)
                self._problem(
                    Code.TARGET_NOT_WATCHABLE,
                    f"the changefeed's sink knows {present} as {name}",
                    f"DROP {present} from it first, or CREATE another changefeed for {name}.",
                    place.target.span,
                )
            else:
                fresh.append(place)
        watches = watches_of(fresh, options, sink)
        self.problems += attachment(self.around.catalog, self.source).check(watches)
        if self.problems:
            return
        start: Position | None = None
        if scan is InitialScan.NO or any(place.messages for place in fresh):
            start = self.source.current_position()
        for place in fresh:
            self.problems += check_table(place.schema, place.target, options)
            self.problems += check_range(place, self.source)
        self.added += table_stages(fresh, self.source, sink, options, scan=scan, start=start)
        self.fresh += fresh
        self.targets += definite(action.targets, found, self.source)

    def _drop(self, target: nodes.FeedTarget) -> None:
        if isinstance(target, nodes.MessagesTarget):
            self._drop_messages(target)
            return
        if not isinstance(target, nodes.TableTarget):
            self._drop_pattern(target)
            return
        fits = self._named(target.name)
        if len(fits) != 1:
            self._not_watched(target.name, fits, target.span)
            return
        table = fits[0]
        if self._leave_out(target, table):
            del self.tables[table]
            self.dropped.append(table)

    def _known_as(self, name: TableName) -> TableName | None:
        return next((t for t, progress in self.tables.items() if progress.original == name), None)

    def _messages(self) -> TableName | None:
        return next((t for t, progress in self.tables.items() if _of_messages(progress)), None)

    def _drop_messages(self, target: nodes.MessagesTarget) -> None:
        """A feed has one target of messages; it is dropped as a whole."""
        table = self._messages()
        asked = [t for t in self.targets if isinstance(t, nodes.MessagesTarget)]
        same = [t for t in asked if t.prefixes == target.prefixes]
        if table is None or not same:
            listed = f"it has {target_text(asked[0])}." if asked else ""
            message = "the changefeed has no MESSAGES target of these prefixes"
            self._problem(Code.TARGET_NOT_WATCHABLE, message, listed, target.span)
            return
        self.targets = [t for t in self.targets if t not in asked]
        del self.tables[table]
        self.dropped.append(table)

    def _named(self, name: nodes.QualifiedName) -> list[TableName]:
        return [t for t in self.tables if _names(name.parts, t)]

    def _not_watched(
        self,
        written: nodes.QualifiedName,
        fits: Sequence[TableName],
        span: nodes.Span | None = None,
    ) -> None:
        name = ".".join(written.parts)
        span = written.span or span
        if fits:
            listed = ", ".join(map(shown, fits))
            self._problem(
                Code.TARGET_NOT_WATCHABLE, f'target "TABLE {name}" is one of {listed}', span=span
            )
            return
        schema = written.parts[-2] if len(written.parts) > 1 else None
        try:
            self.source.describe(schema, written.parts[-1])
        except ChangefeedError as error:
            if error.code not in (Code.NAME_UNKNOWN, Code.TARGET_NOT_WATCHABLE):
                raise
            self._problem(
                Code.NAME_UNKNOWN, f'target "TABLE {name}" does not exist', error.hint, span
            )
            return
        self._problem(
            Code.TARGET_NOT_WATCHABLE,
            f'target "TABLE {name}" is not watched by changefeed',
            span=span,
        )

    def _leave_out(self, target: nodes.TableTarget, table: TableName) -> bool:
        """Remove the table from the targets' texts, so that no pattern includes it."""
        kept: list[nodes.FeedTarget] = []
        for known in self.targets:
            if isinstance(known, nodes.TableTarget):
                if known.name.parts[-2:] != (table.schema, table.name):
                    kept.append(known)
            elif isinstance(known, nodes.MessagesTarget):
                kept.append(known)
            elif _covers(known, table):
                narrowed = _without(known, table)
                if narrowed is None:
                    self._problem(
                        Code.NOT_SUPPORTED,
                        f"{shown(table)} is part of {target_text(known)}",
                        "DROP that target and ADD the tables that are to stay.",
                        target.span,
                    )
                    return False
                kept.append(narrowed)
            else:
                kept.append(known)
        self.targets = kept
        return True

    def _drop_pattern(self, target: nodes.SchemaTarget | nodes.DatabaseTarget) -> None:
        gone = [
            t
            for t in self.targets
            if type(t) is type(target)
            and (isinstance(t, nodes.DatabaseTarget) or t.name.parts[-1:] == target.name.parts[-1:])
        ]
        # Targets of one schema may differ in their patterns: the one with these, if it is there.
        gone = [t for t in gone if target_text(t) == target_text(target)] or gone
        if not gone:
            self._problem(
                Code.TARGET_NOT_WATCHABLE,
                f'target "{target_text(target)}" is not watched by changefeed',
                span=target.span,
            )
            return
        self.targets = [t for t in self.targets if t not in gone]
        stay: set[TableName] = set()
        for known in self.targets:
            if isinstance(known, nodes.SchemaTarget | nodes.DatabaseTarget):
                stay.update(matching(known, self.source))
        for table, progress in list(self.tables.items()):
            if progress.joined and table not in stay:
                del self.tables[table]
                self.dropped.append(table)

    # -- scanning again -------------------------------------------------------------------

    def _rescan_tables(self, old_sink: ResolvedSink, old: Options, options: Options) -> None:
        actions = [a for a in self.statement.actions if isinstance(a, nodes.AlterRescan)]
        if not actions:
            return
        if options[INITIAL_SCAN] is InitialScan.ONLY:
            self._problem(
                Code.NOT_SUPPORTED,
                "a feed with initial_scan = 'only' ends with its scan and cannot be rescanned",
                "DROP it and CREATE it again.",
            )
            return
        if any(
            isinstance(t, nodes.TableTarget) and t.query and t.query.group for t in self.targets
        ):
            self._problem(
                Code.NOT_SUPPORTED,
                "a query with GROUP BY groups changes, and a scan reads none",
                "DROP it and CREATE it again: it begins with the next whole window.",
            )
            return
        end = self.job.end_time
        if end is not None and end <= self.around.clock.now():
            self._problem(
                Code.WRONG_JOB_STATE,
                "the feed's end_time has passed: a scan would read rows as they are now",
                "CREATE a feed without end_time.",
            )
            return
        asked = [(bool(a.tables), table) for a in actions for table in self._rescanned(a)]
        named = {table for by_name, table in asked if by_name}
        tables = list(dict.fromkeys(table for _, table in asked))
        seen = self._located(tables)
        for table in tables:
            now = self._present_name(table, seen)
            if now is not None:
                self._follow(table, now, old_sink, old)
                self.rescans[now] = 0
                continue
            missing = self._missing(table, seen)
            if missing is None:
                self.rescans[table] = self._successor(table, seen)
            elif table in named or len(tables) == 1:
                self.problems.append(missing)
            else:
                self.missing.append(table)

    def _rescanned(self, action: nodes.AlterRescan) -> list[TableName]:
        if not action.tables:
            return list(self.tables)
        found: list[TableName] = []
        for name in action.tables:
            fits = self._named(name)
            if len(fits) == 1:
                found += fits
            else:
                self._not_watched(name, fits)
        return found

    def _located(self, tables: Sequence[TableName]) -> TableLocations:
        ids = {self.tables[table].table_id for table in tables} - {0}
        try:
            seen = self.source.locate(sorted(tables), sorted(ids))
        except ChangefeedError:
            seen = None  # the scan has the same problem, and waits or reports it
        return seen or TableLocations({}, {})

    def _failed_with(self, table: TableName, *codes: Code) -> bool:
        known = self.tables[table]
        return known.state is TableState.FAILED and known.error_code in codes

    def _present_name(self, table: TableName, seen: TableLocations) -> TableName | None:
        """The present name of a lost table, if nothing has its old name now."""
        lost = self._failed_with(
            table, Code.TABLE_REPLACED, Code.NAME_UNKNOWN, Code.TARGET_NOT_WATCHABLE
        )
        if table in seen.ids or not lost:
            return None
        return seen.names.get(self.tables[table].table_id)

    def _follow(
        self, table: TableName, now: TableName, sink: ResolvedSink, options: Options
    ) -> None:
        """Continue with a renamed table under its present name; its target in ``sink`` keeps its
        name.

        A feed follows a rename by itself while it has the changes before it; here it had not.
        """
        progress = self.tables[table]
        pulled = sink.capabilities.pulled
        rights = self.around.rights
        lacks = None if rights is None else rights.owner.table_error(now)
        why = rename_hindrance(
            now, self.tables, query=self.job.is_query, pulled=pulled, lacks=lacks
        )
        if why:
            self.problems.append(renamed(table, now, why))
            return
        topic_of = None if sink.written is None else registry.topic_namer(sink.real, options)
        texts = renamed_targets(tuple(map(target_text, self.targets)), progress, now, topic_of)
        self.targets = list(parse_targets(texts))
        self.tables[now] = self.tables.pop(table).renamed(now)
        self.renamed[table] = now

    def _missing(self, table: TableName, seen: TableLocations) -> ChangefeedError | None:
        """Why a lost table cannot be scanned: no table has its name now."""
        if table in seen.ids or not self._failed_with(table, Code.TABLE_REPLACED):
            return None
        try:
            self.source.describe(table.schema, table.name)
        except ChangefeedError as error:
            if error.code is Code.NAME_UNKNOWN:
                error.hint = f"ALTER CHANGEFEED .. DROP {shown(table)} removes it."
            return error
        return None

    def _successor(self, table: TableName, seen: TableLocations) -> int:
        """The number of another table that has the name now, 0 if there is none. It may be one that
        the feed has not reached yet, and at which it would stop after the statement."""
        known, present = self.tables[table].table_id, seen.ids.get(table, 0)
        return 0 if known in (0, present) else present

    def _rescan_notices(self, sink: ResolvedSink) -> list[str]:
        notices = [
            f"table {shown(table)} was renamed: the feed goes on with it as {shown(now)}, and its "
            f"target stays {self.tables[now].topic}"
            for table, now in self.renamed.items()
        ]
        notices += [
            f"table {shown(table)} was replaced: the feed goes on with the table that has the name "
            "now"
            for table, table_id in self.rescans.items()
            if table_id
        ]
        notices += [
            f"table {shown(table)} does not exist and is left out: ALTER CHANGEFEED .. DROP "
            f"{shown(table)} removes it from the feed"
            for table in self.missing
        ]
        if not self.rescans or not registry.appends(sink.scheme):
            return notices
        return [
            *notices,
            "every row of the rescanned tables is sent again; deletes that were missed are not, "
            "because the rescan finds only rows that exist",
        ]


def _of_messages(progress: TableProgress) -> bool:
    return progress.partition is not None and progress.partition.of_messages


def _same_kind(old: str, new: str) -> bool:
    """Two schemes of one sink (kafka, confluent-cloud) are the same kind."""
    return old == new or registry.entry(old).location == registry.entry(new).location


def _names(parts: tuple[str, ...], table: TableName) -> bool:
    full = (table.source, table.schema, table.name)
    return full[-len(parts) :] == parts or parts == (table.source, table.name)


def _covers(target: nodes.SchemaTarget | nodes.DatabaseTarget, table: TableName) -> bool:
    """Whether the pattern's schema is the table's; its globs are ignored."""
    return isinstance(target, nodes.DatabaseTarget) or target.name.parts[-1] == table.schema


def _without(
    target: nodes.SchemaTarget | nodes.DatabaseTarget, table: TableName
) -> nodes.SchemaTarget | nodes.DatabaseTarget | None:
    """The pattern without one table; None if no pattern can express that.

    EXCLUDE gets one more name. INCLUDE loses the name if it is listed; a glob that matches the
    table cannot be narrowed.
    """
    whole = isinstance(target, nodes.DatabaseTarget)
    name = glob.escape(shown(table) if whole else table.name)
    if target.filter is not nodes.Filter.INCLUDE:
        return type(target)(
            target.name, nodes.Filter.EXCLUDE, (*target.patterns, name), span=target.span
        )
    patterns = tuple(p for p in target.patterns if p not in (table.name, shown(table)))
    if len(patterns) == len(target.patterns) or not patterns:
        return None
    return type(target)(target.name, nodes.Filter.INCLUDE, patterns, span=target.span)

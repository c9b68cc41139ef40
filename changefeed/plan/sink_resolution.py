"""Resolves a statement's sink from its URI; VALIDATE also connects to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from changefeed.catalog import Catalog, Job, external_name
from changefeed.core.errors import ChangefeedError, Code, Span
from changefeed.core.schema import TableName
from changefeed.core.uri import sink_location
from changefeed.options import FULL_TABLE_NAME, Options
from changefeed.sources.registry import open_source
from sinks import registry
from sinks.base import Capabilities, Sink, SinkContext, Target

#: Scheme of a feed without a sink, in the sink registry.
SINKLESS = "sinkless"


@dataclass(frozen=True, slots=True)
class ResolvedSink:
    """A sink URI as ``written`` (None: sinkless) and ``real``, with ``external://`` resolved."""

    written: str | None = field(repr=False)
    real: str = field(repr=False)
    scheme: str
    capabilities: Capabilities
    span: Span | None = None

    @property
    def shown(self) -> str:
        """The URI without secrets; for a named connection also the URI behind it."""
        if self.written is None:
            return ""
        if external_name(self.written) is None:
            return sink_location(self.real)
        return f"{sink_location(self.written)} ({sink_location(self.real)})"

    def topics(self, options: Options, database: str) -> Callable[[TableName, str | None], str]:
        """A function that returns the finished topic of a table and its target's ``AS topic``.

        ``database`` is the first part of a ``full_table_name``.

        Raises:
            ChangefeedError: the URI or an option is wrong.
        """
        finish = str if self.written is None else registry.topic_namer(self.real, options)

        def topic(table: TableName, named: str | None) -> str:
            full = f"{database}.{table.schema}.{table.name}"
            return finish(named or (full if options[FULL_TABLE_NAME] else table.name))

        return topic

    def files_a_day(self, options: Options, tables: int) -> tuple[float, tuple[int, int] | None]:
        """How long changes are gathered before a commit, in seconds, and the result of
        :meth:`sinks.base.Sink.files_a_day`.

        Raises:
            ChangefeedError: the URI or an option is wrong.
        """
        if self.written is None:
            return 0.0, None
        sink = registry.open_sink(self.real, options)
        return sink.pacing().seconds, sink.files_a_day(tables)

    def able(self, options: Options) -> Capabilities:
        """What the sink can do with its URI and these options.

        Raises:
            ChangefeedError: the URI or an option is wrong.
        """
        if self.written is None:
            return self.capabilities
        return registry.open_sink(self.real, options).capabilities

    def owner(self, options: Options) -> Sink | None:
        """The sink, if each table needs its own target there; it knows their names.

        Raises:
            ChangefeedError: the URI or an option is wrong.
        """
        return None if self.written is None else registry.owner_of_targets(self.real, options)


def find_sink(catalog: Catalog, written: str | None, span: Span | None) -> ResolvedSink:
    """The sink behind a URI.

    Raises:
        ChangefeedError: CF1201 no URI or unknown scheme, CF1101 unknown connection, CF5005.
    """
    if written is None:
        return ResolvedSink(None, f"{SINKLESS}://", SINKLESS, registry.capabilities(SINKLESS), span)
    try:
        if not written.strip():
            registry.scheme_of("")
        real = catalog.resolve_uri(written)
        scheme = registry.scheme_of(real)
        if scheme == SINKLESS:
            raise ChangefeedError(
                Code.INVALID_URI, f"unsupported sink: {SINKLESS}", hint="leave INTO out."
            )
        return ResolvedSink(written, real, scheme, registry.capabilities(scheme), span)
    except ChangefeedError as error:
        error.span = error.span or span
        raise


def job_options(catalog: Catalog, job: Job) -> tuple[ResolvedSink, Options]:
    """The sink and the typed options of a stored job.

    Raises:
        ChangefeedError: CF1101 its connection is gone, CF1203 an option of another version.
    """
    sink = find_sink(catalog, job.sink_uri, None)
    return sink, Options.from_dict(job.options, abilities=sink.capabilities)


def check_sink(sink: ResolvedSink, options: Options) -> list[ChangefeedError]:
    """Every problem of the URI and its parameters that is visible without connecting."""
    if sink.written is None:
        return []
    problems = registry.check(sink.real, options)
    for problem in problems:
        problem.span = problem.span or sink.span
    return problems


def _identity(catalog: Catalog, source: str) -> str:
    """The source's identity, read from it before its first feed; empty if it does not answer: the
    feed asks again."""
    known = catalog.source_state(source).identity
    if known:
        return known
    try:
        connection = catalog.connection(source)
        return open_source(connection.name, connection.uri).identity()
    except ChangefeedError:
        return ""


class Probe(Protocol):
    """Connects to the target of a feed; returns problems, and what could not be checked.

    Changes nothing.
    """

    def __call__(
        self,
        sink: ResolvedSink,
        options: Mapping[str, object],
        targets: Sequence[Target],
        job: int = 0,
    ) -> tuple[list[ChangefeedError], list[str]]:
        """``options`` are the feed's, empty for a connection without a feed; ``job`` is its number,
        0 if it does not exist yet."""
        ...


def probe_of(catalog: Catalog) -> Probe:
    """A probe that looks at the target itself, if the sink can."""

    def probe(
        sink: ResolvedSink, options: Mapping[str, object], targets: Sequence[Target], job: int = 0
    ) -> tuple[list[ChangefeedError], list[str]]:
        if sink.written is None:
            return [], []
        source = targets[0].table.source if targets else ""
        context = SinkContext(
            "validate",
            job,
            tuple(targets),
            options=options,
            state=catalog.state_id,
            feeds=catalog.living(),
            source=_identity(catalog, source) if source else "",
            state_database=catalog.url if sink.capabilities.state_database else "",
        )
        try:
            opened = registry.open_sink(sink.real, options)
        except ChangefeedError:
            return [], []  # check_sink reports it without connecting
        overlooked = ""
        try:
            overlooked = opened.overlooked()
            problems = opened.check(context)
        except ChangefeedError as error:
            problems = [error]
        finally:
            opened.close()
        for problem in problems:
            problem.span = problem.span or sink.span
        return problems, [overlooked] if overlooked else []

    return probe

"""What planning depends on: the catalog, the sources, the change log and the session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from changefeed.catalog import Catalog, Connection
from changefeed.core.clock import Clock, Timestamp
from changefeed.core.events import Position
from changefeed.core.schema import TableSchema
from changefeed.plan.grants import FeedRights
from changefeed.plan.sink_resolution import Probe
from changefeed.query.model import CompiledQuery
from changefeed.sources.base import Source
from changefeed.sources.registry import open_source as open_registered
from grammar import nodes

OpenSource = Callable[[str, str], Source]
#: Source name -> the oldest timestamp of its change log; None if there is no log.
LogOldest = Callable[[str], Timestamp | None]
#: Whether the change log of a source has every change of a table, which it has since the
#: timestamp (None: it has none), that committed after the position.
LogHas = Callable[[str, Position, Timestamp | None], bool]
#: A query over a table of this shape, checked by Spark.
CompileQuery = Callable[[TableSchema, nodes.Query], CompiledQuery]


@dataclass(frozen=True, slots=True)
class PlanContext:
    """What planning depends on: the state, the session's USE, the clock, and these:

    ``probe`` checks the target in every respect, for VALIDATE; ``guard`` only who owns the targets,
    for CREATE and ALTER, if the target answers. ``compile_query`` compiles CDC queries; None
    without Spark. ``given`` is the connection to read, which need not be in the state yet.
    ``rights`` bound the feed; None: nothing does.
    """

    catalog: Catalog
    clock: Clock
    text: str = ""
    session_source: str | None = None
    open_source: OpenSource = open_registered
    log_oldest: LogOldest = lambda source: None
    log_has: LogHas = lambda source, position, since: False
    probe: Probe | None = None
    guard: Probe | None = None
    compile_query: CompileQuery | None = None
    given: Connection | None = None
    rights: FeedRights | None = None

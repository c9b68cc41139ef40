"""What the console shows of sources and promises, and no SHOW has: read from the state and the
change logs; only :func:`headroom` asks a source.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import accumulate
from typing import Any

from changefeed.api import Interpreter
from changefeed.attachments import attachment
from changefeed.catalog import Catalog, Job
from changefeed.catalog.rows import SourceState
from changefeed.core.delays import BOUNDS, WINDOWS
from changefeed.log import LogReader
from changefeed.options import GC_SIZE, GC_TTL, SLO, Options
from changefeed.options.docs import listing
from changefeed.plan.names import find_source
from changefeed.shared_logs import is_elsewhere, readable_log
from changefeed.statements.times import date
from grammar.suggest import complete


def captures(interpreter: Interpreter, budget: int | None) -> dict[str, Any]:
    """Each source of a feed: what is held there, how far its change log is and how large it is.

    ``budget`` is what the node allows each log (``--max-disk``).
    """
    catalog = interpreter.catalog
    return {"items": [_capture(catalog, state, budget) for state in catalog.source_states()]}


def _capture(catalog: Catalog, state: SourceState, budget: int | None) -> dict[str, Any]:
    jobs = catalog.source_jobs(state.name)
    wishes = [Options.from_dict(job.options) for job in jobs]
    sizes = [wish[GC_SIZE] for wish in wishes]
    size, since = _log(catalog, state.name)
    return {
        "source": state.name,
        "status": state.status or None,
        "error": state.error or None,
        "holds": state.holds or None,
        "complete_up_to": state.frontier and date(state.frontier.wall),
        "feeds": [job.name for job in jobs],
        "log_bytes": size,
        "log_since": since,
        # The log keeps what one of its feeds wants, within both.
        "kept_seconds": max((wish[GC_TTL] for wish in wishes), default=None),
        "kept_bytes": None if None in sizes or not sizes else max(filter(None, sizes)),
        "budget_bytes": budget,
    }


def _log(catalog: Catalog, name: str) -> tuple[int | None, str | None]:
    """Its size and where it begins; None where it is another node's, or has not begun."""
    if is_elsewhere(catalog, name):
        return None, None
    with readable_log(catalog, name) as path:
        if not path.exists():
            return None, None
        with LogReader(path) as log:
            return log.bytes, None if log.refresh() is None else date(log.oldest.wall)


def headroom(interpreter: Interpreter, name: str) -> dict[str, Any]:
    """What the source keeps for its change log, and how much more it may, in sentences.

    Raises:
        ChangefeedError: the source cannot be asked, or no longer keeps it.
    """
    catalog = interpreter.catalog
    source = interpreter.open_source(name, find_source(catalog, name, None).uri)
    with readable_log(catalog, name) as path:
        if is_elsewhere(catalog, name) or not path.exists():
            return {"kept": []}
        with LogReader(path) as log:
            return {"kept": attachment(catalog, source).headroom(log.refresh())}


def promises(interpreter: Interpreter) -> dict[str, Any]:
    """How late the rows of each feed were, and what option slo says to that."""
    now = interpreter.clock.now().wall
    return {"items": [_promise(job, now) for job in interpreter.catalog.jobs()]}


def _promise(job: Job, now: int) -> dict[str, Any]:
    slo = Options.from_dict(job.options)[SLO]
    none = [(window, None, None) for window in WINDOWS]
    shares = none if slo is None else list(job.delays.against(slo, now))
    return {
        "feed": job.name,
        "slo": job.options.get(SLO.name),
        "rows": job.delays.rows,
        "p50_seconds": _below(job, 0.5),
        "p99_seconds": _below(job, 0.99),
        **{f"kept_{window}": kept for window, kept, _ in shares},
        **{f"burnt_{window}": burnt for window, _, burnt in shares},
    }


def _below(job: Job, share: float) -> float | None:
    """The bound that this share of the rows stayed below; None: there is none, or no row."""
    sums = list(accumulate(job.delays.counts))
    reached = (bound for bound, rows in zip(BOUNDS, sums, strict=False) if rows >= share * sums[-1])
    return next(reached, None) if sums and sums[-1] else None


def suggestions(statement: str) -> dict[str, Any]:
    """What may come at the end of a text; ``kinds`` are filled from ``/v1/names``, but for options,
    which are here."""
    fits = {
        name: sorted(value) if isinstance(value, frozenset) else value
        for name, value in asdict(complete(statement)).items()
    }
    options = listing() if "option" in fits["kinds"] else []
    return fits | {"options": [{"name": row.name, "summary": row.summary} for row in options]}

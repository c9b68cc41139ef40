"""Operations on their way: gathered into requests, several under way at once, until all are done.

The order in which requests arrive does not matter: each operation has the version of its row, and
Elasticsearch keeps the newest. So a request that was turned away is simply sent again, the part
of it that was turned away.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import pyarrow as pa

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.errors import ChangefeedError, Code
from sinks.base import Target
from sinks.elasticsearch import body
from sinks.elasticsearch.answers import ALL_DONE, FILTER, OperationOutcome, Verdict, outcomes
from sinks.elasticsearch.client import BUSY, RIGHTS_HINT, Cluster, HttpAnswer
from sinks.elasticsearch.options import ElasticsearchSettings

PATIENCE_SECONDS = 30.0
"""How long a busy cluster is asked again by the request itself; then the feed backs off.

Well below the five minutes (``mapping.settings``) for which a deleted document's version is
remembered.
"""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0


@dataclass(frozen=True, slots=True)
class BulkPart:
    """Operations of one table inside a request."""

    target: Target
    lines: pa.Array

    @property
    def bytes(self) -> int:
        return len(body.data(self.lines))


@dataclass(frozen=True, slots=True)
class RefusedOperations:
    """Operations the cluster will never take, and why; by place in ``part``."""

    part: BulkPart
    outcomes: dict[int, OperationOutcome]


#: Takes what was refused: to an index of dead letters, or raises.
OnRefused = Callable[[RefusedOperations], None]


class Bulk:
    """Sends operations of a feed. Used by one thread; its requests run in others."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ElasticsearchSettings,
        on_refused: OnRefused,
        patience: float = PATIENCE_SECONDS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """``patience``: seconds that requests are sent again to a cluster that is busy."""
        self._patience = patience
        self._clock = clock
        self._cluster = cluster
        self._settings = settings
        self._on_refused = on_refused
        self._pool = ThreadPoolExecutor(settings.in_flight, thread_name_prefix="elasticsearch")
        self._waiting: list[BulkPart] = []
        self._rows = self._bytes = 0
        self._running: set[Future[None]] = set()
        self._stopped = threading.Event()
        #: Why a request is sent again; empty once one was taken whole.
        self.trouble = ""
        self.max_bytes = settings.bulk_bytes
        self.max_row_bytes = 0
        """What the server takes at most as one request; 0 when it does not say."""

    def limit(self, content_bytes: int) -> None:
        """The server takes requests up to this size."""
        self.max_row_bytes = content_bytes
        self.max_bytes = min(self._settings.bulk_bytes, content_bytes or self._settings.bulk_bytes)

    # -------------------------------------------------------------------- the feed's side

    def add(self, target: Target, lines: pa.Array) -> int:
        """Take operations; sends what makes a full request. Returns their bytes.

        Waits while as many requests are under way as may be.

        Raises:
            ChangefeedError: of an earlier request; CF5006 one row is too large.
        """
        for piece in body.portions(lines, self._settings.bulk_size, self.max_bytes):
            part = BulkPart(target, piece)
            size = part.bytes
            if len(piece) == 1 and self.max_row_bytes and size > self.max_row_bytes:
                raise too_large(target, size, self.max_row_bytes)
            if self._rows + len(piece) > self._settings.bulk_size or (
                self._bytes + size > self.max_bytes
            ):
                self.flush()
            self._waiting.append(part)
            self._rows += len(piece)
            self._bytes += size
        return len(body.data(lines))

    def flush(self) -> None:
        """Send the operations that are gathered, although they fill no request."""
        parts, self._waiting, self._rows, self._bytes = self._waiting, [], 0, 0
        if not parts:
            return
        while len(self._running) >= self._settings.in_flight:
            done, self._running = wait(self._running, return_when=FIRST_COMPLETED)
            _raise_first(done)
        self._running.add(self._pool.submit(self._deliver, parts))

    def settle(self) -> None:
        """Return when everything is done.

        Raises:
            ChangefeedError: something is not; the rest was waited for.
        """
        self.flush()
        done, self._running = wait(self._running).done, set()
        _raise_first(done)

    def abandon(self) -> None:
        """Forget what is gathered, stop asking again, wait for the requests under way."""
        self._waiting, self._rows, self._bytes = [], 0, 0
        self._stopped.set()
        for future in self._running:
            future.cancel()
        wait(self._running)
        self._running = set()
        self._stopped.clear()

    def close(self) -> None:
        self.abandon()
        self._pool.shutdown()

    # -------------------------------------------------------------------- one request

    def _deliver(self, parts: list[BulkPart]) -> None:
        pauses = _Pauses(self._stopped, self._settings.shown, self._patience, self._clock)
        while parts:
            answer = self._send(parts)
            if answer.status == 413:
                for half in self._halves(parts):
                    self._deliver(half)
                return
            if answer.status in BUSY:
                self._wait(pauses, answer, f"HTTP {answer.status}")
                continue
            if not answer.ok:
                raise self._cluster.refusal(answer, _what(parts), rows=True)
            if answer.body.startswith(ALL_DONE):
                self.trouble = ""
                return
            parts, why = self._again(parts, answer)
            if parts:
                self._wait(pauses, answer, why)

    def _wait(self, pauses: _Pauses, answer: HttpAnswer, why: str) -> None:
        self.trouble = f"Elasticsearch is busy: {why}"
        pauses.wait(answer, why)

    def _send(self, parts: Sequence[BulkPart]) -> HttpAnswer:
        parameters = {"filter_path": FILTER}
        if self._settings.refresh != "false":
            parameters["refresh"] = self._settings.refresh
        views = [body.data(part.lines) for part in parts]
        lines = views[0] if len(views) == 1 else b"".join(views)
        return self._cluster.call("POST", "/_bulk", lines=lines, **parameters)

    def _halves(self, parts: list[BulkPart]) -> list[list[BulkPart]]:
        if len(parts) > 1:
            middle = len(parts) // 2
            return [parts[:middle], parts[middle:]]
        part = parts[0]
        if len(part.lines) == 1:
            raise too_large(part.target, part.bytes, self.max_row_bytes)
        middle = len(part.lines) // 2
        lines = (part.lines.slice(0, middle), part.lines.slice(middle))
        return [[BulkPart(part.target, half)] for half in lines]

    def _again(self, parts: Sequence[BulkPart], answer: HttpAnswer) -> tuple[list[BulkPart], str]:
        found = outcomes(answer.json() or {})
        if len(found) != sum(len(part.lines) for part in parts):
            raise ChangefeedError(
                Code.SINK_UNREACHABLE,
                "the answer of Elasticsearch does not fit the request",
                detail=f"{len(found)} outcomes",
            )
        rest, start = [], 0
        for part in parts:
            own = found[start : start + len(part.lines)]
            start += len(part.lines)
            repeat = self._sorted(part, own)
            if len(repeat):
                rest.append(BulkPart(part.target, part.lines.take(pa.array(repeat, pa.int64()))))
        return rest, counted(o for o in found if o.verdict is Verdict.RETRY)

    def _sorted(self, part: BulkPart, found: Sequence[OperationOutcome]) -> list[int]:
        by_verdict: dict[Verdict, dict[int, OperationOutcome]] = {
            verdict: {} for verdict in Verdict
        }
        for place, outcome in enumerate(found):
            by_verdict[outcome.verdict][place] = outcome
        if by_verdict[Verdict.FORBIDDEN]:
            raise ChangefeedError(
                Code.SINK_REFUSED_LOGIN,
                f"this user may not write to index {part.target.topic}",
                detail=counted(by_verdict[Verdict.FORBIDDEN].values()),
                hint=RIGHTS_HINT,
            )
        if by_verdict[Verdict.NO_INDEX]:
            raise ChangefeedError(
                Code.SINK_REFUSED_DATA,
                f"index {part.target.topic} takes no documents of table {part.target.table}",
                detail=counted(by_verdict[Verdict.NO_INDEX].values()),
                hint="was it removed or closed while the feed runs? Open it again and RESUME; the "
                "documents of an index that was removed come back when the feed is created again.",
                target=part.target.topic,
            )
        if by_verdict[Verdict.REFUSED]:
            self._on_refused(RefusedOperations(part, by_verdict[Verdict.REFUSED]))
        return list(by_verdict[Verdict.RETRY])


class _Pauses:
    """Longer each time, and not more than ``patience`` seconds in all."""

    def __init__(
        self, stopped: threading.Event, address: str, patience: float, clock: Clock
    ) -> None:
        self._stopped = stopped
        self._clock = clock
        self._address = address
        self._left = self._patience = patience
        self._next = _FIRST_PAUSE

    def wait(self, answer: HttpAnswer, why: str) -> None:
        """``why``: the reason of the pause, for the error.

        Raises:
            ChangefeedError: CF5004, patience is at an end or the feed gave up.
        """
        pause = max(answer.retry_after, self._next * random.uniform(0.5, 1.0))
        spent = self._stopped.is_set() or pause > self._left
        if spent or self._clock.wait(self._stopped, pause):
            raise ChangefeedError(
                Code.SINK_BUSY,
                "Elasticsearch is busy",
                detail=f"{self._address}: {why}; retried for {self._patience - self._left:.0f} s",
                hint="it rejects requests: check its thread pools and disk space; a smaller "
                "bulk_bytes or in_flight in the sink URI reduces the load.",
            )
        self._left -= pause
        self._next = min(2 * self._next, _LONGEST_PAUSE)


def _raise_first(done: set[Future[None]]) -> None:
    errors = [error for future in done if (error := future.exception()) is not None]
    ours = [error for error in errors if isinstance(error, ChangefeedError)]
    grave = next((error for error in ours if error.action != "retry"), None)
    if grave is not None or errors:
        raise grave or errors[0]


def _what(parts: Sequence[BulkPart]) -> str:
    names = sorted({part.target.topic for part in parts})
    return f"write to index {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}"


def counted(found: Iterable[OperationOutcome]) -> str:
    """``12 documents: 12 x document_parsing_exception (field total of type long)``; no values."""
    kinds = Counter(outcome.shown for outcome in found)
    listed = ", ".join(f"{count} x {kind}" for kind, count in kinds.most_common(5))
    total = kinds.total()
    return f"{total} {'document' if total == 1 else 'documents'}: {listed}"


def too_large(target: Target, size: int, limit: int) -> ChangefeedError:
    """The error for a document no retry can deliver; it names no value."""
    bound = f"the {limit} bytes" if limit else "what"
    return ChangefeedError(
        Code.SINK_CANNOT_TAKE_TABLE,
        f"a document of table {target.table} has {size} bytes, more than {bound} "
        f"Elasticsearch takes for index {target.topic}",
        hint="raise http.max_content_length of the cluster, or leave the large column out "
        "with a column list, then RESUME.",
        target=target.topic,
        about_row=True,
    )

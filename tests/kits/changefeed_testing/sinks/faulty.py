"""A sink that fails on demand: faults are queued per method; without any, calls pass through."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, ClassVar, Protocol, TypeVar

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Resolved, Truncate
from sinks.base import (
    DECLARED,
    Batch,
    Capabilities,
    Durability,
    Epoch,
    Receipt,
    Sink,
    SinkContext,
    Target,
)

T = TypeVar("T")


class Fault(Protocol):
    """What happens to one call."""

    def around(self, call: Callable[[], T]) -> T:
        """Make the call, or fail in its place."""
        ...


def _down() -> ChangefeedError:
    return ChangefeedError(Code.SINK_UNREACHABLE, "the sink was told to fail")


@dataclass(frozen=True, slots=True)
class Reject:
    """Fail before the sink sees the call."""

    error: ChangefeedError = field(default_factory=_down)

    def around(self, call: Callable[[], T]) -> T:
        raise self.error


@dataclass(frozen=True, slots=True)
class FailAfter:
    """The call works, but its result is lost."""

    error: ChangefeedError = field(default_factory=_down)

    def around(self, call: Callable[[], T]) -> T:
        call()
        raise self.error


@dataclass(frozen=True, slots=True)
class Hold:
    """The call works, but returns only when the test releases it.

    Attributes:
        entered: set when the call has begun.
        release: set it to let the call return.
        limit: seconds after which a forgotten release fails the call.
    """

    entered: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    limit: float = 30.0

    def around(self, call: Callable[[], T]) -> T:
        result = call()
        self.entered.set()
        if not self.release.wait(self.limit):
            raise TimeoutError("nobody released the held call")
        return result


@dataclass(frozen=True, slots=True)
class Slow:
    """The call works after ``seconds`` of ``wait`` (a test may pass one that takes no time)."""

    seconds: float
    wait: Callable[[float], object]

    def around(self, call: Callable[[], T]) -> T:
        self.wait(self.seconds)
        return call()


class FaultySink(Sink):
    """Wraps a sink. ``calls`` lists the names of the calls that came, in order."""

    capabilities: ClassVar[Capabilities]

    def __new__(cls, inner: Sink) -> FaultySink:
        # Capabilities belong to a class, so each wrapped sink gets a class of its own. The
        # queues live in this process: no executor can share them.
        declared = replace(inner.capabilities, executor=False)
        return super().__new__(type(cls.__name__, (cls,), {"capabilities": declared}))

    def __init__(self, inner: Sink) -> None:
        self.inner = inner
        self.calls: list[str] = []
        self._faults: dict[str, deque[Fault]] = defaultdict(deque)
        self._lock = threading.Lock()

    def fail(self, call: str, *faults: Fault) -> None:
        """Queue faults for the next calls of ``open``, ``write``, ``commit``, ..."""
        if not hasattr(Sink, call):
            raise ValueError(f"a sink has no call {call}")
        with self._lock:
            self._faults[call].extend(faults)

    @property
    def spent(self) -> bool:
        """Whether every queued fault has happened."""
        with self._lock:
            return not any(self._faults.values())

    def _through(self, name: str, call: Callable[[], T]) -> T:
        with self._lock:
            self.calls.append(name)
            queue = self._faults[name]
            fault = queue.popleft() if queue else None
        return call() if fault is None else fault.around(call)

    def __getattr__(self, name: str) -> Any:
        """Any other attribute (counters, settings) is that of the wrapped sink."""
        return getattr(self.inner, name)

    def open(self, context: SinkContext) -> None:
        self._through("open", lambda: self.inner.open(context))

    def examine(self, batch: Batch) -> None:
        self.inner.examine(batch)

    def write(self, batch: Batch) -> Receipt:
        return self._through("write", lambda: self.inner.write(batch))

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> Durability:
        return self._through("commit", lambda: self.inner.commit(epoch, receipts))

    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        self._through("abort", lambda: self.inner.abort(epoch, receipts))

    def resolved(self, event: Resolved, payload: bytes) -> None:
        self._through("resolved", lambda: self.inner.resolved(event, payload))

    def truncate(self, event: Truncate, target: Target, payload: bytes) -> None:
        self._through("truncate", lambda: self.inner.truncate(event, target, payload))

    def close(self) -> None:
        self._through("close", self.inner.close)


def _passed_on(name: str) -> Callable[..., Any]:
    def call(self: FaultySink, *given: Any, **named: Any) -> Any:
        return self._through(name, lambda: getattr(self.inner, name)(*given, **named))

    return call


for _name in (
    "topic",
    "pacing",
    "check",
    "overlooked",
    "dropped",
    "tell_ddl",
    *chain(*DECLARED.values()),
):
    setattr(FaultySink, _name, _passed_on(_name))

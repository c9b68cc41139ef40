"""Trying again: how long to wait between attempts, and when to stop trying.

A failed delivery is repeated from the start of its epoch, so the retried action is a function of
the feed, not one call of a sink. The caller passes the clock and the wait, so that tests take no
time and PAUSE interrupts a wait.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from changefeed.core.clock import Clock
from changefeed.core.errors import Action, ChangefeedError

T = TypeVar("T")

Wait = Callable[[float], bool]
"""Wait that many seconds; true if the waiter was told to stop (``threading.Event.wait``)."""


class WaitInterrupted(Exception):
    """The wait between two attempts was interrupted: the job is to pause or end."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential back-off with full jitter on its upper half.

    Attributes:
        retry_for: seconds after the first failure during which attempts are made; 0: no further
            attempt, ``math.inf``: no limit.
        first, longest: seconds before the second attempt, and the most between two attempts.
    """

    retry_for: float = 24 * 3600.0
    first: float = 0.2
    longest: float = 30.0

    def pause(self, attempt: int, chance: float) -> float:
        """Seconds to wait after failed attempt ``attempt`` (from 1); ``chance`` is in [0, 1)."""
        # 60 doublings exceed any limit; more would overflow.
        whole = min(self.longest, self.first * 2.0 ** min(attempt - 1, 60))
        return whole * (0.5 + chance / 2)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A failed attempt, as SHOW and the metrics report it.

    Attributes:
        number: counts from 1 since the last success.
        error: what went wrong.
        again_in: seconds until the next attempt, None if there is none.
        failing_for: seconds since the first failure.
    """

    number: int
    error: ChangefeedError
    again_in: float | None
    failing_for: float


class RetryLoop:
    """Runs an action until it succeeds, fails for good, or the time is over."""

    def __init__(
        self,
        policy: RetryPolicy,
        clock: Clock,
        wait: Wait,
        report: Callable[[Attempt], None],
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._wait = wait
        self._report = report
        self._chance = chance

    def run(self, action: Callable[[], T]) -> T:
        """Run the action and return its result.

        Only errors with :attr:`Action.RETRY` are tried again. Progress inside the action does
        not reset the time limit: call ``run`` once per unit of progress.

        Raises:
            ChangefeedError: the last error, if there is no further attempt.
            Stopped: the wait was interrupted.
        """
        since: float | None = None
        number = 0
        while True:
            try:
                return action()
            except ChangefeedError as error:
                number += 1
                now = self._clock.monotonic()
                since = now if since is None else since
                pause = self._next(error, number, now - since)
                self._report(Attempt(number, error, pause, now - since))
                if pause is None:
                    raise
            if self._wait(pause):
                raise WaitInterrupted

    def _next(self, error: ChangefeedError, number: int, failing_for: float) -> float | None:
        if error.action is not Action.RETRY or failing_for >= self._policy.retry_for:
            return None
        pause = self._policy.pause(number, self._chance())
        # The last attempt is made at the end of the time limit, not after it.
        left = self._policy.retry_for - failing_for
        return pause if math.isinf(left) else min(pause, left)

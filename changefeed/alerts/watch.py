"""The threads of a node that look for something and send it: alerts here."""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, Self

from prometheus_client.core import Metric

from changefeed.alerts.book import Alert, AlertBook
from changefeed.alerts.channels import AlertChannel
from changefeed.alerts.rules import breaches
from changefeed.core.clock import Clock
from changefeed.core.errors import ChangefeedError
from changefeed.core.internal_errors import FailureCounter
from changefeed.core.telemetry import log

#: Seconds between two looks; a channel gets one message at most for each.
EVERY: Final = 15.0
#: How long a request on its way may hold up the end of the node, seconds.
STOP_SECONDS: Final = 5.0
#: The most alerts that wait for a channel that does not answer; the oldest of more are dropped.
MOST: Final = 1000


class SendingWatch(ABC):
    """A thread that looks every few seconds until it is left; to be entered."""

    def __init__(self, name: str, clock: Clock, every: float) -> None:
        self._name = name
        self._clock = clock
        self._every = every
        self._failures = FailureCounter(clock)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopping.set()
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        while not self._clock.wait(self._stopping, self._every):
            with self._failures.survived(self._name):
                self.turn()

    @abstractmethod
    def turn(self) -> None:
        """Look once, and send what there is to say.

        Raises:
            ChangefeedError: the state cannot be read.
        """


class AlertWatch(SendingWatch):
    """Looks for alerts and sends them."""

    def __init__(
        self,
        channels: Sequence[AlertChannel],
        metrics: Callable[[], Iterable[Metric]],
        reasons: Callable[[], dict[str, str]],
        leads: Callable[[], bool],
        clock: Clock,
        every: float = EVERY,
    ) -> None:
        """
        Args:
            metrics: the metrics of the node now.
            reasons: what SHOW CHANGEFEEDS says of each feed, by its name.
            leads: whether this node is the one that sends, of all nodes of the state.
            every: seconds between two looks.
        """
        super().__init__("alerts", clock, every)
        self._metrics = metrics
        self._reasons = reasons
        self._leads = leads
        self._book = AlertBook()
        self._waiting: dict[AlertChannel, list[Alert]] = {channel: [] for channel in channels}
        self._troubles: dict[AlertChannel, str] = {}

    def turn(self) -> None:
        if not self._leads():
            self._book = AlertBook()
            return
        now = self._clock.now().wall
        said = self._book.look(breaches(self._metrics()), self._clock.monotonic(), now)
        if said:
            reasons = self._reasons()
            said = [
                replace(alert, reason=reasons.get(dict(alert.breach.labels).get("feed", ""), ""))
                for alert in said
            ]
        for channel, waiting in self._waiting.items():
            waiting += said
            del waiting[:-MOST]
            if waiting:
                self._send(channel, waiting)

    def _send(self, channel: AlertChannel, waiting: list[Alert]) -> None:
        try:
            channel.send(waiting, socket.gethostname())
        except ChangefeedError as error:
            if self._troubles.get(channel) != error.message:
                self._troubles[channel] = error.message
                log.warning("alerts: %s %s", error.code.number, error.message)
        else:
            self._troubles.pop(channel, None)
            waiting.clear()

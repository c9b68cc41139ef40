"""What a Spark session of a node is, whether the node has started its Spark or not."""

from __future__ import annotations

import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from changefeed.core.telemetry import log
from changefeed.spark.internals.abilities import Survey, survey
from changefeed.spark.jvm import Jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class NodeSession(ABC):
    """A Spark session that the node works in, from its start to its end.

    Attributes:
        session: the session when it can be used, or why it cannot.
        step: the present step of the start, for people.
        survey: what the session lacks; known once there is one.
        packs: jar packs that it has.
        scratch: the directory for its temporary files.
        jvm: its JVM, if the node has started one.
    """

    step: str
    jvm: Jvm | None = None

    def __init__(self, packs: frozenset[str], scratch: Path | None) -> None:
        """``scratch`` is where its directory is made; None: the system's place for such."""
        self.session: Future[SparkSession] = Future()
        self.survey: Survey | None = None
        self.packs = packs
        self._extended: SparkSession | None = None
        self._extending = threading.Lock()
        if scratch is not None:
            scratch.mkdir(parents=True, exist_ok=True)
        self.scratch = Path(tempfile.mkdtemp(prefix="changefeed-spark-", dir=scratch)).resolve()

    @property
    @abstractmethod
    def cores(self) -> int:
        """How many tasks it runs at the same time, looked up at each call where that is cheap; see
        :func:`.internals.sessions.core_count`."""

    @property
    def usable(self) -> bool:
        """Whether work can begin in it now."""
        return self.session.done() and not self.over

    @property
    @abstractmethod
    def over(self) -> bool:
        """Whether it failed to start, or has ended."""

    @abstractmethod
    def begin(self, after: NodeSession | None) -> None:
        """Start in the background, in place of ``after``."""

    @abstractmethod
    def died(self, failure: BaseException) -> bool:
        """Whether it has ended, asked after ``failure``."""

    def extended(self, wanted: Sequence[str]) -> SparkSession:
        """The session whose planner knows the table formats of all its packs, ``wanted`` among
        them; made when first asked for.

        Raises:
            ChangefeedError: CF4003, its Spark does not have them.
        """
        with self._extending:
            if self._extended is None:
                self._extended = self._made_extended()
            return self._extended

    @property
    def hindrances(self) -> Mapping[str, str]:
        """See :attr:`.executor_check.ExecutorCheck.hindrances`; executors of a Spark that the node
        has started have its code."""
        return {}

    def ask(self, folder: str, stopping: Callable[[], bool]) -> str:
        """See :meth:`.executor_check.ExecutorCheck.ask`."""
        return ""

    @abstractmethod
    def _made_extended(self) -> SparkSession: ...

    @abstractmethod
    def end(self) -> None:
        """End it; returns when nothing of it is left."""

    def _offer(self, session: SparkSession) -> None:
        """Let the node use the session; the log says what it lacks."""
        self.survey = survey(session)
        if self.survey.sentence:
            log.warning("%s", self.survey.sentence)
        self.session.set_result(session)

"""The opened state behind a shell: opened late or in the background, a node when one is needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from changefeed.core.loading import loading
from changefeed.spark.settings import SparkSettings
from grammar import nodes

if TYPE_CHECKING:
    from changefeed.api import Interpreter, Session
    from changefeed.app import Application


class Backend:
    """One state and this process's session on it.

    Opening the state loads half a second of modules, a node several more: a prompt does both in
    a thread (:meth:`start`), a script when the first statement needs it.
    """

    def __init__(
        self,
        state: str,
        *,
        source: str | None = None,
        spark: SparkSettings | None = None,
        max_memory: int | None = None,
        max_disk: int | None = None,
    ) -> None:
        """See :class:`changefeed.app.Application`; ``source`` is what ``--source`` names."""
        self.state = state
        self._source = source
        self._spark = spark
        self._max_memory = max_memory
        self._max_disk = max_disk
        self._lock = threading.Lock()
        self._opened: Application | None = None
        self._session: Session | None = None
        self._node: Future[bool] | None = None
        self._thread: threading.Thread | None = None

    # -- the state ------------------------------------------------------------------------

    @property
    def application(self) -> Application:
        """The state, opened at first use.

        Raises:
            ChangefeedError: CF6001, CF6002; or ``--source`` names nothing.
        """
        with self._lock:
            if self._opened is None:
                self._open()
            if self._opened is None:
                raise AssertionError("an opened state is kept")
            return self._opened

    def _open(self) -> None:
        with loading():
            from changefeed.api import Session
            from changefeed.app import Application

        application = Application(
            self.state,
            settings=self._spark,
            max_memory=self._max_memory,
            max_disk=self._max_disk,
        )
        session = Session()
        try:
            if self._source is not None:
                application.interpreter.use_source(session, self._source)
        except BaseException:
            application.close()
            raise
        self._opened, self._session = application, session

    @property
    def interpreter(self) -> Interpreter:
        """Executes statements; opens the state at first use."""
        return self.application.interpreter

    @property
    def session(self) -> Session:
        """The session of this process: what statements leave for later ones."""
        # Opens the state, and with it the session.
        self.interpreter  # noqa: B018
        if self._session is None:
            raise AssertionError("the session is made with the state")
        return self._session

    @property
    def opened(self) -> bool:
        """Whether the state is open, so that using it does not wait."""
        return self._opened is not None

    # -- the node -------------------------------------------------------------------------

    def start(self, failed: Callable[[Exception], None]) -> None:
        """Open the state and start a node in a thread; ``failed`` hears why that cannot be."""
        self._node = Future()
        self._thread = threading.Thread(
            target=self._start, args=(self._node, failed), name="shell-start", daemon=True
        )
        self._thread.start()

    def _start(self, node: Future[bool], failed: Callable[[Exception], None]) -> None:
        try:
            application = self.application
            node.set_result(application.start_node())
        except Exception as error:
            # Whoever asks next meets the same error in his own thread, where it is reported.
            if not node.done():
                node.set_result(False)
            failed(error)

    def take_over(self) -> bool:
        """Run the feeds here when the node that a prompt had found elsewhere has ended.

        Does nothing while the node of :meth:`start` is still being started, or where none was.

        Returns:
            Whether this process has become the node just now.

        Raises:
            ChangefeedError: no node can start.
        """
        application = self._opened
        if application is None or self._node is None or not self._node.done():
            return False
        if application.node_running():
            return False
        return application.start_node()

    def ready_for(self, statement: nodes.Statement) -> None:
        """Wait for, or start, the node that a statement needs.

        Raises:
            ChangefeedError: the state cannot be opened, or no node can start.
        """
        application = self.application
        if self._node is not None:
            if not isinstance(statement, nodes.Inquiry):
                self._node.result()
        elif _waits(statement) and self._alone(application):
            application.start_node()

    @staticmethod
    def _alone(application: Application) -> bool:
        """Whether there are feeds and no node. (Without a feed SYNC fails anyway, and needs no
        node.)"""
        return bool(application.interpreter.feeds()) and not application.node_running()

    @property
    def here(self) -> bool:
        """Whether the node is in this process."""
        return self._opened is not None and self._opened.is_node

    def idle_feeds(self) -> int:
        """Feeds that would run, once this process has ended, if there were a node."""
        if self._opened is None:
            return 0
        active = self._opened.interpreter.summary().active
        elsewhere = self._opened.node_running() and not self._opened.is_node
        return 0 if elsewhere else active

    def close(self) -> None:
        """Stop what runs here and close the state."""
        if self._thread is not None:
            self._thread.join(30)
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()


def _waits(statement: nodes.Statement) -> bool:
    """Whether only a node can do what the statement waits for."""
    complete = isinstance(statement, nodes.ShowJob) and statement.when_complete
    return complete or isinstance(statement, nodes.Sync | nodes.SyncAll | nodes.Verify)

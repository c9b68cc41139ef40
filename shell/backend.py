"""What executes a shell's statements: a state that is opened here, late or in the background, with
a node when one is needed; or a node elsewhere, over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from changefeed.core.loading import loading
from changefeed.core.uri import redact
from changefeed.spark.settings import SparkSettings
from grammar import nodes
from grammar.printer import to_sql

if TYPE_CHECKING:
    from changefeed.api import Interpreter, PromptFacts, Result, Session
    from changefeed.app import Application
    from changefeed.http.client import RemoteNode


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
    def facts(self) -> PromptFacts:
        """What a prompt reads besides results."""
        return self.interpreter

    @property
    def where(self) -> str:
        """What executes the statements, for a person."""
        return f"state {redact(self.state)}"

    def source(self) -> str | None:
        """The source of unqualified table names."""
        return self.session.source or self.facts.names().source

    @property
    def session(self) -> Session:
        """The session of this process: what statements leave for later ones."""
        # Opens the state, and with it the session.
        self.interpreter  # noqa: B018
        if self._session is None:
            raise AssertionError("the session is made with the state")
        return self._session

    def check(self) -> None:
        """Look at what ``--state`` and ``--source`` name, also where no statement follows.

        Raises:
            ChangefeedError: it is not there.
        """
        self.session  # noqa: B018

    def execute(self, parsed: nodes.Statement, text: str) -> Result:
        """Execute a statement in this process's session.

        Raises:
            ChangefeedError: it failed, or there is no state, or no node can start.
        """
        self.ready_for(parsed)
        return self.interpreter.execute(text, self.session)

    def about(self) -> list[tuple[str, str]]:
        """State, node and source for a person."""
        application = self.application
        if application.is_node:
            node = "in this shell"
        else:
            node = "elsewhere" if application.node_running() else "none (changefeed start runs one)"
        return [("state", redact(self.state)), ("node", node), _named_source(self.source())]

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


class RemoteBackend(Backend):
    """A node elsewhere and this process's session on it; opens no state and starts nothing."""

    def __init__(self, url: str, token: str, *, source: str | None = None) -> None:
        """``token`` is a user's, or empty; ``source`` is what ``--source`` names."""
        super().__init__(url, source=source)
        self._token = token
        self._remote: tuple[RemoteNode, Session] | None = None

    def _connected(self) -> tuple[RemoteNode, Session]:
        with self._lock:
            if self._remote is None:
                with loading():
                    from changefeed.api import Session
                    from changefeed.http.client import RemoteNode

                node, session = RemoteNode(self.state, self._token), Session()
                if self._source is not None:
                    node.execute(to_sql(nodes.Use(self._source)), session)
                self._remote = node, session
            return self._remote

    @property
    def facts(self) -> PromptFacts:
        """See :class:`Backend`."""
        return self._connected()[0]

    @property
    def where(self) -> str:
        """See :class:`Backend`."""
        return f"node {self.state}"

    @property
    def opened(self) -> bool:
        """Whether statements can be sent, which :meth:`check` sees to before the prompt."""
        return self._remote is not None

    @property
    def session(self) -> Session:
        """The session of this process: it goes with each request."""
        return self._connected()[1]

    def start(self, failed: Callable[[Exception], None]) -> None:
        """Nothing: the node runs already."""

    def check(self) -> None:
        """Ask the node whether it is there; see :meth:`Backend.check`."""
        self.facts.summary()

    def execute(self, parsed: nodes.Statement, text: str) -> Result:
        """Execute a statement at the node; see :meth:`Backend.execute`."""
        node, session = self._connected()
        endless = isinstance(parsed, nodes.CreateChangefeed) and parsed.sink is None
        return node.execute(text, session, endless=endless)

    def about(self) -> list[tuple[str, str]]:
        """See :meth:`Backend.about`."""
        return [("node", self.state), _named_source(self.source())]

    def close(self) -> None:
        """Close the connection."""
        if self._remote is not None:
            self._remote[0].close()


def _named_source(source: str | None) -> tuple[str, str]:
    return "source", source or "none (USE chooses one)"


def _waits(statement: nodes.Statement) -> bool:
    """Whether only a node can do what the statement waits for."""
    complete = isinstance(statement, nodes.ShowJob) and statement.when_complete
    return complete or isinstance(statement, nodes.Sync | nodes.SyncAll | nodes.Verify)

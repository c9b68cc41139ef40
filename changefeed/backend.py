"""What executes statements for one client: a state that is opened here, late or in the background,
with a node when one is needed; or a node elsewhere, over HTTP."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from changefeed.core.loading import loading
from changefeed.core.uri import redact
from changefeed.spark.settings import SparkSettings
from grammar import nodes
from grammar.binding import ParameterValue
from grammar.printer import to_sql

if TYPE_CHECKING:
    from changefeed.api import Interpreter, PromptFacts, Result, Session
    from changefeed.app import Application
    from changefeed.http.client import RemoteNode


class Backend(ABC):
    """Executes the statements of one client, in a session of its own."""

    def __init__(self, source: str | None) -> None:
        """``source`` is what ``--source`` names."""
        self._source = source
        self._lock = threading.Lock()

    @property
    @abstractmethod
    def facts(self) -> PromptFacts:
        """What a prompt reads besides results."""

    @property
    @abstractmethod
    def where(self) -> str:
        """What executes the statements, for a person; without secrets."""

    @property
    @abstractmethod
    def session(self) -> Session:
        """The session of this client: what statements leave for later ones."""

    @property
    @abstractmethod
    def opened(self) -> bool:
        """Whether statements can be executed without the wait of a first one."""

    @abstractmethod
    def check(self) -> None:
        """Look at what ``--state``, ``--url`` and ``--source`` name, also where no statement
        follows.

        Raises:
            ChangefeedError: it is not there.
        """

    @abstractmethod
    def execute(
        self, parsed: nodes.Statement, text: str, parameters: Sequence[ParameterValue] = ()
    ) -> Result:
        """Execute a statement; ``parsed`` is ``text`` with its ``parameters``.

        Raises:
            ChangefeedError: it failed, or cannot be executed here.
        """

    @abstractmethod
    def about(self) -> list[tuple[str, str]]:
        """State, node and source for a person."""

    @abstractmethod
    def close(self) -> None:
        """Stop what runs here and close the state or the connection."""

    @abstractmethod
    def start(self, failed: Callable[[Exception], None]) -> None:
        """See that a node runs, in the background; ``failed`` hears why that cannot be."""

    @abstractmethod
    def need_node(self) -> None:
        """See that the feeds run, because a caller waits for one.

        Raises:
            ChangefeedError: no node can start.
        """

    # -- as it is where the node is elsewhere ---------------------------------------------

    def source(self) -> str | None:
        """The source of unqualified table names."""
        return self.session.source or self.facts.names().source

    def take_over(self) -> bool:
        """Run the feeds here when the node that a prompt had found elsewhere has ended.

        Returns:
            Whether this process has become the node just now.

        Raises:
            ChangefeedError: no node can start.
        """
        return False

    @property
    def here(self) -> bool:
        """Whether the node is in this process."""
        return False

    def idle_feeds(self) -> int:
        """Feeds that would run, once this process has ended, if there were a node."""
        return 0


class LocalBackend(Backend):
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
        client: str = "shell",
        must_exist: bool = False,
    ) -> None:
        """See :class:`changefeed.app.Application`; ``source`` is what ``--source`` names,
        ``client`` the program that a Session has."""
        super().__init__(source)
        self.state = state
        self._spark = spark
        self._max_memory = max_memory
        self._max_disk = max_disk
        self._client = client
        self._must_exist = must_exist
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
            must_exist=self._must_exist,
        )
        session = Session(client=self._client)
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
        """See :class:`Backend`, as for all that has no other text here."""
        return self.interpreter

    @property
    def where(self) -> str:
        return f"state {redact(self.state)}"

    @property
    def session(self) -> Session:
        # Opens the state, and with it the session.
        self.interpreter  # noqa: B018
        if self._session is None:
            raise AssertionError("the session is made with the state")
        return self._session

    def check(self) -> None:
        self.session  # noqa: B018

    def execute(
        self, parsed: nodes.Statement, text: str, parameters: Sequence[ParameterValue] = ()
    ) -> Result:
        self.ready_for(parsed)
        return self.interpreter.execute(text, self.session, parameters)

    def about(self) -> list[tuple[str, str]]:
        application = self.application
        if application.is_node:
            node = "in this shell"
        else:
            node = "elsewhere" if application.node_running() else "none (changefeed start runs one)"
        return [("state", redact(self.state)), ("node", node), _named_source(self.source())]

    @property
    def opened(self) -> bool:
        return self._opened is not None

    # -- the node -------------------------------------------------------------------------

    def start(self, failed: Callable[[Exception], None]) -> None:
        """Open the state and start a node in a thread."""
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
        """See :class:`Backend`. Does nothing while the node of :meth:`start` is still being
        started, or where none was."""
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
        if self._node is None:
            if _waits(statement):
                self.need_node()
        elif not isinstance(statement, nodes.Inquiry):
            self._node.result()

    def need_node(self) -> None:
        if self._node is not None:
            self._node.result()
        elif self._alone(self.application):
            self.application.start_node()

    @staticmethod
    def _alone(application: Application) -> bool:
        """Whether there are feeds and no node. (Without a feed SYNC fails anyway, and needs no
        node.)"""
        return bool(application.interpreter.feeds()) and not application.node_running()

    @property
    def here(self) -> bool:
        return self._opened is not None and self._opened.is_node

    def idle_feeds(self) -> int:
        if self._opened is None:
            return 0
        active = self._opened.interpreter.summary().active
        elsewhere = self._opened.node_running() and not self._opened.is_node
        return 0 if elsewhere else active

    def close(self) -> None:
        if self._thread is not None:
            self._thread.join(30)
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()


class RemoteBackend(Backend):
    """A node elsewhere and this process's session on it."""

    def __init__(self, url: str, token: str, *, source: str | None = None) -> None:
        """``token`` is a user's, or empty; ``source`` is what ``--source`` names."""
        super().__init__(source)
        self.url = url
        self._token = token
        self._remote: tuple[RemoteNode, Session] | None = None

    def _connected(self) -> tuple[RemoteNode, Session]:
        with self._lock:
            if self._remote is None:
                with loading():
                    from changefeed.api import Session
                    from changefeed.http.client import RemoteNode

                node, session = RemoteNode(self.url, self._token), Session()
                if self._source is not None:
                    node.execute(to_sql(nodes.Use(self._source)), session)
                self._remote = node, session
            return self._remote

    @property
    def facts(self) -> PromptFacts:
        return self._connected()[0]

    @property
    def where(self) -> str:
        return f"node {self.url}"

    @property
    def opened(self) -> bool:
        return self._remote is not None

    @property
    def session(self) -> Session:
        """See :class:`Backend`: it goes with each request."""
        return self._connected()[1]

    def start(self, failed: Callable[[Exception], None]) -> None:
        """Nothing: the node runs already."""

    def need_node(self) -> None:
        """Nothing: it answers, or the next request fails."""

    def check(self) -> None:
        self.facts.summary()

    def execute(
        self, parsed: nodes.Statement, text: str, parameters: Sequence[ParameterValue] = ()
    ) -> Result:
        node, session = self._connected()
        endless = isinstance(parsed, nodes.CreateChangefeed) and parsed.sink is None
        return node.execute(text, session, parameters, endless=endless)

    def about(self) -> list[tuple[str, str]]:
        return [("node", self.url), _named_source(self.source())]

    def close(self) -> None:
        if self._remote is not None:
            self._remote[0].close()


def _named_source(source: str | None) -> tuple[str, str]:
    return "source", source or "none (USE chooses one)"


def _waits(statement: nodes.Statement) -> bool:
    """Whether only a node can do what the statement waits for."""
    complete = isinstance(statement, nodes.ShowJob) and statement.when_complete
    return complete or isinstance(statement, nodes.Sync | nodes.SyncAll | nodes.Verify)

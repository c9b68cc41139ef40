"""The server that a run reads from, who writes there, and how its changes can get lost."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tests.nemesis.ledger import Ledger
from tests.nemesis.trouble import Trouble


class Author(Protocol):
    """Makes changes at random and has each commit written down in the ledger."""

    def connect(self) -> None:
        """(Again) after the server went away: what was open is rolled back."""
        ...

    def close(self) -> None:
        """Give the connections back."""
        ...

    def commit(self) -> str:
        """A few writes in one to three tables."""
        ...

    def release(self) -> str:
        """Commit the transaction that is held open."""
        ...

    def end_prepared(self) -> str:
        """Decide the transaction that is prepared."""
        ...

    def doings(self) -> Sequence[Trouble]:
        """What may be done next, with its weight."""
        ...


@dataclass(frozen=True)
class Loss:
    """Something after which the log does not have every change, and feeds must say so.

    Attributes:
        act: does it, and says what it was.
        prepare: comes a while before.
        blind: it happens only while no node runs.
    """

    act: Callable[[], str]
    prepare: Callable[[], None] = lambda: None
    blind: bool = False


class Origin(ABC):
    """A source with the tables of the workload.

    Attributes:
        uri: of the connection.
        ledger: what the tables hold.
        author: writes to them.
    """

    uri: str
    ledger: Ledger
    author: Author

    @abstractmethod
    def troubles(self) -> list[Trouble]:
        """What befalls this source beside a restart."""

    @abstractmethod
    def losses(self, chance: random.Random) -> Sequence[Loss]:
        """How changes get lost here; ``chance`` chooses what differs from time to time."""

    @abstractmethod
    def end_streams(self) -> str:
        """The server ends the connections that read its log."""

    def restart(self, *, hard: bool) -> None:
        """Stop or kill the server and start it again."""
        self.stop(hard=hard)
        self.start()

    @abstractmethod
    def stop(self, *, hard: bool) -> None:
        """Stop or kill the server."""

    @abstractmethod
    def start(self) -> None:
        """Start the server again; what was open is rolled back."""

"""Where the feeds of a run end: what each is created as, and whether it keeps its promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path

from changefeed_testing.sinks.messages import Message, parse_message
from changefeed_testing.sinks.readers import read_files
from tests.nemesis.judge import judge_feed
from tests.nemesis.ledger import Ledger
from tests.nemesis.service import Nodes
from tests.nemesis.tables import ODD
from tests.nemesis.trouble import Trouble
from tests.services.kafka import KafkaBroker

#: What stands in a target and is somebody else's: it stays as it is.
FOREIGN: Mapping[str, object] = {"id": 1, "said": "not ours"}


class End(ABC):
    """One feed and its target.

    Attributes:
        name: the feed's.
        tables: those of the feed. The table ``extra`` leaves it and joins it again.
        options: of the feed, without ``WITH``.
        renames_leave: tables whose rows keep what a column was called, and its type, until RESCAN.
        settings: what ALTER may set.
    """

    name: str
    tables: tuple[str, ...]
    options: str = ""
    renames_leave: tuple[str, ...] = ()
    settings: tuple[str, ...] = ("resolved = '100ms'", "resolved = '300ms'")

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    @property
    @abstractmethod
    def uri(self) -> str:
        """The sink."""

    @property
    def statement(self) -> str:
        """Makes the feed."""
        more = f" WITH {self.options}" if self.options else ""
        tables = ", ".join(self.ledger.tables[name].quoted for name in self.tables)
        return f"CREATE CHANGEFEED {self.name} FOR {tables} INTO '{self.uri}'{more}"

    @property
    def gaps(self) -> frozenset[str]:
        """Tables that were out of the feed at times: they are right in the end only."""
        return frozenset({"extra"} & set(self.tables))

    def troubles(self, meanwhile: Callable[[], None]) -> list[Trouble]:
        """What may go wrong with this target; ``meanwhile`` changes something at the source."""
        return []

    def look(self) -> None:  # noqa: B027  messages are read when all is over
        """A reader comes by, at any moment; what it finds wrong :meth:`judge` says."""

    def catch_up(self, service: Nodes) -> None:
        """Wait until everything committed before now is there."""
        service.sync(self.name)

    def close(self) -> None:  # noqa: B027  most have nothing open
        """Give back what is open."""

    def topics(self) -> list[str]:
        """What the tables are called where names are made of few characters."""
        return [self.ledger.tables[name].topic for name in self.tables]

    @abstractmethod
    def judge(self) -> list[str]:
        """What is wrong, once the feed has delivered everything."""


class Files(End):
    """Messages in files."""

    name = "files"
    tables: tuple[str, ...] = (
        *("orders", "plain", "lines", "parts", "shapes", "bulk", ODD.name, "extra"),
    )
    renames_leave: tuple[str, ...] = ("shapes",)
    options = "updated, resolved = '200ms'"

    def __init__(self, ledger: Ledger, folder: Path, engine: str = "auto") -> None:
        super().__init__(ledger)
        self._folder = folder
        self.options = f"{self.options}, engine = '{engine}'"

    @property
    def uri(self) -> str:
        return f"file://{self._folder}"

    def judge(self) -> list[str]:
        messages = read_files(self._folder, self.topics())
        return judge_feed(self.ledger, messages, self.tables, diff=False, gaps=self.gaps)


class ImageFiles(Files):
    """Messages with before images of a table that logs little: its row images have the rest."""

    name = "images"
    tables = ("plain",)
    renames_leave = ()
    options = "updated, diff, row_images = 'store', resolved = '200ms'"

    def judge(self) -> list[str]:
        messages = read_files(self._folder, self.topics())
        return judge_feed(self.ledger, messages, self.tables, diff=True, whole=True)


class Bus(End):
    """Messages with before images in Kafka, by key in several partitions."""

    name = "bus"
    tables = ("orders", "lines", "parts", "shapes", "bulk", ODD.name)
    renames_leave = ("shapes",)
    options = "updated, diff, resolved = '200ms'"
    partitions = 3

    def __init__(self, ledger: Ledger, broker: KafkaBroker) -> None:
        super().__init__(ledger)
        self._broker = broker
        for topic in self.topics():
            broker.create_topic(topic, self.partitions)

    @property
    def uri(self) -> str:
        return self._broker.uri

    def troubles(self, meanwhile: Callable[[], None]) -> list[Trouble]:
        def restart() -> str:
            hard = self.ledger.last % 2 == 0
            self._broker.kill() if hard else self._broker.stop()
            meanwhile()
            self._broker.start()
            return "the broker is restarted"

        return [(0.4, restart)]

    def judge(self) -> list[str]:
        return judge_feed(
            self.ledger, self._messages(), self.tables, diff=True, partitions=self.partitions
        )

    def _messages(self) -> list[Message]:
        return [
            parse_message(r.topic, r.partition, r.key, r.value)
            for topic in self.topics()
            for r in self._broker.messages(topic)
        ]

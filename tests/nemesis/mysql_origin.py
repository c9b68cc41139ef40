"""MySQL or MariaDB as the source of a run: its binlog and its disk."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.nemesis.ledger import Ledger
from tests.nemesis.mysql_workload import MYSQL_TABLES, SCHEMA, MySQLWriter
from tests.nemesis.origin import Loss, Origin
from tests.nemesis.trouble import Trouble
from tests.services.mysql import BinlogServer

DATABASE = "shop"


class MySQLOrigin(Origin):
    """A server of our own."""

    author: MySQLWriter

    def __init__(self, server: BinlogServer, folder: Path, chance: random.Random) -> None:
        self.server = server
        self.uri = server.uri(DATABASE)
        self.ledger = Ledger(MYSQL_TABLES)
        self._disk = folder / "disk"
        server.run(f"create database {DATABASE} character set utf8mb4")
        server.run(*SCHEMA, database=DATABASE)
        self.author = MySQLWriter(server, DATABASE, self.ledger, chance)
        self.author.look_around()

    def troubles(self) -> list[Trouble]:
        """What befalls this server beside a restart."""
        return [(2, self.rotate)]

    def end_streams(self) -> str:
        self.server.end_dumps()
        return "the binlog dump is killed"

    def rotate(self) -> str:
        """A new file of the binlog."""
        self.server.run("flush binary logs")
        return "the binlog goes on in a new file"

    def stop(self, *, hard: bool) -> None:
        self.server.stop() if hard else self.server.shut_down()

    def start(self) -> None:
        self.server.start()
        self.author.connect()

    # -- losses ---------------------------------------------------------------------------

    def losses(self, chance: random.Random) -> Sequence[Loss]:
        passes = chance.random() < 0.5
        return [
            Loss(self._purge, blind=True),
            Loss(self._reset),
            Loss(lambda: self._restore(passes), self._copy_disk, blind=True),
        ]

    def _purge(self) -> str:
        for _ in range(5):
            self.author.commit()
        self.server.purge()
        return "the binlog is purged before it was read"

    def _reset(self) -> str:
        self.author.commit()
        self.author.end_prepared()  # its rows are in the log that goes
        self.server.run("reset master")
        return "the binlog is reset"

    def _copy_disk(self) -> None:
        self.author.release()
        self.author.end_prepared()
        shutil.rmtree(self._disk, ignore_errors=True)
        self.stop(hard=False)
        self.server.copy_data(self._disk)
        self._shape = self.author.shape()
        self.start()

    def _restore(self, passes: bool) -> str:
        """The server gets the disk that it had, and goes on from there; where it ``passes``, to
        beyond what was read before."""
        self.stop(hard=True)
        self.server.restore_data(self._disk)
        self.server.start()
        self.author.go_back(self._shape)
        for _ in range(300 if passes else 0):
            self.author.tick()
        return f"the source is restored{' and passes what was read' * passes}"

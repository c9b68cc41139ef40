"""PostgreSQL as the source of a run: its publication, its disk and its timeline."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from tests.helpers.waiting import until
from tests.nemesis.ledger import Ledger
from tests.nemesis.origin import Loss, Origin
from tests.nemesis.tables import ODD, TABLES
from tests.nemesis.trouble import Trouble
from tests.nemesis.workload import SCHEMA, Writer
from tests.services.postgres import Database

#: Longer than the seconds between two questions of the capture where the server stands.
QUIET = 1.3


class PostgresOrigin(Origin):
    """A database of a server of our own."""

    author: Writer

    def __init__(self, db: Database, folder: Path, chance: random.Random) -> None:
        self.db = db
        self.uri = db.uri
        self.ledger = Ledger(TABLES)
        self._disk = folder / "disk"
        db.execute(SCHEMA)
        self.author = Writer(db, self.ledger, chance)
        self.author.look_around()

    def troubles(self) -> list[Trouble]:
        """What befalls this server beside a restart."""
        return [(0.4, self.promote), (0.7, self.hold_stream)]

    def end_streams(self) -> str:
        self.db.execute("select pg_terminate_backend(pid) from pg_stat_replication")
        return "the walsender is terminated"

    def hold_stream(self) -> str:
        """The walsender of a quiet server gets no processor while tables are truncated, and then
        answers what it was asked meanwhile before it looks at them."""
        time.sleep(QUIET)  # nothing to wait for: that nothing comes is what the capture shall see
        found: list[int] = []

        def sends() -> bool:
            found[:] = [pid for (pid,) in self.db.execute("select pid from pg_stat_replication")]
            return bool(found)

        until(sends, "a walsender")
        process = found[0]
        os.kill(process, signal.SIGSTOP)
        try:
            told = [self.author.truncate() for _ in range(2)]
            time.sleep(QUIET)  # nothing to wait for: nobody answers
        finally:
            os.kill(process, signal.SIGCONT)
        return f"the walsender is held up: {', '.join(told)}"

    def stop(self, *, hard: bool) -> None:
        self.db.server.kill() if hard else self.db.server.stop()

    def start(self) -> None:
        self.db.server.start()
        self.author.connect()

    def promote(self) -> str:
        """The server comes back as a standby that is promoted: everything is there, and its
        history has one more timeline."""
        server = self.db.server
        server.stop()
        (server.data / "standby.signal").touch()
        server.start()
        server.promote()
        until(lambda: server.execute("select pg_is_in_recovery()") == [(False,)], "a primary")
        self.author.connect()
        return "the source is promoted to a new timeline"

    # -- losses ---------------------------------------------------------------------------

    def losses(self, chance: random.Random) -> Sequence[Loss]:
        tables = ", ".join(chance.sample(["orders", "plain", ODD.quoted], k=chance.randint(1, 2)))
        passes = chance.random() < 0.5
        return [
            *(
                Loss(lambda change=change: self._change_publication(change))  # type: ignore[misc]
                for change in (
                    f"alter publication {{}} drop table {tables}",
                    "alter publication {} set (publish = 'insert')",
                    f"alter publication {{}} set table {tables}",
                    "drop publication {}",
                )
            ),
            Loss(lambda: self._restore(passes), self._copy_disk, blind=True),
        ]

    def _change_publication(self, change: str) -> str:
        """What somebody with rights on it may do; sometimes no node sees it happen."""
        [(name,)] = self.db.execute("select quote_ident(pubname) from pg_publication")
        statement = change.format(name)
        self.db.execute(statement)
        return statement

    def _copy_disk(self) -> None:
        self.author.release()
        self.author.end_prepared()
        shutil.rmtree(self._disk, ignore_errors=True)
        self.stop(hard=False)
        self.db.server.copy_data(self._disk)
        self._shape = self.author.shape()
        self.start()

    def _restore(self, passes: bool) -> str:
        """The server gets the disk that it had, and goes on from there; where it ``passes``, to
        beyond what was read before."""
        self.stop(hard=True)
        self.db.server.restore_data(self._disk)
        self.db.server.start()
        self.author.go_back(self._shape)
        if passes:
            self.db.execute(
                "create table passing as select i from generate_series(1, 100000) i;"
                "drop table passing"
            )
        return f"the source is restored{' and passes what was read' * passes}"

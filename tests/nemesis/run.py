"""One run: a source, a node, feeds into every end, and everything that goes wrong.

What is done is chosen from a seed, so that a run can be repeated as far as time allows.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from functools import partial

from changefeed.catalog import Status
from changefeed.core.errors import LOG_LOST, ChangefeedError, Code
from tests.helpers.waiting import PATIENCE, until
from tests.nemesis.copies import Copy
from tests.nemesis.ends import End
from tests.nemesis.origin import Origin
from tests.nemesis.service import Nodes
from tests.nemesis.trouble import Trouble

SECONDS = float(os.environ.get("CHANGEFEED_NEMESIS_SECONDS", "40"))
#: Failures of one feed that are told.
TOLD = 10
#: How often changes get lost in a run.
LOSSES = 2
#: A reader comes by so often, in seconds.
LOOK_EVERY = 0.7


class Run:
    """One database, one node, one seed, feeds into every end."""

    def __init__(
        self,
        origin: Origin,
        seed: int,
        chance: random.Random,
        service: Nodes,
    ) -> None:
        self.seed = seed
        self.chance = chance
        self.origin = origin
        self.ledger = origin.ledger
        self.writer = origin.author
        self.ends: Sequence[End] = ()
        self.service = service
        self.history: list[str] = []
        self._began = time.monotonic()
        self._without_extra: set[str] = set()
        self._look_at = 0.0
        self._steps = self._faults = 0

    def note(self, text: str) -> None:
        """Write down what was done and when."""
        self.history.append(f"{time.monotonic() - self._began:7.2f}s {text}")

    def create_feeds(self, ends: Sequence[End]) -> None:
        """A feed into each end, while rows change."""
        self.ends = ends
        service = self.service
        service.start()
        # It is asked by a CREATE whose query Spark has to check.
        until(service.catalog.live_nodes, "a node of the state")
        service.execute(f"CREATE EXTERNAL CONNECTION shop AS '{self.origin.uri}'")
        for end in ends:
            service.execute(end.statement)
        for _ in range(10):
            self.note(self.writer.commit())
        for end in ends:
            end.catch_up(service)
        self.ledger.scanned()
        self.note("all feeds run")

    # -- what goes wrong ------------------------------------------------------------------

    def kill_capture(self) -> str:
        return f"kill -9 of the capture: {self.service.kill_child('capture')}"

    def kill_jvm(self) -> str:
        return f"kill -9 of the JVM: {self.service.kill_child('jvm')}"

    def kill_working_jvm(self) -> str:
        until(partial(self.service.kill_child, "jvm"), "a JVM to kill")
        return "kill -9 of the JVM"

    def kill_node(self) -> str:
        self.service.kill()
        for _ in range(self.chance.randint(0, 5)):
            self.note(self.writer.commit())
        self.service.start()
        return "kill -9 of the node, and a new one"

    def full_disk(self) -> str:
        """The change log cannot be written for a while, in the next life of the node."""
        self.service.kill()
        self.service.start(faults="log.append.write@8:full,log.append.write@9:full")
        return "a new node that meets a full disk"

    def end_streams(self) -> str:
        return self.origin.end_streams()

    def restart_source(self) -> str:
        hard = self.chance.random() < 0.5
        self.origin.restart(hard=hard)
        return f"the source is {'killed' if hard else 'stopped'} and started again"

    def meanwhile(self) -> None:
        """What the source does while a target is away."""
        for _ in range(3):
            self.note(self.writer.commit())

    def pause(self) -> str:
        feed = self.chance.choice(self.ends).name
        wanted = "RESUME" if self.service.job(feed).wanted.value == "paused" else "PAUSE"
        return self._statement(f"{wanted} CHANGEFEED {feed}")

    def alter(self) -> str:
        """Table ``extra`` leaves and joins a feed, or an option changes."""
        end = self.chance.choice(self.ends)
        if "extra" not in end.tables or self.chance.random() < 0.3:
            setting = self.chance.choice(end.settings)
            return self._statement(f"ALTER CHANGEFEED {end.name} SET {setting}")
        if end.name in self._without_extra:
            return self._join(end.name)
        said, done = self._try(f"ALTER CHANGEFEED {end.name} DROP extra")
        if done:
            self._without_extra.add(end.name)
        return said

    def _join(self, feed: str) -> str:
        said, done = self._try(f"ALTER CHANGEFEED {feed} ADD extra WITH initial_scan = 'yes'")
        if done:
            self._without_extra.discard(feed)
        return said

    def _statement(self, sql: str) -> str:
        return self._try(sql)[0]

    def _try(self, sql: str) -> tuple[str, bool]:
        try:
            self.service.execute(sql)
        except ChangefeedError as error:
            return f"{sql}: {error.code.number} {error.message}", False
        return sql, True

    # -- the run --------------------------------------------------------------------------

    def actions(self) -> list[Trouble]:
        """What may happen next, with its weight."""
        return [
            *self.writer.doings(),
            (3, self.pause),
            (2, self.alter),
            (2, self.kill_capture),
            (1, self.kill_jvm),
            (2, self.end_streams),
            (0.7, self.kill_node),
            (0.5, self.full_disk),
            (0.6, self.restart_source),
            *self.origin.troubles(),
            *(trouble for end in self.ends for trouble in end.troubles(self.meanwhile)),
        ]

    def go_wrong(self, seconds: float, actions: Sequence[Trouble] = ()) -> None:
        """Do things for ``seconds``, of all that there are or of ``actions``."""
        weights, doings = zip(*(actions or self.actions()), strict=True)
        harmless = [doing for _, doing in self.writer.doings()]
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            doing = self.chance.choices(doings, weights)[0]
            self.note(doing())
            self._steps += 1
            self._faults += doing not in harmless
            if time.monotonic() >= self._look_at:
                self.look()
                self._look_at = time.monotonic() + LOOK_EVERY
            time.sleep(self.chance.choice([0, 0, 0.05, 0.3]))

    def go_without_looking(self, seconds: float) -> None:
        """Write for ``seconds``, while copies need not be whole."""
        deadline = time.monotonic() + seconds
        weights, doings = zip(*self.writer.doings(), strict=True)
        while time.monotonic() < deadline:
            self.note(self.chance.choices(doings, weights)[0]())

    def lose(self) -> None:
        """Changes do not reach the log, for one of the reasons that the source has."""
        loss = self.chance.choice(self.origin.losses(self.chance))
        loss.prepare()
        self.go_without_looking(SECONDS / 40)
        blind = loss.blind or self.chance.random() < 0.3
        if loss.blind:
            # Only what was read can be missing in the history of a server that is restored. Scans
            # are owed, too, and wait for every open transaction.
            self.end_transactions()
            for end in self.ends:
                until(partial(self._caught_up, end), f"{end.name} has everything")
        if blind:
            self.service.stop()
        self.note(loss.act() + " while no node runs" * blind)
        if blind:
            self.go_without_looking(0.5)
            self.service.start()

    def rescan(self) -> None:
        """Wait until every feed has said that it lost something, and have it read again."""
        self.end_transactions()  # a new slot waits for all
        for end in self.ends:
            until(partial(self._lost, end.name), f"{end.name} says that changes are lost")
        for end in self.ends:
            until(partial(self._rescanned, end.name), f"{end.name} has everything")
            self.note(f"{end.name} has everything")

    def end_transactions(self) -> None:
        """End those that the writer has left open."""
        self.note(self.writer.release())
        self.note(self.writer.end_prepared())

    def _rescanned(self, feed: str) -> bool:
        """One table after the other fails: somebody who is quick does it again."""
        self.note(self._statement(f"ALTER CHANGEFEED {feed} RESCAN"))
        try:
            self.service.sync(feed)
        except ChangefeedError as error:
            self.note(f"{feed}: {error.message}")
            return False
        return True

    def _lost(self, feed: str) -> bool:
        job = self.service.job(feed)
        tables = self.service.catalog.tables(job.id)
        told = {job.error_code, *(table.error_code for table in tables)}
        return not told.isdisjoint({code.number for code in LOG_LOST | {Code.TABLE_GAP}})

    def look(self) -> None:
        """A reader comes by at every end."""
        for end in self.ends:
            end.look()

    def see_everywhere(self) -> None:
        """Wait until a reader has found every copy at some instant."""

        def seen() -> bool:
            self.look()
            return all(end.instants for end in self.ends if isinstance(end, Copy))

        until(seen, "every copy stands at an instant")

    def settle(self) -> None:
        """Let everything that was stopped go on, and wait until the feeds have it all."""
        self.end_transactions()
        for feed in sorted(self._without_extra):
            self.note(self._join(feed))
        for end in self.ends:
            until(partial(self._resumed, end.name), f"{end.name} goes on")
            self.wait_for(end)
            assert self.service.job(end.name).status is not Status.FAILED

    def wait_for(self, end: End) -> None:
        """Wait until a feed has all."""
        until(partial(self._caught_up, end), f"{end.name} has everything")
        self.note(f"{end.name} has everything")

    def _caught_up(self, end: End) -> bool:
        """A table that lost its name for a while, or got another during its scan, is read again."""
        try:
            end.catch_up(self.service)
        except ChangefeedError as error:
            tables = self.service.catalog.tables(self.service.job(end.name).id)
            failed = [table for table in tables if table.error_code == Code.TABLE_REPLACED.number]
            if not failed:
                raise
            self.note(f"{end.name}: {error.message}")
            names = ", ".join(table.table.name for table in failed)
            self.note(self._statement(f"ALTER CHANGEFEED {end.name} RESCAN {names}"))
            return False
        return True

    def verify(self) -> list[str]:
        """What VERIFY says of the feeds whose sinks it knows."""
        told = []
        for end in self.ends:
            if end.renames_leave:
                tables = ", ".join(end.renames_leave)
                self.service.execute(f"ALTER CHANGEFEED {end.name} RESCAN {tables}")
                self.service.sync(end.name)
            try:
                answer = self.service.execute(f"VERIFY CHANGEFEED {end.name}")
            except ChangefeedError as error:
                if error.code is not Code.NOT_SUPPORTED:
                    raise
                continue
            self.note(f"{end.name}: {'; '.join(answer.notices)}")
            told += [f"{end.name}: {row}" for row in answer.rows[:TOLD] if not _gap(end, row)]
        return told

    def _resumed(self, feed: str) -> bool:
        if self.service.job(feed).wanted.value == "paused":
            self.note(self._statement(f"RESUME CHANGEFEED {feed}"))
        return self.service.job(feed).wanted.value == "running"

    def judge(self) -> list[str]:
        """What the feeds broke."""
        return [f"{end.name}: {text}" for end in self.ends for text in end.judge()[:TOLD]]

    def settled_failures(self) -> list[str]:
        """What the feeds broke, in the end. SYNC answers when rows are durable; the mark that says
        so follows in a moment, and somebody may be reading. What is wrong for good stays wrong."""
        deadline = time.monotonic() + PATIENCE
        while True:
            self.look()
            failures = self.judge()
            if not failures or time.monotonic() > deadline:
                return failures
            time.sleep(0.5)

    def prove(self) -> None:
        """Everything is as it was promised, as a reader sees it and as VERIFY does."""
        print(f"seed {self.seed}: {self._steps} steps, {self._faults} of them troubles")
        failures = self.settled_failures()
        assert not failures, self.told(failures)
        different = self.verify()
        assert not different, self.told(different)

    def told(self, failures: Sequence[str]) -> str:
        """Failures for a reader, with what repeats them."""
        return "\n".join([f"CHANGEFEED_SEED={self.seed}", *failures])

    def close(self) -> None:
        """Stop what runs."""
        self.writer.close()
        for end in self.ends:
            end.close()
        self.service.close()

    def story(self) -> str:
        """Everything a reader of a failure needs."""
        jobs = [f"{j.name}: {j.status} {j.reason} {j.error}" for j in self.service.catalog.jobs()]
        seen = [
            f"{end.name} was compared at {len(end.instants)} instants"
            for end in self.ends
            if isinstance(end, Copy)
        ]
        words = [f"seed {self.seed}", *self.history, *jobs, *seen, self.service.last_words()]
        return "\n".join(words)


def _gap(end: End, difference: Sequence[object]) -> bool:
    """A row that was deleted while its table was out of a feed of messages: nobody tells it."""
    table, _, kind, *_ = difference
    left = {f"{table}".rpartition(".")[2]} & end.gaps
    return kind == "extra" and bool(left) and not isinstance(end, Copy)

"""Do the messages of a feed tell what the ledger says? Its promises, checked from outside.

Each partition is judged in the order a consumer reads it:

* every committed version of a key comes, in order, and nothing that was never committed;
* it has the timestamp of its commit: none before that was begun or after it was done;
* ``before`` is the version that the key had;
* the table rebuilt at every resolved timestamp is a state the database was in, never an
  earlier one than last time;
* in the end it is what the database holds.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from changefeed.core.clock import Timestamp
from changefeed_testing.sinks.messages import Message
from changefeed_testing.sinks.validators import OrderValidator, ResolvedValidator, validate
from tests.nemesis.ledger import Cause, Ledger, Row, Rows, Table, Version, normal


@dataclass
class Partition:
    """What one partition says once repeats are left out."""

    table: Table
    events: list[Message] = field(default_factory=list)
    marks: list[Timestamp] = field(default_factory=list)
    seen: dict[tuple[str | None, Timestamp, bool], Row | None] = field(default_factory=dict)

    def note(self, message: Message) -> str | None:
        """Take the next message; the complaint about a repeat that says something else."""
        if message.resolved is not None:
            self.marks.append(message.resolved)
            return None
        at = message.truncated or message.at
        assert at is not None, "the feed sends timestamps"
        row = self.table.shown(normal(message.after))
        # Rows without a key are never collapsed: one may come and go at one instant.
        name = (message.key, at, not self.table.key and row is None)
        if name not in self.seen:
            self.seen[name] = row
            self.events.append(message)
        elif self.seen[name] != row:
            return f"{message.key} at {at} was {self.seen[name]} and is {row} when repeated"
        return None

    def passing(self) -> set[tuple[str | None, Timestamp]]:
        """Keys that came and went at one instant (tables without a key only)."""
        gone = {name[:2] for name in self.seen if name[2]}
        return gone & {name[:2] for name in self.seen if not name[2]}


def key_text(message: Message) -> str:
    """The key as the ledger writes it."""
    return json.dumps(json.loads(message.key or "null"), default=str)


class Judge:
    """Judges the messages of one feed about one table."""

    def __init__(self, ledger: Ledger, table: Table, *, diff: bool, gaps: bool = False) -> None:
        """``gaps``: the table left the feed at times, so versions may be missing."""
        self.failures: list[str] = []
        self._ledger = ledger
        self._table = table
        self._diff = diff
        self._gaps = gaps
        self._place: dict[str, int] = {}
        self._truncates = 0

    def judge(self, messages: Sequence[Message], partitions: int) -> None:
        """All of them; messages of other topics are left out."""
        parts: dict[int, Partition] = defaultdict(lambda: Partition(self._table))
        for message in messages:
            complaint = parts[message.partition].note(message)
            if complaint is not None and not self._table.steady:
                self._fail(complaint)
        for part in parts.values():
            passing = part.passing()
            part.events = [e for e in part.events if (e.key, e.at) not in passing]
            self._versions(part.events)
        self._complete()
        self._states([parts[n] for n in range(partitions)])

    def _fail(self, text: str) -> None:
        self.failures.append(f"{self._table.name}: {text}"[:600])

    # -- versions of each key -------------------------------------------------------------

    def _versions(self, events: Iterable[Message]) -> None:
        truncates: list[Timestamp] = []
        home: set[str] = set()
        for message in events:
            if message.truncated is not None:
                truncates.append(message.truncated)
                for key in home:
                    self._truncated(key, len(truncates))
                continue
            key = key_text(message)
            home.add(key)
            self._version(key, message)

    def _known(self, key: str) -> list[Version]:
        return self._ledger.versions[self._table.name].get(key, [])

    def _truncated(self, key: str, number: int) -> None:
        """The key ends with the ``number``-th TRUNCATE, if it lived then."""
        known = self._known(key)
        for place in range(self._place.get(key, -1) + 1, len(known)):
            version = known[place]
            if version.cause is Cause.TRUNCATE and version.truncate == number:
                self._skipped(key, known, place)
                self._place[key] = place
                return

    def _version(self, key: str, message: Message) -> None:
        shown = self._table.shown
        known, row = self._known(key), shown(normal(message.after))
        here = self._place.get(key, -1)
        current = shown(known[here].row) if here >= 0 else None
        if row == current or (row is None and here < 0):
            return  # a backfill, or a row that came and went in one transaction
        for place in range(here + 1, len(known)):
            same = shown(known[place].row) == row
            if same and known[place].cause is not Cause.TRUNCATE:
                self._skipped(key, known, place)
                self._before(key, message, known, place)
                if place == here + 1:  # else a scan may have brought it, which has its own time
                    self._dated(key, message, known[place])
                self._place[key] = place
                return
        self._fail(f"{key} at {message.at}: {row} after {current} was never so: {known[here:]}")

    def _skipped(self, key: str, known: list[Version], place: int) -> None:
        here = self._place.get(key, -1)
        first = here < 0 and key in self._ledger.born_before[self._table.name]
        missing = [v for v in known[here + 1 : place] if v.cause is Cause.WRITE]
        if missing and not first and not self._gaps:
            self._fail(f"{key}: never delivered: {missing}, but then {known[place]}")

    def _dated(self, key: str, message: Message, version: Version) -> None:
        if version.cause is Cause.DDL or version.commit <= self._ledger.settled or self._gaps:
            return
        if message.at is not None and not self._ledger.dated(version.commit, message.at):
            self._fail(f"{key} at {message.at} is of commit {version.commit}, which was not then")

    def _before(self, key: str, message: Message, known: list[Version], place: int) -> None:
        here = self._place.get(key, -1)
        if not self._diff or known[place].cause is Cause.DDL:
            return
        if here < 0 and key in self._ledger.born_before[self._table.name]:
            return
        was, said = known[place - 1].row if place else None, normal(message.before)
        if said is None and known[place].commit <= self._ledger.settled:
            return  # a scan that began again may have brought it: it reads what it had not saved
        steady = self._table.steady_part
        if (was and steady(was)) != (said and steady(said)):
            self._fail(f"{key} at {message.at}: before is {said}, the row was {was}")

    def _complete(self) -> None:
        """Nothing that was committed is missing in the end."""
        if self._gaps:
            return
        for key, known in self._ledger.versions[self._table.name].items():
            here = self._place.get(key, -1)
            if here < 0 and key in self._ledger.born_before[self._table.name]:
                rest = known[-1:] if known[-1].row is not None else []
            else:
                rest = known[here + 1 :]
            missing = [v for v in rest if v.cause is Cause.WRITE]
            if missing:
                self._fail(f"{key}: never delivered: {missing}")

    # -- the table at each resolved timestamp ---------------------------------------------

    def _states(self, parts: Sequence[Partition]) -> None:
        common = sorted(set.intersection(*(set(p.marks) for p in parts)))
        if not common:
            self._fail("no resolved timestamp reached every partition")
            return
        replays = [_Replay(part) for part in parts]
        history = self._ledger.states[self._table.name]
        at_state, last = 0, Timestamp.ZERO
        for mark in common:
            rows: Rows = {}
            for replay in replays:
                rows |= replay.upto(mark)
            found = self._find_state(rows, history, at_state)
            if found is None:
                if not self._gaps:
                    self._explain(mark, last, rows, history, at_state)
                return
            at_state, last = found, mark
        self._final(rows, history[-1])

    def _find_state(self, rows: Rows, history: list[Rows], start: int) -> int | None:
        said = self._steady(rows)
        for number in range(start, len(history)):
            if len(history[number]) == len(said) and self._steady(history[number]) == said:
                return number
        return None

    def _steady(self, rows: Rows) -> Rows:
        return {key: self._steady_row(row) for key, row in rows.items()}

    def _steady_row(self, row: Row) -> Row:
        return self._table.steady_part(self._table.shown(row) or {})

    def _explain(
        self, mark: Timestamp, last: Timestamp, rows: Rows, history: list[Rows], start: int
    ) -> None:
        """Name the nearest state, so that a reader sees what is wrong."""
        said = self._steady(rows)

        def differing(number: int) -> set[str]:
            true = self._steady(history[number])
            return {k for k in true.keys() | said.keys() if true.get(k) != said.get(k)}

        nearest = min(range(len(history)), key=lambda number: len(differing(number)))
        shown = [
            f"{k}: feed {said.get(k)}, state {history[nearest].get(k)}"
            for k in sorted(differing(nearest))[:5]
        ]
        self._fail(
            f"at resolved {mark} (after {last}) the table was in no state from {start} on; "
            f"nearest is {nearest} of {len(history)}: {'; '.join(shown)}"
        )

    def _final(self, rows: Rows, truth: Rows) -> None:
        if self._gaps:
            return
        steady = self._table.steady_part
        for key in sorted(truth.keys() | rows.keys()):
            said, true = rows.get(key), truth.get(key)
            if (said and steady(said)) != (true and steady(true)):
                self._fail(f"{key} in the end: {said}, the source has {true}")


class _Replay:
    """One partition's rows, applied mark by mark in the order of their timestamps."""

    def __init__(self, part: Partition) -> None:
        numbered = enumerate(part.events)
        self._events = sorted(
            ((e.truncated or e.at or Timestamp.ZERO, n, e) for n, e in numbered),
            key=lambda item: item[:2],
        )
        self._next = 0
        self._rows: Rows = {}

    def upto(self, mark: Timestamp) -> Rows:
        """The rows of this partition at ``mark``."""
        while self._next < len(self._events) and self._events[self._next][0] <= mark:
            message = self._events[self._next][2]
            row = normal(message.after)
            if message.truncated is not None:
                self._rows = {}
            elif row is None:
                self._rows.pop(key_text(message), None)
            else:
                self._rows[key_text(message)] = row
            self._next += 1
        return self._rows


def judge_feed(
    ledger: Ledger,
    messages: Sequence[Message],
    tables: Iterable[str],
    *,
    diff: bool,
    partitions: int = 1,
    gaps: Iterable[str] = (),
    whole: bool = False,
) -> list[str]:
    """What is wrong with a feed, table by table; nothing when it kept its promises.

    ``whole``: also values that the source does not send are in every message.
    """
    try:
        validate(messages, OrderValidator(), ResolvedValidator())
        failures = []
    except AssertionError as error:
        failures = [str(error)]
    for name in tables:
        table = ledger.tables[name]
        if whole:
            table = replace(table, looked_up=())
        judge = Judge(ledger, table, diff=diff, gaps=name in set(gaps))
        topic = table.topic
        judge.judge([m for m in messages if m.topic == topic], partitions)
        failures += judge.failures
    return failures

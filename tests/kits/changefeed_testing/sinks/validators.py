"""The guarantees as code. Each validator watches the messages of a feed in the order in which a
consumer reads them, partition by partition, and records violations.

Repeats are allowed everywhere: a message whose (key, timestamp) was seen before is no violation.
Truncations are messages about a table, not about a row: the fingerprint validator applies them, the
others ignore them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from changefeed.core.clock import Timestamp
from changefeed_testing.sinks.history import RowHistory
from changefeed_testing.sinks.messages import Message, Row

Place = tuple[str, int]


class Validator(Protocol):
    """Takes messages one by one."""

    failures: list[str]

    def note(self, message: Message) -> None:
        """Look at the next message."""
        ...

    def finish(self) -> None:
        """Check what can be checked only after the last message."""
        ...


def validate(messages: Iterable[Message], *validators: Validator) -> None:
    """Run validators over a whole feed.

    Raises:
        AssertionError: naming every violation.
    """
    for message in messages:
        for validator in validators:
            validator.note(message)
    for validator in validators:
        validator.finish()
    failures = [failure for validator in validators for failure in validator.failures]
    if failures:
        shown = failures[:20] + [f"... and {len(failures) - 20} more"] * (len(failures) > 20)
        raise AssertionError("the feed broke its promises:\n" + "\n".join(shown))


class OrderValidator:
    """A key stays on its partition, and no unseen older version follows a newer one."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self._home: dict[tuple[str, str], int] = {}
        self._seen: dict[tuple[str, str], set[Timestamp]] = defaultdict(set)
        self._newest: dict[tuple[str, str], Timestamp] = {}

    def note(self, message: Message) -> None:
        if not message.is_row or message.key is None:
            return
        row = (message.topic, message.key)
        home = self._home.setdefault(row, message.partition)
        if home != message.partition:
            self.failures.append(
                f"{message.topic} {message.key} moved from partition {home} to {message.partition}"
            )
        if message.at is None or message.at in self._seen[row]:
            return
        newest = self._newest.get(row, Timestamp.ZERO)
        if message.at < newest:
            self.failures.append(
                f"{message.topic} {message.key}: version {message.at} came first after {newest}"
            )
        self._seen[row].add(message.at)
        self._newest[row] = max(newest, message.at)

    def finish(self) -> None:
        """Everything was checked on the way."""


class ResolvedValidator:
    """After ``resolved: R`` no unseen row at or below R follows on that partition.

    Resolved timestamps never decrease on a partition. With ``partitions`` (count by topic),
    every partition must end with the same newest one.
    """

    def __init__(self, partitions: Mapping[str, int] | None = None) -> None:
        self.failures: list[str] = []
        self.marks: dict[Place, Timestamp] = {}
        self._partitions = dict(partitions or {})
        self._seen: dict[Place, set[tuple[str | None, Timestamp]]] = defaultdict(set)

    def note(self, message: Message) -> None:
        place = (message.topic, message.partition)
        if message.resolved is not None:
            last = self.marks.get(place, Timestamp.ZERO)
            if message.resolved < last:
                self.failures.append(f"{_name(place)}: resolved {message.resolved} after {last}")
            self.marks[place] = max(last, message.resolved)
        elif message.is_row and message.at is not None:
            self._row(place, message.key, message.at)

    def _row(self, place: Place, key: str | None, at: Timestamp) -> None:
        if (key, at) in self._seen[place]:
            return
        self._seen[place].add((key, at))
        if place in self.marks and at <= self.marks[place]:
            self.failures.append(
                f"{_name(place)}: {key} at {at} came first after resolved {self.marks[place]}"
            )

    def finish(self) -> None:
        wanted = [(t, p) for t, count in self._partitions.items() for p in range(count)]
        newest = max(self.marks.values(), default=None)
        for place in wanted:
            if newest is None or self.marks.get(place) != newest:
                got = self.marks.get(place, "none")
                self.failures.append(f"{_name(place)}: last resolved is {got}, not {newest}")


class BeforeAfterValidator:
    """``after`` is the row as of the message's timestamp, ``before`` the row just before it.

    ``diff`` says whether the feed sends before images; without it, a message must have none.
    Rows of an initial scan (at or below ``history.since``) have no before image.
    """

    def __init__(self, history: RowHistory, *, diff: bool = False) -> None:
        self.failures: list[str] = []
        self._history = history
        self._diff = diff

    def note(self, message: Message) -> None:
        if not message.is_row or message.key is None or message.at is None:
            return
        where = f"{message.topic} {message.key} at {message.at}"
        truth = self._history.row(message.topic, message.key, message.at)
        if message.after != truth:
            self.failures.append(f"{where}: after is {message.after}, the row was {truth}")
        if message.has_before and not self._diff:
            self.failures.append(f"{where}: a before image nobody asked for")
        if self._diff and message.at > self._history.since:
            truth = self._history.before(message.topic, message.key, message.at)
            if message.before != truth:
                self.failures.append(f"{where}: before is {message.before}, the row was {truth}")

    def finish(self) -> None:
        """Everything was checked on the way."""


TableAt = Callable[[str, Timestamp], Mapping[str, Row] | None]
"""The true table (by key) of a topic at an instant; None when that is not known."""


class FingerprintValidator:
    """The table rebuilt from the messages equals the source at each resolved timestamp.

    Rows are applied in timestamp order once every partition of the topic has passed them.
    With a :class:`RowHistory` it also finds versions that were never delivered, even if a later
    version was.

    Args:
        truth: returns the source's table at an instant.
        partitions: count by topic; a topic that is not named has the partitions seen so far.
        history: every version of every row.
    """

    def __init__(
        self,
        truth: TableAt,
        partitions: Mapping[str, int] | None = None,
        history: RowHistory | None = None,
    ) -> None:
        self.failures: list[str] = []
        self.tables: dict[str, dict[str, Row]] = defaultdict(dict)
        self.checked = 0
        self._truth = truth
        self._history = history
        self._partitions = dict(partitions or {})
        self._marks: dict[str, dict[int, Timestamp]] = defaultdict(dict)
        self._upto: dict[str, Timestamp] = {}
        self._pending: dict[str, dict[tuple[Timestamp, str], Message]] = defaultdict(dict)
        self._truncations: dict[str, set[Timestamp]] = defaultdict(set)

    def note(self, message: Message) -> None:
        topic = message.topic
        marks = self._marks[topic]
        marks.setdefault(message.partition, Timestamp.ZERO)
        if message.resolved is not None:
            marks[message.partition] = max(marks[message.partition], message.resolved)
            self._advance(topic)
        elif message.truncated is not None:
            self._truncations[topic].add(message.truncated)
        else:
            self._keep(message)

    def _keep(self, message: Message) -> None:
        if message.key is None or message.at is None:
            return
        # A row that was applied already is a repeat; to apply it again would undo newer rows.
        if message.at > self._upto.get(message.topic, Timestamp.ZERO):
            self._pending[message.topic][message.at, message.key] = message

    def _advance(self, topic: str) -> None:
        marks = self._marks[topic]
        if len(marks) < self._partitions.get(topic, 0):
            return
        upto, last = min(marks.values()), self._upto.get(topic, Timestamp.ZERO)
        if upto <= last:
            return
        pending = self._pending[topic]
        ready = sorted(place for place in pending if place[0] <= upto)
        self._complete(topic, last, upto)
        self._apply(topic, [pending.pop(place) for place in ready], last, upto)
        self._upto[topic] = upto
        self._compare(topic, upto)

    def _apply(self, topic: str, rows: list[Message], last: Timestamp, upto: Timestamp) -> None:
        """Apply rows and truncations in order; at one instant, the truncation first."""
        table = self.tables[topic]
        steps: list[tuple[Timestamp, Message | None]] = [
            (at, None) for at in sorted(self._truncations[topic]) if last < at <= upto
        ]
        steps += [(message.at or Timestamp.ZERO, message) for message in rows]
        for _, message in sorted(steps, key=lambda step: (step[0], step[1] is not None)):
            if message is None:
                table.clear()
            elif message.after is None:
                table.pop(message.key or "", None)
            else:
                table[message.key or ""] = message.after

    def _complete(self, topic: str, last: Timestamp, upto: Timestamp) -> None:
        if self._history is None:
            return
        pending, gone = self._pending[topic], self._truncations[topic]
        for key, at in self._history.versions(topic, max(last, self._history.since), upto):
            if (at, key) not in pending and at not in gone:
                self.failures.append(f"{topic} {key}: version {at} was never delivered")

    def _compare(self, topic: str, at: Timestamp) -> None:
        truth = self._truth(topic, at)
        if truth is None:
            return
        self.checked += 1
        table = self.tables[topic]
        for key in sorted(truth.keys() | table.keys()):
            if truth.get(key) != table.get(key):
                self.failures.append(
                    f"{topic} {key} at resolved {at}: the feed says {table.get(key)}, "
                    f"the source {truth.get(key)}"
                )

    def finish(self) -> None:
        if not self.checked and not self.failures:
            self.failures.append("no resolved timestamp could be checked against the source")


def _name(place: Place) -> str:
    return f"{place[0]}[{place[1]}]"

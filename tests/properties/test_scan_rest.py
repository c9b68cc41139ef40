"""A scan that breaks again and again, against a table that changes meanwhile: the copy is whole."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from changefeed.core.clock import Timestamp
from changefeed.core.schema import KeyRange
from changefeed.core.unread import PartRange, UnreadParts, joined
from changefeed.scan.table import PartLedger
from changefeed.sources.mysql.ranges import between

PLACES, KEYS = 24, 12


@dataclass
class Source:
    """Rows at places, and the log of what became of them. An updated row may move."""

    dice: random.Random
    by_key: bool
    rows: dict[int, tuple[int, int]] = field(default_factory=dict)
    log: list[tuple[int, int, int | None]] = field(default_factory=list)
    now: int = 10

    def change(self, times: int) -> None:
        for _ in range(times):
            self.now += 1
            key = self.dice.randrange(KEYS)
            if key in self.rows and self.dice.random() < 0.4:
                del self.rows[key]
                self.log.append((self.now, key, None))
            else:
                place = key * PLACES // KEYS if self.by_key else self.dice.randrange(PLACES)
                self.rows[key] = (place, self.now)
                self.log.append((self.now, key, self.now))

    def parts(self, left: Sequence[PartRange]) -> list[PartRange]:
        """``left``, cut in another way each time."""
        bounds = [(str(at),) for at in sorted(self.dice.sample(range(1, PLACES), 5))]
        return [
            PartRange("", keys.low, keys.high)
            for one in left
            for keys in between(bounds, KeyRange(one.low, one.high))
        ]

    def read(self, part: PartRange) -> list[tuple[int, int]]:
        low = int(part.low[0]) if part.low else 0
        high = int(part.high[0]) if part.high else PLACES
        return [(key, value) for key, (place, value) in self.rows.items() if low <= place < high]


class Target:
    """Rows with the version that wrote them; no older one takes the place of a newer one."""

    def __init__(self, rows: dict[int, tuple[int, int]]) -> None:
        self.rows = rows

    def write(self, key: int, value: int | None, version: int) -> None:
        assert version >= self.rows.get(key, (0, 0))[1], "rows of a key come in order"
        self.rows.pop(key, None)
        if value is not None:
            self.rows[key] = (value, version)

    def end_scan(self, since: int) -> None:
        self.rows = {key: row for key, row in self.rows.items() if row[1] >= since}


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.booleans(), st.integers(0, 4))
def test_a_broken_scan_is_completed(seed: int, by_key: bool, breaks: int) -> None:
    """Rows of an older scan are in the target, too, of which some are gone by now."""
    dice = random.Random(seed)
    source = Source(dice, by_key)
    source.change(20)
    target = Target({key: (-1, 5) for key in range(KEYS)})
    unread, done = None, None
    for attempt in range(breaks + 1):
        source.change(dice.randrange(6))
        at = source.now
        if done is not None:
            for when, key, value in source.log:
                if done < when <= at:
                    target.write(key, value, when)
        done = at
        parts = source.parts([PartRange("")] if unread is None else unread.left)
        ledger = PartLedger("form", Timestamp(at), parts, unread)
        dice.shuffle(order := list(range(len(parts))))
        whole = attempt == breaks
        for number in order if whole else order[: dice.randrange(len(order) + 1)]:
            rows = source.read(parts[number])
            torn = not whole and dice.random() < 0.3
            for key, value in rows[: len(rows) // 2] if torn else rows:
                target.write(key, value, at)
            if not torn:
                ledger.durable([number], len(rows), 0)
        if ledger.unread is not None:
            unread = UnreadParts.from_json(ledger.unread.to_json())
    assert unread is not None and not unread.left
    target.end_scan(unread.since.wall)
    assert {key: value for key, (value, _) in target.rows.items()} == {
        key: value for key, (_, value) in source.rows.items()
    }


@given(st.sets(st.integers(0, 9)))
def test_what_is_left_is_kept_in_few_ranges(durable: set[int]) -> None:
    """The parts that are not durable, neighbours as one."""
    bounds = [None, *((str(n),) for n in range(1, 10)), None]
    parts = [PartRange("", *pair) for pair in itertools.pairwise(bounds)]
    ledger = PartLedger("form", Timestamp(1), parts, None)
    ledger.durable(durable, 0, 0)
    assert ledger.unread is not None
    assert ledger.unread.left == joined(p for n, p in enumerate(parts) if n not in durable)
    kept = [n for n in range(10) if n not in durable]
    runs = sum(1 for n in kept if n - 1 not in kept)
    assert len(ledger.unread.left) == runs


def test_a_part_that_no_later_image_knows_is_not_kept() -> None:
    """Then the scan begins again."""
    ledger = PartLedger("form", Timestamp(1), [PartRange(""), None], None)
    ledger.durable([0, 1], 10, 100)
    assert ledger.unread is None

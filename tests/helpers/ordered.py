"""Whether consumers see the changes of a row in order, where a delivery may have repeated some."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

from changefeed_testing.sinks.messages import Message


def assert_in_order(messages: Iterable[Message], *, keys: int, last: int) -> None:
    """Column ``b`` of each of so many keys counts from 0 to ``last``.

    Repeats begin again at an earlier change and go on from there.
    """
    values: dict[str, list[int]] = defaultdict(list)
    for message in messages:
        if message.is_row and message.key is not None and message.after is not None:
            values[message.key].append(message.after["b"])
    assert len(values) == keys
    for seen in values.values():
        assert set(seen) == set(range(last + 1))
        assert seen[-1] == last
        assert all(later <= earlier + 1 for earlier, later in pairwise(seen))

"""How late the rows of a feed were: counts, the promise of option slo, waits on purpose."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from changefeed.core.clock import SYSTEM_CLOCK
from changefeed.core.delays import BOUNDS, Delays, Slo
from changefeed.feeds.counted import with_rows
from changefeed.options.types import Promise

SECOND = 10**9
HOUR = 3600 * SECOND
NOW = 500_000 * HOUR + HOUR // 2


def test_each_row_is_in_the_bucket_of_its_delay() -> None:
    random = np.random.default_rng(7)
    walls = np.sort(NOW - (random.exponential(400, 5000) * SECOND).astype(np.int64))
    walls = np.append(walls, [NOW, NOW + SECOND])
    parts = [walls[:2000], walls[2000:][::-1]]  # the second is not in order
    found = with_rows(Delays().judged(300), parts, NOW)
    late = np.maximum(0, NOW - walls) / 1e9
    edges = [-1.0, *BOUNDS, float("inf")]
    wanted = [int(((late > low) & (late <= high)).sum()) for low, high in pairwise(edges)]
    assert list(found.counts) == wanted and found.rows == 5002
    assert found.seconds == pytest.approx(late.sum(), abs=2)
    share = float((late <= 300).mean())
    assert list(found.kept(NOW)) == pytest.approx([share, share])


def test_what_was_kept_is_of_the_last_day_and_week_and_stays_small() -> None:
    delays = Delays().judged(60)
    for hour in range(24 * 30):
        late = [10, 0] if hour < 24 * 29 else [0, 10]
        delays = delays.add(NOW + hour * HOUR, late, 0.0, late[0])
    end = NOW + (24 * 30 - 1) * HOUR
    day, week = delays.kept(end)
    assert day == 0.0 and week is not None and 0.8 < week < 0.9
    assert (len(delays.hours), len(delays.days)) == (24, 7)
    assert len(delays.to_text()) < 1500
    assert Delays.from_text(delays.to_text()) == delays
    assert delays.kept(end + 9 * 24 * HOUR) == (None, None)
    assert delays.judged(60) is delays and delays.judged(30).hours == ()


def test_a_wait_on_purpose_counts_once() -> None:
    delays = Delays(waits=(NOW, NOW + 100))
    assert delays.waited(NOW + 40, since=NOW - 5) == 40
    assert delays.waited(NOW + 400, since=NOW - 5) == 100
    assert delays.waited(NOW + 40, since=NOW + 30) == 10, "only what is not delivered yet"
    assert delays.waited(NOW + 400, since=NOW + 200) == 0


def test_a_promise_is_read() -> None:
    read = Promise().read("slo", " 99.9 %  WITHIN 5m", SYSTEM_CLOCK)
    assert [read.share, read.within] == pytest.approx([0.999, 300])
    assert Slo(0.99, 300).burnt(0.98) == pytest.approx(2)


@pytest.mark.parametrize("text", ["100% within 5m", "0% within 5m", "99 within 5m", "99%", ""])
def test_a_promise_that_cannot_be_kept_or_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"as '99% within 5m'"):
        Promise().read("slo", text, SYSTEM_CLOCK)


@pytest.mark.parametrize("text", ["99% within soon", "99% within 0s"])
def test_its_duration_is_one(text: str) -> None:
    with pytest.raises(ValueError, match="slo"):
        Promise().read("slo", text, SYSTEM_CLOCK)

"""The delays of the rows of a round, counted by numpy's kernels."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from changefeed.core.delays import BOUNDS, Delays

_BOUNDS = np.array([int(bound * 1e9) for bound in BOUNDS])


def with_rows(delays: Delays, walls: Iterable[np.ndarray], now: int) -> Delays:
    """``delays`` with rows that are durable since ``now``, of which ``walls`` has the commit times
    (both ns). A commit that the source's clock puts into the future has no delay.
    """
    counts = np.zeros(len(BOUNDS) + 1, np.int64)
    seconds, kept, within = 0.0, 0, int(delays.within * 1e9)
    for given in walls:
        # The log is in order of time: a search for each bound, not for each row.
        ordered = bool((given[1:] >= given[:-1]).all())
        sorted_ = given if ordered else np.sort(given)
        late = np.searchsorted(sorted_, now - _BOUNDS)  # rows that are later than each bound
        counts += np.diff(np.concatenate(([0], late[::-1], [len(given)])))[::-1]
        seconds += max(0.0, now - float(sorted_.mean())) * len(given) / 1e9
        kept += len(given) - int(np.searchsorted(sorted_, now - within))
    return delays.add(now, counts.tolist(), seconds, kept)

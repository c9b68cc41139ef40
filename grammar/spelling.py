"""Which of the words that would fit was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: No name of the language or of a person's tables is longer; comparing takes quadratic time.
_LONGEST = 128


def did_you_mean(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate that ``word`` was probably meant to be, in any case; None when none is near."""
    if len(word) > _LONGEST:
        return None
    by_fold = {candidate.casefold(): candidate for candidate in candidates}
    near = difflib.get_close_matches(word.casefold(), by_fold, n=1, cutoff=0.6)
    return by_fold[near[0]] if near else None

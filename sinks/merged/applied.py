"""How far changes are applied to a table, as its commits record it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AppliedVersion:
    """How far changes are applied to a table: every transaction before that of ``version``, and of
    that transaction the changes up to ``seq``, or all of them if ``seq`` is None.

    A transaction that alters or truncates the table is divided at that statement.
    """

    version: int = 0
    seq: int | None = None

    @property
    def whole(self) -> int:
        """The version up to which whole transactions are in the table."""
        return self.version if self.seq is None else self.version - 1

    def covers(self, place: AppliedVersion) -> bool:
        """Whether the change at ``place`` (with a sequence number) is in the table."""
        if place.version <= self.whole:
            return True
        return place.version == self.version and (place.seq or 0) <= (self.seq or 0)

    def __str__(self) -> str:
        return str(self.version) if self.seq is None else f"{self.version}.{self.seq}"

    @classmethod
    def parse(cls, text: str) -> AppliedVersion:
        """The inverse of ``str``."""
        version, dot, seq = text.partition(".")
        return cls(int(version), int(seq) if dot else None)

    def latest(self, other: AppliedVersion) -> AppliedVersion:
        """The one that covers more."""
        return max(self, other, key=lambda a: (a.whole, a.version, a.seq or 0))


#: No change is in the table.
NOTHING_APPLIED = AppliedVersion(0, 0)

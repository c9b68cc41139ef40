"""Whose a target is: the mark that a feed leaves on what it makes, and what follows from it.

A mark names the state, the job and the source table. A sink keeps it where its target has a
place for it: a row of a bookkeeping table, a property of a table, ``_meta`` of an index. What has
no mark and holds rows belongs to somebody else and is not touched, unless the option
``existing_target`` says what is to become of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from changefeed.core.errors import ChangefeedError, Code
from changefeed.options import EXISTING_TARGET, ExistingTarget
from sinks.base import SinkContext, Target

#: Error of a target that belongs to somebody else.
NOT_OURS = Code.TARGET_NOT_OURS


@dataclass(frozen=True, slots=True)
class Owner:
    """Who made a target.

    Attributes:
        state: id of the state the feed is in; empty where the mark does not say it.
        job: number of the feed's job; 0 where the mark does not say it.
        table: the source table, ``source.schema.table``.
        feed: the feed's name, for messages.
    """

    state: str
    job: int
    table: str
    feed: str = ""

    @classmethod
    def of(cls, context: SinkContext, target: Target) -> Owner:
        """The feed of a context, for one of its tables."""
        return cls(context.state, context.job_id, str(target.table), context.feed)

    @classmethod
    def parse(cls, text: str, feed: str = "") -> Owner:
        """The inverse of :attr:`text`; a text of another form names nobody we know."""
        state, _, rest = text.partition("/")
        job, _, table = rest.partition("/")
        if not job.isdecimal() or not table:
            return cls(text, 0, "", feed)
        return cls(state, int(job), table, feed)

    @property
    def text(self) -> str:
        """``state/job/source.schema.table``."""
        return f"{self.state}/{self.job}/{self.table}"

    def same(self, other: Owner) -> bool:
        """Both name one feed and one table; the feed may have been renamed."""
        return (self.state, self.job, self.table) == (other.state, other.job, other.table)

    def __str__(self) -> str:
        named = f'changefeed "{self.feed}"' if self.feed else "another changefeed"
        return f"{named}, table {self.table}" if self.table else named


class Claim(StrEnum):
    """What a feed may do with a target."""

    OURS = "ours"
    """It carries the feed's mark: go on."""
    FREE = "free"
    """Nothing is there, or nothing that holds rows: mark it, and take it or make it."""
    RETURNED = "returned"
    """A dropped feed of this state kept the same source table there: mark it and go on."""
    MERGE = "merge"
    """Its rows are not the feed's; those of other keys stay."""
    REPLACE = "replace"
    """Its rows are not the feed's, and go first."""


def claim(
    own: Owner,
    marks: Sequence[Owner],
    *,
    feeds: frozenset[tuple[int, str]],
    policy: ExistingTarget,
    exists: bool,
    holds_rows: Callable[[], bool],
    what: str,
    usable: bool = True,
) -> Claim:
    """What the feed ``own`` may do with a target.

    Args:
        own: the feed and its table.
        marks: the marks that the target carries.
        feeds: jobs of this state that were not dropped and have not ended, each with the name
            of a table that it has.
        policy: the option ``existing_target``.
        exists: there is something of that name.
        holds_rows: it holds rows; asked only where that decides.
        what: the target in words, such as ``table o of DuckDB file c.duckdb``.
        usable: what is there is kept in the way of this feed (it has its sequence column).

    Raises:
        ChangefeedError: CF5008, it belongs to somebody else.
    """
    others = [mark for mark in marks if not mark.same(own)]
    marked = len(others) < len(marks)
    living = [m for m in others if m.state == own.state and (m.job, m.table) in feeds]
    # Earlier versions let two feeds mark one target: the older mark counts.
    before = [m for m in living if not marked or (m.job, m.table) < (own.job, own.table)]
    if before:
        raise taken(own, before[0], what)
    if not exists:
        return Claim.FREE
    if usable and marked:
        return Claim.OURS
    strangers = [m for m in others if m.state != own.state or m.table != own.table]
    if usable and others and not strangers:
        return Claim.RETURNED
    if not strangers and not holds_rows():
        return Claim.FREE
    if policy is ExistingTarget.MERGE:
        return Claim.MERGE
    if policy is ExistingTarget.REPLACE:
        return Claim.REPLACE
    raise in_the_way(own.table, what, strangers[0] if strangers else None)


def living(context: SinkContext) -> frozenset[tuple[int, str]]:
    """The tables of the state's feeds, those of this feed with them."""
    return context.feeds | {(context.job_id, str(target.table)) for target in context.targets}


def taken(own: Owner, other: Owner, what: str) -> ChangefeedError:
    """Another feed that is there keeps this target."""
    return ChangefeedError(
        NOT_OURS,
        f"{own.table}: {what} is kept by {other}",
        detail="two source tables cannot share a target: they would overwrite each other's rows",
        hint="choose another target with FOR table AS name, or drop the other changefeed first.",
    )


def in_the_way(table: str, what: str, other: Owner | None = None) -> ChangefeedError:
    """Something is there that the feed did not make."""
    if other is not None and other.table:
        why = f"{what} was made for {other}"
    elif other is not None:
        why = f"{what} has rows and a mark of an unknown form, {other.state[:80]!r}"
    else:
        why = f"{what} has rows and was not made by this changefeed"
    return ChangefeedError(
        NOT_OURS,
        f"{table}: {why}",
        detail="it was not changed",
        hint="rename it, or choose another target with FOR table AS name; existing_target = "
        "'merge' "
        "keeps its rows of other keys, existing_target = 'replace' deletes its rows first.",
    )


def occupied(table: str, what: str, purpose: str) -> ChangefeedError:
    """A name that the sink needs for itself is taken by something it did not make."""
    return ChangefeedError(
        NOT_OURS,
        f"{table}: {what} is in the way of {purpose}, and was not made by a changefeed",
        detail="it was not changed",
        hint="rename it, or choose another target with FOR table AS name.",
    )


def no_bookkeeping(what: str, place: str) -> ChangefeedError:
    """A table that the sink keeps its books in is taken by something it did not make.

    Args:
        what: that table.
        place: what the sink may be given another of.
    """
    return ChangefeedError(
        Code.SINK_REFUSED_DATA,
        f"{what} is in the way of the sink's bookkeeping, and was not made by a changefeed",
        detail="it was not changed",
        hint=f"rename it, or give the sink another {place}.",
    )


def is_source(table: str, what: str) -> ChangefeedError:
    """The target is the table that is read."""
    return ChangefeedError(
        NOT_OURS,
        f"{table}: its target, {what}, is the source table itself",
        hint="give the sink another schema or database, or choose another target with FOR table "
        "AS name.",
    )


def policy_of(options: Mapping[str, object]) -> ExistingTarget:
    """The option ``existing_target``."""
    return ExistingTarget(str(options.get(EXISTING_TARGET.name) or ExistingTarget.REFUSE))

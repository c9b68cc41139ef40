"""The option table for people: the page ``docs/options.md``, and rows for help on a terminal.

A test compares the page with :func:`markdown`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from changefeed.core.formats import TRAITS
from changefeed.options.options import SinkAbilities, Takers, rows_of
from changefeed.options.relations import RELATIONS, OptionRelation
from changefeed.options.row import OPTIONS, OptionRow
from changefeed.options.types import ValueRule

_HEAD = """\
# Options

The options of `CREATE CHANGEFEED ... WITH` and `ALTER CHANGEFEED ... SET`. This page is made from
the table in `changefeed/options/table.py`; `pytest tests/golden --rewrite` writes it again.

Names and choices are case-insensitive. A value is a quoted string, a number or a bare word:
`resolved = '10s'`, `resolved = 10s`. A flag has no value. Durations are `500ms`, `10s`, `1h30m`,
`2 days`; sizes are `64MB` (powers of 1000) or `64MiB` (powers of 1024). A timestamp is an HLC
timestamp (`1536242855577149065.0000000000`), nanoseconds since 1970, an ISO date and time (UTC
unless it names a zone), or an interval from now (`-10m`).
"""

_TAIL = """
## Which options go together

Options that contradict each other are an error that names both.

| rule | because |
|---|---|
"""


def markdown(takers: Takers) -> str:
    """The page; ``takers`` are the schemes of the sinks with a feature."""
    return "".join((_HEAD, *_tables(takers), _TAIL, *map(_rule, RELATIONS)))


@dataclass(frozen=True, slots=True)
class OptionHelp:
    """One option as help shows it: the sentence, the values it takes, the default in words."""

    name: str
    group: str
    summary: str
    values: str
    default: str
    example: str
    alterable: bool


def listing(sink: SinkAbilities | None = None) -> list[OptionHelp]:
    """The options that a sink takes (all of the table without one), in table order."""
    return [
        OptionHelp(
            row.name,
            row.group,
            row.summary,
            ", ".join(row.values) or row.type.kind,
            row.shown_default,
            row.example,
            row.alterable,
        )
        for row in rows_of(sink).values()
    ]


def _tables(takers: Takers) -> Iterator[str]:
    for group in dict.fromkeys(row.group for row in OPTIONS.values()):
        yield f"\n## {group}\n\n"
        yield "| option | value (default) | sinks | ALTER | what it does |\n|---|---|---|---|---|\n"
        for row in OPTIONS.values():
            if row.group == group:
                yield _row(row, takers)


def _row(row: OptionRow[Any], takers: Takers) -> str:
    sinks = "all" if row.feature is None else ", ".join(sorted(takers(row.feature)))
    cells = (
        f"`{row.name}`",
        _value(row),
        sinks,
        "yes" if row.alterable else "no",
        f"{row.summary} Example: `{row.example}`",
    )
    return f"| {' | '.join(cells)} |\n"


def _value(row: OptionRow[Any]) -> str:
    if row.type.takes is ValueRule.NOTHING:
        return "flag"
    values = ", ".join(f"`{value}`" for value in row.values)
    kind = row.type.kind if row.type.kind not in ("choice", "list") else ""
    optional = "or nothing" if row.type.takes is ValueRule.MAYBE else ""
    shown = ", ".join(part for part in (kind, values, optional) if part)
    return f"{shown} ({row.shown_default})"


def _rule(relation: OptionRelation) -> str:
    verb = "excludes" if relation.excludes else "needs"
    rule = f"{relation.first.written()} {verb} {relation.second.written()}"
    return f"| {rule} | {relation.because} |\n"


#: Option -> value -> what it means, in a few words: for completion.
MEANINGS: Mapping[str, Mapping[str, str]] = {
    "envelope": {
        "wrapped": "the row in after, metadata next to it",
        "row": "the row itself, null for a delete",
        "bare": "the row itself, metadata inside it",
        "key_only": "only the key, no value",
        "changed": "the key and the columns that changed",
        "enriched": "before, after, op and where the change came from",
        "debezium": "Debezium's, with a tombstone after a delete",
        "diff": "wrapped, with the row before the change",
        "none": "the same as row",
    },
    "format": {str(name): traits.meaning for name, traits in TRAITS.items()},
    "initial_scan": {
        "yes": "existing rows first, then changes",
        "no": "changes only",
        "only": "only existing rows; then the feed has succeeded",
    },
    "deletes": {
        "yes": "deliver deletes",
        "no": "leave deletes out",
        "only": "deliver deletes alone",
        "hard": "the same as yes",
        "soft": "mark the row as deleted in merged tables",
    },
    "schema_change_events": {
        "default": "a column was added or dropped, or its type changed",
        "column_changes": "any change of the columns",
    },
    "schema_change_policy": {
        "backfill": "deliver the table again with its new schema",
        "nobackfill": "continue with the new schema",
        "stop": "stop the feed",
        "ignore": "continue without a notice",
    },
    "on_error": {
        "pause": "pause the feed when its retries are exhausted",
        "fail": "the feed has failed when its retries are exhausted",
    },
    "delivery": {
        "at_least_once": "a crash may repeat changes",
        "exactly_once": "no change reaches the target twice",
    },
    "history": {
        "off": "the rows as they are now",
        "scd2": "every version, with the time it was valid",
        "append": "every change as a row",
    },
    "on_drop": {
        "keep": "keep the target when its source table is dropped",
        "drop": "drop the target with its source table",
    },
}

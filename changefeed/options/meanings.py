"""What the values of an option mean, a few words each: for completion."""

from __future__ import annotations

from collections.abc import Mapping

from changefeed.core.formats import TRAITS

#: Option -> value -> what it means.
MEANINGS: Mapping[str, Mapping[str, str]] = {
    "envelope": {
        "wrapped": "the row under after, metadata beside it",
        "row": "the row itself, null for a delete",
        "bare": "the row itself, metadata inside it",
        "key_only": "no value, the key alone",
        "changed": "the key and the columns that changed",
        "enriched": "before, after, op and where the change came from",
        "debezium": "Debezium's, with a tombstone after a delete",
        "diff": "wrapped, with the row before the change",
        "none": "the same as row",
    },
    "format": {str(name): traits.meaning for name, traits in TRAITS.items()},
    "initial_scan": {
        "yes": "the rows that are there first, then changes",
        "no": "changes only",
        "only": "the rows that are there, then the feed has succeeded",
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
        "backfill": "deliver the table again in its new shape",
        "nobackfill": "go on with the new shape",
        "stop": "stop the feed",
        "ignore": "go on and say nothing",
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
        "keep": "leave the target when its source table is dropped",
        "drop": "drop the target with its source table",
    },
}

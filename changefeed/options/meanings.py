"""What the values of an option mean, a few words each: for completion."""

from __future__ import annotations

from collections.abc import Mapping

from changefeed.core.formats import TRAITS

#: Option -> value -> what it means.
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

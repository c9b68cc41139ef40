"""The form of messages: the values of four options, for statements and for encoding.

Loads nothing else, so that both sides can import it.
"""

from __future__ import annotations

from enum import StrEnum


class Envelope(StrEnum):
    """The shape of a message's value; language reference, section Messages."""

    WRAPPED = "wrapped"
    ROW = "row"
    BARE = "bare"
    KEY_ONLY = "key_only"
    CHANGED = "changed"
    ENRICHED = "enriched"
    DEBEZIUM = "debezium"


class Deletes(StrEnum):
    """Which changes are delivered: all, all except deletes, or only deletes.

    In tables that are merged a delete removes the row, or marks it (soft).
    """

    YES = "yes"
    NO = "no"
    ONLY = "only"
    SOFT = "soft"


class MessageValue(StrEnum):
    """The value of a logical message: only its content, byte for byte, or a row in the feed's
    envelope."""

    CONTENT = "content"
    ROW = "row"


class Unsent(StrEnum):
    """What to do about a value that the source did not send and that cannot be looked up.

    A placeholder takes its place, the member is left out, or the table stops.
    """

    MARK = "mark"
    OMIT = "omit"
    FAIL = "fail"

"""How messages look, in words: the values of four options, for the language and its messages.

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
    """Which changes are delivered: all, all but deletes, or deletes alone.

    In tables that are merged a delete removes the row, or marks it (soft).
    """

    YES = "yes"
    NO = "no"
    ONLY = "only"
    SOFT = "soft"


class MessageValue(StrEnum):
    """What a logical message has for a value: its content alone, byte for byte, or a row in the
    feed's envelope."""

    CONTENT = "content"
    ROW = "row"


class Unsent(StrEnum):
    """What is done about a value that the source did not send and that nobody can look up.

    A placeholder takes its place, the member is left out, or the table stops.
    """

    MARK = "mark"
    OMIT = "omit"
    FAIL = "fail"

"""How messages look, in words: the values of three options, for the language and for Spark.

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
    ENRICHED = "enriched"


class Format(StrEnum):
    """How a message is written. CSV has no envelope and no key: it is for scans to files."""

    JSON = "json"
    CSV = "csv"


class Deletes(StrEnum):
    """Which changes are messages: all, all but deletes, or deletes alone."""

    YES = "yes"
    NO = "no"
    ONLY = "only"

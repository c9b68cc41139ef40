"""Logical messages: what an application writes into its database's log in addition to rows.

The change log stores them as rows of a table that does not exist in the database, each inserted
once. The source defines the table's name and the key of a message; the columns here are the same
for all sources.
"""

from __future__ import annotations

from typing import Final

#: The label that the application gave the message.
PREFIX: Final = "prefix"
#: What the message holds where that is text; else NULL.
CONTENT: Final = "content"
#: What the message holds where that is no text; else NULL.
BYTES: Final = "bytes"

"""Logical messages: what an application writes into its database's log beside its rows.

They are kept in the change log as rows of a table that nobody made, each inserted once. The source
says what the table is called and how a message is told from all others; these columns it has
everywhere.
"""

from __future__ import annotations

from typing import Final

#: The label that the application gave the message.
PREFIX: Final = "prefix"
#: What the message holds where that is text; else NULL.
CONTENT: Final = "content"
#: What the message holds where that is no text; else NULL.
BYTES: Final = "bytes"

"""What the offsets of Debezium's connectors have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from changefeed.core.errors import ChangefeedError, Code


def demand_streaming(offset: Mapping[str, Any], *ended_by: str) -> None:
    """Refuse an offset from within the connector's snapshot.

    Args:
        ended_by: the members of which one says that the snapshot is complete.

    Raises:
        ChangefeedError: CF1303.
    """
    if offset.get("snapshot") and not any(offset.get(name) for name in ended_by):
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            "the connector stopped within its snapshot: its offset does not say what it has read",
            hint="leave cursor out: the feed reads the tables itself.",
        )

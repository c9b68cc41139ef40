"""Chooses the producer of a feed: the native one, or its portable twin."""

from __future__ import annotations

from collections.abc import Mapping

from sinks.kafka import native
from sinks.kafka.channel import STALL_SECONDS, Channel
from sinks.kafka.errors import Reasons
from sinks.kafka.portable import PortableChannel


def open_channel(
    config: Mapping[str, str], reasons: Reasons, stall: float = STALL_SECONDS
) -> Channel:
    """The fast producer where the C library can be reached, else the portable one."""
    if native.library() is not None:
        return native.NativeChannel(config, reasons, stall)
    return PortableChannel(config, reasons, stall)

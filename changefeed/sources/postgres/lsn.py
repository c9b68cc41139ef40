"""PostgreSQL's log positions (LSN) as numbers, as ``16/B374D848`` and as a change log has them."""

from __future__ import annotations

from changefeed.core.events import Position

#: SQL for where the server's log ends now, in its own spelling; of a standby, what it replayed.
LOG_END = """
    case when pg_is_in_recovery() then pg_last_wal_replay_lsn()
         else pg_current_wal_insert_lsn() end::text
"""


def position_of(lsn: int) -> Position:
    """An LSN as positions are written: 16 upper-case hex digits, so text order is log order.

    >>> position_of(0x16B374D848)
    '00000016B374D848'
    """
    return f"{lsn:016X}"


def lsn_of(position: Position) -> int:
    """The inverse of :func:`position_of`; the empty position is 0 (nothing read yet)."""
    return int(position, 16) if position else 0


def parse_lsn(text: str) -> int:
    """Read PostgreSQL's own spelling, ``16/B374D848``.

    Raises:
        ValueError: ``text`` is not an LSN.
    """
    high, slash, low = text.partition("/")
    if not slash:
        raise ValueError(f"not an LSN: {text!r}")
    return (int(high, 16) << 32) | int(low, 16)


def format_lsn(lsn: int) -> str:
    """PostgreSQL's own spelling.

    >>> format_lsn(0x16B374D848)
    '16/B374D848'
    """
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"

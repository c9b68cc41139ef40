"""MySQL's packed decimals: nine digits in four bytes, the rest in as few as they need."""

from __future__ import annotations

from changefeed.sources.mysql.binlog import misfit


def decimal_text(data: bytes, precision: int, scale: int) -> str:
    """A packed DECIMAL, with all digits of its scale."""
    if not data:
        raise misfit("a decimal without digits")
    negative = not data[0] & 0x80
    flipped = bytes([data[0] ^ 0x80, *data[1:]])
    if negative:
        flipped = bytes(byte ^ 0xFF for byte in flipped)
    whole = precision - scale
    sizes = {0: 0, 1: 1, 2: 1, 3: 2, 4: 2, 5: 3, 6: 3, 7: 4, 8: 4, 9: 4}
    offset, left, right = 0, "", ""
    for digits in [whole % 9] + [9] * (whole // 9):
        size = sizes[digits]
        if digits:
            number = int.from_bytes(flipped[offset : offset + size], "big")
            left += f"{number % 10**digits:0{digits}d}"
        offset += size
    for digits in [9] * (scale // 9) + [scale % 9]:
        size = sizes[digits]
        if digits:
            number = int.from_bytes(flipped[offset : offset + size], "big")
            right += f"{number % 10**digits:0{digits}d}"
        offset += size
    sign = "-" if negative else ""
    point = "." if scale else ""
    return f"{sign}{left.lstrip('0') or '0'}{point}{right}"

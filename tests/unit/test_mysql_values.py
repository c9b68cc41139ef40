"""Values of single columns in row events, byte for byte as the servers' sources describe them."""

from __future__ import annotations

import ipaddress
from typing import cast

import pytest

from changefeed.core.schema import Column, Form
from changefeed.sources.mysql.rows import inet6_text, reader_of
from changefeed.sources.mysql.tablemap import Charsets, ColumnShape, ColumnType


def read(wire: ColumnType, data: bytes) -> object:
    """What the value becomes in the log."""
    column = Column("c", "c", "string", Form.TEXT, "text")
    return reader_of(ColumnShape("c", wire, 0, True), column, cast(Charsets, None))(data)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (20260102030405, "2026-01-02T03:04:05"),
        (99991231235959, "9999-12-31T23:59:59"),
        (10101000000, "0001-01-01T00:00:00"),
        (0, None),
        (505000000, None),  # no year
        (20260005000000, None),  # no month
        (20260500000000, None),
    ],
)
def test_datetime_before_mysql_5_6(number: int, text: str | None) -> None:
    """Fourteen decimal digits in eight bytes; what is no date is NULL, as its time says nothing."""
    assert read(ColumnType.DATETIME, number.to_bytes(8, "little")) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "00:00:00"),
        (10000, "01:00:00"),
        (123456, "12:34:56"),
        (-123456, "-12:34:56"),
        (8385959, "838:59:59"),
        (-8385959, "-838:59:59"),
    ],
)
def test_time_before_mysql_5_6(number: int, text: str) -> None:
    """Decimal digits of hours, minutes and seconds in three bytes, with a sign."""
    assert read(ColumnType.TIME, number.to_bytes(3, "little", signed=True)) == text


@pytest.mark.parametrize(
    "text", ["::", "::1", "::100", "::1.2.3.4", "::ffff:1.2.3.4", "2001:db8::1", "::fffe:102:304"]
)
def test_inet6_of_mariadb(text: str) -> None:
    """As the server prints it; zeros at the end are not in the log."""
    stored = ipaddress.IPv6Address(text).packed
    assert inet6_text(stored) == text
    assert inet6_text(stored.rstrip(b"\0")) == text

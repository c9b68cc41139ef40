"""The parts of a MySQL source that need no server: URIs, types, ranges of keys."""

from __future__ import annotations

import ssl

import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.core.schema import KeyRange, TableName, TableSchema
from changefeed.sources.mysql import MySQLSource
from changefeed.sources.mysql.address import Address
from changefeed.sources.mysql.ranges import in_range
from changefeed.sources.mysql.types import ColumnInfo, column_of


def test_a_uri_with_everything() -> None:
    found = Address.read("mysql://ann:p%40ss@db:3307/shop?ssl_mode=REQUIRED&server_id=77")

    assert (found.host, found.port, found.user, found.password) == ("db", 3307, "ann", "p@ss")
    assert (found.database, found.server_id, found.tls.mode) == ("shop", 77, "required")


def test_a_uri_with_nothing_else() -> None:
    found = Address.read("mariadb://db")

    assert (found.port, found.database, found.server_id) == (3306, "", None)
    assert found.tls.mode == "preferred"


def test_nothing_that_is_shown_has_the_password() -> None:
    source = MySQLSource("shop", "mysql://ann:s3cret@db/shop")

    assert (
        "s3cret"
        not in f"{source!r} {source.address!r} {source.address} {source.attach('x', None)!r}"
    )


@pytest.mark.parametrize(
    ("uri", "code", "words"),
    [
        ("mysql://a:s3cret@one,two/shop", "CF1201", "one host"),
        ("mysql://a:s3cret@db/shop/more", "CF1201", "more than a database"),
        ("mysql://a:s3cret@db/shop?ssl_mod=required", "CF1202", "ssl_mod"),
        ("mysql://a:s3cret@db/shop?ssl_mode=maybe", "CF1207", "one of disabled"),
        ("mysql://a:s3cret@db/shop?ssl_ca=/none", "CF1207", "ssl_ca"),
        ("mysql://a:s3cret@db/shop?ssl_ca=/none&ssl_mode=required", "CF1207", "no effect"),
        ("mysql://a:s3cret@db/shop?ssl_cert=/none", "CF1207", "belong together"),
        ("mysql://a:s3cret@db/shop?server_id=0", "CF1207", "server_id"),
        ("mysql://a:s3cret@db/shop?server_id=4294967296", "CF1207", "server_id"),
        ("mysql://a:s3cret@db/shop?server_id=1&server_id=2", "CF1207", "twice"),
    ],
)
def test_a_uri_that_cannot_be_is_refused_without_its_secret(
    uri: str, code: str, words: str
) -> None:
    with pytest.raises(ChangefeedError, match=words) as raised:
        MySQLSource("shop", uri)

    assert raised.value.code == code
    assert "s3cret" not in f"{raised.value} {raised.value.hint} {raised.value.detail}"


def test_a_wrong_parameter_is_guessed() -> None:
    with pytest.raises(ChangefeedError) as raised:
        Address.read("mysql://db/shop?ssl_mod=required")

    assert raised.value.hint.startswith('did you mean "ssl_mode" for "ssl_mod"?')


@pytest.mark.parametrize(
    ("mode", "verified", "named"),
    [
        ("preferred", ssl.CERT_NONE, False),
        ("required", ssl.CERT_NONE, False),
        ("verify_ca", ssl.CERT_REQUIRED, False),
        ("verify_identity", ssl.CERT_REQUIRED, True),
    ],
)
def test_what_a_tls_mode_verifies(mode: str, verified: ssl.VerifyMode, named: bool) -> None:
    context = Address.read(f"mysql://db/shop?ssl_mode={mode}").tls.context()

    assert context is not None
    assert (context.verify_mode, context.check_hostname) == (verified, named)


def test_no_tls() -> None:
    assert Address.read("mysql://db/shop?ssl_mode=disabled").tls.context() is None


@pytest.mark.parametrize(
    ("text", "logical"),
    [
        ("int(10) unsigned", "int64"),
        ("int unsigned zerofill", "int64"),
        ("bigint(20) unsigned", "decimal(20,0)"),
        ("decimal(12,3)", "decimal(12,3)"),
        ("decimal(12,0) unsigned", "decimal(12,0)"),
        ("enum('unsigned','zerofill')", "text"),
        ("bit(1)", "bool"),
        ("bit(8)", "bytes"),
        ("datetime(6)", "timestamp"),
        ("geomcollection", "bytes"),
        ("inet6", "other"),
        ("tinyint(1)", "int16"),
    ],
)
def test_types(text: str, logical: str) -> None:
    assert str(column_of(ColumnInfo("c", text)).logical) == logical


def test_a_moment_may_be_null_whatever_the_table_says() -> None:
    assert column_of(ColumnInfo("c", "date", nullable=False)).nullable
    assert not column_of(ColumnInfo("c", "int", nullable=False)).nullable


def test_a_range_of_a_key_of_two_columns() -> None:
    columns = tuple(column_of(ColumnInfo(name, "int")) for name in "ab")
    table = TableSchema(TableName("s", "d", "t"), columns, (0, 1))
    low = in_range(table, KeyRange(("1", "2"), None))
    one, two = (f"CAST(_utf8mb4 0x{n} AS DECIMAL(65,30))" for n in ("31", "32"))

    assert low == f'(("a" > {one}) OR ("a" = {one} AND "b" >= {two}))'
    assert in_range(table, KeyRange(None, ("1",))) == f'NOT (("a" >= {one}))'
    assert in_range(table, None) == ""


def test_there_are_no_logical_messages() -> None:
    source = MySQLSource("shop", "mysql://u@localhost/shop")
    with pytest.raises(ChangefeedError, match="has no logical messages") as caught:
        source.messages()
    assert caught.value.code.number == "CF1303"
    assert "outbox" in caught.value.hint

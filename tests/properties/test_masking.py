"""No secret of a statement is echoed, wherever it stands and whatever is misspelt around it."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changefeed.api import parsed_statement
from changefeed.core.errors import ChangefeedError
from changefeed.options import mask_statement

#: No statement, option or parameter below holds it.
SECRET = "Zq9"

#: What stands before and after the secret's own letters: the characters that end a word, a
#: parameter, a URI's part or a string somewhere.
PREFIXES = ("", "a ", "a,", "a;", "a''", "a@", "a:", "a/", "a?", "a#", "a&", "a%", "a=", "a$")
secrets = st.builds(
    "{}{}{}".format,
    st.sampled_from(PREFIXES),
    st.just(SECRET),
    st.sampled_from(("", " b", ",b", "''b", "@b", ":1", "/b", "?b", "#b", "&b", "%41", "==")),
)

#: Where people put secrets, spelt right and wrong.
PLACES = (
    "INTO 'kafka://u:{}@h:9092'",
    "INTO 'kafka://{}@h:9092'",
    "INTO 'kafka//u:{}@h'",
    "INTO 'u:{}@h/d'",
    "INTO '{}'",
    "INTO 'kafka://h?sasl_password={}'",
    "INTO 'kafka://h?sasl_pasword={}&tls_enabled=true'",
    "INTO 'kafka://u:${{exec:get {}}}@h:9092'",
    "INTO 'kafka://h?sasl_password=${{exec:get {}}}&tls_enabled=true'",
    "INTO 'kafka://h?sasl_pasword=${{exec:get {}'",
    "INTO 'null://' WITH webhook_auth_header = 'Bearer ${{exec:get {}}}'",
    "INTO 'webhook-https://hooks.example.com/services/{}'",
    "INTO 'experimental-sql:///postgresql://u:{}@h/d'",
    "INTO 's3://bucket?AWS_SECRET_ACCESS_KEY={}'",
    'INTO "kafka://u:{}@h"',
    "INTO 'null://' WITH webhook_auth_header = 'Bearer {}'",
    "INTO 'null://' WITH webhook_auth_headr = 'Bearer {}'",
    "INTO 'null://' WITH \"webhook_auth_header\" = 'Bearer {}'",
    "INTO 'null://' WITH webhook_auth_header /* the key */ = 'Bearer {}'",
    "INTO 'null://' WITH webhook_auth_header = \"Bearer {}\"",
    "INTO 'null://' WITH extra_headers = '{{\"Authorization\": \"{}\"}}'",
    "INTO 'null://' WITH confluent_schema_registry = 'https://u:{}@r:8081'",
    "INTO 'null://' WITH confluent_schema_registry = 'u:{}@@'",
    "/* the password is {} */ INTO 'null://'",
)
#: Without quotes the secret ends where its word ends: what stands there is part of the statement.
BARE_PLACES = (
    "INTO kafka://u:{}@h",
    "INTO kafka://h?sasl_password={}",
    "INTO 'kafka://u:it's{}@h'",
    "INTO 'null://' WITH webhook_auth_header = {}",
    "INTO 'null://' WITH webhook_auth_header = Bearer {}",
    "INTO 'null://' WITH webhook_auth_headr = Bearer {}",
    "-- password {}",
)
FRAMES = (
    "CREATE CHANGEFEED f FOR orders {}",
    "CREATE CHANGEFED f FOR orders {}, diff",
    "CREATE CHANGEFEED f FOR orders {} WITH",
    "ALTER CHANGEFEED f SET {}",
    "VALIDATE CREATE CHANGEFEED FOR orders, {}",
)


def _echoes(text: str) -> str:
    """All that an error about ``text`` shows, and what a log or the history would keep."""
    shown = mask_statement(text)
    assert len(shown) == len(text)
    assert [len(line) for line in shown.split("\n")] == [len(line) for line in text.split("\n")]
    try:
        parsed_statement(text)
    except ChangefeedError as error:
        shown += f"{error.message} {error.detail} {error.hint} {error.text} {error!r}"
    return shown


@given(st.sampled_from(FRAMES), st.sampled_from(PLACES), secrets)
def test_a_quoted_secret_is_never_echoed(frame: str, place: str, secret: str) -> None:
    assert SECRET not in _echoes(frame.format(place.format(secret)))


@given(
    st.sampled_from(FRAMES),
    st.sampled_from(BARE_PLACES),
    st.sampled_from(("", "a ", "a:", "a/", "a-", "a@", "a%", "a+")),
)
def test_a_secret_without_quotes_is_never_echoed(frame: str, place: str, before: str) -> None:
    assert SECRET not in _echoes(frame.format(place.format(f"{before}{SECRET}")))


@given(st.sampled_from(FRAMES), st.sampled_from(PLACES), secrets, st.data())
def test_nor_where_a_character_is_missing(
    frame: str, place: str, secret: str, data: st.DataObject
) -> None:
    """Not a quote: where one opens or closes decides what is quoted at all."""
    begin, end = place.format("\0").split("\0")
    cut = data.draw(st.integers(0, max(0, len(begin) - 1)))
    if begin[cut] not in "'\"/*=:@?-":
        begin = begin[:cut] + begin[cut + 1 :]
    assert SECRET not in mask_statement(frame.format(begin + secret + end))


@pytest.mark.parametrize(
    "text",
    [
        "SYNC CHANGEFEED f TIMEOUT '2h'",
        "EXPLAIN ANALYZE (DURATION '10s') CREATE CHANGEFEED FOR orders",
        "ALTER CHANGEFEED f SKIP TRANSACTION '1536242855577149065.0000000000'",
        "CREATE CHANGEFEED orders FOR TABLE shop.public.orders INTO 'kafka://h:9092,[::1]:1' "
        "WITH diff, resolved = '10s', envelope = wrapped, cursor = '2026-01-01 10:00'",
        "CREATE CHANGEFEED FOR a, b (c) INTO 'file:///data/feeds' WITH key_column = 'a', x",
        "CREATE CHANGEFEED FOR a INTO 'kafka://h?topic_prefix=x&tls_enabled=true'",
        "SHOW CHANGEFEEDS WHERE status = 'failed' AND name <> 'a b'",
        "CREATE CHANGEFEED FOR a INTO kafka://h:9092 WITH resolved = 10s",
        'ALTER CHANGEFEED "My feed" ADD "Orders" SET min_checkpoint_frequency = 1h30m;',
    ],
)
def test_what_is_harmless_is_shown(text: str) -> None:
    assert mask_statement(text) == text


def test_hosts_stay_where_it_is_clear_what_they_are() -> None:
    shown = mask_statement("CREATE CHANGEFEED FOR a INTO 'kafka://u:p@h:9092/?sasl_password=x'")
    assert shown == "CREATE CHANGEFEED FOR a INTO 'kafka://***@h:9092/?sasl_password=*'"


# ------------------------------------------------------------------------------ time


def _steps(text: str) -> int:
    """Lines of Python run while ``text`` is masked: work counted instead of measured."""
    count = 0

    def trace(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        mask_statement(text)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize(
    "part", ["a", "://", "a=", "------", "'a' ", ";", "%41", '"', "a@b ", "/*"]
)
def test_work_grows_with_the_length_of_the_text(part: str) -> None:
    small, large = (_steps("CREATE " + part * count) for count in (200, 2000))
    assert large <= 20 * small


@pytest.mark.timeout(60)
@pytest.mark.extended
@pytest.mark.parametrize(
    "text",
    [
        "a" * 1_000_000,
        "CREATE CHANGEFEED FOR t INTO 'kafka://h?ca_cert=" + "%2B" * 300_000 + "' WITH a b",
        "CREATE " + "://" * 300_000,
        "CREATE " + "a=" * 500_000,
        "CREATE " + "-" * 1_000_000,
        "'a' " * 250_000,
    ],
    ids=["a word", "percent-encoded", "://", "a=", "dashes", "strings"],
)
def test_a_megabyte_that_is_no_statement_is_refused(text: str) -> None:
    """It took minutes where the time grew with the square of the length."""
    with pytest.raises(ChangefeedError, match=r"syntax error|there is no statement"):
        parsed_statement(text)

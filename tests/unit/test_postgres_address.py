"""The parameters of a source's URI that are ours, and the servers that they lead to."""

from __future__ import annotations

import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.sources.postgres.address import Address


def test_a_uri_of_libpq_stays_as_it_is() -> None:
    for uri in (
        "postgresql://h/d",
        "postgresql://u:p%40@a:1,b:2/d?sslmode=require&options=-cx%3D1",
    ):
        found = Address.read(uri)
        assert (found.primary, found.reader, found.named, found.apart) == (uri, uri, "", False)


def test_ddl_events_is_our_own_parameter() -> None:
    found = Address.read("postgresql://h/d?ddl_events=true&sslmode=require")
    assert found.ddl_events and found.primary == "postgresql://h/d?sslmode=require"
    assert not Address.read("postgresql://h/d?ddl_events=false").ddl_events
    apart = Address.read("postgresql://h:1/d?ddl_events=true&read_from=s")
    assert apart.ddl_events and "ddl_events" not in apart.primary + apart.reader + apart.named


def test_what_an_administrator_made_is_named_by_our_own_parameters() -> None:
    found = Address.read("postgresql://h/d?publication=My%20cdc&slot=cdc_1&sslmode=require")
    assert (found.publication, found.slot) == ("My cdc", "cdc_1")
    assert found.primary == found.reader == "postgresql://h/d?sslmode=require"
    apart = Address.read("postgresql://h:1/d?publication=cdc&read_from=s")
    assert (apart.publication, apart.slot) == ("cdc", "")
    assert "publication" not in apart.primary + apart.reader + apart.named


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ("publication=", "1 to 63 bytes"),
        ("publication=" + "%C3%A4" * 32, "1 to 63 bytes"),
        ("publication=cdc&slot=", "lower-case letters"),
        ("publication=cdc&slot=Cdc", "lower-case letters"),
        ("slot=cdc", "needs the param publication"),
        ("failover=maybe", "failover of the PostgreSQL source must be a bool"),
        ("failover=true&read_from=standby", "does not go with read_from"),
    ],
)
def test_names_that_cannot_be(parameters: str, why: str) -> None:
    with pytest.raises(ChangefeedError) as caught:
        Address.read(f"postgresql://u:s3cret@h/d?{parameters}")
    assert caught.value.code.number == "CF1207" and why in caught.value.message
    assert "s3cret" not in f"{caught.value}{caught.value.hint}"


def test_values_have_no_binary_form() -> None:
    """A parameter that is neither ours nor libpq's is refused by name."""
    with pytest.raises(ChangefeedError, match="unknown parameter 'binary'") as caught:
        Address.read("postgresql://u:s3cret@h/d?binary=true")
    assert caught.value.code.number == "CF1202" and "s3cret" not in str(caught.value)


def test_a_misspelt_parameter_of_ours_gets_a_suggestion() -> None:
    with pytest.raises(ChangefeedError) as caught:
        Address.read("postgresql://h/d?publicaton=x")
    assert caught.value.hint == 'did you mean "publication"?'


def test_a_standby_is_read_and_the_primary_written_to() -> None:
    """The standby comes first: when it was promoted, the old primary is not asked."""
    found = Address.read(
        "postgresql://u:s%2F@one:5433,two/d?target_session_attrs=any&sslmode=require"
        "&read_from=three"
    )
    assert found.apart
    assert found.reader == "postgresql://u:s%2F@three:5432/d?sslmode=require"
    assert found.primary == (
        "postgresql://u:s%2F@three:5432,one:5433,two/d?sslmode=require&target_session_attrs=primary"
    )
    assert found.named == (
        "postgresql://u:s%2F@one:5433,two/d?target_session_attrs=any&sslmode=require"
    )
    six = Address.read("postgres://u@one/d?read_from=%5B::1%5D:5433")
    assert six.reader == "postgres://u@[::1]:5433/d"


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("postgresql://u:s3cret@h/d?read_from=", "one host"),
        ("postgresql://u:s3cret@h/d?read_from=a,b", "one host"),
        ("postgresql://u:s3cret@h/d?read_from=u:s3cret@b", "one host"),
        ("postgresql://u:s3cret@h/d?read_from=b:port", "one host"),
        ("postgresql://u:s3cret@/d?read_from=b&host=a", "parameter host"),
        ("postgresql:///d?read_from=b", "must name the primary's host"),
        ("postgresql:///d?read_from=b&service=shop&password=s3cret", "parameter service"),
    ],
)
def test_what_read_from_cannot_be(uri: str, why: str) -> None:
    with pytest.raises(ChangefeedError) as caught:
        Address.read(uri)
    error = caught.value
    assert error.code.number == "CF1207" and why in error.message
    assert "s3cret" not in f"{error.message}{error.detail}{error.hint}"

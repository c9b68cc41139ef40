"""No secret survives redaction, whatever the URI looks like."""

from __future__ import annotations

import string
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from changefeed.core.errors import ChangefeedError
from changefeed.core.uri import redact, split_uri

#: A mark no other part of a generated URI holds.
SECRET = "Zq9"

names = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=6)
hosts = st.lists(
    st.builds("{}{}".format, names, st.sampled_from(["", ":1", ":9092"])), min_size=1, max_size=3
).map(",".join)
#: What people put into passwords without encoding it.
raw_secrets = st.text("@:/#!$%,+ " + string.ascii_letters, max_size=6).map(
    lambda text: f"{SECRET}{text}{SECRET}"
)
any_secrets = st.text(min_size=0, max_size=8).map(lambda text: f"{SECRET}{text}{SECRET}")
secret_names = st.sampled_from(
    ["sasl_password", "client_key", "api_secret", "shared_access_key", "access_token", "PassWord"]
)


@given(names, hosts, names, any_secrets)
def test_an_encoded_password(scheme: str, host: str, user: str, secret: str) -> None:
    shown = redact(f"s{scheme}://{user}:{quote(secret, safe='')}@{host}/db?x=1")
    assert shown == f"s{scheme}://{user}:redacted@{host}/db?x=1"


@given(names, hosts, names, raw_secrets, st.sampled_from(["", "/db", "/db?x=1", "?topic_name=t"]))
def test_a_raw_password(scheme: str, host: str, user: str, secret: str, rest: str) -> None:
    shown = redact(f"s{scheme}://{user}:{secret}@{host}{rest}")
    assert SECRET not in shown
    assert host in shown or shown.endswith("redacted")


@given(hosts, st.lists(st.tuples(secret_names, any_secrets), min_size=1, max_size=3))
def test_secret_parameters(host: str, secrets: list[tuple[str, str]]) -> None:
    query = "&".join(f"{name}={quote(value)}" for name, value in secrets)
    shown = redact(f"kafka://{host}?topic_name=t&{query}")
    assert SECRET not in shown
    assert shown.startswith(f"kafka://{host}?topic_name=t&")


@given(hosts, raw_secrets, names)
def test_a_registry_inside_a_parameter(host: str, secret: str, user: str) -> None:
    inner = quote(f"https://{user}:{quote(secret, safe='')}@r:8081", safe="")
    assert SECRET not in redact(f"kafka://{host}?confluent_schema_registry={inner}")


@given(st.text(max_size=60))
def test_any_text_is_redacted_without_fail_and_stably(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


@given(st.text(alphabet="abk:/?#@&=%[],1 '", max_size=40))
def test_an_error_repeats_nothing_of_the_uri(text: str) -> None:
    try:
        split_uri(f"{SECRET}://{SECRET}:{SECRET}@{text}")
    except ChangefeedError as error:
        told = f"{error.message}{error.hint}{error.detail}{error!r}"
        assert SECRET not in told

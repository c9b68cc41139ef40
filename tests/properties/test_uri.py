"""No secret survives redaction, whatever the URI looks like."""

from __future__ import annotations

import os
import string
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changefeed.core.errors import ChangefeedError
from changefeed.core.references import resolved_uri
from changefeed.core.uri import redact, sink_location, split_uri

#: A mark no other part of a generated URI holds.
SECRET = "Zq9"
VARIABLE = "CF_TEST_PROPERTY"

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


#: All that a reference may contain; the secret's mark is in the arguments of a command.
references = st.builds(
    "${{{}:{}}}".format,
    st.sampled_from(["env", "file", "exec"]),
    st.text(min_size=1, max_size=12).map(lambda text: SECRET + text.replace("}", "")),
)


@given(hosts, names, references, references)
def test_a_reference(host: str, user: str, password: str, parameter: str) -> None:
    uri = f"kafka://{user}:{password}@{host}/?topic_name=t&sasl_password={parameter}"
    shown = f"kafka://{user}:redacted@{host}/?topic_name=t&sasl_password=redacted"
    assert redact(uri) == sink_location(uri) == shown
    parts = split_uri(uri)
    assert (parts.user, parts.password) == (user, password)
    assert parts.parameters == (("topic_name", "t"), ("sasl_password", parameter))


@given(hosts, names, st.text(st.characters(codec="utf-8", exclude_characters="\0\r\n"), min_size=1))
def test_what_a_reference_refers_to(host: str, user: str, secret: str) -> None:
    secret = SECRET + secret
    uri = f"kafka://{user}:${{env:{VARIABLE}}}@{host}/?sasl_password=${{env:{VARIABLE}}}"
    os.environ[VARIABLE] = secret
    try:
        resolved = resolved_uri(uri)
    finally:
        del os.environ[VARIABLE]
    parts = split_uri(resolved)
    assert parts.password == secret
    assert dict(parts.parameters) == {"sasl_password": secret}
    assert redact(resolved) == redact(uri)
    assert SECRET not in redact(resolved)


@given(names, st.text(st.characters(codec="utf-8", exclude_characters="}"), max_size=20))
def test_an_error_about_a_command_repeats_no_argument(name: str, argument: str) -> None:
    with pytest.raises(ChangefeedError) as caught:
        resolved_uri(f"kafka://u:${{exec:/nowhere/{name} {SECRET}{argument}}}@h")
    error = caught.value
    assert SECRET not in f"{error.message}{error.hint}{error.detail}{error!r}"


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

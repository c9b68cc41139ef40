"""URIs: their parts, errors that keep secrets, redaction."""

from __future__ import annotations

import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.core.secret_names import is_secret
from changefeed.core.uri import Host, redact, split_uri


def failure(code: str, make: object) -> ChangefeedError:
    assert callable(make)
    with pytest.raises(ChangefeedError) as caught:
        make()
    assert caught.value.code.number == code
    return caught.value


def test_parts_of_a_connection() -> None:
    parts = split_uri("postgresql://app:p%40ss%2Fw@db.example:5432/shop?sslmode=require&x")
    assert (parts.scheme, parts.user, parts.password) == ("postgresql", "app", "p@ss/w")
    assert parts.hosts == (Host("db.example", 5432),)
    assert parts.database == "shop"
    assert parts.parameters == (("sslmode", "require"), ("x", ""))
    assert "p@ss" not in repr(parts)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("kafka://a:1,b:2,c", (Host("a", 1), Host("b", 2), Host("c"))),
        ("kafka://[::1]:9092", (Host("::1", 9092),)),
        ("kafka://[fe80::1%25eth0],b:2", (Host("fe80::1%eth0"), Host("b", 2))),
        ("kafka://", ()),
        ("file:///tmp/a b", ()),
        ("postgresql://%2Frun%2Fpg/db", (Host("/run/pg"),)),
    ],
)
def test_hosts(text: str, hosts: tuple[Host, ...]) -> None:
    assert split_uri(text).hosts == hosts


def test_addresses_take_the_default_port() -> None:
    url = split_uri("kafka://a:1,[::1],b")
    assert url.addresses(9092) == ("a:1", "[::1]:9092", "b:9092")
    assert (url.host, url.port) == ("a", 1)


def test_paths_are_decoded() -> None:
    assert split_uri("file:///tmp/a%20b?file_size=1MB").path == "/tmp/a b"
    assert split_uri("FILE:///tmp").scheme == "file"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no scheme found for sink URL"),
        ("localhost", "no scheme found for sink URL"),
        ("//localhost", "no scheme found for sink URL"),
        ("kafka://h:port", "host and port of the URI are malformed"),
        ("kafka://h:99999", "the port of the URI must be between 1 and 65535"),
        ("kafka://h:123456", "host and port of the URI are malformed"),
        ("kafka://app:s3cret/x@h", "host and port of the URI are malformed"),
        ("kafka://app:1#s3cret@h", "a URI has no # before the host"),
    ],
)
def test_malformed(text: str, message: str) -> None:
    error = failure("CF1201", lambda: split_uri(text))
    assert error.message == message
    assert "s3cret" not in f"{error.message}{error.hint}{error.detail}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("kafka://h:9092", "kafka://h:9092"),
        ("kafka://a:1,b:2/x?topic_prefix=p", "kafka://a:1,b:2/x?topic_prefix=p"),
        ("postgresql://app:pw@db:5432/shop", "postgresql://app:redacted@db:5432/shop"),
        ("postgresql://app@db/shop", "postgresql://app@db/shop"),
        ("postgresql://[::1]:5/x", "postgresql://[::1]:5/x"),
        ("kafka://h?sasl_user=u&sasl_password=p", "kafka://h?sasl_user=u&sasl_password=redacted"),
        ("kafka://h?sasl_user=a@b", "kafka://h?sasl_user=a@b"),
        ("kafka://h?SASL%5FPASSWORD=p", "kafka://h?SASL%5FPASSWORD=redacted"),
        ("kafka://h?client_key=k&client_cert=c", "kafka://h?client_key=redacted&client_cert=c"),
        (
            "azure-event-hub://h?shared_access_key_name=n&shared_access_key=k",
            "azure-event-hub://h?shared_access_key_name=n&shared_access_key=redacted",
        ),
        (
            "s3://b?AWS_ACCESS_KEY_ID=i&AWS_SECRET_ACCESS_KEY=s&AWS_SESSION_TOKEN=t",
            "s3://b?AWS_ACCESS_KEY_ID=i&AWS_SECRET_ACCESS_KEY=redacted&AWS_SESSION_TOKEN=redacted",
        ),
        (
            "kafka://h?confluent_schema_registry=https://u:pw@r:8081",
            "kafka://h?confluent_schema_registry=https://u:redacted@r:8081",
        ),
        (
            "kafka://h?confluent_schema_registry=https%3A%2F%2Fu%3Apw%40r",
            "kafka://h?confluent_schema_registry=https://u:redacted@r",
        ),
        # Not percent-encoded: it is not clear where the password ends.
        ("postgresql://app:p@ss/w@db:5432/shop", "postgresql://redacted@db:5432/shop"),
        ("postgresql://app:p/w@db/shop", "postgresql://redacted@db/shop"),
        ("postgresql://app:1/w@db/shop", "postgresql://redacted@db/shop"),
        ("postgresql://app:p?w@db/shop", "postgresql://redacted@db/shop"),
        ("postgresql://app:p#w@db/shop", "postgresql://redacted@db/shop"),
        ("postgresql://app:p w", "postgresql://redacted"),
        (
            "iceberg://c/n?uri=https://h&header.X-Custom=pw&s3.sse.key=pw&scope=all",
            "iceberg://c/n?uri=https://h&header.X-Custom=redacted&s3.sse.key=redacted&scope=all",
        ),
        ("host=db password=pw", "redacted"),
        ("app:pw@db", "app:redacted@db"),
        ("no secret here", "no secret here"),
        ("", ""),
    ],
)
def test_redact(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.parametrize(
    "name", ["sasl_user", "topic_name", "ca_cert", "key_column", "partition_key"]
)
def test_what_is_no_secret(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("webhook-https://hooks.example.com/services/T0/B0/SECRET", "hooks.example.com/redacted"),
        ("webhook-https://h/SECRET?ca_cert=eA#SECRET", "h/redacted?ca_cert=eA#redacted"),
        ("WEBHOOK-HTTP://h:80/SECRET/", "h:80/redacted"),
        ("webhook-http://u:SECRET@h/SECRET", "u:redacted@h/redacted"),
        ("webhook-http://u:SECR/ET@h/SECRET", "redacted@h/redacted"),
        ("webhook-http://h/SECRET?x=SECRET@h", "redacted"),
        ("webhook-http://u:SEC?RET@h/SECRET", "redacted"),
        ("webhook-https://h", "h"),
        ("webhook-https://h/", "h/"),
        ("webhook-https://h?x=y", "h?x=y"),
    ],
)
def test_the_path_of_a_webhook_is_a_secret(uri: str, shown: str) -> None:
    assert redact(uri) == f"{uri.partition('://')[0]}://{shown}"
    assert redact(redact(uri)) == redact(uri)

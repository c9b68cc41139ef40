"""``snowflake://user:password@account/database/schema``: what the URI of a Snowflake sink says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar
from urllib.parse import urlsplit

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.parameters import Parameter, ParameterKind
from changefeed.core.uri import SinkURL
from sinks.warehouse.paced import PacedSink, take_interval

#: Seconds between rounds: a virtual warehouse is billed a minute for each time it wakes.
INTERVAL = 60
_DEFAULT_SCHEMA = "public"


class SnowflakeSink(PacedSink):
    """``snowflake://user:password@account/database[/schema]?warehouse=&role=&..``."""

    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("warehouse", "The virtual warehouse that runs the statements."),
        Parameter("role", "The role of the session."),
        Parameter("private_key", "The user's private key, PEM.", ParameterKind.BASE64, secret=True),
        Parameter("passphrase", "The passphrase of the private key.", secret=True),
        Parameter("token", "An OAuth token, or a programmatic access token.", secret=True),
        Parameter("authenticator", "The login method, by its name in Snowflake's client."),
        Parameter(
            "load_interval",
            "Seconds between two rounds.",
            ParameterKind.NUMBER,
            default=str(INTERVAL),
        ),
        Parameter("api_endpoint", "Another server, such as a stand-in.", ParameterKind.URL),
    )

    def __init__(self, uri: str, options: Mapping[str, object] | None = None) -> None:
        """Read the URI.

        Raises:
            ChangefeedError: it is malformed, or has no way to log in.
        """
        # Snowflake's library takes a second to import: not before somebody wants this sink.
        from sinks.warehouse.snowflake.client import Login, SnowflakeWarehouse

        url = SinkURL(uri, self.parameters)
        database, _, schema = url.path.strip("/").partition("/")
        if not url.host or not database or "/" in schema:
            raise ChangefeedError(
                Code.INVALID_URI,
                "a Snowflake sink is an account, a database and a schema",
                hint="write it as snowflake://user:password@account/database/schema",
            )
        interval = take_interval(url, INTERVAL)
        key = url.take_base64("private_key")
        login = Login(
            account=url.host,
            user=url.user or "",
            password=url.password or "",
            warehouse=url.take_str("warehouse", "") or "",
            role=url.take_str("role", "") or "",
            private_key=key or b"",
            passphrase=url.take_str("passphrase", "") or "",
            token=url.take_str("token", "") or "",
            authenticator=url.take_str("authenticator", "") or "",
            **_endpoint(url.take_str("api_endpoint")),
        )
        url.finish()
        if not login.user or not (login.password or login.private_key or login.token):
            raise ChangefeedError(
                Code.INVALID_PARAMETER,
                "a Snowflake sink needs a user and a password, private_key or token",
                hint="snowflake://user@account/database/schema?private_key=<base 64 of the PEM "
                "file, percent-encoded>",
            )
        super().__init__(
            SnowflakeWarehouse(login, database, schema or _DEFAULT_SCHEMA), options, interval
        )


def _endpoint(given: str | None) -> dict[str, str]:
    """Host, port and protocol in the place of those that the account's name tells."""
    if not given:
        return {}
    parts = urlsplit(given)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ChangefeedError(
            Code.INVALID_PARAMETER, "param api_endpoint must be an http or https URL"
        )
    port = parts.port or (80 if parts.scheme == "http" else 443)
    return {"host": parts.hostname, "port": str(port), "protocol": parts.scheme}

"""``snowflake://user:password@account/database/schema``: what the URI of a Snowflake sink says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import urlsplit

from changefeed.core.errors import ChangefeedError
from changefeed.core.settings import Parameter, ParameterKind, Settings, invalid, setting
from changefeed.core.uri import invalid_uri
from sinks.warehouse.parts import PartsSink
from sinks.warehouse.sink import PacedSink

#: Seconds between rounds: a virtual warehouse is billed a minute for each time it wakes.
INTERVAL = 60
_DEFAULT_SCHEMA = "public"


def _endpoint(text: str) -> dict[str, str]:
    """Host, port and protocol in the place of those that follow from the account's name."""
    if not text:
        return {}
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an http or https URL")
    port = parts.port or (80 if parts.scheme == "http" else 443)
    return {"host": parts.hostname, "port": str(port), "protocol": parts.scheme}


@dataclass(frozen=True, kw_only=True)
class SnowflakeSettings(Settings):
    """``snowflake://user:password@account/database[/schema]``."""

    warehouse: str = setting("", "The virtual warehouse that runs the statements.")
    role: str = setting("", "The role of the session.")
    private_key: bytes = setting(
        b"",
        "The user's private key, PEM.",
        ParameterKind.BASE64,
        shown="",
        secret=True,
    )
    passphrase: str = setting("", "The passphrase of the private key.", secret=True)
    token: str = setting("", "An OAuth token, or a programmatic access token.", secret=True)
    authenticator: str = setting("", "The login method, by its name in Snowflake's client.")
    load_interval: int = setting(INTERVAL, "Seconds between two rounds.", most=86_400)
    api_endpoint: dict[str, str] | None = setting(
        None, "Another server, such as a stand-in.", ParameterKind.URL, convert=_endpoint
    )

    @property
    def place(self) -> tuple[str, str]:
        """Database and schema."""
        database, _, schema = self.uri.database.partition("/")
        return database, schema or _DEFAULT_SCHEMA

    def check(self) -> Iterator[ChangefeedError]:
        database, schema = self.place
        if not self.uri.host or not database or "/" in schema:
            yield invalid_uri(
                "a Snowflake sink is an account, a database and a schema",
                "write it as snowflake://user:password@account/database/schema",
            )
        elif not self.uri.user or not (
            self.uri.password or self.token or "private_key" in self.given
        ):
            yield invalid(
                "a Snowflake sink needs a user and a password, private_key or token",
                "snowflake://user@account/database/schema?private_key=<base 64 of the PEM "
                "file, percent-encoded>",
            )


class SnowflakeSink(PartsSink, PacedSink):
    """Tables of a Snowflake schema."""

    parameters: ClassVar[tuple[Parameter, ...]] = SnowflakeSettings.parameters()

    def __init__(self, uri: str, options: Mapping[str, object] | None = None) -> None:
        # Snowflake's library takes a second to import: only a sink of this kind needs it.
        from sinks.warehouse.snowflake.client import Login, SnowflakeWarehouse

        settings = SnowflakeSettings.read(uri)
        login = Login(
            account=settings.uri.host,
            user=settings.uri.user or "",
            password=settings.uri.password or "",
            warehouse=settings.warehouse,
            role=settings.role,
            private_key=settings.private_key,
            passphrase=settings.passphrase,
            token=settings.token,
            authenticator=settings.authenticator,
            **(settings.api_endpoint or {}),
        )
        super().__init__(
            SnowflakeWarehouse(login, *settings.place), options, float(settings.load_interval)
        )

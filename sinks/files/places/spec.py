"""What a URI says of a place: the scheme's parameters, checked. Connects to nothing.

Parameters are those CockroachDB's cloud storage takes, as far as the client library
(``pyarrow.fs``) has the same; another one is an error, never ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from changefeed.core.errors import ChangefeedError
from changefeed.core.settings import (
    Authority,
    ParameterKind,
    Settings,
    group,
    invalid,
    setting,
)
from changefeed.core.stores import AZURE, GOOGLE, S3, StoreLogin, without_empty
from changefeed.core.uri import invalid_uri

LOCAL, OBJECTS, WEB = "local", "objects", "web"

_HDFS = ("hdfs",)
_WEB = ("https", "http", "file-https", "file-http")


@dataclass(frozen=True, slots=True)
class PlaceSpec:
    """A place, enough to open it in any process.

    Attributes:
        kind: ``local``, ``objects`` or ``web``.
        scheme: as the user wrote it.
        root: a local directory, or bucket and prefix without slashes around them.
        shown: the place for people: scheme, host or bucket, path.
        arguments: of the client; may hold secrets.
    """

    kind: str
    scheme: str
    root: str
    shown: str
    arguments: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def lists(self) -> bool:
        return self.kind != WEB


@dataclass(frozen=True, kw_only=True)
class PlaceSettings(Settings):
    """A URI that leads to a place for files. An empty parameter counts as absent."""

    auth: str = setting(
        "specified",
        "Where the login comes from: the URI (specified) or the machine (implicit).",
        name="AUTH",
        values=("specified", "implicit"),
        secret=True,
        schemes=(*S3, *GOOGLE, *AZURE),
    )
    store: StoreLogin = group(StoreLogin)
    kerb_ticket: str = setting("", "The Kerberos ticket cache.", ParameterKind.PATH, schemes=_HDFS)
    authority: Authority = group(Authority, *_WEB)

    @cached_property
    def place(self) -> PlaceSpec:
        """The place, enough to open it in any process."""
        uri = self.uri
        root = f"{uri.host}/{uri.path.strip('/')}".rstrip("/")
        if uri.scheme == "file":
            return PlaceSpec(LOCAL, uri.scheme, uri.path, uri.path)
        if uri.scheme in (*S3, *GOOGLE, *AZURE):
            kind = "azure" if uri.scheme in AZURE else uri.scheme
            shown = f"{uri.scheme}://{root}"
            return PlaceSpec(OBJECTS, kind, root, shown, self.store.arguments)
        if uri.scheme in _HDFS:
            folder = "/" + uri.path.strip("/")
            login = {"user": uri.user, "kerb_ticket": self.kerb_ticket}
            server = {"host": uri.host, "port": uri.port or 8020} | login
            return PlaceSpec(
                OBJECTS, "hdfs", folder, f"hdfs://{uri.host}{folder}", without_empty(server)
            )
        host = uri.hosts[0] if uri.hosts else ""
        address = f"{uri.scheme.removeprefix('file-')}://{host}{uri.path.rstrip('/')}"
        login = {"user": uri.user, "password": uri.password, "ca": self.authority.ca_cert}
        return PlaceSpec(WEB, uri.scheme, address, address, without_empty(login))

    @property
    def _implicit(self) -> bool:
        return self.auth == "implicit"

    def check(self) -> Iterator[ChangefeedError]:
        yield from self._check_address()
        if "AUTH" in self.wrong:
            return
        if self.uri.scheme in S3:
            yield from self._check_login("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
            keys = self.store.s3
            if self._implicit and (keys.access_key or keys.secret_key or keys.session_token):
                yield invalid("AUTH=implicit does not go with a key in the URI")
            if self.store.role and not self._implicit:
                yield invalid(
                    "ASSUME_ROLE needs AUTH=implicit: the key of the machine takes the role"
                )
        elif self.uri.scheme in GOOGLE:
            key = self.store.google.service_account or self.store.google.bearer_token
            if self._implicit and key:
                yield invalid("AUTH=implicit does not go with CREDENTIALS or BEARER_TOKEN")
            if not key and "CREDENTIALS" not in self.wrong:
                yield from self._check_login("CREDENTIALS")
        elif self.uri.scheme in AZURE:
            application = ("AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_TENANT_ID")
            yield from self._check_login(
                *(application if self.store.azure.application else ("AZURE_ACCOUNT_KEY",))
            )
            if self._implicit and (self.store.azure.account_key or self.store.azure.application):
                yield invalid("AUTH=implicit does not go with a key in the URI")

    def _check_address(self) -> Iterator[ChangefeedError]:
        uri = self.uri
        if uri.scheme == "file":
            if uri.hosts or not uri.path.startswith("/"):
                raise invalid_uri(
                    "a file sink needs an absolute path and no host",
                    "write file:///directory, with three slashes.",
                )
        elif len(uri.hosts) != 1 or not uri.host:
            needed, form = f"a {uri.scheme} sink needs one host", f"{uri.scheme}://host/path"
            if uri.scheme in _HDFS:
                needed = "an hdfs sink needs the name node"
                form = "hdfs://namenode:8020/directory"
            elif uri.scheme not in _WEB:
                needed, form = (
                    f"a {uri.scheme} sink needs a bucket",
                    f"{uri.scheme}://bucket/prefix",
                )
            raise invalid_uri(needed, f"write {form}")
        yield from ()

    def _check_login(self, *needed: str) -> Iterator[ChangefeedError]:
        for name in needed:
            if not self._implicit and name not in self.given:
                yield invalid(
                    f"AUTH is set to 'specified', but {name} is not set",
                    f"add {name}, or AUTH=implicit to use what the machine is logged in with.",
                )

"""What a URI says of a place: the scheme's parameters, checked. Connects to nothing.

Parameters are those CockroachDB's cloud storage takes, as far as the client library
(``pyarrow.fs``) has the same; another one is an error, never ignored.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from changefeed.core.errors import ChangefeedError
from changefeed.core.extras import lacking
from changefeed.core.settings import (
    Authority,
    ParameterKind,
    Settings,
    group,
    invalid,
    read_base64,
    setting,
)
from changefeed.core.uri import invalid_uri

LOCAL, OBJECTS, WEB = "local", "objects", "web"

_S3, _GS, _HDFS = ("s3",), ("gs",), ("hdfs",)
_AZURE = ("azure", "azure-blob", "azure-storage")
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


def _server(text: str) -> tuple[str, str] | None:
    """Scheme and ``host[:port]`` of a server; https if it names no scheme."""
    scheme, mark, host = text.rpartition("://")
    if mark and scheme not in ("http", "https"):
        raise ValueError("must be an http or https address")
    return (scheme if mark else "https", host.rstrip("/")) if text else None


def _service_account(text: str) -> Any:
    try:
        return json.loads(read_base64(text)) if text else None
    except ValueError:
        raise ValueError("must be the JSON key of a service account in base 64") from None


def _account_key(text: str) -> str:
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        raise ValueError(
            "must be base 64", "copy the key as the portal shows it, with + as %2B."
        ) from None
    return text


def _endpoint(summary: str, name: str, schemes: tuple[str, ...]) -> Any:
    return setting(None, summary, ParameterKind.URL, name=name, schemes=schemes, convert=_server)


@dataclass(frozen=True, kw_only=True)
class PlaceSettings(Settings):
    """A URI that leads to a place for files. An empty parameter counts as absent."""

    auth: str = setting(
        "specified",
        "Where the login comes from: the URI (specified) or the machine (implicit).",
        name="AUTH",
        values=("specified", "implicit"),
        secret=True,
        schemes=(*_S3, *_GS, *_AZURE),
    )
    access_key: str = setting("", "The access key.", name="AWS_ACCESS_KEY_ID", schemes=_S3)
    secret_key: str = setting(
        "", "Its secret.", name="AWS_SECRET_ACCESS_KEY", secret=True, schemes=_S3
    )
    session_token: str = setting(
        "",
        "The token of a temporary access key.",
        name="AWS_SESSION_TOKEN",
        secret=True,
        schemes=_S3,
    )
    role: str = setting(
        "", "The role or service account to assume.", name="ASSUME_ROLE", schemes=(*_S3, *_GS)
    )
    region: str = setting("", "The bucket's region.", name="AWS_REGION", schemes=_S3)
    s3_endpoint: tuple[str, str] | None = _endpoint(
        "Another store with S3's protocol.", "AWS_ENDPOINT", _S3
    )
    service_account: Mapping[str, Any] | None = setting(
        None,
        "A service account's key, JSON.",
        ParameterKind.BASE64,
        name="CREDENTIALS",
        secret=True,
        schemes=_GS,
        convert=_service_account,
    )
    bearer_token: str = setting(
        "",
        "An OAuth token, instead of CREDENTIALS.",
        name="BEARER_TOKEN",
        secret=True,
        schemes=_GS,
    )
    gcs_endpoint: tuple[str, str] | None = _endpoint(
        "Another store with the same protocol.", "GCS_ENDPOINT", _GS
    )
    account_name: str = setting(
        "", "The storage account; always needed.", name="AZURE_ACCOUNT_NAME", schemes=_AZURE
    )
    account_key: str = setting(
        "",
        "The account's key.",
        ParameterKind.BASE64,
        name="AZURE_ACCOUNT_KEY",
        secret=True,
        schemes=_AZURE,
        convert=_account_key,
    )
    client_id: str = setting(
        "",
        "An application's id, instead of the account's key.",
        name="AZURE_CLIENT_ID",
        schemes=_AZURE,
    )
    client_secret: str = setting(
        "", "The application's secret.", name="AZURE_CLIENT_SECRET", secret=True, schemes=_AZURE
    )
    tenant_id: str = setting(
        "", "The application's tenant.", name="AZURE_TENANT_ID", schemes=_AZURE
    )
    azure_endpoint: tuple[str, str] | None = _endpoint(
        "Another store with the same protocol.", "AZURE_ENDPOINT", _AZURE
    )
    kerb_ticket: str = setting("", "The Kerberos ticket cache.", ParameterKind.PATH, schemes=_HDFS)
    authority: Authority = group(Authority, *_WEB)

    @cached_property
    def place(self) -> PlaceSpec:
        """The place, enough to open it in any process."""
        uri = self.uri
        root = f"{uri.host}/{uri.path.strip('/')}".rstrip("/")
        if uri.scheme == "file":
            return PlaceSpec(LOCAL, uri.scheme, uri.path, uri.path)
        if uri.scheme in _S3:
            return PlaceSpec(OBJECTS, "s3", root, f"s3://{root}", _given(self._s3()))
        if uri.scheme in _GS:
            return PlaceSpec(OBJECTS, "gs", root, f"gs://{root}", _given(self._gs()))
        if uri.scheme in _AZURE:
            shown = f"{uri.scheme}://{root}"
            return PlaceSpec(OBJECTS, "azure", root, shown, _given(self._azure()))
        if uri.scheme in _HDFS:
            folder = "/" + uri.path.strip("/")
            login = {"user": uri.user, "kerb_ticket": self.kerb_ticket}
            server = {"host": uri.host, "port": uri.port or 8020} | login
            return PlaceSpec(OBJECTS, "hdfs", folder, f"hdfs://{uri.host}{folder}", _given(server))
        host = uri.hosts[0] if uri.hosts else ""
        address = f"{uri.scheme.removeprefix('file-')}://{host}{uri.path.rstrip('/')}"
        login = {"user": uri.user, "password": uri.password, "ca": self.authority.ca_cert}
        return PlaceSpec(WEB, uri.scheme, address, address, _given(login))

    @property
    def _implicit(self) -> bool:
        return self.auth == "implicit"

    def _s3(self) -> dict[str, Any]:
        login = {
            "access_key": self.access_key,
            "secret_key": self.secret_key,
            "session_token": self.session_token,
        }
        arguments = {} if self._implicit else login
        return {**arguments, "role_arn": self.role, "region": self.region, **_at(self.s3_endpoint)}

    def _gs(self) -> dict[str, Any]:
        return {
            "service_account": self.service_account,
            "access_token": self.bearer_token,
            "target_service_account": self.role,
            **_at(self.gcs_endpoint),
        }

    def _azure(self) -> dict[str, Any]:
        names = ("account_name", "account_key", "client_id", "client_secret", "tenant_id")
        arguments = {name: getattr(self, name) for name in names}
        if self.azure_endpoint is not None:
            # Where accounts have no host of their own, their name begins the path; the client adds
            # it.
            scheme, host = self.azure_endpoint
            for service in ("blob", "dfs"):
                arguments[f"{service}_storage_scheme"] = scheme
                arguments[f"{service}_storage_authority"] = host.removesuffix(
                    f"/{self.account_name}"
                )
        return arguments

    def check(self) -> Iterator[ChangefeedError]:
        yield from self._check_address()
        if "AUTH" in self.wrong:
            return
        if self.uri.scheme in _S3:
            yield from self._check_login("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
            if self._implicit and (self.access_key or self.secret_key or self.session_token):
                yield invalid("AUTH=implicit does not go with a key in the URI")
            if self.role and not self._implicit:
                yield invalid(
                    "ASSUME_ROLE needs AUTH=implicit: the key of the machine takes the role"
                )
        elif self.uri.scheme in _GS:
            key = self.service_account or self.bearer_token
            if self._implicit and key:
                yield invalid("AUTH=implicit does not go with CREDENTIALS or BEARER_TOKEN")
            if not key and "CREDENTIALS" not in self.wrong:
                yield from self._check_login("CREDENTIALS")
            elif self.service_account:
                missing = lacking("gs:// with CREDENTIALS", ("google.auth",), "bigquery")
                if missing is not None:
                    yield missing
        elif self.uri.scheme in _AZURE:
            client = self.client_id or self.client_secret or self.tenant_id
            application = ("AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_TENANT_ID")
            yield from self._check_login(*(application if client else ("AZURE_ACCOUNT_KEY",)))
            if not self.account_name:
                yield invalid("param AZURE_ACCOUNT_NAME must be provided")
            if self._implicit and (self.account_key or client):
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


def _at(endpoint: tuple[str, str] | None) -> dict[str, str]:
    return {} if endpoint is None else {"endpoint_override": endpoint[1], "scheme": endpoint[0]}


def _given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value}

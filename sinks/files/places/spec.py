"""What a URI says of a place: the scheme's parameters, checked. Connects to nothing.

Parameters are those CockroachDB's cloud storage takes, as far as the client library
(``pyarrow.fs``) has the same; another one is an error, never ignored.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.parameters import Parameter, ParameterKind
from changefeed.core.uri import SinkURL
from sinks.parameters import CA_CERT, Parameters

LOCAL, OBJECTS, WEB = "local", "objects", "web"

_S3, _GS, _HDFS = ("s3",), ("gs",), ("hdfs",)
_AZURE = ("azure", "azure-blob", "azure-storage")
_WEB = ("https", "http", "file-https", "file-http")


def _of(schemes: tuple[str, ...], name: str, summary: str, *, secret: bool = False) -> Parameter:
    return Parameter(name, summary, secret=secret, schemes=schemes)


#: What URIs of the stores take, one store after the other.
PLACE_PARAMETERS = (
    Parameter(
        "AUTH",
        "Where the login comes from: the URI (specified) or the machine (implicit).",
        ParameterKind.CHOICE,
        ("specified", "implicit"),
        "specified",
        secret=True,
        schemes=(*_S3, *_GS, *_AZURE),
    ),
    _of(_S3, "AWS_ACCESS_KEY_ID", "The access key."),
    _of(_S3, "AWS_SECRET_ACCESS_KEY", "Its secret.", secret=True),
    _of(_S3, "AWS_SESSION_TOKEN", "The token of a temporary access key.", secret=True),
    _of((*_S3, *_GS), "ASSUME_ROLE", "The role or service account to assume."),
    _of(_S3, "AWS_REGION", "The bucket's region."),
    Parameter("AWS_ENDPOINT", "Another store with S3's protocol.", ParameterKind.URL, schemes=_S3),
    Parameter(
        "CREDENTIALS",
        "A service account's key, JSON.",
        ParameterKind.BASE64,
        secret=True,
        schemes=_GS,
    ),
    _of(_GS, "BEARER_TOKEN", "An OAuth token, instead of CREDENTIALS.", secret=True),
    Parameter(
        "GCS_ENDPOINT", "Another store with the same protocol.", ParameterKind.URL, schemes=_GS
    ),
    _of(_AZURE, "AZURE_ACCOUNT_NAME", "The storage account; always needed."),
    Parameter(
        "AZURE_ACCOUNT_KEY", "The account's key.", ParameterKind.BASE64, secret=True, schemes=_AZURE
    ),
    _of(_AZURE, "AZURE_CLIENT_ID", "An application's id, instead of the account's key."),
    _of(_AZURE, "AZURE_CLIENT_SECRET", "The application's secret.", secret=True),
    _of(_AZURE, "AZURE_TENANT_ID", "The application's tenant."),
    Parameter(
        "AZURE_ENDPOINT", "Another store with the same protocol.", ParameterKind.URL, schemes=_AZURE
    ),
    Parameter("kerb_ticket", "The Kerberos ticket cache.", ParameterKind.PATH, schemes=_HDFS),
    replace(CA_CERT, schemes=_WEB),
)


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


def place_of(parameters: Parameters) -> PlaceSpec:
    """The place of a URI; what is wrong with its parameters is kept with them.

    Raises:
        ChangefeedError: CF1201, the URI does not say where.
    """
    url = parameters.url
    return _READERS[url.scheme](url, _Taker(parameters))


class _Taker:
    """Takes the parameters of stores, where an empty one counts as absent."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self.problem, self.base64 = parameters.problem, parameters.base64

    def text(self, name: str) -> str | None:
        return self._parameters.text(name) or None

    def address(self, name: str) -> tuple[str, str] | None:
        """Scheme and ``host[:port]`` of a server; https if it names no scheme."""
        text = self.text(name)
        if text is None:
            return None
        scheme, mark, host = text.rpartition("://")
        if mark and scheme not in ("http", "https"):
            self.problem(f"param {name} must be an http or https address")
        return scheme if mark else "https", host.rstrip("/")

    def implicit(self, *needed: str) -> bool:
        """``AUTH``: false when the URI holds the login, which then needs these parameters."""
        url = self._parameters.url
        auth = self._parameters.attempt(lambda: url.take_choice("AUTH") or "specified", "implicit")
        if auth == "implicit":
            return True
        for name in needed:
            if not url.has(name):
                self.problem(
                    f"AUTH is set to 'specified', but {name} is not set",
                    f"add {name}, or AUTH=implicit to use what the machine is logged in with.",
                )
        return False


def _local(url: SinkURL, taker: _Taker) -> PlaceSpec:
    if url.hosts or not url.path.startswith("/"):
        raise ChangefeedError(
            Code.INVALID_URI,
            "a file sink needs an absolute path and no host",
            hint="write file:///directory, with three slashes.",
        )
    return PlaceSpec(LOCAL, url.scheme, url.path, url.path)


def _bucket(url: SinkURL) -> tuple[str, str]:
    if len(url.hosts) != 1 or not url.host:
        raise ChangefeedError(
            Code.INVALID_URI,
            f"a {url.scheme} sink needs a bucket",
            hint=f"write {url.scheme}://bucket/prefix",
        )
    root = f"{url.host}/{url.path.strip('/')}".rstrip("/")
    return root, f"{url.scheme}://{root}"


def _s3(url: SinkURL, taker: _Taker) -> PlaceSpec:
    root, shown = _bucket(url)
    implicit = taker.implicit("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    login = {
        "access_key": taker.text("AWS_ACCESS_KEY_ID"),
        "secret_key": taker.text("AWS_SECRET_ACCESS_KEY"),
        "session_token": taker.text("AWS_SESSION_TOKEN"),
    }
    role = taker.text("ASSUME_ROLE")
    if implicit and any(login.values()):
        taker.problem("AUTH=implicit does not go with a key in the URI")
    if role and not implicit:
        taker.problem("ASSUME_ROLE needs AUTH=implicit: the key of the machine takes the role")
    arguments: dict[str, Any] = {} if implicit else login
    arguments |= {"role_arn": role, "region": taker.text("AWS_REGION")}
    endpoint = taker.address("AWS_ENDPOINT")
    if endpoint is not None:
        arguments |= {"endpoint_override": endpoint[1], "scheme": endpoint[0]}
    return PlaceSpec(OBJECTS, url.scheme, root, shown, _given(arguments))


def _gs(url: SinkURL, taker: _Taker) -> PlaceSpec:
    root, shown = _bucket(url)
    token, key = taker.text("BEARER_TOKEN"), taker.base64("CREDENTIALS")
    if url.has("AUTH") or (token is None and key is None):
        implicit = taker.implicit()
        if implicit and (token or key):
            taker.problem("AUTH=implicit does not go with CREDENTIALS or BEARER_TOKEN")
        if not implicit and not (token or key):
            taker.problem(
                "AUTH is set to 'specified', but CREDENTIALS is not set",
                "add CREDENTIALS, or AUTH=implicit to use what the machine is logged in with.",
            )
    service_account = None
    if key is not None:
        try:
            service_account = json.loads(key)
        except ValueError:
            taker.problem("param CREDENTIALS must be the JSON key of a service account in base 64")
    arguments = {
        "service_account": service_account,
        "access_token": token,
        "target_service_account": taker.text("ASSUME_ROLE"),
    }
    endpoint = taker.address("GCS_ENDPOINT")
    if endpoint is not None:
        arguments |= {"endpoint_override": endpoint[1], "scheme": endpoint[0]}
    return PlaceSpec(OBJECTS, "gs", root, shown, _given(arguments))


def _azure(url: SinkURL, taker: _Taker) -> PlaceSpec:
    root, shown = _bucket(url)
    client = ("AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_TENANT_ID")
    needed = client if any(url.has(name) for name in client) else ("AZURE_ACCOUNT_KEY",)
    implicit = taker.implicit(*needed)
    arguments = {
        "account_name": taker.text("AZURE_ACCOUNT_NAME"),
        "account_key": taker.text("AZURE_ACCOUNT_KEY"),
        "client_id": taker.text("AZURE_CLIENT_ID"),
        "client_secret": taker.text("AZURE_CLIENT_SECRET"),
        "tenant_id": taker.text("AZURE_TENANT_ID"),
    }
    if arguments["account_name"] is None:
        taker.problem("param AZURE_ACCOUNT_NAME must be provided")
    if implicit and any(value for name, value in arguments.items() if name != "account_name"):
        taker.problem("AUTH=implicit does not go with a key in the URI")
    if not _is_base64(arguments["account_key"] or ""):
        taker.problem(
            "param AZURE_ACCOUNT_KEY must be base 64",
            "copy the key as the portal shows it, with + as %2B.",
        )
    endpoint = taker.address("AZURE_ENDPOINT")
    if endpoint is not None:
        # Where accounts have no host of their own, their name begins the path; the client adds it.
        scheme, authority = endpoint[0], endpoint[1].removesuffix(f"/{arguments['account_name']}")
        for service in ("blob", "dfs"):
            arguments[f"{service}_storage_scheme"] = scheme
            arguments[f"{service}_storage_authority"] = authority
    return PlaceSpec(OBJECTS, "azure", root, shown, _given(arguments))


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        return False
    return True


def _hdfs(url: SinkURL, taker: _Taker) -> PlaceSpec:
    if len(url.hosts) != 1 or not url.host:
        raise ChangefeedError(
            Code.INVALID_URI,
            "an hdfs sink needs the name node",
            hint="write hdfs://namenode:8020/directory",
        )
    arguments: dict[str, Any] = {
        "host": url.host,
        "port": url.port or 8020,
        "user": url.user,
        "kerb_ticket": taker.text("kerb_ticket"),
    }
    root = "/" + url.path.strip("/")
    return PlaceSpec(OBJECTS, "hdfs", root, f"hdfs://{url.host}{root}", _given(arguments))


def _web(url: SinkURL, taker: _Taker) -> PlaceSpec:
    if len(url.hosts) != 1 or not url.host:
        raise ChangefeedError(
            Code.INVALID_URI,
            f"a {url.scheme} sink needs one host",
            hint=f"write {url.scheme}://host/path",
        )
    scheme = url.scheme.removeprefix("file-")
    address = f"{scheme}://{url.hosts[0]}{url.path.rstrip('/')}"
    ca = taker.base64("ca_cert")
    arguments = {
        "user": url.user,
        "password": url.password,
        "ca": None if ca is None else ca.decode("latin-1"),
    }
    return PlaceSpec(WEB, url.scheme, address, address, _given(arguments))


def _given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


_READERS: Mapping[str, Callable[[SinkURL, _Taker], PlaceSpec]] = {
    "file": _local,
    "s3": _s3,
    "gs": _gs,
    "azure": _azure,
    "azure-blob": _azure,
    "azure-storage": _azure,
    "hdfs": _hdfs,
    "http": _web,
    "https": _web,
    "file-http": _web,
    "file-https": _web,
}

"""Object stores: what an address says of the login, a client, and what its errors mean.

For whatever keeps files or objects there: file sinks, shared logs, staging places. The client is
``pyarrow.fs``, which is imported by :func:`connect` alone.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from typing import TYPE_CHECKING, Any

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.extras import lacking
from changefeed.core.s3_urls import S3Signer
from changefeed.core.settings import ParameterKind, Settings, group, invalid, read_base64, setting

# Whatever only writes and reads needs no httpx.
if TYPE_CHECKING:
    import httpx
    from pyarrow import fs

#: Schemes of the stores.
S3, GOOGLE = ("s3",), ("gs",)
AZURE = ("azure", "azure-blob", "azure-storage")

#: Seconds a client of S3 may take to connect.
CONNECT_SECONDS = 5.0

#: How long a URL is good for that deletes an object; clocks may differ.
_DELETE_SECONDS = 900

#: How long a login with a service account's key lasts at most: half of what Google gives a token.
TOKEN_SECONDS = 1800.0


# ------------------------------------------------------------------------------- addresses


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


def _endpoint(summary: str, name: str) -> Any:
    return setting(None, summary, ParameterKind.URL, name=name, convert=_server)


@dataclass(frozen=True, kw_only=True)
class S3Keys(Settings):
    """Who asks a store with S3's protocol, and where it is. Nothing given: the machine's login."""

    access_key: str = setting("", "The access key.", name="AWS_ACCESS_KEY_ID")
    secret_key: str = setting("", "Its secret.", name="AWS_SECRET_ACCESS_KEY", secret=True)
    session_token: str = setting(
        "", "The token of a temporary access key.", name="AWS_SESSION_TOKEN", secret=True
    )
    region: str = setting("", "The bucket's region.", name="AWS_REGION")
    endpoint: tuple[str, str] | None = _endpoint(
        "Another store with S3's protocol.", "AWS_ENDPOINT"
    )

    @property
    def arguments(self) -> dict[str, Any]:
        """For :func:`connect`; may hold secrets."""
        names = ("access_key", "secret_key", "session_token", "region")
        return without_empty({name: getattr(self, name) for name in names} | _at(self.endpoint))


@dataclass(frozen=True, kw_only=True)
class GoogleLogin(Settings):
    """Who asks Google Cloud Storage, and where it is. Nothing given: the machine's login."""

    service_account: Mapping[str, Any] | None = setting(
        None,
        "A service account's key, JSON.",
        ParameterKind.BASE64,
        name="CREDENTIALS",
        secret=True,
        convert=_service_account,
    )
    bearer_token: str = setting(
        "", "An OAuth token, instead of CREDENTIALS.", name="BEARER_TOKEN", secret=True
    )
    endpoint: tuple[str, str] | None = _endpoint(
        "Another store with the same protocol.", "GCS_ENDPOINT"
    )

    def check(self) -> Iterator[ChangefeedError]:
        if self.service_account:
            missing = lacking("gs:// with CREDENTIALS", ("google.auth",), "bigquery")
            if missing is not None:
                yield missing

    @property
    def arguments(self) -> dict[str, Any]:
        """For :func:`connect`; may hold secrets."""
        login = {
            "service_account": self.service_account,
            "access_token": self.bearer_token,
        }
        return without_empty(login | _at(self.endpoint))


@dataclass(frozen=True, kw_only=True)
class AzureLogin(Settings):
    """Who asks Azure's Blob Storage, and where it is. Only the account given: the machine's
    login."""

    account_name: str = setting(
        "", "The storage account; always needed.", name="AZURE_ACCOUNT_NAME"
    )
    account_key: str = setting(
        "",
        "The account's key.",
        ParameterKind.BASE64,
        name="AZURE_ACCOUNT_KEY",
        secret=True,
        convert=_account_key,
    )
    client_id: str = setting(
        "", "An application's id, instead of the account's key.", name="AZURE_CLIENT_ID"
    )
    client_secret: str = setting(
        "", "The application's secret.", name="AZURE_CLIENT_SECRET", secret=True
    )
    tenant_id: str = setting("", "The application's tenant.", name="AZURE_TENANT_ID")
    endpoint: tuple[str, str] | None = _endpoint(
        "Another store with the same protocol.", "AZURE_ENDPOINT"
    )

    @property
    def application(self) -> str:
        """Something of an application's login; empty without."""
        return self.client_id or self.client_secret or self.tenant_id

    def check(self) -> Iterator[ChangefeedError]:
        if not self.account_name:
            yield invalid("param AZURE_ACCOUNT_NAME must be provided")

    @property
    def arguments(self) -> dict[str, Any]:
        """For :func:`connect`; may hold secrets."""
        names = ("account_name", "account_key", "client_id", "client_secret", "tenant_id")
        arguments = {name: getattr(self, name) for name in names}
        if self.endpoint is not None:
            # Where accounts have no host of their own, their name begins the path; the client adds
            # it.
            scheme, host = self.endpoint
            for service in ("blob", "dfs"):
                arguments[f"{service}_storage_scheme"] = scheme
                arguments[f"{service}_storage_authority"] = host.removesuffix(
                    f"/{self.account_name}"
                )
        return without_empty(arguments)


@dataclass(frozen=True, kw_only=True)
class StoreLogin(Settings):
    """Who asks the store that the address leads to; only parameters of its scheme are taken."""

    s3: S3Keys = group(S3Keys, *S3)
    role: str = setting(
        "", "The role or service account to assume.", name="ASSUME_ROLE", schemes=(*S3, *GOOGLE)
    )
    google: GoogleLogin = group(GoogleLogin, *GOOGLE)
    azure: AzureLogin = group(AzureLogin, *AZURE)

    @property
    def arguments(self) -> dict[str, Any]:
        """For :func:`connect`; may hold secrets."""
        if self.uri.scheme in S3:
            return self.s3.arguments | without_empty({"role_arn": self.role})
        if self.uri.scheme in GOOGLE:
            return self.google.arguments | without_empty({"target_service_account": self.role})
        return self.azure.arguments


def _at(endpoint: tuple[str, str] | None) -> dict[str, str]:
    return {} if endpoint is None else {"endpoint_override": endpoint[1], "scheme": endpoint[0]}


def without_empty(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that have a value: an empty parameter counts as absent."""
    return {name: value for name, value in arguments.items() if value}


# ------------------------------------------------------------------------------- clients


def connect(
    scheme: str,
    arguments: Mapping[str, Any],
    *,
    google_seconds: float = CONNECT_SECONDS,
    **limits: Any,
) -> fs.FileSystem:
    """A client of a store; connects with its first call, but for the token of a service account.

    Args:
        scheme: ``s3``, ``gs`` or ``azure``.
        arguments: of :class:`StoreLogin`.
        google_seconds: how long Google's client repeats a request by itself.
        limits: of the client of S3.

    Raises:
        ChangefeedError: CF5001, CF5002: a service account's key gets no token.
    """
    from pyarrow import fs

    if scheme == "s3":
        return fs.S3FileSystem(**{"connect_timeout": CONNECT_SECONDS, **limits, **arguments})
    if scheme == "azure":
        return fs.AzureFileSystem(**arguments)
    login = dict(arguments)
    key = login.pop("service_account", None)
    if key is not None:
        login |= _google_token(key)
    elif "access_token" in login:
        # Its end is not known; the client asks for one, and the store refuses a token that ended.
        login["credential_token_expiration"] = dt.datetime.now(dt.UTC) + dt.timedelta(days=365)
    return fs.GcsFileSystem(retry_time_limit=dt.timedelta(seconds=google_seconds), **login)


class StoreClient:
    """A client that connects on first use, and again when its login has ended; may be used by
    several threads."""

    def __init__(
        self,
        connect: Callable[[], fs.FileSystem],
        *,
        lifetime: float = math.inf,
        clock: Clock = SYSTEM_CLOCK,
        s3: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Args:
            lifetime: how long a login lasts, seconds; see :func:`login_seconds`.
            s3: arguments of a client of S3: objects are removed with one request.
        """
        self._signer = None if s3 is None else S3Signer.of(s3)
        self._connect = connect
        self._lifetime = lifetime
        self._clock = clock
        self._lock = threading.Lock()
        self._connected: tuple[fs.FileSystem, float] | None = None

    @property
    def system(self) -> fs.FileSystem:
        """The client; raises what connecting raises."""
        with self._lock:
            if self._connected is None or self._clock.monotonic() > self._connected[1]:
                self._connected = (self._connect(), self._clock.monotonic() + self._lifetime)
            return self._connected[0]

    def delete(self, path: str) -> None:
        """Remove an object; raises what the client raises."""
        if self._signer is None or not self._is_deleted(self._signer, path):
            self.system.delete_file(path)

    def _is_deleted(self, signer: S3Signer, path: str) -> bool:
        # pyarrow asks for the object first, and writes a marker of its folder afterwards, which
        # costs what an upload does. What this cannot do, pyarrow tries, whose errors are reported.
        import httpx

        bucket, _, key = path.partition("/")
        now = self._clock.now().datetime()
        url = signer.url(bucket, key, now, seconds=_DELETE_SECONDS, method="DELETE")
        try:
            return self._http.delete(url).is_success
        except httpx.HTTPError:
            return False

    @cached_property
    def _http(self) -> httpx.Client:
        import httpx

        return httpx.Client(timeout=CONNECT_SECONDS)


def login_seconds(arguments: Mapping[str, Any]) -> float:
    """How long a client of :func:`connect` is logged in."""
    return TOKEN_SECONDS if "service_account" in arguments else math.inf


def _google_token(key: Mapping[str, Any]) -> dict[str, Any]:
    """A token for a service account's key; ``pyarrow`` takes no key itself."""
    import google.auth.exceptions
    import google.auth.transport.requests
    from google.oauth2 import service_account

    scope = "https://www.googleapis.com/auth/devstorage.read_write"
    try:
        maker: Any = service_account.Credentials  # its types end here
        credentials = maker.from_service_account_info(key, scopes=[scope])
        credentials.refresh(google.auth.transport.requests.Request())
    except google.auth.exceptions.TransportError as error:
        raise ChangefeedError(
            Code.SINK_UNREACHABLE, "cannot reach Google's token server"
        ) from error
    except (google.auth.exceptions.GoogleAuthError, ValueError) as error:
        raise ChangefeedError(
            Code.SINK_REFUSED_LOGIN, "Google refused the key of CREDENTIALS"
        ) from error
    return {
        "access_token": credentials.token,
        "credential_token_expiration": credentials.expiry.replace(tzinfo=dt.UTC),
    }


# ------------------------------------------------------------------------------- errors


class StoreProblem(Enum):
    """What an error of a store is about."""

    BUSY = auto()
    CLOCK = auto()
    LOGIN = auto()
    MISSING = auto()
    OTHER = auto()


#: How the stores call an error, in the texts of ``pyarrow.fs``: S3, Azure, Google. Its exceptions
#: have no other sign of it. These are names of the stores' protocols, the same in every language.
_STORE_ERROR = re.compile(
    r"AWS Error (\w+)|Azure Error: \[(\w+)\]|google::cloud::Status\(([A-Z_]+)"
)
_STORE_HTTP = re.compile(
    r"HTTP status (\d{3})|Azure Error: \[\w*\] (\d{3})\b|http_status_code=(\d{3})"
)
#: Google's own word for an error, finer than the status: its 403 is also "too many requests".
_STORE_REASON = re.compile(r"error_info=\{reason=(\w+)")
_NO_ANSWER = re.compile(
    r"curlCode: \d+, ([\w' ]+)|CURL error \[\d+\]=([\w' ]+?)(?: error_info|[^\w' ]|$)|"
    r"(Fail to get a new connection)"
)
_PROBLEMS = {
    StoreProblem.BUSY: re.compile(
        r"SLOW_DOWN|THROTTLING|RESOURCE_EXHAUSTED|ServerBusy|(?:user)?RateLimitExceeded|\b429\b",
        re.IGNORECASE,
    ),
    # Before the status, which is that of a wrong key.
    StoreProblem.CLOCK: re.compile(r"REQUEST_?TIME_?TOO_?SKEWED", re.IGNORECASE),
    StoreProblem.LOGIN: re.compile(
        r"ACCESS_DENIED|INVALID_ACCESS_KEY|SIGNATURE_DOES_NOT_MATCH|INVALID_CLIENT_TOKEN|"
        r"EXPIRED_TOKEN|UNRECOGNIZED_CLIENT|PERMISSION_DENIED|UNAUTHENTICATED|AUTHENTICATION|"
        r"AUTHORIZATION|INVALID_SIGNATURE|MISSING_AUTHENTICATION|OPT_IN_REQUIRED|"
        r"INSUFFICIENTACCOUNTPERMISSIONS|ACCOUNTISDISABLED|\b40[13]\b",
        re.IGNORECASE,
    ),
    StoreProblem.MISSING: re.compile(
        r"NO_SUCH_BUCKET|ContainerNotFound|FilesystemNotFound|ResourceNotFound|NOT_FOUND",
        re.IGNORECASE,
    ),
}


def store_problem(error: BaseException) -> tuple[StoreProblem, str]:
    """What an error of a client is about, and what the store calls it: without the rest of the
    text, which may hold anything. Empty for an error that is no store's."""
    patterns = (_STORE_ERROR, _STORE_HTTP, _STORE_REASON, _NO_ANSWER)
    parts = (pattern.search(str(error)) for pattern in patterns)
    said = (next((group for group in part.groups() if group), "") for part in parts if part)
    name = ", ".join(part for part in said if part)
    problems = (problem for problem, words in _PROBLEMS.items() if words.search(name))
    return next(problems, StoreProblem.OTHER), name

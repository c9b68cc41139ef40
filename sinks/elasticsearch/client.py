"""Requests to the cluster, and its refusals in our codes.

Elastic's client (:mod:`.connection`) carries every request.
"""

from __future__ import annotations

import gzip
import json
import logging
import ssl
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.time_limits import PATIENCE
from sinks.elasticsearch.options import ElasticsearchSettings

if TYPE_CHECKING:
    from sinks.elasticsearch.connection import ClusterConnection, Response, TransportError

# Without a handler of its own Python would print warnings on the terminal.
logging.getLogger("elastic_transport").addHandler(logging.NullHandler())

#: The client asks for the interface of its own major version, 8, which a server of 9 keeps.
_JSON = "application/json"
_LINES = "application/x-ndjson"

_PRODUCT = "Elasticsearch"

RIGHTS_HINT = (
    "it needs the privileges create_index, view_index_metadata, manage, index, delete "
    "and read on the feed's indices."
)

#: Answers that mean "not now": of the server, or of a proxy in front of it.
BUSY = frozenset({429, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """Status and body of a response.

    Attributes:
        product: what an Elasticsearch since 7.14 says it is; empty of others, and of proxies.
        opensearch: what a newer OpenSearch says it is (3.6 does, 2.11 does not):
            ``OpenSearch/3.6.0 (opensearch)``.
        retry_after: seconds the server wants to be left alone.
    """

    status: int
    body: bytes
    product: str = ""
    opensearch: str = ""
    retry_after: float = 0.0

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def json(self) -> Any:
        """The body, None when it is not JSON (a proxy's page)."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    @property
    def error_type(self) -> str:
        """The name that Elasticsearch gives the error; empty without one."""
        return self._of_error("type")

    @property
    def reason(self) -> str:
        """Elasticsearch's explanation; no error shows it when rows were sent: it repeats values."""
        return self._of_error("reason")

    def _of_error(self, name: str) -> str:
        found = self.json()
        error = found.get("error") if isinstance(found, dict) else None
        said = error.get(name) if isinstance(error, dict) else None
        return str(said or "")


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server says of itself; empty and 0 where it does not."""

    version: str = ""
    max_content_bytes: int = 0


@contextmanager
def readable() -> Iterator[None]:
    """Within the block JSON of another shape than Elasticsearch's is CF5001: another server
    answered in its place. No value is shown: an answer may repeat a row's."""
    try:
        yield
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise ChangefeedError(
            Code.SINK_UNREACHABLE,
            "an answer of Elasticsearch cannot be read",
            detail=type(error).__name__,
            hint="does a proxy answer in its place?",
        ) from None


class Cluster:
    """Connections to the nodes of one cluster. Safe to use from several threads."""

    def __init__(self, settings: ElasticsearchSettings, *, patience: float = PATIENCE) -> None:
        """A request may take ``patience`` times what a node may be silent."""
        self._settings = settings
        self._patience = patience
        self._files: tempfile.TemporaryDirectory[str] | None = None
        self._lock = threading.Lock()
        self._connection: ClusterConnection | None = None

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
            files, self._files = self._files, None
        if connection is not None:
            connection.close()
        if files is not None:
            files.cleanup()

    def _connected(self) -> ClusterConnection:
        from sinks.elasticsearch.connection import ClusterConnection

        with self._lock:
            if self._connection is None:
                settings = self._settings
                self._connection = ClusterConnection(
                    settings.hosts,
                    secure=settings.secure,
                    path_prefix=settings.path_prefix,
                    connections=settings.in_flight + 1,
                    timeout=settings.timeout,
                    patience=self._patience,
                    tls=self._tls(),
                )
            return self._connection

    def _tls(self) -> dict[str, Any]:
        """Certificates as files, because Python's TLS takes a client's key only so."""
        settings = self._settings
        if not settings.secure:
            return {}
        texts = {
            "ca_certs": settings.tls.ca_cert,
            "client_cert": settings.tls.client_cert,
            "client_key": settings.tls.client_key,
        }
        found: dict[str, Any] = {
            name: self._file(f"{name}.pem", text) for name, text in texts.items() if text
        }
        if not settings.tls.insecure_tls_skip_verify:
            return found
        # Without a check of the server the transport would forget the client's certificate.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        if "client_cert" in found:
            context.load_cert_chain(found["client_cert"], found["client_key"])
        return {"verify_certs": False, "ssl_show_warn": False, "ssl_context": context}

    def _file(self, name: str, text: str) -> str:
        """The path of a file that only we can read; it is removed with the connections."""
        if self._files is None:
            self._files = tempfile.TemporaryDirectory(prefix="changefeed-tls-")
        path = Path(self._files.name, name)
        path.write_text(text)
        return str(path)

    # -------------------------------------------------------------------- requests

    def call(
        self,
        method: str,
        path: str,
        content: object = None,
        *,
        lines: bytes | memoryview | None = None,
        **parameters: str,
    ) -> HttpAnswer:
        """One request; any status is an answer.

        Args:
            content: becomes a JSON body.
            lines: a body of operations, as it is.
            parameters: of the query; ``_`` in front of a name is taken off.

        Raises:
            ChangefeedError: CF5001 no answer came, CF5002 TLS failed.
        """
        headers = {"accept": _JSON}
        if self._settings.authorization:
            headers["authorization"] = self._settings.authorization
        body: bytes | memoryview | None = lines
        if content is not None:
            body = json.dumps(content, ensure_ascii=False).encode()
        if body is not None:
            headers["content-type"] = _JSON if lines is None else _LINES
            if self._settings.compress and lines is not None:
                headers["content-encoding"] = "gzip"
                body = gzip.compress(body, 1)
        meta, answer = self._perform(method, path, parameters, headers, body)
        wait = str(meta.headers.get("retry-after") or "")
        return HttpAnswer(
            meta.status,
            answer,
            str(meta.headers.get("x-elastic-product") or ""),
            str(meta.headers.get("x-opensearch-version") or ""),
            float(wait) if wait.isdigit() else 0.0,
        )

    def _perform(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes | memoryview | None,
    ) -> Response:
        from sinks.elasticsearch.connection import ConnectionTimeout, SSLError, TransportError

        try:
            return self._connected().perform(method, path, parameters, headers, body)
        except SSLError as error:
            raise self._explained(
                Code.SINK_REFUSED_LOGIN, "TLS with Elasticsearch failed", error
            ) from error
        except ssl.SSLError as error:
            raise self._error(
                Code.SINK_REFUSED_LOGIN,
                "a certificate or key of the sink URI cannot be read",
                str(error),
            ) from error
        except ConnectionTimeout as error:
            timeout = f"no answer in {self._settings.timeout:g} s"
            raise self._error(
                Code.SINK_UNREACHABLE, "Elasticsearch does not answer", timeout
            ) from error
        except TransportError as error:
            raise self._explained(
                Code.SINK_UNREACHABLE, "cannot reach Elasticsearch", error
            ) from error

    def _explained(self, code: str, message: str, error: TransportError) -> ChangefeedError:
        cause = error.errors[0] if error.errors else error
        return self._error(code, message, f"{type(cause).__name__}: {cause}"[:300])

    def _error(self, code: str, message: str, detail: str, hint: str = "") -> ChangefeedError:
        where = f"{self._settings.shown}: {detail}" if detail else self._settings.shown
        return ChangefeedError(code, message, detail=where, hint=hint)

    def refusal(self, answer: HttpAnswer, what: str, *, rows: bool = False) -> ChangefeedError:
        """The error for a request that was refused as a whole; ``what`` was to be done.

        ``rows``: the request held rows, so the server's explanation may repeat their values and
        is left out.
        """
        kind = answer.error_type
        detail = f"{what}: HTTP {answer.status} {kind}".rstrip()
        wrong_kind = kind == "media_type_header_exception" or answer.status == 406
        if answer.opensearch or (wrong_kind and answer.product != _PRODUCT):
            return self._stranger(answer)
        if answer.status == 401:
            return self._error(
                Code.SINK_REFUSED_LOGIN,
                "Elasticsearch refused the login",
                detail,
                "check user and password, or api_key, of the sink URI.",
            )
        if answer.status == 403 and kind != "cluster_block_exception":
            return self._error(
                Code.SINK_REFUSED_LOGIN,
                f"this user may not do that in Elasticsearch: {what}",
                detail,
                RIGHTS_HINT,
            )
        if answer.status in BUSY or kind == "cluster_block_exception":
            return self._error(Code.SINK_BUSY, "Elasticsearch is busy", detail)
        if wrong_kind:
            return self._error(
                Code.NOT_SUPPORTED,
                "this server is too old: Elasticsearch 8 or 9 is needed",
                f"{detail}: it does not know the interface of version 8",
            )
        named = f"Elasticsearch refused to {what}: {kind or f'HTTP {answer.status}'}"
        if not rows and answer.reason:
            detail = f"{detail}: {answer.reason[:300]}"
        return self._error(Code.SINK_REFUSED_DATA, named, detail)

    def _stranger(self, answer: HttpAnswer) -> ChangefeedError:
        """The error for a server that is no Elasticsearch; names OpenSearch, the likely one."""
        name = answer.opensearch.partition(" ")[0].replace("/", " ") or self._introduction()
        if name:
            return self._error(
                Code.NOT_SUPPORTED,
                f"this server is {name}, not Elasticsearch",
                "the sink speaks the interface of Elasticsearch 8, which OpenSearch refuses",
                "OpenSearch is not supported: point the sink at an Elasticsearch, version 8 or 9.",
            )
        return self._error(
            Code.NOT_SUPPORTED,
            "this server is not Elasticsearch",
            "it does not identify itself as Elasticsearch does since 7.14; "
            "OpenSearch and others are not supported",
            "point the sink at an Elasticsearch of version 8 or 9; a proxy before it has to let "
            "the header X-Elastic-Product through.",
        )

    def _introduction(self) -> str:
        try:
            found = self.call("GET", "/").json()
        except ChangefeedError:
            return ""  # it is no Elasticsearch, whatever it is; that is the error to show
        version = found.get("version") if isinstance(found, dict) else None
        if not isinstance(version, dict) or version.get("distribution") != "opensearch":
            return ""
        return f"OpenSearch {version.get('number') or ''}".rstrip()

    def hello(self) -> ServerInfo:
        """Ask the server for its name and version; no rights are needed for that.

        Raises:
            ChangefeedError: it cannot be reached, refuses the login, or is no Elasticsearch.
        """
        answer = self.call(
            "GET",
            "/_nodes/_local/http",
            filter_path="nodes.*.version,nodes.*.http.max_content_length_in_bytes",
        )
        if answer.opensearch or answer.status in (401, 406) or answer.status in BUSY:
            raise self.refusal(answer, "tell its version")
        if answer.status != 403 and answer.product != _PRODUCT:
            raise self._stranger(answer)
        found = answer.json()
        if not answer.ok or not isinstance(found, dict) or not found.get("nodes"):
            if answer.error_type == "media_type_header_exception":
                raise self.refusal(answer, "tell its version")
            return ServerInfo()  # no right to ask, or a server that has no such page (serverless)
        with readable():
            node: dict[str, Any] = next(iter(found["nodes"].values()), {})
            version = str(node.get("version") or "")
            size = int((node.get("http") or {}).get("max_content_length_in_bytes") or 0)
        if version.partition(".")[0] in ("5", "6", "7"):
            raise self._error(
                Code.NOT_SUPPORTED,
                f"Elasticsearch {version} is too old",
                "",
                "versions 8 and 9 are supported.",
            )
        return ServerInfo(version, max(size, 0))


def path_of(index: str, *rest: str) -> str:
    """``/index/rest`` with the characters a URL takes."""
    return "/" + "/".join([quote(index, safe=","), *rest])

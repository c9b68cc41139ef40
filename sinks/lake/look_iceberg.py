"""Iceberg's tables seen without Spark: in directories, behind a REST server, in PostgreSQL."""

from __future__ import annotations

import gzip
import json
import re
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from changefeed.core.errors import ChangefeedError, Code
from sinks.lake.files import Files
from sinks.lake.place import LakePlace

#: Seconds for an answer of a server.
_TIMEOUT = 15.0
#: Between the parts of a namespace, unless the server says otherwise.
_SEPARATOR = "%1F"


#: Names of Iceberg's types that are others in SQL.
_ICEBERG = {
    "long": "bigint",
    "uuid": "string",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
}


class IcebergLook(ABC):
    """One place of Iceberg tables; see :class:`sinks.lake.look.Look`."""

    @abstractmethod
    def _metadata(self, name: str) -> dict[str, Any] | None:
        """Iceberg's metadata of a table; None where there is no such table."""

    def columns(self, name: str) -> dict[str, str] | None:
        found = self._metadata(name)
        if found is None:
            return None
        number = found.get("current-schema-id", 0)
        schemas = found.get("schemas") or [found["schema"]]
        schema = next((s for s in schemas if s.get("schema-id", 0) == number), schemas[-1])
        return {field["name"]: _type(field["type"]) for field in schema["fields"]}

    def properties(self, name: str) -> tuple[dict[str, str], bool]:
        """Of the rows only what the present snapshot says counts."""
        found = self._metadata(name) or {}
        number = found.get("current-snapshot-id")
        snapshots = found.get("snapshots") or []
        current = next((s for s in snapshots if s.get("snapshot-id") == number), None)
        files = ((current or {}).get("summary") or {}).get("total-data-files")
        return dict(found.get("properties") or {}), current is not None and files != "0"


def _read(content: bytes) -> dict[str, Any]:
    plain = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
    found: dict[str, Any] = json.loads(plain)
    return found


def _type(kind: Any) -> str:
    if isinstance(kind, str):
        plain = kind.replace(" ", "")
        return "binary" if plain.startswith("fixed") else _ICEBERG.get(plain, plain)
    if kind["type"] == "list":
        return f"array<{_type(kind['element'])}>"
    return str(kind["type"])


_METADATA = re.compile(r"v(\d+)(?:\.gz)?\.metadata\.json(?:\.gz)?\Z")


class HadoopLook(IcebergLook):
    """Directories with Iceberg's metadata."""

    def __init__(self, place: LakePlace, files: Files) -> None:
        self._place = place
        self._files = files

    def reach(self) -> None:
        self._files.check(self._place.root)

    def _metadata(self, name: str) -> dict[str, Any] | None:
        folder = "/".join([self._place.root, *self._place.namespace, name, "metadata"])
        versions = {int(m[1]): m[0] for m in map(_METADATA.match, self._files.names(folder)) if m}
        if not versions:
            return None
        return _read(self._files.read(f"{folder}/{versions[max(versions)]}"))


class RestLook(IcebergLook):
    """A catalog behind HTTP, asked as Iceberg's client asks (its OpenAPI document)."""

    def __init__(self, place: LakePlace, settings: Mapping[str, str]) -> None:
        self._place = place
        self._settings = dict(settings)
        self._url = settings["uri"].rstrip("/")
        self._headers = {
            name.removeprefix("header."): value
            for name, value in settings.items()
            if name.startswith("header.")
        }
        self._configured: dict[str, str] = {}
        # The environment's proxies are not those of a JVM.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    @staticmethod
    def knows(settings: Mapping[str, str]) -> bool:
        """Whether the login is one of those that are known here."""
        return not any(name.startswith(("rest.auth", "rest.sigv4")) for name in settings)

    def reach(self) -> None:
        self._log_in()
        asked = {"warehouse": self._place.root} if self._place.root else {}
        found = self._get(f"v1/config?{urlencode(asked)}", must=True)
        answer = found if isinstance(found, dict) else {}
        known = {**answer.get("defaults", {}), **self._settings, **answer.get("overrides", {})}
        self._configured = {str(name): str(value) for name, value in known.items()}

    def _metadata(self, name: str) -> dict[str, Any] | None:
        prefix = self._configured.get("prefix", "")
        separator = unquote(self._configured.get("namespace-separator", _SEPARATOR))
        namespace = quote(separator.join(self._place.namespace), safe="")
        parts = ["v1", *filter(None, [quote(prefix)]), "namespaces", namespace, "tables"]
        found = self._get(f"{'/'.join(parts)}/{quote(name, safe='')}?snapshots=refs")
        metadata: dict[str, Any] | None = None if found is None else found["metadata"]
        return metadata

    def _log_in(self) -> None:
        token = self._settings.get("token")
        credential = self._settings.get("credential")
        if credential:
            client, colon, secret = credential.partition(":")
            form = {
                "grant_type": "client_credentials",
                "scope": self._settings.get("scope", "catalog"),
                "client_secret": secret if colon else client,
            }
            if colon:
                form["client_id"] = client
            address = self._settings.get("oauth2-server-uri") or f"{self._url}/v1/oauth/tokens"
            answer = self._send(address, urlencode(form).encode())
            token = str(answer.get("access_token", "")) if isinstance(answer, dict) else ""
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def _get(self, path: str, *, must: bool = False) -> Any:
        return self._send(f"{self._url}/{path}", None, missing=not must)

    def _send(self, address: str, body: bytes | None, *, missing: bool = False) -> Any:
        """The answer's JSON; ``missing``: None where there is no such thing."""
        parts = urlsplit(address)
        where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        plain = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        try:
            request = urllib.request.Request(plain, body, self._headers)
            with self._opener.open(request, timeout=_TIMEOUT) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 404 and missing:
                return None
            if error.code in (401, 403):
                raise ChangefeedError(
                    Code.SINK_REFUSED_LOGIN,
                    f"{self._place.shown} refuses access",
                    detail=f"HTTP {error.code} of {where}",
                    hint="check token or credential in the URI, and what they may see.",
                ) from None
            raise ChangefeedError(
                Code.SINK_UNREACHABLE,
                f"{self._place.shown} does not answer as a catalog",
                detail=f"HTTP {error.code} of {where}",
                hint="uri is the address before /v1/config; warehouse is a name the server knows.",
            ) from None
        except (OSError, ValueError) as failure:
            # A refused connection, a name nobody knows, no TLS, an answer that is no JSON.
            reason = getattr(failure, "reason", failure)
            raise ChangefeedError(
                Code.SINK_UNREACHABLE,
                f"cannot reach {self._place.shown}",
                detail=type(reason).__name__,
            ) from None


class JdbcLook(IcebergLook):
    """A catalog in tables of PostgreSQL's."""

    def __init__(self, place: LakePlace, settings: Mapping[str, str], files: Files) -> None:
        self._place = place
        self._settings = dict(settings)
        self._files = files

    def reach(self) -> None:
        self._query("SELECT 1")
        self._files.check(self._place.root)

    def _metadata(self, name: str) -> dict[str, Any] | None:
        if self._query("SELECT to_regclass('iceberg_tables')")[0][0] is None:
            return None
        rows = self._query(
            "SELECT metadata_location FROM iceberg_tables"
            " WHERE catalog_name = %s AND table_namespace = %s AND table_name = %s",
            (self._place.catalog, ".".join(self._place.namespace), name),
        )
        if not rows or not rows[0][0]:
            return None
        location = str(rows[0][0])
        if not self._files.knows(location):
            return None
        return _read(self._files.read(location))

    def _query(self, sql: str, values: tuple[str, ...] = ()) -> list[tuple[Any, ...]]:
        import psycopg

        address = urlsplit(self._settings["uri"].removeprefix("jdbc:"))
        given = dict(parse_qsl(address.query))
        try:
            with psycopg.connect(
                host=address.hostname or "localhost",
                port=address.port or 5432,
                dbname=unquote(address.path.lstrip("/")) or None,
                user=self._settings.get("jdbc.user") or given.get("user"),
                password=self._settings.get("jdbc.password") or given.get("password"),
                connect_timeout=int(_TIMEOUT),
                sslmode=given.get("sslmode"),
                sslrootcert=given.get("sslrootcert"),
            ) as connection:
                connection.read_only = True
                return connection.execute(sql, values or None).fetchall()
        except psycopg.Error as failure:
            refused = _refused(failure)
            raise ChangefeedError(
                Code.SINK_REFUSED_LOGIN if refused else Code.SINK_UNREACHABLE,
                f"{self._place.shown} refuses the login"
                if refused
                else f"cannot reach {self._place.shown}",
                detail=type(failure).__name__,
            ) from None


def _refused(failure: Exception) -> bool:
    """A connection that fails has no code, only the server's words."""
    words = ("password", "authentication", "no pg_hba.conf entry", "role", "permission denied")
    return any(word in str(failure) for word in words)

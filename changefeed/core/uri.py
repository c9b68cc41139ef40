"""URIs of sinks and connections: taken apart, and redacted.

A URI contains passwords. Errors from here contain no value of a URI, and :func:`redact` is safe
on text that is not a URI: it hides everything that it cannot parse.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import quote, unquote, urlsplit

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.secret_names import is_secret
from grammar import foreign

#: The substitute for a secret, as in CockroachDB's listings.
REDACTED = "redacted"

_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.\-]*):")
_AUTHORITY_END = re.compile(r"[/?#]")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]*(?:%[\w.~%-]+)?\]|[^:@\[\]\s]*)(?::\d{0,5})?\Z", re.ASCII)

_SECRET_INSIDE = re.compile(
    r"(?:pass(?:word|wd|phrase)?|pwd|secret|token|credentials?|key|auth)\s*[=:]", re.IGNORECASE
)


#: ``${env:NAME}``, ``${file:/path}`` and ``${exec:command}``: where a secret is, in its place.
REFERENCE = re.compile(r"\$\{(env|file|exec):([^}]*)\}")


def encode_references(text: str) -> str:
    """``text`` with its references to secrets percent-encoded, so that no ``/``, ``?``, ``@`` or
    ``&`` of theirs ends a part of a URI."""
    return REFERENCE.sub(lambda found: quote(found[0], safe=""), text)


# ------------------------------------------------------------------------------- parts


@dataclass(frozen=True, slots=True)
class Host:
    """A host and its port; port None is the scheme's own. IPv6 has no brackets here."""

    name: str
    port: int | None = None

    def __str__(self) -> str:
        name = f"[{self.name}]" if ":" in self.name else self.name
        return name if self.port is None else f"{name}:{self.port}"


@dataclass(frozen=True, slots=True)
class Parts:
    """A URI taken apart; everything but ``path`` is percent-decoded.

    Attributes:
        scheme: in lower case.
        user, password: None when there is none.
        hosts: several for ``kafka://a:1,b:2``; empty for ``file:///dir``.
        path: from the first ``/`` on, decoded.
        parameters: of the query, in order; a name alone has the empty value.
        text: the URI as it was written.
    """

    scheme: str
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    hosts: tuple[Host, ...] = ()
    path: str = ""
    parameters: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    text: str = field(default="", repr=False, compare=False)

    @property
    def database(self) -> str:
        """The path without slashes around it: the database of a connection."""
        return self.path.strip("/")

    @property
    def host(self) -> str:
        """The first host; empty when there is none."""
        return self.hosts[0].name if self.hosts else ""

    @property
    def port(self) -> int | None:
        """The first host's port."""
        return self.hosts[0].port if self.hosts else None

    def addresses(self, default_port: int) -> tuple[str, ...]:
        """Every host as ``host:port``."""
        return tuple(
            str(host if host.port else Host(host.name, default_port)) for host in self.hosts
        )


def invalid_uri(message: str, hint: str = "") -> ChangefeedError:
    """A problem with a URI apart from its parameters."""
    return ChangefeedError(Code.INVALID_URI, message, hint=hint)


def hint_of_scheme(scheme: str) -> str | None:
    """The hint for a scheme of another product: what to write here; None for other schemes."""
    return foreign.scheme(scheme)


def split_uri(
    text: str,
    what: str = "sink URL",
    hint: str = "write it as kafka://host:port or file:///folder",
) -> Parts:
    """Take a URI apart. An error names ``what`` it is of, and ``hint`` says how one is written.

    Raises:
        ChangefeedError: CF1201, without a word of the URI in it.
    """
    found = _SCHEME.match(encoded := encode_references(text))
    if not found:
        raise invalid_uri(f"no scheme found for {what}", hint)
    body = encoded[found.end() :].strip()
    before_fragment, _, fragment = body.partition("#")
    if fragment and "@" in fragment:
        raise invalid_uri("a URI has no # before the host", "write # in a user or password as %23")
    address, _, query = before_fragment.partition("?")
    user, password, hosts, path = _address(address)
    pairs = tuple(_parameters(query))
    return Parts(found[1].lower(), user, password, hosts, unquote(path), pairs, text.strip())


def _address(address: str) -> tuple[str | None, str | None, tuple[Host, ...], str]:
    if not address.startswith("//"):
        return None, None, (), address
    rest = address[2:]
    end = rest.find("/")
    authority, path = (rest, "") if end < 0 else (rest[:end], rest[end:])
    user_info, at, host_list = authority.rpartition("@")
    user, colon, password = user_info.partition(":")
    return (
        unquote(user) if at else None,
        unquote(password) if colon else None,
        tuple(map(_host, host_list.split(","))) if host_list else (),
        path,
    )


#: A hint for a URI that libpq cannot read.
ESCAPES = "@ : / ? # % in a password are written %40 %3A %2F %3F %23 %25."


def _host(text: str) -> Host:
    text = text.strip()
    if not _HOST.match(text):
        raise invalid_uri(
            "host and port of the URI are malformed",
            "in a user or password write : / ? # @ as %3A %2F %3F %23 %40",
        )
    name, port = text, ""
    if not text.endswith("]") and ":" in text:
        name, _, port = text.rpartition(":")
    if port and not 0 < int(port) < 65536:
        raise invalid_uri("the port of the URI must be between 1 and 65535")
    return Host(unquote(name.strip("[]")), int(port) if port else None)


def _parameters(query: str) -> list[tuple[str, str]]:
    """``+`` stays ``+``: base64 and passwords contain it; in no sink URI does it mean a space."""
    pairs = []
    for part in query.split("&"):
        if part:
            name, _, value = part.partition("=")
            pairs.append((unquote(name), unquote(value)))
    return pairs


def without(uri: str, names: Collection[str]) -> str:
    """A URI, as it is written, without the parameters of these names."""
    address, _, query = uri.partition("?")
    kept = [p for p in query.split("&") if p and unquote(p.partition("=")[0]) not in names]
    return address + ("?" + "&".join(kept) if kept else "")


# ------------------------------------------------------------------------------- redaction


#: A URL in the place of the path, as in ``experimental-sql:///postgresql://..``.
NESTED = re.compile(r"///+([A-Za-z][\w+.-]*:.*)", re.DOTALL)


def webhook_endpoint(text: str, query: Iterable[tuple[str, str]]) -> str:
    """Where to POST for a URI of ``webhook-https`` or ``webhook-http``: the path as it was written,
    no user, and only these parameters. The path and the query may hold a token."""
    parts = urlsplit(text)
    pairs = "&".join(f"{quote(n, safe='')}={quote(v, safe='')}" for n, v in query)
    scheme, place = parts.scheme.removeprefix("webhook-"), parts.netloc.rpartition("@")[2]
    return f"{scheme}://{place}{parts.path or '/'}" + (f"?{pairs}" if pairs else "")


#: Schemes whose path is the password, as a chat's incoming webhook has it.
SECRET_PATHS = ("webhook-http:", "webhook-https:")


def redact(text: str) -> str:
    """``text`` with passwords and secret parameters hidden; safe on any text.

    A well-formed URI keeps everything else. If a password may have been written without
    percent-encoding, so that its end is unclear, everything up to the last ``@`` is hidden.
    """
    text = encode_references(text)
    found = _SCHEME.match(text)
    if not found:
        doubtful = "@" in text or "=" in text or _SECRET_INSIDE.search(text)
        return REDACTED if doubtful else text
    head, body = text[: found.end()], text[found.end() :]
    nested = NESTED.match(body)
    if nested:
        return f"{head}///{redact(nested[1])}"
    if head.lower().startswith(SECRET_PATHS):
        body = _without_path(body)
    if "@" in body and not body.startswith("//"):
        return f"{head}{REDACTED}@{_redact_rest(body[body.rindex('@') + 1 :], whole=True)}"
    slashes = body[:2] if body.startswith("//") else ""
    return head + slashes + _redact_body(body[len(slashes) :])


def _without_path(body: str) -> str:
    """``//host/path?query`` with another path; empty if an ``@`` makes it unclear where the path
    begins."""
    ends = [at for at in (body.find("?"), body.find("#")) if at >= 0]
    mark = min(ends, default=len(body))
    place, rest = body[:mark], body[mark:]
    if "@" in rest:
        return f"//{REDACTED}"
    start = place.find("/", max(place.rfind("@"), 1) + 1)
    if start < 0 or start == mark - 1:
        return body
    return f"{place[: start + 1]}{REDACTED}{rest}"


@lru_cache(maxsize=1024)  # a listing of hundreds of feeds asks twice for each
def sink_location(uri: str) -> str:
    """The URI as it may be shown: without passwords, keys and tokens.

    A URI inside the path (``experimental-sql:///postgresql://..``) is redacted by itself.
    """
    uri = encode_references(uri)
    outer, slashes, inner = uri.partition(":///")
    if slashes and "://" in inner.partition("?")[0]:
        return f"{outer}{slashes}{redact(inner)}"
    return redact(uri)


def _redact_body(body: str) -> str:
    end = _AUTHORITY_END.search(body)
    cut = end.start() if end else len(body)
    authority, rest = body[:cut], body[cut:]
    user_info, at, hosts = authority.rpartition("@")
    if _leaks(user_info, hosts, rest):
        return f"{REDACTED}@{_redact_rest(body[body.rindex('@') + 1 :], whole=True)}"
    if not _hosts_are_sound(hosts):
        return REDACTED
    user, colon, _ = user_info.partition(":")
    shown = f"{user}{colon and ':' + REDACTED}{at}{hosts}"
    return shown + _redact_rest(rest)


def _hosts_are_sound(hosts: str) -> bool:
    return all(_HOST.match(host.strip()) for host in hosts.split(","))


def _leaks(user_info: str, hosts: str, rest: str) -> bool:
    """Whether an ``@`` follows, so that the text before it may be a password."""
    if "@" not in rest:
        return False
    if ":" in user_info or not _hosts_are_sound(hosts):
        return True
    path_and_query, _, fragment = rest.partition("#")
    path, _, query = path_and_query.partition("?")
    if "@" in fragment:
        return True
    if "@" in path and ":" in hosts:
        return True
    return any("@" in part and "=" not in part for part in query.split("&"))


def _redact_rest(rest: str, *, whole: bool = False) -> str:
    """Redact path and query; with ``whole`` the text begins with the hosts."""
    before_fragment, hash_mark, fragment = rest.partition("#")
    path, mark, query = before_fragment.partition("?")
    if whole and not _hosts_are_sound(_AUTHORITY_END.split(path, maxsplit=1)[0]):
        path = REDACTED
    if _SECRET_INSIDE.search(unquote(path)):
        path = f"/{REDACTED}"
    shown = "&".join(_redact_parameter(part) for part in query.split("&"))
    tail = hash_mark + REDACTED if fragment else hash_mark
    return path + mark + shown + tail


def _redact_parameter(part: str) -> str:
    name, equal, value = part.partition("=")
    plain = unquote(unquote(value))
    if not equal:
        return REDACTED if _SECRET_INSIDE.search(unquote(unquote(name))) else part
    if not value:
        return part
    if is_secret(unquote(name).strip()) or _SECRET_INSIDE.search(plain):
        return f"{name}={REDACTED}"
    if "://" in plain:
        return f"{name}={quote(redact(unquote(value)), safe=':/@,[]')}"
    return part

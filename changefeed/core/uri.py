"""URIs of sinks and connections: taken apart, consumed parameter by parameter, redacted.

A URI contains passwords. Errors from here contain no value of a URI, and :func:`redact` is safe
on text that is not a URI: it hides everything that it cannot parse.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.parameters import Parameter, of_scheme
from changefeed.core.secret_names import is_secret
from grammar import foreign
from grammar.spelling import did_you_mean

#: The substitute for a secret, as in CockroachDB's listings.
REDACTED = "redacted"

_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.\-]*):")
_AUTHORITY_END = re.compile(r"[/?#]")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]*(?:%[\w.~%-]+)?\]|[^:@\[\]\s]*)(?::\d{0,5})?\Z", re.ASCII)

_SECRET_INSIDE = re.compile(
    r"(?:pass(?:word|wd|phrase)?|pwd|secret|token|credentials?|key|auth)\s*[=:]", re.IGNORECASE
)


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
    """

    scheme: str
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    hosts: tuple[Host, ...] = ()
    path: str = ""
    parameters: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def database(self) -> str:
        """The path without slashes around it: the database of a connection."""
        return self.path.strip("/")


def _invalid(message: str, hint: str = "") -> ChangefeedError:
    return ChangefeedError(Code.INVALID_URI, message, hint=hint)


def hint_of_scheme(scheme: str) -> str | None:
    """The hint for a scheme of another product: what to write here; None for other schemes."""
    return foreign.scheme(scheme)


def split_uri(text: str) -> Parts:
    """Take a URI apart.

    Raises:
        ChangefeedError: CF1201, without a word of the URI in it.
    """
    found = _SCHEME.match(text)
    if not found:
        raise _invalid(
            "no scheme found for sink URL", "write it as kafka://host:port or file:///folder"
        )
    body = text[found.end() :].strip()
    before_fragment, _, fragment = body.partition("#")
    if fragment and "@" in fragment:
        raise _invalid("a URI has no # before the host", "write # in a user or password as %23")
    address, _, query = before_fragment.partition("?")
    user, password, hosts, path = _address(address)
    return Parts(found[1].lower(), user, password, hosts, unquote(path), tuple(_parameters(query)))


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
        raise _invalid(
            "host and port of the URI are malformed",
            "in a user or password write : / ? # @ as %3A %2F %3F %23 %40",
        )
    name, port = text, ""
    if not text.endswith("]") and ":" in text:
        name, _, port = text.rpartition(":")
    if port and not 0 < int(port) < 65536:
        raise _invalid("the port of the URI must be between 1 and 65535")
    return Host(unquote(name.strip("[]")), int(port) if port else None)


def _parameters(query: str) -> list[tuple[str, str]]:
    """``+`` stays ``+``: base64 and passwords contain it; in no sink URI does it mean a space."""
    pairs = []
    for part in query.split("&"):
        if part:
            name, _, value = part.partition("=")
            pairs.append((unquote(name), unquote(value)))
    return pairs


# ------------------------------------------------------------------------------- sink URLs


class SinkURL:
    """A sink's URI whose parameters are consumed: what is left at :meth:`finish` is an error.

    Attributes:
        text: the URI as written. It holds secrets: show :meth:`redacted` instead.
        scheme, hosts, user, password, path: as in :class:`Parts`.
    """

    def __init__(self, text: str, declared: Sequence[Parameter] | None = None) -> None:
        """Take ``text`` apart.

        Args:
            text: the URI.
            declared: the parameters of the sink, of all its schemes: no other one may be asked for.
                None: whatever is asked for is a parameter.

        Raises:
            ChangefeedError: CF1201, it is empty or malformed.
        """
        if not text.strip():
            raise _invalid(
                "omit the SINK clause for inline results", "leave INTO out to see the rows here"
            )
        parts = split_uri(text)
        self.text = text
        self.scheme = parts.scheme
        self.hosts = parts.hosts
        self.user = parts.user
        self.password = parts.password
        self.path = parts.path
        self._left: dict[str, str] = {}
        self._declared = None if declared is None else of_scheme(declared, parts.scheme)
        self._known: list[str] = [one.name for one in self._declared or ()]
        for name, value in parts.parameters:
            if name in self._left:
                raise ChangefeedError(Code.INVALID_PARAMETER, f"param {name} is given twice")
            self._left[name] = value

    def __repr__(self) -> str:
        return f"SinkURL({self.redacted()!r})"

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

    # -------------------------------------------------------------- consuming parameters

    def has(self, name: str) -> bool:
        """Whether the parameter is present and not yet consumed."""
        self._know(name)
        return name in self._left

    def take_str(self, name: str, default: str | None = None) -> str | None:
        """Consume a parameter; ``default`` when it is absent."""
        self._know(name)
        return self._left.pop(name, default)

    def take_required(self, name: str, why: str = "") -> str:
        """Consume a parameter that must be there.

        Raises:
            ChangefeedError: CF1207, with ``why`` as the message where one is given.
        """
        value = self.take_str(name)
        if not value:
            raise ChangefeedError(Code.INVALID_PARAMETER, why or f"param {name} must be provided")
        return value

    def take_bool(self, name: str, default: bool = False) -> bool:
        """Consume ``true`` or ``false`` (also ``1``, ``t``, ``0``, ``f``, as Go reads them)."""
        value = self.take_str(name)
        if value is None:
            return default
        if value.lower() in ("1", "t", "true"):
            return True
        if value.lower() in ("0", "f", "false"):
            return False
        raise ChangefeedError(Code.INVALID_PARAMETER, f"param {name} must be a bool")

    def take_int(
        self, name: str, default: int | None = None, *, least: int = 0, most: int = 2**63 - 1
    ) -> int | None:
        """Consume a whole number between ``least`` and ``most``."""
        value = self.take_str(name)
        if value is None:
            return default
        if not re.fullmatch(r"[+-]?[0-9]{1,19}", value):
            raise ChangefeedError(Code.INVALID_PARAMETER, f"param {name} must be an integer")
        if not least <= int(value) <= most:
            raise ChangefeedError(
                Code.INVALID_PARAMETER, f"param {name} must be between {least} and {most}"
            )
        return int(value)

    def take_base64(self, name: str) -> bytes | None:
        """Consume base 64; a space stands for the ``+`` a URL library made of it."""
        value = self.take_str(name)
        if value is None:
            return None
        try:
            plain = value.replace(" ", "+").replace("-", "+").replace("_", "/")
            return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
        except (binascii.Error, ValueError):
            raise ChangefeedError(
                Code.INVALID_PARAMETER, f"param {name} must be base 64 encoded"
            ) from None

    def take_choice(
        self, name: str, choices: Sequence[str] = (), default: str | None = None
    ) -> str | None:
        """Consume one of ``choices``, in any case; as ``choices`` spells it.

        Of a declared parameter the choices are its ``values``.
        """
        choices = choices or self.declared(name).values
        value = self.take_str(name)
        if value is None:
            return default
        for choice in choices:
            if choice.lower() == value.lower():
                return choice
        near = did_you_mean(value, choices)
        raise ChangefeedError(
            Code.INVALID_PARAMETER,
            f"param {name} must be one of {', '.join(choices)}",
            hint=f"did you mean {near}?" if near else "",
        )

    def take_rest(self) -> tuple[tuple[str, str], ...]:
        """Consume the remaining parameters, which are not the sink's but the target's own.

        Raises:
            ChangefeedError: CF1202, one is so similar to a parameter of the sink that it must be
            a typo.
        """
        for name in self._left:
            near = difflib.get_close_matches(name[:64].lower(), self._known, n=1, cutoff=0.85)
            if near:
                raise ChangefeedError(
                    Code.UNKNOWN_PARAMETER,
                    f"unknown {self.scheme} sink query parameters: [{name}]",
                    hint=f'did you mean "{near[0]}" for "{name}"?',
                )
        rest, self._left = tuple(self._left.items()), {}
        return rest

    def take_prefixed(self, *prefixes: str) -> dict[str, str]:
        """Consume every parameter whose name begins so: settings passed on as they are."""
        for prefix in prefixes:
            self._know(f"{prefix}*")
        names = [name for name in self._left if name.startswith(prefixes)]
        return {name: self._left.pop(name) for name in names}

    def _know(self, name: str) -> None:
        if name in self._known:
            return
        if self._declared is not None:
            raise ValueError(
                f"the sink {self.scheme} reads a parameter it does not declare: {name}"
            )
        self._known.append(name)

    def declared(self, name: str) -> Parameter:
        """The declaration of a parameter.

        Raises:
            ValueError: the sink does not declare it.
        """
        for one in self._declared or ():
            if one.name == name:
                return one
        raise ValueError(f"the sink {self.scheme} does not declare a parameter {name}")

    def finish(self, kind: str | None = None) -> None:
        """Call when every parameter was asked for.

        Args:
            kind: the sink's name in the message; the scheme when not given.

        Raises:
            ChangefeedError: CF1202, naming the unknown parameters.
        """
        known = self._declared or ()
        idle = [name for name in self._left if any(one.means(name) for one in known)]
        names = sorted(set(self._left) - set(idle))
        if names:
            raise self._unknown(kind or self.scheme, names)
        if idle:
            raise ChangefeedError(
                Code.INVALID_PARAMETER,
                f"param {idle[0]} has no effect beside the other parameters of this URI",
                hint="leave it out.",
            )

    def _unknown(self, kind: str, names: Sequence[str]) -> ChangefeedError:
        guesses = [
            f'"{near}" for "{name}"'
            for name in names
            if (near := did_you_mean(name, self._known)) and near != name
        ]
        listed = f"it takes {', '.join(self._known)}" if self._known else "it takes none"
        return ChangefeedError(
            Code.UNKNOWN_PARAMETER,
            f"unknown {kind} sink query parameters: [{', '.join(names)}]",
            hint=f"did you mean {', '.join(guesses)}? {listed}" if guesses else listed,
        )

    def redacted(self) -> str:
        """The URI without its secrets."""
        return redact(self.text)


# ------------------------------------------------------------------------------- redaction


#: A URL in the place of the path, as in ``experimental-sql:///postgresql://..``.
_NESTED = re.compile(r"///+([A-Za-z][\w+.-]*:.*)", re.DOTALL)


#: Schemes whose path is the password, as a chat's incoming webhook has it.
_SECRET_PATHS = ("webhook-http:", "webhook-https:")


def redact(text: str) -> str:
    """``text`` with passwords and secret parameters hidden; safe on any text.

    A well-formed URI keeps everything else. If a password may have been written without
    percent-encoding, so that its end is unclear, everything up to the last ``@`` is hidden.
    """
    found = _SCHEME.match(text)
    if not found:
        doubtful = "@" in text or "=" in text or _SECRET_INSIDE.search(text)
        return REDACTED if doubtful else text
    head, body = text[: found.end()], text[found.end() :]
    nested = _NESTED.match(body)
    if nested:
        return f"{head}///{redact(nested[1])}"
    if head.lower().startswith(_SECRET_PATHS):
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


def sink_location(uri: str) -> str:
    """The URI as it may be shown: without passwords, keys and tokens.

    A URI inside the path (``experimental-sql:///postgresql://..``) is redacted by itself.
    """
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

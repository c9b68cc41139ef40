"""What the URI of a sink or a source takes, as the fields of a dataclass.

A field is declared once: from it come the value and its error, the error that lists the known
parameters, completion, and the pages ``docs/sink-parameters.md`` and ``docs/source-parameters.md``.
Errors from here hold no value of a parameter that may be secret.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from changefeed.core.errors import ChangefeedError, Code, raise_all
from changefeed.core.quantities import parse_duration, parse_size
from changefeed.core.secret_names import is_secret
from changefeed.core.uri import Parts, split_uri
from grammar.spelling import did_you_mean

if TYPE_CHECKING:
    import ssl


class ParameterKind(StrEnum):
    """How the value of a parameter is written."""

    TEXT = "text"
    FLAG = "true or false"
    NUMBER = "number"
    CHOICE = "choice"
    SIZE = "size"
    DURATION = "duration"
    BASE64 = "base 64"
    URL = "URL"
    PATH = "path"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a URI.

    Attributes:
        name: the name in the URI; ``fs.*`` stands for all parameters that begin with ``fs.``.
        summary: what it does, one sentence.
        kind: how its value is written.
        values: the choices of a :attr:`ParameterKind.CHOICE`.
        default: the default as text; empty if the parameter has none.
        secret: its value is never shown. Redaction uses only names, so that every listing hides
            the value: the name of a secret must say that it is one.
        schemes: the schemes that take the parameter; empty means all.
        least, most: bounds of a number, a size or the seconds of a duration.
        convert: reads the text instead of ``kind``; raises ``ValueError`` with what the value must
            be, and perhaps a hint.

    Raises:
        ValueError: ``secret`` contradicts the name, or a choice has no values.
    """

    name: str
    summary: str
    kind: ParameterKind = ParameterKind.TEXT
    values: tuple[str, ...] = ()
    default: str = ""
    secret: bool = False
    schemes: tuple[str, ...] = ()
    least: float = 0
    most: float = 2**63 - 1
    convert: Callable[[str], object] | None = None

    def __post_init__(self) -> None:
        if not self.begins and self.secret != is_secret(self.name):
            said = "is hidden by its name" if is_secret(self.name) else "would be shown"
            raise ValueError(
                f"parameter {self.name} has secret={self.secret} but {said}: call a secret "
                "..password, ..token, ..secret or ..key, and nothing else"
            )
        if (self.kind is ParameterKind.CHOICE) != bool(self.values):
            raise ValueError(f"parameter {self.name}: a choice, and nothing else, has values")

    @property
    def begins(self) -> bool:
        """Whether it stands for all parameters whose name begins with its prefix."""
        return self.name.endswith("*")

    @property
    def written(self) -> str:
        """The form of its value, as text."""
        return ", ".join(self.values) or self.kind.value

    def means(self, name: str) -> bool:
        """Whether the declaration covers a parameter with this name."""
        return name.startswith(self.name[:-1]) if self.begins else name == self.name

    def read(self, text: str, place: str = "") -> Any:
        """The value that ``text`` stands for.

        Args:
            place: " of the schema registry" in the error, if the URI is not that of the sink.

        Raises:
            ChangefeedError: CF1207, it is not written as ``kind`` says.
        """
        try:
            if self.convert is not None:
                return self.convert(text)
            return _READERS[self.kind](self, text) if self.kind in _READERS else text
        except ValueError as error:
            must, hint = (*error.args, "")[:2]
            raise invalid(f"param {self.name}{place} {must}", hint) from None


def _flag(_: Parameter, text: str) -> bool:
    return read_flag(text)


def read_flag(text: str) -> bool:
    """``true`` or ``false``, and what else Go takes for them.

    Raises:
        ValueError: it is neither.
    """
    if text.lower() in ("1", "t", "true", "0", "f", "false"):
        return text.lower() in ("1", "t", "true")
    raise ValueError("must be a bool", "write true or false.")


def _number(parameter: Parameter, text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", text):
        raise ValueError("must be an integer")
    if not parameter.least <= int(text) <= parameter.most:
        raise ValueError(f"must be between {parameter.least} and {parameter.most}")
    return int(text)


def _choice(parameter: Parameter, text: str) -> str:
    for value in parameter.values:
        if value.lower().replace("-", "_") == text.lower().replace("-", "_"):
            return value
    near = did_you_mean(text, parameter.values)
    raise ValueError(
        f"must be one of {', '.join(parameter.values)}", f"did you mean {near}?" if near else ""
    )


def _size(parameter: Parameter, text: str) -> int:
    return int(_quantity(parameter, text, parse_size, "16MB"))


def _duration(parameter: Parameter, text: str) -> float:
    return _quantity(parameter, text, parse_duration, "30s")


def _quantity(
    parameter: Parameter, text: str, parse: Callable[[str], float], example: str
) -> float:
    try:
        found = parse(text)
    except ValueError:
        found = -1
    if parameter.least <= found <= parameter.most:
        return found
    raise ValueError(f"must be a {parameter.kind} such as {example}, not {text}")


def _base64(_: Parameter, text: str) -> bytes:
    return read_base64(text)


_BASE64_HINT = "`base64 -w0 FILE` writes it; + is written %2B."


def read_base64(text: str) -> bytes:
    """What base 64 stands for; a space stands for the ``+`` that a URL library made of it.

    Raises:
        ValueError: it is no base 64.
    """
    try:
        plain = text.replace(" ", "+").replace("-", "+").replace("_", "/")
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("must be base 64 encoded", _BASE64_HINT) from None


def read_pem(text: str) -> str:
    """A certificate or a key: base 64 of its PEM text.

    Raises:
        ValueError: it is no base 64.
    """
    return read_base64(text).decode("latin-1")


_READERS: Mapping[ParameterKind, Callable[[Parameter, str], object]] = {
    ParameterKind.FLAG: _flag,
    ParameterKind.NUMBER: _number,
    ParameterKind.CHOICE: _choice,
    ParameterKind.SIZE: _size,
    ParameterKind.DURATION: _duration,
    ParameterKind.BASE64: _base64,
}


def invalid(message: str, hint: str = "", code: Code = Code.INVALID_PARAMETER) -> ChangefeedError:
    """A problem with a parameter or, with another code, with an option."""
    return ChangefeedError(code, message, hint=hint)


def of_scheme(declared: Sequence[Parameter], scheme: str) -> tuple[Parameter, ...]:
    """The parameters that URIs of a scheme take."""
    return tuple(one for one in declared if not one.schemes or scheme in one.schemes)


# ------------------------------------------------------------------------------- fields


class _Declaration(Protocol):
    """How a field gets its value."""

    def declared(self, name: str) -> tuple[Parameter, ...]: ...

    def take(self, declared: Sequence[Parameter], reading: _ParameterReader) -> object: ...


@dataclass(slots=True)
class _ParameterReader:
    """A URI whose parameters are taken one by one."""

    uri: Parts
    options: Mapping[str, Any]
    left: dict[str, str]
    found: list[ChangefeedError]
    known: tuple[Parameter, ...]
    called: str
    place: str
    given: set[str] = field(default_factory=set)
    wrong: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _OneParameter:
    default: object
    words: Mapping[str, Any]

    def declared(self, name: str) -> tuple[Parameter, ...]:
        return (Parameter(**{"name": name, **self.words}),)

    def take(self, declared: Sequence[Parameter], reading: _ParameterReader) -> object:
        (parameter,) = declared
        text = reading.left.get(parameter.name)
        if text is None or not of_scheme([parameter], reading.uri.scheme):
            return self.default
        del reading.left[parameter.name]
        reading.given.add(parameter.name)
        try:
            return parameter.read(text, reading.place)
        except ChangefeedError as error:
            reading.wrong.add(parameter.name)
            reading.found.append(error)
            return self.default


@dataclass(frozen=True, slots=True)
class _SeveralParameters:
    parameters: tuple[Parameter, ...]

    def declared(self, name: str) -> tuple[Parameter, ...]:
        return self.parameters

    def take(self, declared: Sequence[Parameter], reading: _ParameterReader) -> object:
        able = of_scheme(self.parameters, reading.uri.scheme)
        names = [n for n in reading.left if any(one.means(n) for one in able)]
        reading.given.update(names)
        return {n: reading.left.pop(n) for n in names}


@dataclass(frozen=True, slots=True)
class _Group:
    kind: type[Settings]
    schemes: tuple[str, ...]

    def declared(self, name: str) -> tuple[Parameter, ...]:
        return tuple(
            replace(one, schemes=one.schemes or self.schemes) for one in self.kind.parameters()
        )

    def take(self, declared: Sequence[Parameter], reading: _ParameterReader) -> object:
        if self.schemes and reading.uri.scheme not in self.schemes:
            return self.kind(uri=reading.uri, options=reading.options)
        return self.kind._made(reading)


@dataclass(frozen=True, slots=True)
class _Rest:
    typos: bool

    def declared(self, name: str) -> tuple[Parameter, ...]:
        return ()

    def take(self, declared: Sequence[Parameter], reading: _ParameterReader) -> object:
        known = [one.name for one in reading.known]
        for written in reading.left if self.typos else ():
            # One so similar to a parameter of ours must be a typo.
            near = difflib.get_close_matches(written[:64].lower(), known, n=1, cutoff=0.85)
            if near:
                reading.found.append(
                    ChangefeedError(
                        Code.UNKNOWN_PARAMETER,
                        f"unknown {reading.called} query parameters: [{written}]",
                        hint=f'did you mean "{near[0]}" for "{written}"?',
                    )
                )
        rest = tuple(reading.left.items())
        reading.left.clear()
        return rest


_KEY = "declaration"


def setting(
    default: Any,
    summary: str,
    kind: ParameterKind | None = None,
    *,
    shown: str | None = None,
    values: tuple[str, ...] = (),
    **words: Any,
) -> Any:
    """A field of :class:`Settings` that is one parameter of the URI.

    Args:
        default: the value where the URI has none; that of a size or a duration as text.
        summary: what it does, one sentence.
        kind: without one a choice where there are ``values``, else the kind of the default.
        shown: the default for people, where it is not the value itself.
        values: of a choice.
        words: other attributes of :class:`Parameter`; ``name`` if it is not that of the field.
    """
    if kind is None:
        kinds = {bool: ParameterKind.FLAG, int: ParameterKind.NUMBER}
        kind = ParameterKind.CHOICE if values else kinds.get(type(default), ParameterKind.TEXT)
    if shown is None:
        shown = "" if default is None else str(default)
        shown = shown.lower() if isinstance(default, bool) else shown
    words |= {"summary": summary, "kind": kind, "default": shown, "values": values}
    if isinstance(default, str) and kind in (ParameterKind.SIZE, ParameterKind.DURATION):
        default = Parameter(**{"name": "default", **words}).read(default)
    hidden = words.get("secret", False) or kind is ParameterKind.BASE64
    return field(default=default, repr=not hidden, metadata={_KEY: _OneParameter(default, words)})


def several(*parameters: Parameter) -> Any:
    """A field whose value is a mapping of those of the parameters that the URI has, as texts; for
    prefixes, and for what is handed on as it is."""
    return field(default_factory=dict, repr=False, metadata={_KEY: _SeveralParameters(parameters)})


def group(kind: type[Settings], *schemes: str) -> Any:
    """A field whose value is other settings of the same URI, which only these schemes have."""
    return field(default=None, repr=False, metadata={_KEY: _Group(kind, schemes)})


def rest(*, typos: bool = True) -> Any:
    """The last field: the parameters that are not ours, but those of the place that the URI
    leads to, as pairs. With ``typos`` one that resembles a parameter of ours is an error."""
    return field(default=(), repr=False, metadata={_KEY: _Rest(typos)})


# ------------------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A checked URI, with the options that concern it.

    A subclass is a dataclass of the same kind, whose fields are made by :func:`setting`,
    :func:`several`, :func:`group` or :func:`rest`.

    Attributes:
        uri: the parts of the URI.
        options: of the feed; none for the URI of a connection.
        given: the declared parameters that the URI has.
        wrong: those of them whose value cannot be read; the fields have their defaults.
    """

    uri: Parts = field(repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)
    given: frozenset[str] = frozenset()
    wrong: frozenset[str] = frozenset()

    #: What the URI leads to, in errors.
    called: ClassVar[str] = "{scheme} sink"
    #: Names of parameters are taken in any case, and with - for _.
    any_case: ClassVar[bool] = False

    @classmethod
    def parameters(cls) -> tuple[Parameter, ...]:
        """The parameters that are declared, in order, of all schemes."""
        return tuple(one for _, _, declared in _fields(cls) for one in declared)

    @classmethod
    def read(cls, uri: str | Parts, options: Mapping[str, Any] | None = None) -> Self:
        """Read and check a URI; connects to nothing.

        Raises:
            ChangefeedError: CF1201, CF1202, CF1207 and what :meth:`check` finds, all at once
                (``Problems`` when there are several).
        """
        parts = split_uri(uri) if isinstance(uri, str) else uri
        known = of_scheme(cls.parameters(), parts.scheme)
        called = cls.called.format(scheme=parts.scheme)
        place = "" if cls.called == Settings.called else f" of the {called}"
        reading = _ParameterReader(parts, dict(options or {}), {}, [], known, called, place)
        for written, value in parts.parameters:
            name = written
            if cls.any_case and not any(one.begins and one.means(written) for one in known):
                name = written.lower().replace("-", "_")
            if name in reading.left:
                reading.found.append(invalid(f"param {name[:64]}{place} is given twice"))
            reading.left[name] = value
        settings = cls._made(reading)
        if reading.left:
            reading.found.append(_unknown(reading))
        raise_all(reading.found)
        return settings

    @classmethod
    def _made(cls, reading: _ParameterReader) -> Self:
        before, reading.given = reading.given, set()
        values: dict[str, Any] = {
            name: its.take(declared, reading) for name, its, declared in _fields(cls)
        }
        given, wrong = frozenset(reading.given), frozenset(reading.wrong)
        reading.given |= before
        known: dict[str, Any] = {"uri": reading.uri, "options": reading.options}
        settings = cls(**known, given=given, wrong=wrong, **values)
        try:
            reading.found += settings.check()
        except ChangefeedError as error:
            reading.found += getattr(error, "problems", None) or [error]
        return settings

    def check(self) -> Iterator[ChangefeedError]:
        """What is wrong with values beside each other, with the rest of the URI and with options.
        Values that are :attr:`wrong` are the defaults here."""
        return iter(())


_Fields = tuple[tuple[str, _Declaration, tuple[Parameter, ...]], ...]
#: By class: to declare parameters takes longer than to read a URI.
_FIELDS: dict[type[Settings], _Fields] = {}


def _fields(kind: type[Settings]) -> _Fields:
    if kind not in _FIELDS:
        its = [(one.name, one.metadata[_KEY]) for one in fields(kind) if _KEY in one.metadata]
        _FIELDS[kind] = tuple((name, how, how.declared(name)) for name, how in its)
    return _FIELDS[kind]


def _unknown(reading: _ParameterReader) -> ChangefeedError:
    names, known = sorted(name[:64] for name in reading.left), [one.name for one in reading.known]
    guesses = [
        f'"{near}" for "{name}"'
        for name in names
        if (near := did_you_mean(name, known)) and near != name
    ]
    listed = f"it takes {', '.join(known)}" if known else "it takes none"
    return ChangefeedError(
        Code.UNKNOWN_PARAMETER,
        f"unknown {reading.called} query parameters: [{', '.join(names)}]",
        hint=f"did you mean {', '.join(guesses)}? {listed}" if guesses else listed,
    )


@dataclass(frozen=True, kw_only=True)
class ServerSettings(Settings):
    """A URI that leads to a database of one server."""

    default_port: ClassVar[int] = 0

    @property
    def host(self) -> str:
        """The server's name or address."""
        return self.uri.host

    @property
    def port(self) -> int:
        """The server's port."""
        return self.uri.port or self.default_port

    @property
    def user(self) -> str:
        """Who logs in; empty: nobody."""
        return self.uri.user or ""

    @property
    def password(self) -> str:
        """The user's password; empty without one."""
        return self.uri.password or ""

    @property
    def database(self) -> str:
        """What the path names; may be empty."""
        return self.uri.database

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, kw_only=True)
class Authority(Settings):
    """Whom a client with TLS trusts: a PEM text; None: the authorities of the machine."""

    ca_cert: str | None = setting(
        None,
        "The authority that signed the server's certificate, PEM.",
        ParameterKind.BASE64,
        convert=read_pem,
    )


def tls_context(ca_cert: str | None) -> ssl.SSLContext:
    """What a client with TLS trusts: ``ca_cert``, or without it the authorities of the machine.

    Raises:
        ChangefeedError: CF1207, the text is no PEM text.
    """
    import ssl  # a listing does without it

    try:
        return ssl.create_default_context(cadata=ca_cert)
    except (ssl.SSLError, ValueError) as error:
        raise no_pem("ca_cert") from error


def no_pem(names: str) -> ChangefeedError:
    """The error for parameters whose text is no certificate and no key."""
    hint = "encode the PEM file in base 64."
    return ChangefeedError(Code.INVALID_PARAMETER, f"{names} holds no usable PEM text", hint=hint)


@dataclass(frozen=True, kw_only=True)
class Tls(Authority):
    """Whom a client with TLS trusts, and what it shows; PEM texts."""

    client_cert: str | None = setting(
        None,
        "The client's certificate, PEM; needs client_key.",
        ParameterKind.BASE64,
        convert=read_pem,
    )
    client_key: str | None = setting(
        None,
        "The key of client_cert, PEM.",
        ParameterKind.BASE64,
        secret=True,
        convert=read_pem,
    )
    insecure_tls_skip_verify: bool = setting(False, "Does not check the server's certificate.")

    @property
    def wanted(self) -> list[str]:
        """The parameters that mean something with TLS only."""
        names = [name for name in ("ca_cert", "client_cert", "client_key") if name in self.given]
        return names + ["insecure_tls_skip_verify"] * self.insecure_tls_skip_verify

    def check(self) -> Iterator[ChangefeedError]:
        for one, other in (("client_cert", "client_key"), ("client_key", "client_cert")):
            if one in self.given and other not in self.given:
                yield invalid(f"{one} requires {other} to be set")


@dataclass(frozen=True, kw_only=True)
class FileTls(Settings):
    """TLS whose authority is in a file."""

    ca_cert_file: str | None = setting(
        None, "The authority that signed the server's certificate.", ParameterKind.PATH
    )
    tls_enabled: bool | None = setting(
        None, "Connects by TLS.", ParameterKind.FLAG, shown="true with ca_cert_file"
    )

    @property
    def wanted(self) -> bool:
        """Connections go by TLS."""
        return self.ca_cert_file is not None if self.tls_enabled is None else self.tls_enabled


def _of_libpq(name: str, summary: str, kind: ParameterKind = ParameterKind.TEXT) -> Parameter:
    return Parameter(name, f"libpq's parameter{summary}", kind, secret=is_secret(name))


#: Parameters of PostgreSQL's client library, which are handed on as they are.
LIBPQ = (
    _of_libpq("host", ": the host, or the folder of a socket."),
    _of_libpq("port", "."),
    _of_libpq("sslmode", ": how TLS is used."),
    _of_libpq("sslrootcert", ": the authority of the server's certificate.", ParameterKind.PATH),
    _of_libpq("sslcert", ": the client's certificate.", ParameterKind.PATH),
    _of_libpq("sslkey", ": the certificate's key.", ParameterKind.PATH),
    _of_libpq("sslpassword", ": the passphrase of the key."),
    _of_libpq("passfile", ": where the password is.", ParameterKind.PATH),
    _of_libpq("target_session_attrs", ": which of several hosts to use."),
    _of_libpq("connect_timeout", ", in seconds."),
    _of_libpq("keepalives", "."),
    _of_libpq("gssencmode", "."),
    _of_libpq("channel_binding", "."),
)

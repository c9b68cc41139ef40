"""Reading the parameters of a sink's URI: every problem is kept, so that all are shown at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from changefeed.core.errors import ChangefeedError, Code, raise_all
from changefeed.core.parameters import Parameter, ParameterKind
from changefeed.core.uri import SinkURL

T = TypeVar("T")

CA_CERT = Parameter(
    "ca_cert", "The authority that signed the server's certificate, PEM.", ParameterKind.BASE64
)

#: What a client of HTTPS or of a broker with TLS is told.
TLS = (
    CA_CERT,
    Parameter(
        "client_cert", "The client's certificate, PEM; needs client_key.", ParameterKind.BASE64
    ),
    Parameter("client_key", "The key of client_cert, PEM.", ParameterKind.BASE64, secret=True),
    Parameter(
        "insecure_tls_skip_verify",
        "Does not check the server's certificate.",
        ParameterKind.FLAG,
        default="false",
    ),
)

TOPIC_PREFIX = Parameter("topic_prefix", "Prefix of the name of every topic.")


class Parameters:
    """Consumes parameters as :class:`SinkURL` does. What is wrong goes to ``found``, and the
    parameter counts as absent.

    Raises:
        ChangefeedError: the URI cannot be taken apart.
    """

    def __init__(self, uri: str, declared: Sequence[Parameter]) -> None:
        self.url = SinkURL(uri, declared)
        self.found: list[ChangefeedError] = []

    @property
    def scheme(self) -> str:
        """The URI's kind."""
        return self.url.scheme

    @property
    def host(self) -> str:
        """The first host's name."""
        return self.url.host

    def problem(self, message: str, hint: str = "") -> None:
        """Keep a problem with a parameter."""
        self.found.append(ChangefeedError(Code.INVALID_PARAMETER, message, hint=hint))

    def attempt(self, take: Callable[[], T], otherwise: T) -> T:
        """What ``take`` returns; ``otherwise`` when it raised, whose problems are kept."""
        try:
            return take()
        except ChangefeedError as error:
            self.found += getattr(error, "problems", None) or [error]
            return otherwise

    def text(self, name: str) -> str | None:
        """A text as it is, which may be empty."""
        return self.url.take_str(name)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        return self.attempt(lambda: self.url.take_bool(name, default), default)

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """A whole number between ``least`` and ``most``."""
        take = self.url.take_int
        return self.attempt(lambda: take(name, default, least=least, most=most), None) or default

    def choice(self, name: str) -> str:
        """One of the declared values, the first when the parameter is absent."""
        first = self.url.declared(name).values[0]
        return self.attempt(lambda: self.url.take_choice(name), None) or first

    def base64(self, name: str) -> bytes | None:
        """What base 64 stands for."""
        return self.attempt(lambda: self.url.take_base64(name), None)

    def pem(self, name: str) -> str | None:
        """A certificate or a key: base 64 of its PEM text."""
        data = self.base64(name)
        return None if data is None else data.decode("latin-1")

    def check_certificate(self, given: Collection[str]) -> None:
        """``given`` names the parameters that are there: a client's certificate needs its key."""
        for one, other in (("client_cert", "client_key"), ("client_key", "client_cert")):
            if one in given and other not in given:
                self.problem(f"{one} requires {other} to be set")

    def finish(self) -> None:
        """All parameters were taken.

        Raises:
            ChangefeedError: everything found, and what is left over (``Problems`` when there are
                several).
        """
        self.attempt(self.url.finish, None)
        raise_all(self.found)

"""Answers to PostgreSQL's authentication requests: password, MD5, SCRAM-SHA-256 (-PLUS)."""

from __future__ import annotations

import hashlib
import ssl
import struct
from collections.abc import Callable

from scramp import ScramClient, ScramException

from changefeed.core.errors import ChangefeedError

_OK = 0
_CLEARTEXT = 3
_MD5 = 5
_SASL = 10
_SASL_CONTINUE = 11
_SASL_FINAL = 12

#: Methods that need something we do not speak, for the message.
_FOREIGN = {2: "Kerberos", 6: "SCM credentials", 7: "GSSAPI", 9: "SSPI"}


#: What require_auth calls the methods.
_NAMES = {
    _OK: "none",
    _CLEARTEXT: "password",
    _MD5: "md5",
    7: "gss",
    9: "sspi",
    _SASL: "scram-sha-256",
}


def _allowed(required: str, method: str) -> bool:
    """libpq's require_auth: a list of methods, or of methods that are not allowed (``!md5``)."""
    names = [name.strip() for name in required.split(",")]
    if all(name.startswith("!") for name in names):
        return f"!{method}" not in names
    return method in names


def refused(message: str, hint: str = "") -> ChangefeedError:
    """A login that cannot succeed without a person's help."""
    return ChangefeedError("CF2002", message, hint=hint)


class Authenticator:
    """One login. :meth:`answer` is fed every authentication message until it says done.

    The password lives only here; no error holds it.
    """

    def __init__(
        self,
        user: str,
        password: str | None,
        *,
        tls: ssl.SSLSocket | None = None,
        channel_binding: str = "prefer",
        require_auth: str = "",
    ) -> None:
        """``require_auth`` and ``channel_binding`` are those of libpq."""
        self._user = user
        self._password = password
        self._tls = tls
        self._binding = channel_binding
        self._required = require_auth
        self._begun = False
        self._scram: ScramClient | None = None
        self._bound = False
        self._methods: dict[int, Callable[[bytes], bytes]] = {
            _CLEARTEXT: self._cleartext,
            _MD5: self._md5,
            _SASL: self._sasl_first,
            _SASL_CONTINUE: self._sasl_next,
            _SASL_FINAL: self._sasl_last,
        }

    def answer(self, body: bytes) -> tuple[bool, bytes]:
        """Whether the login is complete, and the body of a password message to send (or empty).

        Raises:
            ChangefeedError: CF2002 the method is not supported, or a password is missing, or
                the server could not prove that it knows the password.
        """
        if len(body) < 4:
            raise ChangefeedError("CF2001", "the server does not speak the PostgreSQL protocol")
        (code,) = struct.unpack_from(">i", body)
        if not self._begun:
            self._check_method(_NAMES.get(code, f"method {code}"))
        self._begun = True
        if code == _OK:
            if self._binding == "require" and not self._bound:
                raise refused("channel binding is required and the server did not ask for it")
            return True, b""
        method = self._methods.get(code)
        if method is None:
            name = _FOREIGN.get(code, f"method {code}")
            raise refused(
                f"the server asks for {name} authentication, which is not supported",
                "let the role log in by scram-sha-256, md5, password, certificate or trust.",
            )
        return False, method(body[4:])

    def _check_method(self, method: str) -> None:
        """Before anything of the password is sent."""
        if self._required and not _allowed(self._required, method):
            raise refused(
                f"the server asks for authentication by {method}, which require_auth forbids",
                "change pg_hba.conf at the server, or require_auth in the URI.",
            )

    def _secret(self) -> str:
        if self._password is None:
            raise refused("the server asks for a password and the URI has none")
        return self._password

    def _cleartext(self, _: bytes) -> bytes:
        return self._secret().encode() + b"\0"

    def _md5(self, salt: bytes) -> bytes:
        inner = hashlib.md5(self._secret().encode() + self._user.encode()).hexdigest()
        return b"md5" + hashlib.md5(inner.encode() + salt[:4]).hexdigest().encode() + b"\0"

    def _sasl_first(self, body: bytes) -> bytes:
        offered = [name.decode() for name in body.split(b"\0") if name]
        binding = None
        plus = "SCRAM-SHA-256-PLUS" in offered and self._binding != "disable"
        if plus and self._tls is not None:
            binding = ("tls-server-end-point", self._tls)
        if binding is None:
            offered = [name for name in offered if not name.endswith("-PLUS")]
        try:
            self._scram = ScramClient(
                offered,
                "*",  # the server ignores it: the startup packet named the role
                self._secret(),
                # The socket is taken too (it finds the certificate's hash); only not annotated.
                channel_binding=binding,  # type: ignore[arg-type]
            )
            first = self._scram.get_client_first().encode()
        except ScramException as error:
            raise refused(f"cannot log in by SASL: {error}") from None
        self._bound = binding is not None
        name = self._scram.mechanism_name.encode()
        return name + b"\0" + struct.pack(">i", len(first)) + first

    def _sasl_next(self, body: bytes) -> bytes:
        scram = self._started()
        try:
            scram.set_server_first(body.decode())
            final: str = scram.get_client_final()
        except ScramException as error:
            raise refused(f"the server's SCRAM message is not valid: {error}") from None
        return final.encode()

    def _sasl_last(self, body: bytes) -> bytes:
        scram = self._started()
        try:
            scram.set_server_final(body.decode())
        except ScramException:
            raise refused("the server could not prove that it knows the password") from None
        return b""

    def _started(self) -> ScramClient:
        if self._scram is None:
            raise refused("the server sent SASL messages out of order")
        return self._scram

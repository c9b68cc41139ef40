"""SCRAM-SHA-256 (RFC 5802, RFC 7677) as a server: what is stored of a password, and the exchange.

The password is never stored, nor does it travel: the client proves that it knows it. What is stored
proves nothing to a server. Passwords are tokens of 256 random bits, so the iterations need not be
many.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from dataclasses import dataclass

#: The mechanism's name on the wire.
MECHANISM = "SCRAM-SHA-256"

_ITERATIONS = 4096
_SALT = 16


class ScramError(Exception):
    """The client's message is not of the exchange, or its proof is wrong."""


@dataclass(frozen=True, slots=True)
class Verifier:
    """What a server keeps of one password."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int = _ITERATIONS

    @classmethod
    def of(cls, password: str, salt: bytes | None = None) -> Verifier:
        """For a password of ASCII characters, which RFC 4013 leaves as they are."""
        salt = salt or secrets.token_bytes(_SALT)
        salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, _ITERATIONS)
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        return cls(
            salt,
            hashlib.sha256(client_key).digest(),
            hmac.digest(salted, b"Server Key", "sha256"),
        )

    @classmethod
    def of_nobody(cls, name: str, secret: bytes) -> Verifier:
        """One that no proof fits, the same for each try of a name: a client cannot tell that there
        is no such user."""
        made = hmac.digest(secret, name.encode(), "sha512")
        return cls(made[:_SALT], made[_SALT : _SALT + 32], made[-32:])

    def __str__(self) -> str:
        """As PostgreSQL writes it."""
        salt, stored, server = map(_text, (self.salt, self.stored_key, self.server_key))
        return f"{MECHANISM}${self.iterations}:{salt}${stored}:{server}"

    @classmethod
    def parse(cls, text: str) -> Verifier:
        """The inverse of :meth:`__str__`."""
        _, head, tail = text.split("$")
        iterations, salt = head.split(":")
        stored, server = tail.split(":")
        keys = [base64.b64decode(part) for part in (salt, stored, server)]
        return cls(keys[0], keys[1], keys[2], int(iterations))


class Exchange:
    """One login: two messages of the client, and the answer to each."""

    def __init__(self, verifier: Verifier, nonce: str | None = None) -> None:
        self._verifier = verifier
        self._own_nonce = nonce or secrets.token_urlsafe(18)
        self._header = b""
        self._nonce = self._so_far = ""

    def first(self, message: bytes) -> bytes:
        """Answer ``n,,n=user,r=nonce``; the user's name there is not looked at.

        Raises:
            ScramError: it is no such message, or wants the channel to be bound.
        """
        text = _ascii(message)
        parts = text.split(",", 2)
        # y: the client could bind the channel, and this server has said that it cannot.
        if len(parts) < 3 or parts[0] not in ("n", "y") or parts[1]:
            raise ScramError("the first message is not of SCRAM-SHA-256 without channel binding")
        self._header, bare = f"{parts[0]},,".encode(), parts[2]
        nonce = bare.partition(",r=")[2].partition(",")[0]
        if not bare.startswith("n=") or not nonce:
            raise ScramError("the first message has no nonce")
        self._nonce = nonce + self._own_nonce
        salt = _text(self._verifier.salt)
        answer = f"r={self._nonce},s={salt},i={self._verifier.iterations}"
        self._so_far = f"{bare},{answer}"
        return answer.encode()

    def final(self, message: bytes) -> bytes:
        """Answer ``c=..,r=nonce,p=proof``.

        Raises:
            ScramError: the proof is not that of the password.
        """
        bare, _, proof = _ascii(message).rpartition(",p=")
        if bare != f"c={_text(self._header)},r={self._nonce}":
            raise ScramError("the last message does not continue the first")
        signed = f"{self._so_far},{bare}".encode()
        signature = hmac.digest(self._verifier.stored_key, signed, "sha256")
        try:
            given = base64.b64decode(proof, validate=True)
        except binascii.Error:
            given = b""
        if len(given) != len(signature):
            raise ScramError("the proof has the wrong length")
        client_key = bytes(a ^ b for a, b in zip(given, signature, strict=True))
        found = hashlib.sha256(client_key).digest()
        if not hmac.compare_digest(found, self._verifier.stored_key):
            raise ScramError("the password is wrong")
        return b"v=" + _text(hmac.digest(self._verifier.server_key, signed, "sha256")).encode()


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _ascii(message: bytes) -> str:
    try:
        return message.decode("ascii")
    except UnicodeDecodeError:
        raise ScramError("the message is not ASCII") from None

"""What a state keeps encrypted: addresses with their passwords, options, statements.

The keys come from a place outside the state (``--state-key``), so that neither a copy of the state
nor a backup has the secrets. ``meta`` has the fingerprint of the key in use, and each sealed value
that of its own: a process that was given several keys finds the right one, and one that was given
another sees it at once.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from sqlalchemy import Dialect

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.extras import lacking
from changefeed.core.references import has_references, resolved_text

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

#: The environment variable that says where the keys are; child processes inherit it.
STATE_KEY_VARIABLE = "CHANGEFEED_STATE_KEY"

_PREFIX = "sealed:"
#: How many values are kept opened: a listing of hundreds of feeds opens each of them.
_KEPT = 4096


class Sealer:
    """Seals and opens the values of one state; thread-safe.

    Attributes:
        current: fingerprint of the key that the state is encrypted by; None: it is not.
    """

    def __init__(self, shown: str, place: str | None) -> None:
        """``place``: a reference to the keys, or the keys themselves: those of one line each, or
        with commas between them. None: there are none."""
        self.current: str | None = None
        self._shown = shown
        self._place = place
        self._keys: Mapping[str, Fernet] = {}
        self._opened: dict[str, str] = {}
        self._lock = threading.Lock()

    @property
    def has_keys(self) -> bool:
        return self._place is not None

    def first(self) -> str:
        """The fingerprint of the first key, all keys read again.

        Raises:
            ChangefeedError: CF6008, CF1208 there is no key, or it cannot be read.
        """
        if self._place is None:
            raise _refused(
                "there is no key to encrypt the state by",
                "start the process with --state-key '${file:/path}'.",
            )
        with self._lock:
            self._keys = _keys(resolved_text(self._place))
            return next(iter(self._keys))

    def follow(self, current: str | None) -> None:
        """Use the key of this fingerprint, which the state has, from now on.

        Raises:
            ChangefeedError: CF6008 this process does not have it.
        """
        if current is not None:
            self._key(current)
        self.current = current

    def seal(self, value: str) -> str:
        """``value``, encrypted if the state is."""
        if self.current is None:
            return value
        token = self._key(self.current).encrypt(value.encode())
        return f"{_PREFIX}{self.current}:{token.decode()}"

    def open(self, value: str) -> str:
        """What was sealed; a value that was not is returned as it is.

        Raises:
            ChangefeedError: CF6008.
        """
        if not value.startswith(_PREFIX):
            return value
        found = self._opened.get(value)
        if found is None:
            from cryptography.fernet import InvalidToken

            fingerprint, _, token = value.removeprefix(_PREFIX).partition(":")
            try:
                found = self._key(fingerprint).decrypt(token).decode()
            except InvalidToken:
                raise _refused(
                    f"a value of state {self._shown} is damaged: its key does not open it",
                    "put a backup of the state back.",
                ) from None
            if len(self._opened) >= _KEPT:
                self._opened = {}
            self._opened[value] = found
        return found

    def _key(self, fingerprint: str) -> Fernet:
        key = self._keys.get(fingerprint)
        if key is None and self._place is not None:
            # The place may have got another key since.
            self.first()
            key = self._keys.get(fingerprint)
        if key is not None:
            return key
        if self._place is None:
            why = f"state {self._shown} is encrypted, and this process has no key"
        else:
            given = f"{len(self._keys)} keys that were" if len(self._keys) > 1 else "key that was"
            why = f"state {self._shown} is encrypted by another key than the {given} given"
        raise _refused(why, f"give its key {fingerprint} by --state-key or {STATE_KEY_VARIABLE}.")


def place_of_keys(given: str | None) -> str | None:
    """Where the keys are: as given, else as the environment says."""
    return given or os.environ.get(STATE_KEY_VARIABLE) or None


def require_reference(place: str) -> str:
    """``place``, of an argument of a process, which every user of the machine may read.

    Raises:
        ChangefeedError: CF6008 it is not a reference.
    """
    if not has_references(place):
        raise _refused(
            "--state-key takes a reference, not a path or the key itself, which every user of the "
            "machine could see in the arguments of the process",
            f"write --state-key '${{file:/path}}', or put the key into {STATE_KEY_VARIABLE}.",
        )
    return place


def _keys(text: str) -> dict[str, Fernet]:
    # Loaded on use: a state without keys needs nothing of it.
    needed = lacking(
        "the key of a state", ("cryptography",), "state-key", code=Code.STATE_KEY_NOT_USABLE
    )
    if needed is not None:
        raise needed
    from cryptography.fernet import Fernet

    found: dict[str, Fernet] = {}
    for word in text.replace(",", " ").split():
        try:
            key = base64.b64decode(word.replace("-", "+").replace("_", "/"), validate=True)
        except binascii.Error:
            key = b""
        if len(key) != 32:
            raise _refused(
                "a key of the state is not 32 bytes in base 64",
                "make one with: openssl rand -base64 32.",
            )
        fingerprint = hashlib.sha256(b"changefeed state key" + key).hexdigest()[:16]
        found[fingerprint] = Fernet(base64.urlsafe_b64encode(key))
    if not found:
        raise _refused(
            "the place of the state's key is empty", "make one with: openssl rand -base64 32."
        )
    return found


def _refused(why: str, hint: str) -> ChangefeedError:
    return ChangefeedError(Code.STATE_KEY_NOT_USABLE, why, hint=hint)


#: The sealer of each state, by the dialect of its engine: what the types of columns are given.
SEALERS: WeakKeyDictionary[Dialect, Sealer] = WeakKeyDictionary()

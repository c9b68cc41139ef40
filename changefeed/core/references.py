"""Secrets by reference: ``${env:NAME}``, ``${file:/path}`` and ``${exec:command arguments}``.

A statement may write a reference wherever a secret stands: in the user info and the secret
parameters of a URI, in the path of a webhook, and in the options that are secrets. The state keeps
the reference; what it refers to is read each time a source or a sink is opened. Errors name the
reference and say why it failed; they contain nothing of what was read.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.secret_names import is_secret
from changefeed.core.uri import (
    NESTED,
    REFERENCE,
    SECRET_PATHS,
    encode_references,
    invalid_uri,
    split_uri,
)

#: Seconds that a command may take.
PATIENCE = 30.0
#: The longest secret, in bytes: a chain of certificates, not a file that never ends.
LONGEST = 1 << 20

#: In a URI, one that is percent-encoded is part of a password.
_UNKNOWN = re.compile(r"\$\{(?!(?:env|file|exec):)[A-Za-z][\w-]*:[^}]*\}")
_ENCODED = re.compile(r"%24%7B(?:env|file|exec)%3A.*?%7D", re.IGNORECASE)


def has_references(text: str) -> bool:
    """Whether a URI or the value of an option refers to a secret."""
    return bool(REFERENCE.search(text) or _ENCODED.search(text))


def resolved_text(text: str, patience: float = PATIENCE) -> str:
    """``text`` with what its references refer to. The result is a secret.

    ``patience``: seconds that a command may take.

    Raises:
        ChangefeedError: CF1208.
    """

    def read(found: re.Match[str]) -> str:
        if found[1] == "exec":
            return _of_command(found[2], patience)
        return (_of_file if found[1] == "file" else _of_environment)(found[2])

    _refuse_unknown(text)
    return REFERENCE.sub(read, text)


def resolved_uri(uri: str) -> str:
    """A URI with what its references refer to, percent-encoded. The result holds secrets.

    Raises:
        ChangefeedError: CF1208 a secret cannot be read, CF1201 a reference stands where the URI
            has no secret and what it refers to would be shown.
    """
    _refuse_unknown(uri)
    if not has_references(uri):
        return uri
    encoded = encode_references(uri)
    scheme, _, body = encoded.partition(":")
    if nested := NESTED.match(body):
        return f"{scheme}:///{resolved_uri(nested[1])}"
    _require_places(encoded)
    address, mark, query = encoded.partition("?")
    parameters = "&".join(map(_parameter, query.split("&")))
    return _substituted(address) + mark + parameters


def refused_login(error: ChangefeedError, places: Callable[[], Iterable[str]]) -> ChangefeedError:
    """``error``, or CF1208 in its place if it is a refused login and one of these URIs and options
    has a reference: the next attempt reads the secret again, which may have been replaced.

    ``places`` is not called after another error: it may need the state, which may be the cause.
    """
    refused = error.code in (Code.SOURCE_REFUSED_LOGIN, Code.SINK_REFUSED_LOGIN)
    if not refused or not any(map(has_references, places())):
        return error
    return ChangefeedError(
        Code.SECRET_UNREADABLE,
        error.message,
        detail=error.detail,
        hint="put the present secret where the reference leads; it is read at the next attempt.",
    )


def resolved_options(
    options: Mapping[str, Any], hidden: Callable[[str], bool]
) -> Mapping[str, Any]:
    """The options of a feed, where those that are secrets, as ``hidden`` says of their names, have
    what they refer to, and so have URLs.

    Raises:
        ChangefeedError: CF1208.
    """
    changed: dict[str, Any] = {}
    for name, value in options.items():
        found = value
        if hidden(name):
            found = _value(value)
        elif isinstance(value, str) and "://" in value:
            found = resolved_uri(value)
        if found != value:
            changed[name] = found
    return {**options, **changed} if changed else options


def _value(value: Any) -> Any:
    if isinstance(value, str):
        return resolved_text(value)
    return tuple(map(_value, value)) if isinstance(value, tuple) else value


def _substituted(encoded: str) -> str:
    return _ENCODED.sub(lambda found: quote(resolved_text(unquote(found[0])), safe=""), encoded)


def _parameter(part: str) -> str:
    name, equal, value = part.partition("=")
    plain = unquote(value)
    if not is_secret(unquote(name)) and "://" in plain:
        return f"{name}{equal}{quote(resolved_uri(plain), safe='')}"
    return _substituted(part)


def _refuse_unknown(text: str) -> None:
    if _UNKNOWN.search(text):
        # Its text may be a password.
        raise _failed(
            "${..:..}",
            "there is no reference of this kind",
            "the kinds are env, file and exec (docs/secrets.md). For a password that has ${ in a "
            "URI, write %24%7B.",
        )


def _require_places(uri: str) -> None:
    parts = split_uri(uri)
    shown = [str(host) for host in parts.hosts]
    if not uri.lower().startswith(SECRET_PATHS):
        shown.append(parts.path)
    for name, value in parts.parameters:
        shown.append(name)
        if not is_secret(name) and "://" not in value:
            shown.append(value)
    if any(map(REFERENCE.search, shown)):
        raise invalid_uri(
            "a reference to a secret stands where the URI has no secret",
            "references may be in the user and password before the host and in parameters that "
            "are hidden (docs/secrets.md).",
        )


def _failed(reference: str, why: str, hint: str = "") -> ChangefeedError:
    return ChangefeedError(
        Code.SECRET_UNREADABLE, f"the secret {reference} cannot be read: {why}", hint=hint
    )


def _checked(reference: str, content: bytes) -> str:
    if len(content) > LONGEST:
        raise _failed(reference, f"it is longer than {LONGEST} bytes")
    try:
        text = content.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise _failed(reference, "it is not UTF-8 text") from None
    if not text:
        raise _failed(reference, "it is empty")
    return text


def _of_environment(name: str) -> str:
    reference = f"${{env:{name}}}"
    if name not in os.environ:
        raise _failed(
            reference,
            "the environment of this process has no such variable",
            "set it for the node, and for the process that states the feed.",
        )
    return _checked(reference, os.environb[os.fsencode(name)])


def _of_file(name: str) -> str:
    reference = f"${{file:{name}}}"
    if not os.path.isabs(name):
        raise _failed(reference, "the path is not absolute", "write the whole path, from /.")
    try:
        with Path(name).open("rb") as file:
            content = file.read(LONGEST + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "the path is not one"
        raise _failed(reference, why) from None
    return _checked(reference, content)


def _of_command(command: str, patience: float) -> str:
    try:
        words = shlex.split(command)
    except ValueError:
        raise _failed("${exec:..}", "a quote of the command is not closed") from None
    if not words:
        raise _failed("${exec:..}", "there is no command")
    # Arguments may be secrets.
    reference = f"${{exec:{words[0]} ..}}"
    try:
        # What it writes to standard error may hold secrets, too.
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "an argument is not one"
        raise _failed(reference, why) from None
    content, status = _answer(process, patience)
    if status is None:
        raise _failed(reference, f"the command took longer than {patience:g} seconds")
    if status and len(content) <= LONGEST:
        raise _failed(reference, f"the command ended with status {status}")
    return _checked(reference, content)


def _answer(process: subprocess.Popen[bytes], patience: float) -> tuple[bytes, int | None]:
    """What a command wrote and its status, None if it took too long. Whatever is left of it then,
    also what it started, is killed: that may hold its output open."""
    late = threading.Event()

    def end() -> None:
        late.set()
        _kill(process)

    timer = threading.Timer(patience, end)
    timer.daemon = True
    with process:
        timer.start()
        try:
            assert process.stdout is not None
            content = process.stdout.read(LONGEST + 1)
            if len(content) > LONGEST:
                _kill(process)
            # Not reaped yet: until then its number is the number of no other group.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        finally:
            timer.cancel()
            timer.join()
            _kill(process)
    return content, None if late.is_set() else process.returncode


def _kill(process: subprocess.Popen[bytes]) -> None:
    # Nothing of its group may be left, or it runs as another user.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)

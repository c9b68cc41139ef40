"""What a place of files can do, and what its errors mean."""

from __future__ import annotations

import errno
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import pyarrow as pa

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.stores import StoreProblem, store_problem
from sinks.files.names import parse_name
from sinks.files.staged import UnpublishedFile


@dataclass(frozen=True, slots=True)
class Move:
    """A finished file gets its name. ``file`` is None where another process wrote it."""

    temporary: str
    name: str
    file: UnpublishedFile | None


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file that is there: the last part of its path, and its bytes."""

    name: str
    bytes: int


@runtime_checkable
class InspectablePlace(Protocol):
    """Optional: a place that can be looked at without leaving anything there."""

    def look(self) -> ChangefeedError | None:
        """Why no file can be written, as far as that shows."""
        ...


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A file somewhere below the root: its whole path there, and when it came (ns)."""

    path: str
    modified: int


@runtime_checkable
class ReadablePlace(Protocol):
    """Optional: a place whose files can be found and read again."""

    def every(self) -> list[PublishedFile]:
        """All files below the root but hidden ones, in no order."""
        ...

    def open(self, path: str) -> pa.NativeFile:
        """The bytes of a file, from its beginning on."""
        ...


class FilePlace(Protocol):
    """Where the files of a sink are. Methods raise OSError or ChangefeedError.

    Attributes:
        staging: the folder where files are written first, for any process to publish; None
            where only the process that wrote a file can, so executors do it themselves.
    """

    @property
    def staging(self) -> Path | None: ...

    def prepare(self, job: int, session: str) -> None:
        """See that files can be written, and remove what earlier runs of the job left."""
        ...

    def publish(self, moves: Sequence[Move]) -> None:
        """Make the files visible under their names, each as a whole; durable on return.

        Files of one table appear in the order of their names.
        """
        ...

    def put(self, name: str, content: bytes) -> None:
        """A small file, visible as a whole, durable on return; replaces one of this name."""
        ...

    def remove(self, names: Sequence[str]) -> None:
        """Remove published files where that is possible; never raises."""
        ...

    def folders(self, folder: str) -> list[str]:
        """The names of the folders in ``folder`` (empty: the root)."""
        ...

    def files(self, folder: str) -> list[ListedFile]:
        """The files in ``folder``, without those in folders below it."""
        ...

    def url(self, name: str) -> str:
        """The address of the file for other programs."""
        ...

    def close(self) -> None: ...


# ------------------------------------------------------------------------------- errors

#: Errors of the system that no repetition mends, by number.
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR}
_FULL = {errno.ENOSPC, errno.EDQUOT}

#: Azure's client failed at the login server, as C++ or its compiler writes the name. ``pyarrow``
#: raises that as a plain ArrowException.
_ENTRA = re.compile(r"Credentials(?:::|\d+)AuthenticationException")
_ENTRA_HTTP = re.compile(r"error response: (\d{3})\b")
_ENTRA_REASON = re.compile(r"\b(AADSTS\d+)\b")
_ENTRA_AWAY = re.compile(
    r"connection|connect to|resolve|time[d ]*-?out|socket|transport", re.IGNORECASE
)


@contextmanager
def explained(shown: str) -> Iterator[None]:
    """Errors of the system and of stores as ours; ``shown`` names the place."""
    try:
        yield
    except OSError as error:
        raise explain(shown, error) from error
    except pa.ArrowException as error:
        if _ENTRA.search(str(error)):
            raise _explain_entra(shown, str(error)) from error
        # Of a client that knows no better; its text may repeat anything.
        text = f"{shown} cannot be written: {type(error).__name__}"
        raise ChangefeedError(Code.SINK_UNREACHABLE, text) from error


def explain(shown: str, error: OSError) -> ChangefeedError:
    """One error of a system or store: our code and words, with the store's name for it."""
    if error.errno in _FULL:
        return ChangefeedError(
            Code.SINK_BUSY,
            f"no room for {shown}: {os.strerror(error.errno)}",
            hint="free space on that filesystem; the feed continues by itself.",
        )
    if _ENTRA.search(str(error)):
        return _explain_entra(shown, str(error))
    problem, said = store_problem(error)
    if error.errno in _REFUSED and not said:  # stores' errors have such numbers, too
        return ChangefeedError(
            Code.SINK_REFUSED_LOGIN,
            f"{shown} cannot be written: {os.strerror(error.errno)}",
            hint="check the owner and rights of the directory, then RESUME.",
        )
    if error.errno and not said:
        return ChangefeedError(
            Code.SINK_UNREACHABLE, f"{shown} cannot be written: {os.strerror(error.errno)}"
        )
    if problem is StoreProblem.BUSY:
        return ChangefeedError(Code.SINK_BUSY, f"{shown} is busy: {said}")
    if problem is StoreProblem.CLOCK:
        return ChangefeedError(
            Code.SINK_UNREACHABLE,
            f"{shown} cannot be written: {said}",
            hint="set this machine's clock; the feed continues by itself.",
        )
    if problem is StoreProblem.LOGIN:
        return ChangefeedError(
            Code.SINK_REFUSED_LOGIN,
            f"{shown} refused the login: {said}",
            hint="check the keys in the URI and their rights, then RESUME.",
        )
    if problem is StoreProblem.MISSING:
        return ChangefeedError(
            Code.SINK_REFUSED_LOGIN,
            f"{shown} cannot be written: {said}",
            hint="make the bucket, or check its name in the URI, then RESUME.",
        )
    return ChangefeedError(
        Code.SINK_UNREACHABLE, f"{shown} cannot be written: {said or type(error).__name__}"
    )


def _explain_entra(shown: str, text: str) -> ChangefeedError:
    """A login at Microsoft Entra that failed before the store was asked: refused, unless no server
    answered."""
    status = _ENTRA_HTTP.search(text)
    reason = _ENTRA_REASON.search(text)
    said = ", ".join(found.group(1) for found in (reason, status) if found)
    if status and status.group(1) == "429":
        return ChangefeedError(Code.SINK_BUSY, f"the login server of {shown} is busy: {said}")
    if status and status.group(1).startswith("5"):
        return ChangefeedError(Code.SINK_UNREACHABLE, f"the login server of {shown} failed: {said}")
    if not status and _ENTRA_AWAY.search(text):
        return ChangefeedError(Code.SINK_UNREACHABLE, f"cannot reach the login server of {shown}")
    return ChangefeedError(
        Code.SINK_REFUSED_LOGIN,
        f"{shown} refused the login: {said or 'AuthenticationException'}",
        hint="check the tenant, client and secret in the URI, then RESUME.",
    )


PARALLEL = 8
"""Tables whose files are put at once; those of one table go one after another."""


def publish_whole(moves: Sequence[Move], put: Callable[[str, pa.Buffer], None]) -> None:
    """Put the files of all moves, each table's in the order of the names: for places without
    rename.

    A put is atomic, so a reader never sees half a file and a crash leaves nothing to clean. What a
    round that failed has put already stays, and comes again under another name: repeats, which
    ``at_least_once`` allows. Executors put their files themselves, for nobody else could reach
    them.
    """
    if any(move.file is None for move in moves):
        raise FileNotFoundError("a staged file is gone")
    lanes: dict[str, list[Move]] = defaultdict(list)
    for move in sorted(moves, key=lambda move: move.name):
        said = parse_name(move.name.rpartition("/")[2])
        lanes[said.topic if said else ""].append(move)

    def put_lane(lane: list[Move]) -> None:
        for move in lane:
            if move.file is not None:
                put(move.name, move.file.content())

    if len(lanes) == 1:
        put_lane(next(iter(lanes.values())))
        return
    with ThreadPoolExecutor(min(PARALLEL, len(lanes) or 1), thread_name_prefix="files") as pool:
        running: list[Future[None]] = [pool.submit(put_lane, lane) for lane in lanes.values()]
        wait(running)
        for done in running:
            done.result()

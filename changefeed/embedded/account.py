"""Who runs the server: servers refuse root, so root lends them an unprivileged account."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from changefeed.core.errors import ChangefeedError, Code

#: Accounts to try, in order. ``postgres`` exists where the distribution's package is installed.
_CANDIDATES = ("postgres", "nobody")


@dataclass(frozen=True, slots=True)
class Account:
    """A user and a group, by number."""

    uid: int
    gid: int

    def own(self, path: Path) -> None:
        """Give ``path`` (a folder of ours) to the account and to nobody else."""
        if os.geteuid() == 0:
            os.chown(path, self.uid, self.gid)
        path.chmod(0o700)

    def take(self, folder: Path) -> None:
        """Make ``folder``, where a server's data goes, and give it to the account.

        Raises:
            ChangefeedError: CF1303, the account cannot get there.
        """
        folder.mkdir(mode=0o700, exist_ok=True)
        self.own(folder)
        if not self.reaches(folder):
            raise ChangefeedError(
                Code.NOT_SUPPORTED,
                f"the server's account cannot reach {folder}",
                hint="choose a folder outside of private homes, or run as an ordinary user.",
            )

    def reaches(self, path: Path) -> bool:
        """Whether the account may pass through every parent of ``path`` and read ``path``."""
        real = path.resolve()
        enter = all(self._may(parent, 0o1) for parent in real.parents)
        return enter and self._may(real, 0o5 if real.is_dir() else 0o4)

    def _may(self, path: Path, bits: int) -> bool:
        if self.uid == 0:
            return True
        info = path.stat()
        if info.st_uid == self.uid:
            shift = 6
        elif info.st_gid == self.gid:
            shift = 3
        else:
            shift = 0
        return (stat.S_IMODE(info.st_mode) >> shift) & bits == bits


def server_account() -> Account:
    """The account a server runs as: our own, or an unprivileged one when we are root.

    Raises:
        LookupError: we are root and there is no unprivileged account.
    """
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid())
    import pwd

    for name in _CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid)
    raise LookupError(f"the server does not run as root and none of {_CANDIDATES} exists")

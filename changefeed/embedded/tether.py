"""Start a server that dies with us: ``python tether.py SIGNAL PARENT UID GID command ...``.

Run as a file, not imported: it drops root, asks the kernel (Linux) for ``SIGNAL`` at the
death of the process that started it, and becomes the command. Done in a process of its own
because code between fork and exec of a threaded process may hang. The kernel forgets the
request when the user changes, so the order matters. On other systems only :mod:`atexit` of
the starting process stops the server.
"""

from __future__ import annotations

import os
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Drop root, tie to the parent, exec."""
    signal_number, parent, uid, gid = (int(word) for word in arguments[:4])
    command = arguments[4:]
    prctl = None
    if sys.platform == "linux":
        import ctypes

        prctl = ctypes.CDLL(None, use_errno=True).prctl
    if os.geteuid() == 0 and uid != 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    os.umask(0o077)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
        if os.getppid() != parent:  # it died before we asked
            sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Start a child process that does not outlive us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from changefeed.embedded import tether
from changefeed.embedded.account import Account

#: The kernel's "tell me when my parent dies" looks at the parent *thread*: all children are
#: started by this one, which lives as long as the process.
_STARTER = ThreadPoolExecutor(1, thread_name_prefix="child-starter")


def spawn(
    command: Sequence[str | Path],
    *,
    log_file: Path,
    account: Account | None = None,
    at_our_death: signal.Signals = signal.SIGKILL,
    environment: Mapping[str, str] | None = None,
    inherited: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start ``command`` (absolute path first) with its output appended to ``log_file``.

    It runs as ``account`` (our own by default) in a session of its own, because Ctrl-C of the
    terminal is ours to handle, and gets ``at_our_death`` when we are gone, even by SIGKILL
    (Linux). Its environment is ``environment`` alone; ``inherited`` are files that it has, too.
    """
    uid, gid = (account.uid, account.gid) if account else (os.geteuid(), os.getegid())
    words = [str(at_our_death.value), str(os.getpid()), str(uid), str(gid)]
    full = [sys.executable, "-I", "-S", tether.__file__, *words, *map(str, command)]

    def start() -> subprocess.Popen[bytes]:
        with log_file.open("ab") as log:
            return subprocess.Popen(
                full,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd="/",
                env=dict(environment or {}),
                start_new_session=True,
                pass_fds=inherited,
            )

    return _STARTER.submit(start).result()

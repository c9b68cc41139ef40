"""Environments of their own for programs of others that use changefeed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

from tests.services.cache import cache_root, made_once

ROOT = Path(__file__).parents[2]
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def environment(*requirements: str) -> Path:
    """The Python of an environment with these packages beside those that changefeed needs, so that
    they are known to go together; kept between runs."""
    wanted = [*requirements, *_PROJECT["dependencies"]]
    digest = hashlib.sha256("\n".join([sys.version, *wanted]).encode()).hexdigest()[:12]

    def make(folder: Path) -> None:
        venv.create(folder, with_pip=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        install = ["install", "--quiet", "--only-binary", ":all:", *wanted]
        subprocess.run([*pip, *install], check=True)

    return made_once(cache_root() / "environments" / digest, make) / "bin" / "python"


def run(python: Path, *words: str | Path, **variables: str) -> str:
    """What a program prints; it finds this changefeed.

    Raises:
        AssertionError: it failed.
    """
    ran = subprocess.run(
        [python, *words],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout

"""Programs in Go for tests, built once by a Go out of a wheel."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.services.cache import cache_root, made_once
from tests.services.python import Unavailable, our_python, packages

_LOCK = Path(__file__).with_name("go.lock")

#: What go says when modules cannot be fetched: the machine's trouble, not the program's.
_NOT_SERVED = re.compile(r"dial tcp|i/o timeout|no such host|TLS handshake|: [45]\d\d [A-Z]")


def built(name: str, sources: Path, package: str = ".", *, tags: str = "") -> Path:
    """The program ``package`` of the module in ``sources``, built once for each content of it.

    ``tags`` are build tags, with commas between them.

    Raises:
        Unavailable: its modules cannot be fetched.
    """
    content = b"".join(path.read_bytes() for path in (*sorted(sources.iterdir()), _LOCK))
    digest = hashlib.sha256(content).hexdigest()[:12]
    target = cache_root() / f"{name}-{digest}"
    return made_once(target, lambda folder: _build(folder, sources, package, tags)) / "server"


def _build(folder: Path, sources: Path, package: str, tags: str) -> None:
    """With modules and objects in a folder that goes again: they are ten times the program."""
    go = packages(_LOCK, our_python()) / "go"
    work = folder / "work"
    variables = {
        **{name: value for name, value in os.environ.items() if name != "GOROOT"},
        "CGO_ENABLED": "0",
        "GOCACHE": str(work / "objects"),
        "GOFLAGS": "-mod=readonly -modcacherw -buildvcs=false",
        "GOPATH": str(work / "modules"),
        "GOTOOLCHAIN": "local",
    }
    # Without optimising: the programs are quick enough, and the build takes half the time.
    command: list[str | Path] = [go / "bin" / "go", "build", "-trimpath", "-ldflags=-s -w"]
    command += ["-gcflags=all=-N -l -dwarf=false", "-tags", tags, "-o", folder / "server", package]
    run = subprocess.run(
        command, cwd=sources, env=variables, capture_output=True, text=True, timeout=900
    )
    if run.returncode != 0:
        said = f"{run.stdout[-2000:]}{run.stderr[-3000:]}"
        if _NOT_SERVED.search(said):
            raise Unavailable(f"{sources.name}: its Go modules cannot be fetched")
        raise RuntimeError(f"go failed\n{said}")
    shutil.rmtree(work)

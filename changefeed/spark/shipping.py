"""Python packages for the executors of a cluster, which Spark ships to each of them.

Two archives: the packages that changefeed needs, kept in the user's cache as long as their versions
stay, and its own code, which is small. Executors unpack them in their working directories; their
machines need a Python of the same minor version and nothing else.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution, entry_points
from itertools import chain
from pathlib import Path

from platformdirs import user_cache_path

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.telemetry import log

#: The packages of changefeed that run in executors.
OWN = ("changefeed", "sinks", "grammar")
#: Extras of sinks and formats that deliver from executors.
_EXTRAS = frozenset({"avro", "elasticsearch", "registry", "spark"})
#: What a driver has, too: the command and all sinks.
_DRIVER, _DRIVER_EXTRAS = (*OWN, "shell"), frozenset({"all"})
#: Entry points of packages with further sinks and sources.
_GROUPS = ("changefeed.sinks", "changefeed.sources")
#: Files that no executor reads: it has Spark's jars, and neither compiles nor tests.
_LEFT_OUT = re.compile(r"(^|/)(__pycache__|tests?|include)(/|$)|^pyspark/(jars|examples|bin|data)/")
#: Archives of other versions are removed if no node has used them for this long, seconds.
_UNUSED = 30 * 86400.0

_LIBRARIES, _CODE = "changefeed-libraries", "changefeed-code"
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([\w.-]+)['"]""")


@dataclass(frozen=True, slots=True)
class PythonArchives:
    """The two archives that Spark ships."""

    libraries: Path
    code: Path

    def properties(self, given: Mapping[str, str]) -> dict[str, str]:
        """Spark's properties with both archives, in addition to what the user or the site ships."""
        archives = [f"{self.code.as_uri()}#{_CODE}", f"{self.libraries.as_uri()}#{_LIBRARIES}"]
        if given.get("spark.archives"):
            archives.insert(0, given["spark.archives"])
        places = [f"./{_CODE}", f"./{_LIBRARIES}"]
        if given.get("spark.executorEnv.PYTHONPATH"):
            places.insert(0, given["spark.executorEnv.PYTHONPATH"])
        return {
            "spark.archives": ",".join(archives),
            "spark.executorEnv.PYTHONPATH": os.pathsep.join(places),
            "spark.pyspark.python": f"python{sys.version_info.major}.{sys.version_info.minor}",
        }


def ship_python(
    scratch: Path, cache: Path | None = None, clock: Clock = SYSTEM_CLOCK
) -> PythonArchives:
    """The archives of this process's packages; that of the libraries is made if it is missing.

    Args:
        scratch: for the archive of changefeed's own code.
        cache: the folder of the other one; None: the user's cache.
        clock: for the age of archives in the cache.

    Raises:
        ChangefeedError: CF4003, an archive cannot be written.
    """
    cache = cache or user_cache_path("changefeed", appauthor=False) / "python"
    try:
        code = scratch / f"{_CODE}.tar.gz"
        _write(code, _own_files())
        return PythonArchives(_libraries(cache, clock), code)
    except OSError as cause:
        raise ChangefeedError(
            Code.SPARK_NOT_AVAILABLE,
            f"the Python packages for Spark's executors cannot be packed: {cause.strerror}",
            hint=f"make room for 200 MB in {cache}, or install changefeed on the executors and "
            "name the interpreter: --conf spark.pyspark.python=/opt/changefeed/bin/python.",
        ) from cause


def pack_application(archive: Path) -> None:
    """Write one archive (.tar.gz) for ``spark-submit --archives``, on which driver and executors of
    a Spark application can run: changefeed, its command, and those of its extras that are
    installed, without Java.

    Raises:
        OSError: it cannot be written.
    """
    found = needed(_DRIVER_EXTRAS)
    libraries = (file for each in found for file in _files_of(each))
    _write(archive, chain(_own_files(_DRIVER), libraries))


def _libraries(cache: Path, clock: Clock) -> Path:
    found = needed()
    names = sorted(f"{each.name}=={each.version}" for each in found)
    platform = f"{sys.implementation.cache_tag} {sys.platform} {os.uname().machine}"
    digest = hashlib.sha256("\n".join([platform, *names]).encode()).hexdigest()[:16]
    archive = cache / f"{_LIBRARIES}-{digest}.tar.gz"
    if archive.exists():
        os.utime(archive)
        return archive
    cache.mkdir(parents=True, exist_ok=True)
    log.info("packing %d packages for Spark's executors", len(found))
    _write(archive, (file for each in found for file in _files_of(each)))
    now = clock.now().wall / 1e9
    for old in cache.glob(f"{_LIBRARIES}-*.tar.gz"):
        if old != archive and now - old.stat().st_mtime > _UNUSED:
            old.unlink(missing_ok=True)
    return archive


def needed(extras: frozenset[str] = _EXTRAS) -> list[Distribution]:
    """The installed packages that changefeed needs with these extras, without its own."""
    known: dict[str, Distribution] = {}
    todo = [("changefeed", extras)]
    for group in _GROUPS:
        todo += [(p.dist.name, frozenset()) for p in entry_points(group=group) if p.dist]
    asked: set[tuple[str, frozenset[str]]] = set()
    while todo:
        name, wanted = todo.pop()
        if (name, wanted) in asked:
            continue
        asked.add((name, wanted))
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue  # for another system or Python, or an extra that is not installed
        if found.name != "changefeed":
            known[found.name] = found
        for line in found.requires or ():
            todo += _wanted(line, wanted)
    return [known[name] for name in sorted(known)]


def _wanted(requirement: str, extras: frozenset[str]) -> list[tuple[str, frozenset[str]]]:
    """The package of a requirement and its extras; empty if an extra is not in ``extras``."""
    text, _, marker = requirement.partition(";")
    named = _NAME.match(text.strip())
    wanted = _EXTRA.search(marker)
    if named is None or (wanted is not None and wanted[1] not in extras):
        return []
    inner = re.search(r"\[([^]]*)\]", text)
    return [(named[0], frozenset(re.split(r"\s*,\s*", inner[1])) if inner else frozenset())]


def _files_of(package: Distribution) -> Iterator[tuple[str, Path]]:
    for file in package.files or ():
        name = file.as_posix()
        if not name.startswith("..") and not _LEFT_OUT.search(name):
            path = Path(str(package.locate_file(file)))
            if path.is_file():
                yield name, path


def _own_files(packages: Sequence[str] = OWN) -> Iterator[tuple[str, Path]]:
    for name in packages:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise AssertionError(f"{name} is one of changefeed's packages")
        root = Path(spec.origin).parent
        for path in sorted(root.rglob("*")):
            inner = f"{name}/{path.relative_to(root).as_posix()}"
            if path.is_file() and "__pycache__" not in path.parts:
                yield inner, path


def _write(archive: Path, files: Iterator[tuple[str, Path]]) -> None:
    """The archive appears under its name when it is complete; everyone may read its files."""
    handle, partial = tempfile.mkstemp(prefix=".partial-", dir=archive.parent)
    try:
        with (
            os.fdopen(handle, "wb") as file,
            tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as made,
        ):
            for name, path in files:
                made.add(path, name, recursive=False, filter=_plain)
        os.replace(partial, archive)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o644
    return member

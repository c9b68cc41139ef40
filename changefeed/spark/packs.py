"""Jar packs: what Spark needs beyond PySpark for some sinks and formats.

A pack is a list of jars (``jars.lock``, with digests) that is downloaded when it is first
needed, into one folder per user: ``$CHANGEFEED_JARS``, or the user's cache. Any file with the
right digest counts, so on a machine without a network the files can be copied there.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from platformdirs import user_cache_path

from changefeed.core.errors import ChangefeedError, Code
from changefeed.spark.ivy import download

#: Names the folder of the jars.
FOLDER_VARIABLE = "CHANGEFEED_JARS"


@dataclass(frozen=True, slots=True)
class Jar:
    """One jar: its coordinates and the SHA-256 of its bytes."""

    group: str
    name: str
    version: str
    digest: str

    @property
    def file_name(self) -> str:
        """Its file name in the folder."""
        return f"{self.name}-{self.version}.jar"

    @property
    def coordinates(self) -> tuple[str, str, str]:
        """Group, name and version."""
        return self.group, self.name, self.version


@dataclass(frozen=True, slots=True)
class Pack:
    """Jars that belong together, and how a session uses them.

    Attributes:
        extension: class for ``spark.sql.extensions``; empty when it has none. Only the
            session that asks for the pack gets it: rules of a table format would run in the
            planning of every scan.
        settings: of the session that has the extension.
        of_spark: a session may load it; others are for separate JVMs.
    """

    name: str
    jars: tuple[Jar, ...]
    extension: str = ""
    settings: tuple[tuple[str, str], ...] = field(default=())
    of_spark: bool = True


_USES: dict[str, tuple[str, dict[str, str]]] = {
    "delta": (
        "io.delta.sql.DeltaSparkSessionExtension",
        {
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            # The state of a table's log: the default of 50 partitions is for a large cluster.
            "spark.databricks.delta.snapshotPartitions": "2",
        },
    ),
    "iceberg": ("org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions", {}),
}


#: The line of PySpark for which there is every pack.
COMPLETE_LINE = "4.1"


def pyspark_line() -> str:
    """The first two numbers of the version of the installed PySpark; :data:`COMPLETE_LINE` if
    there is none."""
    try:
        installed = version("pyspark")
    except PackageNotFoundError:
        return COMPLETE_LINE
    return ".".join(installed.split(".")[:2])


def packs(line: str | None = None) -> dict[str, Pack]:
    """All packs by name, for a line of PySpark (None: the installed one).

    They are ``delta``, ``iceberg``, ``hadoop-aws``, ``iceberg-aws``, ``postgresql-jdbc``, and those
    that Spark does not load: ``debezium``, its connectors, and ``mariadb-server``. Some exist only
    for some lines.
    """
    return _locked(line or pyspark_line())


@cache
def _locked(line: str) -> dict[str, Pack]:
    jars: dict[str, list[Jar]] = {}
    lines: dict[str, set[str]] = {}
    for text in (Path(__file__).parent / "jars.lock").read_text().splitlines():
        if not text or text.startswith("#"):
            continue
        word, coordinates, digest = text.split()
        name, _, only = word.partition("@")
        group, artifact, release = coordinates.split(":")
        if only:
            lines.setdefault(name, set()).add(only)
        if only in ("", line):
            jars.setdefault(name, []).append(Jar(group, artifact, release, digest))
    there = (name for name in jars if line in lines.get(name, {line}))
    return {name: _pack(name, tuple(jars[name])) for name in there}


def _pack(name: str, jars: tuple[Jar, ...]) -> Pack:
    extension, settings = _USES.get(name, ("", {}))
    of_spark = not name.startswith(("debezium", "mariadb-server"))
    return Pack(name, jars, extension, tuple(settings.items()), of_spark)


def pack(name: str) -> Pack:
    """The pack of that name.

    Raises:
        ChangefeedError: CF4003, there is none, or none for the installed PySpark.
    """
    found = packs().get(name)
    if found is not None:
        return found
    if name in packs(COMPLETE_LINE):
        raise ChangefeedError(
            Code.SPARK_NOT_AVAILABLE,
            f"there are no jars of {name} for PySpark {pyspark_line()}",
            hint=f"pip install 'pyspark=={COMPLETE_LINE}.*'",
        )
    raise ChangefeedError(Code.SPARK_NOT_AVAILABLE, f"there is no jar pack {name!r} for Spark")


def jar_folder() -> Path:
    """The folder of this user's jars (it need not exist)."""
    given = os.environ.get(FOLDER_VARIABLE)
    return Path(given) if given else user_cache_path("changefeed", appauthor=False) / "jars"


def cached(folder: Path | None = None) -> frozenset[str]:
    """Names of the packs that Spark may load and whose jars are all in the folder."""
    folder = folder or jar_folder()
    known = packs().items()
    return frozenset(name for name, its in known if its.of_spark and not _missing([its], folder))


def paths(names: Sequence[str], folder: Path | None = None) -> list[Path]:
    """The jars of packs; missing ones are downloaded first.

    Several processes may ask at the same time: one downloads. A file appears under its name only
    when it is complete and has the right digest.

    Raises:
        ChangefeedError: CF4003; no such pack, or the download failed: the error says which files to
            put where.
    """
    folder = folder or jar_folder()
    wanted = [pack(name) for name in names]
    if _missing(wanted, folder):
        _fetch(wanted, folder)
    return [folder / jar.file_name for its in wanted for jar in its.jars]


def _missing(wanted: Sequence[Pack], folder: Path) -> list[Jar]:
    jars = [jar for its in wanted for jar in its.jars]
    return [jar for jar in jars if not _is_there(folder / jar.file_name, jar)]


def _is_there(path: Path, jar: Jar) -> bool:
    try:
        seen = path.stat()
    except OSError:
        return False
    return _digest(path, seen.st_size, seen.st_mtime_ns) == jar.digest


@cache
def _digest(path: Path, size: int, changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch(wanted: Sequence[Pack], folder: Path) -> None:
    try:
        with _alone(folder):
            missing = _missing(wanted, folder)
            if missing:
                _download(missing, folder)
    except OSError as cause:
        raise _unavailable(
            wanted, folder, f"the folder cannot be written: {cause.strerror}"
        ) from cause
    except ChangefeedError as cause:
        raise _unavailable(wanted, folder, cause.detail or cause.message) from cause


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _download(missing: Sequence[Jar], folder: Path) -> None:
    # On the folder's own filesystem, so that a rename puts a whole file in its place.
    partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=folder))
    try:
        (partial / "ivy").mkdir()
        download([jar.coordinates for jar in missing], partial, partial / "ivy")
        for jar in missing:
            _accept(partial / jar.file_name, jar, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _accept(downloaded: Path, jar: Jar, folder: Path) -> None:
    with downloaded.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != jar.digest:
        raise ChangefeedError(
            Code.SPARK_NOT_AVAILABLE, f"{jar.file_name} was downloaded but has another digest"
        )
    os.replace(downloaded, folder / jar.file_name)


def _unavailable(wanted: Sequence[Pack], folder: Path, reason: str) -> ChangefeedError:
    missing = _missing(wanted, folder)
    files = ", ".join(f"{jar.file_name} ({jar.group})" for jar in missing)
    return ChangefeedError(
        Code.SPARK_NOT_AVAILABLE,
        f"Spark needs jars it does not have: {', '.join(its.name for its in wanted)}",
        detail=reason,
        hint=f"without a network, put these files of Maven's central repository into {folder}: "
        f"{files}. {FOLDER_VARIABLE} names another folder.",
    )

"""Where the tables are: what the two kinds of URI say.

    delta:///srv/lake                       one Delta table a directory under it
    delta:///s3a://bucket/lake              on another filesystem Spark reaches
    delta:///hdfs://namenode:8020/lake
    iceberg://CATALOG/NAMESPACE?type=hadoop&warehouse=/srv/lake
    iceberg://CATALOG/NAMESPACE?type=rest&uri=https://..&warehouse=..&token=..
    iceberg://CATALOG/NAMESPACE?type=jdbc&uri=jdbc:postgresql://..&warehouse=..&jdbc.user=..

Parameters that begin with ``fs.``, ``dfs.`` or ``ipc.`` are settings of Hadoop's filesystems.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.settings import Parameter, ParameterKind, Settings, invalid, setting, several
from changefeed.core.uri import invalid_uri

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):/", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

#: Filesystems that need more than PySpark brings.
_PACKS = {"s3a": "hadoop-aws"}

#: Names of settings of Hadoop's filesystems: all of them, HDFS, and how its servers are called.
HADOOP = ("fs.", "dfs.", "ipc.")
#: With its defaults the client of HDFS knocks for 15 minutes (45 times 20 seconds) on an address
#: that does not answer, and waits two minutes for a NameNode that hangs, before it says so. Trying
#: again is the feed's part. The names and defaults are those of Hadoop's ``core-default.xml``.
_HDFS = {
    "ipc.client.connect.timeout": "10000",
    "ipc.client.connect.max.retries": "2",
    "ipc.client.connect.max.retries.on.timeouts": "0",
    "ipc.client.rpc-timeout.ms": "30000",
}

#: Databases that a JDBC catalog may be in, whose driver we bring.
_DRIVERS = {"jdbc:postgresql:": "postgresql-jdbc"}

#: How Iceberg reaches files: by its own client of S3, or by Hadoop's filesystems.
S3_FILES = "org.apache.iceberg.aws.s3.S3FileIO"
_HADOOP_FILES = "org.apache.iceberg.hadoop.HadoopFileIO"
#: Schemes that a REST catalog's files are read by the former for, unless a setting names another.
_S3 = ("s3", "s3a", "s3n")

#: What a catalog takes beside type, uri and warehouse, by the beginning of the name.
_CATALOG_SETTINGS = (
    "s3.",
    "client.",
    "jdbc.",
    "header.",
    "rest.",
    "http-client.",
    "gcs.",
    "adls.",
    "oauth2-server-uri",
    "io-impl",
    "credential",
    "token",
    "scope",
    "prefix",
)


@dataclass(frozen=True, slots=True)
class LakePlace:
    """A place for tables.

    Attributes:
        format: ``delta`` or ``iceberg``.
        root: directory of Delta tables, or the warehouse of an Iceberg catalog.
        catalog, namespace: of Iceberg; empty for Delta.
        settings: of the Spark session. They may hold secrets.
        packs: jar packs of Spark it needs.
    """

    format: str
    root: str
    catalog: str = ""
    namespace: tuple[str, ...] = ()
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    packs: tuple[str, ...] = ()

    @property
    def folder(self) -> Path | None:
        """The folder of this machine that Delta's tables are in; None: they are elsewhere."""
        return Path(self.root) if self.format == "delta" and self.root.startswith("/") else None

    @property
    def shown(self) -> str:
        """Where it is, for people: no secret, no user."""
        address = dict(self.settings).get("uri") or self.root
        return re.sub(r"//[^/@]*@", "//", re.split(r"[?;#]", address)[0])


@dataclass(frozen=True, kw_only=True)
class LakeSettings(Settings):
    """``delta://`` and ``iceberg://``."""

    catalog_type: str | None = setting(
        None,
        "The kind of catalog; always needed.",
        name="type",
        values=("hadoop", "rest", "jdbc"),
        schemes=("iceberg",),
    )
    address: str = setting(
        "",
        "The catalog's address, of type rest and jdbc.",
        ParameterKind.URL,
        name="uri",
        schemes=("iceberg",),
    )
    warehouse: str = setting(
        "", "Where the tables' files are.", ParameterKind.PATH, schemes=("iceberg",)
    )
    catalog: dict[str, str] = several(
        *(
            Parameter(f"{name}*", "Settings of Iceberg's catalog.", schemes=("iceberg",))
            for name in _CATALOG_SETTINGS
        )
    )
    hadoop: dict[str, str] = several(
        *(Parameter(f"{name}*", "Settings of Hadoop's filesystems.") for name in HADOOP)
    )

    @cached_property
    def place(self) -> LakePlace:
        """Where the tables are.

        Raises:
            ChangefeedError: CF1201, CF1207, the URI does not say where.
        """
        if self.uri.user is not None:
            raise invalid_uri(
                f"a URI of {self.uri.scheme} has no user",
                "credentials are parameters, for example fs.s3a.access.key or token.",
            )
        return self._delta() if self.uri.scheme == "delta" else self._iceberg()

    def check(self) -> Iterator[ChangefeedError]:
        if "type" not in self.wrong:
            _ = self.place
        yield from ()

    def _delta(self) -> LakePlace:
        if self.uri.hosts:
            raise invalid_uri(
                "a URI of delta has no host",
                "write three slashes: delta:///srv/lake or delta:///s3a://bucket/lake.",
            )
        root, scheme = _directory(self.uri.path, "delta:///srv/lake")
        settings = tuple((_of_hadoop(scheme) | self.hadoop).items())
        return LakePlace("delta", root, settings=settings, packs=_packs("delta", scheme))

    def _iceberg(self) -> LakePlace:
        uri = self.uri
        if len(uri.hosts) != 1 or uri.port is not None or not _NAME.match(uri.host):
            raise invalid_uri(
                "a URI of iceberg names a catalog: letters, digits and _",
                "for example iceberg://lake/shop?type=hadoop&warehouse=/srv/lake.",
            )
        namespace = tuple(part for part in re.split(r"[/.]", uri.database) if part)
        if not namespace:
            raise invalid_uri(
                "a URI of iceberg names a namespace behind the catalog",
                f"for example iceberg://{uri.host}/shop?type=hadoop&warehouse=/srv/lake.",
            )
        kind = self.catalog_type
        if kind is None:
            raise invalid("param type must be hadoop, rest or jdbc")
        if kind != "rest" and not self.warehouse:
            raise invalid("param warehouse must be provided")
        if kind != "hadoop" and not self.address:
            raise invalid("param uri must be provided")
        if kind == "hadoop" and self.address:
            raise invalid("a hadoop catalog has no uri: its warehouse is the place")
        root, scheme = self.warehouse, _scheme(self.warehouse)
        if kind != "rest":
            root, scheme = _directory(root, "warehouse=/srv/lake")
        own = {"type": kind, "uri": self.address, "warehouse": root}
        if kind == "jdbc":
            # Spark asks for views whenever it looks for a table; the older form has none and fails.
            own["jdbc.schema-version"] = "V1"
        own |= self.catalog
        hadoop = _of_hadoop(scheme) | self.hadoop
        own |= {f"hadoop.{name}": value for name, value in hadoop.items()}
        packs = tuple(dict.fromkeys(_packs("iceberg", scheme) + _files(own, scheme)))
        packs += tuple(its for head, its in _DRIVERS.items() if self.address.startswith(head))
        settings = tuple((name, value) for name, value in own.items() if value)
        return LakePlace("iceberg", root, uri.host, namespace, settings, packs)


def place_of(uri: str) -> LakePlace:
    """Where the tables of a sink are.

    Raises:
        ChangefeedError: CF1201, CF1202, CF1207.
    """
    return LakeSettings.read(uri).place


def _files(own: dict[str, str], scheme: str) -> tuple[str, ...]:
    """The packs that the catalog's files need; settles in ``own`` who reads them."""
    by_hadoop = any(name.startswith("hadoop.fs.s3a.") for name in own)
    by_s3 = any(name.startswith("s3.") for name in own) or scheme in _S3
    if own["type"] == "rest" and "io-impl" not in own and (by_hadoop or by_s3):
        own["io-impl"] = _HADOOP_FILES if by_hadoop else S3_FILES
    if own.get("io-impl") == S3_FILES:
        # The default is a client of a newer SDK than Hadoop's, and there is one on a class path.
        own.setdefault("http-client.type", "urlconnection")
        return ("hadoop-aws", "iceberg-aws")
    if not by_hadoop:
        return ()
    # Tables that others made there are called s3:// mostly.
    own.setdefault("hadoop.fs.s3.impl", "org.apache.hadoop.fs.s3a.S3AFileSystem")
    return ("hadoop-aws",)


def _packs(own: str, scheme: str) -> tuple[str, ...]:
    more = _PACKS.get(scheme)
    return (own, more) if more else (own,)


def _of_hadoop(scheme: str) -> dict[str, str]:
    """What we set of a filesystem, unless the URI says otherwise."""
    return dict(_HDFS) if scheme == "hdfs" else {}


def _check_address(directory: str) -> None:
    try:
        _ = urlsplit(directory).port
    except ValueError:  # which repeats the address
        raise ChangefeedError(
            Code.INVALID_URI,
            "the address of the tables' directory has a host or a port that is none",
            hint="write it as in hdfs://namenode:8020/directory.",
        ) from None


def _directory(path: str, example: str) -> tuple[str, str]:
    """A directory as Spark takes it, and the scheme of its filesystem."""
    path = path.rstrip("/")
    inner = path.lstrip("/")
    scheme = _scheme(inner)
    if scheme == "hdfs" and "@" in inner.partition("//")[2].partition("/")[0]:
        # Hadoop's client passes over it without a word.
        raise ChangefeedError(
            Code.INVALID_URI,
            "an address of HDFS has no user",
            hint="tables belong to the node's user, or to HADOOP_USER_NAME of its environment.",
        )
    if scheme:
        _check_address(inner)
        return inner, scheme
    if not path.startswith("/"):
        raise ChangefeedError(Code.INVALID_URI, f"the directory must be absolute, as in {example}")
    return path, "file"


def _scheme(path: str) -> str:
    found = _SCHEME.match(path)
    return found[1].lower() if found else ""

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
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.parameters import Parameter, ParameterKind
from changefeed.core.uri import SinkURL

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
#: Schemes that a REST catalog's files are read by the former for, unless it is told otherwise.
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

_ICEBERG = ("iceberg",)
_CATALOGS = ("hadoop", "rest", "jdbc")

#: What URIs of the two schemes take.
PARAMETERS = (
    Parameter(
        "type",
        "The kind of catalog; always needed.",
        ParameterKind.CHOICE,
        _CATALOGS,
        schemes=_ICEBERG,
    ),
    Parameter(
        "uri", "The catalog's address, of type rest and jdbc.", ParameterKind.URL, schemes=_ICEBERG
    ),
    Parameter("warehouse", "Where the tables' files are.", ParameterKind.PATH, schemes=_ICEBERG),
    *(
        Parameter(f"{name}*", "Settings of Iceberg's catalog.", schemes=_ICEBERG)
        for name in _CATALOG_SETTINGS
    ),
    *(Parameter(f"{name}*", "Settings of Hadoop's filesystems.") for name in HADOOP),
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
    def shown(self) -> str:
        """Where it is, for people: no secret, no user."""
        address = dict(self.settings).get("uri") or self.root
        return re.sub(r"//[^/@]*@", "//", re.split(r"[?;#]", address)[0])


def place_of(uri: str) -> LakePlace:
    """Read a sink's URI.

    Raises:
        ChangefeedError: CF1201, CF1202, CF1207.
    """
    url = SinkURL(uri, PARAMETERS)
    if url.user is not None:
        raise ChangefeedError(
            Code.INVALID_URI,
            f"a URI of {url.scheme} has no user",
            hint="credentials are parameters, for example fs.s3a.access.key or token.",
        )
    return _delta(url) if url.scheme == "delta" else _iceberg(url)


def _delta(url: SinkURL) -> LakePlace:
    if url.hosts:
        raise ChangefeedError(
            Code.INVALID_URI,
            "a URI of delta has no host",
            hint="write three slashes: delta:///srv/lake or delta:///s3a://bucket/lake.",
        )
    settings = url.take_prefixed(*HADOOP)
    url.finish()
    root, scheme = _directory(url.path, "delta:///srv/lake")
    settings = _of_hadoop(scheme) | settings
    return LakePlace("delta", root, settings=tuple(settings.items()), packs=_packs("delta", scheme))


def _iceberg(url: SinkURL) -> LakePlace:
    catalog = url.host
    if len(url.hosts) != 1 or url.port is not None or not _NAME.match(catalog):
        raise ChangefeedError(
            Code.INVALID_URI,
            "a URI of iceberg names a catalog: letters, digits and _",
            hint="for example iceberg://lake/shop?type=hadoop&warehouse=/srv/lake.",
        )
    namespace = tuple(part for part in re.split(r"[/.]", url.path.strip("/")) if part)
    if not namespace:
        raise ChangefeedError(
            Code.INVALID_URI,
            "a URI of iceberg names a namespace behind the catalog",
            hint=f"for example iceberg://{catalog}/shop?type=hadoop&warehouse=/srv/lake.",
        )
    kind = url.take_choice("type")
    if kind is None:
        raise ChangefeedError(Code.INVALID_PARAMETER, "param type must be hadoop, rest or jdbc")
    root = scheme = ""
    if kind == "rest":
        root = url.take_str("warehouse") or ""
        scheme = _scheme(root)
    else:
        root, scheme = _directory(url.take_required("warehouse"), "warehouse=/srv/lake")
    address = url.take_str("uri") if kind == "hadoop" else url.take_required("uri")
    if kind == "hadoop" and address:
        raise ChangefeedError(
            Code.INVALID_PARAMETER, "a hadoop catalog has no uri: its warehouse is the place"
        )
    own = {"type": kind, "uri": address or "", "warehouse": root}
    if kind == "jdbc":
        # Spark asks for views whenever it looks for a table; the older form has none and fails.
        own["jdbc.schema-version"] = "V1"
    own |= url.take_prefixed(*_CATALOG_SETTINGS)
    hadoop = _of_hadoop(scheme) | url.take_prefixed(*HADOOP)
    own |= {f"hadoop.{name}": value for name, value in hadoop.items()}
    url.finish()
    packs = _packs("iceberg", scheme) + _files(own, scheme)
    settings = [(name, value) for name, value in own.items() if value]
    packs = tuple(dict.fromkeys(packs))
    packs += tuple(its for head, its in _DRIVERS.items() if (address or "").startswith(head))
    return LakePlace("iceberg", root, catalog, namespace, tuple(settings), packs)


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

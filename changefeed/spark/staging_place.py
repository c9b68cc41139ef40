"""The address of a staging place: a directory, a bucket of S3, or a folder of HDFS."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from changefeed.core.errors import ChangefeedError
from changefeed.core.settings import Settings, group
from changefeed.core.stores import S3Keys
from changefeed.core.uri import invalid_uri

_S3 = ("s3", "s3a")
#: By default Hadoop's client of HDFS tries for minutes before it reports that it has no answer.
_HDFS = {
    "spark.hadoop.ipc.client.connect.timeout": "10000",
    "spark.hadoop.ipc.client.connect.max.retries": "2",
    "spark.hadoop.ipc.client.connect.max.retries.on.timeouts": "0",
}
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]+\Z")
_HINT = "write a directory, s3://bucket/folder or hdfs://namenode:8020/folder."


@dataclass(frozen=True, slots=True)
class StagingPlace:
    """A place that the node writes and the executors read.

    Attributes:
        root: as Hadoop's filesystems take it.
        properties: of Spark, to reach it; may hold secrets.
        packs: jar packs of Spark it needs.
        s3: how a bucket is reached; None for a directory or HDFS.
    """

    root: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    packs: tuple[str, ...] = ()
    s3: S3Keys | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class StagingAddress(Settings):
    """The URL of a place that is no directory."""

    called: ClassVar[str] = "staging place"

    s3: S3Keys = group(S3Keys, *_S3)

    def check(self) -> Iterator[ChangefeedError]:
        uri = self.uri
        if uri.scheme not in (*_S3, "hdfs") or len(uri.hosts) != 1 or not uri.host:
            yield invalid_uri("the staging place cannot be used", _HINT)
        elif uri.user is not None:
            yield invalid_uri(
                "the staging place has no user in its address",
                "keys of S3 are the parameters AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; HDFS "
                "takes the node's user, or HADOOP_USER_NAME of its environment.",
            )
        elif uri.scheme in _S3 and not _BUCKET.match(str(uri.hosts[0])):
            yield invalid_uri("the staging place names no bucket", _HINT)


def staging_place(url: str) -> StagingPlace:
    """The place of a URL: a directory, ``s3://bucket/folder?AWS_…`` or ``hdfs://host/folder``.

    Raises:
        ChangefeedError: CF1201, CF1202; without the URL, which may contain a secret.
    """
    if url.startswith("/"):
        return StagingPlace(url.rstrip("/") or "/")
    if "://" not in url or "#" in url:
        raise invalid_uri("the staging place cannot be used", _HINT)
    found = StagingAddress.read(url)
    server, path = found.uri.hosts[0], found.uri.path.rstrip("/")
    if found.uri.scheme == "hdfs":
        return StagingPlace(f"hdfs://{server}{path}", dict(_HDFS))
    properties = _of_bucket(server.name, found.s3)
    return StagingPlace(f"s3a://{server}{path}", properties, ("hadoop-aws",), found.s3)


def _of_bucket(bucket: str, keys: S3Keys) -> dict[str, str]:
    head = f"spark.hadoop.fs.s3a.bucket.{bucket}."
    # The feed retries.
    found = {head + "attempts.maximum": "3", head + "retry.limit": "3"}
    named = {
        "access.key": keys.access_key,
        "secret.key": keys.secret_key,
        "session.token": keys.session_token,
        "endpoint.region": keys.region,
        "endpoint": "://".join(keys.endpoint or ()),
    }
    found |= {head + name: value for name, value in named.items() if value}
    if keys.endpoint is not None:
        # Servers other than Amazon's have one name for all buckets.
        found[head + "path.style.access"] = "true"
        found[head + "connection.ssl.enabled"] = str(keys.endpoint[0] == "https").lower()
    return found

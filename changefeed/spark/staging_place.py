"""The address of a staging place: a directory, a bucket of S3, or a folder of HDFS."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit

from changefeed.core.errors import ChangefeedError, Code

_S3 = ("s3", "s3a")
#: Parameters of the URL, as those of a file sink, and Hadoop's names of them for one bucket.
_PARAMETERS = {
    "AWS_ACCESS_KEY_ID": "access.key",
    "AWS_SECRET_ACCESS_KEY": "secret.key",
    "AWS_SESSION_TOKEN": "session.token",
    "AWS_REGION": "endpoint.region",
    "AWS_ENDPOINT": "endpoint",
}
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
        parameters: of the URL, ``AWS_…``; may hold secrets.
    """

    root: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    packs: tuple[str, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict, repr=False)


def staging_place(url: str) -> StagingPlace:
    """The place of a URL: a directory, ``s3://bucket/folder?AWS_…`` or ``hdfs://host/folder``.

    Raises:
        ChangefeedError: CF1201, CF1202; without the URL, which may contain a secret.
    """
    if url.startswith("/"):
        return StagingPlace(url.rstrip("/") or "/")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ChangefeedError(Code.INVALID_URI, "the staging place is no URL", hint=_HINT) from None
    if parts.scheme not in (*_S3, "hdfs") or not parts.hostname or parts.fragment:
        raise ChangefeedError(Code.INVALID_URI, "the staging place cannot be used", hint=_HINT)
    if "@" in parts.netloc:
        raise ChangefeedError(
            Code.INVALID_URI,
            "the staging place has no user in its address",
            hint="keys of S3 are the parameters AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; HDFS "
            "takes the node's user, or HADOOP_USER_NAME of its environment.",
        )
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    path = parts.path.rstrip("/")
    if parts.scheme == "hdfs":
        _only(given, ())
        return StagingPlace(f"hdfs://{parts.netloc}{path}", dict(_HDFS))
    _only(given, tuple(_PARAMETERS))
    if port is not None or not _BUCKET.match(parts.netloc):
        raise ChangefeedError(Code.INVALID_URI, "the staging place names no bucket", hint=_HINT)
    return StagingPlace(
        f"s3a://{parts.netloc}{path}", _of_bucket(parts.netloc, given), ("hadoop-aws",), given
    )


def _only(given: Mapping[str, str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise ChangefeedError(
                Code.UNKNOWN_PARAMETER,
                f"the staging place has no parameter {name}",
                hint=f"known: {', '.join(known)}" if known else "leave it out.",
            )


def _of_bucket(bucket: str, given: Mapping[str, str]) -> dict[str, str]:
    head = f"spark.hadoop.fs.s3a.bucket.{bucket}."
    # The feed retries.
    found = {head + "attempts.maximum": "3", head + "retry.limit": "3"}
    found |= {head + _PARAMETERS[name]: value for name, value in given.items() if value}
    if "AWS_ENDPOINT" in given:
        # Servers other than Amazon's have one name for all buckets.
        found[head + "path.style.access"] = "true"
        secure = not given["AWS_ENDPOINT"].startswith("http://")
        found[head + "connection.ssl.enabled"] = str(secure).lower()
    return found

"""Files of a lake read without Spark: on a local disk, in S3 where the URI says how to get there.

:class:`Files` is for looking only: nothing is written, nothing is made.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.stores import StoreProblem, connect, store_problem, without_empty

_S3 = ("s3", "s3a", "s3n")
#: Names of the same setting: Hadoop's, and Iceberg's own.
_SETTINGS = {
    "endpoint": ("fs.s3a.endpoint", "s3.endpoint"),
    "region": ("fs.s3a.endpoint.region", "client.region"),
    "key": ("fs.s3a.access.key", "s3.access-key-id"),
    "secret": ("fs.s3a.secret.key", "s3.secret-access-key"),
    "token": ("fs.s3a.session.token", "s3.session-token"),
    "tls": ("fs.s3a.connection.ssl.enabled",),
}
#: Beginnings of settings that say another way in, which only Spark knows.
_OTHERS = (
    "fs.s3a.aws.",
    "fs.s3a.assumed.",
    "fs.s3a.bucket.",
    "s3.remote-signing",
    "client.factory",
)
#: Settings of Hadoop's client that a writer may leave aside: how it divides and repeats its work.
_OF_THE_CLIENT = re.compile(
    r"fs\.s3a\.(path\.style\.access|impl|committer\..*|experimental\..*|connection\.(?!ssl).*|"
    r"fast\.upload.*|threads\..*|multipart\..*|block\.size|attempts.*|retry\..*|paging\..*|"
    r"readahead.*|max\.total\.tasks|input\.fadvise|executor\..*|vectored\..*)\Z"
)
_ANSWER_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class S3Access:
    """Where a store of S3's protocol is, and who asks it; nothing given: the machine's login.

    Attributes:
        endpoint: of another store than Amazon's, with its scheme.
        plain: without TLS.
    """

    key: str
    secret: str = field(repr=False)
    token: str = field(repr=False)
    region: str
    endpoint: str
    plain: bool

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> S3Access:
        """As settings of Hadoop's or of Iceberg's client say."""
        given = {
            name: next((settings[n] for n in names if n in settings), "")
            for name, names in _SETTINGS.items()
        }
        named = urlsplit(given["endpoint"])
        plain = named.scheme == "http" or (given["tls"] == "false" and not named.scheme)
        host = named.netloc or named.path
        endpoint = f"{'http' if plain else 'https'}://{host}" if host else ""
        return cls(given["key"], given["secret"], given["token"], given["region"], endpoint, plain)

    @classmethod
    def of_writer(cls, settings: Mapping[str, str]) -> S3Access | None:
        """:meth:`of`; None if a setting demands more of a writer than is known here, such as
        encryption."""
        known = {name for names in _SETTINGS.values() for name in names}
        asked = (name for name in settings if name.startswith("fs.s3a."))
        if all(name in known or _OF_THE_CLIENT.match(name) for name in asked):
            return cls.of(settings)
        return None


class Files:
    """Files by the paths that Spark has for them.

    Args:
        settings: of the place, without a prefix of a catalog.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = {name.removeprefix("hadoop."): value for name, value in settings.items()}
        self._s3: fs.FileSystem | None = None

    def knows(self, path: str) -> bool:
        """Whether the path can be read here."""
        scheme = urlsplit(path).scheme.lower()
        other = any(name.startswith(_OTHERS) for name in self._settings)
        return scheme in ("", "file") or (scheme in _S3 and not other)

    def check(self, path: str) -> None:
        """Whether tables can be made under the path, as far as it shows without making any.

        Raises:
            ChangefeedError: CF5001, CF5002, CF5003.
        """
        system, inner = self._place(path)
        if not isinstance(system, fs.LocalFileSystem):
            bucket = inner.partition("/")[0]
            with _explained(path):
                found = system.get_file_info(bucket)
            if found.type is fs.FileType.NotFound:
                raise ChangefeedError(
                    Code.SINK_REFUSED_DATA,
                    f"there is no bucket {bucket}",
                    hint="create it: the feed does not.",
                )
            return
        while not os.path.exists(inner):
            inner = os.path.dirname(inner)
        if not os.path.isdir(inner) or not os.access(inner, os.W_OK | os.X_OK):
            raise ChangefeedError(
                Code.SINK_REFUSED_DATA,
                f"tables cannot be created in {path}: {inner} is no directory this user may write "
                "in",
                hint="name another directory, or give the node's user the right.",
            )

    def names(self, directory: str) -> list[str]:
        """Names of what is in a directory; none where there is no directory."""
        system, inner = self._place(directory)
        with _explained(directory):
            found = system.get_file_info(fs.FileSelector(inner, allow_not_found=True))
        return [info.base_name for info in found]

    def read(self, path: str) -> bytes:
        """The content of a file."""
        system, inner = self._place(path)
        with _explained(path), system.open_input_stream(inner, compression=None) as stream:
            content: bytes = stream.read()
        return content

    @contextmanager
    def opened(self, path: str) -> Iterator[pa.NativeFile]:
        """A file of which parts are read."""
        system, inner = self._place(path)
        with _explained(path), system.open_input_file(inner) as file:
            yield file

    def _place(self, path: str) -> tuple[fs.FileSystem, str]:
        parts = urlsplit(path)
        if parts.scheme.lower() not in _S3:
            return fs.LocalFileSystem(), parts.path.rstrip("/") if parts.scheme else path
        if self._s3 is None:
            self._s3 = self._store()
        return self._s3, f"{parts.netloc}{parts.path}".rstrip("/")

    def _store(self) -> fs.FileSystem:
        access = S3Access.of(self._settings)
        return connect(
            "s3",
            without_empty(
                {
                    "access_key": access.key,
                    "secret_key": access.secret,
                    "session_token": access.token,
                    "region": access.region,
                    "scheme": "http" if access.plain else "https",
                    "endpoint_override": access.endpoint.rpartition("//")[2],
                }
            ),
            request_timeout=_ANSWER_SECONDS,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=2),
        )


@contextmanager
def _explained(path: str) -> Iterator[None]:
    """Failures of a store as errors; its own text is not repeated, which may name keys."""
    try:
        yield
    except (OSError, ValueError) as failure:
        problem, _ = store_problem(failure)
        if isinstance(failure, PermissionError) or problem is StoreProblem.LOGIN:
            raise ChangefeedError(
                Code.SINK_REFUSED_LOGIN,
                f"{path} may not be read",
                hint="check the credentials in the URI and the rights of the node's user.",
            ) from None
        raise ChangefeedError(Code.SINK_UNREACHABLE, f"cannot read {path}") from None

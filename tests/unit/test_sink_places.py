"""URIs of object stores: what reaches the client, and what is wrong with them."""

from __future__ import annotations

import base64
import functools
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs

from changefeed.core.clock import SystemClock
from changefeed.core.errors import ChangefeedError, Problems
from changefeed.core.uri import sink_location
from sinks.files.options import FilesSettings
from sinks.files.places.base import explain, explained
from sinks.files.places.objects import COPY, MOVE, ObjectPlace, open_objects
from sinks.registry import check

KEYS = "AWS_ACCESS_KEY_ID=AKIA&AWS_SECRET_ACCESS_KEY=a%2Fb+c"
ACCOUNT = base64.b64encode(json.dumps({"type": "service_account"}).encode()).decode()


@pytest.mark.parametrize(
    ("uri", "root", "arguments"),
    [
        (
            f"s3://bucket/a/b/?{KEYS}&AWS_SESSION_TOKEN=t&AWS_REGION=eu-west-1",
            "bucket/a/b",
            {
                "access_key": "AKIA",
                "secret_key": "a/b+c",
                "session_token": "t",
                "region": "eu-west-1",
            },
        ),
        (
            f"s3://bucket?{KEYS}&AWS_ENDPOINT=http://127.0.0.1:9000/",
            "bucket",
            {
                "access_key": "AKIA",
                "secret_key": "a/b+c",
                "endpoint_override": "127.0.0.1:9000",
                "scheme": "http",
            },
        ),
        (
            "s3://bucket?AUTH=implicit&ASSUME_ROLE=arn:aws:iam::1:role/feeds",
            "bucket",
            {"role_arn": "arn:aws:iam::1:role/feeds"},
        ),
        ("gs://bucket/x?AUTH=implicit", "bucket/x", {}),
        ("gs://bucket/x?BEARER_TOKEN=tok", "bucket/x", {"access_token": "tok"}),
        (
            f"gs://bucket/x?AUTH=specified&CREDENTIALS={ACCOUNT}",
            "bucket/x",
            {"service_account": {"type": "service_account"}},
        ),
        (
            "azure-blob://box/x?AZURE_ACCOUNT_NAME=n&AZURE_ACCOUNT_KEY=aw%3D%3D",
            "box/x",
            {"account_name": "n", "account_key": "aw=="},
        ),
        (
            "azure://box?AZURE_ACCOUNT_NAME=n&AZURE_CLIENT_ID=i&AZURE_CLIENT_SECRET=s"
            "&AZURE_TENANT_ID=d",
            "box",
            {"account_name": "n", "client_id": "i", "client_secret": "s", "tenant_id": "d"},
        ),
        (
            "gs://bucket?BEARER_TOKEN=tok&GCS_ENDPOINT=http://127.0.0.1:4443/",
            "bucket",
            {"access_token": "tok", "endpoint_override": "127.0.0.1:4443", "scheme": "http"},
        ),
        (
            "azure://box?AZURE_ACCOUNT_NAME=n&AZURE_ACCOUNT_KEY=aw%3D%3D"
            "&AZURE_ENDPOINT=http://127.0.0.1:10000/n",
            "box",
            {
                "account_name": "n",
                "account_key": "aw==",
                "blob_storage_scheme": "http",
                "blob_storage_authority": "127.0.0.1:10000",
                "dfs_storage_scheme": "http",
                "dfs_storage_authority": "127.0.0.1:10000",
            },
        ),
        ("hdfs://al@nn/feeds", "/feeds", {"host": "nn", "port": 8020, "user": "al"}),
        (
            "file-https://al:p%20w@h:8443/x",
            "https://h:8443/x",
            {"user": "al", "password": "p w"},
        ),
    ],
)
def test_what_reaches_the_client(uri: str, root: str, arguments: dict[str, Any]) -> None:
    place = FilesSettings.read(uri).place
    assert (place.root, dict(place.arguments)) == (root, arguments)
    for secret in ("a/b+c", "tok", "aw==", "p w"):
        assert secret not in repr(place)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("s3:///x", "needs a bucket"),
        ("s3://b/x", "AUTH is set to 'specified', but AWS_ACCESS_KEY_ID is not set"),
        ("s3://b/x?AUTH=maybe", "param AUTH must be one of specified, implicit"),
        (f"s3://b/x?AUTH=implicit&{KEYS}", "AUTH=implicit does not go with a key"),
        (f"s3://b/x?{KEYS}&ASSUME_ROLE=r", "ASSUME_ROLE needs AUTH=implicit"),
        (f"s3://b/x?{KEYS}&AWS_ENDPOINT=ftp://h", "must be an http or https address"),
        (f"s3://b/x?{KEYS}&S3_STORAGE_CLASS=GLACIER", "unknown s3 sink query parameters"),
        ("gs://b?AUTH=specified", "but CREDENTIALS is not set"),
        ("gs://b?CREDENTIALS=bm8=", "must be the JSON key"),
        ("gs://b?BEARER_TOKEN=t&GCS_ENDPOINT=ftp://h", "must be an http or https address"),
        ("azure://b?AZURE_ACCOUNT_NAME=n&AZURE_ACCOUNT_KEY=a/b+c", "must be base 64"),
        ("azure://b?AZURE_ACCOUNT_KEY=aw==", "AZURE_ACCOUNT_NAME must be provided"),
        ("azure://b?AZURE_ACCOUNT_NAME=n&AZURE_CLIENT_ID=i", "AZURE_CLIENT_SECRET is not set"),
        ("hdfs:///x", "needs the name node"),
        ("https:///x", "needs one host"),
        ("https://h/x?manifest=yes", "needs a listing"),
        ("file:///x?partition_format=flat&manifest=yes", "has none"),
        ("file:///x?partition_format=weekly", "param partition_format must be one of"),
    ],
)
def test_what_a_uri_may_not_be(uri: str, message: str) -> None:
    problems = check(uri)
    assert any(message in problem.message for problem in problems), problems
    assert not any("a/b+c" in f"{p.message}{p.hint}" for p in problems)


def test_options_that_do_not_fit() -> None:
    with pytest.raises(ChangefeedError, match="incompatible with compression=lz4"):
        FilesSettings.read("file:///x", {"format": "avro", "compression": "lz4"})
    with pytest.raises(ChangefeedError, match="needs the option resolved"):
        FilesSettings.read("file:///x?manifest=yes", {"resolved": None})
    with pytest.raises(Problems):
        FilesSettings.read("s3://b?partition_format=x&zzz=1")
    # One wrong parameter does not make the others unknown.
    assert len(check("file:///x?partition_format=x&manifest=yes&file_size=0")) == 2
    assert FilesSettings.read("file:///x", {"compression": "lz4"}).extension == "ndjson.lz4"
    assert (
        FilesSettings.read("file:///x", {"format": "parquet", "compression": "lz4"}).extension
        == "parquet"
    )


def test_secrets_of_uris_are_hidden() -> None:
    shown = [
        sink_location(f"s3://bucket/x?{KEYS}&AWS_SESSION_TOKEN=hidden"),
        sink_location(f"gs://bucket?CREDENTIALS={ACCOUNT}&BEARER_TOKEN=hidden"),
        sink_location("azure://b?AZURE_ACCOUNT_NAME=n&AZURE_ACCOUNT_KEY=hidden"),
        sink_location("azure://b?AZURE_ACCOUNT_NAME=n&AZURE_CLIENT_SECRET=hidden"),
        sink_location("https://al:hidden@h/x"),
        sink_location("webhook-https://h/x?code=hidden&sig=hidden&token=hidden"),
    ]
    for text in shown:
        assert "hidden" not in text and ACCOUNT not in text and "a%2Fb" not in text, text


def test_clients_are_made_without_connecting() -> None:
    """What we hand over is what the client library takes."""
    uris = [
        f"s3://bucket?{KEYS}&AWS_REGION=eu-west-1",
        "gs://bucket?BEARER_TOKEN=tok",
        "azure://box?AZURE_ACCOUNT_NAME=n&AZURE_ACCOUNT_KEY=aw==",
    ]
    store = functools.partial(open_objects, clock=SystemClock(), lists=False, google_seconds=1)
    names = [store(FilesSettings.read(uri).place)._system.type_name for uri in uris]
    assert names == ["s3", "gcs", "abfs"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("When x: AWS Error ACCESS_DENIED during PutObject operation: secret", "CF5002"),
        ("AWS Error SLOW_DOWN during PutObject operation: secret", "CF5004"),
        ("AWS Error NO_SUCH_BUCKET during PutObject operation: secret", "CF5002"),
        ("AWS Error INTERNAL_FAILURE during PutObject (HTTP status 500): secret", "CF5001"),
        (
            "AWS Error NETWORK_CONNECTION during x: curlCode: 7, Couldn't connect to secret",
            "CF5001",
        ),
        ("google::cloud::Status(PERMISSION_DENIED: Permanent error, with secret)", "CF5002"),
        ("google::cloud::Status(NOT_FOUND: secret metadata={http_status_code=404}})", "CF5002"),
        (
            "google::cloud::Status(UNAVAILABLE: CURL error [7]=Could not connect error_info=",
            "CF5001",
        ),
        (
            "google::cloud::Status(PERMISSION_DENIED: Permanent error, with a last message of "
            "secret error_info={reason=rateLimitExceeded, domain=usageLimits, "
            "metadata={http_status_code=403}})",
            "CF5004",
        ),
        ("AWS Error REQUEST_TIME_TOO_SKEWED during PutObject operation: secret", "CF5001"),
        ("AWS Error REQUEST_TIME_TOO_SKEWED (HTTP status 403): with a secret", "CF5001"),
        ("UploadFrom failed for 'x'. Azure Error: [AuthenticationFailed] 403 secret", "CF5002"),
        ("HNS support on 'x' failed. Azure Error: [] 403 secret", "CF5002"),
        ("UploadFrom failed for 'x'. Azure Error: [ContainerNotFound] 404 secret", "CF5002"),
        ("StageBlock failed for 'x'. Azure Error: [ServerBusy] 503 secret", "CF5004"),
        ("Azure Error: [] Fail to get a new connection for: secret", "CF5001"),
        ("something else with a secret", "CF5001"),
    ],
)
def test_texts_of_the_stores(text: str, code: str) -> None:
    error = explain("s3://bucket", OSError(text))
    assert error.code.number == code, error.message
    assert "with a secret" not in error.message


@pytest.mark.parametrize("name", ["Azure::Core::Credentials::", "N5Azure4Core11Credentials23"])
@pytest.mark.parametrize(
    ("text", "code", "shown"),
    [
        (
            'error response: 401 Unauthorized {"x": "AADSTS7000215: secret"}',
            "CF5002",
            "AADSTS7000215",
        ),
        ("error response: 400 Bad Request connection secret", "CF5002", "refused the login: 400"),
        ("error response: 429 Too Many Requests secret", "CF5004", "429"),
        ("error response: 503 secret", "CF5001", "503"),
        ("Fail to get a new connection for: https://secret. Could not connect", "CF5001", "reach"),
        ("Failed to get token from DefaultAzureCredential. secret", "CF5002", "refused the login"),
    ],
)
def test_a_login_that_entra_refuses(name: str, text: str, code: str, shown: str) -> None:
    """The client's error is no OSError, and says only in its text what it is."""
    error = pa.ArrowException(
        f"Unknown error: x: {name}AuthenticationExceptionE: GetToken(): {text}"
    )
    with pytest.raises(ChangefeedError) as caught, explained("azure://box"):
        raise error
    assert caught.value.code.number == code and shown in caught.value.message
    assert "secret" not in caught.value.message


class LoginEnds:
    """A filesystem, as far as the place uses it, that copies and then lets nobody in."""

    def __init__(self) -> None:
        self.copied: list[str] = []

    def open_output_stream(self, path: str, compression: None) -> pa.NativeFile:
        return pa.BufferOutputStream()

    def copy_file(self, source: str, target: str) -> None:
        self.copied.append(target)

    def refuse(self, *_: object) -> Any:
        raise pa.ArrowException("Credentials::AuthenticationException")

    get_file_info = delete_dir = delete_file = refuse


def test_what_is_only_tidiness_never_fails() -> None:
    """A file that has its name would be written again, under another."""
    client = LoginEnds()
    place = ObjectPlace(lambda: client, "box/x", "azure://box/x", SystemClock(), way=COPY)
    place.prepare(1, "s")
    place.put("a", b"1")
    place.remove(["a", "b"])
    assert client.copied == ["box/x/a"]


@pytest.mark.parametrize("way", [COPY, MOVE])
def test_only_our_own_leftovers_are_swept(way: str, tmp_path: Path) -> None:
    """``.tmp`` is a name that other programs take, too."""
    place = ObjectPlace(fs.LocalFileSystem, str(tmp_path), "hdfs://nn", SystemClock(), way=way)
    if way == MOVE:
        made = place._temporary(pa.py_buffer(b"x"))
    else:
        made = f"{tmp_path}/.tmp/{'a' * 16}/part"
    ours = Path(made).relative_to(tmp_path).as_posix()
    other = f".tmp/{'c' * 16}/part" if way == MOVE else f".tmp/{'c' * 16}"
    foreign = {
        ".tmp/theirs", ".tmp/other/part", f".tmp/other/{'a' * 16}", f".tmp/other/{'a' * 16}x/part",
        f".tmp/{'b' * 16}/part", f".tmp/{'b' * 16}/more", f".tmp/{'A' * 16}", other,
    }  # fmt: skip
    young = ".tmp/" + "d" * 16 + ("/part" if way == COPY else "")
    for name in (ours, young, *foreign):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
        if name != young:
            os.utime(path, (1.0, 1.0))
    place._sweep()
    left = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()}
    assert left == foreign | {young}

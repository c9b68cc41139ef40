"""Which half of the tests a test falls into, and with which others it shares a worker."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests import selection, workers

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]

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
    items[:], _ = selection.split(items)
    selection.select(items)
    items[:], _ = selection.in_share(items)

def pytest_configure(config):
    for name in ("everything", "extended", "nemesis", "bigquery"):
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

@pytest.mark.parametrize(
    "kind", ["snowflake", "duckdb", pytest.param("x", marks=pytest.mark.bigquery)]
)
def test_warehouse(kind): pass

@pytest.mark.parametrize("rows", ["at-once", "one-by-one"])
def test_rows(rows): pass

@pytest.mark.parametrize(
    "place", ["disk", pytest.param("s3", marks=[pytest.mark.everything, pytest.mark.extended])]
)
def test_repeated(place): pass
"""


def collected(pytester: pytest.Pytester, expression: str) -> set[str]:
    run = pytester.runpytest_inprocess("--collect-only", "-q", "-m", expression)
    return {line.partition("::")[2] for line in run.outlines if "::" in line}


def write_tests(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    folder = pytester.mkpydir("tests") / "conformance"
    folder.mkdir()
    pytester.path.joinpath("tests", "__init__.py").unlink()
    folder.joinpath("test_made.py").write_text(TESTS)


@pytest.fixture(autouse=True)
def usual_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHANGEFEED_TESTS", raising=False)
    monkeypatch.delenv("CHANGEFEED_SHARE", raising=False)


def test_a_test_belongs_to_a_half_by_what_it_uses(pytester: pytest.Pytester) -> None:
    write_tests(pytester)
    first = collected(pytester, "not extended")
    assert first == {
        "test_usual",
        "test_versions[16]",
        "test_other_versions[17]",
        "test_lake[delta on s3a]",
        "test_warehouse[snowflake]",
        "test_rows[at-once]",
        "test_repeated[disk]",
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
        "test_warehouse[duckdb]",
        "test_warehouse[x]",
        "test_rows[one-by-one]",
    }


def test_what_others_prove_runs_when_everything_is_wanted(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tests(pytester)
    usual = collected(pytester, "extended or not extended")
    monkeypatch.setenv("CHANGEFEED_TESTS", "all")
    assert collected(pytester, "extended or not extended") - usual == {"test_repeated[s3]"}
    assert "test_repeated[s3]" in collected(pytester, "extended")


def test_shares_are_the_second_half_and_leave_the_first_whole(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tests(pytester)
    first, second = collected(pytester, "not extended"), collected(pytester, "extended")
    shares = []
    for share in ("1/3", "2/3", "3/3"):
        monkeypatch.setenv("CHANGEFEED_SHARE", share)
        assert collected(pytester, "not extended") == first
        shares.append(collected(pytester, "extended"))
    assert sorted(itertools.chain(*shares)) == sorted(second), "each test is in one share"
    assert all(share < second for share in shares)


@pytest.mark.parametrize("text", ["0/3", "4/3", "2", "x/3", "2/"])
def test_a_share_that_is_none_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHANGEFEED_SHARE", text)
    with pytest.raises(pytest.UsageError, match="a share is written as 2/3"):
        selection.share()


def test_files_that_use_one_server_share_a_worker() -> None:
    kafka = workers.group("tests/conformance/test_sinks_kafka.py")
    assert kafka == workers.group("tests/faults/test_kafka_exactly_once.py") == "kafka"
    lake, feeds = "tests/conformance/test_lake.py", "tests/e2e/test_lake.py"
    assert workers.group(lake) == workers.group("tests/faults/test_spark_session.py") == "spark"
    assert workers.group(feeds) == "spark end to end"
    for name in workers.OWN_SPARK:
        assert (ROOT / "tests" / "e2e" / name).is_file()
        assert workers.group(f"tests/e2e/{name}") == "spark clusters"
    for name in workers.ALONE:
        file = f"tests/e2e/{name}"
        assert (ROOT / file).is_file() and workers.group(file) == file
    assert workers.group("tests/nemesis/test_nemesis.py") == "spark nemesis"
    assert workers.group("tests/unit/test_uri.py") == "tests/unit/test_uri.py"


def test_long_tests_begin_first_and_groups_stay_together() -> None:
    files = sorted(file.relative_to(ROOT) for file in (ROOT / "tests").rglob("test_*.py"))
    order = sorted((f"{file}::test_x" for file in files), key=workers.rank)
    groups = [workers.group(nodeid.partition("::")[0]) for nodeid in order]
    assert groups[0] == "spark"
    wheel = workers.group("tests/hygiene/test_wheel.py")
    assert groups.index(wheel) < groups.index("tests/unit/test_uri.py")
    assert groups.index("tests/unit/test_shipping.py") < groups.index("tests/unit/test_api.py")
    assert groups[-1].startswith("tests/unit/")
    assert len([name for name, _ in itertools.groupby(groups)]) == len(set(groups))

"""Which tests `make test` leaves to `make test-all`.

`make test` proves every layer against one server of each kind: PostgreSQL, Kafka, Elasticsearch,
Delta, S3, and a stand-in for a cloud warehouse (Snowflake). `make test-all` adds the other
versions of these servers, the other stand-ins, stores and lake formats, and random faults. A test
belongs to this second half, which has the marker ``extended``, by what it uses; one that is there
because it takes long bears the marker itself.

A test with the marker ``everything`` is in neither half: it takes long, and others prove the same
code. It runs with ``CHANGEFEED_TESTS=all`` in the environment.

``CHANGEFEED_SHARE=2/3`` runs the second of three shares of the second half, and all of the first
half. CI takes the shares in turn, so that three runs of it are one of ``make test-all``.
"""

from __future__ import annotations

import os
import zlib
from collections import defaultdict
from collections.abc import Iterable

import pytest

from tests.services.elasticsearch import DEFAULT_MAJOR as ELASTICSEARCH_MAJOR
from tests.services.postgres import DEFAULT_MAJOR as POSTGRES_MAJOR

#: Markers of tests that belong to the second half.
MARKERS = ("extended", "nemesis", "bigquery", "clickhouse", "spanner")
#: Fixtures of servers beside the one of their kind that `make test` uses.
OTHER_SERVERS = frozenset({"azure", "gcs", "hdfs", "mariadb", "opensearch", "own_hdfs"})
#: Parameters of server tests that name a server, store or lake format beside the usual one.
OTHER_WORDS = frozenset({"azure", "duckdb", "gcs", "hdfs", "iceberg", "mysql8", "one-by-one"})
SERVER_TESTS = ("tests/conformance/", "tests/e2e/", "tests/faults/")
#: Of fixtures with a version as their parameter: the one that `make test` uses.
USUAL = {
    "elasticsearch": ELASTICSEARCH_MAJOR,
    "own_postgres": POSTGRES_MAJOR,
    "postgres": POSTGRES_MAJOR,
}


def split(items: Iterable[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The tests that run, and those that wait for ``CHANGEFEED_TESTS=all``."""
    everything = os.environ.get("CHANGEFEED_TESTS") == "all"
    run: list[pytest.Item] = []
    rest: list[pytest.Item] = []
    for item in items:
        waits = item.get_closest_marker("everything") is not None and not everything
        (rest if waits else run).append(item)
    return run, rest


def share() -> tuple[int, int] | None:
    """``(2, 3)`` of ``CHANGEFEED_SHARE=2/3``; ``None`` where all of the second half runs.

    Raises:
        pytest.UsageError: there is no such share.
    """
    text = os.environ.get("CHANGEFEED_SHARE", "")
    if not text:
        return None
    one, _, of = text.partition("/")
    if not (one.isdecimal() and of.isdecimal() and 1 <= int(one) <= int(of)):
        raise pytest.UsageError(f"CHANGEFEED_SHARE={text!r}: a share is written as 2/3")
    return int(one), int(of)


def in_share(items: Iterable[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The tests that run, and those of other shares; which share has a test depends on its name.

    Call it after :func:`select`.
    """
    run: list[pytest.Item] = []
    rest: list[pytest.Item] = []
    wanted = share()
    for item in items:
        name = zlib.crc32(item.nodeid.encode())
        left = wanted and item.get_closest_marker("extended") and name % wanted[1] + 1 != wanted[0]
        (rest if left else run).append(item)
    return run, rest


def _parameters(item: pytest.Function) -> dict[str, object]:
    return dict(item.callspec.params) if hasattr(item, "callspec") else {}


def _words(item: pytest.Function) -> set[str]:
    """The words of all parameters that are texts: ``delta on hdfs`` has three."""
    texts = (value for value in _parameters(item).values() if isinstance(value, str))
    return {word for text in texts for word in text.split()}


def _uses_another(item: pytest.Function) -> bool:
    if any(item.get_closest_marker(name) for name in MARKERS):
        return True
    if OTHER_SERVERS.intersection(item.fixturenames):
        return True
    return item.nodeid.startswith(SERVER_TESTS) and bool(OTHER_WORDS & _words(item))


def select(items: Iterable[pytest.Item]) -> None:
    """Give the marker ``extended`` to the tests that only `make test-all` runs.

    Of a test that names versions, the usual one stays in the first half; of one that does not name
    the usual version, the newest that it names.
    """
    functions = [item for item in items if isinstance(item, pytest.Function)]
    named: dict[tuple[str, str], set[int]] = defaultdict(set)
    for item in functions:
        for fixture, version in _versions(item):
            named[item.nodeid.partition("[")[0], fixture].add(version)
    for item in functions:
        test = item.nodeid.partition("[")[0]
        other_version = any(
            version != (USUAL[fixture] if USUAL[fixture] in known else max(known))
            for fixture, version in _versions(item)
            for known in [named[test, fixture]]
        )
        if other_version or _uses_another(item):
            item.add_marker(pytest.mark.extended)


def _versions(item: pytest.Function) -> Iterable[tuple[str, int]]:
    for fixture, value in _parameters(item).items():
        if fixture in USUAL and isinstance(value, int):
            yield fixture, value

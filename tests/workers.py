"""Which tests share a worker when pytest-xdist runs them, and which begin first.

Tests of one file stay together, as the fixtures of a module do. Files that use the same server
share a worker if it takes long to start, so that it is started once. The many files on Spark make
four groups, each with a JVM of its own: the end-to-end tests, those that start a cluster or another
PySpark and share little anyway, the nemesis, and the others; a file that uses no session of other
files is alone. What takes longest begins first.

The process that distributes tests knows their names only, so the text of a file says what it uses.
(The marker ``xdist_group`` has no effect with pytest 9.2 and pytest-xdist 3.8.)
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling

ROOT = Path(__file__).parents[1]
#: Servers that take long to start, in the order in which their tests begin.
SERVERS = ("spark", "bigquery", "elasticsearch", "kafka", "snowflake", "clickhouse", "spanner")
#: End-to-end tests that start a cluster, or run another PySpark.
OWN_SPARK = (
    "test_pyspark_versions.py",
    "test_spark_cluster.py",
    "test_spark_cluster_queries.py",
    "test_spark_staging.py",
)
#: End-to-end tests that share no Spark with other files: the one group would take longest by far.
ALONE = (
    "test_attached_spark.py",
    "test_dataset_tables.py",
    "test_mysql_feeds.py",
    "test_shell.py",
)
#: Folders and markers in the order in which the tests of the other files begin. A test of the unit
#: tests that is extended takes a minute: if it began last, a core would be idle meanwhile.
OTHERS = ("nemesis", "e2e", "faults", "conformance", "services", "extended", "properties")

_MARKER = re.compile(r"\bpytest\.mark\.(\w+)")


@cache
def markers(file: str) -> frozenset[str]:
    """The markers that the text of a file names."""
    path = ROOT / file
    return frozenset(_MARKER.findall(path.read_text())) if path.is_file() else frozenset()


@cache
def group(file: str) -> str:
    """The name of the group of a test file, given relative to the repository."""
    server = next((name for name in SERVERS if name in markers(file)), None)
    if server != "spark":
        return server or file
    if file.startswith("tests/nemesis/"):
        return "spark nemesis"
    if not file.startswith("tests/e2e/"):
        return "spark"
    if Path(file).name in ALONE:
        return file
    return "spark clusters" if Path(file).name in OWN_SPARK else "spark end to end"


def rank(nodeid: str) -> tuple[int, str]:
    """A key that sorts tests by when they should begin; those of a group stay together."""
    name = group(nodeid.partition("::")[0])
    words = [*SERVERS, *OTHERS]
    about = {name.partition(" ")[0], *Path(name).parts, *markers(name)}
    return next((n for n, word in enumerate(words) if word in about), len(words)), name


class ByServer(LoadFileScheduling):
    """Gives a worker all tests of a group."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid.partition("::")[0])

"""Reading Delta and Iceberg tables of a place in tests, as somebody else's Spark would."""

from __future__ import annotations

import itertools
import json
import string
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from changefeed.spark.session import NodeSpark
from sinks.lake import iceberg
from sinks.lake.place import LakePlace, place_of
from tests.services.s3 import KEY, SECRET, S3Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_numbers = itertools.count(1)


def unused_catalog() -> str:
    """A name for a catalog: a session keeps the first place it was told for one."""
    return f"catalog{time.time_ns()}_{next(_numbers)}"


def place_in(kind: str, folder: Path) -> str:
    """The URI of a sink of its own."""
    if kind == "delta":
        return f"delta://{folder}/lake"
    return f"iceberg://{unused_catalog()}/shop?type=hadoop&warehouse={folder}/lake"


def by_hadoop(s3: S3Server) -> dict[str, str]:
    """The store as Hadoop's filesystem knows it."""
    return {
        "fs.s3a.endpoint": f"http://127.0.0.1:{s3.port}",
        "fs.s3a.endpoint.region": "us-east-1",
        "fs.s3a.access.key": KEY,
        "fs.s3a.secret.key": SECRET,
        "fs.s3a.path.style.access": "true",
        "fs.s3a.connection.ssl.enabled": "false",
    }


def in_a_store(s3: S3Server, bucket: str) -> str:
    """Delta tables in a bucket."""
    return f"delta:///s3a://{s3.bucket(bucket)}/lake?{urlencode(by_hadoop(s3))}"


@dataclass(frozen=True)
class Lake:
    """The tables of one sink URI."""

    engine: NodeSpark
    uri: str

    @property
    def format(self) -> str:
        """``delta`` or ``iceberg``."""
        return place_of(self.uri).format

    def table(self, name: str) -> str:
        """The table in SQL."""
        place = place_of(self.uri)
        if place.format == "delta":
            return f"delta.`{place.root}/{name}`"
        return ".".join(f"`{part}`" for part in (place.catalog, *place.namespace, name))

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a query; ``{t}`` in it is the table ``t``."""
        place = place_of(self.uri)
        with self.engine.use(packs=place.packs) as session:
            _tell(session, place)
            names = {part: self.table(part) for part in _names(sql)}
            return [tuple(row) for row in session.sql(sql.format(**names)).collect()]

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Everything a table holds; nothing where there is no such table."""
        place = place_of(self.uri)
        with self.engine.use(packs=place.packs) as session:
            _tell(session, place)
            if place.format == "iceberg":
                if not session.catalog.tableExists(self.table(name)):
                    return []
            else:
                java: Any = session.sparkContext._jvm
                tables = java.io.delta.tables.DeltaTable
                if not tables.isDeltaTable(session._jsparkSession, f"{place.root}/{name}"):
                    return []
            return [row.asDict() for row in session.table(self.table(name)).collect()]

    def columns(self, name: str) -> dict[str, str]:
        """Name to type."""
        return {row[0]: row[1] for row in self.query(f"describe {{{name}}}") if row[0]}

    def commits(self, name: str) -> list[tuple[int, dict[str, str]]]:
        """The versions of a table whose commits say something of themselves, oldest first: the
        number to read each by, and what it says."""
        if place_of(self.uri).format == "delta":
            found = self.query(f"describe history {{{name}}}")
            return [(row[0], json.loads(row[13])) for row in reversed(found) if row[13]]
        snapshots = f"{self.table(name)}.snapshots"
        rows = self.query(f"select snapshot_id, summary from {snapshots} order by committed_at")
        ours = [
            (number, {key: said for key, said in summary.items() if key.startswith("changefeed.")})
            for number, summary in rows
        ]
        return [(number, notes) for number, notes in ours if notes]

    def notes(self, name: str) -> list[dict[str, str]]:
        """What the commits of a table say of themselves, oldest first."""
        return [notes for _, notes in self.commits(name)]


def _tell(session: SparkSession, place: LakePlace) -> None:
    """Let a session reach the place."""
    known = iceberg.settings(place) if place.format == "iceberg" else dict(place.settings)
    for name, value in known.items():
        session.conf.set(name, value)


def _names(sql: str) -> list[str]:
    return [field for _, field, _, _ in string.Formatter().parse(sql) if field]

"""VALIDATE's look at a place: reach, login, and what is there already. Without Spark, whose start
takes longer than a person likes to wait; it makes nothing.

What only Spark can reach (other filesystems than a disk and S3, other databases than PostgreSQL,
other logins of a REST catalog than tokens and OAuth clients) is not looked at, which
:func:`overlooked` says. Of HDFS it is known whether there is a server at the NameNode's address.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

import pyarrow as pa

from changefeed.core.errors import ChangefeedError, Code
from sinks.base import SinkContext, Target
from sinks.lake.files import Files
from sinks.lake.look_iceberg import HadoopLook, JdbcLook, RestLook
from sinks.lake.place import LakePlace
from sinks.lake.shape import fit, wanted
from sinks.lake.table import marks_of
from sinks.merged.policy import TablePolicy
from sinks.ownership import Owner, claim, living


class Look(Protocol):
    """One place, seen from outside."""

    def reach(self) -> None:
        """Raises ChangefeedError: CF5001, CF5002, CF5003."""

    def columns(self, name: str) -> dict[str, str] | None:
        """The columns of a table, name to Spark's type; None where there is no such table.

        Raises:
            ChangefeedError: CF5006, something else is in its way.
        """

    def properties(self, name: str) -> tuple[dict[str, str], bool]:
        """The properties of a table that is there, and whether it may hold rows."""


def overlooked(place: LakePlace) -> str:
    """What :func:`problems` cannot see at a place, as a sentence; empty when it sees all it
    looks for."""
    look = _look_at(place)
    if look is None:
        return f"{place.shown} was not checked: only Spark can do that, when the feed runs"
    if isinstance(look, HdfsLook):
        return (
            f"of {place.shown} only the NameNode's address was checked; rights and existing "
            "tables are known when the feed runs"
        )
    return ""


def problems(place: LakePlace, policy: TablePolicy, context: SinkContext) -> list[ChangefeedError]:
    """What would hinder a feed of the context's tables at the place."""
    look = _look_at(place)
    if look is None:
        return []
    try:
        look.reach()
        return [
            each
            for target in context.targets
            for each in (
                *_of_owner(look, place, policy, target, context),
                *_of_table(look, place, policy, target),
            )
        ]
    except ChangefeedError as error:
        return [error]


def _of_owner(
    look: Look,
    place: LakePlace,
    policy: TablePolicy,
    target: Target,
    context: SinkContext,
) -> list[ChangefeedError]:
    """Whose the target is, if that stands in the way."""
    try:
        present = look.columns(target.topic)
        if present is None or target.schema is None:
            return []
        properties, rows = look.properties(target.topic)
        own = Owner.of(context, target)
        marks = marks_of(properties)
        claim(
            own,
            marks,
            feeds=living(context),
            policy=policy.existing,
            exists=True,
            holds_rows=lambda: rows,
            what=f"table {target.topic} of {place.shown}",
            usable=not marks or policy.sequence in present,
        )
    except ChangefeedError as error:
        # What else is wrong with the table is found by the look at its columns.
        return [error] if error.code is Code.TARGET_NOT_OURS else []
    except (ValueError, KeyError, TypeError):
        return []
    return []


def _of_table(
    look: Look, place: LakePlace, policy: TablePolicy, target: Target
) -> list[ChangefeedError]:
    try:
        present = look.columns(target.topic)
        if target.schema is None:
            return []
        if present is None:
            wanted(target.schema, policy, place.format)
            return []
        return fit(target.schema, policy, place.format, present).problems
    except ChangefeedError as error:
        if error.code is not Code.SINK_CANNOT_TAKE_TABLE:
            raise
        return [error]
    except (ValueError, KeyError, TypeError):
        # What is there is not written as the format's documents say.
        return [
            ChangefeedError(
                Code.SINK_CANNOT_TAKE_TABLE,
                f"the metadata of target {target.topic} cannot be read",
                hint="see whether Spark can read the table.",
            )
        ]


def _look_at(place: LakePlace) -> Look | None:
    settings = dict(place.settings)
    kind = settings.get("type", "")
    files = Files(settings)
    if kind == "rest":
        return RestLook(place, settings) if RestLook.knows(settings) else None
    address = urlsplit(place.root)
    if kind != "jdbc" and address.scheme.lower() == "hdfs" and address.port:
        return HdfsLook(place, address.hostname or "", address.port)
    if not files.knows(place.root):
        return None
    if kind == "jdbc":
        known = settings["uri"].startswith("jdbc:postgresql:")
        return JdbcLook(place, settings, files) if known else None
    return DeltaLook(place, files) if place.format == "delta" else HadoopLook(place, files)


# ------------------------------------------------------------------------------- HDFS

#: Seconds for a connection to a NameNode.
CONNECT_SECONDS = 5.0


class HdfsLook:
    """The NameNode's address. A name without a port may be one of a cluster's own configuration,
    which Spark reads."""

    def __init__(self, place: LakePlace, host: str, port: int) -> None:
        self._place = place
        self._address = host, port

    def reach(self) -> None:
        try:
            socket.create_connection(self._address, CONNECT_SECONDS).close()
        except OSError as failure:
            raise ChangefeedError(
                Code.SINK_UNREACHABLE,
                f"cannot reach {self._place.shown}",
                detail=type(failure).__name__,
                hint="the address is that of the NameNode's RPC (fs.defaultFS of its cluster).",
            ) from None

    def columns(self, name: str) -> None:
        return None

    def properties(self, name: str) -> tuple[dict[str, str], bool]:
        return {}, False


# ------------------------------------------------------------------------------ Delta

_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.(?:.*\.)?(parquet|json)\Z")
_COMMIT = re.compile(r"(\d{20})\.json\Z")


#: Names of Delta's types that are others in SQL.
_DELTA = {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint"}


class DeltaLook:
    """Directories with a log of Delta's."""

    def __init__(self, place: LakePlace, files: Files) -> None:
        self._root = place.root
        self._files = files

    def reach(self) -> None:
        self._files.check(self._root)

    def columns(self, name: str) -> dict[str, str] | None:
        table = f"{self._root}/{name}"
        logged = self._files.names(f"{table}/_delta_log")
        metadata = self._metadata(f"{table}/_delta_log", logged)
        if metadata is not None:
            schema = json.loads(metadata["schemaString"])
            return {field["name"]: _type(field["type"]) for field in schema["fields"]}
        if self._files.names(table):
            raise ChangefeedError(
                Code.SINK_CANNOT_TAKE_TABLE,
                f"{table} has files in it and is no table of Delta's",
                hint="move them away, or choose another target with AS.",
            )
        return None

    def properties(self, name: str) -> tuple[dict[str, str], bool]:
        log = f"{self._root}/{name}/_delta_log"
        names = self._files.names(log)
        found = self._metadata(log, names) or {}
        return found.get("configuration") or {}, self._holds_rows(log, names)

    def _holds_rows(self, log: str, names: Sequence[str]) -> bool:
        """Files were added that were not removed since; of what a checkpoint sums up that is not
        looked at."""
        if any(_CHECKPOINT.match(name) for name in names):
            return True
        files: set[str] = set()
        for name in sorted(filter(_COMMIT.match, names)):
            for line in self._files.read(f"{log}/{name}").splitlines():
                action = json.loads(line)
                if "remove" in action:
                    files.discard(action["remove"]["path"])
                if "add" in action:
                    files.add(action["add"]["path"])
        return bool(files)

    def _metadata(self, log: str, names: Sequence[str]) -> dict[str, Any] | None:
        """The newest one in the log: in a commit, or else in a checkpoint before."""
        parts: list[tuple[str, int, str]] = []
        for name in names:
            commit, checkpoint = _COMMIT.match(name), _CHECKPOINT.match(name)
            if commit:
                parts.append((commit[1], 1, name))
            elif checkpoint:
                parts.append((checkpoint[1], 0, name))
        for _, _, name in sorted(parts, reverse=True):
            path = f"{log}/{name}"
            if name.endswith(".parquet"):
                with self._files.opened(path) as file:
                    found = _in_parquet(file)
            else:
                found = _in_lines(self._files.read(path))
            if found is not None:
                return found
        return None


def _in_lines(content: bytes) -> dict[str, Any] | None:
    for line in content.splitlines():
        if b'"metaData"' in line:
            found: dict[str, Any] | None = json.loads(line).get("metaData")
            if found:
                return found
    return None


def _in_parquet(file: pa.NativeFile) -> dict[str, Any] | None:
    import pyarrow.parquet as pq

    column = pq.ParquetFile(file).read(columns=["metaData"])["metaData"]
    kept = column.drop_null().to_pylist()
    found = [row for row in kept if row.get("schemaString") is not None]
    if not found:
        return None
    # Arrow gives a map as pairs.
    return {**found[0], "configuration": dict(found[0].get("configuration") or ())}


def _type(kind: Any) -> str:
    """A type of Delta's schema: a name, or a mapping where it is nested."""
    if isinstance(kind, str):
        return _DELTA.get(kind, kind)
    if kind["type"] == "array":
        return f"array<{_type(kind['elementType'])}>"
    return str(kind["type"])

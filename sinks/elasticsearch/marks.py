"""Resolved timestamps: an index with a document for each feed and index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from changefeed.core.clock import Timestamp
from sinks.base import Target
from sinks.elasticsearch import body
from sinks.elasticsearch.bulk import Bulk
from sinks.elasticsearch.client import Cluster, path_of

#: A path of more characters than this may be more than a server takes (4 kB by default).
_PATH_LENGTH = 3_000

_FIELDS: dict[str, Any] = {
    "feed": {"type": "keyword"},
    "index": {"type": "keyword"},
    "table": {"type": "keyword"},
    "resolved": {"type": "keyword"},
    "time": {"type": "date", "fields": {"nanos": {"type": "date_nanos"}}},
}


def make_index(cluster: Cluster, index: str, fields: Mapping[str, Any]) -> None:
    """Make an index of our own unless it is there.

    Raises:
        ChangefeedError: as a request.
    """
    mappings = {"dynamic": False, "properties": fields}
    answer = cluster.call("PUT", path_of(index), {"mappings": mappings})
    if not answer.ok and answer.error_type != "resource_already_exists_exception":
        raise cluster.refusal(answer, f"make the index {index}")


def show(cluster: Cluster, indices: Iterable[str]) -> None:
    """Let searches see what was written to ``indices``; one that is not there is left out.

    Raises:
        ChangefeedError: as a request.
    """
    for names in _joined(indices):
        answer = cluster.call("POST", path_of(names, "_refresh"), ignore_unavailable="true")
        if not answer.ok and answer.status != 404:
            raise cluster.refusal(answer, f"refresh index {names}")


class Marks:
    """One document for each feed and index: everything up to ``resolved`` is in the index."""

    def __init__(self, cluster: Cluster, index: str) -> None:
        self._cluster = cluster
        self._index = index
        self._made = False
        #: Indices with rows that a search may not see yet; None is any of them.
        self._unseen: set[str] | None = None

    def wrote(self, index: str) -> None:
        """Record that ``index`` has new rows."""
        if self._unseen is not None:
            self._unseen.add(index)

    def forget(self) -> None:
        """Count no index as seen, because other processes may have written."""
        self._unseen = None

    def set(self, bulk: Bulk, feed: str, targets: Sequence[Target], at: Timestamp) -> None:
        """State a resolved timestamp of all ``targets``, once a search can see what it covers."""
        unseen = [target.topic for target in targets] if self._unseen is None else self._unseen
        show(self._cluster, sorted(unseen))
        self._unseen = set()
        if not self._made:
            make_index(self._cluster, self._index, _FIELDS)
            self._made = True
        documents = [self._document(feed, target, at) for target in targets]
        bulk.add(Target(targets[0].table, self._index), pa.array(documents, pa.binary()))
        bulk.settle()

    def _document(self, feed: str, target: Target, at: Timestamp) -> bytes:
        content = {
            "feed": feed,
            "index": target.topic,
            "table": str(target.table),
            "resolved": str(at),
            "time": f"{at.datetime():%Y-%m-%dT%H:%M:%S}.{at.wall % 1_000_000_000:09d}Z",
        }
        document_id = body.fitting_id(f"{feed}:{target.topic}")
        return body.document(self._index, document_id, at.version, content)


def _joined(indices: Iterable[str]) -> Iterator[str]:
    names: list[str] = []
    length = 0
    for index in indices:
        size = len(path_of(index))
        if names and length + size > _PATH_LENGTH:
            yield ",".join(names)
            names, length = [], 0
        names.append(index)
        length += size
    if names:
        yield ",".join(names)

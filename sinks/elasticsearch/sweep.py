"""Deleting what an index has below a version: TRUNCATE, and what a broken scan left behind.

Not ``_delete_by_query``: it deletes by Elasticsearch's own numbering and leaves the version of each
document plus one behind, so the same row delivered again would be turned away as too old. Here
each document is deleted with the version of the event; what is as new or newer stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from sinks.base import Target
from sinks.copies import exact
from sinks.elasticsearch import body
from sinks.elasticsearch.bulk import Bulk
from sinks.elasticsearch.client import Cluster, HttpAnswer, path_of, readable

PAGE = 5_000
#: Documents of a page that brings what they hold.
SOURCES = 1_000
_KEEP = "2m"
#: Versions of documents that others put into an index are counts; ours are nanoseconds since 1970.
FOREIGN_BELOW = 10**15
_FILTER = (
    "pit_id,hits.hits._index,hits.hits._id,hits.hits._version,hits.hits.sort,error.type,_shards"
)


def delete_below(
    cluster: Cluster, bulk: Bulk, target: Target, version: int, *, least: int = 0
) -> int:
    """Delete every document of a version from ``least`` up to below ``version``; durable on return.

    Returns how many. No index, nothing to do.

    Raises:
        ChangefeedError: as a request. Some documents may be deleted then, so it must be repeated.
    """
    refreshed = cluster.call("POST", path_of(target.topic, "_refresh"))
    if refreshed.status == 404:
        return 0
    if not refreshed.ok:
        raise cluster.refusal(refreshed, f"refresh index {target.topic}")
    count = 0
    for hits in documents(cluster, target):
        old = [hit for hit in hits if least <= hit["_version"] < version]
        # ``external``: a document of the same instant was written after the event, not before.
        lines = [body.deletion(h["_index"], h["_id"], version, "external") for h in old]
        if lines:
            bulk.add(target, pa.array(lines, pa.binary()))
        count += len(lines)
    bulk.settle()
    return count


def delete_all(cluster: Cluster, bulk: Bulk, target: Target) -> None:
    """Delete every document that others put there, each with the version that follows its own, so
    that the feed's rows are newer; durable on return.

    Raises:
        ChangefeedError: as :func:`delete_below`.
    """
    refreshed = cluster.call("POST", path_of(target.topic, "_refresh"))
    if not refreshed.ok:
        raise cluster.refusal(refreshed, f"refresh index {target.topic}")
    for hits in documents(cluster, target):
        lines = [body.deletion(h["_index"], h["_id"], h["_version"] + 1, "external") for h in hits]
        bulk.add(target, pa.array(lines, pa.binary()))
    bulk.settle()


def documents(
    cluster: Cluster, target: Target, *, source: bool = False
) -> Iterator[list[dict[str, Any]]]:
    """Ids and versions of all documents, at one point in time; with ``source`` what they hold, too,
    as :func:`sinks.copies.exact` reads it. No index, no documents."""
    opened = cluster.call("POST", path_of(target.topic, "_pit"), keep_alive=_KEEP)
    if opened.status == 404:
        return
    size = SOURCES if source else PAGE
    # A filtered answer is written again by the server, with numbers as doubles.
    shape = {"allow_partial_search_results": "false"}
    if not source:
        shape["filter_path"] = _FILTER
    found = _checked(cluster, opened, target)
    with readable():
        point = str(found["id"])
    after: object = None
    try:
        while True:
            query: dict[str, Any] = {
                "pit": {"id": point, "keep_alive": _KEEP},
                "size": size,
                "sort": ["_shard_doc"],
                "version": True,
                "_source": source,
                "track_total_hits": False,
            }
            if after is not None:
                query["search_after"] = after
            answer = cluster.call("POST", "/_search", query, lines=None, **shape)
            found = _checked(cluster, answer, target)
            if source:
                found = exact(answer.body)
            point = str(found.get("pit_id") or point)
            with readable():
                hits = [_hit(h, source) for h in (found.get("hits") or {}).get("hits") or []]
            if hits:
                yield hits
                after = hits[-1]["sort"]
            if len(hits) < size:
                return
    finally:
        # A point that is not closed ends by itself after the time it is kept.
        cluster.call("DELETE", "/_pit", {"id": point})


def _hit(hit: Mapping[str, Any], source: bool) -> dict[str, Any]:
    found = {
        "_index": str(hit["_index"]), "_id": str(hit["_id"]), "_version": int(hit["_version"]),
        "sort": hit["sort"],
    }  # fmt: skip
    return {**found, "_source": dict(hit["_source"])} if source else found


def _checked(cluster: Cluster, answer: HttpAnswer, target: Target) -> dict[str, Any]:
    found = answer.json()
    if not answer.ok or not isinstance(found, dict):
        raise cluster.refusal(answer, f"read index {target.topic}")
    return found

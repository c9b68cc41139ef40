"""Buckets that close: once a resolved timestamp is beyond a bucket, its files are listed.

A manifest names every file of one table and schema version in one bucket, in the form Amazon
Redshift's ``COPY .. MANIFEST`` reads; a bucket gets one only when nothing can be added to it.
It is made from a listing of the folder, so files of an earlier run, of executors and of the scan
are in it, and a crash between bucket and manifest is made good at the next resolved timestamp. That
is itself written after the manifests of all tables: a program that waits for it finds them all.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator

from sinks.files.names import DataName, Namer, parse_name
from sinks.files.places.base import FilePlace, ListedFile


def manifest(urls: list[tuple[str, int]]) -> bytes:
    """The content: ``url`` and bytes of each file.

    ``meta.content_length`` is what Redshift wants for columnar formats and does not mind for
    others.
    """
    entries = [
        {"url": url, "mandatory": True, "meta": {"content_length": size}} for url, size in urls
    ]
    return (json.dumps({"entries": entries}, indent=1) + "\n").encode()


class Closer:
    """Closes the buckets of one job."""

    def __init__(self, place: FilePlace, namer: Namer, job: int) -> None:
        self._place = place
        self._namer = namer
        self._job = job
        self._closed: int | None = None

    def close_before(self, wall: int) -> None:
        """Everything below ``wall`` was delivered: list the buckets that end there or before."""
        upto = self._namer.buckets.start(wall)
        if self._closed is not None and upto <= self._closed:
            return
        # Oldest first: after a crash the newest bucket with a manifest is where to go on.
        for start in sorted(self._unclosed(upto)):
            self._close(start)
        self._closed = upto

    def _unclosed(self, upto: int) -> Iterator[int]:
        """Buckets that end at ``upto`` or before, newest first, down to one that is closed.

        That one too unless we closed it ourselves: the end of an earlier run may have left it
        half done.
        """
        for start in self._buckets("", self._namer.buckets.pattern.count("/")):
            if start >= upto:
                continue
            if self._closed is not None and start < self._closed:
                return
            yield start
            if self._closed is None and self._done(start):
                return

    def _buckets(self, folder: str, depth: int) -> Iterator[int]:
        names = sorted(self._place.folders(folder), reverse=True)
        for name in names:
            path = f"{folder}/{name}" if folder else name
            if depth:
                if not name.startswith("."):
                    yield from self._buckets(path, depth - 1)
            elif (start := self._namer.buckets.begin(path)) is not None:
                yield start

    def _done(self, start: int) -> bool:
        _, made = self._content(start)
        return bool(made)

    def _content(self, start: int) -> tuple[dict[DataName, list[ListedFile]], set[str]]:
        folder = self._folder(start)
        tables: dict[DataName, list[ListedFile]] = defaultdict(list)
        made: set[str] = set()
        for listed in self._place.files(folder):
            said = parse_name(listed.name)
            if said is not None and said.job == self._job:
                tables[said].append(listed)
            elif listed.name.endswith(".manifest") and f"-{self._job}-" in listed.name:
                made.add(f"{folder}/{listed.name}")
        return tables, made

    def _folder(self, start: int) -> str:
        return self._namer.manifest(start, DataName(self._job, "", 0)).rpartition("/")[0]

    def _close(self, start: int) -> None:
        tables, made = self._content(start)
        folder = self._folder(start)
        for said, files in sorted(tables.items(), key=lambda item: item[0].topic):
            name = self._namer.manifest(start, said)
            if name in made:
                continue
            urls = [
                (self._place.url(f"{folder}/{listed.name}"), listed.bytes)
                for listed in sorted(files, key=lambda listed: listed.name)
            ]
            self._place.put(name, manifest(urls))

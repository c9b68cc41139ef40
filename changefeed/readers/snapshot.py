"""A table as it is now, of a source that nobody has to follow: a reader made for one query.

The reader makes its scan and is dropped, and with the last feed of a state goes what the state
held at the source. The files of the scan stay for those who read the query's ranges, as nobody
says when they have read them; a later query removes them.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

from changefeed.api import Interpreter, Session
from changefeed.catalog import Catalog
from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableSchema
from changefeed.readers.own_node import OwnNode, until_begun
from changefeed.readers.reader import READERS, Reader
from changefeed.readers.table_log import TableRanges
from grammar import nodes

#: How names of such readers begin.
PREFIX = "snapshot_"

#: How long the rows of a query are kept, seconds.
KEEP_SECONDS = 86_400.0


def snapshot(
    state: str, table: str, shape: TableSchema, node: OwnNode, clock: Clock = SYSTEM_CLOCK
) -> TableRanges:
    """The rows of a table at one instant, from now on.

    Args:
        state: directory or URL of the state, for which ``node`` runs.
        table: ``connection.schema.table``.
        node: runs the scan.

    Raises:
        ChangefeedError: what keeps the table from being read.
    """
    name = PREFIX + uuid.uuid4().hex[:12]
    reader = Reader.open(state, name, table)
    try:
        try:
            reader.occupy()
            _clean(reader.catalog, clock)
            begun = until_begun(reader, node, clock)
            return reader.work(None, begun, shape)
        finally:
            _drop(reader.catalog, name)
    finally:
        reader.close()


def _drop(catalog: Catalog, name: str) -> None:
    Interpreter(catalog).execute(
        nodes.DropChangefeed((nodes.FeedRef(name),), if_exists=True), Session(client="reader")
    )


def _clean(catalog: Catalog, clock: Clock) -> None:
    """Drop readers of queries that were killed, and remove the rows of old ones."""
    for job in catalog.jobs(include_finished=False):
        if job.name.startswith(PREFIX) and not _occupied(catalog, job.name):
            _drop(catalog, job.name)
    kept = {job.name for job in catalog.jobs()}
    oldest = clock.now().wall / 1e9 - KEEP_SECONDS
    for folder in Path(catalog.directory, READERS).glob(f"{PREFIX}*"):
        if folder.name not in kept and folder.stat().st_mtime < oldest:
            shutil.rmtree(folder, ignore_errors=True)


def _occupied(catalog: Catalog, name: str) -> bool:
    sink = Reader(catalog, name).sink()
    try:
        sink.occupy(0)
    except ChangefeedError as error:
        if error.code is not Code.WRONG_JOB_STATE:
            raise
        return True
    sink.leave()
    return False

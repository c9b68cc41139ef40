"""Creates a Delta table in a folder of this machine by its first commit, which has no rows.

Format: Delta's protocol, *Change Metadata*, *Column Mapping*, *Table Features*. The table equals
one that CREATE TABLE of Delta 4.4 makes, which takes Spark a third of a second.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path

from changefeed.core.durable import sync_path
from sinks.lake.small.commit_log import (
    COLUMN_ID,
    PHYSICAL_NAME,
    Action,
    as_lines,
    commit_info,
    commit_path,
)
from sinks.lake.small.table_files import LOG, LocalTableFiles
from sinks.lake.small.values import UnsupportedCase, arrow_type, delta_type

_FEATURES = ["deletionVectors", "columnMapping"]
_OF_WRITERS = ["invariants", "appendOnly"]


def create_table(
    folder: Path, columns: Mapping[str, str], properties: Mapping[str, str], millis: int
) -> bool:
    """Create a table with column mapping and deletion vectors; false: only Spark can, or the folder
    is not empty, and nothing was done.

    Args:
        columns: name -> type, as SQL writes it.
        properties: of the table.
        millis: the time, since 1970.
    """
    kinds = [delta_type(kind) for kind in columns.values()]
    try:
        for kind in kinds:
            arrow_type(kind)
    except UnsupportedCase:
        return False
    if len({name.lower() for name in columns}) < len(columns):
        return False
    try:
        if folder.exists() and any(folder.iterdir()):
            return False
        (folder / LOG).mkdir(parents=True)
        actions = _actions(dict(zip(columns, kinds, strict=True)), properties, millis)
        LocalTableFiles(folder).commit(commit_path(0), as_lines(actions))
        for path in (folder, folder.parent):
            sync_path(path)
    except OSError:  # the error of Spark's CREATE TABLE explains it
        return False
    return True


def _actions(
    columns: Mapping[str, object], properties: Mapping[str, str], millis: int
) -> list[Action]:
    fields = [
        {
            "name": name,
            "type": kind,
            "nullable": True,
            "metadata": {COLUMN_ID: number, PHYSICAL_NAME: f"col-{uuid.uuid4()}"},
        }
        for number, (name, kind) in enumerate(columns.items(), 1)
    ]
    features = [
        *_FEATURES,
        *(["timestampNtz"] if "timestamp_ntz" in str([*columns.values()]) else []),
    ]
    configuration = {**properties, "delta.columnMapping.maxColumnId": str(len(fields))}
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}, separators=(",", ":")),
        "partitionColumns": [],
        "configuration": configuration,
        "createdTime": millis,
    }
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": features,
        "writerFeatures": [*features, *_OF_WRITERS],
    }
    parameters = {
        "partitionBy": "[]",
        "clusterBy": "[]",
        "isManaged": "false",
        "properties": json.dumps(configuration),
    }
    more = {"isolationLevel": "Serializable", "isBlindAppend": True}
    info = commit_info(-1, millis, "CREATE TABLE", parameters, {}, more)
    return [info, {"metaData": metadata}, {"protocol": protocol}]

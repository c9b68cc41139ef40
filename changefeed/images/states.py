"""The state of a store of row images, from its folder. Statements use it, so it loads no Arrow.

The manifest of a store is JSON with its checksum, replaced by rename. It has the state of the
store, and its runs (:mod:`.store`) if it can be used, or the reason if it was given up.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from changefeed.core.durable import read_durable, replace_durably
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableName

MANIFEST: Final = "MANIFEST"
FORMAT: Final = 1


class StoreState(StrEnum):
    """The state of a store."""

    #: It has the rows of a scan and must read the log from the scan on.
    FILLED = "filled"
    #: It completes changes.
    LIVE = "live"
    #: The source itself sends all values: there is no store.
    NOT_NEEDED = "not needed"
    #: It was given up; the manifest has the reason.
    BROKEN = "broken"


#: The tables that feeds want images of, each with the most bytes that its store may take on disk
#: (None: no limit).
Wanted = Mapping[TableName, int | None]


def store_folder(root: Path, table: TableName) -> Path:
    """The folder of a table's store, under the folder of its source."""
    name = f"{table.schema}\0{table.name}"
    return root / hashlib.sha256(name.encode()).hexdigest()[:24]


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """The status of a table's store.

    Attributes:
        state: None: it is not filled yet.
        reason: why it was given up, or empty.
        final: it was given up, and is not filled again automatically.
    """

    state: StoreState | None
    reason: str = ""
    final: bool = False

    @property
    def comes(self) -> bool:
        """Whether it is being filled, or will be soon."""
        return self.state in (None, StoreState.FILLED)

    @property
    def awaited(self) -> bool:
        """Whether it is not live, but may become live without an action of the user."""
        return self.comes or (self.state is StoreState.BROKEN and not self.final)


def store_status(root: Path, table: TableName) -> StoreStatus:
    """The status from the folder of the table's store."""
    try:
        memo = read_manifest(store_folder(root, table))
    except ChangefeedError as error:
        return StoreStatus(StoreState.BROKEN, error.message)
    if memo is None:
        return StoreStatus(None)
    return StoreStatus(
        StoreState(memo["state"]), str(memo.get("reason", "")), bool(memo.get("final"))
    )


def damaged_images(what: str, why: str) -> ChangefeedError:
    """CF3005: a file of a store differs from what was written."""
    return ChangefeedError(Code.ROW_IMAGES_LOST, f"row images are damaged: {what}: {why}")


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The content of a store's manifest; None if there is no manifest.

    Raises:
        ChangefeedError: CF3005, it cannot be read.
    """
    try:
        memo = json.loads(read_durable(folder / MANIFEST))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        raise damaged_images(MANIFEST, "it cannot be read") from None
    if not isinstance(memo, dict) or memo.get("format") != FORMAT:
        raise damaged_images(MANIFEST, "it is of another version")
    return memo


def write_manifest(folder: Path, memo: dict[str, Any]) -> None:
    """Replace the manifest, durably."""
    replace_durably(folder / MANIFEST, json.dumps(memo))


def empty_folder(folder: Path) -> None:
    """Make the folder of a store, empty."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)


def give_up(folder: Path, error: ChangefeedError, *, final: bool = False) -> None:
    """Remove a store, but record the reason; ``final``: it is not filled again automatically."""
    _only_state(folder, StoreState.BROKEN, reason=error.message, final=final)


def not_needed(folder: Path) -> None:
    """Record that the source itself sends all values."""
    _only_state(folder, StoreState.NOT_NEEDED)


def _only_state(folder: Path, state: StoreState, **more: Any) -> None:
    empty_folder(folder)
    write_manifest(folder, {"format": FORMAT, "state": state.value, **more})

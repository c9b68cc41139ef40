"""The images of one table: layers of records by key, the newest on top.

    memory (recent changes, by key)          lost in a crash; read again from the change log
    run, run, run                            files, each older and usually larger than the one above
    MANIFEST                                 which runs there are, and how far in the log they reach

Only a checkpoint writes the manifest (by rename), and only up to a timestamp up to which the change
log is durable. Files that the manifest does not name can be removed.

One thread writes; another thread may merge runs at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from changefeed.core.arrow import PHYSICAL
from changefeed.core.clock import Timestamp
from changefeed.core.faults import Point, fault_point
from changefeed.core.schema import TableSchema
from changefeed.images.memory import MemoryLayer
from changefeed.images.packing import Places, RecordLayout
from changefeed.images.runs import (
    ImageRun,
    KeyBatch,
    Stopping,
    merge_runs,
)
from changefeed.images.states import (
    FORMAT,
    MANIFEST,
    StoreState,
    damaged_images,
    empty_folder,
    read_manifest,
    write_manifest,
)


@dataclass(frozen=True, slots=True)
class StoreSizes:
    """Limits of a store.

    Attributes:
        memory: about how many bytes of recent changes are kept in memory before they become a run.
        age: a checkpoint is made when the last one is this many nanoseconds of the log behind. That
            much of the log must be kept, and is read again after a crash.
        tier: a run is merged with those above it when their total size is at least the size of the
            run divided by this.
    """

    memory: int = 48 << 20
    age: int = 60_000_000_000
    tier: int = 2


@dataclass(frozen=True, slots=True)
class ImageRows:
    """The rows of requested keys.

    Attributes:
        columns: the rows that exist, in the columns of the table.
        at: for each key, the index of its row in ``columns``, -1 if there is no row.
    """

    columns: list[pa.Array]
    at: Places


_Layer = MemoryLayer | ImageRun


@dataclass(frozen=True, slots=True)
class HeldCheckpoint:
    """A checkpoint of a store: its timestamp, the bytes of the manifest and the runs it names."""

    at: Timestamp
    manifest: bytes
    runs: tuple[Path, ...]


class ImageStore:
    """The rows of one table by key, as of a timestamp of the change log."""

    def __init__(
        self,
        folder: Path,
        schema: TableSchema,
        at: Timestamp,
        *,
        state: StoreState = StoreState.FILLED,
        runs: Sequence[ImageRun] = (),
        next_file: int = 1,
        sizes: StoreSizes | None = None,
    ) -> None:
        """
        Args:
            folder: folder for the files, which exists.
            at: ``runs`` (oldest first) have everything up to this timestamp.
        """
        self.folder = folder
        self.schema = schema
        self.key = key_layout(schema)
        self.at = at
        self.state = state
        self._sizes = sizes or StoreSizes()
        self._saved_at = at
        self._next_file = next_file
        self._lock = threading.Lock()
        self._saved: list[ImageRun] = list(runs)
        self._layers: list[_Layer] = [*runs, MemoryLayer(layout_of(schema))]
        #: The layers as they were before a transaction of which only a part has been applied.
        self._base: list[_Layer] | None = None
        self._truncated = False
        #: The file that the merging thread writes.
        self._merging: Path | None = None
        #: Runs that are read elsewhere, and stay until that has ended.
        self._held: frozenset[str] = frozenset()

    # -- life ---------------------------------------------------------------------------------

    @classmethod
    def create(
        cls, folder: Path, schema: TableSchema, at: Timestamp, sizes: StoreSizes | None = None
    ) -> ImageStore:
        """An empty store in an empty folder. There is no manifest before the first checkpoint."""
        empty_folder(folder)
        return cls(folder, schema, at, sizes=sizes)

    @classmethod
    def open(cls, folder: Path, sizes: StoreSizes | None = None) -> ImageStore:
        """The store as of its last checkpoint.

        Raises:
            ChangefeedError: CF3005, it is damaged or was given up.
        """
        memo = read_manifest(folder)
        if memo is None:
            raise damaged_images(MANIFEST, "it is gone")
        if memo["state"] == StoreState.BROKEN:
            raise damaged_images(folder.name, str(memo["reason"]))
        try:
            schema = TableSchema.from_json(memo["schema"], memo["version"])
            runs = [ImageRun.from_memo(folder, run) for run in memo["runs"]]
            store = cls(
                folder,
                schema,
                Timestamp.parse(memo["at"]),
                state=StoreState(memo["state"]),
                runs=runs,
                next_file=memo["next_file"],
                sizes=sizes,
            )
        except (KeyError, ValueError, TypeError) as error:
            raise damaged_images(MANIFEST, f"it cannot be read ({error})") from None
        store._sweep()
        return store

    @property
    def bytes(self) -> int:
        """The size of its runs on disk, including those that the manifest does not name yet."""
        return sum(layer.bytes for layer in self._layers if isinstance(layer, ImageRun))

    @property
    def checkpoint_at(self) -> Timestamp:
        """The timestamp of the last checkpoint: the store needs the log above it."""
        return self._saved_at

    # -- what is in it --------------------------------------------------------------------------

    def find(self, keys: KeyBatch, *, before_transaction: bool = False) -> ImageRows:
        """The rows of ``keys``. With ``before_transaction``, as they were before the transaction
        that :meth:`begin_part` began.

        Raises:
            ChangefeedError: CF3005, a file is damaged.
        """
        layers = self._layers
        if before_transaction and self._base is not None:
            layers = self._base
        left = keys.in_hash_order()
        known = np.zeros(len(keys), np.bool_)
        found: dict[RecordLayout, list[tuple[Places, pa.LargeBinaryArray]]] = {}
        for layer in reversed(layers):
            if not len(left):
                break
            hit = layer.find(keys, left)
            if not len(hit.at):
                continue
            at, records = hit.at, hit.records
            known[at] = True
            left = left[~known[left]]
            if records.null_count:
                there = np.asarray(records.is_valid()).astype(np.bool_)
                at, records = at[there], records.drop_null()
            if len(at):
                found.setdefault(layer.layout, []).append((at, records))
        return self._assembled(found, len(keys))

    def _assembled(
        self, found: dict[RecordLayout, list[tuple[Places, pa.LargeBinaryArray]]], count: int
    ) -> ImageRows:
        place = np.full(count, -1, np.int64)
        parts: list[list[pa.Array]] = []
        total = 0
        for layout, pieces in found.items():
            for at, _ in pieces:
                place[at] = np.arange(total, total + len(at))
                total += len(at)
            records = pa.concat_arrays([records for _, records in pieces])
            parts.append(layout_of(self.schema).choose(layout, layout.unpack(records)))
        if not parts:
            return ImageRows([pa.nulls(0, c.arrow) for c in self.schema.columns], place)
        if len(parts) == 1:
            return ImageRows(parts[0], place)
        return ImageRows([pa.concat_arrays(some) for some in zip(*parts, strict=True)], place)

    # -- changes ------------------------------------------------------------------------------

    def put(self, keys: KeyBatch, columns: Sequence[pa.Array], there: pa.BooleanArray) -> None:
        """Set the present rows of distinct keys. ``there`` is false for a deleted row, whose
        columns are ignored."""
        top = self._top()
        top.put(keys, top.layout.pack(columns), np.asarray(there).astype(np.bool_))
        if top.bytes > self._sizes.memory:
            self._settle(top)

    def truncate(self) -> None:
        """Remove all rows."""
        with self._lock:
            # The rows from before the transaction must still be found.
            self._layers = [MemoryLayer(layout_of(self.schema))]
            self._truncated = True

    def adopt(self, schema: TableSchema) -> None:
        """Change to another shape: later calls take and return rows in it. Nothing changes if
        its rows are packed like those of the present one."""
        layout = layout_of(schema)
        if layout == self._top().layout:
            return
        self.schema = schema
        with self._lock:
            self._layers = [*self._layers, MemoryLayer(layout)]

    def begin_part(self) -> None:
        """Called before a part of a transaction that is not its last part."""
        if self._base is None:
            with self._lock:
                self._base = self._layers
                self._layers = [*self._layers, MemoryLayer(self._top().layout)]

    def end_parts(self) -> None:
        """Called at the end of a transaction."""
        self._base = None

    @property
    def in_parts(self) -> bool:
        """Whether parts of a transaction were applied, but not its end."""
        return self._base is not None

    # -- durable --------------------------------------------------------------------------------

    def committed(self, at: Timestamp) -> None:
        """Note that everything up to ``at`` was applied and is durable in the change log."""
        self.at = at
        loose = any(
            isinstance(layer, ImageRun) and layer not in self._saved for layer in self._layers
        )
        if loose or self._truncated or at.wall - self._saved_at.wall > self._sizes.age:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Make everything up to :attr:`at` durable in the store."""
        for layer in list(self._layers):
            if isinstance(layer, MemoryLayer):
                self._settle(layer)
        fault_point(Point.IMAGES_CHECKPOINT_WRITTEN)
        with self._lock:
            runs = [layer for layer in self._layers if isinstance(layer, ImageRun)]
            self._save(runs, self.at)
            self._truncated = False
        fault_point(Point.IMAGES_CHECKPOINT_SAVED)
        self._sweep()

    def _settle(self, memory: MemoryLayer) -> None:
        """Write a memory layer as a run. If it is the top layer, later changes get a new one."""
        fresh: list[_Layer] = [MemoryLayer(layout_of(self.schema))] if memory is self._top() else []
        written: list[_Layer] = []
        if not memory.empty:
            written.append(memory.write(self._new_file()))
        with self._lock:
            at = next(i for i, layer in enumerate(self._layers) if layer is memory)
            self._layers = [*self._layers[:at], *written, *self._layers[at + 1 :], *fresh]

    def _save(self, runs: Sequence[ImageRun], at: Timestamp) -> None:
        """Call with the lock held."""
        write_manifest(
            self.folder,
            {
                "format": FORMAT,
                "state": self.state.value,
                "schema": self.schema.to_json(),
                "version": self.schema.version,
                "at": str(at),
                "next_file": self._next_file,
                "runs": [run.memo for run in runs],
            },
        )
        self._saved, self._saved_at = list(runs), at

    @contextmanager
    def held(self) -> Iterator[HeldCheckpoint]:
        """The last checkpoint, whose files stay until the block ends."""
        with self._lock:
            runs = [run.path for run in self._saved]
            manifest = (self.folder / MANIFEST).read_bytes()
            self._held = frozenset(path.name for path in runs)
            found = HeldCheckpoint(self._saved_at, manifest, tuple(runs))
        try:
            yield found
        finally:
            self._held = frozenset()

    # -- merging --------------------------------------------------------------------------------

    def merge(self, stopping: Stopping, *, whole: bool = False) -> bool:
        """Merge runs into one if their sizes call for it (``whole``: all runs). Return whether runs
        were merged. Called from another thread than the one that writes.

        Raises:
            ChangefeedError: CF3005, a file is damaged.
        """
        with self._lock:
            runs = self._saved
            first = 0 if whole else _due(runs, self._sizes.tier)
            chosen = runs[first:]
            if len(chosen) < 2:
                return False
            path = self._merging = self._new_file()
        try:
            merged = merge_runs(path, chosen[-1].layout, chosen, last=first == 0, stopping=stopping)
            if merged is None:
                return False
            fault_point(Point.IMAGES_MERGED)
            with self._lock:
                if self._saved[first : first + len(chosen)] != chosen:
                    merged.path.unlink()  # a TRUNCATE has removed the merged runs
                    return False
                before, after = self._saved[:first], self._saved[first + len(chosen) :]
                self._layers = _replaced(self._layers, chosen, merged)
                self._save([*before, merged, *after], self._saved_at)
        finally:
            self._merging = None
        for run in chosen:
            run.path.unlink(missing_ok=True)
        return True

    # -- files ----------------------------------------------------------------------------------

    def _top(self) -> MemoryLayer:
        top = self._layers[-1]
        if not isinstance(top, MemoryLayer):
            raise AssertionError("the top layer is in memory")
        return top

    def _new_file(self) -> Path:
        number = self._next_file
        self._next_file += 1
        return self.folder / f"run-{number:09d}.arrow"

    def _sweep(self) -> None:
        with self._lock:
            used = {run.path.name for run in self._saved}
            used |= {layer.path.name for layer in self._layers if isinstance(layer, ImageRun)}
            used |= self._held
            if self._merging is not None:
                used.add(self._merging.name)
            # Files made from now on have higher numbers than those listed here.
            rubbish = [p for p in self.folder.glob("run-*.arrow") if p.name not in used]
        for path in rubbish:
            path.unlink(missing_ok=True)


def _replaced(
    layers: Sequence[_Layer], chosen: Sequence[ImageRun], merged: ImageRun
) -> list[_Layer]:
    kept: list[_Layer] = []
    for layer in layers:
        if layer is chosen[0]:
            kept.append(merged)
        elif not any(layer is run for run in chosen):
            kept.append(layer)
    return kept


def _due(runs: Sequence[ImageRun], tier: int) -> int:
    """The index of the run from which on all are to be merged; the number of runs if none are."""
    above = 0
    first = len(runs)
    for at in range(len(runs) - 1, -1, -1):
        if above and above * tier >= runs[at].bytes:
            first = at
        above += runs[at].bytes
    return first


# ---------------------------------------------------------------------------------------- shapes


def layout_of(schema: TableSchema) -> RecordLayout:
    """How the rows of a shape are packed."""
    return RecordLayout(
        tuple(column.ref for column in schema.columns),
        tuple(column.physical for column in schema.columns),
    )


def key_layout(schema: TableSchema) -> RecordLayout:
    """How the keys of a shape are packed. An integer key is equal in any width."""
    types = [column.physical for column in schema.key_columns]
    return RecordLayout(
        tuple(column.ref for column in schema.key_columns),
        tuple("int64" if name.startswith("int") else name for name in types),
    )


def pack_keys(layout: RecordLayout, columns: Sequence[pa.Array]) -> pa.LargeBinaryArray:
    """The packed keys of rows, given by the columns of their key."""
    return layout.pack(
        [
            column.cast(PHYSICAL[name]) if column.type != PHYSICAL[name] else column
            for column, name in zip(columns, layout.types, strict=True)
        ]
    )

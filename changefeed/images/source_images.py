"""The stores of one source, in its capture process: creates, uses, merges and removes them.

    wanted by a feed -> filled (a thread scans the table) -> live (from a start of the stream on)

The capture thread calls everything but :meth:`SourceImages.look`, which another thread runs. A
stream begins with the stores as they are at the end of the change log. Tables whose store is live
by then have whole old rows, and this does not change while the stream runs. Therefore the thread
that has filled a store requests a new stream (:attr:`SourceImages.news`).
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from changefeed.core.clock import Clock, SystemClock, Timestamp
from changefeed.core.errors import Action, ChangefeedError, Code
from changefeed.core.events import (
    ChangeBatch,
    Ddl,
    Event,
    Flush,
    Frontier,
    Position,
    SchemaChange,
    Truncate,
)
from changefeed.core.faults import Point, fault_point
from changefeed.core.schema import BeforeImage, TableName, TableSchema
from changefeed.images.complete import complete, follow
from changefeed.images.runs import KeyBatch
from changefeed.images.shared import SharedImages
from changefeed.images.states import (
    StoreState,
    Wanted,
    give_up,
    not_needed,
    store_folder,
    store_status,
)
from changefeed.images.store import (
    ImageStore,
    StoreSizes,
    key_layout,
    pack_keys,
)
from changefeed.log import LogPiece, LogReader
from changefeed.sources.base import Source, StreamFallback

_logger = logging.getLogger(__name__)

#: The most rows and bytes of the log that are read at once.
_SLICE_ROWS, _SLICE_BYTES = 100_000, 32 << 20
#: A store that could not be filled, or was given up, is filled again after this many seconds.
TRY_AGAIN_SECONDS = 10.0
#: Seconds between two copies of a store for other hosts. Until the next one the change log keeps
#: what the store has since.
SHARE_SECONDS = 60.0
#: Seconds between two calls of ``look``. The state says what is wanted; it is read only after a
#: change.
LOOK_SECONDS = 0.5


class SourceImages:
    """The stores of one source."""

    def __init__(
        self,
        root: Path,
        log: Path,
        source: Source,
        wanted: Callable[[], Wanted],
        *,
        frontier: Callable[[], Frontier | None],
        captured: Callable[[], Mapping[TableName, Timestamp]],
        shared: SharedImages | None = None,
        sizes: StoreSizes | None = None,
        clock: Clock | None = None,
    ) -> None:
        """
        Args:
            shared: what keeps the stores for other hosts, if the log is shared.
            root: the folder of the source's stores.
            log: the folder of its change log.
            wanted: the tables that feeds want images of now.
            frontier: the end of the change log.
            captured: the tables whose changes all reach the log, and the timestamp from which on.
        """
        self._root = root
        self._log = log
        self._source = source
        self._wanted = wanted
        self._frontier = frontier
        self._captured = captured
        self._shared = shared
        #: Up to where other hosts have each store, and when that was shared.
        self._shared_at: dict[TableName, tuple[Timestamp, float]] = {}
        self._sizes = sizes or StoreSizes()
        self._clock = clock or SystemClock()
        self._stores: dict[TableName, ImageStore] = {}
        #: The transaction of which some parts were completed.
        self._in_part: Timestamp | None = None
        self._stopping = threading.Event()
        #: Held while runs are merged; ``_hurry`` makes a merge release it soon.
        self._merging = threading.Lock()
        self._hurry = False
        self._filling_from: Timestamp | None = None
        self._try_again: dict[TableName, float] = {}
        #: Tables whose store exceeded its limit, with that limit.
        self._too_large: dict[TableName, int] = {}
        #: The wanted tables at the last call of ``look``.
        self._wishes: Wanted = {}
        #: A new stream must begin: a store was filled, or is no longer wanted.
        self.news = False

    # -- the capture thread ---------------------------------------------------------------------

    def start(self, frontier: Frontier) -> None:
        """Prepare for a stream from the end of the log: bring the stores up to there."""
        self._hurry = True
        with self._merging:
            self._hurry = False
            if self._shared is not None:
                self._shared.fetch()
            self._stores, self._in_part, self.news = {}, None, False
            self._wishes = self._wanted()
            with LogReader(self._log) as log:
                for table in self._wishes:
                    store = self._opened(table, log, frontier.at)
                    if store is not None:
                        self._stores[table] = store
                        self._share(table, store)

    def _opened(self, table: TableName, log: LogReader, upto: Timestamp) -> ImageStore | None:
        """A store at the end of the log; None if there is no usable one."""
        folder = store_folder(self._root, table)
        state = store_status(self._root, table).state
        if state not in (StoreState.FILLED, StoreState.LIVE):
            return None
        try:
            store = ImageStore.open(folder, self._sizes)
            catch_up(store, log, upto)
            store.state = StoreState.LIVE
            store.checkpoint()
            return store
        except (ChangefeedError, OSError) as error:
            self._lost(table, error)
            return None

    def shape(self, schema: TableSchema) -> TableSchema:
        """The shape in which rows of a table go into the log."""
        store = self._stores.get(schema.table)
        if store is None or not _fits(store, schema):
            return schema
        return replace(schema, before_image=BeforeImage.FULL)

    def complete(self, flush: Flush) -> Flush:
        """The same changes, with whole rows of tables that have a store.

        Raises:
            StreamFallback: a store can no longer be used and was given up. A new stream, from the
                end of the log on, goes on without it.
        """
        if not self._stores:
            return flush
        events: list[Event] = []
        for event in flush.events:
            if isinstance(event, Ddl):
                events.append(event)
                continue
            table = event.old.table if isinstance(event, SchemaChange) else event.schema.table
            store = self._stores.get(table)
            if store is None:
                events.append(event)
                continue
            try:
                events.append(self._completed(store, event, part=flush.frontier is None))
            except (ChangefeedError, OSError, pa.ArrowException, ValueError) as error:
                raise self._fallback(table, error) from error
        return replace(flush, events=tuple(events))

    def _completed(
        self, store: ImageStore, event: ChangeBatch | Truncate | SchemaChange, *, part: bool
    ) -> Event:
        if part:
            store.begin_part()
        if isinstance(event, Truncate):
            store.truncate()
            return event
        if isinstance(event, SchemaChange):
            _change_shape(store, event)
            return event
        if event.schema.before_image is not BeforeImage.FULL or not _fits(store, event.schema):
            raise _other_shape(event.schema)
        store.adopt(event.schema)
        if part:
            rows = event.rows
            self._in_part = Timestamp(rows["wall"][-1].as_py(), rows["logical"][-1].as_py())
        in_part = self._in_part if store.in_parts else None
        return ChangeBatch(event.schema, complete(store, event.schema, event.rows, in_part=in_part))

    @property
    def present(self) -> bool:
        """Whether some table has a store, or shall have one."""
        return bool(self._stores or self._wishes)

    def committed(self, frontier: Frontier) -> None:
        """Note that the log has everything up to the frontier durably.

        Raises:
            StreamFallback: as :meth:`complete`.
        """
        self._in_part = None
        for table, store in self._stores.items():
            store.end_parts()
            try:
                store.committed(frontier.at)
                self._check_size(table, store, self._wishes.get(table))
            except (ChangefeedError, OSError) as error:
                raise self._fallback(table, error) from error

    def _check_size(self, table: TableName, store: ImageStore, limit: int | None) -> None:
        if limit is not None and store.bytes > limit:
            self._too_large[table] = limit
            raise _too_large(table, limit)

    def _fallback(self, table: TableName, error: Exception) -> StreamFallback:
        lost = self._lost(table, error)
        return StreamFallback(lost.code, lost.message)

    def _lost(self, table: TableName, error: Exception) -> ChangefeedError:
        """Give up a store; it is filled again if a feed still wants it."""
        lost = _as_lost(table, error)
        self._stores.pop(table, None)
        give_up(store_folder(self._root, table), lost, final=table in self._too_large)
        return lost

    @property
    def needed_from(self) -> Timestamp | None:
        """The change log must keep everything above this timestamp; None: nothing is needed."""
        places = [
            min(store.checkpoint_at, self._shared_at.get(table, (store.checkpoint_at,))[0])
            for table, store in list(self._stores.items())
        ]
        filling = self._filling_from
        if filling is not None:
            places.append(filling)
        return min(places, default=None)

    # -- another thread -------------------------------------------------------------------------

    def stop(self) -> None:
        """End :meth:`look` soon; safe from any thread."""
        self._stopping.set()

    def wait(self) -> bool:
        """Wait until it is time for :meth:`look` again; true if :meth:`stop` was called."""
        return self._clock.wait(self._stopping, LOOK_SECONDS)

    def look(self) -> None:
        """Do the present work: merge runs, fill wanted stores, remove unwanted ones. This may take
        as long as the scan of a table."""
        self._wishes = wanted = self._wanted()
        self._remove_unwanted(wanted)
        self._merge()
        self._share_all()
        captured = self._captured() if wanted else {}
        for table, limit in wanted.items():
            if self._stopping.is_set():
                return
            if table in captured and self._due(table, limit):
                self._try(table, limit)

    def _remove_unwanted(self, wanted: Wanted) -> None:
        if not self._root.exists():
            return
        if self._stores.keys() - wanted.keys():
            self.news = True  # from the next stream on, rows are logged as the source sends them
            return
        kept = {store_folder(self._root, table).name for table in wanted}
        for folder in self._root.iterdir():
            if folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _merge(self) -> None:
        with self._merging:
            for store in list(self._stores.values()):
                try:
                    while store.merge(self._is_stopping):
                        pass
                except OSError as error:
                    # Stores work with unmerged runs; a checkpoint reports a failing disk.
                    _logger.warning("row images: cannot merge: %s", error.strerror)
                except ChangefeedError as error:
                    # The capture thread reports the damage when it needs the file.
                    _logger.warning("row images: %s", error.message)

    def _share_all(self) -> None:
        """Let other hosts have the stores as of their last checkpoints, now and then."""
        if self._shared is None:
            return
        with self._merging:
            stores = dict(self._stores)
            for table, store in stores.items():
                if self._clock.monotonic() >= self._shared_at.get(table, (None, 0.0))[1]:
                    self._share(table, store)
            for name in self._shared.folders - {store.folder.name for store in stores.values()}:
                self._shared.forget(self._root / name)

    def _share(self, table: TableName, store: ImageStore) -> None:
        if self._shared is not None:
            next_time = self._clock.monotonic() + SHARE_SECONDS
            self._shared_at[table] = self._shared.share(store), next_time

    def _is_stopping(self) -> bool:
        return self._hurry or self._stopping.is_set()

    def _due(self, table: TableName, limit: int | None) -> bool:
        if table in self._stores or self._clock.monotonic() < self._try_again.get(table, 0.0):
            return False
        status = store_status(self._root, table)
        if status.final and table in self._too_large:
            return self._too_large[table] != limit
        # A store that was too large in an earlier run of the process is tried once more.
        return status.state is None or status.state is StoreState.BROKEN

    def _try(self, table: TableName, limit: int | None) -> None:
        self._try_again[table] = self._clock.monotonic() + TRY_AGAIN_SECONDS
        frontier = self._frontier()
        if frontier is None:
            return
        self._filling_from = frontier.at
        try:
            self._fill(table, limit)
        except (ChangefeedError, OSError) as error:
            _logger.warning("row images of %s: cannot be filled: %s", table, error)
            if isinstance(error, ChangefeedError) and error.action is Action.RETRY:
                return
            final = table in self._too_large
            give_up(store_folder(self._root, table), _as_lost(table, error), final=final)
        finally:
            self._filling_from = None

    def _fill(self, table: TableName, limit: int | None) -> None:
        """Scan a table into a store, and bring the store near the end of the log.

        Raises:
            ChangefeedError: the source failed, or the store exceeds its limit.
        """
        folder = store_folder(self._root, table)
        self._too_large.pop(table, None)
        schema = self._source.describe(table.schema, table.name)
        if schema.keyless or schema.before_image is BeforeImage.FULL:
            not_needed(folder)
            return
        schema = replace(schema, before_image=BeforeImage.FULL)
        store = ImageStore.create(folder, schema, Timestamp.ZERO, self._sizes)
        with self._source.snapshot([schema]) as snapshot:
            position = snapshot.position
            for part in snapshot.parts(schema):
                for batch in part.read():
                    if self._stopping.is_set():
                        return
                    _take_in(store, batch)
                    self._check_size(table, store, limit)
        fault_point(Point.IMAGES_FILLED)
        with LogReader(self._log) as log:
            at = self._timestamp_of(log, position)
            if at is None:
                return
            store.at = at
            store.checkpoint()
            while store.merge(self._stopping.is_set, whole=True):
                pass
            log.refresh()
            frontier = log.frontier
            if frontier is not None:
                catch_up(store, log, frontier.at)
            store.checkpoint()
        # Before rows are logged without what the store has.
        self._share(table, store)
        self.news = True

    def _timestamp_of(self, log: LogReader, position: Position) -> Timestamp | None:
        """The timestamp of the snapshot, once the log has reached its position; None if stopped."""
        while True:
            frontier = log.refresh()
            if frontier is not None and frontier.position >= position:
                return log.timestamp_at(position) or log.oldest
            if self._clock.wait(self._stopping, 0.05):
                return None


def catch_up(store: ImageStore, log: LogReader, upto: Timestamp) -> None:
    """Apply the log to a store, from the store's timestamp to ``upto``.

    Raises:
        ChangefeedError: CF3002, the log no longer goes back so far; CF3005, the table has other
            values, another key or another name now.
    """
    table = store.schema.table
    if store.at > upto:
        raise ChangefeedError(
            Code.ROW_IMAGES_LOST, f"the row images of {table} are ahead of the change log"
        )
    while store.at < upto:
        found = log.slice({table: store.at}, upto, _SLICE_ROWS, _SLICE_BYTES)
        for event in found.events:
            if isinstance(event, Truncate):
                store.truncate()
            elif isinstance(event, SchemaChange):
                _change_shape(store, event)
            elif isinstance(event, LogPiece):
                _follow_piece(store, event)
        if found.upto <= store.at:
            raise ChangefeedError(
                Code.ROW_IMAGES_LOST, f"the change log ends before the row images of {table}"
            )
        store.at = found.upto


def _follow_piece(store: ImageStore, piece: LogPiece) -> None:
    if not _fits(store, piece.schema):
        raise _other_shape(piece.schema)
    store.adopt(replace(piece.schema, before_image=BeforeImage.FULL))
    for batch in piece.load().combine_chunks().to_batches():
        follow(store, piece.schema, batch)


def _take_in(store: ImageStore, batch: pa.RecordBatch) -> None:
    if not batch.num_rows:
        return
    schema = store.schema
    columns = [batch[f"a{i}"] for i in range(len(schema.columns))]
    keys = KeyBatch.of(pack_keys(store.key, [columns[i] for i in schema.key]))
    there = pa.repeat(pa.scalar(True), batch.num_rows)
    store.put(keys, columns, there)


def _change_shape(store: ImageStore, event: SchemaChange) -> None:
    new = event.new
    # A column without a number is found by its name, so a renamed one has no values in the store.
    other = event.rewritten or event.renamed or new.table != event.old.table
    if other or not _fits(store, new):
        raise ChangefeedError(
            Code.ROW_IMAGES_LOST,
            f"the table {event.old.table} was changed in a way that gives its rows other values, "
            "another key or another name",
        )
    store.adopt(replace(new, before_image=BeforeImage.FULL))


def _fits(store: ImageStore, schema: TableSchema) -> bool:
    same = schema.table == store.schema.table and schema.table_id == store.schema.table_id
    return same and not schema.keyless and key_layout(schema) == store.key


def _other_shape(schema: TableSchema) -> ChangefeedError:
    return ChangefeedError(
        Code.ROW_IMAGES_LOST, f"the table {schema.table} has another key, or is another table"
    )


def _too_large(table: TableName, limit: int) -> ChangefeedError:
    return ChangefeedError(
        Code.ROW_IMAGES_LOST,
        f"the row images of {table} take more than row_images_max_disk, {limit:,} bytes",
        hint="ALTER CHANGEFEED .. SET row_images_max_disk to more, then RESCAN the table.",
    )


def _as_lost(table: TableName, error: Exception) -> ChangefeedError:
    """The error that a store cannot be used, without any value of a row."""
    if isinstance(error, ChangefeedError):
        why = error.message
        if error.code is Code.ROW_IMAGES_LOST:
            return error
    elif isinstance(error, OSError):
        why = error.strerror or type(error).__name__
    else:
        why = f"internal error: {type(error).__name__}"
    return ChangefeedError(Code.ROW_IMAGES_LOST, f"the row images of {table} are lost: {why}")

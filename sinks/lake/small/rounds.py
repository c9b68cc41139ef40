"""A round of few rows into one Delta table, without Spark."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from changefeed.core.clock import Clock
from changefeed.core.schema import TableSchema
from sinks.lake.small.commit_log import UNREADABLE, CommitLog, commit_info
from sinks.lake.small.draft import NODE_FILES, CommitDraft
from sinks.lake.small.indexed_table import IndexedTable, IndexMaker, arrays_of, versions_of
from sinks.lake.small.key_index import KeyBits, KeyIndex, whole_numbers
from sinks.lake.small.partitions import Partition, by_partition, with_partition
from sinks.lake.small.table_files import TableFiles
from sinks.lake.small.table_form import form_of
from sinks.lake.small.values import UnsupportedCase, table_values
from sinks.lake.staging import OPERATION, VERSION, StagedFile
from sinks.lake.table import marks_of
from sinks.ownership import Owner

log = logging.getLogger("changefeed.sinks.lake")

#: The node joins its data files with fewer bytes.
_SMALL_FILE = 8 << 20
#: After so many failures of the disk in a row, Spark does the rounds of a table.
_MOST_FAILURES = 3
#: How often the node tries a round when others commit to the table at the same time.
_ATTEMPTS = 3
#: Delta's default, in commits.
_CHECKPOINT_INTERVAL = 10


@dataclass(frozen=True, slots=True)
class SmallLimits:
    """Within these limits the node does a round itself.

    Attributes:
        rows: of a round; a larger one gains more from a job than the job costs. The sink checks it.
        files, indexed: data files of a table, and rows in them; log and index of a larger table
            need too much memory.
        small_files: the node joins so many small files of a table.
        at_once: the index of a table with more rows is made while Spark does its rounds.
        spare_entries: an index has at most so many entries beyond twice the rows of its table.
    """

    rows: int = 50_000
    files: int = 2_000
    indexed: int = 50_000_000
    small_files: int = 64
    at_once: int = 4_000_000
    spare_entries: int = 100_000


@dataclass(frozen=True, slots=True)
class CommitNotes:
    """What a commit records besides its rows.

    Attributes:
        user: for readers.
        application: the transaction identifier that Delta keeps, and its number; None: the rows
            belong to a scan, which may come again.
    """

    user: str
    application: tuple[str, int] | None


class SmallRounds:
    """The rounds of one table, in one process.

    Args:
        place: the table's files.
        scratch: where the index may have files.
        owner: of the table. Another place than that which Spark writes to has no mark of it.
        sequence: the table's column with the version of a row.

    Attributes:
        in_doubt: the last commit failed, and may be there.
    """

    def __init__(
        self,
        place: TableFiles,
        scratch: Path,
        owner: Owner,
        sequence: str,
        limits: SmallLimits,
        clock: Clock,
    ) -> None:
        self._place = place
        self._owner = owner
        self._scratch = scratch
        self._sequence = sequence
        self._limits = limits
        self._clock = clock
        self._known: IndexedTable | None = None
        self._maker: IndexMaker | None = None
        self.in_doubt = False
        #: The fingerprint of the schema whose rounds Spark does, whatever they have.
        self._refused = ""
        self._failures = 0

    def commit(self, files: Sequence[StagedFile], schema: TableSchema, notes: CommitNotes) -> bool:
        """Bring the rows of a round into the table; false: Spark must do it. By the commit's
        transaction identifier it sees whether that is done already.

        Each key comes once in the round, with all of its values.
        """
        self.in_doubt = False
        shape = schema.fingerprint()
        if self._refused == shape:
            return False
        try:
            for _ in range(_ATTEMPTS):
                known = self._current(schema)
                if notes.application is not None:
                    application, number = notes.application
                    done = known.log.applications.get(application)
                    if done is not None and done["version"] >= number:
                        return True
                if _commit_round(known, schema, files, notes, self._millis()):
                    self._failures = 0
                    self._care_for(known)
                    return True
        except UnsupportedCase as reason:
            log.debug("a round of %s goes to Spark: %s", self._place.name, reason)
        except UNREADABLE as reason:
            log.info("rounds of %s go to Spark: %s", self._place.name, reason)
            self._refused = shape
            self.close()
        except OSError as failure:
            # Another user's files, or a full disk: Spark raises an error that explains it, or can
            # do the round.
            log.info("a round of %s goes to Spark: %s", self._place.name, failure.strerror)
            self._failures += 1
            self.in_doubt = True
            lasting = isinstance(failure, PermissionError | FileNotFoundError)
            if lasting or self._failures >= _MOST_FAILURES:
                self._refused = shape
            self.close()
        except BaseException:
            self.close()  # the index may lack what was committed
            raise
        return False

    def close(self) -> None:
        """Forget the table."""
        if self._maker is not None:
            self._maker.end()
            self._maker = None
        if self._known is not None:
            self._known.index.close()
            self._known = None

    def _millis(self) -> int:
        return self._clock.now().wall // 1_000_000

    def _current(self, schema: TableSchema) -> IndexedTable:
        """The table as of now.

        Raises:
            UnsupportedCase, UnknownLog, ValueError: Spark must do its rounds.
            OSError: a file cannot be read.
        """
        if (maker := self._maker) is not None:
            if not maker.done:
                raise UnsupportedCase("the index of its keys is being made")
            self._maker = None
            self._known = maker.result()
        known = self._known
        if known is None:
            table = CommitLog(self._place, self._limits.files)
            if not table.is_exclusive():
                raise ValueError("its store lets two writers write one file")
        else:
            table = known.log
            table.follow()
        if not any(mark.same(self._owner) for mark in marks_of(table.properties)):
            raise ValueError("it is not this feed's table")
        form = form_of(table, schema, self._sequence)
        if known is None or known.form.indexed != form.indexed:
            self.close()
            known = IndexedTable(table, form, KeyIndex(self._scratch, table.rows))
            if table.rows > self._limits.at_once:
                self._maker = IndexMaker(known, self._limits.indexed)
                raise UnsupportedCase("the index of its keys is made first")
            self._known = known
        known.form = form
        if known.version < table.version:
            known.take_others(self._limits.indexed)
        return known

    def _care_for(self, known: IndexedTable) -> None:
        """Join small files and write a checkpoint if it is time; the round is committed."""
        table = known.log
        interval = int(table.setting("delta.checkpointInterval") or _CHECKPOINT_INTERVAL)
        try:
            _join_files(known, self._millis(), self._limits.small_files)
            if table.since_checkpoint >= interval:
                table.checkpoint(self._millis())
                if known.index.entries > 2 * known.rows + self._limits.spare_entries:
                    self.close()  # keys of deleted rows: the next round makes another index
        except (UnsupportedCase, OSError, *UNREADABLE) as failure:
            # Readers need neither, and Spark's next commit may write a checkpoint.
            log.warning("no upkeep of %s: %s", self._place.name, type(failure).__name__)
            self.close()


def _commit_round(
    known: IndexedTable,
    schema: TableSchema,
    files: Sequence[StagedFile],
    notes: CommitNotes,
    millis: int,
) -> bool:
    """Write the rows of staged files and commit them; false: another writer was faster.

    Raises:
        UnsupportedCase, OSError
    """
    staged = [pq.read_table(file.path, page_checksum_verification=True) for file in files]
    rows = pa.concat_tables(staged, promote_options="default").combine_chunks()
    form, versions = known.form, rows[VERSION].combine_chunks()
    values = [
        versions.cast(kind)
        if number < 0
        else table_values(schema.columns[number], rows[f"c{number}"].combine_chunks(), kind)
        for number, kind in zip(form.columns, form.types, strict=True)
    ]
    keys = known.hashing.bits([values[i] for i in form.keys])
    come = whole_numbers(versions)
    deletes = np.asarray(pc.equal(rows[OPERATION], "d")).astype(np.bool_)
    hits = known.index.find(keys)
    if len(np.unique(keys.a)) < len(keys.a):
        raise UnsupportedCase("two rows of one key")
    there, newer = known.alive(hits), come >= hits.has
    marked, kept = there & newer, ~deletes & (newer | ~there)
    gone = known.gone_with(hits, marked)
    draft = CommitDraft(known.log, millis)
    if notes.application is not None:
        application, number = notes.application
        txn = {"appId": application, "version": number, "lastUpdated": millis}
        draft.actions.append({"txn": txn})
    draft.mark((known.action(number), lost) for number, lost in gone.items())
    new = pa.table(values, form.table_columns).filter(pa.array(kept))
    added = [
        (draft.add(some, partition), at)
        for partition, at, some in by_partition(new, form.partition_names)
    ]
    inserted, updated = int((kept & ~there).sum()), int((kept & marked).sum())
    deleted = int((deletes & marked).sum())
    metrics = {
        "numSourceRows": len(rows),
        "numTargetRowsInserted": inserted,
        "numTargetRowsUpdated": updated,
        "numTargetRowsDeleted": deleted,
        "numTargetRowsMatchedUpdated": updated,
        "numTargetRowsMatchedDeleted": deleted,
        "numTargetFilesAdded": len(added),
        "numOutputRows": updated + inserted,
    }
    parameters = dict.fromkeys(("predicate", "matchedPredicates", "notMatchedPredicates"), "[]")
    more = {"isolationLevel": "Serializable", "userMetadata": notes.user}
    info = commit_info(known.log.version, millis, "MERGE", parameters, metrics, more)
    if not draft.commit(info):
        return False
    known.take_own(gone)
    for action, at in added:
        known.add_indexed(action, KeyBits(keys.a[kept][at], keys.b[kept][at]), come[kept][at])
    return True


def _join_files(known: IndexedTable, millis: int, many: int) -> None:
    """Make one file of the many small ones that rounds have left in a partition, in a commit of
    its own.

    Raises:
        OSError, ValueError: a file cannot be read or written.
    """
    small: dict[str, list[int]] = {}
    for path, action in known.log.files.items():
        if path.startswith(NODE_FILES) and action["size"] < _SMALL_FILE:
            partition = json.dumps(action["partitionValues"], sort_keys=True)
            small.setdefault(partition, []).append(known.numbers[path])
    for partition, numbers in small.items():
        if len(numbers) >= many:
            _join(known, numbers, json.loads(partition), millis)


def _join(known: IndexedTable, numbers: Sequence[int], partition: Partition, millis: int) -> None:
    table, form = known.log, known.form
    columns = form.table_columns
    kept = [field for field in columns if field.name not in form.partition_names]
    draft, parts = CommitDraft(table, millis, change=False), []
    for number in numbers:
        action, file = known.action(number), known.files[number]
        draft.remove(action)
        content = pa.BufferReader(table.place.read(action["path"]))
        rows = pq.read_table(content, schema=pa.schema(kept))
        parts.append(rows.filter(pa.array(~file.gone)))
    whole = pa.concat_tables(parts).combine_chunks()
    added = draft.add(whole, partition)
    metrics = {"numAddedFiles": 1, "numRemovedFiles": len(numbers)}
    parameters = {"predicate": "[]", "zOrderBy": "[]"}
    more = {"isolationLevel": "SnapshotIsolation"}
    if draft.commit(commit_info(table.version, millis, "OPTIMIZE", parameters, metrics, more)):
        known.take_own({})
        kinds = {name: columns.field(name).type for name in form.partition_names}
        indexed = with_partition(whole, partition, kinds).select([name for name, _ in form.indexed])
        *key, version = arrays_of(indexed)
        known.add_indexed(added, known.hashing.bits(key), versions_of(version))

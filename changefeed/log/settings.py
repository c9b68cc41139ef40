"""Sizes and ages of the change log, with the reason for each default."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The limits of the change log of one source. Sizes are bytes, ages are seconds.

    Attributes:
        gc_ttl: history younger than this is kept, so that a ``cursor`` in the past works.
        max_age: age up to which history is kept for a feed that lags; None: as ``gc_ttl``.
        keep_bytes: history that no feed needs is reduced to this size even if it is younger than
            ``gc_ttl``; None: no such limit.
        disk_budget: the log refuses appends (CF3003) past this size; None: the disk is the
            limit.
        copy_budget: of a shared log, the copies of objects that stay on this host; None: all.
        disk_reserve: free space of the file system that the log never uses up.
        memory_budget: the largest flush capture should hand over in one append.
        segment_rows, segment_bytes: a batch of one table of at least this size is written to a
            Parquet file of its own; a smaller one into the journal.
        group_rows, group_bytes: largest row group of a Parquet file, and largest piece handed
            to a consumer. 128k rows, or fewer rows when they are wide.
        segment_target: a Parquet file made by compaction is closed after this size.
        segment_keep: a Parquet file at least this large is never rewritten.
        roll_bytes, roll_frames, roll_age: when a journal is closed and the next one begun.
            The limit on frames limits the time to open the log (about 20 us per frame).
        pack_bytes: compaction gives a table a Parquet file only when it has this many bytes (or
            ``segment_rows`` rows) in the range; a thousand sparse tables stay together in one
            journal file.
        merge_fan: how many neighbours of one level are merged into one of the next.
        merge_bytes: journal files are not merged past this size.
        grace: how long a file that compaction replaced stays on disk for readers that still know
            its name.
    """

    gc_ttl: float = 25 * 3600.0
    max_age: float | None = None
    keep_bytes: int | None = None
    disk_budget: int | None = None
    copy_budget: int | None = None
    disk_reserve: int = 64 * MIB
    memory_budget: int = 256 * MIB
    segment_rows: int = 16_384
    segment_bytes: int = 4 * MIB
    group_rows: int = 131_072
    group_bytes: int = 64 * MIB
    segment_target: int = 256 * MIB
    segment_keep: int = 8 * MIB
    roll_bytes: int = 32 * MIB
    roll_frames: int = 10_000
    roll_age: float = 600.0
    pack_bytes: int = 4 * MIB
    merge_fan: int = 8
    merge_bytes: int = 64 * MIB
    grace: float = 900.0

    def __post_init__(self) -> None:
        if self.merge_fan < 2:
            raise ValueError("merge_fan must be 2 or more: a merge of one gains nothing")

    @property
    def protection(self) -> float:
        """Age in seconds from which history is dropped even if a lagging feed needs it."""
        return self.gc_ttl if self.max_age is None else max(self.max_age, self.gc_ttl)

"""How much a feed does at once: one object, which a node passes to its feeds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of rows, unless it says bytes. Tests pass smaller ones.

    Attributes:
        slice_rows: of one slice of the change log. A transaction larger than this is one slice, in
            several chunks.
        chunk_rows: of one chunk, which is encoded and written at once.
        ahead_rows: a delivery of more rows encodes the next chunk while the sink writes.
        small_scan_rows: the node itself reads a lake table with fewer estimated rows, because a
        Spark job would cost more.
        proof_rows: of a part that option verify compares.
        scan_part_bytes: of a part of a table that is scanned.
    """

    slice_rows: int = 200_000
    chunk_rows: int = 100_000
    ahead_rows: int = 1000
    small_scan_rows: int = 20_000
    proof_rows: int = 200_000
    scan_part_bytes: int = 64 << 20

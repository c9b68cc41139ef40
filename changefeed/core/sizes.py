"""How much a feed does in one go: one value, which a node hands to its feeds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of rows. Tests hand in smaller ones.

    Attributes:
        slice_rows: of one slice of the change log. A transaction larger than this is one slice, in
            several chunks.
        chunk_rows: of one chunk, which is encoded and written in one go.
        ahead_rows: a delivery that has moved so many rows encodes the next chunk beside the sink.
        small_scan_rows: a table of a lake that is estimated below this is read by the node itself:
            a Spark job would cost more.
    """

    slice_rows: int = 200_000
    chunk_rows: int = 100_000
    ahead_rows: int = 1000
    small_scan_rows: int = 20_000

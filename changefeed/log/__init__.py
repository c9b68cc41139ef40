"""The change log of a source: durable storage of what capture has read, for any number of feeds.

One process writes (:class:`LogWriter`), any number read (:class:`LogReader`). A directory::

    LOCK                            held (flock) by the writer
    HEAD                            how far the live journal is complete and durable (36 bytes,
                                    overwritten in place after each fsync)
    LEDGER                          the sealed journals in time order (replaced by rename)
    journal-000000000007            a journal: frames (journal.py), one a flush
    segment-000000000007-000000.parquet   a large batch of one table, named by a frame

    journal   | file header | frame | frame | frame |
    frame     | sync, lengths, crc | header (JSON) | rows of table A | rows of table B | commits |
                                      |  frontier, new schemas, and for each entry the table,
                                      |  rows, first and last timestamp, place and crc
                                      '- or the name of a Parquet segment

    time ->   [ journal 31 (merged) ][ journal 30 ][ journal 32: live ........ HEAD ]
              '------------------ LEDGER ---------'

A flush is one frame and one fsync of the journal, however many tables it touches; a large
batch is first written to a Parquet file. Frames without a frontier are the beginning of a large
transaction: readers see them only when the frame with the frontier follows, and recovery removes
them if that frame was never written. The frames up to a frontier are a *unit*. Each unit covers
the timestamps ``(after, upto]``, and consecutive units leave no gap. A slice of the log ends at a
timestamp, and therefore between transactions.

The index is stored in these files, not in the state database. So the log alone is consistent
after any crash (one file is renamed, nothing is committed in two places), the capture process
needs no database, and a directory can be copied or read without one. Journals hold the schemas of
their rows. A reader stores nothing; it keeps in memory the header entries of the journals that it
has read.

Sealed journals are merged (compaction.py), and the oldest are dropped (retention.py). A table
takes space only for the rows that it has: one entry in a header. It gets files of its own only
when it has enough bytes.

What a crash leaves behind, and what happens to it when the log is opened:

==================================  ================================================
left behind                         action
==================================  ================================================
a torn frame at the end             cut off (a whole frame behind it: CF3001)
frames of an unfinished transaction cut off, with their segments; the source sends it again
segments that no frame names        removed
a new journal not in the ledger     removed
a merged journal not in the ledger  removed, with its segments
HEAD older than the journal         written again
replaced files still on disk        removed after their grace period (the ledger lists them)
==================================  ================================================
"""

from __future__ import annotations

from changefeed.log.reader import LogReader
from changefeed.log.retention import UpkeepResult
from changefeed.log.settings import LogSettings
from changefeed.log.slice import LogPiece, Slice
from changefeed.log.writer import AppendedAhead, LogWriter

__all__ = [
    "AppendedAhead",
    "LogReader",
    "LogSettings",
    "LogWriter",
    "LogPiece",
    "Slice",
    "UpkeepResult",
]

"""The change log of a source: what capture has read, durable, for any number of feeds.

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
batch goes to Parquet first. Frames without a frontier are the
beginning of a large transaction: readers do not see them before the frame that has one, and
recovery cuts them off when it never came. The frames up to a frontier are a *unit*; units cover
``(after, upto]`` of time without a gap. A slice of the log ends at a timestamp, so between
transactions.

The index lives in these files, not in the state database: the log is then consistent by itself
after any crash (one file is renamed, nothing is committed in two places), the capture process
needs no database, and a directory can be copied or read alone. Journals hold the schemas of
their rows. What a reader keeps is derived: header entries of the journals it was asked for.

Sealed journals are merged (compaction.py) and dropped from the old end (retention.py). A table
costs something only while it has rows: an entry in a header. It gets files of its own only by
its bytes.

What a crash leaves, and what opening the log does:

==================================  ================================================
left behind                         done
==================================  ================================================
a torn frame at the end             cut off (a whole frame behind it: CF3001)
frames of an unfinished transaction cut off, with their segments; the source sends it again
segments no frame names             removed
a new journal the ledger lacks      removed
a merged journal the ledger lacks   removed, with its segments
HEAD older than the journal         written again
replaced files still on disk        removed after their grace (the ledger lists them)
==================================  ================================================
"""

from __future__ import annotations

from changefeed.log.reader import LogReader
from changefeed.log.retention import UpkeepResult
from changefeed.log.settings import LogSettings
from changefeed.log.slice import LogPiece, Slice
from changefeed.log.writer import LogWriter

__all__ = [
    "LogReader",
    "LogSettings",
    "LogWriter",
    "LogPiece",
    "Slice",
    "UpkeepResult",
]

"""Row images: the present row of every key of a table, kept next to the change log.

A source may log less of a row than a feed needs: only the key of the row before a change, and no
large unchanged values of the row after it. A store of images completes such changes before they are
written to the change log, so that the log, and everything that reads it, has true values.

    scan under a snapshot ---> store <--- changes in log order
                                 |
    change of the source ---> complete ---> change log

    source_images.py   the stores of a source: filled, followed, given up
    complete.py        completes a batch of changes
    store.py           one store: memory.py (recent changes) over runs.py (files), newest first
    packing.py         rows as bytes; states.py: what capture shows of a store; wanted.py: who asks

The change log is the write-ahead log of the store. A crash loses what the store has in memory; the
store then reads the change log again, from its last checkpoint on.
"""

"""Row images: the present row of every key of a table, beside the change log.

A source may log less of a row than a feed needs: of the row before a change only its key, of the
row after it nothing that is large and did not change. A store of images completes such changes on
their way into the change log, so that the log, and all that reads it, has true values.

    scan under a snapshot ---> store <--- changes in log order
                                 |
    change of the source ---> complete ---> change log

The change log is the store's journal. What the store has in memory is lost in a crash and comes
again from the log, from the position of the store's last checkpoint on.
"""

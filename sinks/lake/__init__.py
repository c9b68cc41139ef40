"""Tables of Delta and Iceberg that Spark keeps equal to the source's.

::

    write    rows of the log ──► files of staged rows (staging: what a later row replaces goes)
    commit   files of a round ──► one commit of each table, which also says how far it is

Which round goes which way (:func:`rounds.apply`, :func:`rounds.merge_scan` and their neighbours):

=========================  =================================================  =====================
rows                       what brings them into the table                    written in
=========================  =================================================  =====================
changes, with a key        Delta: one join, whose result is committed with    delta_round
                           deletion vectors (``LakeTable.upsert``)
the same with soft         a MERGE: also in Iceberg, where the source left    merge.merge
deletes, unsent values     values out, and where :mod:`.delta_round` says
                           that the table needs one
changes, no key            a MERGE of numbered copies                         merge.counted
``append``                 an INSERT                                          merge.append
``scd2``                   a MERGE that ends versions and begins others       merge.versions
scan into an empty table   an append, which reads the rows once               rounds.append_scan
scan into one with rows    a MERGE; of ``scd2`` one that compares             merge.scanned_versions
scan, no key               the first rows replace all, the next are counted   merge.numbered
end of a scan, TRUNCATE    a DELETE or an UPDATE, by the feed's options       merge.remove
=========================  =================================================  =====================

:mod:`.sink` decides when, and whose a table is; :mod:`.table` is a table of either format, with
:mod:`.delta` and :mod:`.iceberg` for what differs, :mod:`.shape` and :mod:`.types` for its columns,
:mod:`.upkeep` for small files and old versions. :mod:`.look` looks at a place without Spark.
"""

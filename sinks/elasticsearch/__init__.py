"""Elasticsearch: an index a table, documents by key, versions made of the commit timestamp.

::

    rows --> sink.py --> body.py (lines of a bulk request) --> bulk.py --> client.py -->
    connection.py
               |                                                 |
               |                                                 +--> answers.py: a verdict each
               |                                                 +--> letters.py: refused documents
               +--> indices.py, mapping.py: indices of tables, fields of new columns
               +--> marks.py: resolved timestamps; sweep.py: deletes below a version
    options.py   URI, options and names of indices

A document is written only over an older one, so the order of requests does not matter.
"""

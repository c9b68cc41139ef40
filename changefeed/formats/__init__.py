"""Typed formats: what a value of the log is to readers that want more than text.

:mod:`~changefeed.formats.types` says which type a column has outside PostgreSQL,
:mod:`~changefeed.formats.shape` which members a typed message has,
:mod:`~changefeed.formats.avro` and :mod:`~changefeed.formats.protobuf` write both down, and
:mod:`~changefeed.formats.registry` makes those known to a schema registry. The values
themselves are made in :mod:`changefeed.messages`.
"""

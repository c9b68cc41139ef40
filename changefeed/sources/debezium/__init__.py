"""Databases that Debezium reads: its engine runs in a JVM of the process that needs it.

``docs/source-debezium.md`` is the page for users. The way of a change::

    Debezium's engine -> java/Door.java: columns -> frames.py -> assemble.py -> flushes
"""

from changefeed.sources.debezium.source import DebeziumSource

__all__ = ["DebeziumSource"]

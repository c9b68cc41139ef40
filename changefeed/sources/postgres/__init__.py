"""PostgreSQL as a source: version 12 and newer, by logical replication with ``pgoutput``.

wire transport lsn     the replication protocol on a plain socket
types details columns values rows pgoutput spool stream
                       the log, decoded by columns
address connect introspect checks scattered server publications slots standby
                       sessions, names and shapes, what hinders, what we make there
snapshot lookup        the initial scan, and single values by key
"""

from __future__ import annotations

from changefeed.sources.postgres.source import PostgresSource

__all__ = ["PostgresSource"]

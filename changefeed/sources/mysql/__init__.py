"""MySQL and MariaDB as a source: the binlog, and tables under a consistent snapshot."""

from changefeed.sources.mysql.source import MySQLSource

__all__ = ["MySQLSource"]

"""MySQL and MariaDB as a source: the binlog, and tables under a consistent snapshot."""

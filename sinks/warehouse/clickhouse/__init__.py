"""ClickHouse as a target: rows that replace each other, its client and SQL."""

"""Tables of extensions whose rows lie in other tables: a publication of such a table sends nothing.

Both catalogs are read as the extensions' documentation has them; neither extension was at hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from changefeed.sources.postgres.connect import PsycopgConnection

_EXTENSIONS = """
    SELECT pg_catalog.to_regclass('_timescaledb_catalog.hypertable') IS NOT NULL,
           pg_catalog.to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL
"""
_HYPERTABLES = """
    SELECT c.oid::int8 FROM _timescaledb_catalog.hypertable h
    JOIN pg_catalog.pg_namespace n ON n.nspname = h.schema_name
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = h.table_name
    WHERE c.oid = ANY (%s::oid[])
"""
_DISTRIBUTED = """
    SELECT logicalrelid::oid::int8 FROM pg_catalog.pg_dist_partition
    WHERE logicalrelid::oid = ANY (%s::oid[])
"""


def read_scattered(connection: PsycopgConnection, oids: Sequence[int]) -> Mapping[int, str]:
    """Those of the tables that have their rows elsewhere, and where."""
    hyper, distributed = connection.execute(_EXTENSIONS).fetchone() or (False, False)
    found: dict[int, str] = {}
    if hyper:
        for (oid,) in connection.execute(_HYPERTABLES, [list(oids)]):
            found[oid] = "it is a hypertable of TimescaleDB, whose rows lie in chunks"
    if distributed:
        for (oid,) in connection.execute(_DISTRIBUTED, [list(oids)]):
            found[oid] = "it is distributed by Citus, and its rows lie in shards"
    return found

"""Load closed buckets of a files sink into PostgreSQL by COPY, in the place of a warehouse.

    python load.py /data/lake postgresql://app:pw@localhost/analytics

Every bucket (a minute) whose manifests are there and that is not loaded yet is one transaction,
oldest first: so the tables are always as the source was at the end of some minute. The target's
tables have the names, columns and primary keys of the source's.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from urllib.parse import unquote, urlparse

import psycopg
from psycopg import sql

MANIFEST = re.compile(r"\d{33}-\d+-(?P<topic>.+)-\d+\.manifest")

LOADED = "create table if not exists _loaded (manifest text primary key)"

# A line of JSON has no byte 1 or 2, so nothing is quoted and a line is one field.
COPY = r"copy lines from stdin with (format csv, quote e'\x01', delimiter e'\x02')"

# Files may hold a row twice, and several versions of it: the newest counts.
NEWEST = """
create temporary table newest on commit drop as
select distinct on (line -> 'key') line -> 'key' as key, line -> 'after' as after
from lines where line ? 'key'
  and (line ->> 'updated')::numeric > (
    select coalesce(max((line ->> 'truncate')::numeric), 0) from lines)
order by line -> 'key', (line ->> 'updated')::numeric desc"""

EMPTY = "delete from {table} where exists (select 1 from lines where line ? 'truncate')"
DELETE = "delete from {table} using newest where jsonb_build_array({key}) = newest.key"
INSERT = """
insert into {table} select (jsonb_populate_record(null::{table}, after)).*
from newest where jsonb_typeof(after) = 'object'"""

KEY = """
select a.attname from pg_index i
join pg_attribute a on a.attrelid = i.indrelid and a.attnum = any(i.indkey)
where i.indisprimary and i.indrelid = %s::regclass
order by array_position(i.indkey, a.attnum)"""


def files(manifest: Path) -> Iterator[Path]:
    """The files a manifest names; each must have the size it says."""
    for entry in json.loads(manifest.read_text())["entries"]:
        path = Path(unquote(urlparse(entry["url"]).path))
        size = entry["meta"]["content_length"]
        if path.stat().st_size != size:
            raise SystemExit(f"{path} does not have {size} bytes")
        yield path


def load_table(connection: psycopg.Connection, table: str, manifests: list[Path]) -> None:
    """One table's part of a bucket."""
    connection.execute("create temporary table lines (line jsonb) on commit drop")
    with connection.cursor().copy(COPY) as copy:
        for path in (path for manifest in manifests for path in files(manifest)):
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                while block := file.read(1 << 20):
                    copy.write(block)
    key = [sql.Identifier(table, name) for (name,) in connection.execute(KEY, [table])]
    parts = {"table": sql.Identifier(table), "key": sql.SQL(", ").join(key)}
    for statement in (NEWEST, EMPTY, DELETE, INSERT):
        connection.execute(sql.SQL(statement).format(**parts))
    connection.execute("drop table lines, newest")


def table_of(manifest: Path) -> str:
    """The table whose files a manifest lists."""
    found = MANIFEST.fullmatch(manifest.name)
    if found is None:
        raise SystemExit(f"{manifest} is no manifest of a changefeed")
    return found["topic"]


def closed(lake: Path) -> list[Path]:
    """The manifests of closed buckets, oldest first.

    The resolved mark that closes a bucket is written behind the manifests of all its tables.
    Names begin with a timestamp that sorts as text.
    """
    upto = max((path.name for path in lake.rglob("*.RESOLVED")), default="")
    return sorted(path for path in lake.rglob("*.manifest") if path.name < upto)


def load(lake: Path, target: str) -> int:
    """Load every closed bucket that is not loaded; returns how many."""
    buckets = 0
    with psycopg.connect(target, autocommit=True) as connection:
        connection.execute(LOADED)
        done = {name for (name,) in connection.execute("select manifest from _loaded")}
        new = [path for path in closed(lake) if str(path.relative_to(lake)) not in done]
        for _, bucket in groupby(new, key=lambda path: path.parent):
            with connection.transaction():
                manifests = list(bucket)
                for table, own in groupby(manifests, key=table_of):
                    load_table(connection, table, list(own))
                for path in manifests:
                    name = str(path.relative_to(lake))
                    connection.execute("insert into _loaded values (%s)", [name])
            buckets += 1
    return buckets


if __name__ == "__main__":
    print(f"{load(Path(sys.argv[1]), sys.argv[2])} buckets loaded")

"""How fast a scan reads a table of MySQL or MariaDB, for each kind of key, beside its limit.

    python -m benchmarks.mysql_scan --rows 2000000 --key text

Each round has all contenders, one after the other, so that they share the machine's other load:
*outfile* is ``SELECT .. INTO OUTFILE`` as ``mysqldump --tab`` does it, *one* the table as one part
by one session, *parts* what a scan does: ranges of the key, four sessions; *ranges* is the part of
that which finds the ranges. Rows become Arrow batches in log form and are dropped.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

from benchmarks import binlog
from benchmarks.binlog import DATABASE, TABLE
from changefeed.scan.table import read_parts
from changefeed.sources.base import KeySet
from changefeed.sources.mysql import MySQLSource
from tests.services.mysql import SERVERS, BinlogServer


def outfile(server: BinlogServer) -> None:
    """Write the table to a file of the server."""
    file = server.folder / "tmp" / "rows.txt"
    server.run(f"SELECT * INTO OUTFILE '{file}' FROM {TABLE}", database=DATABASE)
    file.unlink()


def scanned(server: BinlogServer, *, whole: bool) -> int:
    """Read the table as a scan does, or as one part; how many rows."""
    source = MySQLSource("measured", server.uri(DATABASE))
    schema = source.describe(None, TABLE)
    with source.snapshot([schema]) as snapshot:
        if whole:
            (one,) = snapshot.parts(schema, keys=KeySet(((0,) * len(schema.key),)))
            parts = [replace(one, where="")]
        else:
            parts = list(snapshot.parts(schema))
        return sum(batch.num_rows for batch in read_parts(parts, lambda: False))


def ranges(server: BinlogServer) -> int:
    """Find the ranges of a scan; how many."""
    source = MySQLSource("measured", server.uri(DATABASE))
    schema = source.describe(None, TABLE)
    with source.snapshot([schema]) as snapshot:
        return len(snapshot.parts(schema))


def main() -> None:
    """Print a line for each contender and round."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mysql_scan",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--server", choices=sorted(SERVERS), default="mysql8")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--key", choices=["number", *binlog.KEYS], default="number")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with binlog.serving(given.server) as server:
        binlog.fill(server, given.rows)
        binlog.rekey(server, given.key)
        server.run(f"ANALYZE TABLE {TABLE}", database=DATABASE)
        contenders: dict[str, Callable[[], object]] = {
            "outfile": lambda: outfile(server),
            "one": lambda: scanned(server, whole=True),
            "ranges": lambda: ranges(server),
            "parts": lambda: scanned(server, whole=False),
        }
        for number in range(given.rounds):
            for name, contend in contenders.items():
                started, spent = time.perf_counter(), time.process_time()
                contend()
                seconds, cpu = time.perf_counter() - started, time.process_time() - spent
                print(
                    f"{given.server}, {given.key}, round {number + 1}, {name}: "
                    f"{given.rows / seconds:,.0f} rows/s, {cpu / given.rows * 1e6:.2f} us of CPU",
                    flush=True,
                )


if __name__ == "__main__":
    main()

"""MySQL or MariaDB to Kafka as JSON: ours and Debezium side by side, on one server and one broker.

    python -m benchmarks.mysql_kafka drain --rows 2000000
    python -m benchmarks.mysql_kafka small --rows 200000 --server mariadb
    python -m benchmarks.mysql_kafka scan --rows 5000000
    python -m benchmarks.mysql_kafka scan --rows 1000000 --key text --only outfile ours
    python -m benchmarks.mysql_kafka latency --rate 100 --seconds 60

*drain*: a backlog of 60 % inserts, 25 % updates and 15 % deletes, 500 a transaction, behind the
place where both begin; one after the other reads it from the binlog. *small*: the same of inserts,
a transaction per row. *scan*: both read the same table, Debezium in chunks by several threads;
*outfile* is the limit, the same rows by ``SELECT .. INTO OUTFILE`` as ``mysqldump --tab`` does it.
*latency*: one after the other, at the same rate. What is counted, and how, is as in ``kafka``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks import binlog
from benchmarks.binlog import DATABASE, TABLE
from benchmarks.kafka import Asked, Contender, our_cost, our_latency
from benchmarks.latency import Tick, Ticks
from benchmarks.ours import Ours
from benchmarks.peers import debezium
from benchmarks.workload import NARROW
from tests.services.kafka import KafkaBroker
from tests.services.mysql import SERVERS, BinlogServer


@dataclass(frozen=True, slots=True)
class BinlogRun:
    """Where a run takes place."""

    server: BinlogServer
    broker: KafkaBroker
    folder: Path

    def ours(self) -> Ours:
        """Our contender, whose account has the rights that the documentation asks for."""
        return Ours(self.folder, self.server.uri(DATABASE), self.broker.uri)

    def peer(self, table: str, offset: str = "") -> debezium.Connector:
        """Debezium's connector of a table, from an offset."""
        return debezium.of_binlog(self.server, DATABASE, table, offset=offset)


@contextmanager
def place(kind: str) -> Iterator[BinlogRun]:
    """A server with an empty table, and a broker."""
    with ExitStack() as stack:
        folder, broker = stack.enter_context(debezium.broker_place())
        yield BinlogRun(stack.enter_context(binlog.serving(kind)), broker, folder)


def drain(run: BinlogRun, asked: Asked) -> dict[str, Contender]:
    """Contenders for a backlog of mixed changes."""
    return _behind(run, asked, "mixed")


def small(run: BinlogRun, asked: Asked) -> dict[str, Contender]:
    """Contenders for a backlog of small transactions."""
    return _behind(run, asked, "small")


def _behind(run: BinlogRun, asked: Asked, workload: str) -> dict[str, Contender]:
    ours = run.ours()
    with ours.running():
        ours.execute(
            f"CREATE CHANGEFEED bench FOR source.{TABLE} INTO 'external://sink'"
            " WITH initial_scan = 'no'"
        )
        ours.wait_status("bench", "running")
    offset = binlog.place(run.server).for_debezium()
    rows = binlog.change(run.server, workload, asked.rows)
    name = f"{DATABASE}.{TABLE}"

    def of_debezium() -> str:
        connector = run.peer(TABLE, offset)
        cost = debezium.into_kafka(run.folder, run.broker, connector, name, rows, asked.settings)
        return cost.per_row(rows)

    return {
        "ours": lambda: our_cost(run.broker, ours, TABLE, rows).per_row(rows),
        "debezium": of_debezium,
    }


def scan(run: BinlogRun, asked: Asked) -> dict[str, Contender]:
    """Contenders for an initial scan."""
    binlog.fill(run.server, asked.rows)
    binlog.rekey(run.server, asked.key)
    run.server.run(f"ANALYZE TABLE {TABLE}", database=DATABASE)
    ours = run.ours()
    create = (
        f"CREATE CHANGEFEED bench FOR source.{TABLE} INTO 'external://sink'"
        " WITH initial_scan = 'only'"
    )
    settings = {**debezium.chunked_snapshot(asked.threads), **asked.settings}

    def of_debezium() -> str:
        name = f"{DATABASE}.{TABLE}"
        cost = debezium.into_kafka(
            run.folder, run.broker, run.peer(TABLE), name, asked.rows, settings
        )
        return cost.per_row(asked.rows)

    return {
        "outfile": lambda: _outfile(run.server, asked.rows),
        "ours": lambda: our_cost(run.broker, ours, TABLE, asked.rows, create).per_row(asked.rows),
        "debezium": of_debezium,
    }


def _outfile(server: BinlogServer, rows: int) -> str:
    file = server.folder / "tmp" / "rows.txt"
    started = time.perf_counter()
    server.run(f"SELECT * INTO OUTFILE '{file}' FROM {TABLE}", database=DATABASE)
    seconds = time.perf_counter() - started
    file.unlink()
    return f"{rows / seconds:,.0f} rows/s"


def latency(run: BinlogRun, asked: Asked) -> dict[str, Contender]:
    """Contenders for single-row commits at a steady rate."""

    def of_ours() -> str:
        with _ticks(run.server) as ticks:
            run.broker.create_topic("ticks")
            delays, cost = our_latency(run.broker, run.ours(), "ticks", ticks, asked)
        return f"{delays}, {cost.share}"

    def of_debezium() -> str:
        with _ticks(run.server) as ticks:
            # By itself it would begin where the log ends when it has started: behind the first row.
            connector = run.peer("ticks", binlog.place(run.server).for_debezium())
            delays, cost = debezium.latency_of(
                run.folder,
                run.broker,
                connector,
                f"{DATABASE}.ticks",
                ticks,
                asked.rate,
                asked.seconds,
                asked.settings,
            )
        return f"{delays}, {cost.share}"

    return {"ours": of_ours, "debezium": of_debezium}


@contextmanager
def _ticks(server: BinlogServer) -> Iterator[Ticks]:
    """The table ``ticks``; it is gone afterwards."""

    @contextmanager
    def connected() -> Iterator[Tick]:
        with server.connect("root", "", DATABASE) as connection, connection.cursor() as cursor:
            yield lambda number: cursor.execute("INSERT INTO ticks VALUES (%s)", [number])

    server.run("CREATE TABLE ticks (id INT PRIMARY KEY)", database=DATABASE)
    yield connected
    server.run("DROP TABLE ticks", database=DATABASE)


MODES = {"drain": drain, "small": small, "scan": scan, "latency": latency}


def main() -> None:
    """Run one mode with all contenders and print a line for each."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mysql_kafka",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("mode", choices=sorted(MODES))
    parser.add_argument("--server", choices=sorted(SERVERS), default="mysql8")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--threads", type=int, default=psutil.cpu_count() or 2)
    parser.add_argument("--rate", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--key", choices=["number", *binlog.KEYS], default="number")
    parser.add_argument("--only", nargs="+", choices=["outfile", "ours", "debezium"])
    parser.add_argument("--defaults", action="store_true", help="Debezium as it comes")
    given = parser.parse_args()
    settings = {} if given.defaults else debezium.TUNED
    asked = Asked(
        given.mode,
        NARROW,
        given.rows,
        given.threads,
        given.rate,
        given.seconds,
        settings,
        given.key,
    )
    what = f"{given.rate}/s" if given.mode == "latency" else f"{given.rows:,} rows"
    with place(given.server) as run:
        for name, contend in MODES[given.mode](run, asked).items():
            if given.only is None or name in given.only:
                print(f"{given.mode}, {given.server}, {what}, {name}: {contend()}", flush=True)


if __name__ == "__main__":
    main()

"""PostgreSQL to Kafka as JSON: ours and Debezium side by side, on one server and one broker.

    python -m benchmarks.kafka drain --table narrow --rows 2000000
    python -m benchmarks.kafka scan --rows 5000000
    python -m benchmarks.kafka latency --rate 100 --seconds 60
    python -m benchmarks.kafka transaction --rows 1000000
    python -m benchmarks.kafka delivery --rows 2000000
    python -m benchmarks.kafka hosts --rows 2000000
    python -m benchmarks.kafka hosts_latency --rate 100 --seconds 60

*drain*: both have a slot, the same changes are committed, then one after the other drains
them. *transaction*: the same, but the changes are one transaction of rows of 1 KiB, which is
where memory shows. *scan*: both read the same table; *copy* is the limit, the same rows by
``COPY ... TO STDOUT`` on one connection and thrown away. *latency*: one after the other, at
the same rate. *delivery*: our own at least once beside our own exactly once (Kafka
transactions; the marks that end them count as messages, a few dozen). *hosts*: our own with its
change log on the local disk beside logs that several hosts share, in a directory and in moto's S3,
whose state is a database of the source's server; *hosts_latency*: the same at a steady rate. From
the start of the process to the last message, because a contender that works in large batches has
done most of it when its first message is there; measure millions of rows, so that the start does
not matter. Messages are counted by the ends of the topic. CPU is user and system time of the
contender's processes (ours: node, capture, and where Spark works its JVM and workers), without
PostgreSQL and Kafka.
``--only ours`` or ``--only debezium`` leaves one out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import psutil

from benchmarks.latency import Latencies, Ticks, measure, postgresql_ticks
from benchmarks.measure import Cost, Meter
from benchmarks.ours import Ours
from benchmarks.peers import debezium
from benchmarks.peers.debezium import Counter, Run, place
from benchmarks.workload import LARGE, WORKLOADS, Workload
from tests.services.cache import server_folder
from tests.services.kafka import KafkaBroker
from tests.services.s3 import S3Server

Contender = Callable[[], str]
Contending = AbstractContextManager[dict[str, Contender]]


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asks for; ``key`` is the kind of key that the table has."""

    mode: str
    workload: Workload
    rows: int
    threads: int
    rate: int
    seconds: float
    settings: Mapping[str, str]
    key: str = "number"


def ours_of(run: Run) -> Ours:
    """Our contender on a run's database and broker."""
    return Ours(run.folder, run.database.uri, run.broker.uri)


def drain(run: Run, asked: Asked) -> dict[str, Contender]:
    """Contenders for a backlog that waits behind both slots when this returns."""
    return _behind_slots(run, asked, lambda: _change(run, asked))


def transaction(run: Run, asked: Asked) -> dict[str, Contender]:
    """Contenders for one large transaction that waits behind both slots."""
    asked = replace(asked, workload=LARGE)

    def insert() -> None:
        with run.database.connect() as connection:
            connection.execute(
                f"insert into {LARGE.table} select {LARGE.row.format(id='n')}"
                f" from generate_series(1, {asked.rows}) n"
            )

    return _behind_slots(run, asked, insert)


def _change(run: Run, asked: Asked) -> None:
    with run.database.connect() as connection:
        asked.workload.change(connection, asked.rows)


def _behind_slots(run: Run, asked: Asked, commit: Callable[[], None]) -> dict[str, Contender]:
    """Contenders for what ``commit`` commits when both have their slots."""
    table = asked.workload.table
    ours = ours_of(run)
    with run.database.connect() as connection:
        asked.workload.create(connection)
        connection.execute(f"create publication {debezium.PUBLICATION} for table {table}")
        connection.execute(
            f"select pg_create_logical_replication_slot('{debezium.SLOT}', 'pgoutput')"
        )
    with ours.running():
        ours.execute(
            f"CREATE CHANGEFEED bench FOR source.{table} INTO 'external://sink'"
            " WITH initial_scan = 'no'"
        )
        ours.wait_status("bench", "running")
    commit()
    peer = {"snapshot.mode": "no_data", **asked.settings}
    return {
        "ours": lambda: our_cost(run.broker, ours, table, asked.rows).per_row(asked.rows),
        "debezium": lambda: debezium.timed(run, asked.workload, asked.rows, peer).per_row(
            asked.rows
        ),
    }


def scan(run: Run, asked: Asked) -> dict[str, Contender]:
    """Contenders for an initial scan of a table."""
    table = asked.workload.table
    ours = ours_of(run)
    with run.database.connect() as connection:
        asked.workload.create(connection, asked.rows)
        connection.execute(f"create publication {debezium.PUBLICATION} for table {table}")
    create = (
        f"CREATE CHANGEFEED bench FOR source.{table} INTO 'external://sink'"
        " WITH initial_scan = 'only'"
    )
    peer = {**debezium.chunked_snapshot(asked.threads), **asked.settings}
    return {
        "copy": lambda: _copy(run, table, asked.rows),
        "ours": lambda: our_cost(run.broker, ours, table, asked.rows, create).per_row(asked.rows),
        "debezium": lambda: debezium.timed(run, asked.workload, asked.rows, peer).per_row(
            asked.rows
        ),
    }


def latency(run: Run, asked: Asked) -> dict[str, Contender]:
    """Contenders for single-row commits at a steady rate."""

    def of_ours() -> str:
        with postgresql_ticks(run.database.uri) as ticks:
            run.broker.create_topic("ticks")
            delays, cost = our_latency(run.broker, ours_of(run), "ticks", ticks, asked)
        return f"{delays}, {cost.share}"

    def of_debezium() -> str:
        delays, cost = debezium.latency(run, asked.rate, asked.seconds, asked.settings)
        return f"{delays}, {cost.share}"

    return {"ours": of_ours, "debezium": of_debezium}


def our_latency(
    broker: KafkaBroker,
    ours: Ours,
    table: str,
    ticks: Ticks,
    asked: Asked,
    topic: str = "ticks",
) -> tuple[Latencies, Cost]:
    """From commit to a consumer by a feed of a table whose topic is there."""
    with ours.running() as pid, Meter(pid) as meter:
        ours.execute(
            f"CREATE CHANGEFEED bench FOR source.{table} AS {topic} INTO 'external://sink'"
            " WITH initial_scan = 'no'"
        )
        delays = measure(
            ticks,
            broker.bootstrap,
            topic,
            rate=asked.rate,
            seconds=asked.seconds,
            check=ours.check,
            steady=meter.steady,
        )
        ours.execute("DROP CHANGEFEED bench")
    return delays, meter.cost


def delivery(run: Run, asked: Asked) -> dict[str, Contender]:
    """Our two ways to deliver, each with a slot of its own and the same backlog behind it."""
    table = asked.workload.table
    with run.database.connect() as connection:
        asked.workload.create(connection)
    made: dict[str, Ours] = {}
    for way in ("at_least_once", "exactly_once"):
        folder = run.folder / way
        folder.mkdir()
        made[way] = Ours(folder, run.database.uri, run.broker.uri)
        _stand_by(made[way], table, way, f", delivery = '{way}'")
    _change(run, asked)
    return _drains(run, made, asked)


def _stand_by(ours: Ours, table: str, topic: str, options: str = "") -> None:
    """Create a feed, whose slot keeps what is committed from now on."""
    with ours.running():
        ours.execute(
            f"CREATE CHANGEFEED bench FOR source.{table} AS {topic} INTO 'external://sink'"
            f" WITH initial_scan = 'no'{options}"
        )
        ours.wait_status("bench", "running")


def _drains(run: Run, made: Mapping[str, Ours], asked: Asked) -> dict[str, Contender]:
    """Contenders of ours, each with a topic of its name."""
    return {
        way: lambda ours=ours, way=way: our_cost(  # type: ignore[misc]
            run.broker, ours, way, asked.rows
        ).per_row(asked.rows)
        for way, ours in made.items()
    }


@contextmanager
def _logs(run: Run) -> Iterator[dict[str, Ours]]:
    """Our own with a log of one host, and with logs that hosts share."""
    with ExitStack() as stack:
        store = S3Server(stack.enter_context(server_folder("bench-s3"))).start()
        stack.callback(store.stop)
        logs = {
            "local": "",
            "directory": str(run.folder / "store"),
            "s3": store.uri(store.bucket("logs")),
        }
        made = {}
        for name, log in logs.items():
            folder = run.folder / name
            folder.mkdir()
            state = stack.enter_context(run.database.server.database()).uri if log else ""
            made[name] = Ours(folder, run.database.uri, run.broker.uri, state, log)
            stack.callback(made[name].close)
        yield made


@contextmanager
def hosts(run: Run, asked: Asked) -> Iterator[dict[str, Contender]]:
    """Our ways to keep a log, each with a slot of its own and the same backlog behind it."""
    with run.database.connect() as connection:
        asked.workload.create(connection)
    with _logs(run) as made:
        for name, ours in made.items():
            _stand_by(ours, asked.workload.table, name)
        _change(run, asked)
        yield _drains(run, made, asked)


@contextmanager
def hosts_latency(run: Run, asked: Asked) -> Iterator[dict[str, Contender]]:
    """Our ways to keep a log, one after the other at a steady rate."""

    def contend(name: str, ours: Ours) -> str:
        run.broker.create_topic(name)
        with postgresql_ticks(run.database.uri) as ticks:
            delays, cost = our_latency(run.broker, ours, "ticks", ticks, asked, topic=name)
        return f"{delays}, {cost.share}"

    with _logs(run) as made:
        yield {name: partial(contend, name, ours) for name, ours in made.items()}


def our_cost(
    broker: KafkaBroker, ours: Ours, topic: str, rows: int, create: str | None = None
) -> Cost:
    """What a node uses from its start until ``rows`` messages are in the topic."""
    counter = Counter(broker, topic)
    with ours.running() as pid, Meter(pid) as meter:
        if create is not None:
            ours.execute(create)
        counter.wait(1, ours.check, timeout=180)
        meter.first()
        counter.wait(rows, ours.check, timeout=3600)
    counter.close()
    return meter.cost


def _copy(run: Run, table: str, rows: int) -> str:
    with run.database.connect() as connection, connection.cursor() as cursor:
        started = time.perf_counter()
        with cursor.copy(f"copy {table} to stdout") as copy:
            while copy.read():
                pass
        seconds = time.perf_counter() - started
    return f"{rows / seconds:,.0f} rows/s"


#: Contenders, or what has them while they run.
MODES: dict[str, Callable[[Run, Asked], dict[str, Contender] | Contending]] = {
    "drain": drain,
    "transaction": transaction,
    "scan": scan,
    "latency": latency,
    "delivery": delivery,
    "hosts": hosts,
    "hosts_latency": hosts_latency,
}


def main() -> None:
    """Run one mode with both contenders and print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka")
    parser.add_argument("mode", choices=sorted(MODES))
    parser.add_argument("--table", choices=sorted(WORKLOADS), default="narrow")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--threads", type=int, default=psutil.cpu_count() or 2)
    parser.add_argument("--rate", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--only", choices=["ours", "debezium"])
    parser.add_argument("--defaults", action="store_true", help="Debezium as it comes")
    given = parser.parse_args()
    asked = Asked(
        given.mode,
        WORKLOADS[given.table],
        given.rows,
        given.threads,
        given.rate,
        given.seconds,
        {} if given.defaults else debezium.TUNED,
    )
    what = {
        "latency": f"{given.rate}/s",
        "hosts_latency": f"{given.rate}/s",
        "transaction": f"one of {given.rows:,} rows",
    }.get(given.mode, f"{given.table}, {given.rows:,} rows")
    with place() as run:
        found = MODES[given.mode](run, asked)
        with nullcontext(found) if isinstance(found, dict) else found as contenders:
            for name, contend in contenders.items():
                if given.only in (None, name):
                    print(f"{given.mode}, {what}, {name}: {contend()}", flush=True)


if __name__ == "__main__":
    main()

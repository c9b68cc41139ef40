"""A process whose Spark has a Hive metastore of its own, for tests of tables in it.

Called with a folder; prints one JSON object on its last line.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from changefeed.core.errors import ChangefeedError
from changefeed.core.timings import Timings
from changefeed.dataset import read_config
from changefeed.dataset.run import run_dataset
from changefeed.spark.session import NodeSpark
from tests.e2e.feeds import running
from tests.helpers.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY1, DAY2, DAY3 = (dt.date(2019, 6, day) for day in (18, 19, 20))
CONFIG = """
name: d
current_table_path: {folder}/it's current
history_table_path: {folder}/history
current_table: db.orders
history_table: DB.`orders_history`
columns:
- {{name: Id, type: int, key: true}}
"""


def metastore(folder: Path) -> dict[str, str]:
    """Spark's properties for a metastore in a folder."""
    return {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": (
            f"jdbc:derby:;databaseName={folder}/metastore;create=true"
        ),
        "spark.driver.extraJavaOptions": f"-Dderby.stream.error.file={folder}/derby.log",
    }


def rows(session: SparkSession, name: str, *columns: str) -> list[list[str]]:
    """Rows of a table as text, in order."""
    found = session.table(name).select(*columns).collect()
    return sorted([str(value) for value in row] for row in found)


def extract(path: Path, *lines: str) -> str:
    path.parent.mkdir(exist_ok=True)
    begun = path.with_name("." + path.name)
    begun.write_text("\n".join(lines) + "\n")
    begun.replace(path)
    return str(path)


def refusal(attempt: Callable[[], object]) -> Sequence[str]:
    try:
        attempt()
    except ChangefeedError as error:
        return error.code.number, error.message, error.hint
    return ()


def partitions(session: SparkSession) -> list[str]:
    return sorted(row[0] for row in session.sql("SHOW PARTITIONS db.orders_history").collect())


def command(spark: NodeSpark, folder: Path) -> dict[str, object]:
    """Runs of a configuration whose columns change."""
    found: dict[str, object] = {}
    path = folder / "config.yaml"

    def run(date: dt.date, columns: str, *lines: str) -> None:
        path.write_text(CONFIG.format(folder=folder) + columns)
        csv = extract(folder / "in" / f"{date}.csv", *lines)
        run_dataset(spark, read_config(path), csv, date)

    item, price = "- {name: item}\n", "- {name: price, type: int}\n"
    with spark.use() as session:
        found["no database"] = refusal(lambda: run(DAY1, item, "1,apple"))
        session.sql("CREATE DATABASE db")
        session.sql("CREATE TABLE db.orders_history (a INT) USING parquet")
        found["foreign"] = refusal(lambda: run(DAY1, item, "1,apple"))
        found["nothing happened"] = not (folder / "it's current").exists()
        session.sql("DROP TABLE db.orders_history")
        run(DAY1, item, "1,apple", "2,pear")
        reader = session.newSession()
        found["first"] = rows(reader, "db.orders", "Id", "item", "OPERATION", "EFF_START_DATE")
        begun = reader.table("db.orders")
        run(DAY2, item, "1,apple", "3,fig")
        found["begun before"] = sorted(row["item"] for row in begun.collect())
        reader.sql("REFRESH TABLE db.orders")
        found["second"] = rows(reader, "db.orders", "Id", "item", "OPERATION")
        found["partitions"] = partitions(reader)
        day = "EFF_DATE = DATE'2019-06-19' AND OPERATION = 'D'"
        found["deleted"] = [
            row["item"] for row in reader.table("db.orders_history").where(day).collect()
        ]
        # The day again: nothing is deleted any more, and its partition goes.
        run(DAY2, item, "1,apple", "2,pear", "3,fig")
        found["partitions of the repeated day"] = partitions(reader)
        # A column more, then one less of another type.
        run(DAY3, price + item, "1,5,apple", "2,6,pear")
        later = session.newSession()
        found["added"] = rows(later, "db.orders", "Id", "item", "price")
        found["added to the history"] = rows(later, "db.orders_history", "Id", "price")
        run(DAY3, "- {name: price, type: string}\n", "1,five", "2,6")
        later = session.newSession()
        found["changed"] = later.table("db.orders").columns
        found["changed rows"] = rows(later, "db.orders", "Id", "price")
        # What somebody dropped is made again by the next run; DROP TABLE leaves the files.
        later.sql("DROP TABLE db.orders_history")
        run(DAY3, "- {name: price, type: string}\n", "1,five")
        found["made again"] = len(partitions(session.newSession()))
        # The history is still there when the current dataset's table is made.
        session.sql("DROP TABLE db.orders")
        run(DAY3, "- {name: price, type: string}\n", "1,five")
        found["current made again"] = rows(session.newSession(), "db.orders", "Id", "price")
        path.write_text(CONFIG.format(folder=folder).replace("it's ", "other ") + item)
        other = read_config(path)
        csv = str(folder / "in" / f"{DAY1}.csv")
        found["another dataset"] = refusal(lambda: run_dataset(spark, other, csv, DAY1))
    return found


def feed(spark: NodeSpark, folder: Path) -> dict[str, object]:
    """FOR DATASET in a node."""
    found: dict[str, object] = {}
    source = folder / "extracts" / "stock.csv"
    extract(source, "id,item,buyer", "1,apple,Ann")
    create = (
        f"CREATE CHANGEFEED stock FOR DATASET '{source}' KEY (id) INTO 'null://' "
        "WITH current_table = 'db.stock', history_table = 'db.stock_history', "
        "sensitive = 'buyer', sensitive_table = 'db.buyers', "
        "sensitive_history_table = 'db.buyers_history'"
    )

    def shown(session: SparkSession) -> list[list[str]]:
        return rows(session.newSession(), "db.stock", "id", "item")

    timings = Timings(extract_look=0.2, retry_longest=0.5)
    with running(folder / "state", spark, timings=timings) as feeds, spark.use() as session:
        session.sql("CREATE TABLE db.stock (a INT) USING parquet")
        found["create"] = refusal(lambda: feeds.execute(create))
        found["validate"] = [list(row) for row in feeds.execute(f"VALIDATE {create}").rows]
        found["connections"] = feeds.execute("SHOW EXTERNAL CONNECTIONS").rows
        session.sql("DROP TABLE db.stock")
        found["explain"] = str(feeds.execute(f"EXPLAIN {create}").rows)
        feeds.execute(create)
        found["shown"] = str(feeds.execute("SHOW EXTERNAL CONNECTIONS").rows)
        until(lambda: session.catalog.tableExists("db.stock_history"))
        found["first"] = shown(session)
        found["columns"] = session.newSession().table("db.stock_history").columns
        buyers = ("db.buyers", "db.buyers_history")
        until(lambda: all(session.catalog.tableExists(name) for name in buyers))
        # A new table of the history gets its partitions next.
        until(lambda: rows(session.newSession(), buyers[1], "id"))
        found["buyers"] = [rows(session.newSession(), name, "id", "buyer") for name in buyers]
        # Somebody takes the name: the feed goes on, and says so until the name is free.
        session.sql("DROP TABLE db.stock")
        session.sql("CREATE VIEW db.stock AS SELECT 1 AS id, 'mine' AS item")
        extract(source, "id,item,buyer", "1,apple,Ann", "2,pear,Bob")

        def errors() -> str:
            return str(feeds.execute("SHOW CHANGEFEED stock ERRORS").rows)

        until(lambda: "did not make it" in errors())
        found["errors"] = errors().count("did not make it")
        found["theirs"] = shown(session)
        session.sql("DROP VIEW db.stock")
        until(lambda: session.catalog.tableExists("db.stock"))
        found["second"] = shown(session)

        def later() -> list[list[str]]:
            return rows(session.newSession(), "db.buyers", "id", "buyer")

        until(lambda: len(later()) == 2)
        found["buyers later"] = later()
        feeds.execute("DROP CHANGEFEED stock")
        found["after the feed"] = shown(session)
    return found


def main(folder: Path) -> dict[str, object]:
    with NodeSpark(heap="1g", scratch=folder, settings=metastore(folder)) as spark:
        return {"command": command(spark, folder), "feed": feed(spark, folder)}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))), flush=True)

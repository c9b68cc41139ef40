"""Dagster: an asset that is the copy of ``orders`` with everything that was committed, one made of
it, and a sensor that makes both again when the copy has changes."""

from __future__ import annotations

import os

import dagster as dg
import psycopg

import changefeed

NODE = os.environ.get("CHANGEFEED_URL", "http://127.0.0.1:8080")
FEED = "orders_copy"


@dg.asset
def orders() -> dg.MaterializeResult:
    """Kept by a changefeed: there is only to wait until it has what the shop has."""
    with changefeed.connect(NODE) as connection:
        resolved = connection.feed(FEED).wait_until("now", timeout=600)
    return dg.MaterializeResult(metadata={"resolved": str(resolved)})


@dg.asset(deps=[orders])
def total() -> str:
    """The sum of all orders."""
    with psycopg.connect(os.environ["WAREHOUSE"]) as warehouse:
        return str(warehouse.execute("SELECT sum(total) FROM orders").fetchall()[0][0])


@dg.sensor(target=[orders, total], minimum_interval_seconds=30)
def changed(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
    """Asks for a run when the feed has delivered rows since the last look."""
    with changefeed.connect(NODE) as connection:
        tables = connection.execute("SHOW CHANGEFEED :1 TABLES", (FEED,))
        place = [column[0] for column in tables.description or ()].index("emitted_rows")
        rows = str(sum(row[place] for row in tables))
    if rows == context.cursor:
        return dg.SkipReason(f"{FEED} has delivered nothing since")
    context.update_cursor(rows)
    return dg.RunRequest(run_key=rows)


definitions = dg.Definitions(assets=[orders, total], sensors=[changed])

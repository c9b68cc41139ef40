"""Airflow: a report that starts when the copy of ``orders`` has everything up to the end of its
interval."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from typing import Any

import psycopg
from airflow.sdk import BaseSensorOperator, dag, task

import changefeed
from changefeed.dbapi import OperationalError

TIMED_OUT = "CF1304"


class FeedSensor(BaseSensorOperator):
    """Waits until the resolved timestamp of a changefeed is at or after the end of the interval.

    With ``mode='reschedule'`` it has no worker between two looks.
    """

    def __init__(self, *, feed: str, node: str, **options: Any) -> None:
        super().__init__(**options)
        self.feed = feed
        self.node = node

    def poke(self, context: Any) -> bool:
        """Look once. A feed that is paused or has failed ends the task with the reason."""
        with changefeed.connect(self.node) as connection:
            try:
                connection.feed(self.feed).wait_until(context["data_interval_end"], timeout=0)
            except OperationalError as error:
                if error.code == TIMED_OUT:
                    return False
                raise
            return True


@dag(schedule="@hourly", start_date=datetime(2026, 1, 1), catchup=False)
def orders_report() -> None:
    """The sum of all orders, once an hour."""
    arrived = FeedSensor(
        task_id="arrived",
        feed="orders_copy",
        node=os.environ.get("CHANGEFEED_URL", "http://127.0.0.1:8080"),
        mode="reschedule",
        poke_interval=timedelta(seconds=30),
        timeout=timedelta(hours=1),
    )

    @task
    def total() -> str:
        with psycopg.connect(os.environ["WAREHOUSE"]) as warehouse:
            return str(warehouse.execute("SELECT sum(total) FROM orders").fetchall()[0][0])

    arrived >> total()


orders_report()

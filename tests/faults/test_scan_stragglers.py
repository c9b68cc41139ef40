"""Workers of a scan that was given up: when the feed goes on, none of them writes any more."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.encoding.plan import MessagePlan
from changefeed.scan.admission import WriteBarrier
from changefeed.scan.spark import run_scan
from changefeed.scan.table import WorkerDelivery
from changefeed.spark.session import NodeSpark
from sinks.base import Epoch, SinkContext, Target
from tests.helpers import message_model as model
from tests.helpers.slow_sink import SlowSink
from tests.helpers.spark_parts import MadePart
from tests.helpers.waiting import until

pytestmark = pytest.mark.spark

T = model.table([model.column("id", "int4", nullable=False), model.column("b", "text")])
PLAN = MessagePlan(T, "t")
AT = Timestamp(1_700_000_000_000_000_000)


def delivery(folder: Path, writes: int, barrier: WriteBarrier) -> WorkerDelivery:
    target = Target(T.table, "t")
    return WorkerDelivery(
        sink=SlowSink(str(folder), writes),
        context=SinkContext("f", 1, (target,)),
        feed="f",
        epoch=Epoch(1, AT),
        target=target,
        schema=T,
        ticket=barrier.ticket("127.0.0.1", here=True),
    )


def written(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def test_when_the_fence_is_closed_nothing_is_written(
    spark_engine: NodeSpark, tmp_path: Path
) -> None:
    slow, other = tmp_path / "slow", tmp_path / "other"
    slow.mkdir()
    other.mkdir()
    barrier, ended = WriteBarrier(), []
    deliver = delivery(slow, 100_000, barrier)

    def scan() -> None:
        try:
            run_scan(
                spark_engine,
                [MadePart(n) for n in range(4)],
                plan=PLAN,
                at=AT,
                deliver=deliver,
                group="slow",
            )
        except ChangefeedError as error:
            ended.append(error.code.number)

    thread = threading.Thread(target=scan)
    thread.start()
    until(lambda: written(slow) > 10)
    spark_engine.cancel("slow")
    barrier.close()
    before = written(slow)
    thread.join(60)
    assert ended == ["CF4002"]
    # While a whole other scan goes by.
    again = WriteBarrier()
    parts = [MadePart(n) for n in range(2)]
    run_scan(spark_engine, parts, plan=PLAN, at=AT, deliver=delivery(other, 50, again))
    again.close()
    assert written(other) >= 100
    assert written(slow) == before


def test_who_comes_too_late_is_sent_away(spark_engine: NodeSpark, tmp_path: Path) -> None:
    barrier = WriteBarrier()
    deliver = delivery(tmp_path, 1, barrier)
    barrier.close()
    with pytest.raises(ChangefeedError) as refused:
        run_scan(spark_engine, [MadePart(1)], plan=PLAN, at=AT, deliver=deliver)
    assert refused.value.code.number == "CF2201"
    assert not list(tmp_path.iterdir())

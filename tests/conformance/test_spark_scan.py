"""Initial scans by Spark's workers: everything arrives, repeats at most."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.formats import Format
from changefeed.core.log_rows import scan_rows
from changefeed.core.schema import BeforeImage
from changefeed.core.shapes import Envelope
from changefeed.encoding.plan import MessagePlan
from changefeed.scan.spark import run_scan
from changefeed.spark.session import NodeSpark
from tests.helpers import message_model as model
from tests.helpers.spark_parts import MadePart, ToFiles, delivered

pytestmark = pytest.mark.spark

T = model.table([model.column("id", "int4", nullable=False), model.column("b", "text")])
FULL = model.table(
    [model.column("id", "int4", nullable=False), model.column("b", "text")],
    before_image=BeforeImage.FULL,
)
AT = Timestamp(1_700_000_000_000_000_000, 3)
PLANS = [
    MessagePlan(T, "t", updated=True),
    MessagePlan(T, "t", key_from=("1000",), key_to=("2015",)),
    MessagePlan(T, "t", Envelope.BARE, key_column="b"),
    MessagePlan(FULL, "t", updated=True, diff=True),
]


def expected(plan: MessagePlan, parts: list[MadePart]) -> dict[int, list[list[object]]]:
    """The messages of each part, by the model."""
    out = {}
    for place, part in enumerate(parts):
        batches = [scan_rows(plan.schema, batch, AT) for batch in part.read()]
        rows = pa.concat_tables(batches).to_pylist()
        if plan.key_from:
            low, high = int(plan.key_from[0]), int(plan.key_to[0])
            rows = [row for row in rows if low <= row["a0"] < high]
        out[place] = [
            [m["key"].decode(), m["value"].decode(), "r", AT.wall, AT.logical, 0]
            for m in model.messages(plan, rows)
        ]
    return out


@pytest.mark.parametrize("plan", PLANS)
def test_every_row_arrives_in_order(
    spark_engine: NodeSpark, tmp_path: Path, plan: MessagePlan
) -> None:
    parts = [MadePart(n) for n in range(5)]
    told: list[tuple[int, int]] = []
    durable: list[int] = []
    done = run_scan(
        spark_engine,
        parts,
        plan=plan,
        at=AT,
        deliver=ToFiles(str(tmp_path)),
        on_progress=lambda rows, size: told.append((rows, size)),
        on_durable=lambda part, rows, size: durable.append(part),
    )
    wanted = expected(plan, parts)
    assert delivered(tmp_path) == wanted
    assert [d.part for d in done] == list(range(5))
    assert set(durable) <= set(range(5))
    assert durable
    assert told[-1] == (sum(map(len, wanted.values())), sum(d.bytes for d in done))


def test_csv_is_not_escaped_as_json(spark_engine: NodeSpark, tmp_path: Path) -> None:
    plan = MessagePlan(T, "t", format=Format.CSV)
    run_scan(spark_engine, [MadePart(0)], plan=plan, at=AT, deliver=ToFiles(str(tmp_path)))
    assert delivered(tmp_path)[0][1][1] == '1,"te""xt\n1"'


@pytest.mark.parametrize("trouble", ["once", "die"])
def test_a_part_that_fails_is_tried_again(
    spark_engine: NodeSpark, tmp_path: Path, trouble: str
) -> None:
    (tmp_path / "marks").mkdir()
    parts = [MadePart(n, marks=str(tmp_path / "marks")) for n in range(3)]
    parts[1].trouble = trouble
    done = run_scan(spark_engine, parts, plan=PLANS[0], at=AT, deliver=ToFiles(str(tmp_path)))
    assert (tmp_path / "marks" / "read-1").stat().st_size > 1
    assert delivered(tmp_path) == expected(PLANS[0], [MadePart(n) for n in range(3)])
    assert sum(d.rows for d in done) == 90


def test_the_error_of_a_part_comes_back_as_itself(spark_engine: NodeSpark, tmp_path: Path) -> None:
    parts = [MadePart(0), MadePart(1, trouble="always")]
    with pytest.raises(ChangefeedError) as caught:
        run_scan(spark_engine, parts, plan=PLANS[0], at=AT, deliver=ToFiles(str(tmp_path)))
    error = caught.value
    assert (error.code.number, error.message, error.detail) == ("CF2202", "the part is broken", "1")


def test_the_error_of_the_sink_comes_back_as_itself(
    spark_engine: NodeSpark, tmp_path: Path
) -> None:
    deliver = ToFiles(str(tmp_path), refuse=1)
    with pytest.raises(ChangefeedError) as caught:
        run_scan(
            spark_engine,
            [MadePart(0), MadePart(1)],
            plan=PLANS[0],
            at=AT,
            deliver=deliver,
        )
    assert (caught.value.code.number, caught.value.hint) == ("CF5003", "ask the sink")


@pytest.mark.parametrize("stopping", [False, True])
def test_a_scan_can_be_cancelled(spark_engine: NodeSpark, tmp_path: Path, stopping: bool) -> None:
    """A stalled part holds the job until another thread cancels its group."""
    parts = [MadePart(n, trouble="stall", marks=str(tmp_path)) for n in range(2)]
    group = f"cancel-{stopping}"
    outcome: list[object] = []

    def scan() -> None:
        try:
            outcome.append(
                run_scan(
                    spark_engine,
                    parts,
                    plan=PLANS[0],
                    at=AT,
                    deliver=ToFiles(str(tmp_path)),
                    group=group,
                    stopping=lambda: stopping and any(tmp_path.glob("stalled-*")),
                )
            )
        except ChangefeedError as error:
            outcome.append(error)

    thread = threading.Thread(target=scan)
    thread.start()
    deadline = time.monotonic() + 90
    while not list(tmp_path.glob("stalled-*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    spark_engine.cancel(group)
    thread.join(60)
    (tmp_path / "go").touch()
    assert not thread.is_alive()
    if stopping:
        assert outcome == [[]]
    else:
        assert isinstance(outcome[0], ChangefeedError)
        assert outcome[0].message == "the Spark job was cancelled"
    assert delivered(tmp_path) == {}


def test_no_parts(spark_engine: NodeSpark, tmp_path: Path) -> None:
    assert run_scan(spark_engine, [], plan=PLANS[0], at=AT, deliver=ToFiles(str(tmp_path))) == []

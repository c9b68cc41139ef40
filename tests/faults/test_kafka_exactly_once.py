"""``delivery = 'exactly_once'`` into a real broker: nodes killed at the worst places, and whenever.

A consumer of committed messages must see each change once; marks may come again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.waiting import until
from tests.nemesis.service import Service
from tests.services.kafka import KafkaBroker
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e, pytest.mark.postgres, pytest.mark.kafka]

ROWS = 60_000


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path / "state")
    yield service
    service.close()


def changes(broker: KafkaBroker, topic: str) -> list[tuple[str, str]]:
    """Key and row of every committed message that is no mark, in order."""
    found = []
    for record in broker.messages(topic):
        if record.key is not None:
            found.append((record.key.decode(), (record.value or b"").decode()))
    return found


@pytest.mark.extended
def test_each_change_once_through_kills(
    node: Service, postgres: Database, kafka: KafkaBroker, topic: str
) -> None:
    postgres.execute(
        f"create table {topic} (a int primary key, n int);"
        f"insert into {topic} select i, 0 from generate_series(1, {ROWS}) i"
    )
    node.execute(f"CREATE EXTERNAL CONNECTION shop AS '{postgres.uri}'")
    # The scan is killed before its transaction is committed, then after it, unsaved.
    node.start("scan.after_snapshot@1:kill")
    until(lambda: node.catalog.live_nodes(), "a node of the state")
    node.execute(
        f"CREATE CHANGEFEED f FOR shop.public.{topic} INTO '{kafka.uri}' WITH"
        " delivery = 'exactly_once', updated, resolved = '1s'"
    )
    points = ["scan.before_end", "runner.after_commit", "runner.after_save"]
    for n, point in enumerate(points, 1):
        until(lambda: not node.running, f"the node is killed before it may be at {point}")
        node.start(f"{point}@1:kill")
        postgres.execute(f"update {topic} set n = {n} where a <= 500")
        postgres.execute(f"delete from {topic} where a = {ROWS - n}")
    until(lambda: not node.running, "the node is killed")
    for n in range(6, 8):
        node.start()
        postgres.execute(f"update {topic} set n = {n} where a <= 500")
        node.sync("f")
        postgres.execute(f"insert into {topic} values ({ROWS + n}, {n})")
        node.kill()
    node.start()
    node.sync("f")
    found = changes(kafka, topic)
    assert len(found) == len(set(found)), "a change was told twice"
    # The first delete may have been before the scan that came through.
    keys = {key for key, _ in found} | {f"[{ROWS - 1}]"}
    assert keys == {f"[{a}]" for a in [*range(1, ROWS + 1), *range(ROWS + 6, ROWS + 8)]}
    newest: dict[str, object] = {}
    for key, value in found:
        newest[key] = json.loads(value)["after"]
    rows = {f"[{a}]": {"a": a, "n": n} for a, n in postgres.execute(f"select a, n from {topic}")}
    assert {key: row for key, row in newest.items() if row is not None} == rows

"""Runs of feeds as OpenLineage's events, at a real listener and in the classes of its client."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from changefeed.alerts.openlineage import REPEAT, LineageWatch, lineage_place
from changefeed.catalog import Status
from changefeed.core.errors import ChangefeedError
from tests.golden.world import World
from tests.services.webhook import WebhookServer

TOKEN = "sesame"


@pytest.fixture
def server() -> Iterator[WebhookServer]:
    server = WebhookServer(authorization=f"Bearer {TOKEN}")
    yield server
    server.stop()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    source = world.shop()
    login = "sasl_enabled=true&sasl_user=u&sasl_password=hunter2"
    world.run(f"CREATE EXTERNAL CONNECTION out AS 'kafka://k:9092?{login}'")
    for name in ("orders", "items"):
        world.catalog.intern_schema(source.describe(None, name))
    yield world
    world.close()


def watch(world: World, server: WebhookServer) -> LineageWatch:
    place = lineage_place(f"{server.uri}?token={TOKEN}")
    return LineageWatch(place, world.catalog, lambda: True, world.clock)


def sent(server: WebhookServer) -> list[dict[str, Any]]:
    found = [json.loads(request.body) for request in server.requests]
    server.requests.clear()
    return found


def kinds(server: WebhookServer) -> list[str]:
    return [event["eventType"] for event in sent(server)]


def test_a_run_from_its_begin_to_its_end(world: World, server: WebhookServer) -> None:
    world.run("CREATE CHANGEFEED f FOR orders(total) INTO 'external://out' WITH updated, diff")
    one = watch(world, server)
    one.turn()
    one.turn()
    [start] = sent(server)
    assert (start["eventType"], start["job"]["name"]) == ("START", "f")
    assert start["inputs"][0]["namespace"] == "postgres://db:5432"
    assert start["inputs"][0]["name"] == "shop.public.orders"
    [output] = start["outputs"]
    assert (output["namespace"], output["name"]) == ("kafka://k:9092", "orders")
    facet = output["facets"]["columnLineage"]
    assert facet["fields"]["after.total"]["inputFields"][0]["field"] == "total"
    assert set(facet["fields"]) == {"key.id", "after.id", "after.total", "before.id"}
    names = [field["name"] for field in output["facets"]["schema"]["fields"]]
    assert "updated" in names
    assert "hunter2" not in json.dumps(start) and "s3cret" not in json.dumps(start)
    # Another node goes on with the same run.
    watch(world, server).turn()
    assert sent(server)[0]["run"]["runId"] == start["run"]["runId"]
    world.run("ALTER CHANGEFEED f ADD items")
    one.turn()
    [altered] = sent(server)
    assert (altered["eventType"], len(altered["outputs"])) == ("RUNNING", 2)
    world.fail("f", ChangefeedError("CF5003", "the sink refuses it"))
    one.turn()
    [failed] = sent(server)
    assert failed["eventType"] == "FAIL"
    assert failed["run"]["facets"]["errorMessage"]["message"] == "the sink refuses it"
    assert failed["run"]["runId"] == altered["run"]["runId"] == start["run"]["runId"]
    world.clock.advance(1)
    world.run("RESUME CHANGEFEED f")
    one.turn()
    [again] = sent(server)
    assert again["eventType"] == "START" and again["run"]["runId"] != start["run"]["runId"]
    world.run("DROP CHANGEFEED f")
    one.turn()
    assert kinds(server) == ["ABORT"]
    one.turn()
    assert kinds(server) == []


def test_a_run_that_lasts_is_sent_again(
    world: World, server: WebhookServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.run("CREATE CHANGEFEED f FOR orders INTO 'external://out'")
    one = watch(world, server)
    one.turn()
    later = world.clock.monotonic() + REPEAT
    monkeypatch.setattr(world.clock, "monotonic", lambda: later)
    one.turn()
    assert kinds(server) == ["START", "RUNNING"]


def test_what_the_server_does_not_take_comes_later_in_order(
    world: World, server: WebhookServer, caplog: pytest.LogCaptureFixture
) -> None:
    world.run("CREATE CHANGEFEED f FOR orders INTO 'external://out'")
    one = watch(world, server)
    server.stop()
    for _ in range(2):
        one.turn()
    world.run("PAUSE CHANGEFEED f")
    one.turn()
    assert [r.message.split(":")[0] for r in caplog.records if "lineage" in r.message] == [
        "lineage"
    ]
    assert TOKEN not in caplog.text
    server.start()
    one.turn()
    assert kinds(server) == ["START", "ABORT"]


def test_events_are_read_by_the_client_of_openlineage(world: World, server: WebhookServer) -> None:
    world.run("CREATE CHANGEFEED f FOR orders VALUES FROM (1) TO (9) INTO 'external://out'")
    world.run("CREATE CHANGEFEED g FOR items INTO 'external://out' WITH initial_scan = 'only'")
    one = watch(world, server)
    one.turn()
    world.run("ALTER CHANGEFEED f ADD items")
    one.turn()
    world.fail("f", ChangefeedError("CF5003", "the sink refuses it"))
    complete(world, "g")
    one.turn()
    events = [read(event) for event in sent(server)]
    assert [(event.job.name, event.eventType.value) for event in events] == [
        ("f", "START"),
        ("g", "START"),
        ("f", "RUNNING"),
        ("f", "FAIL"),
        ("g", "COMPLETE"),
    ]


def complete(world: World, name: str) -> None:
    """The scan of the feed is complete."""
    job = world.catalog.job(name)
    world.catalog.transition(job.id, Status.SUCCEEDED, reason="initial scan finished")


def test_a_run_that_is_shorter_than_a_look_is_sent_whole(
    world: World, server: WebhookServer
) -> None:
    one = watch(world, server)
    one.turn()
    world.clock.advance(5)
    world.run("CREATE CHANGEFEED f FOR orders INTO 'external://out' WITH initial_scan = 'only'")
    world.clock.advance(5)
    complete(world, "f")
    world.clock.advance(5)
    one.turn()
    start, end = sent(server)
    assert (start["eventType"], end["eventType"]) == ("START", "COMPLETE")
    assert start["run"] == end["run"] and start["eventTime"] < end["eventTime"]
    assert end["outputs"][0]["name"] == "orders"
    world.clock.advance(15)
    one.turn()
    # Another node that takes over sends nothing of what ended long ago.
    world.clock.advance(60)
    watch(world, server).turn()
    assert kinds(server) == []


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("kafka://k:9092", "kafka:// of --openlineage needs the parameter topic"),
        ("kafka://k:9092?topic=", "kafka:// of --openlineage needs the parameter topic"),
        ("kafka://k:9092?topic=a&tls_enabled=maybe", "tls_enabled"),
        ("s3://bucket?topic=a", "no lineage goes to s3://"),
    ],
)
def test_a_place_that_is_none_is_refused(uri: str, message: str) -> None:
    with pytest.raises(ChangefeedError, match=message):
        lineage_place(uri)


def read(event: dict[str, Any]) -> Any:
    """The event in the client's classes, which take no member that they do not know and check
    ids, times and types; equal to what was sent when they write it."""
    client = importlib.import_module("openlineage.client.event_v2")
    serde = importlib.import_module("openlineage.client.serde").Serde

    def facets(found: dict[str, Any]) -> dict[str, Any]:
        return {name: facet(name, body) for name, body in found.items()}

    made = client.RunEvent(
        eventTime=event["eventTime"],
        producer=event["producer"],
        eventType=client.RunState(event["eventType"]),
        run=client.Run(event["run"]["runId"], facets(event["run"]["facets"])),
        job=client.Job(**{**event["job"], "facets": facets(event["job"]["facets"])}),
        inputs=[
            client.InputDataset(**{**d, "facets": facets(d["facets"])}) for d in event["inputs"]
        ],
        outputs=[
            client.OutputDataset(**{**d, "facets": facets(d["facets"])}) for d in event["outputs"]
        ],
    )
    written = serde.to_dict(made)
    assert _without_empty(written) == _without_empty(event)
    return made


def facet(name: str, body: dict[str, Any]) -> Any:
    generated = "openlineage.client.generated"
    body = dict(body)
    assert body.pop("_producer").startswith("urn:changefeed:")
    url = body.pop("_schemaURL")
    producer = {"producer": f"urn:{url and 'changefeed'}"}
    if name == "schema":
        module = importlib.import_module(f"{generated}.schema_dataset")
        made = module.SchemaDatasetFacet(
            [module.SchemaDatasetFacetFields(**field) for field in body["fields"]]
        )
    elif name == "columnLineage":
        module = importlib.import_module(f"{generated}.column_lineage_dataset")

        def input_field(found: dict[str, Any]) -> Any:
            how = [module.Transformation(**t) for t in found["transformations"]]
            return module.InputField(**{**found, "transformations": how})

        made = module.ColumnLineageDatasetFacet(
            {
                n: module.Fields([input_field(f) for f in fields["inputFields"]])
                for n, fields in body["fields"].items()
            },
            [input_field(f) for f in body["dataset"]],
        )
    elif name == "errorMessage":
        module = importlib.import_module(f"{generated}.error_message_run")
        made = module.ErrorMessageRunFacet(**body)
    else:
        module = importlib.import_module(f"{generated}.job_type_job")
        made = module.JobTypeJobFacet(**body)
    assert made._schemaURL == url
    made._producer = producer["producer"]
    return made


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {name: _without_empty(v) for name, v in value.items() if name != "_producer"}
        return {name: v for name, v in kept.items() if v not in (None, {}, [])}
    return [_without_empty(v) for v in value] if isinstance(value, list) else value

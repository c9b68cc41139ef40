"""Runs of feeds as events of OpenLineage, sent over HTTP or to a topic of Kafka.

A run of a feed lasts from its CREATE or RESUME until it is paused, fails, ends or is dropped. Its
id follows from the state and from when it began, so another node goes on with it. The JSON is
OpenLineage's 2-0-2: https://openlineage.io/spec/2-0-2/OpenLineage.json
"""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from changefeed.alerts.channels import WebhookPlace
from changefeed.alerts.watch import EVERY, MOST, SendingWatch
from changefeed.catalog import Catalog, Job, Status
from changefeed.core.arrow import MESSAGE_SCHEMA
from changefeed.core.clock import Clock, Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.references import resolved_uri
from changefeed.core.schema import Column, TableName, TableSchema
from changefeed.core.settings import rest, setting
from changefeed.core.telemetry import log
from changefeed.core.types import Kind, LogicalType
from changefeed.core.uri import sink_location, split_uri, without
from changefeed.core.version import __version__
from changefeed.encoding.compile import origin_of
from changefeed.plan.lineage import ColumnLineage
from changefeed.sources.registry import PORTS, SAME
from changefeed.statements.lineage import of_feed
from sinks.base import Batch, Epoch, Sink, SinkContext, Target, require_durable
from sinks.registry import open_sink

#: A run that lasts is sent again after so many seconds.
REPEAT: Final = 3600.0

_SPEC: Final = "https://openlineage.io/spec"
_PRODUCER: Final = f"urn:changefeed:{__version__}"
_HOW: Final = {
    "copy": ("DIRECT", "IDENTITY"),
    "before": ("DIRECT", "IDENTITY"),
    "computed": ("DIRECT", "TRANSFORMATION"),
    "aggregated": ("DIRECT", "AGGREGATION"),
    "filter": ("INDIRECT", "FILTER"),
    "join": ("INDIRECT", "JOIN"),
    "group": ("INDIRECT", "GROUP_BY"),
}
_KAFKA: Final = ("kafka", "confluent-cloud", "azure-event-hub")
_HTTP: Final = "webhook-https://host/api/v1/lineage"
_TOPIC: Final = "kafka://host:9092?topic=name"
_ACTIVE: Final = frozenset(str(status) for status in Status if status.active)
_ENDS: Final = {Status.SUCCEEDED: "COMPLETE", Status.FAILED: "FAIL"}

Event = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class LineagePlace(WebhookPlace):
    """Where events go: the URL that a server of OpenLineage takes them at."""

    token: str | None = setting(None, "Sent as Authorization: Bearer.", secret=True)
    query: tuple[tuple[str, str], ...] = rest()

    def send(self, event: Event) -> None:
        """POST it."""
        headers = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        self.post(event, "an event", "--openlineage", headers)

    def close(self) -> None:
        """Nothing stays open."""


class LineageTopic:
    """A topic that events go to, as the messages of a feed would; made if it is not there."""

    def __init__(self, sink: Sink, topic: str) -> None:
        table = TableName("changefeed", "", "lineage")
        self._target = Target(table, topic)
        text = LogicalType(Kind.TEXT)
        columns = (Column("key", "text", text, nullable=False), Column("event", "text", text))
        self._shape = TableSchema(table, columns, (0,), version=1)
        self._sink, self._opened = sink, False
        self._numbers = itertools.count(1)

    def send(self, event: Event) -> None:
        """Deliver it to all in-sync replicas. The key is that of OpenLineage's own client, so that
        the events of a job stay in their order.

        Raises:
            ChangefeedError: the brokers do not answer or refuse it.
        """
        at = Timestamp.from_datetime(datetime.fromisoformat(event["eventTime"]))
        job = event["job"]
        message = {
            "key": f"run:{job['namespace']}/{job['name']}".encode(),
            "value": json.dumps(event).encode(),
            "wall": at.wall,
            "logical": 0,
            "seq": 0,
            "op": "c",
        }
        rows = pa.Table.from_pylist([message], schema=MESSAGE_SCHEMA)
        epoch = Epoch(next(self._numbers), at)
        try:
            if not self._opened:
                self._sink.open(SinkContext("lineage", 0, (self._target,)))
                self._opened = True
            receipt = self._sink.write(Batch("lineage", epoch, 0, self._target, self._shape, rows))
            require_durable(self._sink.commit(epoch, [receipt]))
        except ChangefeedError:
            # What it still has in its queue is sent again, in order.
            self.close()
            raise

    def close(self) -> None:
        """Leave the brokers; the next event connects again."""
        self._opened = False
        self._sink.close()


def lineage_place(uri: str) -> LineagePlace | LineageTopic:
    """The place of a URI; connects to nothing.

    Raises:
        ChangefeedError: CF1201, CF1202, CF1207 the URI, CF1208 a secret that it refers to.
    """
    hint = f"write {_HTTP} or {_TOPIC} for --openlineage."
    parts = split_uri(resolved_uri(uri), "the address of --openlineage", hint)
    if parts.scheme in ("webhook-https", "webhook-http"):
        return LineagePlace.read(parts)
    if parts.scheme not in _KAFKA:
        raise ChangefeedError(
            Code.INVALID_URI,
            f"no lineage goes to {parts.scheme}://",
            hint=hint,
        )
    topics = [value for name, value in parts.parameters if name == "topic" and value]
    if len(topics) != 1:
        raise ChangefeedError(
            Code.INVALID_URI,
            f"{parts.scheme}:// of --openlineage needs the parameter topic",
            hint=f"write {_TOPIC}.",
        )
    return LineageTopic(open_sink(without(uri, ("topic",))), topics[0])


@dataclass(frozen=True, slots=True)
class FeedRun:
    """A run that was sent: its feed as of then, and what the next event of it repeats."""

    job: Job
    began: int
    shapes: tuple[tuple[str, int], ...]
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    sent: float


class LineageWatch(SendingWatch):
    """Looks for runs that begin, change and end, and sends them."""

    def __init__(
        self,
        place: LineagePlace | LineageTopic,
        catalog: Catalog,
        leads: Callable[[], bool],
        clock: Clock,
        every: float = EVERY,
    ) -> None:
        """``leads``: whether this node is the one that sends, of all nodes of the state."""
        super().__init__("lineage", clock, every)
        self._place, self._catalog, self._leads = place, catalog, leads
        self._runs: dict[int, FeedRun] = {}
        self._waiting: list[dict[str, Any]] = []
        self._trouble = ""
        #: When it looked last, ns; None: it did not lead.
        self._looked: int | None = None

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        self._place.close()

    def turn(self) -> None:
        if not self._leads():
            self._runs.clear()
            self._looked = None
            return
        now = self._clock.now().wall
        # Before the first look there may have been one of another node.
        since = now - int(2e9 * self._every) if self._looked is None else self._looked
        self._looked = now
        jobs = {job.id: job for job in self._catalog.jobs() if not job.sinkless}
        for job in jobs.values():
            ended = job.id not in self._runs and job.finished is not None
            if job.status.active or (ended and (job.finished or 0) > since):
                self._goes_on(job)
        for run in list(self._runs.values()):
            found = jobs.get(run.job.id)
            if found is None or not found.status.active:
                del self._runs[run.job.id]
                self._ended(run, found)
        del self._waiting[:-MOST]
        self._send()

    def _goes_on(self, job: Job) -> None:
        known, at = self._runs.get(job.id), self._clock.monotonic()
        began = _began(self._catalog, job)
        if known is not None and known.began != began:
            # It was paused and resumed, or failed, between two looks.
            self._ended(known, replace(job, status=Status.PAUSED))
            known = None
        shapes = tuple((str(t.table), t.schema_version) for t in self._catalog.tables(job.id))
        same = known is not None and (known.job.generation, known.shapes) == (
            job.generation,
            shapes,
        )
        if known is not None and same and known.outputs and at - known.sent < REPEAT:
            return
        inputs, outputs = _datasets(self._catalog, job)
        run = FeedRun(job, began, shapes, inputs, outputs, at)
        self._runs[job.id] = run
        if known is None:
            self._waiting.append(self._event(run, "START", began))
        elif outputs or not same:
            self._waiting.append(self._event(run, "RUNNING", self._clock.now().wall))

    def _ended(self, run: FeedRun, now: Job | None) -> None:
        kind = "ABORT" if now is None else _ENDS.get(now.status, "ABORT")
        facets = {}
        if now is not None and kind == "FAIL":
            said = {"message": now.error or now.reason, "programmingLanguage": "changefeed"}
            facets["errorMessage"] = _facet("1-0-1", "ErrorMessageRunFacet", said)
        self._waiting.append(self._event(run, kind, self._clock.now().wall, facets))

    def _event(
        self, run: FeedRun, kind: str, at: int, facets: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        state = self._catalog.state_id
        number = uuid.uuid5(uuid.NAMESPACE_URL, f"changefeed:{state}:{run.job.id}:{run.began}")
        of_job = {"processingType": "STREAMING", "integration": "CHANGEFEED", "jobType": "FEED"}
        return {
            "eventTime": datetime.fromtimestamp(at / 1e9, UTC).isoformat(),
            "eventType": kind,
            "run": {"runId": str(number), "facets": facets or {}},
            "job": {
                "namespace": f"changefeed://{state}",
                "name": run.job.name,
                "facets": {"jobType": _facet("2-0-3", "JobTypeJobFacet", of_job)},
            },
            "inputs": run.inputs,
            "outputs": run.outputs,
            "producer": _PRODUCER,
            "schemaURL": f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent",
        }

    def _send(self) -> None:
        try:
            while self._waiting:
                self._place.send(self._waiting[0])
                del self._waiting[0]
        except ChangefeedError as error:
            if self._trouble != error.message:
                self._trouble = error.message
                log.warning("lineage: %s %s", error.code.number, error.message)
        else:
            self._trouble = ""


def _began(catalog: Catalog, job: Job) -> int:
    """When the feed last began to be active (ns), as far back as its history goes."""
    for event in catalog.events(job.id, limit=1000, kinds=("status",)):
        if event.text.partition(" -> ")[0] not in _ACTIVE:
            return event.at
    return job.created


def _facet(version: str, name: str, members: dict[str, Any]) -> dict[str, Any]:
    url = f"{_SPEC}/facets/{version}/{name}.json#/$defs/{name}"
    return {"_producer": _PRODUCER, "_schemaURL": url, **members}


def _datasets(catalog: Catalog, job: Job) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Inputs and outputs; none of a table whose shape is not known yet."""
    inputs: list[dict[str, Any]] = []
    columns: dict[str, list[ColumnLineage]] = {}
    try:
        source = split_uri(catalog.connection(job.source).uri)
        place = catalog.resolve_uri(job.sink_uri or "")
        found = [(schema, mine) for _, schema, mine in of_feed(job, catalog) if schema is not None]
    except ChangefeedError:
        return [], []  # a connection of it is gone, or its sink is not installed: SHOW says so
    origin = origin_of(source.text, source.database)
    port = PORTS.get(SAME.get(source.scheme, source.scheme), 0)

    def dataset(table: TableName | str) -> dict[str, str]:
        if isinstance(table, str):
            return {"namespace": "spark", "name": table}
        connector = {"postgresql": "postgres"}.get(origin.connector, origin.connector)
        (host, *_) = source.addresses(port) or ("localhost",)
        parts = (table.schema, table.name)
        database = () if origin.schema_is_database else (origin.database,)
        return {"namespace": f"{connector}://{host}", "name": ".".join((*database, *parts))}

    for schema, mine in found:
        inputs.append({**dataset(schema.table), "facets": {"schema": _shape(schema)}})
        for one in mine:
            columns.setdefault(one.target, []).append(one)
    outputs = [
        {**_target(place, topic), "facets": _column_facets(lineage, dataset)}
        for topic, lineage in columns.items()
    ]
    return inputs, outputs


def _shape(schema: TableSchema) -> dict[str, Any]:
    fields = [{"name": c.name, "type": c.type_name} for c in schema.columns]
    return _facet("1-2-0", "SchemaDatasetFacet", {"fields": fields})


def _target(uri: str, topic: str) -> dict[str, str]:
    """``kafka://host:9092`` and the topic; of files, lakes and warehouses with the path before."""
    shown = split_uri(sink_location(uri))
    namespace = f"{shown.scheme}://{','.join(map(str, shown.hosts))}" if shown.hosts else "file"
    path = f"{shown.path.rstrip('/')}/" if shown.path.strip("/") else ""
    return {"namespace": namespace, "name": f"{path}{topic}"}


def _column_facets(
    lineage: Sequence[ColumnLineage], dataset: Callable[[TableName | str], dict[str, str]]
) -> dict[str, Any]:
    fields: dict[str, list[dict[str, Any]]] = {}
    whole: list[dict[str, Any]] = []
    names: dict[str, None] = {}
    for one in lineage:
        name = one.column if one.part in ("value", "row") else f"{one.part}.{one.column}"
        if one.column:
            names[name] = None
        if not one.source_column:
            continue
        kind, subtype = _HOW[one.how]
        how = {"type": kind, "subtype": subtype, "description": one.detail, "masking": False}
        field = {**dataset(one.source_table), "field": one.source_column, "transformations": [how]}
        (fields.setdefault(name, []) if one.column else whole).append(field)
    mapped = {name: {"inputFields": found} for name, found in fields.items()}
    return {
        "schema": _facet("1-2-0", "SchemaDatasetFacet", {"fields": [{"name": n} for n in names]}),
        "columnLineage": _facet(
            "1-2-0", "ColumnLineageDatasetFacet", {"fields": mapped, "dataset": whole}
        ),
    }

"""``webhook-https://host/path``: batches of messages by POST, in CockroachDB's shape.

``write`` queues, full requests go out at once, ``commit`` sends the rest and waits for every
answer. A request the endpoint refuses for its content is halved until the message at fault is
alone: everything before it is delivered, and the error names its table.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Resolved, Truncate
from changefeed.core.settings import Parameter
from changefeed.options import Feature
from sinks.base import (
    Batch,
    Capabilities,
    CommitPace,
    Durability,
    Epoch,
    Receipt,
    Sink,
    SinkContext,
    Target,
)
from sinks.naming import kafka_topic_name
from sinks.webhook.body import Parcel, batch_key, body, by_queue, count, halves
from sinks.webhook.options import WebhookSettings
from sinks.webhook.ordered_queues import OrderedQueues

if TYPE_CHECKING:
    from sinks.webhook.client import WebhookClient


class WebhookSink(Sink):
    """Messages to an HTTP endpoint."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        envelopes=("wrapped", "bare", "enriched"),
        executor=True,
        lanes=True,
        key_in_value=True,
        topic_in_value=True,
        compressions=("none", "gzip", "zstd"),
        continues_scans=True,
        rewinds=True,
        features=frozenset(
            {
                Feature.DEAD_LETTERS,
                Feature.EXTRA_HEADERS,
                Feature.TRANSACTIONS,
                Feature.WEBHOOK_REQUESTS,
            }
        ),
    )
    parameters: ClassVar[tuple[Parameter, ...]] = WebhookSettings.parameters()

    def __init__(self, uri: str, options: Mapping[str, object] | None = None) -> None:
        self.settings: WebhookSettings = WebhookSettings.read(uri, options)
        self._feed, self._job = "unopened", 0
        self._remote = False
        self._reset()

    def _reset(self) -> None:
        self._client: WebhookClient | None = None
        self._queues: OrderedQueues | None = None

    def __getstate__(self) -> dict[str, Any]:
        kept = ("settings", "_feed", "_job")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._remote = True
        self._reset()

    def pacing(self) -> CommitPace:
        return CommitPace(self.settings.frequency)

    def topic(self, name: str) -> str:
        """The topic of the table ``name``, as it stands in every message."""
        return kafka_topic_name(self.settings.topic_prefix + name)

    # ------------------------------------------------------------------ life

    def open(self, context: SinkContext) -> None:
        """Sends nothing: an endpoint has no request without an effect."""
        self._remote = False  # a copy that is opened where it runs is committed there too
        self._feed, self._job = context.feed, context.job_id
        self._connected()

    def check(self, context: SinkContext) -> list[ChangefeedError]:
        """The endpoint can be reached, by TLS where the URI says so."""
        client, _ = self._connected()
        problem = client.look()
        return [] if problem is None else [problem]

    def overlooked(self) -> str:
        place = self.settings.place
        return (
            f"of the webhook at {place} only the connection was checked; whether it accepts "
            "messages is known when the feed runs"
        )

    def _connected(self) -> tuple[WebhookClient, OrderedQueues]:
        if self._client is None or self._queues is None:
            from sinks.webhook.client import WebhookClient

            settings = self.settings
            queues = OrderedQueues(settings.parallel, settings.messages, settings.bytes, self._send)
            self._client = WebhookClient(settings, self._feed, queues.halt)
            self._queues = queues
        return self._client, self._queues

    def unanswered(self) -> str:
        client = self._client
        return "" if client is None else client.trouble

    def close(self) -> None:
        if self._queues is not None:
            self._queues.close()
        if self._client is not None:
            self._client.close()
        self._reset()

    # ------------------------------------------------------------------ rows

    def write(self, batch: Batch) -> Receipt:
        receipt = self._queue(batch)
        if self._remote:
            self._settle()
        return receipt

    def _queue(self, batch: Batch) -> Receipt:
        _, queues = self._connected()
        size = 0
        for queue, piece in by_queue(batch.target, batch.rows, self.settings.parallel):
            size += piece.bytes
            queues.put(queue, piece)
        return Receipt(batch.partition, batch.rows.num_rows, size)

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> Durability:
        self._settle()
        return Durability.DURABLE

    def _settle(self) -> None:
        if self._queues is not None:
            self._queues.settle()

    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        if self._queues is not None:
            self._queues.drop()

    def _send(self, parcel: Parcel) -> None:
        from sinks.webhook.client import RefusedContent

        client, _ = self._connected()
        content = body(parcel)
        try:
            client.post(content, batch_key(self._job, parcel, content))
        except RefusedContent as refused:
            if count(parcel) == 1:
                raise _poison(parcel[0].target, len(content), refused.status) from None
            for half in halves(parcel):
                self._send(half)

    # ------------------------------------------------------ control messages

    def resolved(self, event: Resolved, payload: bytes) -> None:
        """A request of its own with the message as its body, as CockroachDB sends it."""
        self._post_control(payload)

    def truncate(self, event: Truncate, target: Target, payload: bytes) -> None:
        """The same, with the topic in it: all tables share the endpoint."""
        message = json.loads(payload)
        inner = message.get("__crdb__", message)
        inner["topic"] = target.topic
        self._post_control(json.dumps(message, ensure_ascii=False, sort_keys=True).encode())

    def _post_control(self, payload: bytes) -> None:
        from sinks.webhook.client import RefusedContent

        client, _ = self._connected()
        digest = hashlib.sha256(f"{self._job}:".encode() + payload).hexdigest()[:32]
        try:
            client.post(payload, digest)
        except RefusedContent as refused:
            raise ChangefeedError(
                Code.SINK_REFUSED_LOGIN,
                f"the webhook at {self.settings.place} does not accept a resolved or TRUNCATE "
                "message: "
                f"{refused.status}",
                hint="it must answer 2xx to resolved and TRUNCATE messages too, or drop the "
                "option resolved; then RESUME.",
            ) from None


def _poison(target: Target, size: int, status: int) -> ChangefeedError:
    if status == 413:
        return ChangefeedError(
            Code.SINK_CANNOT_TAKE_TABLE,
            f"a message of table {target.table}, topic {target.topic}, is too large for the "
            f"webhook, which answered 413 to it alone, a request of {size} bytes",
            hint="raise the server's limit of a body, or leave the large column out with a column "
            "list, then RESUME.",
            target=target.topic,
            about_row=True,
        )
    return ChangefeedError(
        Code.SINK_REFUSED_DATA,
        f"the webhook refused a message of table {target.table}, topic {target.topic}: "
        f"it answered {status} to it alone",
        hint="check the log of that server, then RESUME.",
        target=target.topic,
        about_row=True,
    )

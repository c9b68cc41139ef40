"""A sink as somebody else's package would bring it, by an entry point: it keeps tables, takes the
options of such sinks, and has a parameter and options of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from changefeed.sink_api import (
    Accepts,
    Batch,
    Capabilities,
    Durability,
    Epoch,
    Feature,
    Parameter,
    Receipt,
    Resolved,
    Settings,
    Sink,
    SinkContext,
    Target,
    Text,
    Truncate,
    own_option,
    setting,
)

GREETING = own_option(
    "greeting",
    Text(),
    "hello",
    summary="What is said first.",
    example="greeting = 'hi'",
    shown="hello",
)
PASSWORD = own_option(
    "door_password", Text(), "", summary="Opens.", example="door_password = 'x'", secret=True
)


@dataclass(frozen=True, kw_only=True)
class ShelfSettings(Settings):
    """The URI of a shelf."""

    shelf_token: str = setting("", "Opens the shelf.", secret=True)
    size: int = setting(9, "How large a shelf is.")


class ForeignSink(Sink):
    """Keeps nothing."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        accepts=Accepts.ROWS,
        features=frozenset({Feature.MERGED_TABLES, Feature.HISTORY}),
        options=(GREETING, PASSWORD),
    )
    parameters: ClassVar[tuple[Parameter, ...]] = ShelfSettings.parameters()

    def __init__(self, uri: str, options: Mapping[str, object] | None = None) -> None:
        self.settings = ShelfSettings.read(uri, options)
        self.options = dict(options or {})

    def open(self, context: SinkContext) -> None:
        """Nothing to connect to."""

    def write(self, batch: Batch) -> Receipt:
        return Receipt(batch.partition, batch.rows.num_rows, batch.rows.nbytes)

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> Durability:
        return Durability.DURABLE

    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        """Nothing was kept."""

    def resolved(self, event: Resolved, payload: bytes) -> None:
        """Nobody reads it."""

    def truncate(self, event: Truncate, target: Target, payload: bytes) -> None:
        """Nothing was kept."""

    def close(self) -> None:
        """Nothing to release."""

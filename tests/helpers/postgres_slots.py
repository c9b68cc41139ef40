"""Replication slots of a PostgreSQL that a test lets go."""

from __future__ import annotations

from typing import Any, Protocol

from tests.helpers.waiting import until


class Executor(Protocol):
    """A database or a server that runs statements."""

    def execute(self, sql: str, parameters: Any = None) -> list[Any]:
        """The rows of a statement."""


def drop_slot(server: Executor, slot: str) -> None:
    """Drop a slot as soon as the server has heard that its reader is gone."""
    free = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND NOT active"
    until(lambda: bool(server.execute(free, [slot])), f"slot {slot} is free")
    server.execute("SELECT pg_drop_replication_slot(%s)", [slot])

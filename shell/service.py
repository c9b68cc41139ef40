"""``changefeed start``: the node without a prompt, until SIGTERM or SIGINT."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from changefeed.core.sizes import Sizes
from changefeed.core.telemetry import LogFormat
from changefeed.service import node_process, serve_until_stopped, stop_on_signals
from changefeed.spark.settings import SparkSettings
from shell.exits import Exit

_FORMAT = "%(asctime)s %(levelname)s %(message)s"


@dataclass(frozen=True, slots=True)
class DoorChoice:
    """What ``--http`` or ``--pg`` and their companions say; see
    :meth:`changefeed.app.Application.http` and :meth:`changefeed.app.Application.pg`."""

    host: str
    port: int
    tls: tuple[str, str] | None = None
    login: bool = False


def serve(
    state: str,
    *,
    spark: SparkSettings | None = None,
    http: DoorChoice | None = None,
    pg: DoorChoice | None = None,
    max_memory: int | None = None,
    max_disk: int | None = None,
    logs: str | None = None,
    lease: float | None = None,
    log_format: LogFormat = LogFormat.TEXT,
    max_copies: int | None = None,
    max_feeds: int | None = None,
    alerts: Sequence[str] = (),
    openlineage: str | None = None,
    otlp: str | None = None,
    sizes: Sizes | None = None,
) -> Exit:
    """Run the feeds of a state; returns after a clean stop.

    ``http`` is where the status page, metrics and health are served, ``pg`` where PostgreSQL's
    protocol is; ``log_format`` is that of the lines on standard error and in node.log; ``alerts``
    are the URIs that alerts go to, ``openlineage`` that of OpenLineage's events, ``otlp`` that of
    OpenTelemetry's collector; the others are those of :class:`~changefeed.app.Application`.

    Raises:
        ChangefeedError: CF6003 another node runs this state; CF6001, CF6002; CF6005 the node
            has ended by itself; CF6006, CF6007, CF1303 ``http`` or ``pg`` cannot be served.
    """
    stopping = stop_on_signals()
    with ExitStack() as stack:
        ready = stack.enter_context(node_process(state))
        from changefeed.app import Application, require_places

        if alerts or openlineage is not None or otlp is not None:
            # Before anything of this node is in the state.
            require_places(alerts, openlineage, otlp)
        logger = stack.enter_context(_logging(log_format))
        application = stack.enter_context(
            Application(
                state,
                settings=spark,
                max_memory=max_memory,
                max_disk=max_disk,
                logs=logs,
                lease=lease,
                max_copies=max_copies,
                max_feeds=max_feeds,
                ready=ready,
                log_format=log_format,
                sizes=sizes,
            )
        )
        application.require_node()
        if http is not None:
            server = stack.enter_context(
                application.http(http.host, http.port, tls=http.tls, login=http.login)
            )
            logger.info("status at %s/, /metrics and /healthz", server.address)
        if pg is not None:
            door = stack.enter_context(application.pg(pg.host, pg.port, tls=pg.tls, login=pg.login))
            logger.info("PostgreSQL's protocol at %s", door.address)
        if alerts:
            stack.enter_context(application.alerts(alerts))
        if openlineage is not None:
            stack.enter_context(application.lineage(openlineage))
        if otlp is not None:
            stack.enter_context(application.otlp(otlp))
        serve_until_stopped(application, stopping)
        logger.info("stopping: feeds keep their position and continue at the next start")
    return Exit.OK


@contextmanager
def _logging(form: LogFormat) -> Iterator[logging.Logger]:
    logger = logging.getLogger("changefeed")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(form.formatter(_FORMAT))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield logger
        logger.info("stopped")
    finally:
        logger.removeHandler(handler)

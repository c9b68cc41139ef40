"""One line in the log for each event in a feed's life, and its errors with address and cause."""

from __future__ import annotations

import logging

from changefeed.catalog import Job, Status
from changefeed.core.errors import ChangefeedError
from changefeed.core.telemetry import log

#: After one of these statuses, running means that the feed has recovered.
_HELD_UP = (Status.RETRYING, Status.STALLED)


def started(job: Job) -> None:
    """Log that a node starts the feed."""
    if job.reason.startswith("resumed"):
        word = "resumed"
    else:
        word = "created" if job.started is None else "taken up"
    log.info("feed %s: %s, from %s to %s", job.name, word, job.source, _address(job) or "a session")


def moved(
    name: str,
    before: Status | None,
    after: Status,
    reason: str,
    error: ChangefeedError | None,
    failed: int = 0,
) -> None:
    """Log a new status of the feed, or a new reason for a retry; ``failed`` tables have failed."""
    level, said = _said(before, after, reason)
    if failed and after is Status.RUNNING:
        said += f", but {failed} of its tables {'has' if failed == 1 else 'have'} failed"
    log.log(level, "feed %s: %s%s", name, f"{error.code.number} " if error else "", said)


def _said(before: Status | None, after: Status, reason: str) -> tuple[int, str]:
    if after is Status.RETRYING:
        return logging.WARNING, reason
    if after is Status.STALLED:
        return logging.WARNING, f"stalled: {reason}"
    if after is Status.FAILED:
        return logging.ERROR, f"failed: {reason}"
    if after in (Status.SCANNING, Status.RUNNING):
        back = "recovered, " if before in _HELD_UP else ""
        if after is Status.RUNNING and before is Status.SCANNING:
            return logging.INFO, "initial scan done, running"
        return logging.INFO, f"{back}{after}"
    return logging.INFO, f"{after}: {reason}"


def explained(error: ChangefeedError, job: Job) -> ChangefeedError:
    """The error as SHOW and the log display it: one line with the cause, and with the sink's
    address if the error is about the sink and does not name it.
    """
    text = error.explained
    place = _address(job)
    host = place.partition("://")[2].rpartition("@")[2].partition("/")[0]
    named = place in text or (host and host in text)
    if place and error.code.is_of_sink and not named:
        text = f"{text} ({place})"
    return ChangefeedError(error.code.number, text, hint=error.hint)


def _address(job: Job) -> str:
    """The sink's URI without secrets and parameters; empty of a sinkless feed."""
    return job.redacted_sink_uri.partition("?")[0]

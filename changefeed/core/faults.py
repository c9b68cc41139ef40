"""Named places where a crash or a full disk matters, so that tests can make one happen there.

Product code calls :func:`fault_point` with a name. Nothing happens unless the environment
variable ``CHANGEFEED_FAULT`` (read once, at import) or :func:`armed` names it::

    log.append.synced:kill         kill -9 this process there
    log.append.synced@3:kill       ... the third time it is reached
    log.append.write@2+:full       from the second time on: OSError(ENOSPC)
    log.roll.created:error         OSError(EIO)

Several rules are separated by commas. Names are the members of :class:`Point`; a rule for
another name is an error, because a test that arms nothing proves nothing.
"""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

#: The environment variable that arms fault points in a child process.
VARIABLE: Final = "CHANGEFEED_FAULT"


class Point(StrEnum):
    """Every place that a rule may name, in the order in which a feed passes them."""

    LOG_APPEND_BEGIN = "log.append.begin"
    LOG_SEGMENT_WRITE = "log.segment.write"
    LOG_SEGMENT_SYNCED = "log.segment.synced"
    LOG_APPEND_WRITE = "log.append.write"
    LOG_APPEND_WRITTEN = "log.append.written"
    LOG_APPEND_SYNCED = "log.append.synced"
    LOG_APPEND_PUBLISHED = "log.append.published"
    LOG_ROLL_BEGIN = "log.roll.begin"
    LOG_ROLL_CREATED = "log.roll.created"
    LOG_LEDGER_WRITE = "log.ledger.write"
    LOG_LEDGER_WRITTEN = "log.ledger.written"
    LOG_LEDGER_RENAMED = "log.ledger.renamed"
    LOG_COMPACT_BEGIN = "log.compact.begin"
    LOG_COMPACT_WRITE = "log.compact.write"
    LOG_COMPACT_WRITTEN = "log.compact.written"
    LOG_COMPACT_DONE = "log.compact.done"
    LOG_RETAIN_DECIDED = "log.retain.decided"
    LOG_SWEEP_BEGIN = "log.sweep.begin"
    LOG_SWEEP_REMOVED = "log.sweep.removed"

    CAPTURE_BEFORE_APPEND = "capture.before_append"
    CAPTURE_BEFORE_ACKNOWLEDGE = "capture.before_acknowledge"
    CAPTURE_AFTER_ACKNOWLEDGE = "capture.after_acknowledge"

    IMAGES_FILLED = "images.filled"
    IMAGES_CHECKPOINT_WRITTEN = "images.checkpoint.written"
    IMAGES_CHECKPOINT_SAVED = "images.checkpoint.saved"
    IMAGES_MERGED = "images.merged"

    RUNNER_BEFORE_WRITE = "runner.before_write"
    RUNNER_AFTER_COMMIT = "runner.after_commit"
    RUNNER_AFTER_SAVE = "runner.after_save"
    DEAD_LETTER_KEPT = "dead_letter.kept"
    RUNNER_AFTER_RENAME = "runner.after_rename"

    SCAN_AFTER_SNAPSHOT = "scan.after_snapshot"
    SCAN_PLACED = "scan.placed"
    SCAN_COMMITTED = "scan.committed"
    SCAN_BEFORE_END = "scan.before_end"
    SCAN_AFTER_END = "scan.after_end"
    SCAN_TABLE_SAVED = "scan.table_saved"

    DATASET_STAGED = "dataset.staged"
    DATASET_VERSION_MADE = "dataset.version.made"
    DATASET_SWITCHED = "dataset.switched"
    DATASET_HISTORY_BEGUN = "dataset.history.begun"
    DATASET_HISTORY_REMOVED = "dataset.history.removed"
    DATASET_HISTORY_MADE = "dataset.history.made"
    DATASET_DONE = "dataset.done"


#: The fault points of the change log.
LOG_POINTS: Final = tuple(point for point in Point if point.startswith("log."))
#: The fault points of the row images.
IMAGES_POINTS: Final = tuple(point for point in Point if point.startswith("images."))
#: The fault points of a comparison of datasets.
DATASET_POINTS: Final = tuple(point for point in Point if point.startswith("dataset."))

_NAMES: Final = frozenset(point.value for point in Point)
_RULE = re.compile(r"(?P<name>[\w.-]+)(?:@(?P<hit>\d+)(?P<onward>\+)?)?:(?P<action>\w+)\Z")


def _kill(name: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _error(name: str) -> None:
    raise OSError(errno.EIO, f"injected at {name}")


def _full(name: str) -> None:
    raise OSError(errno.ENOSPC, f"injected at {name}")


_ACTIONS: Final[dict[str, Callable[[str], None]]] = {"kill": _kill, "error": _error, "full": _full}


@dataclass(slots=True)
class _Rule:
    hit: int
    onward: bool
    action: Callable[[str], None]
    count: int = 0

    def reached(self, name: str) -> None:
        self.count += 1
        if self.count == self.hit or (self.onward and self.count > self.hit):
            self.action(name)


def _parse(text: str) -> dict[str, _Rule] | None:
    rules: dict[str, _Rule] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        match = _RULE.match(part)
        if not match or match["action"] not in _ACTIONS:
            raise ValueError(
                f"not a fault rule: {part!r} (name[@hit[+]]:action, action one of "
                f"{', '.join(_ACTIONS)})"
            )
        if match["name"] not in _NAMES:
            raise ValueError(f"no fault point has the name {match['name']!r}")
        # Without a hit number every visit counts, so that `name:full` means "the disk is full".
        rules[match["name"]] = _Rule(
            hit=int(match["hit"] or 1),
            onward=bool(match["onward"]) or not match["hit"],
            action=_ACTIONS[match["action"]],
        )
    return rules or None


_rules: dict[str, _Rule] | None = _parse(os.environ.get(VARIABLE, ""))


def fault_point(point: Point) -> None:
    """Do what a rule says for ``point``; one comparison when nothing is armed.

    Raises:
        OSError: a rule says ``error`` (EIO) or ``full`` (ENOSPC).
    """
    if _rules is not None:
        rule = _rules.get(point)
        if rule is not None:
            rule.reached(point)


@contextmanager
def armed(text: str) -> Iterator[Callable[[], bool]]:
    """Arm the rules of ``text`` in this process for a block; hits are counted from its start.

    The block gets a function that says whether each rule has acted.

    Raises:
        ValueError: ``text`` is not a list of rules.
    """
    global _rules
    before, _rules = _rules, _parse(text)
    rules = list((_rules or {}).values())
    try:
        yield lambda: all(rule.count >= rule.hit for rule in rules)
    finally:
        _rules = before

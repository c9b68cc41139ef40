"""Named places where a crash or a full disk matters, so that tests can make one happen there.

Product code calls :func:`fault_point` with a name. Nothing happens unless the environment
variable ``CHANGEFEED_FAULT`` (read once, at import) or :func:`armed` names it::

    log.append.synced:kill         kill -9 this process there
    log.append.synced@3:kill       ... the third time it is reached
    log.append.write@2+:full       from the second time on: OSError(ENOSPC)
    log.roll.created:error         OSError(EIO)

Several rules are separated by commas. Names are constants of this module or of the part that
owns the place; a rule for a name nobody reaches does nothing.
"""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

#: The environment variable that arms fault points in a child process.
VARIABLE: Final = "CHANGEFEED_FAULT"

LOG_APPEND_BEGIN: Final = "log.append.begin"
LOG_SEGMENT_WRITE: Final = "log.segment.write"
LOG_SEGMENT_SYNCED: Final = "log.segment.synced"
LOG_APPEND_WRITE: Final = "log.append.write"
LOG_APPEND_WRITTEN: Final = "log.append.written"
LOG_APPEND_SYNCED: Final = "log.append.synced"
LOG_APPEND_PUBLISHED: Final = "log.append.published"
LOG_ROLL_BEGIN: Final = "log.roll.begin"
LOG_ROLL_CREATED: Final = "log.roll.created"
LOG_LEDGER_WRITE: Final = "log.ledger.write"
LOG_LEDGER_WRITTEN: Final = "log.ledger.written"
LOG_LEDGER_RENAMED: Final = "log.ledger.renamed"
LOG_COMPACT_BEGIN: Final = "log.compact.begin"
LOG_COMPACT_WRITE: Final = "log.compact.write"
LOG_COMPACT_WRITTEN: Final = "log.compact.written"
LOG_COMPACT_DONE: Final = "log.compact.done"
LOG_RETAIN_DECIDED: Final = "log.retain.decided"
LOG_SWEEP_BEGIN: Final = "log.sweep.begin"
LOG_SWEEP_REMOVED: Final = "log.sweep.removed"

#: Every fault point of the change log, in the order a life goes through them.
LOG_POINTS: Final = (
    LOG_APPEND_BEGIN,
    LOG_SEGMENT_WRITE,
    LOG_SEGMENT_SYNCED,
    LOG_APPEND_WRITE,
    LOG_APPEND_WRITTEN,
    LOG_APPEND_SYNCED,
    LOG_APPEND_PUBLISHED,
    LOG_ROLL_BEGIN,
    LOG_ROLL_CREATED,
    LOG_LEDGER_WRITE,
    LOG_LEDGER_WRITTEN,
    LOG_LEDGER_RENAMED,
    LOG_COMPACT_BEGIN,
    LOG_COMPACT_WRITE,
    LOG_COMPACT_WRITTEN,
    LOG_COMPACT_DONE,
    LOG_RETAIN_DECIDED,
    LOG_SWEEP_BEGIN,
    LOG_SWEEP_REMOVED,
)

_RULE = re.compile(r"(?P<name>[\w.-]+)(?:@(?P<hit>\d+)(?P<onward>\+)?)?:(?P<action>\w+)\Z")


def _kill(name: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _error(name: str) -> None:
    raise OSError(errno.EIO, f"injected at {name}")


def _full(name: str) -> None:
    raise OSError(errno.ENOSPC, f"injected at {name}")


_ACTIONS: Final[dict[str, Callable[[str], None]]] = {
    "kill": _kill,
    "error": _error,
    "full": _full,
}


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
        # Without a hit number every visit counts, so that `name:full` means "the disk is full".
        rules[match["name"]] = _Rule(
            hit=int(match["hit"] or 1),
            onward=bool(match["onward"]) or not match["hit"],
            action=_ACTIONS[match["action"]],
        )
    return rules or None


_rules: dict[str, _Rule] | None = _parse(os.environ.get(VARIABLE, ""))


def fault_point(name: str) -> None:
    """Do what a rule says for ``name``; one comparison when nothing is armed.

    Raises:
        OSError: a rule says ``error`` (EIO) or ``full`` (ENOSPC).
    """
    if _rules is not None:
        rule = _rules.get(name)
        if rule is not None:
            rule.reached(name)


@contextmanager
def armed(text: str) -> Iterator[None]:
    """Arm the rules of ``text`` in this process for a block; hits are counted from its start.

    Raises:
        ValueError: ``text`` is not a list of rules.
    """
    global _rules
    before, _rules = _rules, _parse(text)
    try:
        yield
    finally:
        _rules = before

"""What became of each operation of a bulk request: one table of verdicts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sinks.elasticsearch.client import BUSY, readable

#: What is wanted of an answer: the outcome of each operation, and no more.
FILTER = "errors,items.*.status,items.*.error.type,items.*.error.reason"

#: How an answer begins when every operation was done.
ALL_DONE = b'{"errors":false'


class Verdict(Enum):
    """What to do about one operation."""

    DONE = "done"
    RETRY = "retry"
    REFUSED = "refused"
    NO_INDEX = "no index"
    FORBIDDEN = "forbidden"


@dataclass(frozen=True, slots=True)
class OperationOutcome:
    """One operation's status, and Elasticsearch's name of the error."""

    status: int
    kind: str = ""
    reason: str = ""

    @property
    def verdict(self) -> Verdict:
        """What to do.

        A version conflict means that something newer is there already: this one arrived late.
        A delete of what is not there leaves its version behind, which is all it is for.
        """
        if self.status < 300 or (self.status == 404 and not self.kind):
            return Verdict.DONE
        if self.kind == "version_conflict_engine_exception":
            return Verdict.DONE
        if self.kind == "security_exception":
            return Verdict.FORBIDDEN
        if self.status in BUSY or self.status == 500 or self.kind == "cluster_block_exception":
            return Verdict.RETRY
        if self.kind in _OF_THE_INDEX:
            return Verdict.NO_INDEX
        return Verdict.REFUSED

    @property
    def shown(self) -> str:
        """The error, and the column and mapping that refused a value.

        The server's reason has these next to the value, which is not shown; nor are names inside a
        json column.
        """
        found = _FIELD.search(self.reason)
        return f"{self.kind} (field {found[1]} of type {found[2]})" if found else self.kind


#: Errors that every document of the index would get, so none of them is a dead letter.
_OF_THE_INDEX = frozenset(
    {"index_not_found_exception", "index_closed_exception", "routing_missing_exception"}
)

_FIELD = re.compile(
    r"failed to parse field \[((?:after\.|before\.)?[^\].]{1,200})[^\]]*\] of type \[(\w+)\]"
)


def outcomes(answer: Mapping[str, Any]) -> list[OperationOutcome]:
    """The outcomes in the order of the request.

    Raises:
        ChangefeedError: CF5001 this is no answer of Elasticsearch.
    """
    with readable():
        return [_outcome(item) for item in answer.get("items") or ()]


def _outcome(item: Mapping[str, Any]) -> OperationOutcome:
    [result] = item.values()
    error = result.get("error") or {}
    return OperationOutcome(
        int(result.get("status") or 0), str(error.get("type") or ""), str(error.get("reason") or "")
    )

"""Documents that an index refused, kept in another one."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator
from typing import Any

from changefeed.core.errors import ChangefeedError, Code
from sinks.elasticsearch import body
from sinks.elasticsearch.answers import ALL_DONE, FILTER, OperationOutcome, Verdict, outcomes
from sinks.elasticsearch.bulk import BulkPart, RefusedOperations, counted
from sinks.elasticsearch.client import Cluster
from sinks.elasticsearch.marks import make_index

_logger = logging.getLogger("changefeed.sinks.elasticsearch")
_logger.addHandler(logging.NullHandler())

#: The document is kept as text: it did not fit its own index, and must fit here.
_FIELDS: dict[str, Any] = {
    "index": {"type": "keyword"},
    "id": {"type": "keyword"},
    "table": {"type": "keyword"},
    "operation": {"type": "keyword"},
    "version": {"type": "long"},
    "error": {"type": "keyword"},
    "reason": {"type": "text"},
    "document": {"type": "keyword", "index": False, "doc_values": False},
}


#: A request of letters is sent when it has so many bytes; one letter may be larger.
_REQUEST_BYTES = 1 << 20


def _requests(letters: Iterable[bytes]) -> Iterator[list[bytes]]:
    waiting: list[bytes] = []
    size = 0
    for letter in letters:
        waiting.append(letter)
        size += len(letter)
        if size >= _REQUEST_BYTES:
            yield waiting
            waiting, size = [], 0
    if waiting:
        yield waiting


class DeadLetters:
    """The index ``dead_letter_index``, or the error that stops a table when there is none."""

    def __init__(self, cluster: Cluster, index: str) -> None:
        self._cluster = cluster
        self._index = index

    def prepare(self) -> None:
        """Make the index when it is missing."""
        if self._index:
            make_index(self._cluster, self._index, _FIELDS)

    def take(self, refused: RefusedOperations) -> None:
        """Keep what was refused, durably; a repeat changes nothing.

        Raises:
            ChangefeedError: CF5003 there is no index for it, or that one refuses too.
        """
        target = refused.part.target
        what = counted(refused.outcomes.values())
        if not self._index:
            raise ChangefeedError(
                Code.SINK_REFUSED_DATA,
                f"index {target.topic} refused documents of table {target.table}: {what}",
                hint="the field does not take the value: change its mapping (json=stored in the "
                "sink URI suits json columns that hold more than objects) or the row, and "
                "RESUME; or add dead_letter_index=NAME to the sink URI, which keeps such "
                "documents there and goes on.",
                target=target.topic,
                about_row=True,
            )
        letters = (self._letter(refused.part, i, o) for i, o in refused.outcomes.items())
        for some in _requests(letters):
            self._send(some)
        _logger.warning("index %s refused %s; kept in %s", target.topic, what, self._index)

    def _send(self, letters: list[bytes]) -> None:
        """Write all the letters to the index.

        Raises:
            ChangefeedError: CF5004 it is busy: the feed delivers the rows once more, and their
                letters with them. CF5003 it refuses a letter too.
        """
        answer = self._cluster.call(
            "POST", "/_bulk", lines=b"".join(letters), filter_path=FILTER, refresh="false"
        )
        if not answer.ok:
            raise self._cluster.refusal(answer, f"write to index {self._index}", rows=True)
        if answer.body.startswith(ALL_DONE):
            return
        left = [o for o in outcomes(answer.json() or {}) if o.verdict is not Verdict.DONE]
        if not left:
            return
        what = counted(left)
        if all(outcome.verdict is Verdict.RETRY for outcome in left):
            raise ChangefeedError(
                Code.SINK_BUSY, f"the dead letter index {self._index} is busy", detail=what
            )
        raise ChangefeedError(
            Code.SINK_REFUSED_DATA,
            f"the dead letter index {self._index} refused letters",
            detail=what,
            hint="made by the feed it takes every letter: remove it, or name another one, and "
            "RESUME.",
        )

    def _letter(self, part: BulkPart, place: int, outcome: OperationOutcome) -> bytes:
        action_line, _, rest = part.lines[place].as_py().partition(b"\n")
        operation, action = next(iter(json.loads(action_line).items()))
        content = {
            "index": action["_index"],
            "id": action["_id"],
            "table": str(part.target.table),
            "operation": operation,
            "version": action["version"],
            "error": outcome.kind,
            "reason": outcome.reason,
            "document": rest.decode().rstrip("\n"),
        }
        name = json.dumps([action["_index"], action["_id"], action["version"]])
        letter_id = hashlib.sha256(name.encode()).hexdigest()
        return body.document(self._index, letter_id, action["version"], content)

"""The options of YugabyteDB's CREATE CDC, which becomes an ordinary changefeed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from changefeed.core.clock import SystemClock
from changefeed.core.errors import Code, raise_all
from changefeed.options import OptionReader, to_span
from changefeed.plan.own_options import split_options
from grammar import nodes
from grammar.spelling import did_you_mean


@dataclass(frozen=True, slots=True)
class CdcOptions:
    """The options of YugabyteDB's CREATE CDC.

    Attributes:
        cluster_address: host and port of the target, a scheme in front taken off.
        target: topic or index; None is the table's name.
        record: what a message holds.
        others: the ordinary options in the same list.
    """

    cluster_address: str
    target: str | None
    record: nodes.CdcRecord
    others: tuple[nodes.Option, ...]


#: The dialect's own options: name, values, what it says.
CDC_OPTIONS: dict[str, tuple[tuple[str, ...], str]] = {
    "cluster_address": ((), "host:port of the target cluster."),
    "topic": ((), "The Kafka topic; the table's name when not given."),
    "index": ((), "The Elasticsearch index; the table's name when not given."),
    "record": (("AFTER", "CHANGE", "ALL"), "The row after the change, what changed, or both rows."),
}
_CDC_TARGET = {"kafka": "topic", "elasticsearch": "index"}


def parse_cdc_options(kind: str, options: Sequence[nodes.Option], *, text: str = "") -> CdcOptions:
    """Check the dialect's own options; the ordinary ones are handed on unread.

    Raises:
        ChangefeedError: as :func:`parse_options`.
    """
    reading = OptionReader(SystemClock(), text)
    refused = {"topic", "index"} - {_CDC_TARGET[kind]}
    for node in options:
        if node.name in refused:
            text = f"this sink is incompatible with option {node.name}"
            reading.problem(Code.OPTION_DOES_NOT_FIT_SINK, text, to_span(node.span))
    given, others = split_options(
        [node for node in options if node.name not in refused], CDC_OPTIONS, reading
    )
    if "record" in given:
        _check_record(given["record"], reading)
    own = {name: value.text.strip() for name, value in given.items()}
    if "cluster_address" not in own and not reading.problems:
        reading.problem(Code.INVALID_OPTION_VALUE, 'option "cluster_address" is needed', None)
    raise_all(reading.problems)
    return CdcOptions(
        own["cluster_address"].rpartition("://")[2].rstrip("/"),
        own.get(_CDC_TARGET[kind]),
        nodes.CdcRecord(own.get("record", "after").lower()),
        others,
    )


def _check_record(value: nodes.Literal, reading: OptionReader) -> None:
    known = CDC_OPTIONS["record"][0]
    if value.text.upper() not in known:
        near = did_you_mean(value.text, known)
        reading.problem(
            Code.INVALID_OPTION_VALUE,
            f"unknown record: {value.text}, valid values are 'AFTER', 'CHANGE' and 'ALL'",
            to_span(value.span),
            f"did you mean {near}?" if near else "",
        )

"""YugabyteDB's ``CREATE CDC`` as an ordinary changefeed.

=============  ==================================================
``record``     envelope
=============  ==================================================
``AFTER``      ``row``: the whole row after the change
``ALL``        ``wrapped`` with ``diff``: the row before and after
``CHANGE``     ``changed``: the columns that have another value; Kafka
               only, because part of a row is not a document
=============  ==================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from changefeed.core.clock import SystemClock
from changefeed.core.errors import ChangefeedError, Code, raise_all
from changefeed.options import OptionReader, one_of, to_span
from changefeed.plan.own_options import split_options
from grammar import nodes
from grammar.spelling import did_you_mean

#: ``INTO`` of the dialect -> URI scheme.
_SCHEMES = {"kafka": "kafka", "elasticsearch": "elasticsearch"}

_ENVELOPES = {
    nodes.CdcRecord.AFTER: (nodes.Option("envelope", nodes.Literal("row")),),
    nodes.CdcRecord.ALL: (nodes.Option("envelope", nodes.Literal("wrapped")), nodes.Option("diff")),
    nodes.CdcRecord.CHANGE: (nodes.Option("envelope", nodes.Literal("changed")),),
}


def feed_name(table: nodes.QualifiedName) -> str:
    """The name of the feed that CREATE CDC makes for a table, and DROP CDC drops."""
    return "_".join(("cdc", *table.parts))


def is_cdc(feed: str) -> bool:
    """Whether a feed of this name was made by CREATE CDC, so that DROP CDC finds it."""
    return feed.startswith("cdc_")


def translate(statement: nodes.CreateCdc, text: str = "") -> nodes.CreateChangefeed:
    """The CREATE CHANGEFEED with the same meaning.

    Raises:
        ChangefeedError: CF1203, CF1204 of the dialect's options; CF1303 ``record = CHANGE`` into
            Elasticsearch.
    """
    kind = statement.kind.lower()
    own = parse_cdc_options(kind, statement.options, text=text)
    scheme = _SCHEMES.get(kind, kind)
    address = _option(statement, "cluster_address")
    uri = f"{scheme}://{own.cluster_address}"
    if address and address.value and address.value.text.strip().startswith("https://"):
        uri = (
            f"kafka://{own.cluster_address}?tls_enabled=true"
            if kind == "kafka"
            else (f"elasticsearch+https://{own.cluster_address}")
        )
    span = address.value.span if address and address.value else None
    return nodes.CreateChangefeed(
        targets=(nodes.TableTarget(statement.table, topic=own.target, span=statement.table.span),),
        name=feed_name(statement.table),
        sink=nodes.Literal(uri, span=span),
        options=(*_shape(statement, own), *own.others),
        if_not_exists=statement.if_not_exists,
        span=statement.span,
    )


def _shape(statement: nodes.CreateCdc, own: CdcOptions) -> tuple[nodes.Option, ...]:
    """The envelope of ``record``, unless the list has the option envelope."""
    if any(option.name == "envelope" for option in own.others):
        return ()
    if own.record is nodes.CdcRecord.CHANGE and statement.kind.lower() == "elasticsearch":
        record = _option(statement, "record")
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            "record = CHANGE is not supported into Elasticsearch: part of a row is not a document",
            hint="record = ALL has the row before and after, record = AFTER the row after.",
            span=to_span(record.value.span if record and record.value else statement.span),
        )
    return _ENVELOPES[own.record]


def _option(statement: nodes.CreateCdc, name: str) -> nodes.Option | None:
    return next((o for o in statement.options if o.name == name), None)


# ------------------------------------------------------------------------------- options


@dataclass(frozen=True, slots=True)
class CdcOptions:
    """The options of YugabyteDB's CREATE CDC.

    Attributes:
        cluster_address: host and port of the target, without a scheme.
        target: topic or index; None is the table's name.
        record: the content of a message.
        others: the ordinary options in the same list.
    """

    cluster_address: str
    target: str | None
    record: nodes.CdcRecord
    others: tuple[nodes.Option, ...]


#: The dialect's own options: name, values, meaning.
CDC_OPTIONS: dict[str, tuple[tuple[str, ...], str]] = {
    "cluster_address": ((), "host:port of the target cluster."),
    "topic": ((), "The Kafka topic; the table's name when not given."),
    "index": ((), "The Elasticsearch index; the table's name when not given."),
    "record": (("AFTER", "CHANGE", "ALL"), "The row after the change, what changed, or both rows."),
}
_CDC_TARGET = {"kafka": "topic", "elasticsearch": "index"}


def parse_cdc_options(kind: str, options: Sequence[nodes.Option], *, text: str = "") -> CdcOptions:
    """Check the dialect's own options; the ordinary ones are returned unchecked.

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
            f"unknown record: {value.text}, {one_of(known)}",
            to_span(value.span),
            f"did you mean {near}?" if near else "",
        )

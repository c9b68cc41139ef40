"""YugabyteDB's ``CREATE CDC`` as an ordinary changefeed.

=============  ==================================================
``record``     our envelope
=============  ==================================================
``AFTER``      ``row``: the whole row after the change
``ALL``        ``wrapped`` with ``diff``: the row before and after
``CHANGE``     ``changed``: the columns that have another value; Kafka
               only, because part of a row is not a document
=============  ==================================================
"""

from __future__ import annotations

from changefeed.core.errors import ChangefeedError, Code
from changefeed.options import to_span
from changefeed.plan.cdc_options import CdcOptions, parse_cdc_options
from grammar import nodes

#: ``INTO`` of the dialect -> URI scheme.
_SCHEMES = {"kafka": "kafka", "elasticsearch": "elasticsearch"}

_ENVELOPES = {
    nodes.CdcRecord.AFTER: (nodes.Option("envelope", nodes.Literal("row")),),
    nodes.CdcRecord.ALL: (
        nodes.Option("envelope", nodes.Literal("wrapped")),
        nodes.Option("diff"),
    ),
    nodes.CdcRecord.CHANGE: (nodes.Option("envelope", nodes.Literal("changed")),),
}


def feed_name(table: nodes.QualifiedName) -> str:
    """The name of the feed that CREATE CDC makes for a table, and DROP CDC drops."""
    return "_".join(("cdc", *table.parts))


def is_cdc(feed: str) -> bool:
    """Whether a feed of this name was made by CREATE CDC, so that DROP CDC finds it."""
    return feed.startswith("cdc_")


def translate(statement: nodes.CreateCdc, text: str = "") -> nodes.CreateChangefeed:
    """The CREATE CHANGEFEED that does the same.

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
        span=statement.span,
    )


def _shape(statement: nodes.CreateCdc, own: CdcOptions) -> tuple[nodes.Option, ...]:
    """The envelope of ``record``, unless the list has an envelope of its own."""
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

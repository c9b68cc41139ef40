"""The formats: one row for each.

A new one is a module with a :class:`MessageFormat` and a row here; what options ask of it is a row
of :data:`changefeed.core.formats.TRAITS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import pyarrow as pa

from changefeed.core.arrow import MESSAGE_SCHEMA
from changefeed.core.shapes import Format
from changefeed.encoding.avro.format import AvroFormat
from changefeed.encoding.csv_lines import CsvFormat
from changefeed.encoding.json_envelope import JsonFormat
from changefeed.encoding.message_format import MessageFormat
from changefeed.encoding.parquet import ParquetFormat
from changefeed.encoding.plan import MessagePlan
from changefeed.encoding.protobuf.format import ProtobufFormat

FORMATS: Mapping[Format, MessageFormat] = {
    Format.JSON: JsonFormat(),
    Format.AVRO: AvroFormat(),
    Format.PROTOBUF: ProtobufFormat(),
    Format.PARQUET: ParquetFormat(),
    Format.CSV: CsvFormat(),
}

_VALUE = MESSAGE_SCHEMA.get_field_index("value")


@lru_cache(maxsize=1024)
def message_schema(plan: MessagePlan) -> pa.Schema:
    """The Arrow schema of a plan's messages.

    Raises:
        ChangefeedError: CF1302, the columns' names do not go together in the format.
    """
    field = FORMATS[plan.format].value_field(plan)
    plain = MESSAGE_SCHEMA.field(_VALUE).equals(field, check_metadata=True)
    return MESSAGE_SCHEMA if plain else MESSAGE_SCHEMA.set(_VALUE, field)

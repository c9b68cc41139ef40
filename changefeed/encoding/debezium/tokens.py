"""Values of the log as the JSON tokens of Debezium's messages, a column at a time.

They are what Kafka Connect's ``JsonConverter`` writes for the values that Debezium's connectors
give it: bytes in base64, decimals as the bytes of their digits, moments as numbers.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.schema import Column
from changefeed.encoding.byte_text import base64
from changefeed.encoding.debezium.connect_values import (
    connect_values,
    element_of,
    fitting,
    items,
    scales,
)
from changefeed.encoding.debezium.fields import ConnectType, Conversion
from changefeed.encoding.json_text import escaped

_NOTHING = pa.scalar("", pa.string())
_NULL = "null"


def tokens(field: ConnectType, column: Column, values: pa.Array) -> pa.Array:
    """The tokens of a column of the log; for NULL ``null``, or zero where the column is NOT NULL.

    Raises:
        ChangefeedError: CF4001, a value does not fit.
    """
    with fitting(column.name):
        made = _token(field, column.logical, values, column.name)
    null = _NULL if column.nullable else field.zero
    return pc.fill_null(made, null) if made.null_count else made


def _token(field: ConnectType, logical: str, values: pa.Array, name: str) -> pa.Array:
    if field.items is not None:
        return _array(field.items, logical, values, name)
    found = connect_values(field, values, name)
    if field.way is Conversion.SCALED:
        scale = scales(values).cast(pa.string())
        return _joined('{"scale":', scale, ',"value":"', base64(found), '"}')
    if pa.types.is_binary(found.type):
        return _joined('"', base64(found), '"')
    if field.type == "string":
        return _joined('"', escaped(found), '"')
    return found.cast(pa.string())


def _joined(*parts: str | pa.Array) -> pa.Array:
    """The parts beside each other; NULL where one is."""
    return pc.binary_join_element_wise(
        *(pa.scalar(part, pa.string()) if isinstance(part, str) else part for part in parts),
        _NOTHING,
    )


#: Arrays that are the same characters in the log and in the message.
_SAME = (Conversion.AS_IS, Conversion.TEXT)


def _array(element: ConnectType, logical: str, values: pa.Array, name: str) -> pa.Array:
    if element.way in _SAME:
        return values
    lists = items(logical, values, name)
    made = pc.fill_null(_token(element, element_of(logical), lists.values, name), _NULL)
    mask = lists.is_null() if lists.null_count else None
    texts = pa.ListArray.from_arrays(lists.offsets, made, mask=mask)
    return _joined("[", pc.binary_join(texts, ","), "]")

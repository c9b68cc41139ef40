"""How each format writes messages, as its row in :mod:`changefeed.core.formats` says."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import lru_cache

import pyarrow as pa

from changefeed.core.arrow import MESSAGE_SCHEMA
from changefeed.core.formats import TRAITS, Format
from changefeed.encoding.message_format import MessageFormat
from changefeed.encoding.plan import MessagePlan


def _made(written_by: str) -> MessageFormat:
    module, _, name = written_by.partition(":")
    made = getattr(importlib.import_module(module), name)()
    if not isinstance(made, MessageFormat):
        raise TypeError(f"{written_by} is no MessageFormat")
    return made


FORMATS: Mapping[Format, MessageFormat] = {
    name: _made(traits.written_by) for name, traits in TRAITS.items()
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

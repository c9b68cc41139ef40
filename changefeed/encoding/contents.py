"""Values that are what an application wrote, byte for byte: the contents of logical messages."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.logical_messages import BYTES, CONTENT
from changefeed.encoding.plan import MessagePlan
from changefeed.encoding.typed_values import typed_values
from changefeed.encoding.types import typed


def contents(batch: pa.RecordBatch, plan: MessagePlan) -> pa.Array:
    """What each message holds; a plan of messages has the columns."""
    text = batch.column(f"a{plan.ordinal(CONTENT)}").cast(pa.binary())
    if not text.null_count:
        return text
    place = plan.ordinal(BYTES)
    values = batch.column(f"a{place}")
    return pc.coalesce(text, typed_values(typed(plan.schema.columns[place]), values, BYTES))

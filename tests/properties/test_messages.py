"""Messages made by Arrow equal those of a plain Python model, whatever is in the rows."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, given, settings

from changefeed.messages.encode import encode_messages
from changefeed.spark.plan import MessagePlan
from tests.properties.test_spark_messages import NOW, cases
from tests.spark_model import Row, log_table, messages

EXAMPLES = int(os.environ.get("CHANGEFEED_TEST_EXAMPLES", "200"))


@given(cases())
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_messages_equal_the_model(case: tuple[MessagePlan, list[Row]]) -> None:
    plan, rows = case
    made = encode_messages(log_table(plan.schema, rows), plan, now_ns=NOW)
    assert made.drop_columns(["headers"]).to_pylist() == messages(plan, rows, NOW)
    assert made["headers"].null_count == made.num_rows

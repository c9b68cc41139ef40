"""A message plan: what it derives, what it refuses, when two are the same."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import fields, replace

import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.core.formats import Format
from changefeed.core.partition import Members
from changefeed.core.schema import BeforeImage
from changefeed.core.shapes import Deletes, Envelope, Unsent
from changefeed.encoding.plan import MessagePlan, Origin, QueryShape, SchemaIds
from tests.helpers.message_model import column, table

T = table([column("a", "int4"), column("b", "text"), column("c", "jsonb")])
FULL = replace(T, before_image=BeforeImage.FULL)

DIFFERENT: dict[str, object] = {
    "query": QueryShape("SELECT a FROM t"),
    "logical": True,
    "content": True,
    "schema": FULL,
    "topic": "u",
    "envelope": Envelope.ROW,
    "format": Format.CSV,
    "diff": True,
    "updated": True,
    "mvcc_timestamp": True,
    "key_in_value": True,
    "topic_in_value": True,
    "projection": ("a",),
    "key_from": ("1",),
    "key_to": ("2",),
    "within": (Members(1, ("x", None)),),
    "deletes": Deletes.NO,
    "collapse": False,
    "headers_column": "c",
    "extra_headers": (("x", "1"),),
    "key_column": "b",
    "json_null_as_object": True,
    "source": (("job_id", 1),),
    "registered": SchemaIds(1, 2),
    "avro_name": "x",
    "avro_namespace": "x",
    "schemas_enabled": True,
    "origin": Origin("mysql"),
    "unsent": Unsent.OMIT,
    "transactions": True,
}


@pytest.mark.parametrize("name", [f.name for f in fields(MessagePlan)])
def test_every_field_counts(name: str) -> None:
    plan = MessagePlan(T, "t")
    other = replace(plan, **{name: DIFFERENT[name]})  # type: ignore[arg-type]
    assert other != plan
    assert other.fingerprint != plan.fingerprint
    assert hash(other) != hash(plan)


def test_equal_plans_are_one_key() -> None:
    one, two = MessagePlan(T, "t", updated=True), MessagePlan(T, "t", updated=True)
    assert {one: 1}[two] == 1
    assert {one: 1}[pickle.loads(pickle.dumps(two))] == 1


def test_the_version_number_of_a_schema_does_not_count() -> None:
    assert MessagePlan(T.with_version(3), "t").fingerprint == MessagePlan(T, "t").fingerprint


def test_fingerprint_is_the_same_in_every_process() -> None:
    code = (
        "from tests.unit.test_message_plan import T, MessagePlan; "
        "print(MessagePlan(T, 't', projection=('b',)).fingerprint)"
    )
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert other.stdout.strip() == MessagePlan(T, "t", projection=("b",)).fingerprint


@pytest.mark.parametrize(
    ("plan", "inputs"),
    [
        (MessagePlan(T, "t"), "a0 a1 a2 b0"),
        (MessagePlan(T, "t", projection=("b",)), "a0 a1 b0"),
        (MessagePlan(T, "t", Envelope.KEY_ONLY), "a0 b0"),
        (MessagePlan(FULL, "t"), "a0 a1 a2 b0"),
        (MessagePlan(FULL, "t", diff=True, projection=("b",)), "a0 a1 b0 b1"),
        (MessagePlan(FULL, "t", Envelope.KEY_ONLY, key_column="b"), "a0 a1 b0 b1"),
        (MessagePlan(FULL, "t", Envelope.KEY_ONLY, headers_column="c"), "a0 a2 b0 b2"),
    ],
)
def test_only_the_columns_that_are_needed_are_read(plan: MessagePlan, inputs: str) -> None:
    assert " ".join(plan.inputs) == inputs


@pytest.mark.parametrize("option", ["headers_column", "key_column"])
def test_a_column_that_is_not_there(option: str) -> None:
    with pytest.raises(ChangefeedError, match="required column x not present on table t"):
        MessagePlan(T, "t", **{option: "x"})  # type: ignore[arg-type]


def test_values_longer_than_the_key() -> None:
    with pytest.raises(ChangefeedError, match="more columns than the key"):
        MessagePlan(T, "t", key_from=("1", "2"))

"""The columns a target should have, and what keeps one that is there from having them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableSchema
from changefeed.options import History
from sinks.lake.merge import own_columns
from sinks.lake.types import VARIANT, declared, spark_type, widens
from sinks.merged.policy import TablePolicy

#: Formats without a type of two bytes.
_NO_SMALL = ("iceberg",)


def wanted(schema: TableSchema, policy: TablePolicy, table_format: str) -> dict[str, str]:
    """The columns a target should have: name to type, the source's first.

    Raises:
        ChangefeedError: CF5006, two of them have one name for Spark.
    """
    small, schema = table_format not in _NO_SMALL, declared(schema, policy.numbers)
    variants = policy.variants(schema)
    found = {
        c.name: VARIANT if i in variants else spark_type(c.logical, small=small)
        for i, c in enumerate(schema.columns)
    }
    for name, kind in own_columns(policy, keyless=schema.keyless):
        if name in found:
            raise cannot(
                schema,
                f"column {name} of the table has the name of a column of the target",
                "name another one by sequence_column, or leave the column out by a SELECT.",
            )
        found[name] = kind
    if len({name.lower() for name in found}) < len(found):
        raise cannot(schema, "two columns differ in upper and lower case only")
    return found


#: What to do about a column that cannot have the type of the source's.
OTHER_TYPE = (
    "let the feed cast it by a SELECT, or DROP the feed, move the target away and CREATE the feed "
    "again."
)


@dataclass
class Fit:
    """What it takes to give a table the wanted columns.

    Attributes:
        missing: columns to add, name to type.
        wider: columns to widen, by the table's own names.
        problems: what cannot be done, CF5006.
    """

    missing: dict[str, str] = field(default_factory=dict)
    wider: dict[str, str] = field(default_factory=dict)
    problems: list[ChangefeedError] = field(default_factory=list)


def fit(
    schema: TableSchema, policy: TablePolicy, table_format: str, present: Mapping[str, str]
) -> Fit:
    """Compare what a table has with what it should have.

    Raises:
        ChangefeedError: CF5006, what :func:`wanted` says.
    """
    found = Fit()
    there = {name.lower(): (name, kind) for name, kind in present.items()}
    for name, kind in wanted(schema, policy, table_format).items():
        if name.lower() not in there:
            found.missing[name] = kind
            continue
        own, old = there[name.lower()]
        # Numbers of a narrower type fit as they are.
        if old == kind or widens(kind, old, table_format):
            continue
        if widens(old, kind, table_format):
            found.wider[own] = kind
        else:
            found.problems.append(
                cannot(
                    schema,
                    f"column {own} is {old} in the target and cannot become {kind}",
                    OTHER_TYPE,
                )
            )
    keys = () if schema.keyless or policy.history is History.APPEND else schema.key_columns
    lacking = [column.name for column in keys if column.name in found.missing]
    if lacking:
        found.problems.append(
            cannot(
                schema,
                f"it has no column {lacking[0]}, which is part of the key",
                "move the table away, or name another target by AS.",
            )
        )
    return found


def cannot(schema: TableSchema, reason: str, hint: str = "") -> ChangefeedError:
    """CF5006 for the target of a table."""
    return ChangefeedError(
        Code.SINK_CANNOT_TAKE_TABLE,
        f"the target of {schema.table} cannot follow: {reason}",
        hint=hint,
    )

"""The SQL that lake tables get: ``tests/golden/lake/statements.txt``.

An input is a case of :data:`CASES`; the output is its statements, one a line. What they do is
proved on Delta and Iceberg in ``tests/conformance/test_lake.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from changefeed.core.schema import Column
from changefeed.options import History
from changefeed_testing.sinks.rows import column_of, table_of
from sinks.lake import merge
from sinks.merged.policy import TablePolicy
from tests.golden import runner

KEYED = table_of("t", key=("id", "name"), id="int32", name="text", total="decimal(12,2)")
KEYLESS = table_of("t", id="int32", name="text")
JSON = table_of(
    "t",
    key=("id",),
    id="json",
    doc="json",
    list="array<json>",
    words="array<text>",
    sums="array<decimal>",
    prices="array<decimal(9,2)>",
)
BOUNDS = {"c0": (1, 9), "c1": ("a'b", "z"), "c2": ("0", "9")}
UNSENT = merge.source(KEYED, TablePolicy(), "staged", missing={2})
SOFT, SCD2, APPEND = (
    TablePolicy(soft=True),
    TablePolicy(history=History.SCD2),
    TablePolicy(history=History.APPEND),
)
POLICIES = {
    "plain": TablePolicy(),
    "soft": SOFT,
    "soft, iceberg": TablePolicy("_version", soft=True, deleted=merge.DELETED["iceberg"]),
    "scd2": SCD2,
    "scd2, soft": TablePolicy(soft=True, history=History.SCD2),
    "append": APPEND,
    "append, soft": TablePolicy(soft=True, history=History.APPEND),
}


def _own_columns() -> list[str]:
    found = []
    for name, policy in POLICIES.items():
        for keyless in (False, True):
            own = ", ".join(f"{n} {kind}" for n, kind in merge.own_columns(policy, keyless=keyless))
            found.append(f"{name}{', no key' if keyless else ''}: {own}")
    return found


def _merges() -> list[str]:
    rows = merge.source(KEYED, TablePolicy(), "staged")
    return [merge.merge("t", KEYED, POLICIES[n], rows) for n in ("plain", "soft", "soft, iceberg")]


def _scans() -> list[str]:
    rows = merge.source(KEYED, TablePolicy(), "staged")
    return [
        *(merge.scanned_versions("t", KEYED, POLICIES[n], rows) for n in ("scd2", "scd2, soft")),
        merge.scanned_versions("t", KEYED, SCD2, "rows", BOUNDS),
        *(f"{n}: {merge.first_version(policy, '7')}" for n, policy in POLICIES.items()),
    ]


def _variants() -> list[str]:
    plain, scd2 = TablePolicy(variant=True), TablePolicy(history=History.SCD2, variant=True)
    rows = merge.source(JSON, plain, "staged")
    return [
        merge.merge("t", JSON, plain, rows),
        merge.scanned_versions("t", JSON, scd2, merge.source(JSON, scd2, "staged")),
        merge.source(table_of("t", doc="json"), plain, "staged"),
    ]


def _comparable() -> list[str]:
    kinds = ("int16", "int64", "bool", "text", "uuid", "decimal(12,2)", "date", "timestamptz")
    columns: list[Column] = [column_of("c", kind, 1) for kind in kinds]
    return [f"{c.logical}: {merge.comparable(c)}" for c in columns]


CASES: Mapping[str, Callable[[], list[str]]] = {
    "columns of ours": _own_columns,
    "a round of changes": _merges,
    "a round whose keys lie within bounds": lambda: [
        merge.merge("t", KEYED, TablePolicy(), "rows", bounds=BOUNDS),
        *merge.within(KEYED, {"c1": ("a", "b")}),
    ],
    "columns whose bounds are compared": _comparable,
    "unsent values": lambda: [
        *(merge.merge("t", KEYED, POLICIES[n], UNSENT, missing={2}) for n in ("plain", "soft")),
        merge.carried("t", KEYED, APPEND, "rows", {2}),
        merge.carried("t", KEYED, SCD2, "rows", {2}, BOUNDS),
    ],
    "all changes": lambda: [
        merge.append("t", KEYED, APPEND, "rows"),
        merge.truncation("t", APPEND, 1_700_000_000_123_456_789, 42),
        merge.broken_scans("t", APPEND, 5),
    ],
    "versions": lambda: [
        merge.versions("t", KEYED, SCD2, "rows"),
        merge.versions("t", KEYED, POLICIES["scd2, soft"], "rows", BOUNDS),
    ],
    "rows of a scan": _scans,
    "a table without a key": lambda: [
        merge.counted("t", KEYLESS, TablePolicy(), "staged"),
        merge.numbered(KEYLESS, TablePolicy(), "staged"),
    ],
    "json as variant": _variants,
    "rows that go": lambda: [
        f"{n}: {merge.remove('t', layout, 'id > 5', 900)}"
        for n, layout in POLICIES.items()
        if layout.history != "append"
    ],
}


@pytest.mark.parametrize("file", runner.files("lake"))
def test_statements(file: Path, rewrite: bool) -> None:
    runner.run(file, lambda case: "\n".join(CASES[case]()), rewrite=rewrite)


def test_every_case_is_in_the_file() -> None:
    file = runner.FOLDER / "lake" / "statements.txt"
    assert [case.input for case in runner.cases(file)] == list(CASES)

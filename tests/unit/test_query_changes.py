"""What changes of a table become as changes of a query's result; without Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.core.schema import BeforeImage, Column, TableName, TableSchema
from changefeed.core.types import LogicalType
from changefeed.query.changes import changes_of_result
from changefeed.query.model import CompiledQuery, Output
from changefeed.query.types import output_column

ID = Column("id", "integer", LogicalType.parse("int32"), nullable=False, column_id=1)
STATUS = Column("status", "text", LogicalType.parse("text"), column_id=2)
TOTAL = Column("total", "integer", LogicalType.parse("int32"), column_id=3)
DOUBLED = output_column("doubled", "int")
KEY_ONLY = TableSchema(TableName("shop", "public", "orders"), (ID, STATUS, TOTAL), (0,))
FULL = replace(KEY_ONLY, before_image=BeforeImage.FULL)

#: ``SELECT id, total * 2 AS doubled FROM orders WHERE status = 'open'``
OPEN = CompiledQuery(
    text="SELECT",
    source=FULL,
    schema=replace(FULL, columns=(ID, DOUBLED)),
    outputs=(Output(0, None, "int"), Output(None, 1, "int")),
    shown=2,
    sql="SELECT",
    row_sql="SELECT",
    inputs=(1, 2),
    filtered=True,
    of_changes=False,
    tells_change=False,
    uses_prev=False,
    where_inputs=(1,),
)
OPEN_BY_KEY = replace(
    OPEN, source=KEY_ONLY, schema=replace(OPEN.schema, before_image=BeforeImage.KEY)
)


def open_rows(query: CompiledQuery, batch: pa.Table) -> pa.Table:
    """What Spark would answer."""
    found = [row for row in batch.to_pylist() if row["__cf_always"] or row["status"] == "open"]
    doubled = [None if row["total"] is None else row["total"] * 2 for row in found]
    rows = pa.array([row["__cf_row"] for row in found], pa.int32())
    return pa.table({"__cf_row": rows, "c1": pa.array(doubled, pa.int32())})


Row = tuple[int, str, int] | None


def log(
    schema: TableSchema, *changes: tuple[str, Row, Row], missing: str | None = None
) -> pa.Table:
    """Rows of the log: operation, row after, row before."""
    rows = []
    for seq, (op, after, before) in enumerate(changes):
        row: dict[str, Any] = {
            "op": op, "wall": 5, "logical": 0, "seq": seq, "ord": seq, "xid": 1,
            "commit_us": 0, "last": True, "missing": missing,
        }  # fmt: skip
        for i in range(3):
            row[f"a{i}"] = after[i] if after else None
        for i in schema.before_ordinals:
            row[f"b{i}"] = before[i] if before else None
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=schema.log_schema())


def told(table: pa.Table) -> list[tuple[Any, ...]]:
    """Operation, values after and before."""
    return [
        (row["op"], row["a0"], row["a1"], row.get("b0"), row.get("b1")) for row in table.to_pylist()
    ]


def test_a_known_row_before_says_whether_a_row_enters_stays_or_leaves() -> None:
    rows = log(
        FULL,
        ("u", (1, "open", 5), (1, "shut", 4)),
        ("u", (2, "open", 5), (2, "open", 4)),
        ("u", (3, "shut", 5), (3, "open", 4)),
        ("u", (4, "shut", 5), (4, "late", 4)),
        ("d", None, (5, "open", 4)),
        ("d", None, (6, "shut", 4)),
        ("c", (7, "shut", 5), None),
        ("c", (8, "open", 5), None),
        ("r", (9, "open", 5), None),
    )
    assert told(changes_of_result(OPEN, rows, open_rows, before=True)) == [
        ("c", 1, 10, None, None),
        ("u", 2, 10, 2, 8),
        ("d", None, None, 3, 8),
        ("d", None, None, 5, 8),
        ("c", 8, 10, None, None),
        ("r", 9, 10, None, None),
    ]


def test_deletes_without_the_row_before_evaluate_nothing() -> None:
    """Spark answers a batch without rows with no bytes at all, which failed the feed for good."""

    def run(query: CompiledQuery, batch: pa.Table) -> pa.Table:
        raise AssertionError("nothing to evaluate")

    rows = log(KEY_ONLY, ("d", None, (1, "", 0)), ("d", None, (2, "", 0)))
    assert told(changes_of_result(OPEN_BY_KEY, rows, run)) == [
        ("d", None, None, 1, None),
        ("d", None, None, 2, None),
    ]


def test_without_the_row_before_an_update_that_does_not_fit_is_a_delete() -> None:
    rows = log(
        KEY_ONLY,
        ("u", (1, "open", 5), None),
        ("u", (2, "shut", 5), None),
        ("d", None, (3, "", 0)),
        ("c", (4, "shut", 5), None),
    )
    made = changes_of_result(OPEN_BY_KEY, rows, open_rows)
    assert [(row["op"], row["a0"], row["b0"]) for row in made.to_pylist()] == [
        ("u", 1, None),
        ("d", None, 2),
        ("d", None, 3),
    ]


def test_a_row_that_fitted_only_inside_of_its_transaction_is_a_delete_to_who_saw_that() -> None:
    rows = log(KEY_ONLY, ("c", (1, "shut", 5), None), ("c", (2, "open", 5), None))
    made = changes_of_result(OPEN_BY_KEY, rows, open_rows, superseded=True)
    assert [(row["op"], row["a0"], row["b0"]) for row in made.to_pylist()] == [
        ("d", None, 1),
        ("c", 2, None),
    ]


def test_a_row_of_which_the_image_before_is_not_known_may_have_been_there() -> None:
    """The replica identity was raised to FULL after the change was logged without old values."""
    made = changes_of_result(OPEN, log(FULL, ("u", (1, "shut", 5), None)), open_rows)
    assert [(row["op"], row["b0"]) for row in made.to_pylist()] == [("d", 1)]


def test_a_where_over_changes_selects_changes_and_tells_of_no_leaving() -> None:
    query = replace(OPEN, of_changes=True)
    rows = log(
        FULL,
        ("u", (1, "shut", 5), (1, "open", 4)),
        ("u", (2, "open", 5), (2, "shut", 4)),
        ("d", None, (3, "open", 4)),
    )
    # The row of a delete is its key: it has no status.
    assert [(r[0], r[1]) for r in told(changes_of_result(query, rows, open_rows))] == [("u", 2)]


def test_a_delete_may_have_values_of_its_own() -> None:
    query = replace(
        OPEN, of_changes=True, tells_change=True, filtered=False, sql="SELECT `__cf_op`"
    )

    def everything(query: CompiledQuery, batch: pa.Table) -> pa.Table:
        codes = {"insert": 1, "update": 2, "delete": 3}
        found = [codes[name] for name in batch["__cf_op"].to_pylist()]
        return pa.table({"__cf_row": batch["__cf_row"], "c1": pa.array(found, pa.int32())})

    rows = log(
        FULL, ("c", (1, "a", 5), None), ("u", (1, "b", 5), (1, "a", 5)), ("d", None, (1, "b", 5))
    )
    assert told(changes_of_result(query, rows, everything)) == [
        ("c", 1, 1, None, None),
        ("u", 1, 2, 1, None),
        ("d", None, None, 1, 3),
    ]


def test_only_columns_that_are_read_go_to_spark() -> None:
    seen: list[list[str]] = []

    def run(query: CompiledQuery, batch: pa.Table) -> pa.Table:
        seen.append(batch.column_names)
        return open_rows(query, batch)

    rows = log(FULL, ("c", (1, "open", 5), None))
    changes_of_result(OPEN, rows, run)
    for read in ("__cf_op", "__cf_time"):
        changes_of_result(replace(OPEN, sql=f"SELECT `{read}`"), rows, run)
    always = ["status", "total", "__cf_row", "__cf_always"]
    assert seen == [always, [*always, "__cf_op"], [*always, "__cf_time"]]


def test_a_query_that_chooses_columns_needs_no_evaluation() -> None:
    def never(query: CompiledQuery, batch: pa.Table) -> pa.Table:
        raise AssertionError("nothing is computed")

    query = replace(
        OPEN,
        sql=None,
        filtered=False,
        where_inputs=(),
        schema=replace(FULL, columns=(ID, TOTAL)),
        outputs=(Output(0, None, "int"), Output(2, None, "int")),
    )
    rows = log(FULL, ("u", (1, "open", 5), (1, "open", 4)), ("d", None, (2, "x", 9)))
    assert told(changes_of_result(query, rows, never)) == [
        ("u", 1, 5, 1, 4),
        ("d", None, None, 2, 9),
    ]


def test_a_key_that_is_not_selected_is_kept_behind() -> None:
    query = replace(
        OPEN,
        schema=replace(FULL, columns=(DOUBLED, ID), key=(1,)),
        outputs=(Output(None, 1, "int"), Output(0, None, "")),
        shown=1,
    )
    rows = log(FULL, ("c", (7, "open", 5), None), ("d", None, (8, "open", 5)))
    assert told(changes_of_result(query, rows, open_rows)) == [
        ("c", 10, 7, None, None),
        ("d", None, None, 10, 8),
    ]
    assert query.shape.hidden == (1,) and query.hides_key == ("id",)


def test_an_unsent_value_that_the_query_reads_is_an_error_and_others_are_renamed() -> None:
    rows = log(FULL, ("u", (1, "open", 5), (1, "open", 4)), missing='["status"]')
    with pytest.raises(ChangefeedError) as caught:
        changes_of_result(OPEN, rows, open_rows)
    assert caught.value.code.number == "CF4001" and "REPLICA IDENTITY FULL" in caught.value.hint
    query = replace(
        OPEN,
        sql=None,
        filtered=False,
        where_inputs=(),
        schema=replace(FULL, columns=(ID, replace(STATUS, name="state"))),
        outputs=(Output(0, None, "int"), Output(1, None, "string")),
        inputs=(),
    )
    made = changes_of_result(query, rows, open_rows)
    assert made["missing"].to_pylist() == ['["state"]']


def test_no_rows_make_no_rows() -> None:
    assert changes_of_result(OPEN, log(FULL), open_rows).num_rows == 0

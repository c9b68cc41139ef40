"""EXPLAIN: the stages of a plan as a table."""

from __future__ import annotations

from changefeed.plan.stages import SHOWN_TABLES, FeedPlan, TableStage

#: Columns of EXPLAIN's answer.
COLUMNS = ("stage", "detail")


def explain_rows(plan: FeedPlan) -> list[tuple[str, str]]:
    """One row per fact, in the order in which a table's row passes the stages."""
    rows: list[tuple[str, str]] = []
    tables = 0
    for stage in plan.stages:
        if isinstance(stage, TableStage):
            tables += 1
            if tables > SHOWN_TABLES:
                continue
        rows += [(stage.name, line) for line in stage.lines()]
    if tables > SHOWN_TABLES:
        place = max(i for i, (name, _) in enumerate(rows) if name == "table")
        rows.insert(place + 1, ("table", f"and {tables - SHOWN_TABLES} tables more"))
    return rows

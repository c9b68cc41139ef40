"""``changefeed dataset``: one comparison, shown as a small table."""

from __future__ import annotations

from pathlib import Path

import click

from changefeed.dataset import Operation
from changefeed.dataset.run import run_config
from changefeed.spark.settings import SparkSettings
from shell.exits import Exit

_MEANINGS = {
    Operation.INSERT: "inserted",
    Operation.UPDATE: "updated",
    Operation.DELETE: "deleted",
    Operation.NOT_SUPPLIED: "not supplied",
    Operation.NO_CHANGE: "unchanged",
}


def compare_dataset(config: Path, extract: str, date: str, settings: SparkSettings) -> Exit:
    """Run one comparison and print its counts; the exit status."""
    outcome = run_config(config, extract, date, settings)
    described = outcome.dataset
    click.echo(f"dataset {described.name}, effective {outcome.version.date}")
    for operation, meaning in _MEANINGS.items():
        rows = outcome.counts.get(operation.value, 0)
        if rows:
            click.echo(f"  {operation.value}  {rows:>14,}  {meaning}")
    if not outcome.counts:
        click.echo("  no rows")
    click.echo(f"current  {described.current}{_table(described.current_table)}")
    click.echo(f"history  {described.history}{_table(described.history_table)}")
    if described.sensitive is not None:
        both = (described.sensitive_table, described.sensitive_history_table)
        click.echo(f"sensitive  {described.sensitive}{''.join(map(_table, both))}")
    click.echo(f"took {outcome.seconds:.1f} s without Spark's start")
    return Exit.OK


def _table(name: str | None) -> str:
    return "" if name is None else f", table {name}"

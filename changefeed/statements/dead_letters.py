"""Rows that were refused: SHOW CHANGEFEED f DEAD LETTERS, RETRY and DISCARD."""

from __future__ import annotations

import json
from collections.abc import Sequence

from changefeed.catalog import Job
from changefeed.catalog.model import RowRepair
from changefeed.catalog.rows import DeadLetter
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import RowKey, TableName
from changefeed.options import to_span
from changefeed.statements.alter import go_on
from changefeed.statements.brief import written_name
from changefeed.statements.context import Context, Result, handles
from changefeed.statements.notices import not_taken_yet
from changefeed.statements.rights import Role
from changefeed.statements.tables import scans_of_paused
from changefeed.statements.times import instant, moment
from changefeed.statements.values import Cell
from grammar import nodes

COLUMNS = (
    "letter",
    "time",
    "table",
    "code",
    "problem",
    "change",
    "position",
    "state",
    "key",
    "row",
)
STATEMENT_COLUMNS = ("letters", "name")

_CHANGES = {"c": "insert", "u": "update", "d": "delete", "r": "scan"}


def listing(job: Job, context: Context) -> Result:
    """SHOW CHANGEFEED f DEAD LETTERS: the oldest first. A user without the role operator who
    does not own the feed sees a digest in the place of the key, and no row."""
    now = context.clock.now().wall
    role, own = context.session.role, job.owner is not None and context.session.bound == job.owner
    values = role is None or role.covers(Role.OPERATOR)
    values = values or (own and context.catalog.hindrance(job.id) is None)
    rows: list[tuple[Cell, ...]] = [
        (
            letter.id,
            moment(letter.refused, now),
            written_name(letter.table),
            letter.code,
            letter.message,
            _CHANGES.get(letter.op, letter.op),
            instant(letter.position, now),
            "is read again" if letter.retry else "kept",
            letter.key if values else letter.digest,
            letter.row if values else None,
        )
        for letter in context.catalog.dead_letters(job.id)
    ]
    notices = []
    if rows and not values:
        notices.append("values are shown to the role operator; key is a digest here")
    return Result(columns=COLUMNS, rows=rows, notices=notices)


@handles(nodes.RetryDeadLetters)
def retry(statement: nodes.RetryDeadLetters, context: Context) -> Result:
    """RETRY: read the rows again by key, in a scan; it returns when the feed knows of it."""
    job = context.job(statement.feed)
    letters = _letters(statement, job, context)
    lacking = [letter for letter in letters if letter.keyless]
    if lacking and (statement.letters or len(lacking) == len(letters)):
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            f"letter {lacking[0].id} is of table {written_name(lacking[0].table)}, which has no "
            "key: its row cannot be read again alone",
            hint=f"ALTER CHANGEFEED {job.name} RESCAN {written_name(lacking[0].table)} reads the "
            f"whole table; DISCARD CHANGEFEED {job.name} DEAD LETTERS removes letters.",
            span=to_span(statement.span),
        )
    notices = []
    if lacking:
        notices.append(f"{_count(lacking)} of tables without a key stay: RESCAN these tables")
    letters = [letter for letter in letters if not letter.keyless]
    there = {table.table for table in context.catalog.tables(job.id)}
    repair = {name: found for name, found in _repairs(letters).items() if name in there}
    if repair:
        if job.is_query:
            notices.append("the feed delivers the result of a query: its table is read as a whole")
        altered = context.catalog.alter_job(
            job.id,
            repair=repair,
            letters=[letter.id for letter in letters],
            by=context.session.user,
        )
        notices += go_on(job, context) + scans_of_paused(job, repair, context)
        context.host.wake()
        notices += not_taken_yet(altered, context)
    return Result(
        "rows",
        STATEMENT_COLUMNS,
        [(len(letters), job.name)],
        notices,
        tag="RETRY CHANGEFEED",
    )


@handles(nodes.DiscardDeadLetters)
def discard(statement: nodes.DiscardDeadLetters, context: Context) -> Result:
    """DISCARD: remove letters; their rows are not delivered."""
    job = context.job(statement.feed)
    letters = _letters(statement, job, context)
    count = (
        context.catalog.discard_dead_letters(
            job.id, [letter.id for letter in letters], context.session.user
        )
        if letters
        else 0
    )
    return Result("rows", STATEMENT_COLUMNS, [(count, job.name)], tag="DISCARD CHANGEFEED")


def _letters(
    statement: nodes.RetryDeadLetters | nodes.DiscardDeadLetters, job: Job, context: Context
) -> list[DeadLetter]:
    """The letters that a statement is about.

    Raises:
        ChangefeedError: CF1101, there is none of a number.
    """
    letters = context.catalog.dead_letters(job.id, statement.letters)
    unknown = sorted(set(statement.letters) - {letter.id for letter in letters})
    if unknown:
        raise ChangefeedError(
            Code.NAME_UNKNOWN,
            f'changefeed "{job.name}" has no dead letter {unknown[0]}',
            hint=f"SHOW CHANGEFEED {job.name} DEAD LETTERS lists them.",
            span=to_span(statement.span),
        )
    return letters


def _repairs(letters: Sequence[DeadLetter]) -> dict[TableName, RowRepair]:
    """The rows to read again. Of a delete that was refused, the target may have the row still."""
    found: dict[TableName, RowRepair] = {}
    for letter in letters:
        key: tuple[RowKey, ...] = (tuple(json.loads(letter.key)),)
        one = RowRepair(extra=key) if letter.op == "d" else RowRepair(wrong=key)
        found[letter.table] = one.joined(found.get(letter.table))
    return found


def _count(letters: Sequence[DeadLetter]) -> str:
    return "1 letter" if len(letters) == 1 else f"{len(letters):,} letters"

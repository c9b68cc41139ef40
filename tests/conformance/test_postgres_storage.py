"""Statements that change stored rows without a row in the stream, and those that seem to."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.events import ChangeBatch, Frontier, SchemaChange, Truncate
from changefeed.sources.base import StreamRequest
from changefeed.sources.postgres import PostgresSource
from changefeed.sources.postgres.idle_changes import IdleChanges
from changefeed.sources.postgres.storage_changes import FILE_NAME, StorageWatch
from tests.conformance.conftest import ALL
from tests.helpers.postgres_tail import Catalog, Tail, prepare, tailing
from tests.helpers.waiting import until
from tests.services.postgres import Database

pytestmark = pytest.mark.postgres


@dataclass(frozen=True)
class History:
    """What happens to the table ``name``: a table with a key ``id`` and ``v``, a partitioned one
    if ``parted`` (``name_a`` with row 1, ``name_b`` with row 11, ``name_e`` without a row,
    ``name_s`` with the partition ``name_s1`` and row 41).

    Attributes:
        name: of the table, which its statements call ``{t}``.
        statements: each a transaction.
        why: what is said of it; None: nothing may be said, no row was changed.
        moved: rows came or left.
        parted: partitioned by range of ``id``.
        columns: further ones.
        key: the columns of its key.
    """

    name: str
    statements: tuple[str, ...]
    why: str | None
    moved: bool = False
    parted: bool = True
    columns: str = ""
    key: str = "id"


def moved(name: str, why: str, *statements: str) -> History:
    return History(name, statements, why.replace("{t}", name), moved=True)


def quiet(name: str, *statements: str, parted: bool = True) -> History:
    return History(name, statements, None, parted=parted)


def written(
    name: str, why: str, *statements: str, parted: bool = False, columns: str = ""
) -> History:
    return History(name, statements, why, parted=parted, columns=columns)


HISTORIES = [
    # Partitions.
    moved(
        "attach",
        "partition {t}_c attached",
        "create table {t}_c (id int primary key, v int); insert into {t}_c values (21, 21)",
        "alter table {t} attach partition {t}_c for values from (20) to (30)",
    ),
    moved(
        "attach_at_once",
        "partition {t}_c attached",
        "create table {t}_c (id int primary key, v int); insert into {t}_c values (21, 1);"
        "alter table {t} attach partition {t}_c for values from (20) to (30)",
    ),
    moved("off", "partition {t}_b detached or dropped", "alter table {t} detach partition {t}_b"),
    moved(
        "detach_slowly",
        "partition {t}_b detached or dropped",
        "alter table {t} detach partition {t}_b concurrently",
    ),
    moved("gone", "partition {t}_b detached or dropped", "drop table {t}_b"),
    moved("emptied", "partition {t}_b truncated", "truncate {t}_b"),
    moved(
        "refilled",
        "partition {t}_b truncated",
        "truncate {t}_b; insert into {t} values (12, 12)",
        "vacuum full {t}_b",
    ),
    moved("deep", "partition {t}_s1 truncated", "truncate {t}_s1"),
    moved(
        "deep_off",
        "partition {t}_s1 detached or dropped",
        "alter table {t} detach partition {t}_s",
    ),
    moved(
        "edited",
        "partition {t}_b detached and attached again",
        "alter table {t} detach partition {t}_b; update {t}_b set v = 0;"
        "alter table {t} attach partition {t}_b for values from (10) to (20)",
    ),
    quiet("new", "create table {t}_c partition of {t} for values from (20) to (30);"
        "insert into {t} values (21, 21)"),
    quiet(
        "new_empty",
        "create table {t}_c (like {t} including all)",
        "alter table {t} attach partition {t}_c for values from (20) to (30)",
    ),
    quiet("whole", "insert into {t} values (2, 2); truncate {t}; insert into {t} values (12, 12)"),
    quiet("whole_copy", "vacuum full {t}"),
    quiet("clustered", "cluster {t}_a using {t}_a_pkey", "reindex table {t}_b", "analyze {t}"),
    quiet("elsewhere", "create schema {t}_other; alter table {t}_b set schema {t}_other"),
    quiet("renamed", "alter table {t}_b rename to {t}_z; grant select on {t}_z to public"),
    # Rewrites.
    written("same", 'ALTER TABLE changed stored rows (column "v")',
        "alter table {t} alter v type int using v * 10"),
    written("wider", 'ALTER TABLE changed stored rows (column "v")',
        "alter table {t} alter v type bigint using v + 1"),
    written("wider_and_rows", 'ALTER TABLE changed stored rows (column "v")',
        "insert into {t} values (5, 5); alter table {t} alter v type bigint using v + 1;"
        "insert into {t} values (6, 6)"),
    written("rewritten_parts", 'ALTER TABLE changed stored rows (column "v")',
        "alter table {t} alter v type int using v * 10", parted=True),
    # A rewrite of all partitions, and one of them lost its rows before it or after it.
    moved("emptied_rewritten",
        'partition {t}_b truncated; ALTER TABLE changed stored rows (column "v")',
        "truncate {t}_b; alter table {t} alter v type int using v * 10"),
    moved("rewritten_emptied",
        'partition {t}_b truncated; ALTER TABLE changed stored rows (column "v")',
        "alter table {t} alter v type int using v * 10; truncate {t}_b"),
    History("keyed", ("alter table {t} alter id type int using id + 100",),
        'ALTER TABLE changed stored rows (column "id")', moved=True, parted=False),
    History("keyed_and_rows", ("alter table {t} alter id type int using -id, alter v type text;"
        "insert into {t} values (7, 'seven')",),
        "ALTER TABLE changed stored keys", moved=True, parted=False),
    written("plain_now", 'ALTER TABLE changed stored rows (column "g")',
        "alter table {t} alter g drop expression",
        columns=", g int generated always as (v + 1) stored"),
    written("labels", 'label "calm" of type labels_mood is "serene" now',
        "alter type {t}_mood rename value 'calm' to 'serene'",
        columns=", m labels_mood default 'calm'"),
    written("many_labels", 'label "calm" of type many_labels_mood is "serene" now',
        "alter type {t}_mood rename value 'calm' to 'serene'",
        columns=", m many_labels_domain[] default '{{calm,wild}}'"),
    History("keyed_labels", ("alter type {t}_mood rename value 'calm' to 'serene'",),
        'label "calm" of type keyed_labels_mood is "serene" now', moved=True, parted=False,
        columns=", m keyed_labels_domain default 'calm'", key="m, id"),
    written("pairs", "type pairs_pair has other attributes",
        "alter type {t}_pair add attribute z int", columns=", p pairs_pair default (1, 'calm')"),
    History("more_labels", ("alter type {t}_mood add value 'new' before 'calm'",
        "alter type {t}_pair rename attribute x to u"), None, parted=False,
        columns=", m more_labels_mood default 'calm', p more_labels_pair default (1, 'calm')"),
    quiet("same_file", "vacuum full {t}",
        "cluster {t} using {t}_pkey", "reindex table {t}", parted=False),
    quiet("definitions", "alter table {t} alter v set statistics 7;"
        "alter table {t} alter v set not null;"
        "create index on {t}(v); analyze {t}", parted=False),
    quiet("sent", "truncate {t}; insert into {t} values (3, 3)", parted=False),
    quiet("family", "create table {t}_child () inherits ({t}); insert into {t}_child values (9, 9);"
        "alter table {t}_child no inherit {t}; alter table {t}_child inherit {t}", parted=False),
]  # fmt: skip


#: Histories of which a look may come between two statements.
UNREAD = [
    # Rows that came beside the rewrite may be what a partition was filled with again.
    moved("refilled_rewritten",
        "partitions {t}_a, {t}_b, {t}_s1 perhaps truncated;"
        ' ALTER TABLE changed stored rows (column "v")',
        "truncate {t}_b; insert into {t} values (12, 12)",
        "alter table {t} alter v type int using v * 10"),
    moved("rewritten_refilled",
        "partition {t}_b truncated; partitions {t}_a, {t}_s1 perhaps truncated;"
        ' ALTER TABLE changed stored rows (column "v")',
        "alter table {t} alter v type int using v * 10",
        "truncate {t}_b; insert into {t} values (12, 12)"),
    written("rewritten_copied", 'ALTER TABLE changed stored rows (column "v")',
        "alter table {t} alter v type int using v * 10", "vacuum full {t}_b", parted=True),
]  # fmt: skip


def make(db: Database, history: History) -> None:
    t = history.name
    db.execute(
        f"create type {t}_mood as enum ('calm', 'wild'); create domain {t}_domain as {t}_mood;"
        f"create type {t}_pair as (x int, y {t}_mood)"
    )
    by = " partition by range (id)" if history.parted else ""
    columns = f"id int, v int{history.columns.format()}, primary key ({history.key})"
    db.execute(f"create table {t} ({columns}){by}")
    if history.parted:
        db.execute(
            f"create table {t}_a partition of {t} for values from (0) to (10);"
            f"create table {t}_b partition of {t} for values from (10) to (20);"
            f"create table {t}_e partition of {t} for values from (30) to (40);"
            f"create table {t}_s partition of {t} for values from (40) to (60)"
            " partition by range (id);"
            f"create table {t}_s1 partition of {t}_s for values from (40) to (50)"
        )


def fill(db: Database, history: History) -> None:
    rows = "(1, 1), (11, 11), (41, 41)" if history.parted else "(1, 1), (2, 2)"
    db.execute(f"insert into {history.name} (id, v) values {rows}")


def run(db: Database, history: History) -> None:
    for statement in history.statements:
        db.execute(statement.format(t=history.name))


def said(tail: Tail) -> dict[str, list[SchemaChange]]:
    """Of each table the changes of rows that no row described."""
    found: dict[str, list[SchemaChange]] = {}
    for event in tail.events:
        if isinstance(event, SchemaChange) and event.rewritten:
            found.setdefault(event.new.table.name, []).append(event)
    return found


def check(tail: Tail, histories: list[History]) -> None:
    """Each is said once. The last history says something, so what the others say was said."""
    until(lambda: histories[-1].name in said(tail), "the last one is said")
    found = {
        name: [(change.why, change.moved) for change in changes]
        for name, changes in said(tail).items()
    }
    assert found == {h.name: [(h.why, h.moved)] for h in histories if h.why is not None}


LAST = written("last", 'ALTER TABLE changed stored rows (column "v")',
    "alter table {t} alter v type int using v * 10")  # fmt: skip


def published(db: Database, *more: History) -> list[History]:
    """Make all tables, publish them, and give them their rows.

    ``DETACH .. CONCURRENTLY`` waits for every transaction, so it comes first."""
    first = [h for h in HISTORIES if h.name == "detach_slowly"]
    histories = [*first, *(h for h in HISTORIES if h not in first), *more, LAST]
    for history in histories:
        make(db, history)
    prepare(db, ", ".join(h.name for h in histories), "publish_via_partition_root = true")
    for history in histories:
        fill(db, history)
    return histories


@ALL
def test_what_is_said_of_each_statement(postgres: Database, tmp_path: Path) -> None:
    histories = published(postgres)
    with tailing(postgres, tmp_path) as tail:
        until((tmp_path / FILE_NAME).exists, "the tables were looked at")
        for history in histories:
            run(postgres, history)
        check(tail, histories)
        assert [e.schema.table.name for e in tail.events if isinstance(e, Truncate)] == [
            "whole",
            "sent",
        ]


@ALL
def test_the_same_while_nobody_reads(postgres: Database, tmp_path: Path) -> None:
    histories = published(postgres, *UNREAD)
    catalog = Catalog()
    with tailing(postgres, tmp_path, catalog=catalog) as tail:
        until((tmp_path / FILE_NAME).exists, "the tables were looked at")
        tail.catch_up()
        start = tail.frontier
    for history in histories:
        run(postgres, history)
    with tailing(postgres, tmp_path, catalog=catalog, start=start) as tail:
        check(tail, histories)


def test_what_happens_between_joining_and_the_first_look(
    postgres: Database, tmp_path: Path
) -> None:
    """The rows may have been read in between, by the process that set up the source."""
    parted = History("parted", (), None)
    plain, keyed, calm = (quiet(name, parted=False) for name in ("plain", "keyed", "calm"))
    label = History("label", (), None, parted=False, columns=", m label_mood default 'calm'")
    labelled = replace(
        label, name="labelled", columns=label.columns.replace("label_", "labelled_"), key="id, m"
    )
    every = (parted, plain, keyed, calm, label, labelled)
    for history in every:
        make(postgres, history)
        fill(postgres, history)
    catalog = Catalog()
    with closing(PostgresSource("src", postgres.uri)) as source:
        held = source.attach(postgres.name, None)
        tables = [source.describe("public", history.name) for history in every]
        held.capture([table.table for table in tables], resume=False)
        for table in tables:
            catalog.intern(table)
        postgres.execute("alter table parted detach partition parted_b")
        postgres.execute("alter table plain alter v type int using v * 10")
        postgres.execute("alter table keyed alter id type int using -id")
        for name in ("label", "labelled"):
            postgres.execute(f"alter type {name}_mood rename value 'calm' to 'serene'")
        postgres.execute("alter table calm alter v set not null, add w int")
        held.capture([table.table for table in tables], resume=True)
        position, _ = held.start()
        stream = held.stream(
            StreamRequest(
                start=Frontier(Timestamp.ZERO, position),
                identity=source.identity(),
                memo=lambda: held.memo,
                intern=catalog.intern,
                latest=catalog.latest,
                names=lambda oid: (),
                spool=tmp_path / "spool",
                folder=tmp_path,
            )
        )
        found: list[tuple[str, str, bool]] = []
        for flush in stream:
            found += [
                (event.new.table.name, event.why, event.moved)
                for event in flush.events
                if isinstance(event, SchemaChange) and event.rewritten
            ]
            if (tmp_path / FILE_NAME).exists():
                break
        stream.close()
        held.release()
    assert sorted(found) == [
        ("keyed", "its stored rows or types changed when it was read for the first time", True),
        ("label", "its stored rows or types changed when it was read for the first time", False),
        ("labelled", "its stored rows or types changed when it was read for the first time", True),
        ("parted", "its partitions changed when it was read for the first time", True),
        ("plain", "its stored rows or types changed when it was read for the first time", False),
    ]


@pytest.mark.parametrize("taken", [False, True])
def test_new_rows_that_nobody_reads_again_are_remembered(
    taken: bool, postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition is truncated and filled again, its reader is killed before the next look, and the
    table is rewritten: only what the reader has noted says that rows may have left."""
    [history] = (h for h in UNREAD if h.name == "refilled_rewritten")
    truncated, refilled, rewritten = (
        part
        for statement in history.statements
        for part in statement.format(t=history.name).split(";")
    )
    make(postgres, history)
    prepare(postgres, history.name, "publish_via_partition_root = true")
    fill(postgres, history)
    if taken:
        monkeypatch.setattr(StorageWatch, "filled", lambda *_, **__: [])
    with tailing(postgres, tmp_path) as tail:
        until((tmp_path / FILE_NAME).exists, "the table was looked at")
        tail.catch_up()
        catalog = tail.catalog
    monkeypatch.setattr(IdleChanges, "due", lambda *_, **__: [])
    with tailing(postgres, tmp_path, catalog=catalog, start=tail.frontier) as tail:
        postgres.execute(truncated)
        postgres.execute(refilled)
        until(lambda: any(isinstance(e, ChangeBatch) for e in tail.events), "the new row is read")
        tail.catch_up()
    monkeypatch.undo()
    postgres.execute(rewritten)
    with tailing(postgres, tmp_path, catalog=catalog, start=tail.frontier) as tail:
        until(lambda: said(tail), "it is noticed")
        [[change]] = said(tail).values()
        assert change.moved is not taken
